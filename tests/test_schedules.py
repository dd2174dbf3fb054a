"""Schedules against slow NumPy; their numbers are traced, and every factor is positive."""

import math

import jax
import numpy as np
import pytest
from helpers import ragged_data

import fedjax_dp as fdp
from fedjax_dp import schedules

DATA = ragged_data([8, 6, 9])
COMMON = {"cohort_size": None, "batch_size": 4, "local_steps": 2, "learning_rate": 0.5}
NUMBERS = {"decay_rounds": 6, "warm_up_rounds": 3, "decay_every": 2, "decay_factor": 0.5}


def by_hand(name, t, decay_rounds=6, warm_up_rounds=3, decay_every=2, decay_factor=0.5):
    cosine = lambda t, horizon: (1 + math.cos(math.pi * min(t, horizon - 1) / horizon)) / 2  # noqa: E731
    warm = min((t + 1) / warm_up_rounds, 1)
    return {
        "constant": 1.0,
        "inverse_sqrt": 1 / math.sqrt(1 + t),
        "inverse": 1 / (1 + t),
        "cosine": cosine(t, decay_rounds),
        "step": decay_factor ** (t // decay_every),
        "warm_up": warm,
        "warm_up_cosine": warm * cosine(max(t - warm_up_rounds, 0), decay_rounds - warm_up_rounds),
    }[name]


def numbers_of(name):
    return {number: NUMBERS[number] for number in fdp.parts.CHOICES["schedule"].choices[name].numbers}


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_rates_of_rounds_are_those_by_hand(name):
    local = fdp.fedavg.of({**COMMON, "schedule": name, **numbers_of(name)}).local
    rates = [float(local.rates(jax.numpy.int32(t), DATA.largest)[0]) for t in range(12)]
    np.testing.assert_allclose(rates, [0.5 * by_hand(name, t) for t in range(12)], rtol=1e-5)
    assert min(rates) > 0


def test_numbers_are_traced_so_that_a_sweep_varies_them_in_one_program():
    rates = [fdp.parts.RateSchedule.of("cosine", decay_rounds=rounds) for rounds in (5, 9)]
    algorithm, other = (fdp.fedavg(**COMMON, schedule=schedule) for schedule in rates)
    assert jax.tree.structure(algorithm) == jax.tree.structure(other)
    assert jax.tree.leaves(algorithm) != jax.tree.leaves(other)


def test_a_server_that_follows_takes_the_same_schedule():
    made = fdp.addpnfl(**COMMON, clip_norm=1.0, schedule=fdp.parts.RateSchedule.of("step", decay_every=3))
    assert made.server.schedule is made.local.schedule is schedules.step
    assert made.server.timing == made.local.timing == {"decay_every": 3, "decay_factor": 0.1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "cosine"}, "decay_rounds must be given for schedule cosine, got nothing"),
        ({"schedule": "step", "decay_every": 0}, "decay_every must be positive"),
        ({"schedule": "step", "decay_every": 2, "decay_factor": 0.0}, "decay_factor must be positive"),
        ({"schedule": "step", "decay_every": 2, "decay_factor": 2.0}, "decay_factor must be at most 1, got 2"),
        ({"schedule": "warm_up", "decay_rounds": 3}, "decay_rounds must be left out unless schedule is cosine or"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(options, message):
    with pytest.raises(fdp.ConfigurationError, match=message):
        fdp.run(fdp.fedavg.of({**COMMON, **options}), DATA, rounds=2)


def test_a_private_algorithm_follows_a_schedule_at_the_epsilon_of_a_constant_one():
    timings = ({"schedule": "constant"}, {"schedule": "warm_up_cosine", "warm_up_rounds": 2, "decay_rounds": 4})
    private = {"clip_norm": 1.0, "noise_multiplier": 2.0, "l2": 0.0}
    made = (fdp.dpnfl.of(COMMON | private | timing) for timing in timings)
    constant, other = (fdp.guarantee(algorithm, DATA, rounds=4, delta=1e-3).epsilon for algorithm in made)
    assert np.isfinite(constant)
    assert constant == pytest.approx(other, rel=1e-3)


@pytest.mark.slow
def test_a_sweep_varies_the_rounds_of_decay():
    algorithm = fdp.fedavg(**COMMON, schedule=fdp.parts.RateSchedule.of("cosine", decay_rounds=4))
    found = fdp.sweep(algorithm, DATA, rounds=3, axes={"decay_rounds": [2, 4, 8]})
    assert len({record["history"][-1]["test_loss"] for record in found.records}) == 3
