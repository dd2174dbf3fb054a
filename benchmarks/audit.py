"""How fast audits are and how much they prove.

    python benchmarks/audit.py --json

Trials of 50 noisy full-batch steps of a model with 100 parameters under the worst-case canary, and the share of the
true epsilon (here the exact Gaussian one) that so many trials prove. Writes results/audit.json and results/audit.png.
"""

import argparse
import json
import pathlib
import statistics
import sys

import matplotlib.pyplot as plt
from errata import clients
from provenance import made_with

import fedjax_dp as fdp
from fedjax_dp import folders
from fedjax_dp.accounting import Adjacency, FullBatch, GaussianSteps, noise_multiplier_for

RESULTS = pathlib.Path(__file__).parent / "results"
DELTA, ROUNDS, PARAMETERS = 1e-5, 50, 100
EPSILONS, TRIALS = (1.0, 4.0, 8.0), (1_000, 10_000, 100_000)
COLORS = {1.0: "#8c6bb1", 4.0: "#1f6f8b", 8.0: "#b5482f"}


def algorithm_at(epsilon):
    steps = GaussianSteps(1.0, FullBatch(), Adjacency.REPLACE_ONE, ROUNDS)
    return fdp.dpnfl(
        cohort_size=None,
        batch_size=None,
        batches="full",
        local_steps=1,
        learning_rate=0.1,
        clip_norm=1.0,
        noise_multiplier=noise_multiplier_for(steps, epsilon, DELTA),
    )


def measured(epsilon, trials, seeds):
    found = [
        fdp.audit(
            algorithm_at(epsilon),
            clients(1, 10),
            rounds=ROUNDS,
            delta=DELTA,
            trials=trials,
            seed=seed,
            parameters=PARAMETERS,
        )
        for seed in range(seeds)
    ]
    ratios = [one.lower / one.epsilon for one in found]
    print(f"epsilon {epsilon:g}, {trials:,} trials: proved {statistics.median(ratios):.3f} of it", file=sys.stderr)
    return {
        "epsilon": epsilon,
        "trials": trials,
        "ratios": ratios,
        "ratio_median": statistics.median(ratios),
        "seconds": [one.seconds for one in found],
        "violated": sum(one.violated for one in found),
        "peak_memory_mb": peak_mb(),
    }


def peak_mb():
    """Of this process so far."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def draw(found, path):
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for epsilon, marker in zip(EPSILONS, "os^D"):
        rows = [row for row in found if row["epsilon"] == epsilon]
        axes.plot(
            [row["trials"] for row in rows],
            [row["ratio_median"] for row in rows],
            f"{marker}-",
            color=COLORS[epsilon],
            label=f"epsilon {epsilon:g}",
        )
    axes.set(xscale="log", xlabel="trials", ylabel="proved / true epsilon", ylim=(0, 1.02))
    axes.set_title("what an audit proves of the Gaussian mechanism", fontsize=11)
    axes.grid(color="#e4e4e4")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--seeds", type=int, default=5, help="audits of each kind (100,000 trials: one)")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="folder for audit.json and audit.png")
    options = parser.parse_args()
    found = [
        measured(epsilon, trials, options.seeds if trials <= 10_000 else 1) for trials in TRIALS for epsilon in EPSILONS
    ]
    setting = {"parameters": PARAMETERS, "steps": ROUNDS, "delta": DELTA, "confidence": 0.95}
    results = {**setting, "rows": found, **made_with()}
    folders.write_json(options.out / "audit.json", results)
    draw(found, options.out / "audit.png")
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
