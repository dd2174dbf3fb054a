"""What happened, as explicit types: how records were sampled, who is a neighbour, how much noise was added.

An event is public information. Accountants (the other modules of this package) say what an event costs. The noise
multiplier is always the standard deviation of the noise on the *sum* divided by the clip norm; the conversion to the
sensitivity under an adjacency is done here and nowhere else.
"""

import dataclasses
import enum
import math

from fedjax_dp import errors


class Adjacency(enum.Enum):
    """Which two datasets are neighbours."""

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"

    @property
    def sensitivity(self) -> float:
        """L2 change of a sum of vectors bounded by 1 between neighbours: 1 (one more or less) or 2 (one exchanged)."""
        return 1.0 if self is Adjacency.ADD_REMOVE else 2.0


@dataclasses.dataclass(frozen=True)
class WithoutReplacement:
    """`batch_size` distinct records of `records`, uniform, drawn afresh for every step."""

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
        """Probability that a given record is in a batch."""
        return self.batch_size / self.records

    def __str__(self) -> str:
        return f"{self.batch_size} of {self.records} records without replacement"


@dataclasses.dataclass(frozen=True)
class Poisson:
    """Every record joins a batch independently with probability `rate`."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise errors.refuse("the Poisson rate", self.rate, "in (0, 1]")

    def __str__(self) -> str:
        return f"Poisson sampling at rate {self.rate:.4g}"


Sampling = WithoutReplacement | Poisson


@dataclasses.dataclass(frozen=True)
class GaussianSteps:
    """`count` adaptively composed noisy sums of clipped gradients, each on a freshly sampled batch of one client.

    `noise_multiplier` is z: the noise on the sum of the batch has standard deviation z times the clip norm.
    """

    noise_multiplier: float
    sampling: Sampling
    adjacency: Adjacency
    count: int

    def __post_init__(self) -> None:
        if not self.noise_multiplier >= 0:
            raise errors.refuse("noise_multiplier", self.noise_multiplier, "zero or positive")
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 0:
            raise errors.refuse("the number of noisy steps", self.count, "an integer of at least 0")

    @property
    def relative_noise(self) -> float:
        """Noise standard deviation divided by the sensitivity of the sum under the adjacency."""
        return self.noise_multiplier / self.adjacency.sensitivity

    @property
    def reveals_everything(self) -> bool:
        """Steps were taken without noise, so no finite epsilon exists."""
        return self.count > 0 and (self.noise_multiplier == 0 or math.isinf(1 / self.noise_multiplier))
