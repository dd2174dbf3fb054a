"""A part of a model is trained: frozen values stay as they are, low-rank terms are what their paper says."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from helpers import ragged_data, refusal, usual
from single_gradients import check_clipped_sum

import fedjax_dp as fdp
from fedjax_dp import gradients
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.models import freeze, gpt, logistic_regression, lstm, mlp, model
from fedjax_dp.models.low_rank import A, B
from fedjax_dp.pytrees import path_name
from fedjax_dp.rounds import metrics, simulation
from fedjax_dp.tools.testing import check_algorithm

DATA = ragged_data((5, 8, 3, 6), (6,), 4)
PRIVATE = {"clip_norm": 1.0, "batch_size": 2, "cohort_size": 3, "learning_rate": 0.1, "local_steps": 2}


class Attention(nn.Module):
    """Kernels of several axes on both sides of a product."""

    @nn.compact
    def __call__(self, x):
        x = nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=8)(x, x)
        return nn.Dense(3)(x.mean(1))


class Layers(nn.Module):
    """Kernels that a loop runs over, and one that its steps share."""

    @nn.compact
    def __call__(self, x):
        body = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        x, _ = body(name="layers")(nn.Dense(5, name="into")(x), None)
        x = nn.RNN(nn.SimpleCell(4), name="loop")(jnp.stack([x, x + 1], 1))
        return nn.Dense(3, name="out")(x[:, -1])


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return nn.tanh(nn.Dense(5)(x)), None


class Transposed(nn.Module):
    """A kernel that is used twice, once as its transpose."""

    @nn.compact
    def __call__(self, x):
        kernel = self.param("kernel", nn.initializers.normal(1.0), (6, 5))
        return nn.Dense(3)(nn.tanh(nn.tanh(x @ kernel) @ kernel.T))


def nnx_network(key):
    class Network(nnx.Module):
        def __init__(self, rngs):
            self.first, self.second = nnx.Linear(6, 7, rngs=rngs), nnx.Linear(7, 3, rngs=rngs)

        def __call__(self, x):
            return self.second(nnx.relu(self.first(x)))

    return Network(nnx.Rngs(key))


def equinox_network(key):
    return eqx.nn.MLP(6, 3, 7, 1, key=key)


def plain():
    def start(key):
        return [jax.random.normal(key, (7, 6)), (jax.random.normal(key, (7, 3)), jnp.zeros(3))]

    def forward(params, x):
        return jnp.tanh(params[0] @ x) @ params[1][0] + params[1][1]

    return start, forward


NETWORKS = {
    "attention": (Attention(), (4, 6)),
    "layers": (Layers(), (6,)),
    "transposed": (Transposed(), (6,)),
    "nnx": (nnx_network, (6,)),
    "equinox": (equinox_network, (6,)),
    "plain": (plain(), (6,)),
}
KERNELS = {"attention": 5, "layers": 5, "transposed": 2, "nnx": 2, "equinox": 2, "plain": 2}  # with low-rank terms


def moved(params, seed=0):
    """Parameters away from their start, where B is zero."""
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return jax.tree.unflatten(structure, [p + 0.3 * jax.random.normal(k, p.shape) for k, p in zip(keys, leaves)])


def network(name, **options):
    given, shape = NETWORKS[name]
    made = model(given, shape, **options)
    x = jax.random.normal(jax.random.key(1), (5, *shape))
    return made, x, jnp.arange(5) % 3


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NETWORKS)
def test_the_merged_model_is_the_model_with_low_rank_terms(name):
    made, x, _ = network(name)
    adapted = freeze(made, "lora", rank=2, alpha=3.0)
    assert len(adapted.adaptation.low_rank.names) == KERNELS[name]
    params = moved(adapted.init(jax.random.key(0)))
    assert len(params) == 2 * KERNELS[name]
    beside = jax.vmap(lambda x: adapted.logits(params, x))(x)
    merged = jax.vmap(lambda x: made.logits(adapted.whole(params), x))(x)
    np.testing.assert_allclose(beside, merged, atol=2e-5)
    begun = adapted.init(jax.random.key(0))
    start = jax.vmap(lambda x: made.logits(adapted.whole(begun), x))(x)
    assert np.abs(beside - start).max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(NETWORKS, ("nnx",)))
def test_gradients_of_low_rank_terms_are_projections_of_the_dense_gradient(name):
    """dA = s G B^T and dB = s A^T G, with G the gradient by the kernel as a matrix (k, o)."""
    made, x, y = network(name)
    adapted = freeze(made, "lora", rank=2, alpha=5.0)
    params = moved(adapted.init(jax.random.key(0)))
    whole = adapted.whole(params)
    dense, own = (jax.jit(jax.grad(which.loss))(of, x[0], y[0]) for which, of in ((made, whole), (adapted, params)))
    by_name = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(dense)}
    plain_shapes = {path_name(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(whole)}
    for kernel in adapted.adaptation.low_rank.names:
        a, b = params[f"{kernel}/{A}"], params[f"{kernel}/{B}"]
        gradient = by_name[kernel]
        if name == "equinox" or (name, kernel) == ("plain", "0"):
            gradient = gradient.T  # it stands before the record
        gradient = gradient.reshape(*a.shape[:-1], b.shape[-1])
        assert plain_shapes[kernel] == by_name[kernel].shape
        np.testing.assert_allclose(own[f"{kernel}/{A}"], 2.5 * gradient @ b.swapaxes(-1, -2), atol=1e-5)
        np.testing.assert_allclose(own[f"{kernel}/{B}"], 2.5 * a.swapaxes(-1, -2) @ gradient, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(NETWORKS, ["plain"]))
@pytest.mark.parametrize(
    "trainable", ["lora", *(pytest.param(t, marks=pytest.mark.exhaustive) for t in ("ffa-lora", "lora,head"))]
)
def test_norms_and_clipped_sums_are_those_of_single_gradients(name, trainable):
    made, x, y = network(name)
    adapted = freeze(made, trainable, rank=2)
    params = moved(adapted.init(jax.random.key(0)))
    check_clipped_sum(adapted, params, x, y)
    direct = [w for w in gradients.explain(adapted, params, x[:1], y[:1]).weights if w.way == "direct"]
    assert not direct


@pytest.mark.slow
def test_frozen_values_are_bit_for_bit_what_they_were_and_in_no_message():
    made = mlp((6,), 4, (8,))
    start = made.init(jax.random.key(7))
    adapted = freeze(made, "lora", start=start, rank=2)
    before = jax.tree.map(np.array, adapted.frozen)
    algorithm = fdp.dpnfl(**PRIVATE, noise_multiplier=1.0)
    run = fdp.simulate(algorithm, DATA, rounds=3, model=adapted)
    assert set(run.params) == {f"Dense_{at}/kernel/{side}" for at in (0, 1) for side in (A, B)}
    assert all(map(np.array_equal, jax.tree.leaves(before), jax.tree.leaves(adapted.frozen)))
    whole = adapted.whole(run.params)
    for at in (0, 1):
        name = f"Dense_{at}"
        assert np.array_equal(whole[name]["bias"], start[name]["bias"])
        assert not np.array_equal(whole[name]["kernel"], start[name]["kernel"])
    trained = sum(leaf.size for leaf in jax.tree.leaves(run.params))
    assert trained == 2 * (6 + 8) + 2 * (8 + 4)
    from fedjax_dp.experiments.communication import traffic

    assert traffic(algorithm, adapted, DATA).up == 4 * trained


@pytest.mark.slow
def test_training_the_head_is_softmax_regression_on_what_goes_into_it():
    made = mlp((6,), 4, (8,))
    params = made.init(jax.random.key(3))
    head = freeze(made, "head", start=params)
    assert head.adaptation.trained == ("Dense_1/bias", "Dense_1/kernel")
    x, y, on = np.asarray(DATA.x), np.asarray(DATA.y), np.ones(len(DATA.y), bool)
    inner = jax.nn.relu(x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"][None])
    alone = freeze(model(nn.Sequential([nn.Dense(4)]), (8,)), start={"layers_0": params["Dense_1"]})
    clipped_sum = jax.jit(gradients.clipped_sum, static_argnums=0)
    found = clipped_sum(head, head.init(jax.random.key(0)), x, y, on, 1.0)
    wanted = clipped_sum(alone, alone.init(jax.random.key(0)), inner, y, on, 1.0)
    assert 0 < found.clipped.sum() < len(y)
    np.testing.assert_allclose(found.total["Dense_1/kernel"], wanted.total["layers_0/kernel"], atol=1e-5)
    np.testing.assert_allclose(found.total["Dense_1/bias"], wanted.total["layers_0/bias"], atol=1e-5)


@pytest.mark.slow
def test_other_frozen_values_compile_nothing_and_another_factor_neither():
    made = mlp((6,), 4, (8,))
    algorithm = fdp.dpnfl(**PRIVATE, noise_multiplier=0.5)

    def run(seed, alpha):
        adapted = freeze(made, "lora", start=made.init(jax.random.key(seed)), rank=2, alpha=alpha)
        return fdp.simulate(algorithm, DATA, rounds=2, model=adapted).history[-1].test_loss

    first = run(1, 1.0)
    before = simulation.advance._cache_size(), metrics.evaluate._cache_size()
    losses = {first, run(2, 1.0), run(1, 4.0)}
    assert len(losses) == 3
    assert (simulation.advance._cache_size(), metrics.evaluate._cache_size()) == before


@pytest.mark.exhaustive
def test_frozen_values_are_held_once_whatever_the_cohort():
    """By the compiler's plan: with the cohort grows what clients train, not what is frozen."""
    made = mlp((500,), 4, (500,))
    adapted = freeze(made, "lora", rank=1, targets="Dense_0/kernel")
    data = ragged_data((2,) * 100, (500,), 4)
    frozen = sum(leaf.nbytes for leaf in jax.tree.leaves(adapted.frozen))
    planned = []
    for size in (10, 100):
        algorithm = fdp.dpnfl(**PRIVATE | {"cohort_size": size}, noise_multiplier=1.0)
        execution = Execution(chunk_size=size)
        rounds, state = simulation.initialize(algorithm, data, adapted, execution)
        plan = rounds.compile(state).memory_analysis()
        planned.append(plan.temp_size_in_bytes + plan.argument_size_in_bytes)
    assert frozen > 1_000_000
    assert planned[1] - planned[0] < 90 * frozen / 20  # of 90 more clients
    assert planned[0] < 2 * frozen + data.x.nbytes + data.x_test.nbytes


