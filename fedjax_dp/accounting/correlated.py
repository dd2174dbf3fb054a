"""Gaussian noise that is correlated over releases, so that it largely cancels in the iterates of training.

The releases of a run are G + z C^-1 W: row t of G is the sum of round t, per unit clip norm, W is white and standard
normal, and the strategy C is a lower triangular Toeplitz matrix with ones on its diagonal. They are C^-1 (C G + z W),
so the run is computed from one Gaussian release of C G, whose sensitivity is that of C to all rounds of one member.
This holds although later contributions depend on earlier releases (Denisov et al. 2022, arXiv:2202.08312). So the event
of the run is

    GaussianSteps(z / sensitivity(column, participations, separation), FullBatch(), adjacency, 1, unit)

for add-remove or zero-out neighbours with contributions of norm at most 1, if participation is public. Replace-one,
with the new member in the same releases, doubles the sensitivity: `Adjacency.sensitivity` does that.

A matrix is described by its first column `(rounds,)`, a power series; its inverse is that of the series.

>>> white, root = np.eye(1, 100)[0], inverse(inverse_root_bands(8), 100)
>>> round(sensitivity(root, participations=4, separation=25), 3)
2.815
>>> [round(sensitivity(c, 4, 25) * iterate_error(c), 2) for c in (white, root)]
[14.21, 5.32]
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from fedjax_dp import errors

METRICS: dict[str, Callable[[np.ndarray], float]] = {  # of the variances of iterates
    "mean": np.mean,
    "largest": np.max,
    "last": lambda variances: variances[-1],
}
MOST_DENSE = 4096  # rounds of which matrices are stored
CLOSE = 1e-3  # share of a gap between the parameters of a new buffer, so that it begins with no effect
ROUNDING = 1e-12  # of series


@dataclasses.dataclass(frozen=True)
class Workload:
    """How the sums of rounds become iterates: m <- momentum m + g_t, then w <- decay w - rate_t m.

    rates  of each round; None: 1 in all of them.
    """

    momentum: float = 0.0
    decay: float = 1.0
    rates: tuple[float, ...] | None = None

    @property
    def poles(self) -> np.ndarray:
        """The polynomial (1 - decay x) (1 - momentum x), the inverse series of the workload at a constant rate."""
        return np.convolve([1.0, -self.decay], [1.0, -self.momentum])

    def column(self, rounds: int) -> np.ndarray:
        """The effect of a sum on the iterates from its round on, at rate 1 `(rounds,)`."""
        return inverse(self.poles, rounds)

    def matrix(self, rounds: int) -> np.ndarray:
        """The effect of the sum of each round on each iterate `(iterates, rounds)`."""
        rates = np.ones(rounds) if self.rates is None else np.asarray(self.rates, float)
        if rates.size != rounds or rounds > MOST_DENSE:
            wanted = f"one for each of {rounds} rounds, of at most {MOST_DENSE}"
            raise errors.refuse("rates of the workload", rates.size, wanted)
        decay, momentum = (_matrix(float(pole) ** np.arange(rounds)) for pole in (self.decay, self.momentum))
        return decay * rates @ momentum


PREFIX_SUMS = Workload()


def inverse(column: np.ndarray, rounds: int) -> np.ndarray:
    """The first `rounds` coefficients of 1 / c, for a series c that begins with 1 and has zeros after its end."""
    column = _require_series(column)
    errors.require_count("rounds", rounds)
    return scipy.signal.lfilter([1.0], column, np.eye(1, rounds)[0])


def root(rounds: int, workload: Workload = PREFIX_SUMS) -> np.ndarray:
    """The square root of the workload's series `(rounds,)`, at a constant rate.

    Source: Fichtenberger, Henzinger, Upadhyay 2023, arXiv:2202.11205; with momentum Kalinin, Lampert 2024,
    arXiv:2405.13763, Theorem 1.
    """
    j = np.arange(1, rounds)
    central = np.append(1.0, np.cumprod(1 - 0.5 / j))  # of 1 / sqrt(1 - x)
    each = [central * float(pole) ** np.arange(rounds) for pole in (workload.decay, workload.momentum)]
    return np.convolve(*each)[:rounds]


def inverse_root_bands(bands: int, workload: Workload = PREFIX_SUMS) -> np.ndarray:
    """The first `bands` coefficients of the inverse root, the noise of a banded inverse square root `(bands,)`.

    For prefix sums 1, -1/2, -1/8, ...; one band is white noise.
    Source: Kalinin, McKenna, Upadhyay, Lampert 2025, arXiv:2505.12128.
    """
    errors.require_count("bands", bands)
    return inverse(root(bands, workload), bands)


def sensitivity(column: np.ndarray, participations: int, separation: int, law: str = "separated") -> float:
    """L2 sensitivity of C G to one member whose rows of G have norm at most 1, or an upper bound where none is known.

    column  the first column of C `(rounds,)`; the member takes part in at most `participations` rounds;
    law     "separated": at least `separation` rounds apart; "cyclic": exactly so; "once a pass": at most once in each
            `separation` rounds from the first on, such as in passes that are shuffled anew.
    Exact if the column never grows and is never negative (Kalinin, Lampert 2024, arXiv:2405.13763, Theorem 2: the same
    contribution as early and as often as possible), if it has at most `separation` bands, and for cyclic rounds of a
    column that is never negative (Choquette-Choo et al. 2023, arXiv:2306.08153). Else it is the bound of
    arXiv:2306.08153, Equation 5, since contributions of different directions may move C G more than equal ones.
    Limits: separation >= rounds -> the norm of the column; white noise -> sqrt(participations).
    """
    column = _require_series(column)
    errors.require_count("participations", participations)
    errors.require_count("separation", separation)
    errors.require_choice("law", law, LAWS)
    count = min(participations, -(-column.size // separation))
    ordered = bool(np.all(column >= -ROUNDING) and np.all(np.diff(column) <= ROUNDING))
    if law == "once a pass":
        bound = bound_on_sensitivity(column, count, separation, law)
        return min(bound, sensitivity(column, count, 1)) if ordered else bound
    starts = separation * np.arange(count)
    if ordered:
        return float(np.linalg.norm(_shifted(column, starts).sum(1)))
    if law == "cyclic":
        every = range(column.size)
        return max(pattern_sensitivity(column, np.arange(at, column.size, separation)[:count]) for at in every)
    if np.flatnonzero(column)[-1] < separation:
        return float(np.linalg.norm(_shifted(column, starts)))
    return bound_on_sensitivity(column, count, separation, law)


def pattern_sensitivity(column: np.ndarray, pattern: Sequence[int] | np.ndarray) -> float:
    """L2 sensitivity of C G to one member whose rows of G have norm at most 1 in these rounds and are 0 elsewhere.

    |C G|^2 is the sum of X_ij <g_i, g_j> with X = C^T C on these rounds, so at most the sum of |X_ij|. Where no entry
    is negative, equal rows attain it: |C 1_S|. Limits: white noise -> sqrt(rounds of the pattern).

    >>> round(pattern_sensitivity(np.append([1.0, 0.5, 0.375], np.zeros(6)), (0, 3, 6)), 6)
    2.042517
    """
    columns = _shifted(_require_series(column), np.asarray(pattern, int))
    return float(np.sqrt(np.abs(columns.T @ columns).sum()))


def bound_on_sensitivity(column: np.ndarray, participations: int, separation: int, law: str = "separated") -> float:
    """An upper bound for any column: of each row of |C^T C| what the member can choose, and of these sums again.

    Source: Choquette-Choo et al. 2023, arXiv:2306.08153, Algorithm 4 and Equation 5.
    """
    column = _require_series(column)
    if column.size > MOST_DENSE:
        wanted = f"at most {MOST_DENSE} for a strategy whose column grows or has negative entries"
        raise errors.refuse("rounds", column.size, wanted, "take bands or buffers whose column falls")
    columns = _matrix(column)
    each = LAWS[law](np.abs(columns.T @ columns), participations, separation)
    return float(np.sqrt(LAWS[law](each[None], participations, separation)[0]))


def _heaviest_separated(weights: np.ndarray, count: int, separation: int) -> np.ndarray:
    """Of each row `(rows, rounds)` the largest sum of at most `count` entries that are `separation` apart."""
    best = np.zeros((weights.shape[0], weights.shape[1] + separation))  # behind zeros for the rounds before the first
    for _ in range(count):
        best[:, separation:] = np.maximum.accumulate(weights + best[:, : weights.shape[1]], axis=1)
    return best[:, -1]


def _heaviest_cyclic(weights: np.ndarray, count: int, separation: int) -> np.ndarray:
    each = [weights[:, at::separation][:, :count].sum(1) for at in range(weights.shape[1])]
    return np.max(each, axis=0)


def _heaviest_of_passes(weights: np.ndarray, count: int, separation: int) -> np.ndarray:
    starts = range(0, weights.shape[1], separation)
    each = np.stack([weights[:, at : at + separation].max(1) for at in starts], axis=1)
    return np.sort(each, axis=1)[:, -count:].sum(1)


LAWS: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "separated": _heaviest_separated,
    "cyclic": _heaviest_cyclic,
    "once a pass": _heaviest_of_passes,
}


def iterate_error(column: np.ndarray, workload: Workload = PREFIX_SUMS, metric: str = "mean") -> float:
    """Standard deviation of the noise in the iterates per unit of z: root mean square, largest, or of the last.

    At equal privacy z is proportional to the sensitivity, so compare `sensitivity * iterate_error`.
    Limits: white noise and prefix sums -> sqrt((rounds + 1) / 2).
    """
    errors.require_choice("metric", metric, METRICS)
    column = _require_series(column)
    noise = inverse(column, column.size)
    if workload.rates is None:
        variances = np.cumsum(_effects(noise, workload) ** 2)
    else:
        variances = np.sum((workload.matrix(noise.size) @ _matrix(noise)) ** 2, axis=1)
    return float(np.sqrt(METRICS[metric](variances)))


def optimal_bands(bands: int, rounds: int, workload: Workload = PREFIX_SUMS, metric: str = "mean") -> np.ndarray:
    """The strategy of so many bands with the least error at unit norm, at a constant rate `(min(bands, rounds),)`.

    Source: Choquette-Choo et al. 2023, arXiv:2306.08153; Toeplitz McKenna 2024, arXiv:2405.15913.
    """
    errors.require_count("bands", bands)
    effect, weights = workload.column(rounds), _weights(rounds, metric)

    def objective(later: np.ndarray) -> tuple[float, np.ndarray]:
        """log(|c|^2 V) and its gradient, by the adjoint of c g = a."""
        c = np.append(1.0, later)
        with np.errstate(over="ignore", invalid="ignore"):
            g = scipy.signal.lfilter([1.0], c, effect)
            error = float(weights @ g**2)
            if not np.isfinite(error):
                return np.inf, np.zeros_like(later)
            adjoint = scipy.signal.lfilter([1.0], c, (2 * weights * g)[::-1])[::-1]
        falls = np.array([adjoint[j:] @ g[: rounds - j] for j in range(1, c.size)])
        return np.log(c @ c * error), 2 * later / (c @ c) - falls / error

    start = root(min(bands, rounds), workload)[1:]
    if not start.size:
        return np.ones(1)
    found = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=_UNTIL)
    return np.append(1.0, found.x)


class Buffers(NamedTuple):
    """A buffered linear Toeplitz strategy: c_0 = 1 and c_k = sum_i scales_i decays_i^(k-1).

    Source: McMahan, Xu, Zhang 2024, arXiv:2404.16706 and 2408.08868 (theta are the decays, omega the scales).
    """

    decays: np.ndarray  # (buffers,) distinct, in (0, 1)
    scales: np.ndarray  # (buffers,)

    def column(self, rounds: int) -> np.ndarray:
        """The series `(rounds,)`."""
        powers = np.asarray(self.decays, float) ** np.arange(max(rounds - 1, 0))[:, None]
        return np.append(1.0, powers @ np.asarray(self.scales, float))[:rounds]

    @property
    def inverse(self) -> "Buffers":
        """The inverse series, which has the same form: arXiv:2404.16706, Lemma 5.2."""
        decays, scales = (np.asarray(one, float) for one in self)
        others = np.sort(np.linalg.eigvals(np.diag(decays) - scales[None]).real)[::-1]
        return Buffers(others, _scales(others, decays))

    def check(self) -> None:
        """Refuse what is no strategy whose column is positive and falls."""
        decays, scales = (np.atleast_1d(np.asarray(one, float)) for one in self)
        if not (np.all((decays > 0) & (decays < 1)) and np.unique(decays).size == decays.size):
            raise errors.refuse("theta (decays of buffers)", decays.tolist(), "distinct numbers in (0, 1)")
        if scales.shape != decays.shape or not np.all((scales > 0) & np.isfinite(scales)):
            wanted = f"{decays.size} positive numbers, one for each buffer"
            raise errors.refuse("omega (scales of buffers)", scales.tolist(), wanted)
        if np.sum(scales) > 1:
            raise errors.refuse("omega (scales of buffers)", scales.tolist(), "of sum 1 or less, so that noise cancels")


def optimal_buffers(
    buffers: int,
    rounds: int,
    participations: int,
    separation: int,
    workload: Workload = PREFIX_SUMS,
    metric: str = "mean",
) -> Buffers:
    """The strategy of so many buffers with the least error at unit sensitivity, at a constant rate.

    The decays of a strategy and of its inverse alternate: 1 > theta_1 > theta'_1 > theta_2 > ... > 0. Then the column
    is positive and falls, and the search has no constraints: the gaps between them are a softmax. It begins with one
    buffer and adds a pair without effect at each place in turn.
    """
    errors.require_count("buffers", buffers)
    weights = _weights(rounds, metric)

    def pair(logits: np.ndarray) -> tuple[Buffers, Buffers]:
        """A strategy and its inverse; no two decays meet."""
        gaps = scipy.special.softmax(np.append(logits, 0.0)) + 1e-9
        ends = 1 - np.cumsum(gaps / gaps.sum())[:-1]
        one, other = ends[::2], ends[1::2]
        return Buffers(one, _scales(one, other)), Buffers(other, _scales(other, one))

    def objective(logits: np.ndarray) -> float:
        strategy, noise = (one.column(rounds) for one in pair(logits))
        moved = sensitivity(strategy, participations, separation)
        return float(2 * np.log(moved) + np.log(weights @ _effects(noise, workload) ** 2))

    starts = [
        np.log(np.array(gaps) / gaps[-1])[:-1] for gaps in ((0.1, 0.4, 0.5), (0.01, 0.3, 0.69), (0.03, 0.9, 0.07))
    ]
    for number in range(1, buffers + 1):
        found = [scipy.optimize.minimize(objective, start, method="L-BFGS-B", options=_UNTIL) for start in starts]
        best = min(found, key=lambda one: float(one.fun)).x
        gaps = scipy.special.softmax(np.append(best, 0.0))
        starts = []
        for place in range(2 * number + 1):
            apart = gaps[place] * np.array([0.5 - CLOSE / 2, CLOSE, 0.5 - CLOSE / 2])
            split = np.concatenate([gaps[:place], apart, gaps[place + 1 :]])
            starts.append(np.log(split / split[-1])[:-1])
    return pair(best)[0]


_UNTIL = {"ftol": 1e-14, "gtol": 1e-9, "maxiter": 2000}


def _weights(rounds: int, metric: str) -> np.ndarray:
    """Weights of the squared effects of one round's noise in the mean variance of iterates, or in the last one."""
    errors.require_choice("metric", metric, METRICS)
    return 1 - np.arange(rounds) / rounds if metric == "mean" else np.ones(rounds)


def _effects(noise: np.ndarray, workload: Workload) -> np.ndarray:
    """Effect of a round's white noise on the iterates from this round on `(rounds,)`."""
    return scipy.signal.lfilter([1.0], workload.poles, noise)


def _scales(decays: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Scales of buffers with these decays, whose inverse has the decays `others`."""
    apart = decays[:, None] - decays + np.eye(decays.size)
    return np.prod(decays[:, None] - others, axis=1) / np.prod(apart, axis=1)


def _matrix(column: np.ndarray) -> np.ndarray:
    return scipy.linalg.toeplitz(column, np.zeros_like(column))


def _shifted(column: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Columns of the matrix `(rounds, starts)`."""
    result = np.zeros((column.size, len(starts)))
    for place, start in enumerate(starts):
        result[start:, place] = column[: column.size - start]
    return result


def _require_series(column: np.ndarray) -> np.ndarray:
    column = np.asarray(column, float)
    if column.ndim != 1 or not len(column) or column[0] != 1 or not np.isfinite(column).all():
        raise errors.refuse(
            "coefficients of correlated noise", column.tolist(), "finite numbers of which the first is 1"
        )
    return column
