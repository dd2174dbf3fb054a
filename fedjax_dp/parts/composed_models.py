"""Models built from a model: some of its parameters, a pair of models, a model that is pulled to a point.

Fixed parameters and the point are frozen values: they are traced, so they are no part of the program.
"""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp

from fedjax_dp.gradients import joined, split
from fedjax_dp.models import Model


@dataclasses.dataclass(frozen=True)
class MadeOf:
    """Base of models that are built from a model and further frozen values."""

    base: Model
    frozen: Any = dataclasses.field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, model: Model, numbers: Any, **structure: Any) -> Self:
        """Build it from a model and from further numbers, which are traced like the model's own frozen values."""
        base, frozen = split(model)
        return cls(base=base, frozen=(numbers, frozen), **structure)

    def with_device_records(self, frozen: Any) -> Any:
        return dataclasses.replace(self, frozen=frozen)

    @property
    def whole(self) -> Model:
        """The model from which it is built."""
        return joined(self.base, self.frozen[1])

    def init(self, key: jax.Array) -> Any:
        raise NotImplementedError  # it exists only within a round


@dataclasses.dataclass(frozen=True)
class PartOf(MadeOf):
    """A model of some tensors of a model; the others are fixed."""

    chosen: tuple[bool, ...] = ()
    tree: Any = None  # structure of all parameters

    def _all(self, params: tuple[jax.Array, ...]) -> Any:
        own, rest = iter(params), iter(self.frozen[0])
        return jax.tree.unflatten(self.tree, [next(own if chosen else rest) for chosen in self.chosen])

    def loss(self, params: Any, x: Any, y: Any, key: jax.Array | None) -> jax.Array:
        return self.whole.loss(self._all(params), x, y, key)

    def logits(self, params: Any, x: Any) -> jax.Array:
        return self.whole.logits(self._all(params), x)


def part_of(model: Model, params: Any, chosen: tuple[bool, ...]) -> tuple[PartOf, tuple[jax.Array, ...]]:
    """The model of the chosen tensors of `params`, and these tensors."""
    leaves, tree = jax.tree.flatten(params)
    own, rest = (
        tuple(leaf for leaf, its in zip(leaves, chosen, strict=True) if its is wanted) for wanted in (True, False)
    )
    return PartOf.of(model, rest, chosen=chosen, tree=tree), own


@dataclasses.dataclass(frozen=True)
class PairOf(MadeOf):
    """Two models of the same structure with the sum of their losses: one gradient vector per record for both."""

    def loss(self, params: Any, x: Any, y: Any, key: jax.Array | None) -> jax.Array:
        one, other = params
        model = self.whole
        return model.loss(one, x, y, key) + model.loss(other, x, y, key)

    def logits(self, params: Any, x: Any) -> jax.Array:
        return self.whole.logits(params[0], x)


@dataclasses.dataclass(frozen=True)
class PulledTo(MadeOf):
    """A model whose loss on every record has the additional term strength/2 |w - anchor|^2."""

    def loss(self, params: Any, x: Any, y: Any, key: jax.Array | None) -> jax.Array:
        strength, anchor = self.frozen[0]
        away = jax.tree.map(lambda w, to: jnp.sum((w - to) ** 2), params, anchor)
        return self.whole.loss(params, x, y, key) + 0.5 * strength * sum(jax.tree.leaves(away))

    def logits(self, params: Any, x: Any) -> jax.Array:
        return self.whole.logits(params, x)
