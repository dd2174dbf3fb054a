"""Files of data sets: where they are looked for, and how one that is missing or damaged is told."""

import os
import pathlib
import zipfile
from collections.abc import Iterable

import numpy as np

from fedjax_dp import errors, folders
from fedjax_dp.devices import cache_folder

DATA_VARIABLE = "FEDJAX_DP_DATA"


def places(names: Iterable[str], data_dir: str | os.PathLike[str] | None) -> list[pathlib.Path]:
    """Folders `names` in `data_dir`, else in the folder that FEDJAX_DP_DATA names, then in the user cache."""
    if data_dir is not None and not pathlib.Path(data_dir).is_dir():
        raise errors.refuse("data_dir", str(data_dir), "an existing folder", "create it or leave the option out")
    cache = cache_folder()
    given = pathlib.Path(data_dir or os.environ.get(DATA_VARIABLE) or cache)
    return list(dict.fromkeys(root / name for root in (given, cache) for name in names))


def first_file(folders: Iterable[pathlib.Path], files: Iterable[str]) -> pathlib.Path | None:
    """The first of `files` that is in one of the folders."""
    files = list(files)
    return next((folder / file for folder in folders for file in files if (folder / file).is_file()), None)


def missing(name: str, folder: pathlib.Path, what: str, source: str) -> errors.MissingDataError:
    """The error for a data set that is not on disk; says which file belongs where, and who has it."""
    remedy = f"put {what} ({source}) into {folder}"
    return errors.MissingDataError(str(errors.refuse(f"dataset {name}", "no file of it", "on disk", remedy)))


def absent(kind: str, path: pathlib.Path) -> errors.ConfigurationError:
    """The error for a file of the user's own that is not there; names one beside it that was probably meant."""
    return errors.refuse(f"{kind} file", str(path), "an existing file", folders.where_looked(path))


def damaged(path: pathlib.Path | str, got: str, wanted: str, remedy: str = "get the file again") -> Exception:
    """The error for a file that is not what its name says."""
    return errors.refuse(str(path), got, wanted, remedy)


def read_npz(path: pathlib.Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file; pickles in it are refused."""
    if not path.is_file():
        raise absent("npz", path)
    wanted = "a readable numpy archive of plain arrays"
    if not zipfile.is_zipfile(path):  # NumPy would take it for a pickle, and advise to load that
        raise errors.refuse("npz file", str(path), wanted, "np.savez writes one")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:  # np.load leaks a bad file
            names, arrays = archive.files, {key: archive[key] for key in archive.files}
    except Exception as error:  # zipfile.BadZipFile, lzma.LZMAError and relatives have no common base
        reason = " ".join(str(error).split())  # NumPy's may span lines
        pickled = "Object arrays" in reason
        remedy = "save numbers or text, not Python objects: .astype(...)" if pickled else reason
        raise errors.refuse("npz file", str(path), wanted, remedy) from None
    if len(names) > len(arrays):
        twice = next(key for key in arrays if names.count(key) > 1)
        raise errors.refuse("npz file", f"{path} with {twice} twice", wanted, "each array under a name of its own")
    if odd := [key for key, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise errors.refuse("npz file", f"{path} with {odd[0]}", wanted, "np.savez writes one")
    return arrays


def check_keys(path: pathlib.Path, arrays: dict[str, np.ndarray], wanted: tuple[str, ...]) -> None:
    """Every wanted array is in the file."""
    for key in wanted:
        if key not in arrays:
            names = f"{', '.join(wanted[:-1])} and {wanted[-1]}"
            raise errors.refuse(f"{path.name}", "no array " + key, names, "np.savez with these names")


def check_labels(path: pathlib.Path | str, y: np.ndarray, classes: int, first: int = 0) -> None:
    """Labels lie in `first ... first + classes - 1`, as they stand in the file."""
    if y.min() < first or y.max() >= first + classes:
        wanted = f"labels {first} to {first + classes - 1}"
        raise damaged(path, f"labels {y.min()} to {y.max()}", wanted)
