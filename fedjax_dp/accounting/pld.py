"""Privacy loss distributions of sampled Gaussian steps: the rigorous accountant.

A privacy loss distribution is kept as probabilities on a grid of losses plus a mass at infinity. Each interval of the
exact loss is split over its two ends so that its probability under both neighbours is kept ("connect the dots",
Doroshenko et al. 2022, arXiv:2207.04380, Algorithm 1), which can only raise the hockey-stick curve. Composition is one
power in Fourier space; what the window leaves out goes to infinity, bounded by Chernoff's inequality.
"""

import dataclasses
import functools
import math

import numpy as np
from scipy import fft
from scipy.special import ndtr

from fedjax_dp import errors
from fedjax_dp.accounting.events import Adjacency, GaussianSteps, Poisson, WithoutReplacement
from fedjax_dp.accounting.gaussian import gaussian_epsilon

TAIL_MASS = 1e-16  # probability moved to infinity loss, per side and truncation
FINEST_GRID = 2**22  # points; beyond it the grid is coarsened, which is still an upper bound
POINTS_PER_DEVIATION = 20  # grid points per standard deviation of one step's loss; costs at most 3e-4 of epsilon


@dataclasses.dataclass(frozen=True)
class LossDistribution:
    """Probabilities `masses[k]` of loss `(lowest + k) * spacing`, and `infinite` at infinity."""

    spacing: float
    lowest: int
    masses: np.ndarray
    infinite: float

    @property
    def losses(self) -> np.ndarray:
        return (self.lowest + np.arange(self.masses.size)) * self.spacing

    def compose(self, count: int) -> "LossDistribution":
        """`count` independent copies added up."""
        if count == 1:
            return self
        low, high = self._window(count)
        size = fft.next_fast_len(max(high - low + 1, self.masses.size), real=True)
        total = fft.irfft(fft.rfft(self.masses, size) ** count, size)
        first = self.lowest * count  # index 0 of `total`, modulo `size`
        total = np.roll(total, (first - low) % size)[: high - low + 1]
        infinite = -math.expm1(count * math.log1p(-self.infinite)) + 2 * TAIL_MASS
        return LossDistribution(self.spacing, low, np.maximum(total, 0.0), infinite)

    def _window(self, count: int) -> tuple[int, int]:
        """Grid indices outside which `count` copies have at most TAIL_MASS on either side (Chernoff)."""
        steps = self.lowest + np.arange(self.masses.size)
        mean = float(steps @ self.masses)
        deviation = math.sqrt(max(float((steps - mean) ** 2 @ self.masses), 1e-12))
        low, high = steps[0] * count, steps[-1] * count
        with np.errstate(divide="ignore"):
            log_masses = np.log(self.masses)
        # from the tilt that suits a few rare jumps of the largest size to beyond the one that suits a normal law
        widest, normal = -math.log(TAIL_MASS) / (2 * max(high, -low)), 8.5 / (deviation * math.sqrt(count))
        for tilt in np.geomspace(widest, max(4 * normal, 2 * widest), 14):
            for sign in (1.0, -1.0):
                exponents = sign * tilt * steps + log_masses
                shift = exponents.max()
                log_moment = shift + math.log(float(np.exp(exponents - shift).sum()))
                reach = (count * log_moment - math.log(TAIL_MASS)) / tilt
                if sign > 0:
                    high = min(high, math.ceil(reach))
                else:
                    low = max(low, math.floor(-reach))
        return int(low), int(high)

    def delta(self, epsilon: float) -> float:
        """Hockey-stick divergence at `epsilon`: infinite + sum over losses above epsilon of p (1 - e^(eps - loss))."""
        above = self.losses > epsilon
        return float(self.infinite - self.masses[above] @ np.expm1(epsilon - self.losses[above]))

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon >= 0 whose delta is at most `delta`; infinity if the mass at infinity exceeds it."""
        if self.infinite > delta:
            return math.inf
        # delta at e in (l_(k-1), l_k] is inf + M_k - e^e D_k with M_k the mass, and D_k the mass times e^-l, from k on.
        # Losses below 0 cannot matter; beyond 700, where e^-l underflows, D_k is too small, which only raises delta.
        first = max(-self.lowest, 0)
        losses, masses = np.minimum(self.losses[first:], 700.0), self.masses[first:]
        if masses.size == 0:
            return 0.0
        mass = np.cumsum(masses[::-1])[::-1]
        discounted = np.cumsum((masses * np.exp(-losses))[::-1])[::-1]
        curve = self.infinite + np.append(mass[1:], 0.0) - np.exp(losses) * np.append(discounted[1:], 0.0)
        k = int(np.argmax(curve <= delta))  # the first grid loss that is good enough; the answer lies just below it
        missing = self.infinite + mass[k] - delta
        if k == 0 or missing <= 0 or discounted[k] <= 0:
            return float(losses[k])
        return min(math.log(missing / discounted[k]), float(losses[k]))


def _edges(rate: float, noise: float, losses: np.ndarray) -> np.ndarray:
    """Where log(1 - q + q exp((2x - 1) / (2 s^2))) equals each loss; -inf below log(1 - q)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = (np.expm1(losses) + rate) / rate
        return np.where(ratio > 0, noise**2 * np.log(np.maximum(ratio, 1e-300)) + 0.5, -np.inf)


