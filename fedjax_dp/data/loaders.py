"""Data sets by name."""

import os
import pathlib
from collections.abc import Callable
from typing import Any

from fedjax_dp import errors
from fedjax_dp.data import arrays, cifar, idx, svhn, synthetic, tabular, text, tfds, writers
from fedjax_dp.data.store import Dataset

Folder = str | os.PathLike[str] | None

# Data sets with files of their own: name -> loader of (name, data_dir).
FILES: dict[str, Callable[[str, Folder], Dataset]] = {
    **dict.fromkeys(idx.IDX, idx.images),
    "adult": tabular.adult,
    "adult_full": tabular.adult,
    "cifar10": cifar.cifar10,
    "cifar10_pca60": cifar.cifar10_pca60,
    "svhn": svhn.svhn,
    "femnist_digits": writers.femnist_digits,
    "sent140": text.sent140,
}
# Data sets whose name goes on after a colon: name -> what follows.
SUFFIXES = {"npz": "PATH", "synthetic": "U,V or synthetic:iid", "tfds": "NAME", "store": "FOLDER"}
DATASETS: tuple[str, ...] = ("digits", *FILES, *SUFFIXES)


def load(name: str, data_dir: str | os.PathLike[str] | None = None, seed: int = 0) -> Dataset:
    """A data set by name: one of DATASETS; npz:PATH, synthetic:U,V and tfds:NAME go on after the colon.

    A store holds clients, not a data set: `open_store` reads it.

    Files are looked for in `data_dir`, else in the folder that FEDJAX_DP_DATA names, else in the user cache. idx files
    that are not there are downloaded into the user cache and compared with their checksum; for other data sets the
    error says which file belongs where. `seed` decides what synthetic draws, and nothing else.
    """
    kind, colon, rest = name.partition(":")
    errors.require_choice("dataset", kind, DATASETS)
    if kind in SUFFIXES and not rest:
        raise errors.refuse("dataset", repr(name), f"{kind}:{SUFFIXES[kind]}")
    if kind == "store":
        raise errors.refuse("dataset", repr(name), "a data set", "a store holds clients already: open_store reads it")
    if colon and kind not in SUFFIXES:
        raise errors.refuse("dataset", repr(name), f"{kind} without a path", "npz:PATH reads your own arrays")
    loaders: dict[str, Callable[[], Any]] = {
        "digits": arrays.digits,
        "npz": lambda: arrays.from_npz(pathlib.Path(rest)),
        "synthetic": lambda: synthetic.synthetic(rest, seed),
        "tfds": lambda: tfds.image_classification(rest, data_dir),
    }
    return loaders[kind]() if kind in loaders else FILES[kind](kind, data_dir)
