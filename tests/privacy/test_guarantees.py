"""The bridge: the value that is simulated is the value that is accounted."""

import dataclasses
import itertools
import math
import re

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import GivenNoise, ragged_data, refusal
from own_parts import lying

import fedjax_dp as fdp
from fedjax_dp import accounting, errors, parts
from fedjax_dp.accounting import Adjacency, FullBatch, GaussianSteps, View, WithoutReplacement
from fedjax_dp.display import upward
from fedjax_dp.privacy import guarantees, planned_run
from fedjax_dp.pytrees import replace
from fedjax_dp.rounds import simulation
from fedjax_dp.rounds.clients import draw_cohort
from fedjax_dp.tools.papers.theorems import acs_pldp_lemma1

ROUNDS, STEPS, DELTA = 12, 3, 1e-3


@pytest.fixture(scope="module")
def data():
    return ragged_data([20, 40, 20, 60, 40, 30])


FINE = fdp.parts.SecureSum(fractional_bits=26)


def dpnfl(**changes):
    base = {"cohort_size": 2, "batch_size": 2, "local_steps": STEPS, "learning_rate": 0.1, "clip_norm": 1.0}
    return fdp.dpnfl(**{**base, **changes})


@pytest.mark.slow
def test_participations_are_those_of_the_simulated_cohorts(data):
    counts = fdp.privacy.participations(dpnfl(), data, 5, seed=4)
    assert counts.sum() == 2 * 5
    key = simulation.run_key(4)
    seen = [draw_cohort(dpnfl().cohort, key, jnp.int32(t), jnp.asarray(data.shares)).ids.tolist() for t in range(5)]
    assert counts.tolist() == np.bincount(np.ravel(seen), minlength=6).tolist()


def test_schedule_gives_every_client_its_own_noise_and_the_same_budget(data):
    value = fdp.calibrate(dpnfl(), data, rounds=ROUNDS, epsilon=2.0, delta=DELTA, seed=1)
    promise = fdp.guarantee(value, data, rounds=ROUNDS, delta=DELTA, seed=1)
    counts = fdp.privacy.participations(value, data, ROUNDS, 1)
    assert promise.epsilon <= 2.0
    for epsilon, count in zip(promise.epsilons, counts, strict=True):
        assert epsilon == 0 if count == 0 else 1.99 < epsilon <= 2.0
    assert len(set(np.round(value.local.privatizer.noise_multiplier, 3))) > 2


def test_guarantee_is_the_accountants_epsilon_of_each_client(data):
    value = dpnfl(noise_multiplier=np.linspace(1, 2, 6))
    promise = fdp.guarantee(value, data, rounds=ROUNDS, delta=DELTA, seed=1)
    counts = fdp.privacy.participations(value, data, ROUNDS, 1)
    for i, epsilon in enumerate(promise.epsilons):
        noise = float(np.float32(np.linspace(1, 2, 6)[i]))
        sampling = WithoutReplacement(2, int(data.sizes[i]))
        steps = GaussianSteps(noise, sampling, Adjacency.REPLACE_ONE, int(counts[i]) * STEPS)
        assert epsilon == accounting.epsilon_of(steps, DELTA)
    assert promise.epsilon == max(promise.epsilons)
    assert promise.epsilon_min == min(promise.epsilons)


def test_worst_case_participation_stays_within_the_budget_for_any_seed(data):
    value = fdp.calibrate(dpnfl(), data, rounds=ROUNDS, epsilon=2.0, delta=DELTA, participation="worst")
    for seed in range(5):
        assert fdp.guarantee(value, data, rounds=ROUNDS, delta=DELTA, seed=seed).epsilon < 2.0


def test_another_seed_than_the_calibrated_one_is_accounted_truly(data):
    value = fdp.calibrate(dpnfl(), data, rounds=ROUNDS, epsilon=2.0, delta=DELTA, seed=1)
    other = fdp.guarantee(value, data, rounds=ROUNDS, delta=DELTA, seed=2)
    assert any(epsilon > 2.0 for epsilon in other.epsilons)


