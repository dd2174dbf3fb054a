"""Audits: what follows from an attack's errors, and that nothing more is claimed.

Statistical tests count how often a bound is wrong. A stated significance of 5% passes below 84 of 1,000 (4.89 standard
deviations, false alarm 1e-6); each also runs a named wrong program, which fails with probability above 0.999.
"""

import dataclasses
import math

import numpy as np
import pytest
from helpers import refusal
from noisy_sums import fixed_size, poisson, unsampled
from scipy import stats
from scipy.optimize import linprog
from scipy.special import ndtr, ndtri

from fedjax_dp import accounting
from fedjax_dp.accounting import choose_test, contradicts, epsilon_of_any, error_bounds, mu_of, noise_at_most, trade_off
from fedjax_dp.accounting.pld import price

REPETITIONS, STATED = 1000, 0.05
ALLOWED = 84  # 50 + 4.89 * sqrt(1000 * 0.05 * 0.95)
DELTA = 1e-5
RATES = np.array([1e-9, 1e-6, 1e-4, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99])


def exact_rates(false_positive, false_negative):
    """Bounds that an endless audit would give."""
    return accounting.ErrorBounds(false_positive, false_negative, STATED, 0, 1, 0, 1)


# Bounds on the rates


@pytest.mark.parametrize(("wrong", "trials"), [(0, 10), (3, 10), (9, 10), (40, 4000), (0, 100_000)])
def test_an_error_rate_at_its_bound_would_show_so_few_errors_with_half_the_significance(wrong, trials):
    for bounds in (error_bounds(wrong, trials, 1, 7), error_bounds(1, 7, wrong, trials)):
        bound = bounds.false_positive if bounds.negatives == trials else bounds.false_negative
        assert stats.binom.cdf(wrong, trials, bound) == pytest.approx(0.025, rel=1e-9)


def test_all_errors_bound_nothing():
    assert error_bounds(5, 5, 7, 7).false_positive == error_bounds(5, 5, 7, 7).false_negative == 1.0
    assert mu_of(error_bounds(5, 5, 0, 7)) == -math.inf
    assert epsilon_of_any(error_bounds(5, 5, 7, 7), DELTA) == 0.0


def test_any_mechanism_is_bounded_in_the_better_direction_and_the_roles_can_be_exchanged():
    bounds, swapped = error_bounds(900, 4000, 2, 4000), error_bounds(2, 4000, 900, 4000)
    fp, fn = bounds.false_positive, bounds.false_negative
    one_way, other_way = math.log((1 - fn - DELTA) / fp), math.log((1 - fp - DELTA) / fn)
    assert epsilon_of_any(bounds, DELTA) == epsilon_of_any(swapped, DELTA) == max(one_way, other_way)
    assert other_way > 2 * one_way
    assert mu_of(bounds) == pytest.approx(mu_of(swapped), rel=1e-12)


def test_identical_worlds_are_told_apart_no_more_often_than_stated():
    """The wrong program: |mu|, as in jax-privacy 2.0.0."""
    rng = np.random.default_rng(0)
    wrong = absolute = 0
    for fp, fn in zip(rng.binomial(300, 0.4, REPETITIONS), rng.binomial(300, 0.6, REPETITIONS)):
        bounds = error_bounds(int(fp), 300, int(fn), 300)
        wrong += mu_of(bounds) > 0 or epsilon_of_any(bounds, DELTA) > 0
        absolute += abs(mu_of(bounds)) > 0
    assert wrong <= ALLOWED
    assert absolute > 900


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_a_gaussian_mechanism_exceeds_its_bounds_no_more_often_than_stated(epsilon):
    """The wrong program: observed rates in place of their bounds."""
    rng = np.random.default_rng(1)
    mu, trials = 1 / accounting.gaussian_noise(epsilon, DELTA), 1000
    event = unsampled(1 / mu)
    over = naive = 0
    for fp, fn in zip(
        rng.binomial(trials, ndtr(-mu / 2), REPETITIONS), rng.binomial(trials, ndtr(-mu / 2), REPETITIONS)
    ):
        bounds = error_bounds(int(fp), trials, int(fn), trials)
        bound = accounting.epsilon_at_least(bounds, event, DELTA)
        over += bound > epsilon or noise_at_most(bounds, event) < 1 or contradicts(bounds, trade_off(event))
        naive += -ndtri(fp / trials) - ndtri(fn / trials) > mu
        assert epsilon_of_any(bounds, DELTA) <= bound + 1e-12
    assert over <= ALLOWED
    assert naive > 300


