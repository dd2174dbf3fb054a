"""Noise that is correlated over releases: series, sensitivity and errors against the specification and brute force."""

import functools
import itertools
import json
import pathlib

import numpy as np
import pytest
from scipy.linalg import toeplitz

from fedjax_dp import accounting, errors
from fedjax_dp.accounting import (
    Adjacency,
    Buffers,
    FullBatch,
    GaussianSteps,
    Poisson,
    Unit,
    WithoutReplacement,
    Workload,
    correlated,
    epsilon_of,
    inverse,
    inverse_root_bands,
    iterate_error,
    optimal_bands,
    optimal_buffers,
    root,
    sensitivity,
)

# Of the specification's correlated_vectors.json, whose conventions are ours: its own programs, jax-privacy 2.0.0,
# dp-accounting 0.6.0, brute force.
CASES = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "correlated.json").read_text())["cases"]


def cases(*kinds):
    chosen = [case for case in CASES if case["kind"] in kinds]
    return pytest.mark.parametrize("case", chosen, ids=[case["id"] for case in chosen])


def workload_of(params):
    known = params.get("workload", params)
    rates = known.get("rates")
    return Workload(known.get("momentum", 0.0), known.get("decay", 1.0), None if rates is None else tuple(rates))


def column_of(strategy, rounds, workload=correlated.PREFIX_SUMS):
    """The first column of C of a case's strategy."""
    bands = strategy.get("bands", rounds)
    column = {
        "white": lambda: [1.0],
        "root": lambda: root(rounds, workload),
        "banded_root": lambda: root(bands, workload),
        "banded": lambda: strategy["coefficients"],
        "banded_inverse_root": lambda: inverse(inverse_root_bands(bands, workload), rounds),
        "banded_inverse": lambda: inverse(strategy["noise"], rounds),
        "blt": lambda: Buffers(strategy["theta"], strategy["omega"]).column(rounds),
    }[strategy["kind"]]()
    return np.append(column, np.zeros(rounds))[:rounds]


def matrix(column):
    return toeplitz(column, np.eye(1, len(column))[0])


@cases("coefficients")
def test_series_are_those_of_the_specification(case):
    params, expect = case["params"], case["expect"]
    workload, rounds = workload_of(params), params["n"]
    column = column_of(params, rounds, workload)
    assert workload.column(rounds) == pytest.approx(expect["workload"], abs=1e-10)
    assert column == pytest.approx(expect["strategy"], abs=1e-10)
    assert inverse(column, rounds) == pytest.approx(expect["noise"], abs=1e-10)
    assert workload.matrix(rounds) == pytest.approx(matrix(workload.column(rounds)), abs=1e-10)


@cases("blt")
def test_buffers_and_their_inverse_are_those_of_the_specification(case):
    params, expect = case["params"], case["expect"]
    buffers = Buffers(np.array(params["theta"]), np.array(params["omega"]))
    buffers.check()
    column = buffers.column(params["n"])
    assert buffers.inverse.decays == pytest.approx(expect["theta_hat"], abs=1e-10)
    assert buffers.inverse.scales == pytest.approx(expect["omega_hat"], abs=1e-10)
    assert column[:6] == pytest.approx(expect["strategy"], abs=1e-10)
    assert buffers.inverse.column(6) == pytest.approx(expect["noise"], abs=1e-10)
    assert sensitivity(column, 1, params["n"]) == pytest.approx(expect["sensitivity_once"], rel=1e-9)
    assert iterate_error(column, metric="last") == pytest.approx(expect["prefix_last"], rel=1e-8)
    assert iterate_error(column) == pytest.approx(expect["prefix_rms"], rel=1e-8)


@cases("covariance")
def test_the_covariance_is_that_of_the_inverse(case):
    column = column_of(case["params"], case["params"]["n"])
    noise = matrix(inverse(column, len(column)))
    sums = np.tril(np.ones(noise.shape)) @ noise
    assert noise @ noise.T == pytest.approx(np.array(case["expect"]["noise"]), abs=1e-10)
    assert sums @ sums.T == pytest.approx(np.array(case["expect"]["prefix_sums"]), abs=1e-10)
    assert iterate_error(column) == pytest.approx(np.sqrt(np.trace(sums @ sums.T) / len(column)), rel=1e-10)


LAWS = {"min_separation": "separated", "cyclic": "cyclic", "one_per_pass": "once a pass"}


