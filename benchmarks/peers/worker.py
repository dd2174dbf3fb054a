"""One contender in its own process: `python worker.py CONTENDER WORKLOAD[:COHORT] FOLDER`, commands by line on stdin.

It prints one JSON line when it is ready, with versions and the clipped gradient's file; then, for each line it reads,
one with the milliseconds of each of the rounds that it ran. Whatever libraries print goes to stderr.
"""

import importlib
import importlib.metadata
import json
import os
import pathlib
import resource
import sys
import time

import numpy as np
import workloads

TURN_S = 1.0  # a turn lasts at least so long
PACKAGES = ("fedjax-dp", "jax", "jaxlib", "torch", "opacus", "jax-privacy", "fedjax", "pfl", "flwr", "ray", "numpy")


def versions():
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main():
    name, workload, folder = sys.argv[1], workloads.named(sys.argv[2]), pathlib.Path(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**content):
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    contender = importlib.import_module(f"contenders.{name}")
    run, gradient, *accuracy = contender.make(workload)  # on the test set, of those that look at it
    file = None
    if gradient is not None:
        file = str(folder / f"{workload.name}-{name}.npz")
        layers = gradient(workloads.weights(workload), *workloads.one_batch(workload))
        np.savez(file, *[part for layer in layers for part in layer])
    began = time.perf_counter()
    run()
    answer(gradient=file, first_s=time.perf_counter() - began, versions=versions())
    for _ in sys.stdin:
        turn, found = time.perf_counter(), []
        while not found or time.perf_counter() - turn < TURN_S:
            began = time.perf_counter()
            done = run()  # rounds done since, or the milliseconds of each where the contender has to look itself
            found += [1e3 * (time.perf_counter() - began) / done] if isinstance(done, int) else done
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        answer(ms=found, peak_mb=peak, accuracy=[look() for look in accuracy])


main()
