"""The 50 worked examples (tests/golden/worked_examples.json), through the public constructors, with the given noise.

They were computed by an independent NumPy loop; tolerance 1e-6 on numbers of order one.
"""

import json
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import GivenCohorts, ProductModel, QuadraticModel, states_of, usual, with_given

from fedjax_dp import accounting, algorithms, data
from fedjax_dp.accounting import personal
from fedjax_dp.parts.cohorts import AllClients
from fedjax_dp.parts.feature_matching import NoisyFeatures
from fedjax_dp.tools.papers import theorems

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "worked_examples.json").read_text())
INPUTS, EXPECTED = GOLDEN["inputs"], GOLDEN["expected"]
HYPER = INPUTS["hyper"]
SIZES = np.array(INPUTS["n_i"])
NOISE = np.array([INPUTS["noise"], INPUTS["noise_round2"]])  # (rounds, clients, steps, 2)
SIGMA, CLIP, TAU = HYPER["sigma"], HYPER["G"], INPUTS["tau"]
MODEL = QuadraticModel(start=tuple(INPUTS["w0"]))
COMMON = {
    "cohort_size": 2,
    "batch_size": None,
    "batches": "full",
    "local_steps": TAU,
    "learning_rate": INPUTS["lr"],
    "schedule": "constant",
    "l2": 0.0,
}
NOISY = {"clip_norm": CLIP, "noise_multiplier": SIGMA * SIZES / CLIP}  # sigma on the mean of n_i records
UNIFORM = np.full(3, 2 / 3)
SHOWN = set()


def store_of(clients):
    x, labels = np.concatenate(clients).astype(np.float32), np.zeros(sum(map(len, clients)), np.int32)
    dataset = data.Dataset("worked", x, labels, x, labels, classes=1)
    return data.federate(dataset, np.split(np.arange(len(x)), np.cumsum([len(rows) for rows in clients])[:-1]))


@pytest.fixture(scope="module")
def store():
    return store_of(INPUTS["clients"])


def cohorts(rounds, rate=UNIFORM):
    """Given cohorts of one size; repeats become counts."""
    distinct = [list(dict.fromkeys(ids)) for ids in rounds]
    counts = [[ids.count(i) for i in unique] for ids, unique in zip(rounds, distinct, strict=True)]
    return GivenCohorts(ids=np.array(distinct), counts=np.array(counts), rate=np.array(rate), size=len(distinct[0]))


def run(store, entry, rounds=([0, 2],), *, rate=UNIFORM, noise=NOISE, server=None, model=MODEL, **options):
    """States after each round of a catalogue entry."""
    value = algorithms.CATALOGUE[entry].of({**COMMON, **options})
    private = hasattr(value.local.privatizer, "source")
    cohort = AllClients() if rounds[0] is None else cohorts(rounds, rate)
    value = with_given(value, cohort=cohort, steps=noise if private else None, server=server)
    return states_of(value, model, store, len(rounds))


def agree(name, got, expected):
    SHOWN.add(name)
    np.testing.assert_allclose(got, expected, atol=1e-6, rtol=1e-6)


MD = np.array([0.2, 0.3, 0.5])
AGGREGATES = {
    "agg_full": ("full", [None], None),
    "agg_wor_delta": ("wor_delta", [[0, 2]], UNIFORM),
    "agg_wor_model": ("wor_model", [[0, 2]], UNIFORM),
    "agg_md": ("wor_delta", [[2, 2, 0, 1]], 4 * MD),
    "agg_biased_fedavg": ("biased", [[0, 2]], UNIFORM),
    "agg_fedavg_renormalised": ("renorm", [[0, 2]], UNIFORM),
    "agg_fedavg_simple_mean": ("mean", [[0, 2]], UNIFORM),
    "agg_is_multiset": ("wor_delta", [[2, 2, 0, 1]], 4 * np.array([0.3, 0.3, 0.4])),
}


@pytest.mark.parametrize("name", AGGREGATES)
def test_estimator_equals_worked_example(store, name):
    estimator, ids, rate = AGGREGATES[name]
    agree(name, run(store, "fedavg", ids, rate=rate, estimator=estimator)[-1].params, EXPECTED[name]["w"])


def test_local_models_equal_worked_example(store):
    for client, expected in enumerate(EXPECTED["local_models_tau2"]["w_local"]):
        agree("local_models_tau2", run(store, "fedavg", [[client]], estimator="mean")[-1].params, expected)


