"""Files of data sets: search paths, errors, and size limits.

For any format, nothing reads a file before `check_file`, and nothing expands without the consent of `check_growth`.
"""

import bz2
import contextlib
import gzip
import lzma
import os
import pathlib
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from fedjax_dp import errors, folders
from fedjax_dp.data.checks import check_records
from fedjax_dp.devices import cache_folder

DATA_VARIABLE = "FEDJAX_DP_DATA"
EXPANSION, FREE = 200, 1 << 26  # expanded bytes per stored byte, and expanded bytes always allowed
PIECE = 1 << 20
DICTIONARY = 1 << 29  # bytes that the decoder of an xz file may take; the largest preset takes a fifth of that
ARROW_EXTENSION = b"ARROW:extension:name"  # as a schema has it; a library that knows the type may unpickle more of it
LONGEST_ID = 256  # characters: an array of text takes four bytes for each, in every record


def search_folders(names: Iterable[str], data_dir: str | os.PathLike[str] | None) -> list[pathlib.Path]:
    """Folders `names` in `data_dir`, else in the folder that FEDJAX_DP_DATA names, then in the user cache."""
    if data_dir is not None and not pathlib.Path(data_dir).is_dir():
        raise errors.refuse("data_dir", str(data_dir), "an existing folder", "create it or leave the option out")
    cache = cache_folder()
    first = pathlib.Path(data_dir or os.environ.get(DATA_VARIABLE) or cache)
    return list(dict.fromkeys(root / name for root in (first, cache) for name in names))


def first_file(folders: Iterable[pathlib.Path], files: Iterable[str]) -> pathlib.Path | None:
    """The first of `files` that is in one of the folders."""
    files = list(files)
    return next((folder / file for folder in folders for file in files if (folder / file).is_file()), None)


def require_file(
    name: str, folders: Sequence[pathlib.Path], files: Iterable[str], what: str, source: str
) -> pathlib.Path:
    """The first of `files` in one of the folders, else the error of `missing`."""
    path = first_file(folders, files)
    if path is None:
        raise missing_file_error(name, folders[0], what, source)
    return path


def missing_file_error(name: str, folder: pathlib.Path, what: str, source: str) -> errors.MissingDataError:
    """The error for a data set that is not on disk: which file belongs where, and its source."""
    remedy = f"put {what} ({source}) into {folder}"
    return errors.MissingDataError(str(errors.refuse(f"dataset {name}", "no file of it", "on disk", remedy)))


def damage_error(path: pathlib.Path | str, got: str, wanted: str, remedy: str = "get the file again") -> Exception:
    """The error for a damaged file."""
    return errors.refuse(str(path), got, wanted, remedy)


def check_file(kind: str, path: pathlib.Path) -> int:
    """Refuse anything but a regular file that is not empty; return its size in bytes."""
    try:
        about = path.stat()
    except (OSError, ValueError):  # not there, or a name that no file can have
        refusal = errors.refuse(f"{kind} file", str(path), "an existing file", folders.where_looked(path))
        raise errors.MissingDataError(str(refusal)) from None
    if not stat.S_ISREG(about.st_mode):
        raise damage_error(
            path, "a folder" if stat.S_ISDIR(about.st_mode) else "no file", f"a {kind} file", "name the file"
        )
    if not about.st_size:
        raise damage_error(path, "empty", f"a {kind} file")
    return about.st_size


@contextlib.contextmanager
def readable(
    what: pathlib.Path | str, wanted: str, kinds: tuple[type[Exception], ...] = (Exception,)
) -> Iterator[None]:
    """Turn errors of these kinds in the block into one line; refusals pass unchanged."""
    try:
        yield
    except errors.ConfigurationError:
        raise
    except kinds as error:
        raise damage_error(what, f"damaged ({folders.reason(error)[:100]})", wanted) from None


def check_growth(what: pathlib.Path | str, stored: int, expanded: int) -> None:
    """Refuse content that would expand far beyond its size in the file."""
    if expanded > max(FREE, EXPANSION * stored):
        got = f"{expanded:,} bytes from {stored:,} or more"
        raise damage_error(str(what), got, f"at most {EXPANSION} times as large when expanded", "get it from elsewhere")


def unpack(kind: str, path: pathlib.Path) -> bytes:
    """The content of a file; .gz, .bz2, .xz and a .zip of one file are unpacked up to a limit.

    Raises: ConfigurationError for a file that is missing, damaged, or packed in another way.
    """
    size = check_file(kind, path)
    # zlib.error, lzma.LZMAError, zipfile.BadZipFile and relatives have no common base
    with readable(path, f"a {path.suffix[1:]} of a {kind} file"), open(path, "rb") as file:
        if path.suffix.lower() not in UNPACKERS:
            return file.read()
        content = bytearray()
        for piece in UNPACKERS[path.suffix.lower()](file):
            content += piece
            check_growth(path, size, len(content))
        return bytes(content)


def _read_pieces(file: Any) -> Iterable[bytes]:
    return iter(lambda: file.read(PIECE), b"")


def unpack_lzma(file: BinaryIO) -> Iterable[bytes]:
    """The content of an lzma or xz file in pieces; lzma.open has no memory limit.

    Raises: EOFError if it is incomplete, lzma.LZMAError if it has another format or more bytes follow.
    """
    decoder = lzma.LZMADecompressor(memlimit=DICTIONARY)
    while not decoder.eof:
        data = file.read(PIECE) if decoder.needs_input else b""
        if not data and decoder.needs_input:
            raise EOFError("it breaks off")
        yield decoder.decompress(data, PIECE)
    if decoder.unused_data or file.read(1):
        raise lzma.LZMAError("more bytes after its end")


