"""An experiment and its training, with progress, callbacks and perhaps a folder."""

import dataclasses
import functools
import pathlib
import textwrap
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Guarantee
from fedjax_dp.accounting.guarantee import with_mark
from fedjax_dp.display import Card, count, displayed
from fedjax_dp.execution import distributed
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.experiments import parameters, phases
from fedjax_dp.experiments.config import CONFIGURED, RunSpec
from fedjax_dp.experiments.console import Screen
from fedjax_dp.experiments.stopping import StopRule
from fedjax_dp.models import Model, Origin, Start, task_of
from fedjax_dp.models.origins import values_digest
from fedjax_dp.privacy.guarantees import prepare
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.privacy.spending import Spending
from fedjax_dp.rounds import metrics, prefetch
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.metrics import main_metric
from fedjax_dp.rounds.simulation import Evaluation, Simulation, Timing, as_float32_leaves, simulate
from fedjax_dp.rounds.state import ServerState, final_model
from fedjax_dp.tasks import Task, constant_baseline, measures_of_task
from fedjax_dp.tasks.measures import TEST, baseline_in_words, target_of


@displayed
class Result(NamedTuple):
    """The outcome of a run, and its Guarantee."""

    algorithm: Algorithm  # with the calibrated noise
    simulation: Simulation
    guarantee: Guarantee
    ready: "Experiment"

    @property
    def params(self) -> Any:
        return self.simulation.params

    def as_start(self) -> Start:
        """All its parameters and their ledger: `models.freeze(model, start=result)` begins another run with them."""
        values = parameters.by_name(merge_params(self.ready.planned.model, self.params))
        ledger = phases.ledger_of_parameters(self.ready.ledger, values, int(self.simulation.state.round))
        return Start(values, Origin("a run", values_digest(values), ledger=ledger))

    @property
    def history(self) -> list[Evaluation]:
        return self.simulation.history

    @property
    def timing(self) -> Timing:
        return self.simulation.timing

    @property
    def metrics(self) -> dict[str, float | None]:
        """The task's final metrics on the test set, by name; each is a property too, such as `test_accuracy`."""
        return self.history[-1].metrics

    @property
    def test_loss(self) -> float:
        return self.history[-1].test_loss

    def __getattr__(self, name: str) -> Any:
        if name.startswith(TEST):
            return getattr(self.history[-1], name)
        raise AttributeError(f"a result has no {name}")

    def __dir__(self) -> list[str]:
        return [*tuple.__dir__(self), *(f"{TEST}{metric}" for metric in self.metrics)]

    def _card(self) -> Card:
        baseline = constant_baseline(self.ready.task, self.ready.planned.data.y_test)
        words = baseline_in_words(baseline and baseline._asdict(), measures_of_task(self.ready.task))
        facts = {
            **main_metric(self.history),
            **({"baseline": words} if words else {}),
            "privacy": str(self.guarantee),
            **self.guarantee.noise_facts,
            **({"budget": self.ready.halt} if self.ready.halt else {}),
            **({"warnings": "; ".join(self.guarantee.warnings)} if self.guarantee.warnings else {}),
            "timing": self.timing.in_words,
        }
        return Card(f"result of {count(self.history[-1].round, 'round')}", facts, metrics.table(self.history))