@pytest.mark.exhaustive
def test_a_sweep_of_a_partly_frozen_model_is_its_single_runs():
    adapted = freeze(mlp((6,), 4, (8,)), "lora,bias", rank=2)
    algorithm = fdp.dpnfl(**PRIVATE, noise_multiplier=0.5)
    axes = {"learning_rate": [0.05, 0.2]}
    found = fdp.sweep(algorithm, DATA, axes=axes, seeds=2, rounds=2, model=adapted, delta=1e-3)
    table = found.table()
    last = table[table["round"] == 2]
    assert len(last) == 4
    for row in last.to_dict("records"):
        alone = fdp.simulate(
            fdp.dpnfl(**PRIVATE | {"learning_rate": row["learning_rate"]}, noise_multiplier=0.5),
            DATA,
            rounds=2,
            seed=row["seed"],
            model=adapted,
        )
        assert row["test_loss"] == alone.history[-1].test_loss


def test_simulate_and_personal_models_draw_by_the_values_that_training_begins_with():
    """As `run` does and a Guarantee counts: phases of one seed share neither cohorts nor noise."""
    net = mlp((6,), 4, (8,))
    begun = freeze(net, start=net.init(jax.random.key(2)), start_data="nothing", start_private=False)
    algorithm = fdp.finetune(**PRIVATE | {"learning_rate": 1e-3}, noise_multiplier=100.0)
    alone = fdp.simulate(algorithm, DATA, rounds=2, seed=3, model=begun)
    run = fdp.run(algorithm, DATA, rounds=2, seed=3, model=begun, delta=1e-3, view="deployed")
    assert jax.tree.all(jax.tree.map(np.array_equal, alone.params, run.params))

    def noise(model):
        state = fdp.simulate(algorithm, DATA, rounds=1, seed=3, model=model).state
        own = fdp.rounds.personal_models(algorithm, state, DATA, seed=3, model=model)
        both = zip(*map(jax.tree.leaves, (own, state.params)), strict=True)
        return np.concatenate([np.ravel(np.asarray(each) - np.asarray(shared)) for each, shared in both])

    assert abs(np.corrcoef(noise(net), noise(begun))[0, 1]) < 0.3  # of 4 clients x 92 numbers: 5.7 deviations


