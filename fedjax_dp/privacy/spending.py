"""Epsilon by round, and the lines of a run's ledger: all of it follows from the planned run, before its first round."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedjax_dp.accounting import (
    Event,
    GaussianOdometer,
    Guarantee,
    NotCoveredError,
    epsilon_of,
    repeated,
    squared_mu,
)
from fedjax_dp.accounting.events import distinct, numbered
from fedjax_dp.accounting.ledger import ROUND, VERSION, listed
from fedjax_dp.display import finite
from fedjax_dp.privacy.client_events import client_events, counted_as, own_events, training_of
from fedjax_dp.privacy.planned_run import PlannedRun

EVALUATIONS = 24  # of loss distributions that a run may spend on epsilons of its rounds: a fiftieth of a second each
EXACT = 20_000  # of closed forms
COUNTS = 10**7  # of rounds by client
CLOSED = ("gaussian", "zcdp", "tcdp")  # accountants whose epsilons cost next to nothing


class Spent(NamedTuple):
    """What the first rounds cost: `epsilon` is that of the first `priced_at`, which are as many or more."""

    epsilon: float
    priced_at: int


class Rounds(NamedTuple):
    """What a round releases of each client that is counted in it: the kind of each client, and the kinds' events."""

    kind: np.ndarray  # (num_clients,)
    events: list[Event]


def of_a_round(run: PlannedRun) -> Rounds:
    kinds, kind = numbered(own_events(run, training_of(run.prefix(1), at_least=1)))
    return Rounds(kind, kinds)


