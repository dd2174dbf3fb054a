"""Everybody's private federated round, side by side: rivals in virtual environments of their own, timed in turns.

    python benchmarks/peers/run.py                      # W1, W2, W3, W3dp; sets up what is missing
    python benchmarks/peers/run.py --workloads cifar cifar-client cifar-record
    python benchmarks/peers/run.py --peers opacus_ghost pfl_rounds --repeats 15
    python benchmarks/peers/run.py --device gpu         # cohorts of 10 to 100 on a GPU; writes peers_gpu.*
    python benchmarks/peers/run.py --device gpu --quick --here   # five minutes, in an interpreter that has all of them

Each contender is one file in `contenders/` and runs in its own process, started once. The processes take turns while
the others wait, so a busy machine slows all of them; read the ratios, which are taken turn by turn. A turn in which the
hypervisor gave the cores to others is taken again. The first turn is taken as soon as a contender is there, and what
is known is written after every turn. Before that, all that clip single records compute the clipped gradient of one
batch at the same weights; one that differs stops the comparison. A rival that does not install or run stays in the
table with the reason. Records are random and the same for all; see `workloads.py` for the sizes. PyTorch takes all
cores itself, Flower one for each client, JAX alone its own choice, fedjax_dp a part of the cohort on each core. On a
GPU all have the records there, and take products of forward passes in TF32.
"""

import argparse
import datetime
import functools
import json
import math
import os
import pathlib
import re
import select
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import quiet
import workloads

import fedjax_dp as fdp
from fedjax_dp.experiments import environment

HERE = pathlib.Path(__file__).parent
RESULTS, ROOT = HERE.parent / "results", HERE.parent.parent
SETTLE_S = 0.3  # threads of PyTorch spin for a while after their work
SLOW_MS, FEW = 10_000.0, 3  # a contender slower than this takes part in the first turns only
PATIENCE_S = 900
ROUNDS_OF_PFL = 1500  # what its benchmark of CIFAR-10 runs


class Peer(NamedTuple):
    title: str
    environment: str | None  # its folder; None: the one that runs this
    requirements: tuple[str, ...]
    about: str


TORCH = ("torch>=2.6", "opacus>=1.5")
PEERS = {
    "ours": Peer("fedjax_dp", None, (), "per-record clipping in the backward pass, several rounds in one dispatch"),
    "plain_jax": Peer("plain JAX", None, (), "one jit of vmap over clients of scan over steps of vmap(grad)"),
    "jax_privacy_step": Peer("jax-privacy", "jax_privacy", ("jax-privacy>=2",), "its compiled step in a loop"),
    "fedjax_rounds": Peer("fedjax", "fedjax", ("fedjax>=0.0.17",), "its federated averaging, our private gradient"),
    "torch_func": Peer("torch.func", "torch", TORCH, "vmap over clients and records"),
    "opacus_ghost": Peer("Opacus ghost clipping", "torch", TORCH, "a loop over clients and steps"),
    "flower_rounds": Peer("Flower", "flower", ("flwr[simulation]>=1.40", *TORCH), "on Ray; private: Opacus inside"),
    "pfl_rounds": Peer("pfl-research, updates clipped, not records", "pfl", ("pfl[pytorch]>=0.6",), "its own privacy"),
    "torch_loop": Peer("PyTorch loop, no privacy", "torch", TORCH, "a loop over clients and steps"),
}
ON_GPU = ("ours", "plain_jax", "jax_privacy_step", "torch_func", "opacus_ghost", "pfl_rounds", "torch_loop")
CPU_WORKLOADS = ("W1", "W2", "W3", "W3dp")
GPU_WORKLOADS = ("W1:10", "W1:100", "W2:10", "W2:100", "W3dp:10", "cifar-record:50", "cifar-client:50", "cifar:50")
QUICK, QUICK_TURNS, QUICK_S = ("W1:10", "W2:10"), 3, 280  # what is not begun by then is left out
VARIABLES = {  # of the contenders' processes
    "cpu": {"JAX_PLATFORMS": "cpu", "PEERS_DEVICE": "cpu"},
    "gpu": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PEERS_DEVICE": "cuda"},  # several share its memory
}
WITHIN = {"cpu": 1e-4, "gpu": 2e-2}  # gradients of contenders, relative to the largest entry; TF32 has ten bits
WEAKER = ("pfl_rounds", "torch_loop")  # no privacy of records


class Refused(Exception):
    """Why a contender takes no part."""


