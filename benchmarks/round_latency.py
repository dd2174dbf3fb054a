"""A private round against its own relatives: what clipping, noise and corrections cost, and how far the floor is.

    python benchmarks/round_latency.py --workload W1 --json

Workloads and our rounds are those of `peers/`, where others are compared. Here the same round without clipping, without
clipping and noise, with a proximal term or control variates, with feature matching, and the drawing of its normals
alone run alternately in this process, so a busy machine slows all of them; read the ratios. Before timing, the clipped
gradient of one batch is checked against gradients of single records. The floor is counted: operations of the gradients,
bytes of batches and parameters, normals, each at the speed that this machine shows for it alone.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from provenance import made_with

import fedjax_dp as fdp
from fedjax_dp import gradients, prng
from fedjax_dp.devices import COMPILER_OPTIONS
from fedjax_dp.models import mlp
from fedjax_dp.rounds import simulation
from fedjax_dp.tools.latency.floor import floor_of

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers"))
import quiet
import workloads
from contenders import jax_rounds, ours

RESULTS = pathlib.Path(__file__).parent / "results"
TURN_S = 0.3
NAMES = ("W1", "W2", "W3", "W3dp")
COSTS = {  # the ratio of one round to another
    "clipping_cost": ("ours", "unclipped"),
    "privacy_cost": ("ours", "non_private"),
    "over_normals_alone": ("ours", "normals"),
    "over_jax_normals": ("ours", "jax_normals"),
    "proximal_cost": ("proximal", "ours"),
    "control_variates_cost": ("control_variates", "ours"),
}


def gradient_gap(w):
    """Largest difference of our clipped gradient of a batch to that of single records, over its largest entry."""
    given = workloads.weights(w), *workloads.one_batch(w)
    a, b = (
        jax.tree.leaves(found(*given)) for found in (ours.gradient_of(w, ours.model_of(w)), jax_rounds.gradient_of(w))
    )
    return max(float(jnp.abs(p - q).max()) for p, q in zip(a, b, strict=True)) / max(float(jnp.abs(q).max()) for q in b)


def relatives(w):
    """Our algorithm of a workload, and the same with a part exchanged."""
    algorithm = ours.algorithm_of(w)
    if w.private != "record":
        return {"ours": algorithm}
    local = algorithm.local
    swap = {
        "unclipped": {
            "privatizer": dataclasses.replace(local.privatizer, bound=fdp.parts.Unbounded())
        },  # noise: not private
        "non_private": {"privatizer": fdp.parts.NonPrivate()},
    }
    if w.name == "W1":
        control = fdp.dp_scaffold(**ours.settings_of(w), clip_norm=1.0, noise_multiplier=1.0).local.corrections
        swap |= {
            "proximal": {"corrections": (fdp.parts.Proximal(strength=1.0), *local.corrections)},
            "control_variates": {"corrections": control},
        }
    exchanged = {
        name: dataclasses.replace(algorithm, local=dataclasses.replace(local, **part)) for name, part in swap.items()
    }
    return {"ours": algorithm} | exchanged


def contenders(w, execution):
    """What runs in turns, and the temporary memory that the compiler plans for each of our rounds."""
    data, model = ours.clients_of(w), ours.model_of(w)
    found, memory = {}, {}
    for name, algorithm in relatives(w).items():
        found[name] = ours.rounds_of(w, algorithm, data, model, execution)
        rounds, state = simulation.initialize(algorithm, data, model, execution)
        memory[name] = rounds.compile(state).memory_analysis().temp_size_in_bytes
    if w.private == "record":
        found["normals"] = drawing(w, prng.normals, execution)
        found["jax_normals"] = drawing(
            w, lambda key, at, size: jax.random.normal(jax.random.fold_in(key, at), (size,)), execution
        )
    if w.name == "W1":
        features = mlp(w.shape, workloads.CLASSES)  # feature matching needs a layer before the output
        extra = {
            "mlp_non_private": fdp.fedavg(**ours.settings_of(w)),
            "mlp_matching": fdp.rfedavg(**ours.settings_of(w), feature_strength=0.1),
        }
        for name, algorithm in extra.items():
            found[name] = ours.rounds_of(w, algorithm, data, features, execution)
        found["matching_arithmetic"] = matching_alone(w, execution, features, data)
    floor = floor_of(ours.algorithm_of(w), data, model, execution)
    return found, memory, floor._asdict() | {"ms": floor.ms}


def matching_alone(w, execution, model, data):
    """Only what feature matching computes: its gradient in every step, and mean features of all records after them."""
    rows, rounds = w.records, 10

    def client(params, x):
        def step(params, at):
            batch = jax.lax.dynamic_slice_in_dim(x, (at * w.batch) % (rows - w.batch), w.batch)

            def distance(params):
                return jnp.sum((gradients.features(model, params, batch).mean(0) - 1.0) ** 2)

            return jax.tree.map(lambda p, g: p - 1e-3 * g, params, jax.grad(distance)(params)), None

        end = jax.lax.scan(step, params, jnp.arange(w.steps))[0]
        return gradients.features(model, end, x).mean(0)

    def several(x):
        def one(total, _):
            start = jax.tree.map(lambda p: p + 1e-6 * total.sum(), model.init(jax.random.key(0)))
            return total + jax.vmap(client, in_axes=(None, 0))(start, x).sum(0), None

        return jax.lax.scan(one, jnp.zeros(64), None, length=rounds)[0][None]

    x = jnp.asarray(data.x[: w.cohort * rows], jnp.float32).reshape(w.cohort, rows, -1) / 255
    compiled = spread(several, execution)
    return repeated(lambda: compiled(x), rounds)


def drawing(w, normals, execution):
    """Only the normals of a round, summed so that nothing is left out: the floor of its noise."""
    size = sum(part.size for layer in workloads.weights(w) for part in layer)
    rounds = ours.ROUNDS.get(w.name, 10)

    def one(keys):
        def step(total, at):
            return total + jax.vmap(lambda k: normals(k, at, size))(keys), None

        at = jnp.arange(rounds * w.steps, dtype=jnp.uint32)
        return jax.lax.scan(step, jnp.zeros((keys.shape[0], size)), at)[0]

    compiled, keys = spread(one, execution), jax.random.split(simulation.run_key(0), w.cohort)
    return repeated(lambda: compiled(keys), rounds)


def repeated(call, rounds):
    """A contender: runs, waits, and tells how many rounds it has done."""

    def run():
        jax.block_until_ready(call())
        return rounds

    return run


def spread(one, execution):
    """The same function on a part of its argument on every device, compiled as rounds are."""
    if execution.mesh:
        axis = jax.sharding.PartitionSpec(execution.mesh.axis_names[0])
        one = jax.shard_map(one, mesh=execution.mesh, in_specs=axis, out_specs=axis, check_vma=False)
    return jax.jit(one, compiler_options=COMPILER_OPTIONS)


def measure(w, repeats, execution):
    """Milliseconds per round of every contender, `repeats` times, alternately."""
    gap = gradient_gap(w) if w.private == "record" else None
    if gap is not None and not gap < 1e-4:
        sys.exit(f"ours is not the clipped gradient of single records: relative difference {gap:.2g}")
    found, memory, floor = contenders(w, execution)
    compile_s, times = {}, {name: [] for name in found}
    for name, run in found.items():
        began = time.perf_counter()
        run()
        compile_s[name] = time.perf_counter() - began
    for turn in range(repeats):
        for name, run in found.items():
            times[name].append(quiet.undisturbed(lambda run=run: timed(run)))
        print(f"{w.name}: turn {turn + 1} of {repeats}", file=sys.stderr)
    return gap, memory, floor, compile_s, times


def timed(run):
    """Milliseconds of a round, from as many as take a third of a second."""
    began, done = time.perf_counter(), 0
    while not done or time.perf_counter() - began < TURN_S:
        done += run()
    return 1e3 * (time.perf_counter() - began) / done


def summarise(w, gap, memory, floor, compile_s, times):
    median = {name: float(np.median(ms)) for name, ms in times.items()}
    spreads = {name: quiet.spread(ms) for name, ms in times.items()}
    ratios = {  # pair by pair, so that drift of the machine cancels
        cost: float(np.median(np.array(times[above]) / np.array(times[below])))
        for cost, (above, below) in COSTS.items()
        if above in times and below in times
    }
    if "mlp_matching" in times:  # over the same round without it plus its own arithmetic alone
        apart = np.array(times["mlp_non_private"]) + np.array(times["matching_arithmetic"])
        ratios["feature_matching_cost"] = float(np.median(np.array(times["mlp_matching"]) / apart))
    if "unclipped" in memory:
        ratios["clipping_memory"] = memory["ours"] / memory["unclipped"]
        ratios["clipping_memory_over_non_private"] = memory["ours"] / memory["non_private"]
    return {
        **{f"workload_{name}": size for name, size in w._asdict().items()},
        **{f"{name}_ms": ms for name, ms in median.items()},
        **ratios,
        "floor": floor,
        "over_floor": median["ours"] / floor["ms"],
        "temporary_bytes": memory,
        "spreads": spreads,
        "repeats": len(times["ours"]),
        "disturbed": max(spreads.values()) > 0.3,
        "compile_s": compile_s,
        "gradient_gap": gap,
        **made_with(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=NAMES, default="W1")
    parser.add_argument("--cohort", type=int, help="another cohort size")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--chunk-size", type=int, help="clients computed at once on a device")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--out", type=pathlib.Path, help="also write the JSON here")
    options = parser.parse_args()
    w = workloads.WORKLOADS[options.workload]
    if options.cohort:
        w = w._replace(cohort=options.cohort, clients=max(options.cohort, w.clients))
    result = summarise(w, *measure(w, options.repeats, fdp.execution.all_devices(options.chunk_size)))
    text = json.dumps(result, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    if options.json:
        print(text)
        return
    print(f"{w.name}: {result['ours_ms']:.1f} ms a round, {result['over_floor']:.2f} times its floor")
    for name in result["compile_s"]:
        if name != "ours":
            print(f"  {name}: {result[f'{name}_ms']:.1f} ms, {result[f'{name}_ms'] / result['ours_ms']:.2f} times ours")
    if result["disturbed"]:
        print("disturbed: a contender's middle half spreads over more than 30% of its median; run again")


if __name__ == "__main__":
    main()
