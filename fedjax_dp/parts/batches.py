"""Sampling of records for local steps. The mean over a batch is always divided by the public batch size.

A client with fewer records than `size` uses all of them in every batch: b_k = min(size, n_k).
"""

from typing import Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import accounting, errors, prng
from fedjax_dp.pytrees import structure, value


class Batch(NamedTuple):
    """Batches of one client, as positions among its records."""

    positions: jax.Array  # (steps, rows) int32
    mask: jax.Array  # (steps, rows) bool; False is padding
    divisor: jax.Array  # (steps,) public number by which the sum is divided
    step_mask: jax.Array  # (steps,) float32: 1, or 0 for a step that this client skips


class Batches(Protocol):
    """How the records of each local step are sampled. Implementations use `fedjax_dp.value`.

    A method `check(sizes)` may refuse clients with these numbers of records `(num_clients,)`.
    """

    @property
    def even(self) -> bool:
        """Derived property, conservative default. Whether every client takes all steps, even with few records."""
        return type(self).count is Batches.count

    def count(self, steps: int, largest: int) -> int:
        """Derived property, conservative default. Local steps of a client with `largest` records.

        steps  the configured number, which may count steps or epochs.
        """
        return steps

    def sample(self, key: jax.Array, records: jax.Array, steps: int, largest: int, smallest: int) -> Batch:
        """The batches of one client in one round; traced.

        key      of this client and round. It is the same in all rounds if `sampling` keeps its draws for the whole run,
                 as `accounting.BallsInBins` does;
        records  of this client: traced, between `smallest` and `largest`, on which shapes and branches may depend;
        steps    number of batches: `count` of the largest client, plus one for each extra gradient.
        """
        ...

    def sampling(self, records: int) -> accounting.Sampling:
        """Required privacy property. How the batches of a client with `records` records are sampled."""
        ...

    def divisor(self, records: int) -> int:
        """Required privacy property. The public number by which the sum over a client's batch is divided.

        Where it differs between steps, this is the usual number, and a further member `divisors(records, steps)` gives
        those of the first `steps` steps that a client takes `(steps,)`.
        """
        ...


def divisors_of(batches: Batches, records: int, steps: int) -> np.ndarray:
    """Divisors of the first `steps` steps that a client takes `(steps,)`."""
    divisors = getattr(batches, "divisors", None)
    return np.full(steps, batches.divisor(records)) if divisors is None else np.asarray(divisors(records, steps))


def neighbours_of(sampling: accounting.Sampling) -> accounting.Adjacency:
    """Add-remove if records are drawn independently, so that adding one changes no other draw; else replace-one."""
    by_itself = isinstance(sampling, accounting.Poisson | accounting.RandomAllocation | accounting.BallsInBins)
    return accounting.Adjacency.ADD_REMOVE if by_itself else accounting.Adjacency.REPLACE_ONE


@value
class FixedBatches(Batches):
    """min(`size`, n_k) distinct records, uniform without replacement, independent in every step (dpnfl, cpfed).

    A client with at most `size` records uses all of them in every step, so it has no amplification by subsampling.
    """

    size: int = structure(errors.require_count, option="batch_size")

    equation = r"\mathcal{B} \sim \text{uniform},\ |\mathcal{B}| = \min(B, n_k),\ \text{without replacement}"

    def sample(self, key: jax.Array, records: jax.Array, steps: int, largest: int, smallest: int) -> Batch:
        if largest < self.size:
            return FullBatches().sample(key, records, steps, largest, smallest)
        words = prng.bits(key, 0, steps * self.size).reshape(steps, self.size)
        if smallest >= self.size:
            return _full_rows(prng.without_replacement(words, records))
        drawn = prng.without_replacement(words, jnp.maximum(records, self.size))
        every = jnp.broadcast_to(jnp.arange(self.size, dtype=jnp.int32), drawn.shape)
        mask = every < records
        positions = jnp.where(mask, jnp.where(records < self.size, every, drawn), 0)
        return _batch(positions, mask, jnp.full(steps, _at_most(self.size, records, smallest)))

    def sampling(self, records: int) -> accounting.Sampling:
        if records <= self.size:
            return accounting.FullBatch()
        return accounting.WithoutReplacement(self.size, records)

    def divisor(self, records: int) -> int:
        return min(self.size, records)


