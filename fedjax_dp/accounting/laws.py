"""Pairs of output laws under two neighbours: their privacy loss, its distribution and Renyi divergences."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri

from fedjax_dp.accounting.neighbours import NotCoveredError

TAIL_MASS = 1e-16  # probability moved to infinity loss, per side and truncation
LEAST_RESOLVED = 0.2  # noise, in sensitivities, below which quadrature would need too many nodes to be worth it
LARGE_LOSS = 40.0  # beyond which e^l - w is e^l in float64
NEWTON = 12  # steps, of which seven were enough for 16 digits wherever it was tried
BLOCK = 2**22  # numbers that are held at once
CELLS = 10_000  # that a bounded loss is cut into for its divergences
NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


class Cells(NamedTuple):
    """Probabilities of intervals of losses under both laws, and of losses `above` and `below` them under the first."""

    upper: np.ndarray
    lower: np.ndarray
    above: float
    below: float


class LawPair(Protocol):
    """Two laws, described by their privacy loss: the logarithm of the ratio of their densities.

    If `symmetrised`, only losses above zero are used as they are: the mass at -l is e^-l times the mass at l.
    """

    @property
    def symmetrised(self) -> bool: ...

    @property
    def deviation(self) -> float:
        """Scale of the loss of one release, which a grid has to resolve."""
        ...

    def reach(self, count: int) -> tuple[float, float]:
        """Lowest and highest loss of one release; in `count` releases losses outside have mass about TAIL_MASS."""
        ...

    def cells(self, losses: np.ndarray) -> Cells:
        """The k - 1 intervals between increasing losses `(k,)`."""
        ...

    def renyi(self, orders: np.ndarray, quick: bool = False) -> np.ndarray:
        """Divergence of the first law from the second, or an upper bound, in nats; with `quick` a rough bound."""
        ...


@dataclasses.dataclass(frozen=True)
class Dominating:
    """Dominates one release in one direction: a public draw among pairs, and the probability of an infinite loss."""

    weights: tuple[float, ...]
    pairs: tuple[LawPair, ...]
    infinite_mass: float = 0.0


@dataclasses.dataclass(frozen=True)
class GaussianPair:
    """(1-a) N(0, s^2) + a N(1, s^2) against (1-b) N(0, s^2) + b N(-1, s^2), with a = `up`, b = `down`, s = `noise`.

    The loss, the logarithm of the ratio of densities, increases along the line. `symmetrised`: as of `LawPair`.
    """

    noise: float
    up: float
    down: float = 0.0
    symmetrised: bool = False

    def loss(self, x: np.ndarray) -> np.ndarray:
        """Logarithm of the ratio of densities at `x`."""
        s2 = 2 * self.noise**2
        with np.errstate(divide="ignore"):
            numerator = np.logaddexp(np.log1p(-self.up), np.log(self.up) + (2 * x - 1) / s2)
            denominator = np.logaddexp(np.log1p(-self.down), np.log(self.down) + (-2 * x - 1) / s2)
        return numerator - denominator

    def inverse_loss(self, losses: np.ndarray) -> np.ndarray:
        """The `x` at which the loss takes each value; -inf (inf) below (above) all losses.

        With u = exp(x / s^2) and c = exp(-1 / (2 s^2)) this is the positive root of a c u^2 - m u - e^l b c = 0,
        taken in logarithms because c underflows.
        """
        a, b, s2 = self.up, self.down, self.noise**2
        with np.errstate(over="ignore"):  # beyond all losses
            near = np.expm1(losses) * (1 - b) + a - b  # keeps its digits where the loss is small
            m = np.where(losses < -1, np.exp(losses) * (1 - b) - (1 - a), near)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_m = np.log(np.abs(m))
            log_root = np.logaddexp(2 * log_m, math.log(4) + np.log(a) + np.log(b) + losses - 1 / s2) / 2
            log_sum = np.logaddexp(log_m, log_root)  # log(|m| + root)
            grown = log_sum - np.log(2 * a) + 1 / (2 * s2)
            shrunk = np.log(2 * b) + losses - log_sum - 1 / (2 * s2)
        return s2 * np.where(m >= 0, grown, shrunk)

    def upper_mass(self, edges: np.ndarray) -> np.ndarray:
        """Probability of each interval between edges under the first law."""
        return (1 - self.up) * normal_masses(edges, 0.0, self.noise) + self.up * normal_masses(edges, 1.0, self.noise)

    def lower_mass(self, edges: np.ndarray) -> np.ndarray:
        """Probability of each interval between edges under the second law."""
        still, moved = (normal_masses(edges, mean, self.noise) for mean in (0.0, -1.0))
        return (1 - self.down) * still + self.down * moved

    def log_lower_density(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            center = np.log1p(-self.down) - (x / self.noise) ** 2 / 2
            side = np.log(self.down) - ((x + 1) / self.noise) ** 2 / 2
        return np.logaddexp(center, side) - math.log(self.noise * math.sqrt(2 * math.pi))

    def reach(self, count: int) -> tuple[float, float]:
        width = self.noise * (8.3 + math.sqrt(2 * math.log(max(count, 1))))
        low, high = self.loss(np.array([-1.0 - width, 1.0 + width])).tolist()
        return max(low, -700.0), min(high, 700.0)  # beyond 700 the exponentials overflow; losses there are rounded up

    @property
    def deviation(self) -> float:
        """The standard deviation of the ratio of densities, no more than the largest loss."""
        spread = max(self.up, self.down) * math.sqrt(math.expm1(min(1 / self.noise**2, 700.0)))
        low, high = self.reach(1)
        return min(spread, max(-low, high))

    def cells(self, losses: np.ndarray) -> Cells:
        edges = self.inverse_loss(losses)
        high, low = edges[-1] / self.noise, edges[0] / self.noise
        shift = 1 / self.noise
        above = (1 - self.up) * ndtr(-high) + self.up * ndtr(shift - high)
        below = (1 - self.up) * ndtr(low) + self.up * ndtr(low - shift)
        return Cells(self.upper_mass(edges), self.lower_mass(edges), float(above), float(below))

    def renyi(self, orders: np.ndarray, quick: bool = False) -> np.ndarray:
        if quick:
            return convex_bound(self, orders)
        if self.up == 1 and self.down == 0:
            return orders / (2 * self.noise**2)
        return convex_bound(self, orders) if self.noise < LEAST_RESOLVED else _quadrature(self, orders)


@dataclasses.dataclass(frozen=True)
class ShiftMixture:
    """sum_i w_i N(j_i, s^2) against N(0, s^2), with j = `shifts` >= 0, w = `weights`, s = `noise`.

    If `down`, N(0, s^2) against sum_i w_i N(-j_i, s^2), so that the loss increases along the line in both cases.
    Negligible weights are left out, which can only raise losses; their sum counts as an infinite loss.
    """

    noise: float
    shifts: tuple[int, ...]
    weights: tuple[float, ...]
    down: bool = False

    symmetrised = False

    @functools.cached_property
    def _law(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.shifts, float), np.log(np.array(self.weights))

    def loss(self, x: np.ndarray) -> np.ndarray:
        shifts, logs = self._law
        sign = -1.0 if self.down else 1.0
        ratios = logs + (2 * shifts * (sign * x)[..., None] - shifts**2) / (2 * self.noise**2)
        return sign * logsumexp(ratios, axis=-1)

    def inverse_loss(self, losses: np.ndarray) -> np.ndarray:
        """The `x` at which the loss takes each value; -inf (inf) below (above) all losses.

        With g(x) the logarithm of the part of the ratio whose shifts are above zero, convex and increasing, this is
        g(x) = log(e^l - w_0), by Newton's method from the right, where it never leaves that side.
        """
        sign = -1.0 if self.down else 1.0
        shifts, logs = self._law
        moved, weights = shifts[shifts > 0], logs[shifts > 0]
        still = self.weights[0] if self.shifts[0] == 0 else 0.0
        apart = float(np.exp(weights).sum()) if still else 1.0  # keeps its digits where the loss is small
        with np.errstate(divide="ignore", invalid="ignore"):
            wanted = sign * losses
            left = np.where(wanted < -1, np.exp(np.minimum(wanted, 0.0)) - still, np.expm1(wanted) + apart)
            targets = np.where(wanted > LARGE_LOSS, wanted, np.log(np.maximum(left, 0.0)))
        places = np.full(losses.shape, -np.inf)
        known = np.isfinite(targets)
        blocks = np.array_split(targets[known], max(targets.size * moved.size // BLOCK, 1))
        places[known] = np.concatenate([self._newton(block, moved, weights) for block in blocks])
        return sign * places

    def _newton(self, target: np.ndarray, moved: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Where the logarithm of sum_i exp(weights_i) N(moved_i) / N(0) is `target`."""
        s2 = self.noise**2
        x: np.ndarray = np.min((target[:, None] - weights) * s2 / moved + moved / 2, axis=1)
        for _ in range(NEWTON):
            terms = weights + (2 * moved * x[:, None] - moved**2) / (2 * s2)
            value = logsumexp(terms, axis=1)
            x = x - (value - target) * s2 / (np.exp(terms - value[:, None]) @ moved)
        return x

    def upper_mass(self, edges: np.ndarray) -> np.ndarray:
        return normal_masses(edges, 0.0, self.noise) if self.down else self._mixture_masses(edges, 1.0)

    def lower_mass(self, edges: np.ndarray) -> np.ndarray:
        return self._mixture_masses(edges, -1.0) if self.down else normal_masses(edges, 0.0, self.noise)

    def _mixture_masses(self, edges: np.ndarray, sign: float) -> np.ndarray:
        total = np.zeros(edges.size - 1)
        for shift, weight in zip(self.shifts, self.weights, strict=True):
            total += weight * normal_masses(edges, sign * shift, self.noise)
        return total

    def reach(self, count: int) -> tuple[float, float]:
        rare = TAIL_MASS / (max(count, 1) * len(self.shifts))
        shifts, logs = self._law
        far = -ndtri(np.minimum(rare / np.exp(logs), 0.5)) * self.noise
        ends = (-far.max(), far.max()) if self.down else (np.min(shifts - far), np.max(shifts + far))
        low, high = self.loss(np.array(ends)).tolist()
        return max(low, -700.0), min(high, 700.0)

    @property
    def deviation(self) -> float:
        """The standard deviation of the ratio of densities, no more than the largest loss."""
        shifts, logs = self._law
        powers = logs[:, None] + logs + np.minimum(np.multiply.outer(shifts, shifts) / self.noise**2, 1400.0)
        spread = math.sqrt(max(math.expm1(min(float(logsumexp(powers)), 700.0)), 1e-300))
        low, high = self.reach(1)
        return min(spread, max(-low, high))

    def cells(self, losses: np.ndarray) -> Cells:
        edges = self.inverse_loss(losses)
        ends = np.array([-np.inf, edges[0], edges[-1], np.inf])
        below, _, above = self.upper_mass(ends).tolist()
        return Cells(self.upper_mass(edges), self.lower_mass(edges), above, below)

    def renyi(self, orders: np.ndarray, quick: bool = False) -> np.ndarray:
        raise NotCoveredError(
            "several records of one unit under Poisson sampling are covered by their loss distribution alone; use "
            "accountant pld"
        )


