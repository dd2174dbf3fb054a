"""Rules for layers whose per-record gradients have a closed form.

A layer's weight gradient for one record is a function of what the layer has read, a, and of the cotangent e of what it
has made: a sum over the positions at which the weight is used. A rule runs the layer with a probe of zeros where e is
to be caught, and names the *form* of the gradient; a form gives its squared norm per record, and the clipped sum over
records, from a and e. Weighting e by the clip factor commutes with the rest of the backward pass, because records do
not mix; so one backward pass serves norms and clipped sum alike.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax

from fedjax_dp.models import convolution

Params = dict[str, Any]
ROUNDING = 1e-6  # of a sum over pairs of positions, about ten float32 roundings
HUGE = 2.0**126  # its square is not finite in float32
EXACT = lax.Precision.HIGHEST  # accelerators multiply in fewer bits by default, and the bound would be off by as much


class Gradients(NamedTuple):
    """What a form knows of one weight: squared norms `(records,)`, and the sum of its gradients times factors."""

    squared_norms: jax.Array
    total: Callable[[jax.Array], Any]  # factors (records,), zero where a gradient is not finite


class Rule(NamedTuple):
    """How one kind of layer is handled; x is the layer's input."""

    covers: Callable[[Any, jax.Array], bool]  # (module, x): whether this is a use that the rule knows
    run: Callable[[Any, jax.Array, jax.Array | None], tuple[jax.Array, jax.Array]]  # (module, x, probe) -> (output, a)
    form: Callable[[Any, jax.Array, jax.Array], Gradients]  # (module, a, e), both (records, positions, ...)
    name: Callable[[Any, Any, jax.Array], Params]  # (module, total, x) -> the owner's parameters
    owner: Callable[[Any], nn.Module] = lambda module: module  # whose parameters they are
    probe: Callable[[Any, jax.Array, jax.Array], tuple[int, ...]] = lambda module, x, out: _positions(out).shape


def product(a: jax.Array, e: jax.Array, with_bias: bool) -> Gradients:
    """A kernel and its bias: sum over positions of the outer products of a `(n, t, k)` and e `(n, t, o)`, and of e.

    One position: |a|^2 |e|^2. Else the Gram matrices over positions or the per-record kernels, whichever is smaller.
    """
    positions, inputs, outputs = a.shape[1], a.shape[2], e.shape[2]
    e = finite(e)

    def flat_total(factors: jax.Array) -> tuple[jax.Array, jax.Array]:
        # Only the smaller of the two is weighted, as that makes a copy; the other is finite where its factor is zero.
        # The long side comes last in the product, as in `values.ravel`.
        scaled = factors[:, None, None]
        if inputs < outputs:
            rows, made = (a * scaled).reshape(-1, inputs), e.reshape(-1, outputs)
            return jnp.matmul(rows.T, made, precision=EXACT), jnp.einsum("n,nto->o", factors, e, precision=EXACT)
        rows, made = a.reshape(-1, inputs), (e * scaled).reshape(-1, outputs)
        return jnp.matmul(made.T, rows, precision=EXACT).T, made.sum(0)

    if positions == 1:
        return Gradients((jnp.sum(a * a, (1, 2)) + float(with_bias)) * jnp.sum(e * e, (1, 2)), flat_total)
    bias = e.sum(1)
    squared = jnp.sum(bias * bias, -1) if with_bias else jnp.zeros(a.shape[0])
    if positions * (inputs + outputs) < inputs * outputs:
        return Gradients(squared + _total_of(_gram(a) * _gram(e)), flat_total)
    kernels = jnp.einsum("nto,ntk->nok", e, a, precision=EXACT)

    def kernel_total(factors: jax.Array) -> tuple[jax.Array, jax.Array]:
        return weighted_sum(kernels, factors).T, weighted_sum(bias, factors)

    return Gradients(squared + jnp.sum(kernels * kernels, (1, 2)), kernel_total)


def scaling(a: jax.Array, e: jax.Array, with_scale: bool, with_bias: bool) -> Gradients:
    """A scale and a bias by channel: sums over positions of a * e and of e, both `(n, t, c)`."""
    scale, bias = jnp.sum(a * e, 1), e.sum(1)

    def total(factors: jax.Array) -> tuple[jax.Array, jax.Array]:
        return weighted_sum(scale, factors), weighted_sum(bias, factors)

    return Gradients(with_scale * jnp.sum(scale * scale, -1) + with_bias * jnp.sum(bias * bias, -1), total)


