"""What a run ends with is decided in one place: measured, returned, saved, begun with, swept and attacked alike."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers import ragged_data, refusal

import fedjax_dp as fdp
from fedjax_dp.models import read_start
from fedjax_dp.privacy import PrivacyTerms
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.pytrees import ravel
from fedjax_dp.rounds.simulation import run_key
from fedjax_dp.sweeps.engine import Job, JobGroup

DATA = ragged_data([12, 7, 20, 9])
MODEL = fdp.logistic_regression(DATA.record_shape, DATA.classes)
COMMON = {"cohort_size": 2, "batch_size": 4, "local_steps": 2, "learning_rate": 0.3}


def averaged(entry, **options):
    return fdp.CATALOGUE[entry](**COMMON, **options, average="polyak", schedule="constant", l2=0.0)


PRIVATE = averaged("dpnfl", clip_norm=1.0, noise_multiplier=2.0)


def equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture(scope="module")
def expected():
    plain = dataclasses.replace(PRIVATE, server=PRIVATE.server.base)
    models = [fdp.simulate(plain, DATA, rounds=rounds, seed=3, model=MODEL).params for rounds in (1, 2, 3)]
    return jax.tree.map(lambda *each: sum(each) / 3, *models)


@pytest.mark.slow
def test_a_run_returns_and_measures_the_mean_of_its_models(expected):
    found = fdp.simulate(PRIVATE, DATA, rounds=3, seed=3, model=MODEL)
    for a, b in zip(jax.tree.leaves(found.params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(found.params), jax.tree.leaves(found.state.params)))
    losses = jax.vmap(lambda x, y: MODEL.loss(found.params, x, y, run_key(0)))(DATA.x_test, DATA.y_test)
    assert found.history[-1].test_loss == pytest.approx(float(losses.mean()), rel=1e-5)
    equal(fdp.rounds.final_model(PRIVATE, found.state), found.params)


@pytest.mark.slow
def test_a_folder_a_start_and_a_resumed_run_have_it(tmp_path, monkeypatch):
    whole = fdp.run(PRIVATE, DATA, rounds=3, seed=3, delta=1e-3, model=MODEL, out=tmp_path / "whole")
    equal(fdp.open_run(tmp_path / "whole", model=MODEL).params, whole.params)
    start = read_start(tmp_path / "whole")
    equal(list(start.values.values()), jax.tree.leaves(whole.params))
    stopped = {"out": tmp_path / "stopped", "checkpoint_every": 1}

    class Stop(fdp.experiments.Callback):
        def on_evaluation(self, evaluation):
            if evaluation.round == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fdp.run(PRIVATE, DATA, rounds=3, seed=3, delta=1e-3, model=MODEL, callbacks=[Stop()], **stopped)
    again = fdp.resume(tmp_path / "stopped", PRIVATE, DATA, model=MODEL)
    equal(again.params, whole.params)


@pytest.mark.slow
def test_one_that_is_no_model_is_refused_by_the_name_of_the_part():
    @fdp.value
    class Flat:
        def init(self, params):
            return ()

        def move(self, round_index, update, variance, state, params):
            return params, state

        def final(self, state, params):
            return ravel(params)[0]

        def check(self):
            pass

    flat = dataclasses.replace(PRIVATE, server=Flat())
    message = refusal(lambda: fdp.run(flat, DATA, rounds=1, delta=1e-3, model=MODEL))
    assert message.startswith("what Flat.final returns must be shaped as the parameters, {")
    assert "got shape (" in message


@pytest.mark.slow
def test_a_point_of_a_sweep_has_it():
    group = JobGroup(
        [Job(plan_run(PRIVATE, DATA, rounds=3, seed=seed, model=MODEL, terms=PrivacyTerms()), 1) for seed in (3, 4)]
    )
    ends = dict(group.run(with_params=True))
    alone = fdp.simulate(PRIVATE, DATA, rounds=3, seed=3, model=MODEL, evaluate_every=1)
    equal(ends[0].params, alone.params)
    assert ends[0].history == alone.history


@pytest.mark.exhaustive  # CI: the mean itself, and that a folder and a start have it, above
def test_clients_with_models_of_their_own_begin_with_it():
    algorithm = averaged("finetune", clip_norm=1.0, noise_multiplier=0.5)
    data = ragged_data([12, 7, 20, 9])
    state = fdp.simulate(algorithm, data, rounds=3, model=MODEL).state
    moved = dataclasses.replace(algorithm, server=algorithm.server.base)
    of_mean = fdp.rounds.personal_models(algorithm, state, data, seed=0, model=MODEL)
    equal(
        of_mean,
        fdp.rounds.personal_models(moved, state._replace(params=state.optimizer.mean), data, seed=0, model=MODEL),
    )
