"""The private round on an accelerator: cohorts of 10 to 1,000, sweeps of 64 and 256 points, shares of its ceilings.

    python benchmarks/accelerator.py                           # all; writes accelerator.json, .md, .png
    python benchmarks/accelerator.py --only W1:10 W2:100       # some rounds, as workload:cohort
    python benchmarks/accelerator.py --quick                   # fewer repeats and relatives, one sweep: five minutes

For every workload of `peers/` and every cohort: milliseconds per round of ours, of the same round without clipping, of
the same program with one client after another (unvmapped), and with gradients in bfloat16; client-steps per second;
operations and bytes that a round cannot do without over its time, against what the device reaches for products and
copies alone; the kernels that take longest, where the profiler tells them. Then sweeps of W1 with cohorts of 10: all
points as one program, against one point after another. Runs on a CPU too, where it takes long for large cohorts.
"""

import argparse
import collections
import dataclasses
import json
import pathlib
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from provenance import made_with
from round_latency import RESULTS, ours, quiet, relatives, timed, workloads

import fedjax_dp as fdp
from fedjax_dp.privacy import PrivacyTerms
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.sweeps.engine import Job, JobGroup, RecordCache
from fedjax_dp.tools.latency.floor import floor_of, speeds
from fedjax_dp.tools.latency.measurement import DISTURBED

ROUNDS = [
    *("W1:10", "W1:100", "W1:1000", "W2:10", "W2:100", "W2:1000", "W3dp:10", "W3dp:100", "W3:10", "W3:100"),
    *("cifar:50", "cifar-client:50", "cifar-record:50"),
]
POINTS = (64, 256)
KERNELS = 12


def kernels_of(run):
    """Milliseconds and launches a round in all kernels, and the longest ones; None where no profiler sees them."""
    times, launches = collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            rounds = run()
        for file in pathlib.Path(folder).rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
                streams = [line for line in plane.lines if "GPU" in plane.name and "Stream" in line.name]
                for event in (event for line in streams for event in line.events):
                    times[event.name] += event.duration_ns / 1e6 / rounds
                    launches[event.name] += 1 / rounds
    longest = [{"name": name, "ms": ms, "launches": launches[name]} for name, ms in times.most_common(KERNELS)]
    return {"busy_ms": times.total(), "launches": launches.total(), "longest": longest} if times else None


def round_of(w, repeats, quick):
    """One row: a workload with its cohort."""
    data, model, algorithm = ours.clients_of(w), ours.model_of(w), ours.algorithm_of(w)
    execution = fdp.execution.all_devices()
    runs = {"ours": ours.rounds_of(w, algorithm, data, model, execution)}
    if not quick:
        half = dataclasses.replace(model, dtype=jnp.bfloat16)
        runs["one_by_one"] = ours.rounds_of(w, algorithm, data, model, fdp.execution.all_devices(1))
        runs["bfloat16"] = ours.rounds_of(w, algorithm, data, half, execution)
    if w.private == "record":
        runs["unclipped"] = ours.rounds_of(w, relatives(w)["unclipped"], data, model, execution)
    times = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(quiet.undisturbed(lambda run=run: timed(run)))
    median = {name: float(np.median(ms)) for name, ms in times.items()}
    spreads = {name: quiet.spread(ms) for name, ms in times.items()}
    floor = floor_of(algorithm, data, model, execution)
    seconds = median["ours"] / 1e3
    return {
        "workload": w.name,
        "cohort": w.cohort,
        **{f"{name}_ms": ms for name, ms in median.items()},
        "spreads": spreads,
        "client_steps_per_s": w.cohort * w.steps / seconds,
        "flops_per_s": floor.flops / seconds,
        "bytes_per_s": floor.bytes / seconds,
        "normals_per_s": floor.normals / seconds,
        "floor": floor._asdict(),
        "floor_ms": floor.ms,
        "kernels": kernels_of(runs["ours"]),
        "disturbed": max(spreads.values()) > DISTURBED,
    }


def sweep_of(points, rounds, repeats):
    """One row: so many points of W1 as one program, against runs one after another."""
    w = workloads.WORKLOADS["W1"]
    data, model = ours.clients_of(w), ours.model_of(w)
    rates = np.geomspace(0.001, 0.1, points)
    algorithms = [ours.algorithm_of(w._replace(rate=float(rate))) for rate in rates]
    runs = [plan_run(one, data, rounds=rounds, model=model, terms=PrivacyTerms()) for one in algorithms]
    jobs = [Job(run, rounds) for run in runs]
    group, alone = JobGroup(jobs, cache=RecordCache()), JobGroup(jobs[:1], cache=RecordCache())

    def several(group):
        def run():
            dict(group.run())
            return rounds

        return run

    together, one = several(group), several(alone)
    together(), one()
    times = [(timed(together), timed(one)) for _ in range(repeats)]
    return {
        "points": points,
        "rounds": rounds,
        "together_ms": float(np.median([a for a, _ in times])),
        "one_ms": float(np.median([b for _, b in times])),
        "rounds_one_by_one": float(np.median([a / b for a, b in times])),
    }


