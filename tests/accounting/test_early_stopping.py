"""The price of a rule that ends a run by a score."""

import pytest

from fedjax_dp.accounting import Adjacency, Composed, Gdp, NotCoveredError, Unit, epsilon_of, looks_event, with_looks
from fedjax_dp.accounting.releases import GaussianSteps
from fedjax_dp.accounting.sampling import FullBatch, Poisson
from fedjax_dp.errors import ConfigurationError

# Cases `stop_metric` of the specification's participation_vectors.json: mu of training, looks, noise on the count,
# whose records; mu of all and epsilon at delta 1e-5, closed forms with 40 digits.
CASES = [
    (0.8, 20, 30.0, "other records", 0.8, 3.3869331861562646),
    (0.8, 20, 30.0, "same clients", 0.8137703743822469, 3.453598182438596),
    (0.3, 50, 5.0, "other records", 1.4142135623730951, 6.572970067030336),
    (1.0, 10, None, "public", 1.0, 4.377178095681224),
]


@pytest.mark.parametrize("case", CASES)
def test_looks_are_paid_by_whom_they_touch(case):
    mu, looks, noise, held_by, wanted, epsilon = case
    whole = with_looks(Gdp(mu), looks, noise, held_by)
    assert whole.mu == pytest.approx(wanted, rel=1e-8)
    assert whole.epsilon(1e-5) == pytest.approx(epsilon, rel=1e-8)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_the_event_of_looks_has_the_same_price(adjacency):
    looks = looks_event(20, 30.0, adjacency, Unit.CLIENT)
    training = GaussianSteps(1.25 * adjacency.sensitivity, FullBatch(), adjacency, 1, Unit.CLIENT)
    both = epsilon_of(Composed((training, looks)), 1e-5)
    assert both == pytest.approx(with_looks(Gdp(0.8), 20, 30.0, "same clients").epsilon(1e-5), rel=1e-9)


def test_looks_add_to_sampled_training():
    training = GaussianSteps(1.0, Poisson(0.01), Adjacency.ADD_REMOVE, 200, Unit.CLIENT)
    both = Composed((training, looks_event(20, 30.0, Adjacency.ADD_REMOVE, Unit.CLIENT)))
    assert epsilon_of(both, 1e-5) > max(epsilon_of(part, 1e-5) for part in both.parts)


@pytest.mark.parametrize("held_by", ["other records", "same clients"])
def test_a_stop_by_records_that_nobody_noised_has_no_epsilon(held_by):
    with pytest.raises(NotCoveredError, match="no epsilon; noise the metric, use public records, or fix the rounds"):
        with_looks(Gdp(0.8), 20, None, held_by)
    with pytest.raises(ConfigurationError, match="held_by must be one of"):
        with_looks(Gdp(0.8), 20, 30.0, "clients")