@value
class ReplacementBatches(Batches):
    """`size` records drawn uniformly with replacement (dp_fedavg_output's WR): a record may count more than once."""

    size: int = structure(errors.require_count, option="batch_size")

    equation = r"\mathcal{B} = (i_1, \dots, i_B),\ i_j \sim \text{uniform},\ \text{independently}"

    def sample(self, key: jax.Array, records: jax.Array, steps: int, largest: int, smallest: int) -> Batch:
        words = prng.bits(key, 0, steps * self.size).reshape(steps, self.size)
        return _full_rows(prng.below(words, records))

    def sampling(self, records: int) -> accounting.Sampling:
        return accounting.WithReplacement(self.size, records)

    def divisor(self, records: int) -> int:
        return self.size


@value
class PoissonBatches(Batches):
    """Every record joins independently with probability b_k / n_k, b_k = min(`size`, n_k); the sum is divided by b_k.

    Rate and divisor are constants of the client, even for an empty batch or when a record is added or removed.
    Arrays have a fixed number of rows. A batch with more records is truncated, with probability below 1e-18 per step,
    far below any delta in use.
    rate  "size": as above; "opacus": the rate is 1 / ceil(n_k / `size`), as in Opacus' data loader, and the divisor is
          floor(n_k rate). Rate and divisor are at most those above.
    """

    size: int = structure(errors.require_count, option="batch_size")
    rate: Literal["size", "opacus"] = structure(errors.one_of("size", "opacus"), option="poisson_rate", default="size")

    equation = r"\Pr[i \in \mathcal{B}] = \min(B, n_k) / n_k,\ \text{independently}"

    def sample(self, key: jax.Array, records: jax.Array, steps: int, largest: int, smallest: int) -> Batch:
        most = min(self.size, largest)
        shape = (steps, prng.poisson_capacity(most))
        high, low = (word.reshape(shape) for word in prng.words(key, 0, shape[0] * shape[1]))
        if self.rate == "opacus":
            of_pass = jnp.maximum(-(-records // self.size), 1)
            positions, mask = prng.independent((high, low), records, 1, of_pass)
            return _batch(positions, mask, jnp.full(steps, records // of_pass))
        positions, mask = prng.independent((high, low), records, self.size)
        return _batch(positions, mask, jnp.full(steps, _at_most(most, records, smallest)))

    def sampling(self, records: int) -> accounting.Sampling:
        of_pass = -(-records // self.size)
        return accounting.Poisson(1 / of_pass if self.rate == "opacus" else self.divisor(records) / records)

    def divisor(self, records: int) -> int:
        return records // -(-records // self.size) if self.rate == "opacus" else min(self.size, records)


@value
class FullBatches(Batches):
    """All records of the client in every step; the divisor is their number, which may differ between clients."""

    equation = r"\mathcal{B} = \{1, \dots, n_k\},\ B = n_k"

    def sample(self, key: jax.Array, records: jax.Array, steps: int, largest: int, smallest: int) -> Batch:
        positions = jnp.broadcast_to(jnp.arange(largest, dtype=jnp.int32), (steps, largest))
        mask = positions < records
        return _batch(jnp.where(mask, positions, 0), mask, jnp.broadcast_to(records, (steps,)))

    def sampling(self, records: int) -> accounting.Sampling:
        return accounting.FullBatch()

    def divisor(self, records: int) -> int:
        return records


@value
class EpochBatches(Batches):
    """Epochs: each pass shuffles the client's records and cuts them into batches of b_k = min(`size`, n_k).

    Local steps count epochs here. Clients with fewer records take fewer steps: they skip the last steps of each pass.
    A pass uses every record at most once, which is no amplification.
    last  the remaining n_k mod b_k records of a pass: "drop" them, or "keep" them as a smaller batch with its own
          divisor.
    """

    size: int = structure(errors.require_count, option="batch_size")
    last: Literal["drop", "keep"] = structure(errors.one_of("drop", "keep"), default="drop")

    equation = (
        r"\mathcal{B}_1, \mathcal{B}_2, \dots\ \text{cut a shuffle of}\ \{1, \dots, n_k\}\ "
        r"\text{into blocks of}\ \min(B, n_k)"
    )

    def count(self, steps: int, largest: int) -> int:
        return steps * self._batches_of_pass(largest)

    def sample(self, key: jax.Array, records: jax.Array, steps: int, largest: int, smallest: int) -> Batch:
        rows, longest = min(self.size, largest), self._batches_of_pass(largest)
        passes = steps // longest
        streams = jnp.arange(passes, dtype=jnp.uint32)  # one for each pass, so that `largest` shifts no draw
        words = jax.vmap(lambda stream: prng.bits(key, stream, largest))(streams) >> 1  # so that the padding comes last
        order = jnp.argsort(jnp.where(jnp.arange(largest) < records, words, np.uint32(2**32 - 1)), axis=-1)
        taken = longest * rows
        order = jnp.pad(order, ((0, 0), (0, max(taken - largest, 0))))[:, :taken]
        size = _at_most(rows, records, smallest)
        used = records if self.last == "keep" else records - records % size
        counts = jnp.tile(jnp.clip(used - size * jnp.arange(longest), 0, size), passes)
        mask = jnp.arange(rows)[None] < counts[:, None]
        positions = jnp.where(mask, order.reshape(steps, rows).astype(jnp.int32), 0)
        step_mask = counts > 0
        divisor = jnp.where(step_mask, counts, size) if self.last == "keep" else jnp.full(steps, size)
        return Batch(positions, mask, divisor, step_mask.astype(jnp.float32))

    def sampling(self, records: int) -> accounting.Sampling:
        return accounting.Shuffled(self.divisor(records), records, self.last)

    def divisor(self, records: int) -> int:
        return min(self.size, records)

    def divisors(self, records: int, steps: int) -> np.ndarray:
        return np.resize(accounting.Shuffled(self.divisor(records), records, self.last).sizes, steps)

    def _batches_of_pass(self, records: int) -> int:
        whole, rest = divmod(records, min(self.size, records))
        return whole + (self.last == "keep" and rest > 0)


@value
class AllocatedBatches(Batches):
    """Random allocation: in each pass, every record independently picks one of P_k = ceil(n_k / `size`) batches.

    kept  False: records pick anew in each pass; True: once for the whole run.

    Local steps count epochs here. P_k and the divisor, floor(n_k / P_k), are constants of the client, even for an empty
    batch or when a record is added or removed. Which batch a record picks is secret, and that amplifies privacy.
    Arrays have a fixed number of rows. A batch with more records is truncated, with probability below 1e-18 per step.
    Source: Feldman and Shenfeld 2025, arXiv:2502.08202 (random allocation); Chua et al. 2024, arXiv:2412.16802 (kept).
    """

    size: int = structure(errors.require_count, option="batch_size")
    kept: bool = structure(default=False)

    equation = r"\mathcal{B}_j = \{i : s_i = j\},\ s_i \sim \text{uniform on}\ \{1, \dots, \lceil n_k / B \rceil\}"

    def count(self, steps: int, largest: int) -> int:
        return steps * self._batches_of_pass(largest)

    def sample(self, key: jax.Array, records: jax.Array, steps: int, largest: int, smallest: int) -> Batch:
        longest, rows = self._batches_of_pass(largest), prng.poisson_capacity(min(self.size, largest))
        batches = -(-records // self.size)

        def of_pass(stream: jax.Array) -> tuple[jax.Array, jax.Array]:
            high, low = prng.words(key, stream, largest)
            picked = jnp.where(jnp.arange(largest) < records, prng.below(high, batches, low), longest)
            counts = jnp.bincount(picked, length=longest)
            mask = jnp.arange(rows)[None] < counts[:, None]
            places = (jnp.cumsum(counts) - counts)[:, None] + jnp.arange(rows)[None]
            order = jnp.argsort(picked, stable=True).astype(jnp.int32)
            return jnp.where(mask, order[jnp.minimum(places, largest - 1)], 0), mask

        passes = steps // longest
        streams = jnp.arange(passes, dtype=jnp.uint32)
        positions, mask = jax.vmap(of_pass)(jnp.zeros_like(streams) if self.kept else streams)
        step_mask = jnp.tile(jnp.arange(longest) < batches, passes).astype(jnp.float32)
        divisor = jnp.full(steps, records // jnp.maximum(batches, 1))
        return Batch(positions.reshape(steps, rows), mask.reshape(steps, rows), divisor, step_mask)

    def sampling(self, records: int) -> accounting.Sampling:
        batches = self._batches_of_pass(records)
        return accounting.BallsInBins(batches) if self.kept else accounting.RandomAllocation(1, batches)

    def divisor(self, records: int) -> int:
        return records // self._batches_of_pass(records)

    def _batches_of_pass(self, records: int) -> int:
        return -(-records // self.size)


def _batch(positions: jax.Array, mask: jax.Array, divisor: jax.Array) -> Batch:
    """The batches of a client that takes all steps."""
    return Batch(positions, mask, divisor, jnp.ones(positions.shape[0]))


def _full_rows(positions: jax.Array) -> Batch:
    """Batches without padding, divided by their size."""
    steps, size = positions.shape
    return _batch(positions, jnp.ones((steps, size), bool), jnp.full(steps, size))


def _at_most(size: int, records: jax.Array, smallest: int) -> jax.Array | int:
    """b_k = min(B, n_k); a constant if no client has fewer than B records."""
    return size if smallest >= size else jnp.clip(records, 1, size)