@cases("sensitivity")
def test_the_sensitivity_is_exact_where_it_is_known_and_else_the_bound(case):
    params, expect, law = case["params"], case["expect"], LAWS[case["params"]["schema"]]
    column = column_of(params["strategy"], params["n"])
    taken = params["participations"], params["separation"]
    found = sensitivity(column, *taken, law)
    exact = next((expect[name] for name in ("formula", "column_names", "exact") if name in expect), None)
    if "bound" in expect:
        assert correlated.bound_on_sensitivity(column, *taken, law) == pytest.approx(expect["bound"], rel=1e-9)
    known = "formula" in expect or "column_norms" in expect
    assert found == pytest.approx(exact if known else expect["bound"], rel=1e-9)
    assert found >= max(expect.get(name, 0.0) for name in ("exact", "scalar_exact", "vectors")) * (1 - 1e-12)
    if "absolute_sum" in expect:
        pattern = expect["worst_pattern"]
        assert accounting.pattern_sensitivity(column, pattern) <= expect["absolute_sum"] * (1 + 1e-9)


def test_an_ordered_formula_would_be_too_little_for_a_column_that_grows():
    """2.010 where brute force finds 2.337: the wrong program."""
    column = column_of({"kind": "banded", "coefficients": [1, 0.1, 0.1, 0.9]}, 9)
    wrong = np.linalg.norm(column + np.append(np.zeros(2), column[:-2]))
    assert wrong == pytest.approx(2.010, abs=1e-3)
    assert sensitivity(column, 2, 2) >= 2.3366642891095846 * (1 - 1e-12)


