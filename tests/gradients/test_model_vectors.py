"""Losses, norms, clip factors and clipped sums of eight models, given in float64 by an independent program."""

import json
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from helpers import thinned
from jax import lax

import fedjax_dp as fdp
from fedjax_dp import gradients
from fedjax_dp.pytrees import path_name

CASES = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "model_gradients.json").read_text())["gradients"]
clipped_sum = jax.jit(gradients.clipped_sum, static_argnums=0)


def cross_entropy(scores, label):
    return jax.nn.logsumexp(scores, -1) - jnp.take_along_axis(scores, label[..., None], -1)[..., 0]


def normal(x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)


def attention_block(p, frozen, x, options):
    h = normal(x) * p["ln_scale"] + p["ln_bias"]
    q, k, v = (jnp.einsum("td,dhk->thk", h, p[f"{n}_kernel"]) + p[f"{n}_bias"] for n in "qkv")
    a = jnp.einsum("thk,shk->hts", q, k) / np.sqrt(q.shape[-1])
    a = jnp.where(np.tri(x.shape[0], dtype=bool), a, -jnp.inf) if options["causal"] else a
    o = x + jnp.einsum("hts,shk,hkd->td", jax.nn.softmax(a), v, p["out_kernel"]) + p["out_bias"]
    return (o.mean(0) if options["pool"] == "mean" else o[-1]) @ p["head_kernel"] + p["head_bias"]


def tied_embedding(p, frozen, x, options):
    return jnp.tanh((p["table"][x] + p["pos"]) @ p["mix"]) @ p["table"].T


def conv1d(p, frozen, x, options):
    w, s = p["kernel"].shape[0], options["stride"]
    padding = [(w - 1, 0)] if options["padding"] == "causal" else "SAME"
    h = lax.conv_general_dilated(x[None], p["kernel"], (s,), padding, dimension_numbers=("NWC", "WIO", "NWC"))[0]
    return jnp.tanh(h + p["bias"]).mean(0) @ p["head_kernel"] + p["head_bias"]


def gru(p, frozen, x, options):
    def step(h, x):
        r = jax.nn.sigmoid(x @ p["ir"] + p["ir_bias"] + h @ p["hr"])
        z = jax.nn.sigmoid(x @ p["iz"] + p["iz_bias"] + h @ p["hz"])
        n = jnp.tanh(x @ p["in"] + p["in_bias"] + r * (h @ p["hn"] + p["hn_bias"]))
        return ((1 - z) * n + z * h,) * 2

    end, all_ = lax.scan(step, jnp.zeros(p["hr"].shape[0], x.dtype), x)
    return (end if options["pool"] == "last" else all_.mean(0)) @ p["head_kernel"] + p["head_bias"]


def lora_dense(p, frozen, x, options):
    f = frozen | p
    scale = options["alpha"] / f["A"].shape[1]
    return jnp.tanh(x @ f["W"] + f["b"] + scale * (x @ f["A"]) @ f["B"]) @ f["H"]


def scales_and_biases(p, frozen, x, options):
    h = jnp.tanh((normal(x) * p["scale"] + p["bias"]) @ frozen["W"] + p["b"])
    return h.mean(0) @ frozen["H"] + p["c"]


def shared_transposed(p, frozen, x, options):
    return jnp.tanh(x @ p["W"]) @ p["W"].T + p["b"]


def stacked_layers(p, frozen, x, options):
    h = lax.scan(lambda h, q: (h + jnp.tanh(h @ q["K"] + q["b"]), None), x, {"K": p["K"], "b": p["b"]})[0]
    return (h @ p["w"]).mean()


def loss_of(name, options):
    if name == "tied_embedding":

        def loss(scores, y):
            total = jnp.where(y != 0, cross_entropy(scores, y), 0).sum()
            return total / (jnp.maximum((y != 0).sum(), 1) if options["normalise"] == "mean" else y.shape[0])

        return loss
    if name == "scales_and_biases":

        def loss(z, y):
            each = jnp.maximum(z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z)))
            return each.mean() if options["normalise"] == "mean" else each.sum()

        return loss
    if name in ("shared_transposed", "stacked_layers"):
        return lambda scores, y: jnp.mean((scores - y) ** 2)
    return cross_entropy


# Modules of frameworks that hold the parameters


def linen_holder(params, forward):
    class Holder(nn.Module):
        @nn.compact
        def __call__(self, x):
            own = {name: self.param(name, lambda _, name=name: jnp.asarray(params[name])) for name in params}
            return jax.vmap(lambda x: forward(own, x))(x)

    return Holder()


