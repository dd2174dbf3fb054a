"""A release says what it costs: an event of somebody else's file is priced by accountants that it has prices for."""

import dataclasses

import numpy as np
import pytest
from own_laplace import LaplaceSteps, laplace, laplace_rdp

from fedjax_dp import accounting, errors
from fedjax_dp.accounting import (
    Adjacency,
    AnyOf,
    BallsInBins,
    Composed,
    FullBatch,
    GaussianSteps,
    NotCoveredError,
    Poisson,
    epsilon_of,
    repeated,
)
from fedjax_dp.accounting.selection import composition_epsilons

ADD_REMOVE, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE


def test_one_release_has_the_epsilon_of_pure_privacy_and_less_at_a_delta():
    """delta(eps) = 1 - exp((eps - 1/b) / 2) for eps below 1/b (Balle, Barthe, Gaboardi 2018, Theorem 3)."""
    event = LaplaceSteps(0.5, FullBatch(), ADD_REMOVE, 1)
    for delta in (1e-6, 1e-2, 0.2):
        assert epsilon_of(event, delta) == pytest.approx(2 + 2 * np.log1p(-delta), rel=1e-3)
    assert epsilon_of(dataclasses.replace(event, adjacency=REPLACE_ONE), 1e-9) == pytest.approx(4, rel=1e-6)


def test_renyi_divergences_are_those_of_a_closed_form():
    orders = np.array([1.5, 2.0, 7.0, 40.0])
    expected = np.array([laplace_rdp(2.0, order) for order in orders])
    found = LaplaceSteps(2.0, FullBatch(), ADD_REMOVE, 1).rdp(orders)
    assert (found >= expected * (1 - 1e-12)).all()
    assert found == pytest.approx(expected, rel=1e-3)


def test_a_sampled_release_is_a_mixture_of_its_laws():
    """By samples, and by moments: of Lap(1, b) with chance q, else Lap(0, b), against Lap(0, b)."""
    scale, rate = 0.7, 0.2
    x = np.random.default_rng(0).laplace(0.0, scale, 2_000_000)
    ratio = 1 - rate + rate * np.exp((np.abs(x) - np.abs(x - 1)) / scale)
    for pair, moment in (
        (laplace(scale).sampled(rate), np.mean(ratio**3)),
        (laplace(scale).sampled(rate).reversed(), np.mean(ratio**-2.0)),
    ):
        (found,) = pair.renyi(np.array([3.0]))
        assert found == pytest.approx(np.log(moment) / 2, rel=5e-3)
        losses = np.linspace(pair.lowest, pair.highest, 5000)
        upper, lower, above, below = pair.cells(losses)
        assert upper.sum() + above + below == pytest.approx(1, abs=1e-12)
        middle = (losses[1:] + losses[:-1]) / 2
        busy = lower > 1e-9
        assert np.log(upper[busy] / lower[busy]) == pytest.approx(middle[busy], abs=2e-3)


@pytest.mark.slow
def test_compositions_agree_with_dp_accounting():
    from dp_accounting.pld import privacy_loss_distribution as plds

    for scale, rate, count, delta in ((5.0, 1.0, 50, 1e-5), (1.0, 0.05, 200, 1e-5)):
        reference = plds.from_laplace_mechanism(scale, sampling_prob=rate).self_compose(count)
        expected = reference.get_epsilon_for_delta(delta)
        event = LaplaceSteps(scale, Poisson(rate) if rate < 1 else FullBatch(), ADD_REMOVE, count)
        assert epsilon_of(event, delta) == pytest.approx(expected, rel=2e-3)
        assert epsilon_of(event, delta, "rdp") > expected


def test_every_accountant_takes_it_or_names_what_it_lacks():
    event = LaplaceSteps(4.0, accounting.WithoutReplacement(10, 200), REPLACE_ONE, 100)
    pld, rdp, zcdp = (epsilon_of(event, 1e-5, name) for name in ("pld", "rdp", "zcdp"))
    assert 0 < pld < rdp < zcdp
    for accountant, price in (("gaussian", "gdp"), ("tcdp", "tcdp"), (accounting.ATTAINED, "attained_pairs")):
        with pytest.raises(NotCoveredError, match=f"^Laplace noise states no {price}, which accountant"):
            epsilon_of(event, 1e-5, accountant)
    with pytest.raises(NotCoveredError, match="Laplace noise on 3 draws from 9 with replacement is not covered"):
        epsilon_of(LaplaceSteps(4.0, accounting.WithReplacement(3, 9), REPLACE_ONE, 1), 1e-5)
    assert LaplaceSteps(4.0, accounting.Shuffled(3, 3), REPLACE_ONE, 1).releases == 1
    with pytest.raises(NotCoveredError, match="known for Gaussian noise alone"):
        LaplaceSteps(4.0, accounting.RandomAllocation(1, 3), ADD_REMOVE, 3)


