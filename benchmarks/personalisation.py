"""Models of clients' own under privacy: where local training beats FedAvg, and what beats both.

    FEDJAX_DP_DATA=... python benchmarks/personalisation.py --out benchmarks/results/personalisation.json

MNIST's images, averaged over two by two pixels, are dealt to 32 clients of 300 records, who turn them: by quarter
turns, 8 clients each, or by angles of their own between -60 and 60 degrees. Every client is tested on 300 test images,
turned alike. A record is protected at one epsilon from the server, which sees every upload, and from everybody who
gets all clients' final models (views `uploads` and `deployed`). Beside that stands FedAvg whose server is trusted:
it pays in view `deployed` alone. Each way has the best of some learning rates, and pulls, on other data; that choice is
not paid for.
"""

import argparse
import functools
import itertools
import json
import pathlib
import sys
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from provenance import made_with
from scipy import ndimage

import fedjax_dp as fdp
from fedjax_dp.rounds.comparison import gain, standing
from fedjax_dp.rounds.metrics import client_metric, client_values
from fedjax_dp.rounds.personal import measure_personal
from fedjax_dp.rounds.simulation import run_key
from fedjax_dp.tools.figures import canvas

CLIENTS, RECORDS, TESTS, SIDE, CLASSES = 32, 300, 300, 14, 10
ROUNDS, SEEDS, TRIED, DELTA, CLIP_NORM = 120, 4, 99, 1e-5, 0.5
EPSILONS, RATES = (0.5, 1.0, 2.0, 4.0, 8.0), (0.2, 0.6, 2.0)
PULLS = (0.003, 0.01, 0.03, 0.1, 0.3)  # rate times lambda: the share of the way to the shared model in a step
CASES = {
    "quarter turns": 90.0 * (np.arange(CLIENTS) % 4),
    "angles within 60 degrees": np.linspace(-60, 60, CLIENTS),
}


class Way(NamedTuple):
    """An entry with its options, views in which it pays, what is tried of pulls, and its model."""

    title: str
    entry: str
    options: Mapping[str, Any] = MappingProxyType({})
    views: tuple[str, ...] = ("uploads", "deployed")
    pulls: tuple[float, ...] = ()
    hidden: tuple[int, ...] = ()


WAYS = {
    way.title: way
    for way in (
        Way("local", "local"),
        Way("FedAvg", "dp_fedavg_local"),
        Way("FedAvg, server trusted", "dp_fedavg_local", views=("deployed",)),
        Way("finetune", "finetune", {"personal_steps": 30}),
        Way("Ditto", "ditto", pulls=PULLS[1::2]),
        Way("MR-MTL", "mr_mtl", pulls=PULLS),
        Way("FedPer, 16 hidden", "fedper", hidden=(16,)),
        Way("IFCA, 4 models", "ifca", {"clusters": 4, "choices": 10, "choice_noise": 0.3, "loss_bound": 4.0}),
    )
}


