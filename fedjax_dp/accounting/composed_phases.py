"""Phases of training on the same members, by the facts that their ledgers have of them: what each released of whom.

The line of a run's phase has what the run releases of each client (`spent`), the phases before it that its Guarantee is
of too (`continues`), and by what its clients can be known again. Whoever composes phases takes each once.
"""

import base64
import binascii
import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting.accountants import epsilons_of
from fedjax_dp.accounting.client_maps import OPTION, ClientPairs, numbers_of
from fedjax_dp.accounting.events import AnyOf, Composed, Event, Past, distinct, each_of, numbered
from fedjax_dp.accounting.guarantee import EarlierPhase
from fedjax_dp.accounting.ledger import MALFORMED, decoded, ids_of, listed
from fedjax_dp.accounting.neighbours import Adjacency, Unit
from fedjax_dp.accounting.releases import GaussianSteps, Release, StatedPrivacy
from fedjax_dp.accounting.sampling import (
    AnyStep,
    FullBatch,
    Poisson,
    Shuffled,
    WithoutReplacement,
)
from fedjax_dp.accounting.views import View

FILE = "file"  # the kind of a phase of which words alone are known
NAME_BYTES = 8  # of a client's name that are kept of its sha256
MOST_NAMES = 10_000  # of clients whose names are kept
LEAST_EPSILON = 1e-6  # that stands for 0, where a delta is all that was spent
MOST_COMPARED = 300  # events of clients of which any may be the worst
NEW, ANY_LEFT = -1, -2  # in the place of a client's number before: it was not there; it may be any that has left
Phase = Mapping[str, Any]
Kind = tuple[Unit, Adjacency]


def spent(events: Sequence[Event]) -> dict[str, Any]:
    """What is released of each client, as JSON: events, and of which clients each is."""
    return listed(*numbered(events), np.arange(len(events)))


def names_of(names: Sequence[str] | None) -> str | None:
    """Digests of the names of clients, in their order, by which they are known again; None where these are too many."""
    if names is None or len(names) > MOST_NAMES or len(set(names)) < len(names):
        return None
    return base64.b64encode(b"".join(map(_digest, names))).decode()


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:NAME_BYTES]


def draws_of(seed: int) -> str:
    """By which phases that may share their draws of noise are noticed; too short to say what the seed was.

    Equal seeds have equal digests, and phases of equal ones are refused: two seeds that collide (one pair in 65,536)
    cost a run with another seed, and never a smaller epsilon.
    """
    return hashlib.sha256(f"draws of {seed}".encode()).hexdigest()[:4]


def sharing_draws(phases: Iterable[Phase]) -> str | None:
    """Two phases, in words, whose noise may be the same numbers, which cancel where their releases are compared."""
    known: dict[str, Phase] = {}
    for phase in phases:
        draws = phase.get("draws")
        if draws in known:
            return f"{about(known[draws])} and {about(phase)}"
        if draws is not None:
            known[draws] = phase
    return None


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


def about(phase: Phase) -> str:
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
    with errors.refusing("ledger", "a phase with {}".format, "as a run wrote it", "export it again", MALFORMED):
        return Unit(unit), Adjacency(adjacency)


def events_of(phase: Phase, kind: Kind) -> list[Event] | None:
    """What it releases of each of its clients, for neighbours of this kind.

    None where its epsilon and delta alone are known, or events are code of its user: see `stated`.
    Raises: ConfigurationError for what no run wrote.
    """
    content = phase.get("spent")
    if content is None:
        return None
    unit, adjacency = kind
    by_client: list[Event] = [Composed(())] * phase["clients"]["count"]

    def got(error: Exception) -> str:
        return f"a phase whose events are none ({' '.join(str(error).split())[:60]})"

    with errors.refusing("ledger", got, "as a run wrote it", "export it again", MALFORMED):
        if any(is_own_code(event) for event in content["events"]):
            return None
        events = [decoded(event, adjacency, unit) for event in content["events"]]
        for ids, place in content["clients"]:
            for client in ids_of(ids, len(by_client)).tolist():
                by_client[client] = events[place]
    return by_client


def stated(phase: Phase, kind: Kind) -> StatedPrivacy:
    """What is known of each of its clients by epsilon and delta alone."""
    pair = phase["stated"] if phase["kind"] == FILE else (phase["epsilon"], phase["delta"])
    unit, adjacency = kind
    wanted = "an epsilon and a delta"
    with errors.refusing("ledger", "a phase with {}".format, wanted, "export it again", MALFORMED):
        epsilon, delta = (float(number) for number in pair)
    return StatedPrivacy(max(epsilon, LEAST_EPSILON), delta, adjacency, unit=unit)