def test_it_composes_repeats_participates_and_is_calibrated_as_any():
    event = LaplaceSteps(2.0, Poisson(0.1), ADD_REMOVE, 20)
    assert accounting.repeated(event, 2.5) == dataclasses.replace(event, count=50)
    alone = epsilon_of(dataclasses.replace(event, count=40), 1e-5)
    assert epsilon_of(Composed((event, event)), 1e-5) == pytest.approx(alone, rel=1e-3)
    mixed = Composed((event, GaussianSteps(2.0, Poisson(0.1), ADD_REMOVE, 20)))
    assert epsilon_of(mixed, 1e-5) > epsilon_of(event, 1e-5)
    by_chance, always = accounting.RandomParticipation(event, 0.5, 4), accounting.repeated(event, 4)
    assert epsilon_of(by_chance, 1e-5) < epsilon_of(always, 1e-5)
    scale = accounting.noise_multiplier_for(event, 1.0, 1e-5)
    assert epsilon_of(dataclasses.replace(event, noise_multiplier=scale), 1e-5) == pytest.approx(1.0, rel=2e-3)
    assert float(accounting.trade_off(event)(0.05)) < 0.95


def test_noise_that_does_not_add_up_to_its_kind_gains_nothing_from_others():
    laplacian, gaussian = (kind(2.0, FullBatch(), REPLACE_ONE, 5) for kind in (LaplaceSteps, GaussianSteps))
    assert accounting.steps_in_view(laplacian, accounting.View.SECURE_SUM, cohort_size=4) == laplacian
    assert accounting.steps_in_view(gaussian, accounting.View.SECURE_SUM, cohort_size=4).noise_multiplier == 4.0


def test_a_release_that_says_nothing_has_no_price():
    @dataclasses.dataclass(frozen=True)
    class Silent(accounting.Release):
        noise_multiplier: float
        sampling: FullBatch
        adjacency: Adjacency
        count: int
        unit: accounting.Unit = accounting.Unit.RECORD

    event = Silent(1.0, FullBatch(), ADD_REMOVE, 3)
    for accountant in ("pld", "rdp"):
        with pytest.raises(NotCoveredError, match="Silent states no dominating_pairs, which accountant pld needs"):
            epsilon_of(event, 1e-5, accountant)
    with pytest.raises(NotCoveredError, match="Silent states no zcdp"):
        epsilon_of(event, 1e-5, "zcdp")


def test_what_may_be_any_of_several_each_time_costs_no_less_than_any_mixture():
    """Neither curve lies above the other: twice the one, or twice the other, costs less than one of each."""
    one = GaussianSteps(2.0, FullBatch(), Adjacency.ADD_REMOVE, 1)
    other = GaussianSteps(0.6537, Poisson(0.01), Adjacency.ADD_REMOVE, 50)
    either, mixed = AnyOf((one, other)), epsilon_of(Composed((one, other)), 1e-5)
    assert max(epsilon_of(repeated(event, 2), 1e-5) for event in (one, other)) < 0.97 * mixed
    twice = (repeated(either, 2), Composed((either, either)))
    assert all(epsilon_of(event, 1e-5) >= mixed for event in twice)
    assert composition_epsilons([[either], [either]], 1e-5)[0] >= mixed
    assert repeated(repeated(either, 2), 3) == AnyOf((one, other), 6)
    assert repeated(either, 0) == Composed(())
    assert epsilon_of(repeated(either, 2), 1e-5, "rdp") >= epsilon_of(Composed((one, other)), 1e-5, "rdp")
    kept = AnyOf((GaussianSteps(1.0, BallsInBins(20), Adjacency.ADD_REMOVE, 20),))
    with pytest.raises(NotCoveredError, match="one slot"):
        repeated(kept, 4)
    with pytest.raises(errors.ConfigurationError):
        AnyOf((one, other), 0)
