"""Records that stay on the host: those of the next cohorts are copied to the devices while the current rounds compute.

Cohorts depend only on the run's key and on public numbers, so they are known in advance. Several rounds form a block:
each device gets the records of those members of their cohorts that it computes. The clients' state is moved with the
block.
"""

import concurrent.futures
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_dp import errors
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.host_tables import HostTable
from fedjax_dp.execution.mesh import AXIS, CohortLayout, Execution
from fedjax_dp.pytrees import replace
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.clients import DeviceRecords, HostBlock, draw_cohorts
from fedjax_dp.rounds.state import ServerState

BYTES = 2**25  # of records that are copied to a device at once, if a round does not need more
MOST = 256  # rounds of a block
GROWTH = 1.25  # blocks grow by this much, so that few programs are compiled


class RoundsBlock(NamedTuple):
    """Rounds from `first` to before `until`, with their records."""

    first: int
    until: int
    records: HostBlock
    clients: np.ndarray  # ids of the participating clients, if tables are on the host
    room: int  # number of rows for these clients


class Prefetcher:
    """The blocks of a run, read one ahead. Their shapes only change if a block needs more room than all before."""

    def __init__(
        self, algorithm: Algorithm, data: FederatedData, execution: Execution, key: jax.Array, size: int, kept: int = 0
    ):
        """`size`: parameters of a model; `kept`: bytes by client in tables on the host."""
        self.with_execution = functools.partial(
            Prefetcher, algorithm, data, key=key, size=size, kept=kept
        )  # of another execution
        cohort = algorithm.cohort
        members, usual = cohort.capacity(data.num_clients), cohort.expected_size(data.num_clients)
        self._cohort, self._data, self._execution, self._key = cohort, data, execution, key
        self._homes = CohortLayout(members, execution, size, usual, not cohort.fixed).device_of_position
        record = sum(np.asarray(a[:1]).nbytes for a in jax.tree.leaves((data.x, data.y)))
        # Bytes of a round on a device.
        needed = (record * float(np.mean(data.sizes)) + kept) * usual / execution.groups
        self._kept = kept
        self._several = max(1, min(MOST, int(BYTES / needed)))
        self._own = execution.own
        self._shares = jnp.asarray(data.shares)
        self._room = 1  # a block may have no clients
        self._held: tuple[RoundsBlock, concurrent.futures.Future[RoundsBlock]] | None = None  # and the one after it
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "prefetch")

    def block(self, at: int) -> RoundsBlock:
        """The block that contains round `at`; the next one is being read when this returns."""
        held = self._held
        if held is not None and held[0].first <= at < held[0].until:
            return held[0]
        now = held[1].result() if held is not None and at == held[0].until else self._read(at, self._draw(at))
        # Drawn here, before the rounds of this block are dispatched: an accelerator would draw after them.
        self._held = now, self._thread.submit(self._read, now.until, self._draw(now.until))
        return now

    def bytes_in_use(self, at: int) -> float:
        """Bytes on a device besides the block of round `at`: two more blocks, and rows of clients' tables."""
        block = self.block(at)
        held = sum(part.nbytes for part in jax.tree.leaves(block.records.held)) / self._execution.groups
        return float(2 * held + block.room * self._kept)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _draw(self, first: int) -> tuple[jax.Array, jax.Array]:
        """Ids and selection flags of the cohorts from round `first` on, without waiting for them."""
        rounds = first + jnp.arange(self._several)
        return draw_cohorts(self._cohort, self._key, rounds, self._shares)

    def _read(self, first: int, drawn: tuple[jax.Array, jax.Array]) -> RoundsBlock:
        data, groups = self._data, self._execution.groups
        ids, there = map(np.asarray, drawn)
        offsets = np.zeros(ids.shape, np.int32)
        rows: dict[int, np.ndarray] = {}  # of the groups of devices that this process has some of
        needed = 1
        for group in range(groups):
            mine = there & (self._homes == group)
            clients, where = np.unique(ids[mine], return_inverse=True)
            sizes = np.asarray(data.sizes)[clients].astype(np.int64)
            starts = np.cumsum(sizes) - sizes
            offsets[mine] = starts[where]
            needed = max(needed, int(sizes.sum()))
            if group not in self._own.values():
                continue
            first_rows = np.repeat(np.asarray(data.offsets)[clients].astype(np.int64) - starts, sizes)
            at = first_rows + np.arange(sizes.sum())
            rows[group] = at if data.rows is None else np.asarray(data.rows)[at]
        if needed > self._room:
            self._room = math.ceil(needed * GROWTH)
        blocks = {group: self._copy_rows(at) for group, at in rows.items()}
        held = jax.tree.map(lambda *parts: self._spread(dict(zip(blocks, parts))), *blocks.values())
        clients, places = np.zeros(0, np.int64), None
        if self._kept:
            clients, places = np.unique(ids, return_inverse=True)
            places = places.reshape(ids.shape).astype(np.int32)
        start, offsets, places = self._execution.place((np.int32(first), offsets, places))
        return RoundsBlock(first, first + self._several, HostBlock(start, offsets, places, held), clients, ids.size)

    def _copy_rows(self, rows: np.ndarray) -> DeviceRecords:
        def copy(a: Any) -> Any:
            room = np.zeros((1, self._room, *a.shape[1:]), a.dtype)
            np.take(a, rows, axis=0, out=room[0, : len(rows)], mode="clip")
            return room

        return DeviceRecords(copy(self._data.x), jax.tree.map(copy, self._data.y))

    def _spread(self, parts: dict[int, np.ndarray]) -> jax.Array:
        """One array of parts `(1, ...)`, given one part for each group of devices that this process has some of."""
        mesh = self._execution.mesh
        placed: list[jax.Array] = [jax.device_put(parts[group], device) for device, group in self._own.items()]
        if mesh is None:
            return placed[0]
        shape = (self._execution.groups, *placed[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, P(AXIS)), placed)


def over_tables(state: ServerState, change: Callable[[Any], Any]) -> ServerState:
    return state._replace(clients=jax.tree.map(change, state.clients))


def tables_of(state: ServerState) -> list[HostTable]:
    return [leaf for leaf in jax.tree.leaves(state.clients) if isinstance(leaf, HostTable)]


def load_rows(state: ServerState, block: RoundsBlock, execution: Execution) -> ServerState:
    """The state for the rounds of a block, with its clients' rows on the devices."""

    def rows(table: Any) -> Any:
        if not isinstance(table, HostTable):
            return table
        return execution.place_tables(table.read(block.clients, block.room))

    return over_tables(state, rows)


def store_rows(state: ServerState, tables: list[HostTable], block: RoundsBlock) -> ServerState:
    """The state after the rounds of a block, with the rows written back into the host's tables."""
    if not tables:
        return state
    left = iter(tables)

    def back(rows: Any) -> HostTable:
        table = next(left)
        table.write(block.clients, np.asarray(rows)[: len(block.clients)])
        return table

    return over_tables(state, back)


def without_records(data: FederatedData) -> FederatedData:
    """The part of the data that devices hold if records come in blocks."""
    x, y = jax.tree.map(lambda a: np.zeros((0, *a.shape[1:]), a.dtype), (data.x, data.y))
    return replace(data, x=x, y=y, rows=None)


def check(algorithm: Algorithm, train_metrics: bool) -> None:
    """Refuse what reads records outside of blocks."""
    if algorithm.local.reads_records_outside_round or train_metrics:
        whose = "this algorithm" if algorithm.local.reads_records_outside_round else "train_metrics"
        raise errors.refuse("records", "host", f"devices for {whose}", "it reads records outside local steps")