def test_poisson_batches_are_accounted_under_add_remove(data):
    value = fdp.calibrate(dpnfl(batches="poisson"), data, rounds=ROUNDS, epsilon=2.0, delta=DELTA)
    promise = fdp.guarantee(value, data, rounds=ROUNDS, delta=DELTA)
    assert promise.adjacency is Adjacency.ADD_REMOVE
    (line,) = (line for line in promise.assumptions if "whoever joins" in line)
    assert all(words in line for words in ("the clients", "share", "sampling rate", "divisor", "stays at its client"))
    assert 1.99 < promise.epsilon <= 2.0
    exchanged = fdp.calibrate(dpnfl(), data, rounds=ROUNDS, epsilon=2.0, delta=DELTA)
    ratio = exchanged.local.privatizer.noise_multiplier.max() / value.local.privatizer.noise_multiplier.max()
    assert ratio > 1.5  # replace-one has twice the sensitivity


def test_full_batches_are_the_exact_gaussian():
    data = ragged_data([20, 20])
    value = dpnfl(cohort_size=None, batches="full", batch_size=None, noise_multiplier=30.0)
    promise = fdp.guarantee(value, data, rounds=ROUNDS, delta=DELTA)
    assert promise.epsilon == accounting.gaussian_epsilon(DELTA, 15.0, ROUNDS * STEPS)


def test_claims_stand_beside_the_guarantee_with_a_verdict():
    data = ragged_data([600] * 4)
    value = fdp.calibrate(
        dpnfl(batch_size=10, local_steps=300), data, rounds=ROUNDS, epsilon=0.3, delta=1e-2, accountant="tcdp"
    )
    promise = fdp.guarantee(value, data, rounds=ROUNDS, delta=1e-2)
    realised, expected = promise.claims
    assert realised.verdict == "holds"
    assert realised.epsilon == pytest.approx(0.3, rel=1e-5)
    assert promise.epsilon < 0.1  # the rigorous accountant proves far less of the same noise
    assert expected.verdict in ("heuristic", "understates", "holds")
    by_paper = fdp.guarantee(value, data, rounds=ROUNDS, delta=1e-2, accountant="tcdp")
    assert by_paper.epsilon == pytest.approx(0.3, rel=1e-5)


def test_expected_participation_claim_is_heuristic_and_gives_the_busiest_clients_number():
    data = ragged_data([600] * 4)
    value = dpnfl(batch_size=10, local_steps=300, noise_multiplier=12.0)
    promise = fdp.guarantee(value, data, rounds=ROUNDS, delta=1e-2, seed=1, accountant="tcdp")
    realised, expected = promise.claims
    assert expected.verdict == "heuristic"
    assert expected.epsilon < promise.epsilon == realised.epsilon
    assert upward(realised.epsilon) in expected.reason


def test_law_of_participation_holds_before_the_cohorts_are_drawn(data):
    value = fdp.calibrate(dpnfl(), data, rounds=ROUNDS, epsilon=2.0, delta=DELTA, participation="law")
    promise = fdp.guarantee(value, data, rounds=ROUNDS, delta=DELTA, participation="law")
    assert 1.99 < promise.epsilon <= 2.0
    terms = fdp.privacy.PrivacyTerms(participation="law")
    event = fdp.privacy.client_events(fdp.privacy.plan_run(value, data, rounds=ROUNDS, terms=terms))[0]
    assert (event.rate, event.rounds) == (2 / 6, ROUNDS)
    worst = fdp.calibrate(dpnfl(), data, rounds=ROUNDS, epsilon=2.0, delta=DELTA, participation="worst")
    assert np.all(value.local.privatizer.noise_multiplier < worst.local.privatizer.noise_multiplier)
    assert "delta is an average over the draw" in promise.assumptions[0]


