"""Named wrong programs, as they stand in published code: what a check must reject to be worth its name.

Each takes an algorithm and returns one that says the same of itself (the same event for the accountants, and parts of
the same classes) and does something else, but `missing_factor_two`, which does the same and says more. All refuse an
algorithm on which they would not be wrong, or to which they do not apply, with a ConfigurationError.

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
from fedjax_dp.accounting import Event
from fedjax_dp.accounting.sampling import FullBatch, Poisson, Sampling, Shuffled
from fedjax_dp.gradients import clip_factors
from fedjax_dp.models import Model
from fedjax_dp.models.selection import tensors_named
from fedjax_dp.parts.batches import Batch
from fedjax_dp.parts.client_privacy import UpdatePrivatizer
from fedjax_dp.parts.clipping import Bounded, ClipBatch, ClipRecords, Records, StepReport
from fedjax_dp.parts.contexts import ClientContext, InitContext, LocalResult, LocalState, StepContext
from fedjax_dp.parts.corrections import Correction
from fedjax_dp.parts.local_sgd import LocalSgd
from fedjax_dp.parts.record_privacy import NonPrivate, Privatizer, RecordGaussian, variance_of
from fedjax_dp.privacy.protection import clips_records, noises_steps
from fedjax_dp.pytrees import Part, changed, ravel, tensor_sizes, value
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.testing.posing import Deed, Wrong, posing, with_posing, wrong_program


def _require_noise_on_records(algorithm: Algorithm) -> None:
    if not noises_steps(algorithm) or algorithm.upload.unit is not None:
        raise errors.refuse(
            "algorithm",
            f"{type(algorithm.local.privatizer).__name__} and {type(algorithm.upload).__name__}",
            "one that noises the gradients of records in every local step, for this wrong program",
            "use dpnfl, or another entry with RecordGaussian",
        )


def _law(algorithm: Algorithm) -> Sampling:
    """What the batches of a large client say of themselves."""
    return algorithm.local.batches.sampling(2**31 - 1)


def _require_own_noise(algorithm: Algorithm) -> None:
    if getattr(algorithm.local.privatizer, "noise_multiplier", None) is None:
        name = type(algorithm.local.privatizer).__name__
        raise errors.refuse("privatizer", name, "one with a noise_multiplier, for this wrong program")


def _require_clipped_records(algorithm: Algorithm) -> None:
    _require_noise_on_records(algorithm)
    if not clips_records(algorithm):
        raise errors.refuse("bound", "another", "ClipRecords for this wrong program")


def _require_exchange(algorithm: Algorithm) -> None:
    _require_noise_on_records(algorithm)
    law = _law(algorithm)
    if isinstance(law, Poisson):
        raise errors.refuse("batches", str(law), "of a fixed size", "add-remove neighbours have no factor two")


def _require_poisson(algorithm: Algorithm) -> None:
    _require_noise_on_records(algorithm)
    law = _law(algorithm)
    if not isinstance(law, Poisson):
        remedy = "batches of a fixed size have one denominator"
        raise errors.refuse("batches", str(law), "PoissonBatches for this wrong program", remedy)


def _require_draws(algorithm: Algorithm) -> None:
    if isinstance(_law(algorithm), FullBatch | Shuffled):
        name = type(algorithm.local.batches).__name__
        raise errors.refuse("batches", name, "drawn afresh in every step for this wrong program")


def _require_several_steps(algorithm: Algorithm) -> None:
    _require_noise_on_records(algorithm)
    if algorithm.local.steps == 1 and algorithm.local.batches.even:
        remedy = "there is no step to confuse it with"
        raise errors.refuse("local_steps", 1, "at least 2 for this wrong program", remedy)


def _scaled(mechanism: Any, factor: Any) -> Any:
    """The mechanism with `factor` times the noise."""
    return changed(mechanism, noise_multiplier=factor * jnp.asarray(mechanism.noise_multiplier))


# Noise of the wrong size


def half_noise(algorithm: Algorithm) -> Algorithm:
    """The standard deviation of the noise is half of what is stated. For every mechanism that has noise."""
    return _with_noise_times(algorithm, 0.5, "half_noise")


def faint_noise(algorithm: Algorithm) -> Algorithm:
    """The standard deviation of the noise is 5% below what is stated. For every mechanism that has noise."""
    return _with_noise_times(algorithm, 0.95, "faint_noise")


@functools.cache
def _noise_times(factor: float, name: str, method: str) -> Deed:
    def deed(mechanism: Any, *args: Any) -> Any:
        return getattr(_scaled(mechanism, factor), method)(*args)

    deed.__name__ = name
    return deed


def _with_noise_times(algorithm: Algorithm, factor: float, name: str) -> Algorithm:
    upload = algorithm.upload
    if upload.unit is not None:
        method = "message" if upload.shared_noise else "release"
        return with_posing(algorithm, "upload", method, _noise_times(factor, name, method))
    _require_own_noise(algorithm)
    return with_posing(algorithm, "privatizer", "gradient", _noise_times(factor, name, "gradient"))


@wrong_program("privatizer", "gradient", _require_noise_on_records)
def noise_inside_rate(right: Privatizer, key: jax.Array, step: StepContext, *rest: Any) -> Any:
    """The noise is multiplied by the learning rate once more. Right at rate 1."""
    return _scaled(right, step.rate).gradient(key, step, *rest)


@wrong_program("privatizer", "gradient", _require_noise_on_records)
def stale_std(right: Any, *args: Any) -> Any:
    """The noise has standard deviation z / B: the clip norm is forgotten. Right at clip norm 1."""
    return _scaled(right, 1 / jnp.asarray(right.clip_norm)).gradient(*args)


@wrong_program("privatizer", "gradient", _require_noise_on_records)
def silent_last_step(right: Privatizer, key: jax.Array, step: StepContext, *rest: Any) -> Any:
    """The last local step of a round adds no noise; with one step, none does."""
    return _scaled(right, jnp.where(step.is_last, 0.0, 1.0)).gradient(key, step, *rest)


@wrong_program("privatizer", "gradient", _require_noise_on_records)
def one_leaf_noise(
    right: Privatizer, key: jax.Array, step: StepContext, model: Model, params: Any, records: Records
) -> Any:
    """Noise joins the first parameter tensor alone. Refuses, when it is traced, a model of a single tensor."""
    first = _several(tensor_sizes(params))[0]
    noisy, report = right.gradient(key, step, model, params, records)
    silent, _ = _scaled(right, 0.0).gradient(key, step, model, params, records)
    return jnp.where(jnp.arange(noisy.size) < first, noisy, silent), report


@wrong_program("privatizer", "event", _require_exchange)
def missing_factor_two(right: RecordGaussian, *args: Any) -> Event:
    """The accountants count twice the noise multiplier: exchanging a record is taken to move the sum by C, not 2 C.

    The one wrong program whose claim is wrong, not its deed. For neighbours that differ by exchange.
    """
    return right.event(*args).scaled(2.0)


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

    sizes = _several(tensor_sizes(params))
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


@wrong_program("privatizer", "gradient", _require_poisson)
def realised_denominator(
    right: Privatizer, key: jax.Array, step: StepContext, model: Model, params: Any, records: Records
) -> Any:
    """The noised sum over a Poisson batch is divided by the number of records that came, not by the public one."""
    came = jnp.maximum(records.mask.sum(dtype=jnp.int32), 1)
    return right.gradient(key, step, model, params, records._replace(divisor=came))


def clean_head(algorithm: Algorithm) -> Algorithm:
    """What clients keep of the model is trained on plain gradients; what they share is clipped and noised. For fedper.

    A record moves its client's head, and by the head every later gradient of what is shared.
    """
    _require_noise_on_records(algorithm)
    models: Any = getattr(algorithm.local, "models", None)
    if getattr(models, "head", None) is None or models.head_steps:
        wanted = "of clients that keep a head which moves with the rest, for this wrong program"
        raise errors.refuse("client models", type(models).__name__, wanted, "use fedper")
    return with_posing(algorithm, "privatizer", "gradient", _clean_on(models.head))


@functools.cache
def _clean_on(head: str) -> Deed:
    def _clean_head(
        right: Privatizer, key: jax.Array, step: StepContext, model: Model, params: Any, rows: Records
    ) -> Any:
        noisy, report = right.gradient(key, step, model, params, rows)
        plain, _ = NonPrivate().gradient(key, step, model, params, rows)
        kept = Part(tensor_sizes(params), tensors_named("head", head, model))
        return kept.put(kept.take(plain), noisy), report

    return _clean_head


# Randomness that is not fresh


@wrong_program("batches", "sample", _require_draws)
def first_records(right: Any, key: jax.Array, records: jax.Array, steps: int, largest: int) -> Batch:
    """Every batch is the client's first records, though stated to be sampled. Wrong where batches are drawn."""
    drawn: Batch = right.sample(key, records, steps, largest)
    at = jnp.broadcast_to(jnp.arange(drawn.positions.shape[1], dtype=jnp.int32), drawn.positions.shape)
    mask = at < right.size
    return drawn._replace(positions=jnp.where(mask, jnp.minimum(at, records - 1), 0), mask=mask)


