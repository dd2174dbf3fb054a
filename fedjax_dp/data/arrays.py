"""A user's own arrays in an npz file, and the digits that scikit-learn brings."""

import pathlib

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.files import check_keys, check_records, read_npz
from fedjax_dp.data.store import Dataset


def digits() -> Dataset:
    """scikit-learn's 1,797 embedded 8x8 digits, values 0 to 16; the last 360 of a fixed shuffle are the test set."""
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    x, y = bunch.images[order].astype(np.uint8), bunch.target[order].astype(np.int32)
    return Dataset("digits", x[:-360], y[:-360], x[-360:], y[-360:], classes=10, scale=1 / 16)


def from_npz(path: pathlib.Path) -> Dataset:
    """Arrays x_train, y_train, x_test, y_test and, if clients are given, client_ids (one per training record).

    test_client_ids (one per test record) may stand beside client_ids. Bytes are scaled to [0, 1].
    """
    arrays = read_npz(path)
    check_keys(path, arrays, ("x_train", "y_train", "x_test", "y_test"))
    for side in ("train", "test"):
        check_records(path, arrays[f"x_{side}"], arrays[f"y_{side}"], f"x_{side}", f"y_{side}")
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        raise errors.refuse(f"{path.name}: x_test", arrays["x_test"].shape, f"shaped like {arrays['x_train'].shape}")
    kinds = arrays["x_train"].dtype, arrays["x_test"].dtype
    if (kinds[0] == np.uint8) != (kinds[1] == np.uint8):  # the scale of one would be wrong for the other
        raise errors.refuse(f"{path.name}: x_train and x_test", f"{kinds[0]} and {kinds[1]}", "both uint8 or neither")
    for key, y in (("client_ids", arrays["y_train"]), ("test_client_ids", arrays["y_test"])):
        if key in arrays and arrays[key].shape != y.shape:
            raise errors.refuse(f"{path.name}: {key}", arrays[key].shape, f"{y.shape}, one per record")
    y_train, y_test = (arrays[f"y_{side}"].astype(np.int32) for side in ("train", "test"))
    return Dataset(
        path.stem,
        arrays["x_train"],
        y_train,
        arrays["x_test"],
        y_test,
        classes=int(max(y_train.max(), y_test.max())) + 1,
        scale=1 / 255 if kinds[0] == np.uint8 else 1.0,
        client_ids=arrays.get("client_ids"),
        test_client_ids=arrays.get("test_client_ids"),
    )
