"""Checks that local steps pass the drawn batches to the privatizer, each with its own key and step.

With noise on whole clients: checks that a client's round depends on its own records alone.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from fedjax_dp.accounting import Event
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection.draws import examine_records
from fedjax_dp.inspection.flow import stated_gradients
from fedjax_dp.inspection.noise_law import require_uncorrelated
from fedjax_dp.inspection.steps import releases_of
from fedjax_dp.inspection.trials import RUNS, TRIALS, Place, compile_trials, keys_of
from fedjax_dp.inspection.verdict import require, require_so
from fedjax_dp.models import Model
from fedjax_dp.parts.batches import neighbours_of
from fedjax_dp.parts.clipping import Records, StepReport
from fedjax_dp.parts.cohorts import AllClients, CohortKeys
from fedjax_dp.parts.contexts import ClientContext, LocalState, Received, StepContext
from fedjax_dp.parts.noise import correlated_source
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import ravel, replace, structure, value
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.simulation import run_key
from fedjax_dp.rounds.state import initial_state

NOTED = 2**11  # the most gradients that are recorded, at 0.1 ms each


def examine_local(local: Any, place: Place) -> None:
    """Check the privatizer's inputs, and that updates of two clients and rounds have different noise."""
    if local.privatizer.on_upload:
        raise AssertionError("noise on the upload is supported by LocalSgd alone, with any batches and corrections")
    if local.initial_release:
        raise AssertionError("releases before the first round are supported by LocalSgd alone")
    examine_batches_of_steps(local, place)
    _examine_updates(local, place)


def examine_models(models: Any, place: Place) -> None:
    """Check that the streams of a client's models have noise and batches of their own, as their events state."""
    examine_batches_of_steps(place.algorithm.local, place)


class Gradient(NamedTuple):
    """Record of one gradient computed by the privatizer."""

    trial: int
    word: tuple[int, ...]  # its key
    step: int
    stream: int
    client: int
    round: int
    noise: float  # the privatizer's noise multiplier, which is 1 unless the local steps changed it
    rows: np.ndarray  # of the store, without masked ones; -1: not an unmodified record


@value
class RecordingPrivatizer:
    """A privatizer that records its arguments and returns zeros."""

    trial: jax.Array
    noise_multiplier: Any = 1.0
    note: Callable[..., None] = structure()

    def gradient(
        self, key: jax.Array, step: StepContext, model: Model, params: Any, records: Records
    ) -> tuple[jax.Array, StepReport]:
        every = jax.tree.leaves((records.x, records.y))
        numbers = jnp.concatenate([a.reshape(len(a), -1).astype(jnp.float32) for a in every], 1)
        rows = jnp.where(jnp.all(numbers == numbers[:, :1], 1), numbers[:, 0], -1)
        words = jax.random.key_data(key)
        where = (step.number, jnp.int32(step.stream), step.client, step.round, jnp.float32(self.noise_multiplier))
        io_callback(self.note, None, self.trial, words, *where, rows, records.mask)
        none = jnp.float32(0)
        return jnp.zeros_like(ravel(params)[0]), StepReport(none, none, none, none)

    def noise_variance(self, step: StepContext, divisor: Any) -> float:
        return 0.0


