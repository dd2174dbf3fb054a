"""Round latency: the compiled private round against the round that a competent researcher writes in plain JAX.

    python benchmarks/round_latency.py --workload W1 --json

W1    100 clients x 600 records x 784 features, softmax regression (7,850 parameters), cohort 10, B=10, tau=50;
W2    100 clients x 500 records x 60 features, MLP 60-1200-10 (85,210 parameters), cohort 10, B=50, tau=50;
W3    100 clients x 600 images of 28x28, CNN (1,663,370 parameters), cohort 10, B=32, tau=10, without privacy;
W3dp  the CNN with clipping and noise, cohort 2, tau=5.

Clip norm 1, noise multiplier 1, weighted mean. All contenders run alternately in this process, so a busy machine slows
all of them; read the ratios. Before timing, the private rounds are checked to compute the same clipped gradient. With
PyTorch (and Opacus) installed, their rounds join: a loop over clients and steps, and the same with ghost clipping.
"""

import argparse
import dataclasses
import datetime
import importlib.metadata
import importlib.util
import json
import pathlib
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_dp as fdp  # before JAX is used, so that every core is a device
from fedjax_dp import algorithm as algorithms
from fedjax_dp import draws, gradients, report, simulation
from fedjax_dp.data import Dataset, federate
from fedjax_dp.models import cnn, logistic_regression, mlp

WORKLOADS = {
    "W1": {"clients": 100, "records": 600, "shape": (784,), "cohort": 10, "batch": 10, "steps": 50, "private": True},
    "W2": {"clients": 100, "records": 500, "shape": (60,), "cohort": 10, "batch": 50, "steps": 50, "private": True},
    "W3": {"clients": 100, "records": 600, "shape": (28, 28), "cohort": 10, "batch": 32, "steps": 10, "private": False},
    "W3dp": {"clients": 100, "records": 600, "shape": (28, 28), "cohort": 2, "batch": 32, "steps": 5, "private": True},
}
MODELS = {
    "W1": logistic_regression, "W2": lambda shape, classes: mlp(shape, classes, (1200,)), "W3": cnn, "W3dp": cnn,
}  # fmt: skip
CLASSES, RATE = 10, 0.01
SLOW_MS = 3000  # a contender slower than this runs in the first few repeats only
FEW = 3
SETTLE_S = 0.25  # after PyTorch, whose threads spin for a while


def loss_of(model, params, x, y):
    """Loss of one record by the module alone, as one would call it."""
    return optax.softmax_cross_entropy_with_integer_labels(model.module.apply({"params": params}, x[None])[0], y)


def clipped_mean(model, params, x, y, clip_norm):
    """The clipped mean gradient of a batch as one would write it: gradients of single records, then norms."""
    per_record = jax.vmap(jax.grad(lambda p, x, y: loss_of(model, p, x, y)), in_axes=(None, 0, 0))(params, x, y)
    factors = jnp.minimum(1.0, clip_norm / jax.vmap(optax.global_norm)(per_record))
    return jax.tree.map(lambda g: jnp.tensordot(factors, g, 1) / y.shape[0], per_record)


def plain_mean(model, params, x, y):
    """The mean gradient of a batch."""
    return jax.grad(lambda p: jax.vmap(lambda x, y: loss_of(model, p, x, y))(x, y).mean())(params)


def plain_round(w, model, x, y):
    """vmap over clients of scan over steps of vmap(grad), clip, noise (or the plain gradient); one jit."""

    def round_(params, key):
        cohort_key, local_key = jax.random.split(key)
        ids = jax.random.choice(cohort_key, w["clients"], (w["cohort"],), replace=False)

        def client(i, key):
            def step(params, key):
                batch_key, noise_key = jax.random.split(key)
                rows = jax.random.choice(batch_key, w["records"], (w["batch"],), replace=False)
                if not w["private"]:
                    return jax.tree.map(
                        lambda p, g: p - RATE * g, params, plain_mean(model, params, x[i, rows], y[i, rows])
                    ), None
                gradient = clipped_mean(model, params, x[i, rows], y[i, rows], 1.0)
                leaves, treedef = jax.tree.flatten(gradient)
                keys = jax.random.split(noise_key, len(leaves))
                noisy = [g + jax.random.normal(k, g.shape) / w["batch"] for k, g in zip(keys, leaves)]
                return jax.tree.map(lambda p, g: p - RATE * g, params, treedef.unflatten(noisy)), None

            return jax.lax.scan(step, params, jax.random.split(key, w["steps"]))[0]

        locals_ = jax.vmap(client)(ids, jax.random.split(local_key, w["cohort"]))
        return jax.tree.map(lambda p, q: p + jnp.mean(q - p[None], axis=0), params, locals_)

    return jax.jit(round_)


