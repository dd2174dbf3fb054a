"""One place where per-record gradients are clipped and summed.

Two ways, chosen when the round is traced, with equal results up to rounding:
probes      every parameter belongs to a layer with a rule (`layers.py`): one forward and one backward pass over the
            batch, whatever the number of records;
per record  anything else: gradients of single records under vmap.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from fedjax_dp.gradients.layers import RULES, Rule, weighted_sum
from fedjax_dp.models import FlaxModel, Model

MEMORY = 2**28  # bytes of per-record gradients that are held at once
TINY = 1e-12  # below this norm a gradient counts as zero in the clip factor


class BatchGradient(NamedTuple):
    """A sum over the records of a batch, and what only the simulator may look at."""

    total: Any  # pytree like the parameters
    losses: jax.Array  # (records,) probe; zero on padding
    clipped: jax.Array  # (records,) bool, probe: was the record's gradient scaled down


class _Call(NamedTuple):
    """One use of a layer during the forward pass."""

    path: tuple[str, ...]  # of the module whose parameters are used
    module: nn.Module
    rule: Rule
    x: Any
    a: Any
    out: Any


def clip_factors(squared_norms: jax.Array, mask: jax.Array, clip_norm: jax.Array | float) -> jax.Array:
    """min(1, C / norm) per record; zero on padding and where the squared norm is not finite in float32."""
    factors = jnp.minimum(1.0, clip_norm / jnp.maximum(jnp.sqrt(jnp.maximum(squared_norms, 0.0)), TINY))
    return jnp.where(mask & jnp.isfinite(squared_norms), factors, 0.0)


def clipped_sum(
    model: Model, params: Any, x: jax.Array, y: jax.Array, mask: jax.Array, clip_norm: jax.Array | float,
    microbatch: int | None = None,
) -> BatchGradient:  # fmt: skip
    """Sum over records of g * min(1, C / |g|), |g| the L2 norm over all parameters.

    Shapes:      x `(records, ...)`, y and mask `(records,)`; padding (mask False) contributes exactly zero.
    Sensitivity: C under add-remove, 2 C under replace-one, up to float32 rounding. A record whose squared norm is not
                 finite (NaN, or a norm above 1.8e19) contributes zero, so the bound holds for every input.
    microbatch   records whose gradients are held at once where they have to be built, to bound memory; unless given,
                 as many as fit in MEMORY.
    """
    if isinstance(model, FlaxModel) and _why_not_probes(model, params, x, y) is None:
        return _by_probes(model, params, x, y, mask, clip_norm)
    return _by_record(model, params, x, y, mask, clip_norm, microbatch)


def plain_sum(model: Model, params: Any, x: jax.Array, y: jax.Array, mask: jax.Array) -> BatchGradient:
    """Sum over records of the unclipped gradients; no bound, no privacy."""

    def total(params: Any) -> tuple[jax.Array, jax.Array]:
        losses = jnp.where(mask, model.losses(params, x, y), 0.0)
        return losses.sum(), losses

    (_, losses), gradient = jax.value_and_grad(total, has_aux=True)(params)
    return BatchGradient(gradient, losses, jnp.zeros(mask.shape, bool))


def describe(model: Model, params: Any, x: jax.Array, y: jax.Array) -> str:
    """Which way `clipped_sum` takes for a model, and why, for the log of a run."""
    reason = _why_not_probes(model, params, x, y)
    way = "norms in the backward pass" if reason is None else f"per-record gradients ({reason})"
    dtype = jnp.dtype(getattr(model, "dtype", jnp.float32)).name
    return way if dtype == "float32" else f"{way}, of gradients computed in {dtype}"


def _by_record(
    model: Model, params: Any, x: Any, y: Any, mask: jax.Array, clip_norm: jax.Array | float, microbatch: int | None
) -> BatchGradient:
    """Gradients of single records under vmap, `microbatch` at a time."""
    records, size = mask.shape[0], sum(leaf.size for leaf in jax.tree.leaves(params))
    rows = min(records, microbatch or max(1, MEMORY // (4 * size)))
    parts = math.ceil(records / rows)

    def one(x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
        return jax.value_and_grad(lambda p: model.losses(p, x[None], y[None])[0])(params)

    def part(at: jax.Array) -> BatchGradient:
        real = mask[at % records] & (at < records)
        losses, gradients = jax.vmap(one)(x[at % records], y[at % records])
        flat = [g.reshape(rows, -1) for g in jax.tree.leaves(gradients)]
        squared = sum((jnp.sum(g * g, axis=-1) for g in flat), start=jnp.zeros(rows))
        factors = clip_factors(squared, real, clip_norm)
        total = jax.tree.map(lambda g: weighted_sum(g, factors), gradients)
        return BatchGradient(total, jnp.where(real, losses, 0.0), real & (factors < 1))

    def add(total: Any, at: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        done = part(at)
        return jax.tree.map(jnp.add, total, done.total), (done.losses, done.clipped)

    if parts == 1:
        return part(jnp.arange(rows))
    at = jnp.arange(parts * rows).reshape(parts, rows)
    total, (losses, clipped) = lax.scan(add, jax.tree.map(jnp.zeros_like, params), at)
    return BatchGradient(total, losses.reshape(-1)[:records], clipped.reshape(-1)[:records])


def _by_probes(
    model: FlaxModel, params: Any, x: Any, y: Any, mask: jax.Array, clip_norm: jax.Array | float
) -> BatchGradient:
    shapes: list[tuple[int, ...]] = []
    jax.eval_shape(lambda: _forward(model, params, x, y, None, shapes)[0])
    calls: list[_Call] = []

    def losses_of(probes: list[jax.Array]) -> tuple[jax.Array, Any]:
        losses, made = _forward(model, params, x, y, probes)
        calls[:] = [call._replace(x=jax.ShapeDtypeStruct(call.x.shape, call.x.dtype)) for call in made]
        return losses, [_wide(call.a) for call in made]

    losses, pull, read = jax.vjp(losses_of, [jnp.zeros(shape) for shape in shapes], has_aux=True)
    (cotangents,) = pull(jnp.ones_like(losses))
    uses: dict[tuple[str, ...], list[tuple[_Call, jax.Array, jax.Array]]] = {}
    for call, a, e in zip(calls, read, cotangents, strict=True):
        uses.setdefault(call.path, []).append((call, a, e))
    squared, layers = jnp.zeros(mask.shape), []
    for path, used in uses.items():
        call, a, e = used[0]
        if len(used) > 1:  # every further use of a weight is more positions
            a, e = jnp.concatenate([a for _, a, _ in used], 1), jnp.concatenate([e for *_, e in used], 1)
        gradients = call.rule.form(call.module, a, e)
        squared = squared + gradients.squared_norms
        layers.append((path, call, gradients.total))
    factors = clip_factors(squared, mask, clip_norm)
    found: dict[str, jax.Array] = {}
    for path, call, total in layers:
        named = call.rule.name(call.module, total(factors), call.x)
        for inside, leaf in jax.tree_util.tree_leaves_with_path(named):
            found["/".join((*path, *_names(inside)))] = leaf
    unused = jnp.zeros_like  # a parameter that no loss depends on
    total = jax.tree_util.tree_map_with_path(
        lambda where, leaf: found.get("/".join(_names(where)), unused(leaf)), params
    )  # fmt: skip
    return BatchGradient(total, jnp.where(mask, losses, 0.0), mask & (factors < 1))


def _wide(a: jax.Array) -> jax.Array:
    """What a layer has read, as norms and sums take it: float32 whatever the model computes in, indices as they are."""
    return a.astype(jnp.float32) if jnp.issubdtype(a.dtype, jnp.floating) else a


def _names(path: Any) -> tuple[str, ...]:
    return tuple(entry.key for entry in path)


def _forward(
    model: FlaxModel, params: Any, x: jax.Array, y: jax.Array, probes: list[jax.Array] | None,
    shapes: list[tuple[int, ...]] | None = None,
) -> tuple[jax.Array, list[_Call]]:  # fmt: skip
    """Losses and the uses of layers that have a rule, the i-th of them with `probes[i]`; `shapes` collects theirs."""
    calls: list[_Call] = []

    def intercept(run: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        module, rule = context.module, RULES.get(type(context.module))
        if rule is None or context.method_name != "__call__" or len(args) != 1 or kwargs:
            return run(*args, **kwargs)
        (x,) = args
        if not rule.covers(module, x):
            return run(*args, **kwargs)
        out, a = rule.run(module, x, None if probes is None else probes[len(calls)])
        calls.append(_Call(tuple(rule.owner(module).path), module, rule, x, a, out))
        if shapes is not None:
            shapes.append(rule.probe(module, x, out))
        return out

    return model.losses(params, x, y, intercept), calls


def _why_not_probes(model: Model, params: Any, x: jax.Array, y: jax.Array) -> str | None:
    """None if the layer rules give the exact norm of every parameter's gradient, else what stands in the way.

    A parameter that reaches the losses by a way other than the output of a layer with a rule would escape the rules.
    The program below returns those outputs, the losses and the layers' inputs. Walking it backwards from losses and
    inputs, and stopping at the outputs, must not arrive at any parameter.
    """
    if not isinstance(model, FlaxModel):
        return f"{type(model).__name__} is not a Flax model"

    def program(params: Any) -> tuple[list[jax.Array], jax.Array, list[jax.Array]]:
        losses, calls = _forward(model, params, x, y, None)
        return [call.out for call in calls], losses, [call.x for call in calls]

    closed, shapes = jax.make_jaxpr(program, return_shape=True)(params)
    layers = len(shapes[0])
    jaxpr = closed.jaxpr
    walls = set(map(id, jaxpr.outvars[:layers]))
    if len(walls) != layers:
        return "two layers have the same output"
    needed = set(map(id, jaxpr.outvars[layers:]))
    for equation in reversed(jaxpr.eqns):
        if any(id(out) in needed and id(out) not in walls for out in equation.outvars):
            needed.update(id(variable) for variable in equation.invars)
    for variable, (path, _) in zip(jaxpr.invars, jax.tree_util.tree_leaves_with_path(params), strict=True):
        if id(variable) in needed:
            return f"no rule covers how parameter {'/'.join(_names(path))} is used"
    return None
