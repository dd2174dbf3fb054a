"""Choosing the best of several runs: bounds against enumerated laws, another program, and what must hold anyway."""

import functools
import itertools
import json
import math
import re

import numpy as np
import pytest
from helpers import refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedjax_dp import accounting, errors
from fedjax_dp.accounting import (
    NegativeBinomialTrials,
    PoissonTrials,
    composition_epsilons,
    epsilon_of,
    rdp,
    selection_cost,
)
from fedjax_dp.accounting import trials as trial_laws
from fedjax_dp.accounting.accountants import total
from fedjax_dp.tools.papers import wang

ADD_REMOVE, REPLACE_ONE = accounting.Adjacency.ADD_REMOVE, accounting.Adjacency.REPLACE_ONE
NOTHING = accounting.Composed(())
ORDERS = 1 + np.geomspace(0.05, 2000, 160)
LAWS = [
    PoissonTrials(0.3),
    PoissonTrials(1.0),
    PoissonTrials(12.0),
    NegativeBinomialTrials(-0.5, 1e-4),
    NegativeBinomialTrials(0.0, 0.02),
    NegativeBinomialTrials(1.0, 0.1),
    NegativeBinomialTrials(1.0, 0.9),
    NegativeBinomialTrials(7.5, 0.4),
]


def steps(noise, batch=10, records=600, count=60):
    return accounting.GaussianSteps(noise, accounting.WithoutReplacement(batch, records), REPLACE_ONE, count)


def negative_binomial_law(trials, most):
    """Probabilities of 1 to `most` trials, by the definition: Papernot and Steinke 2022, Definition 1."""
    k = np.arange(1, most + 1)
    if trials.gamma == 1:
        return (k == 1).astype(float)
    rising = np.log(np.where(k > 1, k - 1 + trials.eta, 1.0) / k)
    logs = k * math.log1p(-trials.gamma) + np.cumsum(rising)
    return np.exp(logs - np.logaddexp.reduce(logs))


# --- the number of trials --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eta", [-0.9, -0.5, 0.0, 1e-9, 0.5, 1.0, 7.5, 300.0])
@pytest.mark.parametrize("gamma", [1.0, 1 - 1e-9, 0.7, 0.1, 0.02])
def test_the_mean_is_that_of_the_law(eta, gamma):
    trials = NegativeBinomialTrials(eta, gamma)
    law = negative_binomial_law(trials, 40_000)
    assert trials.mean == pytest.approx(law @ np.arange(1, law.size + 1), rel=1e-9)


@pytest.mark.parametrize("eta", [-0.5, 0.0, 0.3, 1.0, 20.0])
@pytest.mark.parametrize("mean", [1.0, 1 + 1e-9, 1.5, 10.0, 64.0, 1e5])
def test_a_law_is_found_for_a_mean(eta, mean):
    trials = NegativeBinomialTrials.of_mean(mean, eta)
    assert trials.mean == pytest.approx(mean, rel=1e-9)
    assert trials.mean - 1 == pytest.approx(mean - 1, rel=1e-3)


def test_the_geometric_law_is_the_one_that_is_asked_for_if_nothing_else_is():
    assert NegativeBinomialTrials.of_mean(8.0).gamma == pytest.approx(1 / 8, rel=1e-12)
    assert str(NegativeBinomialTrials.of_mean(8.0)) == "geometric with mean 8"
    assert str(NegativeBinomialTrials.of_mean(8.0, 0)) == "logarithmic with mean 8"
    assert str(NegativeBinomialTrials.of_mean(8.0, 0.5)) == "negative binomial (eta 0.5) with mean 8"


@pytest.mark.parametrize("trials", LAWS, ids=str)
def test_draws_follow_the_law(trials):
    rng = np.random.default_rng(7)
    drawn = np.array([trials.draw(rng) for _ in range(4000)])
    if isinstance(trials, PoissonTrials):
        law, least = stats.poisson(trials.mean).pmf(np.arange(200)), 0
    else:
        law, least = negative_binomial_law(trials, 400_000), 1
    assert drawn.min() >= least
    edges = [np.searchsorted(np.cumsum(law), level) for level in (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)]
    edges = np.unique(np.append(edges, law.size - 1))  # the last index of each bin
    expected = np.diff(np.cumsum(law)[edges], prepend=0.0)
    seen = np.bincount(np.searchsorted(edges, np.minimum(drawn - least, edges[-1])), minlength=edges.size)
    if edges.size > 1:
        assert stats.chisquare(seen, expected / expected.sum() * seen.sum()).pvalue > 1e-3
    assert PoissonTrials(1e-9).draw(rng) == 0