class Spending:
    """Of a planned run with its noise and its Guarantee.

    A client's epsilon never falls from a round to the next, so where it would take long to know it for every round, the
    epsilon of a later one stands for it: an upper bound, with the round that it is of.
    """

    def __init__(self, run: PlannedRun, guarantee: Guarantee) -> None:
        self.run, self.guarantee = run, guarantee
        self.private = bool(np.isfinite(guarantee.epsilon))
        self._counted: tuple[int, np.ndarray] = (0, np.zeros(run.data.num_clients, int))
        self._before: tuple[int, list[Any]] = (-1, [])  # events up to a round, of the line that was made last

    def planned(self, rounds: int) -> Spent:
        """Epsilon of the worst client after the first `rounds` rounds, or a bound on it."""
        at = next(one for one in self.priced if one >= rounds)
        return Spent(self.epsilon(at), at)

    @functools.cached_property
    def priced(self) -> list[int]:
        """Numbers of rounds of which the epsilon is worked out: all, where that is cheap, else powers of two."""
        rounds = self.run.rounds
        kinds = max(len(self._kinds(rounds)), 1) if self.private else 1
        if self._closed and kinds * rounds <= EXACT and self.run.data.num_clients * rounds <= COUNTS:
            return list(range(1, rounds + 1))
        powers = [2**power for power in range(rounds.bit_length()) if 2**power < rounds]
        return [*powers[len(powers) - min(EVALUATIONS // kinds, len(powers)) :], rounds]

    def epsilon(self, rounds: int) -> float:
        """Epsilon of the worst client after the first `rounds` rounds."""
        if rounds == self.run.rounds:
            return self.guarantee.epsilon
        delta, accountant = self.guarantee.delta, self.run.terms.accountant
        assert delta is not None
        return max((epsilon_of(event, delta, accountant) for event in self._kinds(rounds)), default=0.0)

    def at_any_time(self, rounds: int) -> float | None:
        """See `GaussianOdometer`, for the worst client; None where noise is not Gaussian or sums are sampled.

        Of as many rounds as `planned` is of.
        """
        if self._odometer is None:
            return None
        return self._odometer.epsilon(max(map(squared_mu, self._kinds(self.planned(rounds).priced_at)), default=0.0))

    @functools.cached_property
    def _odometer(self) -> GaussianOdometer | None:
        try:
            planned = max(map(squared_mu, self._kinds(self.run.rounds)), default=0.0) if self.private else 0.0
        except NotCoveredError:
            return None
        delta = self.guarantee.delta
        return GaussianOdometer(planned, delta) if planned and delta is not None else None

    @property
    def _closed(self) -> bool:
        accountant = self.run.terms.accountant
        return not self.private or accountant in CLOSED or (accountant == "pld" and self._odometer is not None)

    def _kinds(self, rounds: int) -> list[Event]:
        """Events of the first rounds that differ, of which the worst client has one."""
        by_round = self.by_round
        if by_round is None:
            return distinct(client_events(self.run.prefix(rounds)))
        most = np.zeros(len(by_round.events), int)  # more rounds of the same kind cost no less
        np.maximum.at(most, by_round.kind, self.counts(rounds))
        return [repeated(event, int(count)) for event, count in zip(by_round.events, most) if count]

    def counts(self, rounds: int) -> np.ndarray:
        """Rounds, of the first ones, that each client is counted for."""
        num_clients = self.run.data.num_clients
        if not self.scheduled:
            return np.full(num_clients, rounds)
        done, counts = self._counted if self._counted[0] <= rounds else (0, np.zeros(num_clients, int))
        self._counted = rounds, counts + self.run.drawn_in(slice(done, rounds))
        return self._counted[1]

    @functools.cached_property
    def scheduled(self) -> bool:
        """Whether each client is counted for the rounds that it is drawn for."""
        return counted_as(self.run) == "schedule"

    @functools.cached_property
    def by_round(self) -> Rounds | None:
        """What each round releases, where these add up to what the Guarantee is of; else None.

        They do not for noise that is correlated over rounds, slots that are kept, or what is released once a run.
        """
        run = self.run
        kind, kinds = of_a_round(run)
        counts, whole = self.counts(run.rounds).tolist(), client_events(run)
        same = {(at, count, id(event)): event for at, count, event in zip(kind.tolist(), counts, whole, strict=True)}
        alike = all(repeated(kinds[at], count) == event for (at, count, _), event in same.items())
        alike = alike and not any(step.sampling.kept for event in kinds for step, _ in event.leaves())
        return Rounds(kind, kinds) if alike else None

    def lines(self, first: int, until: int, end: int | None = None, halt: str = "rounds") -> Iterator[dict[str, Any]]:
        """Lines of the rounds from `first` up to `until`, for a ledger.

        end, halt  the round at which the run ends (default: its last), and what ends it: rounds, budget or rule.
        """
        for index in range(first, until):
            yield self._line(index, self.run.rounds if end is None else end, halt)

    def _law(self) -> dict[str, Any]:
        """How rounds are counted, and what of the run follows results."""
        stop = {} if self.run.terms.stop is None else {"stop": self.run.terms.stop}
        return {"participation": counted_as(self.run), **stop}

    def _line(self, index: int, end: int, halt: str) -> dict[str, Any]:
        guarantee, terms = self.guarantee, self.run.terms
        spent = self.planned(index + 1) if self.private else None
        budget = terms.common_budget
        return {
            "ledger": VERSION,
            "kind": ROUND,
            "round": index,
            **self._released(index),
            "unit": guarantee.unit.value,
            "adjacency": None if guarantee.adjacency is None else guarantee.adjacency.value,
            "view": guarantee.view.value,
            "colluders": terms.colluders,
            "delta": guarantee.delta,
            "accountant": terms.accountant,
            "epsilon_planned": None if spent is None else finite(spent.epsilon),
            "priced_at": None if spent is None else spent.priced_at,
            "epsilon_at_any_time": self.at_any_time(index + 1),
            "budget": budget,
            "left": None if budget is None or spent is None else budget - spent.epsilon,
            "halt": halt if index + 1 == end else None,
            "law": self._law() if self.private else {},
            "deployment": None if guarantee.deployment is None else guarantee.deployment._asdict(),
        }

    def _released(self, index: int) -> dict[str, Any]:
        nobody: dict[str, Any] = {"events": [], "clients": [], "so_far": False}
        if not self.private:
            return nobody if index == 0 else {"as_round": 0}
        by_round = self.by_round
        if by_round is None:
            return self._so_far(index)
        if not self.scheduled and index:
            return {"as_round": 0}
        often = self.times_in(index)
        line = listed(by_round.events, by_round.kind, np.flatnonzero(often)) | {"so_far": False}
        for count in range(2, int(often.max(initial=1)) + 1):  # who trains twice is named twice
            again = listed(by_round.events, by_round.kind, np.flatnonzero(often >= count))
            places = [line["events"].index(event) for event in again["events"]]
            line["clients"] += [[ids, places[place]] for ids, place in again["clients"]]
        return line

    def times_in(self, index: int) -> np.ndarray:
        """How often each client is counted for the round `(num_clients,)`."""
        return self.run.drawn_in(index) if self.scheduled else np.ones(self.run.data.num_clients, int)

    def _so_far(self, index: int) -> dict[str, Any]:
        """Everything up to the round, of the clients for which it has grown."""
        done, before = self._before
        if done != index:
            before = client_events(self.run.prefix(index)) if index else [None] * self.run.data.num_clients
        now = client_events(self.run.prefix(index + 1))
        self._before = index + 1, now
        grown = np.array([client for client, (new, old) in enumerate(zip(now, before)) if new != old], int)
        return listed(*numbered(now), grown) | {"so_far": True}
