"""FEMNIST digits: images with natural clients."""

import os

import numpy as np

from fedjax_dp.data.files import damage_error, read_labelled, require_file, search_folders
from fedjax_dp.data.partition import natural
from fedjax_dp.data.records import RecordTable, make_dataset, split_rows
from fedjax_dp.data.store import Dataset

FILE = "femnist_digits_12clients.npz"
TEST_FRACTION = 0.1  # of every client's records


def femnist_digits(name: str, data_dir: str | os.PathLike[str] | None) -> Dataset:
    """Handwritten digits `(28, 28)` of 12 clients, a subset; a tenth of every client's records is the test set.

    Stored as LEAF has them, dark on white, and seen as MNIST's: ink is 1 and paper 0.
    """
    folders = search_folders([name, "femnist_glin20"], data_dir)
    what = f"{FILE} with arrays x, y and client"
    path = require_file(name, folders, (FILE,), what, "digits of FEMNIST by client")
    arrays = read_labelled(path, {"x": "y"}, 10, None, np.uint8, "client")
    x, y, owners = (arrays[key] for key in ("x", "y", "client"))
    if owners.shape != y.shape:
        raise damage_error(path, f"client {owners.shape}", f"client {y.shape}")
    parts = RecordTable(owners, x=x, y=y).split(split_rows(natural(owners), TEST_FRACTION, seed=0))
    return make_dataset(name, "", *parts, classes=10, scale=-1 / 255, shift=255)
