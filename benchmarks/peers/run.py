"""Everybody's private federated round, side by side: rivals in virtual environments of their own, timed in turns.

    python benchmarks/peers/run.py                      # W1, W2, W3, W3dp; sets up what is missing
    python benchmarks/peers/run.py --workloads cifar cifar-client cifar-record
    python benchmarks/peers/run.py --peers opacus_ghost pfl_rounds --repeats 15

Each contender is one file in `contenders/` and runs in its own process, started once. The processes take turns while
the others wait, so a busy machine slows all of them; read the ratios, which are taken turn by turn. A turn in which the
hypervisor gave the cores to others is taken again. Before that, all
that clip single records compute the clipped gradient of one batch at the same weights; one that differs stops the
comparison. A rival that does not install or run stays in the table with the reason. Records are random and the same
for all; see `workloads.py` for the sizes. PyTorch takes all cores itself, Flower one for each client, JAX alone its
own choice, fedjax_dp a part of the cohort on each core.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import select
import subprocess
import sys
import time
import venv
from typing import NamedTuple

import numpy as np
import quiet
import workloads

from fedjax_dp.experiments import environment

HERE = pathlib.Path(__file__).parent
RESULTS = HERE.parent / "results"
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
WEAKER = ("pfl_rounds", "torch_loop")  # no privacy of records


class Refused(Exception):
    """Why a contender takes no part."""


def python_of(peer: Peer, work: pathlib.Path) -> str:
    """The interpreter of a contender's environment, which is made unless it is there."""
    if peer.environment is None:
        return sys.executable
    home = work / peer.environment
    python, done = home / "bin" / "python", home / "ready"
    if not done.exists():
        print(f"setting up {peer.title}: {' '.join(peer.requirements)}", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        found = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *peer.requirements], capture_output=True, text=True, check=False
        )
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

    def __init__(self, name: str, workload: str, work: pathlib.Path) -> None:
        python = python_of(PEERS[name], work)
        self.log = work / f"{workload}-{name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [python, "worker.py", name, workload, str(work)],
                cwd=HERE,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"PYTHONPATH": str(HERE)},
            )
        try:
            self.ready = self.answer()
        except Refused:
            self.stop()
            raise

    def answer(self) -> dict:
        stdout = self.process.stdout
        if not select.select([stdout], [], [], PATIENCE_S)[0]:
            raise Refused(f"no answer in {PATIENCE_S} s")
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


def started(names: list[str], workload: str, work: pathlib.Path) -> tuple[dict[str, Worker], dict[str, str]]:
    """The contenders that run, and why others do not."""
    workers, reasons = {}, {}
    for name in names:
        print(f"{workload}: starting {PEERS[name].title}", file=sys.stderr)
        try:
            workers[name] = Worker(name, workload, work)
        except Refused as reason:
            reasons[name] = str(reason)
            print(f"{workload}: {PEERS[name].title}: {reason}", file=sys.stderr)
    return workers, reasons


def gaps(workers: dict[str, Worker]) -> dict[str, float]:
    """Largest difference of each clipped gradient to ours, over the largest entry; stops where they differ."""
    found = {}
    files = {name: worker.ready["gradient"] for name, worker in workers.items() if worker.ready["gradient"]}
    if "ours" in files:
        ours = [np.asarray(part) for part in np.load(files["ours"]).values()]
        scale = max(np.abs(part).max() for part in ours)
        for name, file in files.items():
            theirs = np.load(file).values()
            found[name] = float(max(np.abs(a - b).max() for a, b in zip(ours, theirs, strict=True)) / scale)
            if not found[name] < 1e-4:
                sys.exit(f"{name} does not compute the same clipped gradient: relative difference {found[name]:.2g}")
    return found


def compared(workload: str, names: list[str], repeats: int, work: pathlib.Path) -> dict:
    """Milliseconds a round of every contender, in turns."""
    workers, reasons = started(names, workload, work)
    try:
        difference = gaps(workers)
        turns = {name: [] for name in workers}
        peaks = {}
        for turn in range(repeats):
            for name in list(workers):
                if turn >= FEW and np.median(turns[name]) > SLOW_MS:
                    continue
                time.sleep(SETTLE_S)
                try:
                    told = quiet.undisturbed(workers[name].turn)
                except Refused as reason:
                    reasons[name] = str(reason)
                    workers.pop(name).stop()
                    turns.pop(name)
                    continue
                turns[name].append(float(np.median(told["ms"])))
                peaks[name] = told["peak_mb"]
            print(f"{workload}: turn {turn + 1} of {repeats}", file=sys.stderr)
        versions = {name: worker.ready["versions"] for name, worker in workers.items()}
    finally:
        for worker in workers.values():
            worker.stop()
    rows = {}
    for name, ms in turns.items():
        pairs = min(len(ms), len(turns.get("ours", ms)))
        rows[name] = {
            "ms": float(np.median(ms)),
            "spread": quiet.spread(ms),
            "turns": ms,
            "peak_mb": peaks[name],
            "times_ours": float(np.median(np.array(ms[:pairs]) / turns["ours"][:pairs])) if "ours" in turns else None,
            "gradient_gap": difference.get(name),
            "versions": versions[name],
        }
    disturbed = [name for name, row in rows.items() if row["spread"] > 0.3]
    return {**workloads.WORKLOADS[workload]._asdict(), "rows": rows, "reasons": reasons, "disturbed": disturbed}


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
            cells.append(f"{shown(row['ms'])} ms{ratio}{' (disturbed)' if name in w['disturbed'] else ''}")
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


def publish(results: dict, folder: pathlib.Path) -> None:
    """The table and the picture of results."""
    told = "\n".join(f"* {peer.title}: {peer.about}" for peer in PEERS.values())
    heading = "# Milliseconds per round, and times ours\n\nWritten by `python benchmarks/peers/run.py`."
    tables = "\n\n".join([*map(table, grouped(results)), *published(results)])
    (folder / "peers.md").write_text(f"{heading}\n\n{tables}\n\n{told}\n")
    draw(results, folder / "peers.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=workloads.WORKLOADS, default=["W1", "W2", "W3", "W3dp"])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), help="ours always takes part")
    parser.add_argument("--repeats", type=int, default=9, help="turns")
    parser.add_argument(
        "--work",
        type=pathlib.Path,
        default=pathlib.Path.home() / ".cache" / "fedjax_dp_peers",
        help="where the virtual environments are",
    )
    parser.add_argument(
        "--out", type=pathlib.Path, default=RESULTS, help="a folder for peers.json, peers.md, peers.png"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON instead of the table")
    options = parser.parse_args()
    if not options.out.is_dir():
        parser.error(f"--out must be a folder that exists, got {options.out}")
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(["ours", *options.peers]))
    path = options.out / "peers.json"
    known = json.loads(path.read_text())["workloads"] if path.exists() else {}
    for workload in options.workloads:
        known[workload] = compared(workload, names, options.repeats, work) | {
            "hardware": environment.device(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "load": os.getloadavg()[0],
        }
        results = {name: known[name] for name in workloads.WORKLOADS if name in known}
        path.write_text(json.dumps({"workloads": results}, indent=1) + "\n")
        publish(results, options.out)
    print(json.dumps(results) if options.json else table(results))


if __name__ == "__main__":
    main()
