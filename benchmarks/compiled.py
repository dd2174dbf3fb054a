"""Rounds, a sweep and an audit compiled for accelerators that are not here: launches or cycles, bytes, predicted time.

    python benchmarks/compiled.py                                   # all, 10 minutes; writes compiled.json, .md, .png
    python benchmarks/compiled.py --targets h200 --workloads W1 --cohorts 10 1000
    python benchmarks/compiled.py --run config.toml --targets h200      # a round of a configuration of your own; prints
    python benchmarks/compiled.py --sweep sweep.toml --targets h200 --price 3.5       # hours, money of your own sweep
    python benchmarks/compiled.py --guard                           # one of each kind against what is on file, for CI
    python benchmarks/compiled.py --guard --all                     # all that are on file, before a release
    python benchmarks/compiled.py --guard --update                  # after a change that is meant; writes all

Nothing runs on an accelerator: what is told is read off the programs that XLA makes, see `forecast/compiled.py`
here, beside what results/h200 measured of the same rounds. Needs the extra `accelerators`; without it the guard says so
and passes.
"""

import argparse
import datetime
import json
import math
import pathlib
import re
import sys
import tempfile
import time
from collections import Counter
from typing import NamedTuple
from unittest import mock

import h200
import jax
import jaxlib
import numpy as np
from forecast import compiled, kernels, targets
from forecast.compiled import STEP, compiled_audit, compiled_sweep
from forecast.program_text import Program
from forecast.sweeps import forecast_sweep
from provenance import commit
from round_latency import RESULTS, ours, workloads

import fedjax_dp as fdp
from fedjax_dp.experiments import build, environment
from fedjax_dp.experiments.config import RunSpec, read
from fedjax_dp.experiments.population import build_data
from fedjax_dp.pytrees import replace
from fedjax_dp.tools.cli.sweep import run_file

COHORTS = (10, 100, 1000)
FEW = 4  # sizes of exchanges that a cell of the table tells one by one
DIGITS = 5  # clients of its cohort
CONTEXT, KINDS, RANK = 80, 90, 8  # characters of a transformer's record, kinds of them, rank of its low-rank terms
POINTS, TRIALS, ROUNDS = (64, 256), 256, 5  # of sweeps; of the audit, and of each of its trials


class Case(NamedTuple):
    """What is compiled: a round, unless points of a sweep or trials of an audit are asked for."""

    workload: str
    cohort: int
    devices: int = 1
    model_devices: int = 1
    points: int = 0
    trials: int = 0

    @property
    def name(self):
        if self.points:
            return f"{self.workload}, sweep of {self.points:,} points"
        if self.trials:
            return f"{self.workload}, {self.trials:,} trials of an audit"
        words = f"{self.workload}, cohort {self.cohort:,}"
        if self.model_devices > 1:
            return f"{words}, {self.model_devices} devices hold a model"
        return f"{words}, {self.devices} devices" if self.devices > 1 else words


CASES = (
    *(Case(name, cohort) for name in ("W1", "W2", "W3", "W3dp", "cifar-record") for cohort in COHORTS),
    *(Case(name, cohort) for name in ("gpt", "gpt-lora") for cohort in (10, 100)),
    *(Case("W1", 1000, devices=devices) for devices in (4, 8)),
    Case("W3dp", 10, devices=4, model_devices=4),
    Case("cifar-record", 50),
    *(Case("W1", 10, points=points) for points in POINTS),
    Case("digits", DIGITS, trials=TRIALS),
)
SMALL = Case("digits", DIGITS), Case("gpt-lora", 10)
GUARDED = {  # W1 and W2 on an h200 were measured there
    "h200": (Case("W1", 1000), Case("W2", 100), *SMALL, Case("W1", 40, devices=4)),
    "v5e": (Case("W1", 10), Case("W2", 10), *SMALL),
}
IN_CI = {  # one layer, low-rank terms of a transformer, several devices; several layers on the other platform
    "h200": (Case("W1", 1000), Case("gpt-lora", 10), Case("W1", 40, devices=4)),
    "v5e": (Case("W2", 10),),
}
GUARD = pathlib.Path(__file__).parent / "compiled_guard.json"
SLACK, TIME_SLACK = 0.02, 0.05
MEASURED = {(name, cohort, points): after for name, cohort, points, _, after in h200.in_turns()}
LARGE = 10**6  # bytes
OF_KERNELS = ("large_slices", "exact_products", "wide_loads", "narrow_stores", "update_instructions")  # of a GPU's step
TAKEN = re.compile(rf"%\S*(?:slice|pad)\S* = f32\[([\d,]+)\]\S* fusion\(.*{STEP}")
EXACT = re.compile(r"operand_precision\W+highest", re.IGNORECASE)
ENTRY = re.compile(r"\.entry (\w+)\((.*?)\n\}", re.DOTALL)  # a kernel in PTX, and its code


