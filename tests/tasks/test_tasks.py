"""Losses and metrics of the tasks equal given numbers, and slow loops in NumPy."""

import json
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import refusal
from hypothesis import given
from hypothesis import strategies as st

from fedjax_dp.data import Vocabulary
from fedjax_dp.tasks import (
    TASKS,
    Classes,
    Own,
    ScoreSums,
    area_under_curve,
    average_precision,
    constant_baseline,
    describe_task,
    measures_of,
    measures_of_task,
    task_named,
)
from fedjax_dp.tasks.names import LOSSES_BY_TASK

GOLDEN = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "tasks.json").read_text())["tasks"]
WORDS = Vocabulary(7, pad=0, oov=(4,), eos=6)
DOUBLE = pytest.mark.parametrize("double", [True, False], ids=["float64", "float32"])


class Named:
    def __init__(self, task, vocabulary=None, classes=7):
        self.task, self.vocabulary, self.classes = task, vocabulary, classes


def made(name, loss=None, ap=None, top_k=None, classes=7):
    return task_named(Named(name, WORDS if name == "sequence" else None, classes), loss, ap, top_k)


def logits(probabilities):
    with np.errstate(divide="ignore"):
        p = np.asarray(probabilities, float)
        return np.log(p) - np.log1p(-p)


def seen(task, scores, targets, group_of=None, groups=1):
    """What a task makes of scores, added up record by record."""
    group_of = np.zeros(len(targets), int) if group_of is None else group_of
    sums = {"records": np.bincount(group_of, minlength=groups).astype(float)}
    for at, group in enumerate(group_of):
        for name, value in task.sums(jnp.asarray(scores[at]), jnp.asarray(targets[at])).items():
            sums.setdefault(name, np.zeros((groups, *np.shape(value))))[group] += np.asarray(value, float)
    return ScoreSums(sums, np.asarray(scores, float), np.asarray(targets), group_of)


def values(task, *given):
    found = seen(task, *given)
    return {metric.name: metric.of(found) for metric in task.metrics}


@pytest.fixture
def precision(double):
    """The tolerance, while JAX computes in that width."""
    with jax.enable_x64(double):
        yield {"rtol": 1e-10 if double else 1e-5, "atol": 1e-10 if double else 1e-6}


@DOUBLE
@pytest.mark.parametrize("per", ["mean", "length"])
def test_losses_of_sequences_are_those_given(per, precision):
    told = GOLDEN["sequence"]
    scores, targets = (jnp.asarray(told["inputs"][name]) for name in ("scores", "targets"))
    task = made("sequence", per)
    np.testing.assert_allclose(
        jax.vmap(task.loss)(scores, targets), told["expected"][f"record_loss_{per}"], **precision
    )


MEASURED = {  # by task: its scores and targets, and its metrics by their names in the file
    "sequence": (
        lambda inputs: (inputs["scores"], inputs["targets"]),
        {
            "token_accuracy": "accuracy",
            "token_accuracy_no_oov": "accuracy_no_oov",
            "token_accuracy_no_oov_eos": "accuracy_no_oov_eos",
            "perplexity": "perplexity",
            "perplexity_no_oov": "perplexity_no_oov",
        },
    ),
    "multi_label": (
        lambda inputs: (logits(inputs["probabilities"]), inputs["targets"]),
        {"mean_ap": "mean_ap", "micro_ap": "micro_ap", "micro_f1": "micro_f1_at_half"},
    ),
    "binary": (
        lambda inputs: (logits(inputs["probabilities"])[:, None], inputs["targets"]),
        {name: name for name in GOLDEN["binary"]["expected"]},
    ),
    "regression": (
        lambda inputs: (inputs["predictions"], inputs["targets"]),
        {name: name for name in ("mse", "mae", "r2")},
    ),
}


