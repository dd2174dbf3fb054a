"""Accountants against reference vectors made with other tools, and the laws they must obey."""

import json
import math
import pathlib
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_dp import accounting, errors
from fedjax_dp.accounting import Adjacency, GaussianSteps, Poisson, Tcdp, WithoutReplacement
from fedjax_dp.accounting import tcdp as tcdp_module
from fedjax_dp.accounting.calibrate import SMALLEST_NOISE

CASES = json.loads((pathlib.Path(__file__).parent / "golden" / "accounting_vectors.json").read_text())["cases"]


def cases(*kinds):
    return [pytest.param(c["params"], c["expect"], id=c["id"]) for c in CASES if c["kind"] in kinds]


ALL_OF_9, ONE_OF_9 = WithoutReplacement(9, 9), WithoutReplacement(1, 9)


def fixed_size(noise, batch, records, count):
    return GaussianSteps(noise, WithoutReplacement(batch, records), Adjacency.REPLACE_ONE, count)


@pytest.mark.parametrize(("params", "expect"), cases("wor_gaussian_replaceone"))
def test_without_replacement_pld_equals_reference(params, expect):
    noise = 2 * params["noise_multiplier_rel_replace_sensitivity"]  # z is relative to C, sensitivity is 2 C
    steps = fixed_size(noise, params["B"], params["n"], params["steps"])
    upper = accounting.pld_epsilon(steps, params["delta"])
    lower = accounting.attained_epsilon(steps, params["delta"])
    assert upper == pytest.approx(expect["epsilon_pld_upper"], rel=0.003)
    assert lower == pytest.approx(expect["epsilon_attained_lower"], rel=0.003)
    assert lower <= upper * (1 + 1e-9)
    assert lower <= expect["epsilon_rdp_wang2019"]


@pytest.mark.parametrize(("params", "expect"), cases("poisson_gaussian_addremove"))
def test_poisson_pld_equals_reference(params, expect):
    steps = GaussianSteps(params["noise_multiplier"], Poisson(params["q"]), Adjacency.ADD_REMOVE, params["steps"])
    assert accounting.pld_epsilon(steps, params["delta"]) == pytest.approx(expect["epsilon_pld"], rel=0.003)


@pytest.mark.parametrize(("params", "expect"), cases("gaussian_exact"))
def test_exact_gaussian_equals_reference(params, expect):
    epsilon = accounting.gaussian_epsilon(params["delta"], params["noise_multiplier"], params["steps"])
    assert epsilon == pytest.approx(expect["epsilon_exact"], abs=1e-6)
    assert epsilon == pytest.approx(expect["epsilon_pld"], abs=0.002)
    rho = params["steps"] / (2 * params["noise_multiplier"] ** 2)
    assert rho == pytest.approx(expect["rho_zcdp"], rel=1e-12)
    assert accounting.zcdp_epsilon_standard(rho, params["delta"]) == pytest.approx(expect["epsilon_zcdp_std"], abs=1e-9)
    assert accounting.zcdp_epsilon(rho, params["delta"]) == pytest.approx(expect["epsilon_zcdp_ckks"], abs=1e-4)
    assert epsilon <= accounting.zcdp_epsilon(rho, params["delta"])


@pytest.mark.parametrize(("params", "expect"), cases("tcdp_subsample"))
def test_tcdp_subsampling_equals_reference(params, expect):
    part = Tcdp(params["rho"], float(params["omega"]))
    if "error" in expect:
        with pytest.raises(accounting.TcdpConditionError):
            tcdp_module.subsample(part, params["q"])
        return
    got = tcdp_module.subsample(part, params["q"])
    assert (got.rho, got.omega) == (pytest.approx(expect["rho"], abs=1e-12), pytest.approx(expect["omega"], abs=1e-9))


@pytest.mark.parametrize(("params", "expect"), cases("tcdp_to_dp"))
def test_tcdp_conversion_equals_reference(params, expect):
    total = Tcdp(params["rho"], float(params["omega"]))
    if "error" in expect:
        with pytest.raises(accounting.TcdpConditionError):
            total.epsilon(params["delta"])
        return
    assert total.epsilon(params["delta"]) == pytest.approx(expect["epsilon"], abs=1e-9)


@pytest.mark.parametrize(("params", "expect"), cases("tcdp_compose"))
def test_tcdp_composition_equals_reference(params, expect):
    got = tcdp_module.compose(Tcdp(rho, omega) for rho, omega in params["parts"])
    assert (got.rho, got.omega) == (pytest.approx(expect["rho"], abs=1e-12), expect["omega"])


