"""Renyi differential privacy: divergences at real orders, by quadrature where laws are Gaussian (`laws`).

Composition adds the divergences order by order; the best order is taken at the end. Always looser than the loss
distribution of the same pairs, because one order has to serve all losses.

The best order is searched on a grid, then on finer grids around it. Theorems for integer orders (Skellam noise) extend
to real orders by chords, which are upper bounds.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from fedjax_dp.accounting.events import Event
from fedjax_dp.accounting.releases import Release

NUM_ORDERS = 450  # 3% apart: alone this costs up to 2% of epsilon, where rare sampling makes the best order a sharp one
FINER = 40  # orders between the neighbours of the best: 0.15% apart, and 0.008% the second time


@dataclasses.dataclass(frozen=True)
class RenyiCurve:
    """Bounds `values[k]`, in nats, on the Renyi divergence of order `orders[k]` > 1, where the loss is finite.

    It is infinite with probability `infinite_mass` at most.
    """

    orders: np.ndarray
    values: np.ndarray
    infinite_mass: float = 0.0

    def times(self, count: int) -> "RenyiCurve":
        return RenyiCurve(self.orders, self.values * count, self.infinite_mass * count)

    def plus(self, other: "RenyiCurve") -> "RenyiCurve":
        return RenyiCurve(self.orders, self.values + other.values, self.infinite_mass + other.infinite_mass)

    def worst(self, other: "RenyiCurve") -> "RenyiCurve":
        mass = max(self.infinite_mass, other.infinite_mass)
        return RenyiCurve(self.orders, np.maximum(self.values, other.values), mass)

    def thinned(self, rate: float) -> "RenyiCurve":
        """This with probability `rate`, else nothing; the choice is public, so the exponentials are averaged."""
        with np.errstate(divide="ignore"):
            mean = np.logaddexp(np.log1p(-rate), np.log(rate) + (self.orders - 1) * self.values)
        return RenyiCurve(self.orders, np.maximum(mean, 0.0) / (self.orders - 1), self.infinite_mass * rate)

    def epsilon(self, delta: float) -> float:
        """The best order's conversion (Canonne, Kamath, Steinke 2020, arXiv:2004.00010, Proposition 12)."""
        return math.inf if self.infinite_mass >= delta else max(float(np.min(self._conversion(delta))), 0.0)

    def around(self, delta: float) -> np.ndarray:
        """Finer orders around the best one, for a delta above `infinite_mass`."""
        best, last = int(np.argmin(self._conversion(delta))), self.orders.size - 1
        return np.linspace(self.orders[max(best - 1, 0)], self.orders[min(best + 1, last)], FINER)

    def _conversion(self, delta: float) -> np.ndarray:
        a = self.orders
        return self.values + np.log1p(-1 / a) - (math.log(delta - self.infinite_mass) + np.log(a)) / (a - 1)


def price(event: Event, at: np.ndarray | None = None) -> Callable[[Release], RenyiCurve]:
    """The curve of one release of a step; orders are dense near 1 and reach beyond the best of the noisiest step."""
    highest = max(step.highest_order for step, _ in event.leaves())
    orders = 1 + np.geomspace(1e-3, highest - 1, NUM_ORDERS) if at is None else at

    @functools.cache
    def of(step: Release) -> RenyiCurve:
        useful = orders <= step.highest_order * (1 + 1e-9)
        values = np.full(orders.size, np.inf)
        if useful.any():
            values[useful] = step.rdp(orders[useful])
        return RenyiCurve(orders, values, step.infinite_mass)

    return of


def best_epsilon(curve_at: Callable[[np.ndarray | None], RenyiCurve], delta: float) -> float:
    """Epsilon at the best order of the grid (None), refined around it."""
    curve = curve_at(None)
    epsilon = curve.epsilon(delta)
    for _ in range(2 if 0 < epsilon < math.inf else 0):
        curve = curve_at(curve.around(delta))
        epsilon = min(epsilon, curve.epsilon(delta))
    return epsilon
