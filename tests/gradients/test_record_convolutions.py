"""Convolutions of a few records at a time: NumPy's gradients, for any shape, and for any number of records at once."""

import functools
import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import fedjax_dp as fdp
from fedjax_dp import gradients
from fedjax_dp.gradients import clipped, record_convolutions
from fedjax_dp.gradients.record_convolutions import RecordConvolution, rows_at_once
from fedjax_dp.pytrees import ravel

RECORDS, CLIP = 6, 0.5


def shape(space, channels, kernel, outputs, padding=None, **changes):
    """A convolution of images `(*space, channels)`; changes of strides, spread and dilation."""
    usual = dict.fromkeys(("strides", "spread", "dilation"), (1,) * len(space))
    sizes = {"space": space, "channels": channels, "kernel": kernel, "outputs": outputs}
    return types.SimpleNamespace(**sizes, padding=padding or ((0, 0),) * len(space), **usual | changes)


SHAPES = {
    "3 x 3": shape((5, 6), 2, (3, 3), 3, ((1, 1), (1, 1))),
    "an even kernel": shape((6, 5), 2, (2, 4), 3, ((0, 1), (2, 1))),
    "one channel": shape((6, 6), 1, (3, 3), 1),
    "padding beyond the kernel": shape((4, 4), 2, (3, 3), 2, ((3, 4), (2, 3))),
    "negative padding": shape((7, 6), 2, (3, 2), 2, ((-1, 0), (0, -2))),
    "one channel, large": shape((9, 8), 1, (5, 6), 2, ((1, 2), (0, 3)), strides=(2, 1)),
    "strides": shape((9, 8), 2, (3, 2), 2, ((1, 0), (1, 1)), strides=(2, 3)),
    "dilation": shape((8, 9), 2, (2, 3), 2, ((1, 1), (0, 2)), dilation=(3, 2)),
    "spread images": shape((4, 3), 2, (2, 2), 2, ((1, 1), (0, 1)), spread=(2, 3)),
    "5 x 5 by minimal filtering": shape((7, 9), 16, (5, 5), 2, ((2, 2), (2, 2))),
    "2 x 3 by minimal filtering": shape((5, 8), 16, (2, 3), 3, ((1, 0), (3, -1))),
    "one axis": shape((12,), 2, (3,), 3, ((2, 0),)),
    "three axes": shape((4, 5, 3), 1, (2, 2, 2), 2, ((1, 0), (0, 0), (1, 1))),
}


def layer(one, dtype=jnp.float32):
    """A convolution with a bias, as functions of a key, and of parameters and an image."""
    axes = "XYZ"[: len(one.space)]
    numbers = (f"N{axes}C", f"{axes}IO", f"N{axes}C")

    def init(key):
        kernel = jax.random.normal(key, (*one.kernel, one.channels, one.outputs)) / 3
        return {"kernel": kernel, "bias": jnp.zeros(one.outputs)}

    def apply(params, x):
        x, kernel = x[None].astype(dtype), params["kernel"].astype(dtype)
        changes = (one.strides, one.padding, one.spread, one.dilation, numbers)
        (result,) = lax.conv_general_dilated(x, kernel, *changes, precision="highest")
        return result + params["bias"].reshape(*[1] * len(one.space), -1)

    return init, apply


def weighted_tanh(scores, weights):
    return jnp.sum(jnp.tanh(scores.astype(jnp.float32)) * weights)


def model_of(one, dtype=jnp.float32):
    return fdp.model(layer(one, dtype), (*one.space, one.channels), loss=weighted_tanh)


def problem(one, seed=0, records=RECORDS):
    rng, model = np.random.default_rng(seed), model_of(one)
    params = model.init(jax.random.key(seed))
    x = rng.normal(size=(records, *one.space, one.channels)).astype(np.float32)
    out = jax.eval_shape(layer(one)[1], params, x[0]).shape
    return model, params, x, rng.normal(size=(records, *out)).astype(np.float32)


