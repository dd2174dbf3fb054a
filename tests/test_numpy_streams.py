"""What is drawn on the host comes from streams of its own: nobody's numbers, nor another role's, are these draws."""

import ast
import pathlib

import numpy as np
import pytest

import fedjax_dp as fdp
from fedjax_dp import data
from fedjax_dp.experiments.groups import PrivacyConfig
from fedjax_dp.numpy_streams import numpy_stream

ROOT = pathlib.Path(fdp.__file__).parent
SHUFFLED = {"digits"}  # whose order of records is what the data set is


def calls():
    """Every call in the package, with its module."""
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield path.stem, ast.unparse(node.func), node


def test_nothing_but_numpy_stream_makes_a_generator():
    makers = {"default_rng", "RandomState", "Generator", "seed", "SeedSequence"}
    modules = {module for module, function, _ in calls() if "random." in function and function.split(".")[-1] in makers}
    assert modules == {"numpy_streams"} | SHUFFLED


def test_every_use_has_a_role_of_its_own():
    roles = [node.args[0] for _, function, node in calls() if function in ("numpy_stream", "generator")]
    written = [role.value for role in roles if isinstance(role, ast.Constant)]
    assert len(written) > 20
    assert len(set(written)) == len(written)


def test_a_role_or_a_number_more_is_another_stream():
    first = [numpy_stream(*one).random() for one in (("a",), ("b",), ("a", 0), ("a", 1), ("b", 0), ("a", 0, 0))]
    assert len({*first, np.random.default_rng(0).random()}) == 7
    assert numpy_stream("a", 3).random() == numpy_stream("a", 3).random()


def correlation(parts, values):
    """Of the number of a record's client with its value; about N(0, 1 / records) where they are independent."""
    client = np.empty(len(values))
    for number, rows in enumerate(parts):
        client[rows] = number
    return abs(np.corrcoef(client, values)[0, 1]) * np.sqrt(len(values))


@pytest.mark.parametrize("seed", [0, 1])
def test_numbers_of_the_same_generator_and_seed_say_nothing_of_a_partition(seed):
    """Users draw by `default_rng(0)`, and partitions have seed 0."""
    rng = np.random.default_rng
    normal, order = rng(seed).standard_normal(1000), np.argsort(rng(seed).permutation(1000))
    assert correlation(data.continuous(normal, 10, 0.0, seed), normal) < 4.9
    assert correlation(data.iid(np.zeros(1000, int), 10, seed), order) < 4.9
    assert correlation(data.similarity(np.zeros(1000, int), 10, 100, seed), order) < 4.9
    assert correlation(data.grouped_natural(np.arange(1000), 100, seed), order) < 4.9
    held = data.split_each([np.arange(1000)], 0.5, seed)
    assert correlation([kept[0] for kept in held], order) < 4.9
    sizes = np.log(data.power_law_sizes(10**7, 1000, 1, seed))
    assert abs(np.corrcoef(sizes, normal)[0, 1]) * np.sqrt(1000) < 4.9
    budgets = PrivacyConfig(epsilon=1.0, epsilon_high=2.0).terms(1000, seed).epsilon
    assert abs(np.corrcoef(budgets, rng(seed).random(1000))[0, 1]) * np.sqrt(1000) < 4.9


def test_two_draws_of_one_seed_are_independent():
    """Sizes of clients and their budgets, an order and what is held out of it."""
    sizes = np.log(data.power_law_sizes(10**7, 1000, 1, 0))
    assert correlation(data.continuous(np.arange(1000), 1000, 0.0, 0), sizes) < 4.9
    (parts,) = data.iid(np.zeros(1000, int), 1, 0)
    (kept,), (rest,) = data.split_each([np.arange(1000)], 0.5, 0)
    assert correlation([kept, rest], np.argsort(parts)) < 4.9
