"""The Protocol of models: functions of one record."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import jax

from fedjax_dp import errors, validation

Params = Any
T = TypeVar("T")


class Model(Protocol):
    """The structure of a model, without numbers: comparable, hashable, a static argument of compiled functions.

    All functions take one record; `vmap` makes batches, so records cannot mix. `fedjax_dp.model` turns a network into a
    model; any frozen dataclass with these methods is one too. A model with frozen values that should be traced is a
    `PartlyFrozenModel`.
    """

    def __hash__(self) -> int:
        """Equal models share one compiled program; a model that equals only itself is compiled separately."""
        ...

    def init(self, key: jax.Array) -> Params:
        """The parameters of round 0: a pytree of float32 arrays, whose shapes depend only on the model."""
        ...

    def loss(self, params: Params, x: Any, y: Any, key: jax.Array | None) -> jax.Array:
        """The loss of one record, a number `()`, differentiable by `params`; traced. Its gradient is clipped.

        x, y  features `(*record_shape)`, float32, or int32 for tokens, and the target of one record, such as a label;
        key   of this record in this step, for dropout; None: evaluation instead of training.
        """
        ...

    def logits(self, params: Params, x: Any) -> jax.Array:
        """Scores `(classes,)` of one record; the largest is the prediction; traced."""
        ...


class PartlyFrozenModel(Model, Protocol):
    """A model with frozen (untrained) values, which a device holds once, outside compiled programs.

    `init`, `loss` and `logits` take only the trained parameters: those are clipped, noised, sent and kept.
    """

    @property
    def frozen(self) -> Any:
        """A pytree of frozen arrays, which the model uses and never trains."""
        ...

    def with_device_records(self, frozen: Any) -> Model:
        """The same model with these frozen values, which may be traced; None: its structure without values."""
        ...


def split(model: Model) -> tuple[Model, Any]:
    """The hashable structure of a model, and its frozen values."""
    frozen = getattr(model, "frozen", None)
    if frozen is None:
        return model, ()
    partly: Any = model
    return partly.with_device_records(None), frozen


def joined(structure: Model, frozen: Any) -> Model:
    """The model with this structure and these frozen values."""
    if isinstance(frozen, tuple) and not frozen:
        return structure
    partly: Any = structure
    return partly.with_device_records(frozen)


class JitOfModel:
    """`jax.jit` of a function with an argument `model`: its structure is static, its frozen values are traced."""

    def __init__(self, function: Callable[..., T], static: Sequence[str] = (), **options: Any):
        def whole(*args: Any, structure: Model, frozen: Any, **keywords: Any) -> T:
            return function(*args, model=joined(structure, frozen), **keywords)

        functools.update_wrapper(self, function)
        whole.__name__ = whole.__qualname__ = getattr(function, "__name__", "function")
        self._jit: Any = jax.jit(whole, static_argnames=("structure", *static), **options)

    def __call__(self, *args: Any, model: Model, **keywords: Any) -> Any:
        structure, frozen = split(model)
        return self._jit(*args, structure=structure, frozen=frozen, **keywords)

    def lower(self, *args: Any, model: Model, **keywords: Any) -> Any:
        """As `lower` of a function of `jax.jit`."""
        structure, frozen = split(model)
        return self._jit.lower(*args, structure=structure, frozen=frozen, **keywords)

    def _cache_size(self) -> int:
        return self._jit._cache_size()


def require_model(model: Any) -> None:
    """Refuse an object that lacks a member of `Model`."""
    wanted, page = "a value with init, loss and logits of one record", validation.page_of(Model)
    if advice := validation.advice(model):
        raise errors.refuse("model", validation.describe(model), wanted, advice)
    if wrong := validation.missing_members(model, Model):
        remedy = f"use fedjax_dp.model(network, data) for a network or two functions, or see {page}"
        raise errors.refuse("model", f"{validation.describe(model)}, which lacks {', '.join(wrong)}", wanted, remedy)


class FeatureModel(Model, Protocol):
    """A model with a layer before the output, for methods that compare clients by their features.

    Features are the input of the last product of `logits` with parameters, unless the model has a method
    `features(params, x)` that returns those of one record `(k,)`.
    """

    @property
    def has_features(self) -> bool:
        """Whether the model has such a layer, so that features depend on parameters."""
        ...
