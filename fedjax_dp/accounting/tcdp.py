"""Truncated concentrated differential privacy (tCDP): the accounting of the dpnfl paper.

Source: Bun, Dwork, Rothblum, Steinke 2018 (BDRS), "Composable and versatile privacy via truncated CDP", as quoted in
dpnfl's Lemmas 2-4. `rho` is in nats per order, `omega` the largest order for which the bound holds.
"""

import dataclasses
import math
from typing import Self

from fedjax_dp import errors
from fedjax_dp.accounting.neighbours import Adjacency, NotCoveredError
from fedjax_dp.accounting.sampling import FullBatch, Sampling, WithoutReplacement


class TcdpConditionError(NotCoveredError):
    """A condition of a tCDP theorem is not met, so it gives no guarantee here."""


@dataclasses.dataclass(frozen=True)
class Tcdp:
    """(rho, omega)-tCDP: Renyi divergence of order a at most rho * a for every 1 < a < omega."""

    rho: float
    omega: float = math.inf

    def times(self, count: int) -> Self:
        """Composition: rhos add, the smallest omega holds (BDRS Lemma 2, dpnfl's Lemma 3)."""
        return type(self)(self.rho * count, self.omega)

    def plus(self, other: Self) -> Self:
        return type(self)(self.rho + other.rho, min(self.omega, other.omega))

    def worst(self, other: Self) -> Self:
        return type(self)(max(self.rho, other.rho), min(self.omega, other.omega))

    def thinned(self, rate: float) -> Self:
        """Public random participation does not reduce tCDP: the worst case counts."""
        return self if rate else type(self)(0.0)

    def epsilon(self, delta: float) -> float:
        """Conversion to (epsilon, delta), both branches of BDRS Lemma 6 (dpnfl's Lemma 2 is the first branch only).

        Raises: TcdpConditionError if omega is not above 1, where tCDP gives no bound.
        """
        errors.require_delta(delta)
        errors.require_not_negative("rho", self.rho)
        if not self.omega > 1:
            raise TcdpConditionError(f"tCDP converts to epsilon only for omega > 1, got {self.omega:.4g}")
        if self.rho == 0:
            return 0.0
        log_inverse = math.log(1 / delta)
        if log_inverse <= (self.omega - 1) ** 2 * self.rho:
            return self.rho + 2 * math.sqrt(self.rho * log_inverse)
        return self.rho * self.omega + log_inverse / (self.omega - 1)


def subsample(part: Tcdp, rate: float) -> Tcdp:
    """Amplification by fixed-size sampling without replacement (BDRS Theorem 12, dpnfl's Lemma 4).

    Raises: TcdpConditionError unless 0 < rate <= 0.1, 0 < rho <= 0.1, ln(1/rate) >= 3 rho (2 + log2(1/rho)) and
            omega >= ln(1/rate) / (2 rho) >= 3: the theorem does not cover a step with a smaller omega.
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
    omega = log_rate / (2 * part.rho)
    if not part.omega >= omega:
        raise TcdpConditionError(
            f"tCDP subsampling needs omega >= ln(1/rate) / (2 rho) = {omega:.4g} in one step, got {part.omega:.4g}"
        )
    if not omega >= 3:
        raise TcdpConditionError(f"tCDP subsampling needs omega >= 3, got {omega:.4g}; add noise")
    return Tcdp(13 * rate**2 * part.rho, omega / 2)


def of_gaussian(noise_multiplier: float, sampling: Sampling, adjacency: Adjacency) -> Tcdp:
    """tCDP of one sampled sum with Gaussian noise: dpnfl's 26 G^2 / (n^2 sigma^2) and B^2 sigma^2 ln(n/B) / (8 G^2).

    Raises: TcdpConditionError where the subsampling theorem does not apply.
    """
    one = Tcdp(1 / (2 * (noise_multiplier / adjacency.sensitivity) ** 2))
    if isinstance(sampling, FullBatch):
        return one
    if not isinstance(sampling, WithoutReplacement) or adjacency is not Adjacency.REPLACE_ONE:
        raise TcdpConditionError(
            "tCDP subsampling covers fixed-size batches under replace-one only; use accountant pld"
        )
    return subsample(one, sampling.rate) if sampling.rate < 1 else one
