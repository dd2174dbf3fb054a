"""Who takes part: laws of the cohorts, by counting, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.parts import cohorts

N, DRAWS = 12, 40_000
SHARES = jnp.asarray(np.random.default_rng(0).dirichlet(np.full(N, 4.0)), jnp.float32)
LIMIT = 4.89  # |z| at a false positive rate of 1e-6


def sampled(law, draws=DRAWS):
    keys = jax.random.split(jax.random.key(3), draws)
    return jax.jit(jax.vmap(lambda k: law.sample(k, jnp.int32(0), SHARES)))(keys)


def messages(members):
    """How often each client's message arrives, per draw `(draws, N)`."""
    one = jax.nn.one_hot(members.ids, N) * members.drawn[..., None]
    return np.asarray(one.sum(1), float)


LAWS = {
    "all": cohorts.AllClients(),
    "uniform": cohorts.UniformCohort(size=4),
    "poisson": cohorts.PoissonCohort(size=4),
    "md": cohorts.MultinomialCohort(draws=5),
    "md equal": cohorts.MultinomialCohort(draws=5, equal=True),
    "importance": cohorts.MultinomialCohort(draws=5, probabilities=np.arange(1, N + 1) / 78),
    "md, each": cohorts.MultinomialCohort(draws=5, one_by_one=True),
    "dropout": fdp.parts.Dropout(cohort=cohorts.UniformCohort(size=4), rate=0.3),
    "first": fdp.parts.FirstResponders(cohort=cohorts.UniformCohort(size=6), size=3),
}


@pytest.mark.parametrize("name", LAWS)
def test_messages_arrive_at_the_rates_that_estimators_divide_by(name):
    law = LAWS[name]
    law.check(N)
    arrived = messages(sampled(law))
    expected = np.broadcast_to(np.asarray(law.rates(SHARES), float), (N,))
    error = arrived.mean(0) - expected
    spread = np.maximum(arrived.std(0), 1e-9) / np.sqrt(DRAWS)
    assert np.abs(error / np.maximum(spread, 1e-6)).max() < LIMIT + 0.5
    wrong = np.roll(expected, 1) if np.ptp(expected) > 1e-3 else expected * 1.05  # a law that this test rejects
    assert np.abs((arrived.mean(0) - wrong) / np.maximum(spread, 1e-6)).max() > LIMIT + 0.5


@pytest.mark.parametrize("name", ["uniform", "poisson", "md", "importance", "md, each", "dropout"])
def test_chance_of_taking_part_is_what_accountants_are_told(name):
    law = LAWS[name]
    chance, draws = law.inclusion_probability(np.asarray(SHARES, float))
    members = sampled(law)
    members = members._replace(drawn=members.invited.astype(jnp.float32))  # who is drawn is counted, lost or not
    took = messages(members) > 0 if draws == 1 else messages(members) / draws  # or every draw is a participation
    chance = np.broadcast_to(np.asarray(chance, float), (N,))
    spread = np.sqrt(chance * (1 - chance) / DRAWS / (1 if draws == 1 else draws))
    assert np.abs((took.mean(0) - chance) / spread).max() < LIMIT


def test_a_multiset_trains_once_or_each_time():
    once, each = sampled(LAWS["md"], 2000), sampled(LAWS["md, each"], 2000)
    np.testing.assert_array_equal(np.asarray(once.drawn.sum(1)), 5)
    for ids, invited in zip(np.asarray(once.ids), np.asarray(once.invited), strict=True):
        assert len(set(ids[invited])) == invited.sum()  # distinct
    pairs = [set(zip(i, t, strict=True)) for i, t in zip(np.asarray(each.ids), np.asarray(each.turn), strict=True)]
    assert all(len(p) == 5 for p in pairs)  # a repeated client has another turn, so another key
    assert np.asarray(each.turn).max() >= 1


def test_cyclic_cohorts_visit_everyone_equally_far_apart():
    law = cohorts.CyclicCohort(size=4)
    rounds = [np.asarray(law.sample(None, jnp.int32(t), SHARES).ids).tolist() for t in range(6)]
    assert rounds[:3] == rounds[3:]
    assert sorted(i for ids in rounds[:3] for i in ids) == list(range(N))


def test_stragglers_are_the_slow_ones():
    pace = np.ones(N)
    pace[0] = 50.0
    law = fdp.parts.FirstResponders(cohort=cohorts.AllClients(), latency=pace, size=6)
    arrived = messages(sampled(law, 4000)).mean(0)
    with pytest.raises(errors.ConfigurationError, match="of a cohort of fixed size"):
        fdp.parts.FirstResponders(cohort=cohorts.PoissonCohort(size=4), size=2).check(N)
    assert arrived[0] < 0.1 < arrived[1:].min()
    assert law.rates(SHARES) is None


def test_poisson_cohorts_do_not_overflow_and_pad_with_nobody():
    members = sampled(LAWS["poisson"], 2000)
    assert members.ids.shape[1] == N  # few clients: all fit
    assert not np.any(np.asarray(members.drawn)[~np.asarray(members.invited)])
    assert cohorts.PoissonCohort(size=100).capacity(100_000) < 210


BAD = [
    (cohorts.UniformCohort(size=13), "cohort_size must be at most the 12 clients, got 13"),
    (cohorts.PoissonCohort(size=0), "cohort_size must be an integer of at least 1"),
    (cohorts.CyclicCohort(size=5), "a divisor of the 12 clients"),
    (cohorts.MultinomialCohort(draws=3, probabilities=np.ones(4) / 4), "one for each of the 12 clients"),
    (cohorts.MultinomialCohort(draws=3, probabilities=np.r_[np.zeros(1), np.ones(11) / 11]), "positive and of sum 1"),
    (fdp.parts.Dropout(cohort=cohorts.AllClients(), rate=1.0), "dropout must be in [0, 1)"),
    (fdp.parts.Dropout(cohort=cohorts.AllClients(), rate=np.ones(3) / 2), "dropout must be one number or 12 of them"),
    (fdp.parts.FirstResponders(cohort=cohorts.UniformCohort(size=3), size=4), "at most the 3 clients drawn"),
    (fdp.parts.FirstResponders(cohort=cohorts.AllClients(), size=4, latency=0.0), "latency must be positive"),
]


@pytest.mark.parametrize(("law", "words"), BAD)
def test_wrong_cohorts_are_refused_in_one_line(law, words):
    with pytest.raises(errors.ConfigurationError) as caught:
        law.check(N)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
