"""Losses, norms, clip factors and clipped sums of eight models, given in float64 by an independent program."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import quick
from jax import lax

import fedjax_dp as fdp
from fedjax_dp import gradients

CASES = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "model_gradients.json").read_text())["gradients"]


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


LATER = {"attention_block", "tied_embedding", "conv1d", "gru", "lora_dense", "stacked_layers"}


@pytest.mark.parametrize("name", quick(CASES, set(CASES) - LATER))
def test_gradients_equal_the_given_ones(name):
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
        model = fdp.model(
            (lambda key: params, lambda p, x: forward(p, frozen, x, case["options"])),
            x[0],
            loss=loss_of(name, case["options"]),
        )
        found = gradients.clipped_sum(model, params, x, y, np.ones(len(x), bool), case["clip_norm"])
    wanted = case["expected"]
    np.testing.assert_allclose(found.losses, wanted["losses"], rtol=1e-5)
    np.testing.assert_allclose(found.norms, wanted["norms"], rtol=1e-5)
    np.testing.assert_allclose(np.minimum(1, case["clip_norm"] / found.norms), wanted["factors"], rtol=1e-5)
    size = np.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(found.total)))
    np.testing.assert_allclose(size, wanted["clipped_sum_norm"], rtol=1e-5)
    for path, leaf in found.total.items():
        np.testing.assert_allclose(leaf, np.asarray(wanted["clipped_sum"][path]), rtol=1e-4, atol=1e-5 * size)
