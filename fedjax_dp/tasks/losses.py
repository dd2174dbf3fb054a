"""Losses of one record, which depend only on its own scores and target.

A mean over a batch's tokens is not allowed: it would divide one record's loss by the lengths of others.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_dp import errors
from fedjax_dp.small_reductions import FEW, written_log_sum_exp, written_sum


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Softmax cross-entropy of a record in nats: logits `(classes,)`, an integer label; zero if there is no such class.

    The label becomes a one-hot row: indexing a logit would put a slow scatter into every gradient.
    """
    return _softmax_loss(wide(logits), jnp.asarray(label))


@dataclasses.dataclass(frozen=True)
class TokenCrossEntropy:
    """Cross-entropy of the next tokens of one record, in nats: scores `(tokens, vocabulary)`, target `(tokens,)` ids.

    per  divisor of the sum over tokens other than padding: `mean`, their number, at least 1; `length`, the number of
         all tokens. A record with only padding has loss and gradient zero.
    """

    pad: int
    per: str = "mean"

    def __call__(self, scores: jax.Array, target: jax.Array) -> jax.Array:
        if scores.ndim != 2 or target.shape != scores.shape[:1]:
            wanted = f"one for each of the {scores.shape[0]} positions of a record"
            got, remedy = f"shape {tuple(target.shape)}", "use a model that scores whole records"
            raise errors.refuse("targets", got, wanted, remedy)
        there = target != self.pad
        total = jnp.sum(cross_entropy(scores, jnp.where(there, target, -1)))  # zero for what is no class
        return total / (target.shape[-1] if self.per == "length" else jnp.maximum(there.sum(), 1))


@dataclasses.dataclass(frozen=True)
class BinaryCrossEntropy:
    """The `mean` or `sum` of max(z, 0) - z y + log(1 + exp(-|z|)) over logits z with targets y of 0 or 1, in nats."""

    over: str = "mean"

    def __call__(self, scores: jax.Array, target: jax.Array) -> jax.Array:
        logits = wide(scores)
        each = jnp.maximum(logits, 0) - logits * target.astype(logits.dtype) + jnp.log1p(jnp.exp(-jnp.abs(logits)))
        return jnp.mean(each) if self.over == "mean" else jnp.sum(each)


def one_logit(scores: jax.Array, target: jax.Array) -> jax.Array:
    """`BinaryCrossEntropy` of one logit `(1,)` and one target `()`."""
    return BinaryCrossEntropy()(scores, target[None])


def squared_error(scores: jax.Array, target: jax.Array) -> jax.Array:
    """The mean of (score - target)^2 over the numbers of a target."""
    errors = wide(scores) - target
    return jnp.mean(errors * errors)


def huber(scores: jax.Array, target: jax.Array) -> jax.Array:
    """The mean over the numbers of a target of e^2 / 2 where |e| <= 1, else |e| - 1/2 (Huber 1964)."""
    size = jnp.abs(wide(scores) - target)
    small = jnp.minimum(size, 1.0)
    return jnp.mean(small * (size - small / 2))


def wide(scores: Any) -> jax.Array:
    """Scores with at least 32 bits."""
    scores = jnp.asarray(scores)
    return scores.astype(jnp.promote_types(scores.dtype, jnp.float32))


@jax.custom_jvp
def _softmax_loss(logits: jax.Array, label: jax.Array) -> jax.Array:
    return _softmax(logits, label)[0]


@_softmax_loss.defjvp
def _softmax_slope(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, Any]
) -> tuple[jax.Array, jax.Array]:
    """Softmax minus the target; JAX's own derivative would sum a one-hot row, a kernel launch on a GPU."""
    loss, slope = _softmax(*primals)
    return loss, jnp.sum(slope * tangents[0], -1)


def _softmax(logits: jax.Array, label: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The loss, and its derivative by the logits; both zero if there is no such class."""
    classes = logits.shape[-1]
    known = ((label >= 0) & (label < classes)).astype(logits.dtype)
    target = jax.nn.one_hot(label, classes, dtype=logits.dtype)

    def from_exponentials() -> tuple[jax.Array, jax.Array]:
        shifted = logits - jnp.max(logits, -1)[..., None]
        exponentials = jnp.exp(shifted)
        total = jnp.sum(exponentials, -1)
        loss = known * jnp.log(total) - jnp.sum(target * shifted, -1)
        return loss, (known / total)[..., None] * exponentials - target

    def from_their_logarithm() -> tuple[jax.Array, jax.Array]:
        whole = written_log_sum_exp(logits)
        loss = known * whole - written_sum(target * logits)
        return loss, known[..., None] * jnp.exp(logits - whole[..., None]) - target

    if not 1 < classes <= FEW:
        return from_exponentials()
    # On a GPU one reduction per record instead of two kernel launches. It is as precise as the logits.
    return lax.platform_dependent(cuda=from_their_logarithm, default=from_exponentials)
