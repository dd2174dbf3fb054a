"""Settings that all examinations share: the examined run, the number of trials, and their compilation."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp.accounting import Release, Unit
from fedjax_dp.data.store import FederatedData
from fedjax_dp.models import Model
from fedjax_dp.parts.cohorts import Cohort, Members
from fedjax_dp.prng import role_key
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.clients import draw_cohort
from fedjax_dp.rounds.simulation import run_key

RUNS = 1_000  # rounds of a client that are tried
TRIALS = 64  # updates and rounds that are tried of each kind
SLACK = 1e-3  # relative, for rounding
NOISE_SLACK = 0.04  # relative, for the standard deviations of noise that are measured
QUICK = {"xla_backend_optimization_level": 0}


class Effort(NamedTuple):
    """Numbers of trials."""

    cohorts: int
    batches: int  # at least so many of a client, in at least RUNS of its rounds
    all_laws: bool = False  # also of cohorts whose sampling amplifies nothing


BEFORE_A_RUN = Effort(2_000, 1_000)
THOROUGH = Effort(4_000, 4_000, all_laws=True)  # for a part's author


class Place(NamedTuple):
    """The algorithm in which a part is examined, and a run of it."""

    algorithm: Algorithm
    data: FederatedData
    model: Model
    rounds: int
    seed: int = 0
    effort: Effort = BEFORE_A_RUN
    # the accountants' releases of each client in some rounds; None: no whole run is examined
    releases: Callable[[Algorithm, FederatedData, Model, int], list[list[Release]]] | None = None

    @property
    def by_client(self) -> bool:
        """Whether noise hides whole clients."""
        return self.algorithm.upload.unit is Unit.CLIENT


def compile_trials(function: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
    return jax.jit(jax.vmap(function, in_axes), compiler_options=QUICK)


def keys_of(count: int, role: str, seed: int = 0) -> jax.Array:
    return jax.random.split(role_key(run_key(seed), role), count)


def draw_cohorts(cohort: Cohort, key: jax.Array, rounds: np.ndarray, shares: jax.Array) -> Members:
    """The cohorts of these rounds as host arrays `(rounds, members)`."""
    return jax.tree.map(np.asarray, _draw(cohort, key, jnp.asarray(rounds), shares))


@functools.partial(jax.jit, compiler_options=QUICK)
def _draw(cohort: Cohort, key: jax.Array, rounds: jax.Array, shares: jax.Array) -> Members:
    return jax.vmap(lambda t: draw_cohort(cohort, key, t, shares))(rounds)
