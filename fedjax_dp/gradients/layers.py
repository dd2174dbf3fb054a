"""Rules for layers whose per-record gradient norms have a closed form.

A layer's weight gradient for one record is a function of its input a and of the cotangent e of its output. A rule gives
the squared norm of that gradient per record, and the weighted sum of the gradients over records, both without building
a gradient for any single record. Weighting e by the clip factor commutes with the rest of the backward pass, because
records do not mix; so one backward pass serves norms and clipped sum alike.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn


class Rule(NamedTuple):
    """How one kind of layer is handled; `covers` says whether this use of the layer is the plain one."""

    covers: Callable[[Any, jax.Array], bool]
    squared_norms: Callable[[Any, jax.Array, jax.Array], jax.Array]  # (module, a, e) -> (records,)
    total: Callable[[Any, jax.Array, jax.Array], dict[str, jax.Array]]  # (module, a, weighted e) -> parameter sums


def _dense_covers(module: nn.Dense, a: jax.Array) -> bool:
    plain = module.dtype in (None, jnp.float32) and module.dot_general is None and module.dot_general_cls is None
    return plain and a.ndim == 2


def _dense_squared_norms(module: nn.Dense, a: jax.Array, e: jax.Array) -> jax.Array:
    """|a|^2 |e|^2 for the kernel, whose gradient is the outer product, and |e|^2 for the bias."""
    return (jnp.sum(a * a, axis=-1) + float(module.use_bias)) * jnp.sum(e * e, axis=-1)


def _dense_total(module: nn.Dense, a: jax.Array, e: jax.Array) -> dict[str, jax.Array]:
    total = {"kernel": (e.T @ a).T}  # the long side last in the product; `values.ravel` undoes the transpose
    return {**total, "bias": e.sum(0)} if module.use_bias else total


RULES: dict[type[nn.Module], Rule] = {nn.Dense: Rule(_dense_covers, _dense_squared_norms, _dense_total)}
