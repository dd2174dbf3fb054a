"""Lower bounds on epsilon from the errors of an attack, and the choice of its threshold and test beforehand.

An attack runs many times in each of two worlds, on two neighbouring data sets. It answers "positive" if its score is
above the threshold, and should do so in the positive world only. All results assume independent trials, and an attack,
a threshold and a test that were fixed before the trials that are counted.

There are two tests. "Halves" bounds both error rates, each with half of the significance; "joint" bounds their mean
with all of it. Joint is tighter if both errors are about equally frequent, halves if one is rare. Each test yields a
corner (see `ErrorBounds`), and all conclusions follow from the corner alone.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from scipy.special import ndtr, ndtri

from fedjax_dp import errors

TINY = 1e-300  # stands for rates of zero, so that they have a probit
PROBES = 200  # thresholds that are compared, evenly spaced in probits of ranks
DOUBT = 1.0  # standard deviations of the pilot's evidence that are taken off it
LEAST_MU = 1e-6  # that a curve is taken to allow, so that one can divide by it
MISFIT = 3.0  # standard deviations by which a smooth curve may miss the pilot's evidence


@dataclasses.dataclass(frozen=True)
class ErrorBounds:
    """Upper bounds on the error rates of an attack with confidence 1 - `significance`.

    false_positive, false_negative   bounds on both rates, which hold together, by halves. With a joint test they are
                                     for display only, and do not hold together with `mean`;
    mean                             bound on the mean of both rates, by the joint test; None if the test is by halves.
    The bounds follow from counts: `false_positives` among `negatives` trials of the negative world, and
    `false_negatives` among `positives` trials of the positive world.
    """

    false_positive: float
    false_negative: float
    significance: float
    false_positives: int
    negatives: int
    false_negatives: int
    positives: int
    mean: float | None = None

    @property
    def corner(self) -> tuple[float, float]:
        """Error rates (a, b) which refute every trade-off curve f with f(a) > b, with confidence 1 - `significance`.

        Both rates' bounds, or twice that of their mean. Proof: a promise f, which is convex and falls, is kept in
        either order of the neighbours. So an attack's rates x, y have f(x) <= y and f(y) <= x. Halves: if x <= a and
        y <= b then f(a) <= f(x) <= y <= b. Joint: with m = (x + y) / 2 <= a = b,
        f(a) <= f(m) <= (f(x) + f(y)) / 2 <= m <= b. Either way f(a) > b refutes, for all f at once. Joint, this is the
        test of total variation, since the least x + f(x) is twice the rate at which f(x) = x.
        """
        return (self.false_positive, self.false_negative) if self.mean is None else (self.mean, self.mean)


class ChosenTest(NamedTuple):
    """A test for future trials: a score above `threshold` counts as positive.

    promise  its expected evidence, see `choose_test`; above 0 it is expected to contradict the curve.
    """

    threshold: float
    joint: bool
    significance: float
    promise: float

    def judge(self, absent: np.ndarray, present: np.ndarray) -> ErrorBounds:
        """Bounds from the scores of new trials in the negative world (`absent`) and in the positive world."""
        wrong = np.asarray(absent) > self.threshold, ~(np.asarray(present) > self.threshold)
        return error_bounds(
            int(wrong[0].sum()), wrong[0].size, int(wrong[1].sum()), wrong[1].size, self.significance, joint=self.joint
        )


def error_bounds(
    false_positives: int,
    negatives: int,
    false_negatives: int,
    positives: int,
    significance: float = 0.05,
    *,
    joint: bool = False,
) -> ErrorBounds:
    """Upper bounds on the error rates of an attack from its errors, too low with probability `significance` at most.

    Halves: each rate's bound is exact for binomial counts. In n flawless trials the bound is about
            ln(2 / significance) / n.
    Joint:  with n trials in either world let K be all errors, m the mean of both rates, B(k) = P(Bin(2n, m) <= k). The
            bound is the larger of (K + 1) / 2n and of Clopper's and Pearson's for K of 2n. Let c be the largest K whose
            bound is below m. Then c <= 2nm - 1 and B(c) < significance; so it suffices that P(K <= c) <= B(c), which
            is Hoeffding's theorem for trials of unequal rates and just such c. For two rates m - d and m + d, m <= 1/2:
            dP(K <= c)/dd = 2nd (P(T = c - 1) - P(T = c)) with T the errors in n - 1 trials of each world. The law of
            T rises up to a mode less than 1 away from its mean 2nm - 2m >= c, so at least up to c, and the derivative
            is at most 0: equal rates are the worst case. (K + 1) / 2n matters only for a significance above 1/4, or
            where all trials but one were errors.
    Raises: ConfigurationError for invalid counts, for a joint test of unequal numbers of trials, and if the
            significance is outside (0, 1).
    Source: Clopper and Pearson 1934 for a rate, the union bound for halves; for joint Hoeffding 1956 (Annals of
            Mathematical Statistics 27), the theorem on P(S <= c) for c <= np - 1; Darroch 1964 for the mode.

    >>> bounds = error_bounds(0, 1000, 20, 1000)
    >>> round(bounds.false_positive, 5), round(bounds.false_negative, 5)
    (0.00368, 0.03072)
    >>> round(error_bounds(10, 1000, 10, 1000).false_negative, 5)
    0.01831
    >>> round(error_bounds(10, 1000, 10, 1000, joint=True).mean, 5)
    0.0145
    """
    errors.require_in_unit_interval("significance", significance)
    for what, wrong, world, trials in (
        ("false positives", false_positives, "negatives", negatives),
        ("false negatives", false_negatives, "positives", positives),
    ):
        errors.require_count(world, trials)
        errors.require_integer(f"{what} among {trials} {world}", wrong, 0, trials)
    if joint and negatives != positives:
        raise errors.refuse(
            "trials of a joint test", f"{negatives} negatives and {positives} positives", "as many of either world"
        )
    counts = false_positives, negatives, false_negatives, positives
    each = _corner(*counts, significance, joint=False)
    mean = float(_corner(*counts, significance, joint=True)[0]) if joint else None
    return ErrorBounds(float(each[0]), float(each[1]), significance, *counts, mean)


def epsilon_of_any(bounds: ErrorBounds, delta: float) -> float:
    """Lower bound on the epsilon at `delta` of every mechanism with these error rates; 0 if nothing follows.

    Proved with confidence 1 - `significance`. An (epsilon, delta)-private mechanism has 1 - fn <= e^epsilon fp + delta,
    and the same with the rates exchanged; the larger of the two bounds counts, since both follow from one corner. For a
    joint test, with fp = fn half the sum of the rates, this is the bound on total variation:
    1 - sum <= (e^epsilon - 1 + 2 delta) / (e^epsilon + 1).
    Limits: with n trials in either world at most about ln(n / ln(2 / significance)), however weak the privacy; joint
            ln(2n / ln(1 / significance)).
    Source: Kairouz, Oh, Viswanath 2015, arXiv:1311.0776, Theorem 2.1, read backwards.
    """
    errors.require_delta(delta)
    fp, fn = bounds.corner
    return max(_implied_epsilon(fp, fn, delta), _implied_epsilon(fn, fp, delta))


def mu_of(bounds: ErrorBounds) -> float:
    """Signed lower bound on mu of Gaussian differential privacy, from the error rates: Phi^-1(1 - fp) - Phi^-1(fn).

    Proved: a mu-GDP mechanism has mu >= this with confidence 1 - `significance`; joint, it is -2 Phi^-1(mean). Zero or
    a negative value proves nothing: upper bounds on the rates do not describe an attack that errs often. So never take
    the absolute value.
    Limits: -inf where every trial of a world was an error.
    Source: Nasr et al. 2023, arXiv:2302.07956, section 4 (deviations: none).
    """
    fp, fn = bounds.corner
    return float(-ndtri(fp) - ndtri(fn))


def choose_test(
    negatives: np.ndarray,
    positives: np.ndarray,
    evaluated: int,
    significance: float = 0.05,
    curve: "Callable[[np.ndarray], np.ndarray] | None" = None,
    tests: tuple[bool, ...] = (False, True),
) -> ChosenTest:
    """The threshold and the test with the strongest expected evidence from `evaluated` new trials per world.

    negatives, positives   pilot scores of either world, `(A,)` and `(B,)`, of which the positive ones tend to be the
                           larger; infinities are allowed. They must not be counted in the trials that follow.
    curve                  the trade-off curve to contradict, such as a `TradeOff`; without one, that of some mu-GDP;
    tests                  candidates: joint or not.

    Evidence measures how far the corner (fp, fn) would lie below the curve f if each count equalled its mean:
    Phi^-1(f(fp)) - Phi^-1(fn), relative to what the curve allows there. It is about the relative lack of noise. The
    means come from the pilot's error rates. The rates at one threshold are noisy, and the best of many noisy thresholds
    is the luckiest. So the pilot's own gap below the curve (zero everywhere if the curve is true and the attack
    optimal) is replaced by a parabola in the probit of the pooled rank, unless that misses it anywhere by three
    standard deviations; then one standard deviation is subtracted. The bounds that follow are valid for every choice,
    as it is made before the trials. To apply both tests and keep the better one is not valid.
    Limits: all scores equal -> that score; worlds that do not overlap -> the middle between them.
    Raises: ConfigurationError for no scores or NaN.
    """
    errors.require_in_unit_interval("significance", significance)
    errors.require_count("evaluated", evaluated)
    worlds = [np.sort(np.asarray(scores, float).ravel()) for scores in (negatives, positives)]
    for what, scores in zip(("negative", "positive"), worlds, strict=True):
        if not scores.size or np.isnan(scores).any():
            got = "NaN among them" if scores.size else "none"
            raise errors.refuse(f"pilot scores of the {what} world", got, "at least one number and no NaN")
    if worlds[0][-1] < worlds[1][0]:
        return ChosenTest(float(_between(worlds[0][-1:], worlds[1][:1])[0]), tests[-1], significance, np.inf)
    thresholds, ranks = _candidates(*worlds)
    if not thresholds.size:
        return ChosenTest(float(worlds[0][0]), tests[-1], significance, -np.inf)
    below = [np.searchsorted(scores, thresholds, side="right") for scores in worlds]
    fp = (worlds[0].size - below[0] + 0.5) / (worlds[0].size + 1)
    fn = (below[1] + 0.5) / (worlds[1].size + 1)

    def reach(rates: np.ndarray) -> np.ndarray:
        allowed = 1 - rates if curve is None else np.asarray(curve(rates))
        return ndtri(np.maximum(allowed, TINY))

    doubt = np.hypot(_probit_deviation(fp, worlds[0].size), _probit_deviation(fn, worlds[1].size))
    seen = reach(fp) - ndtri(fn)
    smooth = _parabola(ranks, seen, doubt)
    believed = smooth if (np.abs(smooth - seen) < MISFIT * doubt).all() else seen
    wrong = evaluated * fp, evaluated, evaluated * ndtr(reach(fp) - believed), evaluated
    plans = []
    for joint in tests:
        corner = _corner(*wrong, significance, joint)
        allowed = np.maximum(-ndtri(corner[0]) - reach(corner[0]), LEAST_MU)
        evidence = (reach(corner[0]) - ndtri(np.maximum(corner[1], TINY)) - DOUBT * doubt) / allowed
        best = int(np.argmax(evidence))
        plans.append(ChosenTest(float(thresholds[best]), joint, significance, float(evidence[best])))
    return max(plans, key=lambda plan: plan.promise)


def _corner(
    false_positives: "np.ndarray | float",
    negatives: int,
    false_negatives: "np.ndarray | float",
    positives: int,
    significance: float,
    joint: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """The corner that so many errors yield; the counts may be means, and so not whole."""
    if joint:
        wrong, trials = false_positives + false_negatives, negatives + positives
        mean = np.maximum(_upper(wrong, trials, significance), np.minimum((wrong + 1) / trials, 1.0))
        return mean, mean
    return _upper(false_positives, negatives, significance / 2), _upper(false_negatives, positives, significance / 2)


def _upper(wrong: "np.ndarray | float", trials: int, significance: float) -> np.ndarray:
    """Clopper-Pearson upper bound on a rate; `wrong` may be a mean count, and so not whole."""
    left = np.asarray(trials - np.asarray(wrong, float))
    bound = scipy.stats.beta.isf(significance, np.asarray(wrong, float) + 1, np.maximum(left, 1e-9))
    return np.where(left > 1e-9, bound, 1.0)


def _implied_epsilon(fp: float, fn: float, delta: float) -> float:
    """ln((1 - fn - delta) / fp), at least 0."""
    return max(math.log((1 - fn - delta) / fp), 0.0) if 1 - fn > delta else 0.0


def _candidates(negatives: np.ndarray, positives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Thresholds between different pilot scores, and the probits of their pooled ranks; both `(K,)`."""
    pooled = np.sort(np.concatenate([negatives, positives]))
    cuts = np.flatnonzero(pooled[:-1] < pooled[1:])  # so many scores, and one, are at or below the cut
    if not cuts.size:
        return np.empty(0), np.empty(0)
    ranks = ndtri((cuts + 1) / pooled.size)
    wanted = np.searchsorted(ranks, np.linspace(ranks[0], ranks[-1], PROBES))
    cut = cuts[np.unique(np.minimum(wanted, cuts.size - 1))]
    return _between(pooled[cut], pooled[cut + 1]), ndtri((cut + 1) / pooled.size)


def _between(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Thresholds with `low` at or below and `high` above: the middle, where floats have one."""
    with np.errstate(invalid="ignore"):
        middle = low / 2 + high / 2
    return np.where(np.isfinite(middle) & (middle > low) & (middle < high), middle, low)


def _probit_deviation(rates: np.ndarray, trials: int) -> np.ndarray:
    """Standard deviation of the probit of an observed rate."""
    return np.sqrt(rates * (1 - rates) / trials) * math.sqrt(2 * math.pi) * np.exp(ndtri(rates) ** 2 / 2)


def _parabola(at: np.ndarray, values: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """Least squares; the values themselves if there are hardly more of them than coefficients."""
    if at.size <= 6:
        return values
    powers = np.vander(at / np.abs(at).max(), 3) / deviations[:, None]
    return powers @ np.linalg.lstsq(powers, values / deviations, rcond=None)[0] * deviations
