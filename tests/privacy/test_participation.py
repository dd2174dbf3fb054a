"""What participation is asked for is what every door counts and prints."""

import json
import math

import numpy as np
import pytest
from helpers import ragged_data, usual

import fedjax_dp as fdp
from fedjax_dp.tools import cli

DATA, ROUNDS, DELTA = ragged_data([20] * 6), 4, 1e-3
TERMS = {"rounds": ROUNDS, "delta": DELTA, "seed": 1}
NAMES = ("schedule", "law", "worst", "expected", "once")
NO_GUARANTEE = {
    "expected": "for the mean number of rounds, which is no guarantee for clients that are drawn more often: epsilon ",
    "once": "for a single round, which is no guarantee for the run: epsilon ",
}


def dpnfl(**changes):
    base = {"cohort_size": 2, "batch_size": 2, "local_steps": 2, "learning_rate": 0.1, "clip_norm": 1.0}
    return fdp.dpnfl(**{**base, "noise_multiplier": 1.5, **changes})


@pytest.fixture(scope="module")
def stated():
    return {name: fdp.guarantee(dpnfl(), DATA, participation=name, **TERMS) for name in NAMES}


def test_every_participation_is_another_number(stated):
    assert len({promise.epsilon for promise in stated.values()}) == len(NAMES)
    assert stated["once"].epsilon < stated["expected"].epsilon < stated["worst"].epsilon
    assert stated["schedule"].epsilon <= stated["worst"].epsilon


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(NAMES, ["once"]))
def test_a_sweep_and_a_guarantee_count_the_same(stated, name):
    options = {"axes": {"learning_rate": [0.1]}, "participation": name, "progress": False}
    swept = fdp.sweep(dpnfl(), DATA, rounds=ROUNDS, delta=DELTA, seeds=[1], **options)
    assert swept.records[0]["guarantee"]["epsilon"] == stated[name].epsilon
    assert swept.records[0]["guarantee"]["statement"] == str(stated[name])


@pytest.mark.parametrize("name", usual(NAMES, ["law"]))
def test_noise_is_found_for_what_the_guarantee_counts(name):
    value = fdp.calibrate(dpnfl(), DATA, epsilon=1.0, participation=name, **TERMS)
    found = fdp.guarantee(value, DATA, epsilon=1.0, participation=name, **TERMS)
    assert 0.999 < found.epsilon <= 1.0
    assert not any("above the budget" in text for text in found.warnings)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_guarantee_of_the_run_says_so_first(stated, name):
    promise = stated[name]
    assert str(promise).startswith(NO_GUARANTEE.get(name, "epsilon "))
    assert fdp.accounting.Guarantee.from_full_dict(json.loads(json.dumps(promise.to_full_dict()))) == promise


@pytest.mark.slow
def test_command_files_and_flags_count_what_they_say(tmp_path, capsys):
    words = "--dataset digits --num-clients 6 --cohort-size 2 --batch-size 2 --local-steps 2 --noise-multiplier 1.5"
    shared = [*words.split(), "--delta", "1e-3", "--rounds", "2", "--json", "--quiet"]
    assert cli.main(["run", *shared, "--participation", "once"]) == 0
    once = json.loads(capsys.readouterr().out)["guarantee"]
    file = tmp_path / "worst.toml"
    file.write_text('participation = "worst"\n')
    assert cli.main(["run", str(file), *shared]) == 0
    worst = json.loads(capsys.readouterr().out)["guarantee"]
    assert once["epsilon"] < worst["epsilon"]
    assert once["statement"].startswith(NO_GUARANTEE["once"])
    assert "every client is accounted for all rounds" in worst["assumptions"]


@pytest.mark.parametrize("name", ["law", "expected", "once"])
def test_an_audit_refuses_what_its_seed_does_not_play(name, capsys):
    line = "participation of an audit must be schedule or worst, as it plays the cohorts of one seed"
    with pytest.raises(fdp.ConfigurationError, match=line):
        fdp.audit(dpnfl(), DATA, participation=name, trials=2000, **TERMS)
    assert cli.main(["audit", "--cohort-size", "2", "--rounds", "2", "--participation", name]) == 2
    assert line in capsys.readouterr().err


@pytest.mark.slow
def test_an_audit_finds_the_noise_of_a_budget_and_states_what_it_was_asked_to_count():
    algorithm, options = dpnfl(batches="full", batch_size=None), {"participation": "worst", "epsilon": 2.0, **TERMS}
    found = fdp.audit(algorithm, DATA, trials=1000, lanes=64, parameters=4, **options)
    assert found.guarantee.epsilon == fdp.guarantee(algorithm, DATA, **options).epsilon
    assert found.epsilon == pytest.approx(2.0, rel=1e-3)
    assert "epsilon=2.0" in found.repeat
    assert not found.violated


def test_whole_clients_of_hidden_cohorts_are_amplified_in_every_round_by_any_name():
    value = fdp.dp_fedavg(
        cohort_size=2, batch_size=2, local_steps=1, learning_rate=0.1, clip_norm=1.0, noise_multiplier=1.5
    )
    found = {name: fdp.guarantee(value, DATA, participation=name, **TERMS) for name in NAMES}
    assert len({found[name].epsilon for name in NAMES if name != "once"}) == 1
    assert str(found["expected"]).startswith("epsilon ")  # all rounds are in it
    assert str(found["once"]).startswith(NO_GUARANTEE["once"])
    assert found["once"].epsilon < found["worst"].epsilon < math.inf


def test_a_law_that_is_not_known_is_counted_as_the_worst_case_and_says_so():
    found = fdp.guarantee(dpnfl(cohort="cyclic"), DATA, participation="law", **TERMS)
    worst = fdp.guarantee(dpnfl(cohort="cyclic"), DATA, participation="worst", **TERMS)
    np.testing.assert_array_equal(found.epsilons, worst.epsilons)
    assert (
        "every client is accounted for all rounds; nothing less is proved for participation law here"
        in found.assumptions
    )
