"""Privacy spent by round, and the lines of a run's ledger, both derived from the planned run before its first round."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fedjax_dp.accounting import (
    Event,
    GaussianOdometer,
    Guarantee,
    NotCoveredError,
    epsilons_of,
    repeated,
    squared_mu,
)
from fedjax_dp.accounting.events import distinct, number_events
from fedjax_dp.accounting.ledger import ROUND, VERSION, encode_events
from fedjax_dp.display import finite
from fedjax_dp.privacy.client_events import all_releases, client_events, participation_mode, training_events
from fedjax_dp.privacy.planned_run import PlannedRun

EVALUATIONS = 24  # of loss distributions that a run may spend on epsilons of its rounds: a fiftieth of a second each
EXACT = 20_000  # of closed forms
COUNTS = 10**7  # of rounds by client
CHEAP = ("gaussian", "zcdp", "tcdp")  # accountants whose epsilons cost next to nothing


class Price(NamedTuple):
    """The cost of the first rounds: `epsilon` is that of the first `priced_at` rounds, which are at least as many."""

    epsilon: float
    priced_at: int


class OneRound(NamedTuple):
    """The event of one round for each client that takes part: the kind of each client, and the event of each kind."""

    kind: np.ndarray  # (num_clients,)
    events: list[Event]


class Spending:
    """Privacy spent by a planned run.

    A client's epsilon never decreases from round to round. So if it is slow to compute for every round, the epsilon of
    a later round serves as an upper bound, reported with that round.
    """

    def __init__(self, run: PlannedRun, guarantee: Guarantee) -> None:
        self.run, self.guarantee = run, guarantee
        self.private = bool(np.isfinite(guarantee.epsilon))
        self._last_counts: tuple[int, np.ndarray] = (0, np.zeros(run.data.num_clients, int))
        self.events = functools.lru_cache(3)(self._events)

    def _events(self, rounds: int) -> list[Event]:
        """What the first rounds release of each client."""
        return client_events(self.run.prefix(rounds))

    def price(self, rounds: int) -> Price:
        """Epsilon of the worst client after the first `rounds` rounds, or a bound on it."""
        at = self._priced_at(rounds)
        return Price(self.epsilon(at), at)

    def _priced_at(self, rounds: int) -> int:
        return next(one for one in self.priced_rounds if one >= rounds)

    @functools.cached_property
    def priced_rounds(self) -> list[int]:
        """Numbers of rounds whose epsilon is computed: all if that is cheap, else powers of two.

        If results may end the run, only its last round: a shorter plan bounds nothing.
        """
        rounds = self.run.rounds
        if self.run.terms.stop is not None:
            return [rounds]
        kinds = max(len(self._kinds(rounds)), 1) if self.private else 1
        if self._is_cheap and kinds * rounds <= EXACT and self.run.data.num_clients * rounds <= COUNTS:
            return list(range(1, rounds + 1))
        powers = [2**power for power in range(rounds.bit_length()) if 2**power < rounds]
        return [*powers[len(powers) - min(EVALUATIONS // kinds, len(powers)) :], rounds]

    def epsilon(self, rounds: int) -> float:
        """Epsilon of the worst client after the first `rounds` rounds."""
        if rounds == self.run.rounds:
            return self.guarantee.epsilon
        return max(self._prices(self._kinds(rounds)), default=0.0)

    def epsilons(self, rounds: int) -> list[float]:
        """Epsilon of each client after the first `rounds` rounds."""
        return self._prices(self.events(rounds))

    def _prices(self, events: list[Event]) -> list[float]:
        assert self.guarantee.delta is not None
        return epsilons_of(events, self.guarantee.delta, self.run.terms.accountant)

    def at_any_time(self, rounds: int) -> float | None:
        """`GaussianOdometer` for the worst client; None if noise is not Gaussian or sums are sampled.

        It is for the `priced_at` rounds of `price`.
        """
        if self._odometer is None:
            return None
        return self._odometer.epsilon(self._squared_mu(self._priced_at(rounds)))

    @functools.cached_property
    def _odometer(self) -> GaussianOdometer | None:
        try:
            planned = self._squared_mu(self.run.rounds) if self.private else 0.0
        except NotCoveredError:
            return None
        delta = self.guarantee.delta
        return GaussianOdometer(planned, delta) if planned and delta is not None else None

    def _squared_mu(self, rounds: int) -> float:
        return max(map(squared_mu, self._kinds(rounds)), default=0.0)

    @property
    def _is_cheap(self) -> bool:
        accountant = self.run.terms.accountant
        return not self.private or accountant in CHEAP or (accountant == "pld" and self._odometer is not None)

    def _kinds(self, rounds: int) -> list[Event]:
        """Events of the first rounds that differ, of which the worst client has one."""
        one = self.one_round
        if one is None:
            return distinct(self.events(rounds))
        most = np.zeros(len(one.events), int)  # more rounds of the same kind cost no less
        np.maximum.at(most, one.kind, self.counts(rounds))
        return [repeated(event, int(count)) for event, count in zip(one.events, most) if count]

    def counts(self, rounds: int) -> np.ndarray:
        """Number of rounds, among the first `rounds`, for which each client is counted."""
        num_clients = self.run.data.num_clients
        if not self.by_schedule:
            return np.full(num_clients, rounds)
        done, counts = self._last_counts if self._last_counts[0] <= rounds else (0, np.zeros(num_clients, int))
        self._last_counts = rounds, counts + self.run.participation_counts(slice(done, rounds))
        return self._last_counts[1]

    @functools.cached_property
    def by_schedule(self) -> bool:
        """Whether each client is counted for the rounds for which it is drawn."""
        return participation_mode(self.run) == "schedule"

    @functools.cached_property
    def one_round(self) -> OneRound | None:
        """The release of each round, if the rounds compose to the event of the Guarantee; else None.

        They do not for noise that is correlated over rounds, fixed slots, or releases that happen once in a run.
        """
        run = self.run
        kinds, kind = number_events(all_releases(run, training_events(run.prefix(1), at_least=1), of_prior_runs=False))
        if any(step.sampling.keeps_draw for event in kinds for step, _ in event.leaves()):
            return None
        rows = zip(kind.tolist(), self.counts(run.rounds).tolist(), self.events(run.rounds), strict=True)
        whole = {(at, count, id(event)): event for at, count, event in rows}
        adds_up = all(repeated(kinds[at], count) == event for (at, count, _), event in whole.items())
        return OneRound(kind, kinds) if adds_up else None

    def lines(self, first: int, until: int, end: int | None = None, halt: str = "rounds") -> Iterator[dict[str, Any]]:
        """Ledger lines of the rounds from `first` to `until` - 1.

        end, halt  the round at which the run ends (default: its last), and what ends it: rounds, budget or rule.
        """
        for index in range(first, until):
            yield self._line(index, self.run.rounds if end is None else end, halt)

    def _line(self, index: int, end: int, halt: str) -> dict[str, Any]:
        guarantee, terms = self.guarantee, self.run.terms
        spent = self.price(index + 1) if self.private else None
        budget = terms.common_budget
        law = {"participation": participation_mode(self.run)} if self.private else {}
        if self.private and terms.stop is not None:
            law["stop"] = terms.stop
        return {
            "ledger": VERSION,
            "kind": ROUND,
            "round": index,
            **self._releases_of_round(index),
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
            "law": law,
            "deployment": None if guarantee.deployment is None else guarantee.deployment._asdict(),
        }

    def _releases_of_round(self, index: int) -> dict[str, Any]:
        """What the round releases of whom; where rounds do not add up, all up to it, of those for whom it has grown."""
        num_clients, one = self.run.data.num_clients, self.one_round if self.private else None
        if index and (not self.private or (one and not self.by_schedule)):
            return {"as_round": 0}
        if not self.private:
            return {"events": [], "clients": [], "so_far": False}
        if one is None:
            before = self.events(index) if index else [None] * num_clients
            after = self.events(index + 1)
            grown = [client for client, events in enumerate(zip(before, after, strict=True)) if events[0] != events[1]]
            return encode_events(*number_events(after), np.array(grown, int)) | {"so_far": True}
        often = self.run.participation_counts(index) if self.by_schedule else np.ones(num_clients, int)
        line = encode_events(one.events, one.kind, np.flatnonzero(often)) | {"so_far": False}
        for count in range(2, int(often.max(initial=1)) + 1):  # who trains twice is named twice
            again = encode_events(one.events, one.kind, np.flatnonzero(often >= count))
            places = [line["events"].index(event) for event in again["events"]]
            line["clients"] += [[ids, places[place]] for ids, place in again["clients"]]
        return line
