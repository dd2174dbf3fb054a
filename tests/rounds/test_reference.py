"""The reference against the worked examples of the specification, by hand and against itself."""

import dataclasses
import json

import numpy as np
import pytest
import reference as ref
from helpers import SPECS

GOLDEN = json.loads((SPECS / "worked_examples.json").read_text())
GIVEN, WANTED = GOLDEN["inputs"], GOLDEN["expected"]
NOISE = np.array([GIVEN["noise"], GIVEN["noise_round2"]])
PRIVATE = {"clip": "example", "bound": 1.0, "sigma": 0.5}
TWO_ROUNDS = [[0, 2], [1, 2]]


def same(result, wanted):
    np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-9, equal_nan=False)


def full_batches(case):
    """Every step uses every record of the client."""
    case.batches = lambda t, i, s: np.arange(len(case.x[i]))
    case.divisor = lambda t, i, s: len(case.x[i])
    return case


def quadratic(cohorts, **changes):
    x = [np.array(client) for client in GIVEN["clients"]]
    case = ref.Case(
        problem=ref.quadratic_problem(np.array(GIVEN["a"])),
        x=x,
        y=[np.zeros(len(client)) for client in x],
        shares=np.array(GIVEN["p"]),
        start=np.array(GIVEN["w0"]),
        cohorts=cohorts,
        batches=None,
        divisor=None,
        steps=GIVEN["tau"],
        rate=lambda t, s: GIVEN["lr"],
        noise=NOISE,
    )
    return full_batches(dataclasses.replace(case, **changes))


def line_case(**changes):
    """w = (u, v), phi(x) = u x, loss 1/2 (v u x - y)^2."""
    problem = ref.Problem(
        gradients=lambda w, x, y: ((w[0] * w[1] * x - y) * np.array([w[1] * x, w[0] * x])).T,
        losses=lambda w, x, y: 0.5 * (w[0] * w[1] * x - y) ** 2,
        features=lambda w, x: (w[0] * x)[:, None],
        feature_jacobian=lambda w, x: np.array([[[x_j, 0.0]] for x_j in x]),
    )
    hyper = GIVEN["hyper"]
    case = quadratic(
        [[0, 1, 2]] * 2,
        problem=problem,
        x=[np.array(x) for x, _ in GIVEN["rfed_data"]],
        y=[np.array(y) for _, y in GIVEN["rfed_data"]],
        shares=np.array(hyper["rfed_p"]),
        start=np.array(hyper["rfed_theta0"]),
        rate=lambda t, s: hyper["rfed_lr"],
    )
    return full_batches(dataclasses.replace(case, **changes))


def random_case(rng, cohorts=((0, 2), (3, 1), (2, 3)), two_layer=False, **changes):
    """Four clients, batches of two records of three features, noise for an extra step and an extra round."""
    problem = ref.two_layer_problem(3, 2) if two_layer else ref.softmax_problem(3, 3)
    sizes, d, rounds, steps = np.array([3, 4, 5, 6]), 8 if two_layer else 12, len(cohorts), 2
    picks = {
        (t, i, s): rng.choice(sizes[i], 2, replace=False)
        for t in range(rounds + 1)
        for i in range(4)
        for s in range(steps + 1)
    }
    case = ref.Case(
        problem=problem,
        x=[rng.normal(size=(size, 3)) for size in sizes],
        y=[rng.integers(0, 3, size) for size in sizes],
        shares=sizes / sizes.sum(),
        start=rng.normal(size=d),
        cohorts=[list(cohort) for cohort in cohorts],
        batches=lambda t, i, s: picks[t, i, s],
        divisor=lambda t, i, s: 2,
        steps=steps,
        rate=lambda t, s: 0.1,
        noise=rng.normal(size=(rounds + 1, 4, steps + 1, d)),
        server_noise=rng.normal(size=(rounds, d)),
    )
    return dataclasses.replace(case, **changes)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# Worked examples