@dataclasses.dataclass(frozen=True)
class TwoLosses:
    """The pair that dominates every (epsilon, 0)-private mechanism: its loss is epsilon or, less often, -epsilon.

    With an infinite loss of probability delta in addition, it dominates every (epsilon, delta)-private mechanism, in
    both orders of the neighbours. Source: Kairouz, Oh, Viswanath 2015, arXiv:1311.0776 (randomised response).
    """

    epsilon: float

    symmetrised = False

    @property
    def _chances(self) -> tuple[float, float]:
        """Of the losses epsilon and -epsilon under the first law; under the second it is the other way round."""
        return 1 / (1 + math.exp(-self.epsilon)), 1 / (1 + math.exp(self.epsilon))

    @property
    def deviation(self) -> float:
        return self.epsilon / 8  # two values need no grid, but must not coarsen that of many small losses beside them

    def reach(self, count: int) -> tuple[float, float]:
        most = self.epsilon * (1 + 1e-9)  # so that rounding leaves no loss beyond the grid
        return -most, most

    def cells(self, losses: np.ndarray) -> Cells:
        return DiscretePair(np.array([-self.epsilon, self.epsilon]), np.array(self._chances[::-1])).cells(losses)

    def renyi(self, orders: np.ndarray, quick: bool = False) -> np.ndarray:
        with np.errstate(divide="ignore"):
            likely, rare = np.log(self._chances)
        powers = (orders - 1) * self.epsilon
        return np.logaddexp(likely + powers, rare - powers) / (orders - 1)