@wrong_program("privatizer", "gradient", _require_several_steps)
def reused_step_key(right: Privatizer, key: jax.Array, step: StepContext, *rest: Any) -> Any:
    """Every local step of a round adds the same noise."""
    return right.gradient(key, step._replace(number=jnp.zeros_like(step.number)), *rest)


def shared_key(algorithm: Algorithm) -> Algorithm:
    """All clients of a round add the same noise: its key is made of run and round alone. Other runs have other noise.

    The noise of steps and rounds stays fresh, and so do all batches. A warm start is not touched.
    """
    _require_own_noise(algorithm)
    return _with_noise_key(algorithm, _shared_key)


def _shared_key(right: LocalSgd, client: ClientContext) -> LocalResult:
    return _run_with_noise_key(right, client.round, client)


def reused_round_key(algorithm: Algorithm) -> Algorithm:
    """A client adds the same noise in every round: its key is made of run and client alone."""
    _require_own_noise(algorithm)
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
class _Keyed:
    """A privatizer that takes another key than its argument."""

    privatizer: Privatizer
    key: jax.Array

    def gradient(self, key: jax.Array, *rest: Any) -> Any:
        return self.privatizer.gradient(self.key, *rest)

    def noise_variance(self, *rest: Any) -> Any:
        return variance_of(self.privatizer, *rest)


