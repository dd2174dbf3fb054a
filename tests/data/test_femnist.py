"""FEMNIST digits with their writers."""

import numpy as np
from helpers import refusal

from fedjax_dp import data


def test_femnist_digits_keep_a_tenth_of_every_client(real):
    got = data.load("femnist_digits", real("femnist_glin20", "femnist_digits_12clients.npz"))
    train, test = np.bincount(got.client_ids), np.bincount(got.test_client_ids)
    assert (len(train), train.sum() + test.sum()) == (12, 5_997)
    assert (np.floor(0.9 * (train + test)) == train).all()
    assert (got.x_train.shape[1:], got.classes) == ((28, 28), 10)
    seen = (got.x_train.astype(float) - got.shift) * got.scale
    assert (seen.min(), seen.max()) == (0, 1)
    assert np.median(seen) == 0  # paper


def test_damaged_femnist_is_refused_by_name(folder):
    (folder / "femnist_digits").mkdir()
    path = folder / "femnist_digits" / "femnist_digits_12clients.npz"
    good = {"x": np.zeros((4, 2, 2), np.uint8), "y": np.arange(4), "client": np.array([0, 0, 1, 1])}
    np.savez(path, **good)
    assert data.load("femnist_digits", folder).client_ids.tolist() == [0, 1]
    for change in ({"y": np.full(4, 10)}, {"client": np.arange(3)}, {"x": np.zeros((4, 2, 2))}):
        np.savez(path, **good | change)
        assert "femnist_digits_12clients.npz" in refusal(data.load, "femnist_digits", folder)