def test_local_models():
    case = quadratic([[0, 1, 2]])
    (round_,) = ref.fedavg(case)
    for i in range(3):
        same(round_["deltas"][i], WANTED["local_models_tau2"]["delta"][i])
        same(case.start + round_["deltas"][i], WANTED["local_models_tau2"]["w_local"][i])


@pytest.mark.parametrize(
    ("key", "estimator"),
    [
        ("agg_full", "full"),
        ("agg_wor_delta", "wor_delta"),
        ("agg_wor_model", "wor_model"),
        ("agg_md", "md"),
        ("agg_biased_fedavg", "biased"),
        ("agg_fedavg_renormalised", "renorm"),
        ("agg_fedavg_simple_mean", "mean"),
        ("agg_is_multiset", "is"),
    ],
)
def test_estimators(key, estimator):
    wanted = WANTED[key]
    cohort = wanted.get("S") or wanted.get("multiset") or [0, 1, 2]
    (round_,) = ref.fedavg(quadratic([cohort]), estimator=estimator, q=wanted.get("q"))
    same(round_["w"], wanted["w"])


@pytest.mark.parametrize("key", ["dpnfl_nonoise_clip1", "dpnfl_noise"])
def test_dpnfl(key):
    wanted = WANTED[key]
    options = {"bound": wanted["G"], "sigma": wanted["sigma"]}
    (round_,) = ref.dpnfl(quadratic([wanted["S"]]), **options)
    for i in wanted["S"]:
        same(round_["deltas"][i], wanted["delta_i"][str(i)])
    same(round_["delta"], wanted["Delta"])
    same(round_["w"], wanted["w_next"])
    (round_,) = ref.dpnfl(quadratic([wanted["S"]]), estimator="wor_model", **options)
    same(round_["w"], wanted["w_next_model_form"])


@pytest.mark.parametrize("second_moment", ["delta", "mu"])
@pytest.mark.parametrize("noise", ["noise", "nonoise"])
def test_addpnfl(second_moment, noise):
    hyper = GIVEN["hyper"]
    case = quadratic(TWO_ROUNDS, rate=lambda t, s: hyper["alpha_l"] / np.sqrt(t + 1))
    rounds = ref.addpnfl(
        case,
        second_moment=second_moment,
        server_rate=lambda t: hyper["alpha_g"] / np.sqrt(t + 1),
        betas=(hyper["beta1"], hyper["beta2"]),
        pi=hyper["pi"],
        bound=hyper["G"],
        sigma=hyper["sigma"] if noise == "noise" else 0.0,
    )
    for round_, wanted in zip(rounds, WANTED[f"addpnfl_{second_moment}_{noise}"]["rounds"], strict=True):
        for name, key in [("delta", "Delta"), ("mu", "mu"), ("nu", "nu"), ("w", "w")]:
            same(round_[name], wanted[key])


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("scaffold", {}),
        ("dpscaffold_nonoise_clip1", {"clip": "example", "bound": 1.0}),
        ("dpscaffold_noise", PRIVATE),
        ("dpscaffold_noise_weighted", PRIVATE | {"estimator": "renorm"}),
        ("dpscaffold_warm_noise", PRIVATE | {"warm": 1}),
    ],
)
def test_scaffold(key, options):
    system = ref.scaffold if key == "scaffold" else ref.dp_scaffold
    for round_, wanted in zip(system(quadratic(TWO_ROUNDS), **options), WANTED[key]["rounds"], strict=True):
        same(round_["w"], wanted["x"])
        same(round_["c"], wanted["c"])
        same(round_["c_i"], wanted["c_i"])


def test_dp_fedavg_local():
    (round_,) = ref.dp_fedavg_local(quadratic([[0, 2]]), bound=1.0, sigma=0.5)
    same(round_["w"], WANTED["dpfedavg_local_noise"]["w"])


