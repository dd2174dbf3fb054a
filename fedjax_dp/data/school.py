"""School: examination scores of pupils, with schools as natural clients."""

import os
import pathlib

import numpy as np

from fedjax_dp.data.files import damage_error, read_mat, require_file, search_folders
from fedjax_dp.data.partition import natural
from fedjax_dp.data.records import RecordTable, make_dataset, split_each
from fedjax_dp.data.store import Dataset

FILE = "school.mat"
FEATURES = 28
LOWEST, HIGHEST = 1, 70  # of a score; public
TEST_FRACTION = 0.3  # of every school's pupils


def school(name: str, data_dir: str | os.PathLike[str] | None, seed: int) -> Dataset:
    """15,362 pupils of 139 schools: 28 features, and a score `(1,)` scaled to [0, 1] by its public range.

    As Liu, Hu, Wu, Smith 2022 (arXiv:2206.07902) have it: 30% of every school's pupils are its test set, which ones
    `seed` decides; features have mean 0 and standard deviation 1 over a school's training records.
    """
    folders = search_folders([name], data_dir)
    source = "data/school of github.com/kenziyuliu/private-cross-silo-fl"
    path = require_file(name, folders, (FILE,), FILE, source)
    schools, scores = _read(path)
    owners = np.repeat(np.arange(len(schools)), [len(records) for records in schools])
    x, y = np.concatenate(schools), np.concatenate(scores)
    train, test = split_each(natural(owners), TEST_FRACTION, seed)
    for mine, rest in zip(train, test, strict=True):
        mean, std = x[mine].mean(0), x[mine].std(0)
        both = np.concatenate([mine, rest])
        x[both] = (x[both] - mean) / np.where(std > 0, std, 1.0)
    x, y = x.astype(np.float32), ((y - LOWEST) / (HIGHEST - LOWEST)).astype(np.float32)[:, None]
    learnt = ("mean and deviation of each feature of each school",)
    parts = RecordTable(owners, x=x, y=y).split((np.concatenate(train), np.concatenate(test)))
    return make_dataset(name, "", *parts, classes=1, learnt=learnt, task="regression")


def _read(path: pathlib.Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Features `(pupils, FEATURES)` and scores `(pupils,)` of every school."""
    arrays = read_mat(path, ("X", "Y"))
    cells = arrays["X"].ravel(), arrays["Y"].ravel()
    if not len(cells[0]) or any(cell.dtype != object for cell in cells) or len(cells[0]) != len(cells[1]):
        raise damage_error(path, f"X {arrays['X'].shape}, Y {arrays['Y'].shape}", "a cell of each for every school")
    for place, (x, y) in enumerate(zip(*cells, strict=True)):
        if x.ndim != 2 or x.shape[1] != FEATURES or y.size != len(x) or not len(x):
            raise damage_error(
                f"{path}, school {place}", f"X {x.shape}, Y {y.shape}", f"X (pupils, {FEATURES}), Y (pupils, 1)"
            )
        if not (np.isfinite(x).all() and (y >= LOWEST).all() and (y <= HIGHEST).all()):
            raise damage_error(
                f"{path}, school {place}", "other numbers", f"finite features, scores {LOWEST} to {HIGHEST}"
            )
    return [x.astype(float) for x in cells[0]], [y.ravel().astype(float) for y in cells[1]]
