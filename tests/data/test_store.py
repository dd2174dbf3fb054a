"""The federated store holds the records of the data set, once."""

import jax
import numpy as np
import pytest

from fedjax_dp import data
from fedjax_dp.data import Dataset
from fedjax_dp.data.records import RecordTable, divide, make_dataset


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
    assert data.federate(dataset, ROWS, shares=[0.25, 0.25, 0.5]).shares.tolist() == [0.25, 0.25, 0.5]
    assert store.x is dataset.x_train
    np.testing.assert_array_equal(store.y, dataset.y_train)
    np.testing.assert_array_equal(store.x_test, dataset.x_test)
    np.testing.assert_array_equal(store.y_test, dataset.y_test)
    assert (store.num_clients, store.record_shape, store.classes, store.name) == (3, (4, 3), 3, "toy")
    assert (store.x.dtype, store.x_test.dtype, store.y.dtype) == (np.uint8, np.uint8, np.int32)


@pytest.mark.parametrize("kind", [int, str])
def test_natural_clients_are_tested_on_their_own_records(kind):
    ids, tests = np.array([5, 3, 5, 3, 9, 9, 9, 5, 5, 3, 3, 9]).astype(kind), np.array([9, 3, 3, 5, 9]).astype(kind)
    dataset = image_set()._replace(client_ids=ids, test_client_ids=tests)
    clients = data.natural(dataset)  # 3, 5, 9
    assert data.federate(dataset, clients).test_clients.tolist() == [2, 0, 0, 1, 2]
    assert data.federate(dataset, clients[::-1]).test_clients.tolist() == [0, 2, 2, 1, 0]
    assert data.federate(dataset, [rows[:1] for rows in clients]).test_clients.tolist() == [2, 0, 0, 1, 2]
    halves = [half for rows in clients for half in np.array_split(rows, 2)]
    for others in (ROWS, clients[:2], halves):  # several ids, none of a test record, one id twice
        assert data.federate(dataset, others).test_clients is None
    assert data.federate(dataset._replace(test_client_ids=None), clients).test_clients is None
    assert data.federate(dataset, halves).holds_tests  # as those of a hospital are its wards'
    assert not data.federate(dataset, ROWS).holds_tests


def test_tests_that_a_loader_drew_are_the_clients_whom_its_user_names():
    """As their other records: a dictionary names clients, while lists may be dealt anew."""
    x, y = np.arange(60.0)[:, None], np.arange(60) % 2
    read = RecordTable(z=x, y=y)  # whose features a reader makes after it has drawn
    drawn = make_dataset("toy", "", RecordTable(x=x, y=y), None)
    apart = make_dataset("toy", "", RecordTable(x=x, y=y), RecordTable(x=x, y=y))
    text = make_dataset("toy", "", *(part.with_columns(x=part["z"], y=part["y"]) for part in divide("", read, None)))
    parts = data.natural(np.arange(len(drawn.x_train)) % 3)
    for dataset, own in ((drawn, True), (text, True), (apart, False)):
        assert data.federate(dataset, dict(zip("abc", parts))).holds_tests is own
        assert not data.federate(dataset, parts).holds_tests


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
