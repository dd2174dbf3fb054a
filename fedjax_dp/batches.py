"""Which records a local step sees. The denominator of the mean is always the public batch size."""

import math
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import draws, errors
from fedjax_dp.accounting import events
from fedjax_dp.values import structure, value


class Batch(NamedTuple):
    """Positions within one client's records; rows with `mask` False are padding."""

    positions: jax.Array  # (steps, rows) int32
    mask: jax.Array  # (steps, rows) bool
    divisor: jax.Array  # (steps,) public number that divides the sum


class Batches(Protocol):
    """A law for the records of each local step."""

    def sample(self, key: jax.Array, records: jax.Array, steps: int) -> Batch: ...

    def sampling(self, records: int) -> events.Sampling: ...  # what the accountants are told

    def check(self, sizes: np.ndarray) -> None: ...  # records per client


@value
class FixedBatches:
    """`size` distinct records, uniform without replacement, drawn afresh for every step (papers 000, 002)."""

    size: int = structure()

    def sample(self, key: jax.Array, records: jax.Array, steps: int) -> Batch:
        words = draws.bits(key, 0, steps * self.size).reshape(steps, self.size)
        return _full_rows(draws.without_replacement(words, records))

    def sampling(self, records: int) -> events.Sampling:
        return events.WithoutReplacement(self.size, records)

    def check(self, sizes: np.ndarray) -> None:
        _check_size(self.size, int(sizes.min()))


@value
class ReplacementBatches:
    """`size` records drawn uniformly with replacement (004's WR): a record may count more than once."""

    size: int = structure()

    def sample(self, key: jax.Array, records: jax.Array, steps: int) -> Batch:
        words = draws.bits(key, 0, steps * self.size).reshape(steps, self.size)
        return _full_rows(draws.below(words, records))

    def sampling(self, records: int) -> events.Sampling:
        return events.WithReplacement(self.size, records)

    def check(self, sizes: np.ndarray) -> None:
        errors.require_count("batch_size", self.size)


@value
class PoissonBatches:
    """Every record joins independently with probability `size / records`; the sum is divided by `size`.

    Arrays have a fixed number of rows. A batch that would overflow them is cut, with probability below 1e-18 a step
    (Chernoff), far below any delta in use.
    """

    size: int = structure()

    @property
    def capacity(self) -> int:
        """Smallest number of rows that a batch exceeds with probability below 1e-18, for any number of records."""
        rows = self.size + 1
        while rows * math.log(rows / self.size) - rows + self.size < 18 * math.log(10):
            rows += 1
        return rows

    def sample(self, key: jax.Array, records: jax.Array, steps: int) -> Batch:
        # Gaps between kept records are geometric, so the cost does not grow with the client.
        words = draws.bits(key, 0, steps * self.capacity).reshape(steps, self.capacity)
        rate = jnp.minimum(self.size / records.astype(jnp.float32), 1.0)
        gaps = jnp.floor(jnp.log(draws.unit_interval(words)) / jnp.log1p(-rate))
        gaps = jnp.minimum(gaps, 2**31 // self.capacity - 2).astype(jnp.int32)  # so that the sum cannot wrap
        positions = jnp.cumsum(gaps + 1, axis=-1) - 1
        mask = positions < records
        return Batch(jnp.where(mask, positions, 0), mask, jnp.full(steps, self.size))

    def sampling(self, records: int) -> events.Sampling:
        return events.Poisson(self.size / records)

    def check(self, sizes: np.ndarray) -> None:
        _check_size(self.size, int(sizes.min()))


@value
class FullBatches:
    """All of a client's records in every step, divided by their number. Clients may differ in size.

    `rows` is the size of the largest client: smaller ones are padded to it.
    """

    rows: int = structure()

    def sample(self, key: jax.Array, records: jax.Array, steps: int) -> Batch:
        positions = jnp.broadcast_to(jnp.arange(self.rows, dtype=jnp.int32), (steps, self.rows))
        mask = positions < records
        return Batch(jnp.where(mask, positions, 0), mask, jnp.broadcast_to(records, (steps,)))

    def sampling(self, records: int) -> events.Sampling:
        return events.FullBatch()

    def check(self, sizes: np.ndarray) -> None:
        if self.rows != sizes.max():
            raise errors.refuse("rows of full batches", self.rows, f"the {sizes.max()} records of the largest client")


def _full_rows(positions: jax.Array) -> Batch:
    """A batch without padding, divided by its size."""
    steps, size = positions.shape
    return Batch(positions, jnp.ones((steps, size), bool), jnp.full(steps, size))


def _check_size(size: int, smallest_client: int) -> None:
    errors.require_count("batch_size", size)
    if size > smallest_client:
        raise errors.refuse(
            "batch_size", size, f"at most the {smallest_client} records of the smallest client",
            f"set batch_size to {smallest_client} or less, or give clients more records",
        )  # fmt: skip
