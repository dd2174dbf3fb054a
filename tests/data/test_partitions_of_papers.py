"""Shards, sets of labels, Dirichlet by class and record by record, groups of natural clients, sorted numbers, growing
sizes: each is what its paper says, and is decided by its seed."""

import time

import numpy as np
import pytest
from helpers import SEEDS, check_split, labels_and_sizes, refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from test_partition import LABELS, PARTITIONS, table_of

from fedjax_dp import data, errors

MNIST = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])  # its training labels


# Shards


def test_two_hundred_shards_of_300_give_most_clients_two_labels():
    """McMahan et al. 2017: MNIST's 60,000 records, 100 clients. Of equal classes no shard has more than one label."""
    for labels, most in ((np.random.default_rng(0).permutation(MNIST), 4), (np.arange(60_000) % 10, 2)):
        clients = data.shards(labels, 100, 0)
        check_split(clients, np.full(100, 600), 60_000)
        held = (table_of(clients, labels) > 0).sum(1)
        assert held.max() <= most
        assert (held == 2).mean() > 0.7
    whole = np.sort(np.concatenate(clients).reshape(200, 300), 1)  # shards are pieces of the sorted records
    order = np.argsort(labels, kind="stable").reshape(200, 300)
    assert {tuple(piece[:2]) for piece in whole} == {tuple(piece[:2]) for piece in np.sort(order, 1)}


@given(labels_and_sizes(), st.integers(1, 4), SEEDS)
@settings(max_examples=40, deadline=None)
def test_shards_have_one_size_and_what_is_left_over_is_too_little(problem, each, seed):
    labels, sizes = problem
    if labels.size < len(sizes) * each:
        assert "shards_per_client" in refusal(data.shards, labels, len(sizes), seed, each)
        return
    size = labels.size // (len(sizes) * each)
    check_split(data.shards(labels, len(sizes), seed, each), np.full(len(sizes), size * each), labels.size)


def test_of_shards_of_a_given_size_the_first_clients_get_one_more():
    clients = data.shards(LABELS, 4, 3, shard_size=55)  # ten whole ones of 600 records
    check_split(clients, [165, 165, 110, 110], 600)
    assert "shard_size" in refusal(data.shards, LABELS, 4, 3, None, 151)
    assert "drop one of them" in refusal(data.shards, LABELS, 4, 3, 2, 55)


# Sets of labels


@pytest.mark.parametrize(
    "draw",
    [
        lambda labels: data.labels_per_client(labels, 4, 1, 0),
        lambda labels: data.dirichlet(labels, 4, 0.5, 0, "hsu"),
        lambda labels: data.inner_dirichlet(labels, 4, 0.5, 0, "hsu"),
        lambda labels: data.class_dirichlet(labels, 4, 0.5, 0, min_records=1),
        lambda labels: data.pathological(labels, 4, 1, 0),
    ],
)
def test_numbers_that_no_record_has_are_no_labels(draw):
    labels = np.tile([0, 1], 40)
    few, sparse = table_of(draw(labels), labels), table_of(draw(labels * 200), labels * 200)[:, [0, 200]]
    if draw(labels)[0].size == 20:  # sizes are stated: the law is that of two labels
        np.testing.assert_array_equal(few, sparse)
    assert sparse.sum() == few.sum()


@pytest.mark.parametrize("assignment", ["random", "cyclic", "first"])
@given(st.integers(1, 40), st.integers(1, 10), SEEDS)
@settings(max_examples=20, deadline=None)
def test_pathological_clients_have_k_labels_and_share_each_evenly(assignment, num_clients, count, seed):
    clients = data.pathological(LABELS, num_clients, count, seed, assignment)
    table = table_of(clients, LABELS)
    check_split(clients, table.sum(1), LABELS.size)
    assert ((table > 0).sum(1) == count).all()
    for label, column in enumerate(table.T):
        held = column[column > 0]
        assert held.size == 0 or (held.sum() == 60 and held.max() - held.min() <= 1)
        if assignment != "random" and label < num_clients:
            assert table[label, label] > 0
    if assignment == "cyclic":
        for client in range(num_clients):
            assert set(np.flatnonzero(table[client])) == {(client + j) % 10 for j in range(count)}


