"""Small problems and stand-in slots for tests."""

import dataclasses
import functools
import importlib.util
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from fedjax_dp import algorithms, errors
from fedjax_dp.data import Dataset, Vocabulary, federate, power_law_sizes
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.parts.cohorts import Cohort, Members
from fedjax_dp.parts.contexts import ClientContext, Received
from fedjax_dp.parts.noise import NoiseSource
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import structure, value
from fedjax_dp.rounds.round import run_round
from fedjax_dp.rounds.simulation import as_float32_leaves, check, run_key
from fedjax_dp.rounds.state import initial_state
from fedjax_dp.tasks import Classes, describe_task, measures_of
from fedjax_dp.tools import cli

SPECS = pathlib.Path(__file__).parent / "golden"
SEEDS = st.integers(0, 2**32 - 1)
CLASSES = describe_task(Classes())  # as files describe it
MEASURES = measures_of(CLASSES)


def quick(cases, few, rest=pytest.mark.slow):
    """Cases of which few run by default, and the rest with the slow tests."""
    return [case if case in few else pytest.param(case, marks=rest) for case in cases]


def usual(cases, few):
    """Cases of a slow test of which few run in CI, and the rest by hand before a release."""
    return quick(cases, few, pytest.mark.exhaustive)


def thinned(cases, few, every, also=()):
    """Cases of which few run by default, one of `every` and some `also` with the slow tests, the rest by hand."""
    marks = [
        pytest.mark.exhaustive if place % every and case not in also else pytest.mark.slow
        for place, case in enumerate(cases)
    ]
    return [case if case in few else pytest.param(case, marks=mark) for case, mark in zip(cases, marks)]


@st.composite
def labels_and_sizes(draw):
    """Labels of some records, and sizes of clients that share some of them."""
    labels = np.array(draw(st.lists(st.integers(0, 5), min_size=1, max_size=80)))
    num_clients = draw(st.integers(1, min(8, labels.size)))
    used = draw(st.integers(num_clients, labels.size))
    return labels, power_law_sizes(used, num_clients, 1, draw(SEEDS))


def ragged_data(sizes, shape=(3,), classes=3, seed=0, name="toy"):
    """Clients of the given sizes with normal features and random labels."""
    rng = np.random.default_rng(seed)
    total = int(sum(sizes))
    x, y = rng.normal(size=(total, *shape)).astype(np.float32), rng.integers(0, classes, total).astype(np.int32)
    dataset = Dataset(name, x, y, x[: min(total, 50)], y[: min(total, 50)], classes=classes)
    return federate(dataset, np.split(np.arange(total), np.cumsum(sizes)[:-1]))


