"""Records as readers return them, and the one function that makes a data set of them.

A reader of files, arrays or tables -> a `RecordTable` of each split -> `make_dataset` -> `federate`.
Memory: a column of numbers is held once, in the form of the data set, and twice while test records are held out.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting.neighbours import Unit
from fedjax_dp.data.checks import check_data, generator
from fedjax_dp.data.client_names import as_client_names, plain_name
from fedjax_dp.data.files import damage_error
from fedjax_dp.data.partition import natural
from fedjax_dp.data.reading import shape_of
from fedjax_dp.data.store import Dataset, row_lists
from fedjax_dp.data.targets import as_arrays, as_stored, native, rows_of

CHANNELS = (1, 3, 4)  # of images
MANY = 100  # a pixel above it is not scaled to [0, 1]
TEST_FRACTION = 0.1  # of every client's records, where the files have no test split


class NumberColumn:
    """Rows of numbers of one shape and type, block after block."""

    def __init__(self, dtype: Any, shape: tuple[int, ...] | None = None):
        self._dtype, self._shape, self._bytes = np.dtype(dtype), shape, bytearray()

    def add(self, where: str, rows: Any) -> None:
        """Append `(records, ...)`; the first block sets the shape of a record unless it is known."""
        rows = _real(where, rows)
        if self._shape is None:
            self._shape = rows.shape[1:]
        if math.prod(rows.shape[1:]) != math.prod(self._shape):
            raise damage_error(where, f"records of shape {rows.shape[1:]}", f"of shape {self._shape}, as the others")
        with np.errstate(over="ignore"):
            kept = rows.astype(self._dtype)
        exact = self._dtype.kind == "f" or np.array_equal(kept, rows)
        if not exact or not np.isfinite(kept).all():
            raise damage_error(where, "numbers outside of it", f"finite numbers that {self._dtype} holds")
        self._bytes += kept.tobytes()

    @property
    def array(self) -> np.ndarray:
        """All rows, `(records, ...)`; not a copy."""
        return np.frombuffer(self._bytes, self._dtype).reshape(-1, *(self._shape or ()))


class RecordTable:
    """A table of the records of one split: columns by name, and of each record its client and its unit.

    Columns are arrays, or lists of anything; `make_dataset` takes those named x and y.
    clients, units  text or integers `(records,)`; None if unknown. A unit is a person or a text with several records
    notes           the reader's decisions, for the user
    drawn           whether a reader drew these records of all that it read, to test on them
    """

    drawn = False

    def __init__(
        self,
        clients: np.ndarray | None = None,
        units: np.ndarray | None = None,
        notes: Sequence[str] = (),
        **columns: Any,
    ):
        self.columns, self.units, self.notes = columns, units, [*notes]
        self._clients = clients
        self._names: list[str] = []
        self._spellings: dict[str, str] = {}  # in the file, of each name
        self._counts: list[int] = []

    def add(self, client: str, where: str, **rows: Any) -> None:
        """Append a client's records, as many rows in every column."""
        for name, values in rows.items():
            column = self.columns[name]
            if isinstance(column, NumberColumn):
                column.add(f"{where}: {name}", values)
            else:
                column.extend(values)
        name = plain_name(client)
        if (other := self._spellings.setdefault(name, client)) != client:
            raise damage_error(where, f"{client!r}, and {other!r} elsewhere", "a client's name in one spelling")
        self._names.append(name)
        self._counts.append(len(values))

    @property
    def clients(self) -> Any:
        """The client of each record."""
        return np.repeat(np.array(self._names, str), self._counts) if self._names else self._clients

    def __len__(self) -> int:
        return len(self[next(iter(self.columns))])

    def __getitem__(self, name: str) -> Any:
        column = self.columns[name]
        return column.array if isinstance(column, NumberColumn) else column

    def at(self, rows: np.ndarray) -> "RecordTable":
        """The records in these rows."""

        def pick(values: Any) -> Any:
            return values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]

        units = None if self.units is None else self.units[rows]
        clients = None if self.clients is None else self.clients[rows]
        return RecordTable(clients, units, self.notes, **{name: pick(self[name]) for name in self.columns})

    def split(self, rows: tuple[np.ndarray, np.ndarray], drawn: bool = False) -> tuple["RecordTable", "RecordTable"]:
        """The records in the rows to train on and in those to test on, which a reader may have drawn."""
        train, test = self.at(rows[0]), self.at(rows[1])
        test.drawn = drawn
        return train, test

    def with_columns(self, **columns: Any) -> "RecordTable":
        """The same records with other columns."""
        table = RecordTable(self.clients, self.units, self.notes, **columns)
        table.drawn = self.drawn
        return table


