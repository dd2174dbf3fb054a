"""Run an algorithm: check and compile once, then run round after round, with evaluations in between."""

import contextlib
import dataclasses
import functools
import math
import statistics
import time
import warnings
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_dp import errors, gradients, validation
from fedjax_dp.data.store import FederatedData, require_clients
from fedjax_dp.devices import COMPILER_OPTIONS
from fedjax_dp.display import Card, count, displayed
from fedjax_dp.execution.host_tables import HostTable
from fedjax_dp.execution.memory import fit_execution, free_memory
from fedjax_dp.execution.mesh import Execution, all_devices
from fedjax_dp.gradients import JitOfModel, joined, split
from fedjax_dp.models import Model, NetworkModel, cross_entropy, task_of, usual_model
from fedjax_dp.models.model import score_shapes
from fedjax_dp.models.origins import draw_seed
from fedjax_dp.parts import facts
from fedjax_dp.pytrees import check_part, replace, tensor_sizes
from fedjax_dp.rounds import metrics, prefetch, unscored
from fedjax_dp.rounds.algorithm import Algorithm, check_fit
from fedjax_dp.rounds.clients import HostBlock
from fedjax_dp.rounds.metrics import Evaluation as Evaluation
from fedjax_dp.rounds.personal import measure_personal
from fedjax_dp.rounds.prefetch import Prefetcher
from fedjax_dp.rounds.round import run_round
from fedjax_dp.rounds.state import RoundReport, ServerState, final_model, initial_state, place, with_final_model
from fedjax_dp.rounds.update_noise import check_known
from fedjax_dp.tasks import Task, task_named

MOST_ON_DEVICES = 2**31 - 1  # records: devices index them by int32
MOST_STEPS = 10**8  # of a client in a run: rates and cohorts of every round are checked before the first


class Timing(NamedTuple):
    """Seconds. `compile_s` is the first round, compilation included, minus a usual round."""

    compile_s: float
    round_s_median: float
    total_s: float

    @property
    def in_words(self) -> str:
        a_round = f"{self.round_s_median * 1000:.3g} ms a round"
        return f"{self.total_s:.3g} s in all, {a_round}, {self.compile_s:.3g} s to compile"


@displayed
class Simulation(NamedTuple):
    """A finished run."""

    state: ServerState
    history: list[Evaluation]
    timing: Timing
    params: Any  # of the final model, see `final_model`

    def _card(self) -> Card:
        facts = {"parameters": f"{sum(tensor_sizes(self.params)):,}", "timing": self.timing.in_words}
        return Card(f"simulation of {count(self.history[-1].round, 'round')}", facts, metrics.table(self.history))


def run_key(seed: int) -> jax.Array:
    """The key of a run, from which every draw is derived by role, round, client and step.

    Raises: ConfigurationError for a seed of more than 32 bits, which JAX would truncate.
    """
    errors.require_seed(seed)
    return jax.random.key(seed, impl="threefry2x32")


