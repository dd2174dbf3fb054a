"""Gaussian noise that is correlated over releases, so that it largely cancels in the running sums of training.

The noise on release t is n_t = z (w_t + a_1 w_{t-1} + ... + a_{b-1} w_{t-b+1}) with w white and standard normal, per
unit clip norm. With A the banded Toeplitz matrix of the coefficients a = (1, a_1, ..., a_{b-1}) and C its inverse, the
releases G + z A w are A applied to C G + z w: the whole run is computed from one Gaussian release of C G, whose
sensitivity is that of C to everything one member may contribute. This holds although later contributions depend on
earlier releases (Denisov et al. 2022, arXiv:2202.08312). So the event of the run is

    GaussianSteps(z / correlated_sensitivity(a, releases, participations, separation), FullBatch(), adjacency, 1, unit)

This holds for add-remove neighbours with contributions of norm at most 1, if participation is public. Replace-one, with
the new member in the same releases, doubles the sensitivity: `Adjacency.sensitivity` does that, as for independent
noise. Sampling members for each release amplifies nothing here.

>>> a = inverse_root_bands(8)
>>> round(correlated_sensitivity(a, releases=100, participations=4, separation=25), 3)
2.815
>>> [round(correlated_sensitivity(c, 100, 4, 25) * prefix_error(c, 100), 2) for c in (inverse_root_bands(1), a)]
[14.21, 5.32]
"""

import numpy as np
import scipy

from fedjax_dp import errors


def inverse_root_bands(bands: int) -> np.ndarray:
    """The first `bands` coefficients of sqrt(1 - x): 1, -1/2, -1/8, ..., for prefix sums. One band is white noise.

    Shapes: returns `(bands,)`. The generator keeps bands - 1 past noise vectors.
    Source: Kalinin, McKenna, Upadhyay, Lampert 2025, arXiv:2505.12128 (banded inverse square root).
    """
    errors.require_count("bands", bands)
    j = np.arange(1, bands)
    return np.append(1.0, np.cumprod((j - 1.5) / j))


def strategy(coefficients: np.ndarray, releases: int) -> np.ndarray:
    """The first column of C, the inverse of the banded Toeplitz matrix: c_t = -(a_1 c_{t-1} + ... + a_{b-1} c_{t-b+1}).

    Shapes: `coefficients` `(b,)`, of which the first is 1; returns `(releases,)`, in O(releases b).
    """
    coefficients = _require_coefficients(coefficients)
    errors.require_count("releases", releases)
    return scipy.signal.lfilter([1.0], coefficients, np.eye(1, releases)[0])


def correlated_sensitivity(coefficients: np.ndarray, releases: int, participations: int, separation: int) -> float:
    """L2 sensitivity of C G to one member whose contributions (rows of G) have L2 norm at most 1.

    The member contributes to at most `participations` of the `releases`, at least `separation` apart. The worst case is
    the same contribution at 0, separation, 2 separation, ... : the norm of the sum of these columns of C.
    Limits: separation >= releases -> the norm of the first column; one band -> sqrt(participations).
    Raises: ConfigurationError unless the column of C is non-negative and non-increasing, as the theorem requires.
    Source: Kalinin, Lampert 2024, arXiv:2405.13763, Theorem 2.
    """
    errors.require_count("participations", participations)
    errors.require_count("separation", separation)
    column = strategy(coefficients, releases)
    for what, wrong in (
        ("never negative", np.append(column < 0, False)),
        ("never increasing", np.append(False, np.diff(column) > 1e-12 * column[:-1])),  # but for rounding
    ):
        if wrong.any():
            first = int(np.argmax(wrong))
            raise errors.refuse(
                "the inverse of the noise coefficients",
                f"{column[first]:.4g} at release {first}",
                what,
                "use inverse_root_bands",
            )
    total = np.zeros(releases)
    for start in range(0, min(releases, participations * separation), separation):
        total[start:] += column[: releases - start]
    return float(np.linalg.norm(total))


def prefix_error(coefficients: np.ndarray, releases: int) -> float:
    """Root mean square, over all releases t, of the noise in the sum of releases 0 to t, per unit of z.

    At equal privacy z is proportional to the sensitivity, so compare `correlated_sensitivity * prefix_error`.
    Limits: one band -> sqrt((releases + 1) / 2).
    """
    coefficients = _require_coefficients(coefficients)
    errors.require_count("releases", releases)
    padded = np.zeros(releases)
    padded[: len(coefficients)] = coefficients[:releases]
    variances = np.cumsum(np.cumsum(padded) ** 2)  # of the sums: sum t contains w_s with weight a_0 + ... + a_{t-s}
    return float(np.sqrt(variances.mean()))


def _require_coefficients(coefficients: np.ndarray) -> np.ndarray:
    coefficients = np.asarray(coefficients, float)
    if coefficients.ndim != 1 or not len(coefficients) or coefficients[0] != 1 or not np.isfinite(coefficients).all():
        raise errors.refuse("noise coefficients", coefficients.tolist(), "finite numbers of which the first is 1")
    return coefficients