def test_other_views_count_the_cohorts_noise_for_one_local_step():
    data = ragged_data([50] * 6)
    one = dpnfl(local_steps=1, noise_multiplier=2.0, secure=True)
    options = {"rounds": ROUNDS, "delta": DELTA, "participation": "worst"}
    uploads = fdp.guarantee(one, data, view="uploads", **options)
    summed = fdp.guarantee(one, data, **options)
    assert summed.view is View.SECURE_SUM  # what a secure sum is made for
    assert "only the sum" in str(summed)
    assert any("sees 2 times the variance" in text for text in summed.assumptions)
    step = GaussianSteps(2.0 * math.sqrt(2), WithoutReplacement(2, 50), Adjacency.REPLACE_ONE, ROUNDS)
    assert summed.epsilon == pytest.approx(accounting.epsilon_of(step, DELTA), rel=1e-6)
    colluding = fdp.guarantee(one, data, view="final_model", colluders=1, **options)
    assert colluding.epsilon == uploads.epsilon
    assert "a client's own noise alone is counted" in " ".join(colluding.assumptions)
    many = dpnfl(noise_multiplier=2.0)
    assert (
        fdp.guarantee(many, data, view="broadcast", **options).epsilon == fdp.guarantee(many, data, **options).epsilon
    )
    for participation in ("schedule", "law", "worst"):
        found = {"participation": participation, "seed": 1, "rounds": ROUNDS, "delta": DELTA}
        calibrated = fdp.calibrate(one, data, epsilon=1.0, **found)
        assert len(set(calibrated.local.privatizer.noise_multiplier.tolist())) == 1  # or it would not add up
        assert 0.99 < fdp.guarantee(calibrated, data, **found).epsilon <= 1.0
    cheaper = fdp.calibrate(one, data, epsilon=1.0, **options)
    dearer = fdp.calibrate(one, data, epsilon=1.0, view="uploads", **options)
    ratio = dearer.local.privatizer.noise_multiplier[0] / cheaper.local.privatizer.noise_multiplier[0]
    assert ratio == pytest.approx(math.sqrt(2), rel=1e-3)


def test_a_secure_sum_of_unequal_clients_counts_the_least_noisy_cohort_around_each():
    """Brute force over all cohorts: own and others' noise, weighted as the estimator weighs the messages."""
    data = ragged_data([20, 40, 30, 60, 50])
    noise = np.array([1.0, 3.0, 2.0, 1.5, 0.5])
    for estimator in ("wor_delta", "mean", "renorm"):
        value = dpnfl(cohort_size=3, local_steps=1, noise_multiplier=noise, estimator=estimator, secure=True)
        for colluders in (0, 1, 2):
            gains = planned_run.noise_amplification(value, data, View.SECURE_SUM, colluders)
            weight = np.ones(5) if estimator == "mean" else np.asarray(data.shares)
            variance = (weight * noise) ** 2
            for i in range(5):
                others = [variance[list(s)].sum() for s in itertools.combinations(set(range(5)) - {i}, 2 - colluders)]
                assert gains[i] == pytest.approx((variance[i] + min(others)) / variance[i], rel=1e-6)


def test_nothing_is_gained_from_a_cohort_where_noise_does_not_add_up():
    data = ragged_data([20] * 4)
    epochs = {"batches": "epochs", "batch_size": 10}
    for changes in ({"cohort": "poisson"}, {"cohort": "md"}, {"local_steps": 2}, {"local_rule": "rmsprop"}, epochs):
        value = dpnfl(**{"local_steps": 1, "noise_multiplier": 1.0, "secure": True, **changes})
        assert np.all(planned_run.noise_amplification(value, data, View.SECURE_SUM, 0) == 1), changes
    kept = fdp.dp_scaffold(
        cohort_size=2, batch_size=2, local_steps=1, learning_rate=0.1, clip_norm=1.0, noise_multiplier=1.0, secure=True
    )
    assert np.all(planned_run.noise_amplification(kept, data, View.SECURE_SUM, 0) == 1)


def test_with_replacement_batches_have_a_guarantee_that_counts_the_multiplicity(data):
    value = dpnfl(noise_multiplier=2.0, batches="with-replacement")
    promise = fdp.guarantee(value, data, rounds=ROUNDS, delta=DELTA)
    assert promise.epsilon > fdp.guarantee(dpnfl(noise_multiplier=2.0), data, rounds=ROUNDS, delta=DELTA).epsilon
    assert "with replacement" in promise.assumptions[1]


def test_noise_for_the_mean_number_of_rounds_says_so_and_does_not_meet_the_budget_of_the_draw(data):
    options = {"rounds": ROUNDS, "epsilon": 2.0, "delta": DELTA, "seed": 1, "participation": "expected"}
    promise = fdp.guarantee(dpnfl(), data, **options)
    assert promise.epsilon <= 2.0
    assert str(promise).startswith("for the mean number of rounds, which is no guarantee for clients that are")
    value = fdp.calibrate(dpnfl(), data, **options)
    assert fdp.guarantee(value, data, rounds=ROUNDS, delta=DELTA, seed=1).epsilon > 2.0
    assert fdp.guarantee(dpnfl(), data, **options | {"participation": "worst"}).warnings == ()


