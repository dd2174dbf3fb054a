"""Initial parameters that earlier training may have derived from the clients' records.

An earlier phase on these records counts: the Guarantee covers it and the run together; there is none if that phase had
no privacy, or an unknown epsilon. A phase does not count if its data set is known by name to share no records with the
clients' (both are shipped with the package), or if the user declares it public; the Guarantee then names the initial
parameters. Records are not compared, as they may have been cropped, mirrored, scaled or relabelled.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Adjacency, Event, Unit, View, epsilons_of
from fedjax_dp.accounting.composed_phases import (
    ANY_CLIENT,
    Kind,
    Phase,
    compose_past,
    describe_phase,
    events_for,
    is_private,
    kind_of,
    same_clients,
    with_past,
    without_price,
)
from fedjax_dp.accounting.events import adjacency_of, distinct
from fedjax_dp.accounting.guarantee import EarlierPhase
from fedjax_dp.data.client_names import plain_name
from fedjax_dp.data.names import SOURCES, names_of, share_no_records
from fedjax_dp.data.store import FederatedData
from fedjax_dp.display import upward
from fedjax_dp.models import Origin
from fedjax_dp.models.origins import RUN, clients_in, longest_lines
from fedjax_dp.privacy.qualifiers import Account, Qualifier, Target
from fedjax_dp.privacy.terms import PrivacyTerms

OF = "of the training alone, which begins with"
EARLIER = "records that an earlier phase may have trained on"
FIXED = "noise, sampling and rounds of this phase were fixed before anybody saw results of the earlier ones"
SAY_SO = "say that it holds none of these clients' records (start_private false) if that is so"


class PriorRun(NamedTuple):
    """A finished phase with releases of the same clients.

    known_by  why its client k is the run's client k, in words; None: the correspondence is unknown.
    """

    phase: Phase
    known_by: str | None

    def divided_anew(self, data: FederatedData) -> bool:
        """Whether it may have been trained on these very data, with other records at its clients."""
        if self.known_by is not None or self.phase["kind"] != RUN or self.phase["dataset"] != data.name:
            return False
        return data.name in SOURCES or self.phase["records"].get("count") == int(np.asarray(data.sizes).sum())

    @property
    def members(self) -> str:
        """How its releases count for the run's clients, in words."""
        return self.known_by or ANY_CLIENT

    def events(self, kind: Kind, num_clients: int) -> list[Event]:
        """The event of each client in this phase.

        Add-remove does not always imply zero-out (used by individual filters): if a sum is divided by the realised
        cohort size (`BoundedMean` with `least`), a client without contribution still counts in the divisor, and an
        absent one does not. Then sampling hides it less, and ledgers do not record the divisor.
        Raises: ConfigurationError for a phase of another unit or adjacency.
        """
        if (own := kind_of(self.phase)) is not None and own != kind:
            of_that, of_this = (f"one {unit} ({adjacency.value} neighbours)" for unit, adjacency in (own, kind))
            got = f"{describe_phase(self.phase)}, whose epsilon {upward(self.phase['epsilon'])} is for {of_that}"
            remedy = "these are two guarantees, which do not add up: each holds by itself"
            raise errors.refuse("the phase before", got, f"for {of_this}, as this run is", remedy)
        return events_for(self.phase, self.known_by is not None, kind, num_clients)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Initialization(Qualifier):
    """A qualifier: the initial parameters, and the earlier runs that the Guarantee covers too.

    unit, num_clients  unit of the Guarantee and number of clients of the run
    """

    prior_runs: tuple[PriorRun, ...] = ()
    unit: Unit = Unit.RECORD
    num_clients: int = 0
    in_run: bool = False
    # Of these prior runs, never of a copy's.
    _events: dict[Adjacency | None, list[list[Event]]] = dataclasses.field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @property
    def names(self) -> str:
        """Names of the prior runs."""
        return ", ".join(describe_phase(one.phase) for one in self.prior_runs)

    @property
    def views(self) -> list[View]:
        """The known views of the prior runs."""
        views = (one.phase.get("view") for one in self.prior_runs)
        return [View(view) for view in views if view in {known.value for known in View}]

    @property
    def without_prior_runs(self) -> "Initialization":
        """The qualifier without prior runs, for a Guarantee against attacks on the later releases alone."""
        if not self.prior_runs:
            return self
        caveat = f"{OF} the model of {self.names}, whose own releases are not attacked"
        words = "; ".join(filter(None, (self.caveat, caveat)))
        return dataclasses.replace(self, caveat=words, assumptions=(), keeps_claims=True, prior_runs=())

    def on(self, terms: PrivacyTerms) -> "Initialization":
        """The qualifier of a run on these terms, with the reason against an epsilon that they add, if any."""
        if self.reason is not None or not self.prior_runs:
            return self
        reason = self._collusion(terms.colluders)
        if terms.deployment is not None:
            reason = "it is unknown which members of a deployment were in the earlier phase"
        return self if reason is None else dataclasses.replace(self, reason=reason)

    def _collusion(self, colluders: int) -> str | None:
        """That a prior run is counted against fewer helpers of the adversary than these, where some would matter."""
        for phase in (one.phase for one in self.prior_runs):
            known = phase.get("colluders")
            if known is not None and known < colluders and phase.get("view") != View.UPLOADS.value:
                return f"{describe_phase(phase)} is counted with {known} colluders: count both with the same number"
        return None

    def releases(self, events: list[Event]) -> list[Event]:
        """The events composed with those of the prior runs.

        Raises: ConfigurationError for prior runs of another unit or adjacency.
        """
        return with_past(compose_past(self._earlier(adjacency_of(events))), events)

    def target(self, target: Target, accountant: str) -> Target:
        """The target after the prior runs; refuses budgets that these have already spent."""
        past = compose_past(self._earlier(adjacency_of(target.events)))
        if past is None:
            return target
        deltas = (sum(step.infinite_mass * count for step, count in event.leaves()) for event in distinct(past))
        if max(deltas) >= target.delta:
            wanted = "one at which the earlier phases have an epsilon"
            raise errors.refuse("delta", target.delta, wanted, self._no_epsilon_reason)
        costs = epsilons_of(past, target.delta, accountant)
        budget, most = min(zip(target.budgets, costs, strict=True), key=lambda pair: pair[0] - pair[1])
        if not budget > most:
            wanted = f"above {upward(most)}, which {self.names} cost already at delta {target.delta:g}"
            raise errors.refuse("epsilon", budget, wanted, "raise it, or begin with another start")
        return target._replace(events=with_past(past, target.events))

    def infinite_reason(self, account: Account) -> str | None:
        """The reason if the prior runs have no epsilon at this delta, though the run itself has one."""
        if not self.prior_runs or math.isinf(max(epsilons_of(account.events, account.delta, account.accountant))):
            return None
        return self._no_epsilon_reason

    def fields(self, account: Account) -> dict[str, Any]:
        if not self.prior_runs:
            return {}
        phases = []
        for one, events in zip(self.prior_runs, self._earlier(adjacency_of(account.events)), strict=True):
            epsilon = max(epsilons_of(events, account.delta, account.accountant))
            phases.append(EarlierPhase(describe_phase(one.phase), epsilon, one.phase.get("view"), one.members))
        alone = max(epsilons_of(account.events, account.delta, account.accountant))
        return {"phases": tuple(phases), "alone": alone}

    @property
    def _no_epsilon_reason(self) -> str:
        return (
            f"{self.names} has no epsilon at this delta; where epsilon and delta alone are known, delta must be above "
            "theirs"
        )

    def _earlier(self, adjacency: Adjacency | None) -> list[list[Event]]:
        """What each prior run releases of each client, in neighbours that are the run's; None: it releases nothing."""
        if adjacency not in self._events:
            others = [kind[1] for one in self.prior_runs if (kind := kind_of(one.phase)) is not None]
            kind = self.unit, adjacency or next(iter(others), Adjacency.REPLACE_ONE)
            self._events[adjacency] = [one.events(kind, self.num_clients) for one in self.prior_runs]
        return self._events[adjacency]