# --- the bounds against laws that can be enumerated -----------------------------------------------------------------


def generating(trials, x):
    """E[x^K]."""
    if isinstance(trials, PoissonTrials):
        return np.exp(trials.mean * (x - 1))
    rest, eta = 1 - (1 - trials.gamma) * x, trials.eta
    if eta == 0:
        return np.log(rest) / np.log(trials.gamma)
    return (rest**-eta - 1) / (trials.gamma**-eta - 1)


def best_of(trials, law):
    """The law of the best trial, worst outcome first; before it, the chance that nothing is tried."""
    at_most = np.append(0.0, np.cumsum(law))
    at_most[-1] = 1.0
    below = generating(trials, at_most)
    return np.append(below[0], np.diff(below)) if below[0] > 0 else np.diff(below)


def divergences(one, other, orders=ORDERS):
    """Renyi divergences between two finite laws, the larger of both directions."""
    with np.errstate(divide="ignore"):
        p, q = np.log(one), np.log(other)
    a = orders[:, None]
    ways = [np.logaddexp.reduce(a * x - (a - 1) * y, axis=1) / (orders - 1) for x, y in ((p, q), (q, p))]
    return np.maximum(np.maximum(*ways), 0.0)


def randomised_response(epsilon):
    """One says 1, the best outcome, with probability 1/(1 + e^epsilon), the other 0."""
    p = 1 / (1 + math.exp(epsilon))
    return np.array([1 - p, p]), np.array([p, 1 - p])


@st.composite
def neighbours(draw):
    """Two laws on a few outcomes, with probabilities from 1e-6 up."""
    size = draw(st.integers(2, 6))
    logs = st.lists(st.floats(-6, 0), min_size=size, max_size=size)
    closeness = draw(st.sampled_from([0.01, 0.3, 1.0]))
    base, shift = np.array(draw(logs)), np.array(draw(logs))
    one, other = 10**base, np.maximum(10 ** (base + closeness * shift), 1e-6)  # rarer ones drown in rounding
    return one / one.sum(), other / other.sum()


@pytest.mark.parametrize("trials", LAWS, ids=str)
@settings(max_examples=60, deadline=None)
@given(laws=neighbours())
def test_no_enumerated_selection_costs_more_than_the_bound(trials, laws):
    exact = divergences(*(best_of(trials, law) for law in laws))
    assert np.all(exact <= trials.renyi(ORDERS, divergences(*laws)) * (1 + 1e-6) + 1e-9)


@pytest.mark.parametrize("missing", ["the divergence", "gamma", "one of 1 + eta", "the mean"])
def test_every_term_for_negative_binomial_trials_is_needed(missing):
    rare = np.array([1 - 1e-4, 1e-4]), np.array([1 - 1e-9, 1e-9])
    found = False
    for eta, laws in itertools.product((5.0, 0.0, -0.9), (rare, *map(randomised_response, (-1.0, -4.0, -9.0)))):
        trials = NegativeBinomialTrials(eta, 1e-4)
        one, a, log_gamma = divergences(*laws), ORDERS, math.log(trials.gamma)
        second = (1 - 1 / a) * one * (missing != "the divergence") - log_gamma / a * (missing != "gamma")
        factor = eta + (missing != "one of 1 + eta")
        bound = one + factor * np.min(second) + math.log(trials.mean) / (a - 1) * (missing != "the mean")
        exact = divergences(*(best_of(trials, law) for law in laws))
        assert np.all(exact <= trials.renyi(a, one) * (1 + 1e-6))
        found |= bool(np.any(exact > bound * 1.05))
    assert found


def test_forgetting_that_nothing_may_be_tried_is_contradicted_below_a_mean_of_one():
    trials, laws = PoissonTrials(0.3), randomised_response(0.5)
    one = divergences(*laws)
    printed = one + math.log(trials.mean) / (ORDERS - 1)  # Theorem 6 where delta is zero
    exact = divergences(*(best_of(trials, law) for law in laws))
    pure = np.log1p(1 / (ORDERS - 1)) >= 0.5  # there one trial is private without any delta
    assert np.any(exact[pure] > printed[pure] + 0.1)
    assert printed[0] < 0


