"""The benchmark of schools: all of them are clients, and a split has the errors that its table tells."""

import json
import os
import pathlib

import helpers
import numpy as np
import pytest

from fedjax_dp import accounting

TABLE = pathlib.Path(__file__).parents[2] / "benchmarks" / "results" / "school.json"


@pytest.fixture(scope="module", name="benchmark")
def _benchmark():
    if not (pathlib.Path(os.environ.get("FEDJAX_DP_DATA", "")) / "school" / "school.mat").is_file():
        pytest.skip("School is not at hand: set FEDJAX_DP_DATA to a folder with school/school.mat")
    return helpers.benchmark("school")


def test_no_school_is_too_small(benchmark):
    data = benchmark.clients_of(0)
    assert data.num_clients == 139
    assert int(np.min(data.sizes)) < benchmark.BATCH < int(np.max(data.sizes))


def test_their_noise_gives_their_epsilon_by_their_count_and_more_by_passes(benchmark):
    for records in (15, 32, 72, 175):
        noise = benchmark.their_noise(records)
        batch = min(32, records)
        sampling = accounting.Poisson(batch / records) if batch < records else accounting.FullBatch()
        steps = accounting.GaussianSteps(noise, sampling, accounting.Adjacency.ADD_REMOVE, 201 * (records // batch))
        assert accounting.epsilon_of(steps, 1e-3, "rdp") == pytest.approx(6, rel=1e-3)
        passes = accounting.gaussian_epsilon(1e-3, noise / 2, 201)  # a record is in a batch of every pass
        assert passes > 12


@pytest.mark.slow
@pytest.mark.parametrize("reading", ["as published", "correct"])
def test_a_split_has_the_error_of_the_table(benchmark, reading):
    row = next(row for row in json.loads(TABLE.read_text())["rows"] if row["way"] == "MR-MTL")
    error, epsilon = benchmark.measured("MR-MTL", 0, reading)
    assert error == pytest.approx(row[reading]["errors"][0], rel=1e-3)
    assert epsilon == pytest.approx(row[reading]["epsilon"], rel=1e-3)
