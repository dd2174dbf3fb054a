"""What clipping costs a small transformer, against the unclipped step and against gradients of single records.

    python benchmarks/transformer.py --out benchmarks/results/transformer.json

Causal, 2 layers, 64 wide, 4 heads, 128 positions of 90 tokens, batches of 32 records. Two local steps of one client:
clipped by `gradients.clipped_sum`, unclipped, and by `vmap(grad)` as one would write it, in turns in one process; read
the ratios. Before timing, the clipped gradients are compared. Beside it, how long 100
layers take to be traced by JAX, and to be traced and analysed by us; both with the shapes of their parameters.
"""

import argparse
import json
import pathlib
import statistics
import time

import jax
import jax.numpy as jnp
from flax import linen as nn
from provenance import made_with

import fedjax_dp as fdp
from fedjax_dp import gradients
from fedjax_dp.devices import COMPILER_OPTIONS
from fedjax_dp.pytrees import ravel

TOKENS, POSITIONS, WIDTH, RECORDS, STEPS = 90, 128, 64, 32, 2


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, mask):
        x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x), mask=mask)
        return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))


class Transformer(nn.Module):
    layers: int

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(TOKENS, WIDTH)(tokens) + nn.Embed(POSITIONS, WIDTH)(jnp.arange(POSITIONS))[None]
        for _ in range(self.layers):
            x = Block()(x, nn.make_causal_mask(tokens))
        return nn.Dense(TOKENS)(nn.LayerNorm()(x))


def cross_entropy(scores, labels):
    return jnp.mean(jax.nn.logsumexp(scores, -1) - (scores * jax.nn.one_hot(labels, TOKENS)).sum(-1))


def model_of(layers):
    return fdp.model(Transformer(layers), jax.ShapeDtypeStruct((POSITIONS,), jnp.int32), loss=cross_entropy)


def by_hand(model, params, x, y):
    """vmap(grad), clipped and added up."""
    found = jax.vmap(jax.grad(lambda p, x, y: model.loss(p, x, y, None)), (None, 0, 0))(params, x, y)
    squared = sum(jnp.sum(g.reshape(RECORDS, -1) ** 2, -1) for g in jax.tree.leaves(found))
    factors = jnp.minimum(1.0, 1.0 / jnp.sqrt(squared))
    return jax.tree.map(lambda g: jnp.tensordot(factors, g, 1), found)


def shapes_of(model):
    return jax.eval_shape(model.init, jax.random.key(0))


def seconds(call):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=pathlib.Path, help="write the JSON here")
    options = parser.parse_args()
    model, keys = model_of(2), jax.random.split(jax.random.key(0))
    flat, unravel = ravel(jax.jit(model.init)(keys[0]))
    x = jax.random.randint(keys[1], (RECORDS, POSITIONS), 0, TOKENS)
    y, everyone = jnp.roll(x, -1, 1), jnp.ones(RECORDS, bool)
    ways = {
        "clipped": lambda p: gradients.clipped_sum(model, p, x, y, everyone, 1.0).total,
        "unclipped": lambda p: gradients.plain_sum(model, p, x, y, everyone).total,
        "vmap_of_gradients": lambda p: by_hand(model, p, x, y),
    }
    ours, theirs = (ravel(jax.jit(ways[name])(unravel(flat)))[0] for name in ("clipped", "vmap_of_gradients"))
    gap = float(jnp.linalg.norm(ours - theirs) / jnp.linalg.norm(theirs))
    if not gap < 1e-4:
        raise SystemExit(f"not the clipped sum of the gradients of single records: relative difference {gap:.2g}")
    compiled, counted = {}, {}
    for name, way in ways.items():

        def steps(flat, way=way):
            one = lambda flat, _: (flat - 1e-3 * ravel(way(unravel(flat)))[0], None)  # noqa: E731
            return jax.lax.scan(one, flat, None, length=STEPS)[0]

        began = time.perf_counter()
        compiled[name] = jax.jit(steps, compiler_options=COMPILER_OPTIONS).lower(flat).compile()
        counted[name] = {
            "compile_s": time.perf_counter() - began,
            "flops": compiled[name].cost_analysis()["flops"],
            "temporary_bytes": compiled[name].memory_analysis().temp_size_in_bytes,
        }
        jax.block_until_ready(compiled[name](flat))
    times = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name, run in compiled.items():
            began = time.perf_counter()
            jax.block_until_ready(run(flat))
            times[name].append(1e3 * (time.perf_counter() - began) / STEPS)
    deep, dense = model_of(100), fdp.mlp((WIDTH,), 10, (WIDTH,) * 100)
    tracing = {
        "transformer_by_jax_s": seconds(lambda: jax.make_jaxpr(deep.loss)(shapes_of(deep), x[0], y[0])),
        "transformer_planned_s": seconds(lambda: gradients.explain(deep, shapes_of(deep), x, y)),
        "dense_by_jax_s": seconds(lambda: jax.make_jaxpr(dense.loss)(shapes_of(dense), jnp.zeros(WIDTH), y[0, 0])),
        "dense_planned_s": seconds(lambda: gradients.explain(dense, shapes_of(dense), jnp.zeros((2, WIDTH)), y[:2, 0])),
    }

    def ratio(name):
        return statistics.median(a / b for a, b in zip(times[name], times["unclipped"]))

    found = {
        "clipping_cost": ratio("clipped"),
        "vmap_of_gradients_cost": ratio("vmap_of_gradients"),
        "ms": {name: statistics.median(ms) for name, ms in times.items()},
        "counted": counted,
        "gradient_gap": gap,
        "tracing_100_layers": tracing,
        "repeats": options.repeats,
        **made_with(),
    }
    text = json.dumps(found, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
