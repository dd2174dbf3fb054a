"""Which records a local step sees. The denominator of the mean is always the public batch size."""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import accounting, errors, prng
from fedjax_dp.pytrees import structure, value


class Batch(NamedTuple):
    """Positions within one client's records; rows with `mask` False are padding."""

    positions: jax.Array  # (steps, rows) int32
    mask: jax.Array  # (steps, rows) bool
    divisor: jax.Array  # (steps,) public number that divides the sum
    live: jax.Array  # (steps,) float32: 1, or 0 for a step that this client does not take


class Batches(Protocol):
    """A law for the records of each local step. Implementations are made with `fedjax_dp.value`."""

    @property
    def even(self) -> bool:
        """Fact. Whether every client takes every step, however few records it has."""
        ...

    def count(self, steps: int, largest: int) -> int:
        """Fact. Local steps of a round of a client with `largest` records; `steps`: what the local steps state."""
        ...

    def sample(self, key: jax.Array, records: jax.Array, steps: int, largest: int) -> Batch:
        """The batches of a client's round, by a key of its own; traced.

        records  of this client, at most `largest`, on which shapes may depend;
        steps    to draw for: `count` of the largest client, and one for each further gradient.
        """
        ...

    def sampling(self, records: int) -> accounting.Sampling:
        """Fact. How the batches of a client with so many records are drawn, in the accountants' words."""
        ...

    def divisor(self, records: int) -> int:
        """Fact. The public number that divides the sum over a batch of a client with so many records."""
        ...

    def check(self, sizes: np.ndarray) -> None:
        """Raise ConfigurationError, in one line, where clients of `sizes (num_clients,)` records cannot draw them."""
        ...


@value
class FixedBatches:
    """`size` distinct records, uniform without replacement, drawn afresh for every step (dpnfl, cpfed)."""

    size: int = structure()

    equation = r"\mathcal{B} \sim \text{uniform},\ |\mathcal{B}| = B,\ \text{without replacement}"

    even = True

    def count(self, steps: int, largest: int) -> int:
        return steps

    def sample(self, key: jax.Array, records: jax.Array, steps: int, largest: int) -> Batch:
        words = prng.bits(key, 0, steps * self.size).reshape(steps, self.size)
        return _full_rows(prng.without_replacement(words, records))

    def sampling(self, records: int) -> accounting.Sampling:
        return accounting.WithoutReplacement(self.size, records)

    def divisor(self, records: int) -> int:
        return self.size

    def check(self, sizes: np.ndarray) -> None:
        _check_size(self.size, int(sizes.min()))


@value
class ReplacementBatches:
    """`size` records drawn uniformly with replacement (dp_fedavg_output's WR): a record may count more than once."""

    size: int = structure()

    equation = r"\mathcal{B} = (i_1, \dots, i_B),\ i_j \sim \text{uniform},\ \text{independently}"

    even = True

    def count(self, steps: int, largest: int) -> int:
        return steps

    def sample(self, key: jax.Array, records: jax.Array, steps: int, largest: int) -> Batch:
        words = prng.bits(key, 0, steps * self.size).reshape(steps, self.size)
        return _full_rows(prng.below(words, records))

    def sampling(self, records: int) -> accounting.Sampling:
        return accounting.WithReplacement(self.size, records)

    def divisor(self, records: int) -> int:
        return self.size

    def check(self, sizes: np.ndarray) -> None:
        errors.require_count("batch_size", self.size)


@value
class PoissonBatches:
    """Every record joins independently with probability `size / records`; the sum is divided by `size`.

    Arrays have a fixed number of rows. A batch that would overflow them is cut, with probability below 1e-18 a step,
    far below any delta in use.
    """

    size: int = structure()

    equation = r"\Pr[i \in \mathcal{B}] = B / n_k,\ \text{independently}"

    even = True

    @property
    def capacity(self) -> int:
        """Rows of a batch."""
        return prng.poisson_capacity(self.size)

    def count(self, steps: int, largest: int) -> int:
        return steps

    def sample(self, key: jax.Array, records: jax.Array, steps: int, largest: int) -> Batch:
        high, low = prng.words(key, 0, steps * self.capacity)
        shape = (steps, self.capacity)
        positions, mask = prng.independent((high.reshape(shape), low.reshape(shape)), records, self.size)
        return _batch(positions, mask, jnp.full(steps, self.size))

    def sampling(self, records: int) -> accounting.Sampling:
        return accounting.Poisson(self.size / records)

    def divisor(self, records: int) -> int:
        return self.size

    def check(self, sizes: np.ndarray) -> None:
        _check_size(self.size, int(sizes.min()))