@displayed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A prepared run, with its execution and storage; nothing is trained yet.

    spec       the configuration of the run
    planned    algorithm with its noise, data, model, rounds
    guarantee  of all these rounds
    checksums  of everything else that determines it: data, code, values that only Python has, by name
    halted_of  the requested rounds, if a budget ends the run before them
    stop       the rule that ends it by a metric, if any
    folder     that stores it, if any
    history    the evaluations before a continuation
    notes      what was chosen before the run, in lines
    """

    spec: RunSpec
    planned: PlannedRun
    guarantee: Guarantee
    execution: Execution
    on_host: bool
    checksums: Mapping[str, str]
    halted_of: int | None = None
    stop: StopRule | None = None
    folder: pathlib.Path | None = None
    history: tuple[Evaluation, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The algorithm's display name."""
        return self.spec.name

    @property
    def dataset(self) -> str:
        """The display name of the data."""
        return self.spec.data.dataset

    @property
    def rounds(self) -> int:
        """The number of all rounds."""
        return self.planned.rounds

    @property
    def seed(self) -> int:
        """The seed of cohorts, batches, noise and the initial model."""
        return self.planned.seed

    @functools.cached_property
    def ledger(self) -> str:
        """The ledger of its parameters."""
        data = self.planned.data
        checksum = self.checksums.get("data") or data.checksum
        return phases.ledger_of(self.name, self.planned, self.guarantee, checksum)

    @functools.cached_property
    def spending(self) -> Spending:
        """Epsilon by round."""
        return Spending(self.planned, self.guarantee)

    @property
    def end(self) -> tuple[int, str]:
        """The last round as far as known, and what ends the run there: rounds, budget or rule."""
        if self.stop is not None and self.stop.end is not None:
            return self.stop.end, "rule"
        return self.rounds, "rounds" if self.halted_of is None else "budget"

    @property
    def task(self) -> Task:
        """The task of its model."""
        return task_of(self.planned.model, self.planned.data)

    @property
    def halt(self) -> str | None:
        """What ends the run early, in words."""
        (done, why), wanted = self.end, self.halted_of or self.rounds
        words = describe_early_end(done, wanted, why, self.planned.terms.common_budget)
        return f"halted {words}" if words else None

    @property
    def title(self) -> str:
        whose = f"{self.name} on " if self.spec.made_of == CONFIGURED else ""
        text = f"{whose}{self.dataset}, {self.planned.data.num_clients} clients, seed {self.seed}"
        return with_mark(text, self.guarantee.mark)

    def _card(self) -> Card:
        return Card(self.title, {"rounds": str(self.rounds), "privacy": str(self.guarantee)})


def describe_early_end(done: int, wanted: int, why: str, budget: float | None) -> str | None:
    """What ended the run early, after `done` of the requested rounds, if anything did."""
    by = {"rule": "results", "budget": "the budget" if budget is None else f"the budget {budget:g}"}.get(why, "")
    return f"by {by} after {done:,} of {wanted:,} rounds" if done < wanted else None


def prepare_experiment(
    spec: RunSpec,
    planned: PlannedRun,
    execution: Execution,
    *,
    on_host: bool,
    checksums: Mapping[str, str],
    progress: Callable[[int, int], None] | None = None,
    notes: Sequence[str] = (),
) -> Experiment:
    """A run with the noise that it needs and the rounds that its budget allows.

    Raises: ConfigurationError for a target of a metric that the task lacks, for records on the host that are needed
            elsewhere, and for a budget that cannot be met.
    """
    output, measures = spec.output, measures_of_task(task_of(planned.model, planned.data))
    if output.target is not None:
        target_of(output.target, measures)
    target = None if planned.terms.stop is None else target_of(planned.terms.stop, measures, "stop")
    if on_host:
        prefetch.check(planned.algorithm, bool(output.train_metrics))
    wanted = planned.rounds
    planned, guarantee = prepare(planned, progress)
    spec = spec.with_rounds(planned.rounds)
    return Experiment(
        spec=spec,
        planned=planned,
        guarantee=guarantee,
        halted_of=wanted if planned.rounds < wanted else None,
        stop=None if target is None else StopRule(target, spec.output.evaluate_every or 1),
        execution=execution,
        on_host=on_host,
        checksums=checksums,
        notes=tuple(notes),
    )


class Callback(Protocol):
    """Follows a run. Each method may be left out; a function stands for `on_evaluation` alone.

    An error in a callback becomes a warning and ends its calls; the run continues.
    """

    def on_start(self, run: Experiment) -> None:
        """Called before the first round of this process; `run.history` holds earlier evaluations."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Called after each evaluation."""

    def on_finish(self, result: Result) -> None:
        """Called after the last round, when the folder is complete."""

    def on_stop(self, error: BaseException) -> None:
        """Called instead of `on_finish` if the run diverged, was interrupted or could not be stored."""


LONGEST = 500  # letters of a failure in a warning
EVENTS = ("on_start", "on_evaluation", "on_finish", "on_stop")


def _warn(reason: str) -> None:
    warnings.warn(reason, RuntimeWarning, stacklevel=4)


