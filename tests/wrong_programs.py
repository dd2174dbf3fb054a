"""Wrong programs, as they stand in published code: what a check or an audit must reject to be worth its name.

Each takes an algorithm and returns one that says the same of itself and does something else, but `missing_factor_two`,
which does the same and says more. All refuse an algorithm on which they would not be wrong with a ConfigurationError.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_dp import errors
from fedjax_dp.accounting import Poisson
from fedjax_dp.gradients import clip_factors
from fedjax_dp.models.selection import tensors_named
from fedjax_dp.parts.clipping import Bounded, ClipBatch, StepReport
from fedjax_dp.parts.cohorts import CohortKeys
from fedjax_dp.parts.contexts import LocalState
from fedjax_dp.parts.corrections import Correction
from fedjax_dp.parts.facts import restates
from fedjax_dp.parts.record_privacy import NonPrivate, clips
from fedjax_dp.privacy.protection import clips_records, noises_steps
from fedjax_dp.pytrees import Part, Wrapper, as_class, ravel, replace, structure, tensor_sizes, value


@functools.cache
def _mutant_class(kind, method, mutation):
    def instead(self, *args):
        return mutation(as_class(self, kind), *args)

    name = f"{kind.__name__}_with_{mutation.__name__.strip('_')}"
    made = type(name, (kind,), {method: instead, "__doc__": mutation.__doc__, "__module__": __name__})
    return value(restates(kind)(made))


def mutated_part(part, method, mutation):
    """A value that is a `part` in all it says of itself, but whose `method` is mutation(part, *arguments).

    Its class is a subclass of that of `part` with the same fields. `mutation` is a module-level function, so that the
    same wrong program is compiled once.
    """
    kind: Any = type(part)
    return as_class(part, _mutant_class(kind, method, mutation))


PATHS = {  # of parts in an algorithm
    "cohort": ("cohort",),
    "transport": ("transport",),
    "upload": ("upload",),
    "local": ("local",),
    "batches": ("local", "batches"),
    "privatizer": ("local", "privatizer"),
    "bound": ("local", "privatizer", "bound"),
}


def mutated(algorithm, slot, method, mutation):
    """The algorithm with a mutated part in this slot."""

    def replaced(whole, path):
        if not path:
            return mutated_part(whole, method, mutation)
        return replace(whole, **{path[0]: replaced(getattr(whole, path[0]), path[1:])})

    return replaced(algorithm, PATHS[slot])


def wrong_program(slot, method, applies):
    """Makes of what a part in this slot does instead, in this method, the wrong program of that name.

    applies  raises a ConfigurationError for an algorithm to which it does not apply, or in which it is not wrong.
    """

    def of(mutation):
        def program(algorithm):
            applies(algorithm)
            return mutated(algorithm, slot, method, mutation)

        program.__name__, program.__doc__ = mutation.__name__, mutation.__doc__
        return program

    return of


def needs(holds, wanted):
    """Refuse an algorithm on which a program would not be wrong."""
    if not holds:
        raise errors.refuse("algorithm", "another", f"one of {wanted}, for this wrong program")


def require_noise_on_records(algorithm):
    needs(noises_steps(algorithm) and algorithm.upload.unit is None, "records whose gradients are noised in every step")


def law_of_batches(algorithm):
    """The sampling that the batches of a large client state."""
    return algorithm.local.batches.sampling(2**31 - 1)


def _require_noise_multiplier(algorithm):
    needs(getattr(algorithm.local.privatizer, "noise_multiplier", None) is not None, "a privatizer with noise")


def _require_clipped_records(algorithm):
    require_noise_on_records(algorithm)
    needs(clips_records(algorithm), "ClipRecords")


def _require_draws(algorithm):
    law = type(law_of_batches(algorithm)).__name__
    needs(law not in ("FullBatch", "Shuffled"), "batches that are drawn afresh in every step")


def scaled_noise(mechanism, factor):
    """The mechanism with `factor` times the noise."""
    return replace(mechanism, noise_multiplier=factor * jnp.asarray(mechanism.noise_multiplier))


def half_noise(algorithm):
    """The standard deviation of the noise is half of what is stated. For every mechanism that has noise."""
    return _with_noise_scaled_by(algorithm, 0.5, "half_noise")


def faint_noise(algorithm):
    """The standard deviation of the noise is 5% below what is stated. For every mechanism that has noise."""
    return _with_noise_scaled_by(algorithm, 0.95, "faint_noise")


@functools.cache
def _noise_scaled_by(factor, name, method):
    def mutation(mechanism, *args):
        return getattr(scaled_noise(mechanism, factor), method)(*args)

    mutation.__name__ = name
    return mutation


def _with_noise_scaled_by(algorithm, factor, name):
    upload = algorithm.upload
    if upload.unit is not None:
        method = "message" if upload.shared_noise else "release"
        return mutated(algorithm, "upload", method, _noise_scaled_by(factor, name, method))
    _require_noise_multiplier(algorithm)
    return mutated(algorithm, "privatizer", "gradient", _noise_scaled_by(factor, name, "gradient"))


@wrong_program("bound", "apply", _require_clipped_records)
def clip_per_batch(right, model, params, records, clip_norm):
    """The mean gradient of the batch is clipped to C, and noised as if each record's gradient were. Right at B = 1."""
    return ClipBatch().apply(model, params, records, clip_norm)._replace(noise_unit=clip_norm / records.divisor)


