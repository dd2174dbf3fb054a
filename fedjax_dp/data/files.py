"""Files of data sets: where they are looked for, and how one that is missing or damaged is told."""

import os
import pathlib
import zlib
from collections.abc import Iterable

import numpy as np

from fedjax_dp import errors

DATA_VARIABLE = "FEDJAX_DP_DATA"


def places(names: Iterable[str], data_dir: str | os.PathLike[str] | None) -> list[pathlib.Path]:
    """Folders `names` in `data_dir`, else in the folder that FEDJAX_DP_DATA names, then in the user cache."""
    import pooch  # slow to import, and only needed for files

    if data_dir is not None and not pathlib.Path(data_dir).is_dir():
        raise errors.refuse("data_dir", str(data_dir), "an existing folder", "create it or leave the option out")
    cache = pathlib.Path(pooch.os_cache("fedjax_dp"))
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


def damaged(path: pathlib.Path | str, got: str, wanted: str, remedy: str = "get the file again") -> Exception:
    """The error for a file that is not what its name says."""
    return errors.refuse(str(path), got, wanted, remedy)


def read_npz(path: pathlib.Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file; pickles in it are refused."""
    if not path.is_file():
        raise errors.refuse("npz file", str(path), "an existing file", "give npz:PATH")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:  # np.load leaks a bad file
            return {key: archive[key] for key in archive.files}
    except (ValueError, OSError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())  # NumPy's may span lines
        raise errors.refuse("npz file", str(path), "a readable numpy archive without pickles", reason) from None
    except Exception as error:  # zipfile.BadZipFile, lzma.LZMAError and relatives have no common base
        raise errors.refuse("npz file", str(path), "a readable numpy archive", str(error)) from None


def check_keys(path: pathlib.Path, arrays: dict[str, np.ndarray], wanted: tuple[str, ...]) -> None:
    """Every wanted array is in the file."""
    for key in wanted:
        if key not in arrays:
            names = f"{', '.join(wanted[:-1])} and {wanted[-1]}"
            raise errors.refuse(f"{path.name}", "no array " + key, names, "np.savez with these names")


def check_records(path: pathlib.Path, x: np.ndarray, y: np.ndarray, x_name: str, y_name: str) -> None:
    """Finite real features (records, ...), and one integer label from 0 for each."""
    if x.ndim < 2 or len(x) == 0 or y.shape != x.shape[:1]:
        raise errors.refuse(
            f"{path.name}: {x_name} and {y_name}", f"{x.shape} and {y.shape}", "(records, ...) and (records,)"
        )
    if not np.issubdtype(y.dtype, np.integer):
        raise errors.refuse(f"{path.name}: {y_name}", y.dtype, "integer labels from 0")
    if y.min() < 0:
        raise errors.refuse(f"{path.name}: {y_name}", f"{y.dtype} from {y.min()}", "integer labels from 0")
    if x.dtype.kind not in "biuf":
        raise errors.refuse(f"{path.name}: {x_name}", x.dtype, "real numbers")
    if not np.isfinite(x).all():
        raise errors.refuse(f"{path.name}: {x_name}", "NaN or infinity", "finite", "clean the array")


def check_labels(path: pathlib.Path | str, y: np.ndarray, classes: int, first: int = 0) -> None:
    """Labels lie in `first ... first + classes - 1`, as they stand in the file."""
    if y.min() < first or y.max() >= first + classes:
        wanted = f"labels {first} to {first + classes - 1}"
        raise damaged(path, f"labels {y.min()} to {y.max()}", wanted)
