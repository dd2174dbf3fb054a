"""Clients as an axis: the one place where a cohort is spread over devices, chunks and lanes."""

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
    """Where and in what portions clients run; it changes speed and memory, and results only by rounding of one sum.

    mesh        devices: groups share a cohort along the axis AXIS, those of a group a model along the axis MODEL, if
                there is one; None for one device;
    chunk_size  clients that are computed at once on a device; None leaves it to `portion`;
    parts       of the cohort, summed apart and then added in their order, so that any number of devices gives the same
                bits; None: each device takes one, and devices add theirs in an order of their own;
    pieces      vectors of a client's round are computed in pieces, see `rounds.pieces`; None: on GPUs, where no devices
                hold a model together;
    signal      whether the squared norm of every step's gradient is taken, for the probe `noise_to_signal`; None:
                except on GPUs, which read the gradient once more for it.
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
        """How many devices hold a model together, and compute each of their clients together."""
        return self.mesh.shape.get(MODEL, 1) if self.mesh else 1

    @property
    def groups(self) -> int:
        """Groups of devices; each computes other clients."""
        return self.devices // self.model_devices

    @property
    def own(self) -> dict[jax.Device, int]:
        """The devices of this process, and the groups that they belong to."""
        if self.mesh is None:
            return {jax.devices()[0]: 0}
        here = jax.process_index()
        places = enumerate(self.mesh.devices.flat)
        return {device: at // self.model_devices for at, device in places if device.process_index == here}

    @property
    def shares(self) -> int:
        """Parts of a cohort that are summed apart."""
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
        """Whether the squared norm of every step's gradient is taken."""
        return not self.on_gpu if self.signal is None else self.signal

    def portion(self, cohort: int, size: int, usual: int | None = None) -> int:
        """How many clients a device computes at once, of a cohort whose models have `size` parameters.

        Small models fill a device only together; on CPUs and TPUs as many as suit their caches. Where only `usual` of
        the cohort are needed in most rounds, at most half of these on a CPU: portions without any are skipped.
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

    def runs_at_once(self, count: int, cohort: int, size: int) -> int:
        """How many of `count` runs a device computes at once, each with portions of its own cohort, see `portion`."""
        if self.platform != "tpu":
            return count
        most = max(1, at_once_on_a_tpu(size) // self.portion(cohort, size))
        return math.ceil(count / math.ceil(count / most))

    def place(self, tree: Any) -> Any:
        """Copy a pytree to the devices that will use it; several processes hold it alike."""
        where = NamedSharding(self.mesh, P()) if self.mesh else jax.devices()[0]
        return jax.tree.map(lambda a: _put(a, where), tree)

    def place_models(self, tree: Any) -> Any:
        """Copy arrays of a model's size to the devices, of which each holds a part where they hold models together."""
        return jax.tree.map(lambda a: _put(a, self._part(jnp.shape(a))), tree)

    def keep_models(self, tree: Any) -> Any:
        """Such arrays inside a compiled round stay where `place_models` put them."""
        if self.model_devices == 1:
            return tree
        return jax.tree.map(lambda a: lax.with_sharding_constraint(a, self._part(a.shape)), tree)

    def shard(self, flat: jax.Array) -> jax.Array:
        """A model's vector (or several) within a client's round: each device of a group computes its part of it."""
        if self.mesh is None or self.model_devices == 1:
            return flat
        # Where groups share a cohort, the mesh is known from there, less the axis of the groups.
        axes = P(*[None] * (flat.ndim - 1), MODEL)
        where = axes if self.groups > 1 else NamedSharding(self.mesh, axes)
        return lax.with_sharding_constraint(flat, where)

    def _part(self, shape: tuple[int, ...]) -> Any:
        """What a device holds of an array: all, or a part of the longest axis that its group can share evenly."""
        if self.mesh is None:
            return jax.devices()[0]
        fitting = [axis for axis, length in enumerate(shape) if length % self.model_devices == 0]
        if self.model_devices == 1 or not fitting:
            return NamedSharding(self.mesh, P())
        longest = max(fitting, key=lambda axis: shape[axis])
        return NamedSharding(self.mesh, P(*[None] * longest, MODEL))

    def on_one_device(self, tree: Any) -> Any:
        """Placed arrays as the first device holds them, not copied: for work that would only be repeated on others.

        Where devices hold models together, no device holds one, and all do the work.
        """
        return jax.tree.map(lambda a: a.addressable_data(0), tree) if self.mesh and self.model_devices == 1 else tree

    def replicate(self, tree: Any) -> Any:
        """Arrays inside a compiled round that every device computes for itself.

        Else the compiler splits whatever leads to a client's share, and devices wait for each other in loops of a few
        operations: drawing a cohort of ten took ten sums over devices.
        """
        return lax.with_sharding_constraint(tree, NamedSharding(self.mesh, P())) if self.mesh else tree

    def gather_for_processes(self, tree: Any) -> Any:
        """Arrays that leave a compiled program, so that every process can read the whole of them."""
        return tree if len(self.own) == self.devices else self.replicate(tree)

    def place_tables(self, tables: Any) -> Any:
        """Copy tables by client `(num_clients, size)`: each device holds a part of every row, so nothing is doubled."""
        return jax.tree.map(lambda a: a if isinstance(a, HostTable) else _put(a, self._rows(a)), tables)

    def keep_tables(self, tables: Any) -> Any:
        """Tables inside a compiled round stay where `place_tables` put them."""
        if self.mesh is None:
            return tables
        return jax.tree.map(lambda a: lax.with_sharding_constraint(a, self._rows(a)), tables)

    def _rows(self, table: Any) -> Any:
        if self.mesh is None:
            return jax.devices()[0]
        wide = table.ndim == 2 and table.shape[1] % self.mesh.size == 0
        return NamedSharding(self.mesh, P(None, self.mesh.axis_names) if wide else P())


