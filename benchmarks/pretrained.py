"""What a pretrained language model is worth under privacy: MiniLM adapted to messages of Sentiment140, and an LSTM.

    FEDJAX_DP_DATA=... python benchmarks/pretrained.py --model FOLDER --out benchmarks/results/pretrained.json

FOLDER holds all-MiniLM-L6-v2 as Hugging Face's libraries write it. A record is a message; 20 clients hold them, all of
which take part in every round. The head alone is trained, or the head with low-rank terms of queries and values (rank
8), or rfedavg's LSTM over random word vectors from scratch. Learning rates are tried on another seed; that choice is
not paid for. Last is the guarantee of a user instead: low-rank terms, and noise on the sum of clipped updates of 20 of
1,000 users a round, as of a deployment with 5,000 of a million.
"""

import argparse
import fnmatch
import functools
import json
import os
import pathlib
import sys

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from provenance import made_with

import fedjax_dp as fdp
from fedjax_dp import gradients
from fedjax_dp.models.model import size_of

CLIENTS, ROUNDS, BATCH, LENGTH = 20, 12, 32, 24
EPSILONS, DELTA, SEEDS = (1.0, 2.0, 4.0, 8.0), 1e-5, 3
USERS, COHORT, POPULATION = 1_000, 5_000, 1_000_000  # here, and of the deployment


def messages(**how):
    """The messages with their classes; of the fifth that is held out, a third to test on."""
    file = pathlib.Path(os.environ["FEDJAX_DP_DATA"]) / "sent140" / "sent140_subset.csv"
    columns = {"label_column": "positive", "feature_columns": "text", "drop": "user"}
    whole = fdp.load(f"csv:{file}", length=LENGTH, **columns, **how)
    return whole._replace(x_test=whole.x_test[::3], y_test=whole.y_test[::3])


def measured(name, algorithm, data, model, rates, **of):
    """Rows of every epsilon, with the learning rate that is best at one of them on another seed."""
    common = {"rounds": ROUNDS, "evaluate_every": ROUNDS, "delta": DELTA, "model": model, **of}
    tried = fdp.sweep(algorithm(), data, axes={"epsilon": [2.0], "learning_rate": list(rates)}, seeds=[99], **common)
    found = tried.table().groupby("learning_rate")["test_accuracy"].mean()
    rate = float(found.fillna(0.0).idxmax())  # some diverge
    axes = {"epsilon": list(EPSILONS), "learning_rate": [rate]}
    for epsilon, points in fdp.sweep(algorithm(), data, axes=axes, seeds=SEEDS, **common).table().groupby("epsilon"):
        values = [float(value) for value in points["test_accuracy"]]
        print(f"{name}, epsilon {epsilon:g}: {np.mean(values):.4f}", file=sys.stderr)
        row = {"way": name, "epsilon": float(epsilon), "proved": float(points["guarantee_epsilon"].max())}
        yield row | {"learning_rate": rate, "trained": size_of(model), "values": values}


def operations(model, texts):
    """Operations of a batch by the compiler's count: clipped gradients, and plain ones of the same parameters."""
    structure, frozen = gradients.split(model)
    x, y = (jnp.asarray(some[:BATCH]) for some in (texts.x_train.astype(np.int32), texts.y_train))

    def private(params, frozen):
        own = gradients.joined(structure, frozen)
        return gradients.clipped_sum(own, params, x, y, jnp.ones(BATCH, bool), 0.5).total

    def plain(params, frozen):
        own = gradients.joined(structure, frozen)
        return jax.grad(lambda params: jnp.sum(jax.vmap(lambda x, y: own.loss(params, x, y))(x, y)))(params)

    params = model.init(jax.random.key(0))
    return {one.__name__: jax.jit(one).lower(params, frozen).cost_analysis()["flops"] for one in (private, plain)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--ways", default="*", help="a pattern of what is run")
    parser.add_argument("--kept", type=pathlib.Path, nargs="*", default=[], help="results with rows of the other ways")
    options = parser.parse_args()
    texts, words = messages(vocabulary=str(options.model / "tokenizer.json")), messages()
    data, data_of_words = (fdp.federate(some, fdp.data.iid(some, CLIENTS)) for some in (texts, words))
    users = fdp.federate(texts, fdp.data.iid(texts, USERS))
    base = fdp.models.pretrained(options.model, data, pool="mean")
    lora = fdp.models.freeze(base, "head,lora", targets="attention", rank=8)
    head = fdp.models.freeze(base, "head")
    lstm = fdp.models.lstm(words.x_train.shape[1:], words.classes, vocabulary=words.vocabulary.size)
    each = {"clip_norm": 0.5, "cohort_size": CLIENTS, "learning_rate": 1.0}
    private = functools.partial(fdp.dpnfl, **each, batch_size=BATCH, local_steps=1)
    of_users = functools.partial(fdp.dp_fedavg, **each, cohort="poisson", batch_size=8, local_steps=3)
    of = {"deployment_cohort": COHORT, "deployment_population": POPULATION}
    ways = {
        "MiniLM, head and low-rank terms": (private, data, lora, (1.0, 3.0, 10.0)),
        "MiniLM, head": (private, data, head, (10.0, 30.0, 100.0)),
        "LSTM from scratch": (private, data_of_words, lstm, (0.3, 1.0)),
        "MiniLM, low-rank terms, for a user of a deployment": (of_users, users, lora, (0.3, 1.0)),
    }
    kept = {}
    for row in [row for file in options.kept for row in json.loads(file.read_text())["rows"]]:
        kept[row["way"], row["epsilon"]] = row
    rows = []
    for name, case in ways.items():
        if fnmatch.fnmatch(name, options.ways):
            rows += measured(name, *case, **(of if case[0] is of_users else {}))
        else:
            rows += [row for (way, _), row in kept.items() if way == name]
    found = {
        "what": __doc__.split("\n")[0],
        "model": options.model.name,
        "setting": {"clients": CLIENTS, "rounds": ROUNDS, "batch": BATCH, "length": LENGTH},
        "operations": operations(lora, texts),
        "delta": DELTA,
        "rows": [row | {"mean": float(np.mean(row["values"]))} for row in rows],
        **made_with(),
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    draw(found, options.out.with_suffix(".png"))


def draw(found, path):
    """Accuracy against epsilon, with the range over seeds."""
    figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
    for way in dict.fromkeys(row["way"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["way"] == way]
        epsilons, label = [row["epsilon"] for row in rows], f"{way} ({rows[0]['trained']:,})"
        (line,) = axes.plot(epsilons, [row["mean"] for row in rows], marker="o", label=label)
        lowest, highest = ([edge(row["values"]) for row in rows] for edge in (min, max))
        axes.fill_between(epsilons, lowest, highest, alpha=0.2, color=line.get_color())
    axes.set(
        xscale="log",
        xlabel=f"epsilon for one message, or for a user, delta {found['delta']:g}",
        ylabel="accuracy on test messages",
    )
    axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS], minor=False)
    axes.set_xticks([], minor=True)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