def test_delta_is_allowed_to_leak_everything():
    """The mechanism reveals all with probability delta, else nothing: epsilon 0. The wrong program drops delta."""
    rng = np.random.default_rng(2)
    delta, trials = 0.1, 2000
    over = dropped = 0
    for caught in rng.binomial(trials, delta, REPETITIONS):
        bounds = error_bounds(0, trials, trials - int(caught), trials)
        over += epsilon_of_any(bounds, delta) > 0
        dropped += epsilon_of_any(bounds, 1e-300) > 0
    assert over <= ALLOWED
    assert dropped == REPETITIONS


# The joint test


def chance_of_so_few(wrong, trials, first, second):
    """P(errors of both worlds <= wrong) for rates `first` and `second`, arrays of one shape, exactly."""
    some = np.arange(wrong + 1)[:, None]
    return (stats.binom.pmf(some, trials, first) * stats.binom.cdf(wrong - some, trials, second)).sum(0)


def joint_bounds(trials, significance=STATED):
    """By the number of errors in both worlds."""
    halves = [(errors_ // 2, errors_ - errors_ // 2) for errors_ in range(2 * trials + 1)]
    return np.array([error_bounds(a, trials, b, trials, significance, joint=True).mean for a, b in halves])


@pytest.mark.parametrize("significance", [1e-4, 0.05, 0.3, 0.8])
@pytest.mark.parametrize("trials", [1, 2, 3, 10, 40])
def test_no_two_rates_exceed_their_joint_bound_more_often_than_stated(trials, significance):
    """Exactly, for all shares of the two rates in a mean at the bound, where the chance is largest."""
    for wrong, bound in enumerate(joint_bounds(trials, significance)[:-1]):
        first = np.linspace(max(2 * bound - 1, 0.0), min(2 * bound, 1.0), 101)
        chance = chance_of_so_few(wrong, trials, first, 2 * bound - first)
        assert chance.max() <= significance * (1 + 1e-9)
        if significance < 0.25 and bound <= 1 - 1 / trials:
            assert chance.max() == pytest.approx(significance, rel=1e-9)  # equal rates attain it
    assert joint_bounds(trials, significance)[-1] == 1.0


def test_a_joint_bound_without_its_edge_is_too_low():
    """The wrong program: Clopper's and Pearson's bound alone, where the theorem on unequal rates does not reach."""
    plain = stats.beta.isf(0.8, 2, 1)  # one error in two trials
    assert joint_bounds(1, 0.8)[1] == 1.0
    assert chance_of_so_few(1, 1, np.array([2 * plain]), np.array([0.0]))[0] == 1.0


@pytest.mark.parametrize("mu", [0.0, 0.27, 0.92, 2.0])
def test_either_test_is_calibrated_on_a_true_curve_whatever_the_threshold(mu):
    """Exactly, for the best attack."""
    trials, curve = 300, accounting.TradeOff(mu=mu)
    each = np.array([error_bounds(wrong, trials, 0, 1).false_positive for wrong in range(trials + 1)])
    count, joint = np.arange(trials + 1), joint_bounds(trials)
    by_halves, jointly = curve(each)[:, None] > each, (curve(joint) > joint)[count[:, None] + count]
    found = []
    for threshold in mu / 2 + np.array([-1.5, -0.7, -0.3, 0.0, 0.2, 1.0]):
        law = np.outer(
            stats.binom.pmf(count, trials, ndtr(-threshold)), stats.binom.pmf(count, trials, ndtr(threshold - mu))
        )
        found.append([float((law * refuted).sum()) for refuted in (by_halves, jointly)])
    assert np.max(found) <= STATED + 1e-12
    assert np.max(found, axis=0)[1] > 0.7 * STATED


@pytest.mark.parametrize(
    ("event", "accountant"),
    [
        (unsampled(2.0, 3), "pld"),
        (poisson(0.8, 0.3, 5), "pld"),
        (fixed_size(2.0, 10, 100, 50), "pld"),
        (unsampled(1.0), "rdp"),
    ],
)
def test_a_joint_test_is_the_one_of_total_variation(event, accountant):
    curve, rates = trade_off(event, accountant), np.linspace(0, 1, 20_001)
    least = float((rates + curve(rates)).min())  # of the sum of both error rates
    for share, refuted in ((1 - 1e-3, True), (1 + 1e-3, False)):
        bounds = accounting.ErrorBounds(0.9, 0.9, STATED, 0, 1, 0, 1, mean=share * least / 2)
        assert contradicts(bounds, curve) == refuted
        assert noise_at_most(bounds, event, accountant) == pytest.approx(1.0, abs=0.05)
    if curve.mu is not None:
        assert least == pytest.approx(2 * ndtr(-curve.mu / 2), rel=1e-6)
        assert mu_of(dataclasses.replace(bounds, mean=least / 2)) == pytest.approx(curve.mu, rel=1e-6)


def test_joint_bounds_for_any_mechanism_are_those_of_total_variation():
    for delta in (1e-5, 0.1):
        bounds = error_bounds(300, 4000, 700, 4000, joint=True)
        reached = math.exp(epsilon_of_any(bounds, delta))
        assert (reached - 1 + 2 * delta) / (reached + 1) == pytest.approx(1 - 2 * bounds.mean, rel=1e-9)


def test_conclusions_of_a_joint_test_do_not_look_at_the_bounds_by_halves():
    bounds = error_bounds(30, 1000, 90, 1000, joint=True)
    by_halves = error_bounds(30, 1000, 90, 1000)
    assert (bounds.false_positive, bounds.false_negative) == by_halves.corner
    assert bounds.corner == (bounds.mean, bounds.mean)
    other = dataclasses.replace(bounds, false_positive=0.0, false_negative=0.0)
    for event in (unsampled(1.0), poisson(1.0, 0.3, 5)):
        for conclude in (
            mu_of,
            lambda b: epsilon_of_any(b, DELTA),
            lambda b, e=event: contradicts(b, trade_off(e)),
            lambda b, e=event: noise_at_most(b, e),
            lambda b, e=event: accounting.epsilon_at_least(b, e, DELTA),
        ):
            assert conclude(bounds) == conclude(other)


def test_a_plan_counts_scores_above_its_threshold():
    absent, present = np.array([-np.inf, 0.0, 1.0, 1.1, np.inf]), np.array([0.0, 1.0, 2.0, np.inf, np.nan])
    for joint in (False, True):
        found = accounting.ChosenTest(1.0, joint, 0.1, 0.0).judge(absent, present)
        assert found == error_bounds(2, 5, 3, 5, 0.1, joint=joint)


# Trade-off curves


@pytest.mark.parametrize(("noise", "count"), [(1.0, 1), (10.0, 1), (0.2, 1), (30.0, 1000), (1.0, 30)])
def test_lines_under_a_loss_distribution_touch_the_gaussian_curve(noise, count):
    event, mu = unsampled(noise, count), math.sqrt(count) / noise
    assert trade_off(event).mu == trade_off(event, "gaussian").mu == pytest.approx(mu, rel=1e-12)
    losses = accounting.Accountant("losses", "for this test", price, 2e-4)
    curve, exact = trade_off(event, losses), accounting.gaussian_trade_off(mu, RATES)
    assert curve.mu is None
    assert (curve(RATES) <= exact * (1 + 1e-9) + 1e-15).all()
    seen = exact > 1e-12
    assert (-ndtri(RATES) - ndtri(np.maximum(curve(RATES), 1e-300)))[seen] == pytest.approx(mu, rel=1e-3)


@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.0), (0.01, 0.5), (0.5, 2.0)])
def test_the_curve_of_one_sampled_step_is_below_both_exact_ones_and_touches_the_lower(rate, noise):
    """(1 - q) N(0) + q N(1) against N(0): the best tests cut the line, and either law may be the null."""
    cuts = np.linspace(-8, 9, 4001) * noise
    alone, mixed = ndtr(-cuts / noise), (1 - rate) * ndtr(cuts / noise) + rate * ndtr((cuts - 1) / noise)
    curve = trade_off(poisson(noise, rate))
    for fp, fn in ((alone, mixed), (mixed, alone)):
        assert (curve(fp) <= fn + 1e-12).all()
    mu = np.minimum(
        *(
            -ndtri(RATES) - ndtri(np.interp(RATES, *(a[np.argsort(fp)] for a in (fp, fn))))
            for fp, fn in ((alone, mixed), (mixed, alone))
        )
    )
    below = -ndtri(RATES) - ndtri(curve(RATES))
    assert (below >= mu * (1 - 1e-3)).all()
    lower = np.minimum(np.interp(RATES, alone[::-1], mixed[::-1]), np.interp(RATES, mixed, alone))
    assert np.isclose(curve(RATES), lower, rtol=2e-3).sum() >= 6  # elsewhere a chord joins the two


