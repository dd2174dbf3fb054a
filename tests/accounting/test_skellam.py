"""Integer noise: its Renyi bound against exact divergences, its event under every accountant, and repeated events."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ive, logsumexp
from scipy.stats import skellam

from fedjax_dp import accounting, errors
from fedjax_dp.accounting import Composed, RandomParticipation, SkellamSums, compare, epsilon_of, repeated
from fedjax_dp.tools.papers.wang import WANG_RDP

ADD_REMOVE, REPLACE_ONE = accounting.Adjacency.ADD_REMOVE, accounting.Adjacency.REPLACE_ONE
ORDERS = np.array([1.05, 1.5, 2.0, 2.5, 3.0, 4.0, 7.3, 8.0, 16.0, 32.0, 64.0, 100.0])


def sums(variance, l2=1.0, l1=None, adjacency=ADD_REMOVE, count=1):
    return SkellamSums(variance, l2, l1 or l2**2, adjacency, count)


def gaussian(noise_multiplier, adjacency=ADD_REMOVE, count=1):
    return accounting.GaussianSteps(noise_multiplier, accounting.FullBatch(), adjacency, count, accounting.Unit.CLIENT)


@functools.cache
def log_masses(variance, reach):
    """ln P(k) at k = 0 to `reach`; I_k(variance) e^-variance by the stable, downward recursion of its ratios."""
    ratios, ratio = [], 0.0
    for k in range(reach, 0, -1):
        ratio = 1 / (2 * k / variance + ratio)
        ratios.append(ratio)
    return np.log(ive(0, variance)) + np.append(0.0, np.cumsum(np.log(ratios[::-1])))


def exact_divergence(variance, shift, order):
    """Of the law moved by `shift` from itself, in one dimension, by summation far beyond where the terms matter."""
    reach = int(60 + 20 * math.sqrt(variance) + 6 * order * shift)
    half = log_masses(variance, reach)
    both = np.append(half[:0:-1], half)
    moved, still = both[:-shift], both[shift:]
    return logsumexp(order * moved + (1 - order) * still) / (order - 1)


def test_the_reference_is_the_skellam_law():
    k = np.arange(30)
    assert log_masses(7.0, 200)[:30] == pytest.approx(skellam.logpmf(k, 3.5, 3.5), rel=1e-9)
    assert exact_divergence(1e5, 10, 3.0) == pytest.approx(3 * 100 / 2e5, rel=1e-4)


def test_the_bound_is_the_published_one():
    """By hand, at order 3 with L2 and L1 norm 2 and 3: 3 * 4 / 2v + min((5 * 4 + 6 * 3) / 4v^2, 3 * 3 / 2v)."""
    for variance, by_hand in ((10.0, 0.6 + 38 / 400), (1.0, 6.0 + 4.5)):
        assert sums(variance, 2.0, 3.0).rdp(np.array([3.0]))[0] == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("variance", [0.3, 1.0, 3.0, 10.0, 100.0, 1000.0])
@pytest.mark.parametrize("shift", [1, 2, 5, 20])
def test_the_bound_holds_in_one_dimension(variance, shift):
    exact = np.array([exact_divergence(variance, shift, order) for order in ORDERS])
    bound = sums(variance, shift, shift).rdp(ORDERS)
    assert (exact <= bound * (1 + 1e-9)).all()
    assert (exact > 0).all()


@pytest.mark.parametrize("shift", [1, 3, 10])
def test_the_bound_is_tight_for_much_noise(shift):
    orders = np.array([2.0, 8.0, 16.0])
    for variance, excess in ((1000.0, 0.01), (10_000.0, 0.0003)):
        exact = np.array([exact_divergence(variance, shift, order) for order in orders])
        assert sums(variance, shift, shift).rdp(orders) == pytest.approx(exact, rel=excess)


def test_a_variance_taken_for_the_rate_of_each_poisson_draw_would_show():
    """The wrong program takes the variance for half of what it is; then noise of variance v is priced as of 2 v."""
    wrong = sums(200.0, 3, 3).rdp(ORDERS[2:])
    exact = np.array([exact_divergence(100.0, 3, order) for order in ORDERS[2:]])
    assert (wrong < exact).all()


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=6), st.integers(1, 500), st.sampled_from([2.0, 3.5, 16.0]))
@settings(max_examples=60, deadline=None)
def test_the_bound_holds_for_vectors(vector, variance, order):
    moves = [abs(x) for x in vector if x]
    if not moves:
        return
    exact = sum(exact_divergence(variance, move, order) for move in moves)
    event = sums(variance, math.hypot(*moves), sum(moves))
    assert exact <= event.rdp(np.array([order]))[0] * (1 + 1e-9)


@pytest.mark.parametrize(("variance", "shift"), [(4.0, 1), (20.0, 5), (300.0, 7)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_epsilon_is_above_the_exact_one(variance, shift, delta):
    epsilon = epsilon_of(sums(variance, shift, shift), delta, "rdp")
    k = np.arange(-400, 401)
    masses, moved = (np.exp(skellam.logpmf(k - by, variance / 2, variance / 2)) for by in (0, shift))
    exact = np.maximum(moved - math.exp(epsilon) * masses, 0).sum()
    assert exact <= delta
    assert variance < 100 or exact > delta / 10  # with little noise the bound is loose


@pytest.mark.parametrize("adjacency", [ADD_REMOVE, REPLACE_ONE])
@pytest.mark.parametrize(("noise_multiplier", "excess"), [(2.0, 0.02), (30.0, 0.002)])
def test_a_fine_encoding_costs_what_gaussian_noise_costs(adjacency, noise_multiplier, excess):
    """Where epsilon is above 10 the best order is near 2, and chords between integers cost a percent."""
    fine = sums((noise_multiplier * 1e4) ** 2, 1e4, 1e6, adjacency, 30)
    smooth = gaussian(noise_multiplier, adjacency, 30)
    epsilon = epsilon_of(fine, 1e-5, "rdp")
    assert epsilon == pytest.approx(epsilon_of(smooth, 1e-5, "rdp"), rel=excess)
    assert epsilon >= epsilon_of(smooth, 1e-5)


def test_replace_one_doubles_both_norms():
    orders = np.array([1.5, 2.0, 9.0])
    for l1 in (3.0, 5.0, 9.0):
        once, twice = sums(50.0, 3.0, l1, REPLACE_ONE), sums(50.0, 6.0, 2 * l1)
        assert once.rdp(orders) == pytest.approx(twice.rdp(orders), rel=1e-12)


def test_the_l1_norm_of_whole_numbers_is_at_most_the_squared_l2_norm():
    orders = np.array([2.0, 5.0])
    loose, known = sums(50.0, 3.0, 1e9), sums(50.0, 3.0, 9.0)
    assert loose.rdp(orders).tolist() == known.rdp(orders).tolist()


def test_between_integer_orders_a_chord_bounds_the_moments():
    step, orders = sums(10.0, 3.0), np.linspace(1.01, 12, 200)
    moments = (orders - 1) * step.rdp(orders)
    assert (np.diff(moments, 2) >= -1e-9).all()
    assert (np.diff(step.rdp(orders)) >= -1e-12).all()


# --- the event -------------------------------------------------------------------------------------------------------


def test_composition_with_gaussian_noise():
    fine, rough = SkellamSums(4e8, 1e4, 1e6, ADD_REMOVE, 3), gaussian(2.0, count=5)
    both = epsilon_of(Composed((fine, rough)), 1e-5, "rdp")
    assert both == pytest.approx(epsilon_of(gaussian(2.0, count=8), 1e-5, "rdp"), rel=2e-3)
    curves = accounting.cost_of(fine, "rdp"), accounting.cost_of(rough, "rdp")
    assert both >= max(curve.epsilon(1e-5) for curve in curves)


@pytest.mark.parametrize(
    "event",
    [sums(100.0, 5.0), Composed((gaussian(2.0), sums(100.0, 5.0))), RandomParticipation(sums(100.0, 5.0), 0.5, 4)],
)
def test_other_accountants_name_the_one_that_helps(event):
    for name in set(accounting.ACCOUNTANTS) - {"rdp"}:
        with pytest.raises(accounting.NotCoveredError, match="use accountant rdp"):
            epsilon_of(event, 1e-5, name)
        with pytest.raises(accounting.NotCoveredError, match="use accountant rdp"):
            accounting.noise_factor_for(event, 1.0, 1e-5, name)
    for name in (accounting.ATTAINED, WANG_RDP):
        with pytest.raises(accounting.NotCoveredError):
            epsilon_of(event, 1e-5, name)
    answers = {answer.accountant: answer for answer in compare.compare_epsilons(event, 1e-5)}
    assert [name for name, answer in answers.items() if answer.number is not None] == ["rdp"]
    assert compare.lower_bound(event, 1e-5).number is None


def test_a_calibrated_noise_multiplier_is_in_units_of_the_l2_bound():
    event = sums(100.0, 5.0, count=10)
    multiplier = accounting.noise_multiplier_for(event, 2.0, 1e-5, "rdp")
    assert multiplier == pytest.approx(2.0 * accounting.noise_factor_for(event, 2.0, 1e-5, "rdp"), rel=1e-12)
    noisy = sums((5 * multiplier) ** 2, 5.0, count=10)
    assert epsilon_of(noisy, 1e-5, "rdp") == pytest.approx(2.0, rel=1e-4)


def test_limits():
    assert epsilon_of(sums(0.0, 5.0), 1e-5, "rdp") == math.inf
    assert epsilon_of(sums(4.0, 5.0, count=0), 1e-5, "rdp") == 0
    assert sums(4.0).scaled(3.0).variance == 36


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"variance": -1.0}, "variance must be zero or positive"),
        ({"variance": math.nan}, "variance must be"),
        ({"variance": 1e-40}, "noise_multiplier must be"),
        ({"l2": 0.5}, "l2 must be at least 1 and finite, got 0.5; it is in ring units"),
        ({"l2": math.nan}, "l2 must be"),
        ({"l1": 4.0}, "l1 must be at least the L2 bound 5"),
        ({"l1": math.inf}, "l1 must be"),
        ({"count": 1.5}, "the number of noisy steps must be an integer"),
        ({"adjacency": "replace-one"}, "adjacency must be a value from"),
        ({"unit": "client"}, "unit must be a value from"),
    ],
)
def test_refusals(change, told):
    with pytest.raises(errors.ConfigurationError, match=told):
        SkellamSums(**({"variance": 4.0, "l2": 5.0, "l1": 25.0, "adjacency": ADD_REMOVE, "count": 1} | change))


def test_orders_and_noise_are_refused():
    with pytest.raises(errors.ConfigurationError, match="above 1"):
        sums(4.0).rdp(np.array([1.0]))
    with pytest.raises(errors.ConfigurationError, match="variance must be positive"):
        sums(0.0).rdp(np.array([2.0]))


# --- repeated events -------------------------------------------------------------------------------------------------

STEPS = accounting.GaussianSteps(2.0, accounting.Poisson(0.1), ADD_REMOVE, 10)
FIXED = accounting.GaussianSteps(2.0, accounting.WithoutReplacement(5, 50), REPLACE_ONE, 3)
PASSES = accounting.GaussianSteps(2.0, accounting.Shuffled(5, 20), REPLACE_ONE, 8)


@pytest.mark.parametrize(
    ("event", "times", "count"),
    [
        (STEPS, 3, 30),
        (STEPS, 1.1, 11),
        (STEPS, 1.11, 12),
        (STEPS, 0, 0),
        (STEPS, 1e-9, 1),
        (FIXED, 43.88, 132),
        (sums(4.0, count=3), 2.5, 8),
        (STEPS, np.float64(0.3), 3),
        (PASSES, 1.6, 16),  # four batches an epoch: 12.8 of them are 16
    ],
)
def test_repeating_multiplies_the_count_and_rounds_up(event, times, count):
    assert repeated(event, times) == dataclasses.replace(event, count=count)


def test_repeating_a_composition_repeats_its_parts():
    event = Composed((FIXED, Composed((dataclasses.replace(FIXED, noise_multiplier=5.0),))))
    twice = repeated(event, 2)
    assert [step.count for step, _ in twice.leaves()] == [6, 6]
    for accountant in ("pld", "rdp"):
        copies = epsilon_of(Composed((event, event)), 1e-5, accountant)
        assert epsilon_of(twice, 1e-5, accountant) == pytest.approx(copies, rel=1e-6)


def test_random_participation_repeated_has_more_rounds():
    event = RandomParticipation(FIXED, 0.5, 4)
    assert repeated(Composed((event,)), 2.1) == Composed((RandomParticipation(FIXED, 0.5, 9),))
    assert epsilon_of(repeated(event, 3), 1e-5, "rdp") == pytest.approx(epsilon_of(Composed((event,) * 3), 1e-5, "rdp"))


@pytest.mark.parametrize("event", [STEPS, Composed((STEPS,))])
@pytest.mark.parametrize("times", [-1, math.nan, math.inf])
def test_times_are_refused(event, times):
    with pytest.raises(errors.ConfigurationError, match="times must be"):
        repeated(event, times)
