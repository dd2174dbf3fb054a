"""jax-privacy's clipped gradient and noise, one compiled local step, in a loop over clients and steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import workloads
from contenders.jax_rounds import loss, scaled
from jax_privacy import clipping, noise_addition


def make(w):
    if w.private != "record":
        raise SystemExit("for record-level privacy only")
    x, y = workloads.records(w)
    weights = jax.tree.map(jnp.asarray, workloads.weights(w))
    generator = np.random.default_rng(0)
    clipped = clipping.clipped_grad(
        lambda p, x, y: loss(w, p, x, y),
        l2_clip_norm=w.clip_norm,
        batch_argnums=(1, 2),
        keep_batch_dim=False,
        normalize_by=w.batch,
    )
    noise = noise_addition.gaussian_privatizer(
        stddev=workloads.NOISE_MULTIPLIER * clipped.sensitivity(), prng_key=jax.random.key(0)
    )
    rule = optax.sgd(w.rate)

    @jax.jit
    def step(params, memory, x, y):
        noisy, memory = noise.update(clipped(params, scaled(x), y), memory)
        updates, _ = rule.update(noisy, rule.init(params))
        return optax.apply_updates(params, updates), memory

    @jax.jit
    def add(total, params, start):
        return jax.tree.map(lambda t, p, q: t + (p - q) / w.cohort, total, params, start)

    memory = noise.init(weights)

    def run():
        nonlocal weights, memory
        total = weights
        for client in generator.choice(w.clients, w.cohort, replace=False):
            params = weights
            for _ in range(w.steps):
                rows = generator.choice(w.records, w.batch, replace=False)
                params, memory = step(params, memory, x[client, rows], y[client, rows])
            total = add(total, params, weights)
        weights = jax.block_until_ready(total)
        return 1

    return run, lambda weights, x, y: jax.jit(clipped)(weights, x, y)
