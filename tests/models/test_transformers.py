"""Transformers and LSTMs of sequences: a slow reference, parameter counts, causality, and what their gradients cost."""

import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import refusal, thinned, usual
from scipy import special
from single_gradients import check_clipped_sum

from fedjax_dp import errors, gradients
from fedjax_dp.models import char_lstm, explain_gradients, gpt, mlp, vit, word_lstm
from fedjax_dp.pytrees import path_name
from fedjax_dp.tasks import Binary, Regression
from fedjax_dp.tools import cli

COUNTS = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "model_gradients.json").read_text())[
    "parameter_counts"
]
MADE = {
    "vit 28x28x1, patch 4, 10 classes": lambda: vit((28, 28), 10),
    "vit 28x28x1, patch 4, 62 classes": lambda: vit((28, 28, 1), 62),
    "vit 28x28x1, patch 7, 10 classes": lambda: vit((28, 28), 10, patch=7),
    "vit 32x32x3, patch 4, 10 classes": lambda: vit((32, 32, 3), 10),
    "vit 32x32x3, patch 4, 100 classes": lambda: vit((32, 32, 3), 100),
    "vit 32x32x3, patch 4, 10 classes, 4 layers": lambda: vit((32, 32, 3), 10, layers=4),
    "gpt characters: 90 tokens, length 80": lambda: gpt((80,), 90),
    "gpt words: 10,004 tokens, length 20": lambda: gpt((20,), 10_004),
    "benchmark lstm, words (96, 670, 96, 10,004 tokens)": lambda: word_lstm((20,), 10_004),
    "benchmark lstm, characters (8, 256, 256, 90 tokens)": lambda: char_lstm((80,), 90),
}
SMALL = {
    "vit": lambda: vit((6, 4, 2), 3, patch=2, width=8, heads=2),
    "gpt": lambda: gpt((5,), 7, width=8, heads=2),
    "word_lstm": lambda: word_lstm((5,), 7, embedding=3, hidden=6, projection=4),
    "char_lstm": lambda: char_lstm((5,), 7, embedding=3, hidden=6),
}

ONE_LAYER = {"gpt of one layer": lambda: gpt((5,), 7, width=8, layers=1, heads=2)}


def started(model, seed=0):
    """Parameters none of which is zero."""
    rng, shapes = np.random.default_rng(seed), jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape) / np.sqrt(p.shape[0]), p.dtype), shapes)


