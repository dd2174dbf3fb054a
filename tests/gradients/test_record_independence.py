"""Records are apart by construction: what could see a batch, or act beside the program, is refused by name, place."""

import dataclasses
from typing import Any

import equinox
import flax.linen as nn
import haiku
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from helpers import ragged_data
from jax import lax
from jax.custom_batching import custom_vmap, sequential_vmap
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import batching

import fedjax_dp as fdp
from fedjax_dp import errors, gradients
from fedjax_dp.gradients import record_independence

X, Y = np.ones((1, 4), np.float32), np.zeros(1, np.int32)
DATA = ragged_data([12, 12], shape=(4,))


@dataclasses.dataclass(frozen=True)
class Own:
    """A user's own Model, with something in its forward pass and its start."""

    forward: Any = lambda x: x
    start: Any = lambda w: w

    def init(self, key):
        return {"w": self.start(0.1 * jax.random.normal(key, (4, 3)))}

    def logits(self, params, x):
        return self.forward(x) @ params["w"]

    def loss(self, params, x, y, key=None):
        return -jax.nn.log_softmax(self.logits(params, x))[y]


@custom_vmap
def centred(x):
    return x


@centred.def_vmap
def _less_the_mean(size, batched, x):
    return x - x.mean(0), True


def called(method):
    def forward(x):
        def on_host(batch):
            return np.asarray(batch - batch.mean(0, keepdims=True), np.float32)

        return jax.pure_callback(on_host, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method=method)

    return forward


summed = Primitive("add")  # named as JAX's own
summed.def_abstract_eval(lambda a: a)
summed.def_impl(lambda a: a)
batching.primitive_batchers[summed] = lambda args, dims: (args[0] + args[0].sum(dims[0]), dims[0])

spread = Primitive("spread")  # with JAX's own rule, which trusts it
spread.def_abstract_eval(lambda a: a)
spread.def_impl(lambda a: a)
batching.defvectorized(spread)


@jax.custom_vjp
def mixed_backwards(x):
    return x


mixed_backwards.defvjp(lambda x: (x, None), lambda kept, e: (centred(e),))


@jax.custom_jvp
def mixed_forwards(x):
    return x


@mixed_forwards.defjvp
def _mixed(primals, tangents):
    return primals[0], called("broadcast_all")(tangents[0])


def referenced(x):
    held = jax.new_ref(x)
    held[...] = 2 * held[...]
    return held[...]


def foreign(x):
    return jax.ffi.ffi_call("somebodys", jax.ShapeDtypeStruct(x.shape, x.dtype), vmap_method="broadcast_all")(x)


def printed(x):
    jax.debug.print("{}", x)
    return x


def reported(x):
    jax.debug.callback(lambda a: None, x)
    return x


SEES = {  # each a forward pass of one record
    "custom_vmap": centred,
    "expand_dims": called("expand_dims"),
    "broadcast_all": called("broadcast_all"),
    "legacy_vectorized": called("legacy_vectorized"),
    "sequential": called("sequential"),
    "sequential_vmap": sequential_vmap(lambda x: 2 * x),
    "io_callback": lambda x: io_callback(lambda a: a, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
    "debug_print": printed,
    "debug_callback": reported,
    "own primitive named add": summed.bind,
    "own primitive with JAX's rule": spread.bind,
    "foreign function": foreign,
    "reference": referenced,
    "backward rule": mixed_backwards,
    "forward rule": mixed_forwards,
    "in a loop": lambda x: lax.scan(lambda c, a: (c, centred(c * a)), x, x)[1].sum(0),
    "in a branch": lambda x: lax.cond(x[0] > 0, centred, lambda a: a, x),
    "in a checkpoint under jit": jax.jit(jax.checkpoint(centred)),
    "in a custom derivative": lambda x: jax.nn.relu(mixed_backwards(x)),
    "in a solver": lambda x: lax.custom_linear_solve(lambda a: 2 * a, x, lambda _, b: centred(b) / 2, symmetric=True),
}


def seen_where_not_differentiated():
    """Its rule is honest where features have a derivative, as in no training, and sees the batch where they do not."""

    @jax.custom_jvp
    def same(x, w):
        return x + 0 * w

    def rule(primals, tangents):
        moved = not isinstance(tangents[0], jax.custom_derivatives.SymbolicZero)
        result = primals[0] if moved else centred(primals[0])
        return result, 0 * result + (tangents[0] if moved else 0)

    same.defjvp(rule, symbolic_zeros=True)
    return same


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["as it is", "in jit"])
def test_a_rule_that_sees_which_derivatives_are_zero_is_refused(around):
    same = around(seen_where_not_differentiated())
    start, forward = lambda key: jnp.zeros((4, 3)), lambda params, x: same(x, params.sum()) @ params
    with pytest.raises(errors.ConfigurationError, match=r"sees which derivatives are zero .*leave out symbolic_zeros"):
        fdp.guarantee(dpnfl(), DATA, rounds=2, delta=1e-3, model=fdp.model((start, forward), DATA))


