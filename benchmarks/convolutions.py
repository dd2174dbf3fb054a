"""Convolutions of a few records at a time on a CPU, over windows of the whole batch: ratios of times by shape.

    taskset -c 0 python benchmarks/convolutions.py            # writes results/convolutions.json, .md and .png
    taskset -c 0 python benchmarks/convolutions.py --shapes W3-2 cifar-2 --repeats 3 --dry

The gradient of a batch with and without clipping, through a shift of the images, the convolution and tanh. Both ways
take turns in one process, on one core; before that their sums are compared.
"""

import argparse
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from jax import lax
from provenance import made_with

import fedjax_dp as fdp
from fedjax_dp import gradients
from fedjax_dp.gradients import analysis

matplotlib.use("agg")
sys.path.insert(0, str(Path(__file__).parent / "peers"))
import matplotlib.pyplot as plt
import quiet

RESULTS = Path(__file__).parent / "results"
STEPS, WITHIN = 4, 1e-4  # gradients in one dispatch; the largest difference of sums, over the largest number


class Shape(NamedTuple):
    records: int
    space: tuple[int, ...]
    channels: int
    kernel: tuple[int, ...]
    outputs: int
    padding: str = "SAME"
    stride: int = 1
    dilation: int = 1
    groups: int = 1


SHAPES = {
    "W3-1": Shape(32, (28, 28), 1, (5, 5), 32),
    "W3-2": Shape(32, (14, 14), 32, (5, 5), 64),
    "cifar-1": Shape(10, (32, 32), 3, (3, 3), 32, "VALID"),
    "cifar-2": Shape(10, (30, 30), 32, (3, 3), 64, "VALID"),
    "large batch": Shape(128, (16, 16), 16, (3, 3), 32),
    "small images": Shape(32, (8, 8), 64, (3, 3), 64),
    "one record": Shape(1, (32, 32), 32, (3, 3), 32),
    "1 x 1": Shape(32, (16, 16), 64, (1, 1), 64),
    "2 x 2": Shape(32, (16, 16), 32, (2, 2), 32),
    "7 x 7, stride 2": Shape(16, (32, 32), 3, (7, 7), 32, stride=2),
    "3 x 3, stride 2": Shape(32, (32, 32), 32, (3, 3), 64, stride=2),
    "3 x 3, dilation 2": Shape(32, (16, 16), 32, (3, 3), 32, dilation=2),
    "3 x 3, 4 groups": Shape(32, (16, 16), 32, (3, 3), 32, groups=4),
    "sequence of 128, 3": Shape(32, (128,), 64, (3,), 64),
    "sequence of 1,000, 9": Shape(16, (1000,), 8, (9,), 32),
    "volume": Shape(8, (12, 12, 12), 8, (3, 3, 3), 16),
}


def problem(shape):
    """A model, parameters, images and the weights of its results."""
    axes = "XYZ"[: len(shape.space)]

    def apply(params, x):
        x = x + params["shift"].reshape(*[1] * len(axes), -1)
        return lax.conv_general_dilated(
            x[None],
            params["kernel"],
            (shape.stride,) * len(axes),
            shape.padding,
            rhs_dilation=(shape.dilation,) * len(axes),
            dimension_numbers=(f"N{axes}C", f"{axes}IO", f"N{axes}C"),
            feature_group_count=shape.groups,
        )[0]

    def init(key):
        kernel = (*shape.kernel, shape.channels // shape.groups, shape.outputs)
        return {
            "kernel": jax.random.normal(key, kernel) / np.sqrt(np.prod(kernel[:-1])),
            "shift": jnp.zeros(shape.channels),
        }

    def loss(scores, weights):
        return jnp.sum(jnp.tanh(scores) * weights)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(shape.records, *shape.space, shape.channels)).astype(np.float32)
    model = fdp.model((init, apply), x.shape[1:], loss=loss)
    params = model.init(jax.random.key(0))
    out = jax.eval_shape(apply, params, x[0]).shape
    return model, params, x, rng.normal(size=(shape.records, *out)).astype(np.float32)


