"""The arguments of parts of the local training: a run, a client's round, a local step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fedjax_dp.data.store import Client, FederatedData
from fedjax_dp.models import Model
from fedjax_dp.parts.clipping import StepReport
from fedjax_dp.prng import role_key


class LocalState(NamedTuple):
    """State across rounds of the local training, or of one of its corrections."""

    server: Any = ()  # every client receives it
    clients: Any = ()  # arrays with a leading axis (num_clients,); a cohort's rows are gathered and scattered


class InitContext(NamedTuple):
    """A run before its first round."""

    model: Model
    data: FederatedData
    params: Any
    size: int  # number of parameters
    map_clients: Callable[[Callable[..., Any]], Any]  # map_clients(f): f(key, params, client, data, model) of every one
    initial_gradients: Callable[[], jax.Array] | None = None  # for corrections: for every client the mean of tau
    # privatized gradients at `params` (num_clients, size)
    key: jax.Array | None = None  # of the run, for other random initial values


class Received(NamedTuple):
    """What a client, or one of its corrections, has at the start of a round."""

    params: jax.Array  # the server's model, where the local steps begin: flat (size,)
    server_state: Any = ()  # LocalState.server, which every client receives
    client_state: Any = ()  # this client's row of LocalState.clients
    extra: Any = ()  # this client's row of what `send` returned


class LocalResult(NamedTuple):
    """The result of a client's round."""

    update: jax.Array  # local model minus the received one, of the shared parameters: flat (shared size,), float32
    auxiliary: Any  # summed over the cohort with the update: float32 arrays, unweighted
    client_state: Any  # the client's new row, shaped like Received.client_state
    report: StepReport  # diagnostics, averaged over the steps


class ClientContext(NamedTuple):
    """One client in one round; vectors of parameters are flat `(size,)`, in the order of `pytrees.ravel`."""

    key: jax.Array  # of this client, round and stream only: use a separate key or step for every noise and batch
    round: jax.Array
    client: Client  # its id, and the place of its records, which `data.gather` reads
    data: FederatedData
    model: Model
    unravel: Callable[[jax.Array], Any]  # from a flat vector to the model's parameters
    received: Received
    shard: Callable[[jax.Array], jax.Array] = lambda flat: flat  # assigns parts of a vector to devices
    stream: int = 0  # of draws, see `AdditionalRelease`
    signal: bool = True  # whether `StepReport.signal` is computed
    run_key: jax.Array | None = None  # of this client only, the same in all rounds; None outside of a run
    skips_steps: bool = False  # whether steps that the client does not take may be skipped, see `Execution.skips_steps`

    def receiving(self, params: jax.Array, *more: Any) -> "ClientContext":
        """The same client with another `received`, given by the fields of `Received` in their order."""
        return self._replace(received=Received(params, *more))

    def evaluate(self, at: Callable[..., Any], params: jax.Array) -> Any:
        """at(key, parameters, client, data, model) without the privatizer: declare it in `no_epsilon_reason`."""
        return at(role_key(self.key, "look"), self.unravel(params), self.client, self.data, self.model)


class StepContext(NamedTuple):
    """Public numbers of one step, traced scalars, on which noise may depend. A (key, number) pair occurs once."""

    client: jax.Array  # the client's id
    round: jax.Array
    number: jax.Array  # index of the step in its round, from 0
    rate: jax.Array  # learning rate of this step
    total_rate: jax.Array  # sum of the learning rates of the round's steps
    is_last: jax.Array  # bool: the last step that this client takes in the round
    stream: int = 0  # of the client's draws: 0 for the steps on the shared model