@pytest.mark.parametrize("name", SEES)
def test_what_could_see_a_batch_is_refused_by_name_and_place(name):
    model = Own(SEES[name])
    with pytest.raises(errors.ConfigurationError, match=r"model must be made of JAX's own") as refused:
        gradients.loss_plan(model, jax.eval_shape(model.init, jax.random.key(0)), X, Y)
    line = str(refused.value)
    assert "test_record_independence.py" in line
    assert "jax.numpy" in line
    assert "\n" not in line


class FlaxNet(nn.Module):
    forward: Any

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(self.forward(x))


class NnxNet(nnx.Module):
    def __init__(self, forward):
        self.forward, self.dense = forward, nnx.Linear(4, 3, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.dense(self.forward(x))


def in_haiku(forward):
    return haiku.transform(lambda x: haiku.Linear(3)(forward(x)))


def in_equinox(forward):
    dense = equinox.nn.Linear(4, 3, key=jax.random.key(0))
    return equinox.nn.Sequential([equinox.nn.Lambda(forward), dense])


def functions(forward):
    return Own().init, lambda p, x: forward(x) @ p["w"]


NETWORKS = {
    "own model": Own,
    "two functions": lambda forward: fdp.model(functions(forward), (4,)),
    "loss of scores": lambda forward: fdp.model(
        functions(lambda x: x), (4,), loss=lambda scores, y: forward(scores)[y]
    ),
    "flax": lambda forward: fdp.model(FlaxNet(forward), (4,)),
    "nnx": lambda forward: fdp.model(NnxNet(forward), (4,)),
    "haiku": lambda forward: fdp.model(in_haiku(forward), (4,)),
    "equinox": lambda forward: fdp.model(in_equinox(forward), (4,)),
    "low rank": lambda forward: fdp.models.freeze(fdp.model(FlaxNet(forward), (4,)), "lora", rank=2),
}
DOORS = {
    "guarantee": lambda algorithm, model: fdp.guarantee(algorithm, DATA, rounds=2, delta=1e-3, model=model),
    "calibrate": lambda algorithm, model: fdp.calibrate(algorithm, DATA, rounds=2, epsilon=1, delta=1e-3, model=model),
    "simulate": lambda algorithm, model: fdp.simulate(algorithm, DATA, rounds=2, model=model),
    "run": lambda algorithm, model: fdp.run(algorithm, DATA, rounds=2, model=model, epsilon=1.0, delta=1e-3),
}


def dpnfl(**given):
    return fdp.dpnfl(cohort_size=2, batch_size=4, local_steps=1, learning_rate=0.1, clip_norm=1.0, **given)


@pytest.mark.parametrize("door", DOORS)
def test_no_epsilon_and_no_training_through_any_door(door):
    with pytest.raises(errors.ConfigurationError, match=r"must be made of JAX's own.*test_record_independence"):
        DOORS[door](dpnfl(), Own(centred))


@pytest.mark.parametrize("kind", NETWORKS)
def test_networks_of_all_kinds_are_looked_into(kind):
    with pytest.raises(errors.ConfigurationError, match=r"model must be made of JAX's own.*pure_callback in .*\.py"):
        fdp.guarantee(dpnfl(), DATA, rounds=2, delta=1e-3, model=NETWORKS[kind](called("expand_dims")))


@pytest.mark.parametrize("start", [reported, called("sequential"), centred], ids=["debug", "pure", "custom_vmap"])
def test_a_start_that_does_more_than_compute_is_refused(start):
    with pytest.raises(errors.ConfigurationError, match=r"init of the model must be .*test_record_independence"):
        fdp.guarantee(dpnfl(noise_multiplier=1.0), DATA, rounds=2, delta=1e-3, model=Own(start=start))


@fdp.value
class Fetched(fdp.parts.Correction):
    """A correction that is given no records, and asks the host for what it likes."""

    pull = 0.0

    def gradient(self, gradient, params, step, client, records):
        return gradient + jax.pure_callback(lambda: np.float32(DATA.x[0, 0]), jax.ShapeDtypeStruct((), jnp.float32))


def test_a_part_of_ones_own_fetches_nothing_from_the_host():
    algorithm = dpnfl(noise_multiplier=1.0)
    algorithm = dataclasses.replace(algorithm, local=dataclasses.replace(algorithm.local, corrections=(Fetched(),)))
    with pytest.raises(errors.ConfigurationError, match=r"must be made of JAX's own.*pure_callback"):
        fdp.guarantee(algorithm, DATA, rounds=2, delta=1e-3, model=Own())


def test_a_rule_that_somebody_wrote_for_an_operation_of_jax_is_noticed(monkeypatch):
    def summing(args, dims):
        return args[0] + args[0].sum(dims[0]), dims[0]

    model = Own(jnp.sinh)
    monkeypatch.setitem(batching.fancy_primitive_batchers, lax.sinh_p, None)  # put back afterwards
    batching.primitive_batchers[lax.sinh_p] = summing
    with pytest.raises(errors.ConfigurationError, match="got sinh"):
        gradients.loss_plan(model, jax.eval_shape(model.init, jax.random.key(0)), X, Y)


SEEN = []


@jax.custom_vjp
def watched(x):
    return x


def _watching(kept, e):
    SEEN.append(type(e).__name__)
    return (2 * e,)


watched.defvjp(lambda x: (x, None), _watching)


@pytest.mark.parametrize("within", [lambda f: f, jax.jit, jax.checkpoint, lambda f: lambda x: lax.map(f, x)])
def test_a_backward_rule_is_traced_with_one_record_and_never_given_a_batch(within):
    model = Own(lambda x: within(watched)(x * x))
    params = model.init(jax.random.key(0))

    def loss(params, x, y):  # by hand: the rule doubles what it is given
        return model.loss(params, x, y)

    records = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4)), jnp.float32)
    SEEN.clear()
    found = gradients.clipped_sum(model, params, records, jnp.zeros(5, jnp.int32), jnp.ones(5, bool), 1e9)
    assert "BatchTracer" not in SEEN
    wanted = sum(jax.grad(loss)(params, record, 0)["w"] for record in records)
    np.testing.assert_allclose(found.total["w"], wanted, rtol=1e-5)