@wrong_program("bound", "apply", _require_clipped_records)
def unclipped_bias(right, model, params, records, clip_norm):
    """Of each record's gradient the largest tensor is clipped to C; the others, biases say, join as they are.

    Refuses, when it is traced, a model of a single tensor.
    """

    def one(x, y):
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


@wrong_program("batches", "sample", _require_draws)
def first_records(right, key, records, steps, largest, smallest):
    """Every batch is the client's first records, though stated to be sampled. Wrong where batches are drawn."""
    drawn = right.sample(key, records, steps, largest, smallest)
    at = jnp.broadcast_to(jnp.arange(drawn.positions.shape[1], dtype=jnp.int32), drawn.positions.shape)
    mask = at < right.size
    return drawn._replace(positions=jnp.where(mask, jnp.minimum(at, records - 1), 0), mask=mask)


def shared_key(algorithm):
    """All clients of a round add the same noise: its key is made of run and round alone. Other runs have other noise.

    The noise of steps and rounds stays fresh, and so do all batches. A warm start is not touched.
    """
    _require_noise_multiplier(algorithm)
    return _with_noise_key(algorithm, _shared_key)


def _shared_key(right, client):
    return _run_with_noise_key(right, client.round, client)


def reused_round_key(algorithm):
    """A client adds the same noise in every round: its key is made of run and client alone."""
    _require_noise_multiplier(algorithm)
    return _with_noise_key(algorithm, _reused_round_key)


def _reused_round_key(right, client):
    return _run_with_noise_key(right, client.client.id, client)


class _Words(NamedTuple):
    words: jax.Array


@value
class RunWords(Correction):
    """Two words that are the same for all clients and differ from run to run, sent to everybody; changes no gradient.

    Nothing else in a client's round knows the run without the client. A key of the run's start makes them.
    """

    has_client_state = reads_records_outside_round = False

    def init(self, run):
        return LocalState(_Words(run.map_clients(_words)[0]))


def _words(key, *rest):
    return jax.random.key_data(key)


@dataclasses.dataclass(frozen=True)
class _Keyed(Wrapper):
    """A privatizer that takes another key than its argument."""

    base: Any
    key: jax.Array

    def gradient(self, key, *rest):
        return self.base.gradient(self.key, *rest)


