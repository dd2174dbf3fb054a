"""Guarantees of noise that is correlated over rounds: amplified in passes, zero-out, and chosen by its error."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ragged_data
from small_runs import run_killed

import fedjax_dp as fdp
from fedjax_dp import errors, parts, prng
from fedjax_dp.accounting import (
    Adjacency,
    Buffers,
    FullBatch,
    GaussianSteps,
    Poisson,
    Unit,
    epsilon_of,
    inverse,
    sensitivity,
)
from fedjax_dp.experiments import build, population
from fedjax_dp.experiments.config import RunSpec
from fedjax_dp.parts.client_privacy import clip_tensors, noisy_sums, server_noise
from fedjax_dp.privacy.client_events import client_events
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.pytrees import structure
from fedjax_dp.rounds.simulation import begin

DATA = ragged_data([8] * 12)
STEPS = {"batch_size": 2, "local_steps": 1, "learning_rate": 0.1}
BANDS, ROUNDS, DELTA = (1.0, 0.6, 0.3), 9, 1e-3
STRATEGY = parts.StrategyNoise.of(BANDS, ROUNDS)
BUFFERS = parts.BufferedNoise.of(Buffers(np.array([0.9, 0.5]), np.array([0.2, 0.3])))


def of_clients(source, cohort, **options):
    return fdp.dp_ftrl(
        **STEPS,
        cohort_size=2 if isinstance(cohort, str) else None,
        cohort=cohort,
        estimator="mean" if cohort == "cyclic" else "wor_delta",
        clip_norm=0.5,
        noise_multiplier=3.0,
        source=source,
        **options,
    )


def events(algorithm, **terms):
    run = plan_run(algorithm, DATA, rounds=ROUNDS, terms=PrivacyTerms(delta=DELTA, **terms))
    return [step for event in set(client_events(run)) for step, _ in event.leaves()]


CYCLIC_POISSON = parts.CyclicPoissonCohort(size=2, pass_rounds=3)


def test_a_pass_of_hidden_cohorts_is_one_sampled_release_of_the_bands():
    (event,) = events(of_clients(STRATEGY, CYCLIC_POISSON))
    norm = np.linalg.norm(BANDS)
    assert event.noise_multiplier == pytest.approx(3.0 / norm)
    assert event == GaussianSteps(event.noise_multiplier, Poisson(0.5), Adjacency.ADD_REMOVE, 3, Unit.CLIENT)
    stated = fdp.guarantee(of_clients(STRATEGY, CYCLIC_POISSON), DATA, rounds=ROUNDS, delta=DELTA)
    assert stated.epsilon == pytest.approx(epsilon_of(event, DELTA))
    assert any("counted each pass of rounds as one release" in line for line in stated.assumptions)
    forgotten = dataclasses.replace(event, noise_multiplier=3.0)  # the norm of c
    of_each_round = dataclasses.replace(event, sampling=Poisson(2 / 12), count=ROUNDS)  # as white noise
    for wrong in (forgotten, of_each_round):
        assert epsilon_of(wrong, DELTA) < 0.95 * stated.epsilon
    white = parts.StrategyNoise.of((1.0,), ROUNDS)
    assert events(of_clients(white, CYCLIC_POISSON)) == events(of_clients(parts.WhiteNoise(), CYCLIC_POISSON))


@pytest.mark.parametrize(
    ("source", "cohort"),
    [
        (parts.StrategyNoise.of((1.0, 0.6, 0.3, 0.2), ROUNDS), CYCLIC_POISSON),  # more bands than rounds of a pass
        (BUFFERS, CYCLIC_POISSON),  # dense
        (parts.BandedNoise(bands=(1.0, -0.5)), CYCLIC_POISSON),  # the inverse of bands is dense
        (STRATEGY, parts.PoissonCohort(size=2)),  # a client may join two rounds that overlap
        (STRATEGY, parts.AllocatedCohort(pass_rounds=3)),
        (STRATEGY, parts.BinnedCohort(pass_rounds=3)),
        (STRATEGY, "cyclic"),
        (STRATEGY, "uniform"),
    ],
    ids=["too many bands", "buffers", "banded inverse", "poisson", "allocated", "bins", "cyclic", "uniform"],
)
def test_any_other_correlated_noise_is_one_release_without_sampling(source, cohort):
    algorithm = of_clients(source, cohort)
    apart = algorithm.cohort.min_separation(12)
    found = {event.noise_multiplier: event for event in events(algorithm, participation="worst")}
    reach = sensitivity(parts.noise.strategy_of(source, ROUNDS), -(-ROUNDS // apart), apart)
    (event,) = found.values()
    assert (event.sampling, event.adjacency, event.count) == (FullBatch(), Adjacency.REPLACE_ONE, 1)
    assert event.noise_multiplier == pytest.approx(3.0 / reach, rel=1e-6)


def test_a_clients_zero_counts_as_its_absence_where_its_rounds_are_seen():
    for source in (STRATEGY, parts.WhiteNoise()):
        seen = of_clients(source, "cyclic")
        replaced, absent = (events(seen, participation="worst", adjacency=one) for one in (None, "zero-out"))
        assert [one.adjacency for one in absent] == [Adjacency.ZERO_OUT] * len(absent)
        assert [one.relative_noise for one in absent] == pytest.approx([2 * one.relative_noise for one in replaced])
    stated = fdp.guarantee(of_clients(STRATEGY, "cyclic"), DATA, rounds=ROUNDS, delta=DELTA, adjacency="zero-out")
    assert "zero-out" in str(stated)
    assert any("zeros count as its absence" in line for line in stated.assumptions)


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (of_clients(STRATEGY, CYCLIC_POISSON), "left out where clients are hidden by"),
        (
            fdp.dpnfl(**STEPS, cohort_size=2, clip_norm=1.0, noise_multiplier=1.0),
            "left out unless the server adds noise",
        ),
    ],
)
def test_zero_out_is_refused_where_other_neighbours_are_counted(algorithm, words):
    with pytest.raises(errors.ConfigurationError, match=words):
        fdp.guarantee(algorithm, DATA, rounds=ROUNDS, delta=DELTA, adjacency="zero-out")
    with pytest.raises(errors.ConfigurationError, match="adjacency must be one of zero-out"):
        fdp.guarantee(algorithm, DATA, rounds=ROUNDS, delta=DELTA, adjacency="neighbours")


@fdp.value
class OwnStrategy(parts.NoiseSource):
    """Noise of three bands that a user keeps; `short` states fewer in few steps, and noise fades from a step on."""

    short: bool = structure(default=False)
    fades: int = structure(default=10**6)

    fresh = False

    def coefficients(self, steps):
        return (1.0,) if self.short and steps <= 3 else inverse(BANDS, steps)

    def init(self, size):
        return jnp.zeros((2, size)), jnp.int32(0)

    def draw(self, key, step, size, state):
        (last, before), drawn = state
        white = jnp.where(drawn < self.fades, 1.0, 1e-3) * prng.normals(key, step.number, size)
        noise = white - BANDS[1] * last - BANDS[2] * before
        return noise, (jnp.stack([noise, last]), drawn + 1)

    def variance(self, step):
        return 1.0


@fdp.value
class OwnUpload(parts.UpdatePrivatizer):
    """Noise of a source by a user's own upload: `again` adds the same in all rounds, `once` counts a single sum."""

    clip_norm: float = 0.5
    noise_multiplier: float = 3.0
    source: parts.NoiseSource = STRATEGY
    again: bool = structure(default=False)
    once: bool = structure(default=False)

    unit, is_amplified, shared_noise, extra, noise_ratio = Unit.CLIENT, True, False, 0, None

    def init(self, size):
        return self.source.init(size)

    def message(self, key, update, sizes, state, sent):
        return clip_tensors(update, sent.room(self.clip_norm, update.size), (update.size,))[0], ()

    def release(self, key, round_index, mean, extra, state, sensitivity, expected):
        noise, state = server_noise(self.source, key, round_index, mean.size, state)
        noise = 3 * jax.random.normal(key, mean.shape) if self.again else noise
        return mean + self.noise_multiplier * self.clip_norm * sensitivity * noise, state

    def event(self, noise, attendance):
        if self.once:
            return GaussianSteps(noise, attendance.sampling, attendance.adjacency, 1, Unit.CLIENT)
        return noisy_sums(self.source, noise, attendance)


