"""A small run that stands for a larger deployment: the deployment's epsilon, its noise on the mean, its name on all."""

import dataclasses
import json
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ragged_data, refusal, usual
from own_parts import lying

import fedjax_dp as fdp
from fedjax_dp import errors, parts
from fedjax_dp.accounting import Adjacency, Guarantee, Poisson
from fedjax_dp.experiments import phases
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.pytrees import equal, replace

ROUNDS, DELTA, SIZE = 20, 1e-5, 50_000
OF = {"deployment_cohort": 100, "deployment_population": 10_000}
GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "deployments.json").read_text())


@pytest.fixture(scope="module")
def data():
    return ragged_data([2] * 40)


def dp_fedavg(**changes):
    base = {"cohort_size": 5, "batch_size": 2, "local_steps": 1, "learning_rate": 0.1, "clip_norm": 0.5}
    return fdp.dp_fedavg.of({**base, **changes})


def promise(algorithm, data, rounds=ROUNDS, **terms):
    return fdp.guarantee(algorithm, data, rounds=rounds, delta=DELTA, **terms)


@pytest.mark.slow
@pytest.mark.parametrize("case", usual(GOLDEN["cases"], GOLDEN["cases"][::2]), ids=lambda case: case["name"])
@pytest.mark.parametrize("cohort", usual(["poisson", "uniform"], ["uniform"]))
def test_noise_of_published_deployments_under_both_readings_of_their_sampler(case, cohort):
    """Five configurations of pfl-research and a mild one; their file counts Poisson for cohorts of fixed size."""
    data = ragged_data([1] * case["clients"])
    terms = {name: case[name] for name in ("rounds", "delta", "deployment_cohort", "deployment_population")}
    algorithm = dp_fedavg(cohort_size=case["cohort_size"], cohort=cohort, batch_size=1)

    def stated(factor):
        noise = case["noise"][cohort] * factor
        upload = replace(algorithm.upload, noise_multiplier=noise)
        return fdp.guarantee(replace(algorithm, upload=upload), data, **terms)

    enough = stated(1.001)
    assert enough.epsilon <= case["epsilon"] < stated(0.999).epsilon
    own = case["own"][cohort]
    assert enough.own > 1000 if own is None else enough.own == pytest.approx(own, rel=0.01)


def test_calibrated_noise_meets_the_budget_in_the_deployment(data):
    found = fdp.calibrate(dp_fedavg(), data, rounds=ROUNDS, epsilon=1.0, delta=DELTA, **OF)
    assert promise(found, data, **OF).epsilon == pytest.approx(1.0, rel=2e-3)
    assert found.upload.noise_ratio == 0.05


@pytest.mark.slow
def test_the_deployment_of_the_very_run_is_the_ordinary_run_bit_for_bit(data):
    """The algorithm that runs is equal in all its numbers, so the rounds are the same program on the same numbers."""
    algorithm = dp_fedavg(noise_multiplier=1.0)
    itself = {"deployment_cohort": 5, "deployment_population": 40}
    plain, deployed = promise(algorithm, data), promise(algorithm, data, **itself)
    assert deployed.epsilon == deployed.own == plain.epsilon
    run = plan_run(algorithm, data, rounds=ROUNDS, terms=PrivacyTerms(delta=DELTA, **itself))
    assert equal(run.algorithm, algorithm)
    noise, _ = drawn_noise(run.algorithm.upload, 100)
    np.testing.assert_array_equal(noise, drawn_noise(algorithm.upload, 100)[0])


def test_epsilon_is_of_the_deployment_whatever_is_simulated_and_that_of_the_run_falls_with_its_cohorts(data):
    found = [promise(dp_fedavg(noise_multiplier=1.0, cohort_size=size), data, **OF) for size in (2, 4, 8, 16)]
    assert len({one.epsilon for one in found}) == 1
    own = [one.own for one in found]
    assert own == sorted(own, reverse=True)
    assert min(own) > found[0].epsilon


