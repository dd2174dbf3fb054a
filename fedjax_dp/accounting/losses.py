"""Privacy loss distributions on a grid.

A distribution has probabilities of finite losses and a mass at infinity. Each interval of the exact loss is split over
its two ends so that its probability under both neighbours is kept ("connect the dots", Doroshenko et al. 2022,
arXiv:2207.04380, Algorithm 1), which can only raise the hockey-stick curve. Composition is a product in Fourier space;
mass outside the window, bounded by Chernoff's inequality, moves to infinity.
"""

import dataclasses
import math

import numpy as np
import scipy
from scipy import fft

from fedjax_dp.accounting.laws import TAIL_MASS, Dominating, LawPair

ROUNDING = 1e-17  # and per copy, for the rounding errors of a power in Fourier space: ten times what was seen
OF_A_SUM = 1e-15  # for those of a product of two: ten times what was seen of the mass above a loss
LARGEST_LOSS = 709  # nats, of which the exponential still is a number


@dataclasses.dataclass(frozen=True)
class LossDistribution:
    """Probabilities `masses[k]` of loss `(lowest + k) * spacing`, and `infinite_mass` at infinity."""

    spacing: float
    lowest: int
    masses: np.ndarray
    infinite_mass: float = 0.0

    @property
    def losses(self) -> np.ndarray:
        return (self.lowest + np.arange(self.masses.size)) * self.spacing

    def times(self, count: int) -> "LossDistribution":
        """`count` independent copies added up."""
        if count == 1:
            return self
        if self.infinite_mass >= 1 or not self.masses.sum() > 1e-100:  # every loss is infinite
            return LossDistribution(self.spacing, 0, np.zeros(1), 1.0)
        if count == 0:
            return LossDistribution(self.spacing, 0, np.ones(1))
        low, high = self._window(count)
        size = fft.next_fast_len(max(high - low + 1, self.masses.size), real=True)
        total = fft.irfft(fft.rfft(self.masses, size) ** count, size)
        first = self.lowest * count  # index 0 of `total`, modulo `size`
        total = np.roll(total, (first - low) % size)[: high - low + 1]
        infinite_mass = -math.expm1(count * math.log1p(-self.infinite_mass)) + 2 * TAIL_MASS + ROUNDING * count
        return LossDistribution(self.spacing, low, np.maximum(total, 0.0), infinite_mass)

    def plus(self, other: "LossDistribution") -> "LossDistribution":
        """The sum of this loss and an independent other one on the same grid."""
        length = self.masses.size + other.masses.size - 1
        size = fft.next_fast_len(length, real=True)
        total = fft.irfft(fft.rfft(self.masses, size) * fft.rfft(other.masses, size), size)[:length]
        infinite_mass = self.infinite_mass + other.infinite_mass - self.infinite_mass * other.infinite_mass + OF_A_SUM
        return LossDistribution(self.spacing, self.lowest + other.lowest, np.maximum(total, 0.0), infinite_mass)

    def worst(self, other: "LossDistribution") -> "LossDistribution":
        """A distribution that dominates both: its delta is at least the larger one at every epsilon; on one grid.

        With h the spacing and D_k the larger delta at loss l_k, p_k = r_k - e^h r_(k-1), where r_k is
        (D_(k+1) - D_k) / (e^h - 1), makes delta a straight line in e^epsilon between grid points: a chord of the larger
        curve, which is convex. To the lowest loss it comes from delta 1 at e^epsilon = 0.
        Source: Zhu, Dong, Wang 2022, arXiv:2106.08567: every such curve is that of a pair of laws, which dominates.
        """
        low = min(self.lowest, other.lowest)
        high = max(one.lowest + one.masses.size for one in (self, other))
        curve = np.maximum(*(one._widen(low, high).curve for one in (self, other)))
        rises = np.append(np.diff(curve), 0.0) / math.expm1(self.spacing)
        masses = rises - math.exp(self.spacing) * np.append(0.0, rises[:-1])
        masses[0] += 1 - curve[0]
        infinite_mass = float(curve[-1]) + ROUNDING * masses.size
        return LossDistribution(self.spacing, low, np.maximum(masses, 0.0), infinite_mass)

    @property
    def curve(self) -> np.ndarray:
        """Delta at each loss: at l_k it is infinite_mass + M_(k+1) - e^-h D_(k+1), see `tails`."""
        mass, discounted = self.tails
        return self.infinite_mass + np.append(mass[1:], 0.0) - math.exp(-self.spacing) * np.append(discounted[1:], 0.0)

    @property
    def tails(self) -> tuple[np.ndarray, np.ndarray]:
        """M_k, the mass from k on, and D_k, the same mass with every loss l discounted by e^(l_k - l).

        The recursion D_k = p_k + e^-h D_(k+1) gives it without overflow.
        """
        backwards = self.masses[::-1]
        discounted = scipy.signal.lfilter([1.0], [1.0, -math.exp(-self.spacing)], backwards)
        return np.cumsum(backwards)[::-1], discounted[::-1]

    def _widen(self, low: int, high: int) -> "LossDistribution":
        """The same on more of the grid."""
        masses = np.zeros(high - low)
        masses[self.lowest - low :][: self.masses.size] = self.masses
        return LossDistribution(self.spacing, low, masses, self.infinite_mass)

    def thinned(self, rate: float) -> "LossDistribution":
        """This loss with probability `rate`, else none; the choice is public."""
        low = min(self.lowest, 0)
        high = max(self.lowest + self.masses.size, 1)
        masses = rate * self._widen(low, high).masses
        masses[-low] += 1 - rate
        return LossDistribution(self.spacing, low, masses, rate * self.infinite_mass)

    def _window(self, count: int) -> tuple[int, int]:
        """Grid indices outside which `count` copies have at most TAIL_MASS on either side (Chernoff)."""
        steps = self.lowest + np.arange(self.masses.size)
        mean = float(steps @ self.masses)
        deviation = math.sqrt(max(float((steps - mean) ** 2 @ self.masses), 1e-12))
        low, high = steps[0] * count, steps[-1] * count
        with np.errstate(divide="ignore"):
            log_masses = np.log(self.masses)
        # from the tilt that suits a few rare jumps of the largest size to beyond the one that suits a normal law
        widest = -math.log(TAIL_MASS) / (2 * max(high, -low, 1))
        normal = 8.5 / (deviation * math.sqrt(count))
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
        """Hockey-stick divergence at `epsilon`: infinite mass + sum over l > epsilon of p (1 - e^(epsilon - l))."""
        above = self.losses > epsilon
        return float(self.infinite_mass - self.masses[above] @ np.expm1(epsilon - self.losses[above]))

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon >= 0 whose delta is at most `delta`; infinity if the mass at infinity exceeds it."""
        if self.infinite_mass > delta:
            return math.inf
        # delta at e in (l_(k-1), l_k] is inf + M_k - e^(e - l_k) D_k, as at the losses themselves (`curve`)
        first = max(-self.lowest, 0)  # losses below 0 cannot matter
        if first >= self.masses.size:
            return 0.0
        losses, curve, mass, discounted = (each[first:] for each in (self.losses, self.curve, *self.tails))
        k = int(np.argmax(curve <= delta))  # the first grid loss that is good enough; the answer lies just below it
        missing = self.infinite_mass + mass[k] - delta
        if k == 0 or missing <= 0 or discounted[k] <= 0:
            return max(float(losses[k]), 0.0)
        return max(float(losses[k]) + min(math.log(missing / discounted[k]), 0.0), 0.0)


def discretise(dominating: Dominating, spacing: float, count: int) -> LossDistribution:
    """The loss of a public draw among pairs on a grid, wide enough for `count` copies."""
    parts = [_of_pair(pair, spacing, count) for pair in dominating.pairs]
    low = min(part.lowest for part in parts)
    high = max(part.lowest + part.masses.size for part in parts)
    masses, infinite_mass = np.zeros(high - low), dominating.infinite_mass
    for weight, part in zip(dominating.weights, parts, strict=True):
        masses[part.lowest - low :][: part.masses.size] += weight * part.masses
        infinite_mass += weight * part.infinite_mass
    return LossDistribution(spacing, low, masses, infinite_mass)


def _of_pair(pair: LawPair, spacing: float, count: int) -> LossDistribution:
    lowest, highest = pair.reach(count)
    most = math.floor(LARGEST_LOSS / spacing)  # of a coarse grid
    bottom, top = max(math.floor(lowest / spacing), -most), min(math.ceil(highest / spacing), most)
    if pair.symmetrised:
        bottom = 0
    losses = np.arange(bottom, max(top, bottom + 1) + 1) * spacing
    upper, lower, above, below = pair.cells(losses)
    masses = split(losses, upper, lower)
    if not pair.symmetrised:  # what lies beyond the grid: too high goes to infinity, too low is raised to the bottom
        masses[0] += below
        return LossDistribution(spacing, bottom, masses, above)
    positive = masses[1:]
    negative = positive * np.exp(-losses[1:])
    middle = 1.0 - above - positive.sum() - negative.sum()
    masses = np.concatenate([negative[::-1], [max(middle, 0.0)], positive])
    return LossDistribution(spacing, -positive.size, masses, above)


def split(losses: np.ndarray, upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """Split the mass of each interval over its two ends so that its mass under both neighbours is kept."""
    discount = np.exp(-losses)
    to_high = (upper * discount[:-1] - lower) / (discount[:-1] - discount[1:])
    to_high = np.clip(to_high, 0.0, upper)
    masses = np.zeros(losses.size)
    masses[:-1] += upper - to_high
    masses[1:] += to_high
    return masses
