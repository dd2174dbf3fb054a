"""How messages become a sum: in the open, or so that nobody sees more than the sum."""

import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from fedjax_dp.pytrees import value


class Transport(Protocol):
    """The way from messages to their sum. Messages are flat vectors, ids and flags `(members,)`.

    Facts (`facts.FACTS`), on which the Guarantee rests: `secret`, `resolution`, `hidden_among`.
    """

    secret: bool  # nobody sees a single message

    def hidden_among(self, members: int, helpers: int) -> int:
        """Of how many honest members the server sees no more than the sum, at least, if `helpers` of them help it."""
        ...

    @property
    def resolution(self) -> float: ...  # smallest difference that the sum can carry; 0 for floats

    @property
    def word_bytes(self) -> int: ...  # of one number on the wire

    def limit(self, members: int) -> float: ...  # largest coordinate of a message that fits, whatever the others send

    def check(self, members: int) -> None: ...

    def message(
        self,
        key: jax.Array,
        round_index: Any,
        position: Any,
        ids: jax.Array,
        invited: jax.Array,
        flat: jax.Array,
    ) -> tuple[jax.Array, jax.Array]: ...  # what leaves a member, and whether it did not fit

    def total(
        self,
        key: jax.Array,
        round_index: Any,
        ids: jax.Array,
        invited: jax.Array,
        present: jax.Array,
        summed: jax.Array,
    ) -> jax.Array: ...


@value
class PlainSum:
    """Every message travels as float32, and the server sees each."""

    secret = False
    resolution = 0.0
    word_bytes = 4

    def limit(self, members: int) -> float:
        return math.inf

    def hidden_among(self, members: int, helpers: int) -> int:
        return 1

    def message(
        self,
        key: jax.Array,
        round_index: jax.Array,
        position: jax.Array,
        ids: jax.Array,
        invited: jax.Array,
        flat: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        return flat, jnp.bool_(False)

    def total(
        self,
        key: jax.Array,
        round_index: jax.Array,
        ids: jax.Array,
        invited: jax.Array,
        present: jax.Array,
        summed: jax.Array,
    ) -> jax.Array:
        return summed

    def check(self, members: int) -> None:
        pass
