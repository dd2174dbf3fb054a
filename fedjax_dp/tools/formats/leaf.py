"""LEAF's JSON files: {users, num_samples, user_data {user: {x, y}}} in data/train and data/test.

Memory: one file at a time as Python's values (some 32 bytes for each number), and the used columns.
Source: Caldas et al. 2018, arXiv:1812.01097, and its published readers; `hierarchies` is not used.
"""

import functools
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fedjax_dp import errors, folders
from fedjax_dp.data.client_names import plain_name
from fedjax_dp.data.files import check_id, damage_error
from fedjax_dp.data.json_files import kind_of, list_of, object_of, read_json
from fedjax_dp.data.reading import Reading
from fedjax_dp.data.records import NumberColumn, RecordTable, as_task, divide, make_dataset
from fedjax_dp.data.store import Dataset
from fedjax_dp.tools.formats.characters import WINDOW_OPTIONS, windows
from fedjax_dp.tools.formats.words import CLASSIFIED_OPTIONS, ROW_OPTIONS, text_classes, token_rows

FEMNIST = (784, 62)  # numbers of an image, classes
WHOLE = ("all_data", "sampled_data")  # folders of files without a split
SENT140 = 6  # fields of a record: id, date, query, user, text, split
TEXT = 4  # the only one that is read


class LeafLayout(NamedTuple):
    """The structure of the records of one of LEAF's data sets."""

    name: str
    fits: Callable[[Any, Any], bool]  # x and y of a record
    begin: Callable[[], RecordTable]
    rows: Callable[[RecordTable, str, list[Any], list[Any]], dict[str, Any]]  # of x and y of a user's records
    finish: Callable[[str, str, RecordTable, RecordTable | None, Reading], Dataset]
    options: tuple[str, ...]


def leaf(named: str, reading: Reading) -> Dataset:
    """The data set of a folder with data/train and data/test, of a folder with .json files, or of one such file.

    Without test files, a tenth of every client's records is held out.
    """
    path = pathlib.Path(named)
    folders = _files(path)
    layout: LeafLayout | None = None
    users: dict[str, set[str]] = {}
    splits: dict[str, RecordTable] = {}
    for split, files in folders.items():
        for file in files:
            for where, user, x, y in _users(file, users.setdefault(split, set())):
                if layout is None:
                    layout = _layout_of(where, x[0], y[0])
                if split not in splits:
                    splits[split] = layout.begin()
                splits[split].add(user, where, **layout.rows(splits[split], where, x, y))
    if layout is None:
        raise damage_error(path, "no user", "LEAF's files with users in them")
    reading.require_meant(layout.options, f"LEAF's {layout.name}")
    names = [part for part in path.absolute().parts if part not in ("data", "train", *WHOLE)]
    return layout.finish(pathlib.Path(names[-1]).stem, str(path), splits["train"], splits.get("test"), reading)


def _files(path: pathlib.Path) -> dict[str, list[pathlib.Path]]:
    """The files of the splits, sorted by name."""
    if os.path.isfile(path):  # Path.is_file raises for some impossible names
        return {"train": [path]}
    if not os.path.isdir(path):
        raise errors.refuse("leaf folder", folders.printable(str(path)), "an existing folder, or a .json file")
    for base in (path / "data", path):
        for train in ("train", *WHOLE):
            splits = {"train": _json(base / train)}
            if train == "train" and (base / "test").is_dir():
                splits["test"] = _json(base / "test")
                if not splits["test"]:
                    raise damage_error(base / "test", "no .json file", "LEAF's files of test records")
            if splits["train"]:
                return splits
    if whole_files := _json(path):
        return {"train": whole_files}
    raise damage_error(path, "no .json file in it or in data/train", "a folder of LEAF's")