class Setting(NamedTuple):
    """Where contenders run."""

    work: pathlib.Path  # with their environments
    device: str = "cpu"
    here: bool = False  # in the interpreter that runs this, which has them all
    until: float = math.inf  # of the monotonic clock, when no more is begun

    @property
    def patience_s(self) -> float:
        return min(PATIENCE_S, self.until - time.monotonic())


def python_of(peer: Peer, setting: Setting) -> str:
    """The interpreter of a contender's environment, which is made unless it is there."""
    if peer.environment is None or setting.here:
        return sys.executable
    home = setting.work / f"{peer.environment}{'-gpu' * (setting.device == 'gpu')}"
    python, done = home / "bin" / "python", home / "ready"
    if not done.exists():
        print(f"setting up {peer.title}: {' '.join(peer.requirements)}", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        wanted = [
            *peer.requirements,
            *(["jax[cuda12]"] if setting.device == "gpu" and "jax" in peer.environment else []),
        ]
        command = [python, "-m", "pip", "install", "--quiet", *wanted]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode:
            raise Refused(f"does not install: {last_line(found.stderr)}")
        done.touch()
    return str(python)


def last_line(text: str) -> str:
    """What a program that failed says last, an exception if there is one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"\w+(\.\w+)*(Error|Exception): ", line)]
    return (named or lines or ["no word"])[-1][:160]


class Worker:
    """A contender's process."""

    def __init__(self, name: str, workload: str, setting: Setting) -> None:
        python, work = python_of(PEERS[name], setting), setting.work
        self.setting, self.log = setting, work / f"{workload}-{name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [python, "worker.py", name, workload, str(work)],
                cwd=HERE,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | VARIABLES[setting.device] | {"PYTHONPATH": f"{HERE}{os.pathsep}{ROOT}"},
            )
        try:
            self.ready = self.answer()
        except Refused:
            self.stop()
            raise

    def answer(self) -> dict:
        stdout = self.process.stdout
        patience_s = max(self.setting.patience_s, 0.0)
        if not select.select([stdout], [], [], patience_s)[0]:
            raise Refused(f"no answer in {patience_s:.0f} s")
        line = stdout.readline()
        if not line:
            self.process.wait()
            raise Refused(last_line(self.log.read_text()))
        return json.loads(line)

    def turn(self) -> dict:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.answer()

    def stop(self) -> None:
        with self.process:  # closes the pipes, and waits
            self.process.kill()


def gap(name: str, worker: Worker, ours: Worker, within: float) -> float | None:
    """Largest difference of a clipped gradient to ours, over the largest entry; stops where they differ."""
    files = [one.ready["gradient"] for one in (worker, ours)]
    if not all(files):
        return None
    theirs, own = ([np.asarray(part) for part in np.load(file).values()] for file in files)
    scale = max(np.abs(part).max() for part in own)
    found = float(max(np.abs(a - b).max() for a, b in zip(theirs, own, strict=True)) / scale)
    if not found < within:
        sys.exit(f"{name} does not compute the same clipped gradient: relative difference {found:.2g}")
    return found


def compared(
    workload: str, names: list[str], repeats: int, setting: Setting, keep: Callable[[dict], None] = lambda found: None
) -> dict:
    """Milliseconds a round of every contender, in turns; `keep` gets what is known after every turn."""
    workers, gaps, reasons, turns, peaks, looks = {}, {}, {}, {}, {}, {}

    def take(name: str, act: Callable[[], None]) -> bool:
        """Whether a contender that does something still takes part."""
        try:
            act()
        except Refused as reason:
            reasons[name] = str(reason)
            print(f"{workload}: {PEERS[name].title}: {reason}", file=sys.stderr)
            turns.pop(name, None)
            if name in workers:
                workers.pop(name).stop()
        return name in workers

    def start(name: str) -> None:
        if setting.patience_s <= 0:
            raise Refused("no time left")
        print(f"{workload}: starting {PEERS[name].title}", file=sys.stderr)
        workers[name] = Worker(name, workload, setting)
        if "ours" in workers:
            gaps[name] = gap(name, workers[name], workers["ours"], WITHIN[setting.device])

    def turn(name: str) -> None:
        time.sleep(SETTLE_S)
        answer = quiet.undisturbed(workers[name].turn)
        turns.setdefault(name, []).append(float(np.median(answer["ms"])))
        peaks[name] = answer["peak_mb"]
        looks.setdefault(name, []).extend(answer["accuracy"])

    def found() -> dict:
        rows = {}
        for name, ms in turns.items():
            pairs = min(len(ms), len(turns.get("ours", ms)))
            rows[name] = {
                "ms": float(np.median(ms)),
                "spread": quiet.spread(ms),
                "turns": list(ms),
                "peak_mb": peaks[name],
                **({"accuracies": list(looks[name])} if looks[name] else {}),
                "times_ours": float(np.median(np.array(ms[:pairs]) / turns["ours"][:pairs]))
                if "ours" in turns
                else None,
                "gradient_gap": gaps.get(name),
                "versions": workers[name].ready["versions"],
            }
        disturbed = [name for name, row in rows.items() if row["spread"] > 0.3]
        return {**workloads.named(workload)._asdict(), "rows": rows, "reasons": dict(reasons), "disturbed": disturbed}

    try:
        for name in names:
            if take(name, functools.partial(start, name)):
                take(name, functools.partial(turn, name))
            keep(found())
        for number in range(1, repeats):
            for name in list(workers):
                if setting.patience_s > 0 and (number < FEW or np.median(turns[name]) <= SLOW_MS):
                    take(name, functools.partial(turn, name))
                    keep(found())
            print(f"{workload}: turn {number + 1} of {repeats}", file=sys.stderr)
        return found()
    finally:
        for worker in workers.values():
            worker.stop()


