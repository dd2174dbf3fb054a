"""UCI Adult (Census Income): who earns more than 50K."""

import importlib.resources
import math
import os
import pathlib
import tomllib

import numpy as np

from fedjax_dp.data.client_names import ClientNames
from fedjax_dp.data.files import damage_error, first_file, missing_file_error, search_folders
from fedjax_dp.data.store import Dataset

# Columns in the order of the files, and the words of categorical ones.
FIELDS = tomllib.loads(importlib.resources.files("fedjax_dp.data").joinpath("adult.toml").read_text("utf-8"))
COLUMNS = tuple(FIELDS)
CATEGORIES = {name: tuple(words.split()) for name, words in FIELDS.items() if words}
NUMERIC = tuple(name for name in COLUMNS if name not in CATEGORIES)
LABELS = ("<=50K", ">50K")


def adult(name: str, data_dir: str | os.PathLike[str] | None) -> Dataset:
    """32,561 + 16,281 records of the official split; label 1 is more than 50K.

    adult       the 8 categorical columns one-hot: 102 features, 0 or 1;
    adult_full  those and the 6 numeric columns, with mean 0 and standard deviation 1 on the training set: 108.
    """
    folders = search_folders(["adult"], data_dir)
    paths = [first_file(folders, (file,)) for file in ("adult.data", "adult.test")]
    if paths[0] is None or paths[1] is None:
        raise missing_file_error(
            name, folders[0], "adult.data and adult.test", "from https://archive.ics.uci.edu/dataset/2/adult"
        )
    (train, y_train), (test, y_test) = (_read(path) for path in paths if path)
    x_train, x_test = (  # the columns one after the other
        np.concatenate([np.eye(len(w), dtype=np.uint8)[fields[c].astype(int)] for c, w in CATEGORIES.items()], axis=1)
        for fields in (train, test)
    )
    if name == "adult_full":
        numbers_train, numbers_test = (np.stack([fields[c] for c in NUMERIC], axis=1) for fields in (train, test))
        mean, std = numbers_train.mean(0), numbers_train.std(0)
        std = np.where(std > 0, std, 1.0)
        x_train, x_test = (
            np.concatenate([x, (numbers - mean) / std], axis=1, dtype=np.float32)
            for x, numbers in ((x_train, numbers_train), (x_test, numbers_test))
        )
    learnt = ("mean and deviation of each numeric column",) if name == "adult_full" else ()
    return Dataset(name, x_train, y_train, x_test, y_test, classes=2, learnt=learnt, class_names=ClientNames(LABELS))


def _read(path: pathlib.Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Columns of a file, categories as indices, and labels. adult.test has a remark above and dots at the ends."""
    wanted = [*COLUMNS, "label"]
    index = {name: {word: place for place, word in enumerate(words)} for name, words in CATEGORIES.items()}
    index["label"] = {word: place for place, word in enumerate(LABELS)}
    table: list[list[float]] = []
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError as error:
        raise damage_error(path, f"byte {error.start} that is no ASCII", "text") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("|"):
            continue
        words = line.rstrip().removesuffix(".").split(", ")
        if len(words) != len(wanted):
            raise damage_error(
                f"{path}, line {number}", f"{len(words)} fields", f"{len(wanted)} fields, with ', ' between"
            )
        table.append(
            [_value(f"{path}, line {number}, {name}", word, index.get(name)) for name, word in zip(wanted, words)]
        )
    values = np.array(table).reshape(-1, len(wanted))
    if not len(values):
        raise damage_error(path, "no record", "at least one")
    fields = {name: values[:, place] for place, name in enumerate(wanted)}
    return fields, fields.pop("label").astype(np.int32)


def _value(where: str, word: str, index: dict[str, int] | None) -> float:
    """Place of a category, or a finite number."""
    if index is not None:
        if word not in index:
            raise damage_error(where, repr(word), "one of " + ", ".join(index))
        return index[word]
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise damage_error(where, repr(word), "a finite number")
    return number
