"""Partitions, held-out records and summaries: laws that hold for every data set and every seed."""

import numpy as np
import pytest
from helpers import SEEDS, check_split, labels_and_sizes, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_dp import data
from fedjax_dp.data import Dataset

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))
PARTITIONS = {  # and what they take beside labels and a number of clients
    data.iid: (),
    data.labels_per_client: (4,),
    data.dirichlet: (0.5,),
    data.inner_dirichlet: (0.5,),
    data.class_dirichlet: (0.5,),
    data.one_class_per_client: (),
    data.pathological: (2,),
    data.shards: (),
    data.similarity: (10,),
    data.continuous: (0.5,),
}


def table_of(clients, labels):
    return np.stack([np.bincount(labels[rows], minlength=labels.max() + 1) for rows in clients])


# Similarity


@given(labels_and_sizes(), st.floats(0, 100), SEEDS)
@settings(max_examples=40, deadline=None)
def test_similarity_uses_every_record_in_parts_that_differ_by_one(problem, percent, seed):
    labels, sizes = problem
    clients = data.similarity(labels, len(sizes), percent, seed)
    found = [len(rows) for rows in clients]
    check_split(clients, found, labels.size)
    assert sum(found) == labels.size
    assert max(found) - min(found) <= 1


def test_similarity_zero_cuts_the_sorted_labels_and_a_hundred_ignores_them():
    table = table_of(data.similarity(LABELS, 20, 0, 3), LABELS)
    assert [np.flatnonzero(counts).tolist() for counts in table] == [[client // 2] for client in range(20)]
    mixed = table_of(data.similarity(LABELS, 20, 100, 3), LABELS)
    assert (mixed > 0).sum(1).min() > 5


def test_similarity_ten_percent_of_labels_are_dealt_to_all():
    labels = np.repeat(np.arange(10), 6000)
    table = table_of(data.similarity(labels, 20, 10, 3), labels)
    own = np.arange(20) // 2
    assert (table > 0).all()
    # 300 of a client's 3,000 records are dealt at random, 30 of them of its own label; the others are two neighbours'
    # pieces of the sorted 54,000, whose borders move by what chance took from each label
    strange = table.sum(1) - table[np.arange(20), own]
    assert strange.min() >= 220
    assert np.median(strange) < 400


# Dirichlet


@given(labels_and_sizes(), st.floats(1e-3, 1e3), SEEDS, st.sampled_from(["per_class", "hsu"]))
@settings(max_examples=40, deadline=None)
def test_iid_and_dirichlet_fill_every_size_whatever_the_concentration(problem, concentration, seed, scale):
    labels, sizes = problem
    check_split(data.iid(labels, sizes, seed), sizes, labels.size)
    for draw in (data.dirichlet, data.inner_dirichlet):
        check_split(draw(labels, sizes, concentration, seed, scale), sizes, labels.size)


def test_hsu_scale_is_concentration_over_the_number_of_classes():
    sizes = np.full(20, 20)
    hsu, per_class = data.dirichlet(LABELS, sizes, 5.0, 1, "hsu"), data.dirichlet(LABELS, sizes, 0.5, 1)
    np.testing.assert_array_equal(np.concatenate(hsu), np.concatenate(per_class))


def test_small_concentration_gives_few_labels_and_large_gives_all():
    labels, sizes = np.repeat(np.arange(10), 1000), np.full(100, 20)  # so few that no class is used up
    few, many = (table_of(data.dirichlet(labels, sizes, c, 0), labels) for c in (1e-3, 1e3))
    assert ((few > 0).sum(1) == 1).mean() > 0.9
    # E[labels held] of 20 even draws from 10 is 10 (1 - 0.9^20) = 8.78
    assert abs((many > 0).sum(1).mean() - 8.78) < 0.4


def test_dirichlet_class_shares_have_the_variance_of_the_dirichlet_law():
    """Var of a share of Dir(c, ..., c) over C classes is (C - 1) / (C^2 (C c + 1)); multinomial noise comes on top."""
    classes, concentration, num_clients, size = 4, 0.5, 2000, 200
    labels = np.repeat(np.arange(classes), num_clients * size)
    shares = table_of(data.dirichlet(labels, np.full(num_clients, size), concentration, 0), labels) / size
    mean = 1 / classes
    variance = (classes - 1) / (classes**2 * (classes * concentration + 1))
    expected = variance + (mean * (1 - mean) - variance) / size
    measured = ((shares - mean) ** 2).mean(1)  # of each client, so that clients are independent
    z = (measured.mean() - expected) / (measured.std() / np.sqrt(num_clients))
    assert abs(z) < 4.89
    wrong = (classes - 1) / (classes**2 * (concentration + 1))  # the other scale
    assert abs((measured.mean() - wrong) / (measured.std() / np.sqrt(num_clients))) > 10


def test_used_up_classes_are_left_out_as_in_drawing_one_by_one():
    """Two clients that take everything: the second gets exactly what the first left."""
    labels = np.repeat(np.arange(3), [2, 5, 13])
    clients = data.dirichlet(labels, np.array([12, 8]), 0.3, 4)
    check_split(clients, [12, 8], 20)
    np.testing.assert_array_equal(table_of(clients, labels).sum(0), [2, 5, 13])


@pytest.mark.parametrize("concentration", [0.0, -1.0, np.nan, np.inf])
def test_concentration_must_be_positive(concentration):
    assert "concentration" in refusal(data.dirichlet, LABELS, np.full(10, 30), concentration, 0)


# One class per client


@given(labels_and_sizes(), st.integers(1, 5), st.integers(1, 8), SEEDS)
@settings(max_examples=60, deadline=None)
def test_one_class_per_client_succeeds_exactly_when_equal_sizes_fit(problem, size, num_clients, seed):
    labels, _ = problem
    sizes = np.full(num_clients, size)
    if (np.bincount(labels) // size).sum() < num_clients:
        refusal(data.one_class_per_client, labels, sizes, seed)
        return
    clients = data.one_class_per_client(labels, sizes, seed)
    check_split(clients, sizes, labels.size)
    assert all(np.unique(labels[rows]).size == 1 for rows in clients)


def test_classes_get_clients_by_their_share_of_records():
    # source: dp_fedavg_output's setting on Adult's training set, 24,720 and 7,841 records, 100 clients of 325
    labels = np.repeat([0, 1], [24_720, 7_841])
    clients = data.one_class_per_client(labels, np.full(100, 325), 0)
    assert np.bincount([labels[rows[0]] for rows in clients]).tolist() == [76, 24]
    assert (data.one_class_sizes(labels, 100) == 325).all()
    few = data.one_class_per_client(np.repeat([0, 1], [900, 100]), np.full(10, 5), 0)  # most records stay unused
    assert sum(rows[0] < 900 for rows in few) == 9


@given(labels_and_sizes(), st.integers(1, 8), SEEDS)
@settings(max_examples=40, deadline=None)
def test_one_class_sizes_are_the_largest_that_fit(problem, num_clients, seed):
    labels, _ = problem
    if num_clients > labels.size:
        return
    sizes = data.one_class_sizes(labels, num_clients)
    check_split(data.one_class_per_client(labels, sizes, seed), sizes, labels.size)
    if (sizes + 1).sum() <= labels.size:
        refusal(data.one_class_per_client, labels, sizes + 1, seed)


# Sizes


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 1000), st.floats(0, 4), SEEDS)
@settings(max_examples=40, deadline=None)
def test_random_sizes_sum_exactly_and_keep_the_minimum(num_clients, minimum, spare, exponent, seed):
    records = num_clients * minimum + spare
    zipf = data.zipf_sizes(records, num_clients, minimum, exponent, seed)
    for sizes in (zipf, data.power_law_sizes(records, num_clients, minimum, seed)):
        assert sizes.shape == (num_clients,)
        assert sizes.sum() == records
        assert sizes.min() >= minimum
    if exponent == 0:
        assert zipf.max() - zipf.min() <= 1


def test_zipf_sizes_fall_as_one_over_rank():
    sizes = np.sort(data.zipf_sizes(100_000, 50, 1, 1.0, 0))[::-1] - 1
    np.testing.assert_allclose(sizes[0] / sizes, np.arange(1, 51), rtol=0.01)
    assert "zipf_exponent" in refusal(data.zipf_sizes, 100, 5, 1, -1.0, 0)


# Held-out records


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.floats(0.01, 0.99), SEEDS)
@settings(max_examples=40, deadline=None)
def test_every_client_keeps_a_record_and_gives_one_away_if_it_can(sizes, fraction, seed):
    clients = np.split(np.random.default_rng(seed).permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    train, test = data.split_each(clients, fraction, seed)
    for rows, kept, given_away in zip(clients, train, test, strict=True):
        assert sorted([*kept, *given_away]) == sorted(rows)
        assert len(kept) >= 1
        assert len(given_away) >= 1 or len(rows) == 1
        assert abs(len(given_away) - fraction * len(rows)) <= 1


def test_cpfed_keeps_2441_of_3052_and_li_et_al_nine_tenths():
    # source: cpfed's sizes; the published code of Synthetic takes int(0.9 n)
    for records, fraction, kept in ((3052, 0.2, 2441), (10, 0.1, 9), (57, 0.1, 51), (30, 0.1, 27), (1, 0.5, 1)):
        train, test = data.split_each([np.arange(records)], fraction, 0)
        assert (len(train[0]), len(test[0])) == (kept, records - kept)


def toy(train=30, test=10):
    x = np.arange(train + test)[:, None].astype(np.float32)
    y = np.arange(train + test) % 3
    ids = np.arange(train + test) % 4
    return Dataset(
        "toy", x[:train], y[:train], x[train:], y[train:], 3, client_ids=ids[:train], test_client_ids=ids[train:]
    )


def test_pooled_and_held_out_records_are_all_there_once_with_their_owners():
    pool = data.pool_records(toy())
    assert (len(pool.x_train), len(pool.x_test)) == (40, 0)
    np.testing.assert_array_equal(pool.client_ids, np.arange(40) % 4)
    clients = data.natural(pool.client_ids)
    held, train, owners = data.hold_out(pool, clients, 0.2, 0)
    store = data.federate(held, train, test_clients=owners)
    assert store.sizes.tolist() == [8] * 4
    assert np.bincount(store.test_clients).tolist() == [2] * 4
    assert sorted([*store.x[store.rows, 0], *store.x_test[:, 0]]) == list(range(40))
    np.testing.assert_array_equal(store.x_test[:, 0] % 4, store.test_clients)
    np.testing.assert_array_equal(store.x_test[:, 0] % 3, store.y_test)


@pytest.mark.parametrize("fraction", [0.0, 1.0, np.nan])
def test_fraction_that_leaves_nobody_anything_is_refused(fraction):
    assert "holdout" in refusal(data.hold_out, toy(), [np.arange(30)], fraction, 0)
    assert "holdout" in refusal(data.hold_out, toy(), [np.array([0]), np.array([1])], 0.5, 0)  # nobody has two


# Clients that are given


def test_natural_parts_tell_each_test_record_its_client_and_drop_small_clients():
    dataset = toy()._replace(
        client_ids=np.repeat(list("cab"), [4, 1, 25]), test_client_ids=np.array(list("ccbbbbabca"))
    )
    whole, clients, owners = data.natural_parts(dataset)
    np.testing.assert_array_equal(whole.x_test, dataset.x_test)
    assert [len(rows) for rows in clients] == [1, 25, 4]
    assert owners.tolist() == [2, 2, 1, 1, 1, 1, 0, 1, 2, 0]
    fewer, clients, owners = data.natural_parts(dataset, min_records=4)
    assert [len(rows) for rows in clients] == [25, 4]
    assert owners.tolist() == [1, 1, 0, 0, 0, 0, 0, 1]
    np.testing.assert_array_equal(fewer.x_test[:, 0], [30, 31, 32, 33, 34, 35, 37, 38])


def test_impossible_natural_parts_are_refused():
    assert "client_ids" in refusal(data.natural_parts, toy()._replace(client_ids=None))
    assert "at most 8" in refusal(data.natural_parts, toy(), 9)
    assert "min_records" in refusal(data.natural_parts, toy(), 0)
    assert "test_client_ids" in refusal(data.natural_parts, toy()._replace(test_client_ids=np.full(10, 9)))


def test_parts_of_a_file_are_read_from_arrays_and_from_text(tmp_path):
    np.save(tmp_path / "ids.npy", np.array([3, 1, 3]))
    (tmp_path / "ids.txt").write_text("ann\nbob \nann\n")
    (tmp_path / "mark.txt").write_text("ann\nbob \nann\n", encoding="utf-8-sig")
    np.save(tmp_path / "words.npy", np.array([b"ann", b"bob", b"ann "]))
    people, numbers = {"ann": [0, 2], "bob": [1]}, {"1": [1], "3": [0, 2]}
    for name, parts in (("ids.npy", numbers), ("ids.txt", people), ("mark.txt", people), ("words.npy", people)):
        assert {client: list(rows) for client, rows in data.file_parts(tmp_path / name, 3).items()} == parts


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("absent.txt", None, "existing file"),
        ("a.txt", b"1\n2\n", "one id for each of the 3 records"),
        ("a.txt", b"1\n\n2\n", "nothing in line 2"),
        ("a.txt", b"\xff\n1\n2\n", "not UTF-8 text"),
        ("a.txt", b"", "shape"),
        ("a.npy", b"no array", "npy array"),
        ("a.npy", np.arange(3.0), "integers or text"),
        ("a.npy", np.arange(4), "one id for each of the 3 records"),
        ("a.npy", np.array([None, 1, 2]), "not Python objects"),
    ],
)
def test_damaged_file_of_ids_is_refused_by_name(tmp_path, name, content, words):
    if isinstance(content, np.ndarray):
        np.save(tmp_path / name, content, allow_pickle=True)
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    message = refusal(data.file_parts, tmp_path / name, 3)
    assert words in message
    assert name in message