def _interval_mass(edges: np.ndarray, mean: float, noise: float) -> np.ndarray:
    """Normal probability between neighbouring edges, from whichever tail loses fewer digits."""
    z = (edges - mean) / noise
    left, right = np.diff(ndtr(z)), -np.diff(ndtr(-z))
    return np.where(z[:-1] > 0, right, left)


def _split(losses: np.ndarray, upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """Put each interval's mass on its two ends so that its mass under both neighbours is kept."""
    discount = np.exp(-losses)
    to_high = (upper * discount[:-1] - lower) / (discount[:-1] - discount[1:])
    to_high = np.clip(to_high, 0.0, upper)
    masses = np.zeros(losses.size)
    masses[:-1] += upper - to_high
    masses[1:] += to_high
    return masses


def _grid(rate: float, noise: float, count: int) -> tuple[float, int]:
    """Spacing, and number of grid steps from 0 to where one step's loss has tail TAIL_MASS / count."""
    reach = noise * 8.3 + 1.0 + noise * math.sqrt(2 * math.log(max(count, 1)))
    highest = math.log1p(rate * math.expm1(min((2 * reach - 1) / (2 * noise**2), 700.0)))
    deviation = min(rate * math.sqrt(math.expm1(min(1 / noise**2, 700.0))), highest)
    spacing = min(deviation / POINTS_PER_DEVIATION, 1e-2)
    total = 20 * deviation * math.sqrt(count) + 2 * highest
    spacing = max(spacing, total / FINEST_GRID, highest / 2**18)
    return spacing, math.ceil(highest / spacing)


def symmetric_loss(rate: float, noise: float, count: int) -> LossDistribution:
    """Loss of one fixed-size without-replacement Gaussian step under replace-one, an upper bound for composition.

    For losses above zero it is the loss of (1-q) Q + q P against Q, with P and Q normal laws one sensitivity apart
    (Balle, Barthe, Gaboardi 2018, arXiv:1807.01647, Theorem 10); replace-one is symmetric, so the mass at -l is
    e^-l times the mass at l. `noise` is relative to the replace-one sensitivity.
    """
    spacing, top = _grid(rate, noise, count)
    losses = np.arange(top + 1) * spacing
    edges = _edges(rate, noise, losses)
    under_q = _interval_mass(edges, 0.0, noise)
    mixed = (1 - rate) * under_q + rate * _interval_mass(edges, 1.0, noise)
    positive = _split(losses, mixed, under_q)[1:]
    tail = (1 - rate) * ndtr(-edges[-1] / noise) + rate * ndtr((1 - edges[-1]) / noise)
    negative = positive * np.exp(-losses[1:])
    middle = 1.0 - tail - positive.sum() - negative.sum()
    masses = np.concatenate([negative[::-1], [max(middle, 0.0)], positive])
    return LossDistribution(spacing, -top, masses, float(tail))


def directed_loss(rate: float, noise: float, count: int, *, remove: bool) -> LossDistribution:
    """Loss of the pair ((1-q) Q + q P, Q) if `remove`, else (Q, (1-q) Q + q P).

    Under Poisson sampling and add-remove adjacency the larger of the two composed curves is exact (Zhu, Dong, Wang
    2022, arXiv:2106.08567, Theorem 11). For fixed-size sampling and replace-one it is attained by a real pair of
    datasets, hence a lower bound.
    """
    spacing, top = _grid(rate, noise, count)
    floor = -math.log1p(-rate) if rate < 1 else math.inf
    bottom = top if floor > top * spacing else math.ceil(floor / spacing)
    losses = np.arange(-bottom, top + 1) * spacing
    edges = _edges(rate, noise, losses)
    under_q = _interval_mass(edges, 0.0, noise)
    mixed = (1 - rate) * under_q + rate * _interval_mass(edges, 1.0, noise)
    below_q, above_q = float(ndtr(edges[0] / noise)), float(ndtr(-edges[-1] / noise))
    below_mixed = (1 - rate) * below_q + rate * float(ndtr((edges[0] - 1) / noise))
    above_mixed = (1 - rate) * above_q + rate * float(ndtr((1 - edges[-1]) / noise))
    # Mass beyond the grid: losses too high go to infinity, losses too low are raised to the lowest point.
    if remove:
        masses = _split(losses, mixed, under_q)
        masses[0] += below_mixed
        return LossDistribution(spacing, -bottom, masses, above_mixed)
    masses = _split(-losses[::-1], under_q[::-1], mixed[::-1])
    masses[0] += above_q
    return LossDistribution(spacing, -top, masses, below_q)


@functools.lru_cache(maxsize=4096)
def pld_epsilon(steps: GaussianSteps, delta: float) -> float:
    """Rigorous upper bound on epsilon of `steps` at `delta`.

    Adjacency: replace-one for WithoutReplacement, add-remove for Poisson; other pairs raise.
    Limits:    no steps cost 0; no noise costs infinity; a full batch is the exact Gaussian mechanism.
    """
    errors.require_in_unit_interval("delta", delta)
    if steps.count == 0:
        return 0.0
    if steps.reveals_everything:
        return math.inf
    rate, noise, count = steps.sampling.rate, steps.relative_noise, steps.count
    match steps.sampling, steps.adjacency:
        case (WithoutReplacement(), Adjacency.REPLACE_ONE) | (Poisson(), Adjacency.ADD_REMOVE) if rate == 1:
            return gaussian_epsilon(delta, noise, count)
        case WithoutReplacement(), Adjacency.REPLACE_ONE:
            return symmetric_loss(rate, noise, count).compose(count).epsilon(delta)
        case Poisson(), Adjacency.ADD_REMOVE:
            return _directed_epsilon(rate, noise, count, delta)
    raise errors.refuse(
        "the accounted combination", f"{steps.sampling} under {steps.adjacency.value}",
        "fixed-size batches under replace-one, or Poisson batches under add-remove",
    )  # fmt: skip


def attained_epsilon(steps: GaussianSteps, delta: float) -> float:
    """Epsilon that a real pair of replace-one neighbours attains: no valid accountant can report less.

    The pair: every other record has gradient zero and the exchanged record's gradients differ by 2 C. Exact to the
    discretisation of the grid (about 1e-3 relative).
    """
    if not isinstance(steps.sampling, WithoutReplacement) or steps.adjacency is not Adjacency.REPLACE_ONE:
        raise errors.refuse("the lower bound", str(steps.sampling), "asked for fixed-size batches under replace-one")
    if steps.count == 0 or steps.reveals_everything or steps.sampling.rate == 1:
        return pld_epsilon(steps, delta)
    return _directed_epsilon(steps.sampling.rate, steps.relative_noise, steps.count, delta)


def _directed_epsilon(rate: float, noise: float, count: int, delta: float) -> float:
    both = (directed_loss(rate, noise, count, remove=remove) for remove in (True, False))
    return max(loss.compose(count).epsilon(delta) for loss in both)
