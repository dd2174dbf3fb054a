"""Clipped sums: the fast way equals the plain one, and the bound holds for every input."""

import dataclasses
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from helpers import quick, ragged_data, usual
from jax import lax

import fedjax_dp as fdp
from fedjax_dp import errors, gradients
from fedjax_dp.gradients import clipped, norms
from fedjax_dp.models import ARCHITECTURES, Linen, NetworkModel, cnn, group_norm_cnn, lstm
from fedjax_dp.pytrees import ravel


class Mlp(nn.Module):
    widths: tuple[int, ...]
    bias: bool = True

    @nn.compact
    def __call__(self, x):
        for width in self.widths[:-1]:
            x = jnp.tanh(nn.Dense(width, use_bias=self.bias)(x))
        return nn.Dense(self.widths[-1], use_bias=self.bias)(x)


class Shared(nn.Module):
    """One layer used twice: its gradient is the sum over both uses, and so not the sum of two squared norms."""

    @nn.compact
    def __call__(self, x):
        layer = nn.Dense(x.shape[-1])
        return layer(jnp.tanh(layer(x)))


class Leaking(nn.Module):
    """A kernel that also reaches the output past its layer."""

    @nn.compact
    def __call__(self, x):
        layer = nn.Dense(3)
        out = layer(x)
        return out * layer.variables["params"]["kernel"].sum()


class Tied(nn.Module):
    """A kernel used again, transposed, on the way into a later layer."""

    @nn.compact
    def __call__(self, x):
        layer = nn.Dense(4)
        return nn.Dense(3)(layer(x) @ layer.variables["params"]["kernel"].T)


class Scaled(nn.Module):
    """A parameter of no known layer."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x) * self.param("scale", nn.initializers.ones, (3,))[None]


class Sequence(nn.Module):
    """Layers over positions, one after another, then class scores; `kinds` names them. Features are (positions, 4)."""

    kinds: tuple[str, ...]

    @nn.compact
    def __call__(self, x):
        again = nn.Dense(4)
        layers = {
            "dense": lambda: nn.Dense(6, use_bias=False),
            "again": lambda: again,
            "conv": lambda: nn.Conv(4, (3,), strides=(2,), use_bias=True),
            "dilated": lambda: nn.Conv(5, (2,), kernel_dilation=(2,), padding="VALID", use_bias=False),
            "layer": lambda: nn.LayerNorm(),
            "scale": lambda: nn.LayerNorm(use_bias=False),
            "group": lambda: nn.GroupNorm(2),
            "rms": lambda: nn.RMSNorm(),
            "lstm": lambda: nn.RNN(nn.OptimizedLSTMCell(3)),
            "gru": lambda: nn.RNN(nn.GRUCell(4)),
            "in groups": lambda: nn.Conv(4, (2,), feature_group_count=2),
            "old": lambda: nn.RNN(nn.LSTMCell(4)),
        }
        for kind in self.kinds:
            x = nn.Dense(4)(x) if kind in ("again", "group") and x.shape[-1] != 4 else x
            x = jnp.tanh(layers[kind]()(x))
        return nn.Dense(3)(x.reshape(x.shape[0], -1))


class Words(nn.Module):
    """An embedding in which a word may occur more than once."""

    @nn.compact
    def __call__(self, tokens):
        return nn.Dense(3)(nn.Embed(7, 4)(tokens).sum(1))


class Picture(nn.Module):
    """A convolution over two dimensions whose gradient is cheaper by record (many positions) and one by Gram matrix."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(3, (3, 2), strides=2, padding=1)(x))
        x = nn.Conv(40, (2, 2), padding=((0, 1), (1, 0)), use_bias=False)(nn.relu(x))
        return nn.Dense(3)(nn.avg_pool(x, (2, 2)).reshape(x.shape[0], -1))


class Beyond(nn.Module):
    """A kernel that is longer than its picture, padding included: it sees nothing, and its gradient is zero."""

    @nn.compact
    def __call__(self, x):
        unseen = nn.Conv(2, (7, 3), padding="VALID")(x)
        return nn.Dense(3)(jnp.concatenate([x.reshape(x.shape[0], -1), unseen.reshape(x.shape[0], -1)], axis=-1))


