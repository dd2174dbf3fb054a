"""npz files of arrays: read exactly, or refused by name."""

import gc

import numpy as np
import pytest
from helpers import refusal

from fedjax_dp import data


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


X = arrays_of()["x_train"]


@pytest.mark.parametrize(
    ("array", "value"),
    [
        *[(key, None) for key in arrays_of()],
        ("x_train", np.zeros(4)),
        ("x_train", X * 1j),
        ("y_train", np.array(1)),
        ("client_ids", np.arange(4)[:, None]),
        ("x_train", X.astype(object)),
        ("client_ids", np.array(["a", None, 1, 2])),
        ("extra", np.zeros(1, [(f"field {i}", "f4") for i in range(900)])),  # NumPy's own message spans lines
    ],
)
def test_npz_with_a_wrong_array_is_refused(tmp_path, array, value):
    np.savez(tmp_path / "a.npz", **arrays_of(**{array: value}))
    told = refusal(data.load, f"npz:{tmp_path / 'a.npz'}")
    assert "a.npz" in told
    assert "pickle" not in told  # nobody is advised to load them


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
        told = refusal(data.load, f"npz:{path}")
        assert str(path) in told
        assert "pickle" not in told
    with open(path, "wb") as file:
        np.save(file, X)  # a single array
    assert str(path) in refusal(data.load, f"npz:{path}")
    gc.collect()  # a file left open is an error here
