"""Clipped sums of record gradients.

One forward and one backward pass over the batch give the factors of the norm for every equation whose parameter
gradient is a sum of outer products, and the record gradients of all other parameters; see `analysis.py`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_dp import errors
from fedjax_dp.gradients import norms, program
from fedjax_dp.gradients.analysis import GradientPlan, plan_of
from fedjax_dp.gradients.model import Model, split
from fedjax_dp.gradients.outer_products import OuterProduct
from fedjax_dp.gradients.record_independence import require_own_operations

MEMORY = 2**28  # bytes of record gradients in memory at once
FEW_ON_CPU = 32  # records that a CPU computes at once where there are convolutions, whose activations fill its cache
TINY = 1e-12  # below this norm a gradient counts as zero in the clip factor


class BatchGradient(NamedTuple):
    """A sum over the records of a batch; all other fields are diagnostics (not private, not covered by epsilon)."""

    total: Any  # pytree like the parameters
    losses: jax.Array  # (records,); zero on padding
    clipped: jax.Array  # (records,) bool: whether the record's gradient was scaled down
    norms: jax.Array  # (records,): norms of the gradients before clipping; zero if not computed
    lost: jax.Array  # (records,) bool: whether the gradient was not finite and so left out


def clip_factors(squared_norms: jax.Array, mask: jax.Array, clip_norm: jax.Array | float) -> jax.Array:
    """min(1, C / norm) per record; zero on padding and where the squared norm is not finite in float32."""
    factors = jnp.minimum(1.0, clip_norm / jnp.maximum(jnp.sqrt(jnp.maximum(squared_norms, 0.0)), TINY))
    return jnp.where(mask & jnp.isfinite(squared_norms), factors, 0.0)


def clipped_sum(
    model: Model,
    params: Any,
    x: Any,
    y: Any,
    mask: jax.Array,
    clip_norm: jax.Array | float,
    microbatch: int | None = None,
    *,
    keys: jax.Array | None = None,
) -> BatchGradient:
    """Sum over records of g * min(1, C / |g|), g the gradient of `model.loss(params, x, y, key)` of one record.

    Shapes:      x and y pytrees of arrays `(records, ...)`, mask `(records,)`, keys `(records,)` or None; padding (mask
                 False) contributes exactly zero. |g| is the L2 norm over all parameters.
    Sensitivity: C under add-remove, 2 C under replace-one, up to float32 rounding. A record whose squared norm is not
                 finite (NaN, or a norm above 1.8e19) contributes zero, so the bound holds for every input.
    microbatch   records computed at once, to bound memory; by default as many as keep the built record gradients
                 within MEMORY, and on a CPU few where there are convolutions.
    Raises:      ConfigurationError for a model without such a loss.
    """
    plan = loss_plan(model, params, x, y, keys)
    several = functools.partial(_clipped_part, plan, params, split(model)[1], clip_norm)
    most = microbatch or max(1, MEMORY // max(1, plan.bytes_per_record))
    return _sum_in_parts(several, params, (x, y, keys), mask, most, few=microbatch is None and bool(plan.kernels))


def _sum_in_parts(
    several: Callable[[Any, jax.Array], BatchGradient],
    params: Any,
    record: Any,
    mask: jax.Array,
    most: int,
    few: bool,
) -> BatchGradient:
    """`several(record, mask)` over all records, `most` of them at once; with `few`, FEW_ON_CPU on a CPU.

    A CPU skips parts that are padding, such as the end of most Poisson samples, unless groups of devices each share a
    model: all of them synchronise within a gradient, and each group would skip other parts.
    """
    records, mesh = mask.shape[0], jax.sharding.get_abstract_mesh()
    in_groups = bool(mesh.manual_axes and mesh.auto_axes)
    on_cpu = min(most, FEW_ON_CPU) if few and records > 2 * FEW_ON_CPU else most

    def in_parts(rows: int, skips: bool) -> BatchGradient:
        if rows >= records:
            return several(record, mask)
        count = math.ceil(records / rows)

        def part(at: jax.Array) -> BatchGradient:
            real = mask[at % records] & (at < records)

            def one() -> BatchGradient:
                return several(jax.tree.map(lambda a: a[at % records], record), real)

            def none() -> BatchGradient:
                return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(one))

            return lax.cond(jnp.any(real), one, none) if skips else one()

        def add(total: Any, at: jax.Array) -> tuple[Any, Any]:
            done = part(at)
            return jax.tree.map(jnp.add, total, done.total), done._replace(total=None)

        positions = jnp.arange(count * rows).reshape(count, rows)
        total, probes = lax.scan(add, jax.tree.map(jnp.zeros_like, params), positions)
        return BatchGradient(total, *(probe.reshape(-1)[:records] for probe in probes[1:]))

    if on_cpu >= records:
        return several(record, mask)
    return lax.platform_dependent(
        cpu=functools.partial(in_parts, on_cpu, not in_groups), default=functools.partial(in_parts, most, False)
    )


def _clipped_part(
    plan: GradientPlan,
    params: Any,
    frozen: Any,
    clip_norm: jax.Array | float,
    record: Any,
    mask: jax.Array,
) -> BatchGradient:
    """The clipped sum over records computed at once."""
    leaves, structure = jax.tree.flatten(params)
    probes = program.nest({path: outer_product.probe for path, outer_product in program.paths(plan.outer_products)})

    def one(record: Any) -> tuple[jax.Array, Any, Any, list[jax.Array]]:
        def loss(probes: Any, direct: list[jax.Array]) -> tuple[jax.Array, Any]:
            own = dict(zip(plan.direct, direct))
            return plan.run([own.get(at, leaf) for at, leaf in enumerate(leaves)], frozen, record, probes)

        values, pull, seen = jax.vjp(loss, probes, [leaves[at] for at in plan.direct], has_aux=True)
        return values, seen, *pull(jnp.ones_like(values))

    losses, seen, cotangents, built = jax.vmap(one)(record)
    squared, weights = jnp.zeros(mask.shape), []
    for weight in plan.weights:
        uses = norms.factors_of(weight, seen, cotangents)
        more, kernels = norms.squares(weight, uses)
        squared = squared + more
        weights.append((weight, uses, kernels))
    for gradient in built:
        wide = gradient.reshape(mask.shape[0], -1).astype(jnp.promote_types(gradient.dtype, jnp.float32))
        squared = squared + norms.square(wide)
    factors = clip_factors(squared, mask, clip_norm)
    totals: dict[int, jax.Array] = {
        at: norms.weighted_sum(gradient, factors) for at, gradient in zip(plan.direct, built)
    }
    for weight, uses, kernels in weights:
        total = norms.total(weight, uses, kernels, factors)
        use = weight.uses[0]
        back = use.outer_product.gradient(total.swapaxes(1, 2) if use.swapped else total)
        for at, part in use.outer_product.view.put_back(back, leaves).items():
            totals[at] = totals[at] + part if at in totals else part
    sums = [totals[at].astype(leaf.dtype) if at in totals else jnp.zeros_like(leaf) for at, leaf in enumerate(leaves)]
    before = jnp.sqrt(jnp.where(mask, squared, 0.0))
    gradient = jax.tree.unflatten(structure, sums)
    return BatchGradient(gradient, jnp.where(mask, losses, 0.0), mask & (factors < 1), before, mask & (factors == 0))


class _WithProbe(NamedTuple):
    """An outer product of a gradient without a bound: its operand may be infinite."""

    outer_product: OuterProduct

    def bind(self, equation: Any, values: list[Any], probe: jax.Array) -> tuple[list[Any], Any]:
        outputs, read = self.outer_product.geometry.bind(equation, values, None)
        return [outputs[0] + probe], read


def plain_sum(
    model: Model, params: Any, x: Any, y: Any, mask: jax.Array, *, keys: jax.Array | None = None
) -> BatchGradient:
    """Sum over records of the gradients without clipping; no bound, no privacy."""
    plan = loss_plan(model, params, x, y, keys)
    several = functools.partial(_plain_part, plan, params, split(model)[1])
    return _sum_in_parts(several, params, (x, y, keys), mask, mask.shape[0], few=bool(plan.kernels))


def _plain_part(plan: GradientPlan, params: Any, frozen: Any, record: Any, mask: jax.Array) -> BatchGradient:
    """The sum over records computed at once."""
    leaves, structure = jax.tree.flatten(params)
    kernels = plan.kernels
    sites = {path: _WithProbe(outer_product) for path, outer_product, _ in kernels}
    separate = frozenset().union(*(outer_product.view.leaves for _, outer_product, _ in kernels))

    def total(free: dict[int, jax.Array], probes: Any) -> tuple[jax.Array, Any]:
        def one(record: Any, probes: Any) -> tuple[jax.Array, Any]:
            own = [free.get(at, leaf) for at, leaf in enumerate(leaves)]
            return plan.run(own, frozen, record, probes, program.nest(sites))

        values, seen = jax.vmap(one)(record, probes)
        values = jnp.where(mask, values, 0.0)
        return values.sum(), (values, seen)

    free = {at: leaf for at, leaf in enumerate(leaves) if at not in separate}
    zeros = {path: jnp.zeros((len(mask), *site.outer_product.probe.shape)) for path, site in sites.items()}
    differentiated = jax.value_and_grad(total, (0, 1), has_aux=True)
    (_, (values, seen)), (gradients, cotangents) = differentiated(free, program.nest(zeros))
    for path, outer_product, convolution in kernels:
        factors: Any = outer_product.factors(program.entry_at(seen, path), program.entry_at(cotangents, path))
        gradients |= outer_product.view.put_back(outer_product.gradient(convolution.total(*factors)), leaves)
    gradient = jax.tree.unflatten(structure, [gradients[at] for at in range(len(leaves))])
    nothing = jnp.zeros(mask.shape, bool)
    return BatchGradient(gradient, values, nothing, jnp.zeros(mask.shape), nothing)


def loss_plan(model: Model, params: Any, x: Any, y: Any, keys: jax.Array | None = None) -> GradientPlan:
    """The plan for the gradient of one record's loss; x, y and keys are a batch."""
    plan = plan_of(model, "loss", params, _record_shapes((x, y, keys)))
    strange = [leaf.dtype.name for leaf in plan.shapes if not jnp.issubdtype(leaf.dtype, jnp.floating)]
    if strange:
        raise errors.refuse("model", f"parameters that are {strange[0]}", "real numbers", "keep others as constants")
    narrow = [leaf.dtype.name for leaf in plan.shapes if jnp.finfo(leaf.dtype).bits < 32]
    if narrow:  # rounding the sum before its noise could exceed the influence of a record
        remedy = "keep them in float32, and set dtype to compute with fewer bits"
        raise errors.refuse("model", f"parameters in {narrow[0]}", "float32", remedy)
    shape = getattr(plan.out, "shape", None)
    if shape != () or not jnp.issubdtype(plan.out.dtype, jnp.floating):
        got = jax.tree.map(lambda out: f"{out.dtype}{list(out.shape)}", plan.out)
        raise errors.refuse(
            "model",
            f"a loss that is {got}",
            "one floating point number for one record",
            "take its mean or sum over classes and positions",
        )
    return plan