RANDOM = Initialization(keeps_claims=True)


class _Sign(NamedTuple):
    """What speaks for a start being made of these clients' records, and whether a word to the contrary outweighs it."""

    reason: str
    is_deniable: bool = True


def initialization_of(origins: Sequence[Origin], data: FederatedData, unit: Unit) -> Initialization:
    """The qualifier for these origins: the first reason against an epsilon, or all that the Guarantee has to name.

    unit  unit of the Guarantee: for clients the participants are not public, so no client is known by its name.
    """
    parts = [_of_one(origin, data, unit) for origin in origins]
    reasons = [part.reason for part in parts if part.reason]
    prior_runs = list[PriorRun]()
    for one in (one for part in parts for one in part.prior_runs):
        prior_runs += [one] if one not in prior_runs else []
    private = [origin for origin, part in zip(origins, parts, strict=True) if part.prior_runs]
    if private and (apart := _apart(private, [one.phase for one in prior_runs])) is not None:
        reasons.append(
            f"training begins with {apart}, two private runs that did not follow each other, so that their noise may "
            "be identical: begin with one of them"
        )
    return Initialization(
        reason=next(iter(reasons), None),
        caveat="; ".join(part.caveat for part in parts if part.caveat) or None,
        assumptions=tuple(line for part in parts for line in part.assumptions),
        warnings=tuple(line for part in parts for line in part.warnings),
        keeps_claims=not prior_runs,
        prior_runs=tuple(prior_runs),
        unit=unit,
        num_clients=data.num_clients,
    )