@DOUBLE
@pytest.mark.parametrize("name", MEASURED)
def test_metrics_are_those_given(name, precision):
    (arrays_of, names), expected = MEASURED[name], GOLDEN[name]["expected"]
    scores, targets = map(np.array, arrays_of(GOLDEN[name]["inputs"]))
    found = values(made(name), scores, targets)
    for metric, of in names.items():
        np.testing.assert_allclose(found[metric], expected[of], **precision, err_msg=metric)
    if name == "multi_label":
        assert found["labels_with_positives"] == sum(ap is not None for ap in expected["ap_by_label"])
    if name == "regression":
        np.testing.assert_allclose(found["rmse"] ** 2, expected["mse"], **precision)
        losses = jax.vmap(made(name).loss)(jnp.asarray(scores), jnp.asarray(targets))
        np.testing.assert_allclose(losses, expected["record_loss"], **precision)


def slow_average_precision(scores, truth):
    total, before = 0.0, 0.0
    for cut in sorted(set(scores), reverse=True):
        hits = sum(t for s, t in zip(scores, truth, strict=True) if s >= cut)
        recall, precision = hits / sum(truth), hits / sum(s >= cut for s in scores)
        total, before = total + (recall - before) * precision, recall
    return total


def slow_area(scores, truth):
    pairs = [(a, b) for a, t in zip(scores, truth) for b, u in zip(scores, truth) if t and not u]
    return sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)


RANKED = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=40)


@given(RANKED)
def test_ranks_of_many_groups_at_once_equal_loops_over_each(records):
    scores, truth, group = (np.array(column) for column in zip(*records, strict=True))
    found = average_precision(scores * 0.5, truth, group, 5), area_under_curve(scores * 0.5, truth, group, 5)
    for one in range(5):
        s, t = scores[group == one].tolist(), truth[group == one].tolist()
        if sum(t):
            assert found[0][one] == pytest.approx(slow_average_precision(s, t))
        else:
            assert math.isnan(found[0][one])
        if 0 < sum(t) < len(t):
            assert found[1][one] == pytest.approx(slow_area(s, t))
        else:
            assert math.isnan(found[1][one])


def test_buckets_count_labels_without_a_positive_as_zero_and_join_near_scores():
    scores, truth = logits([[0.501, 0.2], [0.5039, 0.3], [0.1, 0.4]]), np.array([[1, 0], [0, 0], [0, 0]])
    assert values(made("multi_label"), scores, truth)["mean_ap"] == pytest.approx(0.5)  # the first label's alone
    found = values(made("multi_label", ap="buckets200"), scores, truth)["mean_ap"]
    assert found == pytest.approx((0.5 + 0.0) / 2)  # 0.501 and 0.5039 are in one bucket: precision 1/2
    near = values(made("multi_label", ap="buckets200"), scores[::-1], truth[[2, 0, 1]])["mean_ap"]
    assert near == pytest.approx(0.25)  # in one bucket they are equal, whichever is larger


SHAPES = {"classes": (4,), "sequence": (5, 7), "multi_label": (3,), "binary": (1,), "regression": (3,)}


def drawn(name, records=8, seed=0):
    rng = np.random.default_rng(seed)
    targets = {
        "classes": rng.integers(0, 4, records),
        "sequence": rng.integers(0, 7, (records, 5)),
        "multi_label": rng.integers(0, 2, (records, 3)),
        "binary": rng.integers(0, 2, records),
        "regression": rng.normal(size=(records, 3)),
    }
    return rng.normal(size=(records, *SHAPES[name])), targets[name]


NAMED = [(name, loss) for name in TASKS if name != "own" for loss in LOSSES_BY_TASK.get(name, (None,))]


def slow_loss(name, loss, scores, target):
    """Of one record, in NumPy."""
    if name in ("classes", "sequence"):
        each = [math.log(sum(np.exp(s))) - s[t] for s, t in zip(np.atleast_2d(scores), np.atleast_1d(target))]
        there = [name == "classes" or t != WORDS.pad for t in np.atleast_1d(target)]
        total = sum(e for e, m in zip(each, there, strict=True) if m)
        return total / (len(there) if loss == "length" else max(1, sum(there)))
    z, y = np.atleast_1d(scores), np.atleast_1d(target)
    if name == "regression":
        e = np.abs(z - y)
        return np.mean(e**2 if loss == "squared" else np.where(e <= 1, e**2 / 2, e - 0.5))
    p = 1 / (1 + np.exp(-z))
    each = -y * np.log(p) - (1 - y) * np.log(1 - p)
    return each.sum() if loss == "sum" else each.mean()