@functools.cache
def clients_of(case, seed):
    """Training and test images of every client, turned its way."""
    digits, rng = fdp.load("mnist"), np.random.default_rng(seed)
    angles = CASES[case]

    def turned(x, y, each):
        rows = rng.permutation(len(x))[: CLIENTS * each].reshape(CLIENTS, each)
        whole = [ndimage.rotate(x[mine], angle, (1, 2), False, order=1) for mine, angle in zip(rows, angles)]
        small = np.concatenate(whole).reshape(-1, SIDE, 2, SIDE, 2).mean((2, 4))
        return small.astype(np.uint8), y[rows.ravel()]

    x, y = turned(digits.x_train, digits.y_train, RECORDS)
    x_test, y_test = turned(digits.x_test, digits.y_test, TESTS)
    dataset = digits._replace(x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    owners = np.repeat(np.arange(CLIENTS), TESTS)
    return fdp.federate(dataset, np.split(np.arange(len(x)), CLIENTS), test_clients=owners)


def model_of(way):
    shape = (SIDE, SIDE)
    return fdp.mlp(shape, CLASSES, way.hidden) if way.hidden else fdp.logistic_regression(shape, CLASSES)


def algorithm_of(way, rate, pull, noise=0.0):
    options = way.options if pull is None else {**way.options, "strength": pull / rate}
    return fdp.algorithms.CATALOGUE[way.entry](
        cohort_size=None,
        batch_size=None,
        batches="full",
        local_steps=1,
        learning_rate=rate,
        schedule="constant",
        l2=0.0,
        clip_norm=CLIP_NORM,
        noise_multiplier=noise,
        **options,
    )


def noise_of(way, epsilon, data):
    """The least noise that holds in every view in which it pays; clients are as large, so they have the same."""
    terms = {"rounds": ROUNDS, "epsilon": epsilon, "delta": DELTA, "model": model_of(way)}
    algorithm = algorithm_of(way, RATES[0], way.pulls[0] if way.pulls else None)
    found = [fdp.calibrate(algorithm, data, view=view, **terms) for view in way.views]
    return max(float(np.max(one.local.privatizer.noise_multiplier)) for one in found)


def accuracies(way, algorithm, case, seed):
    """Of every client on its own test part."""
    data, model = clients_of(case, seed), model_of(way)
    run = fdp.simulate(algorithm, data, rounds=ROUNDS, seed=seed, model=model, evaluate_every=ROUNDS)
    if not algorithm.local.personal:
        return client_metric(run.params, data, model=model)
    return client_values(
        measure_personal(algorithm.local, run.state, data, run_key(seed), model=model), data, model=model
    )[0]


def measured(case, way, epsilon):
    """A row, and the accuracies `(seeds, clients)`."""
    noise = noise_of(way, epsilon, clients_of(case, TRIED))
    grid = list(itertools.product(RATES, way.pulls or (None,)))
    tried = [accuracies(way, algorithm_of(way, *one, noise), case, TRIED).mean() for one in grid]
    rate, pull = grid[int(np.argmax(tried))]
    chosen = algorithm_of(way, rate, pull, noise)
    each = np.array([accuracies(way, chosen, case, seed) for seed in range(SEEDS)])
    terms = {"rounds": ROUNDS, "delta": DELTA, "model": model_of(way)}
    proved = {
        view: fdp.guarantee(chosen, clients_of(case, 0), view=view, **terms).epsilon for view in ("uploads", "deployed")
    }
    stands = [standing(one, np.full(CLIENTS, TESTS))._asdict() for one in each]
    row = {"case": case, "way": way.title, "epsilon": epsilon, "proved": proved, "views": way.views}
    row |= {"noise_multiplier": noise, "learning_rate": rate, "strength": None if pull is None else pull / rate}
    row |= {name: float(np.mean([one[name] for one in stands])) for name in stands[0]}
    row["means"] = each.mean(1).tolist()
    print(f"{case}, {way.title}, epsilon {epsilon:g}: {row['mean']:.3f}", file=sys.stderr)
    return row, each


def rows_of(case, epsilon):
    """Every way at one epsilon; those of clients' own models beside the better of local and FedAvg."""
    found = {title: measured(case, way, epsilon) for title, way in WAYS.items()}
    others = [found[title][1] for title in ("local", "FedAvg")]
    for title, (row, each) in found.items():
        if title in ("local", "FedAvg", "FedAvg, server trusted"):
            continue
        tests = np.full(CLIENTS, TESTS)
        gains = [gain(each[seed], [other[seed] for other in others], tests) for seed in range(SEEDS)]
        row |= {"no_worse": float(np.mean([one.no_worse for one in gains]))}
        row |= {"regret": float(np.mean([one.regret for one in gains]))}
    shown = {title: found[title][1][0].tolist() for title in ("local", "FedAvg", "MR-MTL")}
    return [row for row, _ in found.values()], {"case": case, "epsilon": epsilon, "accuracies": shown}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    began, rows, clients = time.perf_counter(), [], []
    for case, epsilon in itertools.product(CASES, EPSILONS):
        found, shown = rows_of(case, epsilon)
        rows += found
        clients.append(shown)
    results = {
        "what": __doc__.split("\n")[0],
        "setting": {
            "data": "mnist, 14 x 14",
            "clients": CLIENTS,
            "records": RECORDS,
            "tests": TESTS,
            "rounds": ROUNDS,
            "seeds": SEEDS,
            "clip_norm": CLIP_NORM,
            "delta": DELTA,
        },
        "rows": rows,
        "clients": clients,
        "seconds": time.perf_counter() - began,
        **made_with(),
    }
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    draw(results, options.out.with_suffix(".png"))


LOOKS = {
    "local": {"color": "C7", "marker": "s"},
    "FedAvg": {"color": "C5", "marker": "D"},
    "FedAvg, server trusted": {"color": "C5", "linestyle": ":", "marker": "D", "markerfacecolor": "none"},
    "MR-MTL": {"color": "k", "marker": "*", "markersize": 9, "zorder": 4},
}
SHOWN = {"quarter turns": (1.0, 2.0, 8.0), "angles within 60 degrees": (1.0, 4.0, 8.0)}


def draw(results, path):
    """For each case accuracy against epsilon, and each client's own model against the better of local and FedAvg."""
    figure, panels = plt.subplots(len(CASES), 2, figsize=(10.5, 8), layout="constrained", width_ratios=(1.25, 1))
    for (lines, points), case in zip(panels, CASES, strict=True):
        for title in WAYS:
            mine = [row for row in results["rows"] if (row["case"], row["way"]) == (case, title)]
            look = {"marker": "o", "markersize": 4, "linewidth": 1} | LOOKS.get(title, {})
            epsilons, means = [row["epsilon"] for row in mine], [100 * row["mean"] for row in mine]
            spans = [[100 * abs(edge(row["means"]) - row["mean"]) for row in mine] for edge in (min, max)]
            lines.errorbar(epsilons, means, spans, label=title, elinewidth=0.8, **look)
        lines.set(xscale="log", ylabel="accuracy, mean over clients (%)")
        lines.set_xlabel(f"epsilon for one record, delta {results['setting']['delta']:g}")
        lines.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS], minor=False)
        lines.set_xticks([], minor=True)
        lines.set_title(f"Digits turned by {case}", loc="left", fontsize=10)
        _points(points, [one for one in results["clients"] if one["case"] == case and one["epsilon"] in SHOWN[case]])
        for axes in (lines, points):
            axes.grid(alpha=0.3)
    shown, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(shown, names, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    figure.savefig(path, dpi=canvas.DPI)


def _points(axes, shown):
    for one, look in zip(shown, ({"marker": "v"}, {"marker": "o"}, {"marker": "^"}), strict=True):
        local, fedavg, own = (100 * np.array(one["accuracies"][title]) for title in ("local", "FedAvg", "MR-MTL"))
        better = np.maximum(local, fedavg)
        axes.plot(better, own, linestyle="none", markersize=4.5, alpha=0.8, label=f"epsilon {one['epsilon']:g}", **look)
    low, high = (edge(*axes.get_xlim(), *axes.get_ylim()) for edge in (min, max))
    axes.plot([low, high], [low, high], color="C7", linewidth=0.8)
    axes.set(xlabel="better of local and FedAvg (%)", ylabel="MR-MTL (%)")
    axes.set_title("A point for each client of the first run", loc="left", fontsize=10)
    axes.legend(fontsize=8, loc="lower right")


if __name__ == "__main__":
    main()