@jax.custom_vjp
def clipped_backwards(x):
    return x


clipped_backwards.defvjp(lambda x: (x, None), lambda kept, e: (jnp.clip(e, -1, 1),))


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.RNN(nn.LSTMCell(4))(x[..., None])[:, -1])


class Layer(nn.Module):
    @nn.compact
    def __call__(self, h, _):
        return nn.relu(nn.Dense(4)(h)), None


class Deep(nn.Module):
    @nn.compact
    def __call__(self, x):
        looped = nn.scan(nn.remat(Layer), variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        return nn.Dense(3)(looped()(x, None)[0])


RIGHT = {
    "relu": lambda: Own(jax.nn.relu),
    "own derivative": lambda: Own(lambda x: clipped_backwards(jnp.tanh(x))),
    "gelu and softmax": lambda: Own(lambda x: jax.nn.softmax(jax.nn.gelu(x))),
    "checkpoint": lambda: Own(jax.checkpoint(jnp.sin)),
    "branches and loops": lambda: Own(lambda x: lax.cond(x[0] > 0, jnp.sin, lambda a: lax.map(jnp.cos, a), x)),
    "solve": lambda: Own(lambda x: jnp.linalg.solve(jnp.eye(4) + jnp.outer(x, x), x)),
    "sorted and drawn": lambda: Own(lambda x: jnp.sort(x) + jax.random.normal(jax.random.key(3), (4,))),
    "a start that is orthogonal": lambda: Own(start=lambda w: jnp.linalg.qr(w)[0]),
    "recurrent": lambda: fdp.model(Recurrent(), (4,)),
    "layers in a loop": lambda: fdp.model(Deep(), (4,)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_keeps_records_apart_stays(name):
    model = RIGHT[name]()
    assert gradients.loss_plan(model, gradients.start_shapes(model), X, Y).out.shape == ()


def test_what_is_allowed_is_jaxs_own_with_its_own_rules():
    own = {one.name for one in record_independence.own_primitives()}
    assert {"dot_general", "conv_general_dilated", "scan", "while", "cond", "jit", "sort", "split", "unstack"} <= own
    assert not own & {
        *("pure_callback", "io_callback", "debug_callback", "debug_print", "custom_vmap_call", "ffi_call", "psum"),
        *("all_gather", "axis_index", "get", "swap", "new_ref", "run_state", "shard_map", "pallas_call", "core_map"),
        *("call_hi_primitive", "custom_partitioning", "call_exported", "linear_call", "composite"),
    }
    assert all(record_independence._rule_is_own(one) for one in record_independence.own_primitives())
