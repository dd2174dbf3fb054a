"""The pull of a client's own model to a shared one."""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_dp import errors
from fedjax_dp.models import Model
from fedjax_dp.parts.composed_models import PulledTo
from fedjax_dp.pytrees import number, structure, value

AFTER, EXPLICIT, IMPLICIT, INSIDE = "after", "explicit", "implicit", "inside"
PULLS = (AFTER, EXPLICIT, IMPLICIT, INSIDE)
LEAST_STEP = 1 + 1e-6  # an explicit pull may move a model all the way, even with the rounding of float32


@value
class Pull:
    """The pull of a personal model to a shared one, strength/2 |v - w|^2; independent of the data, so not counted.

    form  "explicit": adds the gradient strength (v - w) after the noise; "implicit": an implicit step,
          v <- (v - rate g + rate strength w) / (1 + rate strength); "after": explicit while rate * strength <= 1, else
          implicit; "inside": adds it to the loss of every record, so that it is clipped with the gradient (published
          code of Liu et al. 2022).
    """

    strength: float = number(errors.require_not_negative)
    form: Literal["after", "explicit", "implicit", "inside"] = structure(
        errors.one_of(*PULLS), option="proximal", default="after"
    )

    @property
    def equation(self) -> str:
        if self.form == INSIDE:
            return r"\ell(v) + \frac{\lambda}{2} \|v - w\|^2\ \text{clipped}"
        return r"+\, \lambda (v - w)"

    def gradient(self, gradient: jax.Array, params: jax.Array, anchor: jax.Array, rate: jax.Array) -> jax.Array:
        """The gradient of a step from `params`, with the pull."""
        if self.form == INSIDE:
            return gradient
        pulled = gradient + self.strength * (params - anchor)
        if self.form == EXPLICIT:
            return pulled
        whole = rate * self.strength
        if self.form == IMPLICIT:
            return pulled / (1 + whole)
        return pulled / jnp.where(whole <= LEAST_STEP, 1.0, 1 + whole)

    def model(self, model: Model, anchor: Any) -> Model:
        """The model whose gradient is clipped; `anchor` is a tree."""
        if self.form != INSIDE:
            return model
        return PulledTo.of(model, (jnp.asarray(self.strength, jnp.float32), anchor))
