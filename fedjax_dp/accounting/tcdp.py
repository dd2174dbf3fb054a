"""Truncated concentrated differential privacy (tCDP): the accounting that paper 000 states.

Source: Bun, Dwork, Rothblum, Steinke 2018 (BDRS), "Composable and versatile privacy via truncated CDP", as quoted in
000's Lemmas 2-4. `rho` is in nats per order, `omega` the largest order for which the bound holds.
"""

import dataclasses
import math
from collections.abc import Iterable

from fedjax_dp import errors
from fedjax_dp.accounting.events import Adjacency, GaussianSteps, WithoutReplacement


class TcdpConditionError(errors.ConfigurationError):
    """A condition under which a tCDP theorem holds is not met, so it promises nothing here."""


@dataclasses.dataclass(frozen=True)
class Tcdp:
    """(rho, omega)-tCDP: Renyi divergence of order a at most rho * a for every 1 < a < omega."""

    rho: float
    omega: float = math.inf

    def epsilon(self, delta: float) -> float:
        """Conversion to (epsilon, delta), both branches of BDRS Lemma 6 (000's Lemma 2 is the first branch only).

        Raises: TcdpConditionError if omega is not above 1, where tCDP says nothing.
        """
        errors.require_in_unit_interval("delta", delta)
        if not self.omega > 1:
            raise TcdpConditionError(f"tCDP converts to epsilon only for omega > 1, got {self.omega:.4g}")
        if self.rho == 0:
            return 0.0
        log_inverse = math.log(1 / delta)
        if log_inverse <= (self.omega - 1) ** 2 * self.rho:
            return self.rho + 2 * math.sqrt(self.rho * log_inverse)
        return self.rho * self.omega + log_inverse / (self.omega - 1)


def compose(parts: Iterable[Tcdp]) -> Tcdp:
    """Composition: rhos add, the smallest omega holds (BDRS Lemma 2, 000's Lemma 3)."""
    parts = list(parts)
    return Tcdp(sum(part.rho for part in parts), min((part.omega for part in parts), default=math.inf))


def subsample(part: Tcdp, rate: float) -> Tcdp:
    """Amplification by fixed-size sampling without replacement (BDRS Theorem 12, 000's Lemma 4).

    Raises: TcdpConditionError unless 0 < rate <= 0.1, 0 < rho <= 0.1, ln(1/rate) >= 3 rho (2 + log2(1/rho)) and
            min(omega, ln(1/rate) / (2 rho)) >= 3.
    """
    if not 0 < rate <= 0.1:
        raise TcdpConditionError(
            f"tCDP subsampling needs a batch rate in (0, 0.1], got {rate:.4g}; lower batch_size or use accountant pld"
        )
    if not 0 < part.rho <= 0.1:
        raise TcdpConditionError(
            f"tCDP subsampling needs 0 < rho <= 0.1 in one step, got {part.rho:.4g}; add noise or use accountant pld"
        )
    log_rate = math.log(1 / rate)
    if not log_rate >= 3 * part.rho * (2 + math.log2(1 / part.rho)):
        raise TcdpConditionError(f"tCDP subsampling needs ln(1/rate) >= 3 rho (2 + log2(1/rho)), got {log_rate:.4g}")
    omega = min(part.omega, log_rate / (2 * part.rho))
    if not omega >= 3:
        raise TcdpConditionError(f"tCDP subsampling needs omega >= 3, got {omega:.4g}; add noise")
    return Tcdp(13 * rate**2 * part.rho, omega / 2)


def tcdp_of(steps: GaussianSteps) -> Tcdp:
    """tCDP of without-replacement Gaussian steps under replace-one: 000's 26 K tau G^2 / (n^2 sigma^2) and omega.

    Raises: TcdpConditionError where the subsampling theorem does not apply.
    """
    if not isinstance(steps.sampling, WithoutReplacement) or steps.adjacency is not Adjacency.REPLACE_ONE:
        raise TcdpConditionError("000's tCDP accounting covers fixed-size batches under replace-one only")
    if steps.count == 0:
        return Tcdp(0.0)
    if steps.reveals_everything:
        raise TcdpConditionError("tCDP needs noise, got noise_multiplier 0")
    one = Tcdp(1 / (2 * steps.relative_noise**2))
    if steps.sampling.rate < 1:
        one = subsample(one, steps.sampling.rate)
    return Tcdp(one.rho * steps.count, one.omega)


def tcdp_epsilon(steps: GaussianSteps, delta: float) -> float:
    """Epsilon of `steps` by 000's route: Lemmas 3 and 4, then Lemma 2 with both branches."""
    return tcdp_of(steps).epsilon(delta)


def theorem5(steps: GaussianSteps) -> tuple[float, float]:
    """(epsilon, delta) as 000's Theorem 5 prints them: rho (2 omega - 1) and exp(-rho (omega - 1)^2).

    One boundary point of the curve, not a rule for choosing the noise: at usual settings epsilon is above 10.
    """
    total = tcdp_of(steps)
    return total.rho * (2 * total.omega - 1), math.exp(-total.rho * (total.omega - 1) ** 2)


def tcdp_noise_multiplier(epsilon: float, delta: float, sampling: WithoutReplacement, count: float) -> float:
    """000's calibration: noise on the sum over clip norm, z = B sqrt(26 K tau / rho*) / n (sigma of the mean is z G/B).

    `count` is K tau, which may be an expectation and so need not be an integer.
    Raises: TcdpConditionError when a condition of Lemmas 2 or 4 fails at the resulting noise.
    """
    errors.require_positive("epsilon", epsilon)
    errors.require_in_unit_interval("delta", delta)
    log_inverse = math.log(1 / delta)
    rho = (math.sqrt(epsilon + log_inverse) - math.sqrt(log_inverse)) ** 2
    noise_multiplier = sampling.batch_size * math.sqrt(26 * count / rho) / sampling.records
    one = tcdp_of(GaussianSteps(noise_multiplier, sampling, Adjacency.REPLACE_ONE, 1))
    if log_inverse > (one.omega - 1) ** 2 * rho:
        raise TcdpConditionError(f"000's Lemma 2 needs delta >= exp(-(omega-1)^2 rho), got delta {delta:g}; raise it")
    return noise_multiplier
