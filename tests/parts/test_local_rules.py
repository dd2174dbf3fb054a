"""Local rules against NumPy, and the variance of the noise that some of them take off against noise that was drawn."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import own_parts as own
import pytest
import reference
from helpers import QuadraticModel, ragged_data, refusal, states_of, thinned

import fedjax_dp as fdp
from fedjax_dp import parts
from fedjax_dp.accounting.correlated import inverse_root_bands
from fedjax_dp.algorithms.assemble import bound_of
from fedjax_dp.parts.clipping import Records
from fedjax_dp.parts.contexts import ClientContext, Received, StepContext
from fedjax_dp.parts.local_rules import LOCAL_RULES, LocalRule
from fedjax_dp.parts.local_sgd import LocalSgd
from fedjax_dp.parts.record_privacy import variance_of
from fedjax_dp.prng import role_key
from fedjax_dp.rounds.simulation import as_float32_leaves, check, run_key

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "local_rules.json").read_text())
ADAPTIVE = ("adam", "adam_bc", "adamw", "adamw_bc")
COMMON = {"cohort_size": 3, "batch_size": 4, "local_steps": 3, "learning_rate": 0.05}
PRIVATE = {"clip_norm": 0.7, "noise_multiplier": 0.8, "l2": 0.0}
DATA = ragged_data([8, 12, 9, 14, 11])
MODEL = fdp.logistic_regression((3,), 3)


def directions(rule, gradients, variances, start, rate):
    """The model after each step."""
    transform, w, found = rule.transform(), jnp.asarray(start), []
    state = transform.init(w)
    for gradient, variance in zip(gradients, variances, strict=True):
        phi = jnp.asarray(variance)
        told = {"variance": lambda phi=phi: phi} if rule.corrects else {}
        step, state = transform.update(jnp.asarray(gradient), state, w, **told)
        w = w - rate * step
        found.append(np.asarray(w))
    return np.array(found)


@pytest.mark.parametrize(("wide", "tolerance"), [(False, 1e-5), (True, 1e-10)])
@pytest.mark.parametrize("name", ADAPTIVE)
def test_four_steps_equal_golden_numbers(name, wide, tolerance):
    given = GOLDEN["inputs"]
    with jax.enable_x64(wide):
        rule = LOCAL_RULES[name]
        rule = dataclasses.replace(rule, hyperparameters={key: given[key] for key in rule.hyperparameters})
        ours = directions(
            rule, given["private_gradients"], given["noise_variance"], given["w0"], given["learning_rate"]
        )
        np.testing.assert_allclose(ours, GOLDEN["expected"][name], atol=tolerance, rtol=0)


def random_steps(seed=0, steps=20, size=7):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(steps, size)), rng.normal(size=size)


def test_without_noise_less_its_variance_is_adam_bit_for_bit():
    gradients, start = random_steps()
    adam = LocalRule(factory=parts.adam, hyperparameters={"b1": 0.9, "b2": 0.99, "eps": 0.0})
    corrected = LocalRule(factory=parts.adam_bc, hyperparameters={"b1": 0.9, "b2": 0.99, "floor": 1e-30})
    plain = directions(adam, gradients, np.zeros(20), start, 0.1)
    np.testing.assert_array_equal(directions(corrected, gradients, np.zeros(20), start, 0.1), plain)
    assert np.abs(directions(corrected, gradients, np.full(20, 0.1), start, 0.1) - plain).max() > 1e-3


@pytest.mark.parametrize("name", ["adam", "adam_bc"])
def test_without_weight_decay_the_rule_is_its_parent_bit_for_bit(name):
    gradients, start = random_steps(1)
    parent = LOCAL_RULES[name]
    decayed = LOCAL_RULES[name.replace("adam", "adamw")]
    none = dataclasses.replace(decayed, hyperparameters={**decayed.hyperparameters, "weight_decay": np.float32(0)})
    given = gradients, np.full(20, 0.3), start, 0.1
    np.testing.assert_array_equal(directions(none, *given), directions(parent, *given))
    assert np.abs(directions(decayed, *given) - directions(parent, *given)).max() > 1e-3


@fdp.value
class Growing(parts.NoiseSource):
    """Given noise `(steps, size)` whose variance is told to differ from step to step."""

    table: jax.Array
    variances: jax.Array

    fresh = True

    def coefficients(self, steps):
        return (1.0,)

    def draw(self, key, step, size, state):
        return self.table[step.number], state

    def variance(self, step):
        return self.variances[step]


@pytest.mark.parametrize("name", ["adam_bc", "adamw_bc"])
def test_a_client_with_fewer_steps_equals_a_loop_and_its_state_stands_still_in_the_others(name):
    """Two rounds of epochs with a kept state; clients of 3 and 7 records take 2 and 6 of a round's 6 steps.

    Steps are numbered as a client takes them.
    """
    rng, model = np.random.default_rng(3), QuadraticModel((1.0, 0.5))
    data = ragged_data([3, 7], shape=(2,))
    points = np.asarray(data.features(np.asarray(data.x)), float)
    table, variances = rng.normal(size=(6, 2)), rng.uniform(0.5, 2, 6)
    source = Growing(table=jnp.asarray(table, jnp.float32), variances=jnp.asarray(variances, jnp.float32))
    own_numbers = {"b1": 0.8, "b2": 0.9, "floor": 0.05} | ({"weight_decay": 0.3} if name == "adamw_bc" else {})
    multiplier, clip, rate = np.array([0.7, 1.3], np.float32), 0.9, 0.1
    local = LocalSgd(
        learning_rate=rate,
        privatizer=parts.RecordGaussian(clip_norm=clip, noise_multiplier=multiplier, source=source),
        batches=parts.EpochBatches(size=2),
        rule=LocalRule(factory=LOCAL_RULES[name].factory, hyperparameters=own_numbers, keep=True),
        steps=2,
    )
    local, stored = as_float32_leaves(local), jax.tree.map(jnp.asarray, data)

    @jax.jit
    def visit(key, t, i, state):
        received = Received(jnp.zeros(2), (), (state,), ())
        return local.run(ClientContext(key, t, stored.client(i), stored, model, lambda flat: flat, received))

    for client, size in ((0, 3), (1, 7)):
        state, kept = local.rule.transform().init(jnp.zeros(2)), (0, 0.0, 0.0, 0.0)
        for t in range(2):
            key = jax.random.fold_in(run_key(5), t)
            found = visit(key, jnp.int32(t), jnp.int32(client), state)
            state = found.client_state[-1]
            batches = jax.device_get(local.batches.sample(role_key(key, "batch"), jnp.int32(size), 6, 7, 3))
            w, taken = np.zeros(2), 0
            for s in range(6):
                if not batches.step_mask[s]:
                    continue
                rows = points[3 * client + batches.positions[s]]
                mean = sum(reference.clip_to(np.array([1.0, 0.5]) * (w - x), clip) for x in rows) / 2
                std = multiplier[client] * clip / 2
                step, kept = reference.direction(
                    name, mean + std * table[taken], std**2 * variances[taken], w, kept, **own_numbers
                )
                w, taken = w - rate * step, taken + 1
            assert taken == 2 * (size // 2)
            np.testing.assert_allclose(found.update, w, rtol=1e-4, atol=1e-5)
            moments = state if name == "adam_bc" else state[0]
            assert int(moments.steps) == kept[0] == (t + 1) * taken
            for ours, theirs in zip(moments[1:], kept[1:], strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


BANDS = parts.BandedNoise(bands=np.asarray(inverse_root_bands(4), np.float32))
BATCHES = {
    "fixed": parts.FixedBatches(size=4),
    "with replacement": parts.ReplacementBatches(size=4),
    "poisson": parts.PoissonBatches(size=4),
    "full": parts.FullBatches(),
    "epochs": parts.EpochBatches(size=4),
}
NOISE = {"clip_norm": 0.7, "noise_multiplier": np.array([0.5, 0.8, 1.1, 1.4, 1.7], np.float32)}
PRIVATIZERS = {
    "none": parts.NonPrivate(),
    "records": parts.RecordGaussian(**NOISE),
    "a whole batch": parts.RecordGaussian(**NOISE, bound=bound_of("batch")),
    "scaled": parts.RecordGaussian(**NOISE, bound=bound_of("scale", 3.0)),
    "unbounded": parts.RecordGaussian(**NOISE, bound=bound_of("none")),
    "banded": parts.RecordGaussian(**NOISE, source=BANDS),
    "another generator": parts.RecordGaussian(**NOISE, source=own.JaxNormals()),
    "upload": parts.OutputGaussian(**NOISE),
    "upload, literal": parts.OutputGaussian(**NOISE, literal=True),
    "upload, every step": parts.OutputGaussian(**NOISE, every_step=True),
    "upload, banded": parts.OutputGaussian(**NOISE, source=BANDS, every_step=True),
}
DRAWS, SIZE, LEVEL = 200, 100, 4.89


def measured_variances(privatizer, batches, client=2, taus=4):
    """Mean squared noise of each step, what is told of it, and the numbers of draws."""
    model = QuadraticModel((1.0,) * SIZE)
    points = np.random.default_rng(0).normal(size=(12, SIZE)).astype(np.float32)
    x, records = jnp.asarray(points), 12
    rates = jnp.asarray([0.3, 0.2, 0.1, 0.05])
    silent = (
        privatizer
        if not hasattr(privatizer, "noise_multiplier")
        else dataclasses.replace(privatizer, noise_multiplier=0.0 * privatizer.noise_multiplier)
    )

    def of(key):
        drawn = batches.sample(
            role_key(key, "batch"), jnp.int32(records), 6 if not batches.even else taus, records, records
        )

        def one(step):
            number, is_last = step.astype(jnp.uint32), step == 3
            context = StepContext(jnp.int32(client), jnp.int32(1), number, rates[step], rates.sum(), is_last)
            at = jax.tree.map(lambda a: a[step], drawn)
            given = Records(x[at.positions], jnp.zeros(at.positions.shape, jnp.int32), at.mask, at.divisor)
            noise_key = role_key(key, "noise")
            noisy = privatizer.gradient(noise_key, context, model, jnp.zeros(SIZE), given)[0]
            clean = silent.gradient(noise_key, context, model, jnp.zeros(SIZE), given)[0]
            return noisy - clean, variance_of(privatizer, context, at.divisor)

        return jax.vmap(one)(jnp.arange(taus))

    noise, told = jax.jit(jax.vmap(of))(jax.random.split(run_key(7), DRAWS))
    assert np.ptp(np.asarray(told), axis=0).max() == 0  # of public numbers alone
    return np.mean(np.asarray(noise, float) ** 2, (0, 2)), np.asarray(told, float)[0]


def off(seen, told):
    """How many standard errors the measured variances are from those told."""
    none = told == 0
    assert np.all(seen[none] < 1e-10)
    return np.abs(seen[~none] / told[~none] - 1).max(initial=0.0) / np.sqrt(2 / (DRAWS * SIZE))


@pytest.mark.parametrize("name", thinned(PRIVATIZERS, ("records",), 6))
def test_the_variance_that_is_told_is_that_of_the_noise(name):
    """20,000 normals a step: a true variance is rejected with probability 1e-6, one 10% off accepted below 1e-3."""
    seen, told = measured_variances(PRIVATIZERS[name], BATCHES["fixed"])
    assert off(seen, told) < LEVEL
    if name != "none":
        assert off(seen, 1.1 * told) > LEVEL


@pytest.mark.parametrize("name", thinned([name for name in BATCHES if name != "fixed"], ("full",), 9, ("poisson",)))
def test_the_variance_is_that_of_the_noise_for_every_law_of_batches(name):
    seen, told = measured_variances(PRIVATIZERS["records"], BATCHES[name])
    assert off(seen, told) < LEVEL
    divisor = 12 if name == "full" else 4
    # 1 / B^2 forgotten, 1 / B in its place, z without C, the noise of another client
    for wrong in (divisor**2, divisor, 1 / 0.7**2, 0.5**2 / 1.1**2):
        assert off(seen, told * wrong) > LEVEL


def test_nobody_tells_the_variance_of_noise_in_units_of_records():
    median = parts.RecordGaussian(clip_norm=1.0, noise_multiplier=1.0, bound=bound_of("tensor-median"))
    algorithm = fdp.dpnfl(**COMMON, **PRIVATE, local_rule="adam_bc")
    assert "RecordGaussian by the median" in refusal(check, own.steps(algorithm, privatizer=median), DATA, 1)
    silent = own.steps(algorithm, privatizer=own.Noises(clip_norm=1.0, noise_multiplier=1.0))
    assert "Noises, which does not declare the variance of its noise" in refusal(check, silent, DATA, 1)
    for rule in ("sgd", "adam"):
        check(own.steps(silent, rule=LOCAL_RULES[rule]), DATA, 1)


WRONG = {
    "b2 of one": ({"local_rule": "adam", "local_b2": 1.0}, "local_b2 must be in [0, 1), got 1.0"),
    "no floor": ({"local_rule": "adam_bc", "local_floor": 0.0}, "local_floor must be positive and finite, got 0.0"),
    "growing weights": ({"local_rule": "adamw", "local_weight_decay": -0.1}, "local_weight_decay must be zero or"),
}


@pytest.mark.parametrize("name", WRONG)
def test_numbers_that_cannot_be_meant_are_refused(name):
    options, words = WRONG[name]
    assert words in refusal(check, fdp.dpnfl.of({**COMMON, **PRIVATE, **options}), DATA, 1)


def with_rule(algorithm, **rule):
    return own.steps(algorithm, rule=LocalRule(**rule))


@pytest.mark.slow
def test_any_optax_transformation_is_a_local_rule():
    """And one with a rate of its own, which would climb, is not; nor what makes none."""
    plain = fdp.dpnfl(**COMMON, **PRIVATE)
    adam = with_rule(plain, factory=optax.scale_by_adam, hyperparameters={"b1": 0.9, "b2": 0.99, "eps": 1e-8})
    ours = fdp.dpnfl.of({**COMMON, **PRIVATE, "local_rule": "adam", "local_b2": 0.99})
    (begun, *_, theirs), (*_, own_state) = (states_of(each, MODEL, DATA, 2) for each in (adam, ours))
    assert all(np.any(a != b) for a, b in zip(*(jax.tree.leaves(s.params) for s in (begun, theirs)), strict=True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), theirs.params, own_state.params)
    climbing = with_rule(plain, factory=optax.adam, hyperparameters={"learning_rate": 0.1})
    assert "without a learning_rate, as the local steps have one" in refusal(check, climbing, DATA, 1)
    for factory, words in (
        (dict, "a function that returns an optax optimizer"),
        (optax.scale_by_polyak, "which fails"),
    ):
        told = refusal(check, with_rule(plain, factory=factory, hyperparameters={}), DATA, 1)
        assert words in told, told


def test_proofs_that_ask_for_plain_steps_refuse_every_other_rule():
    output = fdp.dp_fedavg_output(**COMMON, clip_norm=0.7, noise_multiplier=1.0)
    controls = fdp.dp_scaffold(**COMMON, clip_norm=0.7, noise_multiplier=1.0)
    for name, rule in LOCAL_RULES.items():
        assert rule.is_sgd == (name == "sgd")
        for algorithm in (output, controls):
            changed = own.steps(algorithm, rule=rule)
            if rule.is_sgd:
                check(changed, DATA, 1)
            else:
                assert "local rule must be sgd" in refusal(check, changed, DATA, 1)


def test_a_guarantee_does_not_change_by_a_bit():
    def guarantee(**options):
        return fdp.guarantee(fdp.dpnfl.of({**COMMON, **PRIVATE, **options}), DATA, rounds=4, delta=1e-3)

    plain = guarantee()
    for keep in (False, True):
        other = guarantee(local_rule="momentum", keep_rule=keep)
        for name in ADAPTIVE:
            found = guarantee(local_rule=name, keep_rule=keep)
            np.testing.assert_array_equal(found.epsilons, plain.epsilons)
            assert found.assumptions == other.assumptions


def test_numbers_of_a_rule_are_traced():
    names = ("local_b1", "local_b2", "local_floor", "local_weight_decay")
    one, other = (
        fdp.dpnfl.of({**COMMON, **PRIVATE, "local_rule": "adamw_bc", **dict.fromkeys(names, number)})
        for number in (0.5, 0.7)
    )
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert sum(a is not b and np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (one, other)))) == len(names)
