"""What a public start is worth: a vision transformer trained on letters, adapted to private clients with digits.

    FEDJAX_DP_DATA=... python benchmarks/adaptation.py --out benchmarks/results/adaptation.json

Without privacy it is trained on EMNIST letters, which stand for public data. Then MNIST's 100 clients, with two labels
each, adapt it: the head alone, a head with low-rank terms (both factors, or B alone), everything from the same start,
and everything from scratch, at several epsilons for every client's records. Each way has the better of some learning
rates, chosen on another seed; that choice is not paid for.
"""

import argparse
import json
import pathlib
import sys
import time

import jax
import matplotlib.pyplot as plt
import numpy as np
from provenance import made_with

import fedjax_dp as fdp
from fedjax_dp.data import equal_sizes, iid, shards

WAYS = {
    "head": {"trainable": "head"},
    "head and B (ffa-lora)": {"trainable": "head,ffa-lora", "rank": 4, "targets": "**/query/kernel,**/value/kernel"},
    "head and low-rank terms": {"trainable": "head,lora", "rank": 4, "targets": "**/query/kernel,**/value/kernel"},
    "everything, from letters": {"trainable": "all"},
    "everything, from scratch": None,
}
RATES = (1.0, 3.0)
EPSILONS = (1.0, 2.0, 4.0, 8.0)
DELTA, ROUNDS, SEEDS = 1e-5, 30, 2


def letters(rounds):
    """Parameters trained on EMNIST letters without privacy, and their accuracy."""
    public = fdp.load("emnist_letters")
    data = fdp.federate(public, iid(public.y_train, equal_sizes(len(public.y_train), 100), 0))
    algorithm = fdp.fedavg(
        cohort_size=10, batch_size=32, local_steps=40, learning_rate=0.1, local_rule="momentum", estimator="mean"
    )
    run = fdp.simulate(algorithm, data, rounds=rounds, model=fdp.models.vit((28, 28), public.classes, patch=7))
    return run.params, run.history[-1].test_accuracy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--public-rounds", type=int, default=60)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    began = time.perf_counter()
    start, public_accuracy = letters(options.public_rounds)
    print(f"letters: accuracy {public_accuracy:.3f}, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    digits = fdp.load("mnist")
    data = fdp.federate(digits, shards(digits.y_train, 100, 0))
    whole = fdp.models.vit((28, 28), 10, patch=7)
    algorithm = fdp.dpnfl(clip_norm=0.5, cohort_size=10, batch_size=60, local_steps=10, learning_rate=RATES[0])
    rows = []
    for name, asked in WAYS.items():
        public = {"start": start, "start_private": False, "fresh": "head"}  # letters, not digits
        model = whole if asked is None else fdp.models.freeze(whole, **public, **asked)
        common = {"rounds": ROUNDS, "model": model, "delta": DELTA, "evaluate_every": ROUNDS}
        tried = fdp.sweep(
            algorithm, data, axes={"learning_rate": RATES, "epsilon": EPSILONS[::3]}, seeds=[99], **common
        )
        table = tried.table()
        rate = float(table.groupby("learning_rate")["test_accuracy"].mean().idxmax())
        chosen = fdp.sweep(algorithm, data, axes={"learning_rate": [rate], "epsilon": EPSILONS}, seeds=SEEDS, **common)
        size = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))
        for epsilon, seen in chosen.table().groupby("epsilon"):
            accuracies = [float(accuracy) for accuracy in seen["test_accuracy"]]
            proved = float(seen["guarantee_epsilon"].max())
            row = {"way": name, "trained": size, "learning_rate": rate, "epsilon": float(epsilon), "proved": proved}
            rows.append(row | {"mean": float(np.mean(accuracies)), "accuracies": accuracies})
            print(f"{name}, epsilon {epsilon:g}: {np.mean(accuracies):.3f}", file=sys.stderr)
    results = {
        "what": __doc__.split("\n")[0],
        "public": {"data": "emnist_letters", "rounds": options.public_rounds, "test_accuracy": public_accuracy},
        "setting": {"data": "mnist, 100 clients, shards", "rounds": ROUNDS, "seeds": SEEDS, "delta": DELTA},
        "rows": rows,
        "seconds": time.perf_counter() - began,
        **made_with(),
    }
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    draw(results, options.out.with_suffix(".png"))


def draw(results, path):
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name in dict.fromkeys(row["way"] for row in results["rows"]):
        mine = [row for row in results["rows"] if row["way"] == name]
        epsilons, means = [row["epsilon"] for row in mine], [row["mean"] for row in mine]
        axes.plot(epsilons, means, marker="o", label=f"{name} ({mine[0]['trained']:,} numbers)")
        axes.fill_between(
            epsilons, [min(row["accuracies"]) for row in mine], [max(row["accuracies"]) for row in mine], alpha=0.15
        )
    axes.set(
        xscale="log", xlabel=f"epsilon for one record, delta {results['setting']['delta']:g}", ylabel="test accuracy"
    )
    axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_title(
        "A vision transformer trained on letters, adapted to private clients with digits", loc="left", fontsize=10
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