def _run_with_noise_key(right, number, client):
    """Run a client with noise of a key that is made of the run and a number."""
    kept = jax.tree.leaves(client.received.server_state, is_leaf=lambda part: isinstance(part, _Words))
    words = next(part.words for part in kept if isinstance(part, _Words))
    run_key = jax.random.wrap_key_data(words, impl=jax.random.key_impl(client.key))
    keyed: Any = _Keyed(right.privatizer, jax.random.fold_in(run_key, number))
    return replace(right, privatizer=keyed).run(client)


def _with_noise_key(algorithm, mutation):
    local: Any = algorithm.local
    with_words = replace(local, corrections=(*local.corrections, RunWords()))
    return replace(algorithm, local=mutated_part(with_words, "run", mutation))


def frozen_server_noise(algorithm):
    """The mean of the updates carries the same noise in every round; shares of it that clients add never change."""
    upload = algorithm.upload
    needs(upload.unit is not None, "noise on whole clients")
    if upload.shared_noise:
        return mutated(algorithm, "upload", "message", _frozen_shares)
    return mutated(algorithm, "upload", "release", _frozen_server_noise)


def _frozen_server_noise(right, key, round_index, *rest):
    return right.release(key, jnp.zeros_like(round_index), *rest)


def _frozen_shares(right, key, *rest):
    return right.message(jax.random.key(0, impl=jax.random.key_impl(key)), *rest)


def require_several_tensors(params):
    needs(len(tensor_sizes(params)) > 1, "a model of at least 2 tensors")


def _require_exchange(algorithm):
    require_noise_on_records(algorithm)
    needs(not isinstance(law_of_batches(algorithm), Poisson), "batches of a fixed size")


def _require_poisson(algorithm):
    require_noise_on_records(algorithm)
    needs(isinstance(law_of_batches(algorithm), Poisson), "PoissonBatches")


def _require_several_steps(algorithm):
    require_noise_on_records(algorithm)
    needs(algorithm.local.steps > 1 or not algorithm.local.batches.even, "at least 2 steps")


@wrong_program("privatizer", "gradient", require_noise_on_records)
def noise_inside_rate(right, key, step, *rest):
    """The noise is multiplied by the learning rate once more. Right at rate 1."""
    return scaled_noise(right, step.rate).gradient(key, step, *rest)


@wrong_program("privatizer", "gradient", require_noise_on_records)
def stale_std(right, *args):
    """The noise has standard deviation z / B: the clip norm is forgotten. Right at clip norm 1."""
    return scaled_noise(right, 1 / jnp.asarray(right.clip_norm)).gradient(*args)


@wrong_program("privatizer", "gradient", require_noise_on_records)
def silent_last_step(right, key, step, *rest):
    """The last local step of a round adds no noise; with one step, none does."""
    return scaled_noise(right, jnp.where(step.is_last, 0.0, 1.0)).gradient(key, step, *rest)


@wrong_program("privatizer", "gradient", require_noise_on_records)
def one_leaf_noise(right, key, step, model, params, records):
    """Noise joins the first parameter tensor alone. Refuses, when it is traced, a model of a single tensor."""
    require_several_tensors(params)
    first = tensor_sizes(params)[0]
    noisy, report = right.gradient(key, step, model, params, records)
    silent, _ = scaled_noise(right, 0.0).gradient(key, step, model, params, records)
    return jnp.where(jnp.arange(noisy.size) < first, noisy, silent), report


@wrong_program("privatizer", "event", _require_exchange)
def missing_factor_two(right, *args):
    """The accountants count twice the noise multiplier: exchanging a record is taken to move the sum by C, not 2 C.

    The one wrong program whose claim is wrong, not its noise. For neighbours that differ by exchange.
    """
    return right.event(*args).scaled(2.0)


