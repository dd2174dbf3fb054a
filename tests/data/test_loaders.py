"""Names of data sets: what is missing, misnamed or shared is told in one line."""

import numpy as np
import pytest
from helpers import refusal

from fedjax_dp import data
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