def test_forgetting_the_delta_of_a_trial_or_their_number_is_contradicted_with_poisson_trials():
    laws = randomised_response(2.0)
    one, many = divergences(*laws), [best_of(PoissonTrials(300.0), law) for law in laws]
    assert np.any(divergences(*many) > 10 * (one + math.log(300) / (ORDERS - 1)))
    assert np.all(divergences(*many) <= PoissonTrials(300.0).renyi(ORDERS, one))
    rare = np.array([1 - 1e-6, 1e-6]), np.array([1 - 1e-7, 1e-7])
    one, exact = divergences(*rare), divergences(*(best_of(PoissonTrials(12.0), law) for law in rare))
    assert np.any(exact > one * 1.2)
    assert np.all(exact <= PoissonTrials(12.0).renyi(ORDERS, one) * (1 + 1e-9))


# --- limits and orderings of the bounds ------------------------------------------------------------------------------


def test_one_trial_costs_what_it_costs_alone():
    event = steps(3.0)
    for eta in (-0.5, 0.0, 1.0, 9.0):
        once = NegativeBinomialTrials.of_mean(1.0, eta)
        assert accounting.repetition_epsilons([[event]], once, 1e-5) == [epsilon_of(event, 1e-5, "rdp")]
        curve = event.rdp(ORDERS)
        assert np.array_equal(once.renyi(ORDERS, curve), curve)
        rarely_more = NegativeBinomialTrials.of_mean(1 + 1e-7, eta).renyi(ORDERS, curve)
        assert np.all(rarely_more >= curve)
        assert rarely_more[40:] == pytest.approx(curve[40:], rel=1e-2)


@pytest.mark.parametrize(
    "law", [PoissonTrials, NegativeBinomialTrials.of_mean, functools.partial(NegativeBinomialTrials.of_mean, eta=0.0)]
)
def test_more_trials_cost_more_and_noisier_trials_less(law):
    costs = [
        accounting.repetition_epsilons([[steps(3.0)]], law(mean), 1e-5)[0] for mean in (1.0, 1.5, 4.0, 30.0, 1000.0)
    ]
    assert costs == sorted(set(costs))
    assert costs[0] >= epsilon_of(steps(3.0), 1e-5, "rdp") * (1 - 1e-9)
    noisier = [accounting.repetition_epsilons([[steps(noise)]], law(9.0), 1e-5)[0] for noise in (8.0, 4.0, 2.0, 1.0)]
    assert noisier == sorted(set(noisier))


def test_repetition_of_many_costs_much_less_than_all_of_them_but_more_than_one():
    run = [steps(3.0)]
    one, all_of_them = epsilon_of(run[0], 1e-5), composition_epsilons([run] * 64, 1e-5)[0]
    best = accounting.repetition_epsilons([run], NegativeBinomialTrials.of_mean(64), 1e-5)[0]
    assert 1.5 * one < best < 4 * one < all_of_them


def test_the_least_noisy_candidate_sets_the_price():
    trials, delta = NegativeBinomialTrials.of_mean(10), 1e-5
    noisy, quiet, rare = [steps(4.0)], [steps(2.0)], [steps(0.8, batch=1, count=10)]
    alone = accounting.repetition_epsilons([quiet], trials, delta)[0]
    assert accounting.repetition_epsilons([noisy, quiet], trials, delta)[0] == pytest.approx(alone, rel=5e-3)
    thrice = accounting.repetition_epsilons([noisy, quiet, noisy], trials, delta)
    assert accounting.repetition_epsilons([quiet, noisy], trials, delta) == thrice
    (crossing,) = accounting.repetition_epsilons([quiet, rare], trials, delta)  # worse at low orders, and at high ones
    assert crossing >= max(alone, accounting.repetition_epsilons([rare], trials, delta)[0]) * (1 - 5e-3)


def test_a_chance_of_total_loss_counts_as_often_as_trials_are_expected():
    event = accounting.GaussianSteps(3.0, accounting.WithReplacement(10, 600), REPLACE_ONE, 60)
    (finite,) = accounting.repetition_epsilons([[event]], NegativeBinomialTrials.of_mean(20), 1e-5)
    assert epsilon_of(event, 1e-5, "rdp") < finite < 20
    lost = rdp.price(event)(event).times(event.releases).infinite_mass
    assert lost > 0
    assert accounting.repetition_epsilons([[event]], NegativeBinomialTrials.of_mean(20), 19 * lost) == [math.inf]
    assert math.isfinite(accounting.repetition_epsilons([[event]], NegativeBinomialTrials.of_mean(20), 21 * lost)[0])


