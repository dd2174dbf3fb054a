"""What a part of the local training is shown: of a run, of a client's round, of one step. All else are numbers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fedjax_dp.data.store import Client, FederatedData
from fedjax_dp.models import Model
from fedjax_dp.parts.clipping import StepReport
from fedjax_dp.prng import role_key


class LocalState(NamedTuple):
    """What is kept across rounds for the local training, or for one correction of it."""

    server: Any = ()  # which every client receives
    clients: Any = ()  # arrays with a leading axis (num_clients,); a cohort's rows are gathered and scattered


class InitContext(NamedTuple):
    """A run before its first round."""

    model: Model
    data: FederatedData
    params: Any
    size: int  # number of parameters
    map_clients: Callable[[Callable[..., Any]], Any]  # map_clients(f) = f(key, params, client, data, model) of all
    initial_gradients: Callable[[], jax.Array] | None = None  # for corrections: the mean of tau privatized gradients
    # at `params` of every client (num_clients, size)
    key: jax.Array | None = None  # of the run, for whatever else begins at random


class Received(NamedTuple):
    """What a client, or one correction of it, has been sent when its round begins, and what it kept."""

    params: jax.Array  # where its steps begin, the server's model: flat (size,)
    server_state: Any = ()  # LocalState.server, which every client receives
    client_state: Any = ()  # its row of LocalState.clients
    extra: Any = ()  # what `send` gave it alone


class LocalResult(NamedTuple):
    """What comes out of a client's round."""

    update: jax.Array  # local model minus the received one, of what is sent: flat (sent size,), float32
    auxiliary: Any  # what joins the update in its sum over the cohort: float32 arrays, unweighted
    client_state: Any  # its new row, shaped like Received.client_state
    report: StepReport  # probes, averaged over the steps


class ClientContext(NamedTuple):
    """One client in one round; vectors of parameters are flat `(size,)`, in the order of `pytrees.ravel`."""

    key: jax.Array  # of this client, round and stream alone: give every noise and batch a key or step of its own
    round: jax.Array
    client: Client  # its id, and where its records are, which `data.gather` reads
    data: FederatedData
    model: Model
    unravel: Callable[[jax.Array], Any]  # from a flat vector to the model's parameters
    received: Received
    shard: Callable[[jax.Array], jax.Array] = lambda flat: flat  # says which device computes which part of a vector
    stream: int = 0  # of draws, see `AdditionalRelease`
    signal: bool = True  # whether that of `StepReport` is taken
    run_key: jax.Array | None = None  # of this client alone, the same in all rounds; None: in one round alone

    def receiving(self, params: jax.Array, *more: Any) -> "ClientContext":
        """The same client with something else received, in the order of `Received`."""
        return self._replace(received=Received(params, *more))

    def evaluate(self, at: Callable[..., Any], params: jax.Array) -> Any:
        """at(key, parameters, client, data, model) past the privatizer: a `no_epsilon_reason` has to say so."""
        return at(role_key(self.key, "look"), self.unravel(params), self.client, self.data, self.model)


class StepContext(NamedTuple):
    """One step in public numbers, traced scalars: what noise may depend on. A (key, number) pair occurs once."""

    client: jax.Array  # its id
    round: jax.Array
    number: jax.Array  # of the step in its round, from 0
    rate: jax.Array  # learning rate of this step
    total_rate: jax.Array  # sum of the learning rates of the round's steps
    is_last: jax.Array  # bool: the last step of the round that is taken
    stream: int = 0  # of the client's draws: 0 for the steps on what is shared
