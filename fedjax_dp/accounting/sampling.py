"""Sampling laws for the members of one noisy sum."""

import dataclasses
import math
from typing import ClassVar, Literal

import scipy

from fedjax_dp import errors
from fedjax_dp.accounting.neighbours import Adjacency


@dataclasses.dataclass(frozen=True)
class _Law:
    """What holds of a law that says nothing else; whole numbers in it are counts."""

    adjacencies: ClassVar[tuple[Adjacency, ...]] = (Adjacency.REPLACE_ONE,)  # neighbours of which something is proved
    gaussian_only: ClassVar[bool] = False  # whether its price is known of Gaussian noise alone
    keeps_draw: ClassVar[bool] = False  # whether a draw holds for all sums of an event, which then cannot be split

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.type is int:
                errors.require_count(field.name, getattr(self, field.name))

    @property
    def steps_per_epoch(self) -> int:
        """Sums that one release consists of."""
        return 1

    @property
    def sums_per_member(self) -> int:
        """Sums of one release that a member is in, at most."""
        return 1


@dataclasses.dataclass(frozen=True)
class FullBatch(_Law):
    """No sampling: every member is in every sum."""

    adjacencies: ClassVar[tuple[Adjacency, ...]] = tuple(Adjacency)
    rate: ClassVar[float] = 1.0

    def __str__(self) -> str:
        return "no sampling"


@dataclasses.dataclass(frozen=True)
class Poisson(_Law):
    """Each member joins each sum independently with probability `rate`; the sum is divided by a constant."""

    adjacencies: ClassVar[tuple[Adjacency, ...]] = tuple(Adjacency)

    rate: float

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise errors.refuse("the Poisson rate", self.rate, "in [0, 1]", "it is batch size over records")

    def __str__(self) -> str:
        return f"Poisson sampling at rate {self.rate:.4g}"


@dataclasses.dataclass(frozen=True)
class WithoutReplacement(_Law):
    """A uniform subset of `batch_size` out of `records` members, drawn independently for every sum."""

    batch_size: int
    records: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size > self.records:
            raise errors.refuse(
                "batch_size", self.batch_size, f"at most the {self.records} records", "lower batch_size"
            )

    @property
    def rate(self) -> float:
        return self.batch_size / self.records

    def __str__(self) -> str:
        return f"{self.batch_size} of {self.records} without replacement"


@dataclasses.dataclass(frozen=True)
class WithReplacement(_Law):
    """`draws` independent uniform draws from `records`: a member may be drawn, and counted, more than once."""

    draws: int
    records: int

    @property
    def rate(self) -> float:
        return 1.0 if self.records == 1 else -math.expm1(self.draws * math.log1p(-1 / self.records))

    def __str__(self) -> str:
        return f"{self.draws} draws from {self.records} with replacement"


@dataclasses.dataclass(frozen=True)
class AnyStep(_Law):
    """Sampling of one release that covers `steps` batches: a member counts if it is in any (dp_fedavg_output's upload).

    The clip norm then bounds what one member can change in all batches together.
    """

    batches: "WithoutReplacement | WithReplacement"
    steps: int

    @property
    def rate(self) -> float:
        if self.batches.rate == 1:
            return 1.0
        return -math.expm1(self.steps * math.log1p(-self.batches.rate))

    def __str__(self) -> str:
        return f"any of {self.steps} batches of {self.batches}"


