"""What is trained: a function of one record."""

from typing import Any, Protocol

import jax

from fedjax_dp import doors, errors

Params = Any


class Model(Protocol):
    """Structure, not numbers: compared and hashed, and passed to compiled functions as a static argument.

    Everything is said of one record; batches are made by `vmap`, so records cannot mix. `fedjax_dp.model` makes one of
    a network; a frozen dataclass with these methods is one too.
    """

    def __hash__(self) -> int:
        """Equal models are one program; a model that is equal to itself only is compiled anew for each."""
        ...

    def init(self, key: jax.Array) -> Params:
        """The parameters of round 0: a pytree of float32 arrays, whose shapes depend on nothing but the model."""
        ...

    def loss(self, params: Params, x: Any, y: Any, key: jax.Array | None) -> jax.Array:
        """A number `()`, differentiable by `params`; traced. Its gradient is what is clipped, by record.

        x, y  features `(*record_shape)`, float32 or, of tokens, int32, and the int32 label of one record;
        key   of this record in this step, for dropout; None: it is looked at, not trained.
        """
        ...

    def logits(self, params: Params, x: Any) -> jax.Array:
        """Scores `(classes,)` of one record, of which the largest is what the model says; traced."""
        ...


def require_model(model: Any) -> None:
    """Refuse what does not say what the simulator needs of a model."""
    wanted, page = "a value with init, loss and logits of one record", doors.page_of(Model)
    if told := doors.advice(model):
        raise errors.refuse("model", doors.described(model), wanted, told)
    if wrong := doors.lacking(model, Model):
        remedy = f"use fedjax_dp.model(network, data) for a network or two functions, or see {page}"
        raise errors.refuse("model", f"{doors.described(model)}, which lacks {', '.join(wrong)}", wanted, remedy)


class FeatureModel(Model, Protocol):
    """A model with a layer before the output, for methods that compare clients by it.

    Features are what goes into the last product of `logits` with parameters, unless it has a method
    `features(params, x)` that returns those of one record `(k,)`.
    """

    @property
    def has_features(self) -> bool:
        """Whether there is such a layer, so that features depend on parameters."""
        ...
