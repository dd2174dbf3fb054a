"""What strangers do first, each in a few lines that touch nothing of the package, or one line of it."""

import inspect
import json
from typing import Annotated, Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ragged_data

import fedjax_dp as fdp
from fedjax_dp import cli
from fedjax_dp.accounting import Adjacency, FullBatch, GaussianSteps
from fedjax_dp.algorithms import CATALOGUE, Common, assemble, entry
from fedjax_dp.algorithms.assemble import ClipNorm, NoiseMultiplier
from fedjax_dp.data import DATASETS
from fedjax_dp.data.loaders import Reader
from fedjax_dp.options import about
from fedjax_dp.parts import ClipRecords, Members, noise_of_clients, of_client

MOST_LINES = 40


# 1. A cohort sampler: the first clients of a shuffle.


@fdp.value
class Shuffled(fdp.parts.Cohort):
    size: int = fdp.structure()
    no_epsilon_reason, fixed, at_most_once = None, True, True

    def capacity(self, num_clients):
        return self.size

    def sample(self, keys, round_index, shares):
        ids = jax.random.permutation(keys.round, shares.shape[0])[: self.size].astype(jnp.int32)
        return Members.of(ids)

    def rates(self, shares):
        return self.size / shares.shape[0] + 0.0 * shares

    def inclusion_probability(self, shares):
        return self.rates(shares), 1


# 2. A privatizer with an accounting event of its own: the server is told who is in a batch, so sampling hides nothing.


@fdp.value
class Told(fdp.parts.Privatizer):
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


# 3. A paper: an entry of the catalogue with options of its own.


@entry("Somebody 2026", defaults={"estimator": "mean"}, presets={"local_steps": 2})
def somebodys(
    *,
    clip_norm: ClipNorm,
    noise_multiplier: NoiseMultiplier = 0.0,
    mu: float = 0.1,
    halved: bool = False,
    slack: Annotated[float, about("", beside={"halved": True})] = 0.0,
    **common: Unpack[Common],
) -> fdp.Algorithm:
    """DP-FedProx (somebody, 2026).

    Args:
        mu: strength of the pull to the received model
        halved: half of it
        slack: what then is taken off
    """
    pull = fdp.parts.Proximal(strength=mu / 2 - slack if halved else mu)
    privatizer = fdp.parts.RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
    return assemble(common, privatizer=privatizer, corrections=(pull,))


# 4. A data set, by name.


def read_moons(name, data_dir, seed, reading):
    angle = np.linspace(0, np.pi, 300)
    upper = np.stack([np.cos(angle), np.sin(angle)], 1)
    x = np.concatenate([upper, np.array([1.0, 0.5]) - upper]).astype(np.float32)
    y = np.repeat(np.arange(2, dtype=np.int32), 300)
    return fdp.data.Dataset(name, x[::2], y[::2], x[1::2], y[1::2], classes=2)


# 5. Clients that keep their own head: tests/parts/test_local_training.py.

DATA = ragged_data([20] * 6)
COMMON = {"cohort_size": 3, "batch_size": 5, "local_steps": 2, "learning_rate": 0.3}
PRIVATE = fdp.dpnfl(**COMMON, clip_norm=1.0, noise_multiplier=2.0)
ASKED = {"rounds": 4, "delta": 1e-3, "model": fdp.logistic_regression(DATA.record_shape, DATA.classes)}


@pytest.mark.parametrize("task", [Shuffled, Told, somebodys.constructor, read_moons])
def test_each_task_fits_a_screen(task):
    assert len(inspect.getsource(task).splitlines()) <= MOST_LINES


@pytest.mark.slow
def test_an_own_cohort_trains_and_is_priced_as_what_it_does():
    own = fdp.Algorithm(**{**vars(PRIVATE), "cohort": Shuffled(size=3)})
    result = fdp.run(own, DATA, **ASKED)
    assert np.isfinite(result.test_loss)
    same = fdp.guarantee(PRIVATE, DATA, **ASKED, participation="worst")
    assert fdp.guarantee(own, DATA, **ASKED, participation="worst").epsilon == same.epsilon
    assert any("on the word of Shuffled (cohort)" in words for words in result.guarantee.assumptions)


@pytest.mark.slow
def test_an_own_privatizer_is_priced_by_its_event():
    local = fdp.parts.LocalSgd(**{**vars(PRIVATE.local), "privatizer": Told(clip_norm=1.0, noise_multiplier=2.0)})
    own = fdp.Algorithm(**{**vars(PRIVATE), "local": local})
    result = fdp.run(own, DATA, **ASKED)
    assert np.isfinite(result.test_loss)
    worst = fdp.guarantee(own, DATA, **ASKED, participation="worst").epsilon
    steps = GaussianSteps(2.0, FullBatch(), Adjacency.REPLACE_ONE, 8)
    assert worst == pytest.approx(fdp.accounting.epsilon_of(steps, 1e-3), rel=1e-6)
    assert "batches are public" in result.guarantee.assumptions
    calibrated = fdp.calibrate(own, DATA, **ASKED, epsilon=2.0)
    assert fdp.guarantee(calibrated, DATA, **ASKED).epsilon <= 2.0


@pytest.mark.slow
def test_an_entry_of_ones_own_runs_from_the_command_line(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(CATALOGUE, "somebodys", somebodys)
    command = ["run", "--algorithm", "somebodys", "--rounds", "2", "--mu", "0.2", "--halved", "true", "--json"]
    assert cli.main(command) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["config"]["halved"] is True
    assert told["guarantee"]["epsilon"] <= 4


@pytest.mark.slow
def test_a_data_set_of_ones_own_runs_from_the_command_line(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(DATASETS, "moons", Reader(read_moons))
    assert cli.main(["run", "--dataset", "moons", "--algorithm", "fedavg", "--rounds", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test_accuracy"] > 0.7