@pytest.mark.parametrize(("params", "expect"), cases("seed000_theorem5"))
def test_theorem5_equals_reference(params, expect):
    noise = params["sigma"] * params["B"] / params["G"]
    steps = fixed_size(noise, params["B"], params["n_i"], params["K"] * params["tau"])
    total = tcdp_module.tcdp_of(steps)
    epsilon, delta = accounting.theorem5(steps)
    assert total.rho == pytest.approx(expect["rho_total"], rel=1e-9)
    assert total.omega == pytest.approx(expect["omega"], rel=1e-9)
    assert (epsilon, delta) == (pytest.approx(expect["thm5_epsilon"], rel=1e-9), expect["thm5_delta"])


def test_tcdp_calibration_equals_worked_example():
    golden = json.loads((pathlib.Path(__file__).parent / "golden" / "worked_examples.json").read_text())
    e = golden["expected"]["tcdp_sigma"]
    sampling = WithoutReplacement(e["B"], e["n_i"])
    noise = accounting.tcdp_noise_multiplier(e["eps"], e["delta"], sampling, e["K_i"] * e["tau"])
    assert noise * e["G"] / e["B"] == pytest.approx(e["sigma"], rel=1e-9)
    steps = GaussianSteps(noise, sampling, Adjacency.REPLACE_ONE, e["K_i"] * e["tau"])
    assert accounting.tcdp_epsilon(steps, e["delta"]) == pytest.approx(e["eps_back"], rel=1e-9)
    assert accounting.theorem5(steps)[0] == pytest.approx(e["theorem5_eps"], rel=1e-9)


# Noise of paper 000's settings, paper's formula and tight, computed independently on dp-accounting 0.6.0.
@pytest.mark.parametrize(
    ("records", "batch", "steps", "rounds", "paper", "tight"),
    [
        (600, 10, 300, 2, 3.026, 0.4515), (600, 10, 300, 5, 4.784, 0.6677), (600, 10, 300, 10, 6.766, 0.9110),
        (500, 50, 50, 2, 1.482, 0.1967), (500, 50, 50, 5, 2.344, 0.3027), (500, 50, 50, 10, 3.315, 0.4221),
        (730, 50, 50, 2, 1.015, 0.1397), (730, 50, 50, 5, 1.605, 0.2123), (730, 50, 50, 10, 2.270, 0.2942),
    ],
)  # fmt: skip
def test_noise_of_paper_000_equals_reference(records, batch, steps, rounds, paper, tight):
    sampling, count = WithoutReplacement(batch, records), rounds * steps
    wanted = {"tcdp": paper, "pld": tight}
    for accountant, sigma in wanted.items():
        noise = accounting.noise_multiplier_for(0.3, 1e-2, sampling, Adjacency.REPLACE_ONE, count, accountant)
        assert noise / batch == pytest.approx(sigma, rel=2e-3)


def test_pld_agrees_with_dp_accounting_under_both_samplings():
    from dp_accounting.pld import privacy_loss_distribution as reference

    for rate, noise, count, delta in [(0.02, 0.8, 300, 1e-5), (0.3, 2.0, 50, 1e-4), (0.9, 3.0, 20, 1e-3)]:
        pld = reference.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=1e-4)
        expected = pld.self_compose(count).get_epsilon_for_delta(delta)
        steps = GaussianSteps(noise, Poisson(rate), Adjacency.ADD_REMOVE, count)
        assert accounting.pld_epsilon(steps, delta) == pytest.approx(expected, rel=1e-3)


settings_of_steps = st.tuples(
    st.floats(0.5, 6.0),
    st.integers(1, 60),
    st.integers(60, 800),
    st.integers(1, 400),
    st.sampled_from([1e-2, 1e-4, 1e-6]),
)


@given(settings_of_steps)
@settings(max_examples=25, deadline=None)
def test_attained_is_at_most_pld_is_at_most_full_batch(case):
    noise, batch, records, count, delta = case
    steps = fixed_size(noise, batch, records, count)
    lower, upper = accounting.attained_epsilon(steps, delta), accounting.pld_epsilon(steps, delta)
    assert lower <= upper * (1 + 1e-3) + 1e-9
    assert upper <= accounting.gaussian_epsilon(delta, noise / 2, count) * (1 + 1e-3) + 1e-9


@given(settings_of_steps)
@settings(max_examples=20, deadline=None)
def test_epsilon_is_monotone_in_rounds_rate_noise_and_delta(case):
    noise, batch, records, count, delta = case
    base = accounting.pld_epsilon(fixed_size(noise, batch, records, count), delta)
    slack = base * 2e-3 + 1e-9  # two grids
    assert accounting.pld_epsilon(fixed_size(noise, batch, records, count + 20), delta) >= base - slack
    assert accounting.pld_epsilon(fixed_size(noise, min(batch + 5, records), records, count), delta) >= base - slack
    assert accounting.pld_epsilon(fixed_size(noise * 1.1, batch, records, count), delta) <= base + slack
    assert accounting.pld_epsilon(fixed_size(noise, batch, records, count), delta * 2) <= base + slack


