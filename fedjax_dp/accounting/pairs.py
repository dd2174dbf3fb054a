"""Dominating pairs of one release: the only place that states sampling theorems.

Lengths are in units of the sensitivity. PLD and RDP accountants both use these pairs, so they agree on the sampling.
"""

import math

import numpy as np
import scipy
from scipy.special import logsumexp

from fedjax_dp.accounting import allocation
from fedjax_dp.accounting.laws import Dominating, GaussianPair, ShiftMixture
from fedjax_dp.accounting.neighbours import Adjacency, NotCoveredError
from fedjax_dp.accounting.sampling import (
    AnyStep,
    BallsInBins,
    FullBatch,
    Poisson,
    RandomAllocation,
    Sampling,
    Shuffled,
    TruncatedPoisson,
    WithoutReplacement,
    WithReplacement,
)

MULTIPLICITIES = 20  # kept apart when drawing with replacement
NEGLIGIBLE = 1e-18  # chance of multiplicities that are counted as a total loss
LARGEST_NOISE = 1e6


def divergence(worst: Dominating, orders: np.ndarray) -> np.ndarray:
    """Renyi divergence of a public draw among pairs at each order, without the infinite loss."""
    if len(worst.pairs) == 1:
        return worst.pairs[0].renyi(orders)
    # a public draw averages exp((a - 1) D); for pairs that are hardly ever drawn a quick bound will do
    drawn = zip(worst.weights, worst.pairs, strict=True)
    parts = np.array([(orders - 1) * pair.renyi(orders, quick=weight < 1e-6) for weight, pair in drawn])
    return logsumexp(parts, axis=0, b=np.array(worst.weights)[:, None]) / (orders - 1)


def of_gaussian(
    noise_multiplier: float, sampling: Sampling, adjacency: Adjacency, group: int = 1
) -> tuple[Dominating, ...]:
    """Dominating pairs of one sampled sum with Gaussian noise, one per direction; after composition the worse counts.

    | sampling               | adjacency   | pair, in sensitivities                  | source                      |
    | none, epochs           | any         | N(1) against N(0)                       | exact                       |
    | Poisson                | in or out   | (1-q)N(0)+qN(1) against N(0), both ways | Zhu, Dong, Wang 2022, Th 11 |
    | Poisson                | replace-one | (1-q)N(0)+qN(1/2) against ...+qN(-1/2)  | Schuchardt et al. 2024      |
    | WithoutReplacement     | replace-one | (1-q)N(0)+qN(1) against N(0), symmetric | Balle et al. 2018, Th 9     |
    | AnyStep                | replace-one | the same, q of any step                 | the same                    |
    | WithReplacement        | replace-one | the same, multiplicity drawn in public  | Balle et al. 2018, Th 10    |
    | RandomAllocation       | in or out   | of a pass, see `allocation`; both ways  | Feldman, Shenfeld 2025      |
    | BallsInBins            | in or out   | the same, 1 sum of a pass               | arXiv:2410.06266, Lemma 3.2 |
    | TruncatedPoisson       | zero-out    | Poisson's; in public, where too many    | arXiv:2508.15089            |
    |                        |             | join: (1-q')N(0)+q'N(2) against ...-2   |                             |

    In or out: add-remove, or zero-out. Of kept slots (`BallsInBins`) the noise is that of one pass.

    Where a theorem of Balle, Barthe and Gaboardi (arXiv:1807.01647) bounds the curve for eps >= 0 only, replace-one is
    symmetric, which fixes the curve below zero: that is what `symmetrised` does, and what composition needs.

    A `group` of k members that belong together, of which j are drawn:

    | none, epochs           | any         | N(k) against N(0), as shifts add up                    |
    | Poisson                | in or out   | sum_j Bin(j; k, q) N(j) against N(0), both ways        |
    | WithoutReplacement     | replace-one | q of any; then j >= 1 drawn in public, N(j), symmetric |

    The second is Ganesh 2024, arXiv:2401.10294. The last: with chance 1 - q no member is drawn. Batches with j >= 1 of
    them are coupled with batches that have none by exchanging the j for others, and with those of the neighbour by
    exchanging them for their substitutes; both move the sum by at most j sensitivities, so advanced joint convexity
    (arXiv:1807.01647, Theorem 2) applies as it does for draws with replacement.
    Raises: NotCoveredError for other samplings of a group.
    """
    # less noise than there is can only cost more, and no float could tell such small losses apart
    noise, rate = min(noise_multiplier / adjacency.sensitivity, LARGEST_NOISE), sampling.rate
    if isinstance(sampling, WithReplacement):
        _require_single(sampling, group)
        multiplicity = scipy.stats.binom(sampling.draws, 1 / sampling.records)
        return (_by_number_drawn(multiplicity.pmf(np.arange(1, sampling.draws + 1)), rate, noise),)
    if isinstance(sampling, TruncatedPoisson):
        _require_single(sampling, group)
        return _of_truncated(sampling, noise)
    if rate == 1:
        return (Dominating((1.0,), (GaussianPair(noise / group / math.sqrt(sampling.sums_per_member), 1.0),)),)
    if group > 1:
        return _of_group(noise, sampling, adjacency, group)
    if isinstance(sampling, RandomAllocation | BallsInBins):
        return allocation.of_pass(noise, sampling.blocks)
    if isinstance(sampling, Poisson):
        if adjacency is not Adjacency.REPLACE_ONE:
            return tuple(Dominating((1.0,), (pair,)) for pair in _in_or_out(noise, rate))
        # the two records differ by 2 C from each other, but only by C from their absence
        return (Dominating((1.0,), (GaussianPair(min(noise_multiplier, LARGEST_NOISE), rate, rate),)),)
    assert isinstance(sampling, WithoutReplacement | AnyStep)
    return (Dominating((1.0,), (GaussianPair(noise, rate, symmetrised=True),)),)