class Twice(nn.Module):
    """One pass of the loop below."""

    @nn.compact
    def __call__(self, x, _):
        return jnp.tanh(nn.Dense(x.shape[-1])(x)), None


class Looped(nn.Module):
    """A layer inside a compiled loop."""

    @nn.compact
    def __call__(self, x):
        loop = nn.scan(Twice, variable_broadcast="params", split_rngs={"params": False}, length=2)
        return nn.Dense(3)(loop()(x, None)[0])


def problem(module, records, features, seed=0, classes=3, scale=1.0, tokens=False):
    keys = jax.random.split(jax.random.key(seed), 3)
    shape = (features,) if isinstance(features, int) else features
    model = NetworkModel(Linen(module), shape, tokens=tokens)
    params = jax.tree.map(lambda w: w + 0.1, jax.jit(model.init)(keys[0]))
    x = scale * jax.random.normal(keys[1], (records, *shape))
    x = jax.random.randint(keys[1], (records, *shape), 0, 7) if tokens else x
    return model, params, x, jax.random.randint(keys[2], (records,), 0, classes)


clipped_sum = jax.jit(gradients.clipped_sum, static_argnums=0)


def by_hand(model, params, x, y, mask, clip_norm):
    """Gradients of single records, clipped and added one by one in float64 NumPy."""
    one = jax.grad(lambda p, x, y: model.loss(p, x, y, None))
    leaves = jax.tree.leaves(jax.jit(jax.vmap(one, in_axes=(None, 0, 0)))(params, x, y))
    total = [np.zeros(leaf.shape[1:]) for leaf in leaves]
    for row in np.flatnonzero(np.asarray(mask)):
        gradient = [np.asarray(leaf[row], np.float64) for leaf in leaves]
        norm = np.sqrt(sum((part**2).sum() for part in gradient))
        factor = min(1.0, clip_norm / norm) if norm > 0 else 1.0
        total = [a + factor * b for a, b in zip(total, gradient)]
    return total


def assert_by_hand(total, *given, rtol=2e-5, atol=2e-6):
    for a, b in zip(jax.tree.leaves(total), by_hand(*given), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


KINDS = ("dense", "again", "conv", "dilated", "layer", "scale", "group", "rms", "lstm", "old")


@pytest.mark.parametrize(
    ("module", "shape", "tokens"),
    [
        (Shared(), (3,), False),
        pytest.param(Picture(), (7, 6, 2), False, marks=pytest.mark.slow),
        pytest.param(Words(), (6,), True, marks=pytest.mark.slow),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (
                # CI: its layer and its loop in test_every_use_of_a_parameter_is_right_and_described
                (lstm((5,), 3, np.eye(7), hidden=4, layers=1).network.module, (5,), True),
                (Beyond(), (3, 4, 2), False),
                (group_norm_cnn((8, 8), 3).network.module, (8, 8), False),
                (cnn((8, 8), 3).network.module, (8, 8), False),
                (Sequence(KINDS), (30, 4), False),
            )
        ),
    ],
)
@pytest.mark.usefixtures("float32_products")
def test_known_layers_equal_gradients_taken_one_by_one(module, shape, tokens):
    model, params, x, y = problem(module, 4, shape, tokens=tokens)
    mask = jnp.arange(4) < 3
    got = clipped_sum(model, params, x, y, mask, 0.5)
    assert_by_hand(got.total, model, params, x, y, mask, 0.5, rtol=1e-4, atol=6e-6)
    assert jax.tree.structure(got.total) == jax.tree.structure(params)
    assert got.clipped[:3].any()  # else the clip would not have been tested