def check(algorithm: Algorithm, data: FederatedData, rounds: int, model: Model | None = None) -> None:
    """Refuse in one line an algorithm that cannot run, before anything compiles. Numbers must be concrete."""
    errors.require_count("rounds", rounds)
    validation.require_part("algorithm", algorithm, Algorithm)
    require_clients(data)
    facts.require_present(algorithm)
    check_part(algorithm.cohort, data.num_clients)
    log = algorithm.cohort.log(data.num_clients)
    if log is not None and log.num_rounds < rounds:
        got, wanted = f"one of {count(log.num_rounds, 'round')}", f"of all {rounds:,} rounds of the run"
        raise errors.refuse("participation log", got, wanted, "go on with it, or lower rounds")
    sizes, local = np.asarray(data.sizes), algorithm.local
    errors.require_count("local_steps", local.steps)
    for what, each in (("local_steps", int(local.steps)), ("cohort_size", algorithm.cohort.capacity(data.num_clients))):
        if rounds * each > MOST_STEPS:
            got, wanted = f"{rounds:,} x {each:,}", f"at most {MOST_STEPS:,}"
            raise errors.refuse(f"rounds x {what}", got, wanted, "lower one of them")
    check_part(local.batches, sizes)
    check_part(local.privatizer, data.num_clients)
    check_part(local, sizes, model, rounds)
    check_part(algorithm.upload, data.num_clients)
    check_part(algorithm.server)
    check_part(algorithm.transport, algorithm.cohort.capacity(data.num_clients))
    check_fit(algorithm, np.asarray(data.shares))
    if getattr(algorithm.server, "corrects", False):
        check_known(algorithm, np.asarray(data.shares))
    if model is not None:
        if not isinstance(model, Hashable):  # nothing that follows the Protocol
            gradients.require_model(model)
        leaves, structure = jax.tree.flatten(data.blank_targets(1))
        target = tuple(data.y.shape[1:]) if hasattr(data.y, "shape") else ()
        task: Any = task_named(data)
        records = (data.record_shape, data.tokens)
        _check_model(model, *records, task, target, data.classes, structure, tuple(leaves))


@functools.lru_cache(maxsize=64)
def _check_model(
    model: Model,
    record_shape: tuple[int, ...],
    tokens: bool,
    task: Task,
    target_shape: tuple[int, ...],
    classes: int,
    structure: Any,
    leaves: tuple[jax.ShapeDtypeStruct, ...],
) -> None:
    """Refuse a model that does not fit the records and their task, whose loss has no gradient of a single record, or
    whose `init` has side effects. Traced, without devices."""
    gradients.require_model(model)
    if isinstance(model, NetworkModel):
        model.check(record_shape, tokens)
        _check_scores(model, record_shape, tokens, task, target_shape, classes)
    x = jax.ShapeDtypeStruct((1, *record_shape), jnp.int32 if tokens else jnp.float32)
    y, keys = jax.tree.unflatten(structure, leaves), jax.eval_shape(lambda: jax.random.split(run_key(0), 1))
    gradients.loss_plan(model, gradients.start_shapes(model), x, y, keys)


def _check_scores(
    model: NetworkModel, record_shape: tuple[int, ...], tokens: bool, task: Task, target: tuple[int, ...], classes: int
) -> None:
    """Refuse scores whose shape does not fit the loss of the task. A user-defined loss may use any shape."""
    task = task if model.task is None else model.task
    if model.loss_of != task.loss:
        if model.loss_of is cross_entropy:
            remedy = "write model.for_data(data), or give fedjax_dp.model a loss of its own"
            raise errors.refuse("loss of the model", "that of task classes", f"one for task {task.name}", remedy)
        return
    wanted, shapes = task.scores(target, classes), score_shapes(model, record_shape, tokens)
    if wanted is not None and shapes != [wanted]:
        got, remedy = ", ".join(map(str, shapes)), "give the network as many outputs, or a loss of its own"
        if tokens and [shape[1:] for shape in shapes] == [wanted]:  # scores of every token
            remedy = (
                "--model lstm scores a whole text, and takes --trainable head or lora; the others score every token"
            )
        raise errors.refuse("scores of the model", got, f"{wanted}, as the loss of task {task.name} takes them", remedy)