def windows_of(image, one):
    """Windows `(*out, *kernel, channels)` of an image, entry by entry."""
    spread = np.zeros([(n - 1) * s + 1 for n, s in zip(image.shape, one.spread)] + [one.channels])
    spread[tuple(slice(None, None, s) for s in one.spread)] = image
    for axis, (low, high) in enumerate(one.padding):
        spread = np.pad(spread, [(max(low, 0), max(high, 0)) if at == axis else (0, 0) for at in range(spread.ndim)])
        spread = spread.take(range(max(-low, 0), spread.shape[axis] - max(-high, 0)), axis)
    spans = [(k - 1) * d + 1 for k, d in zip(one.kernel, one.dilation)]
    outs = [(n - span) // s + 1 for n, span, s in zip(spread.shape, spans, one.strides)]
    windows = np.zeros((*outs, *one.kernel, one.channels))
    for place in itertools.product(*map(range, outs)):
        for entry in itertools.product(*map(range, one.kernel)):
            at = tuple(p * s + e * d for p, s, e, d in zip(place, one.strides, entry, one.dilation))
            windows[place + entry] = spread[at]
    return windows


def gradients_by_numpy(params, x, y, one):
    """The gradient of every record by the kernel and by the bias."""
    kernel, bias = (np.asarray(params[name], np.float64) for name in ("kernel", "bias"))
    axes = len(one.space)
    for image, weights in zip(x.astype(np.float64), y.astype(np.float64)):
        windows = windows_of(image, one)
        result = np.tensordot(windows, kernel, axes + 1)
        e = weights / np.cosh(result + bias) ** 2
        places = list(range(axes))
        yield np.tensordot(windows, e, (places, places)), e.sum(tuple(places))


@functools.partial(jax.jit, static_argnums=0)
def sums(model, params, x, y, mask, clip_norm):
    return gradients.clipped_sum(model, params, x, y, mask, clip_norm), gradients.plain_sum(model, params, x, y, mask)


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.slow), 10**9], ids=["one record at a time", "all at once"])
def cache(request, monkeypatch):
    monkeypatch.setattr(record_convolutions, "CACHE", request.param)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.usefixtures("cache")
def test_sums_of_gradients_are_those_of_numpy(name):
    """Clipped and plain, with a padding record."""
    model, params, x, y = problem(SHAPES[name])
    mask = np.arange(RECORDS) < RECORDS - 1
    each = list(gradients_by_numpy(params, x, y, SHAPES[name]))
    norms = [np.sqrt(sum(np.sum(part**2) for part in parts)) for parts in each]
    factors = np.minimum(1, CLIP / np.array(norms)) * mask
    clipped, plain = sums(model, params, x, y, mask, CLIP)
    np.testing.assert_allclose(clipped.norms, np.where(mask, norms, 0), rtol=1e-5)
    for total, weights in ((clipped.total, factors), (plain.total, mask)):
        for at, leaf in enumerate(("kernel", "bias")):
            expected = sum(w * parts[at] for w, parts in zip(weights, each))
            np.testing.assert_allclose(total[leaf], expected, rtol=1e-4, atol=2e-5)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="elsewhere a batch is computed at once")
def test_a_batch_in_parts_has_the_same_sums_and_parts_of_padding_are_not_computed(monkeypatch):
    """NaN in a part that is computed would be in the plain sum."""
    monkeypatch.setattr(clipped, "FEW_ON_CPU", 2)
    model, params, x, y = problem(SHAPES["3 x 3"])
    mask, records = np.array([True, False, False, False, True, True]), np.array([0, 4, 5])
    seen = jax.jit(lambda *batch: sums.__wrapped__(model, params, *batch, CLIP))
    whole = sums(model, params, x[records], y[records], np.ones(3, bool), CLIP)
    for part, one in zip(
        seen(np.where(np.isin(range(RECORDS), (2, 3))[:, None, None, None], np.nan, x), y, mask), whole
    ):
        for a, b in zip(jax.tree.leaves(part.total), jax.tree.leaves(one.total)):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        for field in ("losses", "clipped", "norms", "lost"):
            np.testing.assert_allclose(getattr(part, field)[records], getattr(one, field), rtol=1e-5)
            assert not np.any(getattr(part, field)[~mask])


@pytest.mark.parametrize(("axes", "skips"), [({"clients": 2}, True), ({"clients": 2, "model": 2}, False)])
def test_groups_of_devices_that_share_a_model_skip_no_part(axes, skips, monkeypatch):
    """They synchronise within a gradient, and would wait forever for a group whose other part is padding."""
    monkeypatch.setattr(clipped, "FEW_ON_CPU", 2)
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))

    def of_group(x):
        several = lambda x, mask: clipped.BatchGradient(x.sum(0), *[x[:, 0]] * 4)  # noqa: E731
        return clipped._sum_in_parts(several, x[0], x, x[:, 0] > 0, RECORDS, few=True).total

    in_groups = {"in_specs": P(), "out_specs": P(), "axis_names": {"clients"}, "check_vma": False}
    jaxpr = jax.make_jaxpr(jax.shard_map(of_group, mesh=mesh, **in_groups))(jnp.ones((RECORDS, 3)))
    assert str(jaxpr).count("cond[") == 1 + skips  # one is the platform's


