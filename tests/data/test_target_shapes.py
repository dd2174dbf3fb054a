"""Targets of every task are checked at the door, and reach the local steps, the disk and the devices as they are."""

import contextlib
import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import refusal, target_data, usual

import fedjax_dp as fdp
from fedjax_dp.data import Dataset, Vocabulary, federate
from fedjax_dp.data.checks import check_data
from fedjax_dp.data.targets import TARGETS
from fedjax_dp.execution.mesh import all_devices
from fedjax_dp.rounds import simulation

CLIENTS = np.split(np.arange(20), [3, 10])


def dataset_of(task, y, tests=None, **about):
    x = np.ones((20, 4), np.int32 if about.get("tokens") else np.float32)
    return Dataset("toy", x, y, x[:5], y[:5] if tests is None else tests, task=task, **{"classes": None} | about)


@pytest.mark.parametrize("task", TARGETS)
def test_a_client_gathers_the_targets_of_its_own_records(task):
    data = target_data(task)
    for client in range(data.num_clients):
        positions = np.arange(int(data.sizes[client]))[::-1].copy()
        rows = np.asarray(data.row_numbers)[int(data.offsets[client]) + positions]
        _, y = jax.tree.map(np.asarray, data.gather(data.client(jnp.int32(client)), positions))
        jax.tree.map(lambda got, whole, at=rows: np.testing.assert_array_equal(got, whole[at]), y, data.y)


@pytest.mark.parametrize("task", TARGETS)
def test_a_mean_over_records_sees_every_target_once(task):
    data = target_data(task)

    def of(x, y):
        return sum(a.astype(jnp.float32).reshape(len(a), -1).sum(1) for a in jax.tree.leaves(y))

    for client in range(data.num_clients):
        begin = int(data.offsets[client])
        rows = np.asarray(data.row_numbers)[begin : begin + int(data.sizes[client])]
        wanted = sum(np.asarray(a, float)[rows].reshape(len(rows), -1).sum(1).mean() for a in jax.tree.leaves(data.y))
        placed = jax.tree.map(jnp.asarray, data)
        np.testing.assert_allclose(placed.mean_over_records(placed.client(client), of), wanted, rtol=1e-5)


@dataclasses.dataclass(frozen=True)
class ReadsTargets:
    """One number, whose gradient is made of all of a record's target."""

    def init(self, key):
        return {"w": jnp.zeros(2)}

    def loss(self, params, x, y, key):
        leaves = [jnp.asarray(a, jnp.float32).ravel() for a in jax.tree.leaves(y)]
        seen = sum(jnp.vdot(a, jnp.cos(jnp.arange(1.0, a.size + 1))) for a in leaves)
        return params["w"][0] * seen + params["w"][1] * x.astype(jnp.float32).sum()

    def logits(self, params, x):
        return params["w"]


@pytest.mark.slow
@pytest.mark.parametrize("task", usual(TARGETS, ["own"]))
def test_records_on_the_host_bring_their_targets(task):
    data, model = target_data(task), ReadsTargets()
    algorithm = fdp.fedavg(cohort_size=2, batch_size=2, local_steps=3, learning_rate=0.1)
    simulation.check(algorithm, data, 3, model)
    ends = []
    for on_host in (False, True):
        run, state = simulation.initialize(algorithm, data, model, all_devices(), on_host=on_host)
        with contextlib.closing(run):
            ends.append(np.asarray(run.advance(state, 3)[0].params["w"]))
    assert ends[0].any()
    np.testing.assert_array_equal(*ends)


LABELS = np.arange(20) % 3
MANY = np.eye(20, 3, dtype=np.int32)
IDS = np.arange(60).reshape(20, 3) % 7
WORDS = {"vocabulary": Vocabulary(7), "tokens": True}


@pytest.mark.parametrize(
    ("task", "y", "about", "told"),
    [
        ("class", LABELS, {}, "task must be one of .*did you mean classes"),
        ("classes", MANY, {"classes": 3}, r"must be \(records, \.\.\.\) and \(records,\), got \(20, 4\) and \(20, 3\)"),
        ("binary", LABELS, {}, "y_train must be 0 or 1, got label 2"),
        ("binary", LABELS % 2, {"classes": 2}, "classes must be 1 for task binary"),
        ("binary", np.full(20, np.nan), {}, "y_train must be 0 or 1, got NaN"),
        ("multi_label", LABELS, {}, r"and \(records, labels\), got \(20, 4\) and \(20,\)"),
        ("multi_label", -MANY, {}, "y_train must be 0 or 1, got label -1"),
        ("multi_label", MANY, {"classes": 4}, "classes must be 3, one for each number"),
        ("multi_label", MANY[:, :0], {}, "targets of at least one number"),
        (
            "regression",
            np.full((20, 2), np.inf),
            {},
            "y_train must be finite numbers, got infinity in 20 of 20 records",
        ),
        ("regression", np.full((20, 2), 1e300), {}, "which is infinite in float32, in 20 of 20 records"),
        ("regression", np.ones((20, 2), "U1"), {}, "y_train must be finite numbers, got <U1"),
        ("sequence", IDS, {}, "vocabulary must be a Vocabulary, got nothing"),
        ("sequence", IDS, {"vocabulary": Vocabulary(0)}, "vocabulary: size must be an integer from 2"),
        ("sequence", IDS, {"vocabulary": Vocabulary(7, pad=7)}, "pad must be an integer from -1 to 6, got 7"),
        ("sequence", IDS, {"vocabulary": Vocabulary(7, oov=(6, 9))}, "vocabulary: oov must be .* got 9"),
        ("sequence", IDS + 1, WORDS, "y_train must be ids 0 to 6 of the vocabulary, got id 7; .*oov"),
        ("sequence", IDS - 1, WORDS, "y_train must be ids 0 to 6 of the vocabulary, got id -1"),
        ("sequence", IDS * 1.0, WORDS, "y_train must be ids of tokens, integers, got float64"),
        ("sequence", IDS, {"vocabulary": Vocabulary(7), "classes": 8}, "classes must be 7, the size of the vocabulary"),
        ("own", {"a": MANY, "b": LABELS[:5]}, {"classes": 2}, "one for every record, got arrays of 20 and 5"),
        ("own", {"a": MANY * np.nan}, {"classes": 2}, "y_train must be finite, got NaN"),
        ("own", {}, {"classes": 2}, "y_train must be arrays"),
    ],
)
def test_targets_that_are_none_of_the_task_are_refused_in_one_line(task, y, about, told):
    arrays = dataset_of(task, y, jax.tree.map(lambda a: a[:5], y), **about)[1:5]
    options = {"task": task, "classes": None} | about
    assert re.search(told, refusal(check_data, "", *arrays, **options))


def test_ids_of_features_stand_in_the_vocabulary_too():
    dataset = dataset_of("sequence", IDS, classes=7, **WORDS)
    told = refusal(federate, dataset._replace(x_train=dataset.x_train + 8), CLIENTS)
    assert "toy: x_train must be ids 0 to 6 of the vocabulary, got id 9" in told


def test_another_target_is_another_checksum():
    data = target_data("regression")
    other = np.array(data.y)
    other[data.row_numbers[0], 0] += 1
    assert fdp.pytrees.replace(data, y=other).checksum != data.checksum
