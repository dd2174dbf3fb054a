"""Privacy accounting in float64 on NumPy and SciPy; nothing here imports JAX."""

from fedjax_dp.accounting.calibrate import ACCOUNTANTS, noise_multiplier_for
from fedjax_dp.accounting.events import Adjacency, GaussianSteps, Poisson, WithoutReplacement
from fedjax_dp.accounting.gaussian import gaussian_delta, gaussian_epsilon
from fedjax_dp.accounting.guarantee import Claim, Guarantee, View
from fedjax_dp.accounting.pld import attained_epsilon, pld_epsilon
from fedjax_dp.accounting.tcdp import Tcdp, TcdpConditionError, tcdp_epsilon, tcdp_noise_multiplier, theorem5
from fedjax_dp.accounting.zcdp import zcdp_epsilon, zcdp_epsilon_standard

__all__ = [
    "ACCOUNTANTS",
    "Adjacency",
    "Claim",
    "GaussianSteps",
    "Guarantee",
    "Poisson",
    "Tcdp",
    "TcdpConditionError",
    "View",
    "WithoutReplacement",
    "attained_epsilon",
    "gaussian_delta",
    "gaussian_epsilon",
    "noise_multiplier_for",
    "pld_epsilon",
    "tcdp_epsilon",
    "tcdp_noise_multiplier",
    "theorem5",
    "zcdp_epsilon",
    "zcdp_epsilon_standard",
]
