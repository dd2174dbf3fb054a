"""The privacy theorems of the papers as printed; `settings` and `claims` have verdicts on them.

Noise has the papers' names: `sigma` is the standard deviation on the *mean* gradient of a batch, with clipping norm (G,
L or C) 1; the noise multiplier of `events` is sigma times the batch size.
"""

import dataclasses
import math

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Adjacency, FullBatch, GaussianSteps, Poisson, WithoutReplacement
from fedjax_dp.accounting.accountants import total
from fedjax_dp.accounting.tcdp import Tcdp, TcdpConditionError
from fedjax_dp.accounting.zcdp import zcdp_epsilon_standard

# acs_pldp's k, which it does not give: the logistic curve of slope k stands in for the normal distribution function.
# This one is closest everywhere (error below 0.0095); that of Waissi and Rossin, 0.9 sqrt(pi), is closest at the mean.
LOGISTIC_SLOPE = 1.702


def zcdp_budget(epsilon: float, delta: float) -> float:
    """The rho whose standard conversion gives the budget: (sqrt(epsilon + L) - sqrt(L))^2 with L = ln(1/delta)."""
    errors.require_positive("epsilon", epsilon)
    errors.require_delta(delta)
    log_inverse = math.log(1 / delta)
    return (math.sqrt(epsilon + log_inverse) - math.sqrt(log_inverse)) ** 2


def tcdp_of(steps: GaussianSteps) -> Tcdp:
    """dpnfl's accounting of one client: rho = 26 K tau G^2 / (n^2 sigma^2) and its omega (Lemmas 3 and 4)."""
    return total(steps, lambda step: step.tcdp())


