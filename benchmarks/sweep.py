"""A sweep as one program against a process for every point, and against one point after another in one process.

    python benchmarks/sweep.py --json

Workload W1 with 10 local steps: 100 clients x 600 records x 784 features, softmax regression (7,850 parameters), cohort
10, B=10, clipping and noise; 50 rounds; 64 points: 4 learning rates x 4 clip norms x 4 seeds. Measured:

processes   the round that one would write in plain JAX, a Python process for each point, two at a time;
sweep       ours as a process of its own: start, data, compilation and accounting included, nothing cached on disk;
again       the same once more, with the compiled programs of the first on disk;
one_by_one  `fedjax_dp.simulate` for one point after another in this process, compiled before;
together    the compiled programs of the sweep for all points in this process, compiled before.
The last two alternate, so that drift of the machine cancels. Rows of the sweep are checked to equal single runs.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np
import round_latency
from contenders import plain_jax
from provenance import made_with
from round_latency import ours, workloads

import fedjax_dp as fdp  # before JAX is used, so that every core is a device
from fedjax_dp.privacy import PrivacyTerms
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.sweeps import program
from fedjax_dp.sweeps.engine import Job, JobGroup, RecordCache, group_jobs

W = workloads.WORKLOADS["W1"]._replace(steps=10)
ROUNDS, SEEDS = 50, 4
AXES = {"learning_rate": [0.01, 0.03, 0.1, 0.3], "clip_norm": [0.3, 1.0, 3.0, 10.0]}
AT_ONCE = 2  # processes


def algorithm(learning_rate=0.01, clip_norm=1.0):
    return ours.algorithm_of(W._replace(rate=learning_rate, clip_norm=clip_norm))


def plain_point(seed):
    """What one process does: data, the plain round compiled, and all rounds."""
    run, _ = plain_jax.make(W, seed)
    for _ in range(ROUNDS):
        run()


def sweep_process():
    """What the process of a sweep does."""
    began = time.perf_counter()
    data = ours.clients_of(W)
    found = fdp.sweep(
        algorithm(), data, rounds=ROUNDS, axes=AXES, seeds=SEEDS, delta=1e-5, evaluate_every=ROUNDS, progress=False
    )
    assert all(record["status"] == "done" for record in found.records)
    print(time.perf_counter() - began, len(found.records))


def process(*words, cache=None):
    """Seconds of a process of this script."""
    environment = os.environ | ({"JAX_COMPILATION_CACHE_DIR": cache} if cache else {})
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    began = time.perf_counter()
    subprocess.run([sys.executable, __file__, *words], check=True, capture_output=True, env=environment)
    return time.perf_counter() - began


def measure_processes(points):
    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        each = list(pool.map(lambda seed: process("--plain-point", str(seed)), range(points)))
    return (time.perf_counter() - began) / points, float(np.median(each))


def measure_here(repeats):
    data, model = ours.clients_of(W), ours.model_of(W)
    jobs = [
        Job(plan_run(algorithm(rate, clip), data, rounds=ROUNDS, seed=seed, model=model, terms=PrivacyTerms()), ROUNDS)
        for rate in AXES["learning_rate"]
        for clip in AXES["clip_norm"]
        for seed in range(SEEDS)
    ]
    assert len(group_jobs(jobs)) == 1
    traced, run_rounds = [], program.run_rounds
    program.run_rounds = lambda *a, **k: traced.append(1) or run_rounds(*a, **k)
    began = time.perf_counter()
    group = JobGroup(jobs, cache=RecordCache())
    compile_s = time.perf_counter() - began
    run_segment, inside = group.compiled.run_segment, []

    def timed(*arguments):
        began = time.perf_counter()
        result = jax.block_until_ready(run_segment(*arguments))
        inside.append(time.perf_counter() - began)
        return result

    group.compiled = group.compiled._replace(run_segment=timed)

    def together():
        return dict(group.run())

    def one_by_one():
        return [
            fdp.simulate(job.run.algorithm, data, rounds=ROUNDS, seed=job.run.seed, model=model, evaluate_every=ROUNDS)
            for job in jobs
        ]

    rows, runs = together(), one_by_one()
    if not all(rows[at].history == run.history for at, run in enumerate(runs)):
        sys.exit("a row of the sweep differs from its single run")
    times = {"together": [], "one_by_one": []}
    overheads = []
    for _ in range(repeats):
        for name, run in (("together", together), ("one_by_one", one_by_one)):
            inside.clear()
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
            if name == "together":
                overheads.append(times[name][-1] / sum(inside) - 1)
    return len(jobs), compile_s, len(traced), times, overheads


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processes", type=int, default=64, help="points that get a process of their own")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--out", type=pathlib.Path, help="also write the JSON here")
    parser.add_argument("--plain-point", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--sweep-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain_point is not None:
        return plain_point(options.plain_point)
    if options.sweep_process:
        return sweep_process()

    gap = round_latency.gradient_gap(W)
    if not gap < 1e-4:
        sys.exit(f"ours and the plain round do not compute the same gradient: relative difference {gap:.2g}")
    points, compile_s, traces, times, overheads = measure_here(options.repeats)
    with tempfile.TemporaryDirectory() as cache:
        sweep_s = process("--sweep-process", cache=cache)
        again_s = process("--sweep-process", cache=cache)
    per_process_s, process_s = measure_processes(options.processes)
    spread = {name: float((np.percentile(s, 75) - np.percentile(s, 25)) / np.median(s)) for name, s in times.items()}
    result = {
        "points": points,
        "rounds": ROUNDS,
        **{f"workload_{name}": size for name, size in W._asdict().items()},
        "processes_measured": options.processes,
        "processes_at_once": AT_ONCE,
        "process_s": process_s,
        "processes_s": per_process_s * points,
        "sweep_s": sweep_s,
        "again_s": again_s,
        **{f"{name}_s": float(np.median(s)) for name, s in times.items()},
        "ratio_processes": per_process_s * points / sweep_s,
        "ratio_processes_again": per_process_s * points / again_s,
        "ratio_one_by_one": float(np.median(np.array(times["one_by_one"]) / np.array(times["together"]))),
        "overhead": float(np.median(overheads)),
        "compile_s": compile_s,
        "traces": traces,
        "gradient_gap": gap,
        "spreads": spread,
        "repeats": options.repeats,
        "disturbed": max(spread.values()) > 0.3,
        **made_with(),
    }
    text = json.dumps(result, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    if options.json:
        print(text)
        return None
    print(f"{points} points: {sweep_s:.1f} s as one sweep, {again_s:.1f} s once compiled")
    print(f"  a process for each: {result['processes_s']:.0f} s, {result['ratio_processes']:.1f} times as long")
    print(f"  one after another in one process: {result['ratio_one_by_one']:.2f} times as long as together")
    print(f"  beyond the compiled program: {result['overhead']:.1%}")
    if result["disturbed"]:
        print("disturbed: the middle half of the times spreads over more than 30% of their median; run again")
    return None


if __name__ == "__main__":
    main()