@value
class FullBatches:
    """All of a client's records in every step, divided by their number. Clients may differ in size."""

    equation = r"\mathcal{B} = \{1, \dots, n_k\},\ B = n_k"

    even = True

    def count(self, steps: int, largest: int) -> int:
        return steps

    def sample(self, key: jax.Array, records: jax.Array, steps: int, largest: int) -> Batch:
        positions = jnp.broadcast_to(jnp.arange(largest, dtype=jnp.int32), (steps, largest))
        mask = positions < records
        return _batch(jnp.where(mask, positions, 0), mask, jnp.broadcast_to(records, (steps,)))

    def sampling(self, records: int) -> accounting.Sampling:
        return accounting.FullBatch()

    def divisor(self, records: int) -> int:
        return records

    def check(self, sizes: np.ndarray) -> None:
        pass


@value
class EpochBatches:
    """Passes over a client's records: shuffled afresh, cut into batches of `size`, the rest of a pass dropped.

    Local steps are epochs here. Clients with fewer records take fewer steps. A pass touches every record once, which
    amplifies no privacy.
    """

    size: int = structure()

    equation = (
        r"\mathcal{B}_1, \mathcal{B}_2, \dots\ \text{cut a shuffle of}\ \{1, \dots, n_k\}\ \text{into blocks of}\ B"
    )

    even = False

    def count(self, steps: int, largest: int) -> int:
        return steps * (largest // self.size)

    def sample(self, key: jax.Array, records: jax.Array, steps: int, largest: int) -> Batch:
        per_pass = largest // self.size
        passes = steps // per_pass
        streams = jnp.arange(passes, dtype=jnp.uint32)  # one for each pass, so that `largest` shifts no draw
        words = jax.vmap(lambda stream: prng.bits(key, stream, largest))(streams) >> 1  # so that the padding comes last
        order = jnp.argsort(jnp.where(jnp.arange(largest) < records, words, np.uint32(2**32 - 1)), axis=-1)
        positions = order[:, : per_pass * self.size].reshape(steps, self.size).astype(jnp.int32)
        live = jnp.tile(jnp.arange(per_pass) < records // self.size, passes)
        mask = jnp.broadcast_to(live[:, None], positions.shape)
        return Batch(jnp.where(mask, positions, 0), mask, jnp.full(steps, self.size), live.astype(jnp.float32))

    def sampling(self, records: int) -> accounting.Sampling:
        return accounting.Shuffled(self.size, records)

    def divisor(self, records: int) -> int:
        return self.size

    def check(self, sizes: np.ndarray) -> None:
        _check_size(self.size, int(sizes.min()))


def _batch(positions: jax.Array, mask: jax.Array, divisor: jax.Array) -> Batch:
    """A batch of steps that are all taken."""
    return Batch(positions, mask, divisor, jnp.ones(positions.shape[0]))


def _full_rows(positions: jax.Array) -> Batch:
    """A batch without padding, divided by its size."""
    steps, size = positions.shape
    return _batch(positions, jnp.ones((steps, size), bool), jnp.full(steps, size))


def _check_size(size: int, smallest_client: int) -> None:
    errors.require_count("batch_size", size)
    if size > smallest_client:
        raise errors.refuse(
            "batch_size",
            size,
            f"at most the {smallest_client} records of the smallest client",
            f"set batch_size to {smallest_client} or less, leave smaller clients of natural partitions out "
            f"(--min-records {size}), or draw with replacement (--batches with-replacement)",
        )