@pytest.mark.parametrize(("name", "factor"), [("dpnfl_nonoise_clip1", 0.0), ("dpnfl_noise", 1.0)])
@pytest.mark.parametrize(("estimator", "field"), [("wor_delta", "w_next"), ("wor_model", "w_next_model_form")])
def test_dpnfl_equals_worked_example(store, name, factor, estimator, field):
    noisy = {**NOISY, "noise_multiplier": factor * NOISY["noise_multiplier"]}
    agree(name, run(store, "dpnfl", estimator=estimator, **noisy)[-1].params, EXPECTED[name][field])


def test_dpfedavg_local_equals_worked_example(store):
    agree(
        "dpfedavg_local_noise", run(store, "dp_fedavg_local", **NOISY)[-1].params, EXPECTED["dpfedavg_local_noise"]["w"]
    )


@pytest.mark.parametrize("moment", ["delta", "mu"])
@pytest.mark.parametrize(("suffix", "factor"), [("nonoise", 0.0), ("noise", 1.0)])
def test_addpnfl_equals_worked_example_over_two_rounds(store, moment, suffix, factor):
    rates = {"server_learning_rate": HYPER["alpha_g"], "b1": HYPER["beta1"], "b2": HYPER["beta2"], "pi": HYPER["pi"]}
    noisy = {**NOISY, "noise_multiplier": factor * NOISY["noise_multiplier"]}
    states = run(store, "addpnfl", [[0, 2], [1, 2]], second_moment=moment, schedule="inverse_sqrt", **rates, **noisy)
    name = f"addpnfl_{moment}_{suffix}"
    for state, expected in zip(states[1:], EXPECTED[name]["rounds"], strict=True):
        agree(name, state.params, expected["w"])
        agree(name, state.optimizer.nu, expected["nu"])


SCAFFOLDS = {
    "scaffold": ("scaffold", 0.0, {}),
    "dpscaffold_nonoise_clip1": ("dp_scaffold", 0.0, {}),
    "dpscaffold_noise": ("dp_scaffold", 1.0, {}),
    "dpscaffold_noise_weighted": ("dp_scaffold", 1.0, {"estimator": "renorm"}),
    "dpscaffold_warm_noise": ("dp_scaffold", 1.0, {"warm_start": True}),
}


@pytest.mark.parametrize("name", SCAFFOLDS)
def test_scaffold_equals_worked_example_over_two_rounds(store, name):
    entry, factor, options = SCAFFOLDS[name]
    if entry == "dp_scaffold":
        options = {**options, "clip_norm": CLIP, "noise_multiplier": factor * NOISY["noise_multiplier"]}
    states = run(store, entry, [[0, 2], [1, 2]], **options)  # the warm start is round -1, which takes the last noise
    for state, expected in zip(states[1:], EXPECTED[name]["rounds"], strict=True):
        agree(name, state.params, expected["x"])
        agree(name, state.shared[0], expected["c"])
        agree(name, state.clients[0], expected["c_i"])


def test_dpfedavg_central_equals_worked_example(store):
    told = EXPECTED["dpfedavg_central"]
    options = {"clip_norm": told["clip"], "weight_cap": told["w_hat"] / SIZES.sum(), "cohort": "uniform"}
    server = np.array(told["noise_vector"]).reshape(1, 1, 1, 2)
    for z, field in ((0.0, "w_nonoise"), (told["z"], "w_noise")):
        state = run(store, "dp_fedavg", rate=np.full(3, told["q"]), server=server, noise_multiplier=z, **options)[-1]
        agree("dpfedavg_central", state.params, told[field])


@pytest.mark.parametrize(("name", "form"), [("fedprox_mu1", "half"), ("fedprox_code_lambda1", "full")])
def test_fedprox_equals_worked_example(store, name, form):
    state = run(store, "fedprox", [None], estimator="full", mu=1.0, prox_form=form)[-1]
    agree(name, state.params, EXPECTED[name]["w_full"])


@pytest.mark.parametrize(
    ("name", "q", "norm"),
    [("qfedavg_q0", 0.0, "update"), ("qfedavg_q1", 1.0, "update"), ("qfedavg_q1_buaa_bug", 1.0, "weighted")],
)
def test_q_fedavg_equals_worked_example(store, name, q, norm):
    agree(name, run(store, "q_fedavg", q=q, fair_norm=norm)[-1].params, EXPECTED[name]["w"])


@pytest.fixture(scope="module")
def feature_store():
    return store_of([np.stack([x, y], 1) for x, y in INPUTS["rfed_data"]])


