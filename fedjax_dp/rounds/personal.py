"""Personal models: their parameters in a state, and their metrics on each client's part of the test set."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_dp import errors, gradients
from fedjax_dp.data.store import FederatedData
from fedjax_dp.data.targets import rows_of
from fedjax_dp.execution.host_tables import HostTable
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.models import Model, task_of, usual_model
from fedjax_dp.models.origins import draw_seed
from fedjax_dp.parts.contexts import ClientContext, Received
from fedjax_dp.parts.local_training import LocalTraining
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import mask_rows, ravel
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.metrics import MetricSums, record_sums, rows_per_block
from fedjax_dp.rounds.state import ServerState, with_final_model

BYTES = 2**27  # of rows of host tables that are read at once


class ClientStates(NamedTuple):
    """Some clients, and their state after some rounds."""

    params: Any
    shared: Any
    ids: jax.Array  # (clients,)
    own: Any  # the clients' rows (clients, ...)
    round: jax.Array
    key: jax.Array  # of the run


def model_of(local: LocalTraining, states: ClientStates, at: Any, data: FederatedData, model: Model) -> Any:
    """The personal model of the client at index `at` of `states`, a tree of parameters; traced."""
    client = states.ids[at]
    key = jax.random.fold_in(jax.random.fold_in(role_key(states.key, "personal"), states.round), client)
    start, unravel = ravel(states.params)
    received = Received(start, states.shared, jax.tree.map(lambda table: table[at], states.own))
    return local.model_of(ClientContext(key, states.round, data.client(client), data, model, unravel, received))


def personal_models(
    algorithm: Algorithm, state: ServerState, data: FederatedData, *, seed: int, model: Model | None = None
) -> Any:
    """The parameters of every client's personal model, each leaf `(num_clients, ...)`; all must fit into memory.

    algorithm, seed, model  those of the run, with its noise; the default model is logistic regression. Some entries
                            draw the last noise here, so another seed gives other models.
    Raises: ConfigurationError if clients share one model.
    """
    local: LocalTraining = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), algorithm.local)
    errors.require_seed(seed)
    model = usual_model(data) if model is None else model
    key = jax.random.key(draw_seed(seed, model), impl="threefry2x32")
    return models_of_clients(local, with_final_model(algorithm, state), data, key, model=model)


def models_of_clients(
    local: LocalTraining, state: ServerState, data: FederatedData, key: jax.Array, *, model: Model
) -> Any:
    """As `personal_models`, for local training whose numbers are arrays, and the run's key."""
    _require_personal(local)
    parts = [_stacked_models(local, states, data, model=model) for states in client_states(state, data, key)]
    return jax.tree.map(lambda *each: jnp.concatenate(each)[: data.num_clients], *parts)


@gradients.JitOfModel
def _stacked_models(local: LocalTraining, states: ClientStates, data: FederatedData, *, model: Model) -> Any:
    data = jax.tree.map(jnp.asarray, data)
    return lax.map(lambda at: model_of(local, states, at, data, model), jnp.arange(states.ids.shape[0]))


