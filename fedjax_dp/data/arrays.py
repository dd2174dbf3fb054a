"""Arrays, a pandas DataFrame or an npz file as a data set."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_dp import errors, hooks
from fedjax_dp.data.client_names import plain_name
from fedjax_dp.data.files import check_keys, read_npz
from fedjax_dp.data.names import SOURCES
from fedjax_dp.data.reading import Reading
from fedjax_dp.data.records import RecordTable, make_dataset, number_labels
from fedjax_dp.data.store import Dataset
from fedjax_dp.data.targets import OWN, Vocabulary, as_arrays, check_vocabulary, native

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
    drop: Sequence[str] | str | None = None,
    categories: Mapping[str, Sequence[Any]] | str | None = None,
    fill: Mapping[str, Any] | float | str | None = None,
    missing: Sequence[Any] | str | None = None,
    standardise: Any = None,
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
                     clients are named); left out, a column `split` says train or test, else it is a fifth;
    drop             of a DataFrame: columns that are no features, such as ids;
    categories       likewise: known words of a column, not read from the records; each becomes a feature of 0 and 1;
    fill             likewise: a constant for missing values, or constants by column;
    missing          likewise: words and numbers that stand for a missing value, beside "" and "?";
    standardise      likewise: public (mean, deviation) by column, a public DataFrame to compute them from, or
                     "records": of the training records, which no epsilon covers, as the Guarantee then says.
    The last five may also be texts, as `load` takes them: fill="dose=0".
    Bytes are scaled to [0, 1]. Labels in words, and any of a DataFrame, are classes in sorted order.
    Raises: ConfigurationError, in one line, for anything that is no data set.
    """
    name = f"own:{name}" if name in SOURCES else name  # a name makes no shipped data set
    of_tables = {"label": label, "client": client, "drop": drop, "categories": categories, "fill": fill}
    of_tables |= {"missing": missing, "standardise": standardise}
    if hasattr(x_train, "columns") and y_train is None:
        of_arrays = {"x_test": x_test, "y_test": y_test, "classes": classes, "vocabulary": vocabulary}
        for what, one in (of_arrays | {"client_ids": client_ids, "test_client_ids": test_client_ids}).items():
            if one is not None:
                raise errors.refuse(what, "an argument", "left out for a DataFrame", "name columns and give test=")
        return hooks.dataset_of_table(name, x_train, test, task=task, **of_tables)
    for what, one in (of_tables | {"test": test}).items():
        if one is not None:
            raise errors.refuse(what, repr(one)[:60], "left out for arrays", "it is for a DataFrame alone")
    columns = [[*x.columns] for x in (x_train, x_test) if hasattr(x, "columns")]
    if columns and columns[0] != columns[-1]:
        raise errors.refuse(
            "x_test", "other columns, or in another order", "those of x_train", "x_test[x_train.columns]"
        )
    several = {"y_train", "y_test"} if task == OWN else set()  # which may be pytrees
    arrays: dict[str, Any] = {
        what: as_arrays(a) if what in several else _as_array(what, a)
        for what, a in zip(ARRAYS, (x_train, y_train, x_test, y_test))
    }
    for what, ids in (("client_ids", client_ids), ("test_client_ids", test_client_ids)):
        if ids is not None:
            arrays[what] = _as_array(what, ids)
    return _of_arrays(name, "", arrays, classes, task, vocabulary)


def from_npz(named: str, reading: Reading) -> Dataset:
    """Arrays x_train, y_train, x_test, y_test and, if clients are given, client_ids (one per training record).

    Optional with client_ids: test_client_ids (one per test record), and classes, a number. Bytes are scaled to [0, 1].
    For task `sequence`, whose features and targets are token ids: vocabulary_size and perhaps pad, bos, eos, each one
    integer, and oov, a list.
    """
    path, task = pathlib.Path(named), reading.task or "classes"
    arrays = {key: native(array) for key, array in read_npz(path).items()}
    check_keys(path, arrays, ARRAYS)
    classes = arrays.get("classes")
    if classes is not None and (classes.shape != () or classes.dtype.kind not in "iu"):
        raise errors.refuse(f"{path.name}: classes", f"{classes.dtype} {classes.shape}", "one integer")
    known = _vocabulary(path, arrays) if task == "sequence" else None
    count = None if classes is None else int(classes)
    return _of_arrays(path.stem, path.name, arrays, count, task, known)