def round_of(name, cohort):
    """Algorithm, data (shapes alone, as a round needs no more) and model of a workload."""
    if name == "digits":
        digits = fdp.load("digits")
        data = fdp.federate(digits, fdp.data.iid(digits.y_train, [140] * 10, 0))
        algorithm = fdp.dpnfl(cohort_size=cohort, batch_size=20, local_steps=10, learning_rate=0.3, clip_norm=1.0)
        return algorithm, data, fdp.logistic_regression(data.record_shape, data.classes)
    if name in ("gpt", "gpt-lora"):
        tokens = np.ones((30 * cohort, CONTEXT), np.int32)  # no values of theirs are in a program
        texts = fdp.dataset(tokens, tokens, tokens, tokens, task="sequence", vocabulary=fdp.data.Vocabulary(KINDS))
        data = fdp.federate(texts, np.split(np.arange(len(tokens)), cohort))
        model = fdp.models.gpt(data.record_shape, data.classes).for_data(data)
        if name == "gpt-lora":
            model = fdp.models.freeze(model, "lora", rank=RANK)
        algorithm = fdp.dpnfl(cohort_size=cohort, batch_size=16, local_steps=10, learning_rate=0.3, clip_norm=1.0)
        return algorithm, data, model
    w = workloads.WORKLOADS[name]
    w = w._replace(cohort=cohort, clients=max(w.clients, cohort))
    few = ours.clients_of(w._replace(clients=2))

    def many(a, length):
        return None if a is None else jax.ShapeDtypeStruct((length, *np.shape(a)[1:]), np.asarray(a).dtype)

    records = {field: many(getattr(few, field), w.clients * w.records) for field in ("x", "y", "rows")}
    clients = {field: many(getattr(few, field), w.clients) for field in ("offsets", "sizes", "shares")}
    return ours.algorithm_of(w), replace(few, **records, **clients), ours.model_of(w)


def row_of(case, target):
    """What the compiler makes of a case."""
    workload, on = round_of(case.workload, case.cohort), {"target": target, "devices": case.devices}
    options = targets.COMPILER_OPTIONS["cuda"]
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(options, xla_dump_to=folder):
        if case.points:
            found = compiled_sweep(*workload, points=case.points, **on)
        elif case.trials:
            terms = {"trials": case.trials, "lanes": case.trials, "rounds": ROUNDS, "epsilon": 1.0, "delta": 1e-5}
            found = compiled_audit(*workload, **terms, **on)
        else:
            found = compiled.compiled_round(*workload, model_devices=case.model_devices, **on)
        code = kernels_in(pathlib.Path(folder))
    measured = MEASURED.get((case.workload, case.cohort, case.points)) if found.predicted_ms else None
    more = {"measured_ms": measured, "large_slices": large_slices(found.text)}
    more |= {"exact_products": exact_products(found.text), **update_of(found.text, code)}
    return {"name": case.name, **case._asdict(), **found.to_dict(), **more}