@settings(max_examples=50, deadline=None)
@given(slope=st.floats(1e-9, 1e4), mean=st.floats(1e-6, 1e9), start=st.sampled_from([0.0, 1e-12, 3.0]))
def test_bounds_are_finite_and_increase_with_the_order(slope, mean, start):
    curve = start + slope * ORDERS
    for trials in (PoissonTrials(mean), NegativeBinomialTrials.of_mean(max(mean, 1.0))):
        bound = trials.renyi(ORDERS, curve)
        assert np.all(np.isfinite(bound))
        assert np.all(bound >= 0)
        assert np.all(np.diff(bound) >= 0)


def test_divergences_without_a_bound_stay_so_and_none_at_all_costs_nothing_with_poisson_trials():
    curve = np.where(ORDERS < 5, ORDERS / 50, np.inf)
    for trials in LAWS:
        bound = trials.renyi(ORDERS, curve)
        assert np.array_equal(np.isinf(bound), ORDERS >= 5)
    assert np.all(PoissonTrials(9.0).renyi(ORDERS, np.zeros(ORDERS.size)) == 0)


# --- another program -------------------------------------------------------------------------------------------------


def by_dp_accounting(orders, noise, mean, shape, delta):
    """dp-accounting 0.6.0: epsilon of the best of several full-batch Gaussian sums."""
    from dp_accounting import dp_event
    from dp_accounting import rdp as other

    accountant = other.RdpAccountant(list(orders))
    accountant.compose(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(noise), mean, shape))
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize("mean", [1.5, 10.0, 300.0])
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0, 6.0])
@pytest.mark.parametrize("noise", [1.0, 5.0])
def test_negative_binomial_trials_agree_with_dp_accounting(mean, eta, noise):
    orders = ORDERS[ORDERS < 500]
    trials = NegativeBinomialTrials.of_mean(mean, eta)
    ours = rdp.RenyiCurve(orders, trials.renyi(orders, orders / (2 * noise**2))).epsilon(1e-5)
    theirs = by_dp_accounting(orders, noise, mean, eta, 1e-5)
    assert ours <= theirs * (1 + 1e-6)
    if mean > 2:  # for fewer trials the best second order is 1, which is none of theirs
        assert ours == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("mean", [1.0, 3.0, 40.0])
@pytest.mark.parametrize("noise", [1.0, 5.0, 20.0])
def test_poisson_trials_agree_with_dp_accounting(mean, noise):
    orders, delta = ORDERS[ORDERS < 500], 1e-5
    curve = orders / (2 * noise**2)
    theirs = by_dp_accounting(orders, noise, mean, math.inf, delta)
    near = trial_laws._deltas(orders, curve, np.log1p(1 / (orders - 1)))
    printed = curve + mean * near + math.log(mean) / (orders - 1)  # Theorem 6 as it stands
    assert rdp.RenyiCurve(orders, printed).epsilon(delta) == pytest.approx(theirs, rel=1e-6)
    bound = PoissonTrials(mean).renyi(orders, curve)
    assert np.all(bound <= printed * (1 + 1e-9))
    large = (orders - 1) * curve > 20  # there what the printed theorem leaves out does not matter
    assert bound[large] == pytest.approx(trial_laws._monotone(printed)[large], rel=1e-6)
    assert rdp.RenyiCurve(orders, bound).epsilon(delta) <= theirs * (1 + 1e-9)


# --- composition -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        steps(3.0),
        accounting.GaussianSteps(3.0, accounting.Poisson(0.01), ADD_REMOVE, 50),
        accounting.GaussianSteps(6.0, accounting.Shuffled(10, 100), REPLACE_ONE, 20),
        accounting.RandomParticipation(steps(3.0, count=5), 0.2, 10),
        accounting.Composed((steps(3.0), NOTHING, accounting.Composed((steps(5.0),)))),
    ],
    ids=lambda event: type(event).__name__,
)
def test_equal_runs_are_the_event_so_many_times(event):
    (epsilon,) = composition_epsilons([[event]] * 7, 1e-5)
    assert epsilon == pytest.approx(epsilon_of(accounting.Composed((event,) * 7), 1e-5), rel=5e-4)
    assert epsilon > epsilon_of(event, 1e-5)
    if not isinstance(event, accounting.RandomParticipation):
        assert epsilon == pytest.approx(epsilon_of(accounting.repeated(event, 7), 1e-5), rel=1e-9)


