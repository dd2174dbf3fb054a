"""Models: parameter counts of the papers, fast layers equal the plain ones, a module nobody has seen before."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from helpers import ragged_data, refusal

import fedjax_dp as fdp
from fedjax_dp import errors, gradients
from fedjax_dp.experiments import build, population
from fedjax_dp.experiments.config import RunSpec
from fedjax_dp.models import (
    cnn,
    group_norm_cnn,
    lenet,
    logistic_regression,
    lstm,
    mlp,
    random_embedding,
    simple_cnn,
    tutorial_cnn,
)
from fedjax_dp.pytrees import path_name
from fedjax_dp.tools import cli


def parameters(model):
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (logistic_regression((28, 28), 10), 7_850),
        (logistic_regression((60,), 10), 610),
        (logistic_regression((102,), 2), 206),
        (mlp((60,), 10, (1200,)), 85_210),
        (mlp((102,), 2, (64, 32)), 8_738),
        (cnn((28, 28), 10), 1_663_370),
        (cnn((28, 28), 62), 1_690_046),
        (cnn((28, 28, 3), 10), 1_664_970),
        (cnn((32, 32, 3), 10), 2_156_490),
        (lstm((25,), 2), 1_095_680 + 514),
        (tutorial_cnn((28, 28), 10), 26_010),
        (lenet((28, 28), 10), 44_426),
        (lenet((32, 32, 3), 10), 62_006),
        (simple_cnn((32, 32, 3), 10), 1_626_442),
        (group_norm_cnn((32, 32, 3), 10), 24_346),
    ],
)
def test_parameter_counts(model, count):
    """Of the papers (algorithms.md names them by paper); the last is the project's own."""
    assert parameters(model) == count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "width"),
    [
        pytest.param(cnn((8, 8), 3), 512, marks=pytest.mark.exhaustive),
        pytest.param(mlp((6,), 3, (5, 4)), 4, marks=pytest.mark.exhaustive),
        (lstm((7,), 2, hidden=9, layers=1), 9),
    ],
)
def test_features_are_the_layer_before_the_output(model, width):
    params = jax.jit(model.init)(jax.random.key(0))
    x = jnp.ones((2, *model.record_shape), jnp.int32 if model.tokens else jnp.float32)
    features = jax.jit(gradients.features, static_argnums=0)(model, params, x)
    assert features.shape == (2, width)
    named = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    last = max(name.partition("/")[0] for name in named if name.startswith("Dense"))
    scores = jax.jit(gradients.logits, static_argnums=0)(model, params, x)
    np.testing.assert_allclose(features @ named[f"{last}/kernel"] + named[f"{last}/bias"][None], scores, rtol=1e-5)
    assert model.has_features


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv(3, (2, 2), strides=(2, 3), padding="VALID"),
        nn.Conv(4, (3, 3), feature_group_count=2),
        *(
            pytest.param(layer, marks=pytest.mark.exhaustive)
            for layer in (
                nn.Conv(3, (3, 2)),
                nn.Conv(3, (3, 3), padding=2),
                nn.Conv(3, (2, 3), padding=((1, 0), (0, 2)), kernel_dilation=(1, 2), use_bias=False),
                nn.Conv(3, (1, 1), strides=2),
                nn.Conv(3, (3, 3), padding="CIRCULAR"),
            )
        ),
    ],
)
def test_convolutions_as_products_equal_flax(layer):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return layer.clone(parent=self)(x).sum((1, 2))

    model, x = fdp.model(Net(), (7, 6, 2)), jax.random.normal(jax.random.key(1), (3, 7, 6, 2))
    params = jax.tree.map(lambda p: p + 0.1, model.init(jax.random.key(0)))
    np.testing.assert_allclose(
        gradients.logits(model, params, x), model.network.module.apply({"params": params}, x), rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
def test_lstm_ignores_padding_and_reads_the_last_word():
    model = lstm((6,), 2, np.random.default_rng(0).normal(size=(9, 4)), hidden=5)
    params = jax.jit(model.init)(jax.random.key(0))
    short = jnp.array([[3, 1, 4, 0, 0, 0]])
    cell = nn.RNN(nn.OptimizedLSTMCell(5))
    whole = model.whole(params)

    @jax.jit
    def unpadded(x):
        for name in ("OptimizedLSTMCell_0", "OptimizedLSTMCell_1"):
            x = cell.apply({"params": {"cell": whole[name]}}, x)
        return x[:, -1] @ whole["Dense_0"]["kernel"] + whole["Dense_0"]["bias"][None]

    expected = unpadded(jnp.take(whole["embedding"], short[:, :3], axis=0))
    found = jax.jit(gradients.logits, static_argnums=0)(model, params, short)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_model_equals_itself_so_that_nothing_compiles_twice():
    assert lstm((25,), 2) == lstm((25,), 2)
    assert hash(cnn((28, 28), 10)) == hash(cnn((28, 28), 10))
    assert random_embedding() is random_embedding()


@pytest.mark.parametrize(
    "make", [lambda: cnn((784,), 10), lambda: group_norm_cnn((4, 4), 10), lambda: lstm((28, 28), 2)]
)
def test_records_of_the_wrong_shape_are_refused(make):
    assert "record_shape must be" in refusal(make)


def test_microbatch_belongs_to_clipped_records():
    common = {"cohort_size": 2, "batch_size": 5, "local_steps": 2, "learning_rate": 0.1}
    for make in (fdp.fedavg, lambda **options: fdp.cpfed(clipping="none", **options)):
        assert "microbatch must be left out" in refusal(make, **common, microbatch=2)
    assert "microbatch must be" in refusal(fdp.dpnfl, **common, clip_norm=1.0, microbatch=0)


@pytest.mark.parametrize(
    ("model", "words"), [(mlp((5,), 3), r"shape of a record must be \(5,\)"), (lstm((3,), 3), "tokens for this model")]
)
def test_records_that_do_not_fit_the_model_are_refused_before_anything_compiles(model, words):
    value = fdp.fedavg(cohort_size=2, batch_size=5, local_steps=2, learning_rate=0.1)
    with pytest.raises(errors.ConfigurationError, match=words):
        fdp.simulate(value, ragged_data([20, 30, 25]), rounds=1, model=model)


def test_a_model_of_numbers_refuses_tokens_with_the_models_that_take_them():
    line = refusal(mlp((25,), 2).check, (25,), True)
    assert "must be (25,) numbers for this model, got (25,) tokens; --model lstm (models.lstm) classifies" in line


def test_the_word_vectors_of_the_text_model_are_as_many_as_the_words_and_the_first_ones_the_same(tmp_path):
    (tmp_path / "texts.csv").write_text("text,label\n" + "".join(f"a{n} b{n},{n % 2}\n" for n in range(2000)))
    spec = RunSpec.of({"dataset": f"csv:{tmp_path}/texts.csv", "length": 2, "model": "lstm"})
    data = population.build_data(spec.data)
    built = build.build_model(spec, data)
    assert data.vocabulary.size > random_embedding().shape[0]
    assert built.frozen.values["embedding"].shape[0] == data.vocabulary.size
    assert np.array_equal(built.frozen.values["embedding"][:3000], random_embedding())
    assert built.origins == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        "--model mlp --hidden 20,10 --pca 12",
        *(
            pytest.param(told, marks=pytest.mark.exhaustive)
            for told in (
                "--model vit --width 16 --layers 1 --heads 2 --patch 2",
                "--model cnn --cohort-size 2 --local-steps 2",
                "--model group_norm_cnn",
                "--dataset sent140 --model lstm --cohort-size 2 --local-steps 2",
            )
        ),
    ],
)
def test_every_model_trains_from_the_command_line(arguments, tmp_path, capsys):
    if "sent140" in arguments and not os.environ.get("FEDJAX_DP_DATA"):
        pytest.skip("Sentiment140 lies in FEDJAX_DP_DATA")
    out = ["run", *arguments.split(), "--rounds", "2", "--out", str(tmp_path / "run"), "--json"]
    assert cli.main(out) == 0
    told = json.loads(capsys.readouterr().out)
    assert 0 < told["test_accuracy"] < 1
    assert told["guarantee"]["epsilon"] > 0
    if "pca" in arguments:
        assert "principal components" in " ".join(told["guarantee"]["warnings"])


