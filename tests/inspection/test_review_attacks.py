"""Ways around what is looked into: libraries' functions that hold records, keys that meet late, rules that differ."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import own_parts as own
import pytest
from helpers import ragged_data, thinned, usual
from own_parts import lying

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.inspection import noise_scale, schedule_points
from fedjax_dp.parts.contexts import StepContext
from fedjax_dp.pytrees import replace
from fedjax_dp.rounds.simulation import run_key

DATA = ragged_data([40, 60, 50, 30], shape=(20,))
FEW = ragged_data([8, 8, 8, 10, 12, 9])
ROWS = np.asarray(DATA.x)
COMMON = {"learning_rate": 0.3, "clip_norm": 0.7, "noise_multiplier": 2.0, "local_steps": 2}
RECORD = fdp.dpnfl(cohort_size=2, batch_size=2, schedule="constant", l2=0.0, **COMMON)
CLIENT = fdp.dp_fedavg(cohort_size=2, batch_size=2, cohort="uniform", **COMMON)
LONG = 1_500  # rounds
normal, fold = jax.random.normal, jax.random.fold_in


def promise(model, algorithm=RECORD, data=DATA, rounds=5):
    return fdp.guarantee(algorithm, data, rounds=rounds, delta=1e-5, model=model)


def layers(*some):
    return fdp.model(nn.Sequential((*some, nn.Dense(3))), DATA)


CUBES = np.sum(ROWS**3, 0, keepdims=True)  # which no row shows


@functools.wraps(nn.relu)
def said_to_be_relu(x):
    return x + jnp.asarray(CUBES)


HOLDING = {
    "an initializer": lambda: fdp.model(nn.Dense(3, kernel_init=nn.initializers.constant(ROWS[:3].T)), DATA),
    "a method of an array": lambda: layers(jnp.asarray(ROWS[:1]).__add__),
    "a partial function": lambda: layers(functools.partial(jnp.dot, b=jnp.asarray(ROWS[:20]))),
}


@pytest.mark.parametrize("name", thinned(HOLDING, ("an initializer",), 2))
def test_a_librarys_own_function_that_holds_records_is_refused(name):
    with pytest.raises(errors.ConfigurationError, match="that holds record"):
        promise(HOLDING[name]())


@pytest.mark.parametrize(
    "layer",
    [functools.partial(jnp.add, CUBES), jnp.asarray(CUBES).__mul__, said_to_be_relu],
    ids=["partial", "method", "wraps"],
)
def test_whatever_holds_numbers_of_somebodys_is_on_his_word(layer):
    lines = promise(layers(layer)).assumptions
    assert any(line.startswith("Sequential (model) is trusted") for line in lines)


def test_a_network_of_flax_alone_is_on_nobodys_word():
    kinds = (nn.relu, nn.gelu, nn.LayerNorm(), nn.GroupNorm(2), nn.remat(nn.Dense)(4), jnp.tanh)
    model = layers(nn.Dense(4, kernel_init=nn.initializers.orthogonal()), *kinds)
    assert not any("word of" in line for line in promise(model).assumptions)


@functools.wraps(optax.sgd)
def said_to_be_sgd(learning_rate):
    def add(updates, params):
        return jax.tree.map(lambda a: a + jnp.sum(jnp.asarray(ROWS)), updates)

    return optax.chain(optax.sgd(learning_rate), optax.stateless(add))


def test_a_server_rule_that_is_said_to_be_optaxs_is_on_somebodys_word():
    algorithm = replace(RECORD, server=replace(RECORD.server, factory=said_to_be_sgd))
    assert "sgd (factory) is trusted: it holds no records itself" in promise(layers(), algorithm).assumptions


def late(step, before, after):
    return jnp.where(step.round < 1_000, before, after)


def two_that_become_one(self, key, step, size):
    own = fold(key, step.number)
    return (normal(fold(own, 7), (size,)) - normal(fold(own, late(step, 8, 7)), (size,))) / 2**0.5


def halves_that_become_alike(self, key, step, size):
    own, half = fold(key, step.number), -(-size // 2)
    return jnp.concatenate([normal(fold(own, 1), (half,)), normal(fold(own, late(step, 2, 1)), (half,))])[:size]


def coins_that_turn_back(self, key, step, size):
    def quantile(words):
        uniform = (words >> 8).astype(jnp.float32) / 2**24
        return jax.scipy.special.erfinv(jnp.clip(2 * uniform - 1, -1 + 1e-6, 1 - 1e-6)) * 2**0.5

    words = jax.random.bits(fold(key, step.number), (size,))
    return (quantile(words) - quantile(words ^ late(step, jnp.uint32(2**32 - 1), jnp.uint32(0)))) / 2


def steps_that_share(self, key, step, size):
    return normal(fold(key, late(step, step.number, step.number // 2)), (size,))


def steps_that_cancel(self, key, step, size):
    return (1.0 - 2.0 * (step.number % 2)) * steps_that_share(self, key, step, size)


def by_client(draw):
    return replace(CLIENT, upload=replace(CLIENT.upload, source=lying(own.JaxNormals(), draw=own.stateless(draw))))


def by_record(draw):
    source = lying(own.JaxNormals(), draw=own.stateless(draw))
    return replace(RECORD, local=replace(RECORD.local, privatizer=replace(RECORD.local.privatizer, source=source)))


LATE = {
    draw.__name__: draw
    for draw in (
        two_that_become_one,
        halves_that_become_alike,
        coins_that_turn_back,
        steps_that_share,
        steps_that_cancel,
    )
}


@pytest.mark.parametrize("name", LATE)
def test_the_trace_tells_that_the_round_decides_which_bits_a_noise_is_made_of(name):
    (found,) = noise_scale.scale_names(
        lambda key, **where: LATE[name](None, key, StepContext(**where), 4), run_key(0), schedule_points.example_point()
    )
    assert "round" in found.bits
    assert ("round" in found.scale) == ("_that_share" not in name and "_that_cancel" not in name)


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(LATE, ("two_that_become_one",)))
def test_noise_that_meets_itself_late_is_refused(name):
    model = fdp.model(nn.Dense(3), FEW)
    for algorithm in (by_record(LATE[name]), by_client(LATE[name])):
        with pytest.raises(errors.ConfigurationError, match="noise source"):
            promise(model, algorithm, FEW, LONG)


def two_that_stay_two(self, key, step, size):
    own = fold(fold(key, step.round), step.number)
    return (normal(fold(own, 1), (size,)) - normal(fold(own, late(step, 2, 3)), (size,))) / 2**0.5


def halves(self, key, step, size):
    own, half = fold(fold(key, step.round), step.number), -(-size // 2)
    return jnp.concatenate([normal(fold(own, 1), (half,)), normal(fold(own, 2), (half,))])[:size]


@pytest.mark.slow
@pytest.mark.parametrize("draw", usual([two_that_stay_two, halves], [halves]))
def test_noise_of_other_keys_in_other_rounds_is_right(draw):
    for algorithm in (by_record(draw), by_client(draw)):
        assert promise(fdp.model(nn.Dense(3), FEW), algorithm, FEW, LONG).epsilon < np.inf


@pytest.mark.parametrize("begun", [lambda w: w, lambda w: (w, {"b": [w]})], ids=["an array", "nested"])
def test_parameters_of_any_structure_that_stand_are_of_unknown_origin(begun):
    values = np.random.default_rng(7).normal(size=(20, 3)).astype(np.float32)
    model = fdp.model((lambda key: begun(jnp.asarray(values)), lambda p, x: x @ jax.tree.leaves(p)[0]), DATA)
    assert "unknown origin" in promise(model).caveat