def test_one_run_costs_what_it_costs():
    ledger = [steps(3.0), NOTHING, steps(1.0), accounting.Composed((steps(3.0), steps(4.0)))]
    assert composition_epsilons([ledger], 1e-5) == pytest.approx([epsilon_of(event, 1e-5) for event in ledger])
    assert composition_epsilons([ledger], 1e-5)[1] == 0.0


def test_steps_that_differ_in_number_alone_are_counted_together():
    ledgers = [[steps(3.0, count=n)] for n in (10, 60, 30, 0)] + [[NOTHING]]
    assert composition_epsilons(ledgers, 1e-5) == [epsilon_of(steps(3.0, count=100), 1e-5)]


def test_the_order_of_runs_does_not_matter_and_equal_clients_are_counted_once():
    runs = [[steps(noise), steps(2 * noise, records=60)] * 5 for noise in (3.0, 1.0, 2.0)]
    told, before = [], epsilon_of.cache_info().misses
    epsilons = composition_epsilons(runs, 1e-5, "rdp", lambda done, of: told.append((done, of)))
    assert told == [(1, 2), (2, 2)]
    assert epsilons == epsilons[:2] * 5
    asked = epsilon_of.cache_info().misses
    assert asked <= before + 2
    for order in itertools.permutations(runs):
        assert composition_epsilons(list(order), 1e-5, "rdp") == epsilons
    assert epsilon_of.cache_info().misses == asked  # nothing is computed twice


def test_costs_added_in_pairs_are_those_added_one_after_the_other():
    event = accounting.Composed(tuple(steps(2 + 0.3 * run) for run in range(7)))
    for price in (rdp.price(event), wang.price(event)):
        one_by_one = functools.reduce(lambda a, b: a.plus(b), (total(part, price) for part in event.parts))
        assert total(event, price).values == pytest.approx(one_by_one.values, rel=1e-12)


def test_integer_noise_is_composed_by_renyi_divergences():
    event = accounting.SkellamSums(1e4, 10.0, 100.0, REPLACE_ONE, 5)
    (epsilon,) = composition_epsilons([[event]] * 3, 1e-5, "rdp")
    assert epsilon == epsilon_of(accounting.repeated(event, 3), 1e-5, "rdp")
    assert accounting.repetition_epsilons([[event]] * 3, PoissonTrials(2.0), 1e-5)[0] > epsilon_of(event, 1e-5, "rdp")
    with pytest.raises(accounting.NotCoveredError, match="use accountant rdp"):
        composition_epsilons([[event]] * 3, 1e-5)


# --- the whole answer ------------------------------------------------------------------------------------------------


def test_a_fixed_grid_costs_the_composition_whatever_repetition_would_cost():
    runs = [[steps(noise), steps(noise, count=20), NOTHING] for noise in (3.0, 4.0)]
    plain, told = selection_cost(runs, 1e-5), []
    cost = selection_cost(runs, 1e-5, "rdp", NegativeBinomialTrials.of_mean(2), progress=lambda *at: told.append(at))
    assert cost.applies == plain.applies == "composition"
    assert cost.epsilon == cost.composition == composition_epsilons(runs, 1e-5, "rdp")[0]
    assert plain.epsilon < cost.epsilon
    assert cost.single == epsilon_of(steps(3.0), 1e-5, "rdp")
    assert cost.repetition == accounting.repetition_epsilons(runs, NegativeBinomialTrials.of_mean(2), 1e-5)[0]
    assert told == [(k, 11) for k in range(1, 12)]  # 5 events, 3 clients composed, 3 clients repeated
    assert plain.repetition is None
    assert "Random repetition" not in str(plain)
    for words in ("fixed runs", "publishing them all", "would cost", "holds only if", "kept secret", "only the best"):
        assert words in str(cost), words
    for words in ("not for a fixed grid", "record of one client (replace-one neighbours)", "accountant rdp"):
        assert words in str(cost), words


