"""The cost of publishing the best of several private runs, such as a hyperparameter search on private data.

There are two accounts. Composition treats every run as published, so all events of a client are composed; it always
holds. Random repetition (Papernot and Steinke 2022, arXiv:2110.03620) costs about as much as two or three runs. It
requires that the number of trials is drawn from a law and stays secret, that hyperparameters are drawn independently
of the data, and that only the best trial is published.

>>> from fedjax_dp.accounting import Adjacency, GaussianSteps, NegativeBinomialTrials, Poisson
>>> run = [GaussianSteps(4.0, Poisson(0.01), Adjacency.ADD_REMOVE, 1000)]
>>> [round(epsilons[0], 2) for epsilons in (
...     composition_epsilons([run] * 20, 1e-5),
...     repetition_epsilons([run], NegativeBinomialTrials.of_mean(20), 1e-5),
... )]
[1.39, 0.75]
"""

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import rdp
from fedjax_dp.accounting.accountants import Accountant, accountant_named, epsilons_of, total
from fedjax_dp.accounting.events import AnyOf, Composed, Event, RandomParticipation, each, joined, repeated
from fedjax_dp.accounting.neighbours import Adjacency, Unit
from fedjax_dp.accounting.releases import Release
from fedjax_dp.accounting.trials import Trials
from fedjax_dp.display import finite, upward

CONDITIONS = (
    "the number of trials was drawn from that law and kept secret, each trial drew its hyperparameters independently "
    "of the data, and its noise, batches and cohorts afresh, trials were ranked by what they release or by public "
    "data, and only the best is published"
)
Ledgers = Sequence[Sequence[Event]]  # runs, of each the event of every client, as `privacy.client_events` makes them
Trial = tuple[frozenset[Event], ...]  # of each part of a trial, what it may release
Progress = Callable[[int, int], None] | None


def composition_epsilons(
    ledgers: Ledgers, delta: float, accountant: str | Accountant = "pld", progress: Progress = None
) -> list[float]:
    """Epsilon of each client, in nats, if every run is published. It always holds: later runs may depend on earlier.

    Adjacency: the events'. Errors: the accountant's, as of `epsilon_of`.
    progress   called with (distinct clients done, distinct clients).
    Raises:    NotCoveredError if the accountant has no theorem for an event; ConfigurationError if runs differ in their
               clients, unit or adjacency, or if delta is outside (0, 1).
    """
    return epsilons_of(_compose_runs(_require_ledgers(ledgers)), delta, accountant, progress)


def repetition_epsilons(ledgers: Ledgers, trials: Trials, delta: float, progress: Progress = None) -> list[float]:
    """Epsilon of each client, in nats, if the best of randomly many trials is published, and nothing else.

    ledgers    of all hyperparameters that a trial may draw, drawn or not, and of all seeds that decide participation:
               the largest of their divergences at each order bounds every law over them.
    Adjacency: the events'. Errors: those of the Renyi accountant.
    Limits:    a client without releases in any trial has epsilon 0.
    Source:    the law's `renyi`; a trial's probability of an infinite loss counts times the expected number of trials.
    Raises:    as `composition_epsilons`.
    """
    return _repetition_epsilons(_candidates(_require_ledgers(ledgers)), trials, delta, progress)


