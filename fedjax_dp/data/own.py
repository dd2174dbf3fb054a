"""A user's own data: arrays, a pandas DataFrame, an npz, CSV or Parquet file."""

import pathlib
from typing import Any, NamedTuple

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.files import check_file, check_keys, damaged, read_npz
from fedjax_dp.data.formats.arrow_streams import read_parquet
from fedjax_dp.data.formats.splits import as_task, data_set, numbered_labels, reshaped
from fedjax_dp.data.holdout import split_each
from fedjax_dp.data.partition import natural
from fedjax_dp.data.reading import Reading
from fedjax_dp.data.store import Dataset
from fedjax_dp.data.targets import OWN, Vocabulary, as_arrays, check_vocabulary, native

LABEL = "label"  # the column of labels, where no other is named
SPLIT = "split"  # a column that says train or test
FAR_APART = 100  # sizes of columns, of which the run tells
TEST_FRACTION = 0.2  # of a table that does not say which records are for testing
SEVERAL = ("regression", "multi_label")  # tasks whose targets may stand in several columns
OF_TABLES = ("classes", "binary", *SEVERAL)
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def dataset(
    x_train: Any,
    y_train: Any = None,
    x_test: Any = None,
    y_test: Any = None,
    *,
    classes: int | None = None,
    client_ids: Any = None,
    test_client_ids: Any = None,
    label: str | None = None,
    client: str | None = None,
    test: Any = None,
    task: str = "classes",
    vocabulary: Vocabulary | None = None,
    name: str = "own",
) -> Dataset:
    """A data set of arrays `x_train, y_train, x_test, y_test`, or of a pandas DataFrame with its columns named.

    classes          number of classes; left out, every label from 0 to the largest must occur;
    client_ids       one per training record, integers or text; test_client_ids likewise for test records;
    task             what targets are: classes, binary, multi_label, regression, sequence, or own (classes then says how
                     many outputs a model has);
    vocabulary       of features, and targets of sequences, that are tokens;
    label, client    of a DataFrame: the columns of labels and of clients, all others are features; several labels for
                     regression and multi_label have commas between their names;
    test             of a DataFrame: another one, or the fraction of records to test on (of every client's, where
                     clients are named); left out, a column `split` says train or test, else it is a fifth.
    Bytes are scaled to [0, 1]. Labels of a DataFrame may be anything; sorted, they are the classes.
    Raises: ConfigurationError, in one line, for anything that is no data set.
    """
    if hasattr(x_train, "columns") and y_train is None:
        of_arrays = {"x_test": x_test, "y_test": y_test, "classes": classes, "vocabulary": vocabulary}
        for what, one in (of_arrays | {"client_ids": client_ids, "test_client_ids": test_client_ids}).items():
            if one is not None:
                raise errors.refuse(what, "an argument", "left out for a DataFrame", "name columns and give test=")
        return from_frame(name, "", x_train, Columns(LABEL if label is None else label, client, task=task), test)
    for what, one in (("label", label), ("client", client), ("test", test)):
        if one is not None:
            raise errors.refuse(what, repr(one)[:60], "left out for arrays", "it is for a DataFrame alone")
    several = {"y_train", "y_test"} if task == OWN else set()  # which may be pytrees
    arrays: dict[str, Any] = {
        what: as_arrays(a) if what in several else _array(what, a)
        for what, a in zip(ARRAYS, (x_train, y_train, x_test, y_test))
    }
    for what, ids in (("client_ids", client_ids), ("test_client_ids", test_client_ids)):
        if ids is not None:
            arrays[what] = _text(_array(what, ids))
    return _of_arrays(name, "", arrays, classes, task, vocabulary)


