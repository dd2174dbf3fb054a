"""Results end a run, or choose its noise: free where they are public and only end it, else within a filter."""

import csv
import json

import jax
import numpy as np
import pytest
from helpers import ragged_data, target_data

import fedjax_dp as fdp
from fedjax_dp import cli
from fedjax_dp.accounting.accountants import epsilons_of
from fedjax_dp.accounting.ledger import chained, text_of
from fedjax_dp.experiments import run_folder
from fedjax_dp.experiments.round_ledger import read_ledger
from fedjax_dp.privacy.guarantees import guaranteed, prepared, stated
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.privacy.spending import of_a_round
from fedjax_dp.privacy.steering import Choices, Released, claim_of
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.rounds.simulation import advance

DATA = ragged_data([20, 20, 7, 40, 40, 20])
BUDGET, DELTA = 8.0, 1e-3


def dpnfl(noise=4.0, **changed):
    words = {"cohort_size": 3, "batch_size": 5, "local_steps": 2, "learning_rate": 0.3, "clip_norm": 1.0}
    return fdp.dpnfl(**(words | {"noise_multiplier": noise} | changed))


def choices_of(choose, algorithm=None, data=DATA, **terms):
    terms = {"delta": DELTA, "budget": BUDGET, "accountant": "rdp"} | terms
    run = plan_run(algorithm or dpnfl(), data, rounds=400, terms=PrivacyTerms(**terms))
    return run, Choices(run, stated(run), choose)


def steered(choices, run, every=5):
    """Until it ends, without any training."""
    algorithm, done, noises = run.algorithm, 0, []
    while done < (run.rounds if choices.end is None else choices.end):
        until = min(done + every, run.rounds)
        algorithm = choices.choose(algorithm, done, until, None, None)
        noises.append(algorithm.local.privatizer.noise_multiplier)
        done = until
    return noises


@pytest.mark.parametrize("accountant", ["gaussian", "zcdp", "rdp"])
def test_a_run_ends_before_the_round_that_would_pass_the_budget_whatever_is_chosen(accountant):
    """A budget that is looked at after the round is the wrong program that runs that one more."""
    rng = np.random.default_rng(0)
    full = {"algorithm": dpnfl(batches="full", batch_size=None, noise=20.0)} if accountant == "gaussian" else {}
    run, choices = choices_of(lambda seen: rng.uniform(3.0, 12.0), budget=4.0, accountant=accountant, **full)
    *_, noise = steered(choices, run)
    assert choices.why == "budget"
    assert 0 < choices.end < 400
    assert choices.used(choices.end) <= choices.filter.budget
    last = of_a_round(run.with_noise(noise))
    costs = np.array([choices.filter.cost(event) for event in last.events])[last.kind]
    ids, drawn = run.cohorts
    taking_part = np.bincount(ids[choices.end][drawn[choices.end]], minlength=6)
    assert np.any(choices._used[-1] + costs * taking_part > choices.filter.budget)


@pytest.mark.parametrize("accountant", ["zcdp", "rdp"])
def test_constant_noise_takes_no_more_rounds_than_a_run_that_was_planned(accountant):
    run, choices = choices_of(lambda seen: 8.0, dpnfl(8.0), budget=4.0, accountant=accountant)
    steered(choices, run)
    assert choices.end <= prepared(run)[0].rounds


def test_what_adaptively_chosen_rounds_would_have_cost_if_planned_is_no_claim():
    """The wrong program reports the planned epsilon of the rounds that happen to have been chosen."""
    run, choices = choices_of(lambda seen: 30.0 if seen.round < 20 else None)
    steered(choices, run)
    assert (choices.end, choices.why) == (20, "rule")
    planned = guaranteed(run.with_noise(30.0).prefix(20).counted(budget=None)).epsilon
    claim = claim_of(stated(run), choices)
    assert set(claim.epsilons) == {BUDGET}
    assert planned < BUDGET / 2
    assert any("within a filter at order" in line for line in claim.assumptions)
    assert not any("above the budget" in line for line in claim.warnings)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"accountant": "pld"}, "there is no filter for trade-off curves, as pld adds up"),
        ({"accountant": "gaussian"}, "unsampled"),
        ({"budget": None}, "beside one budget"),
        ({"budget": [4.0] * 6}, "beside one budget"),
        ({"epsilon": 4.0}, "left out where epsilon finds the noise"),
        ({"budget": 0.01, "accountant": "zcdp"}, "enough for the first round"),
        ({"stop": "accuracy=0.5"}, "left out beside stop"),
        ({"participation": "law"}, "left out where rounds do not count one by one"),
        ({"algorithm": fdp.ditto(cohort_size=3, batch_size=5, local_steps=2, learning_rate=0.3, clip_norm=1.0,
                                 noise_multiplier=4.0)}, "clients have models of their own"),
        ({"algorithm": fdp.dp_ftrl(cohort_size=3, batch_size=5, local_steps=2, learning_rate=0.3, clip_norm=1.0,
                                   noise_multiplier=4.0)}, "as with correlated noise"),
    ],
)  # fmt: skip
def test_where_no_filter_holds_nothing_is_chosen(changed, words):
    with pytest.raises(fdp.ConfigurationError, match=words) as error:
        choices_of(lambda seen: None, **changed)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("chosen", [0.0, -1.0, np.nan, "3", [1.0, 2.0], True, None])
