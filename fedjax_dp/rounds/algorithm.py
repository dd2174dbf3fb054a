"""An algorithm is six slots; a round is this page."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.store import Client, FederatedData
from fedjax_dp.execution.mesh import Execution, sum_over_clients
from fedjax_dp.models import Model, mean_loss
from fedjax_dp.parts.aggregation import Aggregate
from fedjax_dp.parts.client_privacy import PlainUpload, Sent, Upload
from fedjax_dp.parts.cohorts import Cohort, Members
from fedjax_dp.parts.corrections import Memory, Setting, kept
from fedjax_dp.parts.local_training import LocalSgd, Received
from fedjax_dp.parts.server_optimizers import Server
from fedjax_dp.parts.transport import PlainSum, Transport
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import changed, ravel, ravel_numbers, tensor_sizes, value


@value
class Algorithm:
    """Who takes part, what they do, how their updates leave, combine and travel, how the server moves."""

    cohort: Cohort
    local: LocalSgd
    upload: Upload = PlainUpload()
    aggregate: Aggregate
    transport: Transport = PlainSum()
    server: Server


class ServerState(NamedTuple):
    """Everything that a round hands to the next."""

    params: Any
    optimizer: Any
    round: jax.Array
    upload: Any  # a clip norm that is learnt
    memories: tuple[Memory, ...]  # of the corrections: control variates, mean features
    rules: Any  # state of every client's local rule, where it is kept (num_clients, ...)


def place(state: ServerState, execution: Execution) -> ServerState:
    """A copy of the state where a run of `execution` wants it; tables on the host stay there."""
    light = state._replace(rules=(), memories=tuple(memory.server for memory in state.memories))
    light = execution.place_models(light)
    tables = execution.place_tables(tuple(memory.clients for memory in state.memories))
    memories = tuple(Memory(*parts) for parts in zip(light.memories, tables, strict=True))
    return light._replace(memories=memories, rules=execution.place_tables(state.rules))


class Heard(NamedTuple):
    """What a listener makes of the messages of a round, as one adversary or another receives them."""

    uploads: Any  # of each member's message, zeros where it did not arrive (members, ...)
    total: Any  # of their sum
    update: Any  # of the mean update that the server moves by, its noise included


Listener = Callable[[Any, jax.Array], Any]  # (the parameters that clients received, a flat message) -> arrays


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
    heard: Any = ()  # `Heard`, where somebody listens


def check_fit(algorithm: Algorithm, shares: np.ndarray) -> None:
    """Refuse parts that do not fit together."""
    cohort, aggregate, upload = algorithm.cohort, algorithm.aggregate, algorithm.upload
    aggregate.check(cohort, len(shares))
    rates, positions = cohort.rates(shares), cohort.members(len(shares))
    name = type(cohort).__name__
    if rates is None and (aggregate.needs_rates or upload.extra):
        raise errors.refuse("estimator", type(aggregate).__name__, f"mean or renorm: {name} has rates nobody knows")
    if cohort.turns > 1 and (algorithm.local.rule.keep or any(c.keeps for c in algorithm.local.corrections)):
        raise errors.refuse("draws one by one", True, "False where clients keep something", "train each client once")
    if cohort.turns > 1 and algorithm.transport.secret:
        raise errors.refuse("draws one by one", True, "False for secure sums", "masks are shared by distinct clients")
    if upload.unit is None:
        return
    if algorithm.local.rule.keep or any(c.keeps for c in algorithm.local.corrections):
        raise errors.refuse(
            "corrections",
            "one by which clients keep or send something",
            "none under noise on whole clients",
            "it would pass that noise by; noise the gradients instead",
        )
    if algorithm.transport.secret and not aggregate.alike:
        raise errors.refuse(
            "estimator",
            type(aggregate).__name__,
            "one of equal weights for noise on whole clients in a secure sum",
            "rounding to the ring is counted for weight 1",
        )
    if aggregate.reach(shares, rates, 1) is None:
        raise errors.refuse(
            "estimator",
            type(aggregate).__name__,
            "one that bounds what a client can move, for noise on whole clients",
            "use the bounded mean of dp_fedavg, wor_delta, or mean with a cohort of fixed size",
        )
    if not cohort.once or (aggregate.realised and not cohort.fixed):
        raise errors.refuse(
            "cohort",
            name,
            "of a fixed size for a mean over it with noise on whole clients"
            if cohort.once
            else "one that draws a client at most once a round for noise on whole clients",
            "use a uniform cohort, or Poisson with the bounded mean",
        )
    if upload.shared_noise and not (cohort.fixed and algorithm.transport.secret and aggregate.alike):
        raise errors.refuse(
            "noise",
            f"shared through {type(algorithm.transport).__name__} with {name}",
            "shared only in secure sums of equal weights over cohorts of fixed size",
            "else the shares do not add up",
        )
    if upload.shared_noise:
        upload.check_resolution(algorithm.transport.resolution, positions)  # type: ignore[attr-defined]


def init(algorithm: Algorithm, model: Model, data: FederatedData, key: jax.Array) -> ServerState:
    """State before round 0. `key` is the run's key."""
    params = model.init(role_key(key, "init"))
    local, everyone = algorithm.local, jnp.arange(data.num_clients, dtype=jnp.int32)
    flat, _ = ravel(params)

    def look(see: Callable[..., Any]) -> Any:
        stored, start_key = jax.tree.map(jnp.asarray, data), role_key(key, "look at the start")

        def one(i: jax.Array) -> Any:
            return see(jax.random.fold_in(start_key, i), params, stored.client(i), stored, model)

        return jax.lax.map(one, everyone)

    def warm() -> jax.Array:
        def see(key: jax.Array, params: Any, client: Any, data: FederatedData, model: Model) -> jax.Array:
            return local.mean_gradient(key, client, params, data, model)

        return look(see)

    setting = Setting(model, data, params, flat.size, warm, look)
    rule = local.rule.transform().init(flat)
    tables = jax.tree.map(lambda a: jnp.broadcast_to(a, (data.num_clients, *jnp.shape(a))), rule)
    return ServerState(
        params,
        algorithm.server.init(params),
        jnp.int32(0),
        algorithm.upload.init(),
        tuple(correction.init(setting) for correction in local.corrections),
        tables if local.rule.keep else (),
    )