def program(shape, private, whole):
    """Some gradient steps in one dispatch, compiled; `whole`: with windows of the whole batch."""
    model, params, x, y = problem(shape)
    mask = jnp.ones(shape.records, bool)

    def step(params, _):
        if private:
            total = gradients.clipped_sum(model, params, x, y, mask, 1.0).total
        else:
            total = gradients.plain_sum(model, params, x, y, mask).total
        return jax.tree.map(lambda a, b: a - 1e-5 * b, params, total), total

    analysis._analyse.cache_clear()
    with mock.patch.object(analysis, "_few_records_at_a_time", lambda weight: weight) if whole else nullcontext():
        compiled = jax.jit(lambda params: lax.scan(step, params, length=STEPS)[1]).lower(params).compile()
    return lambda: jax.block_until_ready(compiled(params))


def seconds(run):
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def compare(shape, private, repeats):
    """Milliseconds of a gradient with windows of the whole batch and of a few records, and the median of ratios."""
    whole, few = (program(shape, private, whole) for whole in (True, False))
    for a, b in zip(*(jax.tree.leaves(jax.tree.map(lambda a: a[0], run())) for run in (whole, few)), strict=True):
        apart = float(jnp.abs(a - b).max() / jnp.abs(a).max())
        if apart > WITHIN:
            sys.exit(f"sums that differ by {apart:.1e}")
    times = quiet.undisturbed(lambda: np.array([[seconds(whole), seconds(few)] for _ in range(repeats)])) / STEPS * 1e3
    return {
        "whole_ms": float(times[:, 0].min()),
        "few_ms": float(times[:, 1].min()),
        "ratio": float(np.median(times[:, 1] / times[:, 0])),
    }


def draw(rows, path):
    figure, panel = plt.subplots(figsize=(7, 0.32 * len(rows) + 1.2), layout="constrained")
    places = np.arange(len(rows))
    for kind, marker in (("plain", "o"), ("clipped", "s")):
        panel.plot([row[kind]["ratio"] for row in rows], places, marker, label=f"{kind} sum")
    panel.axvline(1, color="gray", lw=1, ls="--")
    panel.set(yticks=places, yticklabels=[row["shape"] for row in rows], xlabel="time over windows of the whole batch")
    panel.invert_yaxis()
    panel.set_xlim(left=0)
    panel.legend(loc="lower left")
    figure.savefig(path, dpi=150)


def table(rows):
    lines = [
        "# Convolutions on a CPU core, by shape",
        "",
        "Written by `benchmarks/convolutions.py`: milliseconds of a gradient, and times those of a whole batch.",
        "",
        "| shape | sum | clipped sum |",
        "| --- | --- | --- |",
    ]
    for row in rows:
        cells = [f"{row[kind]['few_ms']:.2f} ms, {row[kind]['ratio']:.2f}x" for kind in ("plain", "clipped")]
        lines.append(f"| {' | '.join([row['shape'], *cells])} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--dry", action="store_true", help="print the table only")
    options = parser.parse_args()
    rows = []
    for name in options.shapes:
        both = {kind: compare(SHAPES[name], kind == "clipped", options.repeats) for kind in ("plain", "clipped")}
        rows.append({"shape": name, **both})
        print(f"{name}: {both['plain']['ratio']:.2f}, clipped {both['clipped']['ratio']:.2f}", file=sys.stderr)
    print(table(rows))
    if not options.dry:
        (RESULTS / "convolutions.json").write_text(json.dumps({"rows": rows, **made_with()}, indent=1) + "\n")
        (RESULTS / "convolutions.md").write_text(table(rows))
        draw(rows, RESULTS / "convolutions.png")


if __name__ == "__main__":
    main()
