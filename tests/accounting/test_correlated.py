"""Noise that is correlated over releases: its sensitivity against brute force, and what it gains."""

import itertools

import numpy as np
import pytest
from scipy.linalg import toeplitz

from fedjax_dp import accounting, errors
from fedjax_dp.accounting import Adjacency, Unit, correlated_sensitivity, epsilon_of, inverse_root_bands, prefix_error
from fedjax_dp.accounting.correlated import strategy


def noising_matrix(coefficients, releases):
    column = np.zeros(releases)
    column[: len(coefficients)] = coefficients[:releases]
    return toeplitz(column, np.eye(1, releases)[0])


def patterns(releases, participations, separation):
    for size in range(1, participations + 1):
        for where in itertools.combinations(range(releases), size):
            if all(b - a >= separation for a, b in itertools.pairwise(where)):
                yield list(where)


def test_bands_are_the_taylor_coefficients_of_the_square_root():
    bands = inverse_root_bands(30)
    assert bands[:5].tolist() == [1, -1 / 2, -1 / 8, -1 / 16, -5 / 128]
    assert np.convolve(bands, bands)[:30] == pytest.approx(np.append([1.0, -1.0], np.zeros(28)), abs=1e-14)
    assert inverse_root_bands(1).tolist() == [1]


@pytest.mark.parametrize("bands", [1, 2, 5, 40])
def test_strategy_is_the_first_column_of_the_inverse(bands):
    coefficients = inverse_root_bands(bands)
    inverse = np.linalg.inv(noising_matrix(coefficients, 25))
    assert strategy(coefficients, 25) == pytest.approx(inverse[:, 0], abs=1e-12)


@pytest.mark.parametrize("bands", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("participations", "separation"), [(1, 8), (8, 1), (2, 1), (2, 3), (3, 2), (3, 3), (4, 2), (5, 4), (2, 100)]
)
def test_sensitivity_is_attained_and_never_exceeded(bands, participations, separation):
    releases = 8
    coefficients = inverse_root_bands(bands)
    stated = correlated_sensitivity(coefficients, releases, participations, separation)
    inverse = np.linalg.inv(noising_matrix(coefficients, releases))
    largest, rng = 0.0, np.random.default_rng(0)
    for where in patterns(releases, participations, separation):
        columns = inverse[:, where]
        for signs in itertools.product([1, -1], repeat=len(where)):
            largest = max(largest, float(np.linalg.norm(columns @ np.array(signs))))
        vectors = rng.normal(size=(len(where), 3))
        vectors *= rng.uniform(size=(len(where), 1)) ** 0.1 / np.linalg.norm(vectors, axis=1, keepdims=True)
        assert np.linalg.norm(columns @ vectors) <= stated * (1 + 1e-12)
    assert largest == pytest.approx(stated, rel=1e-12)


@pytest.mark.parametrize("bands", [1, 2, 7, 30])
def test_prefix_error_is_that_of_the_covariance(bands):
    coefficients = inverse_root_bands(bands)
    sums = np.tril(np.ones((20, 20))) @ noising_matrix(coefficients, 20)
    assert prefix_error(coefficients, 20) == pytest.approx(np.sqrt(np.mean(np.sum(sums**2, axis=1))), rel=1e-12)
    assert prefix_error([1.0], 20) == pytest.approx(np.sqrt(21 / 2), rel=1e-12)


def test_the_run_is_one_gaussian_release():
    """Correlated noise of multiplier z costs what white noise of z sqrt(K) / sensitivity costs over K releases."""
    coefficients, z = inverse_root_bands(8), 3.0
    sensitivity = correlated_sensitivity(coefficients, 100, 4, 25)
    event = accounting.GaussianSteps(z / sensitivity, accounting.FullBatch(), Adjacency.ADD_REMOVE, 1, Unit.CLIENT)
    assert epsilon_of(event, 1e-5) == pytest.approx(accounting.gaussian_epsilon(1e-5, z / sensitivity), rel=1e-12)
    white = accounting.GaussianSteps(2 * z / sensitivity, accounting.FullBatch(), Adjacency.ADD_REMOVE, 4, Unit.CLIENT)
    assert epsilon_of(white, 1e-5) == pytest.approx(epsilon_of(event, 1e-5), rel=1e-9)


@pytest.mark.parametrize(
    ("releases", "participations", "separation", "gain"), [(100, 1, 100, 3), (100, 4, 25, 2.7), (1000, 10, 100, 5.7)]
)
def test_correlated_noise_gains_at_equal_privacy(releases, participations, separation, gain):
    def error(bands):
        coefficients = inverse_root_bands(bands)
        return correlated_sensitivity(coefficients, releases, participations, separation) * prefix_error(
            coefficients, releases
        )

    assert error(1) > gain * min(map(error, range(1, 65)))


@pytest.mark.parametrize(
    ("coefficients", "told"),
    [
        ([1.0, 0.5], "must be never negative, got -0.5 at release 1"),
        ([1.0, -1.5], "must be never increasing, got 1.5 at release 1"),
        ([1.0, -0.5, -0.8], "must be never increasing, got 1.05 at release 2"),
        ([2.0, -0.5], "of which the first is 1"),
        ([1.0, np.nan], "finite numbers"),
        ([], "finite numbers"),
    ],
)
def test_coefficients_that_are_not_covered_are_refused(coefficients, told):
    with pytest.raises(errors.ConfigurationError, match=told):
        correlated_sensitivity(coefficients, 10, 2, 5)


@pytest.mark.parametrize("arguments", [(0, 1, 1), (10, 0, 1), (10, 1, 0), (10, 1.5, 1), (10, True, 1)])
def test_counts_are_refused(arguments):
    with pytest.raises(errors.ConfigurationError, match="an integer of at least 1"):
        correlated_sensitivity([1.0], *arguments)
