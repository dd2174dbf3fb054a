"""Targets that are no classes, trained privately on real data: the next word of messages, and ages of a census.

    FEDJAX_DP_DATA=... python benchmarks/real_tasks.py --out benchmarks/results/real_tasks.json

A small causal transformer learns the next word of Sentiment140's messages, whose users are put together into a hundred
clients; a record is a message. A multi-layer perceptron tells ages from the other attributes of Adult, whose people are
put together by their place in a family. Beside the private runs stand the same without privacy, and what can be said
without seeing the record: how often words occur, and the mean age.
"""

import argparse
import datetime
import json
import pathlib
import sys
import time
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np

import fedjax_dp as fdp
from fedjax_dp.data import Vocabulary, grouped_natural, natural
from fedjax_dp.data.tabular import CATEGORIES
from fedjax_dp.experiments import environment

EPSILONS = (1.0, 2.0, 4.0, 8.0)
SEEDS, DELTA = 2, 1e-5
UNKNOWN = 1  # the word that stands for all that are not in the vocabulary


class Case(NamedTuple):
    """What is learnt, how, and what is reached without seeing a record; `rates` are tried on another seed."""

    title: str
    data: Any
    model: Any
    common: dict[str, Any]
    clip_norm: float
    rates: tuple[float, ...]
    rounds: int
    metric: str
    guess: float
    guessed: str


def next_words():
    """Messages of Sentiment140."""
    told = fdp.load("sent140")
    size = 1 + int(max(told.x_train.max(), told.x_test.max()))
    sides = []
    for x in (told.x_train, told.x_test):
        long = np.any(x[:, 1:] > 0, 1)  # two words at least
        sides.append((x[long, :-1], x[long, 1:].astype(np.int32), long))
    (x, y, long), (x_test, y_test, _) = sides
    words = Vocabulary(size, pad=0, oov=(UNKNOWN,))
    dataset = fdp.dataset(x, y, x_test, y_test, task="sequence", vocabulary=words, name="sent140, next word")
    users = np.asarray(told.client_ids)[long]
    data = fdp.federate(dataset._replace(learnt=told.learnt), grouped_natural(users, len(np.unique(users)) // 100, 0))
    counts = np.bincount(y[y > 0], minlength=size) + 1.0
    guess = float(np.exp(-np.mean(np.log(counts / counts[1:].sum())[y_test[y_test > 0]])))
    return Case(
        title="Next word of messages, 100 clients",
        data=data,
        model=fdp.models.gpt(data.record_shape, data.classes, width=32, heads=2),
        common={"cohort_size": 20, "batch_size": 64, "local_steps": 5},
        clip_norm=0.5,
        rates=(1.0, 3.0),
        rounds=60,
        metric="perplexity",
        guess=guess,
        guessed="how often words occur",
    )


def ages():
    """The census, with a client for each place in a family: wife, own child, husband, ..."""
    told = fdp.load("adult_full")
    widths = {name: len(words) for name, words in CATEGORIES.items()}
    age = sum(widths.values())  # the first of the numeric columns
    before = list(widths)[: list(widths).index("relationship")]
    first = sum(widths[name] for name in before)
    places = told.x_train[:, first : first + widths["relationship"]].argmax(1)
    x, x_test = (np.delete(a, age, axis=1) for a in (told.x_train, told.x_test))
    y, y_test = told.x_train[:, age], told.x_test[:, age]
    dataset = fdp.dataset(x, y, x_test, y_test, task="regression", name="adult, age")
    data = fdp.federate(dataset._replace(learnt=told.learnt), natural(places))
    return Case(
        title="Ages of a census, 6 clients by place in a family",
        data=data,
        model=fdp.mlp(data.record_shape, data.classes, (32,)).for_data(data),
        common={"cohort_size": 6, "batch_size": 128, "local_steps": 5},
        clip_norm=0.5,
        rates=(0.1, 0.3, 1.0),
        rounds=60,
        metric="rmse",
        guess=float(np.sqrt(np.mean((y_test - y.mean()) ** 2))),
        guessed="the mean age",
    )


def measured(case):
    """Rows of every epsilon, and of no privacy, each with the rate that is best on another seed, at epsilon 4."""
    name = f"test_{case.metric}"
    told = {"rounds": case.rounds, "model": case.model, "evaluate_every": case.rounds}
    private = fdp.dpnfl(**case.common, clip_norm=case.clip_norm, learning_rate=case.rates[0])
    plain = fdp.fedavg(**case.common, learning_rate=case.rates[0])
    rows = []
    for algorithm, at, epsilons, terms in (
        (private, {"epsilon": [4.0]}, {"epsilon": EPSILONS}, {"delta": DELTA}),
        (plain, {}, {}, {}),
    ):
        tried = fdp.sweep(
            algorithm, case.data, axes={"learning_rate": case.rates, **at}, seeds=[99], **told, **terms
        ).table()
        rate = float(tried.groupby("learning_rate")[name].mean().idxmin())
        swept = fdp.sweep(
            algorithm, case.data, axes={"learning_rate": [rate], **epsilons}, seeds=SEEDS, **told, **terms
        ).table()
        for epsilon in epsilons.get("epsilon", [None]):
            seen = swept if epsilon is None else swept[swept["epsilon"] == epsilon]
            values = [float(value) for value in seen[name]]
            proved = None if epsilon is None else float(seen["guarantee_epsilon"].max())
            row = {"epsilon": epsilon, "proved": proved, "learning_rate": rate, "mean": float(np.mean(values))}
            rows.append(row | {"values": values})
            print(f"{case.title}, epsilon {epsilon}: {case.metric} {row['mean']:.4g}", file=sys.stderr)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    began, cases = time.perf_counter(), []
    for case in (ages(), next_words()):
        asked = {"records": len(case.data.y), "clients": case.data.num_clients, "rounds": case.rounds, **case.common}
        about = {"title": case.title, "metric": case.metric, "guess": case.guess, "guessed": case.guessed}
        cases.append(about | {"setting": asked | {"clip_norm": case.clip_norm}, "rows": measured(case)})
    found = {
        "what": __doc__.split("\n")[0],
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "delta": DELTA,
        "cases": cases,
        "seconds": time.perf_counter() - began,
        "versions": environment.versions(),
        "device": environment.device(),
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    draw(found, options.out.with_suffix(".png"))


def draw(found, path):
    """A panel for each case: its metric against epsilon, between the two lines that bound it."""
    figure, panels = plt.subplots(1, len(found["cases"]), figsize=(9.5, 3.8), layout="constrained")
    for axes, case in zip(panels, found["cases"], strict=True):
        private = [row for row in case["rows"] if row["epsilon"] is not None]
        (plain,) = (row for row in case["rows"] if row["epsilon"] is None)
        epsilons = [row["epsilon"] for row in private]
        axes.axhline(case["guess"], color="C7", linestyle=":", label=f"without the record: {case['guessed']}")
        axes.plot(epsilons, [row["mean"] for row in private], marker="o", label="private")
        lowest, highest = ([edge(row["values"]) for row in private] for edge in (min, max))
        axes.fill_between(epsilons, lowest, highest, alpha=0.2)
        axes.axhline(plain["mean"], color="C1", linestyle="--", label="without privacy")
        axes.set(xscale="log", xlabel=f"epsilon for one record, delta {found['delta']:g}")
        unit = ", in standard deviations of age" if case["metric"] == "rmse" else ""
        axes.set_ylabel(f"{case['metric']} on test records{unit}")
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons], minor=False)
        axes.set_xticks([], minor=True)
        axes.set_title(case["title"], loc="left", fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