@dataclasses.dataclass(frozen=True, eq=False)
class DiscretePair:
    """A pair given by increasing losses and their probabilities under the first law; the rest is an infinite loss."""

    losses: np.ndarray
    masses: np.ndarray

    symmetrised = False

    @property
    def deviation(self) -> float:
        """The standard deviation of the ratio of densities, no more than the largest loss."""
        spread = math.sqrt(float((self.masses * np.exp(-self.losses)) @ np.expm1(np.minimum(self.losses, 300.0)) ** 2))
        return min(max(spread, 1e-150), float(np.abs(self.losses[[0, -1]]).max()))

    def reach(self, count: int) -> tuple[float, float]:
        low, high = self.losses[[0, -1]].tolist()
        return max(low, -700.0), min(high, 700.0)

    def cells(self, losses: np.ndarray) -> Cells:
        at = np.searchsorted(losses, self.losses)  # cells that hold them, the first below all losses, the last above
        upper, lower = (
            np.bincount(at, masses, losses.size + 1) for masses in (self.masses, self.masses * np.exp(-self.losses))
        )
        return Cells(upper[1:-1], lower[1:-1], float(upper[-1]), float(upper[0]))

    def renyi(self, orders: np.ndarray, quick: bool = False) -> np.ndarray:
        raise NotCoveredError("a list of losses is covered by its distribution alone; use accountant pld")


