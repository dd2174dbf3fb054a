"""What noise that is correlated over rounds is worth: predicted errors beside accuracies of the same runs.

    FEDJAX_DP_DATA=... python benchmarks/correlated_noise.py --out benchmarks/results/correlated_noise.json

EMNIST letters at 1,000 clients, of whom 20 train in a round. At each epsilon for a whole client the server of `dp_ftrl`
adds white noise, the noise with the least predicted error (`--correlation auto`), or two buffers (BLT) over cohorts
that everyone sees; beside it stands `dp_fedavg`. Each way has the best of some server rates, by one seed of its own;
that choice is not paid for.
"""

import argparse
import json
import pathlib
import sys
import time

import matplotlib.pyplot as plt
import numpy as np
from provenance import made_with

import fedjax_dp as fdp
from fedjax_dp import accounting
from fedjax_dp.accounting import Adjacency, GaussianSteps, Poisson, Unit
from fedjax_dp.experiments import build, population
from fedjax_dp.experiments.config import RunSpec

WAYS = {
    "white noise": {"algorithm": "dp_ftrl", "correlation": "none"},
    "selected noise": {"algorithm": "dp_ftrl", "correlation": "auto"},
    "two buffers (BLT)": {"algorithm": "dp_ftrl", "correlation": "blt", "buffers": 2},
    "dp_fedavg": {"algorithm": "dp_fedavg"},
}
EPSILONS, RATES, SEEDS, TRIED = (0.5, 2.0, 8.0), (0.03, 0.1, 0.3, 1.0), 5, [99]
RUN = {
    "dataset": "emnist_letters",
    "partition": "iid",
    "num_clients": 1000,
    "cohort_size": 20,
    "batch_size": 20,
    "local_steps": 5,
    "learning_rate": 0.1,
    "clip_norm": 0.3,
    "rounds": 200,
    "delta": 1e-5,
}


def error_of(way, epsilon, momentum):
    """Predicted noise in a parameter, root mean square over the rounds, where a sum moves it by its mean in the end."""
    rounds, clients, size = (RUN[name] for name in ("rounds", "num_clients", "cohort_size"))
    if way == "dp_fedavg":
        event = GaussianSteps(1.0, Poisson(size / clients), Adjacency.ADD_REMOVE, rounds, Unit.CLIENT)
        noise = accounting.noise_factor_for(event, epsilon, RUN["delta"])
        error, name = noise * accounting.iterate_error(np.eye(1, rounds)[0]), "white noise, hidden cohorts"
    else:
        chosen = WAYS[way]["correlation"]
        table = accounting.noise_candidates(
            *(rounds, clients, size, epsilon, RUN["delta"]),
            seen=Adjacency.REPLACE_ONE,
            workload=accounting.Workload(momentum=momentum),
            kinds=accounting.KINDS if chosen == "auto" else (chosen,),
            sizes=(2,) if chosen == "blt" else None,
        )
        best = accounting.least_error(table, accounting.VECTORS)
        error, name = best.error, str(best)
    return error * (1 - momentum) * RUN["clip_norm"] / size, name  # as a step of momentum .9 goes ten times as far


def accuracies(way, epsilon):
    """Test accuracies of the seeds at the best server rate, that rate, and the largest proved epsilon."""

    def table(rate, seeds):
        spec = RunSpec.of(RUN | WAYS[way] | {"epsilon": epsilon, "server_learning_rate": rate})
        data = population.build_data(spec.data)
        planned = build.planned_of(spec.for_clients(data.num_clients), data)
        last = {"evaluate_every": RUN["rounds"], "progress": False}
        common = {"rounds": RUN["rounds"], "model": planned.model, "delta": RUN["delta"], **last}
        return fdp.sweep(planned.algorithm, data, axes={"epsilon": [epsilon]}, seeds=seeds, **common).table()

    rate = max(RATES, key=lambda rate: float(table(rate, TRIED)["test_accuracy"].mean()))
    chosen = table(rate, SEEDS)
    return [float(one) for one in chosen["test_accuracy"]], rate, float(chosen["guarantee_epsilon"].max())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    began, rows = time.perf_counter(), []
    for epsilon in EPSILONS:
        for way in WAYS:
            error, noise = error_of(way, epsilon, 0.0 if way == "dp_fedavg" else 0.9)
            found, rate, proved = accuracies(way, epsilon)
            row = {
                "way": way,
                "epsilon": epsilon,
                "proved": proved,
                "noise": noise,
                "server_rate": rate,
                "error": error,
            }
            rows.append(row | {"mean": float(np.mean(found)), "accuracies": found})
            print(f"epsilon {epsilon:g}, {way} ({noise}): {np.mean(found):.3f}", file=sys.stderr)
    results = {"what": __doc__.split("\n")[0], "setting": RUN, "rows": rows, "seconds": time.perf_counter() - began}
    options.out.write_text(json.dumps(results | made_with(), indent=1) + "\n")
    options.out.with_suffix(".md").write_text(table(rows))
    draw(results, options.out.with_suffix(".png"))


def table(rows):
    """Markdown: predicted noise and mean accuracy of each way and epsilon."""
    lines = ["# Noise that is correlated over rounds", "", "Written by `python benchmarks/correlated_noise.py`.", ""]
    lines += ["| epsilon | way | noise | predicted error | test accuracy |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        ends = f"{row['mean']:.3f} ({min(row['accuracies']):.3f} to {max(row['accuracies']):.3f})"
        lines.append(f"| {row['epsilon']:g} | {row['way']} | {row['noise']} | {row['error']:.3g} | {ends} |")
    return "\n".join(lines) + "\n"


def draw(results, path):
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    for rank, way in enumerate(WAYS):
        mine = [row for row in results["rows"] if row["way"] == way]
        epsilons = [row["epsilon"] * 1.03**rank for row in mine]
        left.plot(epsilons, [row["error"] for row in mine], marker="o")
        ends = np.array([[row["mean"] - min(row["accuracies"]), max(row["accuracies"]) - row["mean"]] for row in mine])
        right.errorbar(epsilons, [row["mean"] for row in mine], ends.T, marker="o", capsize=3, label=way)
    left.set(yscale="log", ylabel="noise in a parameter, at rate 1", title="predicted")
    left.set_yticks((0.03, 0.1, 0.3, 1.0), ("0.03", "0.1", "0.3", "1"))
    right.set(ylabel="test accuracy", title="measured, 5 seeds")
    for axis in (left, right):
        axis.set(xscale="log", xlabel=f"epsilon for a client, delta {results['setting']['delta']:g}")
        axis.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    right.legend(fontsize=8)
    figure.suptitle("EMNIST letters, 20 of 1,000 clients a round: noise that is correlated over rounds", fontsize=10)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
