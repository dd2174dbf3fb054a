"""The cost of joining one sum of a pass, drawn at random and kept secret, with white Gaussian noise.

The ratio of densities of sums with and without the member is the mean of as many independent log-normals, one for each
sum: P = mean_j N(e_j, s^2) against Q = N(0, s^2) has dP/dQ = mean_j exp((2 y_j - 1) / (2 s^2)) (Choquette-Choo
et al. 2024, arXiv:2410.06266, Lemma 3.2; Feldman and Shenfeld 2025, arXiv:2502.08202). Both deltas,
E_Q (ratio - e^eps)_+ and E_Q (1 - e^eps ratio)_+, are means under Q of convex functions of it. So whatever spreads the
ratio and keeps its mean can only raise them, for both directions at once: log-normals, and every sum of two independent
ones, are put on the neighbouring points of a geometric grid so that mass and mean are kept. Sums are made by doubling.
"""

import functools
import math
from collections.abc import Callable

import numpy as np

from fedjax_dp.accounting.laws import DiscretePair, Dominating, GaussianPair
from fedjax_dp.accounting.losses import LossDistribution, discretise, split
from fedjax_dp.accounting.neighbours import NotCoveredError

POINTS_PER_DEVIATION = 100  # of the logarithm of a sum; the spread that is added costs up to 2e-4 of epsilon
REACH = 9.5  # standard deviations of a log-normal that are kept: all but 1e-21
TAIL_MASS = 1e-20  # left out at either end of a sum
LOST = 1e-19  # a total loss, for each sum of a pass: more than all that is left out
LEAST_NOISE = 0.05  # below it the member may as well be in a public sum, which costs at most 1% more
MOST_SUMS = 10**5


def of_pass(noise: float, blocks: tuple[tuple[int, int], ...]) -> tuple[Dominating, Dominating]:
    """Dominating pairs of a pass of blocks (m, count): the member joins one of m sums in each of `count` blocks.

    noise  standard deviation, divided by how far the member moves a sum; one block is exact up to its grid.
    Raises: NotCoveredError for more sums than can be added up.
    """
    (first, times), *others = blocks
    if not others and times == 1:
        return _of_block(noise, first)
    forward, reverse = zip(*(_of_block(noise, sums) for sums, _ in blocks), strict=True)
    counts = [count for _, count in blocks]
    return _compose(forward, counts), _compose(reverse, counts)


def _compose(directions: tuple[Dominating, ...], counts: list[int]) -> Dominating:
    """So many independent releases of each, as one."""
    every = list(zip(directions, counts, strict=True))
    square = sum(count * one.pairs[0].deviation ** 2 for one, count in every) / sum(counts)
    spacing = min(math.sqrt(square) / 20, 1e-2)
    total = functools.reduce(LossDistribution.plus, (discretise(one, spacing, n).times(n) for one, n in every))
    return Dominating((1.0,), (DiscretePair(total.losses, total.masses),), total.infinite_mass)


@functools.lru_cache(maxsize=64)
def _of_block(noise: float, sums: int) -> tuple[Dominating, Dominating]:
    if sums == 1 or noise < LEAST_NOISE:
        unsampled = Dominating((1.0,), (GaussianPair(noise, 1.0),))
        return unsampled, unsampled
    if sums > MOST_SUMS:
        raise NotCoveredError(
            f"one of {sums} sums is more than can be added up; take passes of at most {MOST_SUMS}, which cost no less"
        )
    total = _sums(noise)(sums)
    losses = total.losses - math.log(sums)
    up = DiscretePair(losses, total.masses * np.exp(losses))
    down = DiscretePair(-losses[::-1], total.masses[::-1])
    return Dominating((1.0,), (up,), LOST * sums), Dominating((1.0,), (down,), LOST * sums)


def _sums(noise: float) -> Callable[[int], LossDistribution]:
    """The law under Q of the logarithm of a sum of so many ratios."""

    def deviation(sums: int) -> float:
        return math.sqrt(math.log1p(math.expm1(min(noise**-2, 700.0)) / sums))

    @functools.cache
    def of(sums: int) -> LossDistribution:
        halvings = math.floor(math.log2(deviation(1) / deviation(sums)))
        spacing = deviation(1) / POINTS_PER_DEVIATION / 2**halvings
        if sums == 1:
            mean, width = 1 / (2 * noise**2), REACH / noise
            edges = np.arange(math.floor((-mean - width) / spacing), math.ceil((mean + width) / spacing) + 1)
            upper, lower, _, _ = GaussianPair(noise, 1.0).cells(edges * spacing)
            masses = split(edges * spacing, upper, lower) * np.exp(-edges * spacing)
            return LossDistribution(spacing, int(edges[0]), masses)
        return _trim(_add_on_grid(of(sums // 2), of(sums - sums // 2), spacing), sums)

    return of


def _add_on_grid(one: LossDistribution, other: LossDistribution, spacing: float) -> LossDistribution:
    """Logarithm of the sum of what both are logarithms of, on a grid of which theirs are part."""
    shared = min(one.spacing, other.spacing)
    finer = round(shared / spacing)
    alike = one is other
    one, other = _on_grid(one, shared), _on_grid(other, shared)
    a, b = one.masses, other.masses
    apart = other.lowest - one.lowest
    distances = np.arange(0 if alike else apart - a.size + 1, apart + b.size)
    decays = np.exp(-np.abs(distances) * shared)
    steps = np.floor(np.log1p(decays) / spacing)  # from the larger of the two to the grid point below the sum
    shares = np.clip((decays - np.expm1(steps * spacing)) / (np.exp(steps * spacing) * math.expm1(spacing)), 0.0, 1.0)
    below = dict(zip(distances.tolist(), steps.astype(int).tolist(), strict=True))
    lowest = finer * max(one.lowest, other.lowest) + below[apart]
    top = apart + b.size - a.size
    highest = finer * (one.lowest + a.size - 1 + max(top, 0)) + below[top]
    masses = np.zeros(highest - lowest + 2)
    for (distance, step), share in zip(below.items(), shares.tolist(), strict=True):
        start, end = max(0, apart - distance), min(a.size, apart + b.size - distance)
        both = a[start:end] * b[start + distance - apart : end + distance - apart]
        if alike and distance:
            both *= 2
        at = finer * (one.lowest + start + max(distance, 0)) + step - lowest
        high = share * both
        masses[at : at + finer * both.size : finer] += both - high
        masses[at + 1 : at + 1 + finer * both.size : finer] += high
    return LossDistribution(spacing, lowest, masses)


def _on_grid(law: LossDistribution, spacing: float) -> LossDistribution:
    """The same on a grid that its own is part of."""
    finer = round(law.spacing / spacing)
    masses = np.zeros(finer * (law.masses.size - 1) + 1)
    masses[::finer] = law.masses
    return LossDistribution(spacing, law.lowest * finer, masses)


def _trim(law: LossDistribution, sums: int) -> LossDistribution:
    """Without the ends that hardly matter under either law."""
    matters = law.masses * np.maximum(1.0, np.exp(law.losses - math.log(sums)))
    low = int(np.argmax(np.cumsum(matters) > TAIL_MASS))
    high = matters.size - int(np.argmax(np.cumsum(matters[::-1]) > TAIL_MASS))
    return LossDistribution(law.spacing, law.lowest + low, law.masses[low:high])