def from_npz(path: pathlib.Path, task: str | None = None) -> Dataset:
    """Arrays x_train, y_train, x_test, y_test and, if clients are given, client_ids (one per training record).

    test_client_ids (one per test record) may stand beside client_ids, and classes, a number. Bytes are scaled to
    [0, 1]. For task `sequence`, whose features and targets are ids of tokens: vocabulary_size and perhaps pad, bos,
    eos, each one integer, and oov, a list.
    """
    arrays = {key: native(array) for key, array in read_npz(path).items()}
    check_keys(path, arrays, ARRAYS)
    classes = arrays.get("classes")
    if classes is not None and (classes.shape != () or classes.dtype.kind not in "iu"):
        raise errors.refuse(f"{path.name}: classes", f"{classes.dtype} {classes.shape}", "one integer")
    known = _vocabulary(path, arrays) if task == "sequence" else None
    count = None if classes is None else int(classes)
    return _of_arrays(path.stem, path.name, arrays, count, task or "classes", known)


def _vocabulary(path: pathlib.Path, arrays: dict[str, Any]) -> Vocabulary:
    """What the file says of its tokens."""
    fields: dict[str, Any] = {}
    for field, name in {"size": "vocabulary_size", "pad": "pad", "bos": "bos", "eos": "eos", "oov": "oov"}.items():
        ids = arrays.get(name)
        if ids is None and field == "size":
            raise errors.refuse(
                f"{path.name}: {name}", "nothing", "one integer for task sequence", "add it to the file"
            )
        if ids is None:
            continue
        if (ids.size and ids.dtype.kind not in "iu") or ids.ndim != (field == "oov"):
            wanted = "a list of integers" if field == "oov" else "one integer"
            raise errors.refuse(f"{path.name}: {name}", f"{ids.dtype} {ids.shape}", wanted)
        fields[field] = tuple(ids.tolist()) if field == "oov" else int(ids)
    return check_vocabulary(f"{path.name}: vocabulary", Vocabulary(**fields))


