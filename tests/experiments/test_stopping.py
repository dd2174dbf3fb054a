"""A metric of the test set ends a run: free where that is public, and without an epsilon where clients hold it."""

import dataclasses

import numpy as np
import pytest
from helpers import ragged_data, refusal, target_data
from small_runs import account, run_killed

import fedjax_dp as fdp
from fedjax_dp.accounting.accountants import epsilons_of
from fedjax_dp.accounting.ledger import text_of
from fedjax_dp.display import upward
from fedjax_dp.experiments.round_ledger import read_ledger
from fedjax_dp.experiments.stopping import StopRule
from fedjax_dp.privacy.guarantees import verified_guarantee
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.pytrees import equal
from fedjax_dp.rounds.simulation import Evaluation
from fedjax_dp.tasks import Classes, measures_of_task
from fedjax_dp.tasks.measures import target_of
from fedjax_dp.tools.reports.kinds import read_report

DATA = ragged_data([20, 20, 7, 40, 40, 20])
DELTA = 1e-3
WORDS = {"rounds": 12, "evaluate_every": 2, "checkpoint_every": 12, "delta": DELTA, "stop": "accuracy=0.1"}


def dpnfl():
    return fdp.dpnfl(cohort_size=3, batch_size=5, local_steps=2, learning_rate=0.3, clip_norm=1.0, noise_multiplier=8.0)


def rule(every=2):
    return StopRule(target_of("accuracy=0.28", measures_of_task(Classes()), "stop"), every)


def saved_curve(folder):
    return read_report(folder).data.get("spent", [])


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run of 12 rounds that its first evaluation ends, after round 2."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    return folder, fdp.run(dpnfl(), DATA, out=folder, **WORDS)


@pytest.mark.slow
def test_a_stop_by_public_records_is_free_and_its_claim_is_that_of_all_rounds(stopped, capsys):
    folder, result = stopped
    whole = verified_guarantee(plan_run(dpnfl(), DATA, rounds=12, terms=PrivacyTerms(delta=DELTA)))
    assert result.history[-1].round == 2
    assert result.guarantee.epsilons == whole.epsilons
    ledger = read_ledger(folder)
    assert max(epsilons_of(ledger.events(), DELTA)) < whole.epsilon  # the wrong program: its rounds read as planned
    assert "one of a run that results may end" in refusal(ledger.epsilons)
    assert ledger.lines[-1]["halt"] == "rule"
    assert [line["epsilon_planned"] for line in ledger.lines] == [whole.epsilon] * 2  # of no shorter plan
    assert saved_curve(folder) == []
    code, out, _ = account(capsys, folder)
    assert (code, f"epsilon {upward(whole.epsilon)}" in out, "halted by results after round 2" in out) == (
        0,
        True,
        True,
    )
    code, _, err = account(capsys, folder, "--rounds", 1)
    assert (code, "of which its first rounds bound nothing" in err) == (2, True)
    saved = fdp.open_run(folder)
    assert (saved.finished, saved.round, saved.result["spending"]["halt"]) == (True, 2, "rule")


@pytest.mark.slow
def test_a_law_that_a_ledger_does_not_know_has_no_epsilon(stopped, tmp_path):
    """As of a run whose noise was chosen within a filter: its rounds read as planned are no claim."""
    law = {"participation": "schedule", "filter": {"used": 1.0}}
    lines = [dict(line) | {"law": law} for line in read_ledger(stopped[0]).lines]
    own = (stopped[0] / "ledger.jsonl").read_text().splitlines(keepends=True)
    file = tmp_path / "ledger.jsonl"
    file.write_text("".join(own[: -len(lines)]) + text_of(lines))
    assert "a law of the ledger must be one of participation, stop" in refusal(read_ledger, file)


@pytest.mark.slow
def test_a_run_that_is_killed_when_a_target_has_ended_it_does_not_go_on(stopped, tmp_path):
    run_killed(dpnfl(), DATA, tmp_path / "killed", after=2, **WORDS)
    resumed = fdp.resume(tmp_path / "killed", dpnfl(), DATA)
    assert (resumed.finished, resumed.round, resumed.guarantee.epsilon) == (True, 2, stopped[1].guarantee.epsilon)
    assert equal(resumed.params, stopped[1].params)
    assert [line["halt"] for line in read_ledger(tmp_path / "killed").lines] == [None, "rule"]


@pytest.mark.slow
def test_a_stop_by_records_of_members_has_no_epsilon_and_ends_the_run_all_the_same():
    data = target_data("classes", tested=True)
    run = plan_run(dpnfl(), data, rounds=4, terms=PrivacyTerms(delta=0.1, stop="accuracy=0.5"))
    assert np.isinf(verified_guarantee(run).epsilon)
    assert "clients hold out, without noise: use a public test set" in verified_guarantee(run).reason
    assert "clients hold out, without noise" in refusal(
        fdp.run, dpnfl(), data, rounds=4, stop="accuracy=0.5", epsilon=2.0, delta=0.1
    )
    held = dataclasses.replace(DATA, test_clients=np.arange(50, dtype=np.int32) % 6)
    result = fdp.run(dpnfl(), held, **{name: word for name, word in WORDS.items() if name != "checkpoint_every"})
    assert (result.history[-1].round, result.guarantee.epsilon) == (2, np.inf)


def test_the_first_evaluation_that_is_as_good_ends_a_run():
    ends, of = [], rule()
    for done, accuracy in ((2, 0.27), (4, 0.28)):
        ends.append((of.reached(Evaluation(done, {"accuracy": accuracy}, 1.0)), of.end))
    assert ends == [(False, None), (True, 4)]


def test_a_run_that_goes_on_ends_where_one_that_was_planned_so_ends():
    """It is evaluated at its first end, round 3, too: the wrong program stops there."""
    of = rule(every=2)
    good = [of.reached(Evaluation(done, {"accuracy": 0.9}, 1.0)) for done in (3, 4)]
    assert (good, of.end) == ([False, True], 4)
