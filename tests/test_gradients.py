"""Clipped sums: the fast way equals the plain one, and the bound holds for every input."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_dp import errors, gradients
from fedjax_dp.config import MODELS
from fedjax_dp.gradients import clipped, layers
from fedjax_dp.models import FlaxModel, Frozen, cnn, group_norm_cnn, logistic_regression, lstm
from fedjax_dp.values import ravel


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
            "dense": lambda: nn.Dense(6, use_bias=False), "again": lambda: again,
            "conv": lambda: nn.Conv(4, (3,), strides=(2,), use_bias=True),
            "dilated": lambda: nn.Conv(5, (2,), kernel_dilation=(2,), padding="VALID", use_bias=False),
            "layer": lambda: nn.LayerNorm(), "scale": lambda: nn.LayerNorm(use_bias=False),
            "group": lambda: nn.GroupNorm(2), "rms": lambda: nn.RMSNorm(),
            "lstm": lambda: nn.RNN(nn.OptimizedLSTMCell(3)), "old": lambda: nn.RNN(nn.LSTMCell(4)),
        }  # fmt: skip
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


class Gated(nn.Module):
    """A recurrent layer without a rule."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.RNN(nn.GRUCell(4))(x.reshape(x.shape[0], 2, -1))[:, -1])


class Grouped(nn.Module):
    """A convolution in a form without a rule."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.Conv(4, (2,), feature_group_count=2)(x.reshape(x.shape[0], 3, 2)).sum(1))


def problem(module, records, features, seed=0, classes=3, scale=1.0, tokens=False):
    keys = jax.random.split(jax.random.key(seed), 3)
    shape = (features,) if isinstance(features, int) else features
    model = FlaxModel(module, shape, tokens=tokens)
    params = jax.tree.map(lambda w: w + 0.1, jax.jit(model.init)(keys[0]))
    x = scale * jax.random.normal(keys[1], (records, *shape))
    x = jax.random.randint(keys[1], (records, *shape), 0, 7) if tokens else x
    return model, params, x, jax.random.randint(keys[2], (records,), 0, classes)


compiled_sum = jax.jit(gradients.clipped_sum, static_argnums=0)


def by_hand(model, params, x, y, mask, clip_norm):
    """Gradients of single records, clipped and added one by one in float64 NumPy."""
    one = jax.grad(lambda p, x, y: model.losses(p, x[None], y[None])[0])
    leaves = jax.tree.leaves(jax.jit(jax.vmap(one, in_axes=(None, 0, 0)))(params, x, y))
    total = [np.zeros(leaf.shape[1:]) for leaf in leaves]
    for row in np.flatnonzero(np.asarray(mask)):
        gradient = [np.asarray(leaf[row], np.float64) for leaf in leaves]
        norm = np.sqrt(sum((part**2).sum() for part in gradient))
        factor = min(1.0, clip_norm / norm) if norm > 0 else 1.0
        total = [a + factor * b for a, b in zip(total, gradient)]
    return total


def clipped_sum(model, *arguments):
    """The function under test, compiled as a round compiles it."""
    return jax.jit(gradients.clipped_sum, static_argnums=0)(model, *arguments)


@given(
    records=st.integers(1, 6), features=st.integers(1, 7), hidden=st.lists(st.integers(1, 6), max_size=2),
    bias=st.booleans(), clip_norm=st.floats(1e-3, 1e3), seed=st.integers(0, 99), real=st.integers(1, 6),
)  # fmt: skip
@settings(max_examples=8, deadline=None)
@pytest.mark.slow
def test_probes_equal_gradients_taken_one_by_one(records, features, hidden, bias, clip_norm, seed, real):
    model, params, x, y = problem(Mlp((*hidden, 3), bias), records, features, seed)
    assert gradients.describe(model, params, x, y) == "norms in the backward pass"
    mask = jnp.arange(records) < real
    got = clipped_sum(model, params, x, y, mask, clip_norm)
    for a, b in zip(jax.tree.leaves(got.total), by_hand(model, params, x, y, mask, clip_norm)):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    assert jax.tree.structure(got.total) == jax.tree.structure(params)


def check_against_gradients_taken_one_by_one(model, params, x, y, clip_norm):
    mask = jnp.arange(len(y)) < max(1, len(y) - 1)
    got = clipped_sum(model, params, x, y, mask, clip_norm)
    for a, b in zip(jax.tree.leaves(got.total), by_hand(model, params, x, y, mask, clip_norm), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * clip_norm + 1e-6)
    assert jax.tree.structure(got.total) == jax.tree.structure(params)
    return got


KINDS = ("dense", "again", "conv", "dilated", "layer", "scale", "group", "rms", "lstm", "old")


@pytest.mark.slow
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), records=st.integers(1, 4),
    positions=st.integers(7, 20), clip_norm=st.floats(1e-2, 10), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=5, deadline=None)
def test_layers_over_positions_equal_gradients_taken_one_by_one(kinds, records, positions, clip_norm, seed):
    kinds = [kind for i, kind in enumerate(kinds) if kind not in ("conv", "dilated") or kind not in kinds[:i]]
    problem_ = problem(Sequence(tuple(kinds)), records, (positions, 4), seed)
    assert gradients.describe(*problem_) == "norms in the backward pass"
    check_against_gradients_taken_one_by_one(*problem_, clip_norm)


@pytest.mark.parametrize(
    ("module", "shape", "tokens"),
    [(Picture(), (7, 6, 2), False), (Words(), (6,), True), (Shared(), (3,), False),
     (lstm((5,), 3, Frozen(np.eye(7)), hidden=4, layers=1).module, (5,), True),
     *(pytest.param(*case, False, marks=pytest.mark.slow) for case in
       ((cnn((8, 8), 3).module, (8, 8)), (Sequence(KINDS), (30, 4)), (group_norm_cnn((8, 8), 3).module, (8, 8))))],
)  # fmt: skip
def test_known_layers_equal_gradients_taken_one_by_one(module, shape, tokens):
    problem_ = problem(module, 4, shape, tokens=tokens)
    assert gradients.describe(*problem_) == "norms in the backward pass"
    got = check_against_gradients_taken_one_by_one(*problem_, 0.5)
    assert got.clipped[:3].any()  # else the clip would not have been tested


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Leaking(), "how parameter Dense_0/kernel is used"), (Tied(), "how parameter Dense_0/kernel is used"),
        (Scaled(), "how parameter scale is used"), (Looped(), "how parameter ScanTwice_0"),
        (Gated(), "how parameter GRUCell_0"), (Grouped(), "how parameter Conv_0"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("microbatch", [None, 3])
def test_what_the_rules_do_not_cover_falls_back_and_is_right(module, reason, microbatch):
    model, params, x, y = problem(module, 4, 6, classes=3)
    assert reason in gradients.describe(model, params, x, y)
    got = jax.jit(gradients.clipped_sum, static_argnums=(0, 6))(
        model, params, x, y, jnp.ones(4, bool), 0.5, microbatch
    )  # fmt: skip
    for a, b in zip(jax.tree.leaves(got.total), by_hand(model, params, x, y, np.ones(4), 0.5)):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def test_norms_added_up_over_uses_of_a_layer_would_be_wrong():
    """What the law above would reject: a layer used twice, its uses taken for two layers."""
    model, params, x, y = problem(Shared(), 1, 3)
    whole = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(clipped_sum(model, params, x, y, y < 3, 1e9).total)))
    found = clipped_sum(model, params, x, y, y < 3, float(whole) * (1 + 1e-4))
    assert not found.clipped.any()
    assert clipped_sum(model, params, x, y, y < 3, float(whole) * (1 - 1e-4)).clipped.all()


def test_a_norm_that_cancels_between_positions_is_not_taken_for_small():
    """Two positions that cancel to 1e-4 of their size: the clipped gradient keeps its bound."""
    a = jnp.array([[[100.0] * 30, [100.0] * 30]])
    e = jnp.array([[[1.0] * 40, [-0.9999] * 40]])
    squared = layers.product(a, e, False).squared_norms[0]
    exact = np.einsum("tk,to->ko", np.asarray(a[0], np.float64), np.asarray(e[0], np.float64))
    assert squared >= (exact**2).sum()


def test_a_module_that_mixes_records_is_refused():
    class Mixing(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.BatchNorm(use_running_average=True)(nn.Dense(3)(x))

    with pytest.raises(errors.ConfigurationError, match="use GroupNorm or LayerNorm"):
        FlaxModel(Mixing(), (4,)).init(jax.random.key(0))


class Centred(nn.Module):
    """A mean over the batch without any state that would betray it."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x - x.mean(0, keepdims=True))