FEATURES = {
    "rfedavg": ("rfedavg", {}),
    "rfedavg_literal_line10": ("rfedavg", {"delta_at": "global_before"}),
    "rfedavg_plus": ("rfedavg_plus", {}),
    "rfedavg_plus_code_incl_self": ("rfedavg_plus", {"leave_one_out": False}),
    "rfedavg_lambda0_is_fedavg": ("rfedavg_plus", {"feature_strength": 0.0}),
}


@pytest.mark.parametrize("scope", usual(["participants", "all"], ["participants"]))
@pytest.mark.parametrize("name", FEATURES)
def test_feature_matching_equals_worked_example_over_two_rounds(feature_store, name, scope):
    entry, options = FEATURES[name]
    options = {"feature_strength": HYPER["rfed_lambda"], **options, "delta_scope": scope}
    model = ProductModel(start=tuple(HYPER["rfed_theta0"]))
    rate = {"learning_rate": HYPER["rfed_lr"]}
    states = run(feature_store, entry, [None, None], model=model, **rate, **options)
    for state, expected in zip(states[1:], EXPECTED[name]["rounds"], strict=True):
        agree(name, state.params, expected["w"])
        agree(name, state.clients[0][:, 0], expected["delta"])


def test_noise_on_features_equals_worked_example():
    told = EXPECTED["rfedavg_delta_noise"]
    noisy = NoisyFeatures(clip_norm=told["C2"], noise_multiplier=told["sigma2"], batch_size=float(told["L"]))
    agree("rfedavg_delta_noise", noisy.add(np.array(told["delta_in"]), np.array(told["z"])), told["delta_out"])


def test_cpfed_equals_worked_example(store):
    agree("cpfed_round", run(store, "cpfed", **NOISY, secure=False)[-1].params, EXPECTED["cpfed_round"]["w"])


@pytest.mark.slow
def test_cpfed_with_masks_and_its_ciphertexts_equal_worked_example(store):
    told = EXPECTED["cpfed_round"]
    masked = run(store, "cpfed", **NOISY, secure=True, ring_bits=64, fractional_bits=40)
    agree("cpfed_round", masked[-1].params, told["w"])
    for client, ciphertext in told["ciphertext"].items():
        alone = run(store, "cpfed", [[int(client)]], **NOISY, secure=False)[-1].params
        sign = 1 if client == "0" else -1
        np.testing.assert_allclose(alone + sign * np.array(HYPER["mask"]), ciphertext, rtol=1e-6)


def test_dp_sgd_equals_worked_example(store):
    told = EXPECTED["dpsgd_round"]
    agree("dpsgd_round", run(store, "dp_sgd", **NOISY, local_steps=1)[-1].params, told["w"])


@pytest.mark.parametrize(("name", "clipping"), [("acs_round", "record"), ("acs_round_batchclip", "batch")])
def test_acs_pldp_round_equals_worked_example(store, name, clipping):
    told = EXPECTED["acs_round"]
    noise = 2 * np.array(told["sigma_i"])  # acs_pldp's unit is the sensitivity 2C/m, ours is C on the sum
    options = {"clip_norm": told["C"], "noise_multiplier": noise, "clipping": clipping}
    state = run(store, "acs_pldp", [told["multiset"]], rate=2 * np.array(told["q"]), **options)[-1]
    agree(name, state.params, EXPECTED[name]["w"])


@pytest.mark.parametrize("sampling", ["wor", "wr"])
@pytest.mark.parametrize("space", ["nonoise", "model", "literal"])
def test_dp_fedavg_output_equals_worked_example(store, space, sampling):
    name = f"dp_fedavg_output_{space}_{sampling}"
    rounds, rate = ([[0, 2]], UNIFORM) if sampling == "wor" else ([[2, 2, 0]], 3 * MD)
    rates = INPUTS["lr"] / np.sqrt(1 + np.arange(TAU))
    std = np.zeros(3)
    for client in (0, 2):
        std[client] = EXPECTED[name].get(f"std_model_client{client}", 0.0)
    options = {
        "clip_norm": 1.0,
        "noise_multiplier": std / rates.sum(),
        "schedule": "inverse_sqrt",
        "noise_space": "literal" if space == "literal" else "model",
    }
    agree(name, run(store, "dp_fedavg_output", rounds, rate=rate, **options)[-1].params, EXPECTED[name]["w"])