def _vocabulary(path: pathlib.Path, arrays: dict[str, Any]) -> Vocabulary:
    """The vocabulary in the file."""
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


def has_ids(path: str) -> bool:
    """Whether an npz file names its clients; reads only the names of its arrays."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return "client_ids" in archive.files
    except Exception:  # reading it reports the error
        return False


def _of_arrays(
    name: str, file: str, arrays: dict[str, Any], classes: int | None, task: str, vocabulary: Vocabulary | None
) -> Dataset:
    notes, class_names = list[str](), None
    for what in ("client_ids", "test_client_ids"):
        if what in arrays and (_is_text(arrays[what]) or arrays[what].dtype.kind == "S") and arrays[what].ndim == 1:
            arrays = arrays | {what: np.array([*map(plain_name, arrays[what])], str)}
    if task in ("classes", "binary"):
        both = arrays["y_train"], arrays["y_test"]
        if all(_is_text(y) and y.ndim == 1 for y in both):
            arrays, class_names, notes = _number_words(arrays)
            if classes not in (None, len(class_names)):
                raise errors.refuse("classes", classes, f"{len(class_names)}, the different labels", "leave it out")
            classes = 1 if task == "binary" and len(class_names) == 2 else len(class_names)
        else:
            arrays, classes, notes = _normalise_labels(arrays, classes)
    x_train, y_train, x_test, y_test = (arrays[key] for key in ARRAYS)
    train = RecordTable(arrays.get("client_ids"), notes=notes, x=x_train, y=y_train)
    test = RecordTable(arrays.get("test_client_ids"), x=x_test, y=y_test)
    if vocabulary is not None:
        check_vocabulary("vocabulary", vocabulary)
    about: dict[str, Any] = {"task": task, "vocabulary": vocabulary, "tokens": vocabulary is not None}
    return make_dataset(name, file, train, test, classes=classes, class_names=class_names, **about)


def _number_words(arrays: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray, list[str]]:
    """Labels in words as numbers over both parts, the words in sorted order, and a note on the change."""
    both = {what: np.array([*map(plain_name, arrays[what])], str) for what in ("y_train", "y_test")}
    for what, words in both.items():
        if empty := int((words == "").sum()):
            got = f"{empty} empty of {len(words)}"
            raise errors.refuse(what, got, "a label of every record", "drop records without a label")
    numbers, known, notes = number_labels(np.concatenate([*both.values()]))
    return arrays | dict(zip(both, np.split(numbers, [len(both["y_train"])]))), known, notes


def _normalise_labels(arrays: dict[str, Any], classes: int | None) -> tuple[dict[str, Any], int | None, list[str]]:
    """Labels of shape (n, 1) as (n,), and one-hot rows as class numbers, with a note on the change."""
    both = arrays["y_train"], arrays["y_test"]
    if not all(hasattr(y, "dtype") and y.ndim == 2 and len(y) for y in both) or both[0].shape[1] != both[1].shape[1]:
        return arrays, classes, []
    width = both[0].shape[1]
    if width == 1:
        return arrays | {"y_train": both[0][:, 0], "y_test": both[1][:, 0]}, classes, ["labels (n, 1) are read as (n,)"]
    if not all(y.dtype.kind in "biuf" and ((y == 0) | (y == 1)).all() and (y.sum(1) == 1).all() for y in both):
        return arrays, classes, []
    labels = {"y_train": both[0].argmax(1), "y_test": both[1].argmax(1)}
    return arrays | labels, width if classes is None else classes, [f"one-hot labels are classes 0 to {width - 1}"]


def _is_text(array: Any) -> bool:
    kind = array.dtype.kind if hasattr(array, "dtype") else ""
    return kind == "U" or (kind == "O" and array.size > 0 and all(isinstance(word, str) for word in array.ravel()))


def _as_array(what: str, numbers: Any) -> np.ndarray:
    if numbers is None:
        arrays = f"{', '.join(ARRAYS)}, or a DataFrame with label="
        raise errors.refuse(
            what, "nothing", "given", f"{arrays}; a part of your records that nobody trains on is a test set"
        )
    try:
        array = native(numbers)
        nested = array.size and all(isinstance(one, list | tuple | np.ndarray) for one in array.ravel())
        return np.array(array.tolist()) if array.dtype == object and nested else array
    except errors.ConfigurationError:
        raise
    except ValueError:  # lists of different lengths
        raise errors.refuse(what, "lists of different lengths", "an array", "pad or cut them") from None