def softmax_loss(logits, label):
    """In float64: the loss of a record and its derivative by the scores."""
    logits = np.asarray(logits, np.float64)
    if not 0 <= label < len(logits):
        return 0.0, np.zeros(len(logits))
    shifted = logits - logits.max()
    total = np.exp(shifted).sum()
    return np.log(total) - shifted[label], np.exp(shifted) / total - np.eye(len(logits))[label]


@pytest.mark.parametrize("platform", ["default", "cuda"])
@pytest.mark.parametrize("classes", [2, 10, 16, 17])
def test_cross_entropy_and_its_slope_are_those_of_numpy(classes, platform, monkeypatch):
    """To the rounding of the scores; the branch for GPUs runs here, too."""
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, **branches: branches[platform](*args))
    rng, value_and_slope = np.random.default_rng(classes), jax.jit(jax.value_and_grad(fdp.models.cross_entropy))
    for scale in (1, 30, 1e4):
        logits = jnp.asarray(scale * rng.standard_normal(classes), jnp.float32)
        for label in (-1, 0, classes // 2, classes - 1, classes):
            loss, slope = value_and_slope(logits, label)
            wanted_loss, wanted_slope = softmax_loss(logits, label)
            np.testing.assert_allclose(loss, wanted_loss, rtol=1e-6, atol=4e-7 * scale)
            np.testing.assert_allclose(slope, wanted_slope, rtol=4e-6, atol=1e-6 * scale)
    assert np.isnan(fdp.models.cross_entropy(jnp.full(classes, jnp.nan), 0))


@pytest.mark.exhaustive
def test_cross_entropy_of_many_positions_in_few_bits_and_twice_differentiated():
    rng = np.random.default_rng(0)
    logits, labels = jnp.asarray(rng.standard_normal((3, 4, 10)), jnp.float32), jnp.asarray(rng.integers(0, 10, (3, 4)))
    found = fdp.models.cross_entropy(logits, labels)
    one_by_one = jax.vmap(jax.vmap(fdp.models.cross_entropy))(logits, labels)
    np.testing.assert_allclose(found, one_by_one, rtol=1e-6)
    assert fdp.models.cross_entropy(logits[0, 0].astype(jnp.bfloat16), 3).dtype == jnp.float32
    p = jax.nn.softmax(logits[0, 0])
    curved = jax.hessian(fdp.models.cross_entropy)(logits[0, 0], 3)
    np.testing.assert_allclose(curved, jnp.diag(p) - jnp.outer(p, p), atol=1e-6)
