"""The door that every data set passes through: labels are classes, features are finite, ids stand for records."""

from typing import Any

import numpy as np

from fedjax_dp import errors

MOST_CLASSES = 1_000_000  # a model has an output for each
BLOCK = 1 << 24  # numbers that are looked at together
RENUMBER = "np.unique(labels, return_inverse=True)[1] numbers them from 0"


def check_data(
    where: str,
    x_train: Any,
    y_train: Any,
    x_test: Any,
    y_test: Any,
    classes: int | None = None,
    client_ids: Any = None,
    test_client_ids: Any = None,
) -> int:
    """Refuse arrays that are no data set, in one line that begins with `where`; returns the number of classes."""
    check_records(where, x_train, y_train, "x_train", "y_train")
    check_records(where, x_test, y_test, "x_test", "y_test")
    if x_train.shape[1:] != x_test.shape[1:]:
        raise errors.refuse(f"{where}x_test", x_test.shape, f"shaped like {x_train.shape}")
    if (x_train.dtype == np.uint8) != (x_test.dtype == np.uint8):  # the scale of one would be wrong for the other
        got = f"{x_train.dtype} and {x_test.dtype}"
        raise errors.refuse(f"{where}x_train and x_test", got, "both uint8 or neither")
    check_ids(f"{where}client_ids", client_ids, len(y_train))
    check_ids(f"{where}test_client_ids", test_client_ids, len(y_test))
    if classes is None:
        return _counted(where, np.union1d(y_train, y_test))
    errors.require_integer(f"{where}classes", classes, 1, MOST_CLASSES)
    for name, y in (("y_train", y_train), ("y_test", y_test)):
        if y.max() >= classes:
            wanted = f"labels 0 to {classes - 1} of {classes} classes"
            raise errors.refuse(f"{where}{name}", f"label {y.max()}", wanted, f"give more classes, or {RENUMBER}")
    return int(classes)


def check_records(where: str, x: Any, y: Any, x_name: str, y_name: str) -> None:
    """Finite real features (records, ...), and one integer label from 0 for each."""
    for name, array in ((x_name, x), (y_name, y)):
        if not hasattr(array, "dtype"):
            raise errors.refuse(f"{where}{name}", type(array).__name__, "an array", "np.asarray makes one")
    if x.ndim < 2 or len(x) == 0 or y.shape != x.shape[:1]:
        raise errors.refuse(
            f"{where}{x_name} and {y_name}", f"{x.shape} and {y.shape}", "(records, ...) and (records,)"
        )
    if not np.prod(x.shape[1:]):
        raise errors.refuse(f"{where}{x_name}", x.shape, "records of at least one feature")
    check_labels(f"{where}{y_name}", np.asarray(y))
    if x.dtype.kind not in "biuf":
        raise errors.refuse(f"{where}{x_name}", x.dtype, "real numbers")
    if x.dtype.kind == "f" and not _finite(np.asarray(x)):
        raise errors.refuse(f"{where}{x_name}", "NaN or infinity", "finite", "clean the array")


def check_partition(labels: np.ndarray, sizes: np.ndarray | None = None) -> None:
    """Labels `(records,)` and, where they are given, the records of each client `(num_clients,)`, which fit them."""
    for what, array in (("labels", labels), ("sizes", sizes)):
        if array is not None and array.ndim != 1:
            raise errors.refuse(what, f"shape {array.shape}", "a list of numbers")
    if labels.size:
        check_labels("labels", labels)
    if sizes is None:
        return
    if not sizes.size:
        raise errors.refuse("sizes", "none", "a whole number of records for each client")
    if sizes.dtype.kind not in "iu" or sizes.min() < 0:
        got = f"{sizes.dtype} from {sizes.min()}" if sizes.dtype.kind in "iuf" else sizes.dtype
        raise errors.refuse("sizes", got, "a whole number of records for each client")
    if sizes.sum() > len(labels):
        raise errors.refuse("the sizes of all clients", int(sizes.sum()), f"at most the {len(labels)} records")


def generator(seed: int) -> np.random.Generator:
    """Draws of a partition."""
    errors.require_seed(seed)
    return np.random.default_rng(seed)


def check_ids(what: str, ids: Any, records: int) -> None:
    """One id for each record, integers or text; None is none."""
    if ids is None:
        return
    if not hasattr(ids, "dtype") or ids.shape != (records,):
        got = getattr(ids, "shape", type(ids).__name__)
        raise errors.refuse(what, got, f"({records},), one per record")
    if ids.dtype.kind == "f" and not np.isfinite(ids).all():
        raise errors.refuse(what, "NaN or infinity", "an id for every record", "drop records without one")
    if ids.dtype.kind not in "iuUS":
        remedy = ".astype(int)" if ids.dtype.kind in "bf" else ".astype(str)"
        raise errors.refuse(what, ids.dtype, "integers or text", remedy)


def check_labels(what: str, y: np.ndarray) -> None:
    """Integers from 0."""
    wanted = "integer labels from 0"
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise errors.refuse(what, "NaN or infinity", wanted, "drop records without a label")
    if y.dtype.kind == "b" or (y.dtype.kind == "f" and (y == np.floor(y)).all()):
        raise errors.refuse(what, y.dtype, wanted, ".astype(int)")
    if y.dtype.kind == "f":
        raise errors.refuse(what, f"{y.dtype} with fractions", wanted, "np.digitize makes classes of numbers")
    if y.dtype.kind not in "iu":
        raise errors.refuse(what, y.dtype, wanted, RENUMBER)
    if y.min() < 0:
        raise errors.refuse(what, f"{y.dtype} from {y.min()}", wanted, RENUMBER)


def _counted(where: str, present: np.ndarray) -> int:
    """The number of classes where nobody says it: every label from 0 to the largest occurs, else one was miscounted."""
    most, known = int(present[-1]), "or give classes"
    if present[0] > 0 and len(present) == most - present[0] + 1:
        remedy = f"subtract {present[0]} from y_train and y_test, {known}"
        raise errors.refuse(f"{where}labels", f"{present[0]} to {most}", "counted from 0", remedy)
    if len(present) != most + 1:
        absent = int(np.argmax(present != np.arange(len(present))))
        got = f"{len(present)} labels up to {most} without {absent}"
        raise errors.refuse(f"{where}labels", got, "every number from 0 to the largest", f"{RENUMBER}, {known}")
    return most + 1


def _finite(x: np.ndarray) -> bool:
    """Whether there is neither NaN nor infinity, a block at a time. A finite sum has neither in it."""
    rows = max(1, BLOCK // max(1, x[0].size))
    with np.errstate(over="ignore", invalid="ignore"):
        return all(
            np.isfinite(block.sum()) or bool(np.isfinite(block).all())
            for block in (x[at : at + rows] for at in range(0, len(x), rows))
        )