def _json(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(file for file in folder.glob("[!.]*") if file.name.lower().endswith((".json", ".json.gz")))


def _users(path: pathlib.Path, known: set[str]) -> Iterator[tuple[str, str, list[Any], list[Any]]]:
    """Each user of a file: its place for error messages, its name, and x and y of its records."""
    content = object_of(str(path), read_json(path), ("users", "num_samples", "user_data"))
    users = list_of(f"{path}: users", content["users"])
    counts = list_of(f"{path}: num_samples", content["num_samples"], int, "integers")
    data = object_of(f"{path}: user_data", content["user_data"])
    if len(counts) != len(users) or len(data) != len(users):
        got = f"{len(counts)} and {len(data)}"
        raise damage_error(f"{path}: num_samples and user_data", got, f"of {len(users)}, one for each of users")
    for user, count in zip(users, counts):
        check_id(f"{path}: users", user)
        where, plain = f"{path}: {user!r}", plain_name(user)
        if plain in known:
            raise damage_error(f"{path}: users", f"{user!r} twice", "each user once in all files of a split")
        known.add(plain)
        records = object_of(where, data.get(user), ("x", "y"))
        x, y = (list_of(f"{where}: {name}", records[name]) for name in ("x", "y"))
        if not len(x) == len(y) == count:
            raise damage_error(where, f"{len(x)} x and {len(y)} y", f"{count} of each, as num_samples says")
        if not count:
            raise damage_error(where, "no record", "at least one", "drop the user")
        yield where, user, x, y


def _layout_of(where: str, x: Any, y: Any) -> LeafLayout:
    for layout in LAYOUTS:
        if layout.fits(x, y):
            return layout
    if _is_list_of(x, (int, float, list)) and isinstance(y, str):
        raise damage_error(f"{where}: y", f"text, {y[:40]!r}", "numbers", 'labels stand without quotes, "y": [0, 1]')
    got = f"x: {_kind(x)}, y: {_kind(y)}"
    remedy = "compare it with a file of LEAF's"
    if isinstance(x, str) and isinstance(y, int):
        remedy = "a text with a class is the fifth of six fields; csv:FILE with --length 25 reads a column of texts"
    raise damage_error(f"{where}, record 0", got, f"as in {', '.join(layout.name for layout in LAYOUTS)}", remedy)


def _kind(value: Any) -> str:
    return f"list of {_kind(value[0])}" if isinstance(value, list) and value else kind_of(value)


# Numbers: FEMNIST, Synthetic and others.


def _numbers(name: str, where: str, train: RecordTable, test: RecordTable | None, reading: Reading) -> Dataset:
    train, test = divide(where, train, test)
    targets, classes, task = [train["y"], test["y"]], None, reading.task
    plain = all(y.ndim == 1 and np.array_equal(y, np.floor(y)) for y in targets)
    femnist = train["x"].shape[1:] == FEMNIST[:1] and task in (None, "classes") and plain
    if femnist and 10 <= targets[0].max() < FEMNIST[1]:
        classes = FEMNIST[1]
        train.notes.append("62 classes and paper 1, as in FEMNIST: the inverse of MNIST")
    if task is None:
        task = "classes" if plain else "regression"
        train.notes += [] if plain else ["targets are no whole numbers: task regression; --task says another"]
    targets = [as_task(where, y, task) for y in targets]
    if task == "classes" and classes is None:
        targets, notes = _from_zero(where, targets)
        train.notes += notes
    train, test = (part.with_columns(x=part["x"], y=y) for part, y in zip((train, test), targets))
    return make_dataset(name, where, train, test, record_shape=reading.record_shape, task=task, classes=classes)


def _from_zero(where: str, targets: list[np.ndarray]) -> tuple[list[np.ndarray], list[str]]:
    """Labels that count from 1 shifted to 0, with a note; labels that count from 0 unchanged."""
    present = np.unique(np.concatenate(targets))
    if np.array_equal(present, np.arange(1, len(present) + 1)):
        return [y - 1 for y in targets], [f"labels 1 to {len(present)} are classes 0 to {len(present) - 1}"]
    if not np.array_equal(present, np.arange(len(present))):
        absent = next(one for one in range(len(present) + 1) if one not in present)
        got = f"labels from {present[0]}"
        if present[0] >= 0:
            got = f"{len(present)} labels up to {present[-1]} without {absent}"
        remedy = "number them in the files, or predict them as numbers: --task regression"
        raise damage_error(f"{where}: y", got, "every number from 0 to the largest", remedy)
    return targets, []


# Shakespeare: 80 characters and the next one, a record for each position in a text.


def _characters(split: RecordTable, where: str, x: list[Any], y: list[Any]) -> dict[str, Any]:
    inputs, outputs = (list_of(f"{where}: {name}", column, str, "text") for name, column in (("x", x), ("y", y)))
    length = len(split["rows"][0]) - 1 if split["rows"] else len(inputs[0])
    for place, (text, after) in enumerate(zip(inputs, outputs)):
        if len(text) != length or len(after) != 1 or not length:
            got = f"{len(text)} and {len(after)} characters in record {place}"
            raise damage_error(where, got, f"{length or 'some'} of x and one of y, as in the first record")
    return {"rows": [text + after for text, after in zip(inputs, outputs)]}


# Sentiment140: the text of a message, the fifth of six fields. The fourth is the user's name, which is no feature.


def _messages(split: RecordTable, where: str, x: list[Any], y: list[Any]) -> dict[str, Any]:
    texts = []
    for place, record in enumerate(x):
        fields = list_of(f"{where}: x, record {place}", record, str, "text")
        if len(fields) != SENT140:
            raise damage_error(
                f"{where}: x, record {place}", f"{len(fields)} fields", f"{SENT140}, the fifth is the text"
            )
        texts.append(fields[TEXT])
    for label in list_of(f"{where}: y", y, int, "integers"):
        if label not in (0, 1):
            raise damage_error(f"{where}: y", str(label)[:40], "0 or 1")
    return {"text": texts, "y": y}


# Reddit: a comment has rows of ten tokens, cut and padded, and the next tokens. A record is one row.


def _comments(split: RecordTable, where: str, x: list[Any], y: list[Any]) -> dict[str, Any]:
    rows: list[tuple[str, ...]] = []
    for place, (inputs, target) in enumerate(zip(x, y)):
        at = f"{where}, comment {place}"
        outputs = object_of(f"{at}: y", target, ("target_tokens",))["target_tokens"]
        both = [list_of(f"{at}: x", inputs), list_of(f"{at}: target_tokens", outputs)]
        if len(both[0]) != len(both[1]):
            raise damage_error(at, f"{len(both[0])} and {len(both[1])} sequences", "as many of x as of target_tokens")
        for tokens, after in zip(*both):
            list_of(f"{at}: x", tokens, str, "tokens")
            list_of(f"{at}: target_tokens", after, str, "tokens")
            first = next(iter(split["rows"] or rows), None)
            length = len(tokens) if first is None else len(first) - 1
            if not len(tokens) == len(after) == length or not length:
                got = f"{len(tokens)} and {len(after)} tokens"
                raise damage_error(at, got, f"{length or 'some'} and as many, as in the first record")
            if tokens[1:] != after[:-1]:
                raise damage_error(f"{at}: target_tokens", "others", "the tokens of x, one on")
            rows.append(tuple(map(sys.intern, (*tokens, after[-1]))))
    if not rows:
        raise damage_error(where, "no sequence", "at least one", "drop the user")
    return {"rows": rows}


def _is_list_of(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], kind)


LAYOUTS = (
    LeafLayout(
        "numbers",
        lambda x, y: _is_list_of(x, (int, float, list)) and isinstance(y, int | float | list),
        lambda: RecordTable(x=NumberColumn(np.float32), y=NumberColumn(np.float64)),
        lambda split, where, x, y: {"x": x, "y": y},
        _numbers,
        ("task", "record_shape"),
    ),
    LeafLayout(
        "Shakespeare",
        lambda x, y: isinstance(x, str) and isinstance(y, str),
        lambda: RecordTable(rows=[]),
        _characters,
        windows,
        WINDOW_OPTIONS,
    ),
    LeafLayout(
        "Sentiment140",
        lambda x, y: _is_list_of(x, str) and isinstance(y, int),
        lambda: RecordTable(text=[], y=[]),
        _messages,
        functools.partial(text_classes, classes=2),
        CLASSIFIED_OPTIONS,
    ),
    LeafLayout(
        "Reddit",
        lambda x, y: _is_list_of(x, list) and isinstance(y, dict),
        lambda: RecordTable(rows=[]),
        _comments,
        token_rows,
        ROW_OPTIONS,
    ),
)