@wrong_program("privatizer", "gradient", _require_poisson)
def realised_denominator(right, key, step, model, params, records):
    """The noised sum over a Poisson batch is divided by the number of records that came, not by the public one."""
    came = jnp.maximum(records.mask.sum(dtype=jnp.int32), 1)
    return right.gradient(key, step, model, params, records._replace(divisor=came))


def clean_head(algorithm):
    """What clients keep of the model is trained on plain gradients; what they share is clipped and noised. For fedper.

    A record moves its client's head, and by the head every later gradient of what is shared.
    """
    require_noise_on_records(algorithm)
    models = getattr(algorithm.local, "models", None)
    needs(getattr(models, "head", None) is not None and not models.head_steps, "heads of clients, as fedper")
    return mutated(algorithm, "privatizer", "gradient", _clean_on(models.head))


@functools.cache
def _clean_on(head):
    def _clean_head(right, key, step, model, params, rows):
        noisy, report = right.gradient(key, step, model, params, rows)
        plain, _ = NonPrivate().gradient(key, step, model, params, rows)
        kept = Part(tensor_sizes(params), tensors_named("head", head, model))
        return kept.insert(kept.take(plain), noisy), report

    return _clean_head


@wrong_program("privatizer", "gradient", _require_several_steps)
def reused_step_key(right, key, step, *rest):
    """Every local step of a round adds the same noise."""
    return right.gradient(key, step._replace(number=jnp.zeros_like(step.number)), *rest)


def _require_drawn(algorithm):
    needs(algorithm.cohort.is_random, "cohorts that are drawn")


@wrong_program("cohort", "sample", _require_drawn)
def first_clients(right, keys, round_index, shares):
    """Every cohort is the same clients, though they are stated to be drawn."""
    first = jnp.zeros_like(round_index)
    same = CohortKeys.of(jax.random.key(0, impl=jax.random.key_impl(keys.run)), first)
    return right.sample(same, first, shares)


def _require_server_noise(algorithm):
    needs(algorithm.upload.unit is not None and not algorithm.upload.shared_noise, "noise of the server")


@wrong_program("upload", "release", _require_server_noise)
def noise_every_four_rounds(right, key, round_index, *rest):
    """The server draws its noise of every four rounds again in the next four."""
    return right.release(key, round_index % 4, *rest)


def _require_secret(algorithm):
    needs(algorithm.transport.secret, "a secure sum")


@wrong_program("transport", "message", _require_secret)
def unmasked_first(right, key, t, position, ids, *rest):
    """The first member of every cohort uploads its message as it is."""
    words, overflow = right.message(key, t, position, ids, *rest)
    plain, _ = right.encode(rest[-1], ids.shape[0])
    return jnp.where(position == 0, plain, words), overflow


@wrong_program("transport", "message", _require_secret)
def same_masks(right, key, t, *rest):
    """The masks of a run never change: two rounds of a client show the difference of its messages."""
    return right.message(key, jnp.int32(0), *rest)


@wrong_program("privatizer", "gradient", applies=lambda algorithm: None)
def counts_padding(right, key, step, model, params, records):
    """Rows of a batch that are padding count like records."""
    return right.gradient(key, step, model, params, records._replace(mask=jnp.ones_like(records.mask)))


def _require_order(algorithm):
    needs(getattr(algorithm.local.batches, "size", 2) > 1, "batches of at least 2 records")


@wrong_program("privatizer", "gradient", _require_order)
def drops_first(right, key, step, model, params, records):
    """The first row of every batch is left out. For batches of several records, where their order shows it."""
    return right.gradient(key, step, model, params, records._replace(mask=records.mask.at[0].set(False)))


def loose_clip(algorithm):
    """Clips at 1.1 times the clip norm that is stated. For every algorithm with a clip norm.

    Where what is stated is not attained, it is so much wider: twice for the estimator f_c, B times for clipped records
    under noise on the upload.
    """
    if algorithm.upload.unit is not None:
        mutation = _loose_message if getattr(algorithm.aggregate, "least", None) is None else _looser_message
        return replace(algorithm, upload=mutated_part(algorithm.upload, "message", mutation))
    needs(clips(algorithm.local.privatizer), "a clip norm")
    local = algorithm.local
    return replace(algorithm, local=replace(local, privatizer=mutated_part(local.privatizer, "gradient", _loose_clip)))