def normal_masses(edges: np.ndarray, mean: float, noise: float) -> np.ndarray:
    """Normal probability between neighbouring edges, from whichever tail loses fewer digits."""
    z = (edges - mean) / noise
    left, right = np.diff(ndtr(z)), -np.diff(ndtr(-z))
    return np.where(z[:-1] > 0, right, left)


def _quadrature(pair: GaussianPair, orders: np.ndarray) -> np.ndarray:
    """Of the pair's first law from its second."""
    x, weights = panels(pair, orders.max())
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
    return np.where(moderate, np.log1p(np.maximum(np.where(moderate, excess, 0.0), 0.0)), log_moments) / (orders - 1)


def convex_bound(pair: GaussianPair, orders: np.ndarray) -> np.ndarray:
    """E[r^a] - 1 <= q (E[unsampled r^a] - 1), by joint convexity; tight if the unsampled divergence is huge.

    It holds for the symmetrised pair too: with r >= 1 there, (r^(a-1) - 1)(r - r^(1-a)) <= r^a - r.
    """
    shift = 2.0 if pair.down else 1.0
    log_moments = (orders - 1) * orders * (shift / pair.noise) ** 2 / 2
    return np.logaddexp(0.0, math.log(max(pair.up, pair.down)) + log_moments) / (orders - 1)


