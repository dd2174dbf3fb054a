"""Convolutions of a few records at a time, so that their windows stay in the cache of a CPU core.

The windows of a batch are many times as large as its images. Writing and reading them takes a CPU longer than the
products themselves: in the forward pass, for the gradient by the input, and for the gradient by the kernel. All
products are the same as for a whole batch. Accelerators compute all records at once.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from fedjax_dp.gradients.equations import convolution_of
from fedjax_dp.gradients.outer_products import Convolution, mask_infinite

CACHE = 2**20  # bytes of windows at once, about half of the second cache of a CPU core

OfRecords = Callable[[jax.Array, jax.Array], jax.Array]  # of records `(n, ...)` and a kernel: results `(n, ...)`


@dataclasses.dataclass(frozen=True)
class RecordConvolution(Convolution):
    """A convolution without groups that builds its windows wherever they are needed, and keeps none.

    Images are `(n, *space, channels)`, results `(n, *space, o)`, the kernel `(k, o)`.
    """

    def bind(self, equation: Any, values: list[Any], probed: bool | None) -> tuple[list[Any], Any]:
        rule, (x, kernel) = convolution_of(equation), values
        x = self.channels_last(mask_infinite(x, probed))

        def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
            seen = self.windows(x)[..., 0, :]
            return jnp.matmul(seen, kernel, precision=rule.precision, preferred_element_type=rule.kind)

        def by_platform(function: OfRecords) -> OfRecords:
            def few(records: jax.Array, kernel: jax.Array) -> jax.Array:
                rows = self._rows(len(records), x.shape[1:])
                return _over_blocks(functools.partial(function, kernel=kernel), rows, records)

            return functools.partial(lax.platform_dependent, cpu=_merged(few), default=function)

        def input_gradient(e: jax.Array, kernel: jax.Array) -> jax.Array:
            image = jax.ShapeDtypeStruct((len(e), *x.shape[1:]), x.dtype)
            (back,) = jax.linear_transpose(lambda x: product(x, kernel), image)(e)
            return back

        @jax.custom_vjp
        def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
            return by_platform(product)(x, kernel)

        def forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            return convolve(x, kernel), (x, kernel)

        def backward(read: tuple[jax.Array, jax.Array], e: jax.Array) -> tuple[jax.Array, jax.Array]:
            x, kernel = read
            (by_kernel,) = jax.linear_transpose(lambda kernel: product(x, kernel), kernel)(e)
            return by_platform(input_gradient)(e, kernel), by_kernel

        convolve.defvjp(forward, backward)
        return [self.channels_placed(convolve(x, self.matrix(kernel[None])[0, 0]))], x

    def factors(self, read: jax.Array, e: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Images and cotangents of records, `(n, images, *space, channels)` and `(n, 1, t, o)`."""
        records, outputs, *space = self.numbers.out_spec
        e = e.transpose(0, *(1 + axis for axis in (records, *space, outputs)))
        return read, e.reshape(len(e), 1, -1, e.shape[-1])

    def record_gradients(self, x: jax.Array, v: jax.Array) -> jax.Array:
        """The gradients of records by the kernel `(n, 1, o, k)`, from what `factors` returns."""

        def several(x: jax.Array, v: jax.Array) -> jax.Array:
            return jnp.einsum("nto,ntk->nok", v[:, 0], self._positions(x))[:, None]

        def few(x: jax.Array, v: jax.Array) -> jax.Array:
            return _over_blocks(several, self._rows(len(x), x.shape[1:]), x, v)

        return lax.platform_dependent(x, v, cpu=few, default=several)

    def total(self, x: jax.Array, v: jax.Array) -> jax.Array:
        """The sum of the gradients of records `(1, k, o)`."""

        def several(x: jax.Array, v: jax.Array) -> jax.Array:
            u = self._positions(x)
            return (u.reshape(-1, u.shape[-1]).T @ v.reshape(-1, v.shape[-1]))[None]

        def few(x: jax.Array, v: jax.Array) -> jax.Array:
            rows = self._rows(len(x), x.shape[1:])
            if rows == len(x):
                return several(x, v)
            blocks = [a.reshape(-1, rows, *a.shape[1:]) for a in (x, v)]
            start = jnp.zeros_like(jax.eval_shape(several, x, v))
            return lax.scan(lambda sum_, block: (sum_ + several(*block), None), start, blocks)[0]

        return lax.platform_dependent(x, v, cpu=few, default=several)

    def _positions(self, x: jax.Array) -> jax.Array:
        """The windows of records `(n, t, k)`."""
        windows = self.windows(x.reshape(-1, *x.shape[2:]))
        return windows.reshape(len(x), -1, windows.shape[-1])

    def _rows(self, records: int, image: tuple[int, ...]) -> int:
        """How many records are computed at once: a divisor of their number."""
        shape = jax.ShapeDtypeStruct((math.prod(image[: -len(self.strides) - 1]), *image[-len(self.strides) - 1 :]), "float32")
        each = math.prod(jax.eval_shape(self.windows, shape).shape) * shape.dtype.itemsize
        most = max(1, CACHE // max(1, each))
        return next(rows for rows in range(min(records, most), 0, -1) if records % rows == 0)


def _over_blocks(function: Callable[..., jax.Array], rows: int, *arrays: jax.Array) -> jax.Array:
    """A function of records, for `rows` of them at a time."""
    if rows == len(arrays[0]):
        return function(*arrays)
    blocks = [a.reshape(-1, rows, *a.shape[1:]) for a in arrays]
    results = lax.map(lambda block: function(*block), blocks)
    return results.reshape(-1, *results.shape[2:])


def _merged(function: OfRecords) -> OfRecords:
    """The function for an axis that vmap adds: with one kernel for all its records, with several one after another."""
    merged = custom_vmap(function)

    @merged.def_vmap
    def rule(size: int, batched: list[bool], records: jax.Array, kernel: jax.Array) -> tuple[jax.Array, bool]:
        many, several = batched
        if several:
            pairs = (records if many else jnp.broadcast_to(records, (size, *records.shape)), kernel)
            return lax.map(lambda pair: merged(*pair), pairs), True
        results = merged(records.reshape(-1, *records.shape[2:]), kernel)
        return results.reshape(size, -1, *results.shape[1:]), True

    return merged
