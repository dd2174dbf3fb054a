"""A model is an initialiser and a loss per record; anything hashable with these methods will do."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

Params = Any


class Model(Protocol):
    """Structure, not numbers: compared and hashed, and passed to compiled functions as a static argument.

    The loss of a record must depend on that record alone (no batch statistics), or clipping bounds nothing.
    """

    def init(self, key: jax.Array) -> Params: ...

    def losses(self, params: Params, x: jax.Array, y: jax.Array) -> jax.Array: ...  # (records,)

    def logits(self, params: Params, x: jax.Array) -> jax.Array: ...  # (records, classes), for accuracy


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Softmax cross-entropy per record in nats: logits `(records, classes)`, integer labels; returns `(records,)`.

    Labels become one-hot rows: picking a logit by index would put a slow scatter into every gradient.
    """
    return optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, logits.shape[-1]))


@dataclasses.dataclass(frozen=True)
class FlaxModel:
    """Any Flax linen module that maps `(records, *record_shape)` to logits, used unchanged."""

    module: nn.Module
    record_shape: tuple[int, ...]
    loss: Callable[[jax.Array, jax.Array], jax.Array] = cross_entropy

    def init(self, key: jax.Array) -> Params:
        return self.module.init(key, jnp.zeros((1, *self.record_shape)))["params"]

    def logits(self, params: Params, x: jax.Array) -> jax.Array:
        scores: Any = self.module.apply({"params": params}, x)
        return scores

    def losses(self, params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
        return self.loss(self.logits(params, x), y)


class _Softmax(nn.Module):
    """Flattened features to class scores."""

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        flat = x.reshape(x.shape[0], math.prod(x.shape[1:]))
        return nn.Dense(self.classes, kernel_init=nn.initializers.zeros)(flat)


def logistic_regression(record_shape: tuple[int, ...], classes: int) -> FlaxModel:
    """Multinomial logistic regression on flattened features, started at zero (000's LR; 7,850 parameters on MNIST)."""
    return FlaxModel(_Softmax(classes), tuple(record_shape))