def patterns(rounds, participations, separation, law):
    for size in range(1, participations + 1):
        for where in itertools.combinations(range(rounds), size):
            gaps = [b - a for a, b in itertools.pairwise(where)]
            passes = [at // separation for at in where]
            if {
                "separated": all(gap >= separation for gap in gaps),
                "cyclic": all(gap == separation for gap in gaps),
                "once a pass": len({*passes}) == size,
            }[law]:
                yield list(where)


@pytest.mark.parametrize("law", correlated.LAWS)
def test_no_contributions_move_more_than_the_sensitivity(law):
    """Columns of any signs, signs and directions of contributions; where all agree it is attained."""
    rng, rounds = np.random.default_rng(0), 8
    for trial in range(40):
        column = np.append(1.0, rng.normal(size=rounds - 1) * (np.arange(1, rounds) < rng.integers(1, rounds)))
        if trial % 2:
            column = np.minimum.accumulate(np.abs(column))
        taken = int(rng.integers(1, 4)), int(rng.integers(1, 5))
        stated, largest = sensitivity(column, *taken, law), 0.0
        whole = matrix(column)
        for where in patterns(rounds, *taken, law):
            largest = max(largest, np.linalg.norm(whole[:, where].sum(1)))
            vectors = rng.normal(size=(4, len(where), 3))
            vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
            moved = np.linalg.norm(whole[:, where] @ vectors, axis=(1, 2)).max()
            assert moved <= accounting.pattern_sensitivity(column, where) * (1 + 1e-9)
            assert moved <= stated * (1 + 1e-9)
        assert largest <= stated * (1 + 1e-9)
        if trial % 2 and law != "once a pass":
            assert largest == pytest.approx(stated, rel=1e-9)


@cases("error")
def test_errors_of_iterates_are_those_of_the_specification(case):
    params, expect = case["params"], case["expect"]
    workload = workload_of(params)
    column = column_of(params["strategy"], params["n"])
    for metric in correlated.METRICS:
        wanted = expect["rms" if metric == "mean" else metric]
        assert iterate_error(column, workload, metric) == pytest.approx(wanted, rel=1e-8)
    tail = (workload.matrix(params["n"]) @ matrix(inverse(column, params["n"])))[-params["tail"] :]
    assert np.linalg.norm(tail.mean(0)) == pytest.approx(expect["tail_mean"], rel=1e-8)


@cases("optimum_banded")
def test_optimal_bands_reach_the_optimum(case):
    params, expect = case["params"], case["expect"]
    workload = workload_of(params)
    bands = optimal_bands(params["bands"], params["n"], workload, params["metric"])
    column = np.append(bands, np.zeros(params["n"] - len(bands)))
    loss = np.linalg.norm(bands) * iterate_error(column, workload, params["metric"])
    assert loss <= expect["root_loss"] * (1 + 1e-8)
    assert bands == pytest.approx(expect["coefficients"], abs=0.005)
    plain = column_of({"kind": "banded_root", "bands": params["bands"]}, params["n"], workload)
    assert loss <= np.linalg.norm(plain) * iterate_error(plain, workload, params["metric"])


@cases("optimum_blt")
def test_optimal_buffers_reach_the_optimum(case):
    params, expect = case["params"], case["expect"]
    workload, taken = workload_of(params), (params["participations"], params["separation"])
    found = optimal_buffers(params["buffers"], params["n"], *taken, workload, params["metric"])
    found.check()
    column = found.column(params["n"])
    loss = sensitivity(column, *taken) * iterate_error(column, workload, params["metric"])
    assert loss <= expect["root_loss"] * 1.001


def amplified(params, column):
    """One sampled step a pass at the noise over the norm of the column."""
    law = Poisson(params["cohort"] * params["cycle"] / params["population"])
    if params.get("sampling") == "without_replacement":
        law = WithoutReplacement(params["cohort"], params["population"] // params["cycle"])
    steps = -(-params["n"] // params["cycle"]) * params.get("blocks", 1)
    norm = float(np.linalg.norm(column))
    adjacency = Adjacency(params["adjacency"].replace("_", "-"))
    return lambda noise: GaussianSteps(noise / norm, law, adjacency, steps, Unit.CLIENT)


@cases("amplified")
def test_a_pass_of_bands_is_one_sampled_release(case):
    params, expect = case["params"], case["expect"]
    column = column_of(params["strategy"], params["n"])
    event = amplified(params, column)(params["noise"])
    assert np.linalg.norm(column) == pytest.approx(expect["column_norm"], rel=1e-10)
    assert (event.sampling.rate, event.count) == (pytest.approx(expect["rate"]), expect["steps"])
    assert event.relative_noise == pytest.approx(expect["relative_noise"], rel=1e-10)
    assert epsilon_of(event, params["delta"]) == pytest.approx(expect["epsilon"], rel=3e-4)


@cases("calibrated")
def test_noise_for_a_budget_is_that_of_the_specification(case):
    params = case["params"]
    event = amplified(params, column_of(params["strategy"], params["n"]))(1.0)
    found = accounting.noise_factor_for(event, params["epsilon"], params["delta"], "pld")
    assert found == pytest.approx(case["expect"]["noise"], rel=1e-3)


@cases("unamplified")
def test_noise_of_public_rounds_is_that_of_one_gaussian_release(case):
    params, expect = case["params"], case["expect"]
    column = column_of(params["strategy"], params["n"])
    reach = sensitivity(column, params["participations"], params["separation"])
    assert reach == pytest.approx(expect["sensitivity"], rel=1e-9)
    event = GaussianSteps(1 / reach, FullBatch(), Adjacency(params["adjacency"].replace("_", "-")), 1, Unit.CLIENT)
    found = accounting.noise_factor_for(event, params["epsilon"], params["delta"], "gaussian")
    assert found == pytest.approx(expect["noise"], rel=1e-5)


def test_limits():
    white = np.eye(1, 20)[0]
    assert inverse_root_bands(1).tolist() == [1]
    assert sensitivity(white, 4, 5) == 2.0
    assert iterate_error(white) == pytest.approx(np.sqrt(21 / 2), rel=1e-12)
    assert optimal_bands(1, 20).tolist() == [1]
    bands = optimal_bands(4, 16)  # all clients of a group in its round: as if they were seen
    column, norm = np.append(bands, np.zeros(12)), float(np.linalg.norm(bands))
    assert sensitivity(column, 4, 4) == pytest.approx(2 * norm)
    sums = [(norm, Poisson(1.0), 4), (2 * norm, FullBatch(), 1)]
    cost = [GaussianSteps(9 / by, law, Adjacency.ADD_REMOVE, times, Unit.CLIENT) for by, law, times in sums]
    assert epsilon_of(cost[0], 1e-5) == pytest.approx(epsilon_of(cost[1], 1e-5), rel=1e-4)
    assert sensitivity(root(20), 3, 20) == pytest.approx(np.linalg.norm(root(20)), rel=1e-12)
    wholly = functools.partial(np.convolve, root(30))
    assert wholly(root(30))[:30] == pytest.approx(np.ones(30), abs=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: inverse([2.0, -0.5], 4), "of which the first is 1"),
        (lambda: inverse([1.0, np.nan], 4), "finite numbers"),
        (lambda: sensitivity([], 1, 1), "finite numbers"),
        (lambda: sensitivity([1.0], 0, 1), "an integer of at least 1"),
        (lambda: sensitivity([1.0], 1, 1.5), "an integer of at least 1"),
        (lambda: sensitivity([1.0], 1, 1, "sometimes"), "law must be one of"),
        (lambda: Buffers(np.array([1.0, 0.5]), np.array([0.1, 0.2])).check(), "theta"),
        (lambda: Buffers(np.array([0.9, 0.9]), np.array([0.1, 0.2])).check(), "theta"),
        (lambda: Buffers(np.array([0.9]), np.array([0.1, 0.2])).check(), "omega"),
        (lambda: Buffers(np.array([0.9]), np.array([-0.1])).check(), "omega"),
        (lambda: Buffers(np.array([0.9, 0.5]), np.array([0.8, 0.4])).check(), "omega"),
        (lambda: iterate_error(np.eye(1, 3)[0], Workload(rates=(1.0,))), "rates of the workload"),
        (lambda: sensitivity(np.append([1.0, 2.0], np.zeros(5000)), 2, 1), "rounds must be at most 4096"),
    ],
)
def test_what_no_theorem_covers_is_refused(call, words):
    with pytest.raises(errors.ConfigurationError, match=words):
        call()