def _run_with_noise_key(right: LocalSgd, number: Any, client: ClientContext) -> LocalResult:
    """With noise of a key that is made of the run and a number."""
    kept = jax.tree.leaves(client.received.server_state, is_leaf=lambda part: isinstance(part, _Words))
    words = next(part.words for part in kept if isinstance(part, _Words))
    run_key = jax.random.wrap_key_data(words, impl=jax.random.key_impl(client.key))
    keyed: Any = _Keyed(right.privatizer, jax.random.fold_in(run_key, number))
    return changed(right, privatizer=keyed).run(client)


def _with_noise_key(algorithm: Algorithm, deed: Deed) -> Algorithm:
    local: Any = algorithm.local
    with_words = changed(local, corrections=(*local.corrections, RunWords()))
    return changed(algorithm, local=posing(with_words, "run", deed))


def frozen_server_noise(algorithm: Algorithm) -> Algorithm:
    """The mean of the updates carries the same noise in every round; shares of it that clients add never change."""
    upload = algorithm.upload
    if upload.unit is None:
        raise errors.refuse("upload", type(upload).__name__, "one with noise on whole clients for this wrong program")
    if upload.shared_noise:
        return with_posing(algorithm, "upload", "message", _frozen_shares)
    return with_posing(algorithm, "upload", "release", _frozen_server_noise)


def _frozen_server_noise(right: UpdatePrivatizer, key: jax.Array, round_index: jax.Array, *rest: Any) -> Any:
    return right.release(key, jnp.zeros_like(round_index), *rest)


def _frozen_shares(right: UpdatePrivatizer, key: jax.Array, *rest: Any) -> Any:
    return right.message(jax.random.key(0, impl=jax.random.key_impl(key)), *rest)


def _several(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if len(sizes) < 2:
        raise errors.refuse("model", "one parameter tensor", "of at least 2 tensors for this wrong program")
    return sizes


WRONG: dict[str, Wrong] = {
    wrong.__name__: wrong
    for wrong in (
        half_noise,
        noise_inside_rate,
        shared_key,
        clip_per_batch,
        realised_denominator,
        missing_factor_two,
        one_leaf_noise,
        silent_last_step,
        unclipped_bias,
        first_records,
    )
}

MORE_WRONG: dict[str, Wrong] = {
    wrong.__name__: wrong
    for wrong in (faint_noise, stale_std, clean_head, reused_step_key, reused_round_key, frozen_server_noise)
}
