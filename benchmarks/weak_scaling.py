"""Weak scaling: a private round of so many clients a device, on one device, two, four, ... as many as there are.

    python benchmarks/weak_scaling.py                                      # W1; writes weak_scaling.json and .png
    JAX_NUM_CPU_DEVICES=8 python benchmarks/weak_scaling.py --clients 10   # more devices than cores share the cores

Rounds on every number of devices take turns. Perfect is the time of one device; the efficiency is that time over the
time taken. Beside it the same with the cohort added up in order (`deterministic`), whose parameters after three rounds
must be the same bits on every number of devices, or nothing is written; and `apart`, rounds that have nothing to do
with each other, one on each device at the same time: what the machine itself loses when more of it is busy.
"""

import argparse
import concurrent.futures
import pathlib
import sys

import jax
import numpy as np
from jax.sharding import Mesh
from provenance import made_with
from round_latency import RESULTS, ours, quiet, timed, workloads

import fedjax_dp as fdp
from fedjax_dp import devices, folders
from fedjax_dp.execution.mesh import AXIS
from fedjax_dp.tools.latency.measurement import DISTURBED


def counts_of(available):
    """Powers of two up to what is there, and all of it."""
    return sorted({2**power for power in range(available.bit_length()) if 2**power <= available} | {available})


def require_equal_bits(w, data, model, counts, parts):
    """The law that the second column rests on."""
    algorithm = ours.algorithm_of(w)
    ends = [
        fdp.simulate(
            algorithm,
            data,
            rounds=3,
            model=model,
            evaluate_every=3,
            execution=fdp.execution.some_devices(n, parts=parts),
        ).params
        for n in counts
    ]
    for end in ends[1:]:
        for a, b in zip(*map(jax.tree.leaves, (ends[0], end)), strict=True):
            np.testing.assert_array_equal(a, b)


def side_by_side(w, data, model, count):
    """Runs as many separate rounds as there are devices, each on its own."""
    meshes = [Mesh([device], (AXIS,)) for device in jax.devices()[:count]]
    runs = [ours.rounds_of(w, ours.algorithm_of(w), data, model, fdp.execution.Execution(mesh)) for mesh in meshes]
    threads = concurrent.futures.ThreadPoolExecutor(count)

    def run():
        each = list(threads.map(lambda one: one(), runs))
        return each[0]

    return run


def measure(w, clients, repeats):
    """Milliseconds of a round for every number of devices, with and without a fixed order of the sum."""
    counts = counts_of(len(jax.devices()))
    data, model, most = ours.clients_of(w), ours.model_of(w), counts[-1]
    require_equal_bits(w._replace(cohort=clients * most), data, model, counts, most)
    runs = {}
    for n in counts:
        own = w._replace(cohort=clients * n)
        for kind, parts in (("any_order", None), ("in_order", n)):
            execution = fdp.execution.some_devices(n, parts=parts)
            runs[n, kind] = ours.rounds_of(own, ours.algorithm_of(own), data, model, execution)
        runs[n, "apart"] = side_by_side(w._replace(cohort=clients), data, model, n)
    for run in runs.values():
        run()
    times = {name: [] for name in runs}
    for turn in range(repeats):
        print(f"turn {turn + 1} of {repeats}", file=sys.stderr)
        for name, run in runs.items():
            times[name].append(quiet.undisturbed(lambda run=run: timed(run)))
    one = np.array(times[1, "any_order"])
    return [
        {
            "devices": n,
            "cohort": clients * n,
            "order": kind,
            "ms": float(np.median(ms)),
            "spread": quiet.spread(ms),
            "efficiency": float(np.median(one / np.array(ms))),
            "disturbed": quiet.spread(ms) > DISTURBED,
        }
        for (n, kind), ms in times.items()
    ]


def draw(rows, title, path):
    """Efficiency for every number of devices."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    kinds = {"apart": "rounds apart", "any_order": "one round, any order", "in_order": "one round, in order: same bits"}
    counts = sorted({row["devices"] for row in rows})
    for at, (kind, label) in enumerate(kinds.items()):
        heights = [row["efficiency"] for n in counts for row in rows if (row["devices"], row["order"]) == (n, kind)]
        bars = axes.bar(np.arange(len(counts)) + 0.27 * (at - 1), heights, 0.25, label=label)
        axes.bar_label(bars, [f"{height:.0%}" for height in heights], fontsize=8, padding=1)
    axes.set_xticks(range(len(counts)), [f"{n} device{'s' * (n > 1)}" for n in counts])
    axes.set(ylim=(0, 1.45), yticks=[0, 0.5, 1])
    axes.set_title(title, loc="left", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=3, loc="upper left", fontsize=8)
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="W1", choices=workloads.WORKLOADS)
    parser.add_argument("--clients", type=int, default=5, help="of the cohort, on each device")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="an existing folder")
    options = parser.parse_args()
    if not options.out.is_dir():
        parser.error(f"--out must be an existing folder, got {options.out}")
    devices.cache_programs()
    w = workloads.WORKLOADS[options.workload]
    most = len(jax.devices()) * options.clients
    if not 1 <= most <= w.clients:
        parser.error(f"--clients times devices must be from 1 to {w.clients}, got {most}")
    rows = measure(w, options.clients, options.repeats)
    found = {"rows": rows, "workload": w.name, "clients_per_device": options.clients, **made_with()}
    folders.write_json(options.out / "weak_scaling.json", found)
    draw(
        rows,
        f"{w.name}, {options.clients} clients a device: time of a round on one device, over that on several",
        options.out / "weak_scaling.png",
    )
    for row in rows:
        note = ", disturbed" if row["disturbed"] else ""
        print(f"{row['devices']} devices, {row['order']}: {row['ms']:.3g} ms, efficiency {row['efficiency']:.0%}{note}")


if __name__ == "__main__":
    main()
