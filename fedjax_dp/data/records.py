"""From what a file holds to a data set: columns that grow as they are read, clients, and records to test on.

Memory: a column of numbers is held once, as it will stand in the data set, and twice for as long as it takes to hold
test records out.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.checks import check_data
from fedjax_dp.data.files import damaged
from fedjax_dp.data.holdout import split_rows
from fedjax_dp.data.partition import natural
from fedjax_dp.data.reading import shape_of
from fedjax_dp.data.store import Dataset
from fedjax_dp.data.targets import as_arrays, native, stored

CHANNELS = (1, 3, 4)  # of images
MANY = 100  # a pixel above it is no share
TEST_FRACTION = 0.1  # of every client's records, where the files have no test split


class NumberColumn:
    """Rows of numbers of one shape and type, one block behind the other."""

    def __init__(self, dtype: Any, shape: tuple[int, ...] | None = None):
        self._dtype, self._shape, self._held = np.dtype(dtype), shape, bytearray()

    def add(self, where: str, rows: Any) -> None:
        """Take `(records, ...)`; the first block says the shape of a record where nothing else did."""
        rows = _real(where, rows)
        if self._shape is None:
            self._shape = rows.shape[1:]
        if math.prod(rows.shape[1:]) != math.prod(self._shape):
            raise damaged(where, f"records of shape {rows.shape[1:]}", f"of shape {self._shape}, as the others")
        with np.errstate(over="ignore"):
            kept = rows.astype(self._dtype)
        exact = self._dtype.kind == "f" or np.array_equal(kept, rows)
        if not exact or not np.isfinite(kept).all():
            raise damaged(where, "numbers outside of it", f"finite numbers that {self._dtype} holds")
        self._held += kept.tobytes()

    @property
    def array(self) -> np.ndarray:
        """All rows, `(records, ...)`; not a copy."""
        return np.frombuffer(self._held, self._dtype).reshape(-1, *(self._shape or ()))


class Split:
    """Records of one split: columns by name, of numbers or lists of anything, and whose each record is."""

    def __init__(self, owners: np.ndarray | None = None, **columns: Any):
        self.columns, self._owners = columns, owners
        self._clients: list[str] = []
        self._counts: list[int] = []

    def add(self, client: str, records: int) -> None:
        """A client's records have come."""
        self._clients.append(client)
        self._counts.append(records)

    @property
    def owners(self) -> Any:
        """Of each record, text or integers `(records,)`; None: not known."""
        return np.repeat(np.array(self._clients, str), self._counts) if self._clients else self._owners

    def __len__(self) -> int:
        return len(self[next(iter(self.columns))])

    def __getitem__(self, name: str) -> Any:
        column = self.columns[name]
        return column.array if isinstance(column, NumberColumn) else column

    def at(self, rows: np.ndarray) -> "Split":
        """The records in these rows."""
        held = {name: self[name] for name in self.columns}
        taken = {name: a[rows] if isinstance(a, np.ndarray) else [a[row] for row in rows] for name, a in held.items()}
        return Split(None if self.owners is None else self.owners[rows], **taken)


def whole(where: str, train: Split, test: Split | None) -> tuple[tuple[Split, Split], list[str]]:
    """The records to train on and to test on, and the note that says so.

    Without a test split a tenth of every client's records, drawn at random, is held out; of all, where it is not
    known whose they are.
    """
    if test is not None:
        return (train, test), []
    owners = train.owners
    clients = [np.arange(len(train))] if owners is None else natural(owners)
    rows, tests = split_rows(clients, TEST_FRACTION, seed=0)
    if not tests.size:
        raise damaged(where, "one record of every client and no test split", "two of some client, one to test on")
    whose = "all records" if owners is None else "every client's records"
    note = f"no test split: {TEST_FRACTION:.0%} of {whose}, drawn at random, are held out"
    return (train.at(np.sort(rows)), train.at(np.sort(tests))), [note]


def as_task(where: str, y: np.ndarray, task: str) -> np.ndarray:
    """Numbers `(records, ...)` as targets of a task; whether they are in its range is for `data_set`."""
    if task == "regression":
        with np.errstate(over="ignore"):  # infinity is refused later
            return y.reshape(len(y), -1).astype(np.float32)
    if y.ndim != (2 if task == "multi_label" else 1) or task == "sequence":
        wanted = "lists of 0 and 1" if task == "multi_label" else "one number a record"
        got = f"targets of shape {y.shape[1:]}"
        raise damaged(where, got, "text" if task == "sequence" else f"{wanted} for task {task}", "give another --task")
    if not np.array_equal(y, np.floor(y)) or np.abs(y).max() >= 1 << 31:
        raise damaged(where, "targets with fractions", f"whole numbers for task {task}", "--task regression takes any")
    return y.astype(np.int32)


