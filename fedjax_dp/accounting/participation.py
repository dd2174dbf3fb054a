"""How often a client takes part: exact binomial tails, and the acs_pldp paper's approximation of them."""

import dataclasses
import math

import numpy as np
import scipy

from fedjax_dp import errors
from fedjax_dp.accounting.events import GaussianSteps

# acs_pldp's k, which it does not give: the logistic curve of slope k stands in for the normal distribution function
LOGISTIC_SLOPE = 1.702  # closest everywhere (error below 0.0095)
WAISSI_ROSSIN_SLOPE = 0.9 * math.sqrt(math.pi)  # 1.5952: closest at the mean, and budgets for more participations


def participation_quantile(rounds: int, rate: float, tail: float) -> int:
    """Smallest K with P(participations > K) <= `tail`, for a binomial law of `rounds` draws at `rate`.

    >>> participation_quantile(210, 0.1, 2.5e-6)
    43
    """
    _check(rounds, rate, tail)
    return int(np.argmax(scipy.stats.binom.sf(np.arange(rounds + 1), rounds, rate) <= tail))


def participation_tail(rounds: int, rate: float, bound: float) -> float:
    """P(participations > `bound`), exactly."""
    _check(rounds, rate, 0.5)
    return float(scipy.stats.binom.sf(math.floor(bound), rounds, rate))


def acs_pldp_lemma1(draws: int, rate: float, tail: float, slope: float = LOGISTIC_SLOPE) -> float:
    """acs_pldp's bound on participations: mean + ln((1 - tail) / tail) sqrt(draws q (1 - q)) / k.

    A normal law in place of the binomial, a logistic curve in place of the normal: too small where draws * q is small.
    Source: acs_pldp, Lemma 1 and equation (4).
    """
    _check(draws, rate, tail)
    errors.require_positive("slope", slope)
    return draws * rate + math.log((1 - tail) / tail) * math.sqrt(draws * rate * (1 - rate)) / slope


def within_quantile(
    each: GaussianSteps, rate: float, rounds: int, delta: float, share: float = 0.25
) -> tuple[GaussianSteps, float]:
    """An ex-ante account without a mixture: the event at a high quantile of participation, and the delta left for it.

    A `share` of delta pays for the chance of taking part more often, which depends on no data. RandomParticipation is
    never looser under accountant pld, but this form suits every accountant.
    """
    errors.require_in_unit_interval("share", share)
    most = participation_quantile(rounds, rate, share * delta)
    spent = participation_tail(rounds, rate, most)
    return dataclasses.replace(each, count=each.count * most), delta - spent


def _check(rounds: int, rate: float, tail: float) -> None:
    errors.require_count("rounds", rounds)
    if not 0 <= rate <= 1:
        raise errors.refuse("the participation rate", rate, "in [0, 1]")
    errors.require_in_unit_interval("the tail probability", tail)