def test_an_algorithm_with_part_of_a_deployments_noise_is_counted_for_that_part_without_its_terms(data):
    part = plan_run(dp_fedavg(noise_multiplier=1.0), data, rounds=ROUNDS, terms=PrivacyTerms(delta=DELTA, **OF))
    stated, less = promise(part.algorithm, data), promise(dp_fedavg(noise_multiplier=0.05), data)
    assert stated.epsilon == pytest.approx(less.epsilon, rel=1e-6)
    assert stated.epsilon == pytest.approx(promise(part.algorithm, data, **OF).own)
    assert stated.noise == less.noise


def drawn_noise(upload, size=SIZE):
    """The noise that joins a mean of zeros over `cohort` clients, and the state after it."""
    sensitivity, key = 1 / 5, jax.random.key(3)
    state = upload.init(size)
    return upload.release(key, jnp.int32(0), jnp.zeros(size), jnp.float32(0), state, sensitivity, 5.0)


def test_noise_on_the_mean_is_the_deployments_whatever_the_cohort():
    for size in (2, 5, 50):
        upload = parts.ClientGaussian(clip_norm=0.5, noise_multiplier=2.0, noise_ratio=size / 100)
        noise, _ = upload.release(
            jax.random.key(0), jnp.int32(1), jnp.zeros(SIZE), (), upload.init(SIZE), 1 / size, size
        )
        assert float(upload.noise_std((), 1 / size, jnp.int32(1))) == pytest.approx(2.0 * 0.5 / 100)
        # 4.89 deviations; 5% off, as of a ratio that is forgotten in a bit of the noise, is 16 of them
        assert abs(float(jnp.std(noise)) / 0.01 - 1) < 4.89 / math.sqrt(2 * SIZE)


def test_a_wrong_ratio_of_noise_is_far_from_the_deployments():
    """Noise of the simulated cohort's own size is the wrong program: R / r times too much on the mean."""
    whole = parts.ClientGaussian(clip_norm=0.5, noise_multiplier=2.0)
    assert float(jnp.std(drawn_noise(whole)[0])) > 15 * 2.0 * 0.5 / 100


@pytest.mark.slow
def test_adaptive_clipping_shrinks_both_noises_and_follows_noisy_fractions_of_the_simulated_cohort():
    for case in GOLDEN["adaptive"]:
        size, ratio = case["cohort_size"], case["cohort_size"] / case["deployment_cohort"]
        upload = parts.AdaptiveClientGaussian(
            clip_norm=case["initial_clip"],
            noise_multiplier=case["z"],
            quantile=case["quantile"],
            rate=case["log_rate"],
            bit_noise=case["count_noise"],
            noise_ratio=ratio,
        )
        state, silent = upload.init(1), dataclasses.replace(upload, bit_noise=1e9, noise_ratio=1e-30)
        for step, within in enumerate(case["noisy_fractions"]):
            std = float(upload.noise_std(state, 1 / size, jnp.int32(step)))
            assert std == pytest.approx(case["mean_noise"][step], rel=1e-5)
            bits = jnp.float32((within - 0.5) * size)
            _, state = silent.release(jax.random.key(0), jnp.int32(step), jnp.zeros(1), bits, state, 0.0, size)
            assert float(state.clip_norm) == pytest.approx(case["clip"][step + 1], rel=1e-5)

    def moved(seed):
        _, after = upload.release(jax.random.key(seed), jnp.int32(0), jnp.zeros(1), 0.0, upload.init(1), 0.0, size)
        return jnp.log(after.clip_norm / upload.clip_norm)

    std = case["log_rate"] * case["count_noise"] / case["deployment_cohort"]
    assert abs(float(jnp.std(jax.vmap(moved)(jnp.arange(4000)))) / std - 1) < 4.89 / math.sqrt(2 * 4000)


