"""The events of a run: what is released of each client, derived from the algorithm that is simulated."""

from fedjax_dp import errors
from fedjax_dp.accounting import Event, View
from fedjax_dp.parts.facts import require_facts
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.privacy.release_table import ReleaseTable
from fedjax_dp.privacy.terms import BY_NAME_ALONE


def client_events(run: PlannedRun) -> list[Event]:
    """The event of each client: everything that depends on it and that the adversary of the run's view receives.

    For earlier phases the adversary is that of their own view.
    """
    return with_qualifiers(run, training_events(run))


def with_qualifiers(run: PlannedRun, events: list[Event]) -> list[Event]:
    """The events of all clients, from the releases of the rounds: earlier phases and other releases are added."""
    for one in run.qualifiers:
        events = one.releases(events)
    return events


def own_events(run: PlannedRun, events: list[Event]) -> list[Event]:
    """The events of all clients without the releases of earlier runs."""
    for one in run.qualifiers:
        if one.in_run:
            events = one.releases(events)
    return events


def training_events(run: PlannedRun, at_least: int = 0) -> list[Event]:
    """The releases of the rounds alone, for given cohorts: without releases before the first round.

    `at_least` rounds are counted even for clients that are never drawn.
    """
    require_facts(run.algorithm)
    colluders = run.terms.colluders
    if colluders and run.view is View.UPLOADS:
        raise errors.refuse("colluders", colluders, "0 in view uploads, where others' noise does not count", "drop it")
    table = ReleaseTable(run)
    if len(table.levels.factors) > 1 and table.participation in BY_NAME_ALONE:
        wanted = "schedule, law or worst where the noise differs from round to round"
        raise errors.refuse("participation", table.participation, wanted, "the rounds it counts are undefined")
    events = table.events(at_least)
    for one in run.qualifiers:
        events = one.rounds(events)
    return events
