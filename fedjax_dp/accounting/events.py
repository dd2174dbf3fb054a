"""What happened, as explicit types: who is a neighbour, how records were sampled, how much noise was added, how often.

An event is public information. Accountants (the other modules of this package) say what an event costs. The noise
multiplier is always the standard deviation of the noise on the *sum* divided by the clip norm; the conversion to the
sensitivity under an adjacency is done here and nowhere else.
"""

import dataclasses
import enum
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from fedjax_dp import errors
from fedjax_dp.accounting.sampling import (
    AnyStep,
    FullBatch,
    Poisson,
    Sampling,
    Shuffled,
    WithoutReplacement,
    WithReplacement,
)

__all__ = [
    "Adjacency",
    "AnyStep",
    "BoundedRange",
    "Composed",
    "Event",
    "FullBatch",
    "GaussianSteps",
    "NotCoveredError",
    "Poisson",
    "RandomParticipation",
    "Release",
    "Sampling",
    "Shuffled",
    "SkellamSums",
    "Unit",
    "WithReplacement",
    "WithoutReplacement",
    "distinct",
    "each",
    "gaussian_only",
    "repeated",
]


T = TypeVar("T")


class NotCoveredError(errors.ConfigurationError):
    """An accountant has no theorem for an event, so it says nothing rather than too little."""

    @property
    def reason(self) -> str:
        """What is not covered, without what to do instead."""
        return str(self).partition("; ")[0]


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


LEAST_NOISE, MOST_NOISE = 1e-9, 1e12  # noise multipliers between which float64 resolves what an event costs
MOST_STEPS = 10**9
_SUCH_AS = {"sampling": "Poisson(0.01)", "adjacency": "Adjacency.REPLACE_ONE", "unit": "Unit.RECORD"}


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
        _check(self)
        if self.adjacency is Adjacency.ADD_REMOVE and not isinstance(self.sampling, FullBatch | Poisson):
            raise NotCoveredError(
                f"add-remove neighbours have different numbers of records, so {self.sampling} is not the same "
                "sampling for both; use replace-one"
            )
        if isinstance(self.sampling, Shuffled) and self.count % self.sampling.steps_per_epoch:
            raise errors.refuse(
                "the number of shuffled steps",
                self.count,
                f"a multiple of the {self.sampling.steps_per_epoch} batches of an epoch",
                f"use {-(-self.count // self.sampling.steps_per_epoch) * self.sampling.steps_per_epoch}",
            )

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

    def leaves(self, taken: int = 1) -> "Iterator[tuple[Release, int]]":
        """Every noisy sum that is released at all, and how often at most."""
        if self.releases * taken:
            yield self, self.releases * taken


@dataclasses.dataclass(frozen=True)
class SkellamSums:
    """`count` adaptively composed sums of integer vectors over public cohorts, each coordinate with Skellam noise.

    variance   of the noise on a coordinate of the sum, in squared ring units. Skellam noise is the difference of two
               Poisson draws and adds up: each of n clients may contribute variance / n.
    l2, l1     bounds on the norms of one member's vector, in ring units, as encoded: after rounding.
    Sums that wrap around are covered, since they are computed from those that do not. If members add the noise
    themselves, only what the honest others of a cohort of fixed size add may be counted, as `views.seen` does.
    """

    variance: float
    l2: float
    l1: float
    adjacency: Adjacency
    count: int
    unit: Unit = Unit.CLIENT

    def __post_init__(self) -> None:
        errors.require_not_negative("variance", self.variance)
        if not 1 <= self.l2 < math.inf:
            raise errors.refuse("l2", self.l2, "at least 1 and finite", "it is in ring units")
        if not self.l2 <= self.l1 < math.inf:
            raise errors.refuse("l1", self.l1, f"at least the L2 bound {self.l2:g} and finite")
        _check(self)

    @property
    def sampling(self) -> FullBatch:
        return FullBatch()

    @property
    def noise_multiplier(self) -> float:
        """Noise standard deviation divided by the L2 bound, as for Gaussian noise."""
        return math.sqrt(self.variance) / self.l2

    @property
    def relative_noise(self) -> float:
        """Noise standard deviation divided by the L2 sensitivity of the sum under the adjacency."""
        return self.noise_multiplier / self.adjacency.sensitivity

    @property
    def releases(self) -> int:
        return self.count

    @property
    def reveals_everything(self) -> bool:
        return self.releases > 0 and self.variance == 0

    def scaled(self, factor: float) -> "SkellamSums":
        """The same with noise of `factor` times the standard deviation."""
        return dataclasses.replace(self, variance=self.variance * factor**2)

    def leaves(self, taken: int = 1) -> "Iterator[tuple[Release, int]]":
        if self.releases * taken:
            yield self, self.releases * taken


