"""What ends a run, or chooses its noise, by what it has released: a rule, and choices within a filter.

A stop by public records is free, and one by records that clients hold out has the price of its looks: the claim is that
of all rounds. Where noise is chosen, every round is a step that was chosen from those before it (`accounting.filters`):
the claim is the filter's budget. Who takes part is fixed beforehand, and each client has a filter of its own: no round
is begun with which one of them would pass the budget.
"""

import dataclasses
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Guarantee, best_order, filter_for
from fedjax_dp.accounting.plain_words import epsilon_warnings
from fedjax_dp.privacy.client_events import counted_as
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.privacy.protection import noise_of
from fedjax_dp.privacy.spending import Rounds, Spending, of_a_round
from fedjax_dp.prng import role_key
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.simulation import Evaluation, check, run_key
from fedjax_dp.tasks.measures import Measures, target_of


class Released(NamedTuple):
    """What noise and end of a run may be chosen from."""

    round: int  # rounds that are done
    params: Any  # of the model so far
    metrics: Mapping[str, float | None]  # on the public test set; empty where clients hold it, and before round 0
    noise_multiplier: Any  # of the rounds before, at first that of the algorithm: one number, or one per client
    left: float  # part of the budget, in the filter's currency, of the client that has used most of it


# The noise multiplier of the rounds up to the next evaluation, such as it was before; None ends the run.
Choice = Callable[[Released], Any]


class CountNoise(NamedTuple):
    """Noise on the number of right answers among so many test records."""

    deviation: float
    records: int
    key: jax.Array

    @classmethod
    def of(cls, run: PlannedRun) -> "CountNoise | None":
        """That of a run; None where it stops by public records."""
        if run.terms.stop_noise is None:
            return None
        return cls(run.terms.stop_noise, len(run.data.x_test), role_key(run_key(run.draw_seed), "stop"))

    def added(self, share: float, done: int) -> float:
        """The share of right answers, their number noised: the same at every look after so many rounds."""
        noise = float(jax.random.normal(jax.random.fold_in(self.key, done)))
        return (round(share * self.records) + self.deviation * noise) / self.records


class StopRule:
    """Ends a run at the first evaluation that is as good as a target.

    It sees a metric of a public test set; or, of one that clients hold, right answers with noise and nothing else. An
    evaluation between those that are counted, as where a run was to end and goes on, is no look.
    """

    chosen = None

    def __init__(self, run: PlannedRun, measures: Measures) -> None:
        """Raises: ConfigurationError for a target of a metric that the task has not."""
        assert run.terms.stop is not None
        self._target, self._noise = target_of(run.terms.stop, measures, "stop"), CountNoise.of(run)
        self._every = run.evaluate_every or 1
        self.end: int | None = None
        self.why = "rule"

    def choose(self, algorithm: Algorithm, done: int, until: int, params: Any, seen: Evaluation | None) -> Algorithm:
        """The algorithm as it was; notes the end."""
        if seen is None or done % self._every:
            return algorithm
        measure, value = self._target.measure, seen.row()[self._target.measure.name]
        if self._noise is not None:
            value = self._noise.added(value, done)
        if measure.reached(value, self._target.value):
            self.end = done
        return algorithm


