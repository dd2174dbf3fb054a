"""Personal models, which an adversary of view deployed receives in addition to uploads."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_dp.data.store import FederatedData
from fedjax_dp.models import Model
from fedjax_dp.parts.cohorts import Array
from fedjax_dp.parts.local_training import LocalTraining
from fedjax_dp.pytrees import ravel
from fedjax_dp.rounds.personal import ClientStates, model_of
from fedjax_dp.rounds.state import Observer, ServerState

ROLES = 4  # of `Moves.as_messages`


def has_last_steps(local: LocalTraining) -> bool:
    """Whether clients take final local steps, so that personal models exist only after the last round."""
    return any(one.final for one in local.additional_releases)


class Moves(NamedTuple):
    """Models of the target and of another client `(2, size)`, before and after, and the shared model."""

    before: jax.Array
    after: jax.Array
    received: jax.Array  # the shared model before
    moved: jax.Array  # the change of the shared model

    def as_messages(self, observe: Observer, params: Any, numbers: int) -> jax.Array:
        """Messages `(ROLES, numbers)`: the changes of both models, and what pulled the target's.

        A pull to the shared model, or a mixture with it, moves the target's model by an amount that the adversary
        knows from the uploads: the distance to the shared model, and its change.
        """
        _, unravel = ravel(params)
        target, other = self.before
        displacements = ((target, self.after[0]), (other, self.after[1]), (target, self.received))
        moved = [(start, end - start) for start, end in displacements] + [(target, self.moved)]
        return jnp.stack([observe(unravel(at), fit_numbers(flat, observe, params, numbers)) for at, flat in moved])


def fit_numbers(flat: jax.Array, observe: Observer, params: Any, numbers: int) -> jax.Array:
    """A vector, padded with zeros or cut so that this many numbers are observed."""
    size = ravel(params)[0].size
    one = jax.eval_shape(observe, params, jax.ShapeDtypeStruct((size,), flat.dtype)).shape[0]
    length = numbers // one * size
    return jnp.pad(flat[:length], (0, max(length - flat.size, 0)))


def moves_in_round(
    local: LocalTraining,
    model: Model,
    data: FederatedData,
    key: jax.Array,
    states: tuple[ServerState, ServerState],
    pair: tuple[Array, Array],
) -> Moves:
    """The moves of two clients in a round, from its states before and after. `key` is the run's."""
    received, moved = (ravel(state.params)[0] for state in states)
    before, after = (_models(local, model, data, key, state, pair) for state in states)
    return Moves(before, after, received, moved - received)


def moves_at_end(
    local: LocalTraining, model: Model, data: FederatedData, key: jax.Array, end: ServerState, pair: tuple[Array, Array]
) -> Moves:
    """The moves of two clients in the steps after the last round."""
    received = ravel(end.params)[0]
    after = _models(local, model, data, key, end, pair)
    return Moves(jnp.broadcast_to(received, after.shape), after, received, jnp.zeros_like(received))


def _models(
    local: LocalTraining,
    model: Model,
    data: FederatedData,
    key: jax.Array,
    state: ServerState,
    pair: tuple[Array, Array],
) -> jax.Array:
    clients = jnp.arange(data.num_clients, dtype=jnp.int32)
    held = ClientStates(state.params, state.shared, clients, state.clients, state.round, key)
    return jnp.stack([ravel(model_of(local, held, who, data, model))[0] for who in pair])
