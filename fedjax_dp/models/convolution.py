"""Convolutions as matrix products, so that clients with different weights stay one batched product.

Under vmap over weights XLA makes grouped convolutions, which are several times slower than the products they amount to.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax


def covers(module: nn.Conv, x: jax.Array) -> bool:
    """Whether `as_product` computes this use of the layer: any rank, strides, dilated kernels; no groups or masks."""
    rank = len(_size(module))
    plain = (
        module.feature_group_count == 1 and module.mask is None and _each(module.input_dilation, rank) == (1,) * rank
    )
    usual = module.padding in ("SAME", "VALID") or not isinstance(module.padding, str)
    simple = module.dtype in (None, x.dtype) and module.precision is None and module.conv_general_dilated is None
    return plain and usual and simple and module.conv_general_dilated_cls is None and x.ndim == rank + 2


def patches(module: nn.Conv, x: jax.Array) -> jax.Array:
    """What each output position sees: x `(records, *space, channels)` to `(records, *positions, kernel * channels)`."""
    size, space = _size(module), x.shape[1:-1]
    strides, dilation = _each(module.strides, len(size)), _each(module.kernel_dilation, len(size))
    spans = [(k - 1) * d + 1 for k, d in zip(size, dilation, strict=True)]
    padding: Any = module.padding
    if isinstance(padding, str):
        pads = lax.padtype_to_pads(space, spans, strides, padding)
    else:
        each = (padding,) * len(size) if isinstance(padding, int) else tuple(padding)
        pads = [(p, p) if isinstance(p, int) else tuple(p) for p in each]
    padded = jnp.pad(x, [(0, 0), *pads, (0, 0)])
    outs = [(n - span) // s + 1 for n, span, s in zip(padded.shape[1:-1], spans, strides, strict=True)]
    views = []
    for offset in itertools.product(*map(range, size)):
        starts = [o * d for o, d in zip(offset, dilation, strict=True)]
        stops = [b + (n - 1) * s + 1 for b, n, s in zip(starts, outs, strides, strict=True)]
        views.append(lax.slice(padded, [0, *starts, 0], [x.shape[0], *stops, x.shape[-1]], [1, *strides, 1]))
    return jnp.concatenate(views, axis=-1) if len(views) > 1 else views[0]


def as_product(module: nn.Conv, seen: jax.Array) -> jax.Array:
    """The layer's output `(records, *positions, features)` from `patches`."""
    kernel: jax.Array = module.get_variable("params", "kernel")
    out = seen @ kernel.reshape(-1, kernel.shape[-1])
    return out + by_channel(module.get_variable("params", "bias"), out) if module.use_bias else out


def by_channel(values: jax.Array, like: jax.Array) -> jax.Array:
    """Values `(channels,)` with as many axes as `like`, channels last."""
    return values.reshape(*[1] * (like.ndim - 1), -1)


def fast_layers(run: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
    """Flax interceptor that computes covered convolutions by `as_product` and leaves everything else alone."""
    module = context.module
    conv = type(module) is nn.Conv and context.method_name == "__call__" and len(args) == 1 and not kwargs
    if conv and covers(module, args[0]):
        return as_product(module, patches(module, args[0]))
    return run(*args, **kwargs)


def _size(module: nn.Conv) -> tuple[int, ...]:
    size = module.kernel_size
    return (size,) if isinstance(size, int) else tuple(size)


def _each(value: Any, rank: int) -> tuple[int, ...]:
    """A number per spatial dimension from what Flax accepts: None, one number, or one for each."""
    return (1 if value is None else value,) * rank if value is None or isinstance(value, int) else tuple(value)