def grouped(results: dict) -> list[dict]:
    """Our workloads, and those of pfl-research's benchmark, apart."""
    groups = [{n: w for n, w in results.items() if n.startswith("cifar") is theirs} for theirs in (False, True)]
    return [group for group in groups if group]


def published(results: dict) -> list[str]:
    """How long the rounds of pfl-research's benchmark take at the time of those that were run."""
    return [
        f"{ROUNDS_OF_PFL:,} rounds of {workload}, at the time of a round above: "
        + ", ".join(
            f"{PEERS[name].title} {row['ms'] * ROUNDS_OF_PFL / 60e3:,.0f} min" for name, row in found["rows"].items()
        )
        + "."
        for workload, found in results.items()
        if workload.startswith("cifar")
    ]


def shown(number: float) -> str:
    """Three digits."""
    return f"{number:,.0f}" if number >= 99.5 else f"{number:.3g}"


def table(results: dict) -> str:
    """Markdown: milliseconds, and times ours, of every contender and workload."""
    names = [name for name in PEERS if any(name in w["rows"] or name in w["reasons"] for w in results.values())]
    lines = ["| system | " + " | ".join(results) + " |", "|" + " --- |" * (len(results) + 1)]
    for name in names:
        cells = []
        for w in results.values():
            row = w["rows"].get(name)
            if row is None:
                cells.append("-" if name not in w["reasons"] else "no: " + w["reasons"][name])
                continue
            ratio = "" if name == "ours" or row["times_ours"] is None else f", {shown(row['times_ours'])}x"
            hits = f", {100 * row['accuracies'][-1]:.1f}%" if "accuracies" in row else ""
            cells.append(f"{shown(row['ms'])} ms{ratio}{hits}{' (disturbed)' if name in w['disturbed'] else ''}")
        lines.append(f"| {PEERS[name].title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(results: dict, path: pathlib.Path) -> None:
    """Milliseconds of each contender on a logarithmic axis, and how many times as long as ours it takes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    groups = grouped(results)
    wide = max(map(len, groups))
    figure, rows = plt.subplots(
        len(groups), wide, figsize=(3 * wide + 3, 3.8 * len(groups)), sharey="row", squeeze=False
    )
    for axes, group in zip(rows, groups, strict=True):
        names = [name for name in reversed(PEERS) if any(name in found["rows"] for found in group.values())]
        for axis, (workload, found) in zip(axes, group.items(), strict=False):
            dots(axis, names, workload, found)
        axes[0].set_yticks(range(len(names)), [PEERS[name].title.replace(", ", "\n", 1) for name in names])
        for axis in axes[len(group) :]:
            axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def dots(axis, names: list[str], workload: str, found: dict) -> None:
    """One workload's panel; dots, as a logarithmic axis has no zero for bars to begin at."""
    there = [(place, name, found["rows"][name]) for place, name in enumerate(names) if name in found["rows"]]
    colours = ["#c44e52" if name == "ours" else "#b3becd" if name in WEAKER else "#8c9bb0" for _, name, _ in there]
    ms = [row["ms"] for *_, row in there]
    axis.set_xscale("log")
    axis.grid(alpha=0.25, axis="x")
    for (place, name, row), colour in zip(there, colours):
        marker = "D" if name == "ours" else "s" if name in WEAKER else "o"
        axis.plot(row["ms"], place, marker, color=colour, ms=8)
        ratio = "" if name == "ours" or row["times_ours"] is None else f"  {shown(row['times_ours'])}x"
        axis.text(row["ms"] * 1.5, place, f"{shown(row['ms'])} ms{ratio}", va="center", fontsize=8)
    axis.set_xlim(min(ms) / 3, max(ms) * 100)
    axis.set_title(f"{workload}: {'no' if found['private'] == 'none' else found['private']} privacy", fontsize=10)
    axis.set_xlabel("ms per round")
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)


