"""Counted work of the compiled rounds against what it should be: nothing is timed, so a busy machine changes nothing.

    python benchmarks/guard.py            # exit code 1 if a round has come to do more
    python benchmarks/guard.py --update   # after a change that is meant: writes what is counted now

For every workload of `round_latency.py`: operations and bytes of the compiled program (of one pass through its loops,
as the compiler counts them), the memory it plans for, its instructions that run (fusions, calls, loops), exchanges
between devices, programs compiled when every number changes, and dispatches for forty rounds with four evaluations.
More than 2% above what is expected fails, and so does less: an improvement belongs into the file. The compiler decides
much of this, so the file holds for one version of jaxlib and one kind of processor; with others nothing is compared,
and that is said.
"""

import argparse
import collections
import json
import pathlib
import re
import sys
from unittest import mock

import jax
import jaxlib
import round_latency
from round_latency import ours, workloads

import fedjax_dp as fdp
from fedjax_dp import devices
from fedjax_dp.rounds import metrics, simulation

EXPECTED = pathlib.Path(__file__).parent / "guard.json"
SLACK = 0.02
COMPILED = "/jax/core/compile/backend_compile_duration"  # what JAX tells of each program that it compiles
DEVICES = 2  # whatever the machine has: the program depends on it


def compiler():
    """What the counts depend on besides this project."""
    try:
        flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    except OSError:
        flags = []
    vectors = sorted({flag for flag in flags if flag.startswith(("avx", "amx"))})
    return {"jaxlib": jaxlib.__version__, "cores": devices.cores(), "vectors": " ".join(vectors)}


def workload(name):
    """Algorithm, model and data of a workload; few clients, since their number is no part of a round's work."""
    w = workloads.WORKLOADS[name]
    w = w._replace(clients=2 * w.cohort)
    return ours.algorithm_of(w), ours.model_of(w), ours.clients_of(w)


def counted(algorithm, model, data):
    """What the compiled rounds of an algorithm do."""
    rounds, state = simulation.initialize(algorithm, data, model, fdp.execution.all_devices())
    compiled = rounds.compile(state)
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    return {
        "flops": int(cost["flops"]),
        "bytes": int(cost["bytes accessed"]),
        "temporary_bytes": memory.temp_size_in_bytes,
        "instructions": instructions(compiled.as_text()),
        "exchanges": exchanges(compiled.as_text()),
    }


def instructions(text):
    """Fusions, calls, loops, products and sums over devices in a compiled program, each where it is written."""
    kinds = collections.Counter(re.findall(r"= \S+ (fusion|call|while|custom-call|dot|convolution|all-reduce)\(", text))
    return sum(kinds.values())


def exchanges(text):
    """Where devices wait for each other: the sum over the cohort, and whether all of it is finite."""
    return len(re.findall(r"= \S+ (?:all-reduce|all-gather|all-to-all|collective-permute)\(", text))


def repeated(algorithm, model, data):
    """Programs compiled when all numbers change, and dispatches of forty rounds with four evaluations."""
    options, compiled = {"model": model, "rounds": 40, "evaluate_every": 10}, []
    jax.monitoring.register_event_duration_secs_listener(lambda event, seconds, **more: compiled.append(event))
    simulation.simulate(algorithm, data, **options)
    if COMPILED not in compiled:
        sys.exit(f"guard: JAX does not tell of {COMPILED} any more, so programs cannot be counted")
    doubled = jax.tree.map(lambda leaf: 2.0 * leaf, simulation.as_float32_leaves(algorithm))
    compiled.clear()
    with (
        mock.patch.object(simulation, "advance", wraps=simulation.advance) as rounds,
        mock.patch.object(metrics, "measure", wraps=metrics.measure) as looks,
    ):
        simulation.simulate(doubled, data, seed=1, **options)
    return {"compiled_again": compiled.count(COMPILED), "dispatches": rounds.call_count + looks.call_count}


def differences(found, expected):
    """One line for each count that is not as expected."""
    lines = []
    for name, counts in expected.items():
        for kind, wanted in counts.items():
            got = found.get(name, {}).get(kind)
            if got is None:
                lines.append(f"{name}: {kind} is not counted any more, expected {wanted:,}")
            elif abs(got - wanted) > SLACK * wanted:
                way = "more" if got > wanted else "less, which --update records"
                lines.append(f"{name}: {kind} {got:,}, expected {wanted:,}: {way}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write what is counted now")
    options = parser.parse_args()
    if jax.local_devices()[0].platform != "cpu" or len(jax.local_devices()) != DEVICES:
        sys.exit(f"guard: run it with JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES={DEVICES}: other programs are not on file")
    known = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    if not options.update and known["compiler"] != compiler():
        print(f"guard: not compared: the counts on file are of {known['compiler']}, this is {compiler()}")
        return
    found = {name: counted(*workload(name)) for name in round_latency.NAMES}
    found["W1"] |= repeated(*workload("W1"))
    if options.update:
        EXPECTED.write_text(json.dumps({"compiler": compiler(), "counts": found}, indent=1) + "\n")
        print(f"guard: {EXPECTED.name} written")
        return
    lines = differences(found, known["counts"])
    for line in lines:
        print(line)
    if lines:
        sys.exit(1)
    print(f"guard: {sum(len(counts) for counts in found.values())} counts of {len(found)} rounds as expected")


if __name__ == "__main__":
    main()
