"""Observation of an algorithm in its own rounds: the gradients of local steps, and the server steps.

The local rule records every gradient and does not move, so all steps of a round start from the received model, with
the keys, batches and noise of the real run. The same run with noise_multiplier 0 gives the signal.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from fedjax_dp import errors
from fedjax_dp.accounting import FullBatch, Release, SkellamSums, sensitivity
from fedjax_dp.data.store import FederatedData
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.gradients import JitOfModel
from fedjax_dp.inspection.trials import QUICK, Place
from fedjax_dp.models import Model
from fedjax_dp.parts.aggregation import ESTIMATORS
from fedjax_dp.parts.batches import Batch, divisors_of
from fedjax_dp.parts.client_privacy import PlainUpload, hides_clients
from fedjax_dp.parts.cohorts import AllClients, Members
from fedjax_dp.parts.local_rules import LocalRule
from fedjax_dp.parts.noise import NoiseSource, correlated_source, strategy_of
from fedjax_dp.parts.record_privacy import clips
from fedjax_dp.parts.server_optimizers import Server
from fedjax_dp.parts.transport import PlainSum
from fedjax_dp.pytrees import Wrapper, ravel, replace, structure, value
from fedjax_dp.rounds.algorithm import Algorithm, mechanism_of, with_noise
from fedjax_dp.rounds.round import run_round
from fedjax_dp.rounds.simulation import as_float32_leaves
from fedjax_dp.rounds.state import initial_state

CLIENTS = 6  # the most that are observed


class RecordedGradients(NamedTuple):
    """The gradients recorded so far `(steps, size)`, and their number."""

    gradients: jax.Array
    number: jax.Array


@functools.cache
def recording_rule(steps: int) -> Callable[[], optax.GradientTransformation]:
    """A local rule that records `steps` gradients and does not move the parameters."""

    def factory() -> optax.GradientTransformation:
        def init(params: jax.Array) -> RecordedGradients:
            return RecordedGradients(jnp.zeros((steps, params.size)), jnp.int32(0))

        def update(
            gradient: jax.Array, noted: RecordedGradients, params: Any = None
        ) -> tuple[jax.Array, RecordedGradients]:
            after = RecordedGradients(noted.gradients.at[noted.number].set(gradient), noted.number + 1)
            return jnp.zeros_like(gradient), after

        return optax.GradientTransformation(init, update)

    return factory


@value
class RearrangedDraws(Wrapper):
    """Batches or a cohort with rearranged draws."""

    base: Any
    layout: Callable[..., Any] = structure()  # (draw, which, *arguments of `sample`)
    which: Any = -1  # of records or clients; -1: none

    def sample(self, *arguments: Any) -> Any:
        return self.layout(self.base.sample(*arguments), self.which, *arguments)


def with_batches(algorithm: Algorithm, layout: Callable[..., Batch], which: Any = -1) -> Algorithm:
    batches: Any = RearrangedDraws(base=algorithm.local.batches, layout=layout, which=which)
    return replace(algorithm, local=replace(algorithm.local, batches=batches))


def with_cohort(algorithm: Algorithm, layout: Callable[..., Members], which: Any = -1) -> Algorithm:
    return replace(algorithm, cohort=RearrangedDraws(base=algorithm.cohort, layout=layout, which=which))


def _drop_record(batch: Batch, position: jax.Array, *rest: Any) -> Batch:
    """Mask the record at a position; the others stay."""
    return batch._replace(mask=batch.mask & (batch.positions != position.astype(jnp.int32)))


def _drop_client(members: Members, client: jax.Array, *rest: Any) -> Members:
    """Lose the message of a client."""
    return members._replace(participation_count=jnp.where(members.ids == client, 0.0, members.participation_count))


class TrialInputs(NamedTuple):
    """Inputs that may differ between trials; each None, or arrays with a leading axis (trials,)."""

    key: Any
    x: Any = None  # features of the store
    y: Any = None
    params: Any = None  # flat parameters to begin with
    record: Any = None  # position of a record that is missing
    client: Any = None  # a client that is missing


class TrialOutputs(NamedTuple):
    """Observations of the trials, by round."""

    gradients: Any  # (trials, rounds, clients, steps, size), of members
    params: Any  # (trials, rounds + 1, size)
    upload: Any  # state of the upload before each round


def with_plain_mean(algorithm: Algorithm) -> Algorithm:
    """The local steps followed by a plain mean."""
    plain = replace(algorithm, upload=PlainUpload(), aggregate=ESTIMATORS["mean"], transport=PlainSum())
    return with_plain_server(plain)


def with_plain_server(algorithm: Algorithm) -> Algorithm:
    """The new model is the old one plus the update."""
    return replace(algorithm, server=Server(hyperparameters={"learning_rate": 1.0}, factory=optax.sgd))


def record_gradients(algorithm: Algorithm, data: FederatedData) -> Algorithm:
    """The algorithm with recorded local steps that move nothing, and without client state."""
    local: Any = algorithm.local
    steps = local.batches.count(local.steps, data.largest)
    rule = LocalRule(hyperparameters={}, factory=recording_rule(steps), keep=True)
    passing = tuple(correction for correction in local.corrections if not correction.has_client_state)
    return replace(algorithm, local=replace(local, rule=rule, corrections=passing))


def select_clients(algorithm: Algorithm, data: FederatedData, most: int = CLIENTS) -> tuple[Algorithm, FederatedData]:
    """Algorithm and data of a limited number of clients, from the smallest to the largest; all of them participate."""
    sizes, shares = np.asarray(data.sizes), np.asarray(data.shares)
    ids = np.argsort(sizes, kind="stable")[np.unique(np.linspace(0, len(sizes) - 1, min(most, len(sizes))).astype(int))]
    noise = getattr(mechanism_of(algorithm), "noise_multiplier", None)
    if noise is not None and np.ndim(noise):
        algorithm = with_noise(algorithm, np.asarray(noise, np.float32)[ids])
    return replace(algorithm, cohort=AllClients()), dataclasses.replace(
        data,
        offsets=np.asarray(data.offsets)[ids],
        sizes=sizes[ids],
        largest=int(sizes[ids].max()),
        smallest=int(sizes[ids].min()),
        shares=(shares[ids] / shares[ids].sum()).astype(np.float32),
        test_clients=None,
    )


def flat_records(data: FederatedData, records: int | None = None) -> FederatedData:
    """A store of the clients' training records alone, client by client, as the model sees them.

    records  number for every client: its first records, repeated if it has fewer.
    """
    starts, own = np.asarray(data.offsets), np.asarray(data.sizes)
    sizes = own if records is None else np.full_like(own, records)
    held = np.concatenate([start + np.arange(n) % has for start, n, has in zip(starts, sizes, own)])
    rows = data.row_numbers[held]
    return replace(
        data,
        x=np.asarray(data.features(jnp.asarray(data.x[rows]))),
        y=jax.tree.map(lambda a: np.asarray(a)[rows], data.y),
        scale=1.0,
        shift=0.0,
        rows=np.arange(len(rows), dtype=np.int32),
        offsets=(np.cumsum(sizes) - sizes).astype(np.int32),
        sizes=sizes,
        largest=int(sizes.max()),
        smallest=int(sizes.min()),
    )


def observe(
    algorithm: Algorithm,
    data: FederatedData,
    model: Model,
    setup: TrialInputs,
    rounds: int = 1,
    execution: Execution | None = None,
) -> TrialOutputs:
    """Run the simulator's rounds for all trials at once."""
    execution = execution or Execution()
    return jax.device_get(
        _compiled_trials(as_float32_leaves(algorithm), data, setup, model=model, rounds=rounds, execution=execution)
    )