@pytest.mark.slow
@pytest.mark.parametrize("cohort", ["cyclic", CYCLIC_POISSON], ids=["seen", "hidden"])
def test_own_correlated_noise_is_examined_round_by_round(cohort):
    def epsilon(**changes):
        algorithm = fdp.pytrees.replace(of_clients(STRATEGY, cohort), **changes)
        terms = {"rounds": 18, "delta": DELTA, "model": fdp.logistic_regression((3,), 3)}
        return fdp.guarantee(algorithm, DATA, **terms).epsilon

    def with_source(**changes):
        return fdp.pytrees.replace(of_clients(STRATEGY, cohort).upload, source=OwnStrategy(**changes))

    own = epsilon(upload=with_source())
    assert own == pytest.approx(epsilon(), rel=1e-6)
    assert epsilon(upload=OwnUpload()) == pytest.approx(own, rel=1e-6)
    wrong = {"short": with_source(short=True), "fades": with_source(fades=14)}
    wrong |= {name: OwnUpload(**{name: True}) for name in ("again", "once")}
    for upload in wrong.values():
        with pytest.raises(errors.ConfigurationError, match="must be what it states of itself"):
            epsilon(upload=upload)


def test_noise_that_grows_over_the_rounds_is_refused():
    with pytest.raises(errors.ConfigurationError, match="coefficients of correlated noise must be at most 100"):
        events(of_clients(parts.StrategyNoise.of((1.0, 2.0), ROUNDS), "cyclic"))