def has_ids(path: pathlib.Path) -> bool:
    """Whether an npz file names its clients; looks at the names of its arrays alone."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return "client_ids" in archive.files
    except Exception:  # what is wrong with it is said when it is read
        return False


def from_table(path: pathlib.Path, kind: str, reading: Reading) -> Dataset:
    """A CSV or Parquet file of numeric columns, a column of labels, or several, and, if it is named, one of clients."""
    check_file(kind, path)
    frame = _read_csv(path, reading.client_column) if kind == "csv" else read_parquet(path)
    features = None if reading.feature_columns is None else reading.feature_columns.split(",")
    task = reading.task or "classes"
    columns = Columns(reading.label_column or LABEL, reading.client_column, reading.split_column, features, task)
    made = from_frame(path.stem, path.name, frame, columns, None)
    x_train, x_test = (reshaped(path.name, x, reading.record_shape) for x in (made.x_train, made.x_test))
    return made._replace(x_train=x_train, x_test=x_test)


def _read_csv(path: pathlib.Path, client: str | None) -> Any:
    """The table, whose column of clients stays text: 007 is another client than 7. All of it whole numbers are such."""
    errors.require_installed("pandas", "tables", f"to read {path.name}")
    import pandas as pd  # slow to import, and only needed here

    try:
        header = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0]
        frame = pd.read_csv(path, low_memory=False, dtype=None if client is None else {client: str})
    except Exception as error:  # pandas has many, without a common base
        reason = " ".join(str(error).split())[:120]
        raise damaged(path, "something else", "a readable csv file", reason) from None
    again = header[header.duplicated() & (header != "")]
    if len(again):  # it would be read by another name, and be a feature whatever it is
        raise damaged(f"{path}: columns", f"{again.iloc[0][:40]} twice", "of different names", "drop or rename one")
    if client in frame.columns and not frame[client].isna().any() and all(map(_is_number, frame[client])):
        frame[client] = frame[client].astype("int64")
    return frame


def _is_number(word: str) -> bool:
    """Whether it is how an integer of 64 bits is written."""
    plain = len(word) < 21 and word.removeprefix("-").isdecimal() and word == str(int(word))
    return plain and -(2**63) <= int(word) < 2**63


class Columns(NamedTuple):
    """Of a table, by name."""

    label: str
    client: str | None = None
    split: str | None = None  # that says train or test; None: `split`, where there is one
    features: list[str] | None = None  # None: all others
    task: str = "classes"


def from_frame(name: str, file: str, frame: Any, columns: Columns, test: Any) -> Dataset:
    """The data set of a table; the name of its file, if any, begins what is refused of it."""
    where = f"{file}: " if file else ""
    labels, client, task = columns.label.split(","), columns.client, columns.task
    errors.require_choice("task", task, OF_TABLES)
    if columns.label in frame.columns or task not in SEVERAL:
        labels = [columns.label]
    tables = [frame, test] if hasattr(test, "columns") else [frame]
    split = columns.split
    if split is None and len(tables) == 1 and test is None and SPLIT in frame.columns:
        split = SPLIT
    aside = [column for column in (*labels, client, split) if column is not None]
    features = columns.features or [column for column in frame.columns if column not in aside]
    for table in tables:
        _check_columns(where, table, frame, aside, features)
    if not features:
        raise errors.refuse(f"{where}columns", ", ".join(map(str, aside)), "more than these", "features are the others")
    x = np.concatenate([_numbers(where, table, features) for table in tables])
    ids = None if client is None else np.concatenate([_names(where, table, client) for table in tables])
    notes, classes = list[str](), None
    if task in SEVERAL:
        y = as_task(file, np.concatenate([_numbers(where, table, labels) for table in tables]), task)
    else:
        y, count, notes = numbered_labels(np.concatenate([_names(where, table, labels[0]) for table in tables]))
        if task == "binary" and count != 2:
            raise errors.refuse(f"{where}labels", f"{count}", "two, for task binary", "or take task classes")
        classes = 1 if task == "binary" else count
    rows = np.arange(len(y))
    if len(tables) == 2:
        train, tests = rows[: len(frame)], rows[len(frame) :]
    elif split is not None:
        train, tests = _by_column(where, frame, split)
    else:
        fraction = TEST_FRACTION if test is None else test
        errors.require_in_unit_interval(f"{where}test", fraction, "or give a DataFrame")
        parts = split_each([rows] if ids is None else natural(ids), fraction, seed=0)
        train, tests = (np.concatenate(part) for part in parts)
        whose = "records" if ids is None else "every client's records"
        notes.append(
            f'{fraction:.0%} of {whose}, drawn at random, are held out for testing; a column "{SPLIT}" would say which'
        )
    bounds = np.abs(x).max(0, initial=0.0)
    bounds = bounds[bounds > 0]
    if bounds.size and bounds.max() > FAR_APART * bounds.min():
        notes.append(
            f"columns are taken as they stand, one within {bounds.min():.3g} and one within {bounds.max():.3g}: no "
            "rate suits both, so divide each by a public bound"
        )
    arrays = {"x_train": x[train], "y_train": y[train], "x_test": x[tests], "y_test": y[tests]}
    if ids is not None:
        arrays |= {"client_ids": ids[train], "test_client_ids": ids[tests]}
    return _of_arrays(name, file, arrays, classes, task)._replace(notes=tuple(notes))


def _of_arrays(
    name: str,
    file: str,
    arrays: dict[str, Any],
    classes: int | None,
    task: str = "classes",
    vocabulary: Vocabulary | None = None,
) -> Dataset:
    x_train, y_train, x_test, y_test = (arrays[key] for key in ARRAYS)
    train, test = (x_train, y_train, arrays.get("client_ids")), (x_test, y_test, arrays.get("test_client_ids"))
    about: dict[str, Any] = {"task": task, "vocabulary": vocabulary, "tokens": vocabulary is not None}
    return data_set(name, file, train, test, classes=classes, **about)


def _array(what: str, numbers: Any) -> np.ndarray:
    if numbers is None:
        raise errors.refuse(what, "nothing", "given", f"{', '.join(ARRAYS)}, or a DataFrame with label=")
    try:
        return native(numbers)
    except ValueError:  # lists of different lengths
        raise errors.refuse(what, "lists of different lengths", "an array", "pad or cut them") from None


def _text(ids: np.ndarray) -> np.ndarray:
    """Python's strings as NumPy's."""
    return ids.astype(str) if ids.dtype == object and all(isinstance(word, str) for word in ids.ravel()) else ids


def _check_columns(where: str, table: Any, frame: Any, aside: list[str], features: list[str]) -> None:
    """The table has records, the named columns once each, the same as `frame`, and nothing is missing in them."""
    columns = list(table.columns)
    if not table.columns.is_unique:
        raise errors.refuse(f"{where}columns", table.columns[table.columns.duplicated()][0], "of different names")
    named = [*aside, *features]
    if len(set(named)) != len(named):
        twice = next(column for column in named if named.count(column) > 1)
        raise errors.refuse(
            f"{where}columns of labels, clients, split and features", f"{twice} twice", "different ones"
        )
    for column in named:
        if column not in columns:
            near = errors.nearest(str(column), map(str, columns))
            remedy = f"did you mean {near[0]}?" if near else "name the columns of labels and clients"
            shown = ", ".join(map(str, columns[:8])) + (", ..." if len(columns) > 8 else "")
            raise errors.refuse(f"{where}column {column}", "none", f"one of {shown}", remedy)
    if set(columns) != set(frame.columns):
        other = sorted(map(str, set(columns) ^ set(frame.columns)))[0]
        raise errors.refuse(f"{where}columns of test", f"others, such as {other}", "those of the training records")
    if not len(table):
        raise errors.refuse(f"{where}records", 0, "at least one")
    for column in named:
        missing = table[column].isna().to_numpy()
        if missing.any():
            got = f"nothing in row {int(np.argmax(missing)) + 1}"
            raise errors.refuse(f"{where}column {column}", got, "given in every row", "drop the row or fill it in")


def _numbers(where: str, table: Any, features: list[str]) -> np.ndarray:
    """The columns as float32 `(records, columns)`."""
    for column in features:
        kind = getattr(table[column].dtype, "kind", "O")
        if kind not in "biuf":
            remedy = "name it with --label-column or --client-column, pd.get_dummies makes numbers of words, or drop it"
            raise errors.refuse(f"{where}column {column}", table[column].dtype, "numeric", remedy)
    with np.errstate(over="ignore"):  # infinity is refused
        x: np.ndarray = table[features].to_numpy(dtype=np.float32)
    if not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        got = f"{table[features[column]].iloc[row]} in row {row + 1}"
        raise errors.refuse(f"{where}column {features[column]}", got, "finite in float32")
    return x


def _names(where: str, table: Any, column: str) -> np.ndarray:
    """Labels or ids: whole numbers, or words."""
    values: np.ndarray = table[column].to_numpy()
    if values.dtype.kind == "f":
        remedy = (
            "make it integers, .astype(int)"
            if (values == np.floor(values)).all()
            else "name another column, or task regression"
        )
        raise errors.refuse(f"{where}column {column}", values.dtype, "whole numbers or words", remedy)
    return native(values) if values.dtype.kind in "iu" else values.astype(str)


def _by_column(where: str, frame: Any, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows that the column says are for training and for testing."""
    words = frame[column].to_numpy().astype(str)
    if other := sorted(set(words) - {"train", "test"}):
        raise errors.refuse(f"{where}column {column}", repr(other[0][:40]), "train or test in every row")
    for word in ("train", "test"):
        if word not in words:
            raise errors.refuse(f"{where}column {column}", f"no {word}", "train in some rows and test in others")
    return np.flatnonzero(words == "train"), np.flatnonzero(words == "test")
