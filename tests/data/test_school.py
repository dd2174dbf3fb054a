"""School from its MATLAB file: who is tested, on which scale, and what is refused."""

import numpy as np
import pytest
from helpers import refusal
from scipy.io import savemat

from fedjax_dp import data
from fedjax_dp.data.school import FEATURES


def cells(*arrays):
    """A cell array of one row."""
    row = np.empty((1, len(arrays)), object)
    row[0] = arrays
    return row


def write(folder, sizes=(10, 4), **changes):
    (folder / "school").mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    features = [np.concatenate([np.full((n, 1), 7), rng.integers(0, 9, (n, FEATURES - 1))], 1) for n in sizes]
    scores = [rng.integers(1, 71, (n, 1)) for n in sizes]
    savemat(folder / "school" / "school.mat", {"X": cells(*features), "Y": cells(*scores)} | changes)
    return features, scores


def test_every_school_is_split_and_standardised_by_its_training_records(folder):
    _, scores = write(folder)
    got = data.load("school", folder, seed=3)
    assert (np.bincount(got.client_ids).tolist(), np.bincount(got.test_client_ids).tolist()) == ([7, 2], [3, 2])
    for place in (0, 1):
        mine = got.x_train[got.client_ids == place]
        np.testing.assert_allclose(mine.mean(0), 0, atol=1e-6)
        assert not mine[:, 0].any()  # no spread
        np.testing.assert_allclose(mine.std(0)[mine.any(0)], 1, rtol=1e-5)
        both = np.concatenate([got.y_train[got.client_ids == place], got.y_test[got.test_client_ids == place]])
        np.testing.assert_allclose(np.sort(1 + 69 * both.ravel()), np.sort(scores[place].ravel()), rtol=1e-6)
    assert got.learnt
    assert got.y_train.tolist() != data.load("school", folder, seed=4).y_train.tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {"X": np.zeros((3, FEATURES))},
        {"X": cells(np.zeros((10, FEATURES)))},
        {"X": cells(np.zeros((10, 27)), np.zeros((4, FEATURES)))},
        {"X": cells(np.full((10, FEATURES), np.nan), np.zeros((4, FEATURES)))},
        {"Y": cells(np.full((10, 1), 71), np.ones((4, 1)))},
        {"Y": cells(np.ones((9, 1)), np.ones((4, 1)))},
    ],
)
def test_a_damaged_file_is_refused_by_name(folder, changes):
    write(folder, **changes)
    assert "school.mat" in refusal(data.load, "school", folder)


def test_the_real_file_has_all_schools(real):
    got = data.load("school", real("school", "school.mat"))
    sizes = np.bincount(got.client_ids)
    assert (len(sizes), sizes.min(), sizes.max(), len(got.y_train) + len(got.y_test)) == (139, 15, 175, 15362)
    assert np.abs(got.y_train - 0.5).max() <= 0.5
