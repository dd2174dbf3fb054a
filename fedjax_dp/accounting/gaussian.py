"""The Gaussian mechanism without sampling, exactly: Gaussian differential privacy (GDP) and its trade-off curve."""

import dataclasses
import math

import numpy as np
import scipy
from scipy.special import log_ndtr, ndtr, ndtri

from fedjax_dp import errors
from fedjax_dp.accounting.neighbours import NotCoveredError

LEAST_WEIGHT = 1e-18  # of numbers of draws that are told apart
MOST_COUNTS = 10**6


@dataclasses.dataclass(frozen=True)
class Gdp:
    """mu-GDP: neighbours are no easier to tell apart than N(0, 1) and N(mu, 1).

    Source: Dong, Roth, Su 2022, arXiv:1905.02383, Definition 2.6; composition by Corollary 3.3.
    """

    mu: float

    def __post_init__(self) -> None:
        errors.require_not_negative("mu", self.mu)

    def times(self, count: int) -> "Gdp":
        return Gdp(self.mu * math.sqrt(count))

    def plus(self, other: "Gdp") -> "Gdp":
        return Gdp(math.hypot(self.mu, other.mu))

    def worst(self, other: "Gdp") -> "Gdp":
        return Gdp(max(self.mu, other.mu))

    def thinned(self, rate: float) -> "Gdp":
        if rate in (0.0, 1.0):
            return Gdp(self.mu * rate)
        raise NotCoveredError("random participation is not Gaussian: no exact formula; use accountant pld")

    def epsilon(self, delta: float) -> float:
        return gaussian_epsilon(delta, 1 / self.mu) if self.mu else 0.0

    def delta(self, epsilon: float) -> float:
        """Smallest delta at `epsilon`."""
        return gaussian_delta(epsilon, 1 / self.mu) if self.mu else 0.0


@dataclasses.dataclass(frozen=True)
class DrawnGdp:
    """mu-GDP in each of `draws` releases with probability `rate`, else nothing; the draws are public.

    Publishing the draws can only cost more than hiding them, so this bounds every sampled release from above; it is
    tight if a single release reveals its member.
    """

    mu: float
    rate: float
    draws: int = 1

    def times(self, count: int) -> "DrawnGdp":
        return dataclasses.replace(self, draws=self.draws * count)

    def plus(self, other: "DrawnGdp") -> "DrawnGdp":
        if (self.mu, self.rate) != (other.mu, other.rate):
            raise NotCoveredError("draws of different rates or noises have no closed form; use accountant pld")
        return dataclasses.replace(self, draws=self.draws + other.draws)

    def worst(self, other: "DrawnGdp") -> "DrawnGdp":
        raise NotCoveredError("which of several draws were made has no closed form; use accountant pld")

    def thinned(self, rate: float) -> "DrawnGdp":
        if self.draws != 1:
            raise NotCoveredError("random participation in several draws has no closed form; use accountant pld")
        return dataclasses.replace(self, rate=self.rate * rate)

    def epsilon(self, delta: float) -> float:
        """The epsilon at which the Gaussian delta, averaged over the number of draws, is `delta`."""
        law = scipy.stats.binom(self.draws, self.rate)
        low, high = (int(law.isf(tail)) for tail in (1 - LEAST_WEIGHT, LEAST_WEIGHT))
        if high - low > MOST_COUNTS:
            raise NotCoveredError("too many draws for a mean over all their numbers; use accountant rdp")
        counts = np.arange(max(low, 1), high + 1)
        weights = law.pmf(counts)
        weights[0] = law.cdf(counts[0]) if low else weights[0]  # fewer cost no more
        delta -= law.sf(high)  # more are counted as a total loss
        mus = self.mu * np.sqrt(counts)

        def excess(epsilon: float) -> float:
            upper, lower = log_ndtr(mus / 2 - epsilon / mus), epsilon + log_ndtr(-mus / 2 - epsilon / mus)
            return float(weights @ (-np.exp(upper) * np.expm1(np.minimum(lower - upper, 0.0)))) - delta

        if excess(0.0) <= 0:
            return 0.0
        most = 1.0
        while excess(most) > 0:
            most *= 2
        return float(scipy.optimize.brentq(excess, 0.0, most, xtol=1e-13, rtol=1e-12))


def gaussian_trade_off(mu: float, false_positive: np.ndarray) -> np.ndarray:
    """Smallest false negative rate of any test between neighbours at a false positive rate, under mu-GDP.

    Shapes: any; returns the same. Source: Dong, Roth, Su 2022, equation (6): Phi(Phi^-1(1 - alpha) - mu).
    """
    return ndtr(-ndtri(np.asarray(false_positive, float)) - mu)


def gaussian_delta(epsilon: float, relative_noise: float, count: int = 1) -> float:
    """Smallest delta of `count` Gaussian releases at `epsilon`.

    Units:     `relative_noise` is the standard deviation over the sensitivity; `epsilon` in nats.
    Adjacency: that of the sensitivity.
    Source:    Balle and Wang 2018, arXiv:1805.06530, Theorem 8; `count` releases are one with noise / sqrt(count).
    """
    errors.require_positive("relative_noise", relative_noise)
    errors.require_not_negative("epsilon", epsilon)
    mu = math.sqrt(count) / relative_noise
    upper = log_ndtr(mu / 2 - epsilon / mu)
    lower = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(-math.exp(upper) * math.expm1(min(lower - upper, 0.0)))


def gaussian_epsilon(delta: float, relative_noise: float, count: int = 1) -> float:
    """Smallest epsilon of `count` Gaussian releases at `delta`, to 1e-12 relative.

    Limits: zero releases cost 0; zero noise costs infinity.
    Raises: ValueError if delta is outside (0, 1).

    >>> round(gaussian_epsilon(1e-5, 1.0), 4)
    4.3772
    """
    errors.require_delta(delta)
    if count == 0:
        return 0.0
    if relative_noise == 0:
        return math.inf
    errors.require_positive("relative_noise", relative_noise)
    if gaussian_delta(0.0, relative_noise, count) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, relative_noise, count) > delta:
        high *= 2
    return float(
        scipy.optimize.brentq(
            lambda e: gaussian_delta(e, relative_noise, count) - delta, 0.0, high, xtol=1e-13, rtol=1e-13
        )
    )


def gaussian_noise(epsilon: float, delta: float, count: int = 1) -> float:
    """Smallest relative noise of `count` Gaussian releases that meets the budget, to 1e-12 relative.

    >>> round(gaussian_noise(1.0, 1e-5), 6)
    3.730632
    """
    errors.require_positive("epsilon", epsilon)
    errors.require_delta(delta)
    errors.require_count("count", count)

    def excess(log_noise: float) -> float:
        return gaussian_delta(epsilon, math.exp(log_noise)) - delta

    return math.sqrt(count) * math.exp(scipy.optimize.brentq(excess, -60.0, 40.0, xtol=1e-13, rtol=1e-13))
