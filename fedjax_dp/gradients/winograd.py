"""Convolutions along the width by minimal filtering: fewer products than entries of the kernel.

A tile of m results of a kernel of length r needs the six products of polynomials at the points 0, 1, -1, 2, -2 and
infinity, where m = 7 - r: 6 instead of 12 products for r = 3, and 6 instead of 10 for r = 5. The rows of the kernel are
windows, as in any other convolution. Rounding is that of about three more additions for each product.

Source: Winograd 1980, "Arithmetic complexity of computations"; Lavin, Gray 2016, arXiv:1509.09308, section 4.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

POINTS = np.array([0.0, 1.0, -1.0, 2.0, -2.0])  # and infinity
LENGTHS = (3, 5)  # of kernels; the tile of one of 4 would be as good, but such kernels are rare
# x(t) of a tile of six inputs at every point, from its coefficients.
INPUTS = np.array(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ]
)
WEIGHTS = np.array([1 / 4, -1 / 6, -1 / 6, 1 / 24, 1 / 24])  # of Lagrange's interpolation


@functools.cache
def transforms(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Of kernels `(6, r)` and of results `(m, 6)`."""
    tile = 7 - length
    kernels, results = np.zeros((6, length)), np.zeros((tile, 6))
    kernels[:5] = WEIGHTS[:, None] * POINTS[:, None] ** np.arange(length)
    results[:, :5] = POINTS ** np.arange(tile)[:, None]
    kernels[5, -1] = results[-1, 5] = 1
    return kernels, results


def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Results `(n, h, w, o)` of padded images `(n, height, width, channels)` and a kernel `(rows, r, channels, o)`."""
    rows, length, _, outputs = kernel.shape
    kernels, results = transforms(length)
    inputs, (h, w) = _inputs(x, rows, length)
    weights = jnp.einsum("pj,ijco->pico", jnp.asarray(kernels, x.dtype), kernel).reshape(6, -1, outputs)
    products = list(jnp.einsum("pnhtk,pko->pnhto", inputs, weights))
    tiles = jnp.stack([_combine(row, products) for row in results], 3)  # (n, h, tiles, m, o)
    return tiles.reshape(len(x), h, -1, outputs)[:, :, :w]


def products_at_points(x: jax.Array, e: jax.Array, rows: int, length: int) -> jax.Array:
    """Of padded images and cotangents: what `kernel_gradient` takes, `(6, rows * channels, o)`, summed over records."""
    _, results = transforms(length)
    inputs, (h, w) = _inputs(x, rows, length)
    tile, tiles = 7 - length, inputs.shape[3]
    e = jnp.pad(e, ((0, 0), (0, 0), (0, tiles * tile - w), (0, 0))).reshape(len(x), h, tiles, tile, -1)
    columns = [e[:, :, :, at] for at in range(tile)]
    cotangents = [_combine(column, columns).reshape(-1, e.shape[-1]) for column in results.T]
    return jnp.stack([seen.reshape(-1, seen.shape[-1]).T @ v for seen, v in zip(inputs, cotangents)])


def kernel_gradient(at_points: jax.Array, rows: int, length: int) -> jax.Array:
    """The gradient by the kernel `(rows, r, channels, o)`."""
    kernels, _ = transforms(length)
    at_points = at_points.reshape(6, rows, -1, at_points.shape[-1])
    return jnp.einsum("pj,pico->ijco", jnp.asarray(kernels, at_points.dtype), at_points)


def _inputs(x: jax.Array, rows: int, length: int) -> tuple[jax.Array, tuple[int, int]]:
    """The windows of kernel rows of tiles at the six points `(6, n, h, tiles, rows * channels)`; height and width."""
    tile, (height, width) = 7 - length, x.shape[1:3]
    h, w = height - rows + 1, width - length + 1
    tiles = -(-w // tile)
    x = jnp.pad(x, ((0, 0), (0, 0), (0, tiles * tile + length - 1 - width), (0, 0)))
    columns = [x[:, :, at : at + tile * (tiles - 1) + 1 : tile] for at in range(6)]
    # Without the barrier each of the windows would combine the columns again.
    at_points = lax.optimization_barrier(jnp.stack([_combine(row, columns) for row in INPUTS]))
    return jnp.concatenate([at_points[:, :, i : i + h] for i in range(rows)], -1), (h, w)


def _combine(factors: np.ndarray, arrays: list[jax.Array]) -> jax.Array:
    """The sum of arrays times constants."""
    terms = [array if factor == 1 else float(factor) * array for factor, array in zip(factors, arrays) if factor]
    return functools.reduce(jnp.add, terms)
