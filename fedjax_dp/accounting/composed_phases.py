"""Phases of training on the same members, by the facts that their ledgers have of them: what each released of whom.

The line of a run's phase has what the run releases of each client (`spent`), which phases before it its Guarantee is of
too (`continues`: so many lines back), and digests of its clients' names and of its records: where one of both is the
same, client k is client k.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting.accountants import epsilons_of
from fedjax_dp.accounting.events import AnyOf, Composed, Event, Past, combine_by_client, distinct, number_events
from fedjax_dp.accounting.guarantee import EarlierPhase
from fedjax_dp.accounting.ledger import MALFORMED, decode_event, encode_events, ids_of
from fedjax_dp.accounting.neighbours import Adjacency, Unit
from fedjax_dp.accounting.releases import GaussianSteps, Release, StatedPrivacy
from fedjax_dp.accounting.sampling import (
    AnyStep,
    FullBatch,
    Poisson,
    Shuffled,
    WithoutReplacement,
)

FILE = "file"  # the kind of a phase of which words alone are known
LEAST_EPSILON = 1e-6  # that stands for 0, where a delta is all that was spent
ANY_CLIENT = "every client is taken for the worst of its clients, as nobody knows which is which"
MOST_COMPARED = 300  # events of clients of which any may be the worst
Phase = Mapping[str, Any]
Kind = tuple[Unit, Adjacency]


def encode_releases(events: Sequence[Event]) -> dict[str, Any]:
    """What is released of each client, as JSON: events, and of which clients each is."""
    return encode_events(*number_events(events), np.arange(len(events)))


def digest_of_names(names: Sequence[str] | None) -> str | None:
    """Of the names of clients in their order: it says of no single name whether it is one of them."""
    if names is None or len(set(names)) < len(names):
        return None
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()


def is_private(phase: Phase) -> bool:
    """Whether a price of it is known, so that it composes with others.

    That of a point of a sweep is not: it was chosen among others, by whatever they released.
    """
    if phase["kind"] == FILE:
        return phase.get("stated") is not None
    known = all(phase.get(name) is not None for name in ("epsilon", "delta", "unit", "adjacency"))
    return known and not phase.get("in_sweep")


def without_price(phase: Phase) -> str:
    """Why no price is known of a run's phase, in words."""
    if phase.get("in_sweep"):
        return "one point of a sweep, which costs more than itself as it was chosen among others (fedjax-dp best)"
    unknown = phase.get("epsilon") is None and phase.get("spent") is None
    return "a run that had no privacy" if unknown else "of whose epsilon not all is known"


def describe_phase(phase: Phase) -> str:
    """What it was, in words."""
    if phase["kind"] == FILE:
        return str(phase["name"])
    rounds = phase["rounds"]
    return f"{phase['algorithm']} on {phase['dataset'] or 'data without a name'}, {rounds:,} round{'s' * (rounds != 1)}"


def kind_of(phase: Phase) -> Kind | None:
    """Its unit and neighbours; None where nobody says them.

    Raises: ConfigurationError for others than are known here.
    """
    unit, adjacency = phase.get("unit"), phase.get("adjacency")
    if unit is None or adjacency is None:
        return None
    with errors.refuse_errors("ledger", "a phase with {}".format, "as a run wrote it", "export it again", MALFORMED):
        return Unit(unit), Adjacency(adjacency)


def events_of(phase: Phase, kind: Kind) -> list[Event] | None:
    """What it releases of each of its clients, for neighbours of this kind.

    None where its epsilon and delta alone are known, or events are code of its user: see `stated_privacy`.
    Raises: ConfigurationError for what no run wrote.
    """
    content = phase.get("spent")
    if content is None:
        return None
    unit, adjacency = kind
    by_client: list[Event] = [Composed(())] * phase["clients"]["count"]

    def got(error: Exception) -> str:
        return f"a phase whose events are none ({' '.join(str(error).split())[:60]})"

    with errors.refuse_errors("ledger", got, "as a run wrote it", "export it again", MALFORMED):
        if any(is_own_code(event) for event in content["events"]):
            return None
        events = [decode_event(event, adjacency, unit) for event in content["events"]]
        for ids, place in content["clients"]:
            for client in ids_of(ids, len(by_client)).tolist():
                by_client[client] = events[place]
    return by_client


def stated_privacy(phase: Phase, kind: Kind) -> StatedPrivacy:
    """What is known of each of its clients by epsilon and delta alone."""
    pair = phase["stated"] if phase["kind"] == FILE else (phase["epsilon"], phase["delta"])
    unit, adjacency = kind
    wanted = "an epsilon and a delta"
    with errors.refuse_errors("ledger", "a phase with {}".format, wanted, "export it again", MALFORMED):
        epsilon, delta = (float(number) for number in pair)
    return StatedPrivacy(max(epsilon, LEAST_EPSILON), delta, adjacency, unit=unit)


def same_clients(earlier: Phase, later: Phase) -> str | None:
    """How client k of one phase is known to be client k of the other, in words; None where nobody knows who was who.

    later  facts of a phase, of which `clients` and `records` are looked at.
    """
    if earlier["kind"] == FILE or earlier["clients"]["count"] != later["clients"]["count"]:
        return None

    def equal(of: str, digest: str) -> bool:
        known = earlier[of].get(digest)
        return known is not None and known == later[of].get(digest)

    if equal("records", "checksum"):  # which is of who has them, too
        return "client by client, as both have the same records"
    if equal("clients", "names"):
        return "client by client, by their names, taking every record to stay at its client"
    return None


