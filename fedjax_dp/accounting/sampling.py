"""How the members of one noisy sum are drawn."""

import dataclasses
import functools
import math
from typing import Literal

from fedjax_dp import errors


@dataclasses.dataclass(frozen=True)
class FullBatch:
    """Everybody is in every sum: no sampling."""

    @property
    def rate(self) -> float:
        return 1.0

    def __str__(self) -> str:
        return "no sampling"


@dataclasses.dataclass(frozen=True)
class Poisson:
    """Everybody joins independently with probability `rate`, afresh for every sum; the sum is divided by a constant."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise errors.refuse("the Poisson rate", self.rate, "in [0, 1]", "it is batch size over records")

    def __str__(self) -> str:
        return f"Poisson sampling at rate {self.rate:.4g}"


@dataclasses.dataclass(frozen=True)
class WithoutReplacement:
    """`batch_size` distinct members of `records`, uniform, drawn afresh for every sum."""

    batch_size: int
    records: int

    def __post_init__(self) -> None:
        errors.require_count("batch_size", self.batch_size)
        errors.require_count("records", self.records)
        if self.batch_size > self.records:
            raise errors.refuse(
                "batch_size", self.batch_size, f"at most the {self.records} records", "lower batch_size"
            )

    @property
    def rate(self) -> float:
        """Probability that a given member is drawn."""
        return self.batch_size / self.records

    def __str__(self) -> str:
        return f"{self.batch_size} of {self.records} without replacement"


@dataclasses.dataclass(frozen=True)
class WithReplacement:
    """`draws` independent uniform draws from `records`: a member may be drawn, and counted, more than once."""

    draws: int
    records: int

    def __post_init__(self) -> None:
        errors.require_count("draws", self.draws)
        errors.require_count("records", self.records)

    @property
    def rate(self) -> float:
        """Probability that a given member is drawn at least once."""
        return 1.0 if self.records == 1 else -math.expm1(self.draws * math.log1p(-1 / self.records))

    def __str__(self) -> str:
        return f"{self.draws} draws from {self.records} with replacement"


@dataclasses.dataclass(frozen=True)
class AnyStep:
    """Drawn in at least one of `steps` batches, when one release covers all of them (dp_fedavg_output's upload).

    The clip norm is then the bound on what one member can change over all its appearances.
    """

    batches: "WithoutReplacement | WithReplacement"
    steps: int

    def __post_init__(self) -> None:
        errors.require_count("steps", self.steps)

    @property
    def rate(self) -> float:
        if self.batches.rate == 1:
            return 1.0
        return -math.expm1(self.steps * math.log1p(-self.batches.rate))

    def __str__(self) -> str:
        return f"any of {self.steps} batches of {self.batches}"


@dataclasses.dataclass(frozen=True)
class Shuffled:
    """Shuffled, then cut into consecutive batches: an epoch touches every record once, which amplifies nothing.

    The order may be public. last: the rest of an epoch, fewer than a batch: "drop", or "keep" as a batch of its own.
    """

    batch_size: int
    records: int
    last: Literal["drop", "keep"] = "drop"

    def __post_init__(self) -> None:
        WithoutReplacement(self.batch_size, self.records)
        errors.require_choice("last", self.last, ("drop", "keep"))

    @property
    def rate(self) -> float:
        return 1.0

    @property
    def steps_per_epoch(self) -> int:
        return len(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Records of the batches of an epoch, in their order."""
        whole, rest = divmod(self.records, self.batch_size)
        return (self.batch_size,) * whole + (rest,) * (self.last == "keep" and rest > 0)

    def __str__(self) -> str:
        kept = f" and one of {self.sizes[-1]}" if self.sizes[-1] < self.batch_size else ""
        whole = self.steps_per_epoch - bool(kept)
        return f"shuffled epochs of {whole} batches of {self.batch_size}{kept}"


@dataclasses.dataclass(frozen=True)
class Refilled:
    """Shuffled passes in a row, cut into whole batches until all records have had `epochs`; then passes begin anew.

    A record may stand in a batch more than once, and moves its sum as far. Whatever the shuffles, a run of
    ceil(epochs * records / batch_size) noisy sums costs no more than `squares` unsampled Gaussian ones: given the order
    of the records, a record that stands m_j times in batch j moves sum j by m_j times the sensitivity, so with Gaussian
    noise mu^2 is the sum of the m_j^2 of one sum's.
    """

    batch_size: int
    records: int
    epochs: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "records", "epochs"):
            errors.require_count(name, getattr(self, name))

    @property
    def rate(self) -> float:
        return 1.0

    @property
    def steps_per_epoch(self) -> int:
        """Sums of a run of `epochs`, after which passes begin anew."""
        return -(-self.epochs * self.records // self.batch_size)

    @property
    def squares(self) -> int:
        """The largest sum over the batches of (how often a record stands in it)^2."""
        return _most_squares(self.batch_size, self.records, self.steps_per_epoch)

    def __str__(self) -> str:
        return f"{self.epochs} shuffled epochs in a row, cut into {self.steps_per_epoch} batches of {self.batch_size}"


@functools.cache
def _most_squares(batch_size: int, records: int, batches: int) -> int:
    """Each pass puts a record into one of the batches that it reaches; the largest sum of squared numbers.

    By the batch of the last place and the times in it: of the batches of a pass only the first and the last are also
    those of others, and of those between any one will do.
    """
    best = {(-1, 0): 0}
    for start in range(0, batches * batch_size, records):
        first, last = start // batch_size, min((start + records - 1) // batch_size, batches - 1)
        after: dict[tuple[int, int], int] = {}
        for (batch, times), total in best.items():
            for place in {first, min(first + 1, last), last}:
                again = times + 1 if place == batch else 1
                grown = total + 2 * again - 1
                after[place, again] = max(after.get((place, again), 0), grown)
        best = after
    return max(best.values())


Sampling = FullBatch | Poisson | WithoutReplacement | WithReplacement | AnyStep | Shuffled | Refilled
