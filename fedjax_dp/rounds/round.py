"""A round is this page: a cohort trains, its messages are aggregated, the server moves."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_dp import gradients
from fedjax_dp.data.store import Client, FederatedData
from fedjax_dp.execution.mesh import Execution, sum_over_clients
from fedjax_dp.models import Model, mean_loss
from fedjax_dp.parts.client_privacy import MessageEncoding
from fedjax_dp.parts.cohorts import Cohort, Members
from fedjax_dp.parts.contexts import ClientContext, InitContext, LocalResult, LocalState, Received
from fedjax_dp.parts.corrections import kept
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import Part, changed, ravel, ravel_numbers, tensor_sizes, unravel_numbers
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.update_noise import variance_of_mean


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
    light: ServerState = execution.place_models(state._replace(clients=()))
    return light._replace(clients=execution.place_tables(state.clients))


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
    clipped: jax.Array  # fraction of records clipped
    signal: jax.Array  # mean over the local steps of |bounded mean gradient|^2, or |mean update|^2 if that is noised
    noise: jax.Array  # expected |noise|^2 on the same; 0 without privacy, NaN where it is not known
    finite: jax.Array  # bool: loss and update of this client are finite
    overflow: jax.Array  # bool: its message did not fit into the ring of a secure sum
    transcript: Any = ()  # `Transcript`, where somebody observes


def initial_state(algorithm: Algorithm, model: Model, data: FederatedData, key: jax.Array) -> ServerState:
    """State before round 0. `key` is the run's key."""
    params = model.init(role_key(key, "init"))

    def look(see: Callable[..., Any]) -> Any:
        stored, start_key = jax.tree.map(jnp.asarray, data), role_key(key, "look at the start")

        def one(i: jax.Array) -> Any:
            return see(jax.random.fold_in(start_key, i), params, stored.client(i), stored, model)

        return jax.lax.map(one, jnp.arange(data.num_clients, dtype=jnp.int32))

    size, models_key = ravel(params)[0].size, role_key(key, "models")
    memory = algorithm.local.init(InitContext(model, data, params, size, look, key=models_key))
    return ServerState(
        params, algorithm.server.init(params), jnp.int32(0), algorithm.upload.init(), memory.server, memory.clients
    )


def draw_cohort(cohort: Cohort, key: jax.Array, round_index: jax.Array, shares: jax.Array) -> Members:
    """A round's cohort. Depends on key, round and shares alone, so accounting can draw the same schedule ahead.

    Only clients that there are can be invited, and only who is invited, and so accounted for, can take part.
    """
    with jax.named_scope("cohort_draw"):
        members = cohort.sample(jax.random.fold_in(role_key(key, "cohort"), round_index), round_index, shares)
    invited = members.invited & (members.ids >= 0) & (members.ids < shares.shape[0])
    return members._replace(invited=invited, drawn=jnp.where(invited, members.drawn, 0.0))


