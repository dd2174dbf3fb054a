"""Zero-concentrated differential privacy (zCDP): a bound rho * order on the Renyi divergence of every order.

Source: Bun and Steinke 2016, arXiv:1605.02065. Amplification by sampling is ignored, which is safe.
"""

import dataclasses
import math

import scipy

from fedjax_dp import errors
from fedjax_dp.accounting.tcdp import Tcdp


@dataclasses.dataclass(frozen=True)
class Zcdp(Tcdp):
    """rho-zCDP: tCDP of every order, with a tighter conversion."""

    def __post_init__(self) -> None:
        errors.require_not_negative("rho", self.rho)

    def epsilon(self, delta: float) -> float:
        return zcdp_epsilon(self.rho, delta)


def zcdp_epsilon_standard(rho: float, delta: float) -> float:
    """rho + 2 sqrt(rho ln(1/delta)) (Bun and Steinke 2016, Proposition 1.3); looser than `zcdp_epsilon`."""
    return Tcdp(rho).epsilon(delta)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Smallest known epsilon of rho-zCDP at `delta`.

    The minimum over orders a > 1 of a rho + ln(1 - 1/a) - (ln delta + ln a) / (a - 1).
    Limits: rho = 0 costs 0. Source: Canonne, Kamath, Steinke 2020, arXiv:2004.00010, Proposition 12.

    >>> round(zcdp_epsilon(0.5, 1e-5), 4)
    4.7284
    """
    errors.require_delta(delta)
    if rho == 0:
        return 0.0
    errors.require_positive("rho", rho)

    def at(log_excess: float) -> float:
        excess = math.exp(log_excess)  # a - 1, which may be too small beside 1 to be added
        log_order = math.log1p(excess)
        return (1 + excess) * rho + log_excess - log_order - (math.log(delta) + log_order) / excess

    best = 0.5 * math.log(math.log(1 / delta) / rho)  # the order that is best for the standard conversion
    least = scipy.optimize.minimize_scalar(at, bounds=(best - 4, best + 4), method="bounded", options={"xatol": 1e-9})
    return max(min(float(least.fun), zcdp_epsilon_standard(rho, delta)), 0.0)
