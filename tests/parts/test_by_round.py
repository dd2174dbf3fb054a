"""Noise and clip norms that change from round to round: factors by hand, what is drawn, what is refused."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ragged_data, refusal, usual

import fedjax_dp as fdp
from fedjax_dp.parts.by_round import ByRound
from fedjax_dp.parts.client_privacy import ClientGaussian, MessageEncoding
from fedjax_dp.parts.clipping import Records
from fedjax_dp.parts.contexts import StepContext
from fedjax_dp.parts.record_privacy import OutputGaussian, RecordGaussian, multiplier_of
from fedjax_dp.schedules import CHANGES

DATA = ragged_data([8, 6, 9])
MODEL = fdp.logistic_regression(DATA.record_shape, DATA.classes)
PARAMS = MODEL.init(jax.random.key(0))
COMMON = {"cohort_size": None, "batch_size": 4, "local_steps": 2, "learning_rate": 0.5}
NOISE = ByRound(change=CHANGES["linear"], numbers={"end": 0.25, "rounds": 8, "stages": 4})
CLIP = ByRound(change=CHANGES["list"], numbers={"factors": np.array([1.0, 3.0, 0.5], np.float32)})


def by_hand(name, t, end, rounds, stages):
    length = math.ceil(rounds / stages)
    last = math.ceil(rounds / length) - 1
    way = min(t // length, last) / last if last else 0.0
    half = (1 + math.cos(math.pi * way)) / 2
    return {"linear": 1 + (end - 1) * way, "step": end**way, "cosine": end + (1 - end) * half}[name]


@pytest.mark.parametrize("name", ["linear", "cosine", "step"])
@pytest.mark.parametrize(("end", "rounds", "stages"), [(0.5, 20, 10), (2.0, 7, 3), (0.1, 5, 100), (0.5, 6, 1)])
def test_factors_are_those_by_hand(name, end, rounds, stages):
    numbers = {"end": end, "rounds": rounds, "stages": stages}
    found = ByRound(change=CHANGES[name], numbers=numbers).factors(rounds + 3)
    np.testing.assert_allclose(found, [by_hand(name, t, **numbers) for t in range(rounds + 4)], rtol=1e-6)
    assert found[0] == 1
    assert len(np.unique(found)) <= stages


def test_a_list_is_as_it_stands_and_ends_with_its_last():
    np.testing.assert_array_equal(CLIP.factors(4), np.array([1.0, 3.0, 0.5, 0.5, 0.5], np.float32))
    assert float(CLIP.at(jnp.int32(-1))) == 1


def step_of(t):
    one = jnp.float32(1)
    return StepContext(jnp.int32(0), t, jnp.uint32(0), one, one, jnp.bool_(True))


def empty():
    x = jnp.zeros((4, *DATA.record_shape))
    return Records(
        x, jnp.zeros(4, jnp.int32), jnp.zeros(4, bool), jnp.float32(4), jax.random.split(jax.random.key(0), 4)
    )


@pytest.mark.parametrize("kind", [RecordGaussian, OutputGaussian])
def test_noise_of_a_step_has_the_factors_of_its_round_on_noise_and_clip_norm(kind):
    """With no records a gradient is its noise, and the draw is the same in every round of one key."""
    changing = kind(clip_norm=1.5, noise_multiplier=2.0, noise_by_round=NOISE, clip_by_round=CLIP)
    plain = kind(clip_norm=1.5, noise_multiplier=2.0)

    @jax.jit
    @jax.vmap
    def seen(t):
        step = step_of(t)
        gradients, reports = zip(
            *(one.gradient(jax.random.key(1), step, MODEL, PARAMS, empty()) for one in (changing, plain)), strict=True
        )
        return (
            gradients,
            [one.noise for one in reports],
            [jnp.float32(one.noise_variance(step, 4)) for one in (changing, plain)],
        )

    (found, first), (reported, _), (variance, before) = jax.device_get(seen(jnp.arange(5)))
    factors = NOISE.factors(4) * CLIP.factors(4)
    np.testing.assert_allclose(found, factors[:, None] * first, rtol=1e-5)
    np.testing.assert_allclose(variance, factors**2 * before, rtol=1e-5)
    np.testing.assert_allclose(reported, variance * found.shape[1], rtol=1e-5)
    multiplier = multiplier_of(changing, jnp.int32(0), jnp.int32(4))
    assert float(multiplier) == pytest.approx(2.0 * NOISE.factors(4)[4])


def test_noise_and_clip_norm_of_a_round_are_those_of_the_servers_release():
    upload = ClientGaussian(clip_norm=2.0, noise_multiplier=3.0, noise_by_round=NOISE, clip_by_round=CLIP)
    plain, sent = ClientGaussian(clip_norm=2.0, noise_multiplier=3.0), MessageEncoding(3, 0.0)
    state, long = upload.init(20), jnp.full(20, 10.0)
    for t in range(2):
        noise, clip = NOISE.factors(4)[t], CLIP.factors(4)[t]
        message, _ = upload.message(jax.random.key(0), long, (20,), state, sent)
        assert float(jnp.linalg.norm(message)) == pytest.approx(2.0 * clip, rel=1e-5)
        std = upload.noise_std(state, 0.5, jnp.int32(t))
        assert float(std) == pytest.approx(3.0 * noise * 2.0 * clip * 0.5, rel=1e-5)
        drawn, state = upload.release(jax.random.key(2), jnp.int32(t), jnp.zeros(20), (), state, 0.5, None)
        first, _ = plain.release(jax.random.key(2), jnp.int32(t), jnp.zeros(20), (), plain.init(20), 0.5, None)
        np.testing.assert_allclose(drawn, noise * clip * first, rtol=1e-5)


def test_numbers_are_traced_and_a_sweep_varies_them_in_one_program():
    changes = {"noise_schedule": "linear", "noise_rounds": 9, "clip_schedule": "cosine", "clip_end": 2.0}
    one, other = (
        fdp.dpnfl.of({**COMMON, "clip_norm": 1.0, **changes, "noise_end": end, "clip_rounds": rounds})
        for end, rounds in ((0.5, 7), (0.25, 8))
    )
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert jax.tree.leaves(one) != jax.tree.leaves(other)
    assert fdp.dpnfl(**COMMON, clip_norm=1.0) == fdp.dpnfl(**COMMON, clip_norm=1.0, noise_schedule="constant")


CHANGING = {"noise_schedule": "linear", "noise_end": 0.5, "noise_rounds": 4}


@pytest.mark.parametrize(
    ("entry", "options", "message"),
    [
        ("dpnfl", {"noise_schedule": "linear"}, "noise_end must be given for noise_schedule linear, got nothing"),
        ("dpnfl", CHANGING | {"noise_end": 0.0}, "noise_end must be positive"),
        ("dpnfl", CHANGING | {"noise_stages": 0}, "noise_stages must be an integer from 1"),
        ("dpnfl", {"noise_schedule": "list", "noise_factors": "1,x"}, "noise_factors must be comma-separated numbers"),
        ("dpnfl", {"clip_schedule": "list", "clip_factors": "2,1"}, "clip_factors must be a list of positive numbers"),
        ("dp_fedavg", CHANGING | {"adaptive_clip": True}, "noise_schedule must be constant unless Gaussian noise"),
        ("dp_fedavg", CHANGING | {"noise": "shared"}, "noise_schedule must be constant unless Gaussian noise"),
        ("dp_ftrl", CHANGING, "must be left out where noise is correlated over rounds"),
        ("fedavg", CHANGING, "noise_schedule must be constant unless Gaussian noise"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(entry, options, message):
    private = {} if entry == "fedavg" else {"clip_norm": 1.0, "noise_multiplier": 1.0}
    refused = refusal(
        lambda: fdp.rounds.simulation.check(fdp.CATALOGUE[entry].of({**COMMON, **private, **options}), DATA, 4)
    )
    assert message in refused


@pytest.mark.slow
@pytest.mark.parametrize("entry", usual(["dpnfl", "dp_fedavg"], ["dpnfl"]))
def test_factors_of_one_change_no_bit_of_a_run(entry):
    private = {"clip_norm": 1.0, "noise_multiplier": 2.0}
    ones = {
        f"{what}_{name}": value
        for what in ("noise", "clip")
        for name, value in (("schedule", "list"), ("factors", "1"))
    }
    plain, same = (fdp.CATALOGUE[entry].of({**COMMON, **private, **more}) for more in ({}, ones))
    ends = [fdp.run(each, DATA, rounds=4, seed=2, delta=1e-3, model=MODEL) for each in (plain, same)]
    jax.tree.map(np.testing.assert_array_equal, *(end.params for end in ends))
    assert ends[0].guarantee == ends[1].guarantee
