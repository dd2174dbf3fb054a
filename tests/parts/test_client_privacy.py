"""Noise on whole clients: bounds by brute force over neighbours, noise by counting, and what does not fit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import own_parts as own
import pytest
from helpers import FlatModel, GivenCohorts, ragged_data, refusal, states_of, with_given

import fedjax_dp as fdp
from fedjax_dp import accounting, errors
from fedjax_dp.accounting import (
    Adjacency,
    FullBatch,
    GaussianSteps,
    Poisson,
    Unit,
    View,
    WithoutReplacement,
    inverse,
    inverse_root_bands,
    sensitivity,
)
from fedjax_dp.parts.aggregation import ESTIMATORS, BoundedMean
from fedjax_dp.parts.client_privacy import (
    ClientGaussian,
    ClientSkellam,
    MessageEncoding,
    Participation,
    clip_tensors,
)
from fedjax_dp.parts.cohorts import PoissonCohort, UniformCohort
from fedjax_dp.parts.noise import BandedNoise
from fedjax_dp.parts.record_privacy import LEAST_CLIP
from fedjax_dp.privacy.client_events import client_events
from fedjax_dp.rounds import simulation

COMMON = {"cohort_size": 3, "batch_size": 2, "local_steps": 2, "learning_rate": 0.5}


@pytest.fixture(scope="module")
def data():
    return ragged_data([4, 6, 5, 8, 7, 4])


def test_clipping_bounds_whatever_a_client_computes():
    sizes = (2, 3)
    for update in ([3.0, 4.0, 0, 0, 0], [np.nan] * 5, [np.inf, 0, 0, 0, 0], [1e30] * 5, [0.0] * 5):
        for parts in ((5,), sizes):
            kept, within = clip_tensors(jnp.array(update, jnp.float32), 2.0, parts)
            assert float(jnp.linalg.norm(kept)) <= 2.0 * (1 + 1e-6)
            assert bool(within) == (np.linalg.norm(update) <= 2.0)
    kept, _ = clip_tensors(jnp.array([3.0, 4.0, 0, 0, 1.0]), 2.0, sizes)  # each of two tensors to 2 / sqrt(2)
    np.testing.assert_allclose(kept, [3 * np.sqrt(2) / 5, 4 * np.sqrt(2) / 5, 0, 0, 1.0], rtol=1e-6)


def test_a_clip_norm_that_is_learnt_stops_falling_before_float32_loses_the_noise():
    upload = fdp.parts.AdaptiveClientGaussian(
        clip_norm=2 * LEAST_CLIP, noise_multiplier=1.0, quantile=0.5, rate=9.0, bit_noise=1.0
    )
    everyone_within = jnp.float32(5e5)  # a million bits of 1/2
    mean, state = upload.release(
        jax.random.key(0), jnp.int32(0), jnp.zeros(3), everyone_within, upload.init(3), 1.0, 1e6
    )
    assert float(state.clip_norm) == np.float32(LEAST_CLIP)
    assert np.all(np.asarray(mean) != 0)


def test_noise_on_uploads_is_refused_at_rates_by_which_float32_loses_it(data):
    falling = fdp.parts.RateSchedule.of("step", decay_every=1, decay_factor=1e-7)
    value = fdp.dp_fedavg_output(**COMMON, clip_norm=1.0, noise_multiplier=1.0, schedule=falling)
    simulation.check(value, data, 1)
    with pytest.raises(errors.ConfigurationError, match="schedule must be one of rates from 1e-12 for noise"):
        simulation.check(value, data, 2)


def test_the_server_adds_z_times_the_clip_norm_times_the_reach(data):
    value = fdp.dp_fedavg(**{**COMMON, "learning_rate": 1e-12}, clip_norm=0.5, noise_multiplier=3.0)
    size = 20_000
    states = states_of(value, FlatModel(size), data, 2)
    first = np.asarray(states[1].params, float)
    expected = 3.0 * 0.5 / 3  # over the expected size of the cohort, never the realised one

    def z(std):
        return (first.std() / std - 1) * np.sqrt(2 * size)

    assert abs(z(expected)) < 4.89
    for wrong in (3.0 * 0.5, 3.0 / 3, 0.95 * expected):  # on the sum, without C, off by 5%
        assert abs(z(wrong)) > 4.89
    second = np.asarray(states[2].params, float) - first
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.89 / np.sqrt(size)  # fresh every round


@pytest.mark.slow
def test_sums_of_correlated_noise_are_smaller_at_the_same_epsilon():
    """dp_ftrl with 8 bands against 1: calibrated alike, the noise in the final model is less."""
    data = ragged_data([3] * 40)
    options = {**COMMON, "cohort_size": 4, "clip_norm": 1.0, "momentum": 0.0}
    epsilon, noise = [], []
    for bands in (1, 8):
        value = fdp.calibrate(fdp.dp_ftrl.of({**options, "bands": bands}), data, rounds=20, epsilon=4.0, delta=1e-3)
        epsilon.append(fdp.guarantee(value, data, rounds=20, delta=1e-3).epsilon)
        quiet = own.steps(value, learning_rate=1e-12)
        noise.append(np.asarray(states_of(quiet, FlatModel(4000), data, 20)[-1].params).std())
    assert np.allclose(epsilon, 4.0, rtol=1e-3)
    assert noise[1] < 0.75 * noise[0]


def test_guarantee_of_whole_clients_names_unit_sampling_and_view(data):
    value = fdp.dp_fedavg(**COMMON, clip_norm=0.5, noise_multiplier=2.0)
    promise = fdp.guarantee(value, data, rounds=9, delta=1e-3)
    event = GaussianSteps(2.0, Poisson(0.5), Adjacency.ADD_REMOVE, 9, Unit.CLIENT)
    assert promise.epsilon == accounting.epsilon_of(event, 1e-3)
    assert (promise.unit, promise.view) == (Unit.CLIENT, View.BROADCAST)
    assert promise.claims[0].verdict == "holds"
    fixed = fdp.dp_fedavg(**COMMON, clip_norm=0.5, noise_multiplier=2.0, cohort="uniform")
    event = GaussianSteps(2.0, WithoutReplacement(3, 5), Adjacency.REPLACE_ONE, 9, Unit.CLIENT)  # of the other five
    promise = fdp.guarantee(fixed, data, rounds=9, delta=1e-3)
    assert promise.epsilon == accounting.epsilon_of(event, 1e-3)
    assert promise.claims[0].verdict == "wrong"  # the moments accountant is for Poisson cohorts
    for view in ("uploads", "secure_sum"):
        seen = fdp.guarantee(
            dataclasses.replace(value, transport=fdp.parts.SecureSum()), data, rounds=9, delta=1e-3, view=view
        )
        assert "before the server adds noise" in str(seen)


def test_adaptive_clipping_pays_for_its_bits(data):
    value = fdp.dp_fedavg(**COMMON, clip_norm=0.5, noise_multiplier=2.0, adaptive_clip=True, bit_noise=1.5)
    plain = fdp.dp_fedavg(**COMMON, clip_norm=0.5, noise_multiplier=2.0)
    options = {"rounds": 9, "delta": 1e-3}
    assert fdp.guarantee(value, data, **options).epsilon == fdp.guarantee(plain, data, **options).epsilon
    key = jax.random.key(0, impl="threefry2x32")
    zero = jnp.zeros(20_000)
    given = (key, jnp.int32(0), zero, jnp.float32(0.0), value.upload.init(zero.size), 1.0, 3.0)
    released, state = value.upload.release(*given)
    on_updates = float(released.std()) / 0.5
    assert on_updates**-2 + (2 * 1.5) ** -2 == pytest.approx(2.0**-2, rel=0.03)  # Andrew et al., theorem 1
    assert state.clip_norm != 0.5
    with pytest.raises(errors.ConfigurationError, match="bit_noise must be above half"):
        fdp.guarantee(
            fdp.dp_fedavg(**COMMON, clip_norm=0.5, noise_multiplier=4.0, adaptive_clip=True, bit_noise=1.5),
            data,
            **options,
        )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"adaptive_clip": True}, "bit_noise must be above half of noise_multiplier"),
        ({"noise": "shared", "cohort": "uniform", "secure": True}, "fractional_bits must be few enough"),
    ],
)
def test_noise_that_is_found_for_a_budget_is_no_more_than_its_part_can_carry(data, words, told):
    """The bits' own noise would cost more than the budget, and float32 could not draw so large integers."""
    value = fdp.dp_fedavg(**COMMON, clip_norm=1.0, **words)
    accountant = "rdp" if "noise" in words else "pld"
    with pytest.raises(errors.ConfigurationError, match=told):
        fdp.calibrate(value, data, rounds=3, epsilon=0.2, delta=1e-3, accountant=accountant)