def test_n_fold_composition_equals_n_copies():
    from fedjax_dp.accounting.pld import directed_loss, symmetric_loss

    makers = [
        lambda: symmetric_loss(0.05, 1.0, 8),
        lambda: directed_loss(0.05, 1.0, 8, remove=True),
        lambda: directed_loss(0.05, 1.0, 8, remove=False),
    ]
    for make in makers:
        twice = make().compose(4).compose(2).epsilon(1e-5)
        assert make().compose(8).epsilon(1e-5) == pytest.approx(twice, rel=1e-6)


def test_tcdp_is_looser_than_pld_where_it_applies():
    steps = fixed_size(40.0, 10, 600, 1500)
    assert accounting.pld_epsilon(steps, 1e-2) < accounting.tcdp_epsilon(steps, 1e-2)


def test_full_batch_is_the_exact_gaussian():
    steps = fixed_size(8.0, 600, 600, 5)
    assert accounting.pld_epsilon(steps, 1e-2) == accounting.gaussian_epsilon(1e-2, 4.0, 5)


def test_limits():
    assert accounting.pld_epsilon(fixed_size(1.0, 10, 600, 0), 1e-5) == 0
    assert accounting.pld_epsilon(fixed_size(0.0, 10, 600, 1), 1e-5) == math.inf
    assert accounting.noise_multiplier_for(1.0, 1e-5, WithoutReplacement(1, 9), Adjacency.REPLACE_ONE, 0) == 0


@given(
    st.floats(0.05, 20), st.sampled_from([1e-2, 1e-5]), st.integers(1, 40), st.integers(40, 2000), st.integers(1, 2000)
)
@settings(max_examples=25, deadline=None)
def test_calibrated_noise_is_on_the_private_side_and_tight(epsilon, delta, batch, records, count):
    sampling = WithoutReplacement(batch, records)
    noise = accounting.noise_multiplier_for(epsilon, delta, sampling, Adjacency.REPLACE_ONE, count)
    spent = accounting.pld_epsilon(fixed_size(noise, batch, records, count), delta)
    assert spent <= epsilon
    if noise <= SMALLEST_NOISE:
        return
    assert accounting.pld_epsilon(fixed_size(noise * 0.998, batch, records, count), delta) > epsilon * (1 - 1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: WithoutReplacement(11, 10), "batch_size must be at most the 10 records, got 11"),
        (lambda: Poisson(0.0), "rate must be in"),
        (lambda: Poisson(math.nan), "rate must be in"),
        (lambda: fixed_size(-1.0, 1, 2, 1), "noise_multiplier must be zero or positive, got -1"),
        (lambda: fixed_size(math.nan, 1, 2, 1), "noise_multiplier must be zero or positive, got nan"),
        (lambda: fixed_size(1.0, 1, 2, 1.5), "number of noisy steps must be an integer"),
        (lambda: accounting.pld_epsilon(fixed_size(1.0, 1, 2, 1), 0.0), "delta must be strictly between 0 and 1"),
        (lambda: accounting.gaussian_epsilon(1.0, 1.0), "delta must be strictly between 0 and 1"),
        (
            lambda: accounting.noise_multiplier_for(1e-9, 1e-12, ALL_OF_9, Adjacency.REPLACE_ONE, 10**6),
            "epsilon must be reachable",
        ),
        (
            lambda: accounting.noise_multiplier_for(1.0, 1e-5, ONE_OF_9, Adjacency.REPLACE_ONE, 9, "rpd"),
            "accountant must be one of pld, tcdp",
        ),
        (
            lambda: accounting.pld_epsilon(
                GaussianSteps(1.0, Poisson(0.1), Adjacency.REPLACE_ONE, 1), 1e-5
            ),
            "accounted combination",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_line(call, words):
    with pytest.raises(errors.ConfigurationError) as caught:
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_doctests_of_the_package():
    import doctest
    import importlib

    tried = 0
    for name in ("gaussian", "zcdp"):
        outcome = doctest.testmod(importlib.import_module(f"fedjax_dp.accounting.{name}"))
        assert outcome.failed == 0
        tried += outcome.attempted
    assert tried >= 2


def test_accounting_works_without_jax():
    code = (
        "import sys; sys.modules['jax'] = None; sys.modules['jaxlib'] = None\n"
        "from fedjax_dp import accounting as a\n"
        "s = a.GaussianSteps(4.0, a.WithoutReplacement(10, 600), a.Adjacency.REPLACE_ONE, 600)\n"
        "print(round(a.pld_epsilon(s, 1e-2), 3))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "0.369", done.stderr
