"""The events of a run: what of each client is released, read off the very value that is simulated."""

import contextlib
import dataclasses
import functools

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import (
    Adjacency,
    Composed,
    Event,
    GaussianSteps,
    NotCoveredError,
    Unit,
    View,
    squared_mu,
)
from fedjax_dp.accounting.composed_phases import with_past
from fedjax_dp.accounting.events import distinct, each, of_group
from fedjax_dp.parts.facts import require_facts
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.privacy.release_table import ReleaseTable
from fedjax_dp.privacy.terms import BY_NAME_ALONE
from fedjax_dp.rounds.algorithm import Algorithm


def client_events(run: PlannedRun) -> list[Event]:
    """The event of each client: what the adversary of the run's view receives that depends on it.

    Of phases that the run goes on from it is what theirs received.
    """
    return with_before(run, own_events(run))


def own_events(run: PlannedRun) -> list[Event]:
    """The same of the run alone."""
    return with_paid(run.algorithm, training_events(run))


def with_before(run: PlannedRun, events: list[Event]) -> list[Event]:
    """The events with those of the phases before.

    Raises: ConfigurationError where these are of another unit or other neighbours.
    """
    return with_past(run.past(adjacency_of(events)), events)


def adjacency_of(events: list[Event]) -> Adjacency | None:
    """Of whatever is released; None where nothing is."""
    return next((step.adjacency for event in distinct(events) for step, _ in event.leaves()), None)


def with_paid(algorithm: Algorithm, training: list[Event]) -> list[Event]:
    """The events with what clients paid before for how they are drawn."""
    paid = algorithm.cohort.setup_event
    if paid is None:
        return training
    return each(training, lambda event: Composed((paid, event)))


def training_events(run: PlannedRun, at_least: int = 0) -> list[Event]:
    """The same without what clients paid before for how they are drawn: what rounds release, given their cohorts.

    `at_least` rounds are counted even for clients that are never drawn.
    """
    require_facts(run.algorithm)
    colluders = run.terms.colluders
    if colluders and run.view is View.UPLOADS:
        raise errors.refuse("colluders", colluders, "0 in view uploads, where others' noise does not count", "drop it")
    table = ReleaseTable(run)
    if len(table.levels.factors) > 1 and table.participation in BY_NAME_ALONE:
        wanted = "schedule, law or worst where the noise differs from round to round"
        raise errors.refuse("participation", table.participation, wanted, "nobody says of which rounds it would be")
    ledger = table.events(at_least)
    return ledger if table.by_client or run.unit is Unit.RECORD else _of_units(run, ledger)


def _of_units(run: PlannedRun, ledger: list[Event]) -> list[Event]:
    """What the rounds release of all records of a user, a text or a token that has some at a client.

    That is no more than there are, where sizes are public; a unit that may join can bring more. One that has records at
    several clients is taken to have them at the dearest ones beside: releases of clients compose.
    Raises: ConfigurationError where no client is known to be dearest.
    """
    bound = run.bound

    @functools.cache
    def grouped(event: Event, records: int) -> Event:
        joins = any(step.adjacency is Adjacency.ADD_REMOVE for step, _ in event.leaves())
        return of_group(event, run.unit, bound.records if joins else min(bound.records, records))

    at_client = [grouped(*one) for one in zip(ledger, np.asarray(run.data.sizes).tolist(), strict=True)]
    others = min(bound.clients, run.data.num_clients) - 1
    if not others:
        return at_client
    elsewhere = (_dearest(distinct(at_client), run.unit),) * others
    return each(at_client, lambda event: Composed((event, *elsewhere)))


def _dearest(events: list[Event], unit: Unit) -> Event:
    """An event that costs no less than each of these, whatever delta."""
    costly = [event for event in events if any(True for _ in event.leaves())]
    if len(costly) < 2:
        return costly[0] if costly else Composed(())
    with contextlib.suppress(NotCoveredError, ZeroDivisionError):  # of sampled sums, and without noise
        return max(costly, key=squared_mu)
    steps = [event for event in costly if isinstance(event, GaussianSteps)]
    kinds = {dataclasses.replace(step, noise_multiplier=1.0, count=0) for step in steps}
    if len(kinds) == 1 and len(steps) == len(costly):
        least, most = min(step.noise_multiplier for step in steps), max(step.count for step in steps)
        return dataclasses.replace(steps[0], noise_multiplier=least, count=most)
    wanted = f"at one client where a {unit.value} at several may have the dearest ones, and none is known to be"
    raise errors.refuse("unit", unit.value, wanted, "use clients of one size, full batches or epochs")
