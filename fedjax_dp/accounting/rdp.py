"""Renyi differential privacy: divergences of the dominating pairs by quadrature, at real orders.

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

from fedjax_dp import errors
from fedjax_dp.accounting.events import (
    Adjacency,
    BoundedRange,
    Event,
    GaussianSteps,
    NotCoveredError,
    Release,
    SkellamSums,
    WithoutReplacement,
)
from fedjax_dp.accounting.pairs import Pair, dominating
from fedjax_dp.accounting.skellam import skellam_divergence

NUM_ORDERS = 450  # 3% apart: alone this costs up to 2% of epsilon, where rare sampling makes the best order a sharp one
FINER = 40  # orders between the neighbours of the best: 0.15% apart, and 0.008% the second time
LEAST_RESOLVED = 0.2  # noise, in sensitivities, below which quadrature would need too many nodes to be worth it
NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


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


def _highest_order(step: Release) -> float:
    """Orders above this one never suit any delta above 1e-12."""
    noise = step.relative_noise
    if isinstance(step, GaussianSteps):
        noise = min(noise, dominating(step)[0].pairs[0].noise)
    return 8 + 14 * noise + min(4 * noise**2 * math.log(1 / step.sampling.rate), 1e4)


def price(event: Event, at: np.ndarray | None = None) -> Callable[[Release], RenyiCurve]:
    """The curve of one release of a step, at orders dense near 1 and up to beyond the best of the noisiest step."""
    highest = max(_highest_order(step) for step, _ in event.leaves())
    orders = 1 + np.geomspace(1e-3, highest - 1, NUM_ORDERS) if at is None else at

    @functools.cache
    def of(step: Release) -> RenyiCurve:
        useful = orders <= _highest_order(step) * (1 + 1e-9)
        values = np.full(orders.size, np.inf)
        values[useful] = renyi_divergence(step, orders[useful])
        if isinstance(step, SkellamSums | BoundedRange):
            return RenyiCurve(orders, values)
        return RenyiCurve(orders, values, dominating(step)[0].lost)

    return of


def best_epsilon(curve_at: Callable[[np.ndarray | None], RenyiCurve], delta: float) -> float:
    """Epsilon at the best order: of the grid (None), then of finer orders around it."""
    curve = curve_at(None)
    found = curve.epsilon(delta)
    for _ in range(2 if 0 < found < math.inf else 0):
        curve = curve_at(curve.around(delta))
        found = min(found, curve.epsilon(delta))
    return found


def renyi_divergence(step: Release, orders: np.ndarray) -> np.ndarray:
    """Renyi divergence bound of one release of `step`, per order, in nats.

    Shapes:    orders `(A,)`, real, above 1; returns `(A,)`.
    Adjacency: the step's. Limits: rate 1 -> order / (2 noise^2), the noise in sensitivities.
    Errors:    of the quadrature, 1e-8 relative where the divergence is above 1e-16.
    Source:    `skellam_divergence` for integer noise, else the dominating pairs; for Poisson and add-remove this is
               Mironov, Talwar, Zhang 2019, arXiv:1908.10530, whose Theorem 5 says that the direction taken here is the
               worse one.
    """
    orders = np.asarray(orders, float)
    if not np.all(orders > 1):
        raise errors.refuse("Renyi orders", orders.min(), "above 1")
    errors.require_positive("noise_multiplier", step.noise_multiplier)
    if isinstance(step, SkellamSums):
        return skellam_divergence(step, orders)
    if isinstance(step, BoundedRange):
        return orders / (2 * step.relative_noise**2)
    worst = dominating(step)[0]
    if len(worst.pairs) == 1:
        return _divergences(worst.pairs[0], orders)
    # a public draw averages exp((a - 1) D); for pairs that are hardly ever drawn a quick bound will do
    bounds = [_convex_bound if weight < 1e-6 else _divergences for weight in worst.weights]
    parts = np.array([(orders - 1) * bound(pair, orders) for bound, pair in zip(bounds, worst.pairs, strict=True)])
    mixed: np.ndarray = logsumexp(parts, axis=0, b=np.array(worst.weights)[:, None]) / (orders - 1)
    return mixed


def _divergences(pair: Pair, orders: np.ndarray) -> np.ndarray:
    """Of the pair's first law from its second."""
    if pair.up == 1 and pair.down == 0:
        return orders / (2 * pair.noise**2)
    if pair.noise < LEAST_RESOLVED:
        return _convex_bound(pair, orders)
    x, weights = _panels(pair, orders.max())
    loss, log_density = pair.loss(x), pair.log_lower_density(x)
    a = orders[:, None]
    grown = a * loss
    logs = log_density + (np.logaddexp(grown, (1 - a) * loss) if pair.symmetrised else grown)
    log_moments = logsumexp(logs, axis=1, b=weights)
    # E[r^a] - 1 as an integral of terms that are never negative, so that tiny divergences keep their digits
    tame = np.where(grown < 30.0, loss, 0.0)
    if pair.symmetrised:
        terms = np.expm1((a - 1) * tame) * (np.exp(tame) - np.exp((1 - a) * tame))
        log_moments = np.logaddexp(log_moments, 0.0)  # the losses that are not the pair's own add less than one
    else:
        terms = np.expm1(a * tame) - a * np.expm1(tame)
    excess = np.where(grown < 30.0, np.exp(log_density) * terms, np.exp(np.minimum(logs, 700.0))) @ weights
    moderate = log_moments < math.log(50)
    divergences: np.ndarray = np.where(
        moderate, np.log1p(np.maximum(np.where(moderate, excess, 0.0), 0.0)), log_moments
    ) / (orders - 1)
    return divergences


def _convex_bound(pair: Pair, orders: np.ndarray) -> np.ndarray:
    """E[r^a] - 1 <= q (E[unsampled r^a] - 1), by joint convexity; close where the unsampled divergence is huge.

    It holds for the symmetrised pair, too: with r >= 1 there, (r^(a-1) - 1)(r - r^(1-a)) <= r^a - r.
    """
    shift = 2.0 if pair.down else 1.0
    log_moments = (orders - 1) * orders * (shift / pair.noise) ** 2 / 2
    bound: np.ndarray = np.logaddexp(0.0, math.log(max(pair.up, pair.down)) + log_moments) / (orders - 1)
    return bound


def _panels(pair: Pair, order: float) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights that cover where either law, or its tilt by orders up to `order`, has mass."""
    width = min(3 * pair.noise, 4 * pair.noise**2)
    low, high = -1 - 10 * pair.noise, (2 * order if pair.down else order) + 10 * pair.noise
    if pair.symmetrised:
        low = 0.5  # where the loss is zero
    edges = np.linspace(low, high, math.ceil((high - low) / width) + 1)
    half = np.diff(edges)[:, None] / 2
    return ((edges[:-1, None] + half) + half * NODES).ravel(), (half * WEIGHTS).ravel()


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
        pair, evens = Pair(noise, 1.0), np.arange(2, top + 2, 2)
        x, weights = _panels(pair, evens[-1])
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