def test_dp_fedavg_central():
    wanted = WANTED["dpfedavg_central"]
    case = quadratic([wanted["S"]], server_noise=np.array([wanted["noise_vector"]]))
    options = {"bound": wanted["clip"], "q": wanted["q"], "w_hat": wanted["w_hat"]}
    same(ref.dp_fedavg_central(case, z=0.0, **options)[0]["w"], wanted["w_nonoise"])
    (round_,) = ref.dp_fedavg_central(case, z=wanted["z"], **options)
    same(round_["w"], wanted["w_noise"])
    same(round_["std"], wanted["sigma"])


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("fedprox_mu1", {"mu": 1.0}),
        ("fedprox_code_lambda1", {"mu": 2.0}),
        ("fedprox_code_lambda1", {"mu": 1.0, "prox_form": "full"}),
    ],
)
def test_fedprox(key, options):
    same(ref.fedprox(quadratic([[0, 1, 2]]), **options)[0]["w"], WANTED[key]["w_full"])


@pytest.mark.parametrize(
    ("key", "q_h"), [("qfedavg_q0", "update"), ("qfedavg_q1", "update"), ("qfedavg_q1_buaa_bug", "weighted")]
)
def test_q_fedavg(key, q_h):
    wanted = WANTED[key]
    (round_,) = ref.q_fedavg(quadratic([wanted["S"]]), q=wanted["q"], q_h=q_h)
    same([round_["losses"][i] for i in wanted["S"]], wanted["F"])
    same([round_["h"][i] for i in wanted["S"]], wanted["h"])
    same(round_["w"], wanted["w"])


@pytest.mark.parametrize(
    ("key", "system", "options"),
    [
        ("rfedavg", ref.rfedavg, {}),
        ("rfedavg_literal_line10", ref.rfedavg, {"delta_at": "global_before"}),
        ("rfedavg_plus", ref.rfedavg_plus, {}),
        ("rfedavg_plus_code_incl_self", ref.rfedavg_plus, {"leave_one_out": False}),
        ("rfedavg_lambda0_is_fedavg", ref.rfedavg_plus, {"lam": 0.0}),
    ],
)
@pytest.mark.parametrize("scope", ["participants", "all"])
def test_rfedavg(key, system, options, scope):
    options = {"lam": GIVEN["hyper"]["rfed_lambda"], **options}
    for round_, wanted in zip(system(line_case(), scope=scope, **options), WANTED[key]["rounds"], strict=True):
        same([round_["models"][i] for i in range(3)], wanted["local"])
        same(round_["w"], wanted["w"])
        same(np.ravel(round_["delta"]), wanted["delta"])


def test_rfedavg_delta_noise():
    wanted = WANTED["rfedavg_delta_noise"]
    z, delta = np.array(wanted["z"]), np.array(wanted["delta_in"])
    same(ref.noisy_delta(delta, wanted["sigma2"], wanted["C2"], wanted["L"], z), wanted["delta_out"])


def test_cpfed():
    wanted, case = WANTED["cpfed_round"], quadratic([[0, 2]])
    (round_,) = ref.cpfed(case, bound=1.0, sigma=wanted["sigma"])
    same(round_["w"], wanted["w"])
    same(round_["w"], wanted["w_from_ciphertext"])
    for i, sign in [(0, 1), (2, -1)]:
        message = case.start + round_["deltas"][i] + sign * np.array(GIVEN["hyper"]["mask"])
        same(message, wanted["ciphertext"][str(i)])


def test_dp_sgd():
    wanted = WANTED["dpsgd_round"]
    same(ref.dp_sgd(quadratic([wanted["S"]]), bound=1.0, sigma=wanted["sigma"])[0]["w"], wanted["w"])


def test_acs_pldp():
    given = WANTED["acs_round"]
    case, options = quadratic([given["multiset"]]), {"q": given["q"], "sigma": given["sigma_i"], "bound": given["C"]}
    same([2 * given["C"] / len(x) for x in case.x], given["S_i"])
    same(ref.acs_pldp(case, **options)[0]["w"], given["w"])
    same(ref.acs_pldp(case, clip="batch", **options)[0]["w"], WANTED["acs_round_batchclip"]["w"])


