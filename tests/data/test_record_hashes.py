"""Two sets of records share hashes if they share records, whatever was done to order, type, scale, shape or labels."""

import numpy as np
import pytest
from helpers import ragged_data

import fedjax_dp as fdp
from fedjax_dp.data import record_hashes
from fedjax_dp.data.record_hashes import KEPT, hashes_of, read, written


def pictures(records=500, seed=0, shape=(8, 8)):
    return np.random.default_rng(seed).integers(0, 256, (records, *shape)).astype(np.uint8)


CHANGES = {
    "order": lambda x: x[::-1],
    "type": lambda x: x.astype(np.float64),
    "scale": lambda x: (x / np.float32(255) - np.float32(0.13)) / np.float32(0.31),
    "shape": lambda x: x.reshape(len(x), -1),
    "layout": np.asfortranarray,
    "negative": lambda x: 255 - x,
    "half": lambda x: x[: len(x) // 2],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("shape", [(4,), (8, 8), (33, 40)])
def test_changes_that_leave_a_record_the_same_leave_its_hash(change, shape):
    x = pictures(200, shape=shape)
    changed = CHANGES[change](x)
    both = np.isin(record_hashes.record_hashes(changed), record_hashes.record_hashes(x))
    assert both.mean() > 0.9


@pytest.mark.parametrize("features", [1, 2, 3, 4, 6, 64, 1000])
def test_other_records_share_no_hash(features):
    first, second = np.random.default_rng(0).normal(size=(2, 2000, features)).astype(np.float32)
    hashes = record_hashes.record_hashes(first)
    assert np.isin(hashes, record_hashes.record_hashes(second)).sum() <= (1 if features > 1 else 200)
    assert np.array_equal(hashes, record_hashes.record_hashes(first.astype(float)))


def test_records_whose_features_are_all_alike_tell_nothing():
    x = pictures(6)
    x[:3] = 7
    assert (record_hashes.record_hashes(x) == record_hashes.EMPTY).tolist() == [True] * 3 + [False] * 3


def test_the_sample_of_a_set_finds_a_thousandth_that_another_shares():
    """Missed with probability (1 - f)^KEPT: 1.7% for a thousandth; here of 20 draws of sets at most 4 (p < 1e-5)."""
    rng, missed = np.random.default_rng(0), 0
    for _ in range(20):
        own = np.unique(rng.integers(1, 2**63, 100_000, dtype=np.uint64))
        shared = rng.choice(own, 100, replace=False)
        missed += record_hashes.shared(read(written(own)), shared) == 0
    assert missed <= 4
    assert len(read(written(own))) == KEPT


def test_a_sample_is_no_longer_for_a_million_records():
    assert len(written(np.arange(1, 1_000_000, dtype=np.uint64))) < 50_000


def test_partitions_and_their_order_do_not_matter_and_held_out_records_count():
    dataset = fdp.load("digits")
    some = fdp.data.iid(dataset.y_train, fdp.data.equal_sizes(1430, 10), seed=0)
    whole = hashes_of(fdp.federate(dataset, some))
    assert np.array_equal(whole, hashes_of(fdp.federate(dataset, some[::-1])))
    assert np.array_equal(whole, hashes_of(fdp.federate(dataset, [np.concatenate(some)])))
    tested = fdp.federate(dataset, some, test_clients=np.arange(len(dataset.x_test)) % 10)
    assert len(hashes_of(tested)) == len(whole) + len(dataset.x_test)


def test_stores_note_the_hashes_of_their_records(tmp_path):
    data = ragged_data((5, 8, 3, 6), (6,), 4)
    fdp.data.save_store(data, tmp_path / "store")
    assert np.array_equal(fdp.data.noted_hashes(tmp_path / "store"), hashes_of(data)[:KEPT])