def test_random_sets_of_labels_are_uniform():
    """Each of the 10 pairs of 5 labels for a tenth of 2,000 clients; the wrong program draws neighbours."""
    labels = np.repeat(np.arange(5), 2_000)

    def score(assignment):
        table = table_of(data.pathological(labels, 2_000, 2, 0, assignment), labels) > 0
        pairs = np.unique(table @ 2 ** np.arange(5), return_counts=True)[1]
        expected = 200
        return ((pairs - expected) ** 2).sum() / expected + (10 - len(pairs)) * expected

    assert score("random") < stats.chi2.ppf(1 - 1e-6, 9)
    assert score("cyclic") > stats.chi2.ppf(1 - 1e-6, 9)


def test_a_label_with_fewer_records_than_clients_is_refused():
    assert "the 2 records of label 1" in refusal(data.pathological, np.array([0] * 9 + [1] * 2), 3, 2, 0)
    assert "between 1 and the 2 labels" in refusal(data.pathological, np.array([0] * 9 + [5] * 9), 3, 3, 0)
    clients = data.pathological(np.array([0] * 9 + [5] * 9), 3, 2, 0)  # labels that do not occur are none
    check_split(clients, [6, 6, 6], 18)


# Dirichlet over the clients of a class


def slow_class_dirichlet(labels, num_clients, concentration, rng, balance):
    """The published program, once: row lists that grow class by class."""
    rows = [[] for _ in range(num_clients)]
    for label in range(labels.max() + 1):
        own = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(num_clients, concentration))
        if balance:
            shares = np.array([s * (len(r) < len(labels) / num_clients) for s, r in zip(shares, rows)])
            shares = shares / shares.sum()
        cuts = (np.cumsum(shares) * len(own)).astype(int)[:-1]
        rows = [[*r, *more] for r, more in zip(rows, np.split(own, cuts))]
    return rows