def publish(results: dict, path: pathlib.Path) -> None:
    """Results as JSON, the table and the picture of them, as files of a name without its ending."""
    path.with_suffix(".json").write_text(json.dumps({"workloads": results}, indent=1) + "\n")
    legend = "\n".join(f"* {peer.title}: {peer.about}" for peer in PEERS.values())
    heading = "# Milliseconds per round, and times ours\n\nWritten by `python benchmarks/peers/run.py`."
    tables = "\n\n".join([*map(table, grouped(results)), *published(results)])
    looks = (
        "A percentage is the accuracy on the test set after the last turn, from each system's own initial parameters."
    )
    path.with_suffix(".md").write_text(f"{heading}\n\n{tables}\n\n{looks}\n\n{legend}\n")
    if measured := {name: found for name, found in results.items() if found["rows"]}:
        draw(measured, path.with_suffix(".png"))


def place(item: str) -> tuple[int, int]:
    """Where a workload stands in tables: in the order of `workloads.WORKLOADS`, smaller cohorts first."""
    name, _, cohort = item.partition(":")
    return list(workloads.WORKLOADS).index(name), int(cohort or 0)


def workload_of(item: str) -> str:
    """NAME or NAME:COHORT, checked."""
    workloads.named(item)
    return item


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=VARIABLES, default="cpu")
    parser.add_argument(
        "--workloads", nargs="+", type=workload_of, metavar="WORKLOAD[:COHORT]", help="default those that are published"
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, help="ours always takes part")
    parser.add_argument("--repeats", type=int, help="turns, 9 or on a GPU 5")
    parser.add_argument("--quick", action="store_true", help="two workloads in three turns, within five minutes")
    parser.add_argument("--here", action="store_true", help="all in the interpreter that runs this")
    parser.add_argument(
        "--work",
        type=pathlib.Path,
        default=pathlib.Path.home() / ".cache" / "fedjax_dp_peers",
        help="where the virtual environments are",
    )
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="a folder for JSON, table and picture")
    parser.add_argument("--json", action="store_true", help="print the JSON instead of the table")
    options = parser.parse_args()
    if not options.out.is_dir():
        parser.error(f"--out must be a folder that exists, got {options.out}")
    on_gpu = options.device == "gpu"
    os.environ.update(VARIABLES[options.device])
    if not on_gpu:
        jax.config.update("jax_platforms", "cpu")
    if on_gpu and environment.device()["platform"] != "gpu":
        sys.exit(f"peers: --device gpu: JAX {jax.__version__} sees no GPU here, only {environment.device()['kind']}")
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + QUICK_S if options.quick else math.inf
    setting = Setting(work, options.device, options.here, until)
    usual = GPU_WORKLOADS if on_gpu else CPU_WORKLOADS
    chosen, turns = options.workloads or (QUICK if options.quick else usual), 5 if on_gpu else 9
    turns = options.repeats or (QUICK_TURNS if options.quick else turns)
    names = list(dict.fromkeys(["ours", *(options.peers or (ON_GPU if on_gpu else PEERS))]))
    path = options.out / ("peers_gpu" if on_gpu else "peers")
    file = path.with_suffix(".json")
    known = json.loads(file.read_text())["workloads"] if file.exists() else {}
    about = {"hardware": environment.device(), "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    if any(workloads.named(workload).images for workload in chosen):
        os.environ["PEERS_IMAGES"] = str(work / "cifar10.npz")
        dataset, count = fdp.load("cifar10"), workloads.WORKLOADS["cifar-images"].clients * 50
        order = np.random.default_rng(0).permutation(len(dataset.x_train))[:count]
        np.savez(work / "cifar10.npz", dataset.x_train[order], dataset.y_train[order], dataset.x_test, dataset.y_test)
    for workload in chosen:

        def keep(found: dict, workload: str = workload) -> None:
            known[workload] = found | about | {"load": os.getloadavg()[0]}
            publish({name: known[name] for name in sorted(known, key=place)}, path)

        keep(compared(workload, names, turns, setting, keep))
    results = {name: known[name] for name in sorted(known, key=place)}
    print(json.dumps(results) if options.json else table(results))


if __name__ == "__main__":
    main()