def test_runs_that_share_their_batches_cost_more_than_what_is_stated_for_fresh_ones():
    """The mean of 20 sums of one batch has the noise of one divided by the root of 20."""

    def run(noise):
        return [accounting.GaussianSteps(noise, accounting.Poisson(0.01), ADD_REMOVE, 1000)]

    cost, shared = selection_cost([run(2.0)] * 20, 1e-5), epsilon_of(*run(2 / math.sqrt(20)), 1e-5)
    assert cost.epsilon == pytest.approx(3.19, abs=0.005)
    assert shared == pytest.approx(19.2, abs=0.05)
    assert "if every run draws its noise, batches and cohorts afresh" in str(cost)


def test_repetition_applies_where_the_number_of_runs_was_drawn():
    trials = NegativeBinomialTrials.of_mean(4)
    runs, candidates = [[steps(3.0)]] * 4, [[steps(2.0)]]
    cost = selection_cost(runs, 1e-5, trials=trials, drawn=True)
    assert cost.applies == "repetition"
    assert cost.epsilon == cost.repetition
    assert "provided that the number of trials was drawn" in str(cost)
    wider = selection_cost(runs, 1e-5, trials=trials, drawn=True, candidates=candidates)
    assert wider.composition == cost.composition
    assert wider.repetition == accounting.repetition_epsilons([*candidates, *runs], trials, 1e-5)[0] > cost.repetition
    with pytest.raises(errors.ConfigurationError, match="trials must be the law"):
        selection_cost(runs, 1e-5, drawn=True)


def test_the_answer_can_be_written_as_json():
    told = selection_cost([[steps(3.0)]], 1e-5, trials=PoissonTrials(3.0)).to_dict()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    said = {"applies": "composition", "trials": "Poisson with mean 3", "expected_trials": 3.0}
    assert (said | {"repetition_accountant": "rdp"}).items() <= told.items()
    assert selection_cost([[steps(3.0)]], 1e-5).to_dict()["epsilon_repetition"] is None


