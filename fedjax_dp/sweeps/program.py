"""The one compiled program of a group of points that differ only in numbers."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_dp.data.store import FederatedData
from fedjax_dp.devices import COMPILER_OPTIONS
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.gradients import joined
from fedjax_dp.models import Model
from fedjax_dp.pytrees import replace
from fedjax_dp.rounds import metrics
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.metrics import Measurement
from fedjax_dp.rounds.personal import ClientStates, evaluate_personal
from fedjax_dp.rounds.simulation import empty_report, run_key, run_rounds
from fedjax_dp.rounds.state import RoundReport, ServerState, initial_state, with_final_model

AXIS = "points"

In = TypeVar("In")
Out = TypeVar("Out")


class Points(NamedTuple):
    """The numbers of points; every leaf `(points, ...)`."""

    algorithm: Algorithm
    key: Any  # of the run
    partition: dict[str, Any]  # `FederatedData.partition`
    evaluation_rounds: Any  # (points, evaluations) int32: rounds after which a point is evaluated


class Running(NamedTuple):
    """The state of a point between segments."""

    state: ServerState
    finite: jax.Array  # bool: all its numbers were finite; else it is not trained further


class Observation(NamedTuple):
    """The measurements of a point at an evaluation."""

    round: jax.Array
    evaluation: Measurement
    report: RoundReport  # of the last round before


@dataclasses.dataclass(frozen=True)
class Program:
    """The structure that the points share.

    vmapped   a device runs its points all at once; else one after another, with the arithmetic of a single run;
    slots     points that a device holds;
    max_evaluations  the most evaluations of a point.
    """

    mesh: Mesh
    model: Model  # its structure; untrained values are arguments of each call, equal for all points
    execution: Execution  # of one point, on one device
    train_metrics: bool
    vmapped: bool
    slots: int
    max_evaluations: int

    def begin(self, points: Points, records: FederatedData, frozen: Any, count: jax.Array) -> Running:
        """A device's first `count[0]` points before round 0, `(slots, ...)`."""
        shared, model = jax.tree.map(lambda a: a[0], records), joined(self.model, frozen)

        def one(point: Points) -> Running:
            data = replace(shared, **point.partition)
            return Running(initial_state(point.algorithm, model, data, point.key), jnp.bool_(True))

        shape: Running = jax.eval_shape(one, _first(points))
        return self._over_points(one, points, count[0], shape)

    def run_segment(
        self,
        points: Points,
        running: Running,
        records: FederatedData,
        frozen: Any,
        count: jax.Array,
        first: jax.Array,
        last: jax.Array,
    ) -> tuple[Running, Observation]:
        """Bring a device's first `count[0]` points from their evaluation `first` to their evaluation `last`.

        Shapes: points and running (slots, ...), records (1, ...), count (1,); returns running and the observation at
                each evaluation (slots, evaluations, ...), zeros for others.
        """
        shared, model = jax.tree.map(lambda a: a[0], records), joined(self.model, frozen)

        first_point, first_running = _first((points, running))
        data = replace(shared, **first_point.partition)
        nobody = empty_report(first_point.algorithm, data.num_clients)
        shape = jax.eval_shape(functools.partial(self._observe, model), first_point, data, first_running.state, nobody)
        blank = jax.tree.map(lambda a: jnp.zeros((self.max_evaluations, *a.shape), a.dtype), shape)

        def one(entry: tuple[Points, Running]) -> tuple[Running, Observation]:
            return self._advance(model, *entry, shared, blank, first, last)

        return self._over_points(one, (points, running), count[0], (first_running, blank))

    def _observe(
        self, model: Model, point: Points, data: FederatedData, state: ServerState, report: RoundReport
    ) -> Observation:
        """The measurements of a point whose last round returned `report`."""
        state = with_final_model(point.algorithm, state)
        measured, local = (
            metrics.measure(state.params, data, model=model, train=self.train_metrics),
            point.algorithm.local,
        )
        if local.personal and data.test_clients is not None:
            clients = jnp.arange(data.num_clients, dtype=jnp.int32)
            held = ClientStates(state.params, state.shared, clients, state.clients, state.round, point.key)
            measured = measured._replace(personal=evaluate_personal(local, held, data, model=model))
        return Observation(state.round, measured, report)

    def _advance(
        self,
        model: Model,
        point: Points,
        running: Running,
        records: FederatedData,
        blank: Observation,
        first: jax.Array,
        last: jax.Array,
    ) -> tuple[Running, Observation]:
        """Train one point from evaluation `first` to `last`. Evaluations that are not reached stay `blank`."""
        data = replace(records, **point.partition)

        def to_mark(at: jax.Array, carry: tuple[Running, Observation]) -> tuple[Running, Observation]:
            (state, finite), observations = carry
            until = jnp.where(finite, point.evaluation_rounds[at], state.round)
            state, report = run_rounds(
                point.algorithm, state, data, point.key, until, model=model, execution=self.execution
            )
            now = self._observe(model, point, data, state, report)
            finite &= jnp.all(report.finite & ~report.overflow) & jnp.isfinite(now.evaluation.test.sums["loss"])
            return Running(state, finite), jax.tree.map(lambda table, row: table.at[at].set(row), observations, now)

        reached: tuple[Running, Observation] = lax.fori_loop(first, last, to_mark, (running, blank))
        return reached

    def _over_points(self, one: Callable[[In], Out], points: In, count: jax.Array, like: Out) -> Out:
        """The stacked results of `one` for the first `count` points. Other slots have arbitrary contents.

        `like` has the shapes of one result, so that they need no tracing.
        """
        if self.vmapped:
            return jax.vmap(one)(points)

        def at(slot: Any) -> Out:
            return one(jax.tree.map(lambda a: a[slot], points))

        results: Out
        if self.slots == 1:
            results = jax.tree.map(lambda a: a[None], at(0))
            return results

        def step(slot: jax.Array, results: Any) -> Any:
            return jax.tree.map(lambda table, row: table.at[slot].set(row), results, at(slot))

        empty = jax.tree.map(lambda a: jnp.zeros((self.slots, *a.shape), a.dtype), like)
        results = lax.fori_loop(0, count, step, empty)
        return results

    def shapes(
        self, algorithm: Algorithm, partition: dict[str, Any], records: FederatedData, frozen: Any
    ) -> tuple[Points, FederatedData, Any, Any]:
        """The arguments of `compile` for points like this one, as shapes: nothing is placed before it fits."""
        spread, devices = NamedSharding(self.mesh, P(AXIS)), self.mesh.size

        def many(count: int, tree: Any, kind: Any = None) -> Any:
            return jax.tree.map(
                lambda a: jax.ShapeDtypeStruct((count, *np.shape(a)), kind or jnp.result_type(a), sharding=spread), tree
            )

        slots = devices * self.slots
        evaluation_rounds: Any = jax.ShapeDtypeStruct((slots, self.max_evaluations), jnp.int32, sharding=spread)
        key = many(slots, jax.eval_shape(lambda: run_key(0)))
        points = Points(many(slots, algorithm, jnp.float32), key, many(slots, partition), evaluation_rounds)
        count = jax.ShapeDtypeStruct((devices,), jnp.int32, sharding=spread)
        whole = NamedSharding(self.mesh, P())
        held = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), jnp.result_type(a), sharding=whole), frozen)
        return points, many(devices, records), held, count

    def compile(
        self, points: Any, records: Any, frozen: Any, count: Any, options: dict[str, Any] = COMPILER_OPTIONS
    ) -> "Executables":
        """The executables for arrays of these shapes and shardings; `options` are the compiler's."""
        each, all_ = P(AXIS), P()
        begin = jax.jit(
            jax.shard_map(
                self.begin, mesh=self.mesh, in_specs=(each, each, all_, each), out_specs=each, check_vma=False
            ),
            compiler_options=options,
        )
        run_segment = jax.jit(
            jax.shard_map(
                self.run_segment,
                mesh=self.mesh,
                in_specs=(each, each, each, all_, each, all_, all_),
                out_specs=each,
                check_vma=False,
            ),
            donate_argnums=1,
            compiler_options=options,
        )
        start = begin.lower(points, records, frozen, count).compile()
        spread = NamedSharding(self.mesh, each)
        running = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=spread),
            jax.eval_shape(begin, points, records, frozen, count),
        )
        whole = run_segment.lower(points, running, records, frozen, count, jnp.int32(0), jnp.int32(1)).compile()
        return Executables(start, whole, max(_bytes(start.memory_analysis()), _bytes(whole.memory_analysis())))


def _first(points: Any) -> Any:
    return jax.tree.map(lambda a: a[0], points)


def _bytes(used: Any) -> int:
    """The bytes that a device needs while a program runs; 0 if the compiler does not report them."""
    if used is None:
        return 0
    held: int = used.argument_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes
    held += used.temp_size_in_bytes
    return held


class Executables(NamedTuple):
    """The executables of a program."""

    begin: Callable[..., Running]
    run_segment: Callable[..., tuple[Running, Observation]]
    bytes: int  # that a device needs, by the compiler's plan
