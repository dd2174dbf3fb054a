"""The compiled round against a slow, obvious NumPy one, and the laws it must obey."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from helpers import ragged_data, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_dp import algorithms, prng
from fedjax_dp.execution import mesh
from fedjax_dp.models import logistic_regression
from fedjax_dp.parts import aggregation, cohorts
from fedjax_dp.parts.choices import part_of
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import ravel
from fedjax_dp.rounds import simulation
from fedjax_dp.rounds.clients import draw_cohort
from fedjax_dp.rounds.simulation import run_key


def settings_of(estimator="wor_delta", **changes):
    base = {
        "cohort_size": 3,
        "batch_size": 2,
        "local_steps": 4,
        "learning_rate": 0.3,
        "clip_norm": 0.7,
        "noise_multiplier": 0.9,
        "schedule": "inverse_sqrt",
        "l2": 0.02,
        "estimator": estimator,
    }
    return {**base, **changes}


sample = jax.jit(lambda law, *given: law.sample(*given), static_argnums=(3, 4, 5))
normals = jax.jit(prng.normals, static_argnums=2)


def by_reference(config, data, seed, rounds):
    """The last model of the reference in tests/reference.py. Only raw random draws are shared."""
    key, num_clients, steps = run_key(seed), data.num_clients, config["local_steps"]
    who = cohorts.AllClients() if config["cohort_size"] is None else cohorts.UniformCohort(size=config["cohort_size"])
    law = part_of("batches", {"batches": "without-replacement", **config})
    shares = jnp.asarray(data.shares)
    ids = [np.asarray(draw_cohort(who, key, jnp.int32(t), shares).ids).tolist() for t in range(rounds)]
    noise, drawn = np.zeros((rounds, num_clients, steps, 12)), {}
    for t, i in [(t, i) for t, members in enumerate(ids) for i in members]:
        own = jax.random.fold_in(jax.random.fold_in(role_key(key, "local"), t), i)
        drawn[t, i] = jax.device_get(
            sample(law, role_key(own, "batch"), jnp.int32(data.sizes[i]), steps, data.largest, data.smallest)
        )
        noise[t, i] = [normals(role_key(own, "noise"), s, 12) for s in range(steps)]
    shares, estimator = np.asarray(shares, float), config["estimator"]
    if estimator == "precision":
        shares, estimator = shares * np.minimum(shares, 2 / num_clients), "renorm"
    case = reference.Case(
        problem=reference.softmax_problem(3, 3),
        x=[np.asarray(data.x[o : o + n], float) for o, n in zip(data.offsets, data.sizes)],
        y=[data.y[o : o + n] for o, n in zip(data.offsets, data.sizes)],
        shares=shares,
        start=np.zeros(12),
        cohorts=ids,
        batches=lambda t, i, s: drawn[t, i].positions[s][drawn[t, i].mask[s]],
        divisor=lambda t, i, s: float(drawn[t, i].divisor[s]),
        steps=steps,
        rate=lambda t, s: config["learning_rate"] / np.sqrt(1 + t),
        noise=noise,
    )
    std = np.broadcast_to(config["noise_multiplier"], (num_clients,)) / 2  # of the sensitivity 2 C / B
    options = {"bound": config["clip_norm"], "multiplier": std, "l2": config["l2"]}
    return reference.dpnfl(case, estimator=estimator, **options)[-1]["w"]


def simulated(config, data, seed, rounds, execution=None):
    model = logistic_regression((3,), 3)
    return simulation.simulate(
        algorithms.dpnfl(**config), data, rounds=rounds, seed=seed, model=model, execution=execution
    ).params["Dense_0"]


@given(
    sizes=st.lists(st.integers(2, 9), min_size=1, max_size=6),
    estimator=st.sampled_from(sorted(set(aggregation.ESTIMATORS) - {"median", "trimmed_mean"})),  # no sums
    law=st.sampled_from(["without-replacement", "with-replacement", "poisson", "full"]),
    seed=st.integers(0, 99),
    members=st.integers(1, 6),
    per_client=st.booleans(),
)
@settings(max_examples=2, deadline=None)
def test_compiled_rounds_equal_the_numpy_reference(sizes, estimator, law, seed, members, per_client):
    data = ragged_data(sizes, seed=seed)
    noise = np.linspace(0.5, 1.5, len(sizes)) if per_client else 0.9
    everyone = estimator == "full" or members >= len(sizes)
    config = settings_of(
        estimator,
        cohort_size=None if everyone else members,
        batches=law,
        noise_multiplier=noise,
        batch_size=None if law == "full" else 2,
    )
    got = ravel(simulated(config, data, seed, rounds=3))[0]
    np.testing.assert_allclose(got, by_reference(config, data, seed, rounds=3), rtol=2e-4, atol=2e-5)


@pytest.fixture(scope="module")
def data():
    return ragged_data([5, 9, 2, 7, 4, 8, 3])


def one_device(chunk_size=None):
    return mesh.Execution(None, chunk_size)


def test_as_many_clients_are_computed_at_once_as_caches_hold():
    execution = mesh.Execution()
    if execution.platform != "cpu":
        assert execution.portion(100, 10**6) == 100
        return
    sizes = (110, 7850, 21_310, 10**6)
    assert [execution.portion(100, size) for size in sizes] == [100, 5, 2, 1]
    assert execution.portion(12, 7850) == 4  # three portions of four, not two of five and one of two
    assert (execution.portion(10, 10**6 + 1), execution.portion(1, 10**6 + 1)) == (2, 1)  # odd lengths are slow alone
    assert mesh.Execution(parts=2).portion(10, 7850) == 5
    assert (execution.portion(52, 110), execution.portion(52, 110, usual=10)) == (52, 5)


def test_portions_can_be_chosen():
    assert mesh.Execution(chunk_size=4).portion(10, 10**6) == 4
    assert mesh.Execution(chunk_size=40).portion(10, 7850, usual=4) == 10


def sum_updates(ids, weights, updates, chunk_size):
    def train(table, member):
        client, weight = member
        return weight * table[client], client

    return mesh.sum_over_clients(train, updates, (ids, weights), one_device(chunk_size), 4)


def test_order_of_clients_changes_nothing_beyond_rounding():
    updates = jax.random.normal(jax.random.key(0), (9, 4))
    ids, weights = jnp.array([7, 1, 4, 2, 8]), jnp.array([0.1, 0.2, 0.3, 0.4, 0.5])
    total, reports = sum_updates(ids, weights, updates, None)
    order = jnp.array([3, 0, 4, 2, 1])
    again, shuffled = sum_updates(ids[order], weights[order], updates, None)
    np.testing.assert_allclose(total, again, rtol=1e-6)
    np.testing.assert_array_equal(reports[order], shuffled)


@pytest.mark.slow
def test_padding_clients_contribute_exactly_zero():
    updates = jnp.ones((9, 4)).at[0].set(jnp.nan)  # padding repeats client 0
    ids, weights = jnp.array([7, 1, 4, 2, 8]), jnp.ones(5)
    for chunk_size in (None, 2, 3, 4):
        total, reports = sum_updates(ids, weights, updates, chunk_size)
        np.testing.assert_array_equal(total, 5.0)
        np.testing.assert_array_equal(reports, ids)


@pytest.mark.parametrize("shares", [1, 2])
@pytest.mark.parametrize("chunk_size", [1, 2, 7])
def test_only_those_needed_are_added_and_portions_without_any_are_skipped(chunk_size, shares):
    updates = 2.0 ** jnp.arange(9)[:, None] * jnp.ones((9, 4))
    seen = []

    def train(table, member):
        jax.debug.callback(lambda c: seen.append(int(c)), member)
        return table[member], member + 1

    ids = jnp.array([7, 1, 4, 2, 8, 0, 0, 0, 0])
    needed = jnp.array([True, True, False, True, False, False, False, False, False])
    execution = mesh.Execution(None, chunk_size, parts=shares)
    total, rows = jax.jit(lambda: mesh.sum_over_clients(train, updates, ids, execution, 4, needed, 3))()
    np.testing.assert_array_equal(total, 2.0**7 + 2.0**1 + 2.0**2)
    np.testing.assert_array_equal(rows[needed], ids[needed] + 1)
    if chunk_size == 1:
        jax.effects_barrier()
        assert sorted(seen) == [1, 2, 7]


@pytest.mark.slow
def test_evaluating_more_often_changes_nothing(data):
    value = algorithms.dpnfl(**settings_of())
    a = simulation.simulate(value, data, rounds=6, evaluate_every=1)
    b = simulation.simulate(value, data, rounds=6, evaluate_every=4)
    assert [point.round for point in a.history] == [1, 2, 3, 4, 5, 6]
    assert [point.round for point in b.history] == [4, 6]
    np.testing.assert_array_equal(a.params["Dense_0"]["kernel"], b.params["Dense_0"]["kernel"])


@pytest.mark.slow
def test_changing_any_number_compiles_nothing_new(data):
    simulation.simulate(algorithms.addpnfl(**settings_of()), data, rounds=2)
    before = simulation.advance._cache_size()
    for seed, changes in enumerate(
        [
            {"learning_rate": 1},
            {"clip_norm": 2.0},
            {"noise_multiplier": 0.1},
            {"l2": 0},
            {"server_learning_rate": 0.5},
            {"pi": 0.1, "b1": 0.0},
        ]
    ):
        simulation.simulate(algorithms.addpnfl.of(settings_of(**changes)), data, rounds=2 + seed, seed=seed)
    assert simulation.advance._cache_size() == before
    simulation.simulate(algorithms.addpnfl(**settings_of(local_steps=5)), data, rounds=2)  # structure does
    assert simulation.advance._cache_size() == before + 1


@pytest.mark.slow
def test_no_key_and_counter_is_ever_used_twice(monkeypatch):
    used = []

    def note(key, high, low):
        words = (np.broadcast_to(word, np.shape(low)).tolist() for word in (*key, high, low))
        used.extend(zip(*words, strict=True))

    def recording(key, high, low, original=prng._threefry):
        jax.debug.callback(note, key, high, low)
        return original(key, high, low)

    monkeypatch.setattr(prng, "_threefry", recording)
    value = algorithms.dpnfl(**settings_of(cohort_size=2, local_steps=3))  # a structure that no other test compiles
    simulation.simulate(value, ragged_data([4, 5, 6]), rounds=2, execution=one_device())
    jax.effects_barrier()
    assert len(used) == 2 * (2 + 2 * (3 * 2 + 3 * 12))  # per round: cohort, then batches and noise of two clients
    assert len(set(used)) == len(used)


BAD = [
    ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
    ({"cohort_size": 8}, "cohort_size must be at most the 7 clients, got 8"),
    ({"learning_rate": float("nan")}, "learning_rate must be positive and finite, got nan"),
    ({"learning_rate": 0.0}, "learning_rate must be positive and finite"),
    ({"clip_norm": 0.0}, "clip_norm must be positive and finite, got 0.0; use an algorithm without privacy"),
    ({"clip_norm": float("inf")}, "clip_norm must be positive and finite, got inf"),
    ({"noise_multiplier": -1.0}, "noise_multiplier must be zero or positive and finite"),
    ({"noise_multiplier": np.ones(3)}, "noise_multiplier must be one number or 7 of them"),
    ({"local_steps": 0}, "local_steps must be an integer of at least 1, got 0"),
    ({"l2": -0.1}, "l2 must be zero or positive"),
    ({"estimator": "full"}, "estimator full must be used with all clients"),
    ({"estimator": "wor_deltas"}, "did you mean wor_delta?"),
    ({"schedule": "invers"}, "schedule must be one of"),
    ({"batches": "shuffled"}, "batches must be one of"),
]


@pytest.mark.parametrize(("changes", "words"), BAD)
def test_wrong_settings_are_refused_before_anything_compiles(data, changes, words):
    before = simulation.advance._cache_size()
    assert words in refusal(lambda: simulation.simulate(algorithms.dpnfl(**settings_of(**changes)), data, rounds=2))
    assert simulation.advance._cache_size() == before


def test_wrong_rounds_are_refused(data):
    for rounds in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="rounds must be an integer"):
            simulation.simulate(algorithms.dpnfl(**settings_of()), data, rounds=rounds)
