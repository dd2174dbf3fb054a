"""Data sets of TensorFlow Federated: HDF5 with a file for each split, or SQLite with all splits, also packed.

A file's format follows from its first bytes, its data set from its fields.
Memory: text and numbers once, and one client (HDF5) or one record (SQLite) in addition.
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.files import check_file, check_growth, check_id, check_labels, damage_error
from fedjax_dp.data.reading import NAMES, Reading
from fedjax_dp.data.records import NumberColumn, RecordTable, choose_test, divide, make_dataset
from fedjax_dp.data.store import Dataset
from fedjax_dp.tools.formats import database, hdf5
from fedjax_dp.tools.formats.characters import SNIPPET_OPTIONS, snippets
from fedjax_dp.tools.formats.tf_example import ExampleError, features_of
from fedjax_dp.tools.formats.words import SENTENCE_OPTIONS, sentences

EXAMPLES = ("split_name", "client_id", "serialized_example_proto")
METADATA = ("client_id", "split_name", "num_examples")
HELD_OUT = ("test", "heldout", "held_out")  # the first existing split is the test set
DIGITS, EMNIST = 10, 62  # classes
CIFAR = 100


class Field(NamedTuple):
    """A field to read: text, or numbers of one type and shape."""

    dtype: Any = None
    shape: tuple[int, ...] = ()

    def begin(self) -> Any:
        return [] if self.dtype is None else NumberColumn(self.dtype, self.shape)


class TffLayout(NamedTuple):
    """The fields of one of the data sets, and how they become one."""

    fields: dict[str, Field]
    finish: Callable[[str, str, RecordTable, RecordTable | None, Reading], Dataset]
    options: tuple[str, ...]

    def begin(self) -> RecordTable:
        return RecordTable(**{name: field.begin() for name, field in self.fields.items()})


def tff(named: str, reading: Reading) -> Dataset:
    """The data set of a file; for a training file in HDF5 with the test file in the same folder, if there is one."""
    path = pathlib.Path(named)
    check_file("TFF", path)
    with open(path, "rb") as file:
        beginning = file.read(len(database.MAGIC))
    name, notes = path.name.split(".")[0], list[str]()
    if beginning.startswith(hdf5.MAGIC):
        reading.require_meant({*NAMES} - {"subset"}, "HDF5", "its files hold one split each")
        layout, train = _from_hdf5(path)
        test = None
        if (test_path := _test_file_of(path)) is not None:
            other, test = _from_hdf5(test_path)
            notes.append(f"test records are those of {test_path.name}")
            if other is not layout:
                raise damage_error(
                    test_path, " and ".join(other.fields), f"with {' and '.join(layout.fields)}, as {path.name}"
                )
    elif beginning.startswith((database.MAGIC, *database.PACKED)):
        layout, train, test, notes = _from_database(path, reading.subset)
    else:
        raise damage_error(path, f"{beginning[:8]!r} at its beginning", "HDF5, or SQLite, perhaps packed by lzma or xz")
    reading.require_meant((*layout.options, "subset"), f"a data set of {', '.join(layout.fields)}")
    train.notes += notes
    return layout.finish(name, str(path), train, test, reading)


def _test_file_of(path: pathlib.Path) -> pathlib.Path | None:
    """The test file in the folder of a training file, if there is one."""
    if "train" not in path.name:
        return None
    other = (path.with_name(split.join(path.name.rsplit("train", 1))) for split in HELD_OUT)
    return next((file for file in other if file.is_file()), None)


def _layout_of(where: str, fields: list[str]) -> TffLayout:
    for layout in LAYOUTS:
        if set(layout.fields) <= set(fields):
            return layout
    known = "; ".join(" and ".join(layout.fields) for layout in LAYOUTS)
    raise damage_error(where, f"fields {', '.join(fields)}"[:120] if fields else "no field", f"with fields {known}")


def _from_hdf5(path: pathlib.Path) -> tuple[TffLayout, RecordTable]:
    stored, read, split = path.stat().st_size, 0, RecordTable()
    layout: TffLayout | None = None
    with hdf5.open_file(path) as group:
        for client in hdf5.clients_of(path, group):
            where = f"{path}: {client!r}"
            arrays = hdf5.fields_of(path, group, client)
            if layout is None:
                layout = _layout_of(where, list(arrays))
                split = layout.begin()
            rows: dict[str, Any] = {}
            for name, field in layout.fields.items():
                if name not in arrays:
                    raise damage_error(
                        where, f"fields {', '.join(arrays)}"[:120], f"{name} among them, as the first client"
                    )
                if field.dtype is None:
                    rows[name] = hdf5.texts(f"{where}: {name}", arrays[name], stored)
                    read += sum(map(len, rows[name]))
                else:
                    rows[name] = arrays[name][()]
                    read += rows[name].nbytes
            split.add(client, where, **rows)
            check_growth(path, stored, read)  # the total: links may name one client many times
    if layout is None:
        raise damage_error(path, "no client", "a group for each client")
    return layout, split


def _from_database(
    path: pathlib.Path, subset: str | None
) -> tuple[TffLayout, RecordTable, RecordTable | None, list[str]]:
    """The training and the test split, in one scan; other splits are only counted."""
    layout: TffLayout | None = None
    splits: dict[str, RecordTable] = {}
    counts: dict[tuple[str, str], int] = {}
    with database.open_file(path) as base:
        for table, columns in (("examples", EXAMPLES), ("client_metadata", METADATA)):
            database.check_table(path, base, table, columns)
        announced = _client_counts(path, base)
        train, test, notes = _splits_of(path, {split for split, _ in announced}, subset)
        for number, (split, client, raw) in enumerate(database.rows(path, base, "examples", EXAMPLES)):
            where = f"{path}: example {number}"
            key = split, client
            if key not in announced:
                raise damage_error(where, f"{split!r:.40}, {client!r:.40}", "a split and a client of client_metadata")
            counts[key] = counts.get(key, 0) + 1
            if split not in (train, test):
                continue
            if not isinstance(raw, bytes):
                raise damage_error(where, f"a {type(raw).__name__}", "the bytes of a tf.train.Example")
            try:
                values = features_of(raw, None if layout is None else layout.fields)
                layout = layout or _layout_of(where, sorted(values))
            except ExampleError as error:
                raise damage_error(where, str(error), "a tf.train.Example") from None
            if split not in splits:
                splits[split] = layout.begin()
            splits[split].add(client, where, **_row(where, layout, values))
    if wrong := next((key for key, count in announced.items() if counts.get(key, 0) != count), None):
        where = f"{path}: examples of {wrong[1]!r} in {wrong[0]!r:.40}"
        raise damage_error(where, f"{counts.get(wrong, 0):,}", f"{announced[wrong]:,}, as client_metadata says")
    if layout is None:
        raise damage_error(path, "no example", "a database with examples")
    return layout, splits[train], splits.get(test) if test else None, notes


def _row(where: str, layout: TffLayout, values: dict[str, Any]) -> dict[str, Any]:
    """One record as rows of its fields."""
    rows: dict[str, Any] = {}
    for name, field in layout.fields.items():
        value = values.get(name)
        at = f"{where}: {name}"
        if field.dtype is None:
            if not isinstance(value, list) or len(value) != 1:
                got = "nothing" if value is None else f"{len(value)} values"
                raise damage_error(at, got, "one text")
            rows[name] = value
        else:
            if not isinstance(value, np.ndarray):
                raise damage_error(at, "nothing" if value is None else "text", "numbers")
            rows[name] = value[None] if field.shape else value
            if len(rows[name]) != 1:
                raise damage_error(at, f"{len(value)} numbers", "one number")
    return rows


def _client_counts(path: pathlib.Path, base: Any) -> dict[tuple[str, str], int]:
    """The number of examples by split and client."""
    counts: dict[tuple[str, str], int] = {}
    for client, split, count in database.rows(path, base, "client_metadata", METADATA):
        where = f"{path}: client_metadata"
        check_id(where, client)
        if not isinstance(split, str) or type(count) is not int or count < 1:
            got = f"{client!r}, {split!r:.40} and {count!r:.40}"
            raise damage_error(where, got, "a client, a split, and a number of examples from 1")
        if (split, client) in counts:
            raise damage_error(where, f"{client!r} twice in {split!r:.40}", "each client once in a split")
        counts[split, client] = count
    return counts


def _splits_of(path: pathlib.Path, splits: set[str], subset: str | None) -> tuple[str, str | None, list[str]]:
    """The names of the training and the test split, and notes on the others."""
    subsets = [f"{subset}_"] if subset is not None else ["", "all_"]
    begin = next((prefix for prefix in subsets if f"{prefix}train" in splits), None)
    if begin is None:
        wanted, got = " or ".join(f"{prefix}train" for prefix in subsets), ", ".join(sorted(splits))[:100]
        raise errors.refuse(f"{path}: splits", got or "none", f"with {wanted} among them", "name others by --subset")
    return f"{begin}train", *choose_test(splits, f"{begin}train", [f"{begin}{split}" for split in HELD_OUT])


def _images(
    name: str, where: str, train: RecordTable, test: RecordTable | None, reading: Reading, pixels: str, most: int
) -> Dataset:
    train, test = divide(where, train, test)
    train, test = (part.with_columns(x=part[pixels], y=part["label"]) for part in (train, test))
    for part in (train, test):
        check_labels(where, part["y"], most)
    few = most == EMNIST and max(train["y"].max(), test["y"].max()) < DIGITS
    return make_dataset(name, where, train, test, record_shape=reading.record_shape, classes=DIGITS if few else most)


def _emnist(name: str, where: str, train: RecordTable, test: RecordTable | None, reading: Reading) -> Dataset:
    dataset = _images(name, where, train, test, reading, "pixels", EMNIST)
    return dataset._replace(notes=(*dataset.notes, "paper is 1, as in FEMNIST: the inverse of MNIST"))


def _posts(name: str, where: str, train: RecordTable, test: RecordTable | None, reading: Reading) -> Dataset:
    for split in (train, test):
        if split is not None:  # words are text; undecodable bytes stay distinct
            split.columns["tokens"] = [text.decode("utf-8", "surrogateescape") for text in split.columns["tokens"]]
    return sentences(name, where, train, test, reading)


LAYOUTS = (
    TffLayout({"label": Field(np.int64), "pixels": Field(np.float32, (28, 28))}, _emnist, ("record_shape",)),
    TffLayout(
        {"label": Field(np.int64), "image": Field(np.uint8, (32, 32, 3))},
        functools.partial(_images, pixels="image", most=CIFAR),
        ("record_shape",),
    ),
    TffLayout({"snippets": Field()}, snippets, SNIPPET_OPTIONS),
    TffLayout({"tokens": Field()}, _posts, SENTENCE_OPTIONS),
)