def largest_gap(ours, theirs):
    """Largest difference between two gradients, over the largest entry."""
    scale = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(theirs))
    return max(float(jnp.abs(a - b).max()) for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs))) / scale


def one_gradient(model, x, y):
    """Parameters, our clipped mean gradient of one batch, and the one of the plain round."""
    params = jax.tree.map(
        lambda p: p + 0.01 * jax.random.normal(jax.random.key(1), p.shape), model.init(jax.random.key(0))
    )
    ours = jax.jit(gradients.clipped_sum, static_argnums=0)(model, params, x, y, jnp.ones(len(y), bool), 1.0).total
    ours = jax.tree.map(lambda g: g / len(y), ours)
    return params, ours, jax.jit(clipped_mean, static_argnums=0)(model, params, x, y, 1.0)


def repeated(call, rounds):
    """A contender: runs, waits, and tells how many rounds it has done."""

    def run():
        jax.block_until_ready(call())
        return rounds

    return run


def our_rounds(value, w, model, data, rounds, execution):
    """Several rounds as one dispatch, and the temporary memory that the compiler plans for them."""
    key = execution.place(simulation.run_key(0))
    stored = execution.place(data)
    value = simulation.numbers(value)
    algorithm, state = execution.place((value, algorithms.init(value, model, data, simulation.run_key(0))))
    options = {"model": model, "execution": execution}
    plan = simulation.advance.lower(algorithm, state, stored, key, jnp.int32(rounds), **options).compile()

    def call():
        again = jax.tree.map(jnp.copy, state)  # its memory is used for the result
        return simulation.advance(algorithm, again, stored, key, jnp.int32(rounds), **options)

    return repeated(call, rounds), plan.memory_analysis().temp_size_in_bytes


def values_of(name, w):
    """Our algorithms of a workload: the one measured, and its relatives with a part exchanged."""
    common = {
        "cohort_size": w["cohort"], "batch_size": w["batch"], "local_steps": w["steps"], "learning_rate": RATE,
        "schedule": "constant", "l2": 0.0,
    }  # fmt: skip
    private = fdp.dpnfl(**common, clip_norm=1.0, noise_multiplier=1.0)
    local = private.local
    unclipped = dataclasses.replace(local.privatizer, bound=fdp.Unbounded())  # the same noise, no clipping: not private
    swap = {"unclipped": {"privatizer": unclipped}, "non_private": {"privatizer": fdp.NonPrivate()}}
    if name == "W1":
        control = fdp.dp_scaffold(**common, clip_norm=1.0, noise_multiplier=1.0).local.corrections
        swap |= {
            "proximal": {"corrections": (fdp.Proximal(strength=1.0), *local.corrections)},
            "control_variates": {"corrections": control},
        }
    values = {"ours": private} | {
        key: dataclasses.replace(private, local=dataclasses.replace(local, **parts)) for key, parts in swap.items()
    }
    return (values if w["private"] else {"ours": values["non_private"]}), common