def _run_trials(
    algorithm: Algorithm, data: FederatedData, setup: TrialInputs, *, model: Model, rounds: int, execution: Execution
) -> TrialOutputs:
    def one(trial: TrialInputs) -> TrialOutputs:
        here, held = algorithm, data
        if trial.x is not None:
            held = replace(held, x=trial.x, y=trial.y)
        if trial.record is not None:
            here = with_batches(here, _drop_record, trial.record)
        if trial.client is not None:
            here = with_cohort(here, _drop_client, trial.client)
        state = initial_state(here, model, held, trial.key)
        if trial.params is not None:
            state = state._replace(params=ravel(state.params)[1](trial.params))

        def advance(state: Any, _: Any) -> tuple[Any, Any]:
            state = state._replace(clients=_erase_records(state.clients))
            new, _ = run_round(here, model, held, trial.key, state, execution)
            noted = [sheet.gradients for sheet in jax.tree.leaves(new.clients, is_leaf=_is_record) if _is_record(sheet)]
            return new, (noted[0] if noted else (), ravel(new.params)[0], state.upload)

        start = ravel(state.params)[0]
        _, (gradients, params, upload) = lax.scan(advance, state, length=rounds)
        return TrialOutputs(gradients, jnp.concatenate([start[None], params]), upload)

    return jax.vmap(one)(setup)


def _is_record(kept: Any) -> bool:
    return isinstance(kept, RecordedGradients)


def _erase_records(clients: Any) -> Any:
    """What clients keep, with no gradients recorded yet."""
    return jax.tree.map(
        lambda kept: jax.tree.map(jnp.zeros_like, kept) if _is_record(kept) else kept, clients, is_leaf=_is_record
    )


_compiled_trials = JitOfModel(_run_trials, ("rounds", "execution"), compiler_options=QUICK)


