"""How the cohort's updates become one: the estimators that the papers use. Each is sum_S a_i Delta_i.

| name | a_i | new model for server SGD(1) |
|---|---|---|
| full, biased | p_i | w + sum_S p_i Delta_i (all clients, or those drawn) |
| wor_delta | (N/r) p_i | w + (N/r) sum_S p_i Delta_i (000 Algorithm 1) |
| wor_model | (N/r) p_i | (N/r) sum_S p_i w_i: also rescales the model unless the a_i sum to 1 (000 IV-B, 004) |
| renorm | p_i / sum_S p_j | sum_S p_i w_i / sum_S p_j |
| mean | 1/r | (1/r) sum_S w_i |
"""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from fedjax_dp import errors
from fedjax_dp.cohort import AllClients, Cohort
from fedjax_dp.values import structure, value


class Aggregate(Protocol):
    """Weights of the cohort's updates, and what the weighted sum means for the model."""

    def weights(self, shares: jax.Array, num_clients: int) -> jax.Array: ...  # shares p_i of the cohort (r,)

    def update(self, total: Any, weights: jax.Array, params: Any) -> Any: ...

    def check(self, cohort: Cohort) -> None: ...


def by_share(shares: jax.Array, num_clients: int) -> jax.Array:
    """p_i: unbiased only when every client takes part."""
    return shares


def by_inverse_rate(shares: jax.Array, num_clients: int) -> jax.Array:
    """(N/r) p_i: unbiased for uniform cohorts."""
    return shares * (num_clients / shares.shape[0])


def renormalised(shares: jax.Array, num_clients: int) -> jax.Array:
    """p_i / sum_S p_j: sums to 1 in every round."""
    return shares / shares.sum()


def equally(shares: jax.Array, num_clients: int) -> jax.Array:
    """1/r."""
    return jnp.full(shares.shape, 1 / shares.shape[0])


@value
class Estimator:
    """The weighted sum of updates, or of models."""

    weigh: Callable[[jax.Array, int], jax.Array] = structure()
    of_models: bool = structure(default=False)  # sum a_i w_i instead of w + sum a_i Delta_i
    of_everyone: bool = structure(default=False)  # meant for rounds of all clients

    def weights(self, shares: jax.Array, num_clients: int) -> jax.Array:
        return self.weigh(shares, num_clients)

    def update(self, total: Any, weights: jax.Array, params: Any) -> Any:
        if not self.of_models:
            return total
        return jax.tree.map(lambda u, w: u + (weights.sum() - 1) * w, total, params)

    def check(self, cohort: Cohort) -> None:
        if self.of_everyone and not isinstance(cohort, AllClients):
            raise errors.refuse(
                "estimator full", "a sampled cohort", "used with all clients", "use biased or wor_delta"
            )


ESTIMATORS: dict[str, Estimator] = {
    "full": Estimator(weigh=by_share, of_everyone=True),
    "wor_delta": Estimator(weigh=by_inverse_rate),
    "wor_model": Estimator(weigh=by_inverse_rate, of_models=True),
    "biased": Estimator(weigh=by_share),
    "renorm": Estimator(weigh=renormalised),
    "mean": Estimator(weigh=equally),
}