def numbered_labels(words: np.ndarray) -> tuple[np.ndarray, int, list[str]]:
    """Labels of any kind `(records,)` as numbers from 0 in sorted order, how many there are, and the note on it."""
    known, y = np.unique(words, return_inverse=True)
    if np.array_equal(known, np.arange(len(known))):
        return y, len(known), []
    shown = ", ".join([*map(str, known[:5]), *(["..."] if len(known) > 5 else [])])
    return y, len(known), [f"labels in sorted order are classes 0 to {len(known) - 1}: {shown}"]


def reshaped(where: str, x: np.ndarray, record_shape: str | None) -> np.ndarray:
    """Features with their records in the shape of the option, if it is given."""
    if record_shape is None:
        return x
    shape = shape_of(record_shape)
    if math.prod(shape) != math.prod(x.shape[1:]):
        wanted = f"a shape of {math.prod(x.shape[1:]):,} numbers, as {where} has {x.shape[1:]}"
        raise errors.refuse("record_shape", record_shape, wanted)
    return x.reshape(-1, *shape)


def data_set(
    name: str,
    where: str,
    train: tuple[np.ndarray, Any, np.ndarray | None],
    test: tuple[np.ndarray, Any, np.ndarray | None],
    notes: Iterable[str] = (),
    **about: Any,
) -> Dataset:
    """The data set of features, targets and owners of the training and of the test records; `about`: its other fields.

    Where some test record's client has no training records, the test set is not divided among clients. One number of
    each record needs no axis of its own. Bytes are scaled to [0, 1].
    """
    (x_train, y_train, ids), (x_test, y_test, test_ids) = train, test
    x_train, x_test, y_train, y_test = native(x_train), native(x_test), as_arrays(y_train), as_arrays(y_test)
    if about.get("task") == "regression":
        y_train, y_test = (y[:, None] if y.ndim == 1 else y for y in (y_train, y_test))
    prefix, outputs = f"{where}: " if where else "", about.pop("classes", None)
    checked = {key: about[key] for key in ("task", "vocabulary", "tokens") if key in about}
    outputs = check_data(prefix, x_train, y_train, x_test, y_test, outputs, ids, test_ids, **checked)
    notes = list(notes)
    if test_ids is not None:
        if ids is None:
            raise errors.refuse(f"{prefix}client_ids", "none", "given where test_client_ids are")
        if strangers := len(np.setdiff1d(test_ids, ids)):
            test_ids = None
            notes.append(f"the test set is not divided: {strangers:,} of its clients have no training records")
    notes += looks(x_train)
    y_train, y_test = (stored(about.get("task", "classes"), y) for y in (y_train, y_test))
    scale = 1 / 255 if x_train.dtype == np.uint8 else 1.0
    about |= {"classes": outputs, "scale": scale, "client_ids": ids, "test_client_ids": test_ids, "notes": tuple(notes)}
    return Dataset(name, x_train, y_train, x_test, y_test, **about)


def looks(x: np.ndarray) -> list[str]:
    """What features look like that networks would take for something else."""
    notes, shape = [], x.shape[1:]
    if len(shape) == 3 and shape[0] in CHANNELS and shape[2] not in CHANNELS:
        notes.append(
            f"warning: records {shape} look like images with channels first: networks here read them with channels "
            "last, np.moveaxis(x, 1, -1)"
        )
    if len(shape) > 1 and x.dtype != np.uint8 and x.dtype.kind in "iuf" and x.min() >= 0 and MANY < x.max() <= 255:
        notes.append(
            f"warning: features up to {x.max():g} in {x.dtype} are taken as they stand: as uint8 they would be scaled "
            "to [0, 1]"
        )
    return notes


def _real(where: str, rows: Any) -> np.ndarray:
    """Real numbers as an array: lists of lists, all of one length, and no text, truth value or nothing among them."""
    try:
        array = np.asarray(rows)
    except (ValueError, OverflowError):
        raise damaged(where, "records of different lengths", "numbers, as many in every record") from None
    if array.dtype.kind not in "iuf":
        got = {"b": "truth values", "O": "numbers of different kinds, or none"}.get(array.dtype.kind, "text")
        raise damaged(where, got, "real numbers of 64 bits")
    return array
