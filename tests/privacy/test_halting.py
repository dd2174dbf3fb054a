"""An epsilon ends a run at a round that is known before the first."""

import dataclasses
import re

import numpy as np
import pytest
from helpers import ragged_data, refusal

import fedjax_dp as fdp
from fedjax_dp.privacy.guarantees import prepare, verified_guarantee
from fedjax_dp.privacy.terms import PrivacyTerms

DATA = ragged_data([20, 20, 7, 40, 40, 20])


def planned(rounds=40, budget=8.0, noise=2.0, **terms):
    algorithm = fdp.dpnfl(
        cohort_size=3, batch_size=5, local_steps=2, learning_rate=0.3, clip_norm=1.0, noise_multiplier=noise
    )
    counted = PrivacyTerms(**{"delta": 1e-3, "stop_at_epsilon": budget, **terms})
    return fdp.privacy.plan_run(algorithm, DATA, rounds=rounds, terms=counted)


def epsilon_of_first(run, rounds):
    """Of a run that was planned for so many rounds."""
    shorter = dataclasses.replace(run, rounds=rounds, terms=PrivacyTerms(delta=1e-3), _cache={})
    return verified_guarantee(shorter).epsilon


@pytest.mark.parametrize("terms", [{}, {"participation": "law"}], ids=["schedule", "law"])
def test_the_last_round_is_within_the_budget_and_one_more_is_not(terms):
    """A budget that is looked at after the round is the wrong program that runs that one more."""
    run = planned(**terms)
    halted, promise = prepare(run)
    assert 0 < halted.rounds < 40
    assert promise.epsilon <= 8.0 < verified_guarantee(run.prefix(halted.rounds + 1)).epsilon
    assert not any("above the budget" in line for line in promise.warnings)


def test_a_halted_run_is_the_run_that_was_planned_for_so_many_rounds():
    run = planned()
    halted, promise = prepare(run)
    assert promise.epsilon == pytest.approx(epsilon_of_first(run, halted.rounds), rel=1e-12)
    np.testing.assert_array_equal(
        halted.participation_counts(), fdp.privacy.participations(run.algorithm, DATA, halted.rounds, 0)
    )
    again, _ = prepare(dataclasses.replace(halted))
    assert again.rounds == halted.rounds


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"budget": 0.01}, "stop_at_epsilon must be at least .*, which the first round costs, got 0.01"),
        ({"epsilon": 4.0}, "left out where epsilon finds the noise for all rounds"),
        ({"budget": [4.0] * 6}, "stop_at_epsilon must be a number, got"),
        ({"budget": float("nan")}, "stop_at_epsilon must be positive"),
        ({"participation": "once"}, "got 8.0 with participation once"),
        ({"noise": 0.0}, "left out where epsilon is infinite"),
    ],
)
def test_a_budget_that_cannot_end_a_run_is_refused_in_one_line(terms, words):
    assert re.search(words, refusal(lambda: prepare(planned(**terms))))


def test_no_budget_ends_what_takes_all_its_rounds():
    run = planned()
    with pytest.raises(fdp.ConfigurationError, match="left out, as an audit takes all its rounds"):
        fdp.audit(run.algorithm, DATA, rounds=2, delta=1e-3, stop_at_epsilon=8.0)
    with pytest.raises(fdp.ConfigurationError, match="left out of calibrate"):
        fdp.calibrate(run.algorithm, DATA, rounds=2, delta=1e-3, epsilon=1.0, stop_at_epsilon=8.0)
    with pytest.raises(fdp.ConfigurationError, match="left out in a sweep"):
        fdp.sweep(run.algorithm, DATA, rounds=2, delta=1e-3, stop_at_epsilon=8.0, axes={"clip_norm": [1.0]})
    plain = fdp.fedavg(cohort_size=3, batch_size=5, local_steps=2, learning_rate=0.3)
    with pytest.raises(fdp.ConfigurationError, match="without privacy"):
        fdp.run(plain, DATA, rounds=2, stop_at_epsilon=8.0)