def split_each(
    clients: Sequence[np.ndarray], fraction: float, seed: int, names: Sequence[Any] | np.ndarray | None = None
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Training and test rows of every client: `floor((1 - fraction) n)` of its n rows train, at least one does.

    So a client with one record keeps it, and one with two or more gives at least one away.
    names  of the clients: each draws from a stream of its name, so that no other client changes its split.
    """
    errors.require_in_unit_interval("holdout", fraction)
    rng = generator("holdout", seed)
    train, test = [], []
    for client, rows in enumerate(row_lists(clients)):
        rng = rng if names is None else generator(f"holdout of {names[client]}", seed)
        kept = max(1, int((1 - fraction) * len(rows) + 1e-9))  # 0.9 * 10 must not be 8
        order = rng.permutation(len(rows))
        train.append(rows[np.sort(order[:kept])])
        test.append(rows[np.sort(order[kept:])])
    return train, test


def split_rows(clients: Sequence[np.ndarray], fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows of all clients, one after another, as `split_each` has them."""
    train, test = split_each(clients, fraction, seed)
    return np.concatenate(train), np.concatenate(test)


def split_owners(ids: np.ndarray | None, records: int, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows of all records, of every owner's if `ids` `(records,)` say who that is, in order."""
    parts, names = ([np.arange(records)], None) if ids is None else (natural(ids), np.unique(ids))
    train, test = split_each(parts, fraction, 0, names)
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))


