"""Clients as an axis: the one place where a cohort is spread over devices, chunks and lanes."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "cohort"


@dataclasses.dataclass(frozen=True)
class Execution:
    """Where and in what portions clients run; it changes speed and memory, and results only by rounding of one sum.

    mesh        devices that share a cohort, None for one device;
    chunk_size  clients that are computed at once on a device, None for all of them.
    """

    mesh: Mesh | None = None
    chunk_size: int | None = None

    @property
    def devices(self) -> int:
        return self.mesh.size if self.mesh else 1

    def place(self, tree: Any) -> Any:
        """Copy a pytree to the devices that will use it."""
        return jax.device_put(tree, NamedSharding(self.mesh, P()) if self.mesh else jax.devices()[0])


def all_devices(chunk_size: int | None = None) -> Execution:
    """Every local device of the default backend."""
    devices = jax.local_devices()
    return Execution(Mesh(devices, (AXIS,)) if len(devices) > 1 else None, chunk_size)


def sum_over_clients(
    train: Callable[[Any, jax.Array], tuple[jax.Array, Any]],
    shared: Any,
    ids: jax.Array,
    weights: jax.Array,
    size: int,
    execution: Execution,
) -> tuple[jax.Array, Any]:
    """sum_i weights[i] update_i and the stacked reports, where (update_i, report_i) = train(shared, ids[i]).

    Shapes: ids and weights `(cohort,)`, updates flat `(size,)`; reports come back in the order of `ids`. The cohort is
            padded to fill devices and chunks; padding is masked after training, so whatever it computes, NaN included,
            contributes exactly zero.
    """
    members = ids.shape[0]
    share = math.ceil(members / execution.devices)
    chunk = min(execution.chunk_size or share, share)
    chunks = math.ceil(share / chunk)
    short = execution.devices * chunks * chunk - members
    padded = (jnp.pad(ids, (0, short)), jnp.pad(weights, (0, short)), jnp.arange(members + short) < members)
    table = jax.tree.map(lambda a: a.reshape(execution.devices * chunks, chunk), padded)

    def one_chunk(shared: Any, row: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, Any]:
        own_ids, own_weights, real = row
        updates, reports = jax.vmap(train, in_axes=(None, 0))(shared, own_ids)
        return own_weights @ jnp.where(real[:, None], updates, 0.0), reports

    def one_device(shared: Any, rows: Any) -> tuple[jax.Array, Any]:
        def accumulate(total: jax.Array, row: Any) -> tuple[jax.Array, Any]:
            part, reports = one_chunk(shared, row)
            return total + part, reports

        total, reports = lax.scan(accumulate, jnp.zeros(size), rows)
        return (lax.psum(total, AXIS) if execution.mesh else total), reports

    if execution.mesh:
        one_device = jax.shard_map(
            one_device, mesh=execution.mesh, in_specs=(P(), P(AXIS)), out_specs=(P(), P(AXIS)), check_vma=False
        )
    total, reports = one_device(shared, table)
    return total, jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:members], reports)
