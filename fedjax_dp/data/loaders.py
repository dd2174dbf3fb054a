"""Data sets by name."""

import os
import pathlib
from collections.abc import Callable
from typing import NamedTuple

from fedjax_dp import errors
from fedjax_dp.arguments import checks_arguments
from fedjax_dp.data import arrays, cifar, idx, own, svhn, synthetic, tabular, text, tfds, writers
from fedjax_dp.data.store import Dataset

Folder = str | os.PathLike[str] | None


class Reader(NamedTuple):
    """How a data set is read: `read(name, data_dir, seed)`, or with what follows its name and a colon instead."""

    read: Callable[..., Dataset]
    suffix: str | None = None  # what follows the colon, in words
    table: bool = False  # `read` is told the columns of labels and clients, too


def _files(read: Callable[[str, Folder], Dataset]) -> Reader:
    return Reader(lambda name, data_dir, seed: read(name, data_dir))


def _table(kind: str) -> Reader:
    def read(path: str, data_dir: Folder, seed: int, label: str | None, client: str | None) -> Dataset:
        return own.from_table(pathlib.Path(path), kind, label, client)

    return Reader(read, "PATH", table=True)


def _store(folder: str, data_dir: Folder, seed: int) -> Dataset:
    got = f"'store:{folder}'"
    raise errors.refuse("dataset", got, "a data set", "a store holds clients already: open_store reads it")


DATASETS: dict[str, Reader] = {
    "digits": Reader(lambda name, data_dir, seed: arrays.digits()),
    **dict.fromkeys(idx.IDX, _files(idx.images)),
    "adult": _files(tabular.adult),
    "adult_full": _files(tabular.adult),
    "cifar10": _files(cifar.cifar10),
    "cifar10_pca60": _files(cifar.cifar10_pca60),
    "svhn": _files(svhn.svhn),
    "femnist_digits": _files(writers.femnist_digits),
    "sent140": _files(text.sent140),
    "npz": Reader(lambda path, data_dir, seed: own.from_npz(pathlib.Path(path)), "PATH"),
    "csv": _table("csv"),
    "parquet": _table("parquet"),
    "synthetic": Reader(lambda asked, data_dir, seed: synthetic.synthetic(asked, seed), "U,V or synthetic:iid"),
    "tfds": Reader(lambda name, data_dir, seed: tfds.image_classification(name, data_dir), "NAME"),
    "store": Reader(_store, "FOLDER"),
}


def kind_of(name: str) -> str:
    """The name of a data set without what follows a colon."""
    kind, ending = name.partition(":")[0], pathlib.Path(name).suffix[1:]
    if kind not in DATASETS and ending in DATASETS:
        raise errors.refuse("dataset", repr(name), f"{ending}:PATH for a file", f"write {ending}:{name}")
    errors.require_choice("dataset", kind, DATASETS)
    return kind


@checks_arguments
def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    seed: int = 0,
    *,
    label: str | None = None,
    client: str | None = None,
) -> Dataset:
    """A data set by name: one of DATASETS; npz:PATH, csv:PATH and others go on after the colon.

    A store holds clients, not a data set: `open_store` reads it.

    Files are looked for in `data_dir`, else in the folder that FEDJAX_DP_DATA names, else in the user cache. idx files
    that are not there are downloaded into the user cache and compared with their checksum; for other data sets the
    error says which file belongs where. `seed` decides what synthetic draws, and nothing else. `label` and
    `client` name columns of csv:PATH and parquet:PATH (default label, and no clients).
    """
    kind, (_, colon, rest) = kind_of(name), name.partition(":")
    read, suffix, table = DATASETS[kind]
    if suffix is not None and not rest:
        raise errors.refuse("dataset", repr(name), f"{kind}:{suffix}")
    if colon and suffix is None:
        raise errors.refuse("dataset", repr(name), f"{kind} without a path", "npz:PATH reads your own arrays")
    if table:
        return read(rest, data_dir, seed, label, client)
    if label is not None or client is not None:
        raise errors.refuse(
            "columns", repr(label or client), f"left out for {kind}", "csv:PATH and parquet:PATH have them"
        )
    return read(rest if suffix else kind, data_dir, seed)


@checks_arguments
def names_clients(name: str, client: str | None) -> bool:
    """Whether a user's own data set says who owns its records; no more of it is read than is needed for that."""
    kind, rest = kind_of(name), name.partition(":")[2]
    return client is not None if DATASETS[kind].table else kind == "npz" and own.has_ids(pathlib.Path(rest))
