"""Exact binomial tails of the number of rounds in which a client participates."""

import math

import numpy as np
import scipy

from fedjax_dp import errors


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


def _check(rounds: int, rate: float, tail: float) -> None:
    errors.require_count("rounds", rounds)
    if not 0 <= rate <= 1:
        raise errors.refuse("the participation rate", rate, "in [0, 1]")
    errors.require_in_unit_interval("the tail probability", tail)
