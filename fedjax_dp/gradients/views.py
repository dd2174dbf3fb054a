"""Values of a program that depend on parameters alone, and the parameter element behind each entry.

An element's number is its address in memory that nothing reads or writes, one byte for each element of a parameter.
Operations that move elements are then views of NumPy, which take no memory; where only a copy would do, such as for
parameters that are joined, the copy holds the numbers themselves.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from fedjax_dp.gradients.equations import axes_of, keeps_order, sizes_of, slices_of

IDENTITIES = (
    *("copy", "copy_p", "convert_element_type", "reduce_precision", "sharding_constraint"),
    *("name", "pvary", "reshard"),
)
PLACE, NUMBER = np.dtype(np.int8), np.dtype(np.int64)


class ParameterView(NamedTuple):
    """A value that depends on parameters alone.

    While operations only move it (transpose, split, join, scale), its entries are elements of parameters. A gradient
    moved back to them keeps its norm as long as no element occurs twice.
    """

    leaves: frozenset[int]  # its parameters
    elements: np.ndarray | None  # they or their numbers, axes of `loops` first; None if computed, not only moved
    scale: float  # entry = scale * element
    loops: tuple[int, ...]  # depths of loops whose step picks the slice
    take: Callable[[dict[int, Any]], Any]  # leaves -> unscaled entries, axes of `loops` first; linear

    @property
    def places(self) -> np.ndarray:
        """`elements` of a view that was only moved."""
        assert self.elements is not None
        return self.elements

    @property
    def distinct(self) -> bool:
        """Whether no element occurs twice."""
        if self.elements is None or self.elements.size == 0:
            return False
        if self.elements.dtype == NUMBER:
            return np.unique(self.elements).size == self.elements.size
        return not repeated_axes(self.elements)

    def put_back(self, total: jax.Array, leaves: Sequence[Any]) -> dict[int, jax.Array]:
        """The entries of a gradient, moved back to their elements: leaf -> array of its shape."""
        if len(self.leaves) == 1:  # usually a whole parameter, in its own order
            (at,) = self.leaves
            places = self.places
            if places.dtype == PLACE and places.flags.c_contiguous and places.size == leaves[at].size:
                return {at: total.reshape(leaves[at].shape)}
        shapes = {at: jax.ShapeDtypeStruct(leaves[at].shape, total.dtype) for at in sorted(self.leaves)}
        gradients: dict[int, jax.Array]
        (gradients,) = jax.linear_transpose(self.take, shapes)(total)
        return gradients


def narrow(view: ParameterView, shape: tuple[int, ...]) -> tuple[ParameterView, tuple[int, ...]] | None:
    """The view of distinct elements that `view` repeats to `shape`, and the axes of the repetition; None if none."""
    if view.elements is None or view.elements.size == 0:
        return None
    lead, elements, take = len(view.loops), view.elements, view.take
    own = elements.shape[lead:]
    if len(own) != len(shape):
        return None
    copies = [axis for axis in repeated_axes(elements) if axis >= lead]
    repeated = tuple(axis for axis, size in enumerate(own) if lead + axis in copies or size != shape[axis])
    if copies:
        first = tuple(slice(1) if axis in copies else slice(None) for axis in range(elements.ndim))
        view = view._replace(elements=elements[first], take=lambda leaves: take(leaves)[first])
    return (view, repeated) if view.distinct else None


def leaf_view(number: int, shape: tuple[int, ...]) -> ParameterView:
    """A whole parameter."""
    return ParameterView(frozenset([number]), np.empty(shape, PLACE), 1.0, (), lambda leaves: leaves[number])


def numbers_of(elements: np.ndarray) -> np.ndarray:
    """The number of each element."""
    if elements.dtype == NUMBER:
        return elements
    numbers = np.asarray(elements.ctypes.data, NUMBER)
    for size, step in zip(elements.shape, elements.strides):
        numbers = numbers[..., None] + step * np.arange(size)
    return numbers


def move_elements(move: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """What `move` returns for the elements: views of them, or else their numbers."""
    moved = move(*arrays)
    results = moved if isinstance(moved, list) else [moved]
    if moved is None or all(np.may_share_memory(result, arrays[0]) for result in results):
        return moved
    return move(*map(numbers_of, arrays))


def repeated_axes(elements: np.ndarray) -> list[int]:
    """The axes along which elements repeat."""
    axes = [axis for axis, size in enumerate(elements.shape) if size > 1]
    if elements.dtype == PLACE:
        return [axis for axis in axes if elements.strides[axis] == 0]
    return [axis for axis in axes if (elements == elements.take([0], axis)).all()]


def are_equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays are the same elements in the same order."""
    if one.shape != other.shape or NUMBER in (one.dtype, other.dtype):
        return np.array_equal(numbers_of(one), numbers_of(other))
    steps = zip(one.shape, one.strides, other.strides)
    return one.ctypes.data == other.ctypes.data and all(a == b for size, a, b in steps if size > 1)


def share_elements(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether any element is in both arrays."""
    if NUMBER in (one.dtype, other.dtype):
        return np.intersect1d(numbers_of(one), numbers_of(other)).size > 0
    return np.shares_memory(one, other)


def move_entries(equation: Any, arguments: Sequence[Any]) -> list[ParameterView]:
    """The views that an equation returns for arguments that are views and constants."""
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
    moved = (
        move_elements(lambda *arrays: rearrange(np, equation, list(arrays), lead), *(v.places for v in views))
        if alike
        else None
    )
    if moved is None:
        return computed
    takes = [v.take for v in views]

    def take_result(which: int) -> Callable[[dict[int, Any]], Any]:
        return lambda leaves: rearrange(jax.numpy, equation, [take(leaves) for take in takes], lead)[which]

    return [ParameterView(leaves, moved[at], first.scale, first.loops, take_result(at)) for at in range(count)]


def _refuse_put_back(leaves: dict[int, Any]) -> Any:
    raise AssertionError("what is computed from parameters has no elements to be put back")


def rearrange(xp: Any, equation: Any, arrays: list[Any], lead: int) -> Any:
    """Apply a primitive that only moves entries to arrays with `lead` extra axes in front; None for other primitives.

    `xp` is NumPy (places or numbers of elements) or JAX (elements).
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
