"""Learning-rate schedules: the factor on a rate in round t = 0, 1, ... Plain functions, so they hash stably."""

import jax
import jax.numpy as jnp


def constant(t: jax.Array) -> jax.Array:
    """1."""
    return jnp.ones(jnp.shape(t), jnp.float32)


def inverse_sqrt(t: jax.Array) -> jax.Array:
    """1 / sqrt(1 + t) (dpnfl)."""
    return 1 / jnp.sqrt(1 + t.astype(jnp.float32))


def inverse(t: jax.Array) -> jax.Array:
    """1 / (1 + t)."""
    return 1 / (1 + t.astype(jnp.float32))


SCHEDULES = {"constant": constant, "inverse_sqrt": inverse_sqrt, "inverse": inverse}
