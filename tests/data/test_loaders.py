"""Loaders: what is written in a data set's own format is what is read, and damage is refused in one line."""

import gzip
import pathlib
import struct
import tempfile

import numpy as np
import pytest
from helpers import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_dp import data, errors
from fedjax_dp.data import names


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("adult", "adult.data"),
        ("adult_full", "adult.test"),
        ("cifar10", "cifar-10-python.tar.gz"),
        ("cifar10_pca60", "cifar10_pca60.npz"),
        ("svhn", "train_32x32.mat"),
        ("school", "school.mat"),
        ("sent140", "sent140_subset.csv"),
        ("femnist_digits", "femnist_digits_12clients.npz"),
    ],
)
def test_missing_data_set_says_which_file_belongs_where(folder, name, file):
    message = refusal(data.load, name, folder)
    assert f"dataset {name} must be on disk" in message
    assert f"put {file}" in message or f"and {file}" in message or f"or {file}" in message
    assert f"into {folder / name.removesuffix('_full')}" in message


@pytest.mark.parametrize("name", ["npz", "synthetic", "tfds", "mnist:x", "adult:x"])
def test_name_with_too_little_or_too_much_is_refused(name):
    assert "dataset must be" in refusal(data.load, name) or name == "npz"


@pytest.mark.parametrize("place", ["own", "emnist", "emnist/gzip"])
@pytest.mark.parametrize("split", ["byclass", "balanced", "digits"])
def test_emnist_splits_are_read_from_their_own_or_the_archives_folder(folder, split, place):
    where = folder / (f"emnist_{split}" if place == "own" else place)
    where.mkdir(parents=True)
    x, y = np.arange(24, dtype=np.uint8).reshape(4, 2, 3), np.array([0, 2, 1, 0], np.uint8)
    for side in ("train", "test"):
        for part, array in (("images-idx3", x), ("labels-idx1", y)):
            head = b"\0\0\x08" + struct.pack(f">B{array.ndim}I", array.ndim, *array.shape)
            (where / f"emnist-{split}-{side}-{part}-ubyte").write_bytes(head + array.tobytes())
    got = data.load(f"emnist_{split}", folder)
    np.testing.assert_array_equal(got.x_train, x.transpose(0, 2, 1))
    np.testing.assert_array_equal(got.y_test, y)
    assert got.classes == 3


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=20, deadline=None)
def test_idx_files_come_back_byte_by_byte(records, height, width, seed, packed):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 256, (records, height, width), np.uint8), rng.integers(0, 10, records).astype(np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "mnist").mkdir()
        for side in ("train", "t10k"):
            for part, array in (("images-idx3", x), ("labels-idx1", y)):
                raw = b"\0\0\x08" + struct.pack(f">B{array.ndim}I", array.ndim, *array.shape) + array.tobytes()
                path = pathlib.Path(folder) / "mnist" / f"{side}-{part}-ubyte{'.gz' if packed else ''}"
                path.write_bytes(gzip.compress(raw) if packed else raw)
        got = data.load("mnist", folder)
    for read, written in zip((got.x_train, got.y_train, got.x_test, got.y_test), (x, y, x, y), strict=True):
        np.testing.assert_array_equal(read, written)


def test_every_refusal_of_a_loader_is_a_value_error():
    assert issubclass(errors.ConfigurationError, ValueError)


def test_the_name_of_a_file_makes_no_shipped_data_set(tmp_path):
    """By such a name alone a start on the same records would be of others."""
    x, y = np.zeros((6, 4), np.float32), np.arange(6) % 2
    for name, called in (("mnist", "npz:mnist"), ("mine", "mine")):
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        found = data.load(f"npz:{tmp_path / name}.npz").name
        assert found == called
        assert not names.share_no_records(found, "cifar10")
    assert names.share_no_records(data.load("digits").name, "cifar10")


def test_every_shipped_data_set_has_a_source():
    shipped = {name for name, reader in data.DATASETS.items() if reader.suffix is None}
    assert shipped == set(names.SOURCES)
