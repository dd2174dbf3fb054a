"""Data: partitions, the federated store, and the loaders of every file format."""

import functools
import gc
import gzip
import struct

import jax
import numpy as np
import pooch
import pytest
from helpers import SEEDS, check_split, labels_and_sizes, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_dp import data, errors
from fedjax_dp.data import Dataset

LABELS = np.arange(600) % 10
IDX = {
    "mnist": ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"],
    "emnist_letters": [
        f"emnist-letters-{part}-ubyte"
        for part in ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
    ],
}


# Partitions


@given(labels_and_sizes(), SEEDS)
@settings(max_examples=25, deadline=None)
def test_iid_gives_each_client_its_size_and_each_record_once(problem, seed):
    labels, sizes = problem
    check_split(data.iid(labels, sizes, seed), sizes, labels.size)


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


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 1000), SEEDS)
@settings(max_examples=40, deadline=None)
def test_power_law_sizes_sum_exactly_and_keep_the_minimum(num_clients, minimum, spare, seed):
    records = num_clients * minimum + spare
    sizes = data.power_law_sizes(records, num_clients, minimum, seed)
    assert sizes.shape == (num_clients,)
    assert sizes.sum() == records
    assert sizes.min() >= minimum


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


@pytest.mark.parametrize(
    "split",
    [
        lambda seed: data.iid(LABELS, np.full(20, 30), seed),
        lambda seed: data.labels_per_client(LABELS, np.full(20, 30), 2, seed),
        lambda seed: [data.power_law_sizes(600, 20, 5, seed)],
    ],
)
def test_seed_alone_decides_the_split(split):
    first, again, other = (np.concatenate(split(seed)) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


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


# The store


def image_set(records=12):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (records, 4, 3), np.uint8), rng.integers(0, 3, records)
    return Dataset("toy", x, y, x[:5], y[:5], classes=3, scale=1 / 255, shift=2.5)


ROWS = [np.array([7, 2, 9]), np.array([0]), np.array([4, 11, 1, 3])]


def test_rows_are_contiguous_by_client_and_the_records_are_shared():
    dataset = image_set()
    store = data.federate(dataset, ROWS)
    assert store.sizes.tolist() == [3, 1, 4]
    assert store.offsets.tolist() == [0, 3, 4]
    np.testing.assert_allclose(store.shares, [3 / 8, 1 / 8, 4 / 8], rtol=1e-7)
    np.testing.assert_array_equal(store.rows, np.concatenate(ROWS))
    assert store.x is dataset.x_train
    np.testing.assert_array_equal(store.y, dataset.y_train)
    np.testing.assert_array_equal(store.x_test, dataset.x_test)
    np.testing.assert_array_equal(store.y_test, dataset.y_test)
    assert (store.num_clients, store.record_shape, store.classes, store.name) == (3, (4, 3), 3, "toy")
    assert (store.x.dtype, store.x_test.dtype, store.y.dtype) == (np.uint8, np.uint8, np.int32)


def test_shares_can_be_given():
    assert data.federate(image_set(), ROWS, shares=[0.25, 0.25, 0.5]).shares.tolist() == [0.25, 0.25, 0.5]


def test_gather_returns_the_clients_own_records_normalised():
    dataset = image_set()
    store = data.federate(dataset, ROWS)
    gather = jax.jit(lambda store, i, positions: store.gather(store.client(i), positions))
    for i, rows in enumerate(ROWS):
        x, y = gather(store, i, np.arange(len(rows))[::-1])
        seen = (dataset.x_train[rows[::-1]].astype(np.float32) - np.float32(2.5)) * np.float32(1 / 255)
        assert x.dtype == np.float32
        np.testing.assert_array_equal(x, seen)
        np.testing.assert_array_equal(y, dataset.y_train[rows[::-1]])


@pytest.mark.parametrize(
    "clients",
    [
        [[0, 1], [1, 2]],  # shared by two clients
        [[0, 0]],
        [[0, 12]],
        [[-1]],
        [[0], []],
        [],
    ],
)
def test_repeated_or_missing_records_are_refused(clients):
    refusal(data.federate, image_set(), [np.array(rows, int) for rows in clients])


# Loaders


def test_digits_are_complete_and_scaled_to_one():
    digits = data.load("digits")
    assert (digits.x_train.shape, digits.x_test.shape) == ((1437, 8, 8), (360, 8, 8))
    assert (digits.y_train.shape, digits.y_test.shape) == ((1437,), (360,))
    both = np.concatenate([digits.y_train, digits.y_test])
    # source: UCI, optical recognition of handwritten digits, optdigits.names, class distribution of the 1,797
    assert np.bincount(both).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert set(digits.y_train) == set(digits.y_test) == set(range(digits.classes)) == set(range(10))
    seen = (digits.x_train.astype(float) - digits.shift) * digits.scale
    assert (seen.min(), seen.max()) == (0, 1)