@pytest.mark.parametrize(("name", "loss"), NAMED)
def test_losses_and_their_slopes_equal_a_slow_reference(name, loss):
    scores, targets = drawn(name)
    with jax.enable_x64(True):
        loss_and_slope = jax.jit(jax.value_and_grad(made(name, loss).loss))
        for s, t in zip(scores, targets, strict=True):
            found, slope = map(np.asarray, loss_and_slope(jnp.asarray(s), jnp.asarray(t)))
            assert float(found) == pytest.approx(slow_loss(name, loss, s, t))
            for at in np.ndindex(*s.shape):
                step = np.zeros(s.shape)
                step[at] = 1e-6
                rise = slow_loss(name, loss, s + step, t) - slow_loss(name, loss, s - step, t)
                assert slope[at] == pytest.approx(rise / 2e-6, abs=1e-7)


@pytest.mark.parametrize(("name", "loss"), NAMED)
def test_a_loss_of_a_record_is_of_that_record_alone(name, loss):
    scores, targets = drawn(name)
    of_one = made(name, loss).loss
    of_each, of_one = jax.jit(jax.vmap(of_one)), jax.jit(of_one)
    alone = [float(of_one(jnp.asarray(s), jnp.asarray(t))) for s, t in zip(scores, targets, strict=True)]
    np.testing.assert_allclose(of_each(jnp.asarray(scores), jnp.asarray(targets)), alone, rtol=1e-5)


@pytest.mark.parametrize("per", ["mean", "length"])
def test_a_sequence_of_padding_has_loss_and_gradient_zero(per):
    scores, task = jnp.asarray(drawn("sequence")[0][0], jnp.float32), made("sequence", per)
    loss, slope = jax.value_and_grad(task.loss)(scores, jnp.zeros(5, jnp.int32))
    assert loss == 0
    assert not np.any(slope)


@pytest.mark.parametrize("name", SHAPES)
def test_metrics_of_groups_are_those_of_each_group_alone(name):
    scores, targets = drawn(name, 30)
    group_of, task = np.arange(30) % 4, made(name)
    found = values(task, scores, targets, group_of, 5)
    for group in range(4):
        alone = values(task, scores[group_of == group], targets[group_of == group])
        for metric in task.metrics:
            np.testing.assert_allclose(found[metric.name][group], alone[metric.name][0], err_msg=metric.name)
    counted = {metric.name for metric in task.metrics if metric.better}
    assert all(math.isnan(found[metric][4]) for metric in counted)


@pytest.mark.parametrize("name", [*SHAPES, "own"])
def test_a_file_tells_a_task_so_that_its_measures_are_known_without_it(name):
    task = made(name)
    assert measures_of(json.loads(json.dumps(describe_task(task)))) == measures_of_task(task)
    main = measures_of_task(task).main
    assert main.name == ("test_loss" if name == "own" else f"test_{task.metrics[0].name}")
    falling = ("perplexity", "perplexity_no_oov", "rmse", "mse", "mae")
    directions = dict.fromkeys(falling, -1) | {"labels_with_positives": 0}
    for metric in task.metrics:
        assert measures_of_task(task)[f"test_{metric.name}"].better == directions.get(metric.name, 1)