@pytest.mark.exhaustive
def test_checks_and_audits_hold_for_low_rank_training():
    adapted = freeze(mlp((6,), 4, (8,)), "lora", rank=2)
    # All gradients reach such a clip norm, and none has to be another's opposite for the bound to be attained.
    algorithm = fdp.dpnfl(**PRIVATE | {"clip_norm": 0.02}, noise_multiplier=1.0, batches="poisson")
    check_algorithm(algorithm, DATA, model=adapted, delta=1e-3)
    audited = fdp.audit(algorithm, DATA, rounds=2, model=adapted, delta=1e-3, canary="label-flip", trials=400, seed=0)
    assert not audited.violated


@pytest.mark.slow
def test_lstm_never_trains_its_word_vectors():
    made = lstm((5,), 3, np.eye(7), hidden=4, layers=1)
    assert "embedding" in made.frozen.values
    assert not any("embedding" in name for name in jax.eval_shape(made.init, jax.random.key(0)))
    head = freeze(made, "head")
    assert set(jax.eval_shape(head.init, jax.random.key(0))) == {"Dense_0/bias", "Dense_0/kernel"}
    assert set(head.frozen.values) > {"embedding", "OptimizedLSTMCell_0/hf/kernel"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"trainable": "nothing"}, "matches nothing"),
        ({"trainable": "Dense_*/**"}, "matches every parameter"),
        ({"trainable": "Dens_0/**"}, "matches nothing"),
        ({"trainable": "all,head"}, "drop one"),
        ({"trainable": "head,"}, "commas between"),
        ({"trainable": "lora,ffa-lora"}, "drop one"),
        ({"trainable": "lora", "rank": 9}, "shorter side"),
        ({"trainable": "lora", "rank": 0}, "at least 1"),
        ({"trainable": "lora", "alpha": 0.0}, "positive"),
        ({"trainable": "head", "rank": 2}, "left out"),
        ({"trainable": "head", "alpha": 2.0}, "left out"),
        ({"trainable": "lora", "targets": "*/bias"}, "not multiplied"),
        ({"trainable": "lora,head", "targets": "Dense_1/kernel"}, "trained itself"),
        ({"trainable": "lora,head,Dense_0/kernel"}, "Dense_0/kernel, Dense_1/kernel is trained already: drop lora"),
        ({"trainable": "head", "fresh": "head"}, "left out"),
        ({"trainable": "head", "start": {"Dense_0": {"kernel": np.zeros((6, 8))}}}, "Dense_0/bias"),
        ({"trainable": "head", "start": {}, "fresh": "**"}, "some of them"),
    ],
)
def test_what_cannot_be_meant_is_one_line(given, told):
    assert told in refusal(freeze, mlp((6,), 4, (8,)), **given)