def draw_cohort(cohort: Cohort, key: jax.Array, round_index: jax.Array, shares: jax.Array) -> Members:
    """A round's cohort. Depends on key, round and shares alone, so accounting can draw the same schedule ahead.

    Only clients that there are can be invited, and only who is invited, and so accounted for, can take part.
    """
    members = cohort.sample(jax.random.fold_in(role_key(key, "cohort"), round_index), round_index, shares)
    invited = members.invited & (members.ids >= 0) & (members.ids < shares.shape[0])
    return members._replace(invited=invited, drawn=jnp.where(invited, members.drawn, 0.0))


@jax.jit
def draw_cohorts(cohort: Cohort, key: jax.Array, rounds: jax.Array, shares: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Ids, and who of them is invited, of the cohorts of some rounds; both `(rounds, members)`."""
    members = jax.vmap(lambda t: draw_cohort(cohort, key, t, shares))(rounds)
    return members.ids, members.invited


class Held(NamedTuple):
    """Records that a device holds, in the order of their clients."""

    x: jax.Array  # (records, ...)
    y: jax.Array  # (records,)


class Fed(NamedTuple):
    """The records of the cohorts of some rounds, each on the device that computes its client."""

    first: jax.Array  # the first of these rounds
    offsets: jax.Array  # where each member's records begin on its device (rounds, members)
    places: jax.Array | None  # of each member's row in tables that hold those of these cohorts only (rounds, members)
    held: Held  # with a leading axis (devices,)


class _Member(NamedTuple):
    """What is a member's own when its round begins."""

    position: jax.Array
    client: Client
    turn: jax.Array
    present: jax.Array
    weight: jax.Array
    rows: tuple[Any, ...]  # of the corrections
    extra: tuple[Any, ...]
    rule: Any


def run_round(
    algorithm: Algorithm,
    model: Model,
    data: FederatedData,
    key: jax.Array,
    state: ServerState,
    execution: Execution,
    listen: Listener | None = None,
    fed: Fed | None = None,
) -> tuple[ServerState, RoundReport]:
    """One round. `key` is the run's key: every draw is named by role, round, client and step.

    listen  sees the messages as they travel, before masks: first the update with its weight, then what else is sent;
    fed     where the cohorts' records are, if not in `data`.
    """
    data = jax.tree.map(jnp.asarray, data)
    corrections, aggregate, transport = algorithm.local.corrections, algorithm.aggregate, algorithm.transport
    members = execution.everywhere(draw_cohort(algorithm.cohort, key, state.round, data.shares))
    expected = algorithm.cohort.rates(data.shares)
    flat, unravel = ravel(state.params)
    positions = jnp.arange(members.ids.shape[0], dtype=jnp.int32)
    sent = Sent(positions.size, transport.resolution, transport.limit(positions.size))
    rule = algorithm.local.rule.transform().init(flat)
    hides = algorithm.upload.unit is not None or getattr(algorithm.local.privatizer, "gap", None) is None
    back: list[Callable] = []  # from a flat message to its parts, known once a client has been traced

    def train(shared: Any, member: _Member) -> tuple[Any, Any]:
        if fed is not None:
            shared, records = shared
        algorithm, data, key, state, ids, invited = shared
        data = data if fed is None else changed(data, **records._asdict())
        local_key = jax.random.fold_in(role_key(key, "local"), state.round)
        own_key = jax.random.fold_in(local_key, member.client.id + data.num_clients * member.turn)
        client, servers = member.client, tuple(memory.server for memory in state.memories)
        held = Received(state.params, servers, member.rows, member.extra, member.rule)
        result = algorithm.local.run(own_key, state.round, client, held, data, model, execution.spread)
        update, extra = algorithm.upload.message(
            role_key(own_key, "upload"), result.update, tensor_sizes(state.params), state.upload, sent
        )
        loss = mean_loss(model, state.params, data, client) if aggregate.needs_loss else None
        rate = algorithm.local.rates(state.round, data.largest)[0]
        parts = (
            algorithm.aggregate.contribution(member.weight, update, loss, rate),
            jax.tree.map(lambda a: jnp.where(member.present, a, 0.0), (extra, result.terms)),
        )
        message, split = ravel_numbers(parts)
        back[:] = [split]
        heard = () if listen is None else listen(state.params, jnp.where(member.present, message, 0.0))
        words, overflow = algorithm.transport.message(
            role_key(key, "masks"), state.round, member.position, ids, invited, message
        )
        sound = jnp.all(jnp.isfinite(message))
        if not hides:  # else a run that stops for a loss that nobody noised would tell of it
            sound = sound & jnp.isfinite(result.report.loss)
        words = jax.tree.map(lambda a: jnp.where(member.present, a, jnp.zeros_like(a)), words)
        probes = (*result.report, sound, overflow, heard)
        return words, (result.own, result.rule if algorithm.local.rule.keep else (), probes)

    clients, places = data.client(members.ids), members.ids
    if fed is not None:
        clients = clients._replace(offset=fed.offsets[state.round - fed.first])
        places = places if fed.places is None else fed.places[state.round - fed.first]
    everyone = _Member(
        positions,
        clients,
        members.turn,
        members.present,
        aggregate.weights(members, data.shares, expected),
        tuple(jax.tree.map(lambda table: table[places], memory.clients) for memory in state.memories),
        tuple(c.send(memory, members) for c, memory in zip(corrections, state.memories, strict=True)),
        jax.tree.map(lambda table: table[places], state.rules)
        if algorithm.local.rule.keep
        else jax.tree.map(lambda a: jnp.broadcast_to(a, (positions.size, *jnp.shape(a))), rule),
    )
    light = state._replace(optimizer=(), rules=(), memories=tuple(Memory(m.server) for m in state.memories))
    shared = (algorithm, data, key, light, members.ids, members.invited)
    needed = None if algorithm.cohort.fixed else members.present
    words, (rows, rules, probes) = sum_over_clients(
        train,
        shared,
        everyone,
        execution,
        sum(tensor_sizes(state.params)),
        needed,
        algorithm.cohort.usual(data.num_clients),
        None if fed is None else fed.held,
    )
    report = RoundReport(members.ids, members.present, *probes)
    report = report._replace(finite=report.finite | ~members.present, overflow=report.overflow & members.present)
    message = transport.total(role_key(key, "masks"), state.round, members.ids, members.invited, members.present, words)
    total, (extra, terms) = back[0](message)

    update = aggregate.combine(total, members, data.shares, expected, flat)
    reach = aggregate.reach(data.shares, expected, positions.size)
    messages = None if expected is None else jnp.sum(expected)
    std = algorithm.upload.noise_std(state.upload, reach, state.round)
    if std is not None:
        power = jnp.stack([jnp.vdot(update, update), std**2 * update.size])
        signal, noise = jnp.broadcast_to(power[:, None], (2, positions.size))
        report = report._replace(signal=signal, noise=noise)
    update, upload = algorithm.upload.release(
        role_key(key, "server noise"), state.round, update, extra, state.upload, reach, messages
    )
    if listen is not None:
        heard = Heard(report.heard, listen(state.params, message), listen(state.params, update))
        report = report._replace(heard=heard)
    params, optimizer = execution.keep_models(
        algorithm.server.move(state.round, unravel(update), state.optimizer, state.params)
    )
    memories = tuple(
        Memory(
            execution.keep_models(correction.absorb(memory.server, term, data.num_clients)),
            execution.keep_tables(
                jax.tree.map(lambda table, new: kept(table, places, members.present, new), memory.clients, row)
            ),
        )
        for correction, memory, term, row in zip(corrections, state.memories, terms, rows, strict=True)
    )
    rules = execution.keep_tables(
        jax.tree.map(lambda table, new: kept(table, places, members.present, new), state.rules, rules)
    )
    memories = _exchange(algorithm, model, data, key, state.round, params, memories, members, execution)
    return ServerState(params, optimizer, state.round + 1, upload, memories, rules), report


def _exchange(
    algorithm: Algorithm,
    model: Model,
    data: FederatedData,
    key: jax.Array,
    round_index: jax.Array,
    params: Any,
    memories: tuple[Memory, ...],
    members: Members,
    execution: Execution,
) -> tuple[Memory, ...]:
    """The second exchange: what some clients send about the new model."""

    def look(see: Callable[..., Any], ids: jax.Array) -> Any:
        def one(shared: Any, client_id: jax.Array) -> tuple[Any, Any]:
            data, params, key = shared
            return (), see(jax.random.fold_in(key, client_id), params, data.client(client_id), data, model)

        own_key = jax.random.fold_in(role_key(key, "exchange"), round_index)
        return sum_over_clients(one, (data, params, own_key), ids, execution, sum(tensor_sizes(params)))[1]

    def upcoming() -> Members:
        return draw_cohort(algorithm.cohort, key, round_index + 1, data.shares)

    pairs = zip(algorithm.local.corrections, memories, strict=True)
    return tuple(correction.exchange(memory, look, members, upcoming) for correction, memory in pairs)
