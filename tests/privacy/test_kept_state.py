"""Noise on whole clients that keep something from round to round."""

import itertools

import numpy as np
import pytest
from helpers import ragged_data
from scipy.stats import norm

import fedjax_dp as fdp
from fedjax_dp.accounting import Adjacency, GaussianSteps, Poisson, cost_of

DATA = ragged_data([20] * 6)
TERMS = {"rounds": 4, "delta": 1e-3, "seed": 1}
CHANGES = "client state changes in its client's own rounds alone, by its own records and by releases"
PUBLIC = "client state acts on later updates: the draw of clients is counted as public, without amplification"
RATE, LEVELS = 0.3, (0.0, 0.2, 1.0, 3.0)


def made(entry, **changes):
    base = {"cohort_size": 2, "batch_size": 2, "local_steps": 2, "learning_rate": 0.1, "clip_norm": 1.0}
    return fdp.CATALOGUE[entry](**{**base, "noise_multiplier": 1.5, "noise_on": "clients", **changes})


def attained(noise, again):
    """Hockey-stick divergences of two rounds with a client from those without, the worst of 16 clients, at LEVELS.

    Their second message, of norm 1, follows from the first coin and sum in every possible way; `again` are the
    chances of the second coin, by the first. Sums over a grid of both sums, in both directions.
    """
    line = np.linspace(-1 - 8 * noise, 1 + 8 * noise, 401)
    without = norm.pdf(line, 0, noise)
    absent, found = without[:, None] * without, []
    for messages in itertools.product((-1.0, 1.0), repeat=4):
        there = np.zeros_like(absent)
        for drawn, rate in enumerate(again):
            first = (RATE if drawn else 1 - RATE) * norm.pdf(line, drawn, noise)
            sent = np.reshape(messages, (2, 2))[drawn][(line > 0).astype(int)]
            there += first[:, None] * ((1 - rate) * without + rate * norm.pdf(line[None, :], sent[:, None], noise))
        for one, other in ((there, absent), (absent, there)):
            found.append([np.maximum(one - np.exp(level) * other, 0).sum() for level in LEVELS])
    return np.max(found, axis=0) * (line[1] - line[0]) ** 2


@pytest.mark.parametrize("noise", [0.5, 1.0])
def test_what_a_client_keeps_tells_no_more_than_poisson_cohorts_are_counted_for(noise):
    stated = cost_of(GaussianSteps(noise, Poisson(RATE), Adjacency.ADD_REMOVE, 2))
    most = np.array([stated.delta(level) for level in LEVELS]) * (1 + 2e-3) + 1e-9
    assert np.all(attained(noise, (RATE, RATE)) <= most)
    assert np.any(attained(noise, (0.0, 1.0)) > most)  # a second coin that follows the first is not counted


@pytest.mark.parametrize("entry", ["mr_mtl", "fedper", "ppsgd"])
def test_fixed_cohorts_hide_nothing_of_clients_that_keep_what_acts_later(entry):
    """Poisson cohorts are amplified, with the condition said; of fixed ones every round counts in full."""
    drawn = fdp.guarantee(made(entry, cohort="poisson"), DATA, **TERMS)
    assert drawn.adjacency is Adjacency.ADD_REMOVE
    assert CHANGES in drawn.assumptions
    fixed = fdp.guarantee(made(entry, cohort="uniform"), DATA, participation="worst", **TERMS)
    every = fdp.guarantee(made(entry, cohort="uniform", cohort_size=6), DATA, **TERMS)
    assert fixed.epsilon == pytest.approx(every.epsilon, rel=1e-3)
    assert PUBLIC in fixed.assumptions


@pytest.mark.parametrize("entry", ["ditto", "apfl", "finetune"])
def test_fixed_cohorts_are_amplified_where_nothing_kept_acts_on_a_message(entry):
    found = fdp.guarantee(made(entry, cohort="uniform"), DATA, **TERMS)
    assert found.epsilon < fdp.guarantee(made("mr_mtl", cohort="uniform"), DATA, participation="worst", **TERMS).epsilon
    assert not {CHANGES, PUBLIC} & set(found.assumptions)
