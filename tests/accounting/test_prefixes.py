"""Epsilon of the first rounds of a run, at any time, and the last round within a budget."""

import math

import numpy as np
import pytest
from noisy_sums import REPLACE_ONE, poisson, unsampled

from fedjax_dp import accounting
from fedjax_dp.accounting import GaussianOdometer, epsilon_of, gaussian_epsilon, last_round
from fedjax_dp.errors import ConfigurationError


def first_rounds(phases, rate):
    """The event of the first rounds of phases (z, rounds)."""

    def of(rounds):
        parts, left = [], rounds
        for z, count in phases:
            parts.append(poisson(z, rate, min(count, left)))
            left -= parts[-1].count
        return accounting.Composed(tuple(part for part in parts if part.count))

    return of


# Cases `prefix` of the specification's participation_vectors.json: rate, phases, delta, rounds, epsilon planned after
# each by dp-accounting's PLD, with which an own FFT agrees to 1.9e-6.
PREFIXES = [
    (0.01, [(1.0, 200)], [1, 10, 50, 100, 200],
     [0.1994504734738037, 0.3799023494991736, 0.5828824123620071, 0.7180367094257558, 0.9124759644484604]),
    (0.05, [(2.0, 40), (1.0, 40)], [1, 20, 40, 60, 80],
     [0.18044742142516995, 0.514287741557708, 0.7040848020335567, 2.0720147176717494, 2.548613658458706]),
    (1.0, [(10.0, 50)], [1, 25, 50], [0.3406693646843229, 1.9930914044151178, 2.9432252398013663]),
]  # fmt: skip


@pytest.mark.parametrize("case", PREFIXES, ids=["one phase", "two phases", "unsampled"])
def test_planned_epsilon_is_that_of_a_run_of_so_many_rounds(case):
    rate, phases, rounds, wanted = case
    planned = [epsilon_of(first_rounds(phases, rate)(t), 1e-5) for t in rounds]
    assert planned == pytest.approx(wanted, rel=2e-3)
    assert planned == sorted(planned)


# Cases `halt`: budget, z, rate, delta, rounds; rounds run, epsilon and that of one round more by dp-accounting's PLD.
HALTS = [
    (1.0, 1.0, 0.01, 1e-5, 1000, 254, 0.9996564334800531, 1.0011951236291705),
    (3.0, 2.0, 0.1, 1e-6, 2000, 125, 2.9911363735995757, 3.003187737117852),
    (2.0, 8.0, 1.0, 1e-5, 500, 16, 1.9930914044151178, 2.0617496105264097),
    (0.05, 0.8, 0.05, 1e-5, 100, 0, 0.0, 1.8941129762752547),
]


@pytest.mark.parametrize("case", HALTS, ids=lambda case: f"budget {case[0]:g}")
def test_the_last_round_within_a_budget_is_known_before_the_first(case):
    budget, z, rate, delta, rounds, wanted, epsilon, beyond = case
    calls = []

    def after(count):
        calls.append(count)
        return epsilon_of(poisson(z, rate, count), delta)

    found = last_round(after, rounds, budget)
    assert found == pytest.approx(wanted, rel=5e-3)
    assert len(calls) <= 2 + math.log2(rounds)
    assert (after(found) if found else 0.0) <= budget < after(found + 1)
    assert after(found + 1) == pytest.approx(beyond, rel=6e-3)
    assert not found or after(found) == pytest.approx(epsilon, rel=6e-3)


def test_a_budget_that_all_rounds_meet_halts_nothing():
    assert last_round(float, 10, 10.0) == 10
    assert [last_round(float, 10, budget) for budget in (0.5, 1.0, 9.99)] == [0, 1, 9]


def test_what_is_no_budget_is_refused():
    for budget in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigurationError, match="budget must be positive"):
            last_round(float, 10, budget)


def test_at_any_time_is_never_below_planned():
    for delta in (1e-9, 1e-5, 0.01):
        for planned in (0.01, 0.5, 4.0):
            odometer = GaussianOdometer(planned, delta)
            for spent in np.geomspace(1e-4, 2, 12) * planned:
                assert odometer.epsilon(spent) >= gaussian_epsilon(delta, spent**-0.5)
    assert odometer.epsilon(0.0) == 0.0


def losses(paths, rounds, mu, rng):
    """Privacy losses of unsampled Gaussian releases after each round, under the first of two neighbours."""
    return np.cumsum(rng.normal(mu**2 / 2, mu, (paths, rounds)), axis=1)


def test_whoever_stops_at_the_worst_time_is_within_the_odometer_and_not_within_what_was_planned():
    """10,000 runs, stopped where the loss is furthest above the number that is read; the wrong program reads planned.

    delta of the stopped run, E max(0, 1 - exp(epsilon - L)), is estimated; 4.89 standard errors.
    """
    delta, rounds, mu = 0.05, 200, 0.1
    after = losses(10_000, rounds, mu, np.random.default_rng(0))
    spent = mu**2 * np.arange(1, rounds + 1)
    odometer = GaussianOdometer(spent[-1], delta)

    def of_stopped(epsilons):
        excess = (after - epsilons).max(axis=1)
        lost = np.maximum(0.0, -np.expm1(-np.maximum(excess, 0.0)))
        return lost.mean(), 4.89 * lost.std() / 100

    read, error = of_stopped(np.array([odometer.epsilon(one) for one in spent]))
    assert read - error < delta
    read, error = of_stopped(np.array([gaussian_epsilon(delta, one**-0.5) for one in spent]))
    assert read - error > delta


def test_no_odometer_where_sums_are_sampled():
    assert accounting.squared_mu(unsampled(4.0, 8, REPLACE_ONE)) == pytest.approx(2.0)
    with pytest.raises(accounting.NotCoveredError, match="unsampled"):
        accounting.squared_mu(poisson(1.0, 0.1, 1))
