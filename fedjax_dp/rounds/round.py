"""One round: a cohort trains, its messages are aggregated, and the server updates the model."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_dp import gradients
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.mesh import Execution, sum_over_clients
from fedjax_dp.models import Model
from fedjax_dp.parts.aggregation import needs_individual_updates
from fedjax_dp.parts.cohorts import Members
from fedjax_dp.parts.contexts import LocalState
from fedjax_dp.parts.corrections import replace_rows
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import ravel, ravel_numbers, tensor_sizes
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.clients import (
    HostBlock,
    Member,
    RoundContext,
    build_round_context,
    client_update,
    draw_cohort,
    with_device_records,
)
from fedjax_dp.rounds.pieces import in_pieces
from fedjax_dp.rounds.state import Observer, RoundReport, ServerState, Transcript
from fedjax_dp.rounds.update_noise import variance_of_mean


def run_round(
    algorithm: Algorithm,
    model: Model,
    data: FederatedData,
    key: jax.Array,
    state: ServerState,
    execution: Execution,
    observe: Observer | None = None,
    block: HostBlock | None = None,
) -> tuple[ServerState, RoundReport]:
    """Run one round. `key` is the run's key: every draw is derived from it by role, round, client and step.

    observe  sees the messages before masks: first the weighted update, flat and with zeros for parameters that are not
             shared, then everything else that is sent;
    block    has the cohorts' records if `data` has not.
    """
    context = build_round_context(
        algorithm, model, jax.tree.map(jnp.asarray, data), key, state, execution, observe, block
    )
    payload, rows, report = train_cohort(context)
    mean, report = aggregate_messages(context, payload, report)
    return apply_server_update(context, mean, rows), report


def train_cohort(context: RoundContext) -> tuple[Any, Any, RoundReport]:
    """The cohort trains: its messages, individually or summed, the clients' new rows, and the round's report."""
    algorithm, members = context.shared.algorithm, context.members
    individual = needs_individual_updates(algorithm.aggregate)
    noised = algorithm.upload.unit is not None or getattr(algorithm.local.privatizer, "no_epsilon_reason", None) is None

    size, usual = (
        sum(tensor_sizes(context.state.params)),
        algorithm.cohort.expected_size(context.shared.data.num_clients),
    )
    skips = context.execution.skips_steps(members.ids.shape[0], size, usual)

    def client(shared: Any, member: Member) -> tuple[Any, Any]:
        shared = shared if context.block is None else with_device_records(*shared)
        algorithm, _, key, state, _, ids, selected = shared
        parts, result = client_update(
            context.model, shared, member, context.execution.shard, context.execution.takes_signal, skips
        )
        message = ravel_numbers(parts)
        observed: Any = ()
        if context.observe is not None:
            observed = context.observe(state.params, jnp.where(member.present, context.whole(message), 0.0))
        payload, overflow = algorithm.transport.message(
            role_key(key, "masks"), state.round, member.position, ids, selected, message
        )
        sound = jnp.all(jnp.isfinite(message))
        if not noised:  # else a run that stops because of an exact loss would reveal it
            sound = sound & jnp.isfinite(result.report.loss)
        payload = jax.tree.map(lambda a: jnp.where(member.present, a, jnp.zeros_like(a)), payload)
        # Absent members are masked here, as devices would have to gather all flags for it outside. The flag is true for
        # broken ones, as chunks that are skipped are zeros.
        broken = ~sound & member.present
        summed, stacked = ((), payload) if individual else (payload, ())
        return summed, (stacked, result.client_state, (result.report, broken, overflow & member.present, observed))

    summed, (stacked, rows, (probes, broken, overflow, observed)) = sum_over_clients(
        in_pieces(client) if context.execution.in_pieces else client,
        context.shared,
        context.cohort_inputs,
        context.execution,
        size,
        None if algorithm.cohort.fixed else members.present,
        usual,
        None if context.block is None else context.block.held,
    )
    loss, clipped, signal, noise = probes
    learnt = algorithm.upload.learnt_clip_norm(context.state.upload)
    report = RoundReport(
        members.ids, members.present, loss, clipped, signal, noise, ~broken, overflow, observed, learnt_clip_norm=learnt
    )
    return stacked if individual else summed, rows, report


class AggregatedUpdate(NamedTuple):
    """The result of aggregating a round's messages."""

    update: jax.Array  # the mean update, flat
    upload: Any  # new state of the upload
    terms: Any  # sum of the local training's auxiliary messages


