"""Images in idx files: MNIST and its kin; found in a folder, or downloaded once and checked."""

import importlib.resources
import os
import pathlib
import string
import struct
import tomllib
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.client_names import ClientNames
from fedjax_dp.data.files import check_labels, damage_error, first_file, search_folders, unpack
from fedjax_dp.data.store import Dataset
from fedjax_dp.devices import cache_folder

DOWNLOAD_SECONDS = 30  # a connection that is silent for this long counts as no network


class _Idx(NamedTuple):
    """The source of a data set's four idx files; checksums are of the compressed files."""

    base: str
    files: dict[str, str]  # file name without .gz -> checksum
    archive: tuple[str, str] | None = None  # (address, checksum) of a zip that holds the files under gzip/
    first_label: int = 0
    transposed: bool = False


def _emnist(split: str, first_label: int = 0) -> _Idx:
    """One split of EMNIST (Cohen et al. 2017, arXiv:1702.05373); all are in one archive, images transposed."""
    parts = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
    archive = ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "md5:58c8d27c78d21e728a6bc7b3cc06412e")
    return _Idx("", {f"emnist-{split}-{part}-ubyte": "" for part in parts}, archive, first_label, transposed=True)


FASHION = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CLASS_NAMES: dict[str, Sequence[str]] = {
    "fashion_mnist": FASHION,
    "emnist_letters": string.ascii_uppercase,  # of both cases
    "emnist_byclass": string.digits + string.ascii_letters.swapcase(),
    "emnist_balanced": string.digits + string.ascii_uppercase + "abdefghnqrt",  # the others look alike in both cases
}
_SINGLE = tomllib.loads(importlib.resources.files("fedjax_dp.data").joinpath("idx.toml").read_text("utf-8"))
IDX = {name: _Idx(**source) for name, source in _SINGLE.items()} | {
    "emnist_letters": _emnist("letters", first_label=1),
    "emnist_byclass": _emnist("byclass"),
    "emnist_balanced": _emnist("balanced"),
    "emnist_digits": _emnist("digits"),
}


def images(name: str, data_dir: str | os.PathLike[str] | None) -> Dataset:
    """A data set of four idx files; the training labels determine the number of classes."""
    source = IDX[name]
    paths = [_find(name, source, file, data_dir) for file in source.files]
    x_train, y_train, x_test, y_test = (_read(path) for path in paths)
    for x, y, path in ((x_train, y_train, paths[1]), (x_test, y_test, paths[3])):
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
            raise errors.refuse(str(path), f"{y.shape} labels for {x.shape} images", "one label per image")
    if x_train.shape[1:] != x_test.shape[1:]:
        raise damage_error(paths[2], f"images {x_test.shape[1:]}", f"of {x_train.shape[1:]} like those of training")
    if source.transposed:
        x_train, x_test = x_train.transpose(0, 2, 1).copy(), x_test.transpose(0, 2, 1).copy()
    names = ClientNames(CLASS_NAMES[name]) if name in CLASS_NAMES else None
    classes = int(y_train.max()) - source.first_label + 1
    for y, path in ((y_train, paths[1]), (y_test, paths[3])):
        check_labels(path, y, classes, source.first_label)
    y_train, y_test = (y.astype(np.int32) - source.first_label for y in (y_train, y_test))
    return Dataset(name, x_train, y_train, x_test, y_test, classes=classes, class_names=names, scale=1 / 255)


def _read(path: pathlib.Path) -> np.ndarray:
    """An idx file of unsigned bytes, compressed or not."""
    raw = unpack("idx", path)
    dimensions = raw[3] if len(raw) >= 4 and raw[:3] == b"\0\0\x08" else 0
    if not 1 <= dimensions <= 3 or len(raw) < 4 + 4 * dimensions:
        raise errors.refuse("data file", str(path), "an idx file of unsigned bytes", "get the file again")
    shape = struct.unpack(f">{dimensions}I", raw[4 : 4 + 4 * dimensions])
    body = np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions)
    if body.size != np.prod(shape, dtype=np.int64) or body.size == 0:
        raise errors.refuse("data file", f"{path} with {body.size} bytes", f"as long as its header {shape} says")
    return body.reshape(shape)


def at_hand(name: str, data_dir: str | os.PathLike[str] | None) -> bool:
    """Whether all files are on disk, so that no download is needed."""
    source = IDX[name]
    return all(first_file(_folders(name, source, data_dir), (f"{file}.gz", file)) for file in source.files)


def _folders(name: str, source: _Idx, data_dir: str | os.PathLike[str] | None) -> list[pathlib.Path]:
    """The folders to search."""
    shared = ["emnist", "emnist/gzip", "emnist/archive.zip.unzip/gzip"] if source.archive else []
    return search_folders([name, *shared], data_dir)


def _find(name: str, source: _Idx, file: str, data_dir: str | os.PathLike[str] | None) -> pathlib.Path:
    """The file in the data folder or the cache, else a checked download."""
    folders = _folders(name, source, data_dir)
    if path := first_file(folders, (f"{file}.gz", file)):
        return path
    errors.require_installed("pooch", "download", f"to download {file}, which is not in {folders[0]}")
    with warnings.catch_warnings():  # in notebooks it looks for a bar that is not wanted
        warnings.simplefilter("ignore")
        import pooch  # only where a file has to be fetched
    place = f"put {file}.gz into {folders[0]}, or give --data-dir"
    cache = cache_folder()
    pooch.get_logger().setLevel("ERROR")
    downloader = pooch.HTTPDownloader(timeout=DOWNLOAD_SECONDS)
    try:
        if source.archive is None:
            known = {"fname": f"{file}.gz", "path": cache / name, "downloader": downloader}
            return pathlib.Path(pooch.retrieve(f"{source.base}{file}.gz", source.files[file], **known))
        address, checksum = source.archive
        member = f"gzip/{file}.gz"
        unpack = pooch.Unzip(members=[member])
        known = {"fname": "archive.zip", "path": cache / "emnist", "downloader": downloader, "processor": unpack}
        return next(pathlib.Path(p) for p in pooch.retrieve(address, checksum, **known) if p.endswith(f"{file}.gz"))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        refusal = errors.refuse(f"dataset {name}", "missing and not downloadable", "on disk", f"{place} ({reason})")
        raise errors.MissingDataError(str(refusal)) from None
