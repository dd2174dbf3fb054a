"""fedjax's federated averaging, with a gradient function that clips and noises where the workload asks for it."""

import fedjax
import jax
import numpy as np
import workloads
from contenders.jax_rounds import clipped_mean, gradient_of, mean, noised, scaled

jax.tree_map = jax.tree.map  # what fedjax 0.0.17 calls; JAX has dropped the name since


def make(w):
    if w.private == "client":
        raise SystemExit("no privacy of its own for whole clients")
    x, y = workloads.records(w)
    clients = [fedjax.ClientDataset({"x": x[i], "y": y[i]}) for i in range(w.clients)]

    def gradient(weights, batch, key):
        records = scaled(batch["x"]), batch["y"]
        if w.private == "none":
            return mean(w, weights, *records)
        return noised(clipped_mean(w, weights, *records), key, workloads.NOISE_MULTIPLIER * w.clip_norm / w.batch)

    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        gradient,
        fedjax.optimizers.sgd(w.rate),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=w.batch, num_epochs=None, num_steps=w.steps, seed=0),
    )
    state = algorithm.init(jax.tree.map(jax.numpy.asarray, workloads.weights(w)))
    generator, key = np.random.default_rng(0), jax.random.PRNGKey(0)

    def run():
        nonlocal state, key
        key, *keys = jax.random.split(key, w.cohort + 1)
        ids = generator.choice(w.clients, w.cohort, replace=False)
        state, _ = algorithm.apply(state, [(i, clients[i], k) for i, k in zip(ids, keys, strict=True)])
        jax.block_until_ready(state.params)
        return 1

    return run, gradient_of(w)