def client_states(state: ServerState, data: FederatedData, key: jax.Array) -> Iterator[ClientStates]:
    """All clients at once, or in chunks if their tables are on the host; the last chunk repeats the last client."""
    tables = [leaf for leaf in jax.tree.leaves(state.clients) if isinstance(leaf, HostTable)]
    every, many = data.num_clients, data.num_clients
    if tables:
        many = max(1, min(every, BYTES // max(1, sum(table.row_bytes for table in tables))))
    for first in range(0, every, many):
        ids = np.minimum(np.arange(first, first + many), every - 1).astype(np.int32)
        own = jax.tree.map(lambda a: a.read(ids, many) if isinstance(a, HostTable) else a, state.clients)  # noqa: B023
        yield ClientStates(state.params, state.shared, jnp.asarray(ids), own, state.round, key)


def evaluate_personal(local: LocalTraining, states: ClientStates, data: FederatedData, *, model: Model) -> MetricSums:
    """The sums behind the task's metrics, of personal models on their clients' test parts; traced.

    Records are evaluated client by client, in blocks; a client without test records has sums of 0.
    """
    task, records, every = task_of(model, data), data.x_test.shape[0], data.num_clients
    parts = jnp.asarray(data.test_clients)
    order, counts = jnp.argsort(parts, stable=True), jnp.bincount(parts, length=every)
    firsts = jnp.cumsum(counts) - counts
    rows = min(rows_per_block(model, states.params, data, records), math.ceil(records / every))

    def sums_of(params: Any, at: jax.Array) -> tuple[dict[str, jax.Array], Any]:
        return record_sums(task, model, params, data.features(data.x_test[at]), rows_of(data.y_test, at))

    def one(scores: Any, place: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        client = states.ids[place]
        params, first, count = model_of(local, states, place, data, model), firsts[client], counts[client]

        def block(number: jax.Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            total, scores = carry
            at = number * rows + jnp.arange(rows)
            real = at < count
            taken = order[jnp.minimum(first + jnp.minimum(at, jnp.maximum(count - 1, 0)), records - 1)]
            sums, outputs = sums_of(params, taken)
            total = {name: total[name] + mask_rows(a, real).sum(0, dtype=a.dtype) for name, a in sums.items()}
            if task.keeps_scores:
                scores = scores.at[jnp.where(real, taken, records)].set(outputs, mode="drop")
            return total, scores

        start = {name: jnp.zeros(a.shape[1:], a.dtype) for name, a in shapes.items()}
        total, scores = lax.fori_loop(0, -(-count // rows), block, (start, scores))
        return scores, total

    shapes, outputs = jax.eval_shape(sums_of, states.params, jnp.zeros(1, jnp.int32))
    scores = jnp.zeros((records, *outputs.shape[1:]), outputs.dtype) if task.keeps_scores else None
    scores, by_client = lax.scan(one, scores, jnp.arange(states.ids.shape[0]))
    total = {name: a.sum(0) for name, a in by_client.items()}
    return MetricSums(total, by_client, scores)


def _test_sums(
    local: LocalTraining, states: ClientStates, data: FederatedData, *, model: Model, execution: Execution
) -> MetricSums:
    sums = evaluate_personal(local, states, jax.tree.map(jnp.asarray, data), model=model)
    return execution.gather_for_processes(sums)


_compiled_test_sums = gradients.JitOfModel(_test_sums, ("execution",))


def measure_personal(
    local: LocalTraining,
    state: ServerState,
    data: FederatedData,
    key: jax.Array,
    *,
    model: Model,
    execution: Execution | None = None,
) -> MetricSums:
    """As `evaluate_personal`, for all clients, compiled; in chunks if their tables are on the host."""
    execution = Execution() if execution is None else execution
    _require_personal(local)
    if data.test_clients is None:
        remedy = "hold out records of each client (--holdout 0.2), or give federate test_clients"
        raise errors.refuse("test parts of clients", "none", "present to evaluate personal models", remedy)
    each: list[MetricSums] = [
        jax.device_get(_compiled_test_sums(local, states, data, model=model, execution=execution))
        for states in client_states(state, data, key)
    ]
    if len(each) == 1:
        return each[0]
    tables = [one.by_client for one in each]
    by_client: Any = jax.tree.map(lambda *rows: np.concatenate(rows)[: data.num_clients], *tables)
    scores: Any = jax.tree.map(lambda *parts: sum(parts[1:], start=parts[0]), *(one.scores for one in each))
    return MetricSums({name: a.sum(0) for name, a in by_client.items()}, by_client, scores)


def _require_personal(local: LocalTraining) -> None:
    if not local.personal:
        remedy = "use one such as mr_mtl or ditto"
        raise errors.refuse("algorithm", "one whose clients share a model", "one with personal models", remedy)