def measure(name, w, rounds, repeats, chunk_size):
    """Milliseconds per round of every contender, `repeats` times, alternately."""
    rng = np.random.default_rng(0)
    total = w["clients"] * w["records"]
    x = rng.integers(0, 256, (total, *w["shape"])).astype(np.uint8)
    y = rng.integers(0, CLASSES, total).astype(np.int32)
    data = federate(Dataset("random", x, y, x[:100], y[:100], classes=CLASSES, scale=1 / 255),
                    np.split(np.arange(total), w["clients"]))  # fmt: skip
    model, execution = MODELS[name](w["shape"], CLASSES), fdp.all_devices(chunk_size)
    batch = jnp.asarray(x[: w["batch"]] / 255, jnp.float32), jnp.asarray(y[: w["batch"]])
    start, ours, plain = one_gradient(model, *batch)
    gaps = {"plain_jax": largest_gap(ours, plain)}

    values, common = values_of(name, w)
    contenders, memory = {}, {}
    for key, value in values.items():
        contenders[key], memory[key] = our_rounds(value, w, model, data, rounds, execution)
    params = model.init(jax.random.key(0))
    images = jnp.asarray(x.reshape(w["clients"], w["records"], *w["shape"]) / 255, jnp.float32)
    round_ = plain_round(w, model, images, jnp.asarray(y.reshape(w["clients"], -1)))
    contenders["plain_jax"] = repeated(lambda: round_(params, jax.random.key(0)), 1)
    if w["private"]:
        contenders["normals"] = drawing(w, model, rounds, execution)
    if name == "W1":
        features = mlp(w["shape"], CLASSES)  # feature matching needs a layer before the output
        extra = {"mlp_non_private": fdp.fedavg(**common), "mlp_matching": fdp.rfedavg(**common, feature_strength=0.1)}
        for key, value in extra.items():
            contenders[key], _ = our_rounds(value, w, features, data, rounds, execution)
        contenders["matching_arithmetic"] = matching_alone(w, rounds, execution, features, data)
    if importlib.util.find_spec("torch"):
        import torch_rounds

        found, gap = torch_rounds.contenders(name, w, x, y, start, ours, batch, RATE)
        contenders |= found
        gaps |= gap
    for key, gap in gaps.items():
        if not gap < 1e-4:
            sys.exit(f"ours and {key} do not compute the same gradient: relative difference {gap:.2g}")

    compile_s, times = {}, {name: [] for name in contenders}
    for name, run in contenders.items():
        began = time.perf_counter()
        done = run()
        compile_s[name] = time.perf_counter() - began
        print(f"{name}: {1e3 * compile_s[name] / done:.0f} ms a round with compilation", file=sys.stderr)
    for turn in range(repeats):
        for name, run in contenders.items():
            if turn >= FEW and times[name][0] > SLOW_MS:
                continue
            began = time.perf_counter()
            done = run()
            times[name].append(1e3 * (time.perf_counter() - began) / done)
            if name in ("torch_loop", "opacus_ghost"):
                time.sleep(SETTLE_S)
    return gaps, memory, compile_s, times


def matching_alone(w, rounds, execution, model, data):
    """Only what feature matching computes: its gradient in every step, and mean features of all records after them."""
    rows = w["records"]

    def client(params, x):
        def step(params, at):
            batch = jax.lax.dynamic_slice_in_dim(x, (at * w["batch"]) % (rows - w["batch"]), w["batch"])

            def distance(params):
                return jnp.sum((model.features(params, batch).mean(0) - 1.0) ** 2)

            return jax.tree.map(lambda p, g: p - 1e-3 * g, params, jax.grad(distance)(params)), None

        end = jax.lax.scan(step, params, jnp.arange(w["steps"]))[0]
        return model.features(end, x).mean(0)

    def several(x):
        def one(total, _):
            start = jax.tree.map(lambda p: p + 1e-6 * total.sum(), model.init(jax.random.key(0)))
            return total + jax.vmap(client, in_axes=(None, 0))(start, x).sum(0), None

        return jax.lax.scan(one, jnp.zeros(64), None, length=rounds)[0][None]

    x = jnp.asarray(data.x[: w["cohort"] * rows], jnp.float32).reshape(w["cohort"], rows, -1) / 255
    compiled = jax.jit(spread(several, execution))
    return repeated(lambda: compiled(x), rounds)