def lookup(a: jax.Array, e: jax.Array) -> Gradients:
    """Rows of a table picked by indices a `(n, t, 1)`: positions with the same index add up before the norm."""
    index = a[..., 0]
    same = index[:, :, None] == index[:, None, :]
    squared = _total_of(jnp.where(same, _gram(e), 0.0))

    def total(factors: jax.Array) -> tuple[jax.Array, jax.Array]:
        return index.reshape(-1), _weighted(e, factors).reshape(-1, e.shape[-1])

    return Gradients(squared, total)


def _gram(a: jax.Array) -> jax.Array:
    """Inner products of positions `(n, t, t)` of a `(n, t, k)`."""
    return jnp.einsum("ntk,nsk->nts", a, a, precision=EXACT)


def _total_of(gram: jax.Array) -> jax.Array:
    """Sum over pairs of positions `(n, t, t)`, rounded up: where positions cancel, no norm may come out too small."""
    return gram.sum((1, 2)) + ROUNDING * jnp.abs(gram).sum((1, 2))


@jax.custom_jvp
def finite(x: jax.Array) -> jax.Array:
    """HUGE in place of what is not finite, so that a factor of zero removes it: 0 * NaN would be NaN.

    Its square is infinite, and with it the norm of the record's gradient.
    """
    return jnp.where(jnp.isfinite(x), x, jnp.asarray(HUGE, x.dtype))


