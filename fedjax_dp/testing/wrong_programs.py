"""Named wrong programs, as they stand in published code: what a check must reject to be worth its name.

Each takes an algorithm and returns one that says the same of itself (the same event for the accountants, and parts of
the same classes) and does something else. All refuse an algorithm on which they would not be wrong, or to which they do
not apply, with a ConfigurationError.

>>> import fedjax_dp as fdp
>>> from fedjax_dp.testing import WRONG
>>> right = fdp.dp_sgd(cohort_size=2, batch_size=2, local_steps=1, learning_rate=0.1, noise_multiplier=1.0)
>>> type(WRONG["half_noise"](right).local.privatizer).__name__
'RecordGaussian_with_half_noise'
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_dp import errors
from fedjax_dp.accounting.sampling import FullBatch, Sampling, Shuffled
from fedjax_dp.gradients import clip_factors
from fedjax_dp.models import Model
from fedjax_dp.parts.batches import Batch
from fedjax_dp.parts.client_privacy import UpdatePrivatizer
from fedjax_dp.parts.clipping import Bounded, ClipBatch, ClipRecords, Records, StepReport
from fedjax_dp.parts.contexts import ClientContext, InitContext, LocalResult, LocalState
from fedjax_dp.parts.corrections import Correction
from fedjax_dp.parts.local_sgd import LocalSgd
from fedjax_dp.parts.record_privacy import Privatizer
from fedjax_dp.privacy.protection import clips_records, noises_steps
from fedjax_dp.pytrees import Wrapper, changed, ravel, tensor_sizes, value
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.testing.mutation import Mutation, WrongProgram, mutated, mutated_part, wrong_program


def require_noise_on_records(algorithm: Algorithm) -> None:
    if not noises_steps(algorithm) or algorithm.upload.unit is not None:
        raise errors.refuse(
            "algorithm",
            f"{type(algorithm.local.privatizer).__name__} and {type(algorithm.upload).__name__}",
            "one that noises the gradients of records in every local step, for this wrong program",
            "use dpnfl, or another entry with RecordGaussian",
        )


def law_of_batches(algorithm: Algorithm) -> Sampling:
    """The sampling that the batches of a large client state."""
    return algorithm.local.batches.sampling(2**31 - 1)


def _require_noise_multiplier(algorithm: Algorithm) -> None:
    if getattr(algorithm.local.privatizer, "noise_multiplier", None) is None:
        name = type(algorithm.local.privatizer).__name__
        raise errors.refuse("privatizer", name, "one with a noise_multiplier, for this wrong program")


def _require_clipped_records(algorithm: Algorithm) -> None:
    require_noise_on_records(algorithm)
    if not clips_records(algorithm):
        raise errors.refuse("bound", "another", "ClipRecords for this wrong program")


def _require_draws(algorithm: Algorithm) -> None:
    if isinstance(law_of_batches(algorithm), FullBatch | Shuffled):
        name = type(algorithm.local.batches).__name__
        raise errors.refuse("batches", name, "drawn afresh in every step for this wrong program")


def scaled_noise(mechanism: Any, factor: Any) -> Any:
    """The mechanism with `factor` times the noise."""
    return changed(mechanism, noise_multiplier=factor * jnp.asarray(mechanism.noise_multiplier))


# Noise of the wrong size


def half_noise(algorithm: Algorithm) -> Algorithm:
    """The standard deviation of the noise is half of what is stated. For every mechanism that has noise."""
    return _with_noise_scaled_by(algorithm, 0.5, "half_noise")


def faint_noise(algorithm: Algorithm) -> Algorithm:
    """The standard deviation of the noise is 5% below what is stated. For every mechanism that has noise."""
    return _with_noise_scaled_by(algorithm, 0.95, "faint_noise")


@functools.cache
def _noise_scaled_by(factor: float, name: str, method: str) -> Mutation:
    def mutation(mechanism: Any, *args: Any) -> Any:
        return getattr(scaled_noise(mechanism, factor), method)(*args)

    mutation.__name__ = name
    return mutation


def _with_noise_scaled_by(algorithm: Algorithm, factor: float, name: str) -> Algorithm:
    upload = algorithm.upload
    if upload.unit is not None:
        method = "message" if upload.shared_noise else "release"
        return mutated(algorithm, "upload", method, _noise_scaled_by(factor, name, method))
    _require_noise_multiplier(algorithm)
    return mutated(algorithm, "privatizer", "gradient", _noise_scaled_by(factor, name, "gradient"))


# Gradients that are not bounded as stated


@wrong_program("bound", "apply", _require_clipped_records)
def clip_per_batch(right: ClipRecords, model: Model, params: Any, records: Records, clip_norm: Any) -> Bounded:
    """The mean gradient of the batch is clipped to C, and noised as if each record's gradient were. Right at B = 1."""
    return ClipBatch().apply(model, params, records, clip_norm)._replace(noise_unit=clip_norm / records.divisor)


