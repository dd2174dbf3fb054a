"""What strangers do first, each in a few lines, where no template and no test of another file does the same.

A cohort is the template of docs/extending/cohorts.md, an entry is in test_own_code.py, a head in
parts/test_local_training.py.
"""

import dataclasses
import json
from typing import Any

import jax
import numpy as np
import pytest
from helpers import ragged_data

import fedjax_dp as fdp
from fedjax_dp.accounting import Adjacency, FullBatch, GaussianSteps, epsilon_of
from fedjax_dp.data import DATASETS
from fedjax_dp.data.loaders import Reader
from fedjax_dp.parts import ClipRecords, noise_of_clients, of_client
from fedjax_dp.tools import cli


@fdp.value
class PublicBatches(fdp.parts.Privatizer):
    """The server knows who is in a batch, so sampling hides nothing."""

    clip_norm: float
    noise_multiplier: Any  # one number, or one per client
    no_epsilon_reason, assumptions, on_upload = None, ("batches are public",), False

    def gradient(self, key, step, model, params, records):
        bounded = ClipRecords().apply(model, params, records, self.clip_norm)
        noise = jax.random.normal(jax.random.fold_in(key, step.number), bounded.mean.shape)
        size = of_client(self.noise_multiplier, step.client) * bounded.noise_unit
        return bounded.mean + size * noise, bounded.report

    def client_noise(self, num_clients):
        return noise_of_clients(self.noise_multiplier, num_clients)

    def noise_unit(self, divisor):
        return 1 / divisor

    def event(self, noise, batches, records, steps, rates):
        return GaussianSteps(noise, FullBatch(), Adjacency.REPLACE_ONE, steps)

    def check(self, num_clients):
        pass


def read_moons(name, data_dir, seed, reading):
    angle = np.linspace(0, np.pi, 300)
    upper = np.stack([np.cos(angle), np.sin(angle)], 1)
    x = np.concatenate([upper, np.array([1.0, 0.5]) - upper]).astype(np.float32)
    y = np.repeat(np.arange(2, dtype=np.int32), 300)
    return fdp.data.Dataset(name, x[::2], y[::2], x[1::2], y[1::2], classes=2)


DATA = ragged_data([20] * 6)
COMMON = {"cohort_size": 3, "batch_size": 5, "local_steps": 2, "learning_rate": 0.3}
PRIVATE = fdp.dpnfl(**COMMON, clip_norm=1.0, noise_multiplier=2.0)
ASKED = {"rounds": 4, "delta": 1e-3, "participation": "worst"}
ASKED["model"] = fdp.logistic_regression(DATA.record_shape, DATA.classes)


@pytest.mark.slow
def test_an_own_privatizer_is_priced_by_its_event():
    privatizer = PublicBatches(clip_norm=1.0, noise_multiplier=2.0)
    own = dataclasses.replace(PRIVATE, local=dataclasses.replace(PRIVATE.local, privatizer=privatizer))
    result = fdp.run(own, DATA, **ASKED)
    assert np.isfinite(result.test_loss)
    steps = GaussianSteps(2.0, FullBatch(), Adjacency.REPLACE_ONE, 8)
    assert result.guarantee.epsilon == pytest.approx(epsilon_of(steps, 1e-3), rel=1e-6)
    assert "batches are public" in result.guarantee.assumptions
    calibrated = fdp.calibrate(own, DATA, **ASKED, epsilon=2.0)
    noise = np.max(calibrated.local.privatizer.noise_multiplier)
    assert epsilon_of(dataclasses.replace(steps, noise_multiplier=noise), 1e-3) == pytest.approx(2.0, rel=1e-3)


@pytest.mark.slow
def test_a_data_set_of_ones_own_runs_from_the_command_line(capsys, monkeypatch):
    monkeypatch.setitem(DATASETS, "moons", Reader(read_moons))
    assert cli.main(["run", "--dataset", "moons", "--algorithm", "fedavg", "--rounds", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test_accuracy"] > 0.7
