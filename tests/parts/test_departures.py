"""Clients leave for good, and cohorts are drawn among those that are left."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_dp import ConfigurationError
from fedjax_dp.parts.aggregation import ESTIMATORS
from fedjax_dp.parts.answers import Dropout
from fedjax_dp.parts.cohorts import AllClients, CohortKeys, CyclicCohort, PoissonCohort, UniformCohort
from fedjax_dp.parts.departures import Departures
from fedjax_dp.rounds.clients import draw_cohorts
from fedjax_dp.rounds.simulation import run_key

SHARES = np.full(12, 1 / 12, np.float32)
UNTIL = np.array([0, 2000, 2000, 0, np.inf, np.inf, np.inf, 0, np.inf, 2000, np.inf, np.inf], np.float32)
LAWS = [AllClients(), UniformCohort(size=4), PoissonCohort(size=4)]


def counts(cohort, first, until):
    """How often each client is invited in some rounds."""
    ids, invited = draw_cohorts(cohort, run_key(3), jnp.arange(first, until), SHARES)
    return np.bincount(np.asarray(ids)[np.asarray(invited)], minlength=12)


@pytest.mark.parametrize("law", LAWS, ids=lambda one: type(one).__name__)
def test_where_nobody_leaves_the_cohorts_are_those_of_the_law(law):
    staying = Departures(cohort=law, until=np.full(12, np.inf, np.float32))
    for one, other in zip(*(draw_cohorts(cohort, run_key(0), jnp.arange(50), SHARES) for cohort in (law, staying))):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(staying.rates(SHARES), law.rates(SHARES))


@pytest.mark.parametrize("law", LAWS, ids=lambda one: type(one).__name__)
def test_who_is_left_is_drawn_by_the_law_of_a_smaller_population_and_who_has_left_never(law):
    """Thinning the draws of all clients, the wrong program, would draw those that are left more seldom."""
    leaving = Departures(cohort=law, until=UNTIL)
    for first, until, left in ((0, 2000, UNTIL > 0), (2000, 4000, np.isinf(UNTIL))):
        drawn, shares = counts(leaving, first, until), np.asarray(leaving.remaining(jnp.int32(first), SHARES))
        assert not drawn[~left].any()
        assert shares.sum() == pytest.approx(1)
        chance = np.asarray(leaving.rates(shares), float)
        np.testing.assert_allclose(chance, left * (1.0 if law is LAWS[0] else 4 / left.sum()), rtol=1e-6)
        spread = np.sqrt(2000 * chance * (1 - chance))
        assert np.all(np.abs(drawn - 2000 * chance) <= 4.89 * spread)
        thinned = 2000 * (4 / 12)
        assert law is LAWS[0] or np.all(np.abs(thinned - 2000 * chance[left]) > 4.89 * spread[left])


def test_what_one_client_can_move_is_of_those_that_are_left():
    """0 / 0 of who has left, the wrong program, makes the noise on whole clients no number."""
    leaving = Departures(cohort=LAWS[1], until=UNTIL)
    for index, left in ((0, UNTIL > 0), (2000, np.isinf(UNTIL))):
        shares = leaving.remaining(jnp.int32(index), np.linspace(1, 12, 12, dtype=np.float32) / 78)
        largest = np.max(np.asarray(shares)[left]) / (4 / left.sum())
        for estimator in ("wor_delta", "biased"):
            moved = float(ESTIMATORS[estimator].sensitivity(shares, leaving.rates(shares), 4))
            assert moved == pytest.approx(largest if estimator == "wor_delta" else float(np.max(shares)), rel=1e-6)
        assert np.all(np.asarray(ESTIMATORS["wor_delta"].gains(shares, leaving.rates(shares), None))[~left] == 0)


def test_when_clients_leave_is_a_number_that_retraces_nothing():
    traces = []

    @jax.jit
    def drawn(cohort):
        traces.append(cohort)
        return cohort.sample(CohortKeys.of(run_key(0), 1), jnp.int32(1), jnp.asarray(SHARES)).ids

    for until in (UNTIL, UNTIL[::-1].copy()):
        drawn(Departures(cohort=UniformCohort(size=4), until=until))
    assert len(traces) == 1


def test_what_states_no_law_among_fewer_clients_is_refused():
    for law in (CyclicCohort(size=4), Dropout(cohort=UniformCohort(size=4), rate=0.1)):
        with pytest.raises(ConfigurationError, match=f"one number for {type(law).__name__}"):
            counts(Departures(cohort=law, until=UNTIL), 0, 1)
    leaving = Departures(cohort=UniformCohort(size=4), until=UNTIL)
    with pytest.raises(ConfigurationError, match="until must be one for each of the 9 clients"):
        leaving.check(9)