@pytest.mark.parametrize("balance", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_class_dirichlet_has_the_law_of_the_published_program(balance):
    """Largest client and mean of squared cells, 400 draws of each; the other setting of `balance` is told apart."""

    def measured(draw):
        tables = [table_of(draw(seed), LABELS) for seed in range(400)]
        return np.array([(table.sum(1).max(), (table**2).mean()) for table in tables])

    ours = {b: measured(lambda s, b=b: data.class_dirichlet(LABELS, 6, 0.5, s, b, 1)) for b in (True, False)}

    def draw(seed):
        rng, rows = np.random.default_rng(10_000 + seed), [[]]
        while min(map(len, rows)) < 1:
            rows = slow_class_dirichlet(LABELS, 6, 0.5, rng, balance)
        return [np.array(part) for part in rows]

    theirs = measured(draw)
    assert all(stats.ks_2samp(ours[balance][:, at], theirs[:, at]).pvalue > 5e-7 for at in (0, 1))
    assert stats.ks_2samp(ours[not balance][:, 0], theirs[:, 0]).pvalue < 1e-12


@given(labels_and_sizes(), st.floats(1e-3, 1e3), SEEDS, st.booleans())
@settings(max_examples=40, deadline=None)
def test_class_dirichlet_uses_every_record_and_keeps_the_minimum_or_refuses(problem, concentration, seed, balance):
    labels, sizes = problem
    try:
        clients = data.class_dirichlet(labels, len(sizes), concentration, seed, balance, 2)
    except errors.ConfigurationError:
        assert "min_records" in refusal(data.class_dirichlet, labels, len(sizes), concentration, seed, balance, 2)
        return
    found = [len(rows) for rows in clients]
    check_split(clients, found, labels.size)
    assert sum(found) == labels.size
    assert min(found) >= 2


def test_class_dirichlet_draws_again_at_most_ten_times():
    drawn = []

    class Counted:
        def dirichlet(self, parameter):
            drawn.append(parameter)
            return np.eye(len(parameter))[0]

    dirichlet = data.dirichlet.__globals__
    real, dirichlet["generator"] = dirichlet["generator"], lambda role, seed: Counted()
    try:
        told = refusal(data.class_dirichlet, LABELS, 3, 0.5, 0, False, 5)
    finally:
        dirichlet["generator"] = real
    assert len(drawn) == 10 * 10  # classes, attempts
    assert "0 in the best of 10 attempts at concentration 0.5, got 5; lower it, take a larger concentration" in told
    assert "at most 200 for 3 clients" in refusal(data.class_dirichlet, LABELS, 3, 0.5, 0, True, 201)


# Dirichlet record by record


def test_a_used_up_class_hits_all_clients_alike():
    """Clients that want both classes evenly, of which one is used up half way.

    Record by record, each of its records goes to any client uniformly as nobody is full yet: a multinomial law, and
    Pearson's statistic is chi-squared (false alarms 1e-6). `dirichlet` serves clients one after the other: the first
    half gets 100 of these records each and the last none, which makes 50 a client.
    """
    num_clients, size = 1000, 200
    labels = np.repeat([0, 1], [num_clients * size // 4, num_clients * size // 4 * 3])

    def score(draw):
        held = table_of(draw(labels, np.full(num_clients, size), 1e7, 0), labels)[:, 0]
        return ((held - 50) ** 2 / 50).sum()

    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], num_clients - 1)
    assert low < score(data.inner_dirichlet) < high
    assert score(data.dirichlet) > 10 * high


@pytest.mark.slow
def test_inner_dirichlet_has_the_law_of_the_published_program():
    """Where classes are used up and clients are full: counts of one cell, and of clients' classes, 1,500 draws each."""
    labels, sizes = np.repeat([0, 1, 2], [6, 10, 14]), np.array([15, 9, 4])

    def slow(seed):
        rng = np.random.default_rng(50_000 + seed)
        wishes, left, room = rng.dirichlet(np.full(3, 0.7), 3), np.array([6, 10, 14]), sizes.copy()
        table = np.zeros((3, 3), int)
        while room.any():
            client = rng.integers(3)
            if room[client]:
                label = rng.choice(3, p=np.where(left > 0, wishes[client], 0) / wishes[client][left > 0].sum())
                table[client, label] += 1
                room[client] -= 1
                left[label] -= 1
        return table

    def cells(tables):
        return np.array([(table[0, 0], table[2, 2], (table > 0).sum()) for table in tables])

    def apart(a, b):
        return [stats.chi2_contingency(pair(x, y)).pvalue for x, y in zip(cells(a).T, cells(b).T)]

    def pair(x, y):
        both = np.stack([np.bincount(v, minlength=16) for v in (x, y)])
        return both[:, both.sum(0) > 0]

    theirs = [slow(seed) for seed in range(1500)]
    ours, other = (
        [table_of(draw(labels, sizes, 0.7, seed), labels) for seed in range(1500)]
        for draw in (data.inner_dirichlet, data.dirichlet)
    )
    assert min(apart(ours, theirs)) > 1e-6 / 3
    assert min(apart(other, theirs)) < 1e-12


# Natural clients, and numbers


@given(st.integers(1, 30), st.integers(1, 8), SEEDS)
@settings(max_examples=60, deadline=None)
def test_groups_keep_natural_clients_whole(names, size, seed):
    ids = np.random.default_rng(seed).permutation(np.arange(3 * names) % names)
    whole, left = divmod(names, size)
    for remainder, sizes in {
        "smaller": [size] * whole + [left] * bool(left),
        "spread": [size + left // whole + (at < left % whole) for at in range(whole)] if whole else None,
        "drop": [size] * whole or None,
        "refuse": None if left else [size] * whole,
    }.items():
        if sizes is None:
            assert "group_size" in refusal(data.grouped_natural, ids, size, seed, remainder)
            continue
        clients = data.grouped_natural(ids, size, seed, remainder)
        check_split(clients, [3 * size for size in sizes], ids.size)
        assert [np.unique(ids[rows]).size for rows in clients] == sizes


def test_strength_one_sorts_by_the_number_and_zero_is_iid():
    values = np.random.default_rng(0).permutation(np.arange(60_000.0)) * 3 - 7
    clients = data.continuous(values, 7, 1.0, 0)
    check_split(clients, [len(rows) for rows in clients], 60_000)
    assert max(map(len, clients)) - min(map(len, clients)) == 1
    assert (np.diff(values[np.concatenate(clients)]) > 0).all()

    def score(strength):  # between clients' mean ranks: chi-squared for random parts
        ranks = (values.argsort().argsort() - 29_999.5) / np.sqrt(60_000 * 60_001 / 12)
        return sum(len(rows) * ranks[rows].mean() ** 2 for rows in data.continuous(values, 7, strength, 0)) * 1.0

    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], 6)
    assert low < score(0.0) < high
    assert score(0.1) > 10 * high


