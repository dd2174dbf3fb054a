"""Noise as papers ask for it, against counts by hand."""

import numpy as np
import pytest
from helpers import ragged_data, refusal

import fedjax_dp as fdp
from fedjax_dp import accounting

SIZES = [15, 32, 72, 175]
COMMON = {"cohort_size": None, "local_steps": 1, "batch_size": 32, "learning_rate": 0.1, "clip_norm": 1.0}


def test_code_of_mr_mtl_counts_whole_batches_of_passes_as_poisson_samples():
    data = ragged_data(SIZES)
    algorithm = fdp.mr_mtl(**COMMON, batches="epochs")
    terms = {"rounds": 201, "delta": 1e-3, "epsilon": 6.0}
    with_noise = fdp.calibrate(algorithm, data, **terms, sigma_mode="mr_mtl")
    noises = np.broadcast_to(with_noise.local.privatizer.noise_multiplier, len(SIZES))
    for records, noise in zip(SIZES, noises, strict=True):
        batch = min(32, records)
        sampling = accounting.Poisson(batch / records) if batch < records else accounting.FullBatch()
        steps = accounting.GaussianSteps(noise, sampling, accounting.Adjacency.ADD_REMOVE, 201 * (records // batch))
        assert accounting.epsilon_of(steps, 1e-3, "rdp") == pytest.approx(6, rel=1e-3)
    promised = fdp.guarantee(with_noise, data, rounds=201, delta=1e-3, view="uploads").epsilon
    by_passes = accounting.gaussian_epsilon(1e-3, noises[-1] / 2, 201)  # a record is in a batch of every pass
    assert promised == pytest.approx(by_passes, rel=1e-3)
    assert by_passes > 40


def test_code_of_mr_mtl_says_nothing_of_other_batches():
    data = ragged_data(SIZES)
    assert "sigma_mode must be used with passes" in refusal(
        fdp.calibrate, fdp.mr_mtl(**COMMON), data, rounds=2, delta=1e-3, epsilon=6.0, sigma_mode="mr_mtl"
    )
