"""Laplace noise as somebody else would add it: an event in a file of its own, which says what dominates it."""

import dataclasses
import math

import numpy as np

from fedjax_dp.accounting import (
    Adjacency,
    BoundedLosses,
    Dominating,
    FullBatch,
    NotCoveredError,
    Poisson,
    Release,
    Sampling,
    Unit,
    WithoutReplacement,
)


@dataclasses.dataclass(frozen=True)
class LaplaceSteps(Release):
    """`count` sums of vectors of L1 norm at most C, with Laplace noise on each number, its scale `noise_multiplier` C.

    Between neighbours the sum moves by at most C, or 2C, in L1 norm; Lap(1, b) against Lap(0, b) dominates, b the scale
    over that distance, and its loss is never above 1 / b.
    """

    noise = "Laplace noise"

    noise_multiplier: float
    sampling: Sampling
    adjacency: Adjacency
    count: int
    unit: Unit = Unit.RECORD

    def dominating_pairs(self):
        pair, rate = laplace(self.relative_noise), self.sampling.rate
        if isinstance(self.sampling, FullBatch):
            return (Dominating((1.0,), (pair,)),)
        if isinstance(self.sampling, Poisson) and self.adjacency is Adjacency.ADD_REMOVE:
            both = pair.sampled(rate), pair.sampled(rate).reversed()
            return tuple(Dominating((1.0,), (one,)) for one in both)
        if isinstance(self.sampling, WithoutReplacement):
            return (Dominating((1.0,), (dataclasses.replace(pair.sampled(rate), symmetrised=rate < 1),)),)
        raise NotCoveredError(f"Laplace noise on {self.sampling} is not covered; use batches of fixed size")

    def zcdp(self):
        return 1 / (2 * self.relative_noise**2)  # of epsilon-DP: epsilon^2 / 2


def laplace(scale):
    """Lap(1, scale) against Lap(0, scale)."""

    def up_to(losses, center):
        x = (1 + scale * np.asarray(losses)) / 2  # where the loss, (|x| - |x - 1|) / scale, is that large
        tail = np.exp(-np.abs(x - center) / scale) / 2
        return np.where(x >= 1, 1.0, np.where(x < 0, 0.0, np.where(x < center, tail, 1 - tail)))

    return BoundedLosses(lambda losses: up_to(losses, 1), lambda losses: up_to(losses, 0), -1 / scale, 1 / scale)


def laplace_rdp(scale, order):
    """Mironov 2017, arXiv:1702.07476, Proposition 6."""
    up, down = (order - 1) / scale, -order / scale
    return math.log(order / (2 * order - 1) * math.exp(up) + (order - 1) / (2 * order - 1) * math.exp(down)) / (
        order - 1
    )
