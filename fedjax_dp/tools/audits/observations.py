"""Observations of messages: a few numbers for a model of any size.

Each reduces messages and models to `(numbers,)`, of which the first `short` reveal the most.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_dp import gradients
from fedjax_dp.data.store import FederatedData
from fedjax_dp.models import Model
from fedjax_dp.parts.cohorts import Array
from fedjax_dp.pytrees import ravel, structure, value
from fedjax_dp.tools.audits.wrappers import is_withdrawn, replace_withdrawn


@value
class Directions:
    """The components of a message along fixed directions, for each of its parts of model size, and single coordinates.

    along   `(directions, size)`;
    single  positions of coordinates `(k,)`, which reveal shared or missing noise.
    """

    along: Array
    single: Array

    def message(self, model: Model, data: FederatedData, params: Any, flat: jax.Array) -> jax.Array:
        size = self.along.shape[1]
        return self._numbers(flat[: flat.size // size * size].reshape(-1, size))

    def model(self, model: Model, data: FederatedData, params: Any) -> jax.Array:
        return self._numbers(ravel(params)[0][None])

    def short(self, numbers: int) -> int:
        return numbers * self.along.shape[0] // (self.along.shape[0] + self.single.shape[0])

    def _numbers(self, parts: jax.Array) -> jax.Array:
        return jnp.concatenate(
            [(parts @ jnp.asarray(self.along).T).ravel(), parts[:, jnp.asarray(self.single)].ravel()]
        )


@value
class Alignment:
    """The alignment of a message with the gradients of the canary's records, minus that of the replaced records.

    canary, others  rows of records in the store `(k,)`; label -1 for an absent record;
    apart           whether each record has a separate number.
    """

    canary: Array
    others: Array
    apart: bool = structure(default=False)

    def message(self, model: Model, data: FederatedData, params: Any, flat: jax.Array) -> jax.Array:
        start, unravel = ravel(params)
        parts = flat[: flat.size // start.size * start.size].reshape(-1, start.size)

        def along(part: jax.Array) -> jax.Array:  # inner products with every record's gradient, in one forward pass
            return jax.jvp(lambda p: self._losses(model, data, p), (params,), (unravel(part),))[1]

        return self._numbers(jax.vmap(along)(parts)).ravel()

    def model(self, model: Model, data: FederatedData, params: Any) -> jax.Array:
        """Losses on the canary minus those on the replaced records."""
        return self._numbers(self._losses(model, data, params))

    def short(self, numbers: int) -> int:
        return numbers

    def _numbers(self, numbers: jax.Array) -> jax.Array:
        return numbers if self.apart else numbers.sum(-1, keepdims=True)

    def _losses(self, model: Model, data: FederatedData, params: Any) -> jax.Array:
        """The loss of every canary minus that of its replaced record `(k,)`."""

        def of(rows: Array) -> jax.Array:
            y = data.targets(rows)
            gone = is_withdrawn(y)
            losses = gradients.losses(model, params, data.features(data.x[rows]), replace_withdrawn(y, gone))
            return jnp.where(gone, 0.0, losses)

        return of(self.canary) - of(self.others)


GameObservation = Directions | Alignment
