"""CIFAR-10 as pfl-research's benchmark trains it: accuracy and time of pfl-research and of this package, in turns.

    python benchmarks/peers/accuracy.py --rounds 60 --seeds 2

Cohorts of 50 clients with 50 images, one pass in batches of 10, rate 0.1, its network with dropout: without privacy,
and with clipped updates (clip norm 0.4) and the noise of a deployment with cohorts of 1,000, 0.616 there and 0.616 * 50
/ 1,000 here. The same images of the same clients in both, as many of CIFAR-10 as are at hand; draws are their own. Each
run is a process of its own, which has all cores while the other waits. Seconds are those of rounds, without compilation
and without looks at the test set.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import workloads

HERE = pathlib.Path(__file__).parent
TITLES = {"ours": "fedjax_dp", "theirs": "pfl-research"}
NOISE, COHORT_OF_NOISE, EVERY = 0.616, 1000, 10


def ours(w, images, rounds, seed):
    import fedjax_dp as fdp
    from fedjax_dp.rounds import simulation

    x, y, test_x, test_y = images
    dataset = fdp.data.Dataset("cifar10", x, y, test_x, test_y, classes=10, scale=1 / 255)
    data = fdp.federate(dataset, np.split(np.arange(len(x)), w.clients))
    usual = {"cohort_size": w.cohort, "batches": "epochs", "batch_size": w.batch, "local_steps": 1, "l2": 0.0}
    usual |= {"cohort": "uniform", "learning_rate": w.rate, "schedule": "constant"}
    algorithm = fdp.fedavg(**usual)
    if w.private != "none":
        algorithm = fdp.dp_fedavg(**usual, clip_norm=w.clip_norm, noise_multiplier=NOISE * w.cohort / COHORT_OF_NOISE)
    model = fdp.models.simple_cnn(data.record_shape, 10)
    done = simulation.simulate(algorithm, data, model=model, rounds=rounds, seed=seed, evaluate_every=EVERY)
    each = done.timing.round_s_median
    return [(look.round, look.metrics["accuracy"], look.round * each) for look in done.history if look.round]


def theirs(w, images, rounds, seed):
    import torch
    from contenders import pfl_rounds
    from contenders.torch_rounds import ChannelsFirst, placed
    from pfl.data.dataset import Dataset
    from torch import nn

    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (what its samplers use)
    x, y = placed(*images[:2], 255)
    test_x, test_y = placed(*images[2:], 255)
    clients = zip(x.split(w.records), y.split(w.records), strict=True)
    datasets = [Dataset(raw_data=list(one), user_id=i) for i, one in enumerate(clients)]
    convolutions = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)]
    dense = [nn.Flatten(), nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)]
    module = nn.Sequential(ChannelsFirst(True), *convolutions, *dense)
    looks, clocks = [], []

    def look(number):
        if number % EVERY == 0 or number == rounds:
            module.eval()
            with torch.no_grad():
                hits = sum(
                    int((module(a).argmax(1) == b).sum()) for a, b in zip(test_x.split(1000), test_y.split(1000))
                )
            looks.append((number, hits / len(test_y)))
            module.train()

    def clock():
        clocks.append(pfl_rounds.Clock(look))
        return clocks[-1]

    pfl_rounds.training(w, module, datasets, NOISE * w.cohort / COHORT_OF_NOISE, rounds, clock)()
    each = float(np.median(np.diff(clocks[0].ends)))
    return [(number, accuracy, number * each) for number, accuracy in looks]


def draw(rows, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for axis, private in zip(axes, ("none", "client"), strict=True):
        for who, color, mark in (("ours", "#c44e52", "o"), ("theirs", "#4c72b0", "s")):
            for row in (row for row in rows if row["system"] == who and row["private"] == private):
                _, accuracies, seconds = zip(*row["looks"], strict=True)
                axis.plot(seconds, 100 * np.array(accuracies), color=color, marker=mark, ms=4, label=TITLES[who])
        axis.set(title="no privacy" if private == "none" else "clipped updates and noise", xlabel="seconds of rounds")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("test accuracy (%)")
    handles, labels = axes[0].get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    axes[0].legend(once.values(), once.keys())
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--work", default=pathlib.Path.home() / ".cache" / "fedjax_dp_peers")
    parser.add_argument("--one", nargs=3, metavar=("SYSTEM", "PRIVATE", "SEED"), help="of a process of its own")
    options = parser.parse_args()
    work = pathlib.Path(options.work)
    if options.one:
        who, private, seed = options.one
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever libraries print goes to stderr
        images = tuple(np.load(work / "cifar10.npz").values())
        w = workloads.named("cifar" if private == "none" else "cifar-client")._replace(clients=len(images[0]) // 50)
        looks = {"ours": ours, "theirs": theirs}[who](w, images, options.rounds, int(seed))
        answers.write(json.dumps(looks))
        return
    from run import PEERS, RESULTS, ROOT, Setting, python_of

    import fedjax_dp as fdp

    dataset = fdp.load("cifar10")
    order = np.random.default_rng(0).permutation(len(dataset.x_train))[: len(dataset.x_train) // 50 * 50]
    work.mkdir(parents=True, exist_ok=True)
    np.savez(work / "cifar10.npz", dataset.x_train[order], dataset.y_train[order], dataset.x_test, dataset.y_test)
    pythons = {"ours": sys.executable, "theirs": python_of(PEERS["pfl_rounds"], Setting(work))}
    rows = []
    for seed in range(options.seeds):
        for private in ("none", "client"):
            for who, python in pythons.items():
                time.sleep(1)
                print(f"{TITLES[who]}, {private}, seed {seed}", file=sys.stderr)
                command = [python, HERE / "accuracy.py", "--rounds", str(options.rounds), "--work", work]
                done = subprocess.run(
                    [*command, "--one", who, private, str(seed)],
                    stdout=subprocess.PIPE,
                    check=True,
                    env=os.environ | {"PYTHONPATH": f"{HERE}{os.pathsep}{ROOT}"},
                )
                rows.append({"system": who, "private": private, "seed": seed, "looks": json.loads(done.stdout)})
                (RESULTS / "peers_accuracy.json").write_text(json.dumps(rows, indent=1) + "\n")
    draw(rows, RESULTS / "peers_accuracy.png")
    for row in rows:
        number, accuracy, seconds = row["looks"][-1]
        print(f"{TITLES[row['system']]:14}{row['private']:8}{number:5} rounds {100 * accuracy:6.2f}% {seconds:8.1f} s")


if __name__ == "__main__":
    main()