def of_records(prior_runs: Iterable[PriorRun], data: FederatedData) -> bool:
    """Whether all of them were trained on these records, at these clients."""
    return all(_is_of(one.phase, data) for one in prior_runs)


def _is_of(phase: Phase, data: FederatedData) -> bool:
    """Whether a phase was trained on these records, at these clients."""
    return phase["kind"] == RUN and phase["records"].get("checksum") == data.checksum


def _apart(private: Sequence[Origin], counted: Sequence[Phase]) -> str | None:
    """Two of the counted phases that do not follow one another, in words: each draws noise by those that it goes on
    from, and of others nobody knows by what."""
    if len(longest_lines(private)) > 1:
        return " and ".join(origin.name for origin in private)
    phases = max((origin.phases for origin in private), key=len)
    places = [place for place, phase in enumerate(phases) if phase in counted]
    for earlier, later in itertools.combinations(places, 2):
        if later - earlier not in (phases[later].get("continues") or ()):
            return f"{describe_phase(phases[earlier])} and {describe_phase(phases[later])}"
    return None


def _of_one(origin: Origin, data: FederatedData, unit: Unit) -> Initialization:
    """What is known of one start. All that denies is a word; all that composes, a run's ledger or an epsilon."""
    phases = origin.phases
    signs = {place: sign for place, phase in enumerate(phases) if (sign := _sign(phase, origin, data))}
    if origin.ledger and origin.trained_on is not None and _names(origin.trained_on, data.name):
        sign = _Sign(f"said to be trained on {origin.trained_on}, as these clients' data are called")
        signs = {place: signs.get(place, sign) for place in range(len(phases))}
    if origin.public is False or origin.stated is not None:
        sign = _Sign("which was trained on records of these clients", is_deniable=False)
        known = [place for place, phase in enumerate(phases) if phase["kind"] == RUN or is_private(phase)]
        signs |= dict.fromkeys(known or range(len(phases)), sign)
    counted = {place: sign for place, sign in sorted(signs.items()) if not (origin.public and sign.is_deniable)}
    for place, sign in counted.items():
        if not is_private(phases[place]):
            remedy = f": {SAY_SO}" if sign.is_deniable else ""
            why = f": {without_price(phases[place])}" if phases[place]["kind"] == RUN else ""
            return Initialization(reason=f"training begins with {origin.name}, {sign.reason}{why}{remedy}")
        if not _follows(place, phases, counted, origin):
            why = "whose epsilon and delta were stated for a run that does not count here, so for an unknown unit"
            return Initialization(reason=f"training begins with {origin.name}, made of {phases[place]['name']}, {why}")
    facts = clients_in(data, data.checksum, unit is not Unit.CLIENT) if counted else {}
    prior_runs = tuple(PriorRun(phases[place], same_clients(phases[place], facts)) for place in counted)
    if unit is Unit.CLIENT and any(one.divided_anew(data) for one in prior_runs):
        why = "made of data of this name, which may have been at other clients: then one client here is several there"
        remedy = "keep the records at their clients, and begin with the folder of the run"
        return Initialization(reason=f"training begins with {origin.name}, {why}: {remedy}")
    same = of_records(prior_runs, data)
    apart = () if same else (f"one {unit.value} of these clients was at most one {unit.value} of the earlier phases",)
    assumed = (FIXED, *apart) if prior_runs else ()
    denied = next((sign for place, sign in signs.items() if place not in counted), None)
    by_name = bool(origin.ledger) and origin.public is None
    word = "treated as public" if by_name else "declared public by its user"
    if denied is not None:
        caveat = f"{OF} {origin}, {word} although {denied.reason}"
        return Initialization(caveat=caveat, assumptions=assumed, prior_runs=prior_runs)
    if (unknown := _unknown(origin, phases, data)) is not None:
        return dataclasses.replace(unknown, assumptions=assumed, prior_runs=prior_runs)
    if prior_runs:
        words = _composition_words(origin, prior_runs, counted)
        return Initialization(assumptions=(words, *assumed), prior_runs=prior_runs)
    made_of = "" if origin.trained_on else ", ".join(filter(None, map(_made_of, phases)))
    made_of = f", made by {made_of}," if made_of else ","
    reason = ", as its data set shares no record with these clients'" if by_name else ""
    begins = f"training begins with {origin}{made_of} which is {word}{reason}"
    return Initialization(assumptions=(f"{begins}; epsilon covers what follows alone",))


