"""Targets that are no classes, trained privately on real data: the next character of messages, and ages of a census.

    FEDJAX_DP_DATA=... python benchmarks/real_tasks.py --out benchmarks/results/real_tasks.json

A small causal transformer learns the next character of Sentiment140's messages, whose users are put together into 20
clients; a record is a message. A multi-layer perceptron tells ages from the other attributes of Adult, whose people are
put together by their place in a family. Beside the private runs stand the same without privacy, and what can be said
without seeing the record: how often characters occur, and the mean age.
"""

import argparse
import csv
import json
import os
import pathlib
import sys
import time
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from provenance import made_with

import fedjax_dp as fdp
from fedjax_dp.data import Vocabulary, grouped_natural, natural
from fedjax_dp.data.adult import CATEGORIES

SEEDS, DELTA = 2, 1e-5
LENGTH = 80  # characters of a message that are predicted
FIRST, KINDS, UNKNOWN = 32, 95, 1  # printable ASCII, and the id of all else


class Case(NamedTuple):
    """What is learnt, how, and what is reached without seeing a record; learning rates are tried on another seed."""

    title: str
    data: Any
    model: Any
    common: dict[str, Any]
    clip_norm: float
    rates: tuple[float, ...]
    plain_rates: tuple[float, ...]
    epsilons: tuple[float, ...]
    rounds: int
    metric: str
    guess: float
    guessed: str


def next_characters():
    """Messages of Sentiment140, of which every tenth is tested on."""
    with open(pathlib.Path(os.environ["FEDJAX_DP_DATA"]) / "sent140" / "sent140_subset.csv", encoding="utf-8") as lines:
        messages = [(int(row["user"]), row["text"]) for row in csv.DictReader(lines)]
    ids = np.zeros((len(messages), LENGTH + 1), np.int32)  # 0 fills up
    for row, (_, text) in zip(ids, messages):
        codes = np.array([ord(character) for character in text.lower()[: LENGTH + 1]])
        row[: len(codes)] = np.where((codes >= FIRST) & (codes < FIRST + KINDS), codes - FIRST + 2, UNKNOWN)
    x, y, test = ids[:, :-1], ids[:, 1:], np.arange(len(ids)) % 10 == 9
    characters = Vocabulary(2 + KINDS, pad=0, oov=(UNKNOWN,))
    dataset = fdp.dataset(
        x[~test], y[~test], x[test], y[test], task="sequence", vocabulary=characters, name="sent140, next character"
    )
    users = np.array([user for user, _ in messages])[~test]
    data = fdp.federate(dataset, grouped_natural(users, len(np.unique(users)) // 20, 0, remainder="spread"))
    counts = np.bincount(y[~test][y[~test] > 0], minlength=characters.size) + 1.0
    return Case(
        title="Next character of messages, 20 clients",
        data=data,
        model=fdp.models.gpt(data.record_shape, data.classes, width=32, heads=2),
        common={
            "cohort_size": 20,
            "batch_size": 32,
            "local_steps": 5,
            "local_rule": fdp.parts.LocalRule.of("momentum", keep=True),
        },
        clip_norm=0.5,
        rates=(2.0,),
        plain_rates=(0.1, 0.5),
        epsilons=(1.0, 2.0, 4.0, 8.0),
        rounds=40,
        metric="perplexity",
        guess=float(np.exp(-np.mean(np.log(counts / counts[1:].sum())[y[test][y[test] > 0]]))),
        guessed="how often characters occur",
    )


def ages():
    """The census, with a client for each place in a family: wife, own child, husband, ..."""
    adult = fdp.load("adult_full")
    widths = {name: len(words) for name, words in CATEGORIES.items()}
    age = sum(widths.values())  # the first of the numeric columns
    before = list(widths)[: list(widths).index("relationship")]
    first = sum(widths[name] for name in before)
    places = adult.x_train[:, first : first + widths["relationship"]].argmax(1)
    x, x_test = (np.delete(a, age, axis=1) for a in (adult.x_train, adult.x_test))
    y, y_test = adult.x_train[:, age], adult.x_test[:, age]
    dataset = fdp.dataset(x, y, x_test, y_test, task="regression", name="adult, age")
    data = fdp.federate(dataset._replace(learnt=adult.learnt), natural(places))
    return Case(
        title="Ages of a census, 6 clients by place in a family",
        data=data,
        model=fdp.mlp(data.record_shape, data.classes, (32,)).for_data(data),
        common={"cohort_size": 6, "batch_size": 128, "local_steps": 5},
        clip_norm=0.5,
        rates=(0.3, 1.0, 3.0),
        plain_rates=(0.03, 0.1, 0.3),
        epsilons=(0.1, 0.3, 1.0, 3.0),
        rounds=200,
        metric="rmse",
        guess=float(np.sqrt(np.mean((y_test - y.mean()) ** 2))),
        guessed="the mean age",
    )


def measured(case):
    """Rows of every epsilon, and of no privacy, each with the learning rate that is best there on another seed."""
    name = f"test_{case.metric}"
    common = {"rounds": case.rounds, "model": case.model, "evaluate_every": case.rounds}
    private = fdp.dpnfl(**case.common, clip_norm=case.clip_norm, learning_rate=case.rates[0])
    plain = fdp.fedavg(**case.common, learning_rate=case.plain_rates[0])
    rows = []
    for epsilon in (*case.epsilons, None):
        algorithm, rates, terms = private, case.rates, {"epsilon": epsilon, "delta": DELTA}
        if epsilon is None:
            algorithm, rates, terms = plain, case.plain_rates, {}
        rate = rates[0]
        if len(rates) > 1:
            axes = {"learning_rate": rates}
            tried = fdp.sweep(algorithm, case.data, axes=axes, seeds=[99], **common, **terms).table()
            rate = float(tried.groupby("learning_rate")[name].mean().idxmin())
        seen = fdp.sweep(algorithm, case.data, axes={"learning_rate": [rate]}, seeds=SEEDS, **common, **terms).table()
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
    for case in (ages(), next_characters()):
        asked = {"records": len(case.data.y), "clients": case.data.num_clients, "rounds": case.rounds, **case.common}
        about = {"title": case.title, "metric": case.metric, "guess": case.guess, "guessed": case.guessed}
        cases.append(about | {"setting": asked | {"clip_norm": case.clip_norm}, "rows": measured(case)})
    found = {
        "what": __doc__.split("\n")[0],
        "delta": DELTA,
        "cases": cases,
        "seconds": time.perf_counter() - began,
        **made_with(),
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
        axes.set_ylabel(f"{case['metric']} on test records" + " (standard deviations)" * (case["metric"] == "rmse"))
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons], minor=False)
        axes.set_xticks([], minor=True)
        axes.set_title(case["title"], loc="left", fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="upper right", bbox_to_anchor=(1, 0.94))
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
