"""Conversions of zero-concentrated differential privacy (zCDP): what a bound rho * order on the divergence promises."""

import math

from scipy.optimize import minimize_scalar

from fedjax_dp import errors
from fedjax_dp.accounting.tcdp import Tcdp


def zcdp_epsilon_standard(rho: float, delta: float) -> float:
    """rho + 2 sqrt(rho ln(1/delta)) (Bun and Steinke 2016, Proposition 1.3); looser than `zcdp_epsilon`."""
    return Tcdp(rho).epsilon(delta)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Smallest epsilon that rho-zCDP is known to give at `delta`.

    The minimum over orders a > 1 of a rho + ln(1 - 1/a) - (ln delta + ln a) / (a - 1).
    Limits: rho = 0 costs 0. Source: Canonne, Kamath, Steinke 2020, arXiv:2004.00010, Proposition 12.

    >>> round(zcdp_epsilon(0.5, 1e-5), 4)
    4.7284
    """
    errors.require_in_unit_interval("delta", delta)
    if rho == 0:
        return 0.0
    errors.require_positive("rho", rho)

    def at(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        return order * rho + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)

    best = 0.5 * math.log(math.log(1 / delta) / rho)  # the order that is best for the standard conversion
    found = minimize_scalar(at, bounds=(best - 4, best + 4), method="bounded", options={"xatol": 1e-9})
    return max(min(float(found.fun), zcdp_epsilon_standard(rho, delta)), 0.0)