def _in_or_out(noise: float, rate: float) -> tuple[GaussianPair, GaussianPair]:
    """A member that is there with probability `rate` against its absence, in both directions."""
    return GaussianPair(noise, rate), GaussianPair(noise, 0.0, rate)


def _of_truncated(sampling: TruncatedPoisson, noise: float) -> tuple[Dominating, ...]:
    """Whether enough others join is public: then a member may take the place of one of them, which moves a sum by 2."""
    chance, stays = sampling.chance_truncated, sampling.rate_truncated
    both = _in_or_out(noise, sampling.rate)
    if chance < NEGLIGIBLE:
        return tuple(Dominating((1.0,), (pair,), chance) for pair in both)
    exchanged = GaussianPair(noise / 2, stays, stays)
    return tuple(Dominating((1 - chance, chance), (pair, exchanged)) for pair in both)


def _of_group(noise: float, sampling: Sampling, adjacency: Adjacency, group: int) -> tuple[Dominating, ...]:
    if isinstance(sampling, Poisson) and adjacency is not Adjacency.REPLACE_ONE:
        return _both_ways(scipy.stats.binom(group, sampling.rate).pmf(np.arange(group + 1)), noise)
    if not isinstance(sampling, WithoutReplacement):
        _require_single(sampling, group)
    assert isinstance(sampling, WithoutReplacement)
    chances = _members_drawn(sampling, group)[1:]
    return (_by_number_drawn(chances, min(float(chances.sum()), 1.0), noise),)


def _members_drawn(sampling: WithoutReplacement, group: int) -> np.ndarray:
    """The chances that 0, 1, ... members of the group are in a batch: the hypergeometric law, (group + 1,).

    Each is the one before times a ratio, from the least number on. SciPy's own, of logarithms of factorials, add up to
    .99 among 1e8 records, and a share that every step misses is missing in delta.
    """
    records, batch = sampling.records, sampling.batch_size
    least, most = max(batch - (records - group), 0), min(group, batch)
    one = np.arange(least, most, dtype=float)
    ratios = (group - one) * (batch - one) / ((one + 1) * (records - group - batch + one + 1))
    logs = np.append(0.0, np.cumsum(np.log(ratios)))
    chances = np.zeros(group + 1)
    chances[least : most + 1] = np.exp(logs - logsumexp(logs))
    return chances


