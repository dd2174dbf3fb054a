"""The pairs of laws that dominate one sampled Gaussian release: where sampling theorems are stated, once.

All lengths are in units of the sensitivity. PLD and RDP accountants both read these pairs, so they cannot disagree on
what was sampled.
"""

import dataclasses
import math

import numpy as np
import scipy
from scipy.special import ndtr

from fedjax_dp.accounting.events import (
    Adjacency,
    AnyStep,
    NotCoveredError,
    Poisson,
    Release,
    WithoutReplacement,
    WithReplacement,
    gaussian_only,
)

MULTIPLICITIES = 20  # kept apart when drawing with replacement
NEGLIGIBLE = 1e-18  # chance of multiplicities that are counted as a total loss
LARGEST_NOISE = 1e6


@dataclasses.dataclass(frozen=True)
class Pair:
    """(1-a) N(0, s^2) + a N(1, s^2) against (1-b) N(0, s^2) + b N(-1, s^2), with a = `up`, b = `down`, s = `noise`.

    The loss, the logarithm of the ratio of densities, increases along the line. With `symmetrised` only the losses
    above zero are the pair's own: the mass at -l is set to e^-l times the mass at l.
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
        losses: np.ndarray = numerator - denominator
        return losses

    def where(self, losses: np.ndarray) -> np.ndarray:
        """The `x` at which the loss takes each value; -inf (inf) for values below (above) all losses.

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
        places: np.ndarray = s2 * np.where(m >= 0, grown, shrunk)
        return places

    def upper_mass(self, edges: np.ndarray) -> np.ndarray:
        """Probability of each interval between edges under the first law."""
        return (1 - self.up) * self._normal(edges, 0.0) + self.up * self._normal(edges, 1.0)

    def lower_mass(self, edges: np.ndarray) -> np.ndarray:
        """Probability of each interval between edges under the second law."""
        return (1 - self.down) * self._normal(edges, 0.0) + self.down * self._normal(edges, -1.0)

    def _normal(self, edges: np.ndarray, mean: float) -> np.ndarray:
        """Normal probability between neighbouring edges, from whichever tail loses fewer digits."""
        z = (edges - mean) / self.noise
        left, right = np.diff(ndtr(z)), -np.diff(ndtr(-z))
        masses: np.ndarray = np.where(z[:-1] > 0, right, left)
        return masses

    def log_lower_density(self, x: np.ndarray) -> np.ndarray:
        """Logarithm of the second law's density."""
        with np.errstate(divide="ignore"):
            center = np.log1p(-self.down) - (x / self.noise) ** 2 / 2
            side = np.log(self.down) - ((x + 1) / self.noise) ** 2 / 2
        log_density: np.ndarray = np.logaddexp(center, side) - math.log(self.noise * math.sqrt(2 * math.pi))
        return log_density


@dataclasses.dataclass(frozen=True)
class Dominating:
    """What dominates one release in one direction: a public draw of a pair, and the chance of a total loss."""

    weights: tuple[float, ...]
    pairs: tuple[Pair, ...]
    lost: float = 0.0


def dominating(step: Release) -> tuple[Dominating, ...]:
    """Dominating pairs of one release, one per direction; the worse direction of the composition counts.

    | sampling               | adjacency   | pair, in sensitivities                  | source                      |
    | none, shuffled epochs  | either      | N(1) against N(0)                       | exact                       |
    | Poisson                | add-remove  | (1-q)N(0)+qN(1) against N(0), both ways | Zhu, Dong, Wang 2022, Th 11 |
    | Poisson                | replace-one | (1-q)N(0)+qN(1/2) against ...+qN(-1/2)  | Schuchardt et al. 2024      |
    | WithoutReplacement     | replace-one | (1-q)N(0)+qN(1) against N(0), symmetric | Balle et al. 2018, Th 9     |
    | AnyStep                | replace-one | the same, q of any step                 | the same                    |
    | WithReplacement        | replace-one | the same, multiplicity drawn in public  | Balle et al. 2018, Th 10    |

    Where a theorem of Balle, Barthe and Gaboardi (arXiv:1807.01647) bounds the curve for eps >= 0 only, replace-one is
    symmetric, which fixes the curve below zero: that is what `symmetrised` does, and what composition needs.
    Raises: NotCoveredError for integer noise.
    """
    step = gaussian_only(step)
    # less noise than there is can only cost more, and no float could tell such small losses apart
    noise, rate = min(step.relative_noise, LARGEST_NOISE), step.sampling.rate
    if isinstance(step.sampling, WithReplacement):
        return (_by_multiplicity(step.sampling, noise),)
    if rate == 1:
        return (Dominating((1.0,), (Pair(noise, 1.0),)),)
    if isinstance(step.sampling, Poisson):
        if step.adjacency is Adjacency.ADD_REMOVE:
            return tuple(Dominating((1.0,), (pair,)) for pair in (Pair(noise, rate), Pair(noise, 0.0, rate)))
        # the two records differ by 2 C from each other, but only by C from their absence
        return (Dominating((1.0,), (Pair(min(step.noise_multiplier, LARGEST_NOISE), rate, rate),)),)
    assert isinstance(step.sampling, WithoutReplacement | AnyStep)
    return (Dominating((1.0,), (Pair(noise, rate, symmetrised=True),)),)


def attained(step: Release) -> tuple[Dominating, ...]:
    """The pair that two real neighbours attain, in both directions. No valid accountant reports less.

    With batches of fixed size every other record has gradient -C e; the exchanged one has C e in one dataset and -C e
    in the other. So one dataset's sum is always the same, and the other's is off by the full sensitivity exactly when
    the record is drawn. Under Poisson sampling, or none, the dominating pair itself is attained.
    Raises: NotCoveredError where no such pair is known in this form.
    """
    step = gaussian_only(step)
    if isinstance(step.sampling, WithReplacement | AnyStep):
        raise NotCoveredError(f"no pair of neighbours with a closed form is at hand for {step.sampling}")
    if step.sampling.rate == 1 or isinstance(step.sampling, Poisson):
        return dominating(step)
    noise, rate = min(step.relative_noise, LARGEST_NOISE), step.sampling.rate
    return tuple(Dominating((1.0,), (pair,)) for pair in (Pair(noise, rate), Pair(noise, 0.0, rate)))


def _by_multiplicity(sampling: WithReplacement, noise: float) -> Dominating:
    """With probability proportional to the binomial law of the multiplicity m >= 1, noise falls to noise / m.

    Multiplicities that are too rare, or too many to tell apart, are counted as larger ones, which can only cost more.
    """
    rate, law = sampling.rate, scipy.stats.binom(sampling.draws, 1 / sampling.records)
    times = np.arange(1, sampling.draws + 1)
    low = max(int(np.argmax(law.cdf(times) > NEGLIGIBLE)), 0)
    high = int(np.argmax(law.sf(times) <= NEGLIGIBLE))
    ends = np.unique(np.linspace(low, high, MULTIPLICITIES + 1).round().astype(int))[1:] if high > low else [high]
    if high - low < MULTIPLICITIES:
        ends = np.arange(low, high + 1)
    kept = times[np.asarray(ends)]
    weights = np.diff(law.cdf(kept), prepend=law.pmf(0)) / rate
    pairs = tuple(Pair(noise / m, rate, symmetrised=rate < 1) for m in kept.tolist())
    return Dominating(tuple(np.maximum(weights, 0.0).tolist()), pairs, NEGLIGIBLE / rate)
