"""Cohorts whose rounds depend on one another: laws by counting over many runs, beside programs that break them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_dp import accounting, errors
from fedjax_dp.accounting import Adjacency
from fedjax_dp.inspection.trials import QUICK, draw_cohorts
from fedjax_dp.parts import (
    AllocatedCohort,
    BinnedCohort,
    CyclicPoissonCohort,
    Dropout,
    PoissonCohort,
    SeparatedCohort,
    TruncatedPoissonCohort,
    cohorts,
)
from fedjax_dp.pytrees import check_part, value
from fedjax_dp.rounds.clients import draw_cohort

N, RUNS = 100, 200
LIMIT = 4.89  # standard errors, at a false positive rate of 1e-6
SHARES = jnp.full(N, 1 / N)
KEYS = jax.random.split(jax.random.key(7), RUNS)

# (law, clients, rounds, chance of a round, rounds between two of a client, most of a client) by closed forms
LAWS = {
    "allocation": (AllocatedCohort(pass_rounds=20, chosen=3), N, 20, 0.15, 1, 3),
    "bins": (BinnedCohort(pass_rounds=10), N, 35, 0.1, 10, 4),
    "cyclic Poisson": (CyclicPoissonCohort(size=5, pass_rounds=4), N, 30, 0.05, 4, 8),
    "separated": (SeparatedCohort(size=5, separation=4), N, 30, 0.05, 4, 8),
    "truncated": (TruncatedPoissonCohort(size=10, most=14), N, 30, 0.09849078945983261, 1, 30),
}


@functools.cache
def attended(law, num_clients, rounds, runs=RUNS):
    """Who is in each round of each run `(runs, rounds, num_clients)`."""
    check_part(law, num_clients)
    shares = jnp.full(num_clients, 1 / num_clients)

    def of(key, now):
        members = draw_cohort(law, key, now, shares)
        return jnp.zeros(num_clients, jnp.int32).at[members.ids].add(members.selected.astype(jnp.int32))

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
    else:
        assert deviate(by_client[:whole], RUNS, chance) < LIMIT
    assert law.min_separation(num_clients) == separation <= gaps(there)
    assert there.sum(1).max() <= most
    passes = -(-rounds // law.rounds_per_pass(num_clients))
    assert most <= passes * getattr(law, "chosen", 1)
    assert law.capacity(num_clients) >= there.sum(2).max()
    assert law.fixed == (np.ptp(there.sum(2)) == 0)
    assert law.expected_size(num_clients) == round(num_clients * chance)


def both_of_two(there, one, other):
    return (there[:, one] * there[:, other]).sum()


@value
class SlotOfEachRound(BinnedCohort):
    """Wrong: a slot is drawn anew in each round."""

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


APART = SeparatedCohort(size=20, separation=4)


def chances_of_the_chain(rate, separation, rounds, weights):
    """Of a client to join in each round, and in each of the rounds after one of its own, by states of rounds barred."""
    moves = np.zeros((separation, separation))  # from, to
    moves[0, 0], moves[0, separation - 1] = 1 - rate, rate
    for barred in range(1, separation):
        moves[barred, barred - 1] = 1.0
    after = np.eye(separation)[separation - 1]
    powers = [np.linalg.matrix_power(moves, at) for at in range(rounds)]
    return [rate * (weights @ power)[0] for power in powers], [rate * (after @ power)[0] for power in powers]


@value
class FreeAtTheStart(SeparatedCohort):
    """Wrong: nobody rests in round 0."""

    def _first_round(self, words, gap):
        return gap - self.separation


@value
class RateOfEachRound(SeparatedCohort):
    """Wrong: r / N for the coin of a client that is free."""

    def rate_when_free(self, num_clients):
        return self.size / num_clients


@value
class ForgottenAtRoundSix(SeparatedCohort):
    """Wrong: who rests is forgotten once."""

    def sample(self, keys, round_index, shares):
        key = jax.random.fold_in(keys.run, round_index // 6)
        return super().sample(keys._replace(run=key), round_index % 6, shares)


def away_from_the_chain(law):
    """Deviates of how often clients are in each round, and in it and one of the seven before."""
    there = attended(law, N, 12)
    weights = np.array([0.4, 0.2, 0.2, 0.2])  # 1 / (1 + 3 p), and three times p times that
    alone, again = chances_of_the_chain(0.5, 4, 7, weights)
    np.testing.assert_allclose(alone, 0.2, rtol=1e-12)
    off = [deviate(there.sum((0, 2)), RUNS * N, 0.2)]
    for earlier in range(5):
        for gap, chance in enumerate(again, 1):
            found = both_of_two(there, earlier, earlier + gap)
            off.append(deviate(found, RUNS * N, 0.2 * chance) if chance else np.inf if found else 0.0)
    return max(off)


@pytest.mark.slow
def test_rounds_of_a_client_with_rests_are_those_of_the_chain():
    assert LAWS["separated"][0].rate_when_free(N) == pytest.approx(0.058823529411764705, rel=1e-12)
    assert away_from_the_chain(APART) < LIMIT
    for wrong in (FreeAtTheStart, RateOfEachRound, ForgottenAtRoundSix):
        assert away_from_the_chain(wrong(size=20, separation=4)) > LIMIT, wrong


@pytest.mark.exhaustive  # CI: test_rounds_of_a_client_with_rests_are_those_of_the_chain
def test_rests_of_no_round_are_coins_and_the_longest_ones_are_kept_slots():
    coins = attended(SeparatedCohort(size=10, separation=1), N, 12)
    assert deviate(coins.sum((0, 2)), RUNS * N, 0.1) < LIMIT
    assert max(deviate(both_of_two(coins, 0, gap), RUNS * N, 0.01) for gap in range(1, 12)) < LIMIT
    kept = attended(SeparatedCohort(size=10, separation=10), N, 30, 20)
    assert np.all(kept.reshape(20, 3, 10, N).sum(2) == 1)  # once in ten rounds
    assert np.array_equal(kept[:, :10], kept[:, 10:20])


@pytest.mark.parametrize("name", ["allocation", "bins", "separated"])
def test_clients_pick_by_themselves(name):
    law, _, rounds, chance, _, _ = LAWS[name]
    first = attended(law, N, rounds)[:, 0]
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
        AllocatedCohort(pass_rounds=1),
        AllocatedCohort(pass_rounds=4, chosen=4),
        BinnedCohort(pass_rounds=1),
        CyclicPoissonCohort(size=N, pass_rounds=1),
    ):
        np.testing.assert_array_equal(attended(law, N, 4, 3), everybody)


@pytest.mark.slow
def test_a_pass_is_drawn_alike_whatever_round_is_asked_for():
    """Rounds need nothing of those before: a schedule that is drawn ahead is the one run."""
    law = Dropout(cohort=AllocatedCohort(pass_rounds=5, chosen=2), rate=0.5)
    there = attended(law, N, 10, 1)[0]
    some = draw_cohorts(law, KEYS[0], np.array([7, 3]), SHARES)
    for ids, selected, now in zip(some.ids, some.selected, (7, 3), strict=True):
        np.testing.assert_array_equal(np.sort(ids[selected]), np.flatnonzero(there[now]))
    lost, others = some.participation_count[:, :20]  # by round
    assert not np.array_equal(lost, others)


def test_what_accountants_count_by():
    assert LAWS["allocation"][0].amplification(N, 3) == (accounting.RandomAllocation(3, 20), Adjacency.ADD_REMOVE)
    assert LAWS["bins"][0].amplification(N, 3) == (accounting.BallsInBins(10), Adjacency.ADD_REMOVE)
    assert LAWS["cyclic Poisson"][0].amplification(N, 3) == (accounting.Poisson(0.2), Adjacency.ADD_REMOVE)
    truncated = LAWS["truncated"][0]
    assert truncated.amplification(N, 0) == (accounting.TruncatedPoisson(0.1, 14, N), Adjacency.ZERO_OUT)
    for law, known in ((truncated, 1), (LAWS["separated"][0], 0)):
        assert law.amplification(N, known) == cohorts.SEEN


BAD = [
    (AllocatedCohort(pass_rounds=4, chosen=5), "chosen must be an integer from 1 to 4, got 5"),
    (AllocatedCohort(pass_rounds=0), "pass_rounds must be an integer of at least 1"),
    (BinnedCohort(pass_rounds=0), "pass_rounds must be an integer of at least 1"),
    (CyclicPoissonCohort(size=30, pass_rounds=4), "at most 100 clients / cohort_size 30"),
    (TruncatedPoissonCohort(size=10, most=0), "cohort_most must be an integer of at least 1"),
    (SeparatedCohort(size=10, separation=0), "separation must be an integer of at least 1, got 0"),
    (SeparatedCohort(size=30, separation=4), "separation must be at most 100 clients / cohort_size 30, .*got 4"),
    (SeparatedCohort(size=101, separation=1), "cohort_size must be at most the 100 clients"),
]


@pytest.mark.parametrize(("law", "line"), BAD)
def test_what_cannot_be_drawn_is_refused_in_one_line(law, line):
    with pytest.raises(errors.ConfigurationError, match=line):
        check_part(law, N)