@pytest.mark.parametrize("nothing", [None, np.nan, 1])
def test_ids_without_an_order_are_refused_in_one_line(nothing):
    for ids in (["a", nothing, "b"], np.array(["a", nothing, "b"], object)):
        if ids[1] is not nothing:
            continue
        assert "integers or text for every record" in refusal(data.natural, np.array(ids, object))
    assert "integers or text for every record" in refusal(data.natural, np.array([2.0, np.nan, 1.0, 2.0], object))
    assert [list(rows) for rows in data.natural(np.array([2**70, 3, 2**70], object))] == [[1], [0, 2]]


def test_masked_entries_place_no_record():
    masked = np.ma.array([0, 1, 2, 1], mask=[0, 1, 0, 0])
    for draw in (data.natural, lambda v: data.continuous(v, 2, 1.0), lambda v: data.similarity(v, 2, 10.0)):
        assert "1 masked entries" in refusal(draw, masked)
    for options in ({"shares": np.ma.array([0.5, 0.5], mask=[1, 0])}, {"test_clients": np.ma.zeros(10, int)}):
        options.get("test_clients", np.ma.zeros(1))[0] = np.ma.masked
        assert "1 masked entries" in refusal(data.federate, toy(), [range(15), range(15, 30)], **options)


def test_clients_of_tests_shares_and_names_are_refused_rather_than_rounded():
    clients, toys = [range(15), range(15, 30)], toy()
    assert "client numbers" in refusal(data.federate, toys, clients, test_clients=np.full(10, 0.7))
    assert "numbers that sum to 1" in refusal(data.federate, toys, clients, shares=["a", "b"])
    assert "different ones" in refusal(data.federate, toys, {1: clients[0], "1": clients[1]})


