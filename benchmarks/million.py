"""A million clients in a store on disk, against a thousand in memory: start, time per round, peak memory.

    python benchmarks/million.py                      # writes million.json and million.png
    python benchmarks/million.py --clients 100000     # a smaller population

Clients of 10 records of 20 features, cohorts of 10, 10 local steps with records clipped and noised. Each population
runs in a process of its own, and the two take turns of a thousand rounds. Programs are on disk from a first start, so
the second tells what a user waits for: from nothing to the end of the first round. Before that a thousand clients must
end at the same bits from memory and from a store, or nothing is written.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np
from provenance import made_with

import fedjax_dp as fdp
from fedjax_dp import devices
from fedjax_dp.data import Dataset, federate, open_store, save_store
from fedjax_dp.models import logistic_regression
from fedjax_dp.rounds import simulation
from fedjax_dp.tools.latency.measurement import DISTURBED

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers"))
import quiet

RESULTS = pathlib.Path(__file__).parent / "results"
FEW, RECORDS, FEATURES, CLASSES = 1000, 10, 20, 10
TURN = 1000  # rounds


def population(clients):
    """Random records, the same for the same number of clients."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients * RECORDS, FEATURES), dtype=np.float32)
    y = rng.integers(0, CLASSES, clients * RECORDS).astype(np.int32)
    dataset = Dataset("random", x, y, x[:100], y[:100], classes=CLASSES)
    return federate(dataset, np.arange(clients * RECORDS).reshape(clients, RECORDS))


def algorithm():
    return fdp.dpnfl(
        cohort_size=10, batch_size=10, local_steps=10, learning_rate=0.1, clip_norm=1.0, noise_multiplier=1.0
    )


def require_equal_bits(folder):
    """Disk is memory."""
    ends = [
        fdp.simulate(algorithm(), data, rounds=300, evaluate_every=300, on_host=host).params
        for data, host in ((population(FEW), False), (open_store(folder), True))
    ]
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_array_equal(a, b)


def worker(folder, began):
    """Rounds of a store, or without one of a thousand clients in memory; a turn for each line on stdin."""
    devices.cache_programs()
    data = open_store(folder) if folder else population(FEW)
    model = logistic_regression((FEATURES,), CLASSES)
    simulation.check(algorithm(), data, 1, model)
    rounds, state = simulation.initialize(algorithm(), data, model, fdp.execution.all_devices(), on_host=bool(folder))
    state, _ = rounds.advance(state, 1)
    jax.block_until_ready(state)
    print(json.dumps({"first_round_s": time.time() - began}), flush=True)
    for _ in sys.stdin:
        at = time.perf_counter()
        state, _ = rounds.advance(state, int(state.round) + TURN)
        jax.block_until_ready(state)
        ms = 1e3 * (time.perf_counter() - at) / TURN
        print(json.dumps({"round_ms": ms, "peak_mb": peak_mb()}), flush=True)
    rounds.close()


def peak_mb():
    """Of this process; on Linux without what its parent had, which getrusage counts in."""
    status = pathlib.Path("/proc/self/status")
    if status.is_file():
        return next(int(line.split()[1]) / 1024 for line in status.read_text().splitlines() if line[:6] == "VmHWM:")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def start(folder, programs):
    """A worker, and how long its first round took."""
    command = [sys.executable, __file__, "--worker", str(folder or ""), "--began", str(time.time())]
    cache = {"JAX_COMPILATION_CACHE_DIR": str(programs), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    process = subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | cache
    )
    return process, json.loads(process.stdout.readline())["first_round_s"]


def stop(process):
    process.stdin.close()
    process.wait()


def turn(process):
    process.stdin.write("\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def measure(clients, repeats, work):
    """Both populations in turns."""
    stores = {"memory": None, "disk": work / "many"}
    print(f"writing {clients:,} clients", file=sys.stderr)
    save_store(population(clients), stores["disk"])
    save_store(population(FEW), work / "few")
    require_equal_bits(work / "few")
    rows, workers = {}, {}
    for name, folder in stores.items():
        for _ in range(2):  # the first compiles
            if name in workers:
                stop(workers[name])
            workers[name], first = start(folder, work / "programs")
        rows[name] = {"clients": clients if folder else FEW, "first_round_s": first, "ms": []}
    for at in range(repeats):
        print(f"turn {at + 1} of {repeats}", file=sys.stderr)
        for name, process in workers.items():
            found = quiet.undisturbed(lambda process=process: turn(process))
            rows[name]["ms"].append(found["round_ms"])
            rows[name]["peak_mb"] = found["peak_mb"]
    for process in workers.values():
        stop(process)
    ratio = float(np.median(np.array(rows["disk"]["ms"]) / np.array(rows["memory"]["ms"])))
    for row in rows.values():
        times = row.pop("ms")
        row |= {"round_ms": float(np.median(times)), "spread": quiet.spread(times)}
        row["disturbed"] = row["spread"] > DISTURBED
    return {"memory": rows["memory"], "disk": rows["disk"], "time_over_memory": ratio}


def draw(found, path):
    """Bars of both populations."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.8), layout="constrained")
    names = [f"{found[kind]['clients']:,}\nin {where}" for kind, where in (("memory", "memory"), ("disk", "a store"))]
    shown = {"round_ms": "milliseconds a round", "first_round_s": "seconds to the first round", "peak_mb": "peak MB"}
    for axis, (key, title) in zip(axes, shown.items(), strict=True):
        heights = [found[kind][key] for kind in ("memory", "disk")]
        bars = axis.bar(names, heights, color=["0.6", "#1f5fa8"], width=0.6)
        axis.bar_label(bars, [f"{h:,.0f}" if h > 100 else f"{h:.2f}" for h in heights], fontsize=8, padding=1)
        axis.set_title(title, loc="left", fontsize=9)
        axis.margins(y=0.15)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="an existing folder")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        worker(options.worker, options.began)
        return
    if not options.out.is_dir() or options.clients < FEW:
        parser.error(f"--out must be an existing folder and --clients at least {FEW}")
    with tempfile.TemporaryDirectory() as work:
        found = measure(options.clients, options.repeats, pathlib.Path(work))
    (options.out / "million.json").write_text(json.dumps(found | made_with(), indent=1) + "\n")
    draw(found, options.out / "million.png")
    for row in (found["memory"], found["disk"]):
        print(
            f"{row['clients']:>9,} clients: {row['round_ms']:.3f} ms a round, first round after "
            f"{row['first_round_s']:.1f} s, {row['peak_mb']:.0f} MB{', disturbed' if row['disturbed'] else ''}"
        )
    print(f"time over memory {found['time_over_memory']:.2f}")


if __name__ == "__main__":
    main()
