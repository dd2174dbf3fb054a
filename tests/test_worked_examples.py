"""The worked examples (tests/golden/worked_examples.json), through the public slots, with the given noise.

They were computed by an independent NumPy loop; tolerance 1e-6 on numbers of order one.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import GivenCohort, GivenNoise, QuadraticModel

from fedjax_dp import algorithm, batches, clients, cohort, data, local, privatizer, schedules, server
from fedjax_dp.aggregate import ESTIMATORS
from fedjax_dp.simulation import numbers, run_key

GOLDEN = json.loads((pathlib.Path(__file__).parent / "golden" / "worked_examples.json").read_text())
INPUTS, EXPECTED = GOLDEN["inputs"], GOLDEN["expected"]
SIZES = [len(rows) for rows in INPUTS["clients"]]
NOISE = np.array([INPUTS["noise"], INPUTS["noise_round2"]])  # (rounds, clients, steps, 2)
SIGMA, CLIP = INPUTS["hyper"]["sigma"], INPUTS["hyper"]["G"]


@pytest.fixture(scope="module")
def store():
    x = np.concatenate([np.array(rows, np.float32) for rows in INPUTS["clients"]])
    dataset = data.Dataset("worked", x, np.zeros(len(x), np.int32), x, np.zeros(len(x), np.int32), classes=1)
    return data.federate(dataset, np.split(np.arange(len(x)), np.cumsum(SIZES)[:-1]))


def noisy(sigma):
    """Noise sigma on the mean gradient of n_i records is a noise multiplier of sigma n_i / C on the sum."""
    multipliers = sigma * np.array(SIZES) / CLIP
    return privatizer.RecordGaussian(clip_norm=CLIP, noise_multiplier=multipliers, source=GivenNoise(table=NOISE))


def run(store, estimator, private, members, *, schedule=schedules.constant, mover=None, rounds=1):
    mover = mover or server.Server(hyperparameters={"learning_rate": 1.0})
    steps = local.LocalSgd(
        learning_rate=INPUTS["lr"], privatizer=private, batches=batches.FullBatches(rows=max(SIZES)),
        steps=INPUTS["tau"], schedule=schedule,
    )  # fmt: skip
    model, state, states = QuadraticModel(start=tuple(INPUTS["w0"])), None, []
    for ids in members[:rounds]:
        who = cohort.AllClients() if ids is None else GivenCohort(ids=np.array(ids), count=len(ids))
        value = numbers(algorithm.Algorithm(cohort=who, local=steps, aggregate=estimator, server=mover))
        state = state or algorithm.init(value, model.init(None))
        state, _ = algorithm.run_round(value, model, store, run_key(0), state, clients.Execution())
        states.append(np.asarray(state.params))
    return states


AGGREGATES = {
    "agg_full": (ESTIMATORS["full"], None),
    "agg_wor_delta": (ESTIMATORS["wor_delta"], [0, 2]),
    "agg_wor_model": (ESTIMATORS["wor_model"], [0, 2]),
    "agg_biased_fedavg": (ESTIMATORS["biased"], [0, 2]),
    "agg_fedavg_renormalised": (ESTIMATORS["renorm"], [0, 2]),
    "agg_fedavg_simple_mean": (ESTIMATORS["mean"], [0, 2]),
}


@pytest.mark.parametrize("name", AGGREGATES)
def test_estimator_equals_worked_example(store, name):
    estimator, ids = AGGREGATES[name]
    (params,) = run(store, estimator, privatizer.NonPrivate(), [ids])
    np.testing.assert_allclose(params, EXPECTED[name]["w"], atol=1e-6)


def test_local_models_equal_worked_example(store):
    for client, expected in enumerate(EXPECTED["local_models_tau2"]["w_local"]):
        (params,) = run(store, ESTIMATORS["mean"], privatizer.NonPrivate(), [[client]])
        np.testing.assert_allclose(params, expected, atol=1e-6)


@pytest.mark.parametrize(("name", "sigma"), [("dpnfl_nonoise_clip1", 0.0), ("dpnfl_noise", SIGMA)])
@pytest.mark.parametrize(("estimator", "field"), [("wor_delta", "w_next"), ("wor_model", "w_next_model_form")])
def test_dpnfl_equals_worked_example(store, name, sigma, estimator, field):
    (params,) = run(store, ESTIMATORS[estimator], noisy(sigma), [[0, 2]])
    np.testing.assert_allclose(params, EXPECTED[name][field], atol=1e-6)


def test_dpfedavg_local_equals_worked_example(store):
    (params,) = run(store, ESTIMATORS["renorm"], noisy(SIGMA), [[0, 2]])
    np.testing.assert_allclose(params, EXPECTED["dpfedavg_local_noise"]["w"], atol=1e-6)


@pytest.mark.parametrize("moment", ["delta", "mu"])
@pytest.mark.parametrize(("suffix", "sigma"), [("nonoise", 0.0), ("noise", SIGMA)])
def test_addpnfl_equals_worked_example_over_two_rounds(store, moment, suffix, sigma):
    hyper = INPUTS["hyper"]
    rates = {"learning_rate": hyper["alpha_g"], "b1": hyper["beta1"], "b2": hyper["beta2"], "pi": hyper["pi"]}
    mover = server.Server(hyperparameters=rates, factory=server.SECOND_MOMENTS[moment], schedule=schedules.inverse_sqrt)
    states = run(
        store, ESTIMATORS["wor_delta"], noisy(sigma), [[0, 2], [1, 2]], schedule=schedules.inverse_sqrt, mover=mover,
        rounds=2,
    )  # fmt: skip
    for params, expected in zip(states, EXPECTED[f"addpnfl_{moment}_{suffix}"]["rounds"], strict=True):
        np.testing.assert_allclose(params, expected["w"], atol=1e-6)


def test_noise_inside_the_rate_of_the_sum_is_told_apart(store):
    """The check can fail: noise that forgets the clip norm, or the batch size, is far outside the tolerance."""
    wrong = privatizer.RecordGaussian(clip_norm=CLIP, noise_multiplier=SIGMA, source=GivenNoise(table=NOISE))
    (params,) = run(store, ESTIMATORS["wor_delta"], wrong, [[0, 2]])
    assert np.abs(params - EXPECTED["dpnfl_noise"]["w_next"]).max() > 1e-3


def test_jax_and_numpy_inputs_agree(store):
    (a,) = run(store, ESTIMATORS["full"], privatizer.NonPrivate(), [None])
    (b,) = run(jax.tree.map(jnp.asarray, store), ESTIMATORS["full"], privatizer.NonPrivate(), [None])
    np.testing.assert_array_equal(a, b)
