"""Median and trimmed mean: what they are, what a few clients can do to them, and what privacy they leave."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ragged_data, refusal, states_of, usual

import fedjax_dp as fdp
from fedjax_dp import parts
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.parts.cohorts import Members
from fedjax_dp.pytrees import ravel
from fedjax_dp.rounds import simulation

COMMON = {"cohort_size": 5, "batch_size": 2, "local_steps": 2, "learning_rate": 0.3}
NOISED = {"clip_norm": 0.7, "noise_multiplier": 2.0}


@pytest.fixture(scope="module")
def data():
    return ragged_data([5, 9, 2, 7, 4, 8, 3])


def by_hand(updates, trim):
    """Yin et al. 2018, Definitions 1 and 2, one coordinate after another."""
    result = []
    for column in np.asarray(updates, float).T:
        ordered = sorted(column)
        out = min(int(np.floor(trim * len(ordered) + 1e-9)), (len(ordered) - 1) // 2)
        result.append(np.mean(ordered[out : len(ordered) - out]))
    return np.array(result)


def combined(trim, updates, present):
    size = len(present)
    members = Members.of(jnp.arange(size), present)
    sent = jnp.where(present[:, None], jnp.asarray(updates, jnp.float32), 0.0)
    return parts.TrimmedMean(trim=trim).combine(sent, members, None, None, None)


@pytest.mark.parametrize("trim", usual([0.0, 0.1, 0.29, 0.3, 0.45, 0.5], [0.5]))
@pytest.mark.slow
def test_it_is_the_mean_of_what_lies_between_of_those_who_are_there(trim):
    rng = np.random.default_rng(0)
    for size, count in ((1, 1), *((100, count) for count in (1, 2, 3, 6, 10, 11, 60, 100))):
        updates = rng.normal(size=(size, 4)) - 3  # far from the zeros of those who are absent
        present = rng.permutation(size) < count
        wanted = by_hand(updates[present], trim)
        np.testing.assert_allclose(combined(trim, updates, jnp.asarray(present)), wanted, rtol=1e-5)
        if trim == 0.5:
            np.testing.assert_allclose(wanted, np.median(updates[present], 0))
    assert not np.any(combined(trim, updates, jnp.zeros(100, bool)))  # nobody came: nothing moves


def test_a_few_clients_move_the_mean_as_they_like_and_not_the_median():
    rng = np.random.default_rng(1)
    updates, everyone = rng.normal(size=(10, 6)), jnp.ones(10, bool)
    wrong = updates.copy()
    wrong[:3] = 1e6
    for trim in (0.3, 0.5):
        got = np.asarray(combined(trim, wrong, everyone))
        assert np.all((got >= updates[3:].min(0) - 1e-6) & (got <= updates[3:].max(0) + 1e-6))
    assert np.all(combined(0.0, wrong, everyone) > 1e5)
    assert np.all(combined(0.2, wrong, everyone) > 1e5)  # which leaves out two at an end


def moved(estimator, data, execution=None, **options):
    algorithm = fdp.fedavg.of({**COMMON, **options, "estimator": estimator})
    model = fdp.logistic_regression(data.record_shape, data.classes)
    return ravel(simulation.simulate(algorithm, data, rounds=2, model=model, execution=execution).params)[0]


@pytest.mark.slow
@pytest.mark.parametrize("estimator", usual(["median", "trimmed_mean"], ["trimmed_mean"]))
def test_portions_and_corrections_change_nothing(data, estimator):
    options = {"trim": 0.3} if estimator == "trimmed_mean" else {}
    whole = moved(estimator, data, **options)
    np.testing.assert_array_equal(moved(estimator, data, Execution(None, 2), **options), whole)
    scaffold = fdp.scaffold(**COMMON, estimator=estimator)
    plain = fdp.scaffold(**COMMON)
    model = fdp.logistic_regression(data.record_shape, data.classes)
    ours, theirs = (states_of(one, model, data, 1)[-1] for one in (scaffold, plain))
    assert np.any(ravel(ours.params)[0] != ravel(theirs.params)[0])
    np.testing.assert_allclose(ours.shared[0], theirs.shared[0], rtol=1e-5, atol=1e-7)  # still means


def test_one_record_level_epsilon_whatever_is_done_with_noised_updates(data):
    """In every view: noises do not add up in a median, so none is counted but the client's own."""
    for options in ({}, {"local_steps": 1}, {"local_steps": 1, "batches": "full", "batch_size": None}):
        for view in ("uploads", "broadcast", "final_model"):
            algorithm = fdp.dp_fedavg_record(**{**COMMON, **options}, **NOISED, estimator="median")
            mean = fdp.dp_fedavg_record(**{**COMMON, **options}, **NOISED, estimator="mean")
            counted = {"rounds": 3, "delta": 1e-3, "accountant": "rdp"}
            ours = fdp.guarantee(algorithm, data, view=view, **counted)
            alone = fdp.guarantee(mean, data, view="uploads", **counted)
            assert ours.epsilons == alone.epsilons
    summed = fdp.guarantee(mean, data, view="broadcast", **counted)
    assert max(summed.epsilons) < max(alone.epsilons)  # which a median must not have


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            lambda: fdp.dp_ftrl(**{**COMMON, "cohort_size": 1}, **NOISED, estimator="median"),
            "one that bounds the influence of a client",
        ),
        (
            lambda: dataclasses.replace(
                fdp.dp_fedavg(**COMMON, **NOISED, cohort="uniform"), aggregate=parts.TrimmedMean(trim=0.1)
            ),
            "one that bounds the influence of a client",
        ),
        (lambda: fdp.fedavg(**COMMON, estimator="median", secure=True), "one of sums in a secure sum"),
        (lambda: fdp.fedavg(**COMMON, estimator="median", cohort="md"), "where a client may be drawn twice"),
        *(
            (lambda trim=trim: fdp.fedavg(**COMMON, estimator=parts.TrimmedMean(trim=trim)), "trim must be in [0, 0.5]")
            for trim in (0.6, float("nan"))
        ),
        (lambda: fdp.dp_fedavg(**COMMON, **NOISED, estimator="median"), "estimator must be left out for dp_fedavg"),
    ],
)
def test_what_it_cannot_be_is_refused_in_one_line(data, made, words):
    model = fdp.logistic_regression(data.record_shape, data.classes)
    assert words in refusal(lambda: simulation.simulate(made(), data, rounds=1, model=model))
