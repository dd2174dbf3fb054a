"""What the contenders in JAX share: models as functions of `[(kernel, bias), ...]`, and a batch's clipped gradient."""

import jax
import jax.numpy as jnp
import workloads
from jax import lax


def logits(w, weights, x):
    """Of one record `(*shape)`, float32 in [0, 1]."""
    x = x.reshape(1, *w.shape)
    for (kernel, bias), layer in zip(weights, workloads.layers(w), strict=True):
        if kernel.ndim == 4:
            axes = ("NHWC", "HWIO", "NHWC")
            x = lax.conv_general_dilated(x, kernel, (1, 1), layer.padding, dimension_numbers=axes) + bias
        else:
            x = x.reshape(1, -1) @ kernel + bias
        x = jax.nn.relu(x) if layer.relu else x
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") if layer.halve else x
    return x[0]


def loss(w, weights, x, y):
    """Cross-entropy of one record."""
    scores = logits(w, weights, x)
    return jax.nn.logsumexp(scores) - scores[y]


def clipped_mean(w, weights, x, y):
    """As one writes it: gradients of single records, their norms, the mean of the clipped ones."""
    per_record = jax.vmap(jax.grad(lambda p, x, y: loss(w, p, x, y)), (None, 0, 0))(weights, x, y)
    squares = sum(jnp.sum(g**2, axis=tuple(range(1, g.ndim))) for g in jax.tree.leaves(per_record))
    factors = jnp.minimum(1.0, w.clip_norm / jnp.sqrt(squares))
    return jax.tree.map(lambda g: jnp.tensordot(factors, g, 1) / y.shape[0], per_record)


def mean(w, weights, x, y):
    return jax.grad(lambda p: jax.vmap(lambda x, y: loss(w, p, x, y))(x, y).mean())(weights)


def noised(gradient, key, scale):
    leaves, treedef = jax.tree.flatten(gradient)
    keys = jax.random.split(key, len(leaves))
    return treedef.unflatten([g + scale * jax.random.normal(k, g.shape) for k, g in zip(keys, leaves, strict=True)])


def scaled(x):
    return jnp.asarray(x, jnp.float32) / 255


def gradient_of(w):
    """The clipped mean gradient of a batch, to compare; None without record-level privacy."""
    if w.private != "record":
        return None
    return lambda weights, x, y: jax.jit(lambda p, x, y: clipped_mean(w, p, x, y))(weights, x, y)
