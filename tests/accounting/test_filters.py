"""What may be chosen from earlier results, and what such choices may cost at most."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from fedjax_dp import accounting
from fedjax_dp.accounting import Adjacency, ApproximateFilter, GdpFilter, NotCoveredError, RenyiFilter, filter_for
from fedjax_dp.errors import ConfigurationError


def step(z, rate=1.0, count=1):
    return accounting.GaussianSteps(
        z, accounting.Poisson(rate) if rate < 1 else accounting.FullBatch(), Adjacency.ADD_REMOVE, count
    )


# Cases `renyi_filter` of the specification's participation_vectors.json: epsilon, delta, order, steps (z, rate); the
# order's budget, the first costs, steps taken and used. Mironov, Talwar, Zhang 2019 and Canonne, Kamath, Steinke 2020;
# dp-accounting agrees on the first step.
RENYI = [
    (2.0, 1e-5, 12, [(2.0, 0.05)] * 20 + [(1.5, 0.05)] * 60, 1.2662823937912453, [0.005043815122190401] * 4, 80,
     0.9722141375982838),
    (1.0, 1e-6, 24, [(20.0, 1.0)] * 30, 0.5800614958267816, [0.03] * 4, 19, 0.5700000000000003),
    (4.0, 1e-5, 6, [(1.5, 0.1), (1.0, 0.1), (0.8, 0.1), (1.2, 0.1)] * 10, 2.2380883576455197,
     [0.02220220256343406, 0.3710943530763128, 1.9289447336675043, 0.0626279748928639], 2, 0.39329655563974686),
]  # fmt: skip


@pytest.mark.parametrize("case", RENYI, ids=lambda case: f"order {case[2]}")
def test_renyi_filters_stop_before_the_step_that_would_pass(case):
    epsilon, delta, order, steps, budget, costs, count, used = case
    one = RenyiFilter(epsilon, delta, order)
    assert one.budget == pytest.approx(budget, rel=1e-8)
    steps = [step(*each) for each in steps]
    assert [one.cost(each) for each in steps[:4]] == pytest.approx(costs, rel=1e-6)
    taken, after = one.take(steps)
    assert taken == count
    assert after.used_budget == pytest.approx(used, rel=1e-6)
    assert after.used_budget <= after.budget
    if count < len(steps):
        with pytest.raises(ConfigurationError, match="the next step must be within"):
            after.after(steps[count])


# Cases `approximate_filter`: epsilon, delta', steps; steps taken, epsilon used, delta. 2203.05481, Theorem 1.
APPROXIMATE = [
    (2.0, 1e-6, [(0.1, 1e-8)] * 80, 13, 1.9602658771451336, 1.13e-6),
    (1.0, 1e-5, [(0.05, 0.0), (0.2, 1e-7), (0.1, 0.0)] * 20, 1, 0.2411762956094041, 1e-5),
]


@pytest.mark.parametrize("case", APPROXIMATE, ids=["equal", "mixed"])
def test_filters_of_steps_known_by_epsilon_and_delta_alone(case):
    epsilon, delta, steps, count, used, whole = case
    taken, after = ApproximateFilter(epsilon, delta, 1e-5).take(steps)
    assert taken == count
    assert after.epsilon_used == pytest.approx(used, rel=1e-8)
    assert delta + after.used_delta == pytest.approx(whole, rel=1e-8)
    rho = after.used_budget / 2  # where steps have no delta it is the zCDP of pure steps
    assert after.epsilon_used == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1 / delta)), rel=1e-12)


def test_what_steps_bring_of_delta_is_bounded_too():
    one = ApproximateFilter(2.0, 1e-6, 2.5e-8)
    assert one.take([(0.1, 1e-8)] * 80)[0] == 2
    with pytest.raises(ConfigurationError, match="delta of the next step"):
        one.after((0.1, 1e-7))


@pytest.mark.parametrize("accountant", ["gaussian", "zcdp", "rdp"])
def test_constant_steps_never_beat_the_fixed_schedule(accountant):
    """And those that a filter admits cost no more than the budget, by the account of a fixed schedule."""
    epsilon, delta = 2.0, 1e-5
    for z in (3.0, 8.0, 20.0):
        order = accounting.best_order(step(z), epsilon, delta) if accountant == "rdp" else None
        count, _ = filter_for(accountant, epsilon, delta, order).take([step(z)] * 200)
        assert accounting.epsilon_of(step(z, count=count), delta, accountant) <= epsilon * (1 + 1e-9)
        assert count < 200
        assert accounting.epsilon_of(step(z, count=count + 1), delta, "gaussian") > epsilon or accountant != "gaussian"


def test_the_budgets_are_those_of_the_exact_conversions():
    for epsilon, delta in itertools.product((0.1, 1.0, 8.0), (1e-9, 1e-3)):
        noise = GdpFilter(epsilon, delta).budget ** -0.5
        assert accounting.gaussian_epsilon(delta, noise) == pytest.approx(epsilon, rel=1e-9)
        rho = accounting.ZcdpFilter(epsilon, delta).budget
        assert accounting.zcdp_epsilon(rho, delta) == pytest.approx(epsilon, rel=1e-6)
        assert accounting.zcdp_epsilon(rho, delta) <= epsilon


def adaptive(one, rounds, paths, rng, late=False):
    """Losses and costs of runs whose noise follows their loss: less of it wherever luck was bad.

    late  the wrong program: the budget is looked at after the round.
    """
    budget, used, loss = one.budget, np.zeros(paths), np.zeros(paths)
    going = np.ones(paths, bool)
    for _ in range(rounds):
        mu = np.where(loss > used / 2, 0.5, 0.05)  # whoever sees the loss chooses
        fits = (used if late else used + mu**2) <= budget
        going &= fits
        loss += np.where(going, rng.normal(mu**2 / 2, mu), 0.0)
        used += np.where(going, mu**2, 0.0)
    return loss, used


def test_ten_thousand_adaptive_stops_stay_within_the_claim():
    """delta of the stopped runs, with 4.89 standard errors; a budget that is looked at after the round fails."""
    one, rng = GdpFilter(1.0, 0.05), np.random.default_rng(1)
    loss, used = adaptive(one, 200, 10_000, rng)
    assert used.max() <= one.budget
    lost = np.maximum(0.0, -np.expm1(one.epsilon - loss))
    assert lost.mean() - 4.89 * lost.std() / 100 < one.delta
    loss, used = adaptive(one, 200, 10_000, rng, late=True)
    assert used.max() > one.budget
    lost = np.maximum(0.0, -np.expm1(one.epsilon - loss))
    assert lost.mean() - 4.89 * lost.std() / 100 > one.delta


def test_an_order_chosen_at_the_end_would_admit_what_no_fixed_order_does():
    """The wrong program takes the best order for what was spent; noise that shrinks makes that one another."""
    steps = [step(6.0, 0.02)] * 300 + [step(1.0, 0.02)] * 60
    epsilon, delta = 2.0, 1e-5

    def chosen_at_the_end(count):
        return any(RenyiFilter(epsilon, delta, order).take(steps[:count])[0] == count for order in (8, 12, 16, 24, 48))

    fixed = RenyiFilter(epsilon, delta, accounting.best_order(steps[0], epsilon, delta)).take(steps)[0]
    assert fixed < len(steps)
    assert chosen_at_the_end(fixed + 50)


@pytest.mark.parametrize("accountant", ["pld", "tcdp"])
def test_no_filter_for_what_adds_up_as_curves(accountant):
    with pytest.raises(NotCoveredError, match=r"no filter for the currency of.*rdp at one order"):
        filter_for(accountant, 1.0, 1e-5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: filter_for("rdp", 1.0, 1e-5), "order must be given"),
        (lambda: filter_for("zcdp", 1.0, 1e-5, 4.0), "order must be left out"),
        (lambda: RenyiFilter(1.0, 1e-5, 1.0), "order must be above 1"),
        (lambda: RenyiFilter(0.1, 1e-9, 2.0), "order must be large enough"),
        (lambda: GdpFilter(math.nan, 1e-5), "epsilon must be positive"),
        (lambda: GdpFilter(1.0, 1e-5).cost(step(1.0, 0.1)), "unsampled"),
    ],
)
def test_what_is_no_filter_is_refused(make, words):
    with pytest.raises(ConfigurationError, match=words):
        make()


def individual(z, clip_norm, epsilon, clients, adjacency=Adjacency.ADD_REMOVE):
    return accounting.IndividualFilter.start(
        clients, epsilon=epsilon, delta=1e-5, noise_multiplier=z, clip_norm=clip_norm, adjacency=adjacency
    )


# Cases `individual_filter`: z, clip norm, epsilon, norms by client and round; mu of the budget and rounds of each.
INDIVIDUAL = [
    (4.0, 1.0, 2.0, [[1.0] * 8, [0.5] * 8, [0.2, 1.0] * 4], 0.5015516891696571, [[0, 1, 2, 3], range(8), range(7)]),
    (3.0, 0.5, 1.0, [[0.5] * 3 + [0.1] * 2, [0.0] * 3 + [0.5] * 2, [0.4, 0.3, 0.2, 0.1, 0.1]], 0.2680511232112937,
     [[], [0, 1, 2], [0]]),
]  # fmt: skip


@pytest.mark.parametrize("case", INDIVIDUAL, ids=["one of them stops at once", "none lasts"])
def test_clients_count_while_their_own_norms_allow_it_and_then_never_again(case):
    z, clip_norm, epsilon, norms, mu, wanted = case
    norms, one = np.array(norms), individual(z, clip_norm, epsilon, len(norms))
    assert one.budget_mu == pytest.approx(mu, rel=1e-9)
    active = []
    for of_round in norms.T:
        active.append(one.active(of_round))
        one = one.after(of_round)
    assert [np.flatnonzero(mine).tolist() for mine in np.array(active).T] == [list(rounds) for rounds in wanted]
    assert np.all(one.used_budget <= one.budget_mu**2)


def test_ten_thousand_clients_that_choose_their_norms_stay_within_the_budget():
    """Whatever norms they have; the wrong program books a round after it."""
    rng, one = np.random.default_rng(2), individual(4.0, 1.0, 2.0, 10_000)
    late = np.zeros(10_000)
    for _ in range(60):
        norms = rng.choice([0.0, 0.1, 0.5, 1.0, 7.0], 10_000)  # those above the clip norm count as it
        late += np.where(late <= one.budget_mu**2, (np.minimum(norms, 1) / 4) ** 2, 0)
        one = one.after(norms)
    assert one.used_budget.max() <= one.budget_mu**2 < late.max()


def test_what_individual_filters_know_is_data():
    """Two neighbours differ in who is active, so it is in no print; replace-one is not proved."""
    one = individual(4.0, 1.0, 2.0, 3).after(np.ones(3))
    assert "used" not in repr(one)
    assert "left" not in repr(one)
    with pytest.raises(NotCoveredError, match="add-remove"):
        individual(4.0, 1.0, 2.0, 3, Adjacency.REPLACE_ONE)
    with pytest.raises(ConfigurationError, match="norms must be 3 numbers"):
        one.after(np.array([1.0, math.nan, 1.0]))


def test_a_budget_is_of_one_kind_of_neighbours():
    """Else it would be used up for records and for clients at once, which is no guarantee for either."""
    one = accounting.GaussianSteps(9.0, accounting.FullBatch(), Adjacency.ADD_REMOVE, 1)
    of_client = dataclasses.replace(one, unit=accounting.Unit.CLIENT)
    for other in (of_client, dataclasses.replace(one, adjacency=Adjacency.REPLACE_ONE)):
        with pytest.raises(ConfigurationError, match="as the steps before"):
            GdpFilter(2.0, 1e-5).after(one).after(other)