def test_noise_of_dp_fedavg_output_equals_worked_example():
    """std = 4 Q G eta times Theorem 1's noise; its shares-weighted square is equation (20)."""
    told = EXPECTED["dp_fedavg_output_eq20_check"]  # 100 equal clients of 600 records, Q = 5, b = 10, eta = 0.04
    std = 4 * 5 * 0.04 * theorems.dp_fedavg_output_theorem1_noise(0.5, 1e-5, 5 * 10 / 600)
    agree("dp_fedavg_output_eq20_check", [std, std**2, std**2], [told["std_model"], told["sum_p_var"], told["eq20"]])
    for client, size in ((0, 200), (2, 500)):
        std = (
            4 * TAU * INPUTS["lr"] / math.sqrt(2) * theorems.dp_fedavg_output_theorem1_noise(0.5, 1e-5, TAU * 10 / size)
        )
        agree("dp_fedavg_output_model_wor", std, EXPECTED["dp_fedavg_output_model_wor"][f"std_model_client{client}"])


def test_composition_of_dp_fedavg_output_equals_worked_example():
    told = EXPECTED["dp_fedavg_output_theorem2"]
    for sampling in ("wor", "wr"):
        rate = told[f"q_{sampling}"]
        assert told["c0"] == 1.0
        ratio = told[f"eps_total_{sampling}"] / theorems.dp_fedavg_output_theorem2_epsilon(1.0, rate, 1.0)
        others = told["eps_total_wor"] / theorems.dp_fedavg_output_theorem2_epsilon(1.0, told["q_wor"], 1.0)
        agree("dp_fedavg_output_theorem2", ratio, others)  # one factor, epsilon sqrt(K), for both samplers
    agree("dp_fedavg_output_theorem2", accounting.AnyStep(accounting.WithReplacement(10, 600), 5).rate, told["q_wr"])


def test_calibrations_equal_worked_examples():
    told = EXPECTED["tcdp_sigma"]
    sampling = accounting.WithoutReplacement(told["B"], told["n_i"])
    noise = theorems.dpnfl_lemma2_noise(told["eps"], told["delta"], sampling, told["K_i"] * told["tau"])
    agree("tcdp_sigma", noise / told["B"], told["sigma"])
    told = EXPECTED["cpfed_sigma"]
    setting = theorems.Cpfed(told["T"], told["tau"], told["n"], told["r"], batch_size=1)
    for secure, field in ((True, "sigma_times_B"), (False, "sigma_times_B_noSA")):
        agree("cpfed_sigma", setting.sigma(told["eps"], told["delta"], secure=secure), told[field])


def test_probabilities_of_acs_pldp_equal_worked_examples():
    told = EXPECTED["acs_q"]
    terms = personal.noise_terms(told["eps"], told["s"], told["K"], told["R"], told["delta"])
    agree("acs_q", terms, told["B"])
    agree("acs_q", personal.sampling_probabilities(told["p"], told["G"], terms, told["K"]), told["q_lambda1_cap"])
    told = EXPECTED["acs_q_capbinding"]
    agree("acs_q_capbinding", personal.sampling_probabilities(told["p"], told["G"], told["B"], told["K"]), told["q"])
    told, q = EXPECTED["acs_Tstar"], EXPECTED["acs_q"]
    chances, draws = q["q_lambda1_cap"], q["K"] * q["R"]
    assert told["k"] == pytest.approx(0.9 * math.sqrt(math.pi), rel=1e-12)
    budgeted = [theorems.acs_pldp_lemma1(draws, chance, q["delta"] / 4, told["k"]) for chance in chances]
    agree("acs_Tstar", np.array(budgeted), told["Tstar"])


def test_noise_in_the_wrong_unit_is_told_apart(store):
    """The check can fail: noise that forgets the clip norm, or the batch size, is far outside the tolerance."""
    state = run(store, "dpnfl", clip_norm=CLIP, noise_multiplier=SIGMA)[-1]
    assert np.abs(state.params - EXPECTED["dpnfl_noise"]["w_next"]).max() > 1e-3


def test_jax_and_numpy_inputs_agree(store):
    a = run(store, "fedavg", [None], estimator="full")[-1].params
    b = run(jax.tree.map(jnp.asarray, store), "fedavg", [None], estimator="full")[-1].params
    np.testing.assert_array_equal(a, b)


def test_every_worked_example_is_shown():
    """Runs last in this file: each of the 50 was compared somewhere above."""
    assert len(EXPECTED) == 50
    assert set(EXPECTED) == SHOWN
