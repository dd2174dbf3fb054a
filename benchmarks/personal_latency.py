"""A round of each entry whose clients keep models of their own, over the rounds that it is made of.

    python benchmarks/personal_latency.py --out benchmarks/results/personal_latency.json

Workload W1 of `peers/workloads.py`: under noise on records, `dpnfl`'s round stands for the steps on one model, `ditto`
is made of two of them; under noise on clients' updates it is `dp_fedavg`'s. Heads are those of an MLP. What `ifca` does
besides is to look at all records of its clients with every model: that alone is measured too. All run alternately in
this process, so a busy machine slows all of them; the ratios are medians over the turns.
"""

import argparse
import json
import pathlib
import sys

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from provenance import made_with

import fedjax_dp as fdp
from fedjax_dp import gradients
from fedjax_dp.models import mlp
from fedjax_dp.tools.figures import canvas, styles

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers"))
import quiet
import round_latency
import workloads
from contenders import ours

W1 = workloads.WORKLOADS["W1"]
CLUSTERS = 2
BASES = {"record": "dpnfl", "head": "dpnfl", "client": "dp_fedavg"}
PARTS = {  # by unit, or for heads: of how many rounds of the base an entry is made
    "record": {
        "local": 1, "finetune": 1, "mr_mtl": 1, "ppsgd": 1, "ditto": 2, "ditto_joint": 2, "apfl": 2, "ifca": 1,
    },
    "head": {"fedper": 1, "fedrep": 2},
    "client": {"finetune": 1, "mr_mtl": 1, "ppsgd": 1, "ditto": 2, "apfl": 2},
}  # fmt: skip


def choosing(execution):
    """Only the mean losses of the models on all records of a cohort's clients."""
    model, rounds = ours.model_of(W1), 10

    def several(x):
        def one(total, at):
            def of(shift, x):
                params = jax.tree.map(lambda p: p + 1e-6 * (shift + total), model.init(jax.random.key(0)))
                return gradients.losses(model, params, x, jnp.zeros(len(x), jnp.int32)).mean()

            found = jax.vmap(lambda x: sum(of(j, x) for j in range(CLUSTERS)))(x)
            return total + found.sum(), None

        return jax.lax.scan(one, jnp.float32(0), jnp.arange(rounds))[0][None]

    records = workloads.records(W1)[0][: W1.cohort].astype(np.float32) / 255
    compiled = round_latency.spread(several, execution)
    return round_latency.repeated(lambda: compiled(records), rounds)


def contenders(execution):
    """By name, what runs in turns, and of which of these each entry is made."""
    data, models = ours.clients_of(W1), {"head": mlp(W1.shape, workloads.CLASSES)}
    settings = ours.settings_of(W1) | {"clip_norm": 1.0, "noise_multiplier": 1.0}
    found, made_of = {"choosing": choosing(execution)}, {}
    for kind, entries in PARTS.items():
        model = models.get(kind, ours.model_of(W1))
        given = {"noise_on": "clients", "cohort": "uniform"} if kind == "client" else {}

        def rounds(name, model=model, **more):
            algorithm = (getattr(fdp, name, None) or getattr(fdp.algorithms, name))(**settings, **more)
            return ours.rounds_of(W1, algorithm, data, model, execution)

        base = f"{BASES[kind]} ({kind})"
        found[base] = rounds(BASES[kind], **({"cohort": "uniform"} if given else {}))
        for name, times in entries.items():
            title = f"{name} ({kind})"
            found[title] = rounds(name, **({} if name in ("ditto_joint", "ifca") else given))
            made_of[title] = [base] * times + (["choosing"] if name == "ifca" else [])
    return found, made_of


def draw(results, path):
    """What each entry's round takes over its parts."""
    over = results["over_its_parts"]
    figure, axes = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    bars = axes.barh(list(over), list(over.values()), color="C0")
    axes.bar_label(bars, fmt="%.2f", label_type="center", color=styles.paper())
    axes.axvline(1, color=styles.ink(), linewidth=1)
    axes.set(xlabel="time of a round over that of its parts", xlim=(0, 1.1 * max(over.values())))
    axes.invert_yaxis()
    figure.savefig(path, dpi=canvas.DPI)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=pathlib.Path, help="write the JSON here")
    options = parser.parse_args()
    found, made_of = contenders(fdp.execution.all_devices())
    times = {name: [] for name in found}
    for turn in range(options.repeats + 1):
        for name, run in found.items():
            if not turn:
                run()  # compiles
            else:
                times[name].append(quiet.undisturbed(lambda run=run: round_latency.timed(run)))
        print(f"turn {turn} of {options.repeats}", file=sys.stderr)
    over = {
        title: float(np.median(np.array(times[title]) / sum(np.array(times[part]) for part in parts)))
        for title, parts in made_of.items()
    }
    spreads = {name: quiet.spread(ms) for name, ms in times.items()}
    results = {
        "over_its_parts": over,
        "parts": made_of,
        "ms": {name: float(np.median(ms)) for name, ms in times.items()},
        "spreads": spreads,
        "repeats": options.repeats,
        "disturbed": max(spreads.values()) > 0.3,
        **made_with(),
    }
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        draw(results, options.out.with_suffix(".png"))
    for title, ratio in over.items():
        print(f"{title:24} {ratio:.2f} times {' + '.join(made_of[title])}")


if __name__ == "__main__":
    main()
