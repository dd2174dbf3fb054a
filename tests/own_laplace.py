"""Laplace noise as somebody else would add it, in one file: its event, and a privatizer of records."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

import fedjax_dp as fdp
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
from fedjax_dp.parts import StepReport
from fedjax_dp.pytrees import ravel


@dataclasses.dataclass(frozen=True)
class LaplaceSteps(Release):
    """`count` sums of vectors of L1 norm at most C, with Laplace noise on each number, its scale `noise_multiplier` C.

    Between neighbours the sum moves by at most C, or 2C, in L1 norm; Lap(1, b) against Lap(0, b) dominates, b the scale
    over that distance, and its loss is never above 1 / b.
    """

    noise = "Laplace noise"
    norm, deviation = 1, math.sqrt(2)

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

    def as_normal(self, differences):
        """By the law of the difference of two Laplace noises, P(D > d) = (1 + d) exp(-2d) / 2 at variance 1."""
        d = np.abs(np.asarray(differences, float))
        beyond = np.maximum((1 + d) * np.exp(-2 * d) / 2, 1e-300)
        return np.copysign(-ndtri(beyond), differences)


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


@fdp.value
class LaplaceRecords:
    """Scales each record's gradient to L1 norm `clip_norm`, and adds Laplace noise to the mean of the batch."""

    clip_norm: float
    noise_multiplier: float
    no_epsilon_reason, assumptions, on_upload = None, (), False

    def gradient(self, key, step, model, params, records):
        mean, report = self.clipped(model, params, records)
        noise = jax.random.laplace(jax.random.fold_in(key, step.number), mean.shape)
        multiplier = jnp.asarray(self.noise_multiplier)  # one, or that of each client
        own = multiplier[step.client] if multiplier.ndim else multiplier
        return mean + own * self.clip_norm / records.divisor * noise, report

    def clipped(self, model, params, records):
        def one(x, y):
            loss, found = jax.value_and_grad(model.loss)(params, x, y, None)
            return loss, ravel(found)[0]

        losses, rows = jax.vmap(one)(records.x, records.y)
        sizes = self.size(rows)
        within = rows * jnp.minimum(1.0, self.clip_norm / jnp.maximum(sizes, 1e-9))
        kept = jnp.where(jnp.isfinite(sizes) & records.mask[:, None], within, 0.0)  # padding and NaN count nothing
        return kept.sum(0) / records.divisor, StepReport(losses.mean(), jnp.mean(sizes > self.clip_norm))

    def size(self, rows):
        return jnp.abs(rows).sum(-1, keepdims=True)

    def client_noise(self, num_clients):
        return np.broadcast_to(np.asarray(self.noise_multiplier, float), num_clients).tolist()

    def noise_unit(self, divisor):
        return 1 / divisor

    def event(self, noise, batches, records, steps, rates):
        law = batches.sampling(records)
        adjacency = Adjacency.ADD_REMOVE if isinstance(law, Poisson) else Adjacency.REPLACE_ONE
        return LaplaceSteps(noise, law, adjacency, steps)

    def check(self, num_clients):
        fdp.parts.RecordGaussian(**vars(self)).check(num_clients)