@pytest.mark.parametrize("cohort", ["poisson", "uniform", "cyclic", pytest.param("separated", marks=pytest.mark.slow)])
def test_the_law_of_the_deployed_cohorts_is_that_of_the_simulated_ones(data, cohort):
    rests = {"separation": 2} if cohort == "separated" else {}
    stated = promise(dp_fedavg(noise_multiplier=2.0, cohort=cohort, **rests), data, **OF)
    sampler = {
        "poisson": "Poisson sampling at rate 0.01",
        "uniform": "100 of 9999 without replacement",
        "cyclic": "who takes part is public, each client in at most 1 of them",
        "separated": "who takes part is public, each client in at most 10 of them",
    }
    assert stated.deployment.sampler == sampler[cohort]


def test_correlated_noise_counts_the_separation_of_the_deployment(data):
    algorithm = fdp.dp_ftrl(
        noise_multiplier=1.0, cohort_size=5, batch_size=2, local_steps=1, learning_rate=0.1, clip_norm=0.5, bands=4
    )
    far, near = (
        promise(algorithm, data, rounds=16, deployment_cohort=100, deployment_population=clients).epsilon
        for clients in (1600, 400)
    )
    assert far < near < promise(algorithm, data, rounds=16, deployment_cohort=100, deployment_population=100).epsilon


def test_numbers_of_a_deployment_are_traced(data):
    """Another R is a leaf of the algorithm: nothing is compiled anew."""
    algorithm, runs = dp_fedavg(noise_multiplier=1.0), []
    for size in (50, 100):
        terms = PrivacyTerms(delta=DELTA, deployment_cohort=size, deployment_population=10_000)
        runs.append(plan_run(algorithm, data, rounds=2, terms=terms))
    first, second = (jax.tree.structure(run.algorithm) for run in runs)
    assert first == second
    assert [run.algorithm.upload.noise_ratio for run in runs] == [0.1, 0.05]


def test_a_guarantee_of_a_deployment_names_it_and_says_what_it_is_not_of(data):
    stated = promise(dp_fedavg(noise_multiplier=1.0), data, **OF)
    text = str(stated)
    for words in (
        "of a deployment with cohorts of 100 out of 10,000, 20 rounds, Poisson sampling at rate 0.01",
        "not of this run, which has 0.05 of that noise, cohorts of 5 out of 40",
        "epsilon above 100 of its own",
    ):
        assert words in text
    assert stated.mark == "deployment 100 of 10,000"
    content = stated.to_dict()
    assert {"cohort_size": 100, "population": 10_000, "noise_ratio": 0.05}.items() <= content["deployment"].items()
    assert content["own"] == stated.own
    restored = Guarantee.from_full_dict(stated.to_full_dict())
    assert restored == stated
    assert str(dataclasses.replace(stated, own=3.0)).count("epsilon 3 of its own") == 1
    assert "an infinite epsilon of its own" in str(dataclasses.replace(stated, own=math.inf))
    lost = Guarantee.from_full_dict(dataclasses.replace(stated, own=math.inf).to_full_dict())
    assert lost.own == math.inf


def test_the_ledger_of_exported_parameters_has_the_epsilon_of_the_run_itself(data):
    """Who begins another run with them has what they released, not what a deployment would have."""
    stated = promise(dp_fedavg(noise_multiplier=20.0), data, **OF)
    terms = PrivacyTerms(delta=DELTA, **OF)
    run, longer = (
        plan_run(dp_fedavg(noise_multiplier=20.0), data, rounds=t, terms=terms) for t in (ROUNDS, 2 * ROUNDS)
    )
    ledger = phases.ledger_of("dp_fedavg", run, stated)
    for text in (ledger, phases.ledger_of_more_rounds(ledger, longer, stated)):
        facts = json.loads(text.splitlines()[-1])
        assert facts["epsilon"] == stated.own > stated.epsilon == facts["deployment"]["epsilon"]
        (event,) = facts["spent"]["events"]
        assert event["noise_multiplier"] == pytest.approx(20.0 * 5 / 100)


