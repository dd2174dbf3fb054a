"""Renyi DP of fixed-size batches as in papers; the accountant `rdp` is tighter."""

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy.special import gammaln, logsumexp

from fedjax_dp.accounting import (
    Accountant,
    Adjacency,
    Event,
    GaussianPair,
    NotCoveredError,
    Release,
    WithoutReplacement,
)
from fedjax_dp.accounting.laws import LEAST_RESOLVED, panels
from fedjax_dp.accounting.rdp import RenyiCurve


def price(event: Event) -> Callable[[Release], RenyiCurve]:
    """The curve of Wang, Balle, Kasiviswanathan 2019 (arXiv:1808.00087, Theorem 27), which papers use; looser.

    It holds at integer orders; between them (order - 1) times the divergence is convex, so a chord bounds it.
    """
    integers = np.arange(1, 257)
    orders = np.concatenate([np.linspace(1.1, 10.9, 99), integers[10:]])

    @functools.cache
    def of(step: Release) -> RenyiCurve:
        if not isinstance(step.sampling, WithoutReplacement) or step.adjacency is not Adjacency.REPLACE_ONE:
            raise NotCoveredError("Wang et al. 2019 covers fixed-size batches under replace-one only")
        moments = np.append(0.0, _moments(step.sampling.rate, step.relative_noise, int(integers[-1])))
        return RenyiCurve(orders, np.interp(orders, integers, moments) / (orders - 1))

    return of


def _moments(rate: float, noise: float, top: int) -> np.ndarray:
    """(a - 1) D_a at orders 2 to `top`; E|ratio - 1|^l comes from quadrature instead of alternating sums."""
    rho = 1 / (2 * noise**2)
    orders = np.arange(2, top + 1)
    plain = (orders - 1) * orders * rho
    if rate == 1:
        return plain
    log_expm1 = 2 * rho + math.log(-math.expm1(-2 * rho))  # of 2 rho
    second = min(math.log(4) + log_expm1, math.log(2) + 2 * rho)
    powers = orders[1:]
    later = math.log(2) + powers * (powers - 1) * rho  # Theorem 9
    if noise >= LEAST_RESOLVED:  # Theorem 27, which is tighter unless noise is tiny
        pair, evens = GaussianPair(noise, 1.0), np.arange(2, top + 2, 2)
        x, weights = panels(pair, evens[-1])
        ratio = np.log(np.abs(np.expm1(np.minimum(pair.loss(x), 700.0))))
        log_moments = np.full(top + 2, -np.inf)
        log_moments[evens] = logsumexp(evens[:, None] * ratio + pair.log_lower_density(x), axis=1, b=weights)
        between = (log_moments[2 * (powers // 2)] + log_moments[2 * ((powers + 1) // 2)]) / 2
        later = np.minimum(later, math.log(4) + between)
    terms = np.append(second, later) + orders * math.log(rate)
    summed = logsumexp(_log_binomials(top) + terms, axis=1)
    return np.minimum(np.logaddexp(0.0, summed), plain)


@functools.cache
def _log_binomials(top: int) -> np.ndarray:
    """Logarithm of a choose j for a and j from 2 to `top`; -inf where j > a."""
    a, j = np.arange(2, top + 1)[:, None], np.arange(2, top + 1)
    inside = np.where(j <= a, j, 0)
    return np.where(j <= a, gammaln(a + 1) - gammaln(inside + 1) - gammaln(a - inside + 1), -np.inf)


WANG_RDP = Accountant("rdp-wang", "Renyi DP of Wang et al. 2019 for fixed-size batches", price, 1e-6)
