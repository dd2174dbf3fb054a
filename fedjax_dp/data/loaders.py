"""Data sets from their own file formats, found in a folder or downloaded once and checked."""

import gzip
import os
import pathlib
import struct
import zlib
from typing import NamedTuple

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.store import Dataset

DATA_VARIABLE = "FEDJAX_DP_DATA"
DOWNLOAD_SECONDS = 30  # a connection that says nothing for this long counts as no network


class _Idx(NamedTuple):
    """Where the four idx files of a data set come from; checksums are of the compressed files."""

    base: str
    files: dict[str, str]  # file name without .gz -> checksum
    archive: tuple[str, str] | None = None  # (address, checksum) of a zip that holds the files under gzip/
    first_label: int = 0
    transposed: bool = False


_FASHION = "fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_IDX = {
    "mnist": _Idx(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "fashion_mnist": _Idx(
        "http://" + _FASHION,
        {
            "train-images-idx3-ubyte": "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte": "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte": "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte": "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
    "emnist_letters": _Idx(
        "",
        {
            "emnist-letters-train-images-idx3-ubyte": "",
            "emnist-letters-train-labels-idx1-ubyte": "",
            "emnist-letters-test-images-idx3-ubyte": "",
            "emnist-letters-test-labels-idx1-ubyte": "",
        },
        archive=(
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            "md5:58c8d27c78d21e728a6bc7b3cc06412e",
        ),
        first_label=1,
        transposed=True,
    ),
}


def load(name: str, data_dir: str | os.PathLike | None = None) -> Dataset:
    """A data set by name: digits, mnist, fashion_mnist, emnist_letters, or npz:PATH for your own arrays.

    Files are looked for in `data_dir`, else in the folder that FEDJAX_DP_DATA names, else in the user cache; files
    that are not there are downloaded into the user cache and compared with their checksum.
    """
    kind, _, path = name.partition(":")
    errors.require_choice("dataset", kind, DATASETS)
    if path and kind != "npz":
        raise errors.refuse("dataset", repr(name), f"{kind} without a path", "npz:PATH reads your own arrays")
    if kind == "npz":
        return _npz(pathlib.Path(path))
    if kind == "digits":
        return _digits()
    return _idx(kind, _IDX[kind], data_dir)


def _digits() -> Dataset:
    """scikit-learn's 1,797 embedded 8x8 digits, values 0 to 16; the last 360 of a fixed shuffle are the test set."""
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    x, y = bunch.images[order].astype(np.uint8), bunch.target[order].astype(np.int32)
    return Dataset("digits", x[:-360], y[:-360], x[-360:], y[-360:], classes=10, scale=1 / 16)


def _npz(path: pathlib.Path) -> Dataset:
    """Arrays x_train, y_train, x_test, y_test and, if clients are given, client_ids (one per training record)."""
    if not path.is_file():
        raise errors.refuse("npz file", str(path), "an existing file", "give npz:PATH")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:  # np.load leaks a bad file
            arrays = {key: archive[key] for key in archive.files}
    except (ValueError, OSError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())  # NumPy's may span lines
        raise errors.refuse("npz file", str(path), "a readable numpy archive without pickles", reason) from None
    except Exception as error:  # zipfile.BadZipFile and relatives have no common base
        raise errors.refuse("npz file", str(path), "a readable numpy archive", str(error)) from None
    for key in ("x_train", "y_train", "x_test", "y_test"):
        if key not in arrays:
            raise errors.refuse(
                f"{path.name}", "no array " + key, "x_train, y_train, x_test and y_test", "np.savez with these names"
            )
    for side in ("train", "test"):
        x, y = arrays[f"x_{side}"], arrays[f"y_{side}"]
        if x.ndim < 2 or len(x) == 0 or y.shape != x.shape[:1]:
            raise errors.refuse(
                f"{path.name}: x_{side} and y_{side}", f"{x.shape} and {y.shape}", "(records, ...) and (records,)"
            )
        if not np.issubdtype(y.dtype, np.integer):
            raise errors.refuse(f"{path.name}: y_{side}", y.dtype, "integer labels from 0")
        if y.min() < 0:
            raise errors.refuse(f"{path.name}: y_{side}", f"{y.dtype} from {y.min()}", "integer labels from 0")
        if x.dtype.kind not in "biuf":
            raise errors.refuse(f"{path.name}: x_{side}", x.dtype, "real numbers")
        if not np.isfinite(x).all():
            raise errors.refuse(f"{path.name}: x_{side}", "NaN or infinity", "finite", "clean the array")
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        raise errors.refuse(f"{path.name}: x_test", arrays["x_test"].shape, f"shaped like {arrays['x_train'].shape}")
    kinds = arrays["x_train"].dtype, arrays["x_test"].dtype
    if (kinds[0] == np.uint8) != (kinds[1] == np.uint8):  # the scale of one would be wrong for the other
        raise errors.refuse(f"{path.name}: x_train and x_test", f"{kinds[0]} and {kinds[1]}", "both uint8 or neither")
    ids = arrays.get("client_ids")
    if ids is not None and ids.shape != arrays["y_train"].shape:
        raise errors.refuse(f"{path.name}: client_ids", ids.shape, f"{arrays['y_train'].shape}, one per record")
    x_train, x_test = arrays["x_train"], arrays["x_test"]
    scale = 1 / 255 if x_train.dtype == np.uint8 else 1.0
    classes = int(max(arrays["y_train"].max(), arrays["y_test"].max())) + 1
    return Dataset(
        path.stem, x_train, arrays["y_train"].astype(np.int32), x_test, arrays["y_test"].astype(np.int32),
        classes=classes, scale=scale, client_ids=ids,
    )  # fmt: skip


def _idx(name: str, source: _Idx, data_dir: str | os.PathLike | None) -> Dataset:
    paths = [_find(name, source, file, data_dir) for file in source.files]
    arrays = [_read_idx(path) for path in paths]
    for (x, y), path in zip((arrays[:2], arrays[2:]), (paths[1], paths[3]), strict=True):
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
            raise errors.refuse(str(path), f"{y.shape} labels for {x.shape} images", "one label per image")
    x_train, y_train, x_test, y_test = arrays
    if source.transposed:
        x_train, x_test = x_train.transpose(0, 2, 1).copy(), x_test.transpose(0, 2, 1).copy()
    y_train, y_test = (y.astype(np.int32) - source.first_label for y in (y_train, y_test))
    classes = int(y_train.max()) + 1
    for y, path in ((y_train, paths[1]), (y_test, paths[3])):
        if y.min() < 0 or y.max() >= classes:
            low, high = source.first_label, source.first_label + classes - 1  # as they stand in the file
            got = f"labels {y.min() + low} to {y.max() + low}"
            raise errors.refuse(str(path), got, f"labels {low} to {high}", "get the file again")
    return Dataset(name, x_train, y_train, x_test, y_test, classes=classes, scale=1 / 255)


def _read_idx(path: pathlib.Path) -> np.ndarray:
    """An idx file of unsigned bytes, compressed or not."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            raw = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise errors.refuse("data file", str(path), "readable", f"get it again ({error})") from None
    dimensions = raw[3] if len(raw) >= 4 and raw[:3] == b"\0\0\x08" else 0
    if not 1 <= dimensions <= 3 or len(raw) < 4 + 4 * dimensions:
        raise errors.refuse("data file", str(path), "an idx file of unsigned bytes", "get the file again")
    shape = struct.unpack(f">{dimensions}I", raw[4 : 4 + 4 * dimensions])
    body = np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions)
    if body.size != np.prod(shape, dtype=np.int64) or body.size == 0:
        raise errors.refuse("data file", f"{path} with {body.size} bytes", f"as long as its header {shape} says")
    return body.reshape(shape)


def _find(name: str, source: _Idx, file: str, data_dir: str | os.PathLike | None) -> pathlib.Path:
    """The file in the data folder or the cache, else a checked download."""
    import pooch  # only where a file may have to be fetched

    given = data_dir or os.environ.get(DATA_VARIABLE)
    if data_dir is not None and not pathlib.Path(data_dir).is_dir():
        raise errors.refuse("data_dir", str(data_dir), "an existing folder", "create it or leave the option out")
    cache = pathlib.Path(pooch.os_cache("fedjax_dp"))
    for folder in (pathlib.Path(given or cache) / name, cache / name):
        for candidate in (folder / f"{file}.gz", folder / file):
            if candidate.is_file():
                return candidate
    place = f"put {file}.gz into {pathlib.Path(given or cache) / name}, or give --data-dir"
    pooch.get_logger().setLevel("ERROR")
    downloader = pooch.HTTPDownloader(timeout=DOWNLOAD_SECONDS)
    try:
        if source.archive is None:
            known = {"fname": f"{file}.gz", "path": cache / name, "downloader": downloader}
            return pathlib.Path(pooch.retrieve(f"{source.base}{file}.gz", source.files[file], **known))
        address, checksum = source.archive
        member = f"gzip/{file}.gz"
        unpack = pooch.Unzip(members=[member])
        known = {"fname": "archive.zip", "path": cache / name, "downloader": downloader, "processor": unpack}
        return next(pathlib.Path(p) for p in pooch.retrieve(address, checksum, **known) if p.endswith(f"{file}.gz"))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise errors.refuse(
            f"dataset {name}", "missing and not downloadable", "on disk", f"{place} ({reason})"
        ) from None


DATASETS: tuple[str, ...] = ("digits", *_IDX, "npz")