def test_correlated_noise_across_local_steps_is_accounted_without_sampling(data):
    value = fdp.dpnfl(**COMMON, clip_norm=1.0, noise_multiplier=5.0)
    source = BandedNoise(bands=inverse_root_bands(2))
    value = own.with_privatizer(value, source=source)
    terms = fdp.privacy.PrivacyTerms(participation="worst")
    (event, *_) = client_events(fdp.privacy.plan_run(value, data, rounds=4, terms=terms))
    reach = sensitivity(inverse(source.bands, 2), 2, 1)
    assert event.noise_multiplier == pytest.approx(5.0 / reach)
    assert (event.count, type(event.sampling)) == (4, accounting.FullBatch)
    assert "counted as one release without sampling" in " ".join(
        fdp.guarantee(value, data, rounds=4, delta=1e-3).assumptions
    )


@pytest.mark.slow
def test_shares_of_integer_noise_add_up_to_the_stated_noise(data):
    value = fdp.dp_fedavg.of(
        {
            **{**COMMON, "learning_rate": 1e-12},
            "clip_norm": 0.5,
            "noise_multiplier": 2.0,
            "noise": "shared",
            "fractional_bits": 8,
        }
    )
    size = 4000
    state = states_of(value, FlatModel(size), data, 1)[-1]
    total = np.asarray(state.params, float) * 3  # the sum of three clients
    steps = np.round(total * 2**8).astype(int)
    assert np.gcd.reduce(steps) == 1  # no digit of the sum is without noise
    np.testing.assert_allclose(total * 2**8, np.round(total * 2**8), atol=1e-2)  # integers of the ring
    assert abs(total.std() / (2.0 * 0.5) - 1) * np.sqrt(2 * size) < 4.89
    whole = Participation(
        FullBatch(),
        Adjacency.REPLACE_ONE,
        rounds=1,
        times=1,
        min_separation=1,
        members=3,
        honest=3,
        resolution=2.0**-8,
        size=size,
    )
    event = value.upload.event(2.0, whole)
    assert event.variance == pytest.approx((2.0 * 0.5 * 2**8) ** 2)
    assert event.l2 == pytest.approx(0.5 * 2**8 + np.sqrt(size) / 2)