def _require_single(sampling: Sampling, group: int) -> None:
    if group > 1:
        raise NotCoveredError(
            f"nothing is proved of {group} records of one unit under {sampling} for these neighbours; use Poisson with "
            "add-remove, without-replacement with replace-one, or sample units instead of records"
        )


def _both_ways(chances: np.ndarray, noise: float) -> tuple[Dominating, ...]:
    """Mixtures of shifts by as many members as are drawn, 0, 1, ..., against none, in both directions."""
    below, above = np.cumsum(chances), np.cumsum(chances[::-1])[::-1]
    kept = (below > NEGLIGIBLE) & (above > NEGLIGIBLE)
    shifts, law = tuple(np.flatnonzero(kept).tolist()), tuple(chances[kept].tolist())
    infinite_mass = float(chances[~kept].sum())
    return tuple(Dominating((1.0,), (ShiftMixture(noise, shifts, law, down),), infinite_mass) for down in (False, True))


def attained_by_gaussian(
    noise_multiplier: float, sampling: Sampling, adjacency: Adjacency, group: int = 1
) -> tuple[Dominating, ...]:
    """The pair that two real neighbours attain, in both directions: no valid accountant reports less.

    With batches of fixed size every other record has gradient -C e; the exchanged one has C e in one dataset and -C e
    in the other. So one dataset's sum is always the same, and the other's is off by the full sensitivity exactly when
    the record is drawn; in shuffled passes of equal batches whose order is secret that is once, in a batch drawn like a
    random allocation. Under Poisson sampling, allocations of one sum, or none, the dominating pair itself is attained.
    In truncated cohorts of which all others contribute nothing, the member counts where it stays. A group's members all
    do the same; in shuffled passes they need not share a batch.
    Raises: NotCoveredError where no such pair is known in this form.
    """
    noise = min(noise_multiplier / adjacency.sensitivity, LARGEST_NOISE)
    match sampling:
        case Shuffled() if group == 1 and sampling.batch_size * sampling.steps_per_epoch == sampling.records:
            return allocation.of_pass(noise, ((sampling.steps_per_epoch, 1),))
        case FullBatch() | Poisson() | BallsInBins():
            return of_gaussian(noise_multiplier, sampling, adjacency, group)
        case WithoutReplacement() | RandomAllocation() if sampling.rate == 1:
            return of_gaussian(noise_multiplier, sampling, adjacency, group)
        case RandomAllocation() if sampling.chosen == 1:
            return of_gaussian(noise_multiplier, sampling, adjacency, group)
        case WithoutReplacement() if group > 1:
            return _both_ways(_members_drawn(sampling, group), noise)
        case WithoutReplacement():
            rate = sampling.rate
        case TruncatedPoisson() if group == 1:
            rate = sampling.inclusion
        case _:
            raise NotCoveredError(f"no pair of neighbours with a closed form is known for {sampling}")
    return tuple(Dominating((1.0,), (pair,)) for pair in _in_or_out(noise, rate))


def _by_number_drawn(chances: np.ndarray, rate: float, noise: float) -> Dominating:
    """With probability proportional to `chances` of the multiplicity m = 1, 2, ..., noise falls to noise / m.

    rate  chance of any.
    Multiplicities that are too rare, or too many to tell apart, are counted as larger ones, which can only cost more;
    those above the largest also as a loss without bound, of a member that is drawn.
    """
    below, above = np.cumsum(chances), np.append(np.cumsum(chances[:0:-1])[::-1], 0.0)
    low, high = int(np.argmax(below > NEGLIGIBLE)), int(np.argmax(above <= NEGLIGIBLE))
    ends = np.unique(np.linspace(low, high, MULTIPLICITIES + 1).round().astype(int))[1:] if high > low else [high]
    if high - low < MULTIPLICITIES:
        ends = np.arange(low, high + 1)
    ends = np.asarray(ends)
    weights = np.add.reduceat(chances, np.append(0, ends[:-1] + 1)) / chances.sum()
    pairs = tuple(GaussianPair(noise / (end + 1), rate, symmetrised=rate < 1) for end in ends.tolist())
    return Dominating(tuple(weights.tolist()), pairs, NEGLIGIBLE)
