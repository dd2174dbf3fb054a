"""A plan on paper: bytes, seconds and dollars of a run that no machine at hand could hold.

    python benchmarks/plan.py                          # 1e9 clients, cohorts of 1e5, 1e7 parameters, 256 devices
    python benchmarks/plan.py --clients 1e6 --cohort 1e3 --out DIR

What this project costs is measured here; what an accelerator gives is that of an H200 in `forecast`, its
links and price are assumed, and said so. The least time of a round is counted as `fedjax-dp bench` counts it, in
products, bytes and normals; the share of it that rounds reach at 1e7 parameters is measured on this machine, and taken
over.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np
from forecast import kernels
from forecast.targets import TARGETS
from provenance import made_with

import fedjax_dp as fdp
from fedjax_dp.data import Dataset, federate
from fedjax_dp.experiments import environment
from fedjax_dp.models import mlp
from fedjax_dp.rounds import simulation
from fedjax_dp.rounds.prefetch import Prefetcher
from fedjax_dp.tools.latency.floor import floor_of
from fedjax_dp.tools.latency.measurement import DISTURBED

RESULTS = pathlib.Path(__file__).parent / "results"
FEATURES, RECORDS, BATCH, HIDDEN = 64, 10, 10, 133_333  # the model of 1e7 parameters of scaling.py
# Of an accelerator: speeds fitted to rounds on an H200; those that follow are not measured.
ASSUMED = {
    "flops": (1e6 * kernels.EXACT[0][1], "operations of float32 products a second"),
    "bytes": (1e6 * kernels.BYTES, "bytes of memory copied a second"),
    "normals": (1e6 * kernels.NORMALS, "normals a second"),
    "memory": (float(TARGETS[kernels.CALIBRATED].memory), "bytes of memory"),
    "link": (50e9, "bytes a second and device between machines"),
    "host": (50e9, "bytes a second from its host"),
    "disk": (1e9, "bytes a second and device from disk"),
    "price": (4.0, "dollars a device and hour"),
}
LETTERS = ("F", "B", "Z", "M", "L", "H", "D", "p")


def measure():
    """Constants of this program, on this machine."""
    model, execution = mlp((FEATURES,), 10, (HIDDEN,)), fdp.execution.all_devices()
    data = clients(20)
    algorithm = fdp.dpnfl(
        cohort_size=4,
        batch_size=BATCH,
        local_steps=5,
        learning_rate=0.01,
        clip_norm=1.0,
        noise_multiplier=1.0,
        schedule="constant",
        l2=0.0,
    )
    floor = floor_of(simulation.as_float32_leaves(algorithm), data, model, execution)
    run, state = simulation.initialize(algorithm, data, model, execution)
    size, times = sum(leaf.size for leaf in jax.tree.leaves(state.params)), []
    for turn in range(8):
        print(f"round {turn + 1} of 8", file=sys.stderr)
        began = time.perf_counter()
        state, found = run.advance(state, turn + 1)
        jax.block_until_ready((state, found))
        times.append(1e3 * (time.perf_counter() - began))
    round_ms, work = statistics.median(times[1:]), 4 * 5 * size  # client-steps x parameters
    cohorts = simulation.as_float32_leaves(fdp.parts.UniformCohort(size=100_000))
    draw = jax.jit(lambda key, shares: cohorts.sample(fdp.parts.CohortKeys.of(key, 0), 0, shares).ids)
    shares = np.full(10**7, 1e-7, np.float32)
    many = clients(100_000)
    prefetcher = Prefetcher(
        simulation.as_float32_leaves(fdp.fedavg(cohort_size=1000, batch_size=BATCH, local_steps=1, learning_rate=0.1)),
        many,
        execution,
        simulation.run_key(0),
        size,
    )
    drawn = prefetcher._draw(0)
    block_s = best(lambda: prefetcher._read(0, drawn).records.held)
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(prefetcher._read(0, drawn).records.held))
    prefetcher.close()
    return {
        "flops": floor.flops / work,
        "bytes": floor.bytes / work,
        "normals": floor.normals / work,
        "reached": floor.ms / round_ms,
        "floor_ms": floor.ms,
        "round_ms": round_ms,
        "spread": spread(times[1:]),
        "draw_s": best(lambda: draw(jax.random.key(0), shares)),
        "feed_bytes": held / block_s,
        "client_bytes": (anonymous_bytes(1_000_000) - anonymous_bytes(1000)) / 999_000,
    }


def anonymous_bytes(count):
    """Memory of a process that runs on a store of so many clients, without pages of the store."""
    with tempfile.TemporaryDirectory() as work:
        fdp.data.save_store(clients(count, features=1), pathlib.Path(work) / "store")
        command = [sys.executable, __file__, "--store", str(pathlib.Path(work) / "store")]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def held(store):
    """The same, in this process."""
    data, model = fdp.data.open_store(store), mlp((1,), 10, (1,))
    algorithm = fdp.fedavg(cohort_size=10, batch_size=BATCH, local_steps=1, learning_rate=0.1)
    run, state = simulation.initialize(algorithm, data, model, fdp.execution.all_devices(), on_host=True)
    jax.block_until_ready(run.advance(state, 1))
    run.close()
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


def clients(count, features=FEATURES):
    """Random records."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((count * RECORDS, features), np.float32), rng.integers(0, 10, count * RECORDS)
    dataset = Dataset("random", x, y.astype(np.int32), x[:10], y[:10].astype(np.int32), classes=10)
    return federate(dataset, np.arange(count * RECORDS).reshape(count, RECORDS))