def test_shared_noise_is_accounted_in_the_secure_sum_and_for_colluders(data):
    value = fdp.dp_fedavg.of(
        {**COMMON, "clip_norm": 0.5, "noise_multiplier": 8.0, "noise": "shared", "fractional_bits": 6}
    )
    options = {"rounds": 4, "delta": 1e-3, "accountant": "rdp", "participation": "worst"}
    promise = fdp.guarantee(value, data, **options)
    assert promise.view is View.SECURE_SUM
    gaussian = accounting.epsilon_of(
        GaussianSteps(8.0, accounting.FullBatch(), Adjacency.REPLACE_ONE, 4, Unit.CLIENT), 1e-3, "rdp"
    )
    assert gaussian < promise.epsilon < 1.15 * gaussian
    assert fdp.guarantee(value, data, **options, colluders=2).epsilon > 1.5 * promise.epsilon
    assert "only a share of the noise" in str(fdp.guarantee(value, data, **options, view="uploads"))
    with pytest.raises(errors.ConfigurationError, match="use accountant rdp"):
        fdp.guarantee(value, data, **{**options, "accountant": "pld"})
    calibrated = fdp.calibrate(value, data, **options, epsilon=2.0)
    assert 1.99 < fdp.guarantee(calibrated, data, **options).epsilon <= 2.0


