"""Round latency: the compiled private round against the round that a competent researcher writes in plain JAX.

    python benchmarks/round_latency.py --workload W1 --json

W1: 100 clients x 600 records x 784 features, softmax regression (7,850 parameters), cohort 10, B=10, tau=50, clip 1,
noise multiplier 1, weighted mean. All contenders run alternately in this process, so a busy machine slows all of them;
read the ratios. Before timing, both rounds are checked to compute the same clipped gradient.
"""

import argparse
import dataclasses
import datetime
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
from fedjax_dp.models import logistic_regression, mlp

WORKLOADS = {
    "W1": {"clients": 100, "records": 600, "features": 784, "classes": 10, "cohort": 10, "batch": 10, "steps": 50},
}


def clipped_mean(params, x, y, clip_norm):
    """The clipped mean gradient of a batch as one would write it: gradients of single records, then norms."""

    def loss(params, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(x @ params["kernel"] + params["bias"], y)

    per_record = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, x, y)
    factors = jnp.minimum(1.0, clip_norm / jax.vmap(optax.global_norm)(per_record))
    return jax.tree.map(lambda g: jnp.tensordot(factors, g, 1) / y.shape[0], per_record)


def plain_round(w, x, y):
    """vmap over clients of scan over steps of vmap(grad), clip, noise; one jit."""

    def round_(params, key):
        cohort_key, local_key = jax.random.split(key)
        ids = jax.random.choice(cohort_key, w["clients"], (w["cohort"],), replace=False)

        def client(i, key):
            def step(params, key):
                batch_key, noise_key = jax.random.split(key)
                rows = jax.random.choice(batch_key, w["records"], (w["batch"],), replace=False)
                gradient = clipped_mean(params, x[i, rows], y[i, rows], 1.0)
                leaves, treedef = jax.tree.flatten(gradient)
                keys = jax.random.split(noise_key, len(leaves))
                noisy = [g + jax.random.normal(k, g.shape) / w["batch"] for k, g in zip(keys, leaves)]
                return jax.tree.map(lambda p, g: p - 0.1 * g, params, treedef.unflatten(noisy)), None

            return jax.lax.scan(step, params, jax.random.split(key, w["steps"]))[0]

        locals_ = jax.vmap(client)(ids, jax.random.split(local_key, w["cohort"]))
        return jax.tree.map(lambda p, q: p + jnp.mean(q - p[None], axis=0), params, locals_)

    return jax.jit(round_)


def same_gradient(model, x, y):
    """Largest relative difference between our clipped mean gradient and the plain one on one batch."""
    params = jax.tree.map(lambda p: 0.05 * jax.random.normal(jax.random.key(1), p.shape), model.init(jax.random.key(0)))
    ours = gradients.clipped_sum(model, params, x, y, jnp.ones(len(y), bool), 1.0).total
    plain = clipped_mean(params["Dense_0"], x, y, 1.0)
    scale = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(plain))
    gaps = (jnp.abs(a / len(y) - b).max() for a, b in zip(jax.tree.leaves(ours["Dense_0"]), jax.tree.leaves(plain)))
    return max(map(float, gaps)) / scale


def measure(w, rounds, repeats):
    """Milliseconds per round of every contender, `repeats` times, alternately."""
    rng = np.random.default_rng(0)
    total = w["clients"] * w["records"]
    x = rng.integers(0, 256, (total, w["features"])).astype(np.uint8)
    y = rng.integers(0, w["classes"], total).astype(np.int32)
    dataset = Dataset("random", x, y, x[:100], y[:100], classes=w["classes"], scale=1 / 255)
    data = federate(dataset, np.split(np.arange(total), w["clients"]))
    model, execution = logistic_regression((w["features"],), w["classes"]), fdp.all_devices()
    gap = same_gradient(model, jnp.asarray(x[: w["batch"]] / 255, jnp.float32), jnp.asarray(y[: w["batch"]]))
    if not gap < 1e-5:
        sys.exit(f"the two rounds do not compute the same gradient: relative difference {gap:.2g}")

    common = {
        "cohort_size": w["cohort"], "batch_size": w["batch"], "local_steps": w["steps"], "learning_rate": 0.1,
        "schedule": "constant", "l2": 0.0,
    }  # fmt: skip
    private = fdp.dpnfl(**common, clip_norm=1.0, noise_multiplier=1.0)
    local = private.local
    unclipped = dataclasses.replace(local.privatizer, bound=fdp.Unbounded())  # the same noise, no clipping: not private
    control = fdp.dp_scaffold(**common, clip_norm=1.0, noise_multiplier=1.0).local.corrections
    swap = {
        "unclipped": {"privatizer": unclipped}, "non_private": {"privatizer": fdp.NonPrivate()},
        "proximal": {"corrections": (fdp.Proximal(strength=1.0), *local.corrections)},
        "control_variates": {"corrections": control},
    }  # fmt: skip
    values = {"ours": private} | {
        name: dataclasses.replace(private, local=dataclasses.replace(local, **parts)) for name, parts in swap.items()
    }
    stored, key = execution.place((data, simulation.run_key(0)))
    params = model.init(jax.random.key(0))

    def ours(value, model):
        value = simulation.numbers(value)
        algorithm, state = execution.place((value, algorithms.init(value, model, data, simulation.run_key(0))))

        def run():
            again = jax.tree.map(jnp.copy, state)  # its memory is used for the result
            out = simulation.advance(
                algorithm, again, stored, key, jnp.int32(rounds), model=model, execution=execution
            )  # fmt: skip
            jax.block_until_ready(out)
            return rounds

        return run

    round_ = plain_round(w, jnp.asarray(x.reshape(w["clients"], w["records"], -1) / 255, jnp.float32),
                         jnp.asarray(y.reshape(w["clients"], -1)))  # fmt: skip

    def plain():
        jax.block_until_ready(round_(params["Dense_0"], key_here))
        return 1

    key_here = jax.random.key(0)
    contenders = {name: ours(value, model) for name, value in values.items()}
    contenders |= {"plain_jax": plain, "normals": drawing(w, rounds, execution)}
    features = mlp((w["features"],), w["classes"])  # feature matching needs a layer before the output
    contenders |= {
        "mlp_non_private": ours(fdp.fedavg(**common), features),
        "mlp_matching": ours(fdp.rfedavg(**common, feature_strength=0.1), features),
        "matching_arithmetic": matching_alone(w, rounds, execution, features, data),
    }
    compile_s, times = {}, {name: [] for name in contenders}
    for name, run in contenders.items():
        began = time.perf_counter()
        run()
        compile_s[name] = time.perf_counter() - began
    for _ in range(repeats):
        for name, run in contenders.items():
            began = time.perf_counter()
            done = run()
            times[name].append(1e3 * (time.perf_counter() - began) / done)
    return gap, compile_s, times


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

    spread = several
    if execution.mesh:
        axis = jax.sharding.PartitionSpec(execution.mesh.axis_names[0])
        spread = jax.shard_map(several, mesh=execution.mesh, in_specs=axis, out_specs=axis, check_vma=False)
    x = jnp.asarray(data.x[: w["cohort"] * rows], jnp.float32).reshape(w["cohort"], rows, -1) / 255
    compiled = jax.jit(spread)

    def run():
        jax.block_until_ready(compiled(x))
        return rounds

    return run


