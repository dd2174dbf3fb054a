"""Renyi differential privacy: divergences at real orders, by quadrature where laws are Gaussian (`laws`).

Composition adds the divergences order by order; the best order is taken at the end. Always looser than the loss
distribution of the same pairs, because one order has to serve all losses.

The best order is looked for on a grid, then on finer ones around the best of it. Theorems for integer orders (Skellam
noise, Wang et al. 2019) are carried to those between by chords, which are bounds, so nothing changes there.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from scipy.special import gammaln, logsumexp

from fedjax_dp.accounting.events import Adjacency, Event, NotCoveredError, Release, WithoutReplacement
from fedjax_dp.accounting.laws import LEAST_RESOLVED, GaussianPair, panels

NUM_ORDERS = 450  # 3% apart: alone this costs up to 2% of epsilon, where rare sampling makes the best order a sharp one
FINER = 40  # orders between the neighbours of the best: 0.15% apart, and 0.008% the second time


@dataclasses.dataclass(frozen=True)
class RenyiCurve:
    """Renyi divergence, in nats, at most `values[k]` at `orders[k]` > 1, outside an event of probability `lost`."""

    orders: np.ndarray
    values: np.ndarray
    lost: float = 0.0

    def times(self, count: int) -> "RenyiCurve":
        return RenyiCurve(self.orders, self.values * count, self.lost * count)

    def plus(self, other: "RenyiCurve") -> "RenyiCurve":
        return RenyiCurve(self.orders, self.values + other.values, self.lost + other.lost)

    def thinned(self, rate: float) -> "RenyiCurve":
        """With probability `rate` this, else nothing, which of the two is public: the exponentials are averaged."""
        with np.errstate(divide="ignore"):
            mean = np.logaddexp(np.log1p(-rate), np.log(rate) + (self.orders - 1) * self.values)
        return RenyiCurve(self.orders, np.maximum(mean, 0.0) / (self.orders - 1), self.lost * rate)

    def epsilon(self, delta: float) -> float:
        """The best order's conversion (Canonne, Kamath, Steinke 2020, arXiv:2004.00010, Proposition 12)."""
        return math.inf if self.lost >= delta else max(float(np.min(self._converted(delta))), 0.0)

    def around(self, delta: float) -> np.ndarray:
        """Finer orders, between the neighbours of the one that is best for a delta above `lost`."""
        best, last = int(np.argmin(self._converted(delta))), self.orders.size - 1
        return np.linspace(self.orders[max(best - 1, 0)], self.orders[min(best + 1, last)], FINER)

    def _converted(self, delta: float) -> np.ndarray:
        a = self.orders
        converted: np.ndarray = self.values + np.log1p(-1 / a) - (math.log(delta - self.lost) + np.log(a)) / (a - 1)
        return converted


def price(event: Event, at: np.ndarray | None = None) -> Callable[[Release], RenyiCurve]:
    """The curve of one release of a step, at orders dense near 1 and up to beyond the best of the noisiest step."""
    highest = max(step.highest_order for step, _ in event.leaves())
    orders = 1 + np.geomspace(1e-3, highest - 1, NUM_ORDERS) if at is None else at

    @functools.cache
    def of(step: Release) -> RenyiCurve:
        useful = orders <= step.highest_order * (1 + 1e-9)
        values = np.full(orders.size, np.inf)
        values[useful] = step.rdp(orders[useful])
        return RenyiCurve(orders, values, step.lost)

    return of


def best_epsilon(curve_at: Callable[[np.ndarray | None], RenyiCurve], delta: float) -> float:
    """Epsilon at the best order: of the grid (None), then of finer orders around it."""
    curve = curve_at(None)
    epsilon = curve.epsilon(delta)
    for _ in range(2 if 0 < epsilon < math.inf else 0):
        curve = curve_at(curve.around(delta))
        epsilon = min(epsilon, curve.epsilon(delta))
    return epsilon


def wang_price(event: Event) -> Callable[[Release], RenyiCurve]:
    """The curve of Wang, Balle, Kasiviswanathan 2019 (arXiv:1808.00087, Theorem 27), which papers use; looser.

    It holds at integer orders; between them (order - 1) times the divergence is convex, so a chord bounds it.
    """
    integers = np.arange(1, 257)
    orders = np.concatenate([np.linspace(1.1, 10.9, 99), integers[10:]])

    @functools.cache
    def of(step: Release) -> RenyiCurve:
        if not isinstance(step.sampling, WithoutReplacement) or step.adjacency is not Adjacency.REPLACE_ONE:
            raise NotCoveredError("Wang et al. 2019 covers fixed-size batches under replace-one only")
        moments = np.append(0.0, _wang_moments(step.sampling.rate, step.relative_noise, int(integers[-1])))
        return RenyiCurve(orders, np.interp(orders, integers, moments) / (orders - 1))

    return of


def _wang_moments(rate: float, noise: float, top: int) -> np.ndarray:
    """(a - 1) D_a at orders 2 to `top`; E|ratio - 1|^l comes from quadrature instead of alternating sums."""
    rho = 1 / (2 * noise**2)
    orders = np.arange(2, top + 1)
    plain = (orders - 1) * orders * rho
    if rate == 1:
        return plain
    second = min(math.log(4) + _log_expm1(2 * rho), math.log(2) + 2 * rho)
    powers = orders[1:]
    later = math.log(2) + powers * (powers - 1) * rho  # Theorem 9
    if noise >= LEAST_RESOLVED:  # Theorem 27, which is closer where noise hides anything
        pair, evens = GaussianPair(noise, 1.0), np.arange(2, top + 2, 2)
        x, weights = panels(pair, evens[-1])
        ratio = np.log(np.abs(np.expm1(np.minimum(pair.loss(x), 700.0))))
        log_moments = np.full(top + 2, -np.inf)
        log_moments[evens] = logsumexp(evens[:, None] * ratio + pair.log_lower_density(x), axis=1, b=weights)
        between = (log_moments[2 * (powers // 2)] + log_moments[2 * ((powers + 1) // 2)]) / 2
        later = np.minimum(later, math.log(4) + between)
    terms = np.append(second, later) + orders * math.log(rate)
    summed = logsumexp(_log_binomials(top) + terms, axis=1)
    moments: np.ndarray = np.minimum(np.logaddexp(0.0, summed), plain)
    return moments


@functools.cache
def _log_binomials(top: int) -> np.ndarray:
    """Logarithm of a choose j for a and j from 2 to `top`; -inf where j > a."""
    a, j = np.arange(2, top + 1)[:, None], np.arange(2, top + 1)
    inside = np.where(j <= a, j, 0)
    return np.where(j <= a, gammaln(a + 1) - gammaln(inside + 1) - gammaln(a - inside + 1), -np.inf)


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x))