CONTROLS = fdp.dp_scaffold(**COMMON, clip_norm=1.0).local
UNFIT = [
    ({"local": CONTROLS}, "nothing under noise on whole clients"),
    ({"estimator": ESTIMATORS["wor_model"]}, "one that bounds the influence of a client"),
    (
        {"cohort": fdp.parts.Dropout(cohort=fdp.parts.MultinomialCohort(draws=3), rate=0.1)},
        "draws a client at most once a round",
    ),
    ({"cohort": fdp.parts.FirstResponders(cohort=PoissonCohort(size=3), size=2)}, "of a cohort of fixed size"),
    ({"transport": fdp.parts.SecureSum(), "estimator": BoundedMean(cap=0.2)}, "one of equal weights"),
    ({"estimator": ESTIMATORS["renorm"]}, "one that bounds the influence of a client"),
    ({"estimator": fdp.parts.FairRatio(q=1.0)}, "one that bounds the influence of a client"),
    ({"cohort": fdp.parts.MultinomialCohort(draws=3)}, "draws a client at most once a round"),
    ({"cohort": PoissonCohort(size=3), "estimator": ESTIMATORS["mean"]}, "of a fixed size for a mean over it"),
    (
        {"cohort": fdp.parts.Dropout(cohort=UniformCohort(size=3), rate=0.1), "estimator": ESTIMATORS["mean"]},
        "a fixed size",
    ),
    ({"upload": ClientSkellam(clip_norm=1.0, noise_multiplier=1.0)}, "shared only in secure sums"),
    ({"upload": ClientGaussian(clip_norm=1.0, noise_multiplier=np.ones(6))}, "one number for noise that the server"),
]


@pytest.mark.parametrize(("parts", "words"), UNFIT)
def test_parts_that_do_not_fit_are_refused_before_anything_compiles(parts, words, data):
    value = fdp.dp_fedavg(**COMMON, clip_norm=0.5, noise_multiplier=1.0)
    renamed = {{"estimator": "aggregate"}.get(name, name): part for name, part in parts.items()}
    before = simulation.advance._cache_size()
    assert words in refusal(simulation.simulate, dataclasses.replace(value, **renamed), data, rounds=1)
    assert simulation.advance._cache_size() == before