class NoiseClaim(NamedTuple):
    """The noise of each client as accounted."""

    noise: np.ndarray  # (num_clients,) noise multiplier of the white noise under it
    release: Release  # one release, which states neighbours, law and norm
    resolution: float = 0.0  # of the ring of integer noise
    norm: float = 1.0  # bound on a member's vector over the clip norm; above 1 where it is rounded


def claim_of(place: Place, algorithm: Algorithm, data: FederatedData, rounds: int) -> NoiseClaim:
    """The claim of the release with least noise in a round; `rounds` matter if noise protects whole clients."""
    assert place.releases is not None
    releases = place.releases(algorithm, data, place.model, rounds if place.by_client else 1)
    noise = np.array([min(release.noise_multiplier for release in each) for each in releases])
    first = releases[0][0]
    if isinstance(first, SkellamSums):
        resolution = algorithm.transport.resolution
        clip = clip_of(algorithm) / resolution
        return NoiseClaim(noise * first.l2 / clip, first, resolution, first.l2 / clip)
    source = correlated_source(mechanism_of(algorithm))
    if source is not None:
        sampled = not isinstance(first.sampling, FullBatch)
        noise = noise * np.array([_reach(algorithm, data, source, n, rounds, sampled) for n in np.asarray(data.sizes)])
    return NoiseClaim(noise, first)


def _reach(
    algorithm: Algorithm, data: FederatedData, source: NoiseSource, records: int, rounds: int, sampled: bool
) -> float:
    """The factor by which correlation over releases raises the sensitivity that the event was divided by."""
    if algorithm.upload.unit is not None:
        apart = algorithm.cohort.min_separation(data.num_clients)
        column = strategy_of(source, apart if sampled else rounds)
        return sensitivity(column, 1 if sampled else -(-rounds // apart), apart)
    local = algorithm.local
    steps = local.batches.count(local.steps, int(records)) + local.extra_gradients
    passes = steps // local.batches.sampling(int(records)).steps_per_epoch
    return sensitivity(strategy_of(source, steps), passes, 1)


def step_units(algorithm: Algorithm, data: FederatedData, rounds: int = 1) -> np.ndarray:
    """Sensitivity of the gradient of each step to one additional record, in the scale of its noise.

    Shape: `(rounds, clients, steps)`. C / B if records are clipped, C if the batch is. For noise on the upload: the
    sensitivity of the round's steps, C times the sum of their rates, divided by the rate that will multiply the noise.
    0 means that the step adds no noise or is skipped. Steps that are taken come first.
    Raises: ConfigurationError for a privatizer without clip_norm.
    """
    local, privatizer, clip = algorithm.local, algorithm.local.privatizer, gradient_clip_of(algorithm)
    sizes = np.asarray(data.sizes)
    most = local.batches.count(local.steps, data.largest)
    taken = np.array([local.batches.count(local.steps, int(n)) for n in sizes])
    live = np.broadcast_to(np.arange(most) < taken[:, None], (rounds, len(sizes), most))
    if privatizer.on_upload:
        rates = np.array([np.asarray(local.rates(jnp.int32(t), data.largest), float) for t in range(rounds)])
        last = np.arange(most) == most - 1
        literal, every_step = (getattr(privatizer, name, False) for name in ("literal", "every_step"))
        reach = clip * rates.sum(1, keepdims=True) / (rates[0, -1] if literal else rates)  # as the ledger counts it
        return np.where(last | every_step, reach, 0.0)[:, None] + np.zeros(live.shape)
    divisors = [divisors_of(local.batches, int(n), most) for n in sizes]
    unit = np.array([[privatizer.noise_unit(int(divisor)) for divisor in each] for each in divisors], float)
    return np.where(live, clip * unit, 0.0)


def gradient_clip_of(algorithm: Algorithm) -> float:
    """The clip norm of an algorithm that clips gradients."""
    privatizer = algorithm.local.privatizer
    if not clips(privatizer):
        raise errors.refuse("privatizer", type(privatizer).__name__, "one with a clip_norm, for this check")
    return float(privatizer.clip_norm)


def clip_of(algorithm: Algorithm) -> float:
    """The clip norm of an algorithm that hides whole clients."""
    upload = algorithm.upload
    if not hides_clients(upload):
        raise errors.refuse("upload", type(upload).__name__, "one that hides whole clients, for this check")
    return float(upload.clip_norm)


def mean_unit(algorithm: Algorithm, data: FederatedData, clip: Any) -> Any:
    """How far an additional client with an update of norm `clip_norm` can move the mean."""
    shares = np.asarray(data.shares)
    members = algorithm.cohort.capacity(data.num_clients)
    return clip * float(algorithm.aggregate.sensitivity(shares, algorithm.cohort.rates(shares), members))