def test_an_infinite_epsilon_says_why(data):
    promise = fdp.guarantee(dpnfl(noise_multiplier=2.0), data, rounds=ROUNDS, delta=DELTA)
    assert "because the noise is too small" in str(dataclasses.replace(promise, epsilons=(1.0, math.inf)))


def test_a_delta_above_one_over_the_records_is_warned_of(data):
    value = dpnfl(noise_multiplier=2.0)
    (warning,) = fdp.guarantee(value, data, rounds=ROUNDS, delta=0.06).warnings
    assert "delta 0.06 is above 1/20" in warning
    assert fdp.guarantee(value, data, rounds=ROUNDS, delta=1e-3).warnings == ()


def test_no_noise_and_no_privatizer_are_no_privacy(data):
    silent = fdp.guarantee(dpnfl(), data, rounds=ROUNDS, delta=DELTA)
    assert math.isinf(silent.epsilon)
    assert "noise_multiplier is 0" in str(silent)
    plain = fdp.fedavg(cohort_size=2, batch_size=2, local_steps=1, learning_rate=0.1)
    assert str(fdp.guarantee(plain, data, rounds=3, delta=DELTA)).startswith("no privacy: epsilon is infinite")
    assert silent.to_dict()["epsilon"] is None


def test_guarantee_prints_as_one_sentence_with_everything(data):
    told = str(fdp.guarantee(dpnfl(noise_multiplier=2.0), data, rounds=ROUNDS, delta=DELTA))
    for word in ("epsilon", "delta 0.001", "one record of one client", "replace-one", "sees every upload", "median"):
        assert word in told
    assert "\n" not in told


NOISED, BUDGET = {"noise_multiplier": 1.0}, {"epsilon": 1.0}


@pytest.mark.parametrize(
    ("function", "changes", "options", "words"),
    [
        (fdp.guarantee, NOISED, {"accountant": "gaussian"}, "needs unsampled sums"),
        (fdp.guarantee, NOISED, {"view": "broadcast", "colluders": 2}, "colluders must be an integer from 0 to 1"),
        (fdp.calibrate, None, BUDGET, "left out for an algorithm without privacy"),
        (fdp.run, {}, BUDGET | {"delta": None}, "delta must be given for a private algorithm"),
        (fdp.calibrate, {"batch_size": 4}, BUDGET | {"accountant": "tcdp"}, "batch rate in (0, 0.1]"),
    ],
)
def test_unsupported_combinations_raise_in_one_line(data, function, changes, options, words):
    plain = fdp.fedavg(cohort_size=2, batch_size=2, local_steps=1, learning_rate=0.1)
    algorithm = plain if changes is None else dpnfl(**changes)
    assert words in refusal(function, algorithm, data, rounds=2, **{"delta": DELTA} | options)


def test_an_unknown_noise_source_has_no_guarantee(data):
    value = dpnfl(noise_multiplier=1.0)
    private = dataclasses.replace(value.local.privatizer, source=GivenNoise(table=np.zeros((1, 6, 3, 12))))
    value = dataclasses.replace(value, local=dataclasses.replace(value.local, privatizer=private))
    with pytest.raises(errors.ConfigurationError, match="noise source GivenNoise"):
        guarantees.guarantee(value, data, rounds=ROUNDS, delta=DELTA)


@pytest.mark.parametrize("name", ["paid", "prior_event"])
def test_a_cost_by_a_name_of_before_is_refused_where_it_would_count_as_nothing(data, name):
    cohort = lying(parts.UniformCohort(size=3), **{name: GaussianSteps(0.5, FullBatch(), Adjacency.REPLACE_ONE, 1)})
    with pytest.raises(errors.ConfigurationError, match=f"cohort must be one that states it as setup_event, .* {name}"):
        fdp.guarantee(replace(dpnfl(), cohort=cohort), data, rounds=2, delta=DELTA)


def test_an_aggregate_that_asks_for_every_update_by_a_former_name_is_refused_without_privacy_too(data):
    plain = fdp.fedavg(cohort_size=3, batch_size=2, local_steps=1, learning_rate=0.1)
    former = replace(plain, aggregate=lying(parts.TrimmedMean(trim=0.1), separate=True))
    with pytest.raises(errors.ConfigurationError, match=r"estimator must be one .* needs_individual_updates.*separate"):
        fdp.run(former, data, rounds=1)


