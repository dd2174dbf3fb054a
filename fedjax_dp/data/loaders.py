"""Data sets by name; a module that reads one is loaded when it is read."""

import importlib
import os
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from fedjax_dp import errors
from fedjax_dp.data.names import SOURCES
from fedjax_dp.data.reading import COLUMNS, CSV, CUT, NAMES, TABLES, TEXT, Reading
from fedjax_dp.options import of_class, require

if TYPE_CHECKING:
    from fedjax_dp.data.store import Dataset

Folder = str | os.PathLike[str] | None
IDX = ("mnist", "fashion_mnist", "emnist_letters", "emnist_byclass", "emnist_balanced", "emnist_digits")


class Reader(NamedTuple):
    """How a data set is read: `read(name, data_dir, seed, reading)`, or with what follows a colon for its name."""

    read: Callable[[str, Folder, int, Reading], "Dataset"]
    suffix: str | None = None  # what follows the colon, in words
    takes: tuple[str, ...] = ()  # what of a `Reading` means something for it
    owned: Callable[[str, str | None], bool] = lambda rest, column: False  # whether a user's data name their clients


def _call(place: str, *arguments: Any) -> Any:
    """The result of `module:function`, imported on demand, as readers of user files are tools."""
    module, _, function = place.partition(":")
    return getattr(importlib.import_module(f"fedjax_dp.{module}"), function)(*arguments)


def _shipped_reader(place: str) -> Reader:
    return Reader(lambda name, data_dir, seed, reading: _call(place, name, data_dir))


def _own(place: str, *takes: str, owned: Any = lambda path, column: True) -> Reader:
    """A reader of the user's files: a function of their path and a `Reading`."""
    return Reader(lambda path, data_dir, seed, reading: _call(place, path, reading), "PATH", takes, owned)


def _tables_are_owned(path: str, column: str | None) -> bool:
    return column is not None or _call("tools.formats.tables:is_several", path)


def _store(folder: str, data_dir: Folder, seed: int, reading: Reading) -> "Dataset":
    got = f"'store:{folder}'"
    raise errors.refuse("dataset", got, "a data set", "a store holds clients already: open_store reads it")


DATASETS: dict[str, Reader] = {
    "digits": Reader(lambda name, data_dir, seed, reading: _call("data.digits:digits")),
    **dict.fromkeys(IDX, _shipped_reader("data.idx:images")),
    **dict.fromkeys(("adult", "adult_full"), _shipped_reader("data.adult:adult")),
    "cifar10": _shipped_reader("data.cifar:cifar10"),
    "cifar10_pca60": _shipped_reader("data.cifar:cifar10_pca60"),
    "svhn": _shipped_reader("data.svhn:svhn"),
    "school": Reader(lambda name, data_dir, seed, reading: _call("data.school:school", name, data_dir, seed)),
    "femnist_digits": _shipped_reader("data.femnist:femnist_digits"),
    "sent140": _shipped_reader("data.sent140:sent140"),
    "npz": _own("data.arrays:from_npz", "task", owned=lambda path, column: _call("data.arrays:has_ids", path)),
    "csv": _own("tools.formats.tables:from_csv", *COLUMNS, *TABLES, *CSV, *TEXT, owned=_tables_are_owned),
    "parquet": _own("tools.formats.tables:from_parquet", *COLUMNS, *TABLES, *TEXT, owned=_tables_are_owned),
    "leaf": _own("tools.formats.leaf:leaf", "task", *TEXT, *CUT, "convention", "record_shape"),
    "tff": _own("tools.formats.tff:tff", *TEXT, *CUT, "convention", "record_shape", "subset"),
    "hf": _own(
        "tools.formats.hugging_face:hugging_face",
        *(*COLUMNS, *TEXT, "convention"),
        owned=lambda path, column: column is not None,
    ),
    "synthetic": Reader(
        lambda setting, data_dir, seed, reading: _call("data.synthetic:synthetic", setting, seed),
        "U,V or synthetic:iid",
    ),
    "tfds": _shipped_reader("data.tfds:image_classification")._replace(suffix="NAME"),
    "store": Reader(_store, "FOLDER"),
}


def kind_of(name: str) -> str:
    """The name of a data set without what follows a colon."""
    kind, ending = name.partition(":")[0], pathlib.Path(name).suffix[1:]
    if kind not in DATASETS and ending in DATASETS:
        raise errors.refuse("dataset", repr(name), f"{ending}:PATH for a file", f"write {ending}:{name}")
    if ending.partition(":")[0] == "py":
        remedy = "np.savez saves the arrays of your own reader, npz:PATH reads them"
        raise errors.refuse("dataset", repr(name), "data, not code", remedy)
    errors.require_choice("dataset", kind, DATASETS)
    return kind


def check_reading(kind: str, reading: Reading) -> None:
    """Refuse options that do not apply to a data set."""
    for name in NAMES:
        if (value := getattr(reading, name)) is not None and name not in DATASETS[kind].takes:
            takers = [f"{other}:{reader.suffix}" for other, reader in DATASETS.items() if name in reader.takes]
            raise errors.refuse(name, repr(value), f"left out for {kind}", f"it is for {', '.join(takers)}")


def load(name: str, data_dir: str | os.PathLike[str] | None = None, seed: int = 0, **how: Any) -> "Dataset":
    """A data set by name: one of DATASETS, or npz:PATH, csv:PATH, leaf:PATH and others.

    A store holds clients, not a data set: `open_store` reads it.

    Files are looked for in `data_dir`, else in the folder that FEDJAX_DP_DATA names, else in the user cache. idx files
    that are not there are downloaded into the user cache and compared with their checksum; for other data sets the
    error says which file belongs where. `seed` decides what synthetic draws and which records of school are its test
    set, and nothing else. `how` says how the user's own files are read: the fields of `fedjax_dp.data.Reading`,
    such as label_column="y". A text such as fill="dose=0" or drop="id,row" may also be a mapping or a list.
    """
    taken = of_class(Reading)
    require(taken, how, how, "load")
    kind, (_, colon, rest) = kind_of(name), name.partition(":")
    reader = DATASETS[kind]
    reading = Reading(**{option: taken[option].typed(value) for option, value in how.items() if value is not None})
    if reader.suffix is not None and not rest:
        raise errors.refuse("dataset", repr(name), f"{kind}:{reader.suffix}")
    if colon and reader.suffix is None:
        raise errors.refuse("dataset", repr(name), f"{kind} without a path", "npz:PATH reads your own arrays")
    check_reading(kind, reading)
    dataset = reader.read(rest if reader.suffix else kind, data_dir, seed, reading)
    if reader.suffix is not None and dataset.name in SOURCES:  # the name of a file makes no shipped data set
        dataset = dataset._replace(name=f"{kind}:{dataset.name}")
    return dataset


def names_clients(name: str, client_column: str | None = None) -> bool:
    """Whether the user's data set names the owners of its records; reads no more than needed."""
    return DATASETS[kind_of(name)].owned(name.partition(":")[2], client_column)
