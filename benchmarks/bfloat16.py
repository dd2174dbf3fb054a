"""What computing gradients in bfloat16 does to accuracy and time: the same private runs in float32 and in bfloat16.

    FEDJAX_DP_DATA=... python benchmarks/bfloat16.py --out benchmarks/results/bfloat16.json

DPNFL on MNIST, 100 clients with 7 labels each, epsilon 0.3 at delta 0.01 for every client's records; softmax regression
and an MLP; the same seeds with either. Norms, clipped sums, noise and parameters are float32 with both, and so epsilon
is the same. On CPUs bfloat16 is slower: their products are made for float32.
"""

import argparse
import dataclasses
import json
import pathlib
import sys

import jax.numpy as jnp
import numpy as np
from provenance import made_with

import fedjax_dp as fdp
from fedjax_dp.experiments.config import RunSpec
from fedjax_dp.experiments.population import build_data
from fedjax_dp.models import logistic_regression, mlp

MODELS = {"softmax regression": logistic_regression, "MLP of 64": mlp}
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    data = build_data(RunSpec.of({"dataset": "mnist", "algorithm": "dpnfl"}).data)
    algorithm = fdp.dpnfl(
        cohort_size=10,
        batch_size=10,
        local_steps=options.steps,
        learning_rate=0.01,
        clip_norm=1.0,
        schedule="inverse_sqrt",
        l2=1e-3,
    )
    private = fdp.calibrate(algorithm, data, rounds=options.rounds, epsilon=0.3, delta=1e-2, participation="law")
    rows = []
    for name, make in MODELS.items():
        model = make(data.record_shape, data.classes)
        found = {dtype: [] for dtype in DTYPES}
        for seed in range(options.seeds):
            for dtype, kind in DTYPES.items():
                run = fdp.simulate(
                    private,
                    data,
                    rounds=options.rounds,
                    seed=seed,
                    evaluate_every=options.rounds,
                    model=dataclasses.replace(model, dtype=kind),
                )
                found[dtype].append((run.history[-1].test_accuracy, run.timing.round_s_median))
            print(f"{name}: seed {seed + 1} of {options.seeds}", file=sys.stderr)
        accuracy = {dtype: np.array([a for a, _ in runs]) for dtype, runs in found.items()}
        apart = accuracy["bfloat16"] - accuracy["float32"]
        rows.append(
            {
                "model": name,
                **{f"{dtype}_accuracy": float(a.mean()) for dtype, a in accuracy.items()},
                **{f"{dtype}_deviation": float(a.std(ddof=1)) for dtype, a in accuracy.items()},
                "difference": float(apart.mean()),
                "difference_deviation": float(apart.std(ddof=1)),
                "ratio": float(np.median([b / a for (_, a), (_, b) in zip(*found.values(), strict=True)])),
            }
        )
    result = {
        "rows": rows,
        "rounds": options.rounds,
        "local_steps": options.steps,
        "seeds": options.seeds,
        "epsilon": 0.3,
        "delta": 1e-2,
        **made_with(),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    for row in rows:
        print(
            f"{row['model']}: {100 * row['float32_accuracy']:.2f}% in float32, {100 * row['bfloat16_accuracy']:.2f}% "
            f"in bfloat16 ({100 * row['difference']:+.2f} +- {100 * row['difference_deviation']:.2f} seed by seed), "
            f"{row['ratio']:.2f} times the time"
        )


if __name__ == "__main__":
    main()
