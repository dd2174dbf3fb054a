"""Reductions over few numbers.

On a GPU each reduction is a launch of its own, and launches are what small models wait for. Written out, one number
after another, it melts into what comes before and after.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

FEW = 16  # numbers that are written out


def sum_of_few(a: jax.Array) -> jax.Array:
    """Sum over the last axis; few numbers are written out on GPUs."""

    def at_once(a: jax.Array) -> jax.Array:
        return jnp.sum(a, -1)

    if not 1 < a.shape[-1] <= FEW:
        return at_once(a)
    return lax.platform_dependent(a, cuda=written_sum, default=at_once)


def written_sum(a: jax.Array) -> jax.Array:
    """Sum over the last axis, written out."""
    return functools.reduce(jnp.add, _columns(a))


def written_log_sum_exp(a: jax.Array) -> jax.Array:
    """log(sum(exp(a))) over the last axis, written out."""
    columns = _columns(a)
    largest = functools.reduce(jnp.maximum, columns)
    return largest + jnp.log(functools.reduce(jnp.add, [jnp.exp(column - largest) for column in columns]))


def _columns(a: jax.Array) -> list[jax.Array]:
    return [a[..., at] for at in range(a.shape[-1])]
