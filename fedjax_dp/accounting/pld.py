"""The rigorous accountant: privacy loss distributions of the dominating pairs, composed by FFT."""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterator

import numpy as np

from fedjax_dp.accounting.events import Event
from fedjax_dp.accounting.laws import Dominating
from fedjax_dp.accounting.losses import LossDistribution, discretise
from fedjax_dp.accounting.releases import Release

FINEST_SPACING = 1e-9  # nats; below it rounding errors of the losses themselves would show
FINEST_GRID = 2**22  # points; beyond it the grid is coarsened, which is still an upper bound
POINTS_PER_DEVIATION = 20  # grid points per standard deviation of one step's loss; costs at most 3e-4 of epsilon


@dataclasses.dataclass(frozen=True)
class Losses:
    """The loss distributions of both directions on one grid; the worse direction counts."""

    directions: tuple[LossDistribution, ...]

    def times(self, count: int) -> "Losses":
        return Losses(tuple(loss.times(count) for loss in self.directions))

    def plus(self, other: "Losses") -> "Losses":
        return Losses(tuple(mine.plus(theirs) for mine, theirs in self._beside(other)))

    def worst(self, other: "Losses") -> "Losses":
        return Losses(tuple(mine.worst(theirs) for mine, theirs in self._beside(other)))

    def thinned(self, rate: float) -> "Losses":
        return Losses(tuple(loss.thinned(rate) for loss in self.directions))

    @property
    def undirected(self) -> "Losses":
        """A loss that dominates those of both directions, whichever is which."""
        return Losses((functools.reduce(LossDistribution.worst, self.directions),))

    def epsilon(self, delta: float) -> float:
        return max(loss.epsilon(delta) for loss in self.directions)

    def delta(self, epsilon: float) -> float:
        """Smallest delta at `epsilon`."""
        return max(loss.delta(epsilon) for loss in self.directions)

    def _beside(self, other: "Losses") -> Iterator[tuple[LossDistribution, ...]]:
        """Direction by direction; a symmetric loss is its own other direction."""
        directions = max(len(self.directions), len(other.directions))
        return zip(*(one.directions * (directions // len(one.directions)) for one in (self, other)), strict=True)


Pairs = Callable[[Release], tuple[Dominating, ...]]


def spacing_for(event: Event, pairs: Pairs) -> tuple[float, float]:
    """Grid spacing for the whole event, and its ratio to what resolves a step: a 20th of its loss's deviation."""
    moments, steps, largest, rarest = 0.0, 0, 0.0, 0.0
    for step, releases in event.leaves():
        worst = pairs(step)[0]
        moments += releases * sum(
            weight * pair.deviation**2 for weight, pair in zip(worst.weights, worst.pairs, strict=True)
        )
        steps += releases
        usual = worst.pairs[int(np.argmax(worst.weights))]
        largest = max(largest, *map(abs, usual.reach(releases)))
        rarest = max(rarest, *map(abs, worst.pairs[-1].reach(releases)))
    wanted = min(math.sqrt(moments / steps) / POINTS_PER_DEVIATION, 1e-2)
    total = 20 * math.sqrt(moments) + 2 * largest
    spacing = max(wanted, total / FINEST_GRID, largest / 2**18, rarest / 2**21, FINEST_SPACING)
    return spacing, spacing / wanted


def price(event: Event, pairs: Pairs = operator.methodcaller("dominating_pairs")) -> Callable[[Release], Losses]:
    """The losses of one release of a step, on a grid for the `event` that contains the step."""
    spacing, _ = spacing_for(event, pairs)
    counts: dict[Release, int] = {}
    for step, releases in event.leaves():
        counts[step] = counts.get(step, 0) + releases

    @functools.cache
    def of(step: Release) -> Losses:
        losses = Losses(tuple(discretise(direction, spacing, counts[step]) for direction in pairs(step)))
        return losses if step.presence_first or len(counts) == 1 else losses.undirected

    return of
