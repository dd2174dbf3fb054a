"""The conformance suite: right algorithms pass, and every wrong program is rejected by the check meant for it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import QuadraticModel, ragged_data, refusal, usual
from wrong_programs import PUBLISHED

import fedjax_dp as fdp
from fedjax_dp import errors, prng
from fedjax_dp.accounting import Adjacency, FullBatch, GaussianSteps
from fedjax_dp.accounting.sampling import Poisson, WithoutReplacement, WithReplacement
from fedjax_dp.privacy.client_events import client_events
from fedjax_dp.testing import (
    check_algorithm,
    check_audit,
    check_keys,
    check_masks,
    check_noise,
    check_order,
    check_padding,
    check_sampling,
    check_sensitivity,
    check_statements,
)
from fedjax_dp.testing.keys import noise_every_four_rounds
from fedjax_dp.testing.masks import same_masks, unmasked_first
from fedjax_dp.testing.sensitivity import loose_clip
from fedjax_dp.testing.statements import LEAKS, repeated_gradient

COMMON = {"cohort_size": 2, "batch_size": 2, "local_steps": 2, "learning_rate": 0.3}
NOISE = {"clip_norm": 0.7, "noise_multiplier": 1.3}


@pytest.fixture(scope="module")
def data():
    return ragged_data([5, 6, 7])


def right(batches="without-replacement", **changes):
    return fdp.dpnfl(**{**COMMON, **NOISE, "batches": batches, **changes})


def rejection(check, *subject, **options):
    """The one line by which a check rejects a wrong program, or that it finds nothing."""
    try:
        check(*subject, **options, wrong=None)
    except AssertionError as caught:
        return str(caught) if len(str(caught).splitlines()) == 1 else "more than a line"
    return "nothing"


def honest_one(batches):
    """That with these batches; None: with noise on clients; "own head": with a part of the model that clients keep."""
    if batches is None:
        return fdp.dp_fedavg(**COMMON, **NOISE)
    if batches == "own head":
        return fdp.CATALOGUE["fedper"].of({**COMMON, **NOISE, "head": "*/bias"})
    return right(batches)


# program: the check that rejects it, batches it is wrong for, words of the rejection
CAUGHT = {
    "half_noise": (check_noise, "without-replacement", "standard deviation of the noise: measured"),
    "noise_inside_rate": (check_noise, "without-replacement", "standard deviation of the noise: measured"),
    "shared_key": (check_noise, "without-replacement", "independent between clients, rounds and steps: measured corr"),
    "clip_per_batch": (check_sensitivity, "without-replacement", "moves between replace-one neighbours"),
    "realised_denominator": (check_sensitivity, "poisson", "moves between add-remove neighbours"),
    "missing_factor_two": (check_noise, "without-replacement", "standard deviation of the noise: measured"),
    "one_leaf_noise": (check_noise, "without-replacement", "standard deviation of the noise: measured"),
    "silent_last_step": (check_noise, "without-replacement", "standard deviation of the noise: measured"),
    "unclipped_bias": (check_sensitivity, "without-replacement", "moves between replace-one neighbours"),
    "first_records": (check_sampling, "poisson", "batches of 5 records: variance of the size"),
    "faint_noise": (check_noise, "poisson", "standard deviation of the noise: measured"),
    "stale_std": (check_noise, "without-replacement", "standard deviation of the noise: measured"),
    "clean_head": (check_noise, "own head", "standard deviation of the noise: measured"),
    "reused_step_key": (check_keys, "without-replacement", "no noise is used twice"),
    "reused_round_key": (check_keys, "without-replacement", "no noise is used twice"),
    "frozen_server_noise": (check_keys, None, "no noise is used twice"),
}

STANDARD_DEVIATIONS = {  # that are measured, over those that are stated
    "half_noise": 0.5,
    "noise_inside_rate": 0.26,
    "missing_factor_two": 0.5,
    "silent_last_step": 0.7,
    "one_leaf_noise": 0.4946,
    "faint_noise": 0.95,
    "stale_std": 1.43,
    "clean_head": 0.86,
}


def test_every_named_wrong_program_has_a_check_that_rejects_it():
    assert set(CAUGHT) == set(PUBLISHED)


FAST = ("half_noise", "clip_per_batch")
# what the whole suite below rejects by the same check, or is noise of another size again
REPEATED = (
    "noise_inside_rate",
    "stale_std",
    "faint_noise",
    "unclipped_bias",
    "first_records",
    "reused_round_key",
    "frozen_server_noise",
)


def mark_of(name):
    return pytest.mark.exhaustive if name in REPEATED else pytest.mark.slow


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=mark_of(n)) for n in CAUGHT])
def test_a_wrong_program_is_rejected(name, data):
    check, batches, words = CAUGHT[name]
    honest = honest_one(batches)
    wrong = PUBLISHED[name](honest)
    line = rejection(check, wrong, data)
    assert words in line
    if name in STANDARD_DEVIATIONS:
        measured = float(line.split("measured ")[1].split()[0])
        assert measured == pytest.approx(STANDARD_DEVIATIONS[name], rel=0.05)


@pytest.mark.parametrize("name", CAUGHT)
def test_a_wrong_program_says_of_itself_what_the_right_one_says(name, data):
    _, batches, _ = CAUGHT[name]
    honest = honest_one(batches)
    wrong = PUBLISHED[name](honest)
    assert jax.tree.structure(wrong) != jax.tree.structure(honest)
    for part in ("privatizer", "batches"):
        assert isinstance(getattr(wrong.local, part), type(getattr(honest.local, part)))
    claims = [
        client_events(fdp.privacy.plan_run(algorithm, data, rounds=3, terms=fdp.privacy.PrivacyTerms()))
        for algorithm in (honest, wrong)
    ]
    if name == "missing_factor_two":
        claims[0] = [event.scaled(2.0) for event in claims[0]]
    assert claims[0] == claims[1]


def test_wrong_programs_refuse_what_they_would_not_make_wrong():
    plain = fdp.fedavg(**COMMON)
    for name in set(CAUGHT) - {"first_records"}:
        assert "must be" in refusal(PUBLISHED[name], plain)
    assert "PoissonBatches" in refusal(PUBLISHED["realised_denominator"], right())
    assert "fixed size" in refusal(PUBLISHED["missing_factor_two"], right("poisson"))
    assert "at least 2" in refusal(PUBLISHED["reused_step_key"], right(local_steps=1))
    assert "drawn afresh" in refusal(PUBLISHED["first_records"], right("full", batch_size=None))
    assert "equal number" in refusal(repeated_gradient, right("epochs"))


@pytest.mark.exhaustive
def test_bounds_of_poisson_batches_pass_and_a_loose_one_does_not(data):
    reports = check_sensitivity(right("poisson"), data, wrong=loose_clip)
    assert sum(report.measured == "rejected" for report in reports) == 1


@pytest.mark.slow
def test_a_right_algorithm_passes_every_check_and_each_rejects_its_wrong_programs(data):
    found = check_algorithm(right(), data, delta=1e-5, rounds=20)
    rejected = {report.law.removeprefix("wrong program ") for report in found if report.law.startswith("wrong")}
    assert rejected == {
        "first_records",
        "first_clients",
        "counts_padding",
        "drops_first",
        "reused_round_key",
        "loose_clip",
        "unclipped_bias",
        "clip_per_batch",
        "faint_noise",
        "half_noise",
        "undeclared_gradient",
        "repeated_gradient",
        "reading_correction",
    }
    assert all("\n" not in str(report) for report in found)


ENTRIES = {  # of each kind one: all checks of an entry take half a minute
    "dpnfl, poisson": right("poisson"),
    "dp_scaffold": fdp.dp_scaffold(**COMMON, **NOISE, warm_start=True),
    "acs_pldp, by batch": fdp.acs_pldp(
        **COMMON, clip_norm=0.7, noise_multiplier=np.array([1.0, 2.0, 3.0]), clipping="batch"
    ),
    "dp_fedavg_output": fdp.dp_fedavg_output(**COMMON, **NOISE),
    "dp_fedavg": fdp.dp_fedavg(**COMMON, **NOISE),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ENTRIES)
def test_private_entries_of_the_catalogue_pass(name, data):
    found = check_algorithm(ENTRIES[name], data)
    assert any(report.law.startswith("standard deviation of the noise") for report in found)


@pytest.mark.exhaustive
@pytest.mark.parametrize("entry", ["fedavg", "scaffold"])
def test_entries_without_privacy_pass_what_applies(entry, data):
    found = check_algorithm(fdp.CATALOGUE[entry].of(COMMON), data)
    assert found[-1].measured == "not checked"


@pytest.mark.slow
def test_a_report_of_what_is_so_or_not_shows_what_is_so(data):
    shown = {report.law: report for report in check_sampling(right(), data)}
    for law, so in (
        ("the run's cohorts: as many answer in every round", "all positions"),
        ("cohorts of another seed", "others"),
        ("batches of 5 records lie within a client's own", "its own"),
        ("local steps of a client with 5 records: key and step of a noise", "new each time"),
        ("batches of 5 records: size of a batch", "2"),
    ):
        assert (shown[law].measured, shown[law].wanted) == (so, so), law


def test_a_check_that_is_too_weak_for_its_wrong_program_fails_loudly():
    def twice(draw):
        return draw

    with pytest.raises(AssertionError, match="could not tell twice from the right program; raise draws"):
        check_noise(lambda key: jax.random.normal(key, (50,)), std=1.0, wrong=twice)


def clipped(records, bound=3.0):
    norms = jnp.linalg.norm(records, axis=1)
    factors = jnp.where(jnp.isfinite(norms), jnp.minimum(1.0, bound / jnp.maximum(norms, 1e-12)), 0.0)
    return factors @ jnp.where(factors[:, None] > 0, records, 0.0)


def test_sensitivity_of_a_function():
    records = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    for adjacency in (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE):
        told = {"sensitivity": 3.0 * adjacency.sensitivity, "adjacency": adjacency, "records": records}
        check_sensitivity(clipped, **told)
        wrong = {
            "unbounded": lambda r: r.sum(0),
            "survives no NaN": lambda r: r.sum(0) / jnp.linalg.norm(r.sum(0)),
            "one coordinate too many": lambda r: jnp.append(clipped(r), r[:, 0].clip(-1, 1).sum()),
        }
        for name, function in wrong.items():
            assert "the function moves" in rejection(check_sensitivity, function, **told), name
    assert "adjacency" in refusal(check_sensitivity, clipped)
    assert "add-remove or replace-one" in refusal(
        lambda: check_sensitivity(clipped, **told | {"adjacency": Adjacency.ZERO_OUT})
    )


def test_an_audit_of_a_function():
    event = GaussianSteps(2.0, FullBatch(), Adjacency.REPLACE_ONE, 4)

    def mechanism(key, there, std=2.0):
        return jnp.where(there, 1.0, -1.0) + std * jax.random.normal(key, (4, 1))

    def with_half_of_it(mechanism):
        return functools.partial(mechanism, std=1.0)

    found = check_audit(mechanism, event=event, delta=1e-5, wrong=with_half_of_it)
    assert [report.measured for report in found][1:] == ["rejected"]
    with pytest.raises(AssertionError, match="audited privacy: measured epsilon at least"):
        check_audit(with_half_of_it(mechanism), event=event, delta=1e-5, wrong=None)
    with pytest.raises(errors.ConfigurationError, match="event must be given with a function"):
        check_audit(mechanism, delta=1e-5)


@pytest.mark.slow
def test_noise_of_a_function():
    check_noise(lambda key: {"a": 2 * prng.normals(key, 0, 30), "b": 2 * prng.normals(key, 1, 30)}, std=2.0)
    wrong = {
        "Laplace": lambda key: jax.random.laplace(key, (60,)) * 2**0.5,
        "the same twice": lambda key: jnp.tile(2 * jax.random.normal(key, (30,)), 2),
        "not centred": lambda key: 2 * jax.random.normal(key, (60,)) + 0.2,
        "the same in every run": lambda key: 2 * jax.random.normal(jax.random.key(0), (60,)),
        "a silent coordinate": lambda key: (2 * (60 / 59) ** 0.5 * jax.random.normal(key, (60,))).at[7].set(0.0),
    }
    for name, draw in wrong.items():
        assert "noise" in rejection(check_noise, draw, std=2.0), name
    assert "std" in refusal(check_noise, lambda key: jax.random.normal(key, (3,)))


@pytest.mark.slow
def test_sampling_of_a_function():
    def fixed(key):
        return jnp.zeros(9, int).at[prng.without_replacement(prng.bits(key, 0, 3), jnp.int32(9))].set(1)

    def coins(key, rate=0.3):
        return (prng.unit_interval(prng.bits(key, 0, 9)) < rate).astype(int)

    def repeats(key):
        return jnp.zeros(9, int).at[prng.below(prng.bits(key, 0, 3), jnp.int32(9))].add(1)

    def neighbours(key):
        return jnp.roll(jnp.arange(9) < 3, jax.random.randint(key, (), 0, 9)).astype(int)

    for function, law in ((fixed, WithoutReplacement(3, 9)), (coins, Poisson(0.3)), (repeats, WithReplacement(3, 9))):
        check_sampling(function, sampling=law)
    wrong = [
        (coins, Poisson(0.33)),
        (fixed, Poisson(1 / 3)),
        (coins, WithoutReplacement(3, 9)),
        (neighbours, WithoutReplacement(3, 9)),
        (fixed, WithReplacement(3, 9)),
        (lambda key: coins(key, jnp.linspace(0.2, 0.4, 9)), Poisson(0.3)),
    ]
    for index, (function, law) in enumerate(wrong):
        assert "the function" in rejection(check_sampling, function, sampling=law), index
    assert "sampling" in refusal(check_sampling, fixed)


@pytest.mark.exhaustive
def test_models_of_one_tensor_and_of_a_quadratic_loss_can_be_checked():
    data = ragged_data([5, 6], shape=(6,))
    model = QuadraticModel(tuple(np.linspace(0.5, 1.5, 6).tolist()), (0.0,) * 6)
    check_noise(right(), data, model=model)
    check_padding(right(), data, model=model)
    check_keys(right(), data, model=model)
    check_sensitivity(right(), data, model=model, wrong=loose_clip)


def test_what_cannot_be_checked_is_refused(data):
    assert "has an epsilon" in refusal(check_noise, fdp.fedavg(**COMMON), data)
    assert "has an epsilon" in refusal(check_sensitivity, fdp.cpfed(**COMMON, **NOISE, clipping="none"), data)
    assert "given with an algorithm" in refusal(check_noise, right())
    assert "batch_size" in refusal(check_order, right(batch_size=0), data)


@pytest.mark.parametrize("program", usual(LEAKS, LEAKS[:1]))
def test_a_way_past_what_is_accounted_for_is_found(program, data):
    honest = fdp.dp_fedavg(**COMMON, **NOISE) if program.__name__ == "unnoised_term" else right()
    assert rejection(check_statements, program(honest), data) not in ("nothing", "more than a line")
    assert "rejected" in str(check_statements(honest, data)[-1])


@pytest.mark.slow
@pytest.mark.parametrize("bits", usual([32, 64], [32]))
def test_a_message_that_is_not_masked_is_found(bits, data):
    algorithm = fdp.cpfed.of({**{**COMMON, "cohort_size": 3}, **NOISE, "ring_bits": bits})
    assert "rejected" in str(check_masks(algorithm, data)[-1])
    for program, words in ((unmasked_first, "every bit of a member's message"), (same_masks, "of two rounds")):
        assert words in rejection(check_masks, program(algorithm), data)


@pytest.mark.exhaustive
def test_server_noise_that_comes_back_after_four_rounds_is_found(data):
    assert "no noise is used twice" in rejection(
        check_keys, noise_every_four_rounds(fdp.dp_fedavg(**COMMON, **NOISE)), data
    )
