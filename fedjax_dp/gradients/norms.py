"""Norms of gradients that are sums over positions of outer products, and clipped sums of them over records.

A norm is an upper bound for every finite input, however small or large its numbers are. Squares of numbers below 2^-63
are zero in float32, while the other factor of an outer product may be 2^63. So a squared norm counts LEAST more for
every number, which is negligible for numbers of ordinary size. A sum over pairs of positions grows by the most that
rounding and underflow can take from it.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_dp.gradients import program
from fedjax_dp.gradients.analysis import WeightMatrix
from fedjax_dp.gradients.outer_products import finite
from fedjax_dp.gradients.record_convolutions import RecordConvolution
from fedjax_dp.pytrees import mask_rows
from fedjax_dp.small_reductions import sum_of_few

LEAST = 2.0**-126  # the smallest positive float32 number that every device distinguishes from 0
SMALL = 2.0**-100  # the same for a length, which is multiplied by ROUNDING to bound underflow
ROUNDING = 2.0**-24  # relative error of one float32 operation
OPERATIONS = 64  # between two products of positions and a squared norm, without the products themselves
FEW = 16  # up to this many records of one position each, a GPU adds gradients one by one
EXACT = lax.Precision.HIGHEST  # accelerators multiply in fewer bits by default, and the bound would be off by as much
SHRINK = 1 - 2.0**-10  # scales products whose factors a GPU rounds to 11 bits (TF32), so that none is too large


class Factors(NamedTuple):
    """Outer products at positions of a weight: u `(records, blocks, t, k)` or rows `(records, blocks, t)`, and v.

    u is a ConvolutionOperand of `convolution` if there is one.
    """

    lookup: bool
    u: Any
    v: jax.Array
    convolution: RecordConvolution | None = None


def factors_of(weight: WeightMatrix, seen: Any, cotangents: Any) -> list[Factors]:
    """All positions of a weight: those that pick a row, and all others."""
    groups: dict[bool, list[Factors]] = {}
    for path, outer_product, swapped, _ in weight.uses:
        u, v = outer_product.factors(program.entry_at(seen, path), program.entry_at(cotangents, path))
        v = finite(v)
        if isinstance(outer_product.geometry, RecordConvolution):
            return [Factors(False, u, v, outer_product.geometry)]
        groups.setdefault(outer_product.geometry.lookup, []).append(
            Factors(outer_product.geometry.lookup, *((v, u) if swapped else (u, v)))
        )
    return [
        Factors(lookup, _concatenate([part.u for part in parts]), _concatenate([part.v for part in parts]))
        for lookup, parts in groups.items()
    ]


def _concatenate(parts: list[jax.Array]) -> jax.Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, 2)


def squares(weight: WeightMatrix, uses: list[Factors]) -> tuple[jax.Array, jax.Array | None]:
    """Squared norms `(records,)`, and the record gradients `(records, blocks, o, k)` if they were built.

    One position: |u|^2 |v|^2. Else from record gradients, or sums over pairs of positions (u_t . u_s) (v_t . v_s),
    whichever is smaller. Where positions cancel, rounding can make a sum over pairs too small; its bound is added.
    """
    if weight.positions == 1:
        (only,) = uses
        parts = square(only.v) if only.lookup else square(only.u) * square(only.v)
        return parts.sum((1, 2)), None
    if weight.by_kernel:
        built = sum((_record_gradients(weight, one) for one in uses[1:]), start=_record_gradients(weight, uses[0]))
        return square(built).sum((1, 2)), built
    total = jnp.zeros(uses[0].v.shape[0], uses[0].v.dtype)
    for at, one in enumerate(uses):
        for other in uses[: at + 1]:
            u, v = _pairs(one, other), _dots(one.v, other.v)
            total = total + (1 if one is other else 2) * _largest_product(u, v).sum((1, 2, 3))
    return total, None


def _record_gradients(weight: WeightMatrix, one: Factors) -> jax.Array:
    """Record gradients `(records, blocks, o, k)`.

    The precision of a gradient without privacy suffices: these same numbers are measured and clipped.
    """
    if one.convolution is not None:
        return one.convolution.record_gradients(one.u, one.v)
    if not one.lookup:
        return _einsum("nbto,nbtk->nbok", one.v, one.u, precision=None)
    records, blocks, positions = one.u.shape
    rows = one.v.reshape(records * blocks, positions, -1)

    def table(index: jax.Array, rows: jax.Array) -> jax.Array:
        return jnp.zeros(weight.shape[1:], rows.dtype).at[index].add(rows)

    built = jax.vmap(table)(one.u.reshape(records * blocks, positions), rows)
    return built.reshape(records, *weight.shape).swapaxes(2, 3)


class Dots(NamedTuple):
    """Products of positions of the same record `(records, blocks, t, s)`, and a bound on their error."""

    value: jax.Array
    error: jax.Array | float


def _dots(one: jax.Array, other: jax.Array) -> Dots:
    """one_t . other_s; a sum of k products, in whatever order, is off by at most k roundings of |one_t| |other_s|."""
    k = one.shape[-1]
    first, second = (jnp.sqrt(square(side) + k * SMALL) for side in (one, other))
    error = (k + OPERATIONS) * ROUNDING * first[..., :, None] * second[..., None, :]
    return Dots(_einsum("nbtk,nbsk->nbts", one, other), error)


def _largest_product(u: Dots, v: Dots) -> jax.Array:
    """The largest product of two numbers within their errors."""
    at_most = (jnp.abs(u.value) + u.error) * (jnp.abs(v.value) + v.error)
    product = u.value * v.value
    return at_most + (product - jnp.abs(product))


def _pairs(one: Factors, other: Factors) -> Dots:
    """u_t . u_s for all pairs of positions; a picked row is a one-hot vector, whose products are exact."""
    if one.lookup and other.lookup:
        return Dots((one.u[..., :, None] == other.u[..., None, :]).astype(one.v.dtype), 0.0)
    if one.lookup:
        return Dots(jnp.take_along_axis(other.u, one.u[:, :, None, :], axis=3).swapaxes(2, 3), 0.0)
    if other.lookup:
        return Dots(jnp.take_along_axis(one.u, other.u[:, :, None, :], axis=3), 0.0)
    return _dots(one.u, other.u)


def total(weight: WeightMatrix, uses: list[Factors], built: jax.Array | None, factors: jax.Array) -> jax.Array:
    """Sum over records of gradients times factors `(blocks, k, o)`."""
    blocks, product = weight.shape[0], functools.partial(_product, alone=weight.positions == 1)
    if built is not None:
        return weighted_sum(built, factors).swapaxes(1, 2)
    result: Any = 0.0
    for one in uses:
        if one.lookup:
            at = jnp.broadcast_to(jnp.arange(blocks)[None, :, None], one.u.shape)
            empty = jnp.zeros(weight.shape, one.v.dtype)
            result = result + empty.at[at, one.u].add(mask_rows(one.v, factors > 0) * factors.reshape(-1, 1, 1, 1))
        elif blocks == 1:
            result = result + product(one.u[:, 0], one.v[:, 0], factors)[None]
        else:
            result = result + jax.vmap(product, (1, 1, None))(one.u, one.v, factors)
    return result


def _product(u: jax.Array, v: jax.Array, factors: jax.Array, alone: bool) -> jax.Array:
    """Sum over records and positions of factor * outer(u, v) `(k, o)`, as one product; `alone`: there is one position.

    Only the smaller of the two is weighted, as that makes a copy. The other is finite where its factor is zero, and
    below 2^64 elsewhere, as its square is finite; so a weight that underflows removes a negligible term.
    The long side comes last in the product, as in `pytrees.ravel`.
    """
    k, o = u.shape[-1], v.shape[-1]
    short, long = (u, v) if k < o else (v, u)
    scaled = short * factors[:, None, None]

    def at_once(scaled: jax.Array, long: jax.Array, precision: Any = EXACT) -> jax.Array:
        return jnp.matmul(scaled.reshape(-1, min(k, o)).T, long.reshape(-1, max(k, o)), precision=precision)

    def in_tf32(scaled: jax.Array, long: jax.Array) -> jax.Array:
        """In TF32: each number of a record's part is one product, which rounding increases by at most (1 + 2^-11)^2.

        Scaled down by that factor it stays within the bound. Several positions may cancel, so this fails for them.
        """
        return at_once(scaled * SHRINK, long, None)

    def one_by_one(scaled: jax.Array, long: jax.Array) -> jax.Array:
        """In float32 like the product, and fused with its reader: no gradient is written or read.

        Without the barrier XLA would compute and write each record again, separately from the forward pass.
        """
        long = lax.optimization_barrier(long)
        return functools.reduce(jnp.add, (scaled[at].T * long[at] for at in range(long.shape[0])))

    as_usual = jax.config.values["jax_default_matmul_precision"] is None and long.dtype == jnp.float32
    on_gpu = one_by_one if long.shape[0] <= FEW else in_tf32 if as_usual else at_once
    total = lax.platform_dependent(scaled, long, cuda=on_gpu, default=at_once) if alone else at_once(scaled, long)
    return total if k < o else total.T


def _einsum(spec: str, *arrays: jax.Array, precision: Any = EXACT) -> jax.Array:
    """`jnp.einsum` without the axis of a single block, of which XLA would make a batched product."""
    if arrays[0].shape[1] == 1:
        return jnp.einsum(spec.replace("b", ""), *(a[:, 0] for a in arrays), precision=precision)[:, None]
    return jnp.einsum(spec, *arrays, precision=precision)


def square(a: jax.Array) -> jax.Array:
    """An upper bound on the squared norm over the last axis: squares that underflow count as LEAST."""
    return sum_of_few(a * a) + a.shape[-1] * LEAST


def weighted_sum(rows: jax.Array, factors: jax.Array) -> jax.Array:
    """Sum of record gradients `(records, ...)` times their factors."""
    return jnp.tensordot(factors, mask_rows(rows, factors > 0), 1, precision=EXACT)
