"""FEMNIST digits: images with natural clients."""

import os

import numpy as np

from fedjax_dp.data.checks import check_records
from fedjax_dp.data.files import check_labels, damaged, first_file, missing, places, read_npz
from fedjax_dp.data.holdout import split_each
from fedjax_dp.data.partition import natural
from fedjax_dp.data.store import Dataset

FILE = "femnist_digits_12clients.npz"
TEST_FRACTION = 0.1  # of every client's records


def femnist_digits(name: str, data_dir: str | os.PathLike[str] | None) -> Dataset:
    """Handwritten digits `(28, 28)` of 12 clients, a subset; a tenth of every client's records is the test set.

    Stored as LEAF has them, dark on white, and seen as MNIST's: ink is 1 and paper 0.
    """
    folders = places([name, "femnist_glin20"], data_dir)
    path = first_file(folders, (FILE,))
    if path is None:
        raise missing(name, folders[0], f"{FILE} with arrays x, y and client", "digits of FEMNIST by client")
    arrays = read_npz(path)
    if absent := [key for key in ("x", "y", "client") if key not in arrays]:
        raise damaged(path, "no array " + absent[0], "x, y and client")
    x, y, owners = (arrays[key] for key in ("x", "y", "client"))
    check_records(f"{path.name}: ", x, y, "x", "y")
    check_labels(path, y, 10)
    if x.dtype != np.uint8 or owners.shape != y.shape:
        raise damaged(path, f"x of {x.dtype}, client {owners.shape}", f"x of uint8, client {y.shape}")
    train, test = (np.concatenate(rows) for rows in split_each(natural(owners), TEST_FRACTION, seed=0))
    y = y.astype(np.int32)
    return Dataset(
        name,
        x[train],
        y[train],
        x[test],
        y[test],
        classes=10,
        scale=-1 / 255,
        shift=255,
        client_ids=owners[train],
        test_client_ids=owners[test],
    )