@pytest.mark.parametrize(
    ("module", "shape", "way", "words"),
    [
        (Leaking(), 6, "direct", "is part of the result|goes into"),
        (Looped(), 6, "factored", "2 positions"),
        pytest.param(Tied(), 6, "factored", "dot_general \\(transposed\\)", marks=pytest.mark.slow),
        pytest.param(Scaled(), 6, "direct", "goes into mul", marks=pytest.mark.slow),
        pytest.param(Sequence(("gru",)), (2, 3), "factored", "dot_general, 4 x 4", marks=pytest.mark.exhaustive),
        pytest.param(Sequence(("in groups",)), (3, 2), "factored", "2 x 2 x 2", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("microbatch", usual([None, 3], (None,)))
def test_every_use_of_a_parameter_is_right_and_described(module, shape, way, words, microbatch):
    model, params, x, y = problem(module, 4, shape)
    weights = gradients.explain(model, params, x, y).weights
    assert any(weight.way == way and re.search(words, weight.reason) for weight in weights), weights
    got = jax.jit(gradients.clipped_sum, static_argnums=(0, 6))(model, params, x, y, jnp.ones(4, bool), 0.5, microbatch)
    assert_by_hand(got.total, model, params, x, y, np.ones(4), 0.5)


@pytest.mark.slow
def test_few_records_that_a_gpu_adds_up_one_by_one_are_clipped_alike(monkeypatch):
    """Of both shapes of a layer, a record that is not finite and padding; one record's part stays within the bound."""
    monkeypatch.setattr(lax, "platform_dependent", lambda *args, default, cuda=None, **_: (cuda or default)(*args))
    model, params, x, y = problem(Mlp((12, 3)), 6, 5)
    x, mask = x.at[0].set(jnp.inf), jnp.arange(6) < 5
    apart = str(jax.make_jaxpr(lambda x: gradients.clipped_sum(model, params, x, y, mask, 0.3))(x))
    got = clipped_sum(model, params, x, y, mask, 0.3)
    assert_by_hand(got.total, model, params, x, y, mask & (jnp.arange(6) > 0), 0.3)
    for at in range(6):
        alone = np.asarray(ravel(clipped_sum(model, params, x, y, jnp.arange(6) == at, 0.3).total)[0], np.float64)
        assert np.linalg.norm(alone) <= 0.3 * (1 + 1e-6)
    monkeypatch.setattr(norms, "FEW", 5)
    together = str(jax.make_jaxpr(lambda x: gradients.clipped_sum(model, params, x, y, mask, 0.3))(x))
    assert together.count("dot_general") == apart.count("dot_general") + 4  # two weights, and biases


def test_a_norm_that_cancels_between_positions_is_not_taken_for_small():
    """Two positions that cancel to 1e-4 of their size: the clipped gradient keeps its bound."""
    model = fdp.model((lambda key: {"w": jnp.zeros((300, 40))}, lambda p, x: x @ p["w"]), (2, 300), loss=cancelling)
    params, x = model.init(jax.random.key(0)), jnp.full((1, 2, 300), 100.0)
    assert "pairs of positions" in str(gradients.explain(model, params, x, jnp.zeros(1, int)))
    found = clipped_sum(model, params, x, jnp.zeros(1, int), jnp.ones(1, bool), 1.0)
    length = 2 * np.sqrt(300 * 40) * 100  # sum over positions of |u| |v|
    exact, rounding = length / 2 * 1e-4, np.sqrt((300 + 40 + 2 * norms.OPERATIONS) * 2.0**-24)
    assert exact <= found.norms[0] <= exact + 1.5 * rounding * length
    assert jnp.linalg.norm(found.total["w"]) <= 1


def cancelling(scores, label):
    return scores[0].sum() - 0.9999 * scores[1].sum()


class Apart(nn.Module):
    """A network made of one function of a batch."""

    function: Callable

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(self.function(x))


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda x: x - x.mean(0, keepdims=True), "reduce_sum"),
        (lambda x: x / jnp.abs(x).max(), "reduce_max"),
        (lambda x: x + jnp.where(x.max() > 255, x.mean(0, keepdims=True), 0), "reduce_max"),  # only for large inputs
        (lambda x: x @ (x.T @ x), "dot_general"),
        (lambda x: jnp.cumsum(x, 0), "cumsum"),
        (lambda x: jnp.sort(x, 0), "sort"),
        (lambda x: x[::-1], "rev"),
        (lambda x: x - x[:1], "slice"),
        (lambda x: x * (x.sum() > 0), "reduce_sum"),
        (lambda x: lax.scan(lambda c, r: (c + r, c), jnp.zeros(5), x)[1], "scan"),
        (lambda x: jax.jit(lambda x: jax.nn.standardize(x, axis=0))(x), "reduce_sum"),
        (lambda x: x - x.reshape(-1).mean(), "reduce_sum"),
        (lambda x: jnp.roll(x, 1, 0), "slice"),
    ],
)
def test_what_a_network_does_over_a_batch_is_found_in_its_program(function, what):
    with pytest.raises(errors.ConfigurationError, match=f"{what}.*runs over the records of a batch"):
        fdp.model(Apart(function), (5,))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(1, keepdims=True),
        lambda x: x.T.T,
        lambda x: lax.map(lambda r: r / r.sum(), x),
        lambda x: jnp.stack([2 * r for r in x]),
        lambda x: x[jnp.arange(x.shape[0]), ::-1],
        lambda x: (x.reshape(-1) * 2).reshape(x.shape),
        lambda x: jnp.einsum("ni,nj->nij", x, x).sum(2),
        lambda x: jax.vmap(lambda r: jnp.sort(r) - jnp.max(r))(x),
        lambda x: jnp.broadcast_to(x[:, None], (x.shape[0], 2, 5)).sum(1),
        lambda x: lax.scan(lambda c, r: (c + r, c), jnp.zeros(x.shape[0]), x.T)[1].T,
    ],
)
def test_what_treats_each_record_alone_is_no_matter_how_it_is_written(function):
    model = fdp.model(Apart(function), (5,))
    params, x = model.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (4, 5))
    scores, direct = jax.jit(lambda p, x: (gradients.logits(model, p, x), model.network.run(p, x, None)))(params, x)
    np.testing.assert_allclose(scores, direct, rtol=1e-5, atol=1e-6)