EVENTS = [
    (unsampled(2.0, 3), "pld"),
    (unsampled(2.0, 3), "rdp"),
    (unsampled(2.0, 3), "zcdp"),
    (unsampled(2.0, 3), "tcdp"),
    (poisson(1.0, 0.01, 1000), "pld"),
    (poisson(1.0, 0.01, 1000), "rdp"),
    (fixed_size(2.0, 10, 600, 600), "pld"),
    (accounting.RandomParticipation(unsampled(2.0, 3), 0.2, 10), "pld"),
    (accounting.Composed((poisson(1.0, 0.1, 5), unsampled(5.0))), "pld"),
    (accounting.SkellamSums(1000.0, 10, 50, accounting.Adjacency.ADD_REMOVE, 3), "rdp"),
]


@pytest.mark.parametrize(("event", "accountant"), EVENTS)
def test_a_curve_is_one_and_agrees_with_the_accountants_epsilons(event, accountant):
    curve, rates = trade_off(event, accountant), np.linspace(0, 1, 401)
    values = curve(rates)
    assert (values >= 0).all()
    assert (values <= 1 - rates + 1e-12).all()
    assert (np.diff(values) <= 1e-12).all()
    assert (np.diff(values, 2) >= -1e-9).all()
    inner = rates[1:-1][values[1:-1] > 1e-9]
    assert curve(curve(inner)) == pytest.approx(inner, abs=1e-6)  # neighbours have no order
    for delta in (1e-6, 1e-3, 0.1):
        epsilon = accounting.epsilon_of(event, delta, accountant)
        lines = np.maximum(1 - delta - math.exp(epsilon) * rates, math.exp(-epsilon) * (1 - delta - rates))
        assert (values >= lines - 2e-3 * (values > 0)).all()  # no looser than at this delta
    more = trade_off(event.scaled(1.5), accountant)
    assert (more(rates) >= values - 1e-12).all()


