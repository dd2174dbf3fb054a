"""Models of one's own that hold records of the clients, each in another way: none gets an epsilon."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import ragged_data, thinned

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.inspection import constants
from fedjax_dp.parts import facts
from fedjax_dp.pytrees import replace

DATA = ragged_data([40, 60, 50, 30], shape=(5, 4))
ROWS, LABELS = np.asarray(DATA.x), np.asarray(DATA.y)
SIZE = 20
ALGORITHM = fdp.dpnfl(
    cohort_size=2, batch_size=4, local_steps=2, learning_rate=0.3, clip_norm=0.7, noise_multiplier=2.0
)


@dataclasses.dataclass(frozen=True)
class Own:
    """Softmax regression by hand, with whatever is put beside it."""

    beside: Callable[[], Any] = lambda: 0.0
    begin: Callable[[jax.Array], Any] = lambda key: 0.01 * jax.random.normal(key, (SIZE, 3))

    def init(self, key):
        return self.begin(key)

    def logits(self, params, x):
        return x.reshape(-1) @ params

    def loss(self, params, x, y, key=None):
        held = sum(jnp.sum(jnp.asarray(a, jnp.float32)) for a in jax.tree.leaves(self.beside()))
        return -jax.nn.log_softmax(self.logits(params, x))[y] + 1e-6 * held * jnp.sum(params**2)


def promise(model, data=DATA, algorithm=ALGORITHM):
    return fdp.guarantee(algorithm, data, rounds=5, delta=1e-5, model=model)


def held(rows):
    return Own(beside=lambda: jnp.asarray(rows))


def in_a_loop():
    def body(i, total):
        return total + jnp.asarray(ROWS)[i].sum()

    return jax.lax.fori_loop(0, 3, body, 0.0)


@jax.jit
def compiled():
    return jnp.asarray(ROWS[:10]).sum()


def begun(key):
    """Parameters made of records."""
    return jnp.asarray(ROWS.reshape(-1, SIZE)[:3].T)


RNG = np.random.default_rng(0)
FLAT = ROWS.reshape(-1, SIZE)
ORDER = RNG.permutation(len(FLAT))
SPREAD = (FLAT - FLAT.mean(0)) / FLAT.std(0)
HOLDERS = {
    "all of them": held(ROWS),
    "shuffled": held(ROWS[ORDER]),
    "a part": held(ROWS[20:50]),
    "one": held(ROWS[77]),
    "one, flattened": held(FLAT[5]),
    "one among others": held(np.concatenate([RNG.normal(size=(30, SIZE)), FLAT[9:10], RNG.normal(size=(9, SIZE))])),
    "scaled": held(3.5 * ROWS),
    "scaled and shifted": held(0.1 * ROWS - 7.0),
    "turned": held(-ROWS),
    "centred": held(FLAT - FLAT.mean(0)),
    "normalised": held(SPREAD[ORDER]),
    "normalised, one": held(SPREAD[3]),
    "of unit length": held(FLAT / np.linalg.norm(FLAT, axis=1, keepdims=True)),
    "as bytes": held(np.clip(FLAT * 32 + 128, 0, 255).astype(np.uint8)),
    "in half precision": held(FLAT.astype(np.float16)),
    "in bfloat16": held(FLAT.astype(jnp.bfloat16)),
    "as complex numbers": Own(beside=lambda: jnp.asarray(1j * FLAT).imag),
    "blurred": held(FLAT + 0.05 * RNG.normal(size=FLAT.shape)),
    "by column": held(FLAT.T),
    "columns in another order": held(FLAT[:, RNG.permutation(SIZE)]),
    "with labels beside them": held(np.concatenate([FLAT, LABELS[:, None]], 1)),
    "by client": held(np.stack([ROWS[i : i + 30] for i in (0, 40, 100, 150)])),
    "means of clients": held([FLAT[i:j].mean(0) for i, j in ((0, 40), (40, 100), (100, 150), (150, 180))]),
    "labels": held(LABELS),
    "labels, one hot": held(np.eye(3)[LABELS]),
    "in a loop": Own(beside=in_a_loop),
    "in a compiled function": Own(beside=compiled),
    "in init": Own(begin=begun),
    "in a network's forward pass": fdp.model(
        (lambda key: jnp.zeros((SIZE, 3)), lambda p, x: x.reshape(-1) @ p + 1e-3 * jnp.asarray(ROWS).mean()), DATA
    ),
    "in a network's loss": fdp.model(
        nn.Sequential((nn.Dense(3),)),
        (SIZE,),
        loss=lambda scores, y: -jax.nn.log_softmax(scores)[y] * jnp.asarray(FLAT)[0, 0],
    ),
    "in an initializer": fdp.model(nn.Dense(3, kernel_init=nn.initializers.constant(FLAT[:3].T)), (SIZE,)),
    "in a method of an array": fdp.model(nn.Sequential((jnp.asarray(FLAT[:1]).__add__, nn.Dense(3))), (SIZE,)),
    "in a partial function": fdp.model(
        nn.Sequential((functools.partial(jnp.dot, b=jnp.asarray(FLAT[:20])), nn.Dense(3))), (SIZE,)
    ),
    "in frozen values": fdp.models.freeze(fdp.mlp((5, 4), 3, (180,)), "head", start=None),
}
OF_FLAT_RECORDS = ("in a network's loss", "in an initializer", "in a method of an array", "in a partial function")
QUICK = (
    "in an initializer",
    "all of them",
    "normalised, one",
    "in init",
    "in a compiled function",
    "labels",
    "one among others",
)


@functools.cache
def flat_data():
    return ragged_data([40, 60, 50, 30], shape=(20,))


def _with_frozen_records():
    model = HOLDERS["in frozen values"]
    values = {name: jnp.asarray(FLAT.T) if a.shape == (SIZE, 180) else a for name, a in model.frozen.values.items()}
    assert any(a.shape == (SIZE, 180) for a in values.values())
    return model.with_device_records(model.frozen._replace(values=values))


@pytest.mark.parametrize("name", thinned(HOLDERS, QUICK, 8))
def test_a_model_that_holds_records_is_refused_in_one_line(name):
    model = _with_frozen_records() if name == "in frozen values" else HOLDERS[name]
    data = flat_data() if name in OF_FLAT_RECORDS else DATA
    with pytest.raises(errors.ConfigurationError, match="that holds") as caught:
        promise(model, data)
    assert "\n" not in str(caught.value)


RIGHT = {
    "nothing beside": Own(),
    "a table of its own": held(RNG.normal(size=(400, SIZE))),
    "means of what everybody knows": held(RNG.normal(size=SIZE)),
    "a range": held(np.arange(SIZE * 10.0)),
    "one hot rows": held(np.eye(SIZE)),
    "even": held(np.ones((30, SIZE))),
    "another's labels": held(RNG.integers(0, 3, 500)),
}


@pytest.mark.parametrize("name", thinned(RIGHT, ("a table of its own", "one hot rows"), 6))
def test_a_model_of_ones_own_has_its_line(name):
    lines = [line for line in promise(RIGHT[name]).assumptions if "(model)" in line]
    assert lines == [f"Own (model) is trusted: {facts.HOLDS_NONE}"]


@dataclasses.dataclass(frozen=True)
class Layer:
    size: int

    def __call__(self, x):
        return x


CUBES = np.sum(FLAT**3, 0, keepdims=True)  # which no row shows


@functools.wraps(nn.relu)
def named_as_relu(x):
    return x + jnp.asarray(CUBES)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x.reshape(len(x), -1))


def test_whose_word_a_network_rests_on():
    start, forward = lambda key: jnp.zeros((SIZE, 3)), lambda params, x: x.reshape(-1) @ params
    own = {
        "Net": fdp.model(Net(), DATA),
        "<lambda>": fdp.model((start, forward), DATA),
        "Dense": fdp.model(nn.Dense(3), (SIZE,), loss=lambda scores, y: scores[y]),
    }
    for name, model in own.items():
        assert facts.trusted_model(model) == [f"{name} (model) is trusted: {facts.HOLDS_NONE}"]
    for layer in (lambda x: x, functools.partial(jnp.add, CUBES), jnp.asarray(CUBES).__mul__, named_as_relu):
        model = fdp.model(nn.Sequential((layer, nn.Dense(3))), (SIZE,))
        assert facts.trusted_model(model) == [f"Sequential (model) is trusted: {facts.HOLDS_NONE}"]
    flax = (nn.relu, nn.gelu, nn.LayerNorm(), nn.GroupNorm(2), nn.remat(nn.Dense)(4), jnp.tanh, nn.Dense(3))
    assert facts.trusted_model(fdp.model(nn.Sequential(flax[::-1]), (SIZE,))) == []
    orthogonal = nn.Dense(3, kernel_init=nn.initializers.orthogonal())
    assert facts.trusted_model(fdp.model(orthogonal, (SIZE,))) == []
    assert facts.trusted_model(fdp.models.freeze(fdp.mlp((SIZE,), 3), "head")) == []
    shapes = {
        name: (8,) if name in ("lstm", "gpt", "word_lstm", "char_lstm") else (28, 28, 1)
        for name in fdp.models.ARCHITECTURES
    }
    for name, make in fdp.models.ARCHITECTURES.items():
        assert facts.trusted_model(make(shapes[name], 10)) == []


def test_records_of_few_numbers_are_compared_by_distance():
    data = ragged_data([200, 100], shape=(3,))
    rows = np.asarray(data.x)

    def model(beside):
        return Own(beside=lambda: jnp.asarray(beside), begin=lambda key: jnp.zeros((3, 3)))

    for beside in (rows, rows[:40], rows - rows.mean(0), (rows - rows.mean(0)) / rows.std(0)):
        with pytest.raises(errors.ConfigurationError, match="that holds"):
            promise(model(beside), data)
    for beside in (np.eye(3), RNG.normal(size=(500, 3)), np.arange(9.0)):
        assert promise(model(beside), data).epsilon < np.inf


def test_tokens_are_compared_as_the_same_and_not_as_near_ones():
    """Short texts are mostly padding, and correlate with any row of a network that has one large number."""
    ids = np.zeros((90, SIZE), np.int32)
    ids[:, 0], ids[:, 1], ids[:, 2] = 101, RNG.integers(2000, 30_000, 90), 102
    ids[::3, 2:9], ids[::3, 9] = RNG.integers(2000, 30_000, (30, 7)), 102
    kinds = np.arange(90) % 3
    dataset = fdp.dataset(ids[:81], kinds[:81], ids[81:], kinds[81:], vocabulary=fdp.data.Vocabulary(30_000, pad=0))
    data = fdp.federate(dataset, [range(40), range(40, 81)])
    spikes = 0.02 * RNG.normal(size=(200, SIZE))
    spikes[:, 1] += 1.0
    assert promise(held(spikes), data).epsilon < np.inf
    for rows in (
        ids[:81],
        1e-3 * ids[40:60] - 3.0,
        ids[6:7].astype(np.float16),
        ids[:40] + 0.3 * RNG.random((40, SIZE)),
    ):
        with pytest.raises(errors.ConfigurationError, match="that holds"):
            promise(held(rows), data)


@pytest.mark.parametrize("begun", [lambda w: w, lambda w: (w, {"b": [w]})], ids=["an array", "nested"])
def test_parameters_of_any_structure_that_stand_are_of_unknown_origin(begun):
    values = np.random.default_rng(7).normal(size=(SIZE, 3)).astype(np.float32)
    model = fdp.model(
        (lambda key: begun(jnp.asarray(values)), lambda p, x: x.reshape(-1) @ jax.tree.leaves(p)[0]), DATA
    )
    assert "unknown origin" in promise(model).caveat


@functools.wraps(optax.sgd)
def said_to_be_sgd(learning_rate):
    def add(updates, params):
        return jax.tree.map(lambda a: a + jnp.sum(jnp.asarray(FLAT)), updates)

    return optax.chain(optax.sgd(learning_rate), optax.stateless(add))


def test_a_server_rule_that_is_said_to_be_optaxs_is_on_somebodys_word():
    algorithm = replace(ALGORITHM, server=replace(ALGORITHM.server, factory=said_to_be_sgd))
    assert "sgd (factory) is trusted: it holds no records itself" in promise(Own(), algorithm=algorithm).assumptions


@pytest.mark.slow
def test_looking_for_records_in_a_large_table_is_cheap():
    data = ragged_data([600] * 100, shape=(28, 28))
    table = jnp.asarray(np.random.default_rng(1).normal(size=(20_000, 784)).astype(np.float32))
    model = Own(beside=lambda: table, begin=lambda key: jnp.zeros((784, 3)))
    constants.require_no_records(model, data)
    begun = time.perf_counter()
    constants.require_no_records(model, data)
    assert time.perf_counter() - begun < 2.0