def nnx_holder(params, forward):
    class Holder(nnx.Module):
        def __init__(self):
            for name, numbers in params.items():
                setattr(self, name, nnx.Param(jnp.asarray(numbers)))

        def __call__(self, x):
            return jax.vmap(lambda x: forward({name: getattr(self, name)[...] for name in params}, x))(x)

    return Holder()


def equinox_holder(params, forward):
    class Holder(eqx.Module):
        held: dict

        def __call__(self, x):
            return forward(self.held, x)

    return Holder({name: jnp.asarray(numbers) for name, numbers in params.items()})


HOLDERS = {
    "functions": lambda params, forward: (lambda key: params, forward),
    "linen": linen_holder,
    "nnx": nnx_holder,
    "equinox": equinox_holder,
}
LATER = {"attention_block", "tied_embedding", "conv1d", "gru", "lora_dense", "stacked_layers", "scales_and_biases"}
GIVEN = [f"{kind} {name}" for kind in HOLDERS for name in CASES]


@pytest.mark.parametrize(
    "given",
    [
        *thinned(GIVEN[: len(CASES)], {f"functions {name}" for name in set(CASES) - LATER}, 12),
        *thinned(GIVEN[len(CASES) :], (), 12),
    ],
)
def test_gradients_equal_the_given_ones(given):
    kind, name = given.split()
    case = CASES[name]
    params, frozen = (
        {name: np.asarray(numbers, np.float32) for name, numbers in case[which].items()}
        for which in ("params", "frozen")
    )
    whole = name == "tied_embedding"
    x = np.asarray(case["x"], np.int32 if whole else np.float32)
    y = np.asarray(case["y"])
    y = y.astype(np.int32 if y.dtype.kind == "i" else np.float32)
    forward = globals()[name]
    with jax.numpy_rank_promotion("allow"):
        network = HOLDERS[kind](params, lambda p, x: forward(p, frozen, x, case["options"]))
        model = fdp.model(network, x[0], loss=loss_of(name, case["options"]))
        params = model.init(jax.random.key(0))
        found = clipped_sum(model, params, x, y, np.ones(len(x), bool), case["clip_norm"])
    wanted = case["expected"]
    np.testing.assert_allclose(found.losses, wanted["losses"], rtol=1e-5)
    np.testing.assert_allclose(found.norms, wanted["norms"], rtol=1e-5)
    np.testing.assert_allclose(np.minimum(1, case["clip_norm"] / found.norms), wanted["factors"], rtol=1e-5)
    size = np.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(found.total)))
    np.testing.assert_allclose(size, wanted["clipped_sum_norm"], rtol=1e-5)
    for path, leaf in found.total.items():
        path = path.removeprefix("held/").removesuffix("/value")
        np.testing.assert_allclose(leaf, np.asarray(wanted["clipped_sum"][path]), rtol=1e-4, atol=1e-5 * size)


class Attention(nn.Module):
    """The attention block, of Flax's own layers; names are those of the case."""

    @nn.compact
    def __call__(self, x):
        h = nn.LayerNorm(epsilon=1e-6, name="ln")(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2, name="mha")(h)
        return nn.Dense(3, name="head")(x.mean(1))

    of_case = staticmethod(
        lambda path: (
            path.replace("mha/", "").replace("query", "q").replace("key/", "k/").replace("value", "v").replace("/", "_")
        )
    )


@pytest.mark.slow
def test_gradients_of_flaxs_own_attention_equal_the_given_ones():
    case, module = CASES["attention_block"], Attention()
    x, y = np.asarray(case["x"], np.float32), np.asarray(case["y"], np.int32)
    model = fdp.model(module, x[0])
    shapes = jax.eval_shape(model.init, jax.random.key(0))

    def given(numbers):
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: np.asarray(numbers[module.of_case(path_name(path))], np.float32).reshape(leaf.shape),
            shapes,
        )

    found = clipped_sum(model, given(case["params"]), x, y, np.ones(len(x), bool), case["clip_norm"])
    np.testing.assert_allclose(found.norms, case["expected"]["norms"], rtol=1e-5)
    wanted = given(case["expected"]["clipped_sum"])
    for leaf, numbers in zip(jax.tree.leaves(found.total), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(leaf, numbers, rtol=1e-4, atol=1e-5 * case["expected"]["clipped_sum_norm"])
