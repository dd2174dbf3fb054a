"""An algorithm is four slots; a round is this page."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_dp.aggregate import Aggregate
from fedjax_dp.clients import Execution, sum_over_clients
from fedjax_dp.cohort import Cohort
from fedjax_dp.data.store import FederatedData
from fedjax_dp.local import LocalSgd
from fedjax_dp.models import Model
from fedjax_dp.server import Server
from fedjax_dp.values import ravel, role_key, value


@value
class Algorithm:
    """Who takes part, what they do, how their updates combine, how the server moves."""

    cohort: Cohort
    local: LocalSgd
    aggregate: Aggregate
    server: Server


class ServerState(NamedTuple):
    """Everything that a round hands to the next."""

    params: Any
    optimizer: Any
    round: jax.Array


class RoundReport(NamedTuple):
    """Probes of a round (the simulator's view), per cohort member."""

    clients: jax.Array  # ids
    loss: jax.Array  # mean loss over the client's batches
    clipped: jax.Array  # fraction of records clipped
    finite: jax.Array  # bool: loss and update of this client are finite


def init(algorithm: Algorithm, params: Any) -> ServerState:
    """State before round 0."""
    return ServerState(params, algorithm.server.init(params), jnp.int32(0))


def draw_cohort(cohort: Cohort, key: jax.Array, round_index: jax.Array, num_clients: int) -> jax.Array:
    """Ids of a round's cohort. Depends on key and round alone, so accounting can draw the same schedule ahead."""
    return cohort.sample(jax.random.fold_in(role_key(key, "cohort"), round_index), num_clients)


def run_round(
    algorithm: Algorithm, model: Model, data: FederatedData, key: jax.Array, state: ServerState, execution: Execution
) -> tuple[ServerState, RoundReport]:
    """One round. `key` is the run's key: every draw is named by role, round, client and step."""
    data = jax.tree.map(jnp.asarray, data)
    ids = draw_cohort(algorithm.cohort, key, state.round, data.num_clients)
    weights = algorithm.aggregate.weights(data.shares[ids], data.num_clients)
    local_key = jax.random.fold_in(role_key(key, "local"), state.round)
    flat, unravel = ravel(state.params)

    def train(shared: tuple, client_id: jax.Array) -> tuple[jax.Array, RoundReport]:
        algorithm, data, start, local_key, round_index = shared
        own_key = jax.random.fold_in(local_key, client_id)
        result = algorithm.local.run(own_key, round_index, data.client(client_id), start, data, model)
        healthy = jnp.isfinite(result.report.loss) & jnp.all(jnp.isfinite(result.update))
        return result.update, RoundReport(client_id, result.report.loss, result.report.clipped, healthy)

    shared = (algorithm, data, state.params, local_key, state.round)
    total, reports = sum_over_clients(train, shared, ids, weights, flat.size, execution)
    update = algorithm.aggregate.update(unravel(total), weights, state.params)
    params, optimizer = algorithm.server.move(state.round, update, state.optimizer, state.params)
    return ServerState(params, optimizer, state.round + 1), reports
