"""Composition of several training phases on the same clients, from the facts in their ledgers.

The line of a run's phase contains what the run releases of each client (`spent`), the earlier phases that its Guarantee
covers too (`continues`: how many lines back), and digests of its clients' names and of its records. If either digest
agrees, client k of both phases is the same client.
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
from fedjax_dp.accounting.sampling import AnyStep, FullBatch, Poisson, Shuffled, WithoutReplacement

FILE = "file"  # the kind of a phase of which words alone are known
LEAST_EPSILON = 1e-6  # that stands for 0, where a delta is all that was spent
ANY_CLIENT = "every client counts as the worst of its clients, as the correspondence of clients is unknown"
MOST_COMPARED = 300  # events of clients of which any may be the worst
Phase = Mapping[str, Any]
Kind = tuple[Unit, Adjacency]


def encode_releases(events: Sequence[Event]) -> dict[str, Any]:
    """The releases of all clients as JSON: the distinct events, and the clients of each."""
    return encode_events(*number_events(events), np.arange(len(events)))


def digest_of_names(names: Sequence[str] | None) -> str | None:
    """Digest of the ordered list of client names; it does not reveal whether one name is in the list."""
    if names is None or len(set(names)) < len(names):
        return None
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()


def is_private(phase: Phase) -> bool:
    """Whether the cost of a phase is known, so that it composes with others.

    The cost of one sweep point is not: the point was chosen among others by their results.
    """
    if phase["kind"] == FILE:
        return phase.get("stated") is not None
    known = all(phase.get(name) is not None for name in ("epsilon", "delta", "unit", "adjacency"))
    return known and not phase.get("in_sweep")


def without_price(phase: Phase) -> str:
    """The reason why the cost of a run's phase is unknown."""
    if phase.get("in_sweep"):
        return "one point of a sweep, whose cost includes the choice among the others (fedjax-dp best)"
    unknown = phase.get("epsilon") is None and phase.get("spent") is None
    return "a run that had no privacy" if unknown else "whose epsilon is not fully known"


def describe_phase(phase: Phase) -> str:
    if phase["kind"] == FILE:
        return str(phase["name"])
    rounds = phase["rounds"]
    return f"{phase['algorithm']} on {phase['dataset'] or 'data without a name'}, {rounds:,} round{'s' * (rounds != 1)}"


def kind_of(phase: Phase) -> Kind | None:
    """The unit and adjacency of a phase; None if they are not recorded.

    Raises: ConfigurationError for an unknown unit or adjacency.
    """
    unit, adjacency = phase.get("unit"), phase.get("adjacency")
    if unit is None or adjacency is None:
        return None
    with errors.refuse_errors("ledger", "a phase with {}".format, "as a run wrote it", "export it again", MALFORMED):
        return Unit(unit), Adjacency(adjacency)


def events_of(phase: Phase, kind: Kind) -> list[Event] | None:
    """The event of each client of a phase, for this unit and adjacency.

    None if only epsilon and delta are known, or if events are user-defined classes: see `stated_privacy`.
    Raises: ConfigurationError for content that no run writes.
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
    """The event of each client of a phase of which only epsilon and delta are known."""
    pair = phase["stated"] if phase["kind"] == FILE else (phase["epsilon"], phase["delta"])
    unit, adjacency = kind
    wanted = "an epsilon and a delta"
    with errors.refuse_errors("ledger", "a phase with {}".format, wanted, "export it again", MALFORMED):
        epsilon, delta = (float(number) for number in pair)
    return StatedPrivacy(max(epsilon, LEAST_EPSILON), delta, adjacency, unit=unit)


def same_clients(earlier: Phase, later: Phase) -> str | None:
    """Why client k of one phase is client k of the other, in words; None if that is unknown.

    later  facts of the later phase, of which `clients` and `records` are compared.
    """
    if earlier["kind"] == FILE or earlier["clients"]["count"] != later["clients"]["count"]:
        return None

    def equal(of: str, digest: str) -> bool:
        known = earlier[of].get(digest)
        return known is not None and known == later[of].get(digest)

    if equal("records", "checksum"):  # which is of who has them, too
        return "client by client, as both have the same records"
    if equal("clients", "names"):
        return "client by client, by their names, if every record stays at its client"
    return None


def events_for(phase: Phase, by_client: bool, kind: Kind, num_clients: int) -> list[Event]:
    """The events of an earlier phase for the clients of a later one; for the worst client if not `same_clients`."""
    events = events_of(phase, kind)
    if events is None:
        return [stated_privacy(phase, kind)] * num_clients
    return events if by_client else [worst_of(events)] * num_clients


def with_past(past: Sequence[Event] | None, events: Sequence[Event]) -> list[Event]:
    """The event of each client, composed with its past events; None: it has none."""
    if past is None:
        return list(events)

    def after(before: Event, event: Event) -> Event:
        if isinstance(event, AnyOf) and event.times == 1:  # of members apart, each with all that was released before
            return event.mapped(lambda part: after(before, part))
        return Composed((event, before)) if any(True for _ in before.leaves()) else event

    return combine_by_client((past, events), after)


def compose_past(phases: Sequence[Sequence[Event]]) -> list[Event] | None:
    """The releases of all these phases for each client, as `Past` events; None without phases."""
    return combine_by_client(phases, lambda *events: Past(events)) if phases else None


BY_RATE = FullBatch | Poisson | WithoutReplacement | AnyStep  # of which less of one kind is post-processing of more


def worst_of(events: Iterable[Event]) -> Event:
    """An event that costs no less than any of these in every composition: `AnyOf` those that may be the worst.

    Events that another one dominates, sum by sum, in rate, noise and number of releases are left out. Very many events
    are replaced by a single one that dominates them all.
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
    """Whether an event, or a part of it, has a user-defined class."""
    if isinstance(event, dict):
        return event.get("kind") == "own" or any(map(is_own_code, event.values()))
    return isinstance(event, list) and any(map(is_own_code, event))


def phases_counted_in(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    """The earlier phases of a ledger that the Guarantee of its last phase covers too."""
    return tuple(phases[-1 - back] for back in phases[-1].get("continues") or ())


def costs_of(earlier: Sequence[Phase], later: Phase, delta: float, accountant: str) -> tuple[EarlierPhase, ...]:
    """The cost of each phase alone, for the clients of a later one."""
    kind, costs = kind_of(later), []
    assert kind is not None
    for phase in earlier:
        known_by = same_clients(phase, later)
        events = events_for(phase, known_by is not None, kind, later["clients"]["count"])
        epsilon = max(epsilons_of(events, delta, accountant))
        costs.append(EarlierPhase(describe_phase(phase), epsilon, phase.get("view"), known_by or ANY_CLIENT))
    return tuple(costs)