def mr_mtl_steps(batch: int, records: int, passes: int) -> GaussianSteps:
    """The steps that the code of mr_mtl's authors accounts for: passes over a client's records in batches, noise 1.

    Each full batch of a pass counts as a Poisson sample under add-remove.
    """
    sampling = Poisson(batch / records) if batch < records else FullBatch()
    return GaussianSteps(1.0, sampling, Adjacency.ADD_REMOVE, passes * (records // batch))


def dpnfl_theorem5(steps: GaussianSteps) -> tuple[float, float]:
    """(epsilon, delta) as dpnfl's Theorem 5 prints them: rho (2 omega - 1) and exp(-rho (omega - 1)^2).

    One boundary point of the curve, not a rule for choosing the noise: at usual settings epsilon is above 10.
    """
    spent = tcdp_of(steps)
    return spent.rho * (2 * spent.omega - 1), math.exp(-spent.rho * (spent.omega - 1) ** 2)


def dpnfl_lemma2_noise(epsilon: float, delta: float, sampling: WithoutReplacement, count: float) -> float:
    """dpnfl's calibration, as a noise multiplier: z = B sqrt(26 K tau / rho*) / n.

    `count` is K tau, which may be an expectation and so need not be an integer.
    Raises: TcdpConditionError when a condition of Lemmas 2 or 4 fails at the resulting noise.
    """
    rho = zcdp_budget(epsilon, delta)
    noise_multiplier = dpnfl_noise_as_printed(epsilon, delta, sampling.batch_size, sampling.records, count)
    one = tcdp_of(GaussianSteps(noise_multiplier, sampling, Adjacency.REPLACE_ONE, 1))
    if math.log(1 / delta) > (one.omega - 1) ** 2 * rho:
        raise TcdpConditionError(f"dpnfl's Lemma 2 needs delta >= exp(-(omega-1)^2 rho), got delta {delta:g}; raise it")
    return noise_multiplier


def dpnfl_noise_as_printed(epsilon: float, delta: float, batch_size: int, records: int, count: float) -> float:
    """dpnfl's calibration without its conditions."""
    return batch_size * math.sqrt(26 * count / zcdp_budget(epsilon, delta)) / records


@dataclasses.dataclass(frozen=True)
class Cpfed:
    """A configuration of CPFed with gradients bounded by 1: `cohort_size` of `num_clients` clients a round."""

    rounds: int
    local_steps: int
    num_clients: int
    cohort_size: int
    batch_size: int

    def rho_of_round(self, sigma: float, *, secure: bool, colluders: int = 0) -> float:
        """zCDP of one participation: 2 tau L^2 / (B^2 sigma^2), divided by the honest cohort if sums are secure."""
        honest = self.cohort_size - colluders if secure else 1
        return 2 * self.local_steps / (honest * self.batch_size**2 * sigma**2)

    def rho(self, sigma: float, *, secure: bool) -> float:
        """cpfed's Theorem 1: the expected number of rounds, T r / n, times the round's rho."""
        return self.rounds * self.cohort_size / self.num_clients * self.rho_of_round(sigma, secure=secure)

    def epsilon(self, sigma: float, delta: float, *, secure: bool) -> float:
        """cpfed's Theorem 1, by the standard conversion."""
        return zcdp_epsilon_standard(self.rho(sigma, secure=secure), delta)

    def sigma(self, epsilon: float, delta: float, *, secure: bool) -> float:
        """The noise of Theorem 1 for a budget."""
        return math.sqrt(self.rho(1.0, secure=secure) / zcdp_budget(epsilon, delta))


def acs_pldp_lemma1(draws: int, rate: float, tail: float, slope: float = LOGISTIC_SLOPE) -> float:
    """acs_pldp's bound on participations: mean + ln((1 - tail) / tail) sqrt(draws q (1 - q)) / k.

    It approximates the binomial by a normal law, and that by a logistic curve: too small if draws * q is small.
    Source: acs_pldp, Lemma 1 and equation (4).
    """
    errors.require_in_unit_interval("the tail probability", tail)
    errors.require_positive("slope", slope)
    errors.require_count("draws", draws)
    if not 0 <= rate <= 1:
        raise errors.refuse("rate", rate, "in [0, 1]")
    return draws * rate + math.log((1 - tail) / tail) * math.sqrt(draws * rate * (1 - rate)) / slope


def acs_pldp_theorem1_noise(
    epsilon: float, delta: float, *, rate: float, participations: float, draws: int, local_steps: int, constant: int
) -> float:
    """acs_pldp's Theorem 1, in units of its sensitivity 2C/m: s sqrt(T* E ln(1/delta') ln(1/delta'')) / epsilon.

    `draws` is K R; delta' = delta / (2 K R), delta'' = delta / 4. The paper prints an order of magnitude only.
    `constant` 1 takes it literally; 2 restores the two factors sqrt(2), and 1.25 / delta', of its theorems.
    """
    errors.require_positive("epsilon", epsilon)
    inner, outer = delta / (2 * draws), delta / 4
    log_inner = math.log((1.25 if constant == 2 else 1.0) / inner)
    return constant * rate * math.sqrt(participations * local_steps * log_inner * math.log(1 / outer)) / epsilon


def dp_fedavg_output_theorem1_noise(epsilon: float, delta: float, rate: float) -> float:
    """dp_fedavg_output's Theorem 1, in units of its sensitivity 4 Q G eta.

    The classical Gaussian at (epsilon / (2q), delta / q).
    """
    errors.require_positive("epsilon", epsilon)
    return math.sqrt(2 * math.log(1.25 * rate / delta)) * 2 * rate / epsilon


def dp_fedavg_output_theorem2_epsilon(epsilon: float, rate: float, participations: float) -> float:
    """dp_fedavg_output's Theorem 2: c0 q epsilon sqrt(K / (1 - q)) after K participations, with c0 = 1."""
    return rate * epsilon * math.sqrt(participations / (1 - rate))


def moments_accountant_epsilon(rate: float, noise_multiplier: float, steps: int, delta: float) -> float:
    """The moments accountant of DPFedAvg and DP-SGD: Poisson, add-remove, integer moments up to 32, Markov conversion.

    Source: Abadi et al. 2016, arXiv:1607.00133, Theorem 2.
    """
    moments = np.arange(1, 33)
    one = GaussianSteps(noise_multiplier, Poisson(rate), Adjacency.ADD_REMOVE, 1)
    spent = steps * moments * one.rdp(moments + 1.0)
    return float(np.min((spent + math.log(1 / delta)) / moments))