def panels(pair: GaussianPair, order: float) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on the range where either law, or its tilt by an order <= `order`, has mass."""
    width = min(3 * pair.noise, 4 * pair.noise**2)
    low, high = -1 - 10 * pair.noise, (2 * order if pair.down else order) + 10 * pair.noise
    if pair.symmetrised:
        low = 0.5  # where the loss is zero
    edges = np.linspace(low, high, math.ceil((high - low) / width) + 1)
    half = np.diff(edges)[:, None] / 2
    return ((edges[:-1, None] + half) + half * NODES).ravel(), (half * WEIGHTS).ravel()


Distribution = Callable[[np.ndarray], np.ndarray]  # probability of a loss up to each number, which may be infinite


@dataclasses.dataclass(frozen=True)
class BoundedLosses:
    """Two laws with a loss in [`lowest`, `highest`], given by its distribution functions under both laws.

    For user-defined mechanisms of which the loss distribution is known.

    >>> def laplace(noise):  # Lap(1, noise) against Lap(0, noise): the loss is (|x| - |x - 1|) / noise
    ...     def below(loss, center):
    ...         x = (1 + noise * np.asarray(loss)) / 2
    ...         up_to = np.where(x < center, np.exp((x - center) / noise) / 2, 1 - np.exp((center - x) / noise) / 2)
    ...         return np.where(x >= 1, 1.0, np.where(x < 0, 0.0, up_to))
    ...     return BoundedLosses(lambda loss: below(loss, 1), lambda loss: below(loss, 0), -1 / noise, 1 / noise)
    >>> [round(float(d), 3) for d in laplace(2.0).renyi(np.array([2.0, 100.0]))]
    [0.2, 0.493]
    """

    upper: Distribution
    lower: Distribution
    lowest: float
    highest: float
    symmetrised: bool = False

    def sampled(self, rate: float) -> "BoundedLosses":
        """The mixture of the first law (with probability `rate`) and the second, against the second."""

        def unmix(losses: np.ndarray) -> np.ndarray:  # the loss of the first law whose mixture has this one
            with np.errstate(over="ignore", divide="ignore"):
                whole: np.ndarray = np.log1p(np.maximum(np.expm1(losses) / rate, -1.0))
            return whole

        low, high = (math.log1p(rate * math.expm1(end)) for end in (self.lowest, self.highest))
        return BoundedLosses(
            lambda losses: rate * self._up_to(unmix(losses)) + (1 - rate) * self._up_to(unmix(losses), self.lower),
            lambda losses: self._up_to(unmix(losses), self.lower),
            low,
            high,
        )

    def reversed(self) -> "BoundedLosses":
        """The second law against the first."""
        return BoundedLosses(
            lambda losses: 1 - self._up_to(-losses, self.lower),
            lambda losses: 1 - self._up_to(-losses),
            -self.highest,
            -self.lowest,
        )

    def reach(self, count: int) -> tuple[float, float]:
        return self.lowest, self.highest

    @property
    def deviation(self) -> float:
        edges = self._edges()
        masses, losses = np.diff(self._up_to(edges)), (edges[1:] + edges[:-1]) / 2
        mean = float(masses @ losses)
        return max(math.sqrt(float(masses @ (losses - mean) ** 2)), 1e-12)

    def cells(self, losses: np.ndarray) -> Cells:
        upper, lower = self._up_to(losses), self._up_to(losses, self.lower)
        return Cells(np.diff(upper), np.diff(lower), float(1 - upper[-1]), float(upper[0]))

    def renyi(self, orders: np.ndarray, quick: bool = False) -> np.ndarray:
        """Upper bound that counts each cell as its largest loss; error below 1e-4 for orders below 1e3."""
        edges = self._edges()
        if self.symmetrised:
            edges = edges[edges >= 0]
        with np.errstate(divide="ignore"):
            log_masses = np.log(np.diff(self._up_to(edges)))
        powers = (orders[:, None] - 1) * edges[1:]
        logs = logsumexp(log_masses + powers, axis=1)
        if self.symmetrised:  # the same masses at minus the losses, and none elsewhere, each discounted by its loss
            mirrored = log_masses - edges[:-1] - (orders[:, None] - 1) * edges[:-1]
            rest = np.log(max(1 - np.exp(logsumexp(log_masses)) - np.exp(logsumexp(log_masses - edges[1:])), 1e-300))
            logs = np.logaddexp(np.logaddexp(logs, logsumexp(mirrored, axis=1)), rest)
        return np.maximum(logs, 0.0) / (orders - 1)

    def _up_to(self, losses: np.ndarray, law: Distribution | None = None) -> np.ndarray:
        """Distribution of the loss, by default of the first law; rounding takes no mass off the ends."""
        inside = np.where(losses >= self.highest, 1.0, (law or self.upper)(losses))
        return np.where(losses < self.lowest, 0.0, inside)

    def _edges(self) -> np.ndarray:
        edges = np.linspace(self.lowest, self.highest, CELLS + 1)
        edges[0] = np.nextafter(edges[0], -np.inf)  # a loss that is the lowest one with some probability is in a cell
        return edges