def table(found):
    """Markdown of all rows."""
    ceilings, names = found["ceilings"], ("unclipped", "one_by_one", "bfloat16")
    lines = [
        f"{found['hardware']['kind']}, JAX {found['versions']['jax']}, {found['date']}, commit {found['commit']}",
        "",
        "| round | ours | busy | unclipped | one client after another | bfloat16 | client-steps/s | of products "
        "| of copies |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in found["rounds"]:
        others = (f"{row[f'{name}_ms'] / row['ours_ms']:.2f}x" if f"{name}_ms" in row else "-" for name in names)
        busy = f"{row['kernels']['busy_ms'] / row['ours_ms']:.0%}" if row["kernels"] else "-"
        lines.append(
            f"| {row['workload']}, cohort {row['cohort']:,} | {row['ours_ms']:.3g} ms"
            f"{' (disturbed)' if row['disturbed'] else ''} | {busy} | {' | '.join(others)} "
            f"| {row['client_steps_per_s']:,.0f} | {row['flops_per_s'] / ceilings['flops']:.1%} "
            f"| {row['bytes_per_s'] / ceilings['bytes']:.1%} |"
        )
    lines += [
        "",
        "| sweep | a round of all points | of one point | as many rounds one by one |",
        "| --- | --- | --- | --- |",
    ]
    for row in found["sweeps"]:
        together, one, ratio = (row[name] for name in ("together_ms", "one_ms", "rounds_one_by_one"))
        lines.append(f"| {row['points']} points | {together:.3g} ms | {one:.3g} ms | {ratio:.1f} |")
    return "\n".join(lines)


def draw(found, path):
    """Milliseconds per round against the cohort, one line for each workload, with the counted floor."""
    from fedjax_dp.tools.figures import canvas, elements

    with canvas.page(path, {}, (6.5, 4), dpi=130) as page:
        (panel,) = page.panels
        for name in dict.fromkeys(row["workload"] for row in found["rounds"]):
            rows = [row for row in found["rounds"] if row["workload"] == name]
            at = [row["cohort"] for row in rows]
            (line,) = panel.loglog(at, [row["ours_ms"] for row in rows], "o-", label=name)
            panel.loglog(at, [row["floor_ms"] for row in rows], ":", color=line.get_color())
        panel.set(xlabel="clients in the cohort", ylabel="milliseconds a round; dotted: floor")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
        elements.legend_beside(panel)
        page.title(f"Rounds on {found['hardware']['count']} x {found['hardware']['kind']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=ROUNDS, metavar="WORKLOAD:COHORT")
    parser.add_argument("--points", nargs="*", type=int, default=None)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="a folder")
    options = parser.parse_args()
    repeats = 3 if options.quick else 5
    sweeps = (POINTS[:1] if options.quick else POINTS) if options.points is None else options.points
    found = {"rounds": [], "sweeps": [], "ceilings": speeds(fdp.execution.all_devices()), **made_with()}

    def keep():  # after every row, so that a machine that is taken away leaves what it did
        (options.out / "accelerator.json").write_text(json.dumps(found, indent=1) + "\n")
        (options.out / "accelerator.md").write_text(f"{table(found)}\n")

    for item in options.only:
        name, cohort = item.split(":")
        w = workloads.WORKLOADS[name]
        w = w._replace(cohort=int(cohort), clients=max(w.clients, int(cohort)))
        try:
            found["rounds"].append(round_of(w, repeats, options.quick))
        except jax.errors.JaxRuntimeError as error:
            print(f"{item}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        print(f"{item}: {found['rounds'][-1]['ours_ms']:.3g} ms a round", file=sys.stderr)
        keep()
    for points in sweeps:
        found["sweeps"].append(sweep_of(points, 20, repeats))
        print(f"{points} points: {found['sweeps'][-1]['together_ms']:.3g} ms a round", file=sys.stderr)
        keep()
    if found["rounds"]:
        draw(found, options.out / "accelerator.png")
    print(table(found))


if __name__ == "__main__":
    main()
