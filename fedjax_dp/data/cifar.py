"""CIFAR-10 from the original binary or python files, from their archives, or from an npz; and its projection."""

import os
import pathlib
import tarfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedjax_dp.data.client_names import ClientNames
from fedjax_dp.data.files import check_labels, damage_error, read_labelled, require_file, search_folders
from fedjax_dp.data.pickles import PickleError, bytes_only
from fedjax_dp.data.store import Dataset

NAMES = ClientNames(("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"))
CLASSES = len(NAMES)
RECORDS = 10_000  # in each of the six original files
PIXELS = 3 * 32 * 32  # planes of red, green and blue, each row by row
PAIRS = {"x_train": "y_train", "x_test": "y_test"}


class _Form(NamedTuple):
    """One of the two distributed forms of the original data set."""

    folder: str
    archive: str
    files: tuple[str, ...]  # five of training, then one of testing
    decode: Callable[[str, bytes], tuple[np.ndarray, np.ndarray]]  # (pixels, labels) of a file


def cifar10(name: str, data_dir: str | os.PathLike[str] | None) -> Dataset:
    """50,000 + 10,000 images `(32, 32, 3)`; an npz with fewer gives a data set that says so in its name."""
    folders = search_folders(["cifar10"], data_dir)
    for folder in folders:
        for form in FORMS:
            if content := _original(folder, form):
                parts = [form.decode(file, raw) for file, raw in content]
                x = np.concatenate([pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) for pixels, _ in parts])
                y = np.concatenate([labels for _, labels in parts]).astype(np.int32)
                cut = 5 * RECORDS
                return Dataset(
                    name, x[:cut], y[:cut], x[cut:], y[cut:], classes=CLASSES, class_names=NAMES, scale=1 / 255
                )
    what = " or ".join([*(form.archive for form in FORMS), "cifar10.npz with x_train, y_train, x_test and y_test"])
    source = "from https://www.cs.toronto.edu/~kriz/cifar.html"
    path = require_file(name, folders, ("cifar10.npz", "cifar10_quarter.npz"), what, source)
    arrays: dict[str, Any] = read_labelled(path, PAIRS, CLASSES, (32, 32, 3), np.uint8)
    records = len(arrays["y_train"])
    name = name if records == 5 * RECORDS else f"{name} (first {records})"
    return Dataset(name, **arrays, classes=CLASSES, class_names=NAMES, scale=1 / 255)


def cifar10_pca60(name: str, data_dir: str | os.PathLike[str] | None) -> Dataset:
    """CIFAR-10 on the first 60 principal components of its training images, kept as float16 `(60,)`."""
    folders = search_folders([name, "cifar10"], data_dir)
    what = "cifar10_pca60.npz with x_train (records, 60), y_train, x_test and y_test"
    path = require_file(name, folders, ("cifar10_pca60.npz",), what, "pixels / 255, centred and projected")
    arrays: dict[str, Any] = read_labelled(path, PAIRS, CLASSES, (60,), None)
    learnt = ("principal components of all training images",)
    return Dataset(name, **arrays, classes=CLASSES, class_names=NAMES, learnt=learnt)


def _original(folder: pathlib.Path, form: _Form) -> list[tuple[str, bytes]]:
    """Names and contents of the six files of one form, unpacked or in their archive; empty if there is none of them."""
    for base in (folder, folder / form.folder):
        paths = [base / file for file in form.files]
        absent = [path.name for path in paths if not path.is_file()]
        if len(absent) < len(paths):
            if absent:
                raise damage_error(base, "no " + ", ".join(absent), "complete with " + ", ".join(form.files))
            return [(str(path), path.read_bytes()) for path in paths]
    archive = folder / form.archive
    if not archive.is_file():
        return []
    content = {}
    try:
        with tarfile.open(archive) as tar:  # members are read, never unpacked to disk
            for member in tar:
                base_name = pathlib.PurePosixPath(member.name).name
                if base_name in form.files and (file := tar.extractfile(member)) is not None:
                    content[base_name] = file.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise damage_error(archive, "damaged or no archive", "a readable tar.gz", f"get it again ({error})") from None
    if absent := [file for file in form.files if file not in content]:
        raise damage_error(archive, "no " + ", ".join(absent), "complete with " + ", ".join(form.files))
    return [(f"{archive}: {file}", content[file]) for file in form.files]


def _binary(file: str, raw: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Records of one byte of label and 3,072 of pixels."""
    if len(raw) != RECORDS * (1 + PIXELS):
        raise damage_error(file, f"{len(raw)} bytes", f"{RECORDS * (1 + PIXELS)} bytes long, {RECORDS} records")
    table = np.frombuffer(raw, np.uint8).reshape(RECORDS, 1 + PIXELS)
    check_labels(file, table[:, 0], CLASSES)
    return table[:, 1:], table[:, 0]


def _python(file: str, raw: bytes) -> tuple[np.ndarray, np.ndarray]:
    """A pickled dictionary with `data` (records, 3072) and a list of `labels`."""
    try:
        batch = bytes_only(raw)
    except PickleError as error:
        raise damage_error(file, str(error), "a pickle of plain values and arrays of bytes") from None
    batch = batch if isinstance(batch, dict) else {}
    pixels, labels = (batch.get(key.encode(), batch.get(key)) for key in ("data", "labels"))
    if not isinstance(pixels, np.ndarray) or pixels.shape != (RECORDS, PIXELS):
        raise damage_error(f"{file}: data", str(getattr(pixels, "shape", None)), f"bytes {(RECORDS, PIXELS)}")
    if not isinstance(labels, list) or len(labels) != RECORDS or any(type(label) is not int for label in labels):
        raise damage_error(f"{file}: labels", type(labels).__name__, f"a list of {RECORDS} integers")
    check_labels(f"{file}: labels", np.array(labels), CLASSES)
    return pixels, np.array(labels)


_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
FORMS = (
    _Form("cifar-10-batches-bin", "cifar-10-binary.tar.gz", tuple(f"{file}.bin" for file in _FILES), _binary),
    _Form("cifar-10-batches-py", "cifar-10-python.tar.gz", _FILES, _python),
)
