"""Personal models, which an adversary of view deployed receives in addition to uploads."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_dp.data.store import FederatedData
from fedjax_dp.models import Model
from fedjax_dp.parts.cohorts import Array
from fedjax_dp.parts.local_training import LocalTraining
from fedjax_dp.pytrees import ravel
from fedjax_dp.rounds.personal import ClientStates, model_of
from fedjax_dp.rounds.state import Observer, ServerState

ROLES = 4  # of `as_messages`


def has_last_steps(local: LocalTraining) -> bool:
    """Whether clients take final local steps, so that personal models exist only after the last round."""
    return any(one.final for one in local.additional_releases)


def models_of(
    local: LocalTraining,
    model: Model,
    data: FederatedData,
    key: jax.Array,
    state: ServerState,
    pair: tuple[Array, Array],
) -> jax.Array:
    """The models of two clients in a state of the run `(2, size)`; `key` is the run's."""
    clients = jnp.arange(data.num_clients, dtype=jnp.int32)
    held = ClientStates(state.params, state.shared, clients, state.clients, state.round, key)
    return jnp.stack([ravel(model_of(local, held, who, data, model))[0] for who in pair])


def as_messages(observe: Observer, numbers: int, shared: tuple[Any, Any], models: Sequence[jax.Array]) -> jax.Array:
    """Messages `(ROLES, numbers)`: the changes of both models, and what pulled the target's.

    shared  parameters of the shared model before and after;
    models  of the target and of another client, before and after.
    A pull to the shared model, or a mixture with it, moves the target's model by an amount that the adversary
    knows from the uploads: the distance to the shared model, and its change.
    """
    (received, unravel), (later, _) = map(ravel, shared)
    (target, other), (new_target, new_other) = models
    moves = (
        (target, new_target - target),
        (other, new_other - other),
        (target, received - target),
        (target, later - received),
    )
    return jnp.stack([observe(unravel(at), fit_numbers(flat, observe, shared[0], numbers)) for at, flat in moves])


def fit_numbers(flat: jax.Array, observe: Observer, params: Any, numbers: int) -> jax.Array:
    """A vector, padded with zeros or cut so that this many numbers are observed."""
    size = ravel(params)[0].size
    one = jax.eval_shape(observe, params, jax.ShapeDtypeStruct((size,), flat.dtype)).shape[0]
    length = numbers // one * size
    return jnp.pad(flat[:length], (0, max(length - flat.size, 0)))
