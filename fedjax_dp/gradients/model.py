"""What is trained: a function of one record."""

from typing import Any, Protocol

import jax

from fedjax_dp import errors

Params = Any


class Model(Protocol):
    """Structure, not numbers: compared and hashed, and passed to compiled functions as a static argument.

    Everything is said of one record; batches are made by `vmap`, so records cannot mix.
    """

    def __hash__(self) -> int: ...

    def init(self, key: jax.Array) -> Params: ...  # pytree of floating point arrays

    def loss(self, params: Params, x: Any, y: Any, key: jax.Array | None) -> jax.Array: ...

    # a number; x and y of one record, key of this record in this step, for dropout; None: not trained, looked at

    def logits(self, params: Params, x: Any) -> jax.Array: ...  # (classes,), for accuracy


def require_model(model: Any) -> None:
    """Refuse what does not say what the simulator needs of a model."""
    missing = [name for name in ("init", "loss", "logits") if not callable(getattr(model, name, None))]
    if missing:
        raise errors.refuse(
            "model",
            f"a {type(model).__name__} without {', '.join(missing)}",
            "init(key), loss(params, x, y, key) of one record, logits(params, x) of one record",
            "use fedjax_dp.model(network, data) for a network of Flax, Equinox or Haiku, or for two functions",
        )


class FeatureModel(Model, Protocol):
    """A model with a layer before the output, for methods that compare clients by it.

    Features are what goes into the last product of `logits` with parameters, unless it has a method
    `features(params, x)` that returns those of one record `(k,)`.
    """

    @property
    def has_features(self) -> bool: ...
