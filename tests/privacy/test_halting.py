"""A budget ends a run at a round that is known before the first."""

import dataclasses

import numpy as np
import pytest
from helpers import ragged_data
from own_parts import lying

import fedjax_dp as fdp
from fedjax_dp.accounting import Unit, epsilon_of
from fedjax_dp.accounting.ledger import Ledger
from fedjax_dp.data.store import UnitBound
from fedjax_dp.parts.cohorts import AllClients, CyclicCohort
from fedjax_dp.privacy.client_events import client_events
from fedjax_dp.privacy.guarantees import guaranteed, prepare
from fedjax_dp.privacy.spending import Spending
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.pytrees import changed

DATA = ragged_data([20, 20, 7, 40, 40, 20])


def planned(rounds=40, budget=8.0, noise=2.0, **terms):
    algorithm = fdp.dpnfl(
        cohort_size=3, batch_size=5, local_steps=2, learning_rate=0.3, clip_norm=1.0, noise_multiplier=noise
    )
    counted = PrivacyTerms(**{"delta": 1e-3, "budget": budget, **terms})
    return fdp.privacy.plan_run(algorithm, DATA, rounds=rounds, terms=counted)


def epsilon_of_first(run, rounds):
    """Of a run that was planned for so many rounds."""
    shorter = dataclasses.replace(run, rounds=rounds, terms=PrivacyTerms(delta=1e-3), _drawn={})
    return guaranteed(shorter).epsilon


@pytest.mark.parametrize("terms", [{}, {"participation": "law"}], ids=["schedule", "law"])
def test_the_last_round_is_within_the_budget_and_one_more_is_not(terms):
    """A budget that is looked at after the round is the wrong program that runs that one more."""
    run = planned(**terms)
    halted, promise = prepare(run)
    assert 0 < halted.rounds < 40
    assert promise.epsilon <= 8.0 < guaranteed(run.prefix(halted.rounds + 1)).epsilon
    assert not any("above the budget" in line for line in promise.warnings)


def test_a_halted_run_is_the_run_that_was_planned_for_so_many_rounds():
    run = planned()
    halted, promise = prepare(run)
    assert promise.epsilon == pytest.approx(epsilon_of_first(run, halted.rounds), rel=1e-12)
    np.testing.assert_array_equal(halted.schedule, fdp.privacy.participations(run.algorithm, DATA, halted.rounds, 0))
    again, _ = prepare(dataclasses.replace(halted))
    assert again.rounds == halted.rounds


def test_a_budget_that_all_rounds_meet_ends_nothing():
    assert prepare(planned(rounds=2, budget=100.0))[0].rounds == 2


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"budget": 0.01}, "budget must be at least .*, which the first round costs, got 0.01"),
        ({"epsilon": 4.0}, "left out where epsilon finds the noise for all rounds"),
        ({"budget": [4.0] * 5}, "budget must be one budget or 6, one per client"),
        ({"budget": [4.0, 0.01, 0.01, 0.01, 0.01, 4.0]}, "such that a cohort of clients can pay for the first round"),
        ({"budget": [4.0] * 6, "participation": "law"}, "count by participation schedule, or give the smallest"),
        ({"budget": float("nan")}, "budget must be positive"),
        ({"participation": "once"}, "got 8.0 with participation once"),
        ({"noise": 0.0}, "left out where epsilon is infinite"),
    ],
)
def test_a_budget_that_cannot_end_a_run_is_refused_in_one_line(terms, words):
    with pytest.raises(fdp.ConfigurationError, match=words) as error:
        prepare(planned(**terms))
    assert "\n" not in str(error.value)


def test_clients_leave_no_cohort_whose_draws_among_fewer_nobody_examines():
    run = planned(budget=[8.0] * 6)
    for cohort in (lying(run.algorithm.cohort), CyclicCohort(size=3)):
        with pytest.raises(
            fdp.ConfigurationError, match=f"one number for {type(cohort).__name__}, which states no law"
        ):
            prepare(run.with_cohort(cohort))


def test_where_a_user_is_at_several_clients_none_has_a_budget_of_its_own():
    """Its client with the smaller budget would leave, and the other go on with its records: 5.7 of a budget of 3."""
    run = planned(budget=[3.0] * 3 + [8.0] * 3).with_cohort(AllClients())
    for clients in (1, 2):
        data = changed(ragged_data([20] * 6), bounds=(UnitBound(Unit.USER, 1, clients),))
        several = dataclasses.replace(run, data=data, _drawn={})
        if clients == 1:
            assert not any("above the budget" in line for line in prepare(several)[1].warnings)
            continue
        with pytest.raises(fdp.ConfigurationError, match="one for each client, where a user may be at several"):
            prepare(several)