@dataclasses.dataclass(frozen=True)
class BoundedRange:
    """`count` choices by the exponential mechanism, each epsilon-bounded range, so epsilon^2/8-zCDP.

    epsilon  of one choice: a choice's log probabilities move within a range of epsilon between neighbours.
    No budget changes it. Source: Dong, Durfee, Rogers 2020; Cesar and Rogers 2021, arXiv:2004.07223, Lemma 3.2.
    """

    epsilon: float
    adjacency: Adjacency
    count: int
    unit: Unit = Unit.RECORD

    def __post_init__(self) -> None:
        errors.require_positive("epsilon of a choice", self.epsilon)
        _check(self)

    @property
    def sampling(self) -> FullBatch:
        return FullBatch()

    @property
    def noise_multiplier(self) -> float:
        """That of Gaussian noise with the same zCDP."""
        return self.relative_noise * self.adjacency.sensitivity

    @property
    def relative_noise(self) -> float:
        return 2 / self.epsilon

    @property
    def releases(self) -> int:
        return self.count

    @property
    def reveals_everything(self) -> bool:
        return False

    def scaled(self, factor: float) -> "BoundedRange":
        """The same: it has noise of its own."""
        return self

    def leaves(self, taken: int = 1) -> "Iterator[tuple[Release, int]]":
        if self.releases * taken:
            yield self, self.releases * taken


Release = GaussianSteps | SkellamSums | BoundedRange


def _check(step: Release) -> None:
    """Refuses what no noisy sum may be."""
    if not (step.noise_multiplier == 0 or LEAST_NOISE <= step.noise_multiplier <= MOST_NOISE):
        raise errors.refuse("noise_multiplier", step.noise_multiplier, f"0, or from {LEAST_NOISE:g} to {MOST_NOISE:g}")
    for what, value, kind in (
        ("sampling", step.sampling, Sampling),
        ("adjacency", step.adjacency, Adjacency),
        ("unit", step.unit, Unit),
    ):
        if not isinstance(value, kind):
            raise errors.refuse(what, repr(value), f"a value from fedjax_dp.accounting, such as {_SUCH_AS[what]}")
    errors.require_integer("the number of noisy steps", step.count, 0, MOST_STEPS)


def gaussian_only(step: Release) -> GaussianSteps:
    """The step itself, for theorems about Gaussian noise. Raises: NotCoveredError for any other noise."""
    if isinstance(step, GaussianSteps):
        return step
    if isinstance(step, BoundedRange):
        raise NotCoveredError("a choice with Gumbel noise is covered by its zCDP alone; use accountant rdp or zcdp")
    raise NotCoveredError("integer (Skellam) noise is covered by its Renyi bound alone; use accountant rdp")


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

    def leaves(self, taken: int = 1) -> Iterator[tuple[Release, int]]:
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

    def leaves(self, taken: int = 1) -> Iterator[tuple[Release, int]]:
        if self.rate:
            yield from self.each.leaves(taken * self.rounds)


Event = Release | Composed | RandomParticipation


def repeated(event: Event, times: float) -> Event:
    """`times` adaptively composed copies; every number of steps is rounded up to whole steps (or whole epochs).

    Raises: ConfigurationError if `times` is negative or not finite; NotCoveredError for random participation, whose
            rounds are fixed beforehand.
    """
    errors.require_not_negative("times", times)
    match event:
        case GaussianSteps() | SkellamSums() | BoundedRange():
            whole = event.sampling.steps_per_epoch if isinstance(event.sampling, Shuffled) else 1
            steps = event.count * times / whole * (1 - 1e-12)  # so that 10 * 1.1 is 11, whatever floats say
            return dataclasses.replace(event, count=math.ceil(steps) * whole)
        case Composed(parts):
            return Composed(tuple(repeated(part, times) for part in parts))
        case RandomParticipation():
            raise NotCoveredError("random participation cannot be repeated; give it more rounds instead")


def distinct(ledger: Iterable[Event]) -> list[Event]:
    """The events of a ledger, each once. A million clients share a few objects, which are hashed a few times."""
    return list(dict.fromkeys({id(event): event for event in ledger}.values()))


def each(ledger: Iterable[Event], of: Callable[[Event], T]) -> list[T]:
    """`of(event)` for every event of a ledger, evaluated once for each distinct one."""
    ledger = list(ledger)
    shared = {id(event): event for event in ledger}
    values = {event: of(event) for event in dict.fromkeys(shared.values())}
    found = {key: values[event] for key, event in shared.items()}
    return [found[id(event)] for event in ledger]