def test_a_run_without_noise_costs_everything_and_runs_without_clients_nothing():
    bare = accounting.GaussianSteps(0.0, accounting.FullBatch(), REPLACE_ONE, 1)
    cost = selection_cost([[steps(3.0)], [bare]], 1e-5, trials=PoissonTrials(3.0))
    assert cost.epsilon == cost.repetition == cost.single == math.inf
    assert cost.to_dict()["epsilon"] is cost.to_dict()["epsilon_repetition"] is None
    assert "an infinite epsilon" in str(cost)
    nothing = selection_cost([[NOTHING, steps(3.0, count=0)]] * 2, 1e-5, trials=NegativeBinomialTrials.of_mean(9))
    assert nothing.epsilon == nothing.repetition == 0.0
    assert nothing.unit is nothing.adjacency is None
    assert "neighbours" not in str(nothing)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PoissonTrials(0.0), "the mean number of trials must be positive and finite, got 0.0"),
        (lambda: PoissonTrials(math.nan), "positive and finite, got nan"),
        (lambda: NegativeBinomialTrials(-1.0, 0.5), "eta must be above -1"),
        (lambda: NegativeBinomialTrials(math.nan, 0.5), "eta must be above -1 and at most 1e.06, got nan"),
        (lambda: NegativeBinomialTrials(1.0, 0.0), "gamma must be from 1e-12 to 1, got 0.0; use of_mean"),
        (lambda: NegativeBinomialTrials(1.0, 1.5), "gamma must be from"),
        (lambda: NegativeBinomialTrials(1.0, math.nan), "gamma must be from"),
        (lambda: NegativeBinomialTrials.of_mean(0.5), "the mean number of trials must be from 1 to 1e.12 for eta 1"),
        (lambda: NegativeBinomialTrials.of_mean(math.nan), "trials must be from 1 to"),
        (lambda: NegativeBinomialTrials.of_mean(1e6, -0.9), "from 1 to 14.3 for eta -0.9, got .*use a larger eta"),
        (lambda: PoissonTrials(2.0).renyi(np.array([1.0, 2.0]), np.ones(2)), "Renyi orders must be above 1 and finite"),
        (lambda: PoissonTrials(2.0).renyi(np.array([2.0, np.nan]), np.ones(2)), "Renyi orders must be above 1"),
        (lambda: PoissonTrials(2.0).renyi(np.array([3.0, 2.0]), np.ones(2)), "Renyi orders must be increasing"),
        (lambda: PoissonTrials(2.0).renyi(np.array([2.0, 3.0]), np.ones(3)), "of one shape"),
        (lambda: NegativeBinomialTrials(1.0, 0.5).renyi(np.array([2.0]), np.array([np.nan])), "zero or positive"),
        (lambda: NegativeBinomialTrials(1.0, 0.5).renyi(np.array([2.0]), np.array([-1.0])), "zero or positive"),
        (lambda: composition_epsilons([], 1e-5), "must be at least one run, all of the same clients, got no run"),
        (lambda: composition_epsilons([[]], 1e-5), "ledgers must be"),
        (lambda: composition_epsilons([[steps(3.0)], [steps(3.0)] * 2], 1e-5), "got 2 runs of .1, 2. clients"),
        (lambda: composition_epsilons([[steps(3.0)]], math.nan), "delta must be strictly between 0 and 1"),
        (
            lambda: accounting.repetition_epsilons([[steps(3.0)]], PoissonTrials(2.0), math.nan),
            "delta must be strictly between",
        ),
        (lambda: composition_epsilons([[steps(3.0)]], 1e-5, "rpd"), "did you mean rdp"),
        (lambda: selection_cost([[steps(3.0)]], 1e-5, candidates=[[steps(3.0)] * 2]), "all of the same clients"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(make, words):
    assert re.search(words, refusal(make))


@pytest.mark.parametrize(
    "count",
    [
        composition_epsilons,
        selection_cost,
        lambda runs, delta: accounting.repetition_epsilons(runs, PoissonTrials(2.0), delta),
    ],
)
def test_units_and_adjacencies_are_not_mixed(count):
    client = accounting.GaussianSteps(3.0, accounting.FullBatch(), REPLACE_ONE, 1, accounting.Unit.CLIENT)
    with pytest.raises(errors.ConfigurationError, match="of one unit and adjacency"):
        count([[steps(3.0)], [client]], 1e-5)


# --- records that change clients -------------------------------------------------------------------------------------


def poisson_steps(noise, count=20):
    return accounting.GaussianSteps(noise, accounting.Poisson(0.05), ADD_REMOVE, count)


def test_moving_records_are_counted_for_the_worst_client_of_each_run():
    """Whatever way a record takes through the runs, it pays no more; and one that always meets the worst pays that."""
    ledgers = [[poisson_steps(2.0), poisson_steps(4.0), NOTHING], [poisson_steps(5.0), poisson_steps(3.0), NOTHING]]
    cost = selection_cost(ledgers, 1e-5, moving=True)
    assert (cost.moving, cost.accountant, cost.applies) == (True, "rdp", "composition")
    ways = [composition_epsilons([[a], [b]], 1e-5, "rdp")[0] for a, b in itertools.product(*ledgers)]
    assert cost.composition == pytest.approx(max(ways), rel=2e-3)  # orders differ a little with what is composed
    wrong = composition_epsilons(ledgers, 1e-5, "rdp")  # by client number
    assert cost.composition > 1.05 * max(wrong)
    assert "records change clients" in str(cost)


def test_moving_records_of_clients_alike_pay_like_resting_ones():
    ledgers = [[poisson_steps(2.0)] * 3, [poisson_steps(3.0)] * 3]
    moving = selection_cost(ledgers, 1e-5, "rdp", PoissonTrials(2.0), moving=True)
    resting = selection_cost(ledgers, 1e-5, "rdp", PoissonTrials(2.0))
    assert moving.composition == pytest.approx(resting.composition, rel=2e-3)
    assert moving.repetition == pytest.approx(resting.repetition, rel=1e-9)
    assert selection_cost([[NOTHING]], 1e-5, moving=True).composition == 0
    assert math.isinf(selection_cost([[poisson_steps(0.0)]], 1e-5, moving=True).composition)


def test_a_trial_of_several_seeds_is_charged_for_all_of_them():
    """Two seeds at one setting: a trial is both runs, so one certain trial costs their composition."""
    ledgers = [[poisson_steps(2.0)], [poisson_steps(2.0)]]
    once = NegativeBinomialTrials.of_mean(1.0)
    both = selection_cost(ledgers, 1e-5, "rdp", once, parts=[0, 1])
    assert both.repetition == pytest.approx(both.composition, rel=2e-3)
    apart = selection_cost(ledgers, 1e-5, "rdp", once)
    assert apart.repetition < 0.8 * both.repetition  # the wrong count: a trial as one of its runs
    with pytest.raises(errors.ConfigurationError, match="parts must be one for each of the 2 runs"):
        selection_cost(ledgers, 1e-5, "rdp", once, parts=[0])