@pytest.mark.parametrize("source", [STRATEGY, BUFFERS], ids=["strategy", "buffers"])
def test_what_a_source_keeps_is_state_of_the_server(source):
    state = begin(of_clients(source, "cyclic"), DATA, jax.random.key(0), model=fdp.logistic_regression((20,), 3))
    assert [leaf.shape for leaf in jax.tree.leaves(state.upload)] == [(2, 63)]


@pytest.mark.slow
@pytest.mark.parametrize("source", [STRATEGY, BUFFERS], ids=["strategy", "buffers"])
def test_a_run_that_is_stopped_goes_on_with_the_noise_that_it_remembers(source, tmp_path):
    algorithm, words = of_clients(source, CYCLIC_POISSON), {"rounds": 6, "delta": DELTA, "checkpoint_every": 1}
    whole = fdp.run(algorithm, DATA, out=tmp_path / "whole", **words)
    run_killed(algorithm, DATA, tmp_path / "parts", **words)
    resumed = fdp.resume(tmp_path / "parts", algorithm, DATA)
    for one, other in zip(jax.tree.leaves(whole.params), jax.tree.leaves(resumed.params), strict=True):
        np.testing.assert_array_equal(one, other)


CHOICES = [
    ({}, None, None),
    ({"correlation": "blt", "buffers": 2}, "BufferedNoise", "CyclicCohort"),
    ({"correlation": "inverse-root", "bands": 4}, "BandedNoise", "CyclicCohort"),
    ({"correlation": "bands", "bands": 3}, "StrategyNoise", "CyclicPoissonCohort"),
    ({"correlation": "bands", "cohort": "cyclic"}, "StrategyNoise", "CyclicCohort"),
    ({"correlation": "bands", "bands": 2, "cohort": "cyclic-poisson", "pass_rounds": 4}, "StrategyNoise", None),
    ({"correlation": "none"}, "WhiteNoise", "PoissonCohort"),
    ({"cohort": "cyclic", "adjacency": "zero-out"}, None, "CyclicCohort"),
    ({"epsilon": None, "noise_multiplier": 1.0}, None, None),
    ({"cohort": "separated", "separation": 4}, None, "SeparatedCohort"),
    ({"correlation": "blt", "cohort": "uniform"}, "BufferedNoise", "UniformCohort"),
]
RUN = {"algorithm": "dp_ftrl", "dataset": "digits", "num_clients": 20, "cohort_size": 4, "batch_size": 5, "rounds": 8}
RUN |= {"local_steps": 1, "learning_rate": 0.1, "clip_norm": 0.5, "epsilon": 8.0, "delta": 1e-3}


def planned_of(options, say=lambda line: None):
    config = RunSpec.of({name: value for name, value in {**RUN, **options}.items() if value is not None})
    data = population.build_data(config.data)
    return build.planned_of(config.for_clients(data.num_clients), data, say=say)


@pytest.mark.slow
@pytest.mark.parametrize(("options", "kind", "cohort"), CHOICES)
def test_a_run_has_the_noise_and_the_cohort_that_it_asks_for_or_that_are_best(options, kind, cohort):
    lines = []
    algorithm = planned_of(options, lines.append).algorithm
    assert kind in (None, type(algorithm.upload.source).__name__)
    assert cohort in (None, type(algorithm.cohort).__name__)
    assert [line.endswith("chosen") for line in lines] == [at == 0 for at in range(len(lines))] or len(lines) == 1
    assert len(lines) > 3 or options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bands": 4}, "bands must be left out unless correlation is bands or inverse-root"),
        ({"correlation": "bands", "bands": 9}, "bands must be at most 5"),
        ({"correlation": "bands", "bands": 3, "cohort": "cyclic-poisson", "pass_rounds": 2}, "bands must be at most 2"),
        ({"correlation": "blt", "buffers": 0}, "buffers must be an integer from 1 to 5"),
        ({"cohort": "cyclic-poisson", "pass_rounds": 9}, "pass_rounds must be at most 20 clients / cohort_size 4"),
        ({"correlation": "blt", "cohort": "poisson"}, "correlation must be one for these cohorts"),
        ({"correlation": "sometimes"}, "correlation must be one of"),
        ({"buffers": 2}, "buffers must be left out unless correlation is blt"),
    ],
)
def test_what_cannot_be_chosen_is_refused_in_one_line(options, words):
    with pytest.raises(errors.ConfigurationError, match=words):
        planned_of(options)