# Summaries


def test_summary_counts_and_measures_by_hand():
    x, y = np.zeros((6, 2, 2), np.uint8), np.array([0, 0, 0, 0, 1, 1])
    store = data.federate(Dataset("toy", x, y, x[:2], y[:2], 3), [np.array([0, 1, 2]), np.array([3, 4, 5])])
    np.testing.assert_array_equal(data.label_counts(store), [[3, 0, 0], [1, 2, 0]])
    told = data.summarise(store)
    assert (told.clients, told.records, told.classes, told.test_records) == (2, 6, 3, 2)
    assert told.records_per_client == (3, 3, 3)
    assert told.labels_per_client == (1, 1.5, 2)
    assert (told.record_shape, told.stored_as, told.clients_with_test_records) == ((2, 2), "uint8", None)
    assert told.label_distance == pytest.approx(1 / 3)  # pooled (2/3, 1/3): both clients are 1/3 away
    alike = data.federate(Dataset("toy", x, y, x[:2], y[:2], 3), [np.array([0, 1, 4]), np.array([2, 3, 5])])
    assert data.summarise(alike).label_distance == 0


@pytest.mark.parametrize(
    ("sizes", "median"),
    [((2, 3, 7, 12), "5"), ((1, 2), "1.5"), ((3, 4, 5), "4"), ((1_234, 1_235), "1,234.5")],
)
def test_the_median_client_has_one_number_of_records_wherever_it_is_shown(sizes, median):
    y = np.zeros(sum(sizes), np.int64)
    clients = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    store = data.federate(
        Dataset("toy", np.zeros((len(y), 1), np.uint8), y, np.zeros((1, 1), np.uint8), y[:1], 1), clients
    )
    assert f"records, median {median}\n" in str(store) + "\n"
    (row,) = (line for line in str(data.summarise(store)).splitlines() if "records per client" in line)
    assert row.split()[-2] == median


# Data sets in the place of labels, numbers of clients in the place of sizes


@pytest.mark.parametrize("draw", PARTITIONS, ids=lambda draw: draw.__name__)
def test_a_data_set_and_a_number_of_clients_are_enough(draw):
    whole, more = data.load("digits"), PARTITIONS[draw]
    clients = draw(whole, 10, *more)
    assert len(clients) == 10
    for rows, same in zip(clients, draw(whole.y_train.tolist(), 10, *more, seed=0), strict=True):
        np.testing.assert_array_equal(rows, same)
    assert len(np.unique(np.concatenate(clients))) == sum(map(len, clients)) <= len(whole.y_train)


def test_a_data_set_stands_for_the_ids_of_its_clients():
    whole = data.load("digits")._replace(client_ids=np.arange(1437) % 7)
    assert [rows.tolist() for rows in data.natural(whole)] == [list(range(i, 1437, 7)) for i in range(7)]
    assert len(data.grouped_natural(whole, 2)) == 4