OWN = [4.0, 6.0, 8.0, 10.0, 5.0, 3.0]


@pytest.fixture(scope="module")
def leaving():
    """A run whose clients leave one by one, and what it promises."""
    return prepare(planned(budget=OWN))


def test_each_client_leaves_when_one_more_of_its_rounds_would_pass_its_own_budget(leaving):
    run, promise = leaving
    assert np.all(np.array(promise.epsilons) <= OWN)
    after = run.leaves_after
    assert run.rounds < 40
    assert 0 < run.departures < 4
    for client in np.flatnonzero(np.isfinite(after)):
        ((step, count),) = client_events(run)[client].leaves()
        one_more = dataclasses.replace(step, count=count + 2)  # two steps a round
        assert epsilon_of(one_more, 1e-3) > OWN[client]
    assert not any("above the budget" in line for line in promise.warnings)


def test_who_has_left_is_in_no_later_cohort_and_a_run_without_departures_is_above_the_budgets(leaving):
    run, _ = leaving
    ids, drawn = run.cohorts
    for index, (members, invited) in enumerate(zip(ids, drawn)):
        assert invited.all()
        assert np.all(run.leaves_after[members] > index)
    nobody_left = planned(rounds=run.rounds, budget=None)
    assert np.any(np.array(guaranteed(nobody_left).epsilons) > OWN)  # the wrong program


def test_leaving_is_announced_in_the_guarantee_and_the_ledger(leaving):
    run, promise = leaving
    (line,) = [line for line in promise.assumptions if "leave for good" in line]
    assert all(f"1 after {after:.0f}" in line for after in run.leaves_after[np.isfinite(run.leaves_after)])
    lines = list(Spending(run, promise).lines("phase", "before", 0, run.rounds, run.rounds, "budget"))
    announced = {client: line["round"] + 1 for line in lines for client in line.get("leave", [])}
    assert announced == {client: after for client, after in enumerate(run.leaves_after) if np.isfinite(after)}
    again = Ledger({"phase": "phase", "clients": {"count": 6}}, tuple(lines))
    assert again.epsilons() == pytest.approx(list(promise.epsilons), rel=1e-9)


def test_a_client_whose_budget_no_round_is_within_takes_no_part_and_is_none_that_leaves():
    run, promise = prepare(planned(budget=[0.1, *OWN[1:]]))
    assert run.leaves_after[0] == promise.epsilons[0] == 0
    lines = Spending(run, promise).lines("phase", "before", 0, run.rounds, run.rounds, "budget")
    assert run.departures == sum(len(line.get("leave", [])) for line in lines)
    assert any("1 before the first, 1 after" in line for line in promise.assumptions)


@pytest.mark.slow
def test_an_audit_of_a_run_that_clients_leave_is_consistent_with_what_it_promises(leaving):
    run, promise = leaving
    audit = fdp.audit(run.algorithm, DATA, rounds=run.rounds, delta=1e-3, trials=2_000, canary="gradient")
    assert not audit.violated
    assert 0 < audit.lower <= promise.epsilon


def test_equal_budgets_of_all_clients_end_a_run_of_everybody_as_one_does():
    everybody = planned().with_cohort(AllClients())
    halted, promise = prepare(everybody)
    leaving = prepare(everybody.counted(budget=[8.0] * 6))[0]
    assert leaving.leaves_after.min() == leaving.leaves_after[np.argmax(promise.epsilons)] == halted.rounds


def test_no_budget_ends_what_takes_all_its_rounds():
    run = planned()
    with pytest.raises(fdp.ConfigurationError, match="left out, as an audit takes all its rounds"):
        fdp.audit(run.algorithm, DATA, rounds=2, delta=1e-3, budget=8.0)
    with pytest.raises(fdp.ConfigurationError, match="left out in a sweep"):
        fdp.sweep(run.algorithm, DATA, rounds=2, delta=1e-3, budget=8.0, axes={"clip_norm": [1.0]})
    plain = fdp.fedavg(cohort_size=3, batch_size=5, local_steps=2, learning_rate=0.3)
    with pytest.raises(fdp.ConfigurationError, match="without privacy"):
        fdp.run(plain, DATA, rounds=2, budget=8.0)
