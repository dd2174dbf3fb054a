"""Milliseconds per round of two source trees, in turns on one device: did a change make rounds faster there?

    python benchmarks/two_trees.py BEFORE AFTER                       # all workloads, a line of JSON after each
    python benchmarks/two_trees.py BEFORE AFTER --only W1:10 W2:100   # some, as workload:cohort
    python benchmarks/two_trees.py BEFORE AFTER --quick               # a few clients, to see that it runs

BEFORE and AFTER are folders with `fedjax_dp` and `benchmarks`. Two processes hold the compiled programs of a tree each
and answer over pipes; both compile and run one after the other. `before_over_after` is the median of turns' ratios.
Parameters after the first call are compared: `apart` is |after - before| over their way from the start. Where a tree is
apart from itself as far, the device adds sums in an order of its own.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

WORKLOADS = ["W1:10", "W1:1000", "W2:100", "W3dp:10", "cifar-record:50", "W2:1000", "W3dp:100", "W3:10"]
ROUNDS = {"W1:10": 50, "W1:1000": 10, "W2:100": 10}  # of a call; else 5
TURNS = 7


def work(tree):
    """Answers of one process: a line of JSON for each that is asked."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what others print is no answer
    tree = str(pathlib.Path(tree).resolve())
    sys.path[:0] = [f"{tree}/benchmarks", f"{tree}/benchmarks/peers", tree]
    import jax
    import workloads
    from contenders import ours

    import fedjax_dp as fdp
    from fedjax_dp import gradients
    from fedjax_dp.rounds import simulation

    assert fdp.__file__.startswith(tree), fdp.__file__
    held = {}

    def flat(params):
        return np.concatenate([np.asarray(a, np.float64).ravel() for a in jax.tree.leaves(params)])

    def build(item, quick):
        held.clear()
        jax.clear_caches()
        name, cohort = item.split(":")
        w = workloads.WORKLOADS[name]
        w = w._replace(cohort=int(cohort), clients=max(w.clients, int(cohort)))
        if quick:
            w = w._replace(clients=4, cohort=2, records=40, steps=2, batch=min(w.batch, 8))
        model, data, execution = ours.model_of(w), ours.clients_of(w), fdp.execution.all_devices()
        as_leaves = getattr(simulation, "as_float32_leaves", None) or simulation.numbers  # as older trees call it
        initial_state = getattr(simulation, "initial_server_state", None) or simulation.fresh
        algorithm, key = as_leaves(ours.algorithm_of(w)), simulation.run_key(0)
        state = simulation.place(initial_state(algorithm, data, model, 0, False), execution)
        algorithm, data, key = execution.place((algorithm, data, key))
        structure, frozen = gradients.split(model)
        frozen = execution.place_models(frozen)
        static = {"model": gradients.joined(structure, frozen), "execution": execution}
        begun, lowered = (
            time.perf_counter(),
            simulation.advance.lower(algorithm, state, data, key, np.int32(1), **static),
        )
        held.update(state=state, arguments=(algorithm, data, key), frozen=frozen, program=lowered.compile())
        seconds = time.perf_counter() - begun
        held["rounds"] = 2 if quick else ROUNDS.get(item, 5)
        start = flat(state.params)
        run()
        with tempfile.NamedTemporaryFile(suffix=".npy", delete=False) as file:
            np.save(file, np.stack([start, flat(held["state"].params)]))
        memory = held["program"].memory_analysis().temp_size_in_bytes
        return {"file": file.name, "compile_s": seconds, "temporary_bytes": memory}

    def run():
        (algorithm, data, key), state = held["arguments"], held["state"]
        until = np.int32(int(state.round) + held["rounds"])
        begun = time.perf_counter()
        state, report = held["program"](algorithm, state, data, key, until, frozen=held["frozen"])
        jax.block_until_ready((state, report))
        held["state"] = state
        return {"ms": 1e3 * (time.perf_counter() - begun) / held["rounds"]}

    answers.write(json.dumps({"device": jax.devices()[0].device_kind, "jax": jax.__version__}) + "\n")
    for line in sys.stdin:
        what, *given = json.loads(line)
        answers.write(json.dumps(build(*given) if what == "build" else run()) + "\n")


class Tree:
    """A process that holds the programs of one tree."""

    def __init__(self, folder):
        command = [sys.executable, __file__, folder, folder, "--work"]
        env = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # both share a device
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.process = subprocess.Popen(command, env=env, **pipes)
        self.device = self._answer()

    def ask(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait(20)

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a process ended")
        return json.loads(line)


def compared(item, trees, quick):
    """One row."""
    built = [tree.ask("build", item, quick) for tree in trees]
    files = [pathlib.Path(each.pop("file")) for each in built]
    (start, before), (_, after) = map(np.load, files)
    for file in files:
        file.unlink()
    times = np.array([[tree.ask("run")["ms"] for tree in trees] for _ in range(2 if quick else TURNS)])
    return {
        "name": item,
        "before": built[0] | {"ms": times[:, 0].tolist()},
        "after": built[1] | {"ms": times[:, 1].tolist()},
        "before_over_after": float(np.median(times[:, 0] / times[:, 1])),
        "apart": float(np.linalg.norm(after - before) / np.linalg.norm(before - start)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--only", nargs="+", default=WORKLOADS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.before)
        return
    trees = [Tree(options.before), Tree(options.after)]
    print(json.dumps(trees[0].device), flush=True)
    for item in options.only:
        print(json.dumps(compared(item, trees, options.quick)), flush=True)
    for tree in trees:
        tree.close()


if __name__ == "__main__":
    main()
