"""How the members of one noisy sum are drawn."""

import dataclasses
import math

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

    The order may be public. The last, smaller batch of an epoch is dropped.
    """

    batch_size: int
    records: int

    def __post_init__(self) -> None:
        WithoutReplacement(self.batch_size, self.records)

    @property
    def rate(self) -> float:
        return 1.0

    @property
    def steps_per_epoch(self) -> int:
        return self.records // self.batch_size

    def __str__(self) -> str:
        return f"shuffled epochs of {self.steps_per_epoch} batches of {self.batch_size}"


Sampling = FullBatch | Poisson | WithoutReplacement | WithReplacement | AnyStep | Shuffled
