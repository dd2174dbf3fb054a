"""Equations whose gradient by their parameters is a sum of outer products.

That gradient, as matrices (blocks, k, o), is a sum over positions of u (k) times v (o): u comes from the equation's
other operand, v from the cotangent of its result. An `OuterProduct` defines how these become u and v.
"""

import dataclasses
import itertools
import math
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_dp.gradients.equations import bind, convolution_of, dot_of, gather_of, sizes_of
from fedjax_dp.gradients.views import ParameterView, move_elements

HUGE = 2.0**126  # its square is not finite in float32
LARGE = 5  # from this side on, windows are built axis by axis where it helps; for 3 x 3 that saves too little
NARROW = 4  # channels from which on a CPU copies long enough runs at once


class Geometry(Protocol):
    """How one kind of equation uses its parameters."""

    @property
    def lookup(self) -> bool: ...  # whether u is a one-hot vector, represented by the row it picks

    def bind(
        self, equation: Any, values: list[Any], probed: bool | None
    ) -> tuple[list[Any], Any]: ...  # outputs and the other operand, which must be finite if `probed`

    def matrix(self, x: Any) -> Any: ...  # parameters (s, *shape) -> (s, blocks, k, o), in NumPy or JAX

    def unmatrix(self, total: jax.Array) -> jax.Array: ...  # and back

    def factors(self, read: jax.Array, e: jax.Array) -> tuple[jax.Array, jax.Array]: ...

    # operand and cotangent, both (n, ...) -> u (n, blocks, t, k), or rows (n, blocks, t); v (n, blocks, t, o)