@wrong_program("bound", "apply", _require_clipped_records)
def unclipped_bias(right: ClipRecords, model: Model, params: Any, records: Records, clip_norm: Any) -> Bounded:
    """Of each record's gradient the largest tensor is clipped to C; the others, biases say, join as they are.

    Refuses, when it is traced, a model of a single tensor.
    """

    def one(x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
        return jax.value_and_grad(lambda p: model.loss(p, x, y, None))(params)

    require_several_tensors(params)
    sizes = tensor_sizes(params)
    losses, per_record = jax.vmap(one)(records.x, records.y)
    leaves, shape = jax.tree.flatten(per_record)
    rows = [leaf.reshape(records.mask.size, -1) for leaf in leaves]
    largest = rows[sizes.index(max(sizes))]
    factors = clip_factors(jnp.sum(largest * largest, -1), records.mask, clip_norm)
    joined = [jnp.where((factors > 0)[:, None], row, 0.0) * (factors[:, None] if row is largest else 1) for row in rows]
    total = [row.sum(0).reshape(leaf.shape[1:]) for row, leaf in zip(joined, leaves, strict=True)]
    mean = ravel(jax.tree.unflatten(shape, total))[0] / records.divisor
    kept = jnp.where(records.mask, losses, 0.0)
    present = jnp.maximum(records.mask.sum(), 1)
    report = StepReport(kept.sum() / present, jnp.mean(factors < 1, dtype=jnp.float32), jnp.vdot(mean, mean))
    return Bounded(mean, clip_norm / records.divisor, report)


# Randomness that is not fresh


@wrong_program("batches", "sample", _require_draws)
def first_records(right: Any, key: jax.Array, records: jax.Array, steps: int, largest: int, smallest: int) -> Batch:
    """Every batch is the client's first records, though stated to be sampled. Wrong where batches are drawn."""
    drawn: Batch = right.sample(key, records, steps, largest, smallest)
    at = jnp.broadcast_to(jnp.arange(drawn.positions.shape[1], dtype=jnp.int32), drawn.positions.shape)
    mask = at < right.size
    return drawn._replace(positions=jnp.where(mask, jnp.minimum(at, records - 1), 0), mask=mask)


def shared_key(algorithm: Algorithm) -> Algorithm:
    """All clients of a round add the same noise: its key is made of run and round alone. Other runs have other noise.

    The noise of steps and rounds stays fresh, and so do all batches. A warm start is not touched.
    """
    _require_noise_multiplier(algorithm)
    return _with_noise_key(algorithm, _shared_key)


def _shared_key(right: LocalSgd, client: ClientContext) -> LocalResult:
    return _run_with_noise_key(right, client.round, client)


def reused_round_key(algorithm: Algorithm) -> Algorithm:
    """A client adds the same noise in every round: its key is made of run and client alone."""
    _require_noise_multiplier(algorithm)
    return _with_noise_key(algorithm, _reused_round_key)


def _reused_round_key(right: LocalSgd, client: ClientContext) -> LocalResult:
    return _run_with_noise_key(right, client.client.id, client)


class _Words(NamedTuple):
    words: jax.Array


@value
class RunWords(Correction):
    """Two words that are the same for all clients and differ from run to run, sent to everybody; changes no gradient.

    Nothing else in a client's round knows the run without the client. A key of the run's start makes them.
    """

    has_client_state = reads_records_outside_round = False

    def init(self, run: InitContext) -> LocalState:
        return LocalState(_Words(run.map_clients(_words)[0]))


def _words(key: jax.Array, *rest: Any) -> jax.Array:
    return jax.random.key_data(key)


@dataclasses.dataclass(frozen=True)
class _Keyed(Wrapper):
    """A privatizer that takes another key than its argument."""

    base: Privatizer
    key: jax.Array

    def gradient(self, key: jax.Array, *rest: Any) -> Any:
        return self.base.gradient(self.key, *rest)


def _run_with_noise_key(right: LocalSgd, number: Any, client: ClientContext) -> LocalResult:
    """Run a client with noise of a key that is made of the run and a number."""
    kept = jax.tree.leaves(client.received.server_state, is_leaf=lambda part: isinstance(part, _Words))
    words = next(part.words for part in kept if isinstance(part, _Words))
    run_key = jax.random.wrap_key_data(words, impl=jax.random.key_impl(client.key))
    keyed: Any = _Keyed(right.privatizer, jax.random.fold_in(run_key, number))
    return changed(right, privatizer=keyed).run(client)


def _with_noise_key(algorithm: Algorithm, mutation: Mutation) -> Algorithm:
    local: Any = algorithm.local
    with_words = changed(local, corrections=(*local.corrections, RunWords()))
    return changed(algorithm, local=mutated_part(with_words, "run", mutation))


def frozen_server_noise(algorithm: Algorithm) -> Algorithm:
    """The mean of the updates carries the same noise in every round; shares of it that clients add never change."""
    upload = algorithm.upload
    if upload.unit is None:
        raise errors.refuse("upload", type(upload).__name__, "one with noise on whole clients for this wrong program")
    if upload.shared_noise:
        return mutated(algorithm, "upload", "message", _frozen_shares)
    return mutated(algorithm, "upload", "release", _frozen_server_noise)


def _frozen_server_noise(right: UpdatePrivatizer, key: jax.Array, round_index: jax.Array, *rest: Any) -> Any:
    return right.release(key, jnp.zeros_like(round_index), *rest)


def _frozen_shares(right: UpdatePrivatizer, key: jax.Array, *rest: Any) -> Any:
    return right.message(jax.random.key(0, impl=jax.random.key_impl(key)), *rest)


def require_several_tensors(params: Any) -> None:
    if len(tensor_sizes(params)) < 2:
        raise errors.refuse("model", "one parameter tensor", "of at least 2 tensors for this wrong program")


WRONG: dict[str, WrongProgram] = {
    wrong.__name__: wrong
    for wrong in (
        half_noise,
        faint_noise,
        clip_per_batch,
        unclipped_bias,
        first_records,
        shared_key,
        reused_round_key,
        frozen_server_noise,
    )
}