@pytest.mark.usefixtures("cache")
def test_clients_with_kernels_of_their_own_are_computed_like_one():
    model, params, x, y = problem(SHAPES["3 x 3"])
    clients = jax.tree.map(lambda a: jnp.stack([a, 2 * a, a - 1]), params)
    inputs = jnp.stack([x, x + 1, -x])
    mask = jnp.ones(RECORDS, bool)
    together = jax.vmap(sums, (None, 0, 0, None, None, None))(model, clients, inputs, y, mask, CLIP)
    for at in range(3):
        alone = sums(model, jax.tree.map(lambda a: a[at], clients), inputs[at], y, mask, CLIP)  # noqa: B023
        for several, one in zip(together, alone):
            for a, b in zip(jax.tree.leaves(several.total), jax.tree.leaves(one.total)):
                np.testing.assert_allclose(a[at], b, rtol=1e-5, atol=1e-6)


def two_layers(params, x):
    below, above = layer(SHAPES["3 x 3"])[1], layer(shape((5, 6), 3, (3, 3), 2))[1]
    return above(params["above"], jnp.tanh(below(params["below"], x)))


def one_parameter(params, x):
    """Both halves of a parameter: two kernels, or a kernel and the weights of a sum."""
    inside = layer(shape((5, 6), 2, (3, 3), 2, ((1, 1), (1, 1))))[1]
    kernels = params["halves"]
    x = jnp.tanh(inside({"kernel": kernels[0], "bias": jnp.zeros(2)}, x))
    if "kernels" in params:
        return inside({"kernel": kernels[1], "bias": params["kernels"]}, x)
    return x * kernels[1].sum()