@dataclasses.dataclass(frozen=True)
class SelectionCost:
    """The cost of choosing among runs for the worst client, by composition and by random repetition."""

    runs: int
    delta: float
    unit: Unit | None  # None where nothing is released
    adjacency: Adjacency | None
    single: float  # the largest epsilon of one run, in nats
    composition: float  # epsilon if all runs are published
    accountant: str  # of both
    moving: bool = False  # records belong to other clients from run to run
    trials: Trials | None = None
    repetition: float | None = None  # epsilon by random repetition, by Renyi divergences; None without a law of trials
    drawn: bool = False  # whether the number of trials really was drawn from that law

    @property
    def applies(self) -> str:
        """The account that applies: composition or repetition."""
        return "repetition" if self.drawn and self.repetition is not None else "composition"

    @property
    def epsilon(self) -> float:
        return self.repetition if self.drawn and self.repetition is not None else self.composition

    def __str__(self) -> str:
        whom = f" for one {self.unit} ({self.adjacency.value} neighbours)" if self.unit and self.adjacency else ""
        scope = f"at delta {self.delta:g}{whom}"
        published = (
            f"by composition, accountant {self.accountant}, if every run draws its noise, batches and cohorts afresh; "
            f"one run costs at most {_in_words(self.single)}"
        )
        if self.moving:
            published += "; records change clients from run to run, so the worst client of each run is counted"
            if self.unit is Unit.CLIENT:
                published += ", which covers one client whose records stay together in every run"
        if self.drawn and self.repetition is not None:
            return (
                f"The best of randomly many trials ({self.trials}) costs {_in_words(self.repetition)} {scope}, "
                f"accountant rdp, provided that {CONDITIONS}. Publishing all {self.runs} runs would cost "
                f"{_in_words(self.composition)}, {published}."
            )
        fixed = (
            f"Choosing among {self.runs} fixed runs costs as much as publishing them all, whoever sees them: "
            f"{_in_words(self.composition)} {scope}, {published}."
        )
        if self.repetition is None:
            return fixed
        return (
            f"{fixed} Random repetition (number of trials {self.trials}) would cost {_in_words(self.repetition)} "
            f"(accountant rdp), but that holds only if {CONDITIONS}: not for a fixed grid or list."
        )

    def to_dict(self) -> dict[str, Any]:
        """The costs for JSON: an infinite epsilon is null."""
        return {
            "runs": self.runs,
            "delta": self.delta,
            "unit": self.unit.value if self.unit else None,
            "adjacency": self.adjacency.value if self.adjacency else None,
            "applies": self.applies,
            "epsilon": finite(self.epsilon),
            "epsilon_single": finite(self.single),
            "epsilon_composition": finite(self.composition),
            "accountant": self.accountant,
            "epsilon_repetition": finite(self.repetition),
            "repetition_accountant": None if self.repetition is None else "rdp",
            "trials": str(self.trials) if self.trials else None,
            "expected_trials": self.trials.mean if self.trials else None,
            "statement": str(self),
        }


def selection_cost(
    ledgers: Ledgers,
    delta: float,
    accountant: str | Accountant = "pld",
    trials: Trials | None = None,
    drawn: bool = False,
    candidates: Ledgers | None = None,
    moving: bool = False,
    parts: Sequence[Hashable] | None = None,
    progress: Progress = None,
) -> SelectionCost:
    """The cost of choosing the best of these runs, by both accounts; see `SelectionCost`.

    trials      the law for random repetition, such as one with as many expected trials as there are runs
    drawn       whether the number of runs was drawn from it and the other conditions hold; else composition applies
    candidates  ledgers of other settings that a trial may draw, as in `repetition_epsilons`
    moving      whether a record may belong to another client in each run, as if every seed has its own partition: then
                each run counts for its worst client, order by order, by Renyi divergences for every accountant
    parts       the part of its trial that each run is, such as its seed: a trial is one run of each part
    progress    called with (evaluations done, evaluations)
    Raises:     as `composition_epsilons`; ConfigurationError if `drawn` comes without `trials`.
    """
    if drawn and trials is None:
        raise errors.refuse("trials", trials, "the law from which the number of runs was drawn", "or leave out drawn")
    ledgers = _require_ledgers(ledgers, not moving)
    options = _require_ledgers([*ledgers, *(candidates or ())], not moving)
    singles = list(dict.fromkeys(itertools.chain(*ledgers)))
    everything = Composed(tuple(itertools.chain(*options)))  # which refuses several units or adjacencies
    unit, adjacency = next(((step.unit, step.adjacency) for step, _ in everything.leaves()), (None, None))
    composed = [] if moving else _compose_runs(ledgers)
    choices = _candidates(ledgers, candidates or (), parts, moving) if trials else []
    stages = [len(singles), len(set(composed)), len(set(choices))]

    def onwards(stage: int) -> Progress:
        return progress and (lambda done, _: progress(sum(stages[:stage]) + done, sum(stages)))

    return SelectionCost(
        runs=len(ledgers),
        delta=delta,
        unit=unit,
        adjacency=adjacency,
        single=max(epsilons_of(singles, delta, accountant, onwards(0))),
        composition=_epsilon([frozenset(ledger) for ledger in ledgers], delta)  # the largest of each, added up
        if moving
        else max(epsilons_of(composed, delta, accountant, onwards(1))),
        accountant="rdp" if moving else accountant_named(accountant).name,
        moving=moving,
        trials=trials,
        repetition=max(_repetition_epsilons(choices, trials, delta, onwards(2))) if trials else None,
        drawn=drawn,
    )