class Callbacks:
    """The callbacks of a run; `lost` gets a line about each that fails."""

    def __init__(self, callbacks: Sequence[Any] = (), lost: Callable[[str], None] = _warn) -> None:
        for one in callbacks:
            if isinstance(one, type) or not (callable(one) or any(hasattr(one, event) for event in EVENTS)):
                wanted = f"a function of an evaluation, or an object with some of {', '.join(EVENTS)}"
                raise errors.refuse("callback", repr(one)[:60], wanted)
        self._following, self._lost = list(callbacks), lost

    def notify(self, event: str, what: Any) -> None:
        for one in list(self._following):
            plain = callable(one) and event == "on_evaluation" and not any(hasattr(one, other) for other in EVENTS)
            call = one if plain else getattr(one, event, None)
            if call is None:
                continue
            # At the end all are called, and no error of theirs replaces the run's own.
            failures = BaseException if event == "on_stop" else Exception
            try:
                call(what)
            except failures as error:
                self._following.remove(one)
                reason = (
                    f"callback {one!r:.60} failed in {event} and is not called again: {type(error).__name__}: {error}"
                )
                self._lost(textwrap.shorten(reason, LONGEST, placeholder=" ..."))


def merge_params(model: Model, params: Any) -> Any:
    """All parameters of the network: trained ones, frozen ones, and low-rank terms added to their kernels."""
    merged = getattr(model, "whole", None)
    return params if merged is None else jax.tree.map(np.asarray, merged(params))


class Keeper(Protocol):
    """The storage of a run."""

    def keep(self, state: ServerState, params: Any, history: Sequence[Evaluation], checkpoint: bool) -> None:
        """Called at evaluations and checkpoints; the state is valid during the call only."""

    def finish(self, result: Result) -> None:
        """Called after the last round."""


def train(
    ready: Experiment,
    screen: Screen,
    callbacks: Callbacks,
    *,
    keeper: Keeper | None = None,
    start: ServerState | None = None,
) -> Result:
    """Train all rounds, or those after the state `start`, whose evaluations are in `ready.history`."""
    if not distributed.is_first():
        callbacks = Callbacks()
    try:
        callbacks.notify("on_start", ready)
        result = _train_rounds(ready, screen, callbacks, keeper, start)
    except BaseException as error:
        callbacks.notify("on_stop", error)
        raise
    callbacks.notify("on_finish", result)
    return result


def _train_rounds(
    ready: Experiment, screen: Screen, callbacks: Callbacks, keeper: Keeper | None, start: ServerState | None
) -> Result:
    first, output = 0 if start is None else int(start.round), ready.spec.output
    run, began, reported = ready.planned, time.perf_counter(), 0
    rounds, algorithm, stop = run.rounds, as_float32_leaves(run.algorithm), ready.stop
    if stop is not None and ready.history and ready.history[-1].round == first and stop.reached(ready.history[-1]):
        rounds = first  # the run was killed after the evaluation that ends it
    with screen.bar("training", total=rounds, done=first) as show:

        def on_pause(state: ServerState, new: list[Evaluation]) -> None:
            nonlocal reported
            now = int(state.round)
            if keeper is not None:
                due = now % output.checkpoint_every == 0 or now == ready.end[0]
                keeper.keep(state, final_model(algorithm, state), [*ready.history, *new], due)
            for evaluation in new[reported:]:
                callbacks.notify("on_evaluation", evaluation)
            reported = len(new)
            show(now, _pace(new, now - first, time.perf_counter() - began))

        simulation = simulate(
            run.algorithm,
            run.data,
            rounds=rounds,
            seed=run.seed,
            model=run.model,
            evaluate_every=output.evaluate_every,
            train_metrics=bool(output.train_metrics),
            execution=ready.execution,
            start=start,
            pause_every=None if keeper is None else output.checkpoint_every,
            on_pause=on_pause,
            on_host=ready.on_host,
            stop=None if stop is None else stop.reached,
            checked=True,
            notice=_warn if screen.console.quiet else screen.say,
        )
    simulation = simulation._replace(history=[*ready.history, *simulation.history])
    result = Result(run.algorithm, simulation, ready.guarantee, ready)
    if keeper is not None:
        keeper.finish(result)
    return result


def _pace(history: list[Evaluation], rounds: int, seconds: float) -> str:
    reached = "".join(f"{name} {value}, " for name, value in main_metric(history).items())
    return f"{reached}{rounds / max(seconds, 1e-9):.1f} rounds/s"
