"""Clients as an array axis: how a cohort is distributed over devices, chunks and lanes."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_dp import errors
from fedjax_dp.devices import CPU_DEVICES
from fedjax_dp.execution.host_tables import HostTable
from fedjax_dp.pytrees import mask_rows, models_per_core

AXIS, MODEL = "cohort", "model"  # of a mesh


@dataclasses.dataclass(frozen=True)
class Execution:
    """The devices and chunks in which clients run. It affects speed and memory, and results only by rounding of a sum.

    mesh        devices: groups share a cohort along the axis AXIS, and the devices of a group share a model along the
                axis MODEL, if there is one; None for one device;
    chunk_size  clients that a device computes at once; None leaves it to `portion`;
    parts       parts of the cohort that are summed separately and then added in order, so that any number of devices
                gives the same bits; None: one part per device, added in any order;
    pieces      whether vectors of a client's round are computed in pieces, see `rounds.pieces`; None: on GPUs, if
                devices do not share a model;
    signal      whether the squared norm of every step's gradient is computed, for the diagnostic `noise_to_signal`;
                None: not on GPUs, which would read the gradient once more.
    """

    mesh: Mesh | None = None
    chunk_size: int | None = None
    parts: int | None = None
    pieces: bool | None = None
    signal: bool | None = None

    @property
    def devices(self) -> int:
        return self.mesh.size if self.mesh else 1

    @property
    def model_devices(self) -> int:
        """Number of devices that share a model, and compute each client together."""
        return self.mesh.shape.get(MODEL, 1) if self.mesh else 1

    @property
    def groups(self) -> int:
        """Number of groups of devices; each group computes other clients."""
        return self.devices // self.model_devices

    @property
    def own(self) -> dict[jax.Device, int]:
        """The devices of this process, with the groups to which they belong."""
        if self.mesh is None:
            return {jax.devices()[0]: 0}
        here = jax.process_index()
        places = enumerate(self.mesh.devices.flat)
        return {device: at // self.model_devices for at, device in places if device.process_index == here}

    @property
    def shares(self) -> int:
        """Number of parts of a cohort that are summed separately."""
        return self.parts or self.groups

    @property
    def platform(self) -> str:
        return (self.mesh.devices.flat[0] if self.mesh else jax.devices()[0]).platform

    @property
    def on_gpu(self) -> bool:
        return self.platform not in ("cpu", "tpu")

    @property
    def in_pieces(self) -> bool:
        """Whether vectors of a client's round are computed in pieces."""
        if self.pieces is not None:
            return self.pieces
        return self.on_gpu and self.model_devices == 1

    @property
    def takes_signal(self) -> bool:
        """Whether the squared norm of every step's gradient is computed."""
        return not self.on_gpu if self.signal is None else self.signal

    def portion(self, cohort: int, size: int, usual: int | None = None) -> int:
        """How many clients of a cohort a device computes at once, with models of `size` parameters.

        Small models fill a device only together; on CPUs and TPUs the caches limit their number. If most rounds need
        only `usual` of the cohort, a CPU takes at most half of these: chunks without any are skipped.
        """
        share = math.ceil(cohort / self.shares)
        if self.chunk_size is not None:
            return min(self.chunk_size, share)
        if self.platform == "tpu":
            most = at_once_on_a_tpu(math.ceil(size / self.model_devices))
        elif self.platform == "cpu":
            wanted = share if usual is None or usual >= cohort else math.ceil(usual / self.shares / 2)
            most = models_per_core(size, wanted)
        else:
            most = share
        return math.ceil(share / math.ceil(share / min(most, share)))

    def skips_steps(self, cohort: int, size: int, usual: int | None = None) -> bool:
        """Whether a client skips the steps that only larger clients take: a CPU computes one after another.

        Clients that are computed at once take all steps together, and so do groups of devices that share a model.
        """
        return self.platform == "cpu" and self.model_devices == 1 and self.portion(cohort, size, usual) == 1

    def runs_at_once(self, count: int, cohort: int, size: int) -> int:
        """How many of `count` runs a device computes at once, each with chunks of its own cohort, see `portion`."""
        if self.platform != "tpu":
            return count
        most = max(1, at_once_on_a_tpu(size) // self.portion(cohort, size))
        return math.ceil(count / math.ceil(count / most))

    def place(self, tree: Any) -> Any:
        """Copy a pytree to all devices, of all processes."""
        where = NamedSharding(self.mesh, P()) if self.mesh else jax.devices()[0]
        return jax.tree.map(lambda a: _put(a, where), tree)

    def place_models(self, tree: Any) -> Any:
        """Copy arrays of a model's size to the devices; each holds a part if devices share a model."""
        return jax.tree.map(lambda a: _put(a, self._part(jnp.shape(a))), tree)

    def keep_models(self, tree: Any) -> Any:
        """Keep such arrays inside a compiled round where `place_models` puts them."""
        if self.model_devices == 1:
            return tree
        return jax.tree.map(lambda a: lax.with_sharding_constraint(a, self._part(a.shape)), tree)

    def shard(self, flat: jax.Array) -> jax.Array:
        """Split a model's vector (or several) within a client's round: each device of a group computes its part."""
        if self.mesh is None or self.model_devices == 1:
            return flat
        # If groups share a cohort, the mesh is known from there, without the axis of the groups.
        axes = P(*[None] * (flat.ndim - 1), MODEL)
        where = axes if self.groups > 1 else NamedSharding(self.mesh, axes)
        return lax.with_sharding_constraint(flat, where)

    def _part(self, shape: tuple[int, ...]) -> Any:
        """The sharding of an array: whole, or split along the longest axis that the group can share evenly."""
        if self.mesh is None:
            return jax.devices()[0]
        fitting = [axis for axis, length in enumerate(shape) if length % self.model_devices == 0]
        if self.model_devices == 1 or not fitting:
            return NamedSharding(self.mesh, P())
        longest = max(fitting, key=lambda axis: shape[axis])
        return NamedSharding(self.mesh, P(*[None] * longest, MODEL))

    def on_one_device(self, tree: Any) -> Any:
        """Placed arrays as on the first device, without a copy, for work that other devices would only repeat.

        If devices share a model, no device has all of it, and all do the work.
        """
        return jax.tree.map(lambda a: a.addressable_data(0), tree) if self.mesh and self.model_devices == 1 else tree

    def replicate(self, tree: Any) -> Any:
        """Let every device compute these arrays of a compiled round itself.

        Otherwise the compiler splits the computation of a client's share, and devices wait for each other in loops of a
        few operations: drawing a cohort of ten took ten sums over devices.
        """
        return lax.with_sharding_constraint(tree, NamedSharding(self.mesh, P())) if self.mesh else tree

    def gather_for_processes(self, tree: Any) -> Any:
        """Gather arrays that leave a compiled program, so that every process can read all of them."""
        return tree if len(self.own) == self.devices else self.replicate(tree)

    def place_tables(self, tables: Any) -> Any:
        """Copy tables `(num_clients, size)` to the devices; each holds a part of every row, without duplicates."""
        return jax.tree.map(lambda a: a if isinstance(a, HostTable) else _put(a, self._rows(a)), tables)

    def keep_tables(self, tables: Any) -> Any:
        """Keep tables inside a compiled round where `place_tables` puts them."""
        if self.mesh is None:
            return tables
        return jax.tree.map(lambda a: lax.with_sharding_constraint(a, self._rows(a)), tables)

    def _rows(self, table: Any) -> Any:
        if self.mesh is None:
            return jax.devices()[0]
        wide = table.ndim == 2 and table.shape[1] % self.mesh.size == 0
        return NamedSharding(self.mesh, P(None, self.mesh.axis_names) if wide else P())


def at_once_on_a_tpu(size: int) -> int:
    """How many models of `size` parameters a TPU computes at once, by the compiler's cycles for a v5e.

    Small models are computed together while fast memory holds them with their intermediate values: with ten million
    parameters in total each takes twice as long as with 8.5 million. Large ones are computed one by one: with 200,000
    parameters that is slower, with 800,000 faster.
    """
    return 1 if size > 400_000 else max(1, 8_600_000 // size)


def _put(a: Any, where: Any) -> jax.Array:
    """A copy on devices; other processes copy the same array to theirs. A shape gets the sharding."""
    if isinstance(a, jax.ShapeDtypeStruct):
        planned: Any = jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=where)
        return planned
    if isinstance(where, jax.Device) or where.is_fully_addressable or not getattr(a, "is_fully_addressable", True):
        return jax.device_put(a, where)
    kind = jnp.result_type(a)
    if jnp.issubdtype(kind, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_put(jax.random.key_data(a), where), impl=jax.random.key_impl(a))
    held = np.asarray(a, kind)
    return jax.make_array_from_callback(held.shape, where, lambda at: held[at])


def all_devices(chunk_size: int | None = None, *, parts: int | None = None) -> Execution:
    """An execution on every device of the default backend, of all processes."""
    return some_devices(len(jax.devices()), chunk_size, parts=parts)


def some_devices(
    count: int, chunk_size: int | None = None, *, parts: int | None = None, model_devices: int = 1
) -> Execution:
    """An execution on the first `count` devices of the default backend; with processes, as many of each.

    model_devices  how many of them share a model, for models that do not fit on one.
    """
    errors.require_count("devices", count)
    errors.require_count("model_devices", model_devices)
    devices, processes = jax.devices(), jax.process_count()
    if count > len(devices):
        remedy = (
            f"${CPU_DEVICES} sets how many a CPU shows" if devices[0].platform == "cpu" else "leave them out to use all"
        )
        raise errors.refuse("devices", count, f"at most the {len(devices)} {devices[0].platform} devices here", remedy)
    if count % model_devices:
        raise errors.refuse(
            "devices", count, f"a multiple of the {model_devices} that hold a model", "change one of them"
        )
    if processes > 1 and count < len(devices):
        if count % processes:
            raise errors.refuse(
                "devices", count, f"a multiple of the {processes} processes", "leave them out to use all"
            )
        own = [[device for device in devices if device.process_index == index] for index in range(processes)]
        devices = [device for some in own for device in some[: count // processes]]
    if model_devices > 1:
        return Execution(Mesh(np.reshape(devices[:count], (-1, model_devices)), (AXIS, MODEL)), chunk_size, parts)
    return Execution(Mesh(devices[:count], (AXIS,)) if count > 1 else None, chunk_size, parts)


class CohortLayout:
    """The layout of a cohort's positions: parts, consecutive chunks of a part, clients of a chunk."""

    def __init__(self, count: int, execution: Execution, size: int, usual: int | None, in_turn: bool):
        self.count, self.in_turn, self.parts = count, in_turn, execution.shares
        self.chunk = execution.portion(count, size, usual)
        self.chunks = math.ceil(count / self.parts / self.chunk)
        self.short = self.parts * self.chunks * self.chunk - count
        self.each = math.ceil(self.parts / execution.groups)  # parts on a device
        self.spare = self.each * execution.groups - self.parts
        members = 1 if in_turn else self.chunks * self.chunk
        self.filled = min(self.parts, math.ceil(count / members))  # parts with members, which come first

    def to_parts(self, a: jax.Array) -> jax.Array:
        """Rows `(count + short, ...)` as `(parts, chunks, chunk, ...)`."""
        if not self.in_turn:
            return a.reshape(self.parts, self.chunks, self.chunk, *a.shape[1:])
        return jnp.moveaxis(a.reshape(self.chunks, self.chunk, self.parts, *a.shape[1:]), 2, 0)

    def out(self, a: jax.Array) -> jax.Array:
        """Rows `(count, ...)` for the devices, padded with copies of the first."""
        return self._pad(self.to_parts(self._pad(a, self.short)), self.spare)

    def back(self, a: jax.Array) -> jax.Array:
        """The devices' rows in their original order `(count, ...)`."""
        a = a[: self.parts]
        rows = jnp.moveaxis(a, 0, 2) if self.in_turn else a
        return rows.reshape(math.prod(rows.shape[:3]), *a.shape[3:])[: self.count]

    @property
    def device_of_position(self) -> np.ndarray:
        """The device that computes each position `(count,)`."""
        places = np.asarray(self.to_parts(jnp.arange(self.count + self.short, dtype=jnp.int32)))
        parts = np.empty(places.size, np.int32)
        parts[places.reshape(-1)] = np.repeat(np.arange(self.parts, dtype=np.int32), self.chunks * self.chunk)
        return parts[: self.count] // self.each

    def _pad(self, a: jax.Array, more: int) -> jax.Array:
        return jnp.concatenate([a, jnp.broadcast_to(a[:1], (more, *a.shape[1:]))]) if more else a


def sum_over_clients(
    train: Callable[[Any, Any], tuple[Any, Any]],
    shared: Any,
    members: Any,
    execution: Execution,
    size: int,
    needed: jax.Array | None = None,
    usual: int | None = None,
    own: Any = None,
) -> tuple[Any, Any]:
    """The sum over the cohort of `terms`, and `rows` stacked in order, where (terms, rows) = train(shared, member).

    Shapes: `members` is a pytree of arrays with a leading axis (cohort,), of which `train` gets one entry; `shared` is
            the same for all; `size` is the number of parameters of a client's model. The cohort is padded with copies
            of its first member to fill devices and chunks; padding is masked after training, so it contributes exactly
            zero even if it computes NaN.
    needed  `(cohort,)` bool: whose terms count, in most rounds `usual` of them. Chunks without any are skipped, and
            their rows are zeros. Devices take members in turn, as the needed ones may all come first.
    own     a pytree with a leading axis (devices,), a separate part for each device; then `train` gets
            ((shared, its part), member).
    """
    count = jax.tree.leaves(members)[0].shape[0]
    layout = CohortLayout(count, execution, size, usual, needed is not None)
    chunk = layout.chunk
    counts = jnp.arange(count + layout.short) < count
    if needed is not None:
        counts = counts & jnp.pad(needed, (0, layout.short))
    counts = jnp.pad(layout.to_parts(counts), ((0, layout.spare), (0, 0), (0, 0)))
    table = execution.replicate((jax.tree.map(layout.out, members), counts))

    def one_chunk(shared: Any, row: tuple[Any, jax.Array]) -> tuple[Any, Any]:
        portion, counts = row
        if chunk == 1:  # without an axis of length one, which would make some products slower
            alone = train(shared, jax.tree.map(lambda a: a[0], portion))
            terms, rows = jax.tree.map(lambda a: a[None], alone)
        else:
            terms, rows = jax.vmap(train, in_axes=(None, 0))(shared, portion)

        def add(i: Any, total: Any) -> Any:
            return jax.tree.map(lambda s, a: s + jnp.where(counts[i], a[i], 0), total, terms)

        def row_by_row() -> Any:  # a reduction over the leading axis takes ten times as long on a CPU
            nothing = jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), terms)
            return lax.fori_loop(0, chunk, add, nothing)

        def at_once() -> Any:  # elsewhere a loop is two kernel launches per client
            def total(a: jax.Array) -> jax.Array:
                return mask_rows(a, counts).sum(0, dtype=a.dtype)

            return jax.tree.map(total, terms)

        with jax.named_scope("client_sum"):
            return lax.platform_dependent(cpu=row_by_row, default=at_once), rows

    def one_share(shared: Any, row: Any) -> tuple[Any, Any]:
        # Devices that share a model, and so all groups, synchronise in every chunk: none may skip one.
        return _scan_portions(one_chunk, shared, row, skips=needed is not None and execution.model_devices == 1)

    def one_device(shared: Any, rows: Any, own: Any) -> tuple[Any, Any]:
        if own is not None:
            shared = (shared, jax.tree.map(lambda a: a[0], own))
        if execution.parts is None:
            total, out = one_share(shared, jax.tree.map(lambda a: a[0], rows))
            return (lax.psum(total, AXIS) if execution.groups > 1 else total), jax.tree.map(lambda a: a[None], out)
        if execution.groups == 1:
            rows = jax.tree.map(lambda a: a[: layout.filled], rows)
        # Stored before they are added, as between devices: else a multiplication would fuse with the addition.
        sums, out = lax.map(lambda row: one_share(shared, row), rows)
        if execution.groups > 1:
            sums = lax.all_gather(sums, AXIS, tiled=True)
        first = jax.tree.map(lambda a: a[0], sums)
        return lax.fori_loop(
            1, layout.filled, lambda i, total: jax.tree.map(lambda t, a: t + a[i], total, sums), first
        ), out

    if execution.groups > 1:
        one_device = jax.shard_map(
            one_device,
            mesh=execution.mesh,
            in_specs=(P(), P(AXIS), P(AXIS)),
            out_specs=(P(), P(AXIS)),
            axis_names={AXIS},
            check_vma=False,
        )
    total, rows = one_device(shared, table, own)
    return total, jax.tree.map(layout.back, rows)


def _scan_portions(
    one: Callable[[Any, Any], tuple[Any, Any]], shared: Any, table: tuple[Any, jax.Array], skips: bool
) -> tuple[Any, Any]:
    """The sum of the terms, and the rows stacked, where (terms, rows) = one(shared, entry of `table`).

    skips  whether entries whose second part is all False are zeros, and not computed.
    """
    first = jax.tree.map(lambda a: a[0], table)
    if table[1].shape[0] == 1:
        total, rows = one(shared, first)
        return total, jax.tree.map(lambda a: a[None], rows)
    shapes = jax.eval_shape(one, shared, first)

    def none(shared: Any, entry: Any) -> tuple[Any, Any]:
        return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)

    def accumulate(total: Any, entry: Any) -> tuple[Any, Any]:
        one_out = lax.cond(jnp.any(entry[1]), one, none, shared, entry) if skips else one(shared, entry)
        return jax.tree.map(jnp.add, total, one_out[0]), one_out[1]

    return lax.scan(accumulate, none(shared, first)[0], table)