def best(call):
    """Seconds of the fastest of five calls."""
    times = []
    for _ in range(6):
        began = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - began)
    return min(times[1:])


def spread(times):
    return float(np.subtract(*np.percentile(times, [75, 25])) / np.median(times))


def plan(o, m):
    """Rows of (what, formula, number, unit)."""
    a = {name: number for name, (number, _) in ASSUMED.items()}
    record, own = 4 * FEATURES + 4, o.cohort / o.devices  # clients of a round on a device
    work = own * o.steps * o.parameters
    products = work * (m["flops"] / a["flops"] + m["normals"] / a["normals"])
    traffic = work * m["bytes"] / a["bytes"]
    compute = max(products, traffic) / m["reached"]
    moved, sent = own * RECORDS * record, 2 * 4 * o.parameters * (o.devices - 1) / o.devices
    fed, total = moved / min(a["host"], a["disk"], m["feed_bytes"]), sent / a["link"]
    vectors = 6 * 4 * o.parameters  # model, gradient, start, sum, two moments of the server
    together = max(0, int((a["memory"] / 2 - vectors) / (3 * 4 * o.parameters)))
    partners = min(o.clients, o.cohort * o.rounds)
    round_s = max(compute, fed) + total
    hours = o.rounds * round_s / 3600
    return [
        ("records on disk", "N n r", o.clients * RECORDS * record, "B"),
        ("who the clients are, in every process", "N h", o.clients * m["client_bytes"], "B"),
        ("clients that keep a model each: all of them", "4 N d", 4 * o.clients * o.parameters, "B"),
        ("those who took part", "4 min(N, m T) d", 4 * partners * o.parameters, "B"),
        ("moved to and from a device in a round", "8 (m / P) d", 8 * own * o.parameters, "B"),
        ("model and its like on a device", "24 d", vectors, "B"),
        ("clients at once on a device, in half its memory", "(M / 2 - 24 d) / (12 d)", together, ""),
        ("records moved to a device in a round", "(m / P) n r", moved, "B"),
        ("sent by a device in a round", "8 d (P - 1) / P", sent, "B"),
        ("drawing the cohort, beside the rounds", "m s", m["draw_s"] * o.cohort / 1e5, "s"),
        ("products and normals of a round, at least", "(m / P) tau d (f / F + z / Z)", products, "s"),
        ("memory traffic, at least", "(m / P) tau d b / B", traffic, "s"),
        ("computing", "the larger of the two / e", compute, "s"),
        ("records to devices, meanwhile", "(m / P) n r / min(H, D, g)", fed, "s"),
        ("the sum over devices", "8 d (P - 1) / P / L", total, "s"),
        ("a round", "max(computing, records) + sum", round_s, "s"),
        ("a run", "T rounds", hours, "h"),
        ("its price", "P T rounds x p", o.devices * hours * a["price"], "dollars"),
    ]


