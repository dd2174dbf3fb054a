"""Who takes part in a round. Draws depend on the key alone, never on data, so a schedule can be drawn ahead."""

from typing import Protocol

import jax
import jax.numpy as jnp

from fedjax_dp import draws, errors
from fedjax_dp.values import structure, value


class Cohort(Protocol):
    """A law for the clients of a round."""

    def members(self, num_clients: int) -> int: ...  # how many, known before the round

    def sample(self, key: jax.Array, num_clients: int) -> jax.Array: ...  # client ids (members,)

    def check(self, num_clients: int) -> None: ...


@value
class AllClients:
    """Every client in every round."""

    def members(self, num_clients: int) -> int:
        return num_clients

    def sample(self, key: jax.Array, num_clients: int) -> jax.Array:
        return jnp.arange(num_clients, dtype=jnp.int32)

    def check(self, num_clients: int) -> None:
        pass


@value
class UniformCohort:
    """`size` distinct clients, uniform without replacement, afresh in every round."""

    size: int = structure()

    def members(self, num_clients: int) -> int:
        return self.size

    def sample(self, key: jax.Array, num_clients: int) -> jax.Array:
        return draws.without_replacement(draws.bits(key, 0, self.size), jnp.int32(num_clients))

    def check(self, num_clients: int) -> None:
        errors.require_count("cohort_size", self.size)
        if self.size > num_clients:
            raise errors.refuse(
                "cohort_size", self.size, f"at most the {num_clients} clients", "lower cohort_size or add clients"
            )