def test_a_choice_that_is_none_is_refused(chosen):
    _, choices = choices_of(lambda seen: chosen)
    with pytest.raises(fdp.ConfigurationError, match="what adapt returns must be"):
        choices.choose(dpnfl(), 0, 5, None, None)


def test_noise_that_a_part_cannot_carry_is_refused():
    """Bits of clip norms have noise of their own, which would cost more than what was counted."""
    words = {"cohort_size": 3, "batch_size": 5, "local_steps": 1, "learning_rate": 0.1, "clip_norm": 1.0}
    clients = fdp.dp_fedavg(**words, noise_multiplier=1.5, adaptive_clip=True)
    run, choices = choices_of(lambda seen: 50.0, clients, budget=50.0)
    with pytest.raises(fdp.ConfigurationError, match="bit_noise must be above half"):
        choices.choose(run.algorithm, 0, 5, None, None)


def short(words):
    return {name: value for name, value in words.items() if name != "checkpoint_every"} | {"rounds": 6}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run whose noise follows the accuracy and which ends by itself, and one that a target ends."""
    folder, seen = tmp_path_factory.mktemp("runs"), []

    def adapt(released):
        seen.append(released)
        return None if released.round == 6 else 8.0 - released.metrics.get("accuracy", 0.0)

    words = {"rounds": 12, "evaluate_every": 2, "checkpoint_every": 12, "delta": DELTA}
    chosen = fdp.run(dpnfl(), DATA, out=folder / "chosen", adapt=adapt, budget=BUDGET, accountant="rdp", **words)
    programs = advance._cache_size()
    fdp.run(dpnfl(), DATA, adapt=lambda seen: 6.0 + seen.round, budget=BUDGET, accountant="rdp", **short(words))
    assert advance._cache_size() == programs  # other noise is another number of the same program
    stopped = fdp.run(dpnfl(8.0), DATA, out=folder / "stopped", stop="accuracy=0.1", **words)
    return folder, chosen, stopped, seen


def account(capsys, *words):
    code = cli.main(["account", "--ledger", *map(str, words)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_noise_follows_what_was_released_and_the_claim_is_the_budget(runs, capsys):
    folder, chosen, _, seen = runs
    assert [one.round for one in seen] == [0, 2, 4, 6]
    assert [one.noise_multiplier for one in seen[1:]] == pytest.approx(
        [8.0 - one.metrics.get("accuracy", 0.0) for one in seen[:-1]], rel=1e-6
    )
    assert chosen.history[-1].round == 6
    assert set(chosen.guarantee.epsilons) == {BUDGET}
    lines = read_ledger(folder / "chosen").lines
    assert [line["halt"] for line in lines] == [None] * 5 + ["rule"]
    noises = [line["events"][0]["noise_multiplier"] for line in lines]
    assert noises == pytest.approx([one.noise_multiplier for one in seen[1:] for _ in range(2)], rel=1e-6)
    assert all(line["epsilon_planned"] is None for line in lines)
    code, out, _ = account(capsys, folder / "chosen")
    assert (code, f"epsilon {BUDGET:g}" in out, "results choose its noise within a filter" in out) == (0, True, True)
    code, _, err = account(capsys, folder / "chosen", "--rounds", 3)
    assert (code, "of which its first rounds bound nothing" in err) == (2, True)
    rows = csv.DictReader((folder / "chosen" / "clients.csv").read_text().splitlines())
    assert {row["epsilon"] for row in rows} == {f"{BUDGET}"}
    with pytest.raises(fdp.ConfigurationError, match="adapt of the run"):
        fdp.resume(folder / "chosen", dpnfl(), DATA)


def test_a_ledger_that_has_used_more_than_its_filter_is_refused(runs, tmp_path, capsys):
    """Also where all checksums were made anew."""
    ledger = read_ledger(runs[0] / "chosen")
    before, lines = ledger.phase["phase"], []
    for line in ledger.lines:
        text = json.dumps(dict(line)).replace('"count": 2', '"count": 900')
        lines.append(chained(before, json.loads(text)))
        before = lines[-1]["checksum"]
    own = (runs[0] / "chosen" / "ledger.jsonl").read_text().splitlines(keepends=True)
    file = tmp_path / "ledger.jsonl"
    file.write_text("".join(own[: -len(lines)]) + text_of(lines))
    code, _, err = account(capsys, file)
    assert (code, "what a ledger has used of its filter must be" in err) == (2, True)


def test_a_stop_by_public_records_is_free_and_its_claim_is_that_of_all_rounds(runs, capsys):
    folder, _, stopped, _ = runs
    whole = guaranteed(plan_run(dpnfl(8.0), DATA, rounds=12, terms=PrivacyTerms(delta=DELTA)))
    assert stopped.history[-1].round == 2
    assert stopped.guarantee.epsilons == whole.epsilons
    ledger = read_ledger(folder / "stopped")
    assert max(epsilons_of(ledger.events(), DELTA)) < whole.epsilon  # the wrong program: its rounds read as planned
    with pytest.raises(fdp.ConfigurationError, match="one of a run that results may end or change"):
        ledger.epsilons()
    assert ledger.lines[-1]["halt"] == "rule"
    code, out, _ = account(capsys, folder / "stopped")
    assert (code, f"epsilon {whole.epsilon:.4g}" in out, "halted by results after round 2" in out) == (0, True, True)
    saved = fdp.open_run(folder / "stopped")
    assert (saved.finished, saved.round, saved.result["spending"]["halt"]) == (True, 2, "rule")


def test_a_run_that_is_killed_when_a_target_has_ended_it_does_not_go_on(runs, tmp_path):
    *_, stopped, _ = runs
    keep = run_folder.RunFolder.keep

    def killed_at_its_end(self, state, *rest):
        keep(self, state, *rest)
        if int(state.round) == 2:
            raise KeyboardInterrupt

    words = {"rounds": 12, "evaluate_every": 2, "checkpoint_every": 12, "delta": DELTA, "stop": "accuracy=0.1"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run_folder.RunFolder, "keep", killed_at_its_end)
        with pytest.raises(KeyboardInterrupt):
            fdp.run(dpnfl(8.0), DATA, out=tmp_path / "killed", **words)
    resumed = fdp.resume(tmp_path / "killed", dpnfl(8.0), DATA)
    assert (resumed.finished, resumed.round, resumed.guarantee.epsilon) == (True, 2, stopped.guarantee.epsilon)
    np.testing.assert_array_equal(*(np.ravel(one.params["Dense_0"]["kernel"]) for one in (resumed, stopped)))
    assert [line["halt"] for line in read_ledger(tmp_path / "killed").lines] == [None, "rule"]


def test_a_stop_by_records_of_members_that_nobody_noised_has_no_epsilon():
    data = target_data("classes", tested=True)
    terms = {"rounds": 4, "delta": 0.1}
    run = plan_run(dpnfl(), data, **{"rounds": 4}, terms=PrivacyTerms(delta=0.1, stop="accuracy=0.5"))
    assert np.isinf(guaranteed(run).epsilon)
    assert "clients hold out and nobody noised" in guaranteed(run).reason
    with pytest.raises(fdp.ConfigurationError, match="clients hold out and nobody noised"):
        fdp.run(dpnfl(), data, stop="accuracy=0.5", epsilon=2.0, **terms)


def test_who_chooses_sees_no_probe(runs):
    """Nor losses of clients, which nobody noised."""
    *_, seen = runs
    assert Released._fields == ("round", "params", "metrics", "noise_multiplier", "left")
    assert set(seen[-1].metrics) == {"accuracy", "loss"}
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(seen[-1].params))
