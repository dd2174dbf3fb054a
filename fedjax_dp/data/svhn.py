"""Street View House Numbers, cropped digits."""

import os
import pathlib

import numpy as np

from fedjax_dp.data.files import (
    check_labels,
    damage_error,
    first_file,
    missing_file_error,
    read_labelled,
    read_mat,
    require_file,
    search_folders,
)
from fedjax_dp.data.store import Dataset

CLASSES = 10
SUBSET = "svhn_train_first1083.npz"
SUBSET_TRAIN = 883  # its other 200 images are the test set


def svhn(name: str, data_dir: str | os.PathLike[str] | None) -> Dataset:
    """73,257 + 26,032 images `(32, 32, 3)` from the two .mat files; without them the first 1,083 of training."""
    folders = search_folders([name], data_dir)
    files = ("train_32x32.mat", "test_32x32.mat")
    paths = [first_file(folders, (file,)) for file in files]
    if any(paths):
        if not all(paths):
            raise missing_file_error(
                name, folders[0], " and ".join(files), "one is there, one is not; ufldl.stanford.edu"
            )
        (x_train, y_train), (x_test, y_test) = (_read_mat(path) for path in paths if path)
        return Dataset(name, x_train, y_train, x_test, y_test, classes=CLASSES, scale=1 / 255)
    source = "from http://ufldl.stanford.edu/housenumbers"
    path = require_file(name, folders, (SUBSET,), " and ".join(files), source)
    arrays = read_labelled(path, {"x_train": "y_train"}, CLASSES, (32, 32, 3), np.uint8)
    x, y, cut = arrays["x_train"], arrays["y_train"], SUBSET_TRAIN
    if len(x) <= cut:
        raise damage_error(path, f"{len(x)} images", f"more than {cut}")
    return Dataset(f"{name} (first {len(x)})", x[:cut], y[:cut], x[cut:], y[cut:], classes=CLASSES, scale=1 / 255)


def _read_mat(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """X (32, 32, 3, records) and y (records, 1), where label 10 is the digit 0."""
    arrays = read_mat(path, ("X", "y"))
    x, y = arrays["X"], arrays["y"].ravel()
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.shape[3] == 0 or x.shape[3:] != y.shape:
        raise damage_error(path, f"X {x.dtype} {x.shape}, y {y.shape}", "X uint8 (32, 32, 3, records), y (records,)")
    if not np.issubdtype(y.dtype, np.integer):
        raise damage_error(f"{path}: y", str(y.dtype), "integers")
    check_labels(f"{path}: y", y, CLASSES, first=1)
    return np.ascontiguousarray(x.transpose(3, 0, 1, 2)), (y % 10).astype(np.int32)
