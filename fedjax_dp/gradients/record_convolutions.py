"""Convolutions of a few records at a time, so that their windows stay in the cache of a CPU core.

The windows of a batch are many times as large as its images. Writing and reading them takes a CPU longer than the
products themselves: in the forward pass, for the gradient by the input, and for the gradient by the kernel. Where it
pays, `winograd` also saves products; the gradients of single records, which are clipped, come from their windows.
Accelerators compute all records at once.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from fedjax_dp.gradients import winograd
from fedjax_dp.gradients.equations import convolution_of
from fedjax_dp.gradients.outer_products import Convolution, mask_infinite

CACHE = 2**22  # bytes of windows at once; between 1 and 8 MiB little changes, on a core with 1 MiB of its own
CHANNELS = 16  # from so many on, minimal filtering saves more by fewer products than its sums cost


class ConvolutionOperand(NamedTuple):
    """The images of records `(n, ..., channels)`, and their windows `(n, ..., k)`; a CPU builds few at once."""

    images: jax.Array
    windows: jax.Array


@dataclasses.dataclass(frozen=True)
class RecordConvolution(Convolution):
    """A convolution without groups whose kernel is `(k, o)`."""

    def bind(self, equation: Any, values: list[Any], probed: bool | None) -> tuple[list[Any], Any]:
        rule, (x, kernel) = convolution_of(equation), values
        images = self.channels_last(mask_infinite(x, probed))
        windows = math.prod(jax.eval_shape(self._windows, images).shape[1:])
        minimal = self._is_minimal(images)

        def product(seen: jax.Array, kernel: jax.Array) -> jax.Array:
            return jnp.matmul(seen, kernel, precision=rule.precision, preferred_element_type=rule.kind)

        def of_images(images: jax.Array, kernel: jax.Array) -> jax.Array:
            return product(self._windows(images), kernel)

        def of_few(read: ConvolutionOperand, kernel: jax.Array) -> jax.Array:
            if not minimal:
                return self._over_windows(lambda seen: product(seen, kernel), read)
            shaped = kernel.reshape(self._kernel_shape)
            return _over_blocks(
                lambda some: winograd.convolve(self._pad(some), shaped), rows_of(read.images), read.images
            )

        def image_gradient(e: jax.Array, kernel: jax.Array) -> jax.Array:
            shape = jax.ShapeDtypeStruct((len(e), *images.shape[1:]), images.dtype)
            (gradient,) = jax.linear_transpose(lambda some: of_images(some, kernel), shape)(e)
            return gradient

        def image_gradient_of_few(e: jax.Array, kernel: jax.Array) -> jax.Array:
            def gradient(e: jax.Array) -> jax.Array:
                if not minimal:
                    return image_gradient(e, kernel)
                turned = kernel.reshape(self._kernel_shape)[::-1, ::-1].swapaxes(2, 3)
                sides = zip(turned.shape[:2], self.padding)
                edges = [(size - 1 - low, size - 1 - high, 0) for size, (low, high) in sides]
                return winograd.convolve(lax.pad(e, jnp.zeros((), e.dtype), [(0, 0, 0), *edges, (0, 0, 0)]), turned)

            # Without the barrier every reader of the gradient would add up its windows again.
            return lax.optimization_barrier(_over_blocks(gradient, rows_of(e), e))

        def rows_of(records: jax.Array) -> int:
            return rows_at_once(len(records), windows)

        @jax.custom_vjp
        def convolve(images: jax.Array, kernel: jax.Array) -> tuple[jax.Array, ConvolutionOperand]:
            read = ConvolutionOperand(images, self._windows(images))
            result = lax.platform_dependent(
                read,
                kernel,
                cpu=_merged(of_few),
                default=lambda read, kernel: product(read.windows, kernel),
            )
            return result, read

        def forward(images: jax.Array, kernel: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
            result, read = convolve(images, kernel)
            return (result, read), (read.windows, kernel)

        def backward(saved: tuple[jax.Array, jax.Array], cotangents: Any) -> tuple[jax.Array, jax.Array]:
            (seen, kernel), e = saved, cotangents[0]
            (by_kernel,) = jax.linear_transpose(functools.partial(product, seen), kernel)(e)
            by_image = lax.platform_dependent(e, kernel, cpu=_merged(image_gradient_of_few), default=image_gradient)
            return by_image, by_kernel

        convolve.defvjp(forward, backward)
        result, read = convolve(images, self.matrix(kernel[None])[0, 0])
        return [self.channels_placed(result)], read

    def factors(self, read: Any, e: jax.Array) -> tuple[Any, jax.Array]:
        """The ConvolutionOperand of records, and cotangents `(n, 1, t, o)`."""
        records, outputs, *space = self.numbers.out_spec
        e = e.transpose(0, *(1 + axis for axis in (records, *space, outputs)))
        return read, e.reshape(len(e), 1, -1, e.shape[-1])

    def record_gradients(self, read: ConvolutionOperand, v: jax.Array) -> jax.Array:
        """The gradients of records by the kernel `(n, 1, o, k)`, from what `factors` returns."""

        def several(windows: jax.Array, v: jax.Array) -> jax.Array:
            u = windows.reshape(len(v), -1, windows.shape[-1])
            return jnp.einsum("nto,ntk->nok", v[:, 0], u)[:, None]

        return lax.platform_dependent(
            read,
            v,
            cpu=lambda read, v: self._over_windows(several, read, v),
            default=lambda read, v: several(read.windows, v),
        )

    def total(self, read: ConvolutionOperand, v: jax.Array) -> jax.Array:
        """The sum of the gradients of records `(1, k, o)`."""

        def several(windows: jax.Array, v: jax.Array) -> jax.Array:
            return (windows.reshape(-1, windows.shape[-1]).T @ v.reshape(-1, v.shape[-1]))[None]

        def few(read: ConvolutionOperand, v: jax.Array) -> jax.Array:
            rows = rows_at_once(len(v), math.prod(read.windows.shape[1:]))
            if self._is_minimal(read.images):
                at_points = _sum_over_blocks(self._products_at_points, rows, read.images, v)
                return winograd.kernel_gradient(at_points, *self._kernel_shape[:2]).reshape(1, -1, v.shape[-1])
            if rows == len(v):
                return several(read.windows, v)
            return _sum_over_blocks(lambda images, v: several(self._of_records(images), v), rows, read.images, v)

        return lax.platform_dependent(read, v, cpu=few, default=lambda read, v: several(read.windows, v))

    @staticmethod
    def fits(one: Convolution) -> bool:
        """Whether the windows of an ungrouped convolution are at least three times as large as its images."""
        entries = math.prod(one.kernel[axis] for axis in one.numbers.rhs_spec[2:])
        return one.groups == 1 and entries >= 3 * math.prod(one.strides)

    def _is_minimal(self, images: jax.Array) -> bool:
        """Whether a CPU uses fewer products than the kernel has entries; sums of narrower images would round."""
        _, channels, *space = self.numbers.rhs_spec
        plain = {*self.strides, *self.spread, *self.dilation} == {1} and len(space) == 2
        fits = self.kernel[space[-1]] in winograd.LENGTHS and self.kernel[channels] >= CHANNELS
        return plain and fits and images.dtype == jnp.float32

    @property
    def _kernel_shape(self) -> tuple[int, ...]:
        outputs, channels, *space = self.numbers.rhs_spec
        return tuple(self.kernel[axis] for axis in (*space, channels, outputs))

    def _pad(self, images: jax.Array) -> jax.Array:
        edges = [(low, high, 0) for low, high in self.padding]
        return lax.pad(images, jnp.zeros((), images.dtype), [(0, 0, 0), *edges, (0, 0, 0)])

    def _products_at_points(self, images: jax.Array, v: jax.Array) -> jax.Array:
        padded, (rows, length, *_) = self._pad(self._one_after_another(images)), self._kernel_shape
        e = v.reshape(len(padded), padded.shape[1] - rows + 1, padded.shape[2] - length + 1, v.shape[-1])
        return winograd.products_at_points(padded, e, rows, length)

    def _windows(self, images: jax.Array) -> jax.Array:
        return self.windows(images)[..., 0, :]

    def _over_windows(
        self, function: Callable[..., jax.Array], read: ConvolutionOperand, *others: jax.Array
    ) -> jax.Array:
        """A function of the windows of records, for a few at a time; where all fit, those that were built before."""
        rows = rows_at_once(len(read.windows), math.prod(read.windows.shape[1:]))
        if rows == len(read.windows):
            return function(read.windows, *others)
        return _over_blocks(lambda images, *some: function(self._of_records(images), *some), rows, read.images, *others)

    def _of_records(self, images: jax.Array) -> jax.Array:
        """The windows of records, each of which may be several images."""
        return self._windows(self._one_after_another(images))

    def _one_after_another(self, images: jax.Array) -> jax.Array:
        return images.reshape(-1, *images.shape[-len(self.numbers.rhs_spec) + 1 :])


def rows_at_once(records: int, windows: int) -> int:
    """How many of the records, with so many numbers in the windows of each, are computed at once: all, or a divisor."""
    most = max(1, CACHE // (4 * max(1, windows)))
    if records <= 2 * most:
        return records
    return next(rows for rows in range(most, 0, -1) if records % rows == 0)


def _blocks(rows: int, arrays: tuple[jax.Array, ...]) -> list[jax.Array]:
    return [a.reshape(-1, rows, *a.shape[1:]) for a in arrays]


def _over_blocks(function: Callable[..., jax.Array], rows: int, *arrays: jax.Array) -> jax.Array:
    """A function of records, for `rows` of them at a time."""
    if rows == len(arrays[0]):
        return function(*arrays)
    results = lax.map(lambda block: function(*block), _blocks(rows, arrays))
    return results.reshape(-1, *results.shape[2:])


def _sum_over_blocks(function: Callable[..., jax.Array], rows: int, *arrays: jax.Array) -> jax.Array:
    """A sum over records, for `rows` of them at a time."""
    if rows == len(arrays[0]):
        return function(*arrays)
    blocks = _blocks(rows, arrays)
    start = jax.eval_shape(lambda: function(*(a[0] for a in blocks)))
    zeros = jnp.zeros(start.shape, start.dtype)
    return lax.scan(lambda sum_, block: (sum_ + function(*block), None), zeros, blocks)[0]


def _merged(function: Callable[[Any, jax.Array], jax.Array]) -> Callable[[Any, jax.Array], jax.Array]:
    """A function of records and kernel that takes an axis of vmap into the records; kernels come one after another."""
    merged = custom_vmap(function)

    @merged.def_vmap
    def rule(size: int, batched: list[Any], records: Any, kernel: jax.Array) -> tuple[jax.Array, bool]:
        many, several = batched
        if several:
            spread = jax.tree.map(lambda a, there: a if there else jnp.broadcast_to(a, (size, *a.shape)), records, many)
            return lax.map(lambda pair: merged(*pair), (spread, kernel)), True
        together = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), records)
        results = merged(together, kernel)
        return results.reshape(size, -1, *results.shape[1:]), True

    return merged