class Matched(NamedTuple):
    """Which clients of a phase are those of another.

    places  for each client of the later phase its number in the earlier, or `NEW`, or `ANY_LEFT`; None: nobody knows.
    """

    members: str
    places: np.ndarray | None
    left: np.ndarray = np.zeros(0, int)  # numbers of the clients of the earlier phase that are not in the later
    mapped: list[int] | None = None  # the same places, where a user gives them


def matched(earlier: Phase, later: Phase) -> Matched:
    """By the records, where these are the same; else as their user says, or by names; else nobody knows who was who.

    Of names that are new any may be a client that has left, by another name; of a user's word for it none is.
    later  facts of a phase, of which `clients`, `records` and `mapped` are looked at.
    Raises: ConfigurationError where a user says otherwise than the records.
    """
    worst = Matched("every client is taken for the worst of its clients, as nobody knows which is which", None)
    if earlier["kind"] == FILE:
        return worst
    one, other, checksum = earlier["clients"], later["clients"], earlier["records"].get("checksum")
    alike = all(one.get(name) == other.get(name) for name in ("count", "sizes"))
    alike = alike and checksum is not None and checksum == later["records"].get("checksum")
    known = (later.get("mapped") or {}).get(earlier["phase"])
    if known is not None and alike and known != list(range(one["count"])):
        wanted = "left out, or each client beside itself, where both phases have the same records"
        raise errors.refuse(OPTION, "others", wanted, "drop it")
    if alike:
        return Matched("client by client, as both have the same records", np.arange(one["count"]))
    if known is not None:
        return _placed(known, one["count"], "by what their user says (start_clients)")._replace(mapped=known)
    before, now = (_digests(of) for of in (one, other))
    if before is None or now is None or not set(before) & set(now):
        return worst
    numbers = {name: number for number, name in enumerate(before)}
    left = set(before) - set(now)
    return _placed([numbers.get(name, ANY_LEFT if left else NEW) for name in now], len(before), "by their names")


def _placed(known: Sequence[int], count: int, how: str) -> Matched:
    """By the numbers that clients had before, of `count`, or what stands in their place."""
    places = np.array(known)
    if places.dtype.kind != "i" or not np.all(places < count):
        raise errors.refuse("ledger", f"a phase with clients {str(known)[:40]}", "as a run wrote it", "export it again")
    new, renamed = (int((places == one).sum()) for one in (NEW, ANY_LEFT))
    more = f"; {new:,} that are new pay for what follows alone" if new else ""
    if renamed:
        more += f"; {renamed:,} with new names are taken for the worst of those that left ({OPTION} says who is new)"
    words = f"client by client, {how}, taking every record to stay at its client{more}"
    return Matched(words, places, np.setdiff1d(np.arange(count), places))


def mapped(pairs: ClientPairs, earlier: Phase, later: Phase) -> list[int]:
    """For each client of the later phase its number in the earlier, -1 where it was not there, as its user says.

    later  facts of a phase, of which `clients` are looked at; `mapped` in these facts is by what `matched` goes.
    Raises: ConfigurationError in one line unless each client of both stands in one line.
    """
    columns = []
    for at, (phase, whose) in enumerate(((earlier, about(earlier)), (later, "this run"))):
        words, clients = [pair[at] for pair in pairs], phase["clients"]
        places = {digest: number for number, digest in enumerate(_digests(clients) or ())}
        by_name = {word: places[own] for word in words if word and (own := _digest(word)) in places}
        columns.append(numbers_of(words, whose, clients["count"], by_name))
    before = {second: first for first, second in zip(*columns, strict=True)}
    return [before[client] for client in range(later["clients"]["count"])]


def events_for(phase: Phase, match: Matched, kind: Kind, num_clients: int) -> list[Event]:
    """What a phase releases of each client of a later one, matched so."""
    events = events_of(phase, kind)
    if match.places is None:
        return [stated(phase, kind) if events is None else worst_of(events)] * num_clients
    if events is None:
        events = [stated(phase, kind)] * phase["clients"]["count"]
    others = {NEW: Composed(()), ANY_LEFT: worst_of(events[client] for client in match.left.tolist())}
    return [others[place] if place < 0 else events[place] for place in match.places.tolist()]


def with_past(past: Sequence[Event] | None, events: Sequence[Event]) -> list[Event]:
    """What follows of each client, then what was released of it before; None: nothing was."""
    if past is None:
        return list(events)

    def after(before: Event, event: Event) -> Event:
        if isinstance(event, AnyOf):  # of members apart, each with all that was released before
            return event.mapped(lambda part: after(before, part))
        return Composed((event, before)) if any(True for _ in before.leaves()) else event

    return each_of((past, events), after)


def past_of(phases: Sequence[Sequence[Event]]) -> list[Event] | None:
    """What all of these phases release of each client, as what is over; None without any."""
    return each_of(phases, lambda *events: Past(events)) if phases else None