class Choices:
    """What a function has chosen for the rounds of a run so far.

    end, why  the last round, where a choice or the budget ends the run before its time: rule or budget;
    name      of this run alone, as nothing else tells what the function will choose.
    """

    def __init__(self, run: PlannedRun, promise: Guarantee, choose: Choice) -> None:
        """Raises: ConfigurationError where no filter holds, and where not even the first round is within the budget."""
        if not callable(choose):
            raise errors.refuse("adapt", repr(choose)[:60], "a function of privacy.steering.Released")
        _require_covered(run, promise)
        spending = Spending(run, promise)
        if spending.by_round is None or counted_as(run) not in ("schedule", "worst"):
            wanted = "left out where rounds do not count one by one, as with correlated noise"
            raise errors.refuse("adapt", "a function", wanted, "fix noise and rounds beforehand")
        terms, events = run.terms, spending.by_round.events
        budget, delta = terms.common_budget, promise.delta
        assert budget is not None
        assert delta is not None
        order = max(best_order(event, budget, delta) for event in events) if terms.accountant == "rdp" else None
        self.filter = filter_for(terms.accountant, budget, delta, order)
        self.end: int | None = None
        self.why, self.name = "rounds", secrets.token_hex(8)
        self._run, self._spending, self._choose = run, spending, choose
        self._of_rounds: list[Rounds] = []  # that are chosen
        self._used = [np.zeros(run.data.num_clients)]  # before each of them, and after the last
        first = float(max(map(self.filter.cost, events)))
        if first > self.filter.budget:
            wanted = f"enough for the first round, which costs {first:.4g} of {self.filter.budget:.4g}"
            raise errors.refuse("budget", budget, wanted, "raise it, or noise_multiplier")

    @property
    def chosen(self) -> "Choices":
        """What `Spending` asks of the rounds."""
        return self

    def of_round(self, index: int) -> Rounds:
        """What the round releases of each client that takes part in it."""
        return self._of_rounds[index]

    def used(self, rounds: int) -> float:
        """What the first rounds have cost the client that has used most, in the filter's currency."""
        return float(self._used[rounds].max())

    def choose(self, algorithm: Algorithm, done: int, until: int, params: Any, seen: Evaluation | None) -> Algorithm:
        """The algorithm of the rounds that come next, up to `until` at most; `algorithm` is that of those before.

        Rounds that a client cannot pay for are not begun: `end` is then the one before.
        """
        now, left = noise_of(algorithm), 1 - self.used(done) / self.filter.budget
        public = seen is not None and self._run.private_tests is None
        metrics = {**seen.metrics, "loss": seen.test_loss} if seen is not None and public else {}
        chosen = self._choose(Released(done, params, metrics, now, left))
        if chosen is None and done:
            self.end, self.why = done, "rule"
            return algorithm
        run = self._run.with_noise(_checked(chosen, now))
        check(run.algorithm, run.data, run.rounds)
        released = of_a_round(run)
        costs = np.array([self.filter.cost(event) for event in released.events])[released.kind]
        for index in range(done, until):
            used = self._used[-1] + costs * self._spending.times_in(index)
            if not np.all(used <= self.filter.budget):
                self.end, self.why = index, "budget"
                break
            self._used.append(used)
            self._of_rounds.append(released)
        return run.algorithm


def claim_of(promise: Guarantee, choices: Choices) -> Guarantee:
    """The Guarantee of the run: the budget, for everybody, whatever is chosen."""
    order = getattr(choices.filter, "order", None)
    at = "" if order is None else f" at order {order:.4g}, fixed beforehand,"
    line = (
        f"noise multiplier and end are chosen from released values, within a filter{at} of the budget: no round was "
        "begun with which a client would have passed it"
    )
    before = epsilon_warnings(promise.epsilon)
    others = tuple(line for line in promise.warnings if line not in before)
    return dataclasses.replace(
        promise,
        epsilons=(choices.filter.epsilon,) * len(promise.epsilons),
        assumptions=(*promise.assumptions, line),
        claims=(),
        elsewhere=(),
        warnings=(*epsilon_warnings(choices.filter.epsilon), *others),
        noise=None,
        attack=None,
    )


def _require_covered(run: PlannedRun, promise: Guarantee) -> None:
    terms, local = run.terms, run.algorithm.local
    for uncovered, wanted, remedy in (
        (terms.budget is None or terms.common_budget is None, "beside one budget", "add budget=, which is the claim"),
        (terms.epsilon is not None, "left out where epsilon finds the noise", "give noise_multiplier and budget"),
        (promise.reason is not None, "left out where epsilon is infinite", promise.reason or ""),
        (local.personal or not local.sends_steps, "left out where clients have models of their own", "use one model"),
        (
            bool(run.prior_runs),
            "left out where the run goes on from a private phase",
            "begin with a public start",
        ),
        (terms.deployment is not None, "left out where a run stands for a deployment", "leave its cohort out"),
        (terms.individual, "left out beside individual filters", "choose one of both"),
        (terms.stop is not None, "left out beside stop", "the function may return None to stop"),
    ):
        if uncovered:
            raise errors.refuse("adapt", "a function", wanted, remedy)


def _checked(chosen: Any, now: Any) -> Any:
    """A noise multiplier of the shape of the one before, as float32 has it."""
    noise = np.asarray(chosen)
    if noise.dtype.kind not in "iuf" or not np.all(np.isfinite(noise)) or not np.all(noise > 0):
        raise errors.refuse("what adapt returns", repr(chosen)[:60], "a positive noise multiplier, or None to stop")
    if noise.ndim and noise.shape != np.shape(now):
        wanted = "one number" + (f", or one for each of {np.size(now)} clients" if np.ndim(now) else "")
        raise errors.refuse("what adapt returns", f"shape {noise.shape}", wanted)
    exact = np.broadcast_to(noise.astype(np.float32), np.shape(now))
    return np.array(exact) if np.ndim(now) else float(exact)