def test_curves_at_the_ends():
    rates = np.linspace(0, 1, 11)
    assert trade_off(unsampled(1.0, 0))(rates) == pytest.approx(1 - rates, abs=1e-15)
    assert (trade_off(unsampled(0.0))(rates) == 0).all()
    assert trade_off(poisson(1.0, 0.1))(0.5).shape == ()
    with pytest.raises(accounting.NotCoveredError, match="use accountant rdp"):
        trade_off(accounting.SkellamSums(1000.0, 10, 50, accounting.Adjacency.ADD_REMOVE, 3))


# What a contradiction means


@pytest.mark.parametrize(("event", "accountant"), EVENTS)
def test_rates_on_the_curve_leave_the_stated_noise_and_less_than_that_contradicts(event, accountant):
    curve = trade_off(event, accountant)
    for fp in (0.01, 0.2):
        fn = float(curve(fp))
        bounds = exact_rates(fp, fn * (1 - 1e-9))
        factor = noise_at_most(bounds, event, accountant)
        assert factor == pytest.approx(1.0, rel=2e-3)
        assert contradicts(bounds, trade_off(event.scaled(factor * 1.0001), accountant))
        assert not contradicts(bounds, trade_off(event.scaled(factor * 0.997), accountant))
        assert noise_at_most(bounds, event.scaled(3.0), accountant) == pytest.approx(factor / 3, rel=2e-3)


