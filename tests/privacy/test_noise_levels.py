"""What noise that differs from round to round costs: every round by itself, composed by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ragged_data, refusal, usual

import fedjax_dp as fdp
from fedjax_dp import accounting
from fedjax_dp.accounting import Adjacency, Composed, FullBatch, GaussianSteps, Poisson, Unit, WithoutReplacement
from fedjax_dp.privacy import PrivacyTerms
from fedjax_dp.privacy.client_events import client_events
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.rounds.clients import draw_cohorts
from fedjax_dp.rounds.personal import personal_models
from fedjax_dp.rounds.simulation import run_key

DATA = ragged_data([30] * 6)
ROUNDS, DELTA, SEED = 8, 1e-3, 3
COMMON = {"cohort_size": 3, "batch_size": 2, "local_steps": 2, "learning_rate": 0.1, "clip_norm": 1.0}
FALLS = {"noise_schedule": "linear", "noise_end": 0.25, "noise_rounds": ROUNDS, "noise_stages": 4}
FACTORS = np.repeat([1.0, 0.75, 0.5, 0.25], 2)
LEVELS = np.array([1.0, 0.75, 0.5, 0.25])


def planned(algorithm, **terms):
    return plan_run(algorithm, DATA, rounds=ROUNDS, seed=SEED, terms=PrivacyTerms(delta=DELTA, **terms))


def of_record(noise):
    """A round of a client of `dpnfl`."""
    return GaussianSteps(noise, WithoutReplacement(2, 30), Adjacency.REPLACE_ONE, 2)


def attended(algorithm):
    """Whether each client trains in each round `(rounds, clients)`."""
    ids, drawn = draw_cohorts(algorithm.cohort, run_key(SEED), np.arange(ROUNDS), DATA.shares)
    return np.array(
        [np.isin(np.arange(DATA.num_clients), row[here]) for row, here in zip(np.array(ids), np.array(drawn))]
    )


@pytest.mark.parametrize("entry", ["dpnfl", "dp_fedavg"])
def test_a_clip_norm_by_which_float32_loses_the_noise_has_no_epsilon(entry):
    """At 2e-38 the noise of a batch, z C / B, would be 0 and what it hides would not: below 1.2e-38 all is flushed."""
    assert float(jax.jit(lambda clip: clip / 4)(jnp.float32(2e-38))) == 0 or jax.default_backend() != "cpu"
    falling = fdp.CATALOGUE[entry].of(
        {**COMMON, "noise_multiplier": 2.0, "clip_schedule": "list", "clip_factors": "1,2e-38"}
    )
    refused = refusal(lambda: client_events(planned(falling)))
    assert refused == "clip_norm of every round must be at least 1e-12, got 2e-38; float32 would lose the noise"


@pytest.mark.parametrize("accountant", usual(["pld", "rdp", "zcdp", "tcdp"], ["pld", "zcdp", "tcdp"]))
def test_the_epsilon_of_records_is_that_of_the_rounds_of_each_client_by_hand(accountant):
    algorithm = fdp.dpnfl.of({**COMMON, "noise_multiplier": 24.0, **FALLS})
    there = attended(algorithm)
    found = [accounting.epsilon_of(event, DELTA, accountant) for event in client_events(planned(algorithm))]

    def price(factors, client):
        rounds = tuple(of_record(24.0 * float(factor)) for factor in factors[there[:, client]])
        return accounting.epsilon_of(Composed(rounds), DELTA, accountant)

    expected = [price(FACTORS, client) for client in range(DATA.num_clients)]
    assert found == pytest.approx(expected, rel=2e-3)
    # The wrong program: a run priced at its mean multiplier tells too little of some clients.
    wrong = [price(np.full(ROUNDS, FACTORS.mean()), client) for client in range(DATA.num_clients)]
    assert max(np.array(expected) / wrong) > 1.2
    assert wrong != pytest.approx(expected, rel=0.05)


def test_every_round_counts_where_the_schedule_of_cohorts_does_not():
    algorithm = fdp.dpnfl.of({**COMMON, "noise_multiplier": 8.0, **FALLS})
    for participation, wanted in (
        ("worst", tuple(of_record(8.0 * factor).repeated(2) for factor in sorted(LEVELS))),
        ("law", tuple(accounting.RandomParticipation(of_record(8.0 * f), 0.5, 2) for f in sorted(LEVELS))),
    ):
        events = client_events(planned(algorithm, participation=participation))
        assert set(events) == {Composed(wanted)}
    for name in ("expected", "once"):
        refused = refusal(lambda: client_events(planned(algorithm, participation=name)))  # noqa: B023
        assert refused.startswith("participation must be schedule, law or worst where the noise differs")


def test_the_epsilon_of_clients_is_that_of_all_rounds_by_hand_sampled_or_seen():
    seen = fdp.dp_fedavg.of({**(COMMON | {"cohort_size": 6}), "cohort": "uniform", "noise_multiplier": 8.0, **FALLS})
    (event,) = set(client_events(planned(seen)))
    by_hand = Composed(
        tuple(GaussianSteps(8.0 * f, FullBatch(), Adjacency.REPLACE_ONE, 1, Unit.CLIENT) for f in FACTORS)
    )
    for accountant in ("gaussian", "pld", "rdp", "zcdp"):
        wanted = accounting.epsilon_of(by_hand, DELTA, accountant)
        assert accounting.epsilon_of(event, DELTA, accountant) == pytest.approx(wanted, rel=1e-6)
    one = GaussianSteps(8.0 / np.sqrt(np.mean(FACTORS**-2.0)), FullBatch(), Adjacency.REPLACE_ONE, ROUNDS, Unit.CLIENT)
    assert accounting.epsilon_of(event, DELTA) == pytest.approx(accounting.epsilon_of(one, DELTA), rel=1e-6)
    hidden = fdp.dp_fedavg.of({**COMMON, "noise_multiplier": 8.0, **FALLS})
    (event,) = set(client_events(planned(hidden)))
    assert event == Composed(
        tuple(GaussianSteps(8.0 * f, Poisson(0.5), Adjacency.ADD_REMOVE, 2, Unit.CLIENT) for f in sorted(LEVELS))
    )


def test_a_budget_scales_the_whole_schedule_and_is_met():
    algorithm = fdp.dp_fedavg.of({**(COMMON | {"cohort_size": 6}), "cohort": "uniform", **FALLS})
    noised = fdp.calibrate(algorithm, DATA, rounds=ROUNDS, seed=SEED, epsilon=2.0, delta=DELTA, accountant="gaussian")
    promise = fdp.guarantee(noised, DATA, rounds=ROUNDS, seed=SEED, delta=DELTA, accountant="gaussian")
    assert 1.999 < promise.epsilon <= 2.0
    assert any("0.25 to 1 times as large" in line for line in promise.assumptions)
    assert noised.upload.noise_by_round == algorithm.upload.noise_by_round


@pytest.mark.parametrize("stop", [None, "accuracy=0.5"])
@pytest.mark.parametrize("ends", [8.0, 0.25])
def test_what_is_fine_tuned_after_the_last_round_has_the_noise_of_the_first(ends, stop):
    """The schedule begins again there, whichever round was the last: so it is drawn, and so it is counted."""
    schedule = {"noise_schedule": "linear", "noise_end": ends, "noise_rounds": ROUNDS}
    options = COMMON | {"clip_norm": 1e-3, "learning_rate": 1.0, "local_steps": 1, "batch_size": 30}
    algorithm = fdp.finetune.of({**options, "noise_multiplier": 8.0, "personal_steps": 1, **schedule})
    last = client_events(planned(algorithm, view="deployed", stop=stop))[0].parts[-1]
    assert last.noise_multiplier == 8.0
    if stop is None:
        result = fdp.run(algorithm, DATA, rounds=2, delta=DELTA, view="deployed")
        own = personal_models(result.algorithm, result.simulation.state, DATA, seed=0)
        moved = jax.tree.map(lambda each, shared: np.ravel(np.asarray(each) - np.asarray(shared)), own, result.params)
        moved = np.concatenate(jax.tree.leaves(moved))
        assert np.std(moved) == pytest.approx(8.0 * 1e-3 / 30, rel=0.2)  # 12 numbers of each of 6 clients


def test_a_choice_whose_rounds_nobody_knows_counts_with_the_least_noise():
    run = planned(fdp.ifca.of({**COMMON, "noise_multiplier": 8.0, "choices": 2, **FALLS}))
    choice = client_events(run)[0].parts[-1]
    plain = client_events(planned(fdp.ifca(**COMMON, noise_multiplier=8.0, choices=2)))[0].parts[-1]
    assert choice.noise_multiplier == pytest.approx(0.25 * plain.noise_multiplier, rel=1e-6)


@pytest.mark.parametrize("lost", [{"dropout": 0.5}, {"first": 2}])
def test_a_client_whose_choice_is_lost_chooses_again_and_pays_for_it(lost):
    """Its row does not know of the lost message, which an adversary may have seen."""
    options = COMMON | {"noise_multiplier": 8.0, "choices": 1}
    all_heard, some_lost = (client_events(planned(fdp.ifca.of(options | more))) for more in ({}, lost))
    rounds = planned(fdp.ifca.of(options)).participation_counts()
    for once, each, count in zip(all_heard, some_lost, rounds):
        assert each.parts[-1].releases == count * once.parts[-1].releases


def test_parts_of_ones_own_that_tell_noise_its_round_are_refused():
    @fdp.value
    @fdp.parts.restates(fdp.parts.RecordGaussian)
    class Mine(fdp.parts.RecordGaussian):
        pass

    made = fdp.dpnfl.of({**COMMON, "noise_multiplier": 8.0, **FALLS})
    local = dataclasses.replace(made.local, privatizer=Mine(**vars(made.local.privatizer)))
    mine = dataclasses.replace(made, local=local)
    refused = refusal(lambda: fdp.guarantee(mine, DATA, rounds=ROUNDS, delta=DELTA))
    assert refused.startswith(
        "noise must be left out with parts of your own that tell it its round, got noise_by_round"
    )
    budget = {"rounds": ROUNDS, "epsilon": 2.0, "delta": DELTA}
    refused = refusal(fdp.calibrate, made, DATA, **budget, sigma_mode="acs_pldp")
    assert refused.startswith("sigma_mode must be per_client or common_worst where the noise differs")
