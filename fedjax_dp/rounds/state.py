"""The state that rounds pass on, its initial value, the final model, and the report of a round."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_dp import errors
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.models import Model
from fedjax_dp.parts.contexts import InitContext
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import describe_shapes, equal_shapes, ravel
from fedjax_dp.rounds.algorithm import Algorithm


class ServerState(NamedTuple):
    """Everything that one round passes to the next."""

    params: Any
    optimizer: Any
    round: jax.Array
    upload: Any  # the upload's state, such as a learnt clip norm
    shared: Any  # the server's state for local steps, which every client receives
    clients: Any  # the clients' state: tables (num_clients, ...)


def place(state: ServerState, execution: Execution) -> ServerState:
    """A copy of the state on the devices of `execution`; tables on the host stay there."""
    light = execution.place_models(state._replace(clients=()))
    return light._replace(clients=execution.place_tables(state.clients))


def initial_state(algorithm: Algorithm, model: Model, data: FederatedData, key: jax.Array) -> ServerState:
    """The state before round 0. `key` is the run's key."""
    params = model.init(role_key(key, "init"))

    def map_clients(see: Callable[..., Any]) -> Any:
        stored, start_key = jax.tree.map(jnp.asarray, data), role_key(key, "look at the start")

        def one(i: jax.Array) -> Any:
            return see(jax.random.fold_in(start_key, i), params, stored.client(i), stored, model)

        return jax.lax.map(one, jnp.arange(data.num_clients, dtype=jnp.int32))

    size, models_key = ravel(params)[0].size, role_key(key, "models")
    memory = algorithm.local.init(InitContext(model, data, params, size, map_clients, key=models_key))
    return ServerState(
        params, algorithm.server.init(params), jnp.int32(0), algorithm.upload.init(size), memory.server, memory.clients
    )


class Transcript(NamedTuple):
    """What an observer computes from the messages of a round, as different adversaries see them."""

    uploads: Any  # from each member's message, zeros where it did not arrive (members, ...)
    total: Any  # from their sum
    update: Any  # from the noisy mean update by which the server moves


Observer = Callable[
    [Any, jax.Array], Any
]  # (the parameters that clients received, a message, see `run_round`) -> arrays


class RoundReport(NamedTuple):
    """Diagnostics of a round (not private, not covered by epsilon), per cohort member."""

    clients: jax.Array  # ids
    present: jax.Array  # bool: the message arrived
    loss: jax.Array  # mean loss over the client's batches
    clipped: jax.Array  # fraction of records clipped; for client-level privacy whether the update was (NaN: unknown)
    signal: jax.Array  # mean over the local steps of |bounded mean gradient|^2, or |mean update|^2 if that is noised; 0
    # where it is not computed, see `Execution`
    noise: jax.Array  # expected |noise|^2 on the same vector; 0 without privacy, NaN if unknown
    finite: jax.Array  # bool: loss and update of this client are finite
    overflow: jax.Array  # bool: its message did not fit into the ring of a secure sum
    transcript: Any = ()  # a `Transcript`, if there is an observer
    learnt_clip_norm: Any = None  # at the start of the round, if rounds learn it


def final_model(algorithm: Algorithm, state: ServerState) -> Any:
    """The parameters of the final model if the run ends with this state: a tree like `state.params`; traced or not.

    They are `state.params`, unless the server has a `ServerOptimizer.final`, which may return a mean over rounds. The
    next round starts from `state.params` in either case.
    """
    final = getattr(algorithm.server, "final", None)
    if final is None:
        return state.params
    params = final(state.optimizer, state.params)
    if not equal_shapes(params, state.params):
        what, wanted = f"what {type(algorithm.server).__name__}.final returns", describe_shapes(state.params)
        raise errors.refuse(what, describe_shapes(params), f"shaped as the parameters, {wanted}")
    return params


def with_final_model(algorithm: Algorithm, state: ServerState) -> ServerState:
    """The state with the final model's parameters, from which personal models are computed."""
    return state._replace(params=final_model(algorithm, state))
