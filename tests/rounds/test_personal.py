"""Laws of clients that keep models of their own."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import own_parts
import pytest
from helpers import QuadraticModel, next_state, ragged_data, refusal, states_of, target_data, thinned, usual

import fedjax_dp as fdp
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.inspection import flow
from fedjax_dp.pytrees import value
from fedjax_dp.rounds import personal
from fedjax_dp.rounds.metrics import client_values
from fedjax_dp.rounds.simulation import as_float32_leaves, run_key
from fedjax_dp.rounds.state import initial_state

DATA = ragged_data([8, 6, 9, 7, 8, 6])
OWNED = dataclasses.replace(DATA, test_clients=np.arange(len(DATA.y_test), dtype=np.int32) % 5)
MODEL = fdp.mlp(DATA.record_shape, DATA.classes, (5,))
COMMON = {"cohort_size": 3, "batch_size": 4, "local_steps": 2, "learning_rate": 0.3}
NOISY = {**COMMON, "clip_norm": 1.0, "noise_multiplier": 2.0}
PERSONAL = ("local", "finetune", "ditto", "ditto_joint", "mr_mtl", "fedper", "fedrep", "apfl", "ppsgd", "ifca")
FEW = ["mr_mtl"]


def run(algorithm, rounds=4, data=DATA, model=MODEL, **options):
    return fdp.simulate(algorithm, data, rounds=rounds, model=model, seed=3, **options).state


def own(algorithm, state, data=DATA, model=MODEL):
    local = as_float32_leaves(algorithm).local
    return personal.models_of_clients(local, state, data, run_key(3), model=model)


def same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def close(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-6)


@pytest.mark.exhaustive
def test_one_cluster_is_federated_averaging_whose_choice_costs_nothing():
    renormed = states_of(fdp.dp_fedavg_local(**NOISY, schedule="constant", l2=0.0, estimator="renorm"), MODEL, DATA, 3)
    alone = states_of(fdp.algorithms.ifca(**NOISY, clusters=1), MODEL, DATA, 3)
    close([state.shared[1][0] for state in alone], [fdp.pytrees.ravel(state.params)[0] for state in renormed])
    paid = [
        fdp.guarantee(each, DATA, rounds=3, delta=1e-3, model=MODEL).epsilon
        for each in (fdp.algorithms.ifca(**NOISY, clusters=1), fdp.algorithms.mr_mtl(**NOISY))
    ]
    assert paid[0] == paid[1]


QUADRATIC = QuadraticModel()
PLAIN = ragged_data([5, 4, 6], shape=(2,), classes=1)
CLEAN = {"cohort_size": None, "batches": "full", "batch_size": None, "local_steps": 1, "learning_rate": 0.2}
CLEAN |= {"clip_norm": 1e4, "noise_multiplier": 0.0}


def stepped(algorithm, state):
    return next_state(as_float32_leaves(algorithm), PLAIN, run_key(0), state, model=QUADRATIC)


def kept_models(algorithm):
    state = initial_state(as_float32_leaves(algorithm), QUADRATIC, PLAIN, run_key(0))
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)), jnp.float32)
    mean = jnp.asarray(np.asarray(PLAIN.shares) @ np.asarray(rows), jnp.float32)
    return state._replace(params=mean, clients=(*state.clients[:-1], rows)), rows, mean


def gradients_at(rows):
    each = np.split(np.asarray(PLAIN.x), np.cumsum(np.asarray(PLAIN.sizes))[:-1])
    return np.array([1.0, 0.5]) * (np.asarray(rows) - np.array([records.mean(0) for records in each]))


def test_the_server_of_mr_mtl_keeps_the_mean_of_all_models_absent_ones_included():
    algorithm = fdp.algorithms.mr_mtl(**{**CLEAN, "cohort_size": 1, "noise_multiplier": 1.0}, strength=1.5)
    state, rows, _ = kept_models(algorithm)
    after = stepped(algorithm, state)
    assert np.any(np.asarray(after.clients[-1]) != rows, 1).sum() == 1
    close(np.asarray(PLAIN.shares) @ np.asarray(after.clients[-1]), after.params)


def test_a_pull_of_rate_times_lambda_one_steps_from_the_mean():
    algorithm = fdp.algorithms.mr_mtl(**CLEAN, strength=5.0)
    state, rows, mean = kept_models(algorithm)
    close(stepped(algorithm, state).clients[-1], np.asarray(mean) - 0.2 * gradients_at(rows))


def test_an_endless_implicit_pull_stands_still():
    algorithm = fdp.algorithms.mr_mtl(**CLEAN, strength=1e9, proximal="implicit")
    state, _, mean = kept_models(algorithm)
    after = stepped(algorithm, state)
    close(after.clients[-1], np.broadcast_to(mean, (3, 2)))
    close(after.params, mean)


@pytest.mark.parametrize("strength", [0.0, 1.0, 4.0])
def test_the_mean_moves_by_the_mean_gradient_whatever_the_pull(strength):
    algorithm = fdp.algorithms.mr_mtl(**CLEAN, strength=strength)
    state, rows, mean = kept_models(algorithm)
    moved = np.asarray(mean) - 0.2 * np.asarray(PLAIN.shares) @ gradients_at(rows)
    close(stepped(algorithm, state).params, moved)


@pytest.mark.exhaustive
def test_two_models_in_one_clip_are_ditto_where_nothing_is_clipped_or_noised():
    """Corrections join what is sent alone: l2 and control variates of a model that is as large as one, not as two."""
    loose = {**CLEAN, "clip_norm": 1e6, "strength": 0.4, "l2": 0.3}
    joint, ditto = (fdp.CATALOGUE[name](**loose) for name in ("ditto_joint", "ditto"))
    control = fdp.scaffold(**COMMON).local.corrections
    for corrections in (joint.local.corrections, control):
        ends = []
        for algorithm in (joint, ditto):
            changed = own_parts.steps(algorithm, corrections=corrections)
            state = run(changed, 3)
            ends.append((state.params, own(changed, state)))
        close(*ends)


@pytest.mark.slow
@pytest.mark.parametrize("entry", usual([*(name for name in PERSONAL if name != "finetune"), "scaffold"], ["apfl"]))
def test_absent_clients_keep_their_rows_bit_for_bit(entry):
    algorithm = fdp.CATALOGUE[entry](**{**(COMMON if entry == "scaffold" else NOISY), "cohort_size": 1})
    states, took_part = states_of(algorithm, MODEL, DATA, 3), np.zeros(6, int)
    for before, after in itertools.pairwise(states):
        changed = np.zeros(6, bool)
        for old, new in zip(jax.tree.leaves(before.clients), jax.tree.leaves(after.clients), strict=True):
            changed |= np.any((old != new).reshape(6, -1), 1)
        assert changed.sum() == 1
        took_part += changed
    np.testing.assert_array_equal(took_part, fdp.privacy.participations(algorithm, DATA, 3, 0))


# CI: rows of clients are kept alike for control variates, tests/execution/test_host_tables.py and test_laws.py
@pytest.mark.exhaustive
@pytest.mark.parametrize("entry", PERSONAL)
def test_portions_resuming_and_tables_on_the_host_change_nothing(entry):
    algorithm = fdp.CATALOGUE[entry](**NOISY)
    whole = run(algorithm, 4)
    close(run(algorithm, 4, execution=Execution(chunk_size=2)), whole)
    same(run(algorithm, 4, start=run(algorithm, 2)), whole)
    if entry != "finetune":  # which looks at all records at the end
        same(jax.tree.map(np.asarray, run(algorithm, 4, on_host=True)), whole)


@pytest.mark.slow
@pytest.mark.parametrize("entry", usual(PERSONAL, FEW))
def test_models_are_measured_on_their_own_clients_records(entry):
    algorithm = fdp.CATALOGUE[entry](**NOISY)
    result = fdp.simulate(algorithm, OWNED, rounds=3, model=MODEL, seed=3)
    models, owners = own(algorithm, result.state, OWNED), np.asarray(OWNED.test_clients)
    accuracies = []
    for client in range(5):
        params = jax.tree.map(lambda a, client=client: a[client], models)
        mine = dataclasses.replace(
            OWNED, x_test=OWNED.x_test[owners == client], y_test=OWNED.y_test[owners == client], test_clients=None
        )
        test = fdp.rounds.metrics.evaluate(params, mine, model=MODEL)
        accuracies.append(float(test.sums["right"]) / len(mine.y_test))
    last = result.history[-1]
    assert last.personal_mean == pytest.approx(np.mean(accuracies), abs=1e-6)
    assert last.personal_worst_tenth == pytest.approx(min(accuracies), abs=1e-6)
    assert last.personal_variance == pytest.approx(np.var(accuracies), abs=1e-6)
    sizes = np.bincount(owners)
    assert last.personal_pooled == pytest.approx(np.dot(accuracies, sizes) / sizes.sum(), abs=1e-6)


@pytest.mark.exhaustive  # CI: the pooled number of accuracies, above
def test_errors_of_own_models_are_pooled_over_records_and_no_mean_of_roots():
    data = target_data("regression", tested=True)
    model = fdp.mlp(data.record_shape, data.classes, (5,)).for_data(data)
    algorithm = fdp.mr_mtl(**NOISY)
    last = fdp.simulate(algorithm, data, rounds=2, model=model, seed=3).history[-1]
    result = run(algorithm, 2, data, model)
    test = personal.measure_personal(as_float32_leaves(algorithm).local, result, data, run_key(3), model=model)
    roots, records = client_values(test, data, model=model)
    pooled = np.sqrt(np.dot(np.square(roots), records) / records.sum())
    assert last.personal_pooled == pytest.approx(pooled, rel=1e-5)
    assert last.personal_pooled != pytest.approx(np.dot(roots, records) / records.sum(), rel=1e-4)


@pytest.mark.slow
def test_all_models_are_measured_in_one_compiled_call(monkeypatch):
    algorithm, calls = fdp.algorithms.mr_mtl(**NOISY), []
    state, measure = run(algorithm, 1, OWNED), personal._compiled_test_sums
    monkeypatch.setattr(
        personal, "_compiled_test_sums", lambda *args, **more: calls.append(1) or measure(*args, **more)
    )
    personal.measure_personal(as_float32_leaves(algorithm).local, state, OWNED, run_key(3), model=MODEL)
    assert len(calls) == 1


@pytest.mark.parametrize("noise_on", ["records", "clients"])
@pytest.mark.parametrize("entry", thinned(PERSONAL, FEW, 6))
def test_records_act_through_what_is_counted_alone(entry, noise_on):
    if noise_on == "clients" and "noise_on" not in fdp.CATALOGUE[entry].options:
        pytest.skip("there is no such level")
    options = {} if noise_on == "records" else {"noise_on": noise_on}
    flow.check(fdp.CATALOGUE[entry](**NOISY, **options), DATA, MODEL)
    if "personal_noise" in fdp.CATALOGUE[entry].options and noise_on == "records":
        flow.check(fdp.CATALOGUE[entry](**NOISY, personal_noise=0), DATA, MODEL)


@value
class Telling(fdp.parts.ModelBeside):
    """What it says to stay with its client is in the update."""

    def run(self, sgd, client, server, own):
        result, kept, message = super().run(sgd, client, server, own)
        return result._replace(update=result.update + 0.1 * (kept["model"] - own["model"])), kept, message


@value
class Returning(fdp.parts.ModelBeside):
    """What it says to stay with its client comes back a round later."""

    def run(self, sgd, client, server, own):
        result, kept, message = super().run(sgd, client, server, own)
        return result._replace(update=result.update + 0.1 * own["model"]), kept, message


@pytest.mark.slow
@pytest.mark.parametrize("clean", usual([False, True], [False]))
@pytest.mark.parametrize("kind", [Telling, Returning])
def test_models_that_say_of_a_gradient_that_it_stays_are_not_believed(kind, clean):
    right = fdp.algorithms.ditto(**NOISY)
    models = kind(pull=right.local.models.pull, steps=2, clean=clean)
    wrong = own_parts.steps(right, models=models)
    assert "past what is accounted for" in refusal(fdp.guarantee, wrong, DATA, rounds=3, delta=1e-3, model=MODEL)


@value
class Hiding(fdp.parts.ModelBeside):
    """It takes clean steps and says that they act on what is sent."""

    state_affects_messages = True


REFUSED = [
    ("fedper", {"head": "Dense_7"}, "head must be patterns of parameter paths, got 'Dense_7', which matches nothing"),
    ("fedper", {"head": "**"}, "head must be some of the parameters, got '**', which is all parameters"),
    ("mr_mtl", {"strength": -1.0}, "strength must be zero or positive"),
    ("mr_mtl", {"strength": "validation"}, "strength must be a number"),
    ("ditto", {"personal_noise": -0.5}, "personal_noise must be zero or positive"),
    ("ditto", {"personal_steps": 0}, "personal_steps must be"),
    ("ditto", {"noise_on": "clients", "personal_noise": 0.5}, "left out with noise_on clients"),
    ("apfl", {"alpha": 1.5}, "alpha must be in [0, 1]"),
    ("ifca", {"noise_on": "clients"}, "option must be one of"),
    ("ifca", {"clusters": 0}, "clusters must be"),
    ("ifca", {"loss_bound": 0.0}, "loss_bound must be positive"),
    ("mr_mtl", {"estimator": "wor_delta"}, "estimator must be left out for mr_mtl, which decides it"),
]


@pytest.mark.parametrize(("entry", "options", "told"), REFUSED)
def test_what_cannot_be_meant_is_refused_in_one_line(entry, options, told):
    assert told in refusal(lambda: fdp.simulate(fdp.CATALOGUE[entry](**NOISY, **options), DATA, rounds=2, model=MODEL))


def test_noise_for_a_budget_needs_a_view_in_which_something_is_released():
    alone = fdp.algorithms.local(**NOISY)
    assert "view must be one in which records are released, got uploads" in refusal(
        fdp.calibrate, alone, DATA, rounds=2, epsilon=2.0, delta=1e-3, view="uploads"
    )
    found = fdp.calibrate(alone, DATA, rounds=2, epsilon=2.0, delta=1e-3)
    assert fdp.guarantee(found, DATA, rounds=2, delta=1e-3).view is fdp.accounting.View.DEPLOYED


def test_clean_gradients_that_act_on_updates_and_noise_on_uploads_are_refused():
    right = fdp.algorithms.mr_mtl(**NOISY)
    told = "noise on the personal part must be that of the shared steps"
    for models in (Hiding(pull=right.local.models.pull, clean=True), fdp.parts.OwnModel(clean=True)):
        wrong = own_parts.steps(right, models=models)
        assert told in refusal(fdp.simulate, wrong, DATA, rounds=2, model=MODEL)
    noisy = fdp.dp_fedavg_output(**NOISY, schedule="constant")
    wrong = dataclasses.replace(noisy, local=fdp.parts.PersonalSgd(**vars(noisy.local), models=fdp.parts.OwnModel()))
    assert "nothing under noise on the upload" in refusal(fdp.simulate, wrong, DATA, rounds=2, model=MODEL)
