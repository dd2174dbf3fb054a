"""Releases of noisy sums, one class for each kind of noise; each states its cost.

The noise multiplier is always the standard deviation (or scale) of the noise on the *sum* divided by the clip norm.
Only this module converts it to the sensitivity under an adjacency.
"""

import dataclasses
import functools
import math
from abc import ABC
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import pairs, tcdp
from fedjax_dp.accounting.gaussian import DrawnGdp
from fedjax_dp.accounting.laws import Dominating, TwoLosses
from fedjax_dp.accounting.neighbours import Adjacency, NotCoveredError, Unit
from fedjax_dp.accounting.sampling import FullBatch, Sampling, Shuffled, WithReplacement
from fedjax_dp.accounting.skellam import skellam_divergence
from fedjax_dp.accounting.tcdp import Tcdp

LEAST_NOISE, MOST_NOISE = 1e-9, 1e12  # noise multipliers between which float64 resolves what an event costs
MOST_STEPS = 10**9
_require_steps = errors.integers(0, MOST_STEPS)
PRICES = {  # of a release, and the accountants that ask for them
    "dominating_pairs": "pld",
    "attained_pairs": "attained",
    "zcdp": "zcdp",
    "gdp": "gaussian",
    "tcdp": "tcdp",
    "drawn_in_public": "pld",
}
_UNCOVERED = {  # neighbours of a sampling that is not covered for them
    Adjacency.ADD_REMOVE: "add-remove neighbours have different numbers of records, so {} is not the same sampling for "
    "both",
    Adjacency.REPLACE_ONE: "{} is not proved for replace-one neighbours",
    Adjacency.ZERO_OUT: "the member drawn instead still moves sums by 2, so {} is not covered for zero-out neighbours",
}
_KINDS: dict[str, tuple[Any, str]] = {  # of the fields of a release, each with an example
    "sampling": (Sampling, "Poisson(0.01)"),
    "adjacency": (Adjacency, "Adjacency.REPLACE_ONE"),
    "unit": (Unit, "Unit.RECORD"),
}