def test_top_k_accuracy_is_the_one_by_sorting_and_that_of_one_is_accuracy():
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(60, 7)).round(1)  # with ties
    targets, group_of = rng.integers(0, 7, 60), np.arange(60) % 3
    ranked = np.argsort(-scores, axis=1, kind="stable")  # of equal ones the first
    for k in (2, 5):
        right = (ranked[:, :k] == targets[:, None]).any(1)
        found = values(made("classes", top_k=k), scores, targets, group_of, 3)
        np.testing.assert_allclose(found[f"top_{k}_accuracy"], [right[group_of == g].mean() for g in range(3)])
        np.testing.assert_array_equal(
            found["accuracy"], values(made("classes"), scores, targets, group_of, 3)["accuracy"]
        )
    found = values(Classes(top_k=1), scores, targets)
    assert found["top_1_accuracy"] == found["accuracy"]


def test_top_k_accuracy_of_tokens_counts_the_likeliest_at_every_place_but_padding():
    rng = np.random.default_rng(4)
    scores, targets = rng.normal(size=(20, 5, 7)), rng.integers(0, 7, (20, 5))
    targets[:, 3:] = WORDS.pad
    ranked = np.argsort(-scores, axis=-1, kind="stable")
    right = (ranked[..., :3] == targets[..., None]).any(-1)
    found = values(made("sequence", top_k=3), scores, targets)
    np.testing.assert_allclose(found.pop("top_3_token_accuracy"), right[targets != WORDS.pad].mean())
    assert found == values(made("sequence"), scores, targets)


def constant_scores():
    """By task: its targets, and the scores of every answer that ignores the features."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(40, 2)) * 3
    texts = rng.integers(0, 7, (10, 4))
    return {
        "classes": (rng.integers(0, 7, 40) ** 2 % 7, [np.eye(7)[label] for label in range(7)]),
        "sequence": (texts, [np.broadcast_to(np.eye(7)[token], (4, 7)) for token in range(7)]),
        "binary": (rng.random(40) < 0.3, [np.array([1.0]), np.array([-1.0])]),
        "regression": (numbers, [numbers.mean(0), numbers.mean(0) + 0.1, np.median(numbers, 0), np.zeros(2)]),
    }


@pytest.mark.parametrize("name", constant_scores())
def test_the_baseline_is_the_best_of_all_constant_answers(name):
    task, (targets, answers) = made(name), constant_scores()[name]
    main = task.metrics[0]
    reached = [main.better * main.of(seen(task, [answer] * len(targets), targets))[0] for answer in answers]
    found = constant_baseline(task, targets)
    assert found.metric == f"test_{main.name}"
    assert found.value == pytest.approx(main.better * max(reached))
    assert json.loads(json.dumps(found._asdict())) == found._asdict()


def test_a_task_without_a_constant_answer_has_no_baseline():
    assert constant_baseline(made("multi_label"), np.zeros((3, 2))) is None
    assert constant_baseline(Own(), np.zeros(3)) is None
    assert constant_baseline(made("classes"), np.zeros(0, int)) is None


def test_measures_of_papers_are_those_of_classes():
    from fedjax_dp.tools.papers.reproductions.measures import CLASSES

    assert measures_of_task(Classes()) == CLASSES


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("classes", {"loss": "mean"}, "loss must be left out for task classes, got 'mean'"),
        ("regression", {"loss": "mean"}, "loss must be one of squared, huber for task regression, got 'mean'"),
        ("sequence", {"ap": "exact"}, "ap must be left out for task sequence"),
        ("multi_label", {"ap": "rough"}, "ap must be one of exact, buckets200"),
        ("clusters", {}, "task must be one of classes, sequence"),
        ("classes", {"top_k": 7}, "top_k must be an integer from 2 to 6, got 7; there are 7 classes"),
        ("classes", {"top_k": 1}, "top_k must be an integer from 2 to 6, got 1"),
        ("classes", {"top_k": 2, "classes": 2}, "top_k must be left out for 2 classes"),
        ("regression", {"top_k": 2}, "top_k must be left out for task regression, got 2; it is for classes and tokens"),
    ],
)
def test_a_loss_of_another_task_is_refused_in_one_line(name, options, told):
    assert told in refusal(made, name, **options)


def test_targets_of_ones_own_need_a_loss():
    with pytest.raises(ValueError, match="need a user-defined loss"):
        Own().loss(None, None)
