"""What happened, as explicit types: who is a neighbour, how records were sampled, how much noise was added, how often.

An event is public information. Accountants (the other modules of this package) say what an event costs. The noise
multiplier is always the standard deviation of the noise on the *sum* divided by the clip norm; the conversion to the
sensitivity under an adjacency is done here and nowhere else.
"""

import dataclasses
import enum
import math
from collections.abc import Iterator

from fedjax_dp import errors


class NotCoveredError(errors.ConfigurationError):
    """An accountant has no theorem for an event, so it says nothing rather than too little."""


class Unit(enum.Enum):
    """Whose presence is hidden."""

    RECORD = "record"
    CLIENT = "client"

    def __str__(self) -> str:
        return "record of one client" if self is Unit.RECORD else "client with all its records"


class Adjacency(enum.Enum):
    """Which two datasets are neighbours."""

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"

    @property
    def sensitivity(self) -> float:
        """L2 change of a sum of vectors bounded by 1 between neighbours: 1 (one more or less) or 2 (one exchanged)."""
        return 1.0 if self is Adjacency.ADD_REMOVE else 2.0


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
    """Drawn in at least one of `steps` batches, when one release covers all of them (paper 004's noised upload).

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


LEAST_NOISE, MOST_NOISE = 1e-9, 1e12  # noise multipliers between which float64 resolves what an event costs
MOST_STEPS = 10**9
_SUCH_AS = {"sampling": "Poisson(0.01)", "adjacency": "Adjacency.REPLACE_ONE", "unit": "Unit.RECORD"}

Sampling = FullBatch | Poisson | WithoutReplacement | WithReplacement | AnyStep | Shuffled


@dataclasses.dataclass(frozen=True)
class GaussianSteps:
    """`count` adaptively composed noisy sums of clipped vectors, each over a fresh sample.

    `noise_multiplier` is z: the noise on the sum has standard deviation z times the clip norm, which bounds what one
    member of the sample (a record's gradient, or a client's update) adds to the sum.
    """

    noise_multiplier: float
    sampling: Sampling
    adjacency: Adjacency
    count: int
    unit: Unit = Unit.RECORD

    def __post_init__(self) -> None:
        if not (self.noise_multiplier == 0 or LEAST_NOISE <= self.noise_multiplier <= MOST_NOISE):
            raise errors.refuse(
                "noise_multiplier", self.noise_multiplier, f"0, or from {LEAST_NOISE:g} to {MOST_NOISE:g}"
            )
        for what, value, kind in (
            ("sampling", self.sampling, Sampling), ("adjacency", self.adjacency, Adjacency), ("unit", self.unit, Unit),
        ):  # fmt: skip
            if not isinstance(value, kind):
                raise errors.refuse(what, repr(value), f"a value from fedjax_dp.accounting, such as {_SUCH_AS[what]}")
        errors.require_integer("the number of noisy steps", self.count, 0, MOST_STEPS)
        if self.adjacency is Adjacency.ADD_REMOVE and not isinstance(self.sampling, FullBatch | Poisson):
            raise NotCoveredError(
                f"add-remove neighbours have different numbers of records, so {self.sampling} is not the same "
                "sampling for both; use replace-one"
            )
        if isinstance(self.sampling, Shuffled) and self.count % self.sampling.steps_per_epoch:
            raise errors.refuse(
                "the number of shuffled steps", self.count,
                f"a multiple of the {self.sampling.steps_per_epoch} batches of an epoch",
                f"use {-(-self.count // self.sampling.steps_per_epoch) * self.sampling.steps_per_epoch}",
            )  # fmt: skip

    @property
    def relative_noise(self) -> float:
        """Noise standard deviation divided by the sensitivity of the sum under the adjacency."""
        return self.noise_multiplier / self.adjacency.sensitivity

    @property
    def releases(self) -> int:
        """How many of the sums can contain a given member."""
        if self.sampling.rate == 0:
            return 0
        if isinstance(self.sampling, Shuffled):
            return self.count // self.sampling.steps_per_epoch
        return self.count

    @property
    def reveals_everything(self) -> bool:
        """Sums were released without noise, so no finite epsilon exists."""
        return self.releases > 0 and self.noise_multiplier == 0

    def scaled(self, factor: float) -> "GaussianSteps":
        """The same with `factor` times the noise."""
        return dataclasses.replace(self, noise_multiplier=self.noise_multiplier * factor)

    def leaves(self, taken: int = 1) -> "Iterator[tuple[GaussianSteps, int]]":
        """Every Gaussian part that is released at all, and how often at most."""
        if self.releases * taken:
            yield self, self.releases * taken


@dataclasses.dataclass(frozen=True)
class Composed:
    """Events that follow one another, each free to depend on what earlier ones released."""

    parts: "tuple[Event, ...]"

    def __post_init__(self) -> None:
        kinds = {(step.adjacency, step.unit) for step, _ in self.leaves()}
        if len(kinds) > 1:
            told = ", ".join(sorted(f"{unit.value}/{adjacency.value}" for adjacency, unit in kinds))
            raise errors.refuse("composed events", told, "of one unit and adjacency", "account for them separately")

    def scaled(self, factor: float) -> "Composed":
        """The same with `factor` times the noise everywhere."""
        return Composed(tuple(part.scaled(factor) for part in self.parts))

    def leaves(self, taken: int = 1) -> Iterator[tuple[GaussianSteps, int]]:
        for part in self.parts:
            yield from part.leaves(taken)


@dataclasses.dataclass(frozen=True)
class RandomParticipation:
    """In each of `rounds` rounds `each` happens with probability `rate`, by a coin that is public and knows no data.

    The ex-ante account: delta(eps) is the mean over the number of rounds taken part in, drawn from a binomial law.
    """

    each: "Event"
    rate: float
    rounds: int

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise errors.refuse("the participation rate", self.rate, "in [0, 1]")
        errors.require_count("rounds", self.rounds)

    def scaled(self, factor: float) -> "RandomParticipation":
        """The same with `factor` times the noise."""
        return dataclasses.replace(self, each=self.each.scaled(factor))

    def leaves(self, taken: int = 1) -> Iterator[tuple[GaussianSteps, int]]:
        if self.rate:
            yield from self.each.leaves(taken * self.rounds)


Event = GaussianSteps | Composed | RandomParticipation
