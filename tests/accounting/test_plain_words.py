"""What is said of attackers in plain words is what the noise allows, no more and no less."""

import math

import numpy as np
import pytest
from noisy_sums import poisson, unsampled
from scipy.stats import norm

from fedjax_dp import accounting
from fedjax_dp.accounting import Adjacency, Guarantee, Unit, View, attack_bounds, epsilon_of
from fedjax_dp.accounting.plain_words import epsilon_warnings

DELTA = 1e-5


def _bounds(event, accountant="pld"):
    return attack_bounds(event, epsilon_of(event, DELTA, accountant), DELTA, accountant)


def _by_epsilon_alone(epsilon):
    return (math.exp(epsilon) + DELTA) / (1 + math.exp(epsilon))


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
def test_of_one_gaussian_they_are_those_of_its_best_test(mu):
    event = unsampled(1 / mu)
    bounds = _bounds(event)
    assert bounds.of_curve
    assert bounds.right == pytest.approx(norm.cdf(mu / 2), abs=1e-9)
    assert bounds.recognised == pytest.approx(norm.cdf(mu - norm.ppf(0.99)), abs=1e-9)
    assert bounds.precision == pytest.approx(bounds.recognised / (bounds.recognised + 0.01))
    assert bounds.right < _by_epsilon_alone(epsilon_of(event, DELTA)) - 0.1  # which says too much


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_of_one_sampled_gaussian_too(rate):
    event = poisson(1.0, rate, 1)
    bounds, distance = _bounds(event), rate * (2 * norm.cdf(0.5) - 1)
    assert bounds.right == pytest.approx((1 + distance) / 2, rel=1e-3)
    there = (1 - rate) * 0.01 + rate * norm.cdf(1 - norm.ppf(0.99))  # one direction, with false alarms where it is not
    assert there - 1e-6 <= bounds.recognised < there + 0.03
    assert bounds.right < _by_epsilon_alone(epsilon_of(event, DELTA)) - 0.1


@pytest.mark.parametrize("accountant", ["rdp", "zcdp"])
def test_looser_accountants_leave_more_open_and_never_less(accountant):
    event = unsampled(4.0, 10, Adjacency.REPLACE_ONE)
    loose, tight = _bounds(event, accountant), _bounds(event)
    assert tight.right <= loose.right <= _by_epsilon_alone(epsilon_of(event, DELTA, accountant)) + 1e-9
    assert tight.recognised <= loose.recognised


def test_where_no_curve_is_proved_epsilon_and_delta_decide_and_it_is_said():
    event = poisson(1.0, 0.1, 3)
    bounds = attack_bounds(event, 1.0, DELTA, "gaussian")  # which has no theorem for it
    assert not bounds.of_curve
    assert bounds.right == pytest.approx(_by_epsilon_alone(1.0))
    assert bounds.recognised == pytest.approx(math.e * 0.01 + DELTA)
    assert "epsilon and delta alone" in bounds.in_words(Unit.RECORD, Adjacency.ADD_REMOVE)[-1]


def test_without_a_release_guesses_are_blind_and_without_noise_certain():
    nothing = unsampled(1.0, 0)
    assert attack_bounds(nothing, 0.0, DELTA)[:2] == pytest.approx((0.5, 0.01))
    assert attack_bounds(unsampled(0.0), math.inf, DELTA)[:2] == (1.0, 1.0)


def test_the_balanced_rate_is_where_the_curve_crosses_the_diagonal():
    curve = accounting.TradeOff(None, np.array([0.0, 1.0, 2.0]), np.array([0.4, 0.2, 0.05]))
    assert float(curve(curve.equal_error_rate)) == pytest.approx(curve.equal_error_rate)
    assert accounting.TradeOff().equal_error_rate == 0.0


def test_words_go_by_what_neighbours_are():
    bounds = _bounds(unsampled(1.0))
    guess, alarms, basis = bounds.in_words(Unit.CLIENT, Adjacency.ADD_REMOVE)
    assert "50% likely that one client with all its records was used" in guess
    assert "right in at most 70% of cases" in guess
    assert "at most 9.3% of those that were (blind guessing: 1%)" in alarms
    assert "trade-off" in basis
    assert "two candidates" in bounds.in_words(Unit.RECORD, Adjacency.REPLACE_ONE)[0]


def test_they_are_stored_with_the_guarantee():
    bounds = _bounds(unsampled(1.0))
    promise = Guarantee((1.0,), DELTA, Unit.RECORD, Adjacency.ADD_REMOVE, View.UPLOADS, "x", (), attacks=(bounds,))
    assert Guarantee.from_full_dict(promise.to_full_dict()) == promise
    assert promise.to_full_dict()["attack"]["statement"] == list(promise.in_plain_words)


def test_an_epsilon_above_ten_is_warned_of():
    assert epsilon_warnings(10.0) == () == epsilon_warnings(math.inf)
    assert "epsilon 10.5 is above 10" in epsilon_warnings(10.5)[0]