def own_round(file, target):
    """What the compiler makes of a round of a user's configuration, with records on the devices."""
    config = RunSpec.of(read(file))
    data = build_data(config.data)
    algorithm, execution = build.build_algorithm(config, data), config.execution
    build.check_execution(execution, algorithm, data)
    if build.records_on_host(config, algorithm):
        raise fdp.errors.refuse("records", "host", "devices, as no other round is compiled", 'set records = "devices"')
    found = compiled.compiled_round(
        algorithm,
        data,
        build.build_model(config, data),
        target=target,
        devices=1 if execution.devices == "auto" else int(execution.devices),
        model_devices=execution.model_devices,
        chunk_size=execution.chunk_size,
        parts=execution.deterministic,
    )
    name = f"{config.algorithm} on {config.data.dataset}"
    return {"name": name, "points": 0, "measured_ms": None, **found.to_dict()}


def own_sweep(file, target, price):
    """What a user's sweep takes on one device, in words."""
    targets.target_of(target)  # refused before anything is compiled
    plan = run_file(str(file), only_plan=True)[0].plan
    lines = forecast_sweep(plan, target, price).lines()
    if lines and plan.halving:
        lines.append("these hours are of all points to their end; halving takes less")
    return [*plan.lines(), *lines]


def large_slices(text):
    """Kernels of a GPU's local step that do no more than take a vector apart or put one together, and write much."""
    return sum(4 * math.prod(map(int, shape.split(","))) > LARGE for shape in TAKEN.findall(text))


def exact_products(text):
    """Products of the local step that are taken in float32, where a GPU's fast units take fewer bits."""
    return sum(STEP in line and EXACT.search(line) is not None for line in text.splitlines())


def kernels_in(folder):
    """The code of every kernel by its name, as XLA wrote it for a GPU last; no device is needed for that."""
    written = sorted(folder.glob("*.ptx"), key=lambda file: file.stat().st_mtime_ns)
    return dict(found for file in written for found in ENTRY.findall(file.read_text()))


def update_of(text, code):
    """How the kernel that draws most normals loads and stores: that of a private step, which moves the parameters.

    Loads of four numbers at once, stores of fewer, and instructions of a thread; nothing where no code is known.
    """
    program = Program(text, 0)
    launched = [each for each, _, _ in program.run() if each.kind == "fusion" and each.name.replace(".", "_") in code]
    if not launched:
        return {}
    update = max(launched, key=lambda each: kernels.kernel_of(program, each).normals)
    lines = code[update.name.replace(".", "_")].splitlines()
    return {
        "wide_loads": sum(re.search(r"\bld\.global\S*\.v4", line) is not None for line in lines),
        "narrow_stores": sum(re.search(r"\bst\.global(?!\S*\.v4)", line) is not None for line in lines),
        "update_instructions": sum(re.match(r"\t(@\S+ )?[a-z]", line) is not None for line in lines),
    }


def counts_of(row):
    """What the guard holds on to."""
    return {
        "launches": sum(row["launches"].values()),
        "step_launches": row["step_launches"],
        "cycles": sum(row["cycles"].values()),
        "needed_bytes": row["needed_bytes"],
        "collectives": len(row["collectives"]),
        **{kind: row[kind] for kind in OF_KERNELS if kind in row},
        "predicted_ms": row["predicted_ms"],
    }


def differences(name, counts, wanted, measured):
    """What of a round is not as expected; measured milliseconds, where there are, are what a prediction has to meet."""
    found = []
    for kind, expected in wanted.items():
        slack = TIME_SLACK if kind == "predicted_ms" else SLACK
        if expected is not None and abs(counts.get(kind, 0) - expected) > slack * expected:
            found.append(f"{name}: {kind} {counts.get(kind, 0):,.5g}, expected {expected:,.5g}")
    if measured and abs(counts["predicted_ms"] / measured - 1) > kernels.OTHERS_WITHIN:
        found.append(f"{name}: predicted {counts['predicted_ms']:.3g} ms, measured {measured:.3g}")
    return found


