"""One place where per-record gradients are clipped and summed.

Two ways, chosen when the round is traced, with equal results up to rounding:
probes      every parameter belongs to a layer with a rule (`layers.py`): one forward and one backward pass over the
            batch, whatever the number of records;
per record  anything else: gradients of single records under vmap.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.extend import core

from fedjax_dp.gradients.layers import RULES, Rule
from fedjax_dp.models import FlaxModel, Model

TINY = 1e-12  # below this norm a gradient counts as zero in the clip factor


class BatchGradient(NamedTuple):
    """A sum over the records of a batch, and what only the simulator may look at."""

    total: Any  # pytree like the parameters
    losses: jax.Array  # (records,) probe; zero on padding
    clipped: jax.Array  # (records,) bool, probe: was the record's gradient scaled down


class _Call(NamedTuple):
    """One use of a layer during the forward pass."""

    path: tuple[str, ...]
    module: nn.Module
    rule: Rule
    a: Any


def clip_factors(squared_norms: jax.Array, mask: jax.Array, clip_norm: jax.Array | float) -> jax.Array:
    """min(1, C / norm) per record; zero on padding and where the squared norm is not finite in float32."""
    factors = jnp.minimum(1.0, clip_norm / jnp.maximum(jnp.sqrt(squared_norms), TINY))
    return jnp.where(mask & jnp.isfinite(squared_norms), factors, 0.0)


def clipped_sum(
    model: Model, params: Any, x: jax.Array, y: jax.Array, mask: jax.Array, clip_norm: jax.Array | float
) -> BatchGradient:
    """Sum over records of g * min(1, C / |g|), |g| the L2 norm over all parameters.

    Shapes:      x `(records, ...)`, y and mask `(records,)`; padding (mask False) contributes exactly zero.
    Sensitivity: C under add-remove, 2 C under replace-one, up to float32 rounding. A record whose squared norm is not
                 finite (NaN, or a norm above 1.8e19) contributes zero, so the bound holds for every input.
    """
    if isinstance(model, FlaxModel) and _why_not_probes(model, params, x, y) is None:
        return _by_probes(model, params, x, y, mask, clip_norm)
    return _by_record(model, params, x, y, mask, clip_norm)


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
    return "norms in the backward pass" if reason is None else f"per-record gradients ({reason})"


def _by_record(
    model: Model, params: Any, x: Any, y: Any, mask: jax.Array, clip_norm: jax.Array | float
) -> BatchGradient:
    def one(x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
        return jax.value_and_grad(lambda p: model.losses(p, x[None], y[None])[0])(params)

    losses, gradients = jax.vmap(one)(x, y)
    flat = [g.reshape(mask.shape[0], -1) for g in jax.tree.leaves(gradients)]
    squared = sum((jnp.sum(g * g, axis=-1) for g in flat), start=jnp.zeros(mask.shape))
    factors = clip_factors(squared, mask, clip_norm)

    def weighted(g: jax.Array) -> jax.Array:
        kept = jnp.where((factors > 0).reshape(-1, *[1] * (g.ndim - 1)), g, 0.0)  # 0 * NaN is NaN
        return jnp.tensordot(factors, kept, 1)

    return BatchGradient(jax.tree.map(weighted, gradients), jnp.where(mask, losses, 0.0), mask & (factors < 1))


def _by_probes(
    model: FlaxModel, params: Any, x: Any, y: Any, mask: jax.Array, clip_norm: jax.Array | float
) -> BatchGradient:
    shapes = jax.eval_shape(lambda: _forward(model, params, x, y, None)[1])
    probes = [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]
    calls: list[_Call] = []

    def losses_of(probes: list[jax.Array]) -> tuple[jax.Array, Any]:
        losses, _, made = _forward(model, params, x, y, probes)
        calls[:] = [call._replace(a=None) for call in made]
        return losses, [call.a for call in made]

    losses, pull, inputs = jax.vjp(losses_of, probes, has_aux=True)
    (cotangents,) = pull(jnp.ones_like(losses))
    used = list(zip(calls, inputs, cotangents, strict=True))
    norms = (call.rule.squared_norms(call.module, a, e) for call, a, e in used)
    squared = sum(norms, start=jnp.zeros(mask.shape))
    factors = clip_factors(squared, mask, clip_norm)
    total: dict[str, Any] = {}
    for call, a, e in used:
        kept = (factors > 0)[:, None]  # 0 * NaN is NaN, in the inputs as in the cotangents
        node = total
        for name in call.path:
            node = node.setdefault(name, {})
        node.update(call.rule.total(call.module, jnp.where(kept, a, 0.0), jnp.where(kept, e, 0.0) * factors[:, None]))
    return BatchGradient(total, jnp.where(mask, losses, 0.0), mask & (factors < 1))


def _forward(
    model: FlaxModel, params: Any, x: jax.Array, y: jax.Array, probes: list[jax.Array] | None
) -> tuple[jax.Array, list[jax.Array], list[_Call]]:
    """Losses; with `probes[i]` added to the output of the i-th layer that has a rule, and those layers' inputs."""
    calls: list[_Call] = []
    outputs: list[jax.Array] = []

    def intercept(run: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        rule = RULES.get(type(context.module))
        out = run(*args, **kwargs)
        if rule is None or context.method_name != "__call__" or len(args) != 1 or kwargs:
            return out
        calls.append(_Call(tuple(context.module.path), context.module, rule, args[0]))
        outputs.append(out)
        return out if probes is None else out + probes[len(calls) - 1]

    with nn.intercept_methods(intercept):
        losses = model.losses(params, x, y)
    return losses, outputs, calls


def _why_not_probes(model: Model, params: Any, x: jax.Array, y: jax.Array) -> str | None:
    """None if the layer rules give the exact norm of every parameter's gradient, else what stands in the way."""
    if not isinstance(model, FlaxModel):
        return f"{type(model).__name__} is not a Flax model"
    found: list[_Call] = []

    def outside_layers(params: Any) -> tuple[list[jax.Array], jax.Array, list[jax.Array]]:
        losses, outputs, calls = _forward(model, params, x, y, None)
        found[:] = calls
        return outputs, losses, [call.a for call in calls]

    jaxpr = jax.make_jaxpr(outside_layers)(params)
    paths = [call.path for call in found]
    if len(set(paths)) != len(paths):
        return "a layer is used more than once"
    for call in found:
        if not call.rule.covers(call.module, call.a):
            return f"layer {'/'.join(call.path) or type(call.module).__name__} is used in a form without a rule"
    for path, _ in jax.tree_util.tree_leaves_with_path(params):
        names = tuple(entry.key for entry in path)
        if names[:-1] not in paths:
            return f"no rule for parameter {'/'.join(names)}"
    return _used_elsewhere(jaxpr, len(found))


def _used_elsewhere(jaxpr: core.ClosedJaxpr, layers: int) -> str | None:
    """A parameter that reaches the loss by a way other than its layer's output would escape the rules.

    The program returns the layers' outputs, the losses and the layers' inputs. Walking it backwards from losses and
    inputs, and stopping at layers' outputs, must not arrive at any parameter.
    """
    walls = set(map(id, jaxpr.jaxpr.outvars[:layers]))
    if len(walls) != layers:
        return "two layers have the same output"
    needed = set(map(id, jaxpr.jaxpr.outvars[layers:]))
    for equation in reversed(jaxpr.jaxpr.eqns):
        if any(id(out) in needed and id(out) not in walls for out in equation.outvars):
            needed.update(id(variable) for variable in equation.invars)
    if any(id(variable) in needed for variable in jaxpr.jaxpr.invars):
        return "a parameter is used outside its layer"
    return None