@pytest.mark.parametrize("wrong", [np.zeros((3, 2)), np.full((6, 4), np.nan), np.zeros((6, 4), int)])
def test_values_of_another_shape_kind_or_not_finite_are_refused(wrong):
    assert "Dense_0/kernel" in refusal(
        freeze, logistic_regression((6,), 4), start={"Dense_0": {"kernel": wrong, "bias": np.zeros(4)}}
    )


def test_a_head_for_other_classes_begins_afresh():
    before = mlp((6,), 9, (8,)).init(jax.random.key(0))
    head = freeze(mlp((6,), 4, (8,)), "head", start=before, fresh="head")
    assert head.init(jax.random.key(0))["Dense_1/kernel"].shape == (8, 4)
    assert np.array_equal(head.frozen.values["Dense_0/kernel"], before["Dense_0"]["kernel"])


def test_a_model_that_scores_every_token_is_refused_for_classes_of_texts_by_one_that_scores_a_text():
    texts = np.ones((8, 5), np.int32), np.arange(8, dtype=np.int32) % 2
    data = fdp.federate(fdp.dataset(*texts, *texts)._replace(tokens=True), [np.arange(4), np.arange(4, 8)])
    algorithm = fdp.fedavg(cohort_size=2, learning_rate=0.1, batch_size=2, local_steps=1)
    told = refusal(simulation.check, algorithm, data, 1, gpt((5,), 2).for_data(data))
    assert "--model lstm scores a whole text, and takes --trainable head" in told