def _loose_clip(right, key, step, model, params, records):
    apart = right.on_upload and right.bound.per_record
    factor = 1.1 * records.divisor if apart else 1.1
    wide = replace(right, clip_norm=factor * right.clip_norm, noise_multiplier=right.noise_multiplier / factor)
    return wide.gradient(key, step, model, params, records)


def _loose_message(right, key, update, *rest):
    kept, extra = right.message(key, update, *rest)
    return 1.1 * kept, extra


def _looser_message(right, key, update, *rest):
    kept, extra = right.message(key, update, *rest)
    return 2.2 * kept, extra


@value
class _Sending(Correction):
    """A correction whose messages, `send(update, client, extra_gradient)`, the server only keeps."""

    send_beside: Callable[..., Any] = structure()
    extra_gradients: int = structure(default=0)

    has_client_state, pull = False, 0.0

    def init(self, run):
        return LocalState(jnp.zeros(run.size))

    def finish(self, update, client, total_rate, extra_gradient):
        return self.send_beside(update, client, extra_gradient), ()

    def absorb(self, server, total, num_clients):
        return total


def _extra_gradient(update, client, extra_gradient):
    return extra_gradient(client.received.params + update)


def _extra_gradients_in_a_loop(update, client, extra_gradient):
    return jax.lax.map(lambda part: extra_gradient(part * client.received.params), jnp.arange(2.0)).sum(0)


def _update_itself(update, client, extra_gradient):
    return update


@value
class _ReadsTargets(Correction):
    pull = 0.0

    def gradient(self, gradient, params, step, client, records):
        return gradient + 1e-3 * sum(jnp.mean(a) for a in jax.tree.leaves(records.y))


def _with(algorithm, correction):
    local: Any = algorithm.local
    return replace(algorithm, local=replace(local, corrections=(*local.corrections, correction)))


def _of_records(algorithm, correction):
    needs(algorithm.upload.unit is None, "noised steps")
    return _with(algorithm, correction)


def undeclared_gradient(algorithm):
    """One more privatized gradient leaves every client, which nobody counts."""
    return _of_records(algorithm, _Sending(send_beside=_extra_gradient))


def repeated_gradient(algorithm):
    """Two more privatized gradients are stated, and made in a loop: with one batch and one noise."""
    needs(algorithm.local.batches.even, "batches of equal number for every client")
    return _of_records(algorithm, _Sending(send_beside=_extra_gradients_in_a_loop, extra_gradients=2))


def reading_correction(algorithm):
    """A correction reads the targets of a batch past the privatizer."""
    return _of_records(algorithm, _ReadsTargets())


def unnoised_term(algorithm):
    """A term travels beside the noised update of whole clients."""
    needs(algorithm.upload.unit is not None, "noised updates of whole clients")
    return _with(algorithm, _Sending(send_beside=_update_itself))


PUBLISHED = {
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
        noise_inside_rate,
        stale_std,
        silent_last_step,
        one_leaf_noise,
        missing_factor_two,
        realised_denominator,
        clean_head,
        reused_step_key,
    )
}
# what else the checks have to reject: by the property that it lacks
BY_PROPERTY = {
    "sampling": (first_records, first_clients),
    "statements": (undeclared_gradient, repeated_gradient, reading_correction),
    "sensitivity": (loose_clip, unclipped_bias, clip_per_batch),
    "noise": (faint_noise,),
    "masks": (unmasked_first, same_masks),
    "keys": (reused_round_key, frozen_server_noise, noise_every_four_rounds),
    "padding": (counts_padding,),
    "order": (drops_first,),
}
