"""Low-rank terms of the kernels of any traced network: y = x W + (alpha / r) (x A) B.

Source: Hu et al. 2021, arXiv:2106.09685, equation 3, with A and B in the order in which Flax multiplies. The network is
traced, and each product with such a kernel is run with its term added: no module of any framework has to be replaced.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_dp.gradients import program
from fedjax_dp.gradients.analysis import GradientPlan, Use, WeightMatrix, merge_sites
from fedjax_dp.gradients.equations import dot_of
from fedjax_dp.gradients.outer_products import Product

A, B = "lora_a", "lora_b"


@dataclasses.dataclass(frozen=True)
class LowRank:
    """The kernels with low-rank terms, and the rank.

    both  whether A is trained too; else only B is, and A is random and frozen (Sun et al. 2024, arXiv:2403.12313).
    """

    names: tuple[str, ...]
    rank: int
    both: bool = True


class LowRankFactors(NamedTuple):
    """The factors of a term: a (k, r), b (r, o); for a kernel of several matrices (blocks, k, r), (blocks, r, o)."""

    a: jax.Array
    b: jax.Array


class Kernel(NamedTuple):
    """A parameter whose every use is a product as a whole matrix."""

    number: int  # among the leaves of the parameters
    uses: tuple[tuple[Use, bool], ...]  # and whether it is transposed there, beside the first use

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape (blocks, k, o)."""
        blocks, k, o = self.uses[0][0].outer_product.matrix.shape
        return blocks, k, o


def kernels_of(plan: GradientPlan) -> dict[str, Kernel]:
    """The parameters of a traced network that can have a low-rank term, by name."""
    kernels = filter(None, (_kernel(plan, weight) for weight in plan.weights))
    return {plan.names[kernel.number]: kernel for kernel in kernels}


def _kernel(plan: GradientPlan, weight: WeightMatrix) -> Kernel | None:
    if len(weight.leaves) != 1 or not all(isinstance(use.outer_product.geometry, Product) for use in weight.uses):
        return None
    (number,) = weight.leaves
    depths = [(use.outer_product.view.loops, tuple(range(len(use.outer_product.loops)))) for use in weight.uses]
    if math.prod(weight.shape) != math.prod(plan.shapes[number].shape) or min(weight.shape[1:]) < 2:
        return None
    if any(own and own != around for own, around in depths):  # a loop that shares it lies within one that runs over it
        return None
    first = weight.uses[0].swapped
    return Kernel(number, tuple((use, use.swapped is not first) for use in weight.uses))


def shapes(kernel: Kernel, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of A and B."""
    blocks, k, o = kernel.shape
    front = (blocks,) if blocks > 1 else ()
    return (*front, k, rank), (*front, rank, o)


def random_a(key: jax.Array, kernel: Kernel, rank: int) -> jax.Array:
    """Initial A, uniform within 1 / sqrt(k), as in the reference implementation of the paper."""
    shape = shapes(kernel, rank)[0]
    return jax.random.uniform(key, shape, jnp.float32, -1.0, 1.0) / math.sqrt(shape[-2])


@dataclasses.dataclass(frozen=True, eq=False)
class _ProductWithTerm:
    """A product that is run with a low-rank term. If a loop runs over its pair, the site gets the pair."""

    product: Product
    turned: bool
    scale: Any
    pair: LowRankFactors | None

    def bind(self, equation: Any, values: list[Any], probe: Any) -> tuple[list[Any], Any]:
        made, read = self.product.bind(equation, values, None)
        a, b = self.pair or LowRankFactors(*probe)
        if self.turned:
            a, b = b.swapaxes(-1, -2), a.swapaxes(-1, -2)
        x = self.product.rows(read)
        multiplied = functools.partial(jnp.matmul, precision=dot_of(equation).precision)
        if a.ndim == 2:
            x = x[0]
        term = multiplied(multiplied(x, a.astype(x.dtype)), b.astype(x.dtype))
        term = self.product.as_result(term if term.ndim == 3 else term[None], made[0].shape)
        made[0] = made[0] + (term * jnp.asarray(self.scale, term.dtype)).astype(made[0].dtype)
        return made, ()


def run(plan: GradientPlan, leaves: list[Any], record: Any, pairs: Mapping[str, LowRankFactors], scale: Any) -> Any:
    """The traced network's scores of a record, with low-rank terms of the kernels with these names."""
    sites: dict[tuple[int, ...], Any] = {}
    by_path: dict[tuple[int, ...], Any] = {}
    kernels = kernels_of(plan)
    for name, pair in pairs.items():
        for (path, outer_product, *_), turned in kernels[name].uses:
            assert isinstance(outer_product.geometry, Product)
            own = None if outer_product.view.loops else pair
            sites[path] = _ProductWithTerm(outer_product.geometry, turned, scale * outer_product.view.scale, own)
            if own is None:
                lengths = [outer_product.loops[depth] for depth in outer_product.view.loops]
                by_path[path] = tuple(_by_step(factor, lengths) for factor in pair)
    arguments = [*leaves, *jax.tree.leaves(record)]
    nested = merge_sites(program.nest(sites), plan.products)
    made, _ = program.run(plan.closed.jaxpr, plan.closed.consts, arguments, nested, program.nest(by_path))
    return jax.tree.unflatten(jax.tree.structure(plan.out), made)


def _by_step(factor: jax.Array, lengths: list[int]) -> jax.Array:
    """(steps * blocks, ...) with an axis for each loop."""
    blocks = factor.shape[0] // math.prod(lengths) if factor.ndim == 3 else 1
    apart = factor.reshape(*lengths, blocks, *factor.shape[-2:])
    return apart if blocks > 1 else apart.reshape(*lengths, *factor.shape[-2:])


def add_low_rank(plan: GradientPlan, leaves: list[Any], pairs: Mapping[str, LowRankFactors], scale: Any) -> list[Any]:
    """The parameters with their terms added: W + (alpha / r) A B."""
    result, kernels = list(leaves), kernels_of(plan)
    for name, (a, b) in pairs.items():
        kernel = kernels[name]
        outer_product = kernel.uses[0][0].outer_product
        term = scale * jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
        back = outer_product.view.put_back(outer_product.gradient(term if term.ndim == 3 else term[None]), leaves)
        result[kernel.number] = leaves[kernel.number] + back[kernel.number]
    return result
