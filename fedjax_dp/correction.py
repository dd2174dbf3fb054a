"""Terms added to the gradient of a local step after clipping and noise; they depend on no record."""

from typing import Protocol

import jax

from fedjax_dp import errors
from fedjax_dp.values import value


class Correction(Protocol):
    """Changes one local step's gradient; gradient, parameters and start are flat vectors `(size,)`."""

    def gradient(self, gradient: jax.Array, params: jax.Array, start: jax.Array) -> jax.Array: ...

    def check(self) -> None: ...


@value
class L2Penalty:
    """The gradient 2 h w of h |w|^2 on all parameters. Data independent, so it is added after the noise."""

    strength: float

    def gradient(self, gradient: jax.Array, params: jax.Array, start: jax.Array) -> jax.Array:
        return gradient + 2 * self.strength * params

    def check(self) -> None:
        if not 0 <= self.strength < float("inf"):
            raise errors.refuse("l2", self.strength, "zero or positive and finite")