NETWORKS = {
    "layers below": (
        two_layers,
        {"below": {"kernel": (3, 3, 2, 3), "bias": (3,)}, "above": {"kernel": (3, 3, 3, 2), "bias": (2,)}},
        (3, 4, 2),
    ),
    "two kernels of a parameter": (one_parameter, {"halves": (2, 3, 3, 2, 2), "kernels": (2,)}, (5, 6, 2)),
    "a kernel and other uses": (one_parameter, {"halves": (2, 3, 3, 2, 2)}, (5, 6, 2)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_the_gradients_of_automatic_differentiation(name, monkeypatch):
    apply, shapes, out = NETWORKS[name]

    def init(key):
        return jax.tree.map(lambda a: jax.random.normal(key, a) / 3, shapes, is_leaf=lambda a: isinstance(a, tuple))

    model, rng = fdp.model((init, apply), (5, 6, 2), loss=weighted_tanh), np.random.default_rng(1)
    params = model.init(jax.random.key(1))
    x, y = (rng.normal(size=(RECORDS, *size)).astype(np.float32) for size in ((5, 6, 2), out))
    one = jax.grad(lambda p, x, y: weighted_tanh(apply(p, x), y))
    each = jax.jit(jax.vmap(one, (None, 0, 0)))(params, x, y)
    monkeypatch.setattr(record_convolutions, "CACHE", 1)
    clipped, plain = sums(model, params, x, y, jnp.ones(RECORDS, bool), 1e9)
    for a, b, c in zip(*map(jax.tree.leaves, (plain.total, clipped.total, each))):
        np.testing.assert_allclose(a, c.sum(0), rtol=1e-4, atol=2e-5)
        np.testing.assert_allclose(b, c.sum(0), rtol=1e-4, atol=2e-5)


@pytest.mark.slow
def test_filtering_changes_no_more_than_rounding_where_nothing_depends_on_it_by_a_jump(monkeypatch):
    """After some steps of a network with smooth activations, as much as sums in another order, those of the records."""

    def apply(params, x):
        for kernel in params:
            x = lax.conv_general_dilated(x[None], kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))[0]
            x = jnp.tanh(x)
        return x

    def init(key):
        return [jax.random.normal(key, (5, 5, channels, 16)) / 20 for channels in (16, 16)]

    model = fdp.model((init, apply), (8, 9, 16), loss=weighted_tanh)
    mask = jnp.ones(RECORDS, bool)

    def steps(params, x, y):
        for _ in range(3):
            total = gradients.clipped_sum(model, params, x, y, mask, CLIP).total
            params = jax.tree.map(lambda p, g: p - 0.1 * g, params, total)
        return ravel(params)[0]

    def compiled(channels):
        monkeypatch.setattr(record_convolutions, "CHANNELS", channels)
        return jax.jit(lambda *of: steps(*of)).lower(init(jax.random.key(0)), images, images).compile()

    def apart(one, other):
        return float(jnp.abs(one - other).max() / jnp.abs(one).max())

    images = jnp.zeros((RECORDS, 8, 9, 16))
    filtered, exact = compiled(16), compiled(10**9)
    for seed in range(5):
        params, rng = init(jax.random.key(seed)), np.random.default_rng(seed)
        x, y = (rng.normal(size=images.shape).astype(np.float32) for _ in range(2))
        usual, turned = exact(params, x, y), exact(params, x[::-1], y[::-1])
        assert 0 < apart(usual, filtered(params, x, y)) <= max(1e-6, 4 * apart(usual, turned))


def test_an_image_that_is_not_finite_spoils_a_plain_sum_and_is_left_out_of_a_clipped_one():
    model, params, x, y = problem(SHAPES["3 x 3"])
    x[0, 2, 2, 0] = np.nan
    mask = jnp.ones(RECORDS, bool)
    clipped, plain = sums(model, params, x, y, mask, CLIP)
    assert not np.isfinite(plain.total["kernel"]).all()
    assert np.linalg.norm(ravel(clipped.total)[0]) <= RECORDS * CLIP


@pytest.mark.slow
def test_bfloat16_images_with_a_float32_result_are_not_filtered(monkeypatch):
    """Their sums would round; the products do not."""

    def apply(params, x):
        narrow = (x[None].astype(jnp.bfloat16), params["kernel"].astype(jnp.bfloat16))
        return lax.conv_general_dilated(
            *narrow,
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            preferred_element_type=jnp.float32,
        )[0]

    rng = np.random.default_rng(0)
    params = {"kernel": rng.normal(size=(3, 3, 16, 2)).astype(np.float32)}
    x, y = (rng.normal(size=(RECORDS, 6, 8, channels)).astype(np.float32) for channels in (16, 2))
    model = fdp.model((lambda key: params, apply), x.shape[1:], loss=weighted_tanh)
    monkeypatch.setattr(record_convolutions, "CACHE", 1)
    clipped, plain = sums(model, params, x, y, jnp.ones(RECORDS, bool), 1e9)
    scores = jax.vmap(apply, (None, 0))(params, x)
    e = y / np.cosh(scores) ** 2
    padded = np.pad(x.astype(jnp.bfloat16).astype(np.float32), ((0, 0), (1, 1), (1, 1), (0, 0)))
    exact = np.array(
        [[np.einsum("nhwc,nhwo->co", padded[:, i : i + 6, j : j + 8], e) for j in range(3)] for i in range(3)]
    )
    for total in (clipped.total, plain.total):
        np.testing.assert_allclose(total["kernel"], exact, atol=1e-5 * np.abs(exact).max())


def test_rows_are_all_that_fit_twice_the_cache_or_divide_the_records_and_fit_it(monkeypatch):
    monkeypatch.setattr(record_convolutions, "CACHE", 2**20)
    sizes = [rows_at_once(32, windows) for windows in (1, 2**14, 2**15, 2**17, 2**30)]
    assert sizes == [32, 32, 8, 2, 1]
    assert (rows_at_once(36, 2**14), rows_at_once(37, 2**14), rows_at_once(0, 5)) == (12, 1, 0)


@pytest.mark.parametrize(
    ("model", "alike"),
    [(model_of(SHAPES["3 x 3"]), True), (model_of(SHAPES["3 x 3"], jnp.bfloat16), False)],
    ids=["float32", "bfloat16"],
)
def test_only_float32_kernels_build_no_windows(model, alike):
    """bfloat16 keeps the rounding of its products."""
    params = model.init(jax.random.key(0))
    x, y = jnp.zeros((1, 5, 6, 2)), jnp.zeros((1, 5, 6, 3))
    kernels = gradients.clipped.loss_plan(model, params, x, y).kernels
    assert [type(geometry) for *_, geometry in kernels] == [RecordConvolution] * alike