def examine_batches_of_steps(local: Any, place: Place) -> None:
    """The privatizer receives the drawn records, and a new key and step each time."""
    algorithm, data, model, rounds = place[:4]
    sizes = np.asarray(data.sizes)
    context_of = _initial_context(local, algorithm, data, model)
    for client in sorted({int(np.argmin(sizes)), int(np.argmax(sizes)), len(sizes) - 1}):
        records = int(sizes[client])
        count = max(min(RUNS, NOTED // sum(stated_gradients(local, data.largest).values())), 20)
        tried = np.linspace(0, rounds - 1, count).astype(np.int32)  # the round of each trial
        gradients: list[Gradient] = []
        lock = threading.Lock()

        def note(*values: Any, gradients: list[Gradient] = gradients, lock: Any = lock) -> None:
            trial, words, step, stream, who, t, noise, rows, mask = map(np.asarray, values)
            gone = np.rint(rows[mask]).astype(int)
            word, where = tuple(words.tolist()), (int(step), int(stream), int(who), int(t))
            with lock:
                gradients.append(Gradient(int(trial), word, *where, float(noise), gone))

        held = _number_records(data, client)

        def of(
            key: jax.Array, trial: jax.Array, t: jax.Array, client: int = client, held: Any = held, note: Any = note
        ) -> jax.Array:
            recording = replace(local, privatizer=RecordingPrivatizer(trial=trial, note=note))
            return recording.run(context_of(key, t, jnp.int32(client), held)).update

        jax.block_until_ready(compile_trials(of)(keys_of(count, "local"), jnp.arange(count), jnp.asarray(tried)))
        jax.effects_barrier()
        name = f"local steps of a client with {records} records"
        alike = all(g.client == client and g.round == tried[g.trial] for g in gradients)
        require_so(alike, f"{name}: the client and round of a noise", "others", "the client and round")
        places = {(g.word, g.step) for g in gradients}
        require_so(len(places) == len(gradients), f"{name}: key and step of a noise", "used again", "new each time")
        allowed, noises = stated_gradients(local, records), _noise_of_events(local, data, records)
        for stream in sorted({g.stream for g in gradients}):
            own = [g for g in gradients if g.stream == stream]
            of_stream = f"{name}, stream {stream}"
            _examine_stream(of_stream, local, own, allowed.get(stream, 0), records, count)
            noise, counted = min(g.noise for g in own), noises.get(stream, np.inf)
            law = f"{of_stream}: its noise over that of the privatizer"
            require(noise >= counted * (1 - 1e-5), law, f"{noise:.4g}", f"the {counted:.4g} of its event, or more")


def _noise_of_events(local: Any, data: FederatedData, records: int) -> dict[int, float]:
    """The largest noise multiplier in the events of each stream, over that of the first, which must cover its steps."""
    rates, law = np.full(1, float(local.rates(0, data.largest)[-1])), local.batches.sampling(records)

    def most_of(event: Event, steps: int) -> float:
        counted = local.batches.count(steps, records)
        releases = releases_of(event, law, neighbours_of(law), counted, correlated_source(local.privatizer))
        return max((one.noise_multiplier for one in releases), default=np.inf)

    whole = local.batches.count(local.steps, records)
    first = most_of(local.privatizer.event(1.0, local.batches, records, whole, lambda: rates), local.steps)
    noises = {0: 1.0}
    for one in local.additional_releases:
        if one.stream and one.noised and not one.final:
            require_so(one.most is None, f"stream {one.stream} of gradients in a round", "at most in some", "in each")
            noise = most_of(one.event(local, 1.0, records, lambda: rates), one.steps) / first
            noises[one.stream] = max(noise, noises.get(one.stream, 0.0))
    return noises


def _examine_stream(name: str, local: Any, own: list[Gradient], most: int, records: int, count: int) -> None:
    """Check the gradients of one stream: no more than are stated, on the drawn batches."""
    batches = local.batches
    taken = [
        sorted(
            (g for g in own if g.trial == trial and (batches.even or g.step < most or g.rows.size)),
            key=lambda g: g.step,
        )
        for trial in range(count)
    ]  # steps that are not taken have later numbers, and no records
    counts = sorted({len(each) for each in taken})
    require(max(counts) <= most, f"{name}: noised gradients", f"{counts}", f"{most}")
    if correlated_source(local.privatizer) is not None:
        counted = all([g.step for g in each] == list(range(len(each))) for each in taken)
        require_so(counted, f"{name}: their numbers under correlated noise", "others", "0, 1, ...")
    first = min(len(each) for each in taken)
    rows = np.concatenate([np.zeros(0, int), *(gradient.rows for each in taken for gradient in each)])
    inside = np.all((rows >= 0) & (rows < records))
    require_so(inside, f"{name} use records within its own", "others too", "its own")
    times = np.zeros((count, min(first, most), records), int)
    for trial, each in enumerate(taken):
        for t, gradient in enumerate(each[: times.shape[1]]):
            times[trial, t] += np.bincount(gradient.rows, minlength=records)
    examine_records(name, times, batches.sampling(records))


def _initial_context(
    local: Any, algorithm: Algorithm, data: FederatedData, model: Model
) -> Callable[..., ClientContext]:
    """The context of a client at the start of a first round with all clients."""
    state = jax.jit(lambda key: initial_state(algorithm, model, jax.tree.map(jnp.asarray, data), key))(run_key(0))
    members = AllClients().sample(CohortKeys.of(run_key(0), jnp.int32(0)), jnp.int32(0), jnp.asarray(data.shares))
    kept = state.clients, local.send(LocalState(state.shared, state.clients), members)

    def context_of(
        key: jax.Array, t: jax.Array, client: jax.Array, held: FederatedData, params: Any = state.params
    ) -> ClientContext:
        start, unravel = ravel(params)
        received = Received(start, state.shared, *jax.tree.map(lambda table: table[client], kept))
        return ClientContext(key, t, held.client(client), held, model, unravel, received)

    return context_of


def _number_records(data: FederatedData, client: int) -> FederatedData:
    """A store of one client's records only, whose features and targets all equal the record's number."""
    records = int(np.asarray(data.sizes)[client])

    def fill_with_numbers(a: Any, kind: Any) -> jax.Array:
        numbers = np.arange(records).reshape(-1, *[1] * (a.ndim - 1))
        return jnp.asarray(np.broadcast_to(numbers, (records, *a.shape[1:])).astype(kind))

    own = np.arange(data.num_clients) == client
    return replace(
        data,
        x=fill_with_numbers(data.x, np.int32 if data.tokens else np.float32),
        y=jax.tree.map(lambda a: fill_with_numbers(a, np.float32 if a.dtype.kind == "f" else np.int32), data.y),
        rows=None,
        scale=1.0,
        shift=0.0,
        offsets=jnp.zeros(data.num_clients, jnp.int32),
        sizes=jnp.where(own, jnp.asarray(data.sizes), 0),
        shares=jnp.asarray(data.shares),
        x_test=jnp.asarray(data.x_test[:0]),
        y_test=jax.tree.map(lambda a: jnp.asarray(a[:0]), data.y_test),
        test_clients=None,
    )


def _examine_updates(local: Any, place: Place) -> None:
    algorithm, data, model, rounds = place[:4]
    context_of = _initial_context(local, algorithm, data, model)
    pairs = [(i, t) for i in sorted({0, data.num_clients - 1}) for t in (0, max(rounds - 1, 1))]

    def of(key: jax.Array) -> jax.Array:
        held, params = jax.tree.map(jnp.asarray, data), model.init(role_key(key, "init"))

        def at(client: int, t: int) -> jax.Array:
            own = jax.random.fold_in(jax.random.fold_in(key, t), client)
            return local.run(context_of(own, jnp.int32(t), jnp.int32(client), held, params)).update

        return jnp.stack([at(i, t) for i, t in pairs])

    updates = np.asarray(compile_trials(of)(keys_of(2 * TRIALS, "local")), float)
    noise = updates[::2] - updates[1::2]
    scale = np.sqrt(np.mean(noise**2, axis=(0, 2), keepdims=True))
    require_so(np.all(scale > 0), "updates carry noise", "none for some client or round", "all")
    overall = (noise / scale).transpose(1, 0, 2).reshape(noise.shape[1], -1)
    require_uncorrelated("clients and rounds", overall, [f"client {i}, round {t}" for i, t in pairs], allowed=0.3)


def examine_isolation(part: Any, place: Place) -> None:
    """A client's round does not depend on the records of others, even if they train at the same time."""
    algorithm, data, model, rounds = place[:4]
    sizes, local = np.asarray(data.sizes), algorithm.local
    some = np.unique(np.linspace(0, len(sizes) - 1, min(len(sizes), 4)).astype(np.int32))
    context_of, held = _initial_context(local, algorithm, data, model), _select_clients(data, some)

    @jax.jit
    def train(held: FederatedData, t: jax.Array) -> Any:
        def one(i: jax.Array) -> Any:
            result = local.run(context_of(jax.random.fold_in(run_key(1), i), t, i, held))
            return result.update, result.auxiliary, result.client_state

        return jax.vmap(one)(jnp.asarray(some))

    for t in sorted({0, rounds - 1}):
        before = train(held, jnp.int32(t))
        for position, client in enumerate(some):
            after = train(_change_others(held, int(client)), jnp.int32(t))
            for one, other in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
                one, other = (np.asarray(a[position], float) for a in (one, other))
                alike = np.allclose(one, other, rtol=1e-6, atol=1e-7, equal_nan=True)
                require_so(alike, "a client's round uses records", "others too", "its own")


def _select_clients(data: FederatedData, some: np.ndarray) -> FederatedData:
    """A store of some clients' records, after as many records without a client as the largest client holds."""
    sizes, offsets = np.asarray(data.sizes), np.asarray(data.offsets)
    rows = [data.row_numbers[offsets[i] : offsets[i] + sizes[i]] for i in some]
    taken = np.concatenate([np.resize(rows[0], data.largest), *rows])
    here, begins = np.zeros_like(sizes), np.zeros_like(offsets)
    here[some] = sizes[some]
    begins[some] = data.largest + np.cumsum(here[some]) - here[some]
    x, y = jax.tree.map(lambda a: np.asarray(a)[taken], (data.x, data.y))
    some_data = replace(data, x=x, y=y, rows=None, offsets=begins, sizes=here)
    return jax.tree.map(jnp.asarray, some_data)


def _change_others(data: FederatedData, client: int) -> FederatedData:
    """A copy of the store with all records changed but this client's."""
    begin, size = int(data.offsets[client]), int(data.sizes[client])
    owned = {name: np.arange(begin, begin + size) for name in ("x", "y")}
    if data.test_clients is not None:
        held_out = np.flatnonzero(np.asarray(data.test_clients) == client)
        owned |= {"x_test": held_out, "y_test": held_out}

    def mirror(a: Any, rows: np.ndarray) -> jax.Array:
        records = np.asarray(a)
        others = (records.max() - records + records.min()).astype(records.dtype)
        others[rows] = records[rows]
        return jnp.asarray(others)

    arrays = {
        name: jax.tree.map(lambda a: mirror(a, rows), getattr(data, name))  # noqa: B023
        for name, rows in owned.items()
    }
    return replace(data, **arrays)
