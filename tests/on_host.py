"""A small federation, and where runs on it end, for tests that compare what is on hosts with what is on devices."""

import jax
import numpy as np
import pytest

import fedjax_dp as fdp
from fedjax_dp.data import Dataset, federate

SIZES, FEATURES = [7, 12, 5, 20, 9, 11, 6, 30, 8, 13], 6
COMMON = {"cohort_size": 3, "batch_size": 4, "local_steps": 2, "learning_rate": 0.1}
NOISE = {"clip_norm": 1.0, "noise_multiplier": 1.0}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    records = sum(SIZES)
    x, y = rng.normal(size=(records + 20, FEATURES)).astype(np.float32), rng.integers(0, 3, records + 20)
    dataset = Dataset("random", x[:records], y[:records], x[records:], y[records:], classes=3)
    return federate(dataset, np.split(rng.permutation(records), np.cumsum(SIZES)[:-1]))


def end(algorithm, data, on_host, rounds=7, **options):
    state = fdp.simulate(algorithm, data, rounds=rounds, evaluate_every=3, on_host=on_host, **options).state
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