@dataclasses.dataclass(frozen=True)
class Shuffled(_Law):
    """Shuffled, then split into consecutive batches: an epoch uses every record once, without amplification.

    The order may be public.
    last  what happens to the last records of an epoch if they are fewer than a batch: "drop", or "keep" as a batch.
    """

    adjacencies: ClassVar[tuple[Adjacency, ...]] = (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)
    rate: ClassVar[float] = 1.0

    batch_size: int
    records: int
    last: Literal["drop", "keep"] = "drop"

    def __post_init__(self) -> None:
        WithoutReplacement(self.batch_size, self.records)
        errors.require_choice("last", self.last, ("drop", "keep"))

    @property
    def steps_per_epoch(self) -> int:
        return len(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of records in the batches of an epoch, in order."""
        whole, rest = divmod(self.records, self.batch_size)
        return (self.batch_size,) * whole + (rest,) * (self.last == "keep" and rest > 0)

    def __str__(self) -> str:
        kept = f" and one of {self.sizes[-1]}" if self.sizes[-1] < self.batch_size else ""
        whole = self.steps_per_epoch - bool(kept)
        return f"shuffled epochs of {whole} batches of {self.batch_size}{kept}"


@dataclasses.dataclass(frozen=True)
class RandomAllocation(_Law):
    """Each member joins `chosen` of the `of` sums of a pass, drawn uniformly and independently for member and pass.

    One release is a pass; a partial last pass counts as a whole one. The sums that a member joins are secret.
    """

    adjacencies: ClassVar[tuple[Adjacency, ...]] = (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT)
    gaussian_only: ClassVar[bool] = True

    chosen: int
    of: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chosen > self.of:
            raise errors.refuse("chosen", self.chosen, f"at most the {self.of} sums of a pass", "lower chosen")

    @property
    def rate(self) -> float:
        return self.chosen / self.of

    @property
    def steps_per_epoch(self) -> int:
        return self.of

    @property
    def sums_per_member(self) -> int:
        return self.chosen

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """(m, count): `count` independent choices of one sum out of m, which together cost no less than a pass.

        A uniform partition of the sums into `chosen` blocks with one uniform place in each is a uniform choice of
        `chosen` sums. Given the partition the law is a product, and a mixture costs no more than its worst component.
        """
        short, longer = divmod(self.of, self.chosen)
        counts = ((short, self.chosen - longer), (short + 1, longer))
        return tuple((sums, count) for sums, count in counts if count)

    def __str__(self) -> str:
        return f"random allocation to {self.chosen} of the {self.of} sums of a pass"


@dataclasses.dataclass(frozen=True)
class BallsInBins(_Law):
    """Each member has one of `bins` slots, uniform, independent, fixed and secret; it joins this sum of every pass.

    One release is a whole run: with white Gaussian noise, T sums cost as much as one pass with the noise divided by
    sqrt(ceil(T / bins)), as the sums of a slot reveal no more than their mean. So a run is one event.
    """

    adjacencies: ClassVar[tuple[Adjacency, ...]] = (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT)
    gaussian_only: ClassVar[bool] = True
    keeps_draw: ClassVar[bool] = True

    bins: int

    @property
    def rate(self) -> float:
        return 1 / self.bins

    @property
    def steps_per_epoch(self) -> int:
        return self.bins

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """The blocks of one pass, as in `RandomAllocation`."""
        return ((self.bins, 1),)

    def __str__(self) -> str:
        return f"random allocation to 1 of {self.bins} slots, kept"


@dataclasses.dataclass(frozen=True)
class TruncatedPoisson(_Law):
    """Each of `members` joins with probability `rate`; if more than `capacity` join, a uniform subset of so many stays.

    The number of members is public, and the sum is divided by a constant.
    """

    adjacencies: ClassVar[tuple[Adjacency, ...]] = (Adjacency.ZERO_OUT,)
    gaussian_only: ClassVar[bool] = True

    rate: float
    capacity: int
    members: int

    def __post_init__(self) -> None:
        Poisson(self.rate)
        super().__post_init__()

    @property
    def chance_truncated(self) -> float:
        """Probability of truncation if a given member joins: at least `capacity` others join too."""
        return float(scipy.stats.binom.sf(self.capacity - 1, self.members - 1, self.rate))

    @property
    def rate_truncated(self) -> float:
        """Probability that a given member is in the sum in that case, before it draws whether it joins."""
        chance = self.chance_truncated
        more = float(scipy.stats.binom.sf(self.capacity, self.members, self.rate))
        return self.capacity * more / (self.members * chance) if chance else 0.0

    @property
    def inclusion(self) -> float:
        """Probability that a given member is in a given sum: E[min(number of joiners, capacity)] / members."""
        chance = self.chance_truncated
        return (1 - chance) * self.rate + chance * self.rate_truncated

    def __str__(self) -> str:
        return f"{Poisson(self.rate)} of {self.members}, at most {self.capacity}"


Sampling = (
    FullBatch
    | Poisson
    | WithoutReplacement
    | WithReplacement
    | AnyStep
    | Shuffled
    | RandomAllocation
    | BallsInBins
    | TruncatedPoisson
)
