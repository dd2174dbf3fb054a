"""The pairs of laws that dominate one release: where sampling theorems are stated, once.

All lengths are in units of the sensitivity. PLD and RDP accountants both read these pairs, so they cannot disagree on
what was sampled.
"""

import dataclasses

import numpy as np
import scipy
from scipy.special import logsumexp

from fedjax_dp.accounting.laws import GaussianPair, LawPair
from fedjax_dp.accounting.neighbours import Adjacency, NotCoveredError
from fedjax_dp.accounting.sampling import (
    AnyStep,
    Poisson,
    Refilled,
    Sampling,
    Shuffled,
    WithoutReplacement,
    WithReplacement,
)

MULTIPLICITIES = 20  # kept apart when drawing with replacement
NEGLIGIBLE = 1e-18  # chance of multiplicities that are counted as a total loss
LARGEST_NOISE = 1e6


@dataclasses.dataclass(frozen=True)
class Dominating:
    """What dominates one release in one direction: a public draw of a pair, and the chance of a total loss."""

    weights: tuple[float, ...]
    pairs: tuple[LawPair, ...]
    lost: float = 0.0


def divergence(worst: Dominating, orders: np.ndarray) -> np.ndarray:
    """Renyi divergence of a public draw of pairs, per order, outside the total loss."""
    if len(worst.pairs) == 1:
        return worst.pairs[0].renyi(orders)
    # a public draw averages exp((a - 1) D); for pairs that are hardly ever drawn a quick bound will do
    drawn = zip(worst.weights, worst.pairs, strict=True)
    parts = np.array([(orders - 1) * pair.renyi(orders, quick=weight < 1e-6) for weight, pair in drawn])
    mixed: np.ndarray = logsumexp(parts, axis=0, b=np.array(worst.weights)[:, None]) / (orders - 1)
    return mixed


def of_gaussian(noise_multiplier: float, sampling: Sampling, adjacency: Adjacency) -> tuple[Dominating, ...]:
    """Dominating pairs of one sampled sum with Gaussian noise, one per direction; the worse of the composition counts.

    | sampling               | adjacency   | pair, in sensitivities                  | source                      |
    | none, epochs, refilled | either      | N(1) against N(0)                       | exact                       |
    | Poisson                | add-remove  | (1-q)N(0)+qN(1) against N(0), both ways | Zhu, Dong, Wang 2022, Th 11 |
    | Poisson                | replace-one | (1-q)N(0)+qN(1/2) against ...+qN(-1/2)  | Schuchardt et al. 2024      |
    | WithoutReplacement     | replace-one | (1-q)N(0)+qN(1) against N(0), symmetric | Balle et al. 2018, Th 9     |
    | AnyStep                | replace-one | the same, q of any step                 | the same                    |
    | WithReplacement        | replace-one | the same, multiplicity drawn in public  | Balle et al. 2018, Th 10    |

    Where a theorem of Balle, Barthe and Gaboardi (arXiv:1807.01647) bounds the curve for eps >= 0 only, replace-one is
    symmetric, which fixes the curve below zero: that is what `symmetrised` does, and what composition needs.
    """
    # less noise than there is can only cost more, and no float could tell such small losses apart
    noise, rate = min(noise_multiplier / adjacency.sensitivity, LARGEST_NOISE), sampling.rate
    if isinstance(sampling, WithReplacement):
        return (_by_multiplicity(sampling, noise),)
    if rate == 1:
        return (Dominating((1.0,), (GaussianPair(noise, 1.0),)),)
    if isinstance(sampling, Poisson):
        if adjacency is Adjacency.ADD_REMOVE:
            both = GaussianPair(noise, rate), GaussianPair(noise, 0.0, rate)
            return tuple(Dominating((1.0,), (pair,)) for pair in both)
        # the two records differ by 2 C from each other, but only by C from their absence
        return (Dominating((1.0,), (GaussianPair(min(noise_multiplier, LARGEST_NOISE), rate, rate),)),)
    assert isinstance(sampling, WithoutReplacement | AnyStep)
    return (Dominating((1.0,), (GaussianPair(noise, rate, symmetrised=True),)),)


def attained_by_gaussian(noise_multiplier: float, sampling: Sampling, adjacency: Adjacency) -> tuple[Dominating, ...]:
    """The pair that two real neighbours attain, in both directions. No valid accountant reports less.

    With batches of fixed size every other record has gradient -C e; the exchanged one has C e in one dataset and -C e
    in the other. So one dataset's sum is always the same, and the other's is off by the full sensitivity exactly when
    the record is drawn. Under Poisson sampling, or none, the dominating pair itself is attained, and so it is
    by shuffled passes whose order is public, unless they drop records.
    Raises: NotCoveredError where no such pair is known in this form.
    """
    dropping = isinstance(sampling, Shuffled) and sum(sampling.sizes) < sampling.records
    if dropping or isinstance(sampling, WithReplacement | AnyStep | Refilled):
        raise NotCoveredError(f"no pair of neighbours with a closed form is at hand for {sampling}")
    if sampling.rate == 1 or isinstance(sampling, Poisson):
        return of_gaussian(noise_multiplier, sampling, adjacency)
    noise, rate = min(noise_multiplier / adjacency.sensitivity, LARGEST_NOISE), sampling.rate
    return tuple(Dominating((1.0,), (pair,)) for pair in (GaussianPair(noise, rate), GaussianPair(noise, 0.0, rate)))


def _by_multiplicity(sampling: WithReplacement, noise: float) -> Dominating:
    """With probability proportional to the binomial law of the multiplicity m >= 1, noise falls to noise / m.

    Multiplicities that are too rare, or too many to tell apart, are counted as larger ones, which can only cost more.
    """
    rate, law = sampling.rate, scipy.stats.binom(sampling.draws, 1 / sampling.records)
    times = np.arange(1, sampling.draws + 1)
    low = max(int(np.argmax(law.cdf(times) > NEGLIGIBLE)), 0)
    high = int(np.argmax(law.sf(times) <= NEGLIGIBLE))
    ends = np.unique(np.linspace(low, high, MULTIPLICITIES + 1).round().astype(int))[1:] if high > low else [high]
    if high - low < MULTIPLICITIES:
        ends = np.arange(low, high + 1)
    kept = times[np.asarray(ends)]
    weights = np.diff(law.cdf(kept), prepend=law.pmf(0)) / rate
    pairs = tuple(GaussianPair(noise / m, rate, symmetrised=rate < 1) for m in kept.tolist())
    return Dominating(tuple(np.maximum(weights, 0.0).tolist()), pairs, NEGLIGIBLE / rate)
