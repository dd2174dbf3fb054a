"""Who takes part: laws of the cohorts, by counting, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import quick, refusal

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.accounting import ParticipationLog
from fedjax_dp.parts import cohorts
from fedjax_dp.pytrees import check_part

N, DRAWS = 12, 40_000
SHARES = jnp.asarray(np.random.default_rng(0).dirichlet(np.full(N, 4.0)), jnp.float32)
LIMIT = 4.89  # |z| at a false positive rate of 1e-6


def sampled(law, draws=DRAWS):
    keys = jax.random.split(jax.random.key(3), draws)
    return jax.jit(jax.vmap(lambda k: law.sample(cohorts.CohortKeys(k, k), jnp.int32(0), SHARES)))(keys)


def messages(members):
    """How often each client's message arrives, per draw `(draws, N)`."""
    one = jax.nn.one_hot(members.ids, N) * members.participation_count[..., None]
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


@pytest.mark.parametrize("name", quick(LAWS, set(LAWS) - {"md"}))
def test_messages_arrive_at_the_rates_that_estimators_divide_by(name):
    law = LAWS[name]
    check_part(law, N)
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
    # Who is drawn is counted, lost or not.
    members = members._replace(participation_count=members.selected.astype(jnp.float32))
    took = messages(members) > 0 if draws == 1 else messages(members) / draws  # or every draw is a participation
    chance = np.broadcast_to(np.asarray(chance, float), (N,))
    spread = np.sqrt(chance * (1 - chance) / DRAWS / (1 if draws == 1 else draws))
    assert np.abs((took.mean(0) - chance) / spread).max() < LIMIT


def test_a_multiset_trains_once_or_each_time():
    once, each = sampled(LAWS["md"], 2000), sampled(LAWS["md, each"], 2000)
    np.testing.assert_array_equal(np.asarray(once.participation_count.sum(1)), 5)
    for ids, selected in zip(np.asarray(once.ids), np.asarray(once.selected), strict=True):
        assert len(set(ids[selected])) == selected.sum()  # distinct
    pairs = [
        set(zip(i, t, strict=True)) for i, t in zip(np.asarray(each.ids), np.asarray(each.draw_index), strict=True)
    ]
    assert all(len(p) == 5 for p in pairs)  # a repeated client has another turn, so another key
    assert np.asarray(each.draw_index).max() >= 1


def test_cyclic_cohorts_visit_everyone_equally_far_apart():
    law = cohorts.CyclicCohort(size=4)
    rounds = [np.asarray(law.sample(None, jnp.int32(t), SHARES).ids).tolist() for t in range(6)]
    assert rounds[:3] == rounds[3:]
    assert sorted(i for ids in rounds[:3] for i in ids) == list(range(N))


LOG = ParticipationLog.of(np.array([[0, 3], [0, 1], [2, 1], [4, 1], [4, 11], [4, 0]]), 6, N)


def test_cohorts_of_a_log_are_those_that_it_names():
    law = cohorts.LoggedCohort.of(LOG)
    check_part(law, N)
    taken = [law.sample(None, jnp.int32(t), SHARES) for t in range(8)]
    members = [np.asarray(one.ids)[np.asarray(one.present)].tolist() for one in taken]
    assert members == [[1, 3], [], [1], [], [0, 1, 11], [], [], []]  # and nobody once it has ended
    assert law.log(N).patterns == LOG.patterns
    assert (law.capacity(N), law.min_separation(N), law.fixed, law.is_random) == (3, 2, False, False)
    assert law.amplification(N, 0) == cohorts.SEEN
    assert cohorts.LoggedCohort.of(ParticipationLog.of(np.array([[0, 1], [1, 2]]), 2, N)).fixed


def test_rates_of_a_log_are_counted_and_give_nobody_an_infinite_weight():
    rates = np.asarray(cohorts.LoggedCohort.of(LOG).rates(SHARES))
    np.testing.assert_allclose(rates * 6, np.maximum(LOG.counts, 1), rtol=1e-6)
    dropped = fdp.parts.Dropout(cohort=cohorts.LoggedCohort.of(LOG), rate=0.5)
    assert dropped.log(N).patterns == LOG.patterns  # a message that is lost may have been seen on its way


def test_stragglers_are_the_slow_ones():
    pace = np.ones(N)
    pace[0] = 50.0
    law = fdp.parts.FirstResponders(cohort=cohorts.AllClients(), latency=pace, size=6)
    arrived = messages(sampled(law, 4000)).mean(0)
    with pytest.raises(errors.ConfigurationError, match="of a cohort of fixed size"):
        check_part(fdp.parts.FirstResponders(cohort=cohorts.PoissonCohort(size=4), size=2), N)
    assert arrived[0] < 0.1 < arrived[1:].min()
    assert law.rates(SHARES) is None


def test_poisson_cohorts_do_not_overflow_and_pad_with_nobody():
    members = sampled(LAWS["poisson"], 2000)
    assert members.ids.shape[1] == N  # few clients: all fit
    assert not np.any(np.asarray(members.participation_count)[~np.asarray(members.selected)])
    assert cohorts.PoissonCohort(size=100).capacity(100_000) < 210


BAD = [
    (cohorts.UniformCohort(size=13), "cohort_size must be at most the 12 clients, got 13"),
    (cohorts.PoissonCohort(size=0), "cohort_size must be an integer of at least 1"),
    (cohorts.CyclicCohort(size=5), "a divisor of the 12 clients"),
    (cohorts.LoggedCohort(ids=np.array([[0, 12]])), "of clients 0 to 11, got client 12"),
    (cohorts.LoggedCohort(ids=np.array([[3, 3]])), "got client 3 twice in round 0"),
    (cohorts.LoggedCohort(ids=np.array([[3, -2]])), "client must be from 0 to 11, got -2"),
    (cohorts.LoggedCohort(ids=np.array([1, 2])), "of a log must be (rounds, members), got shape (2,)"),
    (cohorts.LoggedCohort(ids=np.array([[3, -1]]), fixed=True), "False where some round has fewer"),
    (cohorts.MultinomialCohort(draws=3, probabilities=np.ones(4) / 4), "one for each of the 12 clients"),
    (cohorts.MultinomialCohort(draws=3, probabilities=np.r_[np.zeros(1), np.ones(11) / 11]), "positive and of sum 1"),
    (fdp.parts.Dropout(cohort=cohorts.AllClients(), rate=1.0), "dropout must be in [0, 1)"),
    (fdp.parts.Dropout(cohort=cohorts.AllClients(), rate=np.ones(3) / 2), "dropout must be one number or 12 of them"),
    (fdp.parts.FirstResponders(cohort=cohorts.UniformCohort(size=3), size=4), "at most the 3 clients drawn"),
    (fdp.parts.FirstResponders(cohort=cohorts.AllClients(), size=4, latency=0.0), "latency must be positive"),
]


@pytest.mark.parametrize(("law", "words"), BAD)
def test_wrong_cohorts_are_refused_in_one_line(law, words):
    assert words in refusal(check_part, law, N)