def events_for(phase: Phase, by_client: bool, kind: Kind, num_clients: int) -> list[Event]:
    """What a phase releases of each client of a later one: where these are not `same_clients`, of any of its own."""
    events = events_of(phase, kind)
    if events is None:
        return [stated_privacy(phase, kind)] * num_clients
    return events if by_client else [worst_of(events)] * num_clients


def with_past(past: Sequence[Event] | None, events: Sequence[Event]) -> list[Event]:
    """What follows of each client, then what was released of it before; None: nothing was."""
    if past is None:
        return list(events)

    def after(before: Event, event: Event) -> Event:
        if isinstance(event, AnyOf):  # of members apart, each with all that was released before
            return event.mapped(lambda part: after(before, part))
        return Composed((event, before)) if any(True for _ in before.leaves()) else event

    return combine_by_client((past, events), after)


def compose_past(phases: Sequence[Sequence[Event]]) -> list[Event] | None:
    """What all of these phases release of each client, as what is over; None without any."""
    return combine_by_client(phases, lambda *events: Past(events)) if phases else None


BY_RATE = FullBatch | Poisson | WithoutReplacement | AnyStep  # of which less of one kind is post-processing of more


def worst_of(events: Iterable[Event]) -> Event:
    """An event that costs no less than any of these, whatever it is composed with: any of those that may be the worst.

    Those are left out that another dominates, sum by sum: by the rate, noise and number of releases. Of very many one
    is made up that dominates all.
    """
    kinds = list(dict.fromkeys(event for event in distinct(events) if any(True for _ in event.leaves())))
    if len(kinds) > MOST_COMPARED and (sums := _dominating_sums(kinds)) is not None:
        kinds = [Composed(tuple(sums))]
    worst: list[Event] = []
    for event in kinds:
        if not any(_dominates(one, event) for one in worst):
            worst = [*(one for one in worst if not _dominates(event, one)), event]
    if len(worst) < 2:
        return worst[0] if worst else Composed(())
    return AnyOf(tuple(worst))


def _dominates(one: Event, other: Event) -> bool:
    """Whether all that `other` releases is known to be made of what `one` does, which is nothing by chance."""
    return _certain(one) and _dominating_sums([one, other]) == [_plain(*leaf) for leaf in one.leaves()]


def _certain(event: Event) -> bool:
    return isinstance(event, Release) or (isinstance(event, Composed) and all(map(_certain, event.parts)))


def _dominating_sums(events: Sequence[Event]) -> list[Any] | None:
    """Sum by sum what dominates those of all events, or None where that is not known of some."""
    sums = []
    for column in itertools.zip_longest(*(event.leaves() for event in events)):
        worst, *others = [_plain(*leaf) for leaf in column if leaf is not None]
        for step in others:
            worst = None if worst is None else _join(worst, step)
        if worst is None:
            return None
        sums.append(worst)
    return sums


def _plain(step: Any, releases: int) -> Any:
    """So many of the sums; those that have each member in every one of them without their sampling."""
    if isinstance(step, GaussianSteps) and isinstance(step.sampling, Shuffled):
        step = dataclasses.replace(step, sampling=FullBatch())
    return dataclasses.replace(
        step, count=step.count if step.sampling.keeps_draw else releases * step.sampling.steps_per_epoch
    )


def _join(one: Any, other: Any) -> Any:
    """Sums that dominate both, or None where that is not known of any.

    With the chance a in place of b < a of being drawn, all else alike, what b releases is made of what a does: kept
    with chance b / a, else drawn anew without the member.
    """
    one, other = (dataclasses.replace(step, count=max(one.count, other.count)) for step in (one, other))
    if one == other:
        return one
    if not all(isinstance(step, GaussianSteps) and isinstance(step.sampling, BY_RATE) for step in (one, other)):
        return None
    often, seldom = (one, other) if one.sampling.rate >= other.sampling.rate else (other, one)
    whole, alike = often.sampling.rate == 1, type(one.sampling) is type(other.sampling)
    if (one.adjacency, one.unit) != (other.adjacency, other.unit) or not (
        whole or (alike and often.group == seldom.group == 1)
    ):
        return None
    return dataclasses.replace(
        often,
        noise_multiplier=min(one.noise_multiplier, other.noise_multiplier),
        sampling=FullBatch() if whole else often.sampling,
        group=max(one.group, other.group),
    )


def is_own_code(event: Any) -> bool:
    """Whether an event, or a part of one, is of a class that only its author has."""
    if isinstance(event, dict):
        return event.get("kind") == "own" or any(map(is_own_code, event.values()))
    return isinstance(event, list) and any(map(is_own_code, event))


def phases_counted_in(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    """Of the phases of a ledger those that the Guarantee of the last is of too, that one left out."""
    return tuple(phases[-1 - back] for back in phases[-1].get("continues") or ())


def costs_of(earlier: Sequence[Phase], later: Phase, delta: float, accountant: str) -> tuple[EarlierPhase, ...]:
    """What phases cost the clients of a later one, each alone."""
    kind, costs = kind_of(later), []
    assert kind is not None
    for phase in earlier:
        known_by = same_clients(phase, later)
        events = events_for(phase, known_by is not None, kind, later["clients"]["count"])
        epsilon = max(epsilons_of(events, delta, accountant))
        costs.append(EarlierPhase(describe_phase(phase), epsilon, phase.get("view"), known_by or ANY_CLIENT))
    return tuple(costs)