@pytest.mark.slow
def test_parts_combine_freely_and_are_accounted(data):
    """DP-SCAFFOLD through a secure sum, with dropouts and an Adam server."""
    value = fdp.dp_scaffold.of(
        {
            **{**COMMON, "estimator": "wor_delta"},
            "clip_norm": 1.0,
            "noise_multiplier": 2.0,
            "secure": True,
            "ring_bits": 64,
            "fractional_bits": 32,
            "dropout": 0.4,
        }
    )
    adam = fdp.fedadam(**COMMON, server_learning_rate=0.1).server
    value = dataclasses.replace(value, server=adam)
    masked = states_of(value, fdp.logistic_regression((3,), 3), data, 4)
    plain = states_of(
        dataclasses.replace(value, transport=fdp.parts.PlainSum()), fdp.logistic_regression((3,), 3), data, 4
    )
    for a, b in zip(jax.tree.leaves(masked[-1]), jax.tree.leaves(plain[-1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    promise = fdp.guarantee(value, data, rounds=4, delta=1e-3)
    assert promise.view is View.SECURE_SUM
    counts = fdp.privacy.participations(value, data, 4, 0)
    assert counts.sum() == 12  # messages that never arrive are counted: they may have been seen on their way
    assert promise.epsilon == fdp.guarantee(value, data, rounds=4, delta=1e-3, view="uploads").epsilon


@pytest.mark.parametrize(
    ("upload", "transport", "members"),
    [
        (ClientGaussian(clip_norm=1e15, noise_multiplier=1.0), fdp.parts.SecureSum(), 2),
        (ClientGaussian(clip_norm=1e15, noise_multiplier=1.0), fdp.parts.SecureSum(bits=64), 2),
        pytest.param(
            ClientSkellam(clip_norm=60_000 / 2**10, noise_multiplier=1.2),
            fdp.parts.SecureSum(fractional_bits=10),
            40_000,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_no_update_of_a_client_overflows_the_ring_which_would_reveal_it(upload, transport, members):
    limit = transport.limit(members)
    encoding = MessageEncoding(members, transport.resolution, limit)
    updates = np.zeros((2000, 18), np.float32)
    updates[:, 0] = limit * 10 ** np.random.default_rng(0).uniform(-1, 12, 2000)

    def overflows(key, update):
        message = upload.message(key, update, (18,), upload.init(18), encoding)[0]
        return transport.encode(message, members)[1]

    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), 2000)
    assert not np.any(jax.jit(jax.vmap(overflows))(keys, updates))


@pytest.mark.slow
def test_overflow_of_the_ring_stops_the_run_and_names_the_client():
    data = ragged_data([4, 4, 4])
    spoiled = dataclasses.replace(data, x=np.asarray(data.x) * np.repeat([1, 1e6, 1], 4)[:, None].astype(np.float32))
    value = fdp.fedavg(cohort_size=None, batch_size=2, local_steps=1, learning_rate=1.0, secure=True)
    with pytest.raises(errors.RingOverflowError, match=r"round 0: .* clients 1;") as caught:
        simulation.simulate(value, spoiled, rounds=3)
    assert caught.value.clients == [1]


@pytest.mark.slow
def test_a_round_without_anybody_changes_nothing_but_the_noise():
    data = ragged_data([4, 4])
    nobody = GivenCohorts(ids=np.zeros((2, 2)), counts=np.zeros((2, 2)), rate=np.full(2, 0.5), size=2)
    for value in (fdp.fedavg(**COMMON, estimator="mean"), fdp.scaffold(**COMMON), fdp.q_fedavg(**COMMON)):
        states = states_of(with_given(value, cohort=nobody), fdp.logistic_regression((3,), 3), data, 1)
        jax.tree.map(np.testing.assert_array_equal, states[0].params, states[1].params)


def test_what_is_summed_stays_within_the_clip_norm_after_rounding():
    size, ring = 5000, fdp.parts.SecureSum(fractional_bits=6)
    upload, sent = ClientGaussian(clip_norm=1.0, noise_multiplier=1.0), MessageEncoding(3, ring.resolution)
    update = jnp.asarray(np.random.default_rng(0).normal(size=size), jnp.float32)
    kept, _ = upload.message(jax.random.key(0), update, (size,), (), sent)
    words, _ = ring.encode(kept, 3)
    assert float(jnp.linalg.norm(ring.decode(words))) <= 1.0
    loose, _ = upload.message(
        jax.random.key(0), 0.0314 * jnp.ones(size) * (jnp.arange(size) < 1000), (size,), (), MessageEncoding(3, 0.0)
    )
    words, _ = fdp.parts.SecureSum(fractional_bits=4).encode(loose, 3)
    assert (
        float(jnp.linalg.norm(loose))
        <= 1.0
        < float(jnp.linalg.norm(fdp.parts.SecureSum(fractional_bits=4).decode(words)))
    )


def test_clients_that_help_know_more(data):
    """In view broadcast the adversary takes part itself: it knows its share of the noise, and when it was drawn."""
    shared = fdp.dp_fedavg.of(
        {**COMMON, "clip_norm": 0.5, "noise_multiplier": 8.0, "noise": "shared", "fractional_bits": 6}
    )
    options = {"rounds": 4, "delta": 1e-3, "accountant": "rdp", "participation": "worst"}
    sums = fdp.guarantee(shared, data, **options, view="secure_sum", colluders=1).epsilon
    assert fdp.guarantee(shared, data, **options, view="broadcast").epsilon == sums
    fixed = fdp.dp_fedavg(**COMMON, clip_norm=0.5, noise_multiplier=5.0, cohort="uniform")
    told = [
        fdp.guarantee(fixed, data, rounds=9, delta=1e-3, view=view).epsilon for view in ("final_model", "broadcast")
    ]
    assert told[0] < told[1]