BY_RATE = FullBatch | Poisson | WithoutReplacement | AnyStep  # of which less of one kind is post-processing of more


def worst_of(events: Iterable[Event]) -> Event:
    """An event that costs no less than any of these, whatever it is composed with: any of those that may be the worst.

    Those are left out that another dominates, sum by sum: by the rate, noise and number of releases. Of very many one
    is made up that dominates all.
    """
    kinds = list(dict.fromkeys(event for event in distinct(events) if any(True for _ in event.leaves())))
    if len(kinds) > MOST_COMPARED and (sums := _joined(kinds)) is not None:
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
    return _certain(one) and _joined([one, other]) == [_plain(*leaf) for leaf in one.leaves()]


def _certain(event: Event) -> bool:
    return isinstance(event, Release) or (isinstance(event, Composed) and all(map(_certain, event.parts)))


def _joined(events: Sequence[Event]) -> list[Any] | None:
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
        step, count=step.count if step.sampling.kept else releases * step.sampling.steps_per_epoch
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


def _digests(clients: Mapping[str, Any]) -> list[bytes] | None:
    text = clients.get("names")
    if not isinstance(text, str):
        return None
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    digests = [raw[at : at + NAME_BYTES] for at in range(0, len(raw), NAME_BYTES)]
    return digests if len(digests) == clients["count"] else None


def counted_with(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    """Of the phases of a ledger those that the Guarantee of the last is of too, that one left out."""
    names = phases[-1].get("continues") or ()
    return tuple(phase for phase in phases[:-1] if phase["phase"] in names)


def costs_of(earlier: Sequence[Phase], later: Phase, delta: float, accountant: str) -> tuple[EarlierPhase, ...]:
    """What phases cost the clients of a later one, each alone."""
    kind, costs = kind_of(later), []
    assert kind is not None
    for phase in earlier:
        match = matched(phase, later)
        events = events_for(phase, match, kind, later["clients"]["count"])
        epsilon = max(epsilons_of(events, delta, accountant))
        costs.append(EarlierPhase(phase["phase"], about(phase), epsilon, phase.get("view"), match.members))
    return tuple(costs)


class Union(NamedTuple):
    """Phases of several runs, each once."""

    phases: tuple[EarlierPhase, ...]
    kind: Kind
    epsilon: float  # of the worst member of any


def union_of(ledgers: Sequence[Sequence[Phase]], delta: float, accountant: str) -> Union:
    """One epsilon of all runs that these ledgers end with, and of the phases that their Guarantees are of too.

    Members of several are matched as those of a run are with its start's; who is in one alone pays for that.
    Raises: ConfigurationError for a run without privacy, for phases of different units or neighbours, and for two that
            may share their draws.
    """
    by_name = {phase["phase"]: phase for phases in ledgers for phase in (*counted_with(phases), phases[-1])}
    for phase in by_name.values():
        if not is_private(phase):
            got = f"{about(phase)}, {without_price(phase)}"
            raise errors.refuse("ledgers", got, "of phases that have an epsilon of their own")
    if (twice := sharing_draws(by_name.values())) is not None:
        wanted, remedy = "one for each run, as equal noise cancels", "run one again with another --seed"
        raise errors.refuse("seeds of the ledgers", f"the same of {twice}", wanted, remedy)
    apart = [phase for phase in by_name.values() if phase.get("view") != View.UPLOADS.value]  # where helpers matter
    helpers = {phase["colluders"] for phase in apart if phase.get("colluders") is not None}
    if len(helpers) > 1:
        got, remedy = ", ".join(map(str, sorted(helpers))), "count all with as many"
        raise errors.refuse("colluders of the ledgers", got, "one number", remedy)
    kinds = {kind for phase in by_name.values() if (kind := kind_of(phase)) is not None}
    if len(kinds) != 1:
        got = ", ".join(sorted(f"{unit.value}/{adjacency.value}" for unit, adjacency in kinds)) or "none"
        raise errors.refuse("units of the ledgers", got, "one unit and neighbours", "each holds by itself")
    (kind,), total, alone = kinds, 0.0, dict[str, float]()
    for later in by_name.values():
        if later["kind"] == FILE:
            alone[later["phase"]] = max(epsilons_of([stated(later, kind)], delta, accountant))
            continue
        count = later["clients"]["count"]
        itself = Matched("", np.arange(count))
        released = {
            name: events_for(phase, itself if phase is later else matched(phase, later), kind, count)
            for name, phase in by_name.items()
        }
        total = max(total, *epsilons_of(past_of(list(released.values())) or (), delta, accountant))
        alone[later["phase"]] = max(epsilons_of(released[later["phase"]], delta, accountant))
    listed = (EarlierPhase(name, about(phase), alone[name], phase.get("view")) for name, phase in by_name.items())
    return Union(tuple(listed), kind, total)
