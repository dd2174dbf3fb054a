"""The clients of a round: how they are drawn, what each receives, and what it sends."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_dp import gradients
from fedjax_dp.data.store import Client, FederatedData
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.models import Model, mean_loss
from fedjax_dp.parts.client_privacy import MessageEncoding
from fedjax_dp.parts.cohorts import Cohort, CohortKeys, Members
from fedjax_dp.parts.contexts import ClientContext, LocalResult, LocalState, Received
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import Part, ravel, ravel_numbers, replace, tensor_sizes, unravel_numbers
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.state import Observer, ServerState


def draw_cohort(cohort: Cohort, key: jax.Array, round_index: jax.Array, shares: jax.Array) -> Members:
    """The cohort of a round. It depends only on key, round and shares, so accounting can draw the same schedule.

    Ids outside of the population are never selected, and only selected clients, which are accounted for, can take part.
    """
    with jax.named_scope("cohort_draw"):
        members = cohort.sample(CohortKeys.of(role_key(key, "cohort"), round_index), round_index, shares)
    selected = members.selected & (members.ids >= 0) & (members.ids < shares.shape[0])
    return members._replace(
        selected=selected, participation_count=jnp.where(selected, members.participation_count, 0.0)
    )


@jax.jit
def draw_cohorts(cohort: Cohort, key: jax.Array, rounds: jax.Array, shares: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Ids and selection flags of the cohorts of some rounds; both `(rounds, members)`."""
    members = jax.vmap(lambda t: draw_cohort(cohort, key, t, shares))(rounds)
    return members.ids, members.selected


class DeviceRecords(NamedTuple):
    """The records on a device, in the order of their clients."""

    x: jax.Array  # (records, ...)
    y: Any  # (records, *target_shape), or a pytree of targets


class HostBlock(NamedTuple):
    """The records of the cohorts of some rounds, each on the device that computes its client."""

    first: jax.Array  # the first of these rounds
    offsets: jax.Array  # where each member's records begin on its device (rounds, members)
    places: jax.Array | None  # index of each member's row in tables of only these cohorts (rounds, members)
    held: DeviceRecords  # with a leading axis (devices,)


class Member(NamedTuple):
    """What only one member has at the start of its round."""

    position: jax.Array
    client: Client
    draw_index: jax.Array
    present: jax.Array
    weight: jax.Array
    own: Any  # its row of the clients' state
    extra: Any  # what only this member receives


class Shared(NamedTuple):
    """What all members have in common."""

    algorithm: Algorithm
    data: FederatedData
    key: jax.Array
    state: ServerState  # without the parts that clients do not need
    frozen: Any  # frozen values of the model
    ids: jax.Array
    selected: jax.Array


class RoundContext(NamedTuple):
    """What all steps of a round need."""

    model: Model  # only its structure
    shared: Shared
    state: ServerState
    execution: Execution
    observe: Observer | None
    block: HostBlock | None
    members: Members
    cohort_inputs: Member  # with a leading axis (members,)
    places: jax.Array  # index of each member's row in tables
    split: Callable[[jax.Array], Any]  # splits a flat message, or a sum of messages, into its parts

    @property
    def rates(self) -> jax.Array | None:
        return self.shared.algorithm.cohort.rates(self.shared.data.shares)

    @property
    def sent(self) -> Part:
        whole = gradients.joined(self.model, self.shared.frozen)
        return Part(tensor_sizes(self.state.params), self.shared.algorithm.local.sent_tensors(whole))

    def whole(self, message: jax.Array) -> jax.Array:
        """A flat message, or a sum of messages, with zeros for parameters that are not shared."""
        update, beside = self.split(message)
        return ravel_numbers((self.sent.insert(update, jnp.zeros(sum(tensor_sizes(self.state.params)))), beside))


def build_round_context(
    algorithm: Algorithm,
    model: Model,
    data: FederatedData,
    key: jax.Array,
    state: ServerState,
    execution: Execution,
    observe: Observer | None,
    block: HostBlock | None,
) -> RoundContext:
    """Draw the cohort of a round, and gather its members' inputs and the structure of their messages."""
    model, frozen = gradients.split(model)
    members = execution.replicate(draw_cohort(algorithm.cohort, key, state.round, data.shares))
    clients, places = data.client(members.ids), members.ids
    if block is not None:
        clients = clients._replace(offset=block.offsets[state.round - block.first])
        places = places if block.places is None else block.places[state.round - block.first]
    cohort_inputs = Member(
        jnp.arange(members.ids.shape[0], dtype=jnp.int32),
        clients,
        members.draw_index,
        members.present,
        algorithm.aggregate.weights(members, data.shares, algorithm.cohort.rates(data.shares)),
        jax.tree.map(lambda table: table[places], state.clients),
        algorithm.local.send(LocalState(state.shared, state.clients), members),
    )
    light = state._replace(optimizer=(), clients=())
    shared = Shared(algorithm, data, key, light, frozen, members.ids, members.selected)

    def first() -> Any:
        held = None if block is None else jax.tree.map(lambda a: a[0], block.held)
        return client_update(model, with_device_records(shared, held), jax.tree.map(lambda a: a[0], cohort_inputs))[0]

    split = unravel_numbers(jax.eval_shape(first))
    return RoundContext(model, shared, state, execution, observe, block, members, cohort_inputs, places, split)


def with_device_records(shared: Shared, held: DeviceRecords | None) -> Shared:
    """The shared inputs with the records of a device, if it holds its own."""
    return shared if held is None else shared._replace(data=replace(shared.data, **held._asdict()))


def client_update(
    structure: Model,
    shared: Shared,
    member: Member,
    shard: Callable[[jax.Array], jax.Array] = lambda flat: flat,
    signal: bool = True,
    skips_steps: bool = False,
) -> tuple[Any, LocalResult]:
    """One client's round: the parts of its message (its contribution to the sum, and extra numbers), and its result."""
    algorithm, data, key, state, frozen, ids, _ = shared
    model = gradients.joined(structure, frozen)
    local_key = jax.random.fold_in(role_key(key, "local"), state.round)
    own_key = jax.random.fold_in(local_key, member.client.id + data.num_clients * member.draw_index)
    start, unravel = ravel(state.params)
    received = Received(start, state.shared, member.own, member.extra)
    run_key = jax.random.fold_in(role_key(key, "kept by clients"), member.client.id)
    client = ClientContext(
        own_key, state.round, member.client, data, model, unravel, received, shard, 0, signal, run_key, skips_steps
    )
    result = algorithm.local.run(client)
    count, transport = ids.shape[0], algorithm.transport
    sizes = Part(tensor_sizes(state.params), algorithm.local.sent_tensors(model)).sizes
    encoding = MessageEncoding(count, transport.resolution, transport.limit(count))
    update, extra = algorithm.upload.message(role_key(own_key, "upload"), result.update, sizes, state.upload, encoding)
    if algorithm.upload.unit is not None:
        shorter = algorithm.upload.scales_down(result.update, sizes, state.upload, encoding)
        of_updates = jnp.float32(jnp.nan) if shorter is None else shorter.astype(jnp.float32)
        result = result._replace(report=result.report._replace(clipped=of_updates))
    loss = mean_loss(model, state.params, data, member.client) if algorithm.aggregate.needs_loss else None
    rate = algorithm.local.rates(state.round, data.largest)[0]
    contribution = algorithm.aggregate.contribution(member.weight, update, loss, rate)
    beside = jax.tree.map(lambda a: jnp.where(member.present, a, 0.0), (extra, result.auxiliary))
    return (contribution, beside), result
