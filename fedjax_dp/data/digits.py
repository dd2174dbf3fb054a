"""The digits in scikit-learn."""

import numpy as np

from fedjax_dp.data.store import Dataset


def digits() -> Dataset:
    """scikit-learn's 1,797 embedded 8x8 digits, values 0 to 16; the last 360 of a fixed shuffle are the test set."""
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    x, y = bunch.images[order].astype(np.uint8), bunch.target[order].astype(np.int32)
    return Dataset("digits", x[:-360], y[:-360], x[-360:], y[-360:], classes=10, scale=1 / 16)
