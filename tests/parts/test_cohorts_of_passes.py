"""Cohorts that are drawn by passes of rounds: laws by counting over many runs, beside programs that break them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_dp import accounting, errors
from fedjax_dp.accounting import Adjacency
from fedjax_dp.inspection.trials import QUICK, drawn_cohorts
from fedjax_dp.parts import (
    AllocatedCohort,
    BinnedCohort,
    CyclicPoissonCohort,
    Dropout,
    PoissonCohort,
    ShuffledCohort,
    TruncatedPoissonCohort,
    cohorts,
)
from fedjax_dp.pytrees import value
from fedjax_dp.rounds.clients import draw_cohort

N, RUNS = 100, 200
LIMIT = 4.89  # standard errors, at a false positive rate of 1e-6
SHARES = jnp.full(N, 1 / N)
KEYS = jax.random.split(jax.random.key(7), RUNS)

# (law, clients, rounds, chance of a round, rounds between two of a client, most of a client) by closed forms
LAWS = {
    "shuffled": (ShuffledCohort(size=8), 96, 24, 1 / 12, 1, 2),
    "shuffled, drop": (ShuffledCohort(size=4), 14, 8, 4 / 14, 1, 3),
    "shuffled, keep": (ShuffledCohort(size=4, last="keep"), 14, 8, 1 / 4, 1, 2),
    "allocation": (AllocatedCohort(pass_rounds=20, chosen=3), N, 20, 0.15, 1, 3),
    "bins": (BinnedCohort(pass_rounds=10), N, 35, 0.1, 10, 4),
    "cyclic Poisson": (CyclicPoissonCohort(size=5, pass_rounds=4), N, 30, 0.05, 4, 8),
    "truncated": (TruncatedPoissonCohort(size=10, most=14), N, 30, 0.09849078945983261, 1, 30),
}


@functools.cache
def attended(law, num_clients, rounds, runs=RUNS):
    """Who is in each round of each run `(runs, rounds, num_clients)`."""
    law.check(num_clients)
    shares = jnp.full(num_clients, 1 / num_clients)

    def of(key, now):
        members = draw_cohort(law, key, now, shares)
        return jnp.zeros(num_clients, jnp.int32).at[members.ids].add(members.invited.astype(jnp.int32))

    of_run = jax.jit(jax.vmap(jax.vmap(of, (None, 0)), (0, None)), compiler_options=QUICK)
    return np.asarray(of_run(KEYS[:runs], jnp.arange(rounds)))


def deviate(times, trials, chance):
    """Of counts from their binomial law, in standard errors; the largest."""
    return np.abs((times - trials * chance) / np.sqrt(trials * chance * (1 - chance))).max()


def gaps(there):
    """The least number of rounds between two of a client."""
    where = [np.flatnonzero(there[run, :, client]) for run in range(40) for client in range(there.shape[2])]
    return min(int(np.diff(at).min()) for at in where if at.size > 1)


@pytest.mark.parametrize("name", LAWS)
def test_rounds_of_a_client_are_those_of_the_law(name):
    law, num_clients, rounds, chance, separation, most = LAWS[name]
    there = attended(law, num_clients, rounds)
    assert there.max() == 1
    shares = np.full(num_clients, 1 / num_clients)
    np.testing.assert_allclose(law.rates(shares), chance, rtol=1e-8)
    by_client, whole = there.sum(0), rounds - rounds % law.rounds_per_pass(num_clients)
    if name == "cyclic Poisson":  # whose rounds are public
        mine = np.arange(rounds)[:, None] % 4 == np.arange(N)[None] % 4
        assert not by_client[~mine].any()
        assert deviate(by_client[mine], RUNS, 0.2) < LIMIT
    elif name == "shuffled, keep":
        assert there.sum(2)[0].tolist() == [4, 4, 4, 2, 4, 4, 4, 2]
        assert np.all(there.reshape(RUNS, 2, 4, 14).sum(2) == 1)  # once a pass
    else:
        assert deviate(by_client[:whole], RUNS, chance) < LIMIT
    assert law.min_separation(num_clients) == separation <= gaps(there)
    assert there.sum(1).max() <= most
    passes = -(-rounds // law.rounds_per_pass(num_clients))
    assert most <= passes * getattr(law, "chosen", 1)
    assert law.capacity(num_clients) >= there.sum(2).max()
    assert law.fixed == (np.ptp(there.sum(2)) == 0)
    assert law.expected_size(num_clients) == round(num_clients * chance) or name.startswith("shuffled")


def both_of_two(there, one, other):
    return (there[:, one] * there[:, other]).sum()


@value
class SlotOfEachRound(BinnedCohort):
    """Wrong: a slot is drawn anew in each round."""

    def sample(self, keys, round_index, shares):
        return super().sample(keys._replace(run=keys.round), round_index, shares)


@value
class ShuffleOfEachRound(ShuffledCohort):
    """Wrong: each round cuts its block out of a shuffle of its own."""

    def sample(self, keys, round_index, shares):
        return super().sample(keys._replace(run=keys.round), round_index, shares)


@value
class PassOfEachRun(AllocatedCohort):
    """Wrong: the same rounds in every pass."""

    def sample(self, keys, round_index, shares):
        return super().sample(keys, round_index % self.pass_rounds, shares)


@value
class FirstOfThem(TruncatedPoissonCohort):
    """Wrong: of too many the first ids stay."""

    def sample(self, keys, round_index, shares):
        members = PoissonCohort(size=self.size).sample(keys, round_index, shares)
        return jax.tree.map(lambda a: a[: self.most], members)


def in_pairs_of_rounds(law, both, rounds=None):
    """Deviates of how often clients are in both of two rounds, from the chance `both`."""
    there = attended(law, N, 2 * law.rounds_per_pass(N))
    at = (0, 1) if rounds is None else rounds
    found = both_of_two(there, *at)
    if both == 0:
        return 0.0 if found == 0 else np.inf
    return deviate(found, RUNS * N, both)


@pytest.mark.slow
def test_both_of_two_rounds_of_a_pass_are_as_likely_as_stated():
    three = AllocatedCohort(pass_rounds=20, chosen=3)
    assert in_pairs_of_rounds(three, 0.015789473684210527) < LIMIT
    assert in_pairs_of_rounds(three, 0.15**2) > LIMIT  # independent rounds
    assert in_pairs_of_rounds(three, 0.15**2, (0, 20)) < LIMIT  # another pass is drawn afresh
    assert in_pairs_of_rounds(PassOfEachRun(pass_rounds=20, chosen=3), 0.15**2, (0, 20)) > LIMIT
    bins = BinnedCohort(pass_rounds=10)
    assert in_pairs_of_rounds(bins, 0.0) == 0
    assert in_pairs_of_rounds(bins, 0.1, (0, 10)) < LIMIT
    assert in_pairs_of_rounds(SlotOfEachRound(pass_rounds=10), 0.0) > LIMIT
    assert in_pairs_of_rounds(ShuffledCohort(size=10), 0.0) == 0
    assert in_pairs_of_rounds(ShuffleOfEachRound(size=10), 0.0) > LIMIT


@pytest.mark.parametrize("name", ["allocation", "bins"])
def test_clients_pick_by_themselves(name):
    law, _, _, chance, _, _ = LAWS[name]
    first = attended(law, N, 1)[:, 0]
    sizes = first.sum(1)
    away = (np.var(sizes) / (N * chance * (1 - chance)) - 1) * np.sqrt(RUNS / 2)
    assert abs(away) < LIMIT
    assert deviate((first[:, 0] * first[:, 1]).sum(), RUNS, chance**2) < LIMIT


@pytest.mark.slow
def test_of_too_many_clients_a_uniform_choice_stays():
    law = TruncatedPoissonCohort(size=10, most=12)
    there = attended(law, N, 30)
    sizes, kept = there.sum(2).ravel(), np.minimum(np.arange(N + 1), 12)
    law_of_size = stats.binom.pmf(np.arange(N + 1), N, 0.1)
    chance = kept @ law_of_size / N
    assert deviate((sizes == 12).sum(), sizes.size, stats.binom.sf(11, N, 0.1)) < LIMIT
    assert deviate(there.sum((0, 1)), RUNS * 30, chance) < LIMIT
    assert deviate(attended(FirstOfThem(size=10, most=12), N, 30).sum((0, 1)), RUNS * 30, chance) > LIMIT
    roomy = TruncatedPoissonCohort(size=10, most=N)
    assert np.array_equal(attended(roomy, N, 3, 20), attended(PoissonCohort(size=10), N, 3, 20))  # nobody is cut


@pytest.mark.slow
def test_limits_are_everybody():
    everybody = np.ones((3, 4, N), int)
    for law in (
        ShuffledCohort(size=N),
        AllocatedCohort(pass_rounds=1),
        AllocatedCohort(pass_rounds=4, chosen=4),
        BinnedCohort(pass_rounds=1),
        CyclicPoissonCohort(size=N, pass_rounds=1),
    ):
        np.testing.assert_array_equal(attended(law, N, 4, 3), everybody)


def test_a_pass_is_drawn_alike_whatever_round_is_asked_for():
    """Rounds need nothing of those before: a schedule that is drawn ahead is the one run."""
    law = Dropout(cohort=AllocatedCohort(pass_rounds=5, chosen=2), rate=0.5)
    there = attended(law, N, 10, 1)[0]
    some = drawn_cohorts(law, KEYS[0], np.array([7, 3]), SHARES)
    for ids, invited, now in zip(some.ids, some.invited, (7, 3), strict=True):
        np.testing.assert_array_equal(np.sort(ids[invited]), np.flatnonzero(there[now]))
    assert not np.array_equal(some.drawn[0, :20], some.drawn[1, :20])  # who is lost is drawn by round


def test_what_accountants_count_by():
    assert LAWS["allocation"][0].amplified(N, 3) == (accounting.RandomAllocation(3, 20), Adjacency.ADD_REMOVE)
    assert LAWS["bins"][0].amplified(N, 3) == (accounting.BallsInBins(10), Adjacency.ADD_REMOVE)
    assert LAWS["cyclic Poisson"][0].amplified(N, 3) == (accounting.Poisson(0.2), Adjacency.ADD_REMOVE)
    truncated = LAWS["truncated"][0]
    assert truncated.amplified(N, 0) == (accounting.TruncatedPoisson(0.1, 14, N), Adjacency.ZERO_OUT)
    assert truncated.amplified(N, 1) == LAWS["shuffled"][0].amplified(N, 0) == cohorts.SEEN
    assert [LAWS[name][0].rounds_per_pass(14) for name in ("shuffled, drop", "shuffled, keep")] == [3, 4]


BAD = [
    (AllocatedCohort(pass_rounds=4, chosen=5), "chosen must be an integer from 1 to 4, got 5"),
    (AllocatedCohort(pass_rounds=0), "pass_rounds must be an integer of at least 1"),
    (BinnedCohort(pass_rounds=0), "pass_rounds must be an integer of at least 1"),
    (CyclicPoissonCohort(size=30, pass_rounds=4), "at most 100 clients / cohort_size 30"),
    (TruncatedPoissonCohort(size=10, most=0), "cohort_most must be an integer of at least 1"),
    (ShuffledCohort(size=101), "cohort_size must be at most the 100 clients"),
    (ShuffledCohort(size=10, last="pad"), "cohort_last must be one of drop, keep"),
]


@pytest.mark.parametrize(("law", "line"), BAD)
def test_what_cannot_be_drawn_is_refused_in_one_line(law, line):
    with pytest.raises(errors.ConfigurationError, match=line):
        law.check(N)