def guard(update, every):
    """Compile what is guarded, in CI one of each kind, and compare."""
    lacking = [package for platform in targets.PACKAGES if (package := targets.missing(platform))]
    if lacking:
        print(f'compiled: not compared: no {", ".join(lacking)}; pip install ".[accelerators]" brings them')
        return
    known = json.loads(GUARD.read_text()) if GUARD.exists() else {}
    if not update and known.get("jaxlib") != jaxlib.__version__:
        print(f"compiled: not compared: counts on file are of jaxlib {known.get('jaxlib')}, not {jaxlib.__version__}")
        return
    found, measured = {}, {}
    for target, cases in (GUARDED if update or every else IN_CI).items():
        for case in cases:
            row, name = row_of(case, target), f"{case.name}, on {target}"
            found[name], measured[name] = counts_of(row), row["measured_ms"]
            print(f"compiled: {name} done", file=sys.stderr)
    if update:
        GUARD.write_text(json.dumps({"jaxlib": jaxlib.__version__, "counts": found}, indent=1) + "\n")
        print(f"compiled: {GUARD.name} written")
        return
    wrong = [line for name in found for line in differences(name, found[name], known["counts"][name], measured[name])]
    print("\n".join(wrong) or f"compiled: the counts of {len(found)} rounds are as expected")
    if wrong:
        sys.exit(1)


def table(rows):
    """Markdown."""
    lines = [
        "| what | on | launches or cycles | of a local step | at once | memory | read and written | predicted "
        "| measured | exchanges |",
        f"|{' --- |' * 10}",
    ]
    for row in rows:
        cycles = bool(row["cycles"])
        counts, step = row["cycles" if cycles else "launches"], row["step_cycles" if cycles else "step_launches"]
        unit, total = "cycles" if cycles else "launches", row["turns"] * sum(counts.values())
        gigabytes = row["turns"] * row["traffic"]["bytes"] / 1e9 if row["traffic"] else 0
        moved = f"{gigabytes:,.0f} GB" if gigabytes >= 1000 else f"{gigabytes:.3g} GB" if gigabytes else "-"
        predicted = f"{row['predicted_ms']:.3g} ms, most {row['bound']}" if row["predicted_ms"] else "-"
        lines.append(
            f"| {row['name']} | {row['target']} | {total:,} {unit} | {step:,} | {at_once(row)} "
            f"| {row['needed_bytes'] / 1e9:.3g} of {row['memory_bytes'] / 1e9:.3g} GB | {moved} | {predicted} "
            f"| {measured(row)} | {exchanges(row)} |"
        )
    note = (
        f"Of one round, of the sweep one of every point; of the audit all {ROUNDS} rounds of every trial. Read and "
        "written: by the kernels of a GPU. Times are predicted for one H200 alone, where the model was fitted: within "
        f"{kernels.PROFILED_WITHIN:.0%} of the seven rounds that were profiled, and {kernels.OTHERS_WITHIN:.0%} of "
        "all others. Measured: on an H200, when a GPU still took the signal of every gradient and wrote out those of "
        "few records; and how far the prediction for today is from it."
    )
    return "\n".join([*lines, "", note])


def measured(row):
    """Milliseconds, and how far the prediction is off."""
    if not row["measured_ms"]:
        return "-"
    return f"{row['measured_ms']:.3g} ms ({row['predicted_ms'] / row['measured_ms'] - 1:+.0%})"


def at_once(row):
    """What a device computes at once, in words."""
    kind = "points" if row["points"] else "trials"
    alone = f"{row['at_once']:,} client{'s' * (row['at_once'] > 1)}"
    return f"{row['runs_at_once']:,} {kind} of {alone}" if row["runs"] > 1 else alone


