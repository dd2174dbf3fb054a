"""How a private round grows: with the cohort, local steps, population and parameters, in time, memory and compilation.

    python benchmarks/scaling.py                    # all curves, about ten minutes; writes scaling.json and scaling.png
    python benchmarks/scaling.py --curves cohort    # one of them again

Every point runs in a process of its own, so that its peak memory is its own. Softmax regression on 784 features unless
the curve is of parameters, records clipped and noised, batches of 10.

cohort       1 to 10,000 clients of 10 records, 5 local steps, 100 clients at once on a device: time per client-step
steps        1 to 500 local steps of 10 clients: time per client-step
population   100 to 1,000,000 clients of 10 records of 20 features, cohort 10, 10 steps: time per round, flat to 1.3
parameters   1e3 to 1e7 of an MLP on 64 features, cohort 4, 5 steps: time per client-step
start        from nothing to the end of the first round of W1, without and with programs on disk: seconds
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
from fedjax_dp import devices, folders
from fedjax_dp.data import Dataset, federate
from fedjax_dp.models import logistic_regression, mlp
from fedjax_dp.rounds import simulation

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers"))
import quiet

RESULTS = pathlib.Path(__file__).parent / "results"
TURN_S, TURNS = 0.5, 5
POINTS = {
    "cohort": [
        {"clients": max(100, cohort), "cohort": cohort, "steps": 5, "chunk": 100}
        for cohort in (1, 10, 100, 1000, 10_000)
    ],
    "steps": [{"clients": 100, "records": 600, "cohort": 10, "steps": steps} for steps in (1, 5, 50, 500)],
    "population": [
        {"clients": clients, "features": 20, "cohort": 10, "steps": 10}
        for clients in (100, 1000, 10_000, 100_000, 1_000_000)
    ],
    "parameters": [
        {"clients": 20, "features": 64, "hidden": hidden, "cohort": 4, "steps": 5}
        for hidden in (13, 133, 1333, 13_333, 133_333)
    ],
    "start": [{"clients": 100, "records": 600, "cohort": 10, "steps": 50, "warm": warm} for warm in (False, True)],
}
AXES = {
    "cohort": ("cohort", "clients in the cohort", "us_per_client_step"),
    "steps": ("steps", "local steps", "us_per_client_step"),
    "population": ("clients", "clients in all", "round_ms"),
    "parameters": ("parameters", "parameters", "us_per_client_step"),
}
LABELS = {"us_per_client_step": "microseconds per client-step", "round_ms": "milliseconds per round"}


def point(began, clients, cohort, steps, features=784, records=10, hidden=None, chunk=None, warm=None):
    """One measurement, in this process, which began at that time."""
    if warm is not None:
        devices.cache_programs()
    rng = np.random.default_rng(0)
    total = clients * records
    x = rng.integers(0, 256, (total, features), dtype=np.uint8)
    y = rng.integers(0, 10, total).astype(np.int32)
    data = federate(
        Dataset("random", x, y, x[:100], y[:100], classes=10, scale=1 / 255),
        list(np.arange(total).reshape(clients, records)),
    )
    model = mlp((features,), 10, (hidden,)) if hidden else logistic_regression((features,), 10)
    algorithm = fdp.dpnfl(
        cohort_size=cohort,
        batch_size=10,
        local_steps=steps,
        learning_rate=0.01,
        clip_norm=1.0,
        noise_multiplier=1.0,
        schedule="constant",
        l2=0.0,
    )
    rounds_, state = simulation.initialize(algorithm, data, model, fdp.execution.all_devices(chunk))

    def run(state, rounds):
        at = time.perf_counter()
        state, found = rounds_.advance(state, int(state.round) + rounds)
        jax.block_until_ready((state, found))
        return state, time.perf_counter() - at

    state, first = run(state, 1)
    since_start = time.time() - began
    state, usual = run(state, 1)
    rounds = max(1, min(500, int(TURN_S / usual)))
    held = [state]

    def turn():
        held[0], spent = run(held[0], rounds)
        return 1e3 * spent / rounds

    times = [quiet.undisturbed(turn) for _ in range(TURNS if warm is None else 1)]
    ms = float(np.median(times))
    return {
        "clients": clients,
        "cohort": cohort,
        "steps": steps,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(held[0].params)),
        "warm": warm,
        "round_ms": ms,
        "us_per_client_step": 1e3 * ms / (cohort * steps),
        "spread": quiet.spread(times),
        "compile_s": max(first - usual, 0.0),
        "first_round_s": since_start,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def elsewhere(settings, environment):
    """A measurement in a process of its own."""
    setting = json.dumps(settings | {"began": time.time()})
    command = [sys.executable, __file__, "--point", setting]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if found.returncode:
        sys.exit(f"scaling: {settings}: {found.stderr.strip().splitlines()[-1]}")
    return json.loads(found.stdout)


def measured(curve):
    """All points of a curve; the starts share a folder of programs, which is empty before the first."""
    rows = []
    with tempfile.TemporaryDirectory() as programs:
        for settings in POINTS[curve]:
            own = {"JAX_COMPILATION_CACHE_DIR": programs} if curve == "start" else {}
            own |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"} if own else {}
            rows.append(elsewhere(settings, os.environ | own))
            print(
                f"{curve}: {len(rows)} of {len(POINTS[curve])}: {rows[-1]['round_ms']:.3g} ms a round", file=sys.stderr
            )
    return rows


def draw(curves, path):
    """Time against each axis, with peak memory and compilation below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown = [curve for curve in AXES if curve in curves]
    figure, axes = plt.subplots(
        3, len(shown), figsize=(3.4 * len(shown), 6), sharex="col", squeeze=False, height_ratios=(2, 1, 1)
    )
    for column, curve in zip(axes.T, shown, strict=True):
        axis, label, kind = AXES[curve]
        at = [row[axis] for row in curves[curve]]
        time_, memory, compilation = column
        time_.loglog(at, [row[kind] for row in curves[curve]], "o-", color="#1f5fa8")
        low, high = time_.get_ylim()
        time_.set_ylim(min(low, high / 20), max(high, low * 20))
        memory.plot(at, [row["peak_mb"] for row in curves[curve]], "s-", color="#b0643c")
        compilation.plot(at, [row["compile_s"] for row in curves[curve]], "^-", color="0.45")
        for part, title in zip(column, (LABELS[kind], "peak memory (MB)", "compiling (s)"), strict=True):
            part.set_title(title, fontsize=9, loc="left")
            part.spines[["top", "right"]].set_visible(False)
            part.grid(alpha=0.25)
        for part in (memory, compilation):
            part.set_ylim(0, 1.15 * part.get_ylim()[1])
        compilation.set_xlabel(label)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", nargs="+", choices=POINTS, default=list(POINTS))
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--point", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point is not None:
        print(json.dumps(point(**options.point)))
        return
    if not options.out.is_dir():
        parser.error(f"--out must be a folder that exists, got {options.out}")
    path = options.out / "scaling.json"
    curves = json.loads(path.read_text())["curves"] if path.exists() else {}
    for curve in options.curves:
        curves[curve] = measured(curve)
    disturbed = [
        f"{curve} {at}" for curve, rows in curves.items() for at, row in enumerate(rows) if row["spread"] > 0.3
    ]
    folders.write_json(path, {"curves": curves, "disturbed": disturbed, **made_with()})
    draw(curves, options.out / "scaling.png")
    for curve, rows in curves.items():
        for row in rows:
            print(
                f"{curve:<11}clients {row['clients']:>9,}  cohort {row['cohort']:>6,}  steps {row['steps']:>3}  "
                f"parameters {row['parameters']:>10,}  {row['round_ms']:9.3f} ms  {row['us_per_client_step']:8.2f} us  "
                f"{row['peak_mb']:7.0f} MB  compile {row['compile_s']:.1f} s  first round {row['first_round_s']:.1f} s"
            )
    if disturbed:
        print(f"disturbed, run again: {', '.join(disturbed)}")


if __name__ == "__main__":
    main()
