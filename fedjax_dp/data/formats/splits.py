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
from fedjax_dp.data.holdout import split_each
from fedjax_dp.data.partition import natural
from fedjax_dp.data.reading import shape_of
from fedjax_dp.data.store import Dataset
from fedjax_dp.data.targets import as_arrays, native

TEST_FRACTION = 0.1  # of every client's records, where the files have no test split


class Numbers:
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
    """One split as it is read: whose record each is, and columns by name, of numbers or lists of anything."""

    def __init__(self, **columns: Any):
        self.columns, self._owners, self._counts = columns, list[str](), list[int]()
        self._given: np.ndarray | None = None

    def add(self, client: str, records: int) -> None:
        """A client's records have come."""
        self._owners.append(client)
        self._counts.append(records)

    def own(self, owners: np.ndarray | None, records: int) -> None:
        """All records at once, and whose they are, if somebody says it."""
        self._given, self._counts = owners, [records]

    @property
    def owners(self) -> Any:
        """Of each record, text or integers `(records,)`; None: nobody says."""
        return np.repeat(np.array(self._owners, str), self._counts) if self._owners else self._given

    def __len__(self) -> int:
        return sum(self._counts)

    def __getitem__(self, name: str) -> Any:
        column = self.columns[name]
        return column.array if isinstance(column, Numbers) else column


class Part:
    """Some records of a split: those to train or those to test on."""

    def __init__(self, split: Split, rows: np.ndarray | None = None):
        self._split, self._rows = split, rows

    def __getitem__(self, name: str) -> Any:
        return self._of(self._split[name])

    @property
    def owners(self) -> Any:
        """Of each record, text or integers `(records,)`; None: nobody says."""
        return self._of(self._split.owners)

    def _of(self, column: Any) -> Any:
        if self._rows is None or column is None:
            return column
        return column[self._rows] if isinstance(column, np.ndarray) else [column[row] for row in self._rows]


def whole(where: str, train: Split, test: Split | None) -> tuple[tuple[Part, Part], list[str]]:
    """The records to train on and to test on, and the note that says so.

    Without a test split a tenth of every client's records, drawn at random, is held out; of all, where nobody says
    whose they are.
    """
    if test is not None:
        return (Part(train), Part(test)), []
    owners = train.owners
    clients = [np.arange(len(train))] if owners is None else natural(owners)
    rows, tests = (np.concatenate(part) for part in split_each(clients, TEST_FRACTION, seed=0))
    if not tests.size:
        raise damaged(where, "one record of every client and no test split", "two of some client, one to test on")
    whose = "all records" if owners is None else "every client's records"
    note = f"no test split: {TEST_FRACTION:.0%} of {whose}, drawn at random, are held out"
    return (Part(train, np.sort(rows)), Part(train, np.sort(tests))), [note]


def as_task(where: str, y: np.ndarray, task: str) -> np.ndarray:
    """Numbers `(records, ...)` as targets of a task; whether they are in its range is for `made`."""
    if task == "regression":
        with np.errstate(over="ignore"):  # told as infinity
            return y.reshape(len(y), -1).astype(np.float32)
    if y.ndim != (2 if task == "multi_label" else 1) or task == "sequence":
        wanted = "lists of 0 and 1" if task == "multi_label" else "one number a record"
        got = f"targets of shape {y.shape[1:]}"
        raise damaged(where, got, "text" if task == "sequence" else f"{wanted} for task {task}", "give another --task")
    if not np.array_equal(y, np.floor(y)) or np.abs(y).max() >= 1 << 31:
        raise damaged(where, "targets with fractions", f"whole numbers for task {task}", "--task regression takes any")
    return y.astype(np.int32)


def reshaped(where: str, x: np.ndarray, told: str | None) -> np.ndarray:
    """Features with their records in the shape that was asked for."""
    if told is None:
        return x
    shape = shape_of(told)
    if math.prod(shape) != math.prod(x.shape[1:]):
        wanted = f"a shape of {math.prod(x.shape[1:]):,} numbers, as {where} has {x.shape[1:]}"
        raise errors.refuse("record_shape", told, wanted)
    return x.reshape(-1, *shape)


def made(
    name: str,
    where: str,
    train: tuple[np.ndarray, Any, np.ndarray | None],
    test: tuple[np.ndarray, Any, np.ndarray | None],
    notes: Iterable[str] = (),
    **about: Any,
) -> Dataset:
    """The data set of features, targets and owners of the training and of the test records; `about` says the rest.

    Where some test record's client has no training records, the test set is nobody's part.
    """
    (x_train, y_train, ids), (x_test, y_test, test_ids) = train, test
    (x_train, x_test), (y_train, y_test) = map(native, (x_train, x_test)), map(as_arrays, (y_train, y_test))
    whose = test_ids
    notes = list(notes)
    strangers = 0 if ids is None or test_ids is None else len(np.setdiff1d(test_ids, ids))
    if strangers:
        whose = None
        notes.append(f"the test set is not divided: {strangers:,} of its clients have no training records")
    checked = {key: about[key] for key in ("task", "vocabulary", "tokens") if key in about}
    classes = check_data(
        f"{where}: ", x_train, y_train, x_test, y_test, about.pop("classes", None), ids, whose, **checked
    )
    return Dataset(
        name,
        x_train,
        y_train,
        x_test,
        y_test,
        classes=classes,
        scale=1 / 255 if x_train.dtype == np.uint8 else 1.0,
        client_ids=ids,
        test_client_ids=whose,
        notes=tuple(notes),
        **about,
    )


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