def test_what_the_probabilities_cost_survives_a_wrapper(data):
    paid = GaussianSteps(0.5, accounting.FullBatch(), Adjacency.REPLACE_ONE, 1)
    common = {"cohort_size": 3, "batch_size": 2, "local_steps": 2, "learning_rate": 0.1, "noise_multiplier": 3.0}
    chances = {"sampling": "optimal", "probabilities": np.full(6, 1 / 6).tolist()}
    for wrapper in ({}, {"dropout": 0.01}):
        covered = fdp.acs_pldp(**common, **chances, **wrapper, setup_event=paid)
        found = fdp.guarantee(covered, data, rounds=2, delta=DELTA)
        free = fdp.guarantee(fdp.acs_pldp(**common, **chances, **wrapper), data, rounds=2, delta=DELTA)
        assert found.epsilon_min > 5  # also of a client that is never drawn
        assert any("accounted for all rounds" in line for line in found.assumptions)
        assert "what the sampling probabilities reveal" in free.reason
        assert "records by 2 of 20" in " ".join(found.assumptions)


def test_common_noise_is_that_of_the_client_that_needs_most(data):
    options = {"rounds": ROUNDS, "epsilon": 2.0, "delta": DELTA, "seed": 1}
    own = fdp.calibrate(dpnfl(), data, **options).local.privatizer.noise_multiplier
    common = fdp.calibrate(dpnfl(), data, **options, sigma_mode="common_worst").local.privatizer.noise_multiplier
    assert set(common.tolist()) == {own.max()}
    promise = fdp.guarantee(fdp.calibrate(dpnfl(), data, **options), data, rounds=ROUNDS, delta=DELTA, seed=1)
    assert promise.noise == (own.min(), np.sort(own)[len(own) // 2], own.max())  # what was found is told
    with pytest.raises(errors.ConfigurationError, match="sigma_mode must be one of"):
        fdp.calibrate(dpnfl(), data, **options, sigma_mode="worst")


def test_noise_as_acs_pldp_prints_it(data):
    """z = 2 s sqrt(T* E ln(2KR / delta) ln(4 / delta)) / epsilon, T* from the draws by the paper's Lemma 1."""
    budgets = np.linspace(1.0, 3.0, 6)
    value = fdp.acs_pldp(cohort_size=3, batch_size=2, local_steps=2, learning_rate=0.1, clip_norm=1.0)
    options = {"rounds": 4, "epsilon": budgets, "delta": DELTA, "sigma_mode": "acs_pldp"}
    noise = fdp.calibrate(value, data, **options).local.privatizer.noise_multiplier
    promise = fdp.guarantee(value, data, **options)
    sizes = np.asarray(data.sizes, float)
    times = np.array([acs_pldp_lemma1(12, share, DELTA / 4) for share in sizes / sizes.sum()])
    expected = 2 * (2 / sizes) * np.sqrt(times * 2 * np.log(24 / DELTA) * np.log(4 / DELTA)) / budgets
    np.testing.assert_allclose(noise, expected, rtol=1e-6)
    claim = next(claim for claim in promise.claims if "acs_pldp" in claim.source)
    client = int(claim.source.split()[-1])
    assert claim.epsilon == pytest.approx(budgets[client], rel=1e-5)  # the claim reads the budget back
    assert ("acs_pldp" in " ".join(promise.warnings)) == bool(np.any(promise.epsilons > budgets))
    with pytest.raises(errors.ConfigurationError, match="used with acs_pldp"):
        fdp.calibrate(dpnfl(), data, **options)


def test_noise_as_dpnfl_and_cpfed_print_it():
    """sigma = G sqrt(26 K tau / rho*) / n and (L / B) sqrt(2 T tau / (n rho*)), the values of the papers' settings."""
    mnist, adult = ragged_data([600] * 100), ragged_data([2441] * 16)
    of_dpnfl = dpnfl(cohort_size=10, batch_size=10, local_steps=300)
    found = fdp.calibrate(of_dpnfl, mnist, rounds=100, epsilon=0.3, delta=1e-2, sigma_mode="dpnfl")
    np.testing.assert_allclose(found.local.privatizer.noise_multiplier / 10, 6.7660279, rtol=1e-6)
    common = {"cohort_size": 10, "batch_size": 64, "local_steps": 10, "learning_rate": 0.1, "clip_norm": 1.0}
    for secure, times in ((True, 1.0), (False, math.sqrt(10))):
        value = fdp.cpfed(**common, secure=secure)
        found = fdp.calibrate(value, adult, rounds=20, epsilon=10.0, delta=1e-4, sigma_mode="cpfed")
        np.testing.assert_allclose(found.local.privatizer.noise_multiplier, 3.7089072 * times, rtol=1e-6)
    with pytest.raises(errors.ConfigurationError, match="sigma_mode must be used with noise on batches"):
        fdp.calibrate(
            dpnfl(batches="full", batch_size=None), mnist, rounds=2, epsilon=1.0, delta=1e-2, sigma_mode="dpnfl"
        )


def test_noise_as_dp_fedavg_output_prints_it():
    """The model-space deviation sqrt(128 ln(1.25 Q b / (n delta))) eta Q^2 b G / (n epsilon), for equal rates."""
    data = ragged_data([600] * 10)
    value = fdp.dp_fedavg_output(
        cohort_size=2, batch_size=10, local_steps=5, learning_rate=0.04, schedule="constant", clip_norm=2.0
    )
    found = fdp.calibrate(
        value, data, rounds=9, epsilon=0.5, delta=1e-5, sigma_mode="dp_fedavg_output", participation="once"
    )
    expected = math.sqrt(128 * math.log(1.25 * 50 / (600 * 1e-5))) * 0.04 * 5**2 * 10 * 2.0 / (600 * 0.5)
    np.testing.assert_allclose(found.local.privatizer.noise_multiplier * (2.0 * 5 * 0.04), expected, rtol=1e-5)


def test_noise_swallowed_by_the_ring_gains_nothing():
    data = ragged_data([50] * 6)
    value = dpnfl(local_steps=1, noise_multiplier=2.0, secure=True, learning_rate=0.1)
    assert np.all(planned_run.noise_amplification(value, data, View.SECURE_SUM, 0) > 1)
    sums = fdp.parts.SecureSum(fractional_bits=4)
    coarse = dpnfl(local_steps=1, noise_multiplier=2.0, secure=sums, learning_rate=0.1)
    assert np.all(planned_run.noise_amplification(coarse, data, View.SECURE_SUM, 0) == 1)


def test_an_l2_term_that_drives_models_apart_is_refused_with_noise_on_the_upload(data):
    value = fdp.dp_fedavg_output(
        cohort_size=2, batch_size=2, local_steps=3, learning_rate=1.0, clip_norm=1.0, noise_multiplier=5.0, l2=2.0
    )
    with pytest.raises(errors.ConfigurationError, match="steps are no contraction"):
        fdp.guarantee(value, data, rounds=2, delta=DELTA)


def test_what_a_sum_adds_to_noise_on_uploads_does_not_depend_on_how_many_records_there_are():
    """Noise on an upload is in units of its steps, not of its records: ten alike carry ten times the variance."""
    sizes = [2, 400, 30, 4, 9, 50, 60, 70, 80, 90]
    full = {"cohort_size": None, "batch_size": None, "batches": "full", "local_steps": 1, "learning_rate": 0.1}
    noised = {"clip_norm": 1.0, "noise_multiplier": 2.0, "clipping": "record", "secure": True, "estimator": "mean"}
    algorithm = fdp.dp_fedavg_output(**full, **noised)
    promise = fdp.guarantee(algorithm, ragged_data(sizes), rounds=2, delta=DELTA, view="secure_sum")
    assert any("sees 10 times the variance" in line for line in promise.assumptions)


def test_a_small_clip_norm_whose_noise_float32_would_lose_is_refused(data):
    with pytest.raises(errors.ConfigurationError, match="float32 would lose the noise"):
        fdp.guarantee(dpnfl(clip_norm=1e-36, noise_multiplier=2.0), data, rounds=1, delta=DELTA)


@pytest.mark.slow
def test_a_private_run_does_not_stop_for_what_nobody_noised():
    """A loss that overflows, or a message that would not fit into the ring, is a bit about a record: it is cut off."""
    dataset = ragged_data([4] * 4)
    x = np.array(dataset.x)
    x[-1] = 3e38
    spoiled = dataclasses.replace(dataset, x=x)
    common = {"cohort_size": None, "batch_size": None, "batches": "full", "local_steps": 1, "learning_rate": 6.0}
    for value in (
        fdp.dpnfl(**common, clip_norm=1.0, noise_multiplier=8.0),
        fdp.dp_fedavg(**common, clip_norm=8.0, noise_multiplier=4.0, secure=FINE, cohort="uniform"),
    ):
        assert fdp.simulate(value, spoiled, rounds=2).state.round == 2


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *((name, value) for name in ("dropout", "noise_multiplier") for value in ("x", None, [[1.0]], 1j, ["a"] * 6)),
        *((name, value) for name in ("clip_norm", "learning_rate", "l2") for value in ("x", None, [1.0], 1j)),
        *((name, value) for name in ("batch_size", "local_steps", "cohort_size") for value in ("x", 2.5, [2], True)),
        *((name, value) for name in ("schedule", "estimator", "batches") for value in ("x", 3, None, ["full"])),
    ],
)
def test_what_is_no_number_or_name_is_refused_in_one_line(option, value):
    data = ragged_data([4] * 6)
    given = {"cohort_size": 3, "batch_size": 2, "local_steps": 2, "learning_rate": 0.3, "clip_norm": 0.7}
    given |= {"noise_multiplier": 2.0, option: value}
    line = refusal(lambda: fdp.guarantee(fdp.dpnfl(**given), data, rounds=2, delta=1e-5))
    assert re.match(rf"{option} must be .*, got ", line)


