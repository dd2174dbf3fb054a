"""Values of a program that are made of parameters alone, and which element of which parameter each entry is."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from fedjax_dp.gradients.equations import axes_of, keeps_order, sizes_of, slices_of

IDENTITIES = (
    "copy",
    "copy_p",
    "convert_element_type",
    "reduce_precision",
    "sharding_constraint",
    "name",
    "pvary",
    "reshard",
)


class ParameterView(NamedTuple):
    """A value made of parameters alone.

    While it is only moved around (transposed, cut, joined, times a number), its entries are elements of parameters, and
    the norm of a gradient survives the way back to them as long as no element occurs twice.
    """

    leaves: frozenset[int]  # of the parameters it is made of
    elements: np.ndarray | None  # their numbers, axes of `loops` first; None: computed, not only moved
    scale: float  # entry = scale * element
    loops: tuple[int, ...]  # depths of loops whose step picks the slice
    take: Callable[[dict[int, Any]], Any]  # leaves -> unscaled entries, axes of `loops` first; linear

    @property
    def numbers(self) -> np.ndarray:
        """`elements`, of a view that was not computed."""
        assert self.elements is not None
        return self.elements

    @property
    def distinct(self) -> bool:
        """Whether no element occurs twice."""
        if self.elements is None or self.elements.size == 0:
            return False
        first = self.elements.min()
        seen = np.zeros(self.elements.max() - first + 1, bool)
        seen[self.elements.reshape(-1) - first] = True
        return int(seen.sum()) == self.elements.size

    def put_back(self, total: jax.Array, leaves: Sequence[Any]) -> dict[int, jax.Array]:
        """The entries of a gradient at the elements they belong to: leaf -> array of its shape."""
        if len(self.leaves) == 1:  # usually a whole parameter, in its own order
            (at,) = self.leaves
            flat = self.numbers.reshape(-1)
            if flat.size == leaves[at].size and np.all(flat[1:] - flat[:-1] == 1):
                return {at: total.reshape(leaves[at].shape)}
        shapes = {at: jax.ShapeDtypeStruct(leaves[at].shape, total.dtype) for at in sorted(self.leaves)}
        found: dict[int, jax.Array]
        (found,) = jax.linear_transpose(self.take, shapes)(total)
        return found


def narrow(view: ParameterView, shape: tuple[int, ...]) -> tuple[ParameterView, tuple[int, ...]] | None:
    """The view of distinct elements that `view` repeats to be of `shape`, and the axes of `shape` along which it does.

    None if there is no such view.
    """
    if view.elements is None or view.elements.size == 0:
        return None
    lead, elements, take = len(view.loops), view.elements, view.take
    own = elements.shape[lead:]
    if len(own) != len(shape):
        return None
    copies = [
        axis
        for axis in range(elements.ndim)
        if axis >= lead and elements.shape[axis] > 1 and (elements == elements.take([0], axis)).all()
    ]
    repeated = tuple(axis for axis, size in enumerate(own) if lead + axis in copies or size != shape[axis])
    if copies:
        first = tuple(slice(1) if axis in copies else slice(None) for axis in range(elements.ndim))
        view = view._replace(elements=elements[first], take=lambda leaves: take(leaves)[first])
    return (view, repeated) if view.distinct else None


def leaf_view(number: int, shape: tuple[int, ...], first: int) -> ParameterView:
    """A whole parameter; `first` is the number of its first element."""
    size = int(np.prod(shape))
    elements = np.arange(first, first + size, dtype=np.int32).reshape(shape)
    return ParameterView(frozenset([number]), elements, 1.0, (), lambda leaves: leaves[number])


def move_entries(equation: Any, arguments: Sequence[Any]) -> list[ParameterView]:
    """What an equation whose arguments are views and constants makes of them."""
    views = [a for a in arguments if isinstance(a, ParameterView)]
    first, name = views[0], equation.primitive.name
    leaves = frozenset().union(*(v.leaves for v in views))
    count = len(equation.outvars)
    computed = [ParameterView(leaves, None, 1.0, (), _refuse_put_back)] * count
    if any(v.elements is None for v in views):
        return computed
    if name == "neg":
        return [first._replace(scale=-first.scale)]
    if name in ("mul", "div") and len(views) == 1:
        other = equation.invars[1 - arguments.index(first)]
        number = other.val if isinstance(other, core.Literal) and np.ndim(other.val) == 0 else None
        if number is None or (name == "div" and arguments[0] is not first):
            return computed
        return [first._replace(scale=first.scale * float(number) if name == "mul" else first.scale / float(number))]
    alike = all(isinstance(a, ParameterView) and (a.scale, a.loops) == (first.scale, first.loops) for a in arguments)
    lead = len(first.loops)
    made = rearrange(np, equation, [v.elements for v in views], lead) if alike else None
    if made is None:
        return computed
    takes = [v.take for v in views]

    def take_result(which: int) -> Callable[[dict[int, Any]], Any]:
        return lambda leaves: rearrange(jax.numpy, equation, [take(leaves) for take in takes], lead)[which]

    return [ParameterView(leaves, made[at], first.scale, first.loops, take_result(at)) for at in range(count)]


def _refuse_put_back(leaves: dict[int, Any]) -> Any:
    raise AssertionError("what is computed from parameters has no elements to be put back")


def rearrange(xp: Any, equation: Any, arrays: list[Any], lead: int) -> Any:
    """What a primitive that only moves entries does to arrays with `lead` axes in front; None for other primitives.

    For NumPy (numbers of elements) and JAX (elements) alike.
    """
    name, x = equation.primitive.name, arrays[0]
    front, whole, shape = x.shape[:lead], (slice(None),) * lead, equation.outvars[0].aval.shape
    if name in IDENTITIES:
        return [x]
    if name in ("squeeze", "expand_dims") or (name == "reshape" and keeps_order(equation)):
        return [x.reshape((*front, *shape))]
    if name == "slice":
        return [x[(*whole, *slices_of(equation))]]
    if name not in ("transpose", "rev", "split", "unstack", "concatenate", "broadcast_in_dim"):
        return None
    axes = tuple(lead + axis for axis in axes_of(equation))
    if name == "transpose":
        return [x.transpose((*range(lead), *axes))]
    if name == "rev":
        return [xp.flip(x, axes)]
    if name == "split":
        return xp.split(x, np.cumsum(sizes_of(equation))[:-1].tolist(), axis=axes[0])
    if name == "unstack":
        return list(xp.moveaxis(x, axes[0], 0))
    if name == "concatenate":
        return [xp.concatenate(arrays, axis=axes[0])]
    wide = [*front, *(1 for _ in shape)]
    for axis, size in zip(axes, x.shape[lead:]):
        wide[axis] = size
    return [xp.broadcast_to(x.reshape(wide), (*front, *shape))]
