"""Partitions by label, and sizes: exact or refused, decided by the seed alone."""

import numpy as np
import pytest
from helpers import SEEDS, check_split, labels_and_sizes, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_dp import data, errors

LABELS = np.arange(600) % 10


@given(labels_and_sizes(), st.integers(1, 6), SEEDS)
@settings(max_examples=40, deadline=None)
def test_label_partition_is_exact_or_refused(problem, count, seed):
    labels, sizes = problem
    try:
        clients = data.labels_per_client(labels, sizes, count, seed)
    except errors.ConfigurationError:
        assert count != labels.max() + 1  # with every label allowed there is always a split
        return
    check_split(clients, sizes, labels.size)
    assert max(np.unique(labels[rows]).size for rows in clients) <= count


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), SEEDS)
@settings(max_examples=25, deadline=None)
def test_balanced_labels_are_always_split_without_a_rest(classes, copies, each, count, seed):
    count = min(count, classes)
    num_clients = classes * copies  # each label is then on the list of equally many clients
    labels = np.arange(num_clients * each) % classes
    sizes = np.full(num_clients, each)
    clients = data.labels_per_client(labels, sizes, count, seed)
    check_split(clients, sizes, labels.size)
    assert max(np.unique(labels[rows]).size for rows in clients) <= count


def test_power_law_sizes_are_far_from_equal():
    sizes = data.power_law_sizes(60_000, 1000, 10, 0)
    assert sizes.max() > 20 * np.median(sizes)


@given(st.integers(1, 500), st.integers(1, 500))
@settings(max_examples=25, deadline=None)
def test_equal_sizes_are_equal_and_leave_less_than_one_record_each(one, other):
    records, num_clients = max(one, other), min(one, other)
    sizes = data.equal_sizes(records, num_clients)
    assert sizes.shape == (num_clients,)
    assert np.unique(sizes).size == 1
    assert 0 <= records - sizes.sum() < num_clients


@given(st.lists(st.integers(-3, 300), min_size=1, max_size=60), st.sampled_from([np.int64, np.float32, np.str_]))
@settings(max_examples=25, deadline=None)
def test_natural_clients_are_the_owners_in_increasing_order(owners, kind):
    ids = np.array(owners).astype(kind)
    clients = data.natural(ids)
    assert [set(ids[rows]) for rows in clients] == [{owner} for owner in np.unique(ids)]
    check_split(clients, np.unique(ids, return_counts=True)[1], ids.size)
    assert sum(map(len, clients)) == ids.size


def test_chance_decides_which_clients_share_labels_and_who_gets_which_record():
    splits = [data.labels_per_client(LABELS, np.full(20, 30), 2, seed) for seed in range(8)]
    shared = [set(LABELS[clients[0]]) == set(LABELS[clients[5]]) for clients in splits]
    assert not all(shared)
    rows = np.concatenate(splits[0])
    assert (np.diff(rows[LABELS[rows] == 0]) < 0).any()  # not dealt in the order of the file


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([30] * 20, 0),
        ([30] * 20, 11),  # more labels than there are
        ([61, 10], 1),  # one label has 60 records
        ([300, 300], 1),  # eight labels are on nobody's list
        ([601], 10),  # more records than there are
    ],
)
def test_impossible_label_partition_is_refused(sizes, count):
    refusal(data.labels_per_client, LABELS, np.array(sizes), count, 0)


def test_impossible_sizes_are_refused():
    assert "min_records" in refusal(data.power_law_sizes, 100, 11, 10, 0)
    assert "min_records" in refusal(data.power_law_sizes, 100, 10, 0, 0)
    assert "num_clients" in refusal(data.equal_sizes, 10, 11)
    assert "num_clients" in refusal(data.equal_sizes, 10, 0)
    refusal(data.iid, LABELS, np.array([600, 1]), 0)


def test_real_mnist_is_complete_and_splits_into_seven_labels_each(mnist_dir):
    mnist = data.load("mnist", mnist_dir)
    assert (mnist.x_train.shape, mnist.x_test.shape) == ((60_000, 28, 28), (10_000, 28, 28))
    # source: the published counts by class
    assert np.bincount(mnist.y_train).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(mnist.y_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert mnist.classes == 10
    clients = data.labels_per_client(mnist.y_train, data.equal_sizes(60_000, 100), 7, 0)
    check_split(clients, [600] * 100, 60_000)
    assert [np.unique(mnist.y_train[rows]).size for rows in clients] == [7] * 100
