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


@pytest.mark.parametrize("entry", usual(["rfedavg", "rfedavg_plus"], ["rfedavg"]))
def test_without_feature_strength_it_is_fedavg(entry, data):
    model = TwoLayerModel(3, 4)
    parent = final("fedavg", data, model, estimator="renorm")
    np.testing.assert_array_equal(final(entry, data, model, feature_strength=0.0), parent)


@pytest.mark.parametrize("entry", usual(["dp_scaffold", "rfedavg_plus", "dp_fedavg"], ["dp_scaffold"]))
def test_interrupted_runs_with_memory_equal_uninterrupted_ones_bit_for_bit(entry, data):
    model = TwoLayerModel(3, 4) if entry == "rfedavg_plus" else MODEL
    extra = {} if entry == "rfedavg_plus" else {"clip_norm": 0.5, "noise_multiplier": 0.5}
    extra |= {"adaptive_clip": True} if entry == "dp_fedavg" else {}
    extra |= {"server": "adam"} if entry == "dp_scaffold" else {}  # which keeps moments beside the tables of controls
    value = CATALOGUE[entry].of({**COMMON, **extra})
    whole = fdp.simulate(value, data, rounds=5, model=model)
    half = fdp.simulate(value, data, rounds=2, model=model)
    rest = fdp.simulate(value, data, rounds=5, model=model, start=half.state)
    for a, b in zip(jax.tree.leaves(whole.state), jax.tree.leaves(rest.state), strict=True):
        np.testing.assert_array_equal(a, b)
