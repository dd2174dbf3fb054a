"""What a usual round cannot do without: operations, bytes and random numbers, at the speeds of the machine."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import gradients, prng
from fedjax_dp.data.store import FederatedData
from fedjax_dp.devices import COMPILER_OPTIONS
from fedjax_dp.execution.mesh import Execution, sum_over_clients
from fedjax_dp.models import Model
from fedjax_dp.models.model import size_of
from fedjax_dp.rounds.algorithm import Algorithm


class Work(NamedTuple):
    """What a round cannot do without, counted."""

    flops: float  # of gradients: forward and backward of every batch
    bytes: float  # of batches, once, and of every client's parameters, read and written in every step
    normals: float  # of noise on gradients and on the mean


class Floor(NamedTuple):
    """What a round cannot do without, counted, and the least time of each at the speeds seen here (milliseconds)."""

    flops: float  # of gradients: forward and backward of every batch
    bytes: float  # of batches, once, and of every client's parameters, read and written in every step
    normals: float  # of noise on gradients and on the mean
    flops_ms: float
    bytes_ms: float
    normals_ms: float

    @property
    def ms(self) -> float:
        """Arithmetic and normals use the same units, memory works beside them."""
        return max(self.flops_ms + self.normals_ms, self.bytes_ms)


def floor_of(algorithm: Algorithm, data: FederatedData, model: Model, execution: Execution) -> Floor:
    """What a usual round of an algorithm cannot do without, at the speeds of the devices."""
    work, rates = work_of(algorithm, data, model), speeds(execution)
    return Floor(
        *work,
        1e3 * work.flops / rates["flops"],
        1e3 * work.bytes / rates["bytes"],
        1e3 * work.normals / rates["normals"],
    )


def work_of(algorithm: Algorithm, data: FederatedData, model: Model) -> Work:
    """What a usual round of an algorithm cannot do without; forward and backward are counted by the compiler."""
    local, members = algorithm.local, algorithm.cohort.expected_size(data.num_clients)
    most, least = data.largest, data.smallest
    steps, rows = jax.eval_shape(
        lambda key: local.batches.sample(key, jnp.int32(most), local.batches.count(local.steps, most), most, least),
        jax.random.key(0),
    ).positions.shape
    size, record = size_of(model), int(np.prod(data.record_shape))
    params = jax.eval_shape(model.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((rows, *data.record_shape), jnp.int32 if data.tokens else jnp.float32)
    y, mask = data.blank_targets(rows), jax.ShapeDtypeStruct((rows,), bool)
    plain = jax.jit(lambda p, x, y, m: gradients.plain_sum(model, p, x, y, m).total).lower(params, x, y, mask).compile()
    counted = plain.cost_analysis() or {}
    flops = float(counted.get("flops", 0.0)) * steps * members
    moved = (rows * record * np.dtype(data.x.dtype).itemsize + 2 * 4 * size) * float(steps * members)
    noisy = hasattr(local.privatizer, "source")
    normals = float(size * (steps * members if noisy else 1 if hasattr(algorithm.upload, "source") else 0))
    return Work(flops, moved, normals)


def speeds(execution: Execution) -> dict[str, float]:
    """What the devices do per second, all together: operations in products, bytes copied, normals drawn."""
    cpu = execution.platform == "cpu"  # whose cores are full early; an accelerator takes more to fill
    side, large, size = (512, 2**23, 2**13) if cpu else (4096, 2**27, 2**22)

    def product(a: jax.Array, i: jax.Array, at: jax.Array) -> jax.Array:
        return (a @ a) * (1.0 / side)

    def copy(a: jax.Array, i: jax.Array, at: jax.Array) -> jax.Array:
        return a + at

    def normal(a: jax.Array, i: jax.Array, at: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), at.astype(jnp.int32))
        return a + prng.normals(key, i.astype(jnp.uint32), size)

    def per_second(step: Callable[..., jax.Array], start: jax.Array, work: float, times: int) -> float:
        def one(start: jax.Array, at: jax.Array) -> tuple[jax.Array, tuple[()]]:
            end = jax.lax.fori_loop(0, times, lambda i, a: step(a, i, at), start + at)
            return end.ravel()[0], ()

        def all_(start: jax.Array, ats: jax.Array) -> jax.Array:
            return sum_over_clients(one, start, ats, execution, 1)[0]

        run = jax.jit(all_, compiler_options=COMPILER_OPTIONS)
        placed = execution.place((start, jnp.arange(execution.shares, dtype=jnp.float32)))
        timed = round_timer(lambda: run(*placed), 1)
        return work * times * execution.shares / (min(timed() for _ in range(5)) / 1e3)

    return {
        "flops": per_second(product, jnp.ones((side, side)), 2.0 * side**3, 10),
        "bytes": per_second(copy, jnp.ones(large), 8.0 * large, 10),
        "normals": per_second(normal, jnp.zeros(size), float(size), 200),
    }


def round_timer(call: Callable[[], Any], rounds: int) -> Callable[[], float]:
    """Milliseconds of one of the rounds that a call makes."""
    jax.block_until_ready(call())

    def run() -> float:
        began = time.perf_counter()
        jax.block_until_ready(call())
        return 1e3 * (time.perf_counter() - began) / rounds

    return run
