"""Wrong programs beside those of the package, as they stand in published code, that checks and audits have to reject.

Each says of itself what the right one says and does something else, but `missing_factor_two`, which does the same and
says more.
"""

import functools

import jax.numpy as jnp

from fedjax_dp import errors
from fedjax_dp.accounting.sampling import Poisson
from fedjax_dp.models.selection import tensors_named
from fedjax_dp.parts.record_privacy import NonPrivate
from fedjax_dp.pytrees import Part, tensor_sizes
from fedjax_dp.testing import WRONG
from fedjax_dp.testing.mutation import mutated, wrong_program
from fedjax_dp.testing.wrong_programs import (
    law_of_batches,
    require_noise_on_records,
    require_several_tensors,
    scaled_noise,
)


def _require_exchange(algorithm):
    require_noise_on_records(algorithm)
    law = law_of_batches(algorithm)
    if isinstance(law, Poisson):
        raise errors.refuse("batches", str(law), "of a fixed size", "add-remove neighbours have no factor two")


def _require_poisson(algorithm):
    require_noise_on_records(algorithm)
    law = law_of_batches(algorithm)
    if not isinstance(law, Poisson):
        remedy = "batches of a fixed size have one denominator"
        raise errors.refuse("batches", str(law), "PoissonBatches for this wrong program", remedy)


def _require_several_steps(algorithm):
    require_noise_on_records(algorithm)
    if algorithm.local.steps == 1 and algorithm.local.batches.even:
        remedy = "there is no step to confuse it with"
        raise errors.refuse("local_steps", 1, "at least 2 for this wrong program", remedy)


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
    if getattr(models, "head", None) is None or models.head_steps:
        wanted = "of clients that keep a head which moves with the rest, for this wrong program"
        raise errors.refuse("client models", type(models).__name__, wanted, "use fedper")
    return mutated(algorithm, "privatizer", "gradient", _clean_on(models.head))


@functools.cache
def _clean_on(head):
    def _clean_head(right, key, step, model, params, rows):
        noisy, report = right.gradient(key, step, model, params, rows)
        plain, _ = NonPrivate().gradient(key, step, model, params, rows)
        kept = Part(tensor_sizes(params), tensors_named("head", head, model))
        return kept.put(kept.take(plain), noisy), report

    return _clean_head


@wrong_program("privatizer", "gradient", _require_several_steps)
def reused_step_key(right, key, step, *rest):
    """Every local step of a round adds the same noise."""
    return right.gradient(key, step._replace(number=jnp.zeros_like(step.number)), *rest)


PUBLISHED = {
    **WRONG,
    **{
        wrong.__name__: wrong
        for wrong in (
            noise_inside_rate,
            stale_std,
            silent_last_step,
            one_leaf_noise,
            missing_factor_two,
            realised_denominator,
            clean_head,
            reused_step_key,
        )
    },
}
