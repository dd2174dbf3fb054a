"""A model is an initialiser and a loss per record; anything hashable with these methods will do."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from fedjax_dp import errors
from fedjax_dp.data.store import Client, FederatedData
from fedjax_dp.models.convolution import fast_layers

Params = Any


class Model(Protocol):
    """Structure, not numbers: compared and hashed, and passed to compiled functions as a static argument.

    The loss of a record must depend on that record alone (no batch statistics), or clipping bounds nothing.
    """

    def init(self, key: jax.Array) -> Params: ...

    def losses(self, params: Params, x: jax.Array, y: jax.Array) -> jax.Array: ...  # (records,)

    def logits(self, params: Params, x: jax.Array) -> jax.Array: ...  # (records, classes), for accuracy


class FeatureModel(Model, Protocol):
    """A model with a layer before the output, for methods that compare clients by it."""

    @property
    def has_features(self) -> bool: ...

    def features(self, params: Params, x: jax.Array) -> jax.Array: ...  # (records, k)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Softmax cross-entropy per record in nats: logits `(records, classes)`, integer labels; returns `(records,)`.

    Labels become one-hot rows: picking a logit by index would put a slow scatter into every gradient.
    """
    return optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, logits.shape[-1]))


def mean_loss(model: Model, params: Params, data: FederatedData, client: Client) -> jax.Array:
    """Mean loss over all of a client's records: F_k."""
    return data.mean_over_records(client, lambda x, y: model.losses(params, x, y))


@dataclasses.dataclass(frozen=True)
class FlaxModel:
    """Any Flax linen module that maps `(records, *record_shape)` to logits, used unchanged.

    tokens  records are indices into a vocabulary, int32;
    dtype   of the forward and backward pass of layers that set none of their own: float32, or bfloat16 for devices that
            multiply it faster. Parameters, losses, norms, clipped sums and noise are float32 with either: what is
            rounded is the gradient, before its norm is taken, so the clip norm holds as before.
    """

    module: nn.Module
    record_shape: tuple[int, ...]
    loss: Callable[[jax.Array, jax.Array], jax.Array] = cross_entropy
    tokens: bool = False
    dtype: Any = jnp.float32

    def init(self, key: jax.Array) -> Params:
        blank = jnp.zeros((1, *self.record_shape), jnp.int32 if self.tokens else jnp.float32)
        variables = self.module.init(key, blank)
        if set(variables) != {"params"}:
            raise errors.refuse(
                "model", f"{type(self.module).__name__} with {', '.join(sorted(set(variables) - {'params'}))}",
                "a module that keeps parameters only, so that records do not mix",
                "use GroupNorm or LayerNorm instead of BatchNorm",
            )  # fmt: skip
        return variables["params"]

    def check(self, record_shape: tuple[int, ...], tokens: bool) -> None:
        """Refuse data whose records the model was not made for."""
        got, wanted = ((" tokens" if kind else "") for kind in (tokens, self.tokens))
        if tuple(record_shape) != self.record_shape or tokens != self.tokens:
            raise errors.refuse(
                "records", f"{tuple(record_shape)}{got}", f"{self.record_shape}{wanted} for this model",
                "use another model, or make this one for these records",
            )  # fmt: skip

    def logits(self, params: Params, x: jax.Array, layers: Callable = fast_layers) -> jax.Array:
        """Scores `(records, classes)`; `layers` is the Flax interceptor under which the module runs."""
        params, x = jax.tree.map(self._narrow, (params, x))
        with nn.intercept_methods(layers):
            scores: Any = self.module.apply({"params": params}, x)
        return scores.astype(jnp.float32)

    def _narrow(self, a: jax.Array) -> jax.Array:
        return a.astype(self.dtype) if a.dtype == jnp.float32 else a

    def losses(self, params: Params, x: jax.Array, y: jax.Array, layers: Callable = fast_layers) -> jax.Array:
        return self.loss(self.logits(params, x, layers), y)

    def features(self, params: Params, x: jax.Array) -> jax.Array:
        """The layer before the output `(records, k)`: what goes into the last dense layer that runs."""
        seen: list[jax.Array] = []

        def intercept(run: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
            if isinstance(context.module, nn.Dense) and context.method_name == "__call__":
                seen.append(args[0])
            return run(*args, **kwargs)

        with nn.intercept_methods(intercept):
            self.logits(params, x)
        return seen[-1].reshape(x.shape[0], -1).astype(jnp.float32)

    @functools.cached_property
    def has_features(self) -> bool:
        """Whether there is a layer before the output one, so that features depend on parameters."""
        shapes = jax.eval_shape(self.init, jax.random.key(0))
        layers = {path[:-1] for path, _ in jax.tree_util.tree_leaves_with_path(shapes)}
        return len(layers) > 1
