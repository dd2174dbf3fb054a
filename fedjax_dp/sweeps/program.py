"""What a device does with its points: the one compiled program of a group of points that differ only in numbers."""

import dataclasses
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
from fedjax_dp.rounds.final import with_final_model
from fedjax_dp.rounds.metrics import Measurement
from fedjax_dp.rounds.personal import ClientStates, evaluate_personal
from fedjax_dp.rounds.simulation import empty_report, run_key, run_rounds
from fedjax_dp.rounds.state import RoundReport, ServerState, initial_state

AXIS = "points"

Given = TypeVar("Given")
Found = TypeVar("Found")


class Points(NamedTuple):
    """The numbers of points; every leaf `(points, ...)`."""

    algorithm: Algorithm
    key: Any  # of the run
    partition: dict[str, Any]  # `FederatedData.partition`
    marks: Any  # (points, marks) int32: rounds after which a point is evaluated


class Running(NamedTuple):
    """Where a point stands."""

    state: ServerState
    sound: jax.Array  # bool: all it has shown is finite; else it stays where it is


class Observation(NamedTuple):
    """What a point leaves at a mark."""

    round: jax.Array
    look: Measurement
    report: RoundReport  # of the last round before


@dataclasses.dataclass(frozen=True)
class Program:
    """The structure that the points share.

    together  a device runs its points all at once; else one after another, with the arithmetic of a single run;
    slots     points that a device holds;
    marks     evaluations of a point, at most.
    """

    mesh: Mesh
    model: Model  # its structure; values that it never trains are given to each call, the same for all points
    execution: Execution  # of one point, on one device
    train_metrics: bool
    together: bool
    slots: int
    marks: int

    def begin(self, points: Points, records: FederatedData, frozen: Any, count: jax.Array) -> Running:
        """A device's first `count[0]` points before round 0, `(slots, ...)`."""
        shared, model = jax.tree.map(lambda a: a[0], records), joined(self.model, frozen)

        def one(point: Points) -> Running:
            data = replace(shared, **point.partition)
            return Running(initial_state(point.algorithm, model, data, point.key), jnp.bool_(True))

        shape: Running = jax.eval_shape(one, _first(points))
        return self._over_points(one, points, count[0], shape)

    def visit(
        self,
        points: Points,
        running: Running,
        records: FederatedData,
        frozen: Any,
        count: jax.Array,
        first: jax.Array,
        last: jax.Array,
    ) -> tuple[Running, Observation]:
        """Bring a device's first `count[0]` points from their mark `first` to their mark `last`.

        Shapes: points and running (slots, ...), records (1, ...), count (1,); returns running and what is seen at each
                mark (slots, marks, ...), zeros at those that are not visited.
        """
        shared, model = jax.tree.map(lambda a: a[0], records), joined(self.model, frozen)

        first_point, first_running = _first((points, running))
        data = replace(shared, **first_point.partition)
        nobody = empty_report(first_point.algorithm, data.num_clients)
        shape = jax.eval_shape(lambda *seen: self._see(model, *seen), first_point, data, first_running.state, nobody)
        unseen = jax.tree.map(lambda a: jnp.zeros((self.marks, *a.shape), a.dtype), shape)

        def one(entry: tuple[Points, Running]) -> tuple[Running, Observation]:
            return self._stretch(model, *entry, shared, unseen, first, last)

        return self._over_points(one, (points, running), count[0], (first_running, unseen))

    def _see(
        self, model: Model, point: Points, data: FederatedData, state: ServerState, report: RoundReport
    ) -> Observation:
        """What there is to see of a point whose last round gave `report`."""
        state = with_final_model(point.algorithm, state)
        look, local = metrics.measure(state.params, data, model=model, train=self.train_metrics), point.algorithm.local
        if local.personal and data.test_clients is not None:
            everyone = jnp.arange(data.num_clients, dtype=jnp.int32)
            held = ClientStates(state.params, state.shared, everyone, state.clients, state.round, point.key)
            look = look._replace(personal=evaluate_personal(local, held, data, model=model))
        return Observation(state.round, look, report)

    def _stretch(
        self,
        model: Model,
        point: Points,
        running: Running,
        records: FederatedData,
        unseen: Observation,
        first: jax.Array,
        last: jax.Array,
    ) -> tuple[Running, Observation]:
        """One point from mark to mark; `unseen` is what is seen where nobody looked."""
        data = replace(records, **point.partition)

        def to_mark(at: jax.Array, carry: tuple[Running, Observation]) -> tuple[Running, Observation]:
            (state, sound), seen = carry
            until = jnp.where(sound, point.marks[at], state.round)
            state, report = run_rounds(
                point.algorithm, state, data, point.key, until, model=model, execution=self.execution
            )
            now = self._see(model, point, data, state, report)
            sound &= jnp.all(report.finite & ~report.overflow) & jnp.isfinite(now.look.test.sums["loss"])
            return Running(state, sound), jax.tree.map(lambda table, row: table.at[at].set(row), seen, now)

        reached: tuple[Running, Observation] = lax.fori_loop(first, last, to_mark, (running, unseen))
        return reached

    def _over_points(self, one: Callable[[Given], Found], points: Given, count: jax.Array, like: Found) -> Found:
        """`one` of each of the first `count` points, stacked; whatever stands in the other slots means nothing.

        `like` has the shapes of one result, so that nothing is traced to find them.
        """
        if self.together:
            return jax.vmap(one)(points)

        def at(slot: Any) -> Found:
            return one(jax.tree.map(lambda a: a[slot], points))

        results: Found
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
        """What `compile` takes for points like this one: nothing is placed before it is known to fit."""
        spread, devices = NamedSharding(self.mesh, P(AXIS)), self.mesh.size

        def many(count: int, tree: Any, kind: Any = None) -> Any:
            return jax.tree.map(
                lambda a: jax.ShapeDtypeStruct((count, *np.shape(a)), kind or jnp.result_type(a), sharding=spread), tree
            )

        slots = devices * self.slots
        marks: Any = jax.ShapeDtypeStruct((slots, self.marks), jnp.int32, sharding=spread)
        key = many(slots, jax.eval_shape(lambda: run_key(0)))
        points = Points(many(slots, algorithm, jnp.float32), key, many(slots, partition), marks)
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
        visit = jax.jit(
            jax.shard_map(
                self.visit,
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
        whole = visit.lower(points, running, records, frozen, count, jnp.int32(0), jnp.int32(1)).compile()
        return Executables(start, whole, max(_bytes(start.memory_analysis()), _bytes(whole.memory_analysis())))


def _first(points: Any) -> Any:
    return jax.tree.map(lambda a: a[0], points)


def _bytes(used: Any) -> int:
    """What a device holds while a program runs; 0 where the compiler does not say."""
    if used is None:
        return 0
    held: int = used.argument_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes
    held += used.temp_size_in_bytes
    return held


class Executables(NamedTuple):
    """The executables of a program."""

    begin: Callable[..., Running]
    visit: Callable[..., tuple[Running, Observation]]
    bytes: int  # that a device needs, by the compiler's plan
