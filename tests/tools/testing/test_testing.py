"""The conformance suite: right algorithms pass, and every wrong program is rejected by the check meant for it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import QuadraticModel, ragged_data, refusal, usual
from wrong_programs import BY_PROPERTY, PUBLISHED, loose_clip, repeated_gradient

import fedjax_dp as fdp
from fedjax_dp import errors, inspection, prng
from fedjax_dp.accounting import Adjacency, FullBatch, GaussianSteps
from fedjax_dp.accounting.sampling import Poisson, WithoutReplacement, WithReplacement
from fedjax_dp.privacy.client_events import client_events
from fedjax_dp.tools.testing import check_algorithm, check_audit, check_noise, check_sampling, check_sensitivity

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
        check(*subject, **options)
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


# program: the property that it lacks, batches it is wrong for, words of the rejection, or the standard deviation of the
# noise that is measured over the one that is stated
CAUGHT = {
    "half_noise": ("noise", "without-replacement", 0.5),
    "noise_inside_rate": ("noise", "without-replacement", 0.26),
    "shared_key": ("noise", "without-replacement", "independent between clients, rounds and steps: measured corr"),
    "clip_per_batch": ("sensitivity", "without-replacement", "moves between replace-one neighbours"),
    "realised_denominator": ("sensitivity", "poisson", "moves between add-remove neighbours"),
    "missing_factor_two": ("noise", "without-replacement", 0.5),
    "one_leaf_noise": ("noise", "without-replacement", 0.4946),
    "silent_last_step": ("noise", "without-replacement", 0.7),
    "unclipped_bias": ("sensitivity", "without-replacement", "moves between replace-one neighbours"),
    "first_records": ("sampling", "poisson", "batches of 5 records: variance of the size"),
    "faint_noise": ("noise", "poisson", 0.95),
    "stale_std": ("noise", "without-replacement", 1.43),
    "clean_head": ("noise", "own head", 0.86),
    "reused_step_key": ("keys", "without-replacement", "no noise is used twice"),
    "reused_round_key": ("keys", "without-replacement", "no noise is used twice"),
    "frozen_server_noise": ("keys", None, "no noise is used twice"),
}


def test_every_named_wrong_program_has_a_check_that_rejects_it():
    assert set(CAUGHT) == set(PUBLISHED)
    assert set(BY_PROPERTY) == set(inspection.PROPERTIES)


FAST = ("half_noise", "clip_per_batch")
# what the suite below rejects by the same check, or is noise of another size again
REPEATED = (
    "noise_inside_rate",
    "stale_std",
    "faint_noise",
    "unclipped_bias",
    "first_records",
    "reused_round_key",
    "frozen_server_noise",
    "missing_factor_two",
)


def mark_of(name):
    return pytest.mark.exhaustive if name in REPEATED else pytest.mark.slow


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=mark_of(n)) for n in CAUGHT])
def test_a_wrong_program_is_rejected(name, data):
    law, batches, found = CAUGHT[name]
    line = rejection(check_algorithm, PUBLISHED[name](honest_one(batches)), data, only=law)
    if isinstance(found, str):
        assert found in line
    else:
        measured = line.split("standard deviation of the noise: measured ")[1].split()[0]
        assert float(measured) == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize("name", CAUGHT)
def test_a_wrong_program_says_of_itself_what_the_right_one_says(name, data):
    honest = honest_one(CAUGHT[name][1])
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
    assert check_algorithm(right("poisson"), data, only="sensitivity")
    assert "moves between" in rejection(check_algorithm, loose_clip(right("poisson")), data, only="sensitivity")


def applies(program, algorithm):
    try:
        return program(algorithm) is not None
    except errors.ConfigurationError:
        return False


STEPS, CLIENTS = right(), fdp.dp_fedavg(**COMMON, **NOISE)
MASKED = fdp.cpfed.of({**COMMON, "cohort_size": 3, **NOISE, "ring_bits": 32})
LACKS = {
    f"{program.__name__} of {kind}": (law, program, algorithm)
    for law, programs in BY_PROPERTY.items()
    for program in programs
    for kind, algorithm in ({"a sum": MASKED} if law == "masks" else {"steps": STEPS, "clients": CLIENTS}).items()
    if applies(program, algorithm)
    and (law not in ("padding", "order") or algorithm is STEPS)
    and (algorithm is not STEPS or program.__name__ in REPEATED or program.__name__ not in CAUGHT)
}
BRIEF = ("undeclared_gradient of steps", "same_masks of a sum")
ALIKE = ("reused_round_key of steps",)  # CI: reused_step_key, and frozen_server_noise in all rounds


def mark_of_lack(name):
    """By hand what CI sees of steps: the same check rejects it."""
    again = name.replace(" of clients", " of steps")
    return pytest.mark.exhaustive if name in ALIKE or (again != name and again in LACKS) else pytest.mark.slow


@pytest.mark.parametrize("name", [n if n in BRIEF else pytest.param(n, marks=mark_of_lack(n)) for n in LACKS])
def test_what_lacks_a_property_is_rejected_by_its_check(name, data):
    law, program, honest = LACKS[name]
    assert rejection(check_algorithm, program(honest), data, only=law) not in ("nothing", "more than a line")


@pytest.mark.slow
@pytest.mark.parametrize("audited", usual([False, True], [False]))
def test_a_right_algorithm_passes_every_check(audited):
    delta = 1e-5 if audited else None
    data = ragged_data([5, 5, 7])  # each size takes seconds
    shown = {report.law: report for report in check_algorithm(right(), data, delta=delta, rounds=20)}
    assert "\n" not in "".join(map(str, shown.values()))
    assert ("audited privacy" in shown) is audited
    for law, so in (  # of what is so or not, that it is so
        ("the run's cohorts: as many answer in every round", "all positions"),
        ("cohorts of another seed", "others"),
        ("batches of 5 records lie within a client's own", "its own"),
        ("local steps of a client with 5 records: key and step of a noise", "new each time"),
        ("batches of 5 records: size of a batch", "2"),
    ):
        assert (shown[law].measured, shown[law].wanted) == (so, so), law


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


def clipped(records, bound=3.0):
    norms = jnp.linalg.norm(records, axis=1)
    factors = jnp.where(jnp.isfinite(norms), jnp.minimum(1.0, bound / jnp.maximum(norms, 1e-12)), 0.0)
    return factors @ jnp.where(factors[:, None] > 0, records, 0.0)


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
def test_sensitivity_of_a_function(adjacency):
    records = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    stated = {"sensitivity": 3.0 * adjacency.sensitivity, "adjacency": adjacency, "records": records}
    check_sensitivity(clipped, **stated)
    wrong = {
        "unbounded": lambda r: r.sum(0),
        "survives no NaN": lambda r: r.sum(0) / jnp.linalg.norm(r.sum(0)),
        "one coordinate too many": lambda r: jnp.append(clipped(r), r[:, 0].clip(-1, 1).sum()),
        "a tenth too wide": lambda r: 1.1 * clipped(r),
    }
    for name, function in wrong.items():
        assert "the function moves" in rejection(check_sensitivity, function, **stated), name


def test_an_audit_of_a_function():
    event = GaussianSteps(2.0, FullBatch(), Adjacency.REPLACE_ONE, 4)

    def mechanism(key, there, std=2.0):
        return jnp.where(there, 1.0, -1.0) + std * jax.random.normal(key, (4, 1))

    assert len(check_audit(mechanism, event=event, delta=1e-5)) == 1
    with pytest.raises(AssertionError, match="audited privacy: measured epsilon at least"):
        check_audit(functools.partial(mechanism, std=1.0), event=event, delta=1e-5)


@pytest.mark.slow
def test_noise_of_a_function():
    check_noise(lambda key: {"a": 2 * prng.normals(key, 0, 30), "b": 2 * prng.normals(key, 1, 30)}, std=2.0)
    wrong = {
        "5% too small": lambda key: 1.9 * prng.normals(key, 0, 60),
        "Laplace": lambda key: jax.random.laplace(key, (60,)) * 2**0.5,
        "the same twice": lambda key: jnp.tile(2 * jax.random.normal(key, (30,)), 2),
        "not centred": lambda key: 2 * jax.random.normal(key, (60,)) + 0.2,
        "the same in every run": lambda key: 2 * jax.random.normal(jax.random.key(0), (60,)),
        "a silent coordinate": lambda key: (2 * (60 / 59) ** 0.5 * jax.random.normal(key, (60,))).at[7].set(0.0),
    }
    for name, draw in wrong.items():
        assert "noise" in rejection(check_noise, draw, std=2.0), name


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
        (lambda key: fixed(jax.random.key(0)), WithoutReplacement(3, 9)),
        (coins, Poisson(0.33)),
        (fixed, Poisson(1 / 3)),
        (coins, WithoutReplacement(3, 9)),
        (neighbours, WithoutReplacement(3, 9)),
        (fixed, WithReplacement(3, 9)),
        (lambda key: coins(key, jnp.linspace(0.2, 0.4, 9)), Poisson(0.3)),
    ]
    for index, (function, law) in enumerate(wrong):
        assert "the function" in rejection(check_sampling, function, sampling=law), index


@pytest.mark.exhaustive
def test_models_of_one_tensor_and_of_a_quadratic_loss_can_be_checked():
    model = QuadraticModel(tuple(np.linspace(0.5, 1.5, 6).tolist()), (0.0,) * 6)
    laws = ("sensitivity", "noise", "keys", "padding")
    assert check_algorithm(right(), ragged_data([5, 6], shape=(6,)), model=model, only=laws)


def test_what_cannot_be_checked_is_refused(data):
    assert "noise can be examined" in refusal(check_algorithm, fdp.fedavg(**COMMON), data, only="noise")
    unbounded = fdp.cpfed(**COMMON, **NOISE, clipping="none")
    assert "sensitivity can be examined" in refusal(check_algorithm, unbounded, data, only=("sensitivity",))
    assert "no secure sum" in refusal(check_algorithm, right(), data, only="masks")
    assert "only" in refusal(check_algorithm, right(), data, only="sense")
    assert "batch_size" in refusal(check_algorithm, right(batch_size=0), data, only="order")
    assert "data" in refusal(check_audit, right(), delta=1e-5)
    assert "event" in refusal(check_audit, clipped, delta=1e-5)
    assert "std" in refusal(check_noise, jax.random.normal, std=0.0)
    assert "sampling" in refusal(check_sampling, jax.random.normal, sampling=None)
    stated = {"sensitivity": 1.0, "records": np.zeros((3, 2), np.float32)}
    assert "add-remove or replace-one" in refusal(check_sensitivity, clipped, adjacency=Adjacency.ZERO_OUT, **stated)
