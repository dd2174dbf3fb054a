"""What a round hands to the next, how that begins, and what is reported of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.models import Model
from fedjax_dp.parts.contexts import InitContext
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import ravel
from fedjax_dp.rounds.algorithm import Algorithm


class ServerState(NamedTuple):
    """Everything that a round hands to the next."""

    params: Any
    optimizer: Any
    round: jax.Array
    upload: Any  # a clip norm that is learnt
    shared: Any  # what the server keeps for local steps, and every client receives
    clients: Any  # what each client keeps: tables (num_clients, ...)


def place(state: ServerState, execution: Execution) -> ServerState:
    """A copy of the state where a run of `execution` wants it; tables on the host stay there."""
    light = execution.place_models(state._replace(clients=()))
    return light._replace(clients=execution.place_tables(state.clients))


def initial_state(algorithm: Algorithm, model: Model, data: FederatedData, key: jax.Array) -> ServerState:
    """State before round 0. `key` is the run's key."""
    params = model.init(role_key(key, "init"))

    def map_clients(see: Callable[..., Any]) -> Any:
        stored, start_key = jax.tree.map(jnp.asarray, data), role_key(key, "look at the start")

        def one(i: jax.Array) -> Any:
            return see(jax.random.fold_in(start_key, i), params, stored.client(i), stored, model)

        return jax.lax.map(one, jnp.arange(data.num_clients, dtype=jnp.int32))

    size, models_key = ravel(params)[0].size, role_key(key, "models")
    memory = algorithm.local.init(InitContext(model, data, params, size, map_clients, key=models_key))
    return ServerState(
        params, algorithm.server.init(params), jnp.int32(0), algorithm.upload.init(), memory.server, memory.clients
    )


class Transcript(NamedTuple):
    """What an observer makes of the messages of a round, as one adversary or another receives them."""

    uploads: Any  # of each member's message, zeros where it did not arrive (members, ...)
    total: Any  # of their sum
    update: Any  # of the mean update that the server moves by, its noise included


Observer = Callable[
    [Any, jax.Array], Any
]  # (the parameters that clients received, a message, see `run_round`) -> arrays


class RoundReport(NamedTuple):
    """Probes of a round (the simulator's view), per cohort member."""

    clients: jax.Array  # ids
    present: jax.Array  # bool: the message arrived
    loss: jax.Array  # mean loss over the client's batches
    clipped: jax.Array  # fraction of records clipped; of updates, 0 or 1, where they hide clients (NaN: not known)
    signal: jax.Array  # mean over the local steps of |bounded mean gradient|^2, or |mean update|^2 if that is noised; 0
    # where it is not taken, see `Execution`
    noise: jax.Array  # expected |noise|^2 on the same; 0 without privacy, NaN where it is not known
    finite: jax.Array  # bool: loss and update of this client are finite
    overflow: jax.Array  # bool: its message did not fit into the ring of a secure sum
    transcript: Any = ()  # `Transcript`, where somebody observes
    learnt_clip_norm: Any = None  # that the round began with, where rounds learn it