@pytest.mark.parametrize("space", ["nonoise", "model", "literal"])
@pytest.mark.parametrize("sampling", ["wor", "wr"])
def test_dp_fedavg_output(space, sampling):
    wanted, records = WANTED[f"dp_fedavg_output_{space}_{sampling}"], (200, 300, 500)

    def rate(t, s):
        return 0.1 / np.sqrt(1 + s)

    def std(t, i, s):
        return ref.output_std(rate(t, s), 2, 10, 1.0, records[i], 0.5, 1e-5)

    options = {} if space == "nonoise" else {"std": std, "noise_space": space}
    estimator = "wor_model" if sampling == "wor" else "md"
    (round_,) = ref.dp_fedavg_output(quadratic([wanted["S"]], rate=rate), bound=1.0, estimator=estimator, **options)
    same(round_["w"], wanted["w"])
    for i in (0, 2):
        same(round_["models"][i], wanted[f"w{i}"])
        if space != "nonoise":
            same(std(0, i, 1), wanted[f"std_model_client{i}"])


def test_output_std_of_equation_20():
    """100 clients of 600 records, Q = 5, b = 10, rate 0.04."""
    std = ref.output_std(0.04, 5, 10, 1.0, 600, 0.5, 1e-5)
    same(std, WANTED["dp_fedavg_output_eq20_check"]["std_model"])
    same(std**2, WANTED["dp_fedavg_output_eq20_check"]["eq20"])


# The problems


@pytest.mark.parametrize("two_layer", [False, True])
def test_derivatives(rng, two_layer):
    case = random_case(rng, two_layer=two_layer)
    problem, w, x, y = case.problem, case.start, case.x[3], case.y[3]
    shifts = 1e-5 * np.eye(len(w))

    def slope(function):
        return np.stack([(function(w + e) - function(w - e)) / 2e-5 for e in shifts], -1)

    np.testing.assert_allclose(problem.gradients(w, x, y), slope(lambda v: problem.losses(v, x, y)), atol=1e-8)
    if two_layer:
        jacobian = slope(lambda v: problem.features(v, x))
        np.testing.assert_allclose(problem.feature_jacobian(w, x), jacobian, atol=1e-8)
    assert problem.gradients(w, x[:0], y[:0]).shape == (0, len(w))
    assert sum(tensor.stop - tensor.start for tensor in problem.tensors) == len(w)


# By hand and against each other


def all_equal(left, right, *keys):
    for a, b in zip(left, right, strict=True):
        for key in keys or ["w"]:
            same(a[key], b[key])


def test_equal_estimators(rng):
    case = random_case(rng, cohorts=[[1, 3, 3], [0, 0, 2]])
    all_equal(ref.fedavg(case, estimator="md"), ref.fedavg(case, estimator="is", q=case.shares))
    all_equal(ref.fedavg(case, estimator="wor_delta"), ref.fedavg(case, estimator="poisson", q=3 / 4))
    even = dataclasses.replace(case, shares=np.full(4, 1 / 4))
    for estimator in ["wor_model", "mean", "md", "renorm"]:
        all_equal(ref.fedavg(even, estimator="wor_delta"), ref.fedavg(even, estimator=estimator))


def test_an_empty_cohort_changes_nothing(rng):
    case = random_case(rng, cohorts=[[]])
    for estimator in ["poisson", "wor_delta", "mean", "renorm"]:
        same(ref.fedavg(case, estimator=estimator, q=0.5)[0]["w"], case.start)


def test_server_optimisers(rng):
    case = random_case(rng)
    adam = ref.fedavg(case, estimator="wor_delta", server="adam", server_rate=0.01, clip="example", bound=0.5)
    all_equal(adam, ref.addpnfl(case, bound=0.5), "w", "delta")
    first = ref.fedavg(case, server="yogi", server_rate=0.1, betas=(0.5, 0.75), adaptivity=0.01)[0]
    square = 1e-4 + 0.25 * np.sign(first["delta"] ** 2 - 1e-4) * first["delta"] ** 2
    same(first["w"] - case.start, 0.1 * 0.5 * first["delta"] / (np.sqrt(square) + 0.01))
    rounds = ref.fedavg(case, server="momentum", server_rate=2.0, momentum=0.5)
    same(rounds[1]["w"] - rounds[0]["w"], 2 * (0.5 * rounds[0]["delta"] + rounds[1]["delta"]))
    all_equal(ref.fedavg(case), ref.fedavg(case, server="momentum", momentum=0.0))


