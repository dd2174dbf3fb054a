"""The price of a rule that ends a run by a score."""

import pytest

from fedjax_dp import accounting
from fedjax_dp.accounting import Adjacency, AnyOf, Composed, Gdp, Past, Unit, epsilon_of, looks_event, with_looks
from fedjax_dp.accounting.calibrate import UnreachableError, noise_factor_for
from fedjax_dp.accounting.composed_phases import with_past
from fedjax_dp.accounting.releases import GaussianSteps
from fedjax_dp.accounting.sampling import FullBatch, Poisson
from fedjax_dp.display import upward
from fedjax_dp.errors import ConfigurationError

# Cases `stop_metric` of the specification's participation_vectors.json: mu of training, looks, noise on the count,
# whose records; mu of all and epsilon at delta 1e-5, closed forms with 40 digits.
CASES = [
    (0.8, 20, 30.0, "other records", 0.8, 3.3869331861562646),
    (0.8, 20, 30.0, "same clients", 0.8137703743822469, 3.453598182438596),
    (0.3, 50, 5.0, "other records", 1.4142135623730951, 6.572970067030336),
    (1.0, 10, None, "public", 1.0, 4.377178095681224),
]
LOOKS = looks_event(20, 30.0, Adjacency.ADD_REMOVE, Unit.RECORD)


@pytest.mark.parametrize("case", CASES)
def test_looks_are_paid_by_whom_they_touch(case):
    mu, looks, noise, held_by, wanted, epsilon = case
    whole = with_looks(Gdp(mu), looks, noise, held_by, 1)
    assert whole.mu == pytest.approx(wanted, rel=1e-8)
    assert whole.epsilon(1e-5) == pytest.approx(epsilon, rel=1e-8)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_the_event_of_looks_has_the_same_price(adjacency):
    looks = looks_event(20, 30.0, adjacency, Unit.CLIENT)
    training = GaussianSteps(1.25 * adjacency.sensitivity, FullBatch(), adjacency, 1, Unit.CLIENT)
    both = epsilon_of(Composed((training, looks)), 1e-5)
    assert both == pytest.approx(with_looks(Gdp(0.8), 20, 30.0, "same clients", 1).epsilon(1e-5), rel=1e-9)


def test_a_client_pays_for_every_record_that_it_holds_out():
    whole = with_looks(Gdp(0.8), 20, 30.0, "same clients", held_out=10)
    looks = looks_event(20, 30.0, Adjacency.ADD_REMOVE, Unit.CLIENT, held_out=10)
    training = GaussianSteps(1.25, FullBatch(), Adjacency.ADD_REMOVE, 1, Unit.CLIENT)
    assert whole.epsilon(1e-5) == pytest.approx(epsilon_of(Composed((training, looks)), 1e-5), rel=1e-9)
    with pytest.raises(ConfigurationError, match="held_out"):
        with_looks(Gdp(0.8), 20, 30.0, "same clients")


@pytest.mark.parametrize("held_by", ["other records", "same clients"])
def test_a_stop_by_records_that_nobody_noised_has_no_epsilon(held_by):
    with pytest.raises(
        accounting.NotCoveredError, match="no epsilon; noise the metric, use public records, or fix the rounds"
    ):
        with_looks(Gdp(0.8), 20, None, held_by)
    with pytest.raises(ConfigurationError, match="held_by must be one of"):
        with_looks(Gdp(0.8), 20, 30.0, "clients")


@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_client_moves_a_count_by_all_that_it_holds_out(adjacency):
    """The wrong program takes a client for one record."""
    three, one = (looks_event(20, noise, adjacency, Unit.CLIENT, held) for noise, held in ((30.0, 3), (10.0, 1)))
    assert three == one
    assert epsilon_of(three, 1e-5) > 2 * epsilon_of(looks_event(20, 30.0, adjacency, Unit.CLIENT), 1e-5)
    with pytest.raises(ConfigurationError, match="held_out must be an integer of at least 1"):
        looks_event(20, 30.0, adjacency, Unit.CLIENT, 0)


def test_records_apart_cost_the_dearer_of_both_and_noise_is_found_for_what_can_change():
    training, looks = GaussianSteps(1.0, Poisson(0.1), Adjacency.ADD_REMOVE, 200), Past((LOOKS,))
    costs = [epsilon_of(event, 1e-5) for event in (training, looks)]
    assert epsilon_of(AnyOf((training, looks)), 1e-5) == max(costs)
    alone = noise_factor_for(training, 2.0, 1e-5)
    assert noise_factor_for(AnyOf((training, looks)), 2.0, 1e-5) == alone
    both = noise_factor_for(Composed((training, looks)), 2.0, 1e-5)
    assert both > alone
    assert epsilon_of(Composed((training.scaled(both), looks)), 1e-5) <= 2.0
    for event in (AnyOf((training, looks)), looks):  # whose price no noise of training changes
        with pytest.raises(UnreachableError, match=f"at least {upward(costs[1])}, as that noise is fixed"):
            noise_factor_for(event, 0.9 * costs[1], 1e-5)


def test_before_records_apart_a_phase_counts_for_each_of_them():
    training, before = GaussianSteps(3.0, FullBatch(), Adjacency.ADD_REMOVE, 9), Past((LOOKS,))
    (whole,) = with_past([before], [AnyOf((training, Past((LOOKS,))))])
    assert epsilon_of(whole, 1e-5) == max(epsilon_of(Composed((one, before)), 1e-5) for one in (training, LOOKS))