def test_unknown_data_set_is_refused_with_the_nearest_name():
    assert "did you mean mnist?" in refusal(data.load, "mnits")


def idx_bytes(array):
    return b"\0\0\x08" + struct.pack(f">B{array.ndim}I", array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """A folder for data, an empty cache, and no network."""

    def no_network(*arguments, **options):
        raise OSError("no route to host\nsecond line")

    monkeypatch.setattr(pooch, "retrieve", no_network)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "cache")
    monkeypatch.delenv("FEDJAX_DP_DATA", raising=False)
    return tmp_path


def write_idx(folder, name="mnist", suffix=".gz", first_label=0):
    """Four small files; returns the arrays in them."""
    rng = np.random.default_rng(1)
    (folder / name).mkdir(parents=True)
    arrays = []
    for records in (9, 4):
        labels = (np.arange(records, dtype=np.uint8) % 3) + np.uint8(first_label)
        arrays += [rng.integers(0, 256, (records, 3, 2), np.uint8), labels]
    for file, array in zip(IDX[name], arrays, strict=True):
        raw = idx_bytes(array)
        (folder / name / (file + suffix)).write_bytes(gzip.compress(raw) if suffix else raw)
    return arrays


@pytest.mark.parametrize("suffix", [".gz", ""])
@pytest.mark.parametrize("place", ["option", "variable", "cache"])
def test_idx_files_are_read_exactly_from_every_place(offline, monkeypatch, suffix, place):
    arrays = write_idx(offline / place, suffix=suffix)
    if place == "variable":
        monkeypatch.setenv("FEDJAX_DP_DATA", str(offline / place))
    got = data.load("mnist", offline / place if place == "option" else None)
    for array, expected in zip((got.x_train, got.y_train, got.x_test, got.y_test), arrays, strict=True):
        np.testing.assert_array_equal(array, expected)
    assert (got.name, got.classes, got.scale, got.shift) == ("mnist", 3, 1 / 255, 0)
    assert (got.x_train.dtype, got.y_train.dtype) == (np.uint8, np.int32)


def test_letters_start_at_zero_and_are_transposed_back(offline):
    x_train, y_train, x_test, y_test = write_idx(offline, "emnist_letters", first_label=1)
    got = data.load("emnist_letters", offline)
    np.testing.assert_array_equal(got.x_train, x_train.swapaxes(1, 2))
    np.testing.assert_array_equal(got.x_test, x_test.swapaxes(1, 2))
    np.testing.assert_array_equal(got.y_train, y_train - 1)
    np.testing.assert_array_equal(got.y_test, y_test - 1)
    assert (y_train.min(), got.classes) == (1, 3)


IMAGES = idx_bytes(np.zeros((9, 3, 2), np.uint8))
zipped = functools.partial(gzip.compress, mtime=0)  # the same bytes at any time, since they are part of a test's name


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (0, zipped(IMAGES)[:-9]),  # ends early
        (0, zipped(IMAGES)[:-8] + b"\0" * 8),  # wrong checksum
        (0, zipped(IMAGES)[:10] + b"\xff" * 20),  # not deflate
        (0, b"<html>not found</html>"),
        (0, b""),
        (0, zipped(b"")),
        (0, zipped(b"\0\0\x0d" + IMAGES[3:])),  # floats
        (0, zipped(b"\1" + IMAGES[1:])),
        (0, zipped(IMAGES[:12])),  # inside the header
        (0, zipped(IMAGES[:-1])),
        (0, zipped(IMAGES + b"\0")),
        (0, zipped(idx_bytes(np.zeros((0, 3, 2), np.uint8)))),
        (1, zipped(idx_bytes(np.zeros(8, np.uint8)))),  # one label too few
        (3, zipped(idx_bytes(np.zeros(5, np.uint8)))),
        (1, zipped(IMAGES)),  # images where labels belong
        (3, zipped(idx_bytes(np.array([0, 1, 2, 3], np.uint8)))),  # a class that training does not have
    ],
)
def test_damaged_idx_file_is_refused_by_name(offline, file, content):
    write_idx(offline)
    path = offline / "mnist" / (IDX["mnist"][file] + ".gz")
    path.write_bytes(content)
    assert str(path) in refusal(data.load, "mnist", offline)


def test_letter_below_the_first_is_refused_with_the_label_in_the_file(offline):
    write_idx(offline, "emnist_letters", first_label=0)
    assert "must be labels 1 to 2, got labels 0 to 2" in refusal(data.load, "emnist_letters", offline)