def test_rmsprop(rng):
    case = random_case(rng, cohorts=[[1], [1]], steps=1)
    kept, reset = (
        ref.fedavg(case, rule="rmsprop", numbers={"decay": 0.9, "eps": 0.0}, state=state)
        for state in ("persist", "reset")
    )
    g = [ref.step_gradient(case, 0, 1, 0, case.start), ref.step_gradient(case, 1, 1, 0, kept[0]["w"])]
    same(kept[0]["deltas"][1], -0.1 * np.sign(g[0]) / np.sqrt(0.1))
    same(kept[1]["deltas"][1], -0.1 * g[1] / np.sqrt(0.09 * g[0] ** 2 + 0.1 * g[1] ** 2))
    same(reset[1]["deltas"][1], -0.1 * np.sign(g[1]) / np.sqrt(0.1))


def test_clips():
    gradients = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 7.0]])
    tensors = [slice(0, 2), slice(2, 3)]
    mean, sensitivity = ref.clipped_mean(gradients, 4, "example", 1.0, tensors)
    same(mean, np.array([0.6, 0.8 + 1 / np.sqrt(50), 1 + 7 / np.sqrt(50)]) / 4)
    same(sensitivity, 0.5)
    mean, sensitivity = ref.clipped_mean(gradients, 4, "batch", 1.0, tensors)
    same(mean, np.array([3.0, 5.0, 8.0]) / np.sqrt(98))
    same(sensitivity, 2.0)
    mean, sensitivity = ref.clipped_mean(gradients, 4, "per_tensor_median", None, tensors)
    same(mean, np.array([0.6, 0.8 + 1, 1 + 1]) / 4)  # medians of (5, 0, 1) and (0, 1, 7)
    same(sensitivity, 0.5)
    same(ref.clipped_mean(gradients, 4, "none", None, tensors)[0], gradients.sum(0) / 4)
    for clip in ["none", "example", "batch", "per_tensor_median"]:
        same(ref.clipped_mean(gradients[:0], 4, clip, 1.0, tensors)[0], np.zeros(3))


def test_the_l2_term_is_neither_clipped_nor_part_of_the_noise(rng):
    case = random_case(rng)
    plain = ref.step_gradient(case, 0, 1, 0, case.start, clip="batch", bound=1e-3, sigma=np.arange(4.0))
    same(ref.step_gradient(case, 0, 1, 0, case.start, clip="batch", bound=1e-3) + case.noise[0, 1, 0], plain)
    regular = ref.step_gradient(case, 0, 1, 0, case.start, clip="batch", bound=1e-3, sigma=1.0, l2=0.5)
    same(regular, plain + case.start)


def test_clients_with_fewer_steps(rng):
    case = random_case(rng)
    batches = case.batches
    case.batches = lambda t, i, s: None if (i, s) == (2, 1) else batches(t, i, s)
    (round_, *_), g = ref.scaffold(case), ref.step_gradient(case, 0, 2, 0, case.start)
    same(round_["deltas"][2], -0.1 * g)
    same(round_["c_i"][2], g)


@pytest.mark.parametrize("clip", ["example", "per_tensor_median"])
def test_controls_are_mean_noisy_gradients(rng, clip):
    """The identity of option II, with the warm start and the noise of Noble et al."""
    case, options = random_case(rng), {"clip": clip, "bound": 0.5, "multiplier": 0.3}
    rounds = ref.dp_scaffold(case, warm=3, **options)
    warm = [np.mean([ref.step_gradient(case, 3, i, s, case.start, **options) for s in (0, 1)], 0) for i in range(4)]
    first = ref.step_gradient(case, 0, 2, 0, case.start, **options)
    y = case.start - 0.1 * (first - warm[2] + np.mean(warm, 0))
    second = ref.step_gradient(case, 0, 2, 1, y, **options)
    same(rounds[0]["c_i"][2], (first + second) / 2)
    same(rounds[0]["c_i"][1], warm[1])
    for round_ in rounds:
        same(round_["c"], np.mean(round_["c_i"], 0))


