"""The Gaussian mechanism without sampling, exactly."""

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr

from fedjax_dp import errors


def gaussian_delta(epsilon: float, relative_noise: float, count: int = 1) -> float:
    """Smallest delta of `count` Gaussian releases at `epsilon`.

    Units:     `relative_noise` is the standard deviation over the sensitivity; `epsilon` in nats.
    Adjacency: whichever the sensitivity was taken under.
    Source:    Balle and Wang 2018, arXiv:1805.06530, Theorem 8; `count` releases are one with noise / sqrt(count).
    """
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
    errors.require_in_unit_interval("delta", delta)
    if count == 0:
        return 0.0
    if relative_noise == 0:
        return math.inf
    if gaussian_delta(0.0, relative_noise, count) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, relative_noise, count) > delta:
        high *= 2
    return float(brentq(lambda e: gaussian_delta(e, relative_noise, count) - delta, 0.0, high, xtol=1e-13, rtol=1e-13))
