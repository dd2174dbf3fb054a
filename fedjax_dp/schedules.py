"""Learning-rate schedules: the factor on a rate in round t = 0, 1, ..., positive in every round.

Plain functions, so they hash stably; their numbers are traced, so that none of them compiles again.
"""

from typing import Any

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


def cosine(t: jax.Array, decay_rounds: Any) -> jax.Array:
    """(1 + cos(pi t / decay_rounds)) / 2 (Loshchilov and Hutter 2017); after that as in the last of these rounds."""
    t = jnp.minimum(t.astype(jnp.float32), decay_rounds - 1)
    return (1 + jnp.cos(jnp.pi * t / decay_rounds)) / 2


def step(t: jax.Array, decay_every: Any, decay_factor: Any) -> jax.Array:
    """decay_factor^k after k times `decay_every` rounds."""
    return jnp.power(jnp.asarray(decay_factor, jnp.float32), t // decay_every)


def warm_up(t: jax.Array, warm_up_rounds: Any) -> jax.Array:
    """(t + 1) / warm_up_rounds until it is 1 (Goyal et al. 2017)."""
    return jnp.minimum((t.astype(jnp.float32) + 1) / warm_up_rounds, 1.0)


def warm_up_cosine(t: jax.Array, warm_up_rounds: Any, decay_rounds: Any) -> jax.Array:
    """As `warm_up`, and over the rounds after that to `decay_rounds` as `cosine`."""
    return warm_up(t, warm_up_rounds) * cosine(
        jnp.maximum(t - warm_up_rounds, 0), jnp.maximum(decay_rounds - warm_up_rounds, 1)
    )


SCHEDULES = {
    "constant": constant,
    "inverse_sqrt": inverse_sqrt,
    "inverse": inverse,
    "cosine": cosine,
    "step": step,
    "warm_up": warm_up,
    "warm_up_cosine": warm_up_cosine,
}