def test_option_one(rng):
    case = random_case(rng)
    rounds = ref.scaffold(case, option="I", eta_g=0.5)
    same(rounds[0]["c_i"][2], ref.step_gradient(case, 0, 2, 2, case.start))
    same(rounds[1]["c_i"][3], ref.step_gradient(case, 1, 3, 2, rounds[0]["w"]))
    same(rounds[0]["w"] - case.start, 0.25 * (rounds[0]["deltas"][0] + rounds[0]["deltas"][2]))


def test_round_one_of_dp_scaffold_is_cpfed_or_dp_fedavg(rng):
    case = random_case(rng, cohorts=[[0, 2]])
    all_equal(ref.dp_scaffold(case, bound=1.0, sigma=0.5), ref.cpfed(case, bound=1.0, sigma=0.5))
    weighted = ref.dp_scaffold(case, estimator="renorm", bound=1.0, sigma=0.5)
    all_equal(weighted, ref.dp_fedavg_local(case, bound=1.0, sigma=0.5))


def test_rfedavg_variants(rng):
    case = random_case(rng, two_layer=True)
    plain = ref.fedavg(case)
    for system in (ref.rfedavg, ref.rfedavg_plus):
        all_equal(system(case, lam=0.0), plain)
        alone = dataclasses.replace(case, cohorts=[[1], [3]])
        all_equal(system(alone, lam=1.0), ref.fedavg(alone))
        table = system(case, lam=1.0, scope="all")
        assert not np.allclose(table[0]["w"], system(case, lam=1.0)[0]["w"])
        same(table[0]["delta"][1], ref.mean_feature(case.problem, case.start, case.x[1]))
    for options in [{}, {"scope": "all"}, {"leave_one_out": False}, {"local_mean": "full"}]:
        rounds = [system(case, lam=1.0, **options)[:1] for system in (ref.rfedavg, ref.rfedavg_plus)]
        all_equal(*rounds)
    stale = ref.rfedavg(case, lam=1.0)
    same(stale[1]["delta"][0], ref.mean_feature(case.problem, case.start + stale[0]["deltas"][0], case.x[0]))


def test_rfedavg_plus_participants_start_from_the_current_model(rng):
    case = random_case(rng, cohorts=[[0, 2], [1, 3]], steps=1, two_layer=True)
    rounds = ref.rfedavg_plus(case, lam=1.0, local_mean="full")
    w, i = rounds[0]["w"], 1
    target = ref.mean_feature(case.problem, w, case.x[3])
    pull = (
        2
        * case.problem.feature_jacobian(w, case.x[i]).mean(0).T
        @ (case.problem.features(w, case.x[i]).mean(0) - target)
    )
    same(rounds[1]["deltas"][i], -0.1 * (ref.step_gradient(case, 1, i, 0, w) + pull))


@pytest.mark.parametrize("system", [ref.rfedavg, ref.rfedavg_plus])
def test_delta_noise(rng, system):
    case, noise = random_case(rng, two_layer=True), rng.normal(size=(4, 4, 2))
    options = {"feature_bound": 0.4, "sigma2": 3.0, "delta_batch": 10, "delta_noise": noise}
    last = system(case, lam=0.0, **options)[-1]
    sent = last["models"] if system is ref.rfedavg else dict.fromkeys([2, 3], last["w"])
    for i in (2, 3):
        phi = [ref.clip_to(f, 0.4) for f in case.problem.features(sent[i], case.x[i])]
        same(last["delta"][i], np.mean(phi, 0) + 0.12 * noise[3, i])