def drawing(w, rounds, execution):
    """Only the normals of a round, summed so that nothing is left out: the floor of its noise."""
    size = (w["features"] + 1) * w["classes"]

    def one(keys):
        def step(total, at):
            return total + jax.vmap(lambda k: draws.normals(k, at, size))(keys), None

        at = jnp.arange(rounds * w["steps"], dtype=jnp.uint32)
        return jax.lax.scan(step, jnp.zeros((keys.shape[0], size)), at)[0]

    spread = one
    if execution.mesh:
        axis = jax.sharding.PartitionSpec(execution.mesh.axis_names[0])
        spread = jax.shard_map(one, mesh=execution.mesh, in_specs=axis, out_specs=axis, check_vma=False)
    compiled, keys = jax.jit(spread), jax.random.split(jax.random.key(0), w["cohort"])

    def run():
        jax.block_until_ready(compiled(keys))
        return rounds

    return run


def summarise(workload, w, gap, compile_s, times):
    median = {name: float(np.median(ms)) for name, ms in times.items()}
    spread = {
        name: float((np.percentile(ms, 75) - np.percentile(ms, 25)) / np.median(ms)) for name, ms in times.items()
    }

    def ratio(a, b):  # pair by pair, so that drift of the machine cancels
        return float(np.median(np.array(times[a]) / np.array(times[b])))

    apart = np.array(times["mlp_non_private"]) + np.array(times["matching_arithmetic"])
    matching = float(np.median(np.array(times["mlp_matching"]) / apart))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "workload": workload, **{f"workload_{name}": size for name, size in w.items()},
        **{f"{name}_ms": ms for name, ms in median.items()},
        "ratio_plain_jax": ratio("plain_jax", "ours"), "clipping_cost": ratio("ours", "unclipped"),
        "over_normals_alone": ratio("ours", "normals"), "privacy_cost": ratio("ours", "non_private"),
        "proximal_cost": ratio("proximal", "ours"), "control_variates_cost": ratio("control_variates", "ours"),
        # feature matching over the same round without it plus its own arithmetic alone
        "feature_matching_cost": matching,
        "spreads": spread, "repeats": len(times["ours"]), "disturbed": max(spread.values()) > 0.3,
        "compile_s": compile_s, "gradient_gap": gap, "hardware": report.device(), "versions": report.versions(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(), "commit": commit.stdout.strip(),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, default="W1")
    parser.add_argument("--cohort", type=int, help="another cohort size")
    parser.add_argument("--rounds", type=int, default=10, help="rounds per call of ours (one dispatch)")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--out", type=pathlib.Path, help="also write the JSON here")
    options = parser.parse_args()
    w = dict(WORKLOADS[options.workload])
    if options.cohort:
        w["cohort"], w["clients"] = options.cohort, max(options.cohort, w["clients"])
    result = summarise(options.workload, w, *measure(w, options.rounds, options.repeats))
    text = json.dumps(result, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    if options.json:
        print(text)
        return
    print(f"{options.workload}: ours {result['ours_ms']:.1f} ms a round, plain JAX {result['plain_jax_ms']:.1f} ms: "
          f"{result['ratio_plain_jax']:.1f}x; clipping costs {result['clipping_cost']:.2f}x; "
          f"its normals alone {result['normals_ms']:.1f} ms")  # fmt: skip
    if result["disturbed"]:
        print("disturbed: a contender's middle half spreads over more than 30% of its median; run again")


if __name__ == "__main__":
    main()