def _in_words(epsilon: float) -> str:
    return f"epsilon {upward(epsilon)}" if math.isfinite(epsilon) else "an infinite epsilon"


def _require_ledgers(ledgers: Ledgers, same: bool = True) -> Ledgers:
    """At least one run; of the `same` clients each, where records stay with theirs."""
    ledgers = [list(ledger) for ledger in ledgers]
    sizes = {len(ledger) for ledger in ledgers}
    if not sizes or (same and len(sizes) != 1) or 0 in sizes:
        got = f"{len(ledgers)} runs of {sorted(sizes)} clients" if ledgers else "no run"
        raise errors.refuse("ledgers", got, "at least one run, all of the same clients")
    return ledgers


def _compose_runs(ledgers: Ledgers) -> list[Event]:
    """All runs of each client as one event, the same for the same runs in any order."""
    times = [frozenset(Counter(events).items()) for events in zip(*ledgers, strict=True)]
    return each(times, _merge_steps)


def _merge_steps(times: frozenset[tuple[Event, int]]) -> Event:
    """Events one after the other, each so many times, with equal steps counted together."""
    counts: Counter[Event] = Counter()
    for event, often in times:
        for part in _flat(event):
            if isinstance(part, AnyOf):
                counts[dataclasses.replace(part, times=1)] += often * part.times
            elif isinstance(part, RandomParticipation):
                counts[dataclasses.replace(part, rounds=1)] += often * part.rounds
            else:
                counts[part.once()] += often * part.releases
    return joined([repeated(part, count) for part, count in sorted(counts.items(), key=repr)])


def _flat(event: Event) -> "Iterator[Release | AnyOf | RandomParticipation]":
    """The parts of an event of which something is released."""
    if isinstance(event, Composed):
        for part in event.parts:
            yield from _flat(part)
    elif any(True for _ in event.leaves()):
        yield event


def _candidates(
    ledgers: Ledgers, more: Ledgers = (), parts: Sequence[Hashable] | None = None, moving: bool = False
) -> list[Trial]:
    """What a trial may release of each client (of anybody, if records move), part by part."""
    parts = [0] * len(ledgers) if parts is None else list(parts)
    if len(parts) != len(ledgers):
        raise errors.refuse("parts", f"{len(parts)} of them", f"one for each of the {len(ledgers)} runs")
    runs = [[*(ledger for ledger, part in zip(ledgers, parts) if part == one), *more] for one in dict.fromkeys(parts)]
    if moving:
        return [tuple(frozenset(itertools.chain(*part)) for part in runs)]
    return list(zip(*([frozenset(events) for events in zip(*part, strict=True)] for part in runs), strict=True))


def _repetition_epsilons(clients: list[Trial], trials: Trials, delta: float, progress: Progress) -> list[float]:
    """Epsilon of each client by random repetition: one evaluation per distinct client."""
    errors.require_delta(delta)

    def of_best(one: rdp.RenyiCurve) -> rdp.RenyiCurve:
        return rdp.RenyiCurve(
            one.orders, trials.renyi(one.orders, one.values), min(one.infinite_mass * trials.mean, 1.0)
        )

    return each(clients, lambda parts: _epsilon(parts, delta, of_best), progress)


def _epsilon(
    groups: Sequence[frozenset[Event]],
    delta: float,
    changed: Callable[[rdp.RenyiCurve], rdp.RenyiCurve] = lambda curve: curve,
) -> float:
    """Of one event of each group, whichever: the largest divergence of each, order by order, added up and `changed`."""
    whole = Composed(tuple(dict.fromkeys(itertools.chain(*groups))))  # for its orders, and to refuse mixed units
    released = [step for step, _ in whole.leaves()]
    if not released:
        return 0.0
    if any(step.reveals_everything for step in released):
        return math.inf

    def curve_at(orders: np.ndarray | None) -> rdp.RenyiCurve:
        of = rdp.price(whole, orders)
        curves = [
            [total(e, lambda step: of(step.once())) for e in events if any(True for _ in e.leaves())]
            for events in groups
        ]
        largest = (functools.reduce(rdp.RenyiCurve.worst, curves_of) for curves_of in curves if curves_of)
        return changed(functools.reduce(rdp.RenyiCurve.plus, largest))

    return rdp.best_epsilon(curve_at, delta)