@pytest.mark.slow
def test_a_mean_over_the_batch_is_found_by_trying():
    gradients.require_records_apart(FlaxModel(Mlp((4, 3)), (5,)))
    gradients.require_records_apart(lstm((5,), 3, Frozen(np.eye(7)), hidden=4, layers=1))
    with pytest.raises(errors.ConfigurationError, match="depends on other records"):
        gradients.require_records_apart(FlaxModel(Centred(), (4,)))


@dataclasses.dataclass(frozen=True)
class Plain:
    """The same losses as another model, without Flax, so that gradients are taken per record."""

    other: FlaxModel

    def losses(self, params, x, y):
        return self.other.losses(params, x, y)


@pytest.mark.parametrize("wrap", [lambda m: m, Plain])
def test_zero_huge_and_nan_gradients_stay_bounded(wrap):
    model, params, x, y = problem(Mlp((4, 3)), 5, 3)
    x = x.at[1].set(jnp.nan).at[2].set(1e30).at[3].set(0.0)
    total = clipped_sum(wrap(model), params, x, y, jnp.ones(5, bool), 1.0).total
    norm = np.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(total)))
    assert np.isfinite(norm)
    assert norm <= 4 * (1 + 1e-6)  # five records, of which the NaN one contributes zero
    without = clipped_sum(wrap(model), params, x, y, jnp.arange(5) != 1, 1.0).total
    for a, b in zip(jax.tree.leaves(total), jax.tree.leaves(without)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "kinds", [("dense",), ("again", "again"), ("conv", "dilated"), ("layer", "scale"), ("group", "rms"), ("lstm",)]
)
@pytest.mark.parametrize("spoilt", [jnp.nan, jnp.inf, -3e38, 1e30])
def test_a_record_that_is_not_finite_moves_the_sum_by_at_most_the_clip_norm(kinds, spoilt):
    """Whatever layer it passes; what is zero times the clip factor must not come out as NaN."""
    model, params, x, y = problem(Sequence(kinds), 5, (7, 4))
    others, spoiled = jnp.arange(5) != 2, x.at[2].set(spoilt)
    total, without = (ravel(compiled_sum(model, params, spoiled, y, m, 0.5).total)[0] for m in (others | True, others))
    clean = ravel(compiled_sum(model, params, x, y, others, 0.5).total)[0]
    np.testing.assert_array_equal(without, clean)
    assert jnp.linalg.norm(total - without) <= 0.5 * (1 + 1e-5)