def drawing(w, model, rounds, execution):
    """Only the normals of a round, summed so that nothing is left out: the floor of its noise."""
    size = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))

    def one(keys):
        def step(total, at):
            return total + jax.vmap(lambda k: draws.normals(k, at, size))(keys), None

        at = jnp.arange(rounds * w["steps"], dtype=jnp.uint32)
        return jax.lax.scan(step, jnp.zeros((keys.shape[0], size)), at)[0]

    compiled, keys = jax.jit(spread(one, execution)), jax.random.split(jax.random.key(0), w["cohort"])
    return repeated(lambda: compiled(keys), rounds)


def spread(one, execution):
    """The same function on a part of its argument on every device."""
    if not execution.mesh:
        return one
    axis = jax.sharding.PartitionSpec(execution.mesh.axis_names[0])
    return jax.shard_map(one, mesh=execution.mesh, in_specs=axis, out_specs=axis, check_vma=False)


def commit():
    """The commit that is measured."""
    here = pathlib.Path(__file__).parent
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def summarise(workload, w, gaps, memory, compile_s, times):
    median = {name: float(np.median(ms)) for name, ms in times.items()}
    spread = {
        name: float((np.percentile(ms, 75) - np.percentile(ms, 25)) / np.median(ms)) for name, ms in times.items()
    }

    def ratio(a, b):  # pair by pair, so that drift of the machine cancels
        turns = min(len(times[a]), len(times[b]))
        return float(np.median(np.array(times[a][:turns]) / np.array(times[b][:turns])))

    told = {
        f"ratio_{name}": ratio(name, "ours") for name in ("plain_jax", "torch_loop", "opacus_ghost") if name in times
    }
    for key, (above, below) in {
        "clipping_cost": ("ours", "unclipped"), "privacy_cost": ("ours", "non_private"),
        "over_normals_alone": ("ours", "normals"), "proximal_cost": ("proximal", "ours"),
        "control_variates_cost": ("control_variates", "ours"),
    }.items():  # fmt: skip
        if above in times and below in times:
            told[key] = ratio(above, below)
    if "mlp_matching" in times:  # over the same round without it plus its own arithmetic alone
        apart = np.array(times["mlp_non_private"]) + np.array(times["matching_arithmetic"])
        told["feature_matching_cost"] = float(np.median(np.array(times["mlp_matching"]) / apart))
    if "unclipped" in memory:
        told["clipping_memory"] = memory["ours"] / memory["unclipped"]
        told["clipping_memory_over_non_private"] = memory["ours"] / memory["non_private"]
    versions = report.versions() | {
        name: importlib.metadata.version(name) for name in ("torch", "opacus") if importlib.util.find_spec(name)
    }
    return {
        "workload": workload, **{f"workload_{name}": size for name, size in w.items()},
        **{f"{name}_ms": ms for name, ms in median.items()}, **told, "temporary_bytes": memory,
        "spreads": spread, "repeats": len(times["ours"]), "disturbed": max(spread.values()) > 0.3,
        "compile_s": compile_s, "gradient_gap": gaps, "hardware": report.device(), "versions": versions,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(), "commit": commit(),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, default="W1")
    parser.add_argument("--cohort", type=int, help="another cohort size")
    parser.add_argument("--rounds", type=int, help="rounds per call of ours (one dispatch); 10, W3 2, W3dp 5")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--chunk-size", type=int, help="clients computed at once on a device")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--out", type=pathlib.Path, help="also write the JSON here")
    options = parser.parse_args()
    w = dict(WORKLOADS[options.workload])
    if options.cohort:
        w["cohort"], w["clients"] = options.cohort, max(options.cohort, w["clients"])
    rounds = options.rounds or {"W3": 2, "W3dp": 5}.get(options.workload, 10)
    result = summarise(options.workload, w, *measure(options.workload, w, rounds, options.repeats, options.chunk_size))
    text = json.dumps(result, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    if options.json:
        print(text)
        return
    print(f"{options.workload}: ours {result['ours_ms']:.1f} ms a round")
    for name in result["compile_s"]:
        if name != "ours":
            print(f"  {name}: {result[f'{name}_ms']:.1f} ms, {result[f'{name}_ms'] / result['ours_ms']:.2f} times ours")
    if result["disturbed"]:
        print("disturbed: a contender's middle half spreads over more than 30% of its median; run again")


if __name__ == "__main__":
    main()