class TimeMajor(nn.Module):
    """Dense layers over activations whose first axis is time; records are the second."""

    @nn.compact
    def __call__(self, x):
        h = nn.tanh(nn.Dense(6)(x.swapaxes(0, 1)))
        return nn.Dense(3)(h.sum(0))


class Placed(nn.Module):
    """A table of positions, as transformers have: what it looks up does not depend on the record."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.tanh(x + nn.Embed(x.shape[1], x.shape[2])(jnp.arange(x.shape[1]))[None]).sum(1))


class Normed(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.WeightNorm(nn.Dense(3))(x.reshape(x.shape[0], -1))


@pytest.mark.parametrize(
    "module",
    [
        Placed(),
        pytest.param(Normed(), marks=pytest.mark.slow),  # whose scale is a parameter, too
        pytest.param(TimeMajor(), marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("length", quick([4, 7], (4,), pytest.mark.exhaustive))
def test_one_record_moves_the_sum_by_its_clip_norm_whatever_its_axes_look_like(module, length):
    """Batches of 4 records: time or positions as many as records were taken for records, or raised a TypeError."""
    model, params, x, y = problem(module, 4, (length, 3), scale=3.0)
    everyone, others = jnp.ones(4, bool), jnp.arange(4) != 2
    whole, rest = (clipped_sum(model, params, x, y, mask, 0.5) for mask in (everyone, others))
    assert_by_hand(whole.total, model, params, x, y, everyone, 0.5)
    assert jnp.linalg.norm(ravel(whole.total)[0] - ravel(rest.total)[0]) <= 0.5 * (1 + 1e-5)


def balanced(scores, labels):
    """Written for a batch: each record weighs by how many have its label."""
    weights = 1 / jnp.bincount(labels, length=3)[labels]
    return weights * gradients_of_a_batch(scores, labels)


def gradients_of_a_batch(scores, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], 1)[:, 0]


def use(model):
    params = model.init(jax.random.key(0))
    return gradients.clipped_sum(model, params, jnp.ones((4, 5)), jnp.zeros(4, int), jnp.ones(4, bool), 1.0)


# a primitive that JAX cannot batch
odd = jax.extend.core.Primitive("odd")
odd.def_abstract_eval(lambda a: a)
odd.def_impl(lambda a: a)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fdp.model(Apart(lambda x: x), (5,), loss=lambda s, y: s), r"a loss that is float32\[3\]"),
        (lambda: fdp.model(Apart(lambda x: x), (5,), loss=lambda s, y: y), r"a loss that is int32\[\]"),
        (lambda: fdp.model(Apart(lambda x: x.astype(jnp.float16)), (5,)), None),
        (
            lambda: fdp.model((lambda key: jnp.ones(5), half), (5,)),
            r"overflow in it, got .* in float16 in .*test_clipped.py",
        ),
        (lambda: fdp.model(Apart(odd.bind), (5,)), r"got odd in .*test_clipped.py"),
        (
            lambda: fdp.model(Apart(lambda x: x), (5,), loss=balanced),
            r"the loss that fails on one record in .*test_clipped.py",
        ),
        (lambda: fdp.model(Forgetful(), (5,)), "Forgetful that fails on one record.*InvalidRngError"),
        (lambda: fdp.model((lambda key: jnp.ones(5), unknown), (5,)), r"a loop of unknown length in .*use scan"),
        (lambda: fdp.model(3, (5,)), "got 3; give"),
        (lambda: fdp.model(Apart(lambda x: x.sum()), (5,)), "fails on one record|makes"),
        (
            lambda: fdp.model(Apart(lambda x: x @ jnp.ones((7, 2))), (5,)),
            "fails on one record in .*test_clipped.py.*TypeError",
        ),
    ],
)
def test_what_cannot_be_trained_is_one_line_with_the_place_in_the_code(make, words):
    if words is None:  # only records are narrow, no gradient is
        assert jnp.isfinite(ravel(use(make()).total)[0]).all()
        return
    with pytest.raises(errors.ConfigurationError, match=words) as caught:
        use(make())
    assert "\n" not in str(caught.value)


def half(params, x):
    return (params.astype(jnp.float16) * x.astype(jnp.float16))[:3].astype(jnp.float32)


def unknown(params, x):
    return lax.while_loop(lambda h: h.sum() < 9, lambda h: h + params * params, x)[:3]


class Forgetful(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=False)(x))


def test_a_spectrum_is_complex_and_its_gradients_are_right():
    model = fdp.model((lambda key: jnp.linspace(0.5, 1.0, 15).reshape(5, 3), spectrum), (5,))
    params, x, y = model.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (4, 5)), jnp.arange(4) % 3
    got = clipped_sum(model, params, x, y, jnp.ones(4, bool), 0.1)
    assert_by_hand(got.total, model, params, x, y, np.ones(4), 0.1, rtol=1e-4, atol=1e-6)


def spectrum(params, x):
    return jnp.abs(jnp.fft.fft(x)[:, None] * params).sum(0) + jnp.real(x.astype(jnp.complex64) @ (1j + params))


def test_a_loss_that_asks_other_devices_is_refused():
    """Inside a round the devices have a name, by which a loss could read records of other clients."""
    model = fdp.model(Apart(lambda x: x), (3,), loss=lambda scores, y: lax.psum(scores.sum(), "cohort"))
    value = fdp.dpnfl(cohort_size=2, batch_size=4, local_steps=1, learning_rate=0.1, clip_norm=1.0)
    with pytest.raises(errors.ConfigurationError, match="unbound axis name"):
        fdp.simulate(value, ragged_data([20, 30, 25]), rounds=1, model=model)


@pytest.mark.parametrize(
    "kinds",
    quick(
        [("dense",), ("again", "again"), ("conv", "dilated")],
        [("dense",)],
    )
    + usual([("layer", "scale"), ("group", "rms"), ("lstm",)], []),
)
@pytest.mark.parametrize("spoilt", quick([jnp.nan, jnp.inf, -3e38, 1e30], (jnp.nan,), pytest.mark.exhaustive))
def test_a_record_that_is_not_finite_moves_the_sum_by_at_most_the_clip_norm(kinds, spoilt):
    """Whatever layer it passes; what is zero times the clip factor must not come out as NaN."""
    model, params, x, y = problem(Sequence(kinds), 5, (7, 4))
    others, spoiled = jnp.arange(5) != 2, x.at[2].set(spoilt)
    total, without = (ravel(clipped_sum(model, params, spoiled, y, m, 0.5).total)[0] for m in (others | True, others))
    clean = ravel(clipped_sum(model, params, x, y, others, 0.5).total)[0]
    np.testing.assert_array_equal(without, clean)  # padding contributes exactly zero
    assert jnp.linalg.norm(total - without) <= 0.5 * (1 + 1e-5)


@pytest.mark.slow
def test_loose_clip_equals_the_plain_gradient():
    model, params, x, y = problem(Mlp((5, 3)), 6, 4)
    loose = clipped_sum(model, params, x, y, jnp.ones(6, bool), 1e9)
    plain = gradients.plain_sum(model, params, x, y, jnp.ones(6, bool))
    for a, b in zip(jax.tree.leaves(loose.total), jax.tree.leaves(plain.total)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loose.losses, plain.losses, rtol=1e-6)
    assert not loose.clipped.any()


def test_clip_factor_table():
    squared = jnp.array([0.0, 4.0, 1.0, jnp.nan, jnp.inf, 9.0])
    factors = clipped.clip_factors(squared, jnp.array([True] * 5 + [False]), 1.0)
    np.testing.assert_allclose(factors, [1.0, 0.5, 1.0, 0.0, 0.0, 0.0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", usual(("logistic", "mlp", "cnn", "group_norm_cnn", "tutorial_cnn", "lenet"), ("logistic",))
)
def test_bfloat16_rounds_the_gradient_and_not_its_bound(name):
    """Forward and backward in bfloat16; norms and sums of what came out of them in float32."""
    shapes = {
        "logistic": (20,),
        "mlp": (20,),
        "cnn": (12, 12),
        "group_norm_cnn": (8, 8, 3),
        "tutorial_cnn": (13, 13),
        "lenet": (16, 16),
    }
    shape = shapes[name]
    wide = ARCHITECTURES[name](shape, 4)
    narrow = dataclasses.replace(wide, dtype=jnp.bfloat16)
    params = jax.tree.map(
        lambda p: p + 0.1 * jax.random.normal(jax.random.key(1), p.shape), wide.init(jax.random.key(0))
    )
    x, y = jax.random.normal(jax.random.key(2), (6, *shape)), jnp.arange(6) % 4
    mask = jnp.ones(6, bool)
    words = gradients.describe(narrow, params, x, y)
    assert words.startswith("norms in the backward pass")
    assert words.endswith("of gradients computed in bfloat16")
    one = jax.vmap(jax.grad(narrow.loss), (None, 0, 0))
    rows = jax.vmap(lambda g: ravel(g)[0])(jax.jit(one)(params, x, y))
    for clip_norm in (1e6, 0.5):
        sums = [clipped_sum(model, params, x, y, mask, clip_norm).total for model in (wide, narrow)]
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(sums))
        a, b = (ravel(total)[0] for total in sums)
        error = jnp.linalg.norm(a - b) / jnp.linalg.norm(a)
        theirs = (jnp.minimum(1.0, clip_norm / jnp.linalg.norm(rows, axis=1))[:, None] * rows).sum(0)
        by_records = jnp.linalg.norm(a - theirs) / jnp.linalg.norm(a)
        assert 1e-5 < error < 1.5 * by_records  # another program, and no worse than bfloat16 gradients of records
    for i in range(6):  # a record alone: what is summed has the norm that was clipped to
        alone = ravel(clipped_sum(narrow, params, x[i : i + 1], y[i : i + 1], mask[:1], 0.5).total)[0]
        assert jnp.linalg.norm(alone) <= 0.5 * (1 + 1e-5)


class WithoutLoss:
    def init(self, key):
        return jnp.zeros(3)


def test_a_model_without_a_loss_of_one_record_is_refused():
    plain = fdp.fedavg(cohort_size=2, batch_size=4, local_steps=1, learning_rate=0.1)
    with pytest.raises(errors.ConfigurationError, match="WithoutLoss, which lacks loss"):
        fdp.simulate(plain, ragged_data([20, 30, 25]), rounds=1, model=WithoutLoss())
