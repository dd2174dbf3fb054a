"""The round that a competent researcher writes in plain JAX: one jit of vmap over clients of scan over steps."""

import itertools

import jax
import jax.numpy as jnp
import workloads
from contenders.jax_rounds import clipped_mean, gradient_of, mean, noised, scaled


def make(w, seed=0):
    x, y = map(jnp.asarray, workloads.records(w))
    held = [jax.tree.map(jnp.asarray, workloads.weights(w))]
    key, count = jax.random.key(seed), itertools.count()

    @jax.jit
    def one(weights, key):
        cohort_key, local_key = jax.random.split(key)
        ids = jax.random.choice(cohort_key, w.clients, (w.cohort,), replace=False)

        def client(i, key):
            def step(weights, key):
                batch_key, noise_key = jax.random.split(key)
                rows = jax.random.choice(batch_key, w.records, (w.batch,), replace=False)
                batch = scaled(x[i, rows]), y[i, rows]
                if w.private == "record":
                    gradient = clipped_mean(w, weights, *batch)
                    gradient = noised(gradient, noise_key, workloads.NOISE_MULTIPLIER * w.clip_norm / w.batch)
                else:
                    gradient = mean(w, weights, *batch)
                return jax.tree.map(lambda p, g: p - w.rate * g, weights, gradient), None

            return jax.lax.scan(step, weights, jax.random.split(key, w.steps))[0]

        ends = jax.vmap(client)(ids, jax.random.split(local_key, w.cohort))
        if w.private != "client":
            return jax.tree.map(lambda p, q: p + jnp.mean(q - p[None], axis=0), weights, ends)
        updates = jax.tree.map(lambda q, p: q - p[None], ends, weights)
        squares = sum(jnp.sum(u**2, axis=tuple(range(1, u.ndim))) for u in jax.tree.leaves(updates))
        factors = jnp.minimum(1.0, w.clip_norm / jnp.sqrt(squares))
        total = jax.tree.map(lambda u: jnp.tensordot(factors, u, 1), updates)
        total = noised(total, cohort_key, workloads.NOISE_MULTIPLIER * w.clip_norm)
        return jax.tree.map(lambda p, u: p + u / w.cohort, weights, total)

    def run():
        held[0] = jax.block_until_ready(one(held[0], jax.random.fold_in(key, next(count))))
        return 1

    return run, gradient_of(w)