def exchanges(row):
    """Between devices, in words; those of equal size together, and all of them where they are many."""
    times = Counter()
    for one in row["collectives"]:
        times[one["bytes"]] += one["times"]
    if len(times) > FEW:
        return f"{times.total():,}, {sum(many * size for size, many in times.items()):,} B in all"
    return ", ".join(f"{many:,} of {size:,} B" for size, many in sorted(times.items())) or "-"


def draw(rows, path):
    """Predicted and measured milliseconds where there are any; launches or cycles, in a panel for every target."""
    from fedjax_dp.tools.figures import canvas, elements

    names = list(dict.fromkeys(row["name"] for row in rows))
    panels = [("time on one H200", "milliseconds", ("predicted_ms", "measured_ms"), rows)]
    for target in dict.fromkeys(row["target"] for row in rows):
        own = [row for row in rows if row["target"] == target]
        kind = "cycles" if own[0]["cycles"] else "launches"
        own = [{"name": row["name"], kind: row["turns"] * sum(row[kind].values())} for row in own]
        panels.append((target, kind, (kind,), own))
    size = 2.6 + 3 * len(panels), 1.4 + 0.26 * len(names)
    with canvas.page(
        path, {}, size, len(panels), lambda figure: figure.subplots(1, len(panels), sharey=True), dpi=130
    ) as page:
        for panel, (title, label, keys, own) in zip(page.panels, panels, strict=True):
            for key, marker in zip(keys, "ox", strict=False):
                points = [(row[key], names.index(row["name"])) for row in own if row[key]]
                panel.plot([x for x, _ in points], [y for _, y in points], marker, label=key.removesuffix("_ms"))
            panel.set_yticks(range(len(names)), names)
            panel.set(xscale="linear" if label == "launches" else "log", title=title, xlabel=label)
            panel.grid(alpha=0.25)
            panel.spines[["top", "right"]].set_visible(False)
        page.panels[0].invert_yaxis()
        elements.legend_below(page.panels[0], 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own = parser.add_mutually_exclusive_group()
    own.add_argument("--run", type=pathlib.Path, help="the configuration file of a run")
    own.add_argument("--sweep", type=pathlib.Path, help="the file of a sweep")
    parser.add_argument("--price", type=float, help="of a device for an hour, in any money")
    parser.add_argument("--targets", nargs="+", choices=tuple(targets.TARGETS), default=["h200", "v5e"])
    workloads_known = tuple(dict.fromkeys(case.workload for case in CASES))
    parser.add_argument("--workloads", nargs="+", choices=workloads_known, default=workloads_known)
    parser.add_argument("--cohorts", nargs="+", type=int, help="these alone")
    parser.add_argument("--devices", nargs="+", type=int, help="so many alone")
    parser.add_argument("--guard", action="store_true")
    parser.add_argument("--all", action="store_true", help="of the guarded rounds, not one of each kind")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="a folder")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")  # nothing runs on what else may be here
    if options.guard:
        guard(options.update, options.all)
        return
    try:
        for target in options.targets if options.sweep else ():
            print("\n".join(own_sweep(options.sweep, target, options.price)))
        if options.run:
            print(table([own_round(options.run, target) for target in options.targets]))
    except fdp.ConfigurationError as error:
        parser.error(str(error))
    if options.run or options.sweep:
        return
    chosen = [
        case
        for case in CASES
        if case.workload in options.workloads
        and case.cohort in (options.cohorts or [case.cohort])
        and case.devices in (options.devices or [case.devices])
    ]
    rows = []
    for target in options.targets:
        for case in chosen:
            began = time.perf_counter()
            rows.append(row_of(case, target))
            done = f"{len(rows)} of {len(options.targets) * len(chosen)}"
            print(f"{done}: {case.name}, {target}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    found = {
        "rounds": rows,
        "versions": environment.versions(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
    }
    (options.out / "compiled.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.out / "compiled.md").write_text(table(rows) + "\n")
    draw(rows, options.out / "compiled.png")
    print(table(rows))


if __name__ == "__main__":
    main()
