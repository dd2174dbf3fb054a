"""Whether a change of the code leaves every result as it was, bit for bit.

    python benchmarks/bits.py --write before.json     # on the code before
    python benchmarks/bits.py --against before.json   # on the code after; exit code 1 where anything differs

Every entry of the catalogue runs four rounds on digits with two seeds: checksums of parameters and state, metrics and
epsilons. Bits are those of one version of jaxlib on one kind of processor, so the file is made anew where it is used.
"""

import argparse
import json
import pathlib
import sys
import zlib

import jax
import numpy as np

import fedjax_dp as fdp

COMMON = {"cohort_size": 5, "batch_size": 8, "local_steps": 3, "learning_rate": 0.1}
NOISE = {"clip_norm": 0.7, "noise_multiplier": 2.0}
SEEDS, ROUNDS = (0, 1), 4


def made(entry):
    """An algorithm of the entry, private where it can be."""
    constructor = fdp.CATALOGUE[entry]
    private = constructor.private
    one_step = {"local_steps": 1} if entry == "dp_sgd" else {}
    return constructor(**COMMON | (NOISE if private else {}) | one_step), private


def told():
    """Of every entry and seed: what its run ends with."""
    digits = fdp.load("digits")
    data = fdp.federate(digits, fdp.data.iid(digits.y_train, np.full(10, 100), seed=0))
    model = fdp.mlp(data.record_shape, data.classes, (16,))
    found = {}
    for entry in fdp.CATALOGUE:
        algorithm, private = made(entry)
        for seed in SEEDS:
            run = fdp.run(algorithm, data, rounds=ROUNDS, seed=seed, delta=1e-5 if private else None, model=model)
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(run.simulation.state)]
            found[f"{entry} {seed}"] = {
                "state": f"{zlib.crc32(b''.join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves)):08x}",
                "metrics": [[float(now.test_accuracy), float(now.test_loss)] for now in run.history],
                "epsilons": [repr(float(epsilon)) for epsilon in run.guarantee.epsilons],
            }
        print(f"{entry} done", file=sys.stderr)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--against", type=pathlib.Path)
    options = parser.parse_args()
    found = told()
    if options.write:
        options.write.write_text(json.dumps(found, indent=1) + "\n")
    if options.against:
        before = json.loads(options.against.read_text())
        other = sorted(name for name in {*before, *found} if before.get(name) != found.get(name))
        print(f"{len(found) - len(other)} of {len(found)} runs end as before" + "".join(f"\n  not {n}" for n in other))
        return bool(other)
    return False


if __name__ == "__main__":
    sys.exit(main())