def test_strength_blends_standard_deviations():
    """The number's correlation with its client is that of s z + (1 - s) e, s / sqrt(s^2 + (1 - s)^2)."""
    values = 100 * np.random.default_rng(1).standard_normal(40_000) + 5
    for strength in (0.2, 0.5, 0.8):
        ranks = np.empty(40_000)
        ranks[np.concatenate(data.continuous(values, 40_000, strength, 0))] = stats.norm.ppf(
            (np.arange(40_000) + 0.5) / 40_000
        )
        expected = strength / np.hypot(strength, 1 - strength)
        found = np.corrcoef(ranks, values)[0, 1]
        assert abs(np.arctanh(found) - np.arctanh(expected)) < 4.89 / np.sqrt(40_000)


def test_records_that_are_equal_in_a_number_stay_as_they_stand():
    assert np.concatenate(data.continuous(np.array([1, 0, 1, 0]), 2, 1.0, 0)).tolist() == [1, 3, 0, 2]
    assert "numbers that differ" in refusal(data.continuous, np.ones(4), 2, 0.5, 0)
    assert "NaN in 1 of 2 records, counted from 0: 1" in refusal(data.continuous, np.array([1.0, np.nan]), 2, 0.5, 0)
    assert "NaN in 1 of 2 records, counted from 0: 0" in refusal(data.continuous, [None, 1.0], 2, 0.5, 0)
    assert sorted(np.concatenate(data.continuous(np.ones(4), 2, 0.0, 0))) == [0, 1, 2, 3]  # where it does not matter
    for strength in (-0.1, 1.1, np.nan):
        assert "strength" in refusal(data.continuous, np.arange(4), 2, strength, 0)


# Sizes


@pytest.mark.parametrize(
    ("make", "share"),
    [(data.linear_sizes, lambda i: i), (data.square_sizes, lambda i: i**2), (data.exponential_sizes, np.exp)],
)
@given(st.integers(1, 12), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_growing_sizes_are_rounded_down_and_the_last_gets_the_rest(make, share, num_clients, records):
    parts = share(np.arange(1.0, num_clients + 1))
    expected = np.floor(records * parts / parts.sum() + 1e-9).astype(int)
    expected[-1] = records - expected[:-1].sum()
    if expected.min() < 1:
        assert "sizes must be at least a record for each client" in refusal(make, records, num_clients)
        return
    np.testing.assert_array_equal(make(records, num_clients), expected)


def test_growing_sizes_by_hand():
    assert data.linear_sizes(100, 4).tolist() == [10, 20, 30, 40]
    assert data.linear_sizes(11, 4).tolist() == [1, 2, 3, 5]
    assert data.square_sizes(31, 4).tolist() == [1, 4, 9, 17]
    assert data.exponential_sizes(1000, 3).tolist() == [90, 244, 666]  # 0.0900, 0.2447, 0.6652
    assert "num_clients" in refusal(data.linear_sizes, 10, 0)


# The same for all


def grouped(labels, num_clients, seed):
    return data.grouped_natural(np.arange(labels.size) // 2, 5, seed)


def sizes(labels, num_clients, seed):
    return [data.power_law_sizes(labels.size, num_clients, 5, seed)]


SEEDED = pytest.mark.parametrize("draw", [*PARTITIONS, grouped, sizes], ids=lambda draw: draw.__name__)


@SEEDED
def test_seed_alone_decides(draw):
    more = PARTITIONS.get(draw, ())
    first, again, other = (np.concatenate(draw(LABELS, 20, *more, seed=seed)) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert first.shape != other.shape or (first != other).any()


@SEEDED
def test_sixty_thousand_records_reach_a_thousand_clients_in_half_a_second(draw):
    labels = np.arange(60_000) % 10
    seconds = []
    for seed in range(3):
        began = time.perf_counter()
        draw(labels, 1000, *PARTITIONS.get(draw, ()), seed=seed)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.5