def hold_out_owners(where: str, ids: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows, each owner's all on one side.

    An owner's name alone decides. Where that holds out nobody, the one with the least draw is: one owner more or less
    still changes the training records of one alone.
    """
    names, place = np.unique(ids, return_inverse=True)
    draws = np.array([generator(f"holdout of {name}", 0).random() for name in names])
    held = (draws <= max(fraction, draws.min()))[place]
    if held.all():
        raise errors.refuse(f"{where}users", f"{len(names)}, all held out", "one to train on", "give a column split")
    return np.flatnonzero(~held), np.flatnonzero(held)


def choose_test(splits: Collection[str], train: str, candidates: Sequence[str]) -> tuple[str | None, list[str]]:
    """The split to test on, the first of the candidates that is there, and notes on it and on those that are left."""
    test = next((name for name in candidates if name in splits), None)
    rest = sorted({*splits} - {train, test})
    notes = [f"splits that are not used: {', '.join(rest)}"[:200]] if rest else []
    if test is not None and not test.endswith("test"):
        notes.append(f"tested on the split {test}")
    return test, notes


def divide(where: str, train: RecordTable, test: RecordTable | None) -> tuple[RecordTable, RecordTable]:
    """The records to train on and to test on.

    Without a test split a random tenth of every client's records is held out, or of all records if their clients are
    unknown. A note reports it.
    """
    if test is not None:
        return train, test
    rows, tests = split_owners(train.clients, len(train), TEST_FRACTION)
    if not tests.size:
        raise damage_error(where, "one record of every client and no test split", "two of some client, one to test on")
    whose = "all records" if train.clients is None else "every client's records"
    train.notes.append(f"no test split: {TEST_FRACTION:.0%} of {whose}, drawn at random, are held out")
    return train.split((rows, tests), drawn=True)


def as_task(where: str, y: np.ndarray, task: str) -> np.ndarray:
    """Numbers `(records, ...)` as targets of a task; whether they are in its range is for `make_dataset`."""
    if task == "regression":
        with np.errstate(over="ignore"):  # infinity is refused later
            return y.reshape(len(y), -1).astype(np.float32)
    where = where or "labels"  # of a DataFrame
    if y.ndim != (2 if task == "multi_label" else 1) or task == "sequence":
        kind = "lists of 0 and 1" if task == "multi_label" else "one number a record"
        wanted = "text" if task == "sequence" else f"{kind} for task {task}"
        raise damage_error(where, f"targets of shape {y.shape[1:]}", wanted, "give another --task")
    if not np.array_equal(y, np.floor(y)) or not -(1 << 31) <= y.min() <= y.max() < 1 << 31:
        raise damage_error(
            where, "targets with fractions", f"whole numbers for task {task}", "--task regression takes any"
        )
    return y.astype(np.int32)


def number_labels(words: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Labels of any kind `(records,)` as numbers from 0 in sorted order, the classes in it, and a note on it."""
    known, y = np.unique(words, return_inverse=True)
    if np.array_equal(known, np.arange(len(known))):
        return y, known, []
    shown = ", ".join([*map(str, known[:5]), *(["..."] if len(known) > 5 else [])])
    return y, known, [f"labels in sorted order are classes 0 to {len(known) - 1}: {shown}"]


def reshape_records(where: str, x: np.ndarray, record_shape: str | None) -> np.ndarray:
    """Features with records in the shape of the option, if set."""
    if record_shape is None:
        return x
    shape = shape_of(record_shape)
    if math.prod(shape) != math.prod(x.shape[1:]):
        wanted = f"a shape of {math.prod(x.shape[1:]):,} numbers, as {where} has {x.shape[1:]}"
        raise errors.refuse("record_shape", record_shape, wanted)
    return x.reshape(-1, *shape)


def make_dataset(
    name: str,
    where: str,
    train: RecordTable,
    test: RecordTable | None,
    *,
    record_shape: str | None = None,
    **about: Any,
) -> Dataset:
    """The data set of records with columns x and y; `about`: its other fields.

    Without test records `divide` holds some out. Where some test record's client has no training records, the test set
    is not divided among clients. One number of each record needs no axis of its own. Bytes are scaled to [0, 1], unless
    `about` says otherwise.
    record_shape  of features that stand in one row, such as 28,28.
    """
    train, test = divide(where, train, test)
    task, notes, prefix = about.get("task", "classes"), train.notes, f"{where}: " if where else ""
    x_train, x_test = (reshape_records(where, native(part["x"]), record_shape) for part in (train, test))
    y_train, y_test = (as_arrays(part["y"]) for part in (train, test))
    if task == "regression":
        y_train, y_test = (y[:, None] if y.ndim == 1 else y for y in (y_train, y_test))
    clients, test_clients, outputs = train.clients, test.clients, about.pop("classes", None)
    if about.get("class_names") is not None:
        about["class_names"] = as_client_names(about["class_names"])
    checked = {key: about[key] for key in ("task", "vocabulary", "tokens") if key in about}
    outputs = check_data(prefix, x_train, y_train, x_test, y_test, outputs, clients, test_clients, **checked)
    if test_clients is not None:
        if clients is None:
            raise errors.refuse(f"{prefix}client_ids", "none", "given where test_client_ids are")
        if strangers := len(np.setdiff1d(test_clients, clients)):
            test_clients = test_clients if np.isin(test_clients, clients).any() else None
            notes.append(f"the test set is not divided: {strangers:,} of its clients have no training records")
    shared = False
    if train.units is not None and test.units is not None:
        shared = bool(np.isin(test.units, train.units).any())
    units = {"unit_ids": train.units, "tests_of_units": shared, "tests_drawn": test.drawn}
    about = {"scale": 1 / 255 if x_train.dtype == np.uint8 else 1.0, **units, **about}
    about |= {"classes": outputs, "client_ids": clients, "test_client_ids": test_clients}
    y_train, y_test = as_stored(task, y_train), as_stored(task, y_test)
    return Dataset(name, x_train, y_train, x_test, y_test, notes=(*notes, *warnings_on(x_train)), **about)


def warnings_on(x: np.ndarray) -> list[str]:
    """Warnings about features that networks would misread."""
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
    """Real numbers as an array, from lists of equal length without text, truth values or None."""
    try:
        array = np.asarray(rows)
    except (ValueError, OverflowError):
        raise damage_error(where, "records of different lengths", "numbers, as many in every record") from None
    if array.dtype.kind not in "iuf":
        got = {"b": "truth values", "O": "numbers of different kinds, or none"}.get(array.dtype.kind, "text")
        raise damage_error(where, got, "real numbers of 64 bits")
    return array


def pool_records(dataset: Dataset) -> Dataset:
    """Training and test records together as training records, in this order; nothing is left to test on.

    Pieces of one text may then be on both sides, so no bound on tokens holds any more.
    """
    ids = dataset.client_ids, dataset.test_client_ids
    return dataset._replace(
        x_train=np.concatenate([dataset.x_train, dataset.x_test]),
        y_train=jax.tree.map(lambda *parts: np.concatenate(parts), dataset.y_train, dataset.y_test),
        x_test=dataset.x_test[:0],
        y_test=rows_of(dataset.y_test, slice(0)),
        client_ids=None if ids[0] is None or ids[1] is None else np.concatenate([ids[0], ids[1]]),
        test_client_ids=None,
        unit_ids=None,
        bounds=tuple(bound for bound in dataset.bounds if bound.unit is not Unit.TOKEN),
    )


def hold_out(
    dataset: Dataset, clients: Sequence[np.ndarray], fraction: float, seed: int
) -> tuple[Dataset, list[np.ndarray], np.ndarray]:
    """Each client keeps `fraction` of its own records as its part of the test set, which replaces the data set's.

    Returns the data set, the clients' training rows and, for each test record, the client whose part it is: what
    `federate` takes. Meant for `pooled` data (cpfed: Adult, 16 clients of 3,052 records, 2,441 of them to train on).
    """
    train, test = split_each(clients, fraction, seed)
    if not any(len(part) for part in test):
        raise errors.refuse("holdout", fraction, "used where some client has two records", "use fewer clients")
    rows = np.concatenate(test)
    owners = np.repeat(np.arange(len(test)), [len(part) for part in test])
    x_test, y_test = dataset.x_train[rows], rows_of(dataset.y_train, rows)
    return dataset._replace(x_test=x_test, y_test=y_test, test_client_ids=None), train, owners