@pytest.mark.parametrize("wrap", [lambda m: m, Plain])
def test_padding_records_contribute_exactly_zero(wrap):
    model, params, x, y = problem(Mlp((4, 3)), 6, 3)
    mask = jnp.arange(6) < 4
    spoiled = x.at[4:].set(jnp.nan)
    a = clipped_sum(wrap(model), params, x, y, mask, 0.3)
    b = clipped_sum(wrap(model), params, spoiled, y, mask, 0.3)
    for first, second in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
        np.testing.assert_array_equal(first, second)


@given(seed=st.integers(0, 200), clip_norm=st.floats(0.01, 10), scale=st.sampled_from([1e-3, 1.0, 1e3]))
@settings(max_examples=10, deadline=None)
def test_neighbours_move_the_sum_by_at_most_the_sensitivity(seed, clip_norm, scale):
    model, params, x, y = problem(logistic_regression((4,), 3).module, 5, 4, seed, scale=scale)
    everyone = jnp.ones(5, bool)

    def total(x, mask):
        leaves = jax.tree.leaves(clipped_sum(model, params, x, y, mask, clip_norm).total)
        return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in leaves])

    exchanged = x.at[2].set(-scale * jax.random.normal(jax.random.key(seed + 1), (4,)))
    rounding = 1e-5 * clip_norm * 5
    assert np.linalg.norm(total(x, everyone) - total(exchanged, everyone)) <= 2 * clip_norm + rounding
    assert np.linalg.norm(total(x, everyone) - total(x, jnp.arange(5) != 2)) <= clip_norm + rounding


def test_a_clip_of_the_batch_breaks_the_sensitivity_that_records_have():
    """The check above can fail: clipping the mean gradient lets one record move the sum by far more than 2 C."""
    model, params, x, y = problem(logistic_regression((4,), 3).module, 5, 4, scale=5.0)
    other = x.at[2].set(-200 * x[2])

    def batch_clip(x):
        leaves = jax.tree.leaves(gradients.plain_sum(model, params, x, y, jnp.ones(5, bool)).total)
        mean = np.concatenate([np.asarray(leaf).ravel() for leaf in leaves]) / 5
        return 5 * mean * min(1, 0.1 / np.linalg.norm(mean))

    assert np.linalg.norm(batch_clip(x) - batch_clip(other)) > 2 * 0.1 * (1 + 1e-3)


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


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn", pytest.param("group_norm_cnn", marks=pytest.mark.slow)])
def test_bfloat16_rounds_the_gradient_and_not_its_bound(name):
    """Forward and backward in bfloat16; norms and sums of what came out of them in float32."""
    shape = {"logistic": (20,), "mlp": (20,), "cnn": (12, 12), "group_norm_cnn": (8, 8, 3)}[name]
    wide = MODELS[name](shape, 4)
    narrow = dataclasses.replace(wide, dtype=jnp.bfloat16)
    params = jax.tree.map(
        lambda p: p + 0.1 * jax.random.normal(jax.random.key(1), p.shape), wide.init(jax.random.key(0))
    )
    x, y = jax.random.normal(jax.random.key(2), (6, *shape)), jnp.arange(6) % 4
    mask = jnp.ones(6, bool)
    told = gradients.describe(narrow, params, x, y)
    assert told == "norms in the backward pass, of gradients computed in bfloat16"
    for clip_norm in (1e6, 0.5):
        sums = [compiled_sum(model, params, x, y, mask, clip_norm).total for model in (wide, narrow)]
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(sums))
        a, b = (ravel(total)[0] for total in sums)
        error = jnp.linalg.norm(a - b) / jnp.linalg.norm(a)
        assert 1e-5 < error < 0.1  # another program, and no worse than eight bits through a few layers
    for i in range(6):  # a record alone: what is summed has the norm that was clipped to
        alone = ravel(compiled_sum(narrow, params, x[i : i + 1], y[i : i + 1], mask[:1], 0.5).total)[0]
        assert jnp.linalg.norm(alone) <= 0.5 * (1 + 1e-5)