def as_float32_leaves(algorithm: Algorithm) -> Algorithm:
    """The algorithm with every number as a float32 array, so that changed numbers need no new compilation."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), algorithm)


# Compiled: the state before round 0.
@JitOfModel
def begin(algorithm: Algorithm, data: FederatedData, key: jax.Array, *, model: Model) -> ServerState:
    return initial_state(algorithm, model, data, key)


def run_rounds(
    algorithm: Algorithm,
    state: ServerState,
    data: FederatedData,
    key: jax.Array,
    until: jax.Array,
    *,
    model: Model,
    execution: Execution,
    block: HostBlock | None = None,
) -> tuple[ServerState, RoundReport]:
    """Run rounds up to `until` in one loop, which stops after a round that is not finite."""

    def next_round(carry: tuple[ServerState, RoundReport]) -> tuple[ServerState, RoundReport]:
        return run_round(algorithm, model, data, key, carry[0], execution, block=block)

    def goes_on(carry: tuple[ServerState, RoundReport]) -> jax.Array:
        state, report = carry
        return (state.round < until) & jnp.all(report.finite & ~report.overflow)

    state, report = lax.while_loop(goes_on, next_round, (state, empty_report(algorithm, data.num_clients)))
    if block is not None and block.places is not None:  # their rows go back to tables on the host
        state = prefetch.over_tables(state, execution.gather_for_processes)
    return state, execution.gather_for_processes(report)


# Compiled; the new state reuses the memory of `state`, so a state can be passed only once.
advance = JitOfModel(run_rounds, ("execution",), donate_argnums=1, compiler_options=COMPILER_OPTIONS)


@dataclasses.dataclass(frozen=True)
class Rounds:
    """An algorithm with data and key on its devices, ready to advance a state by some rounds."""

    algorithm: Algorithm
    data: FederatedData
    key: jax.Array
    model: Model
    execution: Execution
    prefetcher: Prefetcher | None = None  # of records on the host

    def advance(self, state: ServerState, until: int) -> tuple[ServerState, RoundReport]:
        """The state before round `until`, or after one that was not finite; `state` cannot be used again."""
        options: dict[str, Any] = {"model": self.model, "execution": self.execution}
        report: RoundReport
        if self.prefetcher is None:
            state, report = advance(self.algorithm, state, self.data, self.key, np.int32(until), **options)
            return state, report
        done = int(state.round)
        while True:
            block = self.prefetcher.block(done)
            end, tables = min(until, block.until), prefetch.tables_of(state)
            loaded = prefetch.load_rows(state, block, self.execution)
            loaded, report = advance(
                self.algorithm, loaded, self.data, self.key, np.int32(end), block=block.records, **options
            )
            state = prefetch.store_rows(loaded, tables, block)
            done = int(state.round)
            if done >= until or done < end or not np.all(np.asarray(report.finite) & ~np.asarray(report.overflow)):
                return state, report

    def close(self) -> None:
        """Stop reading records."""
        if self.prefetcher is not None:
            self.prefetcher.close()

    def fit_chunk_size(self, state: ServerState) -> "Rounds":
        """The same rounds, with as many clients at once as fit into the free memory of a device.

        Unchanged on a CPU, whose chunks fit its caches; with a given `chunk_size`; and with several processes, which
        might choose different sizes.
        """
        execution, own = self.execution, list(self.execution.own)
        if execution.platform == "cpu" or execution.chunk_size is not None:
            return self
        if len(own) < execution.devices:
            return self
        members = self.algorithm.cohort.capacity(self.data.num_clients)

        def program_of(execution: Execution) -> Any:
            return dataclasses.replace(self, execution=execution).compile(state)

        size = sum(tensor_sizes(state.params))
        try:
            in_use = 0.0 if self.prefetcher is None else self.prefetcher.bytes_in_use(int(state.round))
            room = max(free_memory(own) - in_use, 0.0)
            fitted, _ = fit_execution(program_of, execution, members, size, room, placed=True)
        except errors.ConfigurationError:
            self.close()
            raise
        if fitted == execution:
            return self
        self.close()
        return dataclasses.replace(
            self,
            execution=fitted,
            prefetcher=None if self.prefetcher is None else self.prefetcher.with_execution(fitted),
        )

    def compile(self, state: ServerState) -> Any:
        """The program that `advance` runs."""
        options: dict[str, Any] = {"model": self.model, "execution": self.execution}
        if self.prefetcher is not None:
            block = self.prefetcher.block(int(state.round))
            state, options["block"] = prefetch.load_rows(state, block, self.execution), block.records
        return advance.lower(self.algorithm, state, self.data, self.key, jnp.int32(1), **options).compile()


def initialize(
    algorithm: Algorithm,
    data: FederatedData,
    model: Model,
    execution: Execution,
    *,
    seed: int = 0,
    start: ServerState | None = None,
    on_host: bool = False,
) -> tuple[Rounds, ServerState]:
    """The rounds of a run on its devices, and the state before round 0 or a copy of `start`; `seed` as of draws."""
    if not on_host and data.x.shape[0] > MOST_ON_DEVICES:
        raise errors.refuse(
            "records", f"{data.x.shape[0]:,} on devices", f"at most {MOST_ON_DEVICES:,}", "keep them on the host"
        )
    key, algorithm = run_key(seed), as_float32_leaves(algorithm)
    if start is not None and not on_host:
        start = prefetch.over_tables(start, lambda table: np.asarray(table) if isinstance(table, HostTable) else table)
    state = place(initial_server_state(algorithm, data, model, seed, on_host) if start is None else start, execution)
    if start is not None:  # the caller's arrays must stay valid
        state = jax.tree.map(lambda a: a.copy() if isinstance(a, HostTable) else jnp.copy(a), state)
    prefetcher = None
    if on_host:
        size, kept = sum(tensor_sizes(state.params)), sum(table.row_bytes for table in prefetch.tables_of(state))
        prefetcher, data = Prefetcher(algorithm, data, execution, key, size, kept), prefetch.without_records(data)
    algorithm, data, key = execution.place((algorithm, data, key))
    structure, frozen = split(model)
    model = joined(structure, execution.place_models(frozen))
    return Rounds(algorithm, data, key, model, execution, prefetcher).fit_chunk_size(state), state


def initial_server_state(
    algorithm: Algorithm, data: FederatedData, model: Model, seed: int, on_host: bool = False
) -> ServerState:
    """The state before round 0. If records are on the host, separable state of clients is there too."""
    algorithm, key = as_float32_leaves(algorithm), run_key(seed)
    if on_host:
        data = prefetch.without_records(data)
    if on_host and algorithm.local.separable_state:
        alone = replace(data, offsets=data.offsets[:1], sizes=data.sizes[:1], shares=data.shares[:1])
        state = begin(algorithm, alone, key, model=model)
        return prefetch.over_tables(state, lambda table: HostTable(data.num_clients, table[0]))
    return begin(algorithm, data, key, model=model)


def empty_report(algorithm: Algorithm, num_clients: int) -> RoundReport:
    members, upload = algorithm.cohort.capacity(num_clients), algorithm.upload
    zeros, no = jnp.zeros(members), jnp.zeros(members, bool)
    learnt = upload.learnt_clip_norm(upload.init(1))
    return RoundReport(jnp.zeros(members, jnp.int32), no, zeros, zeros, zeros, zeros, ~no, no, learnt_clip_norm=learnt)


def _warn(line: str) -> None:
    warnings.warn(line, RuntimeWarning, stacklevel=3)


def simulate(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    rounds: int,
    seed: int = 0,
    model: Model | None = None,
    evaluate_every: int | None = None,
    train_metrics: bool = False,
    execution: Execution | None = None,
    start: ServerState | None = None,
    pause_every: int | None = None,
    on_pause: Callable[[ServerState, list[Evaluation]], None] | None = None,
    stop: Callable[[Evaluation], bool] | None = None,
    on_host: bool = False,
    checked: bool = False,
    notice: Callable[[str], None] = _warn,
) -> Simulation:
    """Run `rounds` rounds of an algorithm and evaluate every `evaluate_every` (default: about 20 times).

    seed           of all draws, together with the values that the model begins with, as in a Guarantee;
    model          default multinomial logistic regression;
    train_metrics  also evaluate objective and gradient norm (diagnostics), each time a pass over all training records;
                   on a GPU also `noise_to_signal` of noise on gradients, see `Execution.signal`;
    execution      default every device of all processes in `jax.distributed`;
    start          continue from this state; the result equals the uninterrupted run bit for bit on the same devices
                   (on accelerators if the same number of clients fits at once, see `chunk_size`);
    on_pause       called with the state and this call's evaluations at each evaluation and every `pause_every` rounds,
                   for progress and checkpoints; the state is only valid during the call;
    stop           called with each evaluation except the last; the run ends after the first one for which it is true;
    on_host        leave the records where they are, in memory or on disk, and copy those of the next cohorts to the
                   devices while they compute; the result is the same bit for bit;
    checked        whether the caller has already called `check`;
    notice         called with a line if records have no finite loss; by default that is a warning.
    Raises:     ConfigurationError before compiling; errors.DivergedError with round and clients.
    """
    began = time.perf_counter()
    if not checked:
        require_clients(data)
        check(algorithm, data, rounds, usual_model(data) if model is None else model)
    model = usual_model(data) if model is None else model
    if on_host:
        prefetch.check(algorithm, train_metrics)
    every = evaluate_every or max(1, rounds // 20)
    errors.require_count("evaluate_every", every)
    execution = execution or all_devices()
    if train_metrics:
        execution = dataclasses.replace(execution, signal=True)
    noticed = start is not None  # a run that continues has already given the notice
    if getattr(model, "origins", ()):  # training begins with the values of another
        seed = draw_seed(seed, model)
    run, state = initialize(algorithm, data, model, execution, seed=seed, start=start, on_host=on_host)
    del start
    done = first = int(state.round)
    history: list[Evaluation] = []
    first_round_s, later = 0.0, []
    with contextlib.closing(run):
        while done < rounds:
            until = min(rounds, _next_multiple(done, every), _next_multiple(done, pause_every or every))
            if done == first:
                until = done + 1  # a single round: compilation is timed separately, and progress shows early
            tick = time.perf_counter()
            state, report = run.advance(state, until)
            finite = np.asarray(report.finite)
            spent = time.perf_counter() - tick
            if done == first:
                first_round_s = spent
            else:
                later.append(spent / (int(state.round) - done))
            done = int(state.round)
            if not finite.all():
                lost = np.asarray(report.clients)[~finite].tolist()
                unscored.require_scores(model, data, run.key, tolerated=False)
                raise errors.DivergedError(done - 1, lost, run.data.called)
            if np.asarray(report.overflow).any():
                lost = np.asarray(report.clients)[np.asarray(report.overflow)].tolist()
                raise errors.RingOverflowError(done - 1, lost, run.data.called)
            if done % every == 0 or done == rounds:
                structure, frozen = split(run.model)
                params, frozen, records = execution.on_one_device((final_model(run.algorithm, state), frozen, run.data))
                whole = joined(structure, frozen)
                measurement = metrics.measure(params, records, model=whole, train=train_metrics)
                if algorithm.local.personal and data.test_clients is not None:
                    last = with_final_model(run.algorithm, state)
                    own = measure_personal(
                        run.algorithm.local, last, run.data, run.key, model=run.model, execution=execution
                    )
                    measurement = measurement._replace(personal=own)
                history.append(metrics.evaluation_of(done, measurement, report, records, task_of(whole, records)))
                if not math.isfinite(history[-1].test_loss):
                    unscored.require_scores(whole, data, run.key)
                    raise errors.DivergedError(done - 1, [])
                newest = history[-1]
                lost = newest.train_loss is None or (newest.clipped is None and algorithm.upload.unit is None)
                if lost and not noticed and np.asarray(report.present).any():
                    noticed = True
                    if (line := unscored.warning_on(params, whole, data, run.key, done)) is not None:
                        notice(line)
                if stop is not None and done < rounds and stop(newest):
                    rounds = done
            if on_pause:
                on_pause(state, history)
    usual = statistics.median(later) if later else first_round_s
    timing = Timing(max(first_round_s - usual, 0.0), usual, time.perf_counter() - began)
    return Simulation(state, history, timing, final_model(run.algorithm, state))


def _next_multiple(value: int, of: int) -> int:
    return (value // of + 1) * of