@pytest.mark.parametrize(
    "event",
    [
        unsampled(0.7, 2),
        poisson(0.8, 0.3),
        poisson(1.0, 0.01, 1000),
        accounting.RandomParticipation(unsampled(2.0), 0.2, 10),
    ],
)
def test_a_flawless_audit_recovers_the_exact_epsilon_of_what_two_neighbours_attain(event):
    epsilon = accounting.epsilon_of(event, DELTA)
    bounds = exact_rates(0.05, float(trade_off(event)(0.05)) * (1 - 1e-9))
    for stated in (event, event.scaled(2.0), event.scaled(0.6)):  # the noise that was stated does not matter
        assert accounting.epsilon_at_least(bounds, stated, DELTA) == pytest.approx(epsilon, rel=4e-3)


def test_epsilon_at_least_stays_below_what_fixed_size_batches_attain():
    event = fixed_size(2.0, 10, 600, 600)
    bounds = exact_rates(0.1, float(trade_off(event)(0.1)) * (1 - 1e-9))
    attained = accounting.epsilon_at_least(bounds, event, DELTA)
    assert 0.7 * accounting.epsilon_of(event, DELTA) < attained < accounting.epsilon_of(event, DELTA)


def test_rates_of_coin_flips_leave_any_noise():
    for bounds in (exact_rates(0.5, 0.5), exact_rates(0.2, 0.9), error_bounds(5, 5, 0, 5)):
        for event in (unsampled(1.0), poisson(1.0, 0.1, 3)):
            assert noise_at_most(bounds, event) == math.inf
            assert accounting.epsilon_at_least(bounds, event, DELTA) == 0.0


def test_where_no_pair_of_neighbours_is_known_only_the_bound_for_any_mechanism_is_left():
    event = accounting.GaussianSteps(1.0, accounting.WithReplacement(10, 100), accounting.Adjacency.REPLACE_ONE, 5)
    bounds = exact_rates(0.01, 0.3)
    assert noise_at_most(bounds, event) < 1
    assert accounting.epsilon_at_least(bounds, event, DELTA) == epsilon_of_any(bounds, DELTA) > 0


def test_rates_that_no_noise_explains_stop_the_search():
    event = poisson(1.0, 0.01)  # even without noise 99% of runs look alike
    assert noise_at_most(exact_rates(0.01, 0.01), event) == pytest.approx(0.05, rel=1e-9)


@pytest.mark.parametrize(("event", "accountant"), [row for row in EVENTS if row[0] != unsampled(2.0, 3)])
@pytest.mark.parametrize("significance", [0.05, 1e-6])
def test_trials_needed_is_the_first_number_with_which_a_flawless_attack_contradicts(event, accountant, significance):
    curve = trade_off(event, accountant)
    count = accounting.trials_needed(curve, significance)
    assert contradicts(error_bounds(0, count, 0, count, significance, joint=True), curve)
    if count > 1:
        assert not contradicts(error_bounds(0, count - 1, 0, count - 1, significance, joint=True), curve)
        assert not contradicts(error_bounds(0, count - 1, 0, count - 1, significance), curve)


# Thresholds


def efficiency(epsilon, pilot, trials, repetitions, rng, tests=(False, True)):
    mu = 1 / accounting.gaussian_noise(epsilon, DELTA)
    event = unsampled(1 / mu)
    found = []
    for _ in range(repetitions):
        scores = rng.normal(size=pilot), rng.normal(size=pilot) + mu
        threshold, joint, *_ = choose_test(*scores, trials, STATED, trade_off(event), tests)
        fp, fn = rng.binomial(trials, ndtr(-threshold)), rng.binomial(trials, ndtr(threshold - mu))
        bounds = error_bounds(int(fp), trials, int(fn), trials, joint=joint)
        found.append(accounting.epsilon_at_least(bounds, event, DELTA) / epsilon)
    return float(np.median(found))


