"""Draws on the host come from streams of named roles, which a user's own generator has not."""

import ast
import inspect
import pathlib

import numpy as np
import pytest
from scipy import stats

import fedjax_dp
from fedjax_dp import data
from fedjax_dp.numpy_streams import numpy_stream

ROOT = pathlib.Path(fedjax_dp.__file__).parent
LABELS = np.repeat(np.arange(10), 60)
PARTITIONS = {
    "iid": lambda seed: data.iid(LABELS, 6, seed),
    "similarity": lambda seed: data.similarity(LABELS, 6, 50, seed),
    "dirichlet": lambda seed: data.dirichlet(LABELS, 6, 0.5, seed),
    "class_dirichlet": lambda seed: data.class_dirichlet(LABELS, 6, 0.5, seed),
    "pathological": lambda seed: data.pathological(LABELS, 6, 2, seed=seed),
    "shards": lambda seed: data.shards(LABELS, 6, seed, shards_per_client=2),
    "labels_per_client": lambda seed: data.labels_per_client(LABELS, 6, 3, seed),
    "continuous": lambda seed: data.continuous(np.arange(600) % 97 * 1.0, 6, 0.3, seed),
}


def test_no_stream_is_everybodys_or_another_roles():
    draws = {role: numpy_stream(role, 3).random(4).tobytes() for role in ("data iid", "data holdout", "coins")}
    draws["a user's"] = np.random.default_rng(3).random(4).tobytes()
    draws["another seed"] = numpy_stream("data iid", 4).random(4).tobytes()
    assert len(set(draws.values())) == len(draws)
    assert numpy_stream("data iid", 3).random(4).tobytes() == draws["data iid"]


@pytest.mark.parametrize("seed", range(4))
def test_values_of_a_users_generator_are_no_noise_of_a_partition(seed):
    """Strength 0 deals them at random, whatever they were made of."""
    values = np.random.default_rng(seed).normal(size=1000)
    parts = data.continuous(values, 10, strength=0.0, seed=seed)
    client = np.empty(1000)
    for number, rows in enumerate(parts):
        client[rows] = number
    assert abs(stats.spearmanr(client, values).statistic) < 0.16  # 5 deviations


@pytest.mark.parametrize("name", PARTITIONS)
def test_partitions_differ_by_seed_and_are_the_same_again(name):
    one, again, other = (np.concatenate(PARTITIONS[name](seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_nothing_draws_from_a_stream_that_a_user_may_have():
    """The shipped digits are split once and for all, as their numbers in papers are."""
    allowed = {"numpy_streams.py": 1, "digits.py": 1}
    for path in ROOT.rglob("*.py"):
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute)
            and node.attr in ("default_rng", "RandomState", "seed")
            and "random" in ast.unparse(node.value)
        ]
        assert len(calls) == allowed.get(path.name, 0), path.name
    assert "crc32" in inspect.getsource(numpy_stream)