@finite.defjvp
def _as_it_is(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return finite(*primals), tangents[0]


def _kept(a: jax.Array, factors: jax.Array) -> jax.Array:
    """Zero where the factor is: 0 * NaN is NaN."""
    return jnp.where((factors > 0).reshape(-1, *[1] * (a.ndim - 1)), a, 0)


def weighted_sum(rows: jax.Array, factors: jax.Array) -> jax.Array:
    """Sum of per-record gradients `(n, ...)` times their factors."""
    return jnp.tensordot(factors, _kept(rows, factors), 1, precision=EXACT)


def _weighted(e: jax.Array, factors: jax.Array) -> jax.Array:
    return _kept(e, factors) * factors[:, None, None]


def _positions(a: jax.Array) -> jax.Array:
    """All axes between records and channels as one."""
    return a.reshape(a.shape[0], -1, a.shape[-1])


def _joined(out: jax.Array, probe: jax.Array | None) -> jax.Array:
    return out if probe is None else out + probe.reshape(out.shape).astype(out.dtype)


def _usual(module: Any, x: jax.Array) -> bool:
    """Whether a layer computes in the type of what it reads."""
    return module.dtype is None or module.dtype == x.dtype


def _own(module: Any, name: str) -> jax.Array:
    return module.get_variable("params", name)


# Dense layers, over any number of positions.


def _dense_covers(module: nn.Dense, x: jax.Array) -> bool:
    usual = _usual(module, x) and module.precision is None
    return usual and module.dot_general is None and module.dot_general_cls is None and x.ndim >= 2


def _dense_run(module: nn.Dense, x: jax.Array, probe: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    x = finite(x)
    out = x @ _own(module, "kernel")
    out = out + convolution.by_channel(_own(module, "bias"), out) if module.use_bias else out
    return _joined(out, probe), _positions(x)


def _kernel_form(module: Any, a: jax.Array, e: jax.Array) -> Gradients:
    return product(a, e, module.use_bias)


def _kernel_named(module: Any, total: tuple[jax.Array, jax.Array], x: jax.Array) -> Params:
    kernel, bias = total
    named = {"kernel": kernel.reshape(_own(module, "kernel").shape)}
    return {**named, "bias": bias} if module.use_bias else named


# Convolutions, as products of patches.


def _conv_run(module: nn.Conv, x: jax.Array, probe: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    seen = convolution.patches(module, finite(x))
    return _joined(convolution.as_product(module, seen), probe), _positions(seen)


# Normalisation by record.


def _norm_covers(module: Any, x: jax.Array) -> bool:
    apart = module.reduction_axes in (None, -1) if isinstance(module, nn.GroupNorm) else module.reduction_axes == -1
    by_channel = getattr(module, "feature_axes", -1) == -1
    learns = module.use_scale or _has_bias(module)
    return learns and _usual(module, x) and apart and by_channel and module.axis_name is None and x.ndim >= 2


def _norm_run(module: Any, x: jax.Array, probe: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    bare = {"use_scale": False} | ({} if isinstance(module, nn.RMSNorm) else {"use_bias": False})
    normal: Any = module.clone(**bare, parent=None, name=None).apply({}, x)
    out = normal * convolution.by_channel(_own(module, "scale"), x) if module.use_scale else normal
    out = out + convolution.by_channel(_own(module, "bias"), x) if _has_bias(module) else out
    return _joined(out, probe), _positions(normal)


def _has_bias(module: Any) -> bool:
    return bool(getattr(module, "use_bias", False))


def _norm_form(module: Any, a: jax.Array, e: jax.Array) -> Gradients:
    return scaling(a, e, module.use_scale, _has_bias(module))


def _scale_named(module: Any, total: tuple[jax.Array, jax.Array], x: jax.Array) -> Params:
    scale, bias = total
    return ({"scale": scale} if module.use_scale else {}) | ({"bias": bias} if _has_bias(module) else {})


# Embeddings.


def _embed_covers(module: nn.Embed, x: jax.Array) -> bool:
    own = module.dtype in (None, _own(module, "embedding").dtype)
    return own and jnp.issubdtype(x.dtype, jnp.integer) and x.ndim >= 1


def _embed_run(module: nn.Embed, x: jax.Array, probe: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    return _joined(jnp.take(_own(module, "embedding"), x, axis=0), probe), x.reshape(x.shape[0], -1, 1)


def _embed_named(module: nn.Embed, total: tuple[jax.Array, jax.Array], x: jax.Array) -> Params:
    rows, parts = total
    return {"embedding": jnp.zeros(_own(module, "embedding").shape).at[rows].add(parts)}


# LSTM layers: the recurrent weights are one kernel, used at every step on (x_t, h_{t-1}).

GATES = ("i", "f", "g", "o")


def _lstm_covers(module: nn.RNN, x: jax.Array) -> bool:
    cell = module.cell
    known = isinstance(cell, nn.OptimizedLSTMCell | nn.LSTMCell) and _usual(cell, x)
    plain = not (module.time_major or module.return_carry or module.reverse)
    return known and plain and cell.carry_init is nn.initializers.zeros and x.ndim == 3


def _lstm_run(module: nn.RNN, x: jax.Array, probe: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    cell, x = module.cell, finite(x)
    weights = cell.variables["params"]
    inner = jnp.concatenate([weights[f"i{gate}"]["kernel"] for gate in GATES], -1)
    recurrent = jnp.concatenate([weights[f"h{gate}"]["kernel"] for gate in GATES], -1)
    bias = jnp.concatenate([weights[f"h{gate}"]["bias"] for gate in GATES], -1)
    ready = x @ inner + convolution.by_channel(bias, x)
    ready = _joined(ready, probe)

    def step(carry: tuple[jax.Array, jax.Array], z: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        c, h = carry
        i, f, g, o = jnp.split(z + h @ recurrent, 4, -1)
        c = cell.gate_fn(f) * c + cell.gate_fn(i) * cell.activation_fn(g)
        out = cell.gate_fn(o) * cell.activation_fn(c)
        return (c, out), (out, h)

    start = jnp.zeros((x.shape[0], cell.features), ready.dtype)
    out, before = lax.scan(step, (start, start), ready.swapaxes(0, 1))[1]
    return out.swapaxes(0, 1), jnp.concatenate([x, finite(before.swapaxes(0, 1))], -1)


def _lstm_probe(module: nn.RNN, x: jax.Array, out: jax.Array) -> tuple[int, ...]:
    return (*x.shape[:2], 4 * module.cell.features)


def _lstm_named(module: nn.RNN, total: tuple[jax.Array, jax.Array], x: jax.Array) -> Params:
    kernel, bias = total
    kernels, biases = np.split(np.arange(kernel.shape[1]), 4), jnp.split(bias, 4)
    named: Params = {}
    for gate, columns, own in zip(GATES, kernels, biases, strict=True):
        part = kernel[:, columns[0] : columns[-1] + 1]
        named[f"i{gate}"] = {"kernel": part[: x.shape[-1]]}
        named[f"h{gate}"] = {"kernel": part[x.shape[-1] :], "bias": own}
    return named


_CONV = Rule(convolution.covers, _conv_run, _kernel_form, _kernel_named)
_NORM = Rule(_norm_covers, _norm_run, _norm_form, _scale_named)
RULES: dict[type[nn.Module], Rule] = {
    nn.Dense: Rule(_dense_covers, _dense_run, _kernel_form, _kernel_named),
    nn.Conv: _CONV, nn.LayerNorm: _NORM, nn.GroupNorm: _NORM, nn.RMSNorm: _NORM,
    nn.Embed: Rule(_embed_covers, _embed_run, lambda module, a, e: lookup(a, e), _embed_named),
    nn.RNN: Rule(
        _lstm_covers, _lstm_run, lambda module, a, e: product(a, e, True), _lstm_named, lambda module: module.cell,
        _lstm_probe,
    ),
}  # fmt: skip