def test_delta_is_judged_against_the_deployments_population(data):
    warned = promise(dp_fedavg(noise_multiplier=1.0), data, deployment_cohort=100, deployment_population=10_000_000)
    assert any("1/10000000" in line for line in warned.warnings)
    assert not promise(dp_fedavg(noise_multiplier=1.0), data, **OF).warnings


LOCAL = {"cohort_size": 2, "batch_size": 2, "local_steps": 1, "learning_rate": 0.1}
SKELLAM = {"noise": "shared", "noise_multiplier": 1.0, "clip_norm": 0.5}


@pytest.mark.parametrize(
    ("algorithm", "terms", "words"),
    [
        (lambda: fdp.dpnfl(**LOCAL, clip_norm=1.0, noise_multiplier=1.0), {}, "noise on records"),
        (lambda: fdp.fedavg(**LOCAL), {}, "where there is no noise"),
        (dp_fedavg, {}, "where there is no noise"),
        (lambda: dp_fedavg(**SKELLAM), {}, "states no noise_ratio"),
        (lambda: dp_fedavg(noise_multiplier=1.0, secure=True, cohort="uniform"), {}, "secure sum of integers"),
        (lambda: dp_fedavg(noise_multiplier=1.0), {"deployment_cohort": 4}, "at least the 5"),
        (lambda: dp_fedavg(noise_multiplier=1.0), {"deployment_population": 39}, "at least the 40"),
        (lambda: dp_fedavg(noise_multiplier=1.0), {"deployment_population": 60}, "at most the deployment_population"),
        (lambda: dp_fedavg(noise_multiplier=1.0), {"deployment_population": None}, "deployment_population must be"),
        (lambda: dp_fedavg(noise_multiplier=1.0), {"deployment_cohort": None}, "deployment_cohort must be given"),
        (lambda: dp_fedavg(noise_multiplier=1.0), {"deployment_cohort": 0}, "deployment_cohort must be"),
        (lambda: dp_fedavg(noise_multiplier=1.0, cohort_size=None), {}, "AllClients"),
        (lambda: dp_fedavg(noise_multiplier=1.0, cohort="uniform", first=2), {}, "first to answer"),
        (lambda: dp_fedavg(noise_multiplier=1.0), {"participation": "worst"}, "participation must be left out"),
        (lambda: dp_fedavg(noise_multiplier=1.0), {"participation": "once"}, "participation must be left out"),
        (lambda: dp_fedavg(), {"epsilon": [1.0] * 40}, "budgets of their own"),
        (lambda: dp_fedavg(noise_multiplier=1.0, cohort="cyclic"), {"deployment_cohort": 99}, "divisor"),
    ],
)
def test_what_cannot_stand_for_a_deployment_is_refused_in_one_line(data, algorithm, terms, words):
    assert words in refusal(lambda: promise(algorithm(), data, **{**OF, **terms}))


def test_an_audit_attacks_what_the_run_itself_releases(data):
    with pytest.raises(errors.ConfigurationError, match="left out of an audit"):
        fdp.audit(dp_fedavg(noise_multiplier=1.0), data, rounds=2, delta=DELTA, trials=100, **OF)


def test_a_cohort_that_states_no_law_of_another_size_stands_for_no_deployment():
    with pytest.raises(errors.ConfigurationError, match="states no with_size"):
        parts.MultinomialCohort(draws=5, equal=True).with_size(100)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (
            {"amplification": lambda self, n, known: (Poisson(0.1), Adjacency.ADD_REMOVE)},
            "Poisson sampling at rate 0.1",
        ),
        ({"min_separation": lambda self, n: 20}, "each client once in 20 rounds"),
    ],
)
def test_a_deployed_cohort_is_as_large_as_its_law_makes_it(data, members, words):
    cohort = lying(parts.PoissonCohort(size=4), **members)
    mine = replace(dp_fedavg(noise_multiplier=1.0), cohort=cohort)
    line = refusal(lambda: promise(mine, data, deployment_cohort=600, deployment_population=1_000))
    assert words in line
    assert "with_size of LyingPoissonCohort" in line
