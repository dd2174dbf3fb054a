"""How the cohort's updates become one: the estimators of algorithms.md 0.1. Each is sum_S a_i Delta_i.

| name | a_i | new model for server SGD(1) |
|---|---|---|
| full, biased | p_i | w + sum_S p_i Delta_i (all clients, or those drawn) |
| wor_delta | (N/r) p_i | w + (N/r) sum_S p_i Delta_i |
| wor_model | (N/r) p_i | (N/r) sum_S p_i w_i: also rescales the model unless the a_i sum to 1 |
| renorm | p_i / sum_S p_j | sum_S p_i w_i / sum_S p_j |
| mean | 1/r | (1/r) sum_S w_i |
"""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from fedjax_dp import errors
from fedjax_dp.cohort import AllClients, Cohort
from fedjax_dp.values import value


class Aggregate(Protocol):
    """Weights of the cohort's updates, and what the weighted sum means for the model."""

    def weights(self, shares: jax.Array, num_clients: int) -> jax.Array: ...  # shares p_i of the cohort (r,)

    def update(self, total: Any, weights: jax.Array, params: Any) -> Any: ...

    def check(self, cohort: Cohort) -> None: ...


class _Delta:
    """The weighted sum of updates is the update."""

    def update(self, total: Any, weights: jax.Array, params: Any) -> Any:
        return total

    def check(self, cohort: Cohort) -> None:
        pass


@value
class Full(_Delta):
    """w + sum p_i Delta_i over all clients."""

    def weights(self, shares: jax.Array, num_clients: int) -> jax.Array:
        return shares

    def check(self, cohort: Cohort) -> None:
        if not isinstance(cohort, AllClients):
            raise errors.refuse(
                "estimator full", "a sampled cohort", "used with all clients", "use biased or wor_delta"
            )


@value
class Biased(_Delta):
    """w + sum_S p_i Delta_i: clients not drawn count as unmoved, so the expected step is r/N of the full one."""

    def weights(self, shares: jax.Array, num_clients: int) -> jax.Array:
        return shares


@value
class WorDelta(_Delta):
    """w + (N/r) sum_S p_i Delta_i, unbiased for the full step (000 Algorithm 1)."""

    def weights(self, shares: jax.Array, num_clients: int) -> jax.Array:
        return shares * (num_clients / shares.shape[0])


@value
class WorModel:
    """(N/r) sum_S p_i w_i (000 section IV-B, 004 Assumption 5): unbiased, noisy when the a_i do not sum to 1."""

    def weights(self, shares: jax.Array, num_clients: int) -> jax.Array:
        return shares * (num_clients / shares.shape[0])

    def update(self, total: Any, weights: jax.Array, params: Any) -> Any:
        return jax.tree.map(lambda u, w: u + (weights.sum() - 1) * w, total, params)

    def check(self, cohort: Cohort) -> None:
        pass


@value
class Renorm(_Delta):
    """w + sum_S p_i Delta_i / sum_S p_j."""

    def weights(self, shares: jax.Array, num_clients: int) -> jax.Array:
        return shares / shares.sum()


@value
class Mean(_Delta):
    """w + (1/r) sum_S Delta_i."""

    def weights(self, shares: jax.Array, num_clients: int) -> jax.Array:
        return jnp.full(shares.shape, 1 / shares.shape[0])


ESTIMATORS: dict[str, Callable[[], Aggregate]] = {
    "full": Full, "wor_delta": WorDelta, "wor_model": WorModel, "biased": Biased, "renorm": Renorm, "mean": Mean,
}  # fmt: skip
