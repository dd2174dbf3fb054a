"""Checks of every data set: targets fit the task, features are finite, each record has an id."""

from typing import Any

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.targets import (
    Vocabulary,
    check_tokens,
    count_records,
    require_32_bits,
    require_finite,
    targets_of,
)
from fedjax_dp.numpy_streams import numpy_stream


def check_data(
    where: str,
    x_train: Any,
    y_train: Any,
    x_test: Any,
    y_test: Any,
    classes: int | None = None,
    client_ids: Any = None,
    test_client_ids: Any = None,
    *,
    task: str = "classes",
    vocabulary: Vocabulary | None = None,
    tokens: bool = False,
) -> int:
    """Refuse invalid arrays in one line that begins with `where`; return the number of a model's outputs."""
    check_records(where, x_train, y_train, "x_train", "y_train", task)
    check_records(where, x_test, y_test, "x_test", "y_test", task)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise errors.refuse(f"{where}x_test", x_test.shape, f"shaped like {x_train.shape}")
    if (x_train.dtype == np.uint8) != (x_test.dtype == np.uint8):  # the scale of one would be wrong for the other
        got = f"{x_train.dtype} and {x_test.dtype}"
        raise errors.refuse(f"{where}x_train and x_test", got, "both uint8 or neither")
    check_ids(f"{where}client_ids", client_ids, len(x_train))
    check_ids(f"{where}test_client_ids", test_client_ids, len(x_test))
    kinds = [
        "integers" if ids.dtype.kind in "iu" else "text" for ids in (client_ids, test_client_ids) if ids is not None
    ]
    if len({*kinds}) > 1:  # no id would be another's
        raise errors.refuse(f"{where}test_client_ids", kinds[1], f"{kinds[0]}, as client_ids are")
    outputs = targets_of(task).outputs(where, y_train, y_test, classes, vocabulary)
    if tokens and vocabulary is not None:
        for name, x in (("x_train", x_train), ("x_test", x_test)):
            check_tokens(f"{where}{name}", x, vocabulary.size)
    return outputs


def check_records(where: str, x: Any, y: Any, x_name: str, y_name: str, task: str = "classes") -> None:
    """Require finite real features (records, ...), and one target of the task for each."""
    targets = targets_of(task)
    for name, array in ((x_name, x), *(((y_name, y),) if targets.shape is not None else ())):
        if not hasattr(array, "dtype"):
            raise errors.refuse(f"{where}{name}", type(array).__name__, "an array", "np.asarray makes one")
    if targets.shape is None:
        targets.check(f"{where}{y_name}", y)
        fits, shown = True, f"targets of {count_records(y)} records"
    else:
        fits, shown = y.ndim == 1 + len(targets.shape), y.shape
    if x.ndim == 1 and (x.dtype.kind == "U" or (x.dtype == object and {*map(type, x)} == {str})):
        remedy = 'load("csv:FILE", length=25) reads a column of texts; or number their words'
        raise errors.refuse(f"{where}{x_name}", "texts", "real numbers", remedy)
    if x.ndim and len(x) == 0:
        raise errors.refuse(f"{where}{x_name}", "empty", "at least one record", "hold some of the others out for it")
    if x.ndim < 2 or not fits or count_records(y) != len(x):
        raise errors.refuse(
            f"{where}{x_name} and {y_name}", f"{x.shape} and {shown}", f"(records, ...) and {targets.in_words}"
        )
    if not np.prod(x.shape[1:]):
        raise errors.refuse(f"{where}{x_name}", x.shape, "records of at least one feature")
    if targets.shape is not None:
        if not np.prod(y.shape[1:]):
            raise errors.refuse(f"{where}{y_name}", y.shape, "targets of at least one number")
        targets.check(f"{where}{y_name}", np.asarray(y))
    if x.dtype.kind not in "biuf":
        raise errors.refuse(f"{where}{x_name}", x.dtype, "real numbers")
    require_finite(f"{where}{x_name}", np.asarray(x))
    require_32_bits(f"{where}{x_name}", np.asarray(x))


def generator(role: str, seed: int) -> np.random.Generator:
    """A random stream for a named role, such as a partition, independent of other streams with that seed."""
    errors.require_seed(seed)
    return numpy_stream(f"data {role}", seed)


def check_ids(what: str, ids: Any, records: int) -> None:
    """Require one id for each record, integers or text; or None."""
    if ids is None:
        return
    if not hasattr(ids, "dtype") or ids.shape != (records,):
        got = getattr(ids, "shape", type(ids).__name__)
        raise errors.refuse(what, got, f"({records},), one per record")
    require_finite(what, ids, "an id for every record", "drop records without one")
    if ids.dtype.kind not in "iuUS":
        remedy = ".astype(int)" if ids.dtype.kind in "bf" else ".astype(str)"
        raise errors.refuse(what, ids.dtype, "integers or text", remedy)
