"""What all examinations of parts share: how much is tried, and how it is compiled."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp.parts.cohorts import Cohort, Members
from fedjax_dp.prng import role_key
from fedjax_dp.rounds.clients import draw_cohort
from fedjax_dp.rounds.simulation import run_key

ROUNDS, KEYS, TRIALS = 2_000, 1_000, 64  # cohorts, batches and neighbours that are tried
SLACK = 1e-3  # relative, for rounding
NOISE_SLACK = 0.04  # relative, for the standard deviations of noise that are measured
QUICK = {"xla_backend_optimization_level": 0}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(jax.vmap(function), compiler_options=QUICK)


def keys_of(count: int, role: str, seed: int = 0) -> jax.Array:
    return jax.random.split(role_key(run_key(seed), role), count)


def drawn_cohorts(cohort: Cohort, key: jax.Array, rounds: np.ndarray, shares: jax.Array) -> Members:
    """The cohorts of some rounds, `(rounds, members)` each, on the host."""
    return jax.tree.map(np.asarray, _drawn(cohort, key, jnp.asarray(rounds), shares))


@functools.partial(jax.jit, compiler_options=QUICK)
def _drawn(cohort: Cohort, key: jax.Array, rounds: jax.Array, shares: jax.Array) -> Members:
    return jax.vmap(lambda t: draw_cohort(cohort, key, t, shares))(rounds)