def shown(number, unit):
    """A number that people can read."""
    if unit == "B":
        power = max(0, min(5, int(np.log10(max(number, 1)) // 3)))
        return f"{number / 1e3**power:,.3g} {('B', 'kB', 'MB', 'GB', 'TB', 'PB')[power]}"
    if unit == "s" and number < 0.1:
        return f"{1e3 * number:.3g} ms"
    return (f"{number:,.0f}" if number >= 100 else f"{number:.3g}") + (f" {unit}" if unit else "")


def written(o, m, rows):
    """The plan as Markdown."""
    assumed = "; ".join(
        f"{letter} = {number:.3g} {words}" for letter, (number, words) in zip(LETTERS, ASSUMED.values())
    )
    return f"""# {o.clients:.0e} clients on paper

N = {o.clients:.0e} clients of n = {RECORDS} records of r = {4 * FEATURES + 4} bytes, cohorts of m = {o.cohort:.0e},
tau = {o.steps} local steps of {BATCH} records, T = {o.rounds:,} rounds, d = {o.parameters:.0e} parameters,
P = {o.devices} accelerators. Nothing of this size was run: `benchmarks/plan.py` wrote this from what it measured.

| what | formula | |
|---|---|---|
{chr(10).join(f"| {what} | {formula} | {shown(number, unit)} |" for what, formula, number, unit in rows)}

![Seconds a round](plan.png)

Measured on {environment.device()["cores"]} cores ({environment.device()["processor"]}):

- f = {m["flops"]:.3g} operations in products, b = {m["bytes"]:.3g} bytes and z = {m["normals"]:.3g} normals per
  client-step and parameter are what a round cannot do without;
- e = {m["reached"]:.2f} of that floor is reached at 1e7 parameters ({m["floor_ms"]:.0f} of {m["round_ms"]:.0f} ms);
- s = {1e9 * m["draw_s"] / 1e5:.0f} ns a client: 1e5 of 1e7 clients are drawn in {1e3 * m["draw_s"]:.1f} ms;
- g = {m["feed_bytes"] / 1e9:.2g} GB a second of records are put together for devices by a process;
- h = {m["client_bytes"]:.0f} bytes a client of {RECORDS} records, beside pages of the store, which the system may drop.

Of an accelerator, where F, B and Z are fitted to profiled rounds on an H200 and the rest is assumed: {assumed}.

The arithmetic of the clients decides, not the network: one sum a round is all that travels. Clients that keep a model
each (SCAFFOLD) fit no disk at this size; those that keep nothing do. What would have to change before a run: every
process holds who all the clients are, where its share would do.
"""


def draw(o, m, path):
    """Seconds of a round against the number of accelerators."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    counts = [2**power for power in range(1, 13)]
    at = [
        {what: number for what, _, number, unit in plan(argparse.Namespace(**vars(o) | {"devices": count}), m)}
        for count in counts
    ]
    figure, axis = plt.subplots(figsize=(7.6, 3.4), layout="constrained")
    shown = {"a round": "-", "computing": "--", "the sum over devices": "-.", "records to devices, meanwhile": ":"}
    for (what, style), color in zip(shown.items(), ("black", "#1f5fa8", "#b0643c", "0.5"), strict=True):
        axis.loglog(counts, [row[what] for row in at], style, color=color, label=what, base=10)
    axis.axvline(o.devices, color="0.8", zorder=0)
    axis.set_xlabel("accelerators")
    axis.set_title(f"seconds a round, cohorts of {o.cohort:.0e}, {o.parameters:.0e} parameters", loc="left", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("clients", 1e9), ("cohort", 1e5), ("parameters", 1e7)):
        parser.add_argument(f"--{name}", type=float, default=default)
    for name, default in (("devices", 256), ("steps", 10), ("rounds", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="an existing folder")
    parser.add_argument("--store", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.store is not None:
        print(held(o.store))
        return
    if not o.out.is_dir() or min(o.clients, o.cohort, o.parameters, o.devices, o.steps, o.rounds) < 1:
        parser.error("--out must be an existing folder, and every number at least 1")
    m = measure()
    if m["spread"] > DISTURBED:
        sys.exit(f"plan: disturbed: rounds spread by {m['spread']:.0%}; run it again on a quiet machine")
    rows = plan(o, m)
    options = {name: value for name, value in vars(o).items() if name not in ("out", "store")}
    found = {
        "asked": options,
        "measured": m,
        "assumed": {name: number for name, (number, _) in ASSUMED.items()},
        "rows": [dict(zip(("what", "formula", "number", "unit"), row, strict=True)) for row in rows],
        **made_with(),
    }
    (o.out / "plan.json").write_text(json.dumps(found, indent=1) + "\n")
    draw(o, m, o.out / "plan.png")
    text = written(o, m, rows)
    (o.out / "plan.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
