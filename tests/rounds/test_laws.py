"""Laws that hold over the catalogue: every knob has a value that recovers the simpler algorithm exactly."""

import jax
import numpy as np
import pytest
from helpers import TwoLayerModel, ragged_data, states_of, usual

import fedjax_dp as fdp
from fedjax_dp.algorithms import CATALOGUE
from fedjax_dp.models import logistic_regression

pytestmark = pytest.mark.slow  # each compiles a round of its own; the worked examples run by default

COMMON = {"cohort_size": 3, "batch_size": 2, "local_steps": 3, "learning_rate": 0.3}
PRIVATE = {"clip_norm": 0.7, "noise_multiplier": 0.5, "schedule": "constant", "l2": 0.0}
MODEL = logistic_regression((3,), 3)


@pytest.fixture(scope="module")
def data():
    return ragged_data([4, 6, 5, 8, 7])


def final(entry, data, model=MODEL, rounds=3, **options):
    state = states_of(CATALOGUE[entry].of({**COMMON, **options}), model, data, rounds)[-1]
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.params)])


PARENTS = {
    "fedprox, mu = 0": (("fedprox", {"mu": 0.0}), ("fedavg", {})),
    "q_fedavg, q = 0": (("q_fedavg", {"q": 0.0}), ("fedavg", {"estimator": "mean"})),
    "fedavgm without momentum": (("fedavgm", {"momentum": 0.0}), ("fedavg", {})),
    "dp_scaffold, one round": (("dp_scaffold", {**PRIVATE}), ("dp_fedavg_local", {**PRIVATE, "estimator": "mean"})),
    "cpfed in the open": (("cpfed", {**PRIVATE, "secure": False}), ("dpnfl", {**PRIVATE, "estimator": "mean"})),
    "dp_sgd": (("dp_sgd", {**PRIVATE, "local_steps": 1}), ("cpfed", {**PRIVATE, "secure": False, "local_steps": 1})),
    "md draws over given shares": (("acs_pldp", {**PRIVATE}), ("dpnfl", {**PRIVATE, "cohort": "md"})),
    "dp_fedavg, loose and silent": (
        ("dp_fedavg", {"clip_norm": 1e6, "cohort": "uniform"}),
        ("fedavg", {"estimator": "mean"}),
    ),
    "dpnfl, loose and silent": (("dpnfl", {"clip_norm": 1e6, "l2": 0.0, "schedule": "constant"}), ("fedavg", {})),
    "dpnfl with momentum, loose and silent": (
        ("dpnfl", {"clip_norm": 1e6, "momentum": 0.5, "l2": 0.0, "schedule": "constant"}),
        ("fedavgm", {"momentum": 0.5}),
    ),
    "addpnfl, one round of a huge pi": (  # w + rate Delta / (|Delta| + pi) is w + (rate / pi) Delta to first order
        ("addpnfl", {**PRIVATE, "b1": 0.0, "b2": 0.0, "pi": 1e6, "server_learning_rate": 1e6}),
        ("dpnfl", {**PRIVATE}),
    ),
    "dp_ftrl with one band": (
        ("dp_ftrl", {"clip_norm": 0.4, "noise_multiplier": 0.3, "bands": 1, "momentum": 0.0, "cohort": "uniform"}),
        ("dp_fedavg", {"clip_norm": 0.4, "noise_multiplier": 0.3, "cohort": "uniform"}),
    ),
}


@pytest.mark.parametrize("name", usual(PARENTS, ["md draws over given shares"]))
def test_a_knob_at_zero_is_the_simpler_algorithm(name, data):
    (entry, options), (parent, parents) = PARENTS[name]
    rounds = 1 if "one round" in name else 3
    np.testing.assert_allclose(
        final(entry, data, rounds=rounds, **options),
        final(parent, data, rounds=rounds, **parents),
        rtol=1e-5,
        atol=1e-6,
    )


NOISED = {"clip_norm": 0.5, "noise_multiplier": 0.5}
RESUMED = {
    "controls and moments": ("dp_scaffold", {**NOISED, "server": "adam"}),
    "features": ("rfedavg_plus", {}),
    "a clip norm that is learnt": ("dp_fedavg", {**NOISED, "adaptive_clip": True}),
    "a clip norm that changes": ("dp_fedavg", {**NOISED, "clip_schedule": "list", "clip_factors": "1,2,0.5,1"}),
    "noise that changes": ("dpnfl", {**NOISED, "noise_schedule": "linear", "noise_end": 0.5, "noise_rounds": 4}),
}


@pytest.mark.parametrize("name", usual(RESUMED, ["controls and moments", "a clip norm that changes"]))
def test_interrupted_runs_with_memory_equal_uninterrupted_ones_bit_for_bit(name, data):
    entry, options = RESUMED[name]
    model = TwoLayerModel(3, 4) if entry == "rfedavg_plus" else MODEL
    value = CATALOGUE[entry].of({**COMMON, **options})
    whole = fdp.simulate(value, data, rounds=5, model=model)
    half = fdp.simulate(value, data, rounds=2, model=model)
    rest = fdp.simulate(value, data, rounds=5, model=model, start=half.state)
    jax.tree.map(np.testing.assert_array_equal, whole.state, rest.state)
