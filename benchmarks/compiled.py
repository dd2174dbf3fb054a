"""Rounds compiled for accelerators that are not here: launches or cycles, memory, exchanges, and the time predicted.

    python benchmarks/compiled.py                                   # all; writes compiled.json, .md, .png
    python benchmarks/compiled.py --targets h200 --workloads W1 --cohorts 10 1000
    python benchmarks/compiled.py --guard                           # a few against compiled_guard.json, for CI
    python benchmarks/compiled.py --guard --update                  # after a change that is meant

Nothing runs on an accelerator, and nothing is measured: what is told is read off the programs that XLA makes, see
`fedjax_dp.experiments.compiled`. Needs the extra `accelerators`; without it the guard says so and passes.
"""

import argparse
import datetime
import json
import pathlib
import sys

import jax
import jaxlib
import numpy as np
from round_latency import RESULTS, commit, ours, workloads

import fedjax_dp as fdp
from fedjax_dp.execution import targets
from fedjax_dp.experiments import compiled, report
from fedjax_dp.pytrees import changed

COHORTS = {"W1": (10, 100, 1000), "W2": (10, 100), "W3": (10,), "W3dp": (10,), "cifar-record": (50,)}
GUARDED = (("W1", 10), ("W2", 10), ("digits", 5))
GUARD = pathlib.Path(__file__).parent / "compiled_guard.json"
SLACK = 0.02


def round_of(name, cohort):
    """Algorithm, data (shapes alone, as a round needs no more) and model of a workload."""
    if name == "digits":
        digits = fdp.load("digits")
        data = fdp.federate(digits, fdp.data.iid(digits.y_train, [140] * 10, 0))
        algorithm = fdp.dpnfl(cohort_size=cohort, batch_size=20, local_steps=10, learning_rate=0.3, clip_norm=1.0)
        return algorithm, data, fdp.logistic_regression(data.record_shape, data.classes)
    w = workloads.WORKLOADS[name]
    w = w._replace(cohort=cohort, clients=max(w.clients, cohort))
    few = ours.clients_of(w._replace(clients=2))

    def many(a, length):
        return None if a is None else jax.ShapeDtypeStruct((length, *np.shape(a)[1:]), np.asarray(a).dtype)

    records = {field: many(getattr(few, field), w.clients * w.records) for field in ("x", "y", "rows")}
    clients = {field: many(getattr(few, field), w.clients) for field in ("offsets", "sizes", "shares")}
    return ours.algorithm_of(w), changed(few, **records, **clients), ours.model_of(w)


def row_of(name, cohort, target, devices):
    """What the compiler makes of a workload's round."""
    algorithm, data, model = round_of(name, cohort)
    found = compiled.compiled_round(algorithm, data, model, target=target, devices=devices)
    return {"workload": name, "cohort": cohort, **found.to_dict()}


def counts_of(row):
    """What the guard holds on to."""
    return {
        "launches": sum(row["launches"].values()),
        "step_launches": row["step_launches"],
        "cycles": sum(row["cycles"].values()),
        "needed_bytes": row["needed_bytes"],
        "collectives": len(row["collectives"]),
    }


def guard(update):
    """Compile what is guarded and compare."""
    lacking = [package for platform in targets.PACKAGES if (package := targets.missing(platform))]
    if lacking:
        print(f'compiled: not compared: no {", ".join(lacking)}; pip install ".[accelerators]" brings them')
        return
    known = json.loads(GUARD.read_text()) if GUARD.exists() else {}
    if not update and known.get("jaxlib") != jaxlib.__version__:
        print(f"compiled: not compared: counts on file are of jaxlib {known.get('jaxlib')}, not {jaxlib.__version__}")
        return
    found = {}
    for target, devices in (("h200", 1), ("v5e", 1), ("h200", 4)):
        for name, cohort in GUARDED if devices == 1 else GUARDED[:1]:
            row = row_of(name, cohort * devices, target, devices)
            found[f"{name} on {devices} {target}"] = counts_of(row)
            print(f"compiled: {name} on {devices} {target} done", file=sys.stderr)
    if update:
        GUARD.write_text(json.dumps({"jaxlib": jaxlib.__version__, "counts": found}, indent=1) + "\n")
        print(f"compiled: {GUARD.name} written")
        return
    wrong = [
        f"{name}: {kind} {found[name][kind]:,}, expected {wanted:,}"
        for name, counts in known["counts"].items()
        for kind, wanted in counts.items()
        if abs(found[name][kind] - wanted) > SLACK * wanted
    ]
    print("\n".join(wrong) or f"compiled: the counts of {len(found)} rounds are as expected")
    if wrong:
        sys.exit(1)


def table(rows):
    """Markdown."""
    lines = [
        "| round | target | launches or cycles | of a local step | memory | predicted | bound by | exchanges |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cycles = bool(row["cycles"])
        counts, step = row["cycles" if cycles else "launches"], row["step_cycles" if cycles else "step_launches"]
        several = f"{row['devices']} x " if row["devices"] > 1 else ""
        exchanges = ", ".join(f"{one['times']} of {one['bytes']:,} B" for one in row["collectives"]) or "-"
        lines.append(
            f"| {row['workload']}, cohort {row['cohort']:,} | {several}{row['target']} "
            f"| {sum(counts.values()):,} {'cycles' if cycles else 'launches'} | {step:,} "
            f"| {row['needed_bytes'] / 1e9:.3g} of {row['memory_bytes'] / 1e9:.3g} GB | {row['round_ms']:.3g} ms "
            f"| {row['bound']} | {exchanges} |"
        )
    return "\n".join(lines)


def draw(rows, path):
    """Predicted milliseconds of every round, by what would bound it."""
    from fedjax_dp import pictures

    names = [f"{row['workload']}, {row['cohort']:,}, {row['devices']} {row['target']}" for row in rows]
    kinds = {"launches": "o", "cycles": "s", "operations": "^", "memory": "D"}
    with pictures.page(path, {}, (8, 1.2 + 0.28 * len(rows)), dpi=130) as page:
        (panel,) = page.panels
        for kind, marker in kinds.items():
            places = [place for place, row in enumerate(rows) if kind in row["times_ms"]]
            panel.plot([rows[place]["times_ms"][kind] for place in places], places, marker, label=kind)
        panel.set_yticks(range(len(rows)), names)
        panel.invert_yaxis()
        panel.set(xscale="log", xlabel="milliseconds a round, predicted, not measured")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        pictures.legend_beside(panel)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", choices=tuple(targets.TARGETS), default=["h200", "v5e"])
    parser.add_argument("--workloads", nargs="+", choices=tuple(COHORTS), default=list(COHORTS))
    parser.add_argument("--cohorts", nargs="+", type=int)
    parser.add_argument("--devices", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--guard", action="store_true")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="a folder")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")  # nothing runs on what else may be here
    if options.guard:
        guard(options.update)
        return
    rows = []
    for target in options.targets:
        for name in options.workloads:
            for cohort in options.cohorts or COHORTS[name]:
                for devices in options.devices if (name, cohort) == ("W1", 1000) else [1]:
                    rows.append(row_of(name, cohort, target, devices))
                    print(f"{name}, cohort {cohort}, {devices} {target} done", file=sys.stderr)
    found = {
        "rounds": rows,
        "versions": report.versions(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
    }
    (options.out / "compiled.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.out / "compiled.md").write_text(table(rows) + "\n")
    draw(rows, options.out / "compiled.png")
    print(table(rows))


if __name__ == "__main__":
    main()
