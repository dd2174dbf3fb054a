"""The reference by hand where no worked example reaches: tests/algorithms compare those, and every entry with it."""

import dataclasses

import numpy as np
import pytest
import reference as ref


def same(result, wanted):
    np.testing.assert_allclose(result, wanted, rtol=0, atol=1e-9, equal_nan=False)


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


def all_equal(left, right, *keys):
    for a, b in zip(left, right, strict=True):
        for key in keys or ["w"]:
            same(a[key], b[key])


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


def test_option_one(rng):
    case = random_case(rng)
    rounds = ref.scaffold(case, option="I", eta_g=0.5)
    same(rounds[0]["c_i"][2], ref.step_gradient(case, 0, 2, 2, case.start))
    same(rounds[1]["c_i"][3], ref.step_gradient(case, 1, 3, 2, rounds[0]["w"]))
    same(rounds[0]["w"] - case.start, 0.25 * (rounds[0]["deltas"][0] + rounds[0]["deltas"][2]))


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