@pytest.mark.parametrize("name", ["mnist", "emnist_letters"])
@pytest.mark.parametrize("place", ["data", "cache"])
def test_missing_file_without_network_names_a_place_where_it_would_be_found(offline, name, place):
    folder = None if place == "cache" else offline / place
    write_idx(offline / place, name, first_label=1)
    path = offline / place / name / (IDX[name][2] + ".gz")
    content = path.read_bytes()
    path.unlink()
    message = refusal(data.load, name, folder)
    assert f"put {path.name} into {path.parent}" in message
    assert "no route to host" in message
    path.write_bytes(content)
    data.load(name, folder)


def test_missing_data_folder_is_refused(offline):
    assert "data_dir" in refusal(data.load, "mnist", offline / "nowhere")


def arrays_of(**changes):
    """Good arrays for an npz file, with changes; None leaves one out."""
    x = np.linspace(-1, 1, 24).reshape(6, 2, 2)
    arrays = {"x_train": x[:4], "y_train": np.array([0, 2, 1, 0]), "x_test": x[4:], "y_test": np.array([1, 3])}
    return {key: array for key, array in {**arrays, **changes}.items() if array is not None}


@pytest.mark.parametrize("ids", [None, np.array([5, 5, 2, 9]), np.array(["b", "b", "a", "c"])])
def test_npz_arrays_are_read_exactly(tmp_path, ids):
    arrays = arrays_of(client_ids=ids)
    np.savez(tmp_path / "mine.npz", **arrays)
    got = data.load(f"npz:{tmp_path / 'mine.npz'}")
    for key, array in arrays.items():
        np.testing.assert_array_equal(getattr(got, key), array)
    assert (got.name, got.classes, got.scale, got.shift) == ("mine", 4, 1, 0)  # classes: those of the test set too
    if ids is None:
        assert got.client_ids is None
    else:
        assert [rows.tolist() for rows in data.natural(got.client_ids)] == [[2], [0, 1], [3]]


def test_npz_bytes_are_scaled_to_one(tmp_path):
    np.savez(tmp_path / "a.npz", **arrays_of(x_train=np.zeros((4, 3), np.uint8), x_test=np.zeros((2, 3), np.uint8)))
    got = data.load(f"npz:{tmp_path / 'a.npz'}")
    assert (got.x_train.dtype, got.scale) == (np.uint8, 1 / 255)


X, Y = arrays_of()["x_train"], arrays_of()["y_train"]


@pytest.mark.parametrize(
    ("array", "value"),
    [
        *[(key, None) for key in arrays_of()],
        ("x_train", X[:3]),
        ("x_train", np.zeros(4)),
        ("x_train", X[..., 0]),  # not shaped like x_test
        ("x_train", np.where(X > 0, np.nan, X)),
        ("x_test", np.full((2, 2, 2), np.inf)),
        ("x_test", np.zeros((2, 2, 2), np.uint8)),  # bytes beside floats: one scale cannot serve both
        ("x_train", X.astype(str)),
        ("x_train", X * 1j),
        ("y_train", Y[:3]),
        ("y_train", Y[:, None]),
        ("y_train", np.array(1)),
        ("y_train", Y.astype(float)),
        ("y_train", Y == 0),
        ("y_train", Y.astype(str)),
        ("y_train", Y - 1),
        ("y_test", np.array([1.0, np.nan])),
        ("client_ids", np.arange(3)),
        ("client_ids", np.arange(4)[:, None]),
        ("x_train", X.astype(object)),
        ("client_ids", np.array(["a", None, 1, 2])),
        ("extra", np.zeros(1, [(f"field {i}", "f4") for i in range(900)])),  # NumPy's own message spans lines
    ],
)
def test_npz_with_a_wrong_array_is_refused(tmp_path, array, value):
    np.savez(tmp_path / "a.npz", **arrays_of(**{array: value}))
    assert "a.npz" in refusal(data.load, f"npz:{tmp_path / 'a.npz'}")


def test_npz_without_records_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", **arrays_of(x_test=np.zeros((0, 2, 2)), y_test=np.zeros(0, int)))
    assert "x_test" in refusal(data.load, f"npz:{tmp_path / 'a.npz'}")


def test_file_that_is_no_npz_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    assert str(path) in refusal(data.load, f"npz:{path}")  # not there
    refusal(data.load, "npz")
    np.savez(path, **arrays_of())
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[whole.index(X.tobytes())] ^= 1
    for content in (b"", b"text", b"PK\x03\x04", whole[:-30], whole[: len(whole) // 2], bytes(damaged)):
        path.write_bytes(content)
        assert str(path) in refusal(data.load, f"npz:{path}")
    with open(path, "wb") as file:
        np.save(file, X)  # a single array
    assert str(path) in refusal(data.load, f"npz:{path}")
    gc.collect()  # a file left open is an error here


# The real thing


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