def at_once_on_a_tpu(size: int) -> int:
    """How many models of `size` parameters a TPU computes at once, by the cycles of its compiler for a v5e.

    Small ones together while its fast memory holds them and what is computed from them: of ten million
    parameters in all each takes twice as long as of 8.5 million. Large ones one by one: with 200,000 parameters that
    takes longer, with 800,000 less long.
    """
    return 1 if size > 400_000 else max(1, 8_600_000 // size)


def _put(a: Any, where: Any) -> jax.Array:
    """A copy on devices; those of other processes get theirs there, from the same array. A shape is one placed so."""
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
    """Every device of the default backend, of all processes."""
    return some_devices(len(jax.devices()), chunk_size, parts=parts)


def some_devices(
    count: int, chunk_size: int | None = None, *, parts: int | None = None, model_devices: int = 1
) -> Execution:
    """The first `count` devices of the default backend; of several processes, equally many of each.

    model_devices  how many of them hold a model together, for models that do not fit on one.
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
    """How the positions of a cohort are laid out: parts, portions of a part one after another, clients of a portion."""

    def __init__(self, count: int, execution: Execution, size: int, usual: int | None, in_turn: bool):
        self.count, self.in_turn, self.parts = count, in_turn, execution.shares
        self.chunk = execution.portion(count, size, usual)
        self.chunks = math.ceil(count / self.parts / self.chunk)
        self.short = self.parts * self.chunks * self.chunk - count
        self.each = math.ceil(self.parts / execution.groups)  # parts on a device
        self.spare = self.each * execution.groups - self.parts

    def to_parts(self, a: jax.Array) -> jax.Array:
        """Rows `(count + short, ...)` as `(parts, chunks, chunk, ...)`."""
        if not self.in_turn:
            return a.reshape(self.parts, self.chunks, self.chunk, *a.shape[1:])
        return jnp.moveaxis(a.reshape(self.chunks, self.chunk, self.parts, *a.shape[1:]), 2, 0)

    def out(self, a: jax.Array) -> jax.Array:
        """Rows `(count, ...)` to the devices, with copies of the first where there are none."""
        return self._padded(self.to_parts(self._padded(a, self.short)), self.spare)

    def back(self, a: jax.Array) -> jax.Array:
        """Rows as the devices hold them, in order `(count, ...)`."""
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

    def _padded(self, a: jax.Array, more: int) -> jax.Array:
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
            the same for all; `size` is the number of parameters of a client's model. The cohort is padded to fill
            devices and portions, with copies of its first member; padding is masked after training, so whatever it
            computes, NaN included, contributes exactly zero.
    needed  `(cohort,)` bool: whose terms count, in most rounds `usual` of them. Portions without any are skipped, and
            their rows are zeros. Members are dealt to the devices in turn, as those needed may all be in front.
    own     a pytree with a leading axis (devices,): what each device holds for itself; then `train` gets
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
        if chunk == 1:  # without an axis of length one, which would keep some products from being plain ones
            alone = train(shared, jax.tree.map(lambda a: a[0], portion))
            terms, rows = jax.tree.map(lambda a: a[None], alone)
        else:
            terms, rows = jax.vmap(train, in_axes=(None, 0))(shared, portion)

        def add(i: Any, total: Any) -> Any:
            return jax.tree.map(lambda s, a: s + jnp.where(counts[i], a[i], 0), total, terms)

        def row_by_row() -> Any:  # a reduction over the leading axis takes ten times as long on a CPU
            nothing = jax.tree.map(lambda a: jnp.zeros(a.shape[1:], a.dtype), terms)
            return lax.fori_loop(0, chunk, add, nothing)

        def at_once() -> Any:  # and a loop is two launches for every client elsewhere
            def total(a: jax.Array) -> jax.Array:
                return mask_rows(a, counts).sum(0, dtype=a.dtype)

            return jax.tree.map(total, terms)

        with jax.named_scope("client_sum"):
            return lax.platform_dependent(cpu=row_by_row, default=at_once), rows

    def one_share(shared: Any, row: Any) -> tuple[Any, Any]:
        # Devices that hold models together meet in every portion, and so do all groups: none may skip one.
        return _scan_portions(one_chunk, shared, row, skips=needed is not None and execution.model_devices == 1)

    def one_device(shared: Any, rows: Any, own: Any) -> tuple[Any, Any]:
        if own is not None:
            shared = (shared, jax.tree.map(lambda a: a[0], own))
        if execution.parts is None:
            total, out = one_share(shared, jax.tree.map(lambda a: a[0], rows))
            return (lax.psum(total, AXIS) if execution.groups > 1 else total), jax.tree.map(lambda a: a[None], out)
        # Stored before they are added, as devices do: else a multiplication before would melt into the addition.
        sums, out = lax.map(lambda row: one_share(shared, row), rows)
        if execution.groups > 1:
            sums = lax.all_gather(sums, AXIS, tiled=True)
        first = jax.tree.map(lambda a: a[0], sums)
        return lax.fori_loop(
            1, execution.parts, lambda i, total: jax.tree.map(lambda t, a: t + a[i], total, sums), first
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

    skips  zeros in place of entries whose second part is False throughout, and not computed.
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