def named(params):
    return {path_name(path): np.asarray(leaf, float) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def batch(model, records, classes, seed=0):
    """Records and targets; those of sequences end in padding."""
    rng, shape = np.random.default_rng(seed), (records, *model.record_shape)
    if not model.tokens:
        return jnp.asarray(rng.normal(size=shape), jnp.float32), jnp.asarray(rng.integers(0, classes, records))
    rows = rng.integers(1, classes, (records, shape[1] + 1))
    for record, row in enumerate(rows):
        row[shape[1] + 1 - record :] = 0
    return jnp.asarray(rows[:, :-1]), jnp.asarray(rows[:, 1:])


# What they compute


def normal(p, name, x):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p[f"{name}/scale"] + p[f"{name}/bias"]


def dense(p, name, x):
    return x @ p[f"{name}/kernel"] + p[f"{name}/bias"]


def slow_blocks(p, x, layers, heads, causal):
    """Position by position and head by head, in float64."""
    for block in (f"block_{at}" for at in range(layers)):
        h = normal(p, f"{block}/attention_norm", x)
        q, k, v = (dense(p, f"{block}/attention/{name}", h) for name in ("query", "key", "value"))
        read, each = np.zeros_like(x), x.shape[1] // heads
        for head in (slice(at * each, (at + 1) * each) for at in range(heads)):
            for t in range(len(x)):
                seen = t + 1 if causal else len(x)
                read[t, head] = special.softmax(k[:seen, head] @ q[t, head] / np.sqrt(each)) @ v[:seen, head]
        x = x + dense(p, f"{block}/attention/out", read)
        h = dense(p, f"{block}/mlp/up", normal(p, f"{block}/mlp_norm", x))
        h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        x = x + dense(p, f"{block}/mlp/down", h)
    return normal(p, "norm", x)


def slow_vit(p, image, patch, layers, heads):
    rows, columns = image.shape[0] // patch, image.shape[1] // patch
    pieces = [
        image[r * patch : (r + 1) * patch, c * patch : (c + 1) * patch].ravel()
        for r in range(rows)
        for c in range(columns)
    ]
    x = slow_blocks(p, dense(p, "patches", np.array(pieces)) + p["positions"], layers, heads, causal=False)
    return dense(p, "head", x.mean(0))


def slow_gpt(p, tokens, layers, heads):
    x = p["tokens/embedding"][tokens] + p["positions"][: len(tokens)]
    return slow_blocks(p, x, layers, heads, causal=True) @ p["tokens/embedding"].T


def slow_lstm(p, tokens, layers):
    x = p["tokens/embedding"][tokens]
    for layer in (f"lstm_{at}" for at in range(layers)):
        c, h, states = 0.0, np.zeros(len(p[f"{layer}/hi/bias"])), []
        for row in x:
            i, f, g, o = (row @ p[f"{layer}/i{gate}/kernel"] + dense(p, f"{layer}/h{gate}", h) for gate in "ifgo")
            c = special.expit(f) * c + special.expit(i) * np.tanh(g)
            h = special.expit(o) * np.tanh(c)
            states.append(h)
        x = np.array(states)
    x = dense(p, "projection", x) if "projection/kernel" in p else x
    return dense(p, "head", x)


SLOW = {
    "vit": lambda p, x: slow_vit(p, x, patch=2, layers=2, heads=2),
    "gpt": lambda p, x: slow_gpt(p, x, layers=2, heads=2),
    "word_lstm": lambda p, x: slow_lstm(p, x, layers=1),
    "char_lstm": lambda p, x: slow_lstm(p, x, layers=2),
}


@pytest.mark.usefixtures("float32_products")
@pytest.mark.parametrize("name", thinned(SMALL, {"vit", "gpt"}, 3))
def test_scores_are_those_of_a_slow_reference(name):
    model = SMALL[name]()
    params, (x, _) = started(model), batch(model, 3, 7)
    expected = np.array([SLOW[name](named(params), np.asarray(row)) for row in x])
    found = jax.jit(gradients.logits, static_argnums=0)(model, params, x)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(("gpt", "word_lstm", "char_lstm"), {"gpt"}))
def test_scores_of_a_token_depend_on_nothing_behind_it(name):
    model = SMALL[name]()
    params, (x, _) = started(model), batch(model, 1, 7)
    rows = jnp.array([[*x[0, :at], *(x[0, at:] + 1) % 7] for at in range(6)])  # changed from there on; the last is not
    found = jax.jit(gradients.logits, static_argnums=0)(model, params, rows)
    for at in range(5):
        np.testing.assert_allclose(found[at, :at], found[5, :at], rtol=1e-6)
        assert not np.allclose(found[at, at], found[5, at])


