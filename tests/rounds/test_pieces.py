"""Vectors in pieces, as GPUs compute a client's round: what comes out is what flat vectors give."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import usual
from jax import lax

import fedjax_dp as fdp
from fedjax_dp import prng
from fedjax_dp.execution import some_devices
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.gradients import equations
from fedjax_dp.pytrees import ravel, replace
from fedjax_dp.rounds import pieces, simulation
from fedjax_dp.rounds.state import initial_state

DIGITS = fdp.load("digits")
DATA = fdp.federate(DIGITS, fdp.data.iid(DIGITS.y_train, [20] * 6, 0))
MLP = fdp.mlp(DATA.record_shape, DATA.classes, (16,))
LINEAR = fdp.logistic_regression(DATA.record_shape, DATA.classes)
MADE = {"cohort_size": 3, "batch_size": 5, "local_steps": 3, "learning_rate": 0.1}
NOISE = {"clip_norm": 0.7, "noise_multiplier": 1.0}
PAIR = tuple(Execution(pieces=in_pieces) for in_pieces in (False, True))
TREE = {"a": jnp.arange(300.0).reshape(30, 10), "b": jnp.ones(100), "c": -jnp.arange(200.0).reshape(10, 20)}


def made(name, **more):
    entry = fdp.CATALOGUE[name]
    steps = {"local_steps": 1} if name == "dp_sgd" else {}
    return entry(**MADE | (NOISE if entry.private else {}) | steps | more)


def ends(algorithm, model=MLP, pair=PAIR, rounds=2):
    """The state after rounds of flat vectors, and of vectors in pieces."""
    return [
        fdp.simulate(algorithm, DATA, rounds=rounds, seed=3, model=model, execution=execution).state
        for execution in pair
    ]


def close(ours, theirs, rtol=1e-5):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(fdp.CATALOGUE, ["scaffold"]))
def test_every_entry_gives_the_same_state(name):
    close(*ends(made(name)))


OTHERS = {
    "momentum": ({"local_rule": "momentum"}, lambda: MLP),
    "AdamBC on Poisson batches": ({"local_rule": "adam_bc", "batches": "poisson"}, lambda: MLP),
    "low-rank terms": ({}, lambda: fdp.models.freeze(fdp.mlp(DATA.record_shape, DATA.classes, (32,)), "lora", rank=4)),
    "windows": ({}, lambda: fdp.models.cnn(DATA.record_shape, DATA.classes)),
}


# CI: test_every_entry_gives_the_same_state and test_any_function_of_a_vector_gives_what_it_gave
@pytest.mark.exhaustive
@pytest.mark.parametrize("what", OTHERS)
def test_rules_batches_and_models_of_other_kinds_give_the_same_state(what):
    options, model = OTHERS[what]
    close(
        *ends(made("dpnfl", **options), model(), rounds=1), rtol=1e-4
    )  # rules divide by small numbers: later rounds drift apart


@pytest.mark.slow
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other devices add up in an order of their own")
def test_noised_steps_are_the_same_bit_for_bit():
    jax.tree.map(np.testing.assert_array_equal, *ends(made("dpnfl", l2=0.1), LINEAR))


@pytest.mark.exhaustive  # CI: the same of one device and one run, above
def test_devices_and_points_of_a_sweep_compute_in_pieces():
    devices = some_devices(min(2, len(jax.devices())))
    close(*ends(made("dpnfl"), LINEAR, [dataclasses.replace(devices, pieces=flag) for flag in (False, True)]))
    algorithm, key = simulation.as_float32_leaves(made("dpnfl")), simulation.run_key(0)
    state = initial_state(algorithm, LINEAR, DATA, key)

    def after(clip, execution):
        point = replace(algorithm, local=replace(algorithm.local, privatizer=of_clip(algorithm, clip)))
        return simulation.run_rounds(point, state, DATA, key, jnp.int32(2), model=LINEAR, execution=execution)[0].params

    close(*(jax.jit(jax.vmap(lambda clip, on=on: after(clip, on)))(jnp.array([0.1, 0.5])) for on in PAIR))


def of_clip(algorithm, clip):
    return replace(algorithm.local.privatizer, clip_norm=clip)


FUNCTIONS = {
    "parts that cross": lambda v: v[50:350].sum() + v[:300].max() - v[299:300],
    "joined again": lambda v: jnp.concatenate([v[300:400], v[:300], 2 * v[400:]]) * v,
    "as a whole": lambda v: lax.cond(
        v[0] > 1, jnp.cumsum, lambda a: a, jnp.sort(v)[::-1] + jnp.roll(v, 3) * jnp.linalg.norm(v)
    ),
    "a loop of unknown length": lambda v: lax.while_loop(lambda a: a.sum() > 1, lambda a: a / 2, v * v),
    "over loops": lambda v: lax.scan(lambda c, x: (c * 0.5 + v + x, c.sum()), v, jnp.arange(4.0)),
    "products": lambda v: (v @ jnp.cos(v), jnp.vdot(v, v), jnp.outer(v, v)[0], jnp.where(v[0] > 0, v, -v)),
    "checks": lambda v: (jnp.isfinite(v).all(), (v > 3).any(), v.argmax(), v.reshape(20, 30), v[::2]),
    "noise": lambda v: v + prng.normals(jax.random.key(3), 5, v.size),
    "derivatives": lambda v: jax.checkpoint(jax.nn.relu)(v) + jax.grad(lambda a: jax.nn.softmax(a)[2])(v),
    "the way back": lambda v: jax.tree.map(jnp.sin, ravel(TREE)[1](v)),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", usual(FUNCTIONS, ["parts that cross", "as a whole", "over loops", "the way back"]))
def test_any_function_of_a_vector_gives_what_it_gave(what):
    def whole(tree):
        return FUNCTIONS[what](ravel(tree)[0] / 100)

    close(jax.jit(whole)(TREE), jax.jit(pieces.in_pieces(whole))(TREE))
    several = jax.tree.map(lambda a: jnp.stack([a, a + 1]), TREE)
    close(jax.vmap(whole)(several), jax.vmap(pieces.in_pieces(whole))(several))


def in_loops(jaxpr, looped=False):
    """Equations of the loops of a program."""
    for equation in jaxpr.eqns:
        if looped:
            yield equation
        inside = looped or equation.primitive.name == "scan"
        for program in equations.programs(equation):
            yield from in_loops(program.jaxpr, inside)


@pytest.mark.slow
def test_local_steps_neither_join_vectors_nor_take_them_apart():
    """But for what they make of scalars, and for numbers of places, of which none are stored."""
    algorithm, key = simulation.as_float32_leaves(made("dpnfl", local_rule="momentum", l2=0.1)), simulation.run_key(0)
    state = initial_state(algorithm, MLP, DATA, key)
    size = ravel(state.params)[0].size
    counts = []
    for execution in PAIR:
        run = jax.make_jaxpr(
            lambda until, on=execution: simulation.run_rounds(
                algorithm, state, DATA, key, until, model=MLP, execution=on
            )[0]
        )(jnp.int32(1))
        long = [
            equation.primitive.name
            for equation in in_loops(run.jaxpr)
            if equation.primitive.name in ("concatenate", "split", "slice", "pad", "dynamic_update_slice")
            and any(
                size in variable.aval.shape and jnp.issubdtype(variable.aval.dtype, jnp.floating)
                for variable in (*equation.invars, *equation.outvars)
            )
        ]
        counts.append(len(long))
    assert counts[0] > 0 == counts[1]


def test_gpus_compute_in_pieces_unless_they_hold_models_together(monkeypatch):
    monkeypatch.setattr(Execution, "platform", "cpu")
    assert not Execution().in_pieces
    for platform, wanted in (("gpu", True), ("cuda", True), ("tpu", False)):
        monkeypatch.setattr(Execution, "platform", platform)
        assert Execution().in_pieces is wanted
    monkeypatch.setattr(Execution, "model_devices", 2)
    assert not Execution().in_pieces
