"""Schedules: the factor on a number in round t = 0, 1, ..., positive in every round.

`SCHEDULES` are of learning rates, `CHANGES` of noise multipliers and clip norms. Plain functions, so they hash stably;
their numbers are traced, so that none of them compiles again.
"""

from collections.abc import Callable
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


def step(t: jax.Array, decay_every: Any, decay_factor: Any = 0.1) -> jax.Array:
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


SCHEDULES: dict[str, Callable[..., jax.Array]] = {
    "constant": constant,
    "inverse_sqrt": inverse_sqrt,
    "inverse": inverse,
    "cosine": cosine,
    "step": step,
    "warm_up": warm_up,
    "warm_up_cosine": warm_up_cosine,
}


def _stage(t: jax.Array, rounds: Any, stages: Any) -> jax.Array:
    """How far stages have come in round t, from 0 to 1 in the last; they are equally long but for that one."""
    whole, most = (jnp.maximum(jnp.asarray(number).astype(jnp.int32), 1) for number in (rounds, stages))
    length = -(-whole // most)
    last = -(-whole // length) - 1
    return jnp.clip(t // length, 0, last) / jnp.maximum(last, 1).astype(jnp.float32)


def change_linear(t: jax.Array, end: Any, rounds: Any, stages: Any = 10) -> jax.Array:
    """From 1 to `end` by equal differences of so many stages, which last for so many rounds; then `end`."""
    return 1 + (jnp.asarray(end, jnp.float32) - 1) * _stage(t, rounds, stages)


def change_cosine(t: jax.Array, end: Any, rounds: Any, stages: Any = 10) -> jax.Array:
    """The same along half a cosine."""
    last = jnp.asarray(end, jnp.float32)
    return last + (1 - last) * (1 + jnp.cos(jnp.pi * _stage(t, rounds, stages))) / 2


def change_step(t: jax.Array, end: Any, rounds: Any, stages: Any = 10) -> jax.Array:
    """The same by equal ratios."""
    return jnp.power(jnp.asarray(end, jnp.float32), _stage(t, rounds, stages))


def change_list(t: jax.Array, factors: Any) -> jax.Array:
    """As they are listed, one for each round from 0; the last one after that."""
    listed = jnp.asarray(factors, jnp.float32)
    return jnp.take(listed, jnp.clip(t, 0, listed.shape[0] - 1))


CHANGES: dict[str, Callable[..., jax.Array]] = {
    "linear": change_linear,
    "cosine": change_cosine,
    "step": change_step,
    "list": change_list,
}
