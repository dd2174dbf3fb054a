"""How messages become a sum: in the open, or so that nobody sees more than the sum."""

import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from fedjax_dp.pytrees import value


class Transport(Protocol):
    """The way from messages to their sum. Implementations are made with `fedjax_dp.value`.

    Messages are flat `(size,)` float32; ids int32, and flags bool, are `(members,)`, one for each position of the
    cohort: selected  False is padding; present  selected, and the message arrived. The key is for this alone.
    """

    @property
    def secret(self) -> bool:
        """Required privacy property. Whether nobody sees a single message."""
        ...

    def hidden_among(self, members: int, helpers: int) -> int:
        """Required privacy property. Honest members, at least, seen only as a sum where `helpers` collude."""
        ...

    @property
    def resolution(self) -> float:
        """Required privacy property. The smallest difference that the sum can carry; 0 for floats."""
        ...

    @property
    def word_bytes(self) -> int:
        """Bytes of one number on the wire."""
        ...

    def limit(self, members: int) -> float:
        """Required privacy property. Largest |coordinate| of a message that fits, whatever others send."""
        ...

    def check(self, members: int) -> None:
        """Raise ConfigurationError, in one line, where so many positions cannot be served."""
        return None

    def message(
        self, key: jax.Array, round_index: Any, position: Any, ids: jax.Array, selected: jax.Array, flat: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """What leaves the member at `position`, an array that sums by itself, and whether its message did not fit.

        Traced under `vmap` over positions.
        """
        ...

    def total(
        self,
        key: jax.Array,
        round_index: Any,
        ids: jax.Array,
        selected: jax.Array,
        present: jax.Array,
        summed: jax.Array,
    ) -> jax.Array:
        """The sum of the messages of those present `(size,)`, float32, from the sum of what left them."""
        ...


@value
class PlainSum(Transport):
    """Every message travels as float32, and the server sees each."""

    equation = r"\sum_k \omega_k \Delta_k\ \text{in float32}"

    secret = False
    resolution = 0.0
    word_bytes = 4

    def limit(self, members: int) -> float:
        return math.inf

    def hidden_among(self, members: int, helpers: int) -> int:
        return 1

    def message(
        self, key: jax.Array, round_index: Any, position: Any, ids: jax.Array, selected: jax.Array, flat: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return flat, jnp.bool_(False)

    def total(
        self,
        key: jax.Array,
        round_index: Any,
        ids: jax.Array,
        selected: jax.Array,
        present: jax.Array,
        summed: jax.Array,
    ) -> jax.Array:
        return summed