@pytest.mark.parametrize("given", [{"setup_event": "x"}, {"probabilities": "x"}, {"probabilities": 0.5}])
def test_probabilities_and_what_they_cost_are_checked(given):
    with pytest.raises(errors.ConfigurationError, match=f"^{next(iter(given))} must be "):
        fdp.parts.MultinomialCohort(draws=3, **given).check(6)


def test_a_choice_with_next_to_no_noise_has_a_finite_epsilon_or_none(data):
    """Single losses of it are beyond what the loss distribution holds; noise on gradients is as usual."""
    base = {"cohort_size": 3, "batch_size": 8, "local_steps": 3, "learning_rate": 0.1, "clip_norm": 1.0}
    value = fdp.CATALOGUE["ifca"].of({**base, "choice_noise": 0.01, "noise_multiplier": 4.0})
    found = {name: fdp.guarantee(value, data, rounds=5, delta=1e-5, accountant=name).epsilon for name in ("pld", "rdp")}
    assert 1000 < found["pld"] <= found["rdp"] < 1e4


def test_the_basis_says_where_rounding_lets_another_accountant_in(data):
    """Below delta 1e-8 losses may be priced by Renyi DP (`accounting.epsilon_of`)."""
    value = dpnfl(noise_multiplier=1.0)
    small, usual = (fdp.guarantee(value, data, rounds=2, delta=delta).accountant for delta in (1e-12, 1e-5))
    assert small.startswith(usual)
    assert "Renyi DP where that is less" in small
    assert "Renyi" not in usual


