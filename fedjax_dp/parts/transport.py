"""How messages are summed: visible to the server, or by secure aggregation."""

import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from fedjax_dp.pytrees import value


class Transport(Protocol):
    """How messages become their sum. Implementations use `fedjax_dp.value`.

    Messages are flat `(size,)` float32. Each position of the cohort has an id, int32, and two flags, bool; all are
    `(members,)`: selected  False is padding; present  selected, and the message arrived. The key is used only here.
    A method `check(members)` may refuse cohorts of so many positions.
    """

    @property
    def secret(self) -> bool:
        """Required privacy property. Whether nobody sees an individual message."""
        ...

    def hidden_among(self, members: int, helpers: int) -> int:
        """Required privacy property. Least number of honest members seen only as a sum if `helpers` members collude."""
        ...

    @property
    def resolution(self) -> float:
        """Required privacy property. The smallest difference that the sum can represent; 0 for floats."""
        ...

    @property
    def word_bytes(self) -> int:
        """Bytes per number of a message."""
        ...

    def limit(self, members: int) -> float:
        """Required privacy property. Largest |coordinate| of a message with which no sum overflows."""
        ...

    def message(
        self, key: jax.Array, round_index: Any, position: Any, ids: jax.Array, selected: jax.Array, flat: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """What the member at `position` sends, an array whose sum over members is meaningful, and whether the message
        did not fit. Traced under `vmap` over positions.
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
        """The sum of the messages of the present members `(size,)`, float32, from the sum of what they sent."""
        ...


@value
class PlainSum(Transport):
    """Messages are sent as float32, and the server sees each of them."""

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
