"""SVHN from MATLAB files, and its part."""

import numpy as np
from helpers import refusal
from scipy.io import savemat

from fedjax_dp import data


def write_svhn(folder, labels=(10, 1, 9), **changes):
    (folder / "svhn").mkdir(exist_ok=True)
    x = np.random.default_rng(0).integers(0, 256, (32, 32, 3, len(labels)), np.uint8)
    for side in ("train", "test"):
        savemat(folder / "svhn" / f"{side}_32x32.mat", {"X": x, "y": np.array(labels, np.uint8)[:, None], **changes})
    return x


def test_svhn_matrices_are_turned_and_ten_means_zero(folder):
    x = write_svhn(folder)
    got = data.load("svhn", folder)
    np.testing.assert_array_equal(got.x_train, np.moveaxis(x, 3, 0))
    assert (got.y_train.tolist(), got.y_test.tolist(), got.name, got.classes) == ([0, 1, 9], [0, 1, 9], "svhn", 10)


def test_damaged_svhn_is_refused_by_name(folder):
    write_svhn(folder, labels=(10, 1, 11))
    assert "train_32x32.mat: y must be labels 1 to 10, got labels 1 to 11" in refusal(data.load, "svhn", folder)
    write_svhn(folder, labels=(0, 1, 9))
    assert "labels 1 to 10" in refusal(data.load, "svhn", folder)
    write_svhn(folder, X=np.zeros((32, 32, 3)))
    assert "train_32x32.mat" in refusal(data.load, "svhn", folder)
    path = folder / "svhn" / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:300])
    assert str(path) in refusal(data.load, "svhn", folder)
    path.unlink()
    assert "one is there, one is not" in refusal(data.load, "svhn", folder)


def test_real_part_of_svhn_says_that_it_is_one(real):
    got = data.load("svhn", real("svhn", "svhn_train_first1083.npz"))
    assert (got.name, len(got.y_train), len(got.y_test)) == ("svhn (first 1083)", 883, 200)