@pytest.mark.parametrize("system", [ref.rfedavg, ref.rfedavg_plus])
def test_noise_moves_the_targets(rng, system):
    """One step from targets that are the noisy deltas of round 0 and, for rFedAvg+, of the model of round 1."""
    case, noise = random_case(rng, cohorts=[[0, 2], [1, 3]], steps=1, two_layer=True), rng.normal(size=(3, 4, 2))
    rounds = system(case, lam=1.0, local_mean="full", sigma2=1.0, feature_bound=9.0, delta_noise=noise)
    starts = [case.start, rounds[0]["w"]]
    for t, i, other in [(0, 0, 2), (1, 1, 3)]:
        now = t if system is ref.rfedavg_plus else 0  # rFedAvg: these clients have not trained yet
        target = ref.mean_feature(case.problem, starts[now], case.x[other]) + 9 * noise[now, other]
        pull = ref.penalty_gradient(case.problem, starts[t], case.x[i], [target])
        same(rounds[t]["deltas"][i], -0.1 * (ref.step_gradient(case, t, i, 0, starts[t]) + pull))


def test_central_variants(rng):
    case, options = random_case(rng), {"bound": 0.2, "z": 0.5, "q": 0.5, "w_hat": 5}
    weights = [0.6, 0.8, 1.0, 1.0]
    (first, *_) = ref.dp_fedavg_central(case, clip="per_tensor", **options)
    total = 0
    for i in (0, 2):
        parts = [first["deltas"][i][tensor] for tensor in case.problem.tensors]
        parts = [part / max(1, np.linalg.norm(part) / (0.2 / np.sqrt(2))) for part in parts]
        total = total + weights[i] * np.concatenate(parts)
    same(first["w"], case.start + total / 1.7 + 0.1 / 1.7 * case.server_noise[0])
    (first, *_) = ref.dp_fedavg_central(case, estimator="f_c", w_min=4.0, **options)
    clipped = {i: first["deltas"][i] / max(1, np.linalg.norm(first["deltas"][i]) / 0.2) for i in (0, 2)}
    same(first["w"], case.start + (0.6 * clipped[0] + clipped[2]) / 2 + 0.1 * case.server_noise[0])


def test_adaptive_clip_norm(rng):
    """Two of three updates are within the bound, which lies between the two larger ones."""
    case = random_case(rng, cohorts=[[0, 1, 2], [3]])
    norms = sorted(np.linalg.norm(delta) for delta in ref.fedavg(case)[0]["deltas"].values())
    start = (norms[1] + norms[2]) / 2
    options = {"bound": start, "q": 0.5, "w_hat": 1, "clip_rate": 0.2, "quantile": 0.75}
    rounds = ref.dp_fedavg_central(case, z=1.0, bit_sigma=0.5, bit_noise=[2.0, 0.0], **options)
    same(rounds[0]["share"], (2 + 0.5 * 2) / 2)
    same(rounds[0]["bound"], start * np.exp(-0.2 * (1.5 - 0.75)))
    same(rounds[1]["std"], rounds[0]["bound"] / 2)


def test_output_noise_variants(rng):
    case = random_case(rng, cohorts=[[1]], shares=np.full(4, 1 / 4), upload_noise=rng.normal(size=(1, 4, 12)))
    plain = ref.dp_fedavg_output(case, bound=0.5)[0]["w"]
    options = {"bound": 0.5, "std": lambda t, i, s: 0.3}
    same(ref.dp_fedavg_output(case, **options)[0]["w"], plain + 0.3 * case.upload_noise[0, 1])
    literal = ref.dp_fedavg_output(case, noise_space="literal", **options)[0]["w"]
    same(literal, plain - 0.03 * case.upload_noise[0, 1])
    every = dataclasses.replace(case, upload_noise=None)
    literal = ref.dp_fedavg_output(every, noise_space="literal", noise_at="every", **options)
    all_equal(literal, ref.fedavg(every, estimator="wor_model", clip="batch", bound=0.5, sigma=0.3))


def test_prox_of_a_local_step(rng):
    case = random_case(rng, cohorts=[[2]])
    first = case.start - 0.1 * ref.step_gradient(case, 0, 2, 0, case.start)
    second = first - 0.1 * (ref.step_gradient(case, 0, 2, 1, first) + 3 * (first - case.start))
    same(ref.fedprox(case, mu=3.0)[0]["w"], second)