@jax.named_scope("aggregation")
def aggregate_messages(
    context: RoundContext, payload: Any, report: RoundReport
) -> tuple[AggregatedUpdate, RoundReport]:
    """The mean update with the server's noise, and the sums of the auxiliary messages."""
    algorithm, data, key = context.shared.algorithm, context.shared.data, context.shared.key
    state, members, rates, observe = context.state, context.members, context.rates, context.observe
    individual = needs_individual_updates(algorithm.aggregate)
    summed = jnp.sum(payload, 0) if individual else payload
    message = algorithm.transport.total(
        role_key(key, "masks"), state.round, members.ids, members.selected, members.present, summed
    )
    total, (extra, terms) = context.split(message)
    total = jax.vmap(context.split)(payload)[0] if individual else total
    params, sent = ravel(state.params)[0], context.sent
    update = algorithm.aggregate.combine(total, members, data.shares, rates, sent.take(params))
    sensitivity = algorithm.aggregate.sensitivity(data.shares, rates, members.ids.shape[0])
    std = algorithm.upload.noise_std(state.upload, sensitivity, state.round)
    if std is not None:
        power = jnp.stack([jnp.vdot(update, update), std**2 * update.size])
        signal, noise = jnp.broadcast_to(power[:, None], (2, members.ids.shape[0]))
        report = report._replace(signal=signal, noise=noise)
    messages = None if rates is None else jnp.sum(rates)
    update, upload = algorithm.upload.release(
        role_key(key, "server noise"), state.round, update, extra, state.upload, sensitivity, messages
    )
    update = sent.insert(update, jnp.zeros_like(params))
    if observe is not None:
        transcript = Transcript(
            report.transcript, observe(state.params, context.whole(message)), observe(state.params, update)
        )
        report = report._replace(transcript=transcript)
    return AggregatedUpdate(update, upload, terms), report


@jax.named_scope("server_move")
def apply_server_update(context: RoundContext, mean: AggregatedUpdate, rows: Any) -> ServerState:
    """The server moves by the mean update; its state and the clients' state are updated."""
    algorithm, data, state, execution = context.shared.algorithm, context.shared.data, context.state, context.execution
    _, unravel = ravel(state.params)

    def variance() -> jax.Array:
        return variance_of_mean(algorithm, data, state.round, state.upload)

    params, optimizer = execution.keep_models(
        algorithm.server.move(state.round, unravel(mean.update), variance, state.optimizer, state.params)
    )
    shared = execution.keep_models(algorithm.local.absorb(state.shared, mean.terms, data.num_clients))
    clients = execution.keep_tables(
        jax.tree.map(
            lambda table, row: replace_rows(table, context.places, context.members.present, row), state.clients, rows
        )
    )
    memory = _exchange(context, params, LocalState(shared, clients))
    return ServerState(params, optimizer, state.round + 1, mean.upload, memory.server, memory.clients)


def _exchange(context: RoundContext, params: Any, memory: LocalState) -> LocalState:
    """The second exchange: what some clients send after they have received the new model."""
    algorithm, data, key = context.shared.algorithm, context.shared.data, context.shared.key

    def map_clients(see: Callable[..., Any], ids: jax.Array) -> Any:
        def one(shared: Any, client_id: jax.Array) -> tuple[Any, Any]:
            data, params, frozen, key = shared
            whole = gradients.joined(context.model, frozen)
            return (), see(jax.random.fold_in(key, client_id), params, data.client(client_id), data, whole)

        own_key = jax.random.fold_in(role_key(key, "exchange"), context.state.round)
        return sum_over_clients(
            one, (data, params, context.shared.frozen, own_key), ids, context.execution, sum(tensor_sizes(params))
        )[1]

    def upcoming() -> Members:
        return draw_cohort(algorithm.cohort, key, context.state.round + 1, data.shares)

    return algorithm.local.exchange(memory, map_clients, context.members, upcoming)
