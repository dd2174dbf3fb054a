"""Digits, and images in idx files from every place where they are looked for."""

import functools
import gzip
import struct

import numpy as np
import pooch
import pytest
from helpers import refusal

from fedjax_dp import data

IDX = {
    "mnist": ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"],
    "emnist_letters": [
        f"emnist-letters-{part}-ubyte"
        for part in ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
    ],
}


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


def test_code_for_a_data_set_is_refused_with_the_way_to_bring_its_arrays():
    for name in ("reader.py", "reader.py:read"):
        assert "np.savez saves the arrays of your own reader, npz:PATH reads them" in refusal(data.load, name)


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


@pytest.mark.parametrize("place", ["own", "emnist", "emnist/gzip"])
@pytest.mark.parametrize("split", ["byclass", "balanced", "digits"])
def test_emnist_splits_are_read_from_their_own_or_the_archives_folder(folder, split, place):
    where = folder / (f"emnist_{split}" if place == "own" else place)
    where.mkdir(parents=True)
    x, y = np.arange(24, dtype=np.uint8).reshape(4, 2, 3), np.array([0, 2, 1, 0], np.uint8)
    for side in ("train", "test"):
        for part, array in (("images-idx3", x), ("labels-idx1", y)):
            (where / f"emnist-{split}-{side}-{part}-ubyte").write_bytes(idx_bytes(array))
    got = data.load(f"emnist_{split}", folder)
    np.testing.assert_array_equal(got.x_train, x.transpose(0, 2, 1))
    np.testing.assert_array_equal(got.y_test, y)
    assert got.classes == 3


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