@jax.jit
def draw_cohorts(cohort: Cohort, key: jax.Array, rounds: jax.Array, shares: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Ids, and who of them is invited, of the cohorts of some rounds; both `(rounds, members)`."""
    members = jax.vmap(lambda t: draw_cohort(cohort, key, t, shares))(rounds)
    return members.ids, members.invited


class DeviceRecords(NamedTuple):
    """Records that a device holds, in the order of their clients."""

    x: jax.Array  # (records, ...)
    y: Any  # (records, *target_shape), or a pytree of such


class HostBlock(NamedTuple):
    """The records of the cohorts of some rounds, each on the device that computes its client."""

    first: jax.Array  # the first of these rounds
    offsets: jax.Array  # where each member's records begin on its device (rounds, members)
    places: jax.Array | None  # of each member's row in tables that hold those of these cohorts only (rounds, members)
    held: DeviceRecords  # with a leading axis (devices,)


class _Member(NamedTuple):
    """What is a member's own when its round begins."""

    position: jax.Array
    client: Client
    turn: jax.Array
    present: jax.Array
    weight: jax.Array
    own: Any  # its row of what clients keep
    extra: Any  # what it alone receives


class _Shared(NamedTuple):
    """What all members are given."""

    algorithm: Algorithm
    data: FederatedData
    key: jax.Array
    state: ServerState  # without what is of no use to a client
    frozen: Any  # values that the model uses and never trains
    ids: jax.Array
    invited: jax.Array


class _Round(NamedTuple):
    """What the three parts of a round have in common."""

    algorithm: Algorithm
    model: Model  # its structure
    data: FederatedData
    key: jax.Array
    state: ServerState
    execution: Execution
    observe: Observer | None
    fed: HostBlock | None
    members: Members
    rates: jax.Array | None  # of all clients
    places: jax.Array  # of each member's row in tables
    shared: _Shared
    everyone: _Member  # with a leading axis (members,)
    split: Callable[[jax.Array], Any]  # from a flat message, or a sum of them, to its parts

    @property
    def sent(self) -> Part:
        """What is shared of the model."""
        whole = gradients.joined(self.model, self.shared.frozen)
        return Part(tensor_sizes(self.state.params), self.algorithm.local.sent_tensors(whole))

    def whole(self, message: jax.Array) -> jax.Array:
        """A flat message, or a sum of them, with zeros for what is not shared of the model."""
        update, beside = self.split(message)
        return ravel_numbers((self.sent.put(update, jnp.zeros(sum(tensor_sizes(self.state.params)))), beside))


def run_round(
    algorithm: Algorithm,
    model: Model,
    data: FederatedData,
    key: jax.Array,
    state: ServerState,
    execution: Execution,
    observe: Observer | None = None,
    fed: HostBlock | None = None,
) -> tuple[ServerState, RoundReport]:
    """One round. `key` is the run's key: every draw is named by role, round, client and step.

    observe  sees the messages as they travel, before masks: first the update with its weight, flat and with zeros for
             what is not shared of the model, then what else is sent;
    fed      where the cohorts' records are, if not in `data`.
    """
    now = _assembled(algorithm, model, jax.tree.map(jnp.asarray, data), key, state, execution, observe, fed)
    words, rows, report = _train(now)
    mean, report = _aggregate(now, words, report)
    return _move(now, mean, rows), report


def _assembled(
    algorithm: Algorithm,
    model: Model,
    data: FederatedData,
    key: jax.Array,
    state: ServerState,
    execution: Execution,
    observe: Observer | None,
    fed: HostBlock | None,
) -> _Round:
    """The cohort of a round, what its members hold, and the shape of what they will send."""
    model, frozen = gradients.split(model)
    members = execution.everywhere(draw_cohort(algorithm.cohort, key, state.round, data.shares))
    rates = algorithm.cohort.rates(data.shares)
    clients, places = data.client(members.ids), members.ids
    if fed is not None:
        clients = clients._replace(offset=fed.offsets[state.round - fed.first])
        places = places if fed.places is None else fed.places[state.round - fed.first]
    everyone = _Member(
        jnp.arange(members.ids.shape[0], dtype=jnp.int32),
        clients,
        members.turn,
        members.present,
        algorithm.aggregate.weights(members, data.shares, rates),
        jax.tree.map(lambda table: table[places], state.clients),
        algorithm.local.send(LocalState(state.shared, state.clients), members),
    )
    light = state._replace(optimizer=(), clients=())
    shared = _Shared(algorithm, data, key, light, frozen, members.ids, members.invited)

    def first() -> Any:
        held = None if fed is None else jax.tree.map(lambda a: a[0], fed.held)
        return _visit(model, _holding(shared, held), jax.tree.map(lambda a: a[0], everyone))[0]

    split = unravel_numbers(jax.eval_shape(first))
    return _Round(
        algorithm, model, data, key, state, execution, observe, fed, members, rates, places, shared, everyone, split
    )


def _holding(shared: _Shared, held: DeviceRecords | None) -> _Shared:
    """With the records that a device holds for itself, if it does."""
    return shared if held is None else shared._replace(data=changed(shared.data, **held._asdict()))


def _visit(
    structure: Model, shared: _Shared, member: _Member, shard: Callable[[jax.Array], jax.Array] = lambda flat: flat
) -> tuple[Any, LocalResult]:
    """A client's round: the parts of its message (its contribution to the mean, and what else is summed), and more."""
    algorithm, data, key, state, frozen, ids, _ = shared
    model = gradients.joined(structure, frozen)
    local_key = jax.random.fold_in(role_key(key, "local"), state.round)
    own_key = jax.random.fold_in(local_key, member.client.id + data.num_clients * member.turn)
    start, unravel = ravel(state.params)
    received = Received(start, state.shared, member.own, member.extra)
    client = ClientContext(own_key, state.round, member.client, data, model, unravel, received, shard)
    result = algorithm.local.run(client)
    count, transport = ids.shape[0], algorithm.transport
    update, extra = algorithm.upload.message(
        role_key(own_key, "upload"),
        result.update,
        Part(tensor_sizes(state.params), algorithm.local.sent_tensors(model)).sizes,
        state.upload,
        MessageEncoding(count, transport.resolution, transport.limit(count)),
    )
    loss = mean_loss(model, state.params, data, member.client) if algorithm.aggregate.needs_loss else None
    rate = algorithm.local.rates(state.round, data.largest)[0]
    contribution = algorithm.aggregate.contribution(member.weight, update, loss, rate)
    beside = jax.tree.map(lambda a: jnp.where(member.present, a, 0.0), (extra, result.auxiliary))
    return (contribution, beside), result


def _train(now: _Round) -> tuple[Any, Any, RoundReport]:
    """The cohort trains: the sum of its messages as they travel, and new rows of what clients keep."""
    local, upload = now.algorithm.local, now.algorithm.upload
    hides = upload.unit is not None or getattr(local.privatizer, "no_epsilon_reason", None) is None

    def client(shared: Any, member: _Member) -> tuple[Any, Any]:
        shared = shared if now.fed is None else _holding(*shared)
        algorithm, _, key, state, _, ids, invited = shared
        parts, result = _visit(now.model, shared, member, now.execution.shard)
        message = ravel_numbers(parts)
        observed: Any = ()
        if now.observe is not None:
            observed = now.observe(state.params, jnp.where(member.present, now.whole(message), 0.0))
        words, overflow = algorithm.transport.message(
            role_key(key, "masks"), state.round, member.position, ids, invited, message
        )
        sound = jnp.all(jnp.isfinite(message))
        if not hides:  # else a run that stops for a loss that nobody noised would tell of it
            sound = sound & jnp.isfinite(result.report.loss)
        words = jax.tree.map(lambda a: jnp.where(member.present, a, jnp.zeros_like(a)), words)
        # Who is present is asked here, as outside devices would gather all answers for it; and the other way round, as
        # portions that are skipped are zeros.
        broken = ~sound & member.present
        return words, (result.client_state, (result.report, broken, overflow & member.present, observed))

    cohort, members = now.algorithm.cohort, now.members
    words, (rows, (probes, broken, overflow, observed)) = sum_over_clients(
        client,
        now.shared,
        now.everyone,
        now.execution,
        sum(tensor_sizes(now.state.params)),
        None if cohort.fixed else members.present,
        cohort.expected_size(now.data.num_clients),
        None if now.fed is None else now.fed.held,
    )
    loss, clipped, signal, noise = probes
    report = RoundReport(members.ids, members.present, loss, clipped, signal, noise, ~broken, overflow, observed)
    return words, rows, report


class _Mean(NamedTuple):
    """What the messages of a round come to."""

    update: jax.Array  # flat
    upload: Any  # state of the upload
    terms: Any  # sum of what local steps send beside


@jax.named_scope("aggregation")
def _aggregate(now: _Round, words: Any, report: RoundReport) -> tuple[_Mean, RoundReport]:
    """The mean update, with the noise that joins it, and the sums of what came beside."""
    (algorithm, _, data, key, state, *_), members, observe = now, now.members, now.observe
    message = algorithm.transport.total(
        role_key(key, "masks"), state.round, members.ids, members.invited, members.present, words
    )
    total, (extra, terms) = now.split(message)
    params, sent = ravel(state.params)[0], now.sent
    update = algorithm.aggregate.combine(total, members, data.shares, now.rates, sent.take(params))
    sensitivity = algorithm.aggregate.sensitivity(data.shares, now.rates, members.ids.shape[0])
    std = algorithm.upload.noise_std(state.upload, sensitivity, state.round)
    if std is not None:
        power = jnp.stack([jnp.vdot(update, update), std**2 * update.size])
        signal, noise = jnp.broadcast_to(power[:, None], (2, members.ids.shape[0]))
        report = report._replace(signal=signal, noise=noise)
    messages = None if now.rates is None else jnp.sum(now.rates)
    update, upload = algorithm.upload.release(
        role_key(key, "server noise"), state.round, update, extra, state.upload, sensitivity, messages
    )
    update = sent.put(update, jnp.zeros_like(params))
    if observe is not None:
        transcript = Transcript(
            report.transcript, observe(state.params, now.whole(message)), observe(state.params, update)
        )
        report = report._replace(transcript=transcript)
    return _Mean(update, upload, terms), report


@jax.named_scope("server_move")
def _move(now: _Round, mean: _Mean, rows: Any) -> ServerState:
    """The server moves by the mean update; what it and the clients keep is brought up to date."""
    algorithm, _, data, _, state, execution, *_ = now
    _, unravel = ravel(state.params)

    def variance() -> jax.Array:
        return variance_of_mean(algorithm, data, state.round, state.upload)

    params, optimizer = execution.keep_models(
        algorithm.server.move(state.round, unravel(mean.update), variance, state.optimizer, state.params)
    )
    shared = execution.keep_models(algorithm.local.absorb(state.shared, mean.terms, data.num_clients))
    clients = execution.keep_tables(
        jax.tree.map(lambda table, row: kept(table, now.places, now.members.present, row), state.clients, rows)
    )
    memory = _exchange(now, params, LocalState(shared, clients))
    return ServerState(params, optimizer, state.round + 1, mean.upload, memory.server, memory.clients)


def _exchange(now: _Round, params: Any, memory: LocalState) -> LocalState:
    """The second exchange: what some clients send about the new model."""
    algorithm, model, data, key, state, execution, *_ = now

    def look(see: Callable[..., Any], ids: jax.Array) -> Any:
        def one(shared: Any, client_id: jax.Array) -> tuple[Any, Any]:
            data, params, frozen, key = shared
            whole = gradients.joined(model, frozen)
            return (), see(jax.random.fold_in(key, client_id), params, data.client(client_id), data, whole)

        own_key = jax.random.fold_in(role_key(key, "exchange"), state.round)
        return sum_over_clients(
            one, (data, params, now.shared.frozen, own_key), ids, execution, sum(tensor_sizes(params))
        )[1]

    def upcoming() -> Members:
        return draw_cohort(algorithm.cohort, key, state.round + 1, data.shares)

    return algorithm.local.exchange(memory, look, now.members, upcoming)