@pytest.mark.parametrize(
    ("epsilon", "trials", "repetitions", "least", "halves"),
    [
        (4.0, 4000, 60, 0.92, 0.91),  # 0.935 and 0.89 are the medians of the medians
        pytest.param(1.0, 4000, 300, 0.74, 0.69, marks=pytest.mark.exhaustive),
        pytest.param(4.0, 40_000, 300, 0.97, 0.98, marks=pytest.mark.exhaustive),
        pytest.param(8.0, 1000, 300, 0.90, 0.90, marks=pytest.mark.exhaustive),
    ],
)
def test_pilot_scores_find_a_good_test(epsilon, trials, repetitions, least, halves):
    rng = np.random.default_rng(3)
    assert efficiency(epsilon, trials // 4, trials, repetitions, rng) >= least
    assert halves - 0.04 <= efficiency(epsilon, trials // 4, trials, repetitions, rng, (False,)) <= halves


def test_a_sampled_mechanism_is_best_told_by_its_tail():
    """One in ten positive scores is shifted by 4. The wrong programs: the threshold that is best for Gaussian scores,
    and the joint test.
    """
    rng = np.random.default_rng(6)
    curve, trials = trade_off(poisson(0.25, 0.1)), 20_000

    def evidence(threshold, joint=False):
        fn = 0.9 * ndtr(threshold) + 0.1 * ndtr(threshold - 4)
        wrong = round(trials * ndtr(-threshold)), trials, round(trials * fn), trials
        fp, fn = error_bounds(*wrong, joint=joint).corner
        return float(ndtri(curve(fp)) - ndtri(fn)) / float(-ndtri(fp) - ndtri(curve(fp)))

    best, joint = (max(evidence(cut, joint) for cut in np.linspace(-1, 4, 101)) for joint in (False, True))
    assert joint < best - 0.05
    found, plans = [], []
    for _ in range(9):
        scores = rng.normal(size=2000), rng.normal(size=2000) + 4 * (rng.random(2000) < 0.1)
        plans.append(choose_test(*scores, trials, STATED, curve))
        found.append(evidence(choose_test(*scores, trials, STATED, curve).threshold))
    assert np.median(found) > best - 0.05
    assert sum(not plan.joint for plan in plans) >= 6
    assert evidence(0.0) < best - 0.1


def test_thresholds_do_not_depend_on_the_unit_of_the_scores():
    rng = np.random.default_rng(5)
    negatives, positives = rng.normal(size=1000), rng.normal(size=1000) + 1
    plain = choose_test(negatives, positives, 4000).threshold
    assert choose_test(1e9 * negatives, 1e9 * positives, 4000).threshold == pytest.approx(1e9 * plain, rel=1e-9)
    bent = choose_test(np.exp(3 * negatives), np.exp(3 * positives), 4000).threshold
    assert (np.exp(3 * negatives) > bent).sum() == (negatives > plain).sum()


def test_thresholds_of_awkward_scores():
    for negatives, positives, wanted in [
        (np.zeros(100), np.ones(100), (0.0, 1.0)),  # two atoms
        (np.arange(100.0), np.arange(500.0, 600.0), (99.0, 500.0)),  # separated
        (np.full(100, -np.inf), np.full(100, np.inf), (-np.inf, np.inf)),
        (np.r_[np.full(50, -np.inf), np.zeros(50)], np.full(100, 7.0), (0.0, 7.0)),
    ]:
        threshold = choose_test(negatives, positives, 1000).threshold
        assert wanted[0] <= threshold < wanted[1]
        assert not (negatives > threshold).any()
        assert (positives > threshold).all()
    assert choose_test(np.full(3, 2.0), np.full(5, 2.0), 1000).threshold == 2.0
    assert choose_test([0.0], [1.0], 1000).threshold == 0.5
    everything = trade_off(unsampled(0.0))  # a curve that nothing undercuts
    assert choose_test([0.0, 1.0], [2.0, 3.0], 100, STATED, everything).threshold == 1.5


# One run


def largest_chance(correct, guesses, canaries, curve):
    """Of at least so many right guesses, by linear programming over their law."""
    k, rows, bounds = np.arange(guesses + 1), [], []
    for i in range(guesses):
        wrong, right = np.where(k >= i, guesses - k, 0) / canaries, np.where(k > i, k, 0) / canaries
        for slope, delta in zip(np.exp(curve.epsilons), curve.deltas):
            rows += [slope * right - wrong, right / slope - wrong]
            bounds += [slope - 1 + delta, delta / slope]
    found = linprog(-(k >= correct).astype(float), np.array(rows), bounds, np.ones((1, guesses + 1)), [1.0])
    return -found.fun


def critical(correct, guesses, canaries, curve):
    """The significance from which on so many right guesses contradict the curve."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        refuted = accounting.one_run_contradicts(correct, guesses, canaries, curve, middle)
        low, high = (low, middle) if refuted else (middle, high)
    return low


def test_the_one_run_recursion_solves_its_linear_programme():
    rng = np.random.default_rng(7)
    for _ in range(20):
        canaries = int(rng.integers(1, 9))
        guesses = int(rng.integers(1, canaries + 1))
        correct = int(rng.integers(1, guesses + 1))
        count = int(rng.integers(1, 4))
        curve = accounting.TradeOff(None, np.sort(rng.uniform(0, 3, count)), np.sort(rng.uniform(0, 0.2, count))[::-1])
        found = critical(correct, guesses, canaries, curve)
        assert found == pytest.approx(min(largest_chance(correct, guesses, canaries, curve), 1.0), abs=1e-9)


@pytest.mark.parametrize(("guesses", "canaries"), [(6, 6), (4, 10)])
def test_randomised_response_is_not_contradicted_by_what_it_attains(guesses, canaries):
    """Independent coins through randomised response: the number of right guesses is exactly binomial."""
    for epsilon in (0.5, 2.0):
        curve = accounting.TradeOff(None, np.array([epsilon]), np.array([0.0]))
        for correct in range(1, guesses + 1):
            exact = stats.binom.sf(correct - 1, guesses, 1 / (1 + math.exp(-epsilon)))
            assert critical(correct, guesses, canaries, curve) >= exact - 1e-12
            if exact < 1:
                found = accounting.one_run_epsilon(correct, guesses, canaries, 1e-15, exact)
                assert found == pytest.approx(epsilon, abs=1e-5)
        assert critical(guesses, guesses, canaries, curve) == pytest.approx(exact, rel=1e-9)  # all right: attained


def one_run_scores(mu, canaries, guesses, repetitions, rng):
    """Right guesses in ideal runs: half of them on the largest scores, half on the smallest."""
    inside = rng.random((repetitions, canaries)) < 0.5
    order = np.argsort(rng.normal(size=inside.shape) + mu * inside, axis=1)
    ranked = np.take_along_axis(inside, order, axis=1)
    return (~ranked[:, : guesses // 2]).sum(1) + ranked[:, canaries - guesses // 2 :].sum(1)


@pytest.mark.parametrize("mu", [0.0, 0.27, 0.92])
def test_one_run_bounds_are_exceeded_no_more_often_than_stated(mu):
    """The wrong program: the best of many numbers of guesses, in the null world where it costs most."""
    rng = np.random.default_rng(8)
    canaries, guesses, epsilon = 300, 40, accounting.gaussian_epsilon(DELTA, 1 / mu) if mu else 0.0
    over = 0
    for correct, times in zip(*np.unique(one_run_scores(mu, canaries, guesses, REPETITIONS, rng), return_counts=True)):
        over += int(times) * (
            accounting.one_run_contradicts(correct, guesses, canaries, accounting.TradeOff(mu=mu))
            or accounting.one_run_mu(correct, guesses, canaries) > mu
            or accounting.one_run_epsilon(correct, guesses, canaries, DELTA) > epsilon
        )
    assert over <= ALLOWED
    if mu == 0:
        inside = rng.random((REPETITIONS, canaries)) < 0.5  # scores are mere noise, so any order will do
        right = np.cumsum(inside, axis=1)
        numbers = np.arange(1, canaries + 1)
        least = stats.binom.isf(STATED, numbers, 0.5)  # more right guesses than this contradict mu = 0 at each number
        assert (right > least).any(axis=1).sum() > 2 * ALLOWED


def test_one_run_pays_for_delta():
    """The mechanism reveals all coins with probability 0.1, else none: epsilon 0. The wrong program drops delta."""
    rng = np.random.default_rng(9)
    reveals = rng.random(REPETITIONS) < 0.1
    correct, times = np.unique(np.where(reveals, 100, rng.binomial(100, 0.5, REPETITIONS)), return_counts=True)
    paid, dropped = ([accounting.one_run_epsilon(c, 100, 100, delta) > 0 for c in correct] for delta in (0.1, 1e-12))
    assert times @ paid <= ALLOWED
    assert times @ dropped > ALLOWED


@pytest.mark.parametrize(("epsilon", "least"), [(4.0, 0.5), (8.0, 0.5)])
def test_the_number_of_guesses_is_chosen_well_without_a_look_at_the_run(epsilon, least):
    rng = np.random.default_rng(10)
    mu = 1 / accounting.gaussian_noise(epsilon, DELTA)
    guesses = accounting.choose_guesses(1000, mu)

    def share(number):
        found = [accounting.one_run_mu(c, number, 1000) for c in one_run_scores(mu, 1000, number, 15, rng).tolist()]
        return accounting.gaussian_epsilon(DELTA, 1 / float(np.median(found))) / epsilon

    assert guesses % 2 == 0
    assert share(guesses) > max(least, share(1000) + 0.15)


def test_one_run_at_the_ends():
    assert accounting.one_run_mu(50, 100, 100) == accounting.one_run_mu(1, 1, 1) == 0.0
    assert accounting.one_run_epsilon(0, 10, 10, DELTA) == 0.0
    assert accounting.one_run_mu(10, 10, 10) > 0
    assert accounting.choose_guesses(2, 1.0) == 2
    assert not accounting.one_run_contradicts(1000, 1000, 1000, trade_off(unsampled(0.0)))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: error_bounds(-1, 10, 0, 10), "false positives among 10 negatives must be an integer from 0 to 10"),
        (lambda: error_bounds(0, 10, 11, 10), "false negatives among 10 positives must be an integer from 0 to 10"),
        (lambda: error_bounds(0, 0, 0, 10), "negatives must be an integer of at least 1"),
        (lambda: error_bounds(0, 10, 0, 10, 1.0), "significance must be strictly between 0 and 1"),
        (lambda: epsilon_of_any(error_bounds(0, 10, 0, 10), 0.0), "delta must be strictly between 0 and 1"),
        (lambda: accounting.TradeOff(mu=1.0)([0.1, np.nan]), "false positive rates must be in [0, 1]"),
        (
            lambda: noise_at_most(exact_rates(0.1, 0.1), unsampled(0.0)),
            "all of them noisy, got a release without noise",
        ),
        (lambda: noise_at_most(exact_rates(0.1, 0.1), unsampled(1.0, 0)), "at least one release"),
        (lambda: accounting.trials_needed(trade_off(unsampled(0.01, 1000))), "break in a trillion trials, got one"),
        (lambda: error_bounds(0, 10, 0, 11, joint=True), "as many of either world, got 10 negatives and 11 positives"),
        (lambda: choose_test([], [1.0], 10).threshold, "pilot scores of the negative world must be at least one"),
        (lambda: choose_test([1.0], [np.nan], 10), "pilot scores of the positive world"),
        (lambda: accounting.one_run_mu(11, 10, 20), "correct ones of 10 guesses must be an integer from 0 to 10"),
        (lambda: accounting.one_run_epsilon(1, 30, 20, DELTA), "about 20 canaries must be an integer from 1 to 20"),
        (lambda: accounting.choose_guesses(1, 1.0), "canaries must be an integer from 2"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, words):
    assert words in refusal(call)