class OuterProduct(NamedTuple):
    """An equation of a program whose gradient is a sum of outer products."""

    view: ParameterView
    loops: tuple[int, ...]  # lengths of the loops around it
    geometry: Geometry
    out: Any  # shape and type of its first output
    name: str

    def bind(self, equation: Any, values: list[Any], probe: Any) -> tuple[list[Any], Any]:
        outputs, read = self.geometry.bind(equation, values, probe is not None)
        if probe is not None:
            outputs[0] = outputs[0] + probe.astype(outputs[0].dtype)
        return outputs, read

    @property
    def probe(self) -> jax.Array:
        return jnp.zeros((*self.loops, *self.out.shape), jnp.promote_types(self.out.dtype, jnp.float32))

    @property
    def matrix(self) -> np.ndarray:
        """Elements (blocks, k, o) of the parameters; slices picked by loops are blocks."""
        lead, shape = self._lead(self.view.places.shape)

        def move(places: np.ndarray) -> np.ndarray:
            matrix = self.geometry.matrix(places.reshape(math.prod(lead), *shape))
            return matrix.reshape(-1, *matrix.shape[2:])

        return move_elements(move, self.view.places)

    def gradient(self, total: jax.Array) -> jax.Array:
        """The gradient, from (blocks, k, o) to the shape of the parameters, axes of loops first."""
        lead, shape = self._lead(self.view.places.shape)
        split = total.reshape(math.prod(lead), -1, *total.shape[1:])
        return self.geometry.unmatrix(split).reshape((*lead, *shape))

    def _lead(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return shape[: len(self.view.loops)], shape[len(self.view.loops) :]

    def factors(self, read: jax.Array, e: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Operands and cotangents `(records, *loops, ...)` as u and v, at least float32.

        Steps of a loop that picks slices are blocks; of any other loop, positions.
        """
        records, depth = e.shape[0], len(self.loops)
        steps = records * math.prod(self.loops)
        read, e = jax.tree.map(lambda a: _wide(a).reshape(steps, *a.shape[1 + depth :]), (read, e))
        u, v = self.geometry.factors(read, e * self.view.scale if self.view.scale != 1 else e)
        if not self.loops:
            return u, v
        picked = [1 + at for at in self.view.loops]
        others = [1 + at for at in range(depth) if at not in self.view.loops]

        def arrange(a: jax.Array) -> jax.Array:
            blocks, positions = a.shape[1:3]
            apart = a.reshape(records, *self.loops, *a.shape[1:])
            rest = range(depth + 3, apart.ndim)
            turned = apart.transpose(0, *picked, depth + 1, *others, depth + 2, *rest)
            outer = math.prod(self.loops[at] for at in self.view.loops)
            repeats = math.prod(self.loops) // max(outer, 1)
            return turned.reshape(records, outer * blocks, repeats * positions, *a.shape[3:])

        if isinstance(self.geometry, Shift):  # positions are added up
            v = arrange(v).sum(2, keepdims=True)
            return jnp.ones((*v.shape[:3], 1), v.dtype), v
        return arrange(u), arrange(v)


def _wide(a: jax.Array) -> jax.Array:
    """The array for norms and sums: at least float32, in models of any precision; indices are unchanged."""
    return a.astype(jnp.promote_types(a.dtype, jnp.float32)) if jnp.issubdtype(a.dtype, jnp.floating) else a


@jax.custom_jvp
def finite(x: jax.Array) -> jax.Array:
    """HUGE instead of numbers that are not finite, so that a factor of zero removes them: 0 * NaN would be NaN.

    The square of HUGE is infinite, and so is the norm of the record gradient. float16 cannot hold HUGE and takes its
    largest number.
    """
    return jnp.where(jnp.isfinite(x), x, jnp.asarray(min(HUGE, float(jnp.finfo(x.dtype).max)), x.dtype))


@finite.defjvp
def _finite_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return finite(*primals), tangents[0]


def mask_infinite(x: jax.Array, probed: bool | None) -> jax.Array:
    """`x`, which must be finite if `probed`."""
    return finite(x) if probed and jnp.issubdtype(x.dtype, jnp.floating) else x


@dataclasses.dataclass(frozen=True)
class Product:
    """`dot_general`: batch axes are blocks, free axes of the other operand are positions."""

    side: int  # of the parameters
    shape: tuple[int, ...]  # of the parameters
    own: tuple[tuple[int, ...], ...]  # axes of the parameters: batch, contracted, free
    other: tuple[tuple[int, ...], ...]  # the same axes of the other operand
    lookup = False

    def bind(self, equation: Any, values: list[Any], probed: bool | None) -> tuple[list[Any], Any]:
        values = list(values)
        values[1 - self.side] = mask_infinite(values[1 - self.side], probed)
        return bind(equation, values), values[1 - self.side]

    def matrix(self, x: Any) -> Any:
        return _group_axes(x, self.own)

    def unmatrix(self, total: jax.Array) -> jax.Array:
        order = [axis for group in self.own for axis in group]
        apart = total.reshape(total.shape[0], *(self.shape[axis] for axis in order))
        return apart.transpose(0, *(1 + axis for axis in np.argsort(order).tolist()))

    def factors(self, read: jax.Array, e: jax.Array) -> tuple[jax.Array, jax.Array]:
        batch, contracted, free = self.other
        counts = len(batch), len(free), len(self.own[2])
        if self.side == 1:  # result: batch, free axes of the other, free axes of the parameters
            batches, positions, outs = _runs(*counts)
        else:
            batches, outs, positions = _runs(counts[0], counts[2], counts[1])
        return _group_axes(read, (batch, free, contracted)), _group_axes(e, (batches, positions, outs))

    def rows(self, read: jax.Array) -> jax.Array:
        """The other operand `(blocks, positions, k)`."""
        batch, contracted, free = self.other
        return _group_axes(read[None], (batch, free, contracted))[0]

    def as_result(self, y: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """`(blocks, positions, o)` in the shape of the equation's result."""
        return (y.swapaxes(1, 2) if self.side == 0 else y).reshape(shape)


def _runs(*counts: int) -> list[tuple[int, ...]]:
    """Consecutive numbers in runs of these lengths."""
    ends = list(itertools.accumulate(counts, initial=0))
    return [tuple(range(*pair)) for pair in itertools.pairwise(ends)]


def _group_axes(x: Any, groups: tuple[tuple[int, ...], ...] | Any) -> Any:
    """Reorder the axes after the first, with each group merged into one axis."""
    sizes = [math.prod(x.shape[1 + axis] for axis in group) for group in groups]
    order = [1 + axis for group in groups for axis in group]
    return x.transpose(0, *order).reshape(x.shape[0], *sizes)


@dataclasses.dataclass(frozen=True)
class Convolution:
    """`conv_general_dilated` with parameters as its kernel: u are the input windows, groups are blocks.

    Without groups it is computed as a matrix product: under vmap over clients, whose kernels differ, XLA would
    use grouped convolutions, several times slower on a CPU.
    """

    kernel: tuple[int, ...]  # its shape
    numbers: Any  # of axes: (records, channels, *space), (outputs, channels, *space), (records, channels, *space)
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    spread: tuple[int, ...]  # of the input: zeros between entries
    dilation: tuple[int, ...]  # of the kernel
    groups: int
    lookup = False

    def bind(self, equation: Any, values: list[Any], probed: bool | None) -> tuple[list[Any], Any]:
        x, kernel = values
        x = mask_infinite(x, probed)
        seen = self.windows(self.channels_last(x))  # (records, *space, groups, k)
        if self.groups > 1:
            return bind(equation, [x, kernel]), seen
        flat = self.matrix(kernel[None])[0, 0]
        rule = convolution_of(equation)
        result = jnp.matmul(seen[..., 0, :], flat, precision=rule.precision, preferred_element_type=rule.kind)
        return [self.channels_placed(result)], seen

    def channels_last(self, x: jax.Array) -> jax.Array:
        """The images as `(records, *space, channels)`."""
        records, channels, *space = self.numbers.lhs_spec
        return x.transpose(records, *space, channels)

    def channels_placed(self, result: jax.Array) -> jax.Array:
        """A result `(records, *space, o)` in the order of the equation."""
        records, outputs, *space = self.numbers.out_spec
        return result.transpose(np.argsort((records, *space, outputs)).tolist())

    def windows(self, x: jax.Array) -> jax.Array:
        """The window of each output position: `(records, *space, groups, window * channels of the group)`."""
        gaps = [(low, high, wide - 1) for (low, high), wide in zip(self.padding, self.spread)]
        x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *gaps, (0, 0, 0)])
        size = [self.kernel[axis] for axis in self.numbers.rhs_spec[2:]]
        spans = [(k - 1) * d + 1 for k, d in zip(size, self.dilation)]
        outs = [max(0, (n - span) // s + 1) for n, span, s in zip(x.shape[1:-1], spans, self.strides)]

        def at_once(x: jax.Array) -> jax.Array:
            views = []
            for offset in itertools.product(*map(range, size)):
                first = [o * d if n else 0 for o, d, n in zip(offset, self.dilation, outs)]
                last = [b + max(0, (n - 1) * s + 1) if n else b for b, n, s in zip(first, outs, self.strides)]
                view = lax.slice(x, [0, *first, 0], [x.shape[0], *last, x.shape[-1]], [1, *self.strides, 1])
                views.append(view if self.groups == 1 else view.reshape(*view.shape[:-1], self.groups, -1))
            return jnp.concatenate(views, axis=-1) if len(views) > 1 else views[0]

        def by_axis(x: jax.Array) -> jax.Array:
            """Concatenate in two steps: ten pieces instead of 25 for 5 x 5.

            A GPU kernel branches for each piece, and a CPU copies a row of the window instead of one or a few numbers.
            Without the barrier both steps would fuse into one with all pieces.
            """

            def along(x: jax.Array, axis: int) -> jax.Array:
                first = [o * self.dilation[axis] for o in range(size[axis])]
                length = (outs[axis] - 1) * self.strides[axis] + 1
                return jnp.concatenate(
                    [lax.slice_in_dim(x, f, f + length, self.strides[axis], 1 + axis) for f in first], axis=-1
                )

            return along(lax.optimization_barrier(along(x, 1)), 0)

        if self.groups > 1:
            return at_once(x)
        large = len(size) == 2 and min(size) >= LARGE and all(outs)
        on_cpu = by_axis if x.shape[-1] < NARROW else at_once
        seen = lax.platform_dependent(x, cuda=by_axis, cpu=on_cpu, default=at_once) if large else at_once(x)
        return seen[..., None, :]

    def matrix(self, x: Any) -> Any:
        outputs, channels, *space = self.numbers.rhs_spec
        x = x.transpose(0, *(1 + axis for axis in (*space, channels, outputs)))
        x = x.reshape(x.shape[0], -1, self.groups, self.kernel[outputs] // self.groups)
        return x.swapaxes(1, 2)

    def unmatrix(self, total: jax.Array) -> jax.Array:
        outputs, channels, *space = self.numbers.rhs_spec
        order = (*space, channels, outputs)
        x = total.swapaxes(1, 2).reshape(total.shape[0], *(self.kernel[axis] for axis in order))
        return x.transpose(0, *(1 + axis for axis in np.argsort(order).tolist()))

    def factors(self, read: jax.Array, e: jax.Array) -> tuple[jax.Array, jax.Array]:
        records, outputs, *space = self.numbers.out_spec
        e = e.transpose(0, *(1 + axis for axis in (records, *space, outputs)))
        u = read.reshape(read.shape[0], -1, self.groups, read.shape[-1]).swapaxes(1, 2)
        v = e.reshape(e.shape[0], u.shape[2], self.groups, e.shape[-1] // self.groups).swapaxes(1, 2)
        return u, v


@dataclasses.dataclass(frozen=True)
class Lookup:
    """`gather` or `dynamic_slice` of whole rows."""

    shape: tuple[int, ...]  # of the parameters
    axis: int  # of the parameters, along which rows are picked
    column: int  # of the indices, which holds the row
    offsets: tuple[int, ...]  # axes of the result that come from a row
    clip: bool  # whether an index outside picks the last row, or nothing
    lookup = True

    def bind(self, equation: Any, values: list[Any], probed: bool | None) -> tuple[list[Any], Any]:
        read = values[1] if equation.primitive.name == "gather" else jnp.stack(values[1:], -1)
        return bind(equation, values), read

    def matrix(self, x: Any) -> Any:
        order = (1 + self.axis, *(1 + axis for axis in range(len(self.shape)) if axis != self.axis))
        return x.transpose(0, *order).reshape(x.shape[0], 1, self.shape[self.axis], -1)

    def unmatrix(self, total: jax.Array) -> jax.Array:
        rest = [size for axis, size in enumerate(self.shape) if axis != self.axis]
        return jnp.moveaxis(total.reshape(total.shape[0], self.shape[self.axis], *rest), 1, 1 + self.axis)

    def factors(self, read: jax.Array, e: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = self.shape[self.axis]
        index = read[..., self.column].reshape(read.shape[0], -1)
        places = tuple(axis for axis in range(e.ndim - 1) if axis not in self.offsets)
        v = _group_axes(e, (places, self.offsets))
        if not self.clip:
            v = jnp.where(((index >= 0) & (index < rows))[..., None], v, 0)
        return jnp.clip(index, 0, rows - 1)[:, None], v[:, None]


@dataclasses.dataclass(frozen=True)
class Shift:
    """`add` or `sub`, such as of a bias: u = 1 at all positions, so they are added up first."""

    shape: tuple[int, ...]  # of the parameters, without the axes along which they are repeated
    repeated: tuple[int, ...]  # axes of the result
    lookup = False

    def bind(self, equation: Any, values: list[Any], probed: bool | None) -> tuple[list[Any], Any]:
        return bind(equation, values), ()

    def matrix(self, x: Any) -> Any:
        return x.reshape(x.shape[0], 1, 1, -1)

    def unmatrix(self, total: jax.Array) -> jax.Array:
        return total.reshape(total.shape[0], *self.shape)

    def factors(self, read: jax.Array, e: jax.Array) -> tuple[jax.Array, jax.Array]:
        v = e.sum([1 + axis for axis in self.repeated]).reshape(e.shape[0], 1, 1, -1)
        return jnp.ones((*v.shape[:3], 1), v.dtype), v


@dataclasses.dataclass(frozen=True)
class Operand:
    """A product whose operand `side` is recorded."""

    side: int

    def bind(self, equation: Any, values: list[Any], probe: Any) -> tuple[list[Any], Any]:
        return bind(equation, values), values[self.side]


def recognise(equation: Any, side: int) -> Geometry | None:
    """How an equation uses its operand `side`, which are parameters; None without a rule for it."""
    name, shape = equation.primitive.name, tuple(equation.invars[side].aval.shape)
    if name == "dot_general":
        dot = dot_of(equation)
        own, other = (_axes(equation.invars[i].aval.ndim, dot.batch[i], dot.contracted[i]) for i in (side, 1 - side))
        return Product(side, shape, own, other)
    if name == "conv_general_dilated" and side == 1:
        rule = convolution_of(equation)
        if rule.batch_groups != 1:
            return None
        return Convolution(shape, rule.numbers, rule.strides, rule.padding, *rule.dilation, rule.groups)
    if name in ("gather", "dynamic_slice") and side == 0:
        picked = gather_of(equation) if name == "gather" else None
        sizes = sizes_of(equation) if picked is None else picked.sizes
        moving = [axis for axis, (part, whole) in enumerate(zip(sizes, shape)) if part != whole]
        if len(moving) != 1 or sizes[moving[0]] != 1:
            return None
        (axis,) = moving
        if picked is None:
            return Lookup(shape, axis, axis, tuple(range(len(shape))), True)
        columns, clip = tuple(picked.numbers.start_index_map), "CLIP" in picked.mode
        if picked.numbers.operand_batching_dims or axis not in columns or (len(columns) > 1 and not clip):
            return None  # another index might throw a row away
        if not (clip or "FILL" in picked.mode or "PROMISE" in picked.mode):
            return None
        return Lookup(shape, axis, columns.index(axis), tuple(picked.numbers.offset_dims), clip)
    return None


def _axes(rank: int, batch: tuple[int, ...], contracted: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return batch, contracted, tuple(axis for axis in range(rank) if axis not in (*batch, *contracted))