def test_a_guarantee_of_integer_noise_names_the_size_of_the_model_that_it_counts():
    secure = fdp.parts.SecureSum(fractional_bits=6)
    steps = {"cohort_size": 3, "batch_size": 2, "local_steps": 1, "learning_rate": 0.1}
    integer = fdp.dp_fedavg(clip_norm=0.5, noise_multiplier=6.0, noise="shared", secure=secure, **steps)
    data, terms = ragged_data([20] * 4), {"rounds": 2, "delta": 1e-3, "accountant": "rdp"}
    usual, larger = (
        fdp.guarantee(integer, data, **terms, model=model)
        for model in (None, fdp.models.mlp(data.record_shape, data.classes, hidden=(100,)))
    )
    assert "an update has 12 parameters" in " ".join(usual.assumptions)
    assert "an update has 703 parameters" in " ".join(larger.assumptions)
    assert usual.epsilon < larger.epsilon


def test_draws_one_by_one_have_keys_of_their_own():
    many = fdp.parts.MultinomialCohort(draws=5000, equal=True, one_by_one=True)
    algorithm = replace(fdp.fedavg(cohort_size=1, batch_size=2, local_steps=1, learning_rate=0.1), cohort=many)
    simulation.check_fit(algorithm, np.full(800_000, 1 / 800_000))
    assert "at most 2^32" in refusal(simulation.check_fit, algorithm, np.full(900_000, 1 / 900_000))