@pytest.mark.parametrize("name", MADE)
def test_parameter_counts_are_those_given(name):
    params = jax.eval_shape(MADE[name]().init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == COUNTS[name]
    if "block_0" in params:
        assert sum(leaf.size for leaf in jax.tree.leaves(params["block_0"])) == COUNTS["block, width 64, hidden 256"]


# Their gradients


@pytest.mark.parametrize("name", thinned(MADE, {"vit 28x28x1, patch 4, 10 classes"}, 6))
def test_every_weight_is_factored(name):
    """Nothing but scales of norms is differentiated record by record."""
    model = MADE[name]()
    told = explain_gradients(model)
    direct = [path for weight in told.weights if weight.way != "factored" for path in weight.parameters]
    assert all(path.endswith("norm/scale") for path in direct)


def test_parameters_are_analysed_without_their_memory_however_many_they_are():
    side = 2**16  # so that their numbers do not fit into 32 bits
    weights = explain_gradients(mlp((side,), 10, (side,))).weights
    assert [weight.way for weight in weights] == ["factored"] * 4
    assert weights[0].size == side**2


@pytest.mark.parametrize("name", SMALL)
def test_one_argument_explains_as_the_target_does(name):
    model = SMALL[name]()
    label = jax.ShapeDtypeStruct(model.record_shape if model.tokens else (), jnp.int32)
    assert explain_gradients(model) == explain_gradients(model, label)


@pytest.mark.parametrize("task", [Binary(), Regression()])
def test_one_argument_explains_models_of_other_targets(task):
    model = mlp((4,), 1 if isinstance(task, Binary) else 3).for_task(task)
    told = {parameter for weight in explain_gradients(model).weights for parameter in weight.parameters}
    assert told == set(named(started(model)))


@pytest.mark.slow
@pytest.mark.parametrize("name", usual([*ONE_LAYER, *SMALL, *list(MADE)[::6]], ONE_LAYER))
def test_clipped_sums_and_norms_are_those_of_single_gradients(name):
    model = (SMALL | MADE | ONE_LAYER)[name]()
    params, (x, y) = started(model), batch(model, 4, 3)
    check_clipped_sum(model, params, x, y)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    usual(
        [name for name in MADE if name.startswith(("vit 28", "gpt"))],
        ("vit 28x28x1, patch 4, 10 classes", "gpt characters: 90 tokens, length 80"),
    ),
)
def test_clipping_costs_a_transformer_at_most_a_quarter_more(name):
    """Operations of the compiled programs for 16 records: the clipped sum over the plain one."""
    model = MADE[name]()
    (x, y), mask = batch(model, 16, 10), jnp.ones(16, bool)
    params = jax.eval_shape(model.init, jax.random.key(0))

    def operations(function):
        return jax.jit(function).lower(params).compile().cost_analysis()["flops"]

    clipped = operations(lambda p: gradients.clipped_sum(model, p, x, y, mask, 1.0).total)
    assert clipped < 1.25 * operations(lambda p: gradients.plain_sum(model, p, x, y, mask).total)


# What is refused


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: vit((28, 28), 10, patch=5), r"patch must be .* 28 x 28, got 5; take one of 1, 2, 4, 7, 14, 28$"),
        (lambda: vit((3, 3), 10), "patch must be .* 3 x 3, got 4; take one of 1, 3$"),
        (lambda: vit((28, 28), 10, width=30), "width must be a multiple of the 4 heads, got 30; take 28 or 32"),
        (lambda: gpt((5,), 7, width=2, heads=3), "width must be a multiple of the 3 heads, got 2; take 3, or"),
        (lambda: gpt((5,), 7, layers=0), "layers must be"),
        (lambda: vit((784,), 10), r"record_shape must be images .*, got \(784,\)"),
        (lambda: gpt((28, 28), 10), r"record_shape must be \(length,\)"),
        (lambda: char_lstm((28, 28), 10), r"record_shape must be \(length,\)"),
        (lambda: word_lstm((5,), 10, projection=0), "every size of hidden must be"),
    ],
)
def test_sizes_that_cannot_be_are_refused_in_one_line(make, words):
    assert re.search(words, refusal(make))


def test_longer_records_and_targets_of_another_length_are_refused():
    model = gpt((5,), 7, width=8, layers=1)
    params = jax.eval_shape(model.init, jax.random.key(0))
    with pytest.raises(errors.ConfigurationError, match=r"record must be at most 5, .*, got 6 tokens"):
        jax.eval_shape(model.logits, params, jnp.zeros(6, jnp.int32))
    for targets in (jnp.zeros(4, jnp.int32), jnp.int32(0)):
        assert "targets must be one for each of the 5 positions" in refusal(
            jax.eval_shape, model.loss, params, jnp.zeros(5, jnp.int32), targets
        )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--model mlp --width 8", "width must be left out unless model is vit or gpt"),
        ("--model gpt --patch 2", "patch must be left out unless model is vit"),
        ("--model vit --patch 3", "patch must be one that divides both sides of images of 8 x 8, got 3"),
    ],
)
def test_sizes_on_the_command_line(arguments, words, capsys):
    assert cli.main(["run", *arguments.split(), "--rounds", "1", "--out", "nowhere"]) == 2
    told = capsys.readouterr().err.strip()
    assert words in told
    assert "\n" not in told