def scattered_data(kind=np.float32, tokens=False, tested=False):
    """Ragged clients whose rows are scattered over the data set, and some rows that nobody holds."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 50, (60, 3, 2)).astype(kind)
    y, order = rng.integers(0, 4, 60).astype(np.int32), rng.permutation(60)[:47]
    dataset = Dataset(
        "random", x[:50], y[:50], x[50:], y[50:], classes=4, scale=0.25, shift=1.5, tokens=tokens, learnt=("means",)
    )
    clients = np.split(order[order < 50], [1, 9, 12, 30])
    owners = rng.integers(0, len(clients), 10) if tested else None
    return federate(dataset, clients, shares=np.array([0.3, 0.1, 0.2, 0.15, 0.25]), test_clients=owners)


def target_data(task, records=24, clients=3, shape=(4,), seed=0, tested=False):
    """Ragged clients whose records have targets of a task: 3 outputs, 7 tokens, or a dictionary of arrays."""
    rng = np.random.default_rng(seed)
    tokens = task == "sequence"
    x = rng.integers(0, 7, (records, *shape)) if tokens else rng.normal(size=(records, *shape)).astype(np.float32)
    vocabulary = Vocabulary(7, pad=0, oov=(4,), bos=5, eos=6) if tokens else None
    made = {
        "classes": lambda: (rng.permutation(np.arange(records) % 3), 3),
        "sequence": lambda: (rng.integers(0, 7, (records, *shape)), 7),
        "multi_label": lambda: (rng.integers(0, 2, (records, 3)), 3),
        "binary": lambda: (rng.permutation(np.arange(records) % 2), 1),
        "regression": lambda: (rng.normal(size=(records, 3)), 3),
        "own": lambda: ({"box": rng.normal(size=(records, 2, 2)).astype(np.float32), "kind": np.arange(records)}, 3),
    }
    y, outputs = made[task]()
    tests = jax.tree.map(lambda a: a[: records // 3], y)
    about = {"task": task, "vocabulary": vocabulary, "tokens": tokens, "classes": outputs}
    dataset = Dataset(task, x, y, x[: records // 3], tests, **about)
    parts = np.array_split(rng.permutation(records)[: records - 2], clients)
    return federate(dataset, parts, test_clients=np.arange(records // 3) % clients if tested else None)


@value
class GivenCohorts(Cohort):
    """The clients of each round `(rounds, members)`, a multiset by counts; `rate` is that of their law."""

    ids: jax.Array
    counts: jax.Array
    rate: jax.Array
    size: int = structure()

    no_epsilon_reason, fixed, at_most_once = None, True, True

    def capacity(self, num_clients):
        return self.size

    def sample(self, keys, round_index, shares):
        ids, counts = self.ids[round_index].astype(jnp.int32), self.counts[round_index]
        return Members(ids, counts.astype(jnp.float32), jnp.zeros_like(ids), counts > 0)

    def rates(self, shares):
        return self.rate

    def inclusion_probability(self, shares):
        return self.rate, 1

    def check(self, num_clients):
        pass


@value
class GivenNoise(NoiseSource):
    """Noise from a table `(rounds, clients, steps, size)` instead of a generator."""

    table: jax.Array

    fresh = True

    def coefficients(self, steps):
        return (1.0,)

    def draw(self, key, step, size, state):
        return self.table[step.round, step.client, step.number][:size], state

    def variance(self, step):
        return 1.0


@dataclasses.dataclass(frozen=True)
class QuadraticModel:
    """l(w; x) = 1/2 sum_j a_j (w_j - x_j)^2 on a parameter vector: the loss of the worked examples."""

    curvature: tuple[float, ...] = (1.0, 0.5)
    start: tuple[float, ...] = (0.5, -0.5)

    def init(self, key):
        return jnp.array(self.start)

    def loss(self, params, x, y, key=None):
        return 0.5 * ((params - x) ** 2 * jnp.array(self.curvature)).sum()

    def logits(self, params, x):
        return x


@dataclasses.dataclass(frozen=True)
class FlatModel:
    """A loss of zero everywhere: updates are noise alone."""

    size: int

    def init(self, key):
        return jnp.zeros(self.size)

    def loss(self, params, x, y, key=None):
        return 0.0 * params.sum()

    def logits(self, params, x):
        return jnp.zeros(2)


@dataclasses.dataclass(frozen=True)
class ProductModel:
    """Parameters (u, v); feature u x, loss 1/2 (v u x - y)^2 on scalar x: the model of the rFedAvg examples.

    The label is kept as the second feature, because labels are integers elsewhere.
    """

    start: tuple[float, float] = (0.8, 0.5)
    has_features = True

    def init(self, key):
        return jnp.array(self.start)

    def features(self, params, x):
        return params[0] * x[:1]

    def loss(self, params, x, y, key=None):
        return 0.5 * (params[1] * self.features(params, x)[0] - x[1]) ** 2

    def logits(self, params, x):
        return x


def with_given(algorithm, *, cohort=None, steps=None, server=None):
    """The algorithm with these cohorts and this noise: `steps` of local steps, `server` of the server."""
    local, upload = algorithm.local, algorithm.upload
    if steps is not None:
        local = dataclasses.replace(
            local, privatizer=dataclasses.replace(local.privatizer, source=GivenNoise(table=steps))
        )
    if server is not None:
        upload = dataclasses.replace(upload, source=GivenNoise(table=server))
    return dataclasses.replace(algorithm, cohort=cohort or algorithm.cohort, local=local, upload=upload)


def states_of(algorithm, model, data, rounds, seed=0):
    """The state after each round, on the host."""
    value, key = as_float32_leaves(algorithm), run_key(seed)
    check(algorithm, data, rounds, model)
    states = [initial_state(value, model, data, key)]
    for _ in range(rounds):
        states.append(next_state(value, data, key, states[-1], model=model))
    return jax.device_get(states)


@functools.partial(jax.jit, static_argnames=("model",))
def next_state(value, data, key, state, *, model):
    return run_round(value, model, data, key, state, Execution())[0]


@dataclasses.dataclass(frozen=True)
class TwoLayerModel:
    """1/2 (v . tanh(x u) - y)^2 on one flat parameter vector (u row by row, then v); features tanh(x u)."""

    inputs: int
    hidden: int
    has_features = True

    def init(self, key):
        return 0.5 * jax.random.normal(key, (self.inputs * self.hidden + self.hidden,))

    def features(self, params, x):
        return jnp.tanh(x @ params[: self.inputs * self.hidden].reshape(self.inputs, self.hidden))

    def loss(self, params, x, y, key=None):
        return 0.5 * (self.features(params, x) @ params[self.inputs * self.hidden :] - y) ** 2

    def logits(self, params, x):
        return x


def refusal(function, *arguments, **options):
    """The message of the refusal, which is one line."""
    with pytest.raises(errors.ConfigurationError) as caught:
        function(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def command_output(capsys, *words):
    """What a command of the program prints that ends with exit code 0."""
    capsys.readouterr()
    assert cli.main([*words]) == 0
    return capsys.readouterr()


def command_refusal(capsys, *words):
    """The one line in which a command of the program ends with exit code 2, and nothing else is printed."""
    capsys.readouterr()
    assert cli.main([*words]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    return printed.err


def check_split(clients, sizes, records):
    """Sizes as asked, and every record at most once."""
    assert [len(rows) for rows in clients] == list(sizes)
    rows = np.concatenate(clients)
    assert np.unique(rows).size == rows.size
    assert rows.min() >= 0
    assert rows.max() < records


def benchmark(name):
    """A script of benchmarks/, as a module."""
    folder = pathlib.Path(__file__).parents[1] / "benchmarks"
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))  # where scripts find each other
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module


def noise_of_steps(size, rounds, num_clients, learning_rate=1.0, steps=1, start=0.0):
    """What reaches the server from clients whose gradients are zero: minus rate times the summed noise of the steps.

    z = 3, C = 0.5, B = 2; `(rounds, clients, size)`.
    """
    data = ragged_data([4] * num_clients)
    value = algorithms.dpnfl(
        cohort_size=None,
        batch_size=2,
        local_steps=steps,
        learning_rate=learning_rate,
        clip_norm=0.5,
        noise_multiplier=3.0,
        schedule="constant",
    )
    local = as_float32_leaves(dataclasses.replace(value, local=dataclasses.replace(value.local, corrections=()))).local
    model, key = FlatModel(size), run_key(5)

    def update(t, i):
        own = jax.random.fold_in(jax.random.fold_in(role_key(key, "local"), t), i)
        stored = jax.tree.map(jnp.asarray, data)
        held = Received(jnp.full(size, start))
        client = ClientContext(own, t, stored.client(i), stored, model, lambda flat: flat, held)
        return local.run(client).update

    over_clients = jax.vmap(update, in_axes=(None, 0))
    return np.asarray(jax.jit(jax.vmap(over_clients, in_axes=(0, None)))(jnp.arange(rounds), jnp.arange(num_clients)))


SMALL_RUN = {"cohort_size": 4, "batch_size": 5, "local_steps": 2, "learning_rate": 0.1}


def small_algorithm(name, **options):
    """An entry of the catalogue with small numbers, and noise where it takes any."""
    entry = algorithms.CATALOGUE[name]
    private = {"clip_norm": 1.0, "noise_multiplier": 1.0} if entry.private else {}
    return entry(**SMALL_RUN | private | ({"local_steps": 1} if name == "dp_sgd" else {}) | options)