def start_shapes(model: Model) -> Any:
    """Shapes of the parameters of round 0.

    Raises: ConfigurationError for an `init` with other operations than JAX's own, such as a callback.
    """
    closed, shapes = jax.make_jaxpr(model.init, return_shape=True)(jax.random.key(0))
    require_own_operations("init of the model", closed.jaxpr, derivatives=False)
    return shapes


def losses(model: Model, params: Any, x: Any, y: Any, keys: jax.Array | None = None) -> jax.Array:
    """Losses of all records `(records,)`; without keys in evaluation mode."""
    return _over_records(model, loss_plan(model, params, x, y, keys), params, (x, y, keys))


def logits(model: Model, params: Any, x: Any) -> jax.Array:
    """Scores of all records `(records, classes)`."""
    return _over_records(model, plan_of(model, "logits", params, _record_shapes((x,))), params, (x,))


def features(model: Model, params: Any, x: Any) -> jax.Array:
    """The input of the last product with parameters `(records, k)`, or the model's own `features`."""
    if hasattr(model, "features"):
        return _over_records(model, plan_of(model, "features", params, _record_shapes((x,))), params, (x,))
    plan = plan_of(model, "logits", params, _record_shapes((x,)))
    if plan.features is None:
        raise errors.refuse("model", "one without a product of features and parameters", "a dense layer at the end")
    leaves, frozen = jax.tree.leaves(params), split(model)[1]
    return jax.vmap(lambda record: plan.last_product_input(leaves, frozen, record).reshape(-1).astype(jnp.float32))(
        (x,)
    )


def _over_records(model: Model, plan: GradientPlan, params: Any, record: Any) -> jax.Array:
    leaves, frozen = jax.tree.leaves(params), split(model)[1]
    return jax.vmap(lambda one: plan.run(leaves, frozen, one)[0])(record)


def _record_shapes(batch: Any) -> Any:
    """Shapes of one record of a batch."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), batch)