def _unpack_zip(file: BinaryIO) -> Iterable[bytes]:
    with zipfile.ZipFile(file) as archive:
        (name,) = archive.namelist()  # ValueError: not one
        with archive.open(name) as member:
            yield from _read_pieces(member)


UNPACKERS: dict[str, Callable[[BinaryIO], Iterable[bytes]]] = {
    ".gz": lambda file: _read_pieces(gzip.GzipFile(fileobj=file)),
    ".bz2": lambda file: _read_pieces(bz2.BZ2File(file)),
    ".xz": unpack_lzma,
    ".zip": _unpack_zip,
}


def no_text(path: pathlib.Path, beginning: bytes) -> Exception:
    """The error for bytes that are not UTF-8, with the command that converts them."""
    kind = "utf-16" if beginning.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin1"
    remedy = f"if it is {kind}: iconv -f {kind} -t utf-8 {path.name} > new-{path.name}"
    return damage_error(path, "bytes that are none", "text in UTF-8", remedy)


def check_id(where: str, client: Any) -> str:
    """Check a client's name: text that can be stored, and that an array of text distinguishes from others."""
    wanted = f"text of at most {LONGEST_ID} characters, in Unicode and without NUL"
    if not isinstance(client, str):
        raise errors.refuse(f"{where}: client", type(client).__name__, wanted)
    if not 0 < len(client) <= LONGEST_ID or "\0" in client:
        got = repr(client) if len(client) < 60 else f"{client[:40]!r}... of {len(client):,} characters"
        raise errors.refuse(f"{where}: client", got, wanted)
    try:
        client.encode()
    except UnicodeEncodeError:
        raise errors.refuse(f"{where}: client", repr(client), wanted) from None
    return client


def read_npz(path: pathlib.Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file; pickles in it are refused."""
    size, wanted = check_file("npz", path), "a readable numpy archive of plain arrays"
    if not zipfile.is_zipfile(path):  # NumPy would take it for a pickle, and advise to load that
        raise errors.refuse("npz file", str(path), wanted, "np.savez writes one")
    try:
        with zipfile.ZipFile(path) as archive:
            check_growth(path, size, sum(member.file_size for member in archive.infolist()))
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:  # np.load leaks a bad file
            names, contents = arrays.files, {key: arrays[key] for key in arrays.files}
    except errors.ConfigurationError:
        raise
    except Exception as error:  # zipfile.BadZipFile, lzma.LZMAError and relatives have no common base
        raise errors.refuse("npz file", str(path), wanted, numpy_reason(error)) from None
    if len(names) > len(contents):
        twice = next(key for key in contents if names.count(key) > 1)
        raise errors.refuse("npz file", f"{path} with {twice} twice", wanted, "each array under a name of its own")
    if odd := [key for key, array in contents.items() if not isinstance(array, np.ndarray)]:
        raise errors.refuse("npz file", f"{path} with {odd[0]}", wanted, "np.savez writes one")
    return contents


def numpy_reason(error: Exception) -> str:
    """Why NumPy reads no array, in one line, without its advice to load pickles."""
    reason = " ".join(str(error).split())
    if "Object arrays" in reason:
        return "save numbers or text, not Python objects: .astype(...)"
    return "save plain arrays by np.save or np.savez" if "pickle" in reason else reason or type(error).__name__


def read_mat(path: pathlib.Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """These arrays of a MATLAB file."""
    from scipy.io import loadmat  # slow to import, and only needed here

    try:
        arrays = loadmat(path, variable_names=names)
    except Exception as error:  # SciPy's reader fails in any way there is on a damaged file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise damage_error(
            path, "damaged or no MATLAB file", "a readable MATLAB file", f"get it again ({reason})"
        ) from None
    if not set(names) <= set(arrays):
        raise damage_error(path, "no " + " or no ".join(names), f"a MATLAB file with {' and '.join(names)}")
    return {name: arrays[name] for name in names}


def check_keys(path: pathlib.Path, arrays: dict[str, np.ndarray], wanted: tuple[str, ...]) -> None:
    """Require every wanted array in the file."""
    for key in wanted:
        if key not in arrays:
            names = f"{', '.join(wanted[:-1])} and {wanted[-1]}"
            raise errors.refuse(f"{path.name}", "no array " + key, names, "np.savez with these names")


def check_labels(path: pathlib.Path | str, y: np.ndarray, classes: int, first: int = 0) -> None:
    """Require labels of the file within `first ... first + classes - 1`."""
    if y.min() < first or y.max() >= first + classes:
        wanted = f"labels {first} to {first + classes - 1}"
        raise damage_error(path, f"labels {y.min()} to {y.max()}", wanted)


def read_labelled(
    path: pathlib.Path, pairs: dict[str, str], classes: int, shape: tuple[int, ...] | None, dtype: Any, *also: str
) -> dict[str, np.ndarray]:
    """Exactly these arrays of an npz file: records, their labels by name, which become int32, and `also`.

    shape, dtype  of every record; None allows any.
    """
    arrays, wanted = read_npz(path), (*(name for pair in pairs.items() for name in pair), *also)
    check_keys(path, arrays, wanted)
    for x_name, y_name in pairs.items():
        x, y = arrays[x_name], arrays[y_name]
        check_records(f"{path.name}: ", x, y, x_name, y_name)
        check_labels(path, y, classes)
        if (shape is not None and x.shape[1:] != shape) or (dtype is not None and x.dtype != dtype):
            words = [str(np.dtype(dtype))] * (dtype is not None) + [f"records {shape}"] * (shape is not None)
            raise damage_error(f"{path}: {x_name}", f"{x.dtype} records {x.shape[1:]}", " ".join(words))
        arrays[y_name] = y.astype(np.int32)
    return {name: arrays[name] for name in wanted}