def _follows(place: int, phases: Sequence[Phase], counted: Iterable[int], origin: Origin) -> bool:
    """Whether the cost of a phase is for a known unit: that of a run, of a later one that counts it, or this run's."""
    later = (at - place in (phases[at].get("continues") or ()) for at in counted if at > place)
    return phases[place]["kind"] == RUN or not origin.ledger or any(later)


def _unknown(origin: Origin, phases: Sequence[Phase], data: FederatedData) -> Initialization | None:
    """That nobody says what some of the values were trained on; None where somebody does."""
    unknown = [
        phase
        for phase, later in zip(phases, (*phases[1:], None))
        if phase["kind"] != RUN
        and phase["trained_on"] is None
        and phase.get("stated") is None
        and not (phase["private"] is False and later and _is_of(later, data))  # as was said for these records
    ]
    if not unknown or origin.trained_on is not None or origin.public is not None:
        return None
    unnamed, words = unknown[0]["name"], f"parameters of unknown origin, {origin}"
    if any(one.get("foreign") for one in unknown):
        through, denial = (f", through {unnamed}", "") if origin.ledger else ("", f", or {SAY_SO}")
        reason = f"training begins with {words}{through}, that may hold records of these clients"
        return Initialization(reason=f"{reason}: say what they were trained on (start_data){denial}")
    through = "" if unnamed == origin.name else f", through {unnamed}"
    return Initialization(
        caveat=f"{OF} {words}{through}, that may hold records of these clients",
        warnings=(
            f"nobody says what {unnamed} was trained on: start_data names it, start_private says whether these "
            "clients' records are in it; a network that is to begin at random is given as a function of a key",
        ),
    )


def _composition_words(origin: Origin, prior_runs: Sequence[PriorRun], signs: Mapping[int, _Sign]) -> str:
    lines = [f"training begins with {origin}"]
    for one, sign in zip(prior_runs, signs.values(), strict=True):
        lines += [f"of {describe_phase(one.phase)}, {one.members}", *([sign.reason] if sign.is_deniable else [])]
    return "; ".join(lines)


def _sign(phase: Phase, origin: Origin, data: FederatedData) -> _Sign | None:
    """What speaks for a phase of training having seen these clients' records."""
    name = data.name
    if phase["kind"] != RUN:
        if phase.get("stated") is not None:
            return _Sign(f"made of {phase['name']}, which was trained on records of its clients")
        words = phase["trained_on"]
        named = words is not None and _names(words, name)
        through = f"made of {phase['name']}, " if origin.ledger else ""
        return _Sign(f"{through}said to be trained on {words}, as these clients' data are called") if named else None
    if share_no_records(phase["dataset"], name):
        return None
    made_by = f"made by {_made_of(phase)}"
    if phase["records"].get("checksum") == data.checksum:
        return _Sign(f"{made_by}, of these very records", is_deniable=False)
    if name and phase["dataset"] == name:
        return _Sign(f"{made_by}, as these clients' data are called")
    return _Sign(f"{made_by}, whose records may be these clients' in another form")


def _made_of(phase: Phase) -> str:
    if phase["kind"] == RUN:
        return f"a run on {phase['dataset'] or 'data without a name'}"
    return f"{phase['name']}, trained on {phase['trained_on']}" if phase["trained_on"] else ""


def _names(words: str, name: str) -> bool:
    """Whether words speak of a data set by one of its names, however written: CIFAR-10 and cifar10_train are cifar10.

    Not within another word or number, nor within the name of a shipped data set that shares no record with it.
    """
    words = plain_name(words)

    def spans(names: Iterable[str]) -> list[tuple[int, int]]:
        return [one.span() for name in names for one in re.finditer(_spelling(name), words, re.IGNORECASE)]

    others = spans(other for other in SOURCES if share_no_records(other, name))
    own = spans(map(plain_name, names_of(name)))
    return any(not any(a <= begin and end <= b and (a, b) != (begin, end) for a, b in others) for begin, end in own)


def _spelling(name: str) -> str:
    """A pattern of a name, with anything that is no letter or digit between its words and numbers."""
    pieces = re.findall(r"\d+|[^\W\d_]+", name)
    if not pieces:
        return re.escape(name)
    first, last = (r"\d" if piece[0].isdigit() else r"[^\W\d_]" for piece in (pieces[0], pieces[-1]))
    return rf"(?<!{first})" + r"[\W_]*".join(map(re.escape, pieces)) + rf"(?!{last})"