class Release(ABC):
    """`count` adaptively composed noisy sums of one kind, each over a fresh sample, and the cost of each.

    A user-defined release is a frozen dataclass of this class with the fields `adjacency`, `count` and `unit`, a
    `noise_multiplier` (`scaled` changes it) and a `sampling`, as in `GaussianSteps`, and at least one method:
    `dominating_pairs`. An accountant that needs a missing method refuses the release.
    """

    noise: ClassVar[str] = ""  # in words, of refusals
    coverage: ClassVar[str] = ""  # what to use instead of what is refused
    adds_up: ClassVar[bool] = False  # whether independent noises of this kind add up to one of it, variances added
    is_normal: ClassVar[bool] = False  # whether the noise has the normal law; of another `as_normal` tells
    presence_first: ClassVar[bool] = False  # of two dominating pairs: that of presence against absence
    norm: ClassVar[int] = 2  # of the vectors of members, in which the clip norm bounds them: 1 or 2
    deviation: ClassVar[float] = 1.0  # standard deviation of noise of multiplier 1 at clip norm 1

    # Fields; a read-only property will do.
    noise_multiplier: Any
    sampling: Any
    adjacency: Any
    count: Any
    unit: Any

    def __post_init__(self) -> None:
        if not (self.noise_multiplier == 0 or LEAST_NOISE <= self.noise_multiplier <= MOST_NOISE):
            wanted = f"0, or from {LEAST_NOISE:g} to {MOST_NOISE:g}"
            raise errors.refuse("noise_multiplier", self.noise_multiplier, wanted)
        for what, (kind, example) in _KINDS.items():
            if not isinstance(value := getattr(self, what), kind):
                raise errors.refuse(what, repr(value), f"a value from fedjax_dp.accounting, such as {example}")
        _require_steps("the number of noisy steps", self.count)
        if self.adjacency not in self.sampling.adjacencies:
            covered = " or ".join(known.value for known in self.sampling.adjacencies)
            raise NotCoveredError(f"{_UNCOVERED[self.adjacency].format(self.sampling)}; use {covered}")
        if self.sampling.gaussian_only and not isinstance(self, GaussianSteps):
            raise NotCoveredError(
                f"{self.noise or type(self).__name__} does not state its cost under {self.sampling}, which is known "
                "for Gaussian noise alone; use another sampling, such as Poisson"
            )
        epoch = self.sampling.steps_per_epoch
        if isinstance(self.sampling, Shuffled) and self.count % epoch:
            wanted = f"a multiple of the {epoch} batches of an epoch"
            raise errors.refuse("the number of shuffled steps", self.count, wanted, f"use {self._passes * epoch}")

    @functools.cached_property
    def _passes(self) -> int:
        """Epochs or passes, of which a partial one is counted whole."""
        return -(-self.count // self.sampling.steps_per_epoch)

    @property
    def relative_noise(self) -> float:
        """Noise standard deviation, or scale, divided by the sensitivity of the sum under the adjacency."""
        return self.noise_multiplier / self.adjacency.sensitivity

    @functools.cached_property
    def releases(self) -> int:
        """The largest number of sums, or passes, that can contain a given member."""
        if self.sampling.rate == 0:
            return 0
        return min(self._passes, 1) if self.sampling.keeps_draw else self._passes

    @property
    def reveals_everything(self) -> bool:
        """Whether sums were released without noise, so that no finite epsilon exists."""
        return self.releases > 0 and self.noise_multiplier == 0

    def scaled(self, factor: float) -> Self:
        """The release with its noise multiplied by `factor`."""
        return dataclasses.replace(self, noise_multiplier=self.noise_multiplier * factor)  # type: ignore[type-var]

    def repeated(self, times: float) -> Self:
        """`times` adaptively composed copies, rounded up to whole steps, or epochs."""
        steps = self._passes * times * (1 - 1e-12)  # so that 10 * 1.1 is 11, whatever floats say
        return dataclasses.replace(self, count=math.ceil(steps) * self.sampling.steps_per_epoch)  # type: ignore[type-var]

    def once(self) -> Self:
        """A single release: for random epochs, one epoch."""
        return dataclasses.replace(self, count=self.count // self.releases)  # type: ignore[type-var]

    def leaves(self, taken: int = 1) -> "Iterator[tuple[Release, int]]":
        """Every released noisy sum, and the largest number of its releases."""
        if self.releases * taken:
            yield self, self.releases * taken

    # What one of the sums costs, in the currencies of the accountants.

    def dominating_pairs(self) -> tuple[Dominating, ...]:
        """Dominating pairs of a sum, one for each direction; a symmetric one has a single pair. For accountant pld.

        Among releases of other kinds both count as the worse one, unless `presence_first` says which is which.
        """
        raise self._lacks("dominating_pairs")

    def attained_pairs(self) -> tuple[Dominating, ...]:
        """Pairs that two real neighbours attain; for lower bounds, see `ATTAINED`."""
        raise self._lacks("attained_pairs")

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        """Bound on the Renyi divergence, in nats, at real orders above 1 `(A,)`, where the loss is finite."""
        orders = _require_orders(orders)
        each = [pairs.divergence(direction, orders) for direction in self.dominating_pairs()]
        return np.max(each, axis=0)

    @property
    def infinite_mass(self) -> float:
        """Probability of an infinite loss in the dominating pairs; `rdp` leaves it out."""
        try:
            return max(direction.infinite_mass for direction in self.dominating_pairs())
        except NotCoveredError:
            return 0.0

    @property
    def highest_order(self) -> float:
        """Upper limit of useful orders of `rdp`: higher ones are never best for a delta above 1e-12."""
        return _highest(self.relative_noise, self.sampling.rate)

    def zcdp(self) -> float:
        """The rho of zCDP without amplification by sampling."""
        raise self._lacks("zcdp")

    def gdp(self) -> float:
        """The mu of Gaussian differential privacy, if the release is exactly Gaussian."""
        raise self._lacks("gdp")

    def tcdp(self) -> Tcdp:
        """The tCDP of the dpnfl paper."""
        raise self._lacks("tcdp")

    def drawn_in_public(self) -> DrawnGdp:
        """An upper bound that treats the draw as public, for losses that no grid resolves."""
        raise self._lacks("drawn_in_public")

    def as_normal(self, differences: np.ndarray) -> np.ndarray:
        """Transform differences of two noises, of variance 1, to standard normals, coordinate by coordinate.

        Examinations use it to compare drawn noise with the stated law: with D the distribution function of such
        differences it returns N^-1(D(x)), in the same shape. `is_normal` noise is returned unchanged.
        """
        if self.is_normal:
            return differences
        raise NotCoveredError(f"{self.noise or type(self).__name__} has no as_normal, which the check of its law needs")

    def _lacks(self, price: str) -> NotCoveredError:
        needs = f"states no {price}, which accountant {PRICES[price]} needs; use another"
        return NotCoveredError(f"{self.noise or type(self).__name__} {self.coverage or needs}")


def _highest(noise: float, rate: float) -> float:
    return 8 + 14 * noise + min(4 * noise**2 * math.log(1 / rate), 1e4)


def _require_orders(orders: np.ndarray) -> np.ndarray:
    orders = np.asarray(orders, float)
    if not np.all(orders > 1):
        raise errors.refuse("Renyi orders", orders.min(), "above 1")
    return orders


@dataclasses.dataclass(frozen=True)
class GaussianSteps(Release):
    """`count` adaptively composed noisy sums of clipped vectors, each over a fresh sample.

    `noise_multiplier` is z: the noise on the sum has standard deviation z times the clip norm, which bounds the
    contribution of one member (a record's gradient, or a client's update).
    `group` is the largest number of members that belong to the unit: neighbours differ in all of them, which are added
    or removed together, or replaced one by one.
    """

    noise: ClassVar[str] = "Gaussian noise"
    is_normal: ClassVar[bool] = True
    adds_up: ClassVar[bool] = True
    presence_first: ClassVar[bool] = True

    noise_multiplier: float
    sampling: Sampling
    adjacency: Adjacency
    count: int
    unit: Unit = Unit.RECORD
    group: int = 1

    def __post_init__(self) -> None:
        errors.require_count("the records of one unit", self.group)
        members = getattr(self.sampling, "records", None)
        if members is not None and self.group > members:
            raise errors.refuse("the records of one unit", self.group, f"at most the {members} that there are")
        super().__post_init__()

    @property
    def relative_noise(self) -> float:
        """Noise standard deviation divided by the unit's sensitivity in a release that contains all its members."""
        return self._noise / (self.adjacency.sensitivity * self.group * math.sqrt(self.sampling.sums_per_member))

    @property
    def _noise(self) -> float:
        """Of a release: the sums of a kept slot tell as much as their mean."""
        return self.noise_multiplier / math.sqrt(max(self._passes, 1) if self.sampling.keeps_draw else 1)

    def dominating_pairs(self) -> tuple[Dominating, ...]:
        return pairs.of_gaussian(self._noise, self.sampling, self.adjacency, self.group)

    def attained_pairs(self) -> tuple[Dominating, ...]:
        if self.count % self.sampling.steps_per_epoch:
            raise NotCoveredError("no lower bound is known for a pass that is not finished")
        return pairs.attained_by_gaussian(self._noise, self.sampling, self.adjacency, self.group)

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        """Renyi divergence of the dominating pair at each order, in nats; the worse of both directions.

        Limits: rate 1 -> order / (2 noise^2), with the noise in sensitivities.
        Errors: of the quadrature, 1e-8 relative where the divergence is above 1e-16.
        Source: the dominating pairs; for Poisson and add-remove this is Mironov, Talwar, Zhang 2019, arXiv:1908.10530,
                whose Theorem 5 proves that the direction used here is the worse one.
        """
        errors.require_positive("noise_multiplier", self.noise_multiplier)
        return pairs.divergence(self.dominating_pairs()[0], _require_orders(orders))

    @property
    def highest_order(self) -> float:
        if self.sampling.steps_per_epoch > 1 and self.sampling.rate < 1:
            raise NotCoveredError(f"{self.sampling} is covered by its loss distribution alone; use accountant pld")
        worst: Any = self.dominating_pairs()[0].pairs[0]
        return _highest(min(self.relative_noise, worst.noise), self.sampling.rate)

    def zcdp(self) -> float:
        """1 / (2 noise^2), with the noise in sensitivities (Bun and Steinke 2016, Proposition 1.6)."""
        if isinstance(self.sampling, WithReplacement):
            raise NotCoveredError("zCDP cannot ignore sampling in which a record may be drawn many times; use pld")
        return 1 / (2 * self.relative_noise**2)

    def gdp(self) -> float:
        """1 / noise, with the noise in sensitivities, for unsampled sums."""
        if self.sampling.rate != 1 or isinstance(self.sampling, WithReplacement):
            raise NotCoveredError(
                f"the exact Gaussian formula needs unsampled sums, got {self.sampling}; use accountant pld"
            )
        return 1 / self.relative_noise

    def drawn_in_public(self) -> DrawnGdp:
        if isinstance(self.sampling, WithReplacement):
            raise NotCoveredError(f"a member may be drawn more than once by {self.sampling}")
        any_member = min(self.group * self.sampling.rate, 1.0) if self.sampling.steps_per_epoch == 1 else 1.0
        return DrawnGdp(1 / self.relative_noise, any_member)

    def tcdp(self) -> Tcdp:
        if self.group > 1:
            raise NotCoveredError("the tCDP of the dpnfl paper is of one record; use accountant pld")
        return tcdp.of_gaussian(self.noise_multiplier, self.sampling, self.adjacency)


@dataclasses.dataclass(frozen=True)
class SkellamSums(Release):
    """`count` adaptively composed sums of integer vectors over public cohorts, each coordinate with Skellam noise.

    variance   of the noise on a coordinate of the sum, in squared ring units. Skellam noise is the difference of two
               Poisson draws and adds up: each of n clients may contribute variance / n.
    l2, l1     bounds on the norms of one member's encoded vector, in ring units, after rounding.
    Sums modulo the ring are post-processing of exact sums. If members add the noise themselves, only the noise of the
    other honest members of a cohort of fixed size counts, see `views.steps_in_view`.
    """

    noise: ClassVar[str] = "integer (Skellam) noise"
    coverage: ClassVar[str] = "is covered by its Renyi bound alone; use accountant rdp"
    is_normal: ClassVar[bool] = True
    adds_up: ClassVar[bool] = True

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
        super().__post_init__()

    @property
    def sampling(self) -> FullBatch:
        return FullBatch()

    @property
    def noise_multiplier(self) -> float:
        """Noise standard deviation divided by the L2 bound, as for Gaussian noise."""
        return math.sqrt(self.variance) / self.l2

    def scaled(self, factor: float) -> "SkellamSums":
        """The release with the standard deviation of its noise multiplied by `factor`."""
        return dataclasses.replace(self, variance=self.variance * factor**2)

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        """See `skellam_divergence`; both sensitivities double under replace-one."""
        twice = self.adjacency.sensitivity
        return skellam_divergence(self.variance, twice * self.l2, twice * self.l1, _require_orders(orders))


class OfEpsilon(Release):
    """A release known by its epsilon alone: calibration does not change it, and it contains every member."""

    @property
    def sampling(self) -> FullBatch:
        return FullBatch()

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of Gaussian noise with the same zCDP, at delta 0."""
        return self.relative_noise * self.adjacency.sensitivity

    def scaled(self, factor: float) -> Self:
        return self


@dataclasses.dataclass(frozen=True)
class BoundedRange(OfEpsilon):
    """`count` choices by the exponential mechanism, each of bounded range epsilon, so epsilon^2/8-zCDP.

    epsilon  range in which the log probabilities of one choice change between neighbours; calibration does not change
             it. Source: Dong, Durfee, Rogers 2020; Cesar and Rogers 2021, arXiv:2004.07223, Lemma 3.2.
    """

    noise: ClassVar[str] = "a choice with Gumbel noise"
    coverage: ClassVar[str] = "is covered by its zCDP alone; use accountant rdp or zcdp"

    epsilon: float
    adjacency: Adjacency
    count: int
    unit: Unit = Unit.RECORD

    def __post_init__(self) -> None:
        errors.require_positive("epsilon of a choice", self.epsilon)
        super().__post_init__()

    @property
    def relative_noise(self) -> float:
        return 2 / self.epsilon

    def rdp(self, orders: np.ndarray) -> np.ndarray:
        return _require_orders(orders) / (2 * self.relative_noise**2)

    def zcdp(self) -> float:
        return 1 / (2 * self.relative_noise**2)


@dataclasses.dataclass(frozen=True)
class StatedPrivacy(OfEpsilon):
    """`count` releases that are only known to be (`epsilon`, `delta`)-private each.

    Calibration does not change them. Their dominating pair, `TwoLosses` and an infinite loss with probability delta,
    composes with other releases; a composition has an epsilon only at a delta above those of its parts.
    """

    noise: ClassVar[str] = "a release of which epsilon and delta alone are known"

    epsilon: float
    delta: float
    adjacency: Adjacency
    count: int = 1
    unit: Unit = Unit.RECORD

    def __post_init__(self) -> None:
        errors.require_positive("epsilon of what is known alone", self.epsilon)
        if not 0 <= self.delta < 1:
            raise errors.refuse("delta of what is known alone", self.delta, "at least 0 and below 1")
        super().__post_init__()

    @property
    def relative_noise(self) -> float:
        return 1 / self.epsilon

    def dominating_pairs(self) -> tuple[Dominating, ...]:
        return (Dominating((1.0,), (TwoLosses(self.epsilon),), self.delta),)

    def zcdp(self) -> float:
        """epsilon^2 / 2 at delta 0 (Bun and Steinke 2016, Proposition 1.4)."""
        if self.delta:
            raise self._lacks("zcdp")
        return self.epsilon**2 / 2
