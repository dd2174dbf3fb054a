"""Whether a change of the code leaves what users see as it was: results bit for bit, text letter for letter.

    python benchmarks/bits.py --write before.json     # on the code before
    python benchmarks/bits.py --against before.json   # on the code after; exit code 1 where anything differs

Every entry of the catalogue runs four rounds on digits with two seeds: checksums of parameters and state, metrics, and
the whole Guarantee. Beside them what commands print: `account` and its like, the help of ten commands, the rows of a
report. Guarantees of five hundred more combinations are on file (`tests/golden/guarantees.json`).
Bits are those of one version of jaxlib on one kind of processor, so the file is made anew where it is used.
"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import zlib

import jax
import numpy as np

import fedjax_dp as fdp
from fedjax_dp.tools import cli
from fedjax_dp.tools.reports import kinds

COMMON = {"cohort_size": 5, "batch_size": 8, "local_steps": 3, "learning_rate": 0.1}
NOISE = {"clip_norm": 0.7, "noise_multiplier": 2.0}
SEEDS, ROUNDS = (0, 1), 4
STEPS = "--steps 300 --delta 1e-5 --quiet"
POISSON = "--adjacency add-remove --sampling poisson --rate 0.01"
PRINTED = [
    f"account --noise-multiplier 1 {STEPS} --adjacency replace-one",
    f"account --noise-multiplier 1 {STEPS} {POISSON} --json",
    f"account --noise-multiplier 2 {STEPS} --adjacency replace-one --sampling without-replacement --batch-size 8 "
    "--records 1000 --json",
    f"calibrate --epsilon 2 {STEPS} {POISSON} --json",
    "claims --json",
    "catalogue --json",
    "data digits --json",
    *(
        f"{name} --help"
        for name in ["run", "export", "sweep", "best", "plot", "report", "audit", "bench", "account", "data"]
    ),
]
RUN = "run --rounds 6 --evaluate-every 2 --holdout 0.2 --train-metrics true --quiet --out"
TIMES = ("seconds", "compile_seconds", "time", "versions", "device")  # of a report, what no two runs share


def made(entry):
    """An algorithm of the entry, private where it can be."""
    constructor = fdp.CATALOGUE[entry]
    private = constructor.private
    one_step = {"local_steps": 1} if entry == "dp_sgd" else {}
    return constructor(**COMMON | (NOISE if private else {}) | one_step), private


def runs():
    """Of every entry and seed: what its run ends with."""
    digits = fdp.load("digits")
    data = fdp.federate(digits, fdp.data.iid(digits.y_train, np.full(10, 100), seed=0))
    model = fdp.mlp(data.record_shape, data.classes, (16,))
    for entry in fdp.CATALOGUE:
        algorithm, private = made(entry)
        for seed in SEEDS:
            run = fdp.run(algorithm, data, rounds=ROUNDS, seed=seed, delta=1e-5 if private else None, model=model)
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(run.simulation.state)]
            yield (
                f"{entry} {seed}",
                {
                    "state": f"{zlib.crc32(b''.join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves)):08x}",
                    "metrics": [[float(now.test_accuracy), float(now.test_loss)] for now in run.history],
                    "epsilons": [repr(float(epsilon)) for epsilon in run.guarantee.epsilons],
                    "guarantee": str(run.guarantee),
                },
            )
        print(f"{entry} done", file=sys.stderr)


def printed():
    """Of every command: the lines that it prints."""
    for words in PRINTED:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            cli.main(words.split())
        yield words, out.getvalue().splitlines()


def report():
    """The rows of a report of a run."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "run"
        cli.main([*RUN.split(), str(path)])
        for name, rows in kinds.read_report(path).data.items():
            yield f"report, {name}", json.loads(json.dumps(_lasting(rows)).replace(folder, ""))


def _lasting(rows):
    """Without what no two runs share."""
    if isinstance(rows, dict):
        return {name: _lasting(value) for name, value in rows.items() if name not in TIMES}
    return [_lasting(row) for row in rows] if isinstance(rows, list) else rows


def difference(before, after):
    """In words, where two results are not the same."""
    if isinstance(before, dict) and isinstance(after, dict):
        return ", ".join(name for name in {**before, **after} if before.get(name) != after.get(name))
    if isinstance(before, list) and isinstance(after, list):
        lines = [f"{old!r} is {new!r}" for old, new in zip(before, after) if old != new]
        return "; ".join([*lines[:2], *([f"{len(before)} rows are {len(after)}"] if len(before) != len(after) else [])])
    return f"{before!r} is {after!r}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--against", type=pathlib.Path)
    options = parser.parse_args()
    os.environ["COLUMNS"] = "100"  # of help
    found = {**dict(printed()), **dict(report()), **dict(runs())}
    if options.write:
        options.write.write_text(json.dumps(found, indent=1) + "\n")
    if options.against:
        before = json.loads(options.against.read_text())
        other = sorted(name for name in {*before, *found} if before.get(name) != found.get(name))
        print(f"{len(found) - len(other)} of {len(found)} are as before")
        for name in other:
            print(f"  not {name}: {difference(before.get(name), found.get(name))}")
        return bool(other)
    return False


if __name__ == "__main__":
    sys.exit(main())
