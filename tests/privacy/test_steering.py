"""Results end a run, or choose its noise: free where they are public and only end it, else within a filter."""

import csv
import dataclasses
import json
import math
import types

import jax
import numpy as np
import pytest
from helpers import ragged_data, target_data

import fedjax_dp as fdp
from fedjax_dp import cli
from fedjax_dp.accounting import Adjacency, Gdp, Unit, epsilon_of, looks_event, squared_mu
from fedjax_dp.accounting.accountants import epsilons_of
from fedjax_dp.accounting.composed_phases import events_of, spent
from fedjax_dp.accounting.ledger import chained, text_of
from fedjax_dp.data.store import UnitBound
from fedjax_dp.experiments import run_folder
from fedjax_dp.experiments.round_ledger import read_ledger
from fedjax_dp.privacy.client_events import adjacency_of, client_events, own_events
from fedjax_dp.privacy.guarantees import calibrated, guaranteed, prepare, stated
from fedjax_dp.privacy.planned_run import plan_run
from fedjax_dp.privacy.protection import with_noise
from fedjax_dp.privacy.spending import Spending, of_a_round
from fedjax_dp.privacy.steering import Choices, CountNoise, Released, StopRule, claim_of
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.prng import role_key
from fedjax_dp.rounds.simulation import Evaluation, advance
from fedjax_dp.tasks import Classes, measures_of_task

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
    assert choices.end <= prepare(run)[0].rounds


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


@pytest.mark.slow
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
    assert fdp.open_run(folder / "chosen").finished


@pytest.mark.slow
def test_a_run_of_chosen_noise_is_not_resumed(runs, capsys):
    """What chose it stands in no folder; so no message says that something could be given again."""
    with pytest.raises(fdp.ConfigurationError, match="chosen, whose noise a function chose from results"):
        fdp.resume(runs[0] / "chosen")
    assert cli.main(["run", "--resume", str(runs[0] / "chosen")]) == 2
    assert "fixed beforehand, got" in capsys.readouterr().err


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
    assert "clients hold out, without noise" in guaranteed(run).reason
    with pytest.raises(fdp.ConfigurationError, match="clients hold out, without noise"):
        fdp.run(dpnfl(), data, stop="accuracy=0.5", epsilon=2.0, **terms)


HELD = dataclasses.replace(DATA, test_clients=np.minimum(np.arange(50) % 9, 5).astype(np.int32))  # 6 each, 20 the last
NOISED = {"stop": "accuracy=0.28", "stop_noise": 4.0}


def planned(algorithm, data=HELD, rounds=12, every=2, **terms):
    return plan_run(algorithm, data, rounds=rounds, terms=PrivacyTerms(**terms), evaluate_every=every)


def dp_fedavg(noise=4.0, **changed):
    words = {"cohort_size": 3, "batch_size": 5, "local_steps": 2, "learning_rate": 0.3, "clip_norm": 1.0}
    return fdp.dp_fedavg(**(words | {"noise_multiplier": noise} | changed))


def unsampled(mu, rounds, entry):
    """Of all records, or all clients, in all rounds, with noise that adds up to `mu`."""
    made = entry(
        1.0, cohort_size=6, local_steps=1, **({"batches": "full", "batch_size": None} if entry is dpnfl else {})
    )
    spent = squared_mu(client_events(planned(made, DATA, rounds, delta=1e-5))[0])
    return with_noise(made, math.sqrt(spent) / mu)


@pytest.mark.parametrize(
    ("entry", "mu", "looks", "noise", "epsilon"),
    [
        (dpnfl, 0.8, 20, 30.0, 3.3869331861562646),
        (dp_fedavg, 0.8, 20, 30.0, 3.453598182438596),
        (dpnfl, 0.3, 50, 5.0, 6.572970067030336),
    ],
)
def test_runs_that_stop_by_held_out_records_have_the_price_of_their_looks(entry, mu, looks, noise, epsilon):
    """Cases `stop_metric` of `accounting/test_early_stopping.py`, at delta 1e-5."""
    one_each = dataclasses.replace(DATA, x_test=DATA.x_test[:6], y_test=DATA.y_test[:6], test_clients=np.arange(6))
    terms = {"delta": 1e-5, "accountant": "gaussian", "stop": "accuracy=0.9", "stop_noise": noise}
    run = planned(unsampled(mu, looks, entry), one_each, looks, 1, **terms)
    assert guaranteed(run).epsilons == pytest.approx([epsilon] * 6, rel=1e-6)
    assert guaranteed(dataclasses.replace(run, evaluate_every=None)).epsilons == guaranteed(run).epsilons


def test_a_client_pays_for_all_that_it_holds_out_and_a_record_for_itself():
    of_clients = guaranteed(planned(unsampled(0.5, 12, dp_fedavg), delta=DELTA, **NOISED))
    events = [looks_event(6, 4.0 / held, of_clients.adjacency, Unit.CLIENT) for held in (6, 20)]
    mus = [math.sqrt(0.25 + squared_mu(event)) for event in events]
    assert mus == pytest.approx([math.sqrt(0.25 + 6 * held**2 / 16) for held in (6, 20)])
    assert of_clients.epsilons == pytest.approx([Gdp(mus[0]).epsilon(DELTA)] * 5 + [Gdp(mus[1]).epsilon(DELTA)])
    of_records = guaranteed(planned(unsampled(0.5, 12, dpnfl), delta=DELTA, **NOISED)).epsilons
    assert of_records == pytest.approx([Gdp(max(0.5, math.sqrt(6) / 4)).epsilon(DELTA)] * 6)
    nobody = dataclasses.replace(HELD, test_clients=np.zeros(50, np.int32))  # but the first
    others = guaranteed(planned(unsampled(0.5, 12, dpnfl), nobody, delta=DELTA, **NOISED)).epsilons
    assert others == pytest.approx([of_records[0]] + [Gdp(0.5).epsilon(DELTA)] * 5)


def test_noise_is_found_for_training_beside_looks_that_cost_what_they_cost():
    for algorithm, noise in ((dpnfl(), 20.0), (dp_fedavg(), 80.0)):
        terms = {"delta": DELTA, "stop": "accuracy=0.9", "stop_noise": noise}
        run = planned(algorithm, epsilon=3.0, **terms)
        found = guaranteed(calibrated(run)).epsilon
        assert 3.0 * (1 - 1e-3) < found <= 3.0
        with pytest.raises(fdp.ConfigurationError, match=r"6 evaluations of accuracy=0.9 cost already.* stop_noise"):
            calibrated(planned(algorithm, epsilon=0.05, **terms))


def test_epsilon_by_round_of_a_noised_stop_grows_to_its_guarantee():
    """With the looks of a run that was planned so far; the wrong program counts those of the whole run at once."""
    run = planned(unsampled(0.2, 12, dpnfl), delta=DELTA, accountant="gaussian", **NOISED)
    spending = Spending(run, guaranteed(run))
    curve = [spending.epsilon(rounds) for rounds in range(1, 13)]
    assert curve == sorted(curve)
    assert curve[-1] == guaranteed(run).epsilon
    looks = [looks_event(count, 4.0, Adjacency.REPLACE_ONE, Unit.RECORD) for count in range(1, 7)]
    assert curve[1::2] == pytest.approx([epsilon_of(event, DELTA) for event in looks])
    assert curve[::2] == curve[1::2]


def test_a_phase_carries_its_looks():
    run = planned(dp_fedavg(), delta=DELTA, **NOISED)  # fmt: skip
    events = own_events(run)
    phase = {"spent": json.loads(json.dumps(spent(events))), "clients": {"count": 6}}
    assert events_of(phase, (Unit.CLIENT, adjacency_of(events))) == events
    assert len(set(events)) == 2


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"data": DATA}, "left out with a public test set, by which a stop is free"),
        ({"stop": None}, "stop must be given, got nothing; it belongs to stop_noise"),
        ({"stop": "loss=0.5"}, "left out of a stop by loss, which counts no right answers.*stop by accuracy"),
        ({"stop_noise": 0.0}, "stop_noise must be positive and finite"),
        ({"stop_noise": np.nan}, "stop_noise must be positive and finite"),
        ({"every": 0}, "evaluate_every must be an integer of at least 1"),
        ({"unit": "user", "data": dataclasses.replace(HELD, bounds=(UnitBound(Unit.USER, 2),))},
         "nobody bounds how many records one holds out"),
        ({"algorithm": dp_fedavg(), "deployment_cohort": 30, "deployment_population": 600},
         "left out where a run stands for a deployment"),
        ({"algorithm": fdp.ditto(cohort_size=3, batch_size=5, local_steps=2, learning_rate=0.3, clip_norm=1.0,
                                 noise_multiplier=4.0)}, "left out where clients have models of their own"),
        ({"data": target_data("regression", tested=True), "stop": "rmse=0.5"}, "fix the rounds"),
    ],
)  # fmt: skip
def test_a_noised_stop_is_refused_where_it_is_not_needed_or_not_known_to_be_enough(changed, words):
    changed = {"algorithm": dpnfl(), "delta": DELTA} | NOISED | changed
    with pytest.raises(fdp.ConfigurationError, match=words) as error:
        planned(**changed)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def noised(tmp_path_factory):
    """A run that a noised accuracy ends after round 4 of 12, killed after round 2 and gone on with."""
    path, keep = tmp_path_factory.mktemp("noised") / "run", run_folder.RunFolder.keep

    def killed(self, state, *rest):
        keep(self, state, *rest)
        raise KeyboardInterrupt

    words = {"rounds": 12, "evaluate_every": 2, "checkpoint_every": 2, "delta": DELTA, **NOISED}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run_folder.RunFolder, "keep", killed)
        with pytest.raises(KeyboardInterrupt):
            fdp.run(dpnfl(8.0), HELD, out=path, **words)
    return fdp.resume(path, dpnfl(8.0), HELD)


def noise_at(done):
    return float(jax.random.normal(jax.random.fold_in(role_key(jax.random.key(0), "stop"), done)))


@pytest.mark.slow
def test_the_noised_count_alone_ends_a_run(noised):
    """Wrong programs: the true accuracy decides, which ends it two rounds before; looks up to the stop alone count."""
    right = {seen.round: round(50 * seen.metrics["accuracy"]) for seen in noised.history}
    seen = {done: count + 4.0 * noise_at(done) for done, count in right.items()}
    assert next(done for done, count in right.items() if count >= 14) == 2
    assert [done for done, count in seen.items() if count >= 14] == [4] == [noised.round]
    run = planned(dpnfl(8.0), delta=DELTA, **NOISED)
    assert noised.guarantee.epsilons == guaranteed(run).epsilons
    dear = planned(dpnfl(40.0), delta=DELTA, **NOISED)  # of which looks cost most
    assert guaranteed(dear).epsilon > 1.5 * guaranteed(dear.prefix(4)).epsilon
    assert any("4 at each of 6 evaluations" in line for line in noised.guarantee.assumptions)


def test_a_look_is_the_same_whenever_it_is_taken_and_another_in_every_round_and_run():
    """The wrong program draws noise again where a run goes on, and sees a second count of the same model."""
    run = planned(dpnfl(), delta=DELTA, **NOISED)
    known = [
        [CountNoise.of(one).added(0.5, done) for done in (2, 4)] for one in (run, run, dataclasses.replace(run, seed=1))
    ]
    assert known[0] == known[1] == pytest.approx([0.5 + 4.0 * noise_at(done) / 50 for done in (2, 4)])
    assert len(set(known[1] + known[2])) == 4


def test_a_stop_by_records_that_nobody_noised_ends_a_run_all_the_same():
    rule = StopRule(planned(dpnfl(), stop="accuracy=0.28"), measures_of_task(Classes()))
    ended = []
    for done, accuracy in ((2, 0.27), (4, 0.28)):
        rule.choose(dpnfl(), done, done + 2, None, Evaluation(done, {"accuracy": accuracy}, 1.0))
        ended.append(rule.end)
    assert ended == [None, 4]


def test_a_run_that_goes_on_looks_no_more_often_than_one_that_was_planned_so():
    """It is evaluated at its first end, round 3, too; prolonged again and again it looked there each time."""
    run = planned(dpnfl(), every=2, delta=DELTA, **NOISED)
    rule, looked = StopRule(run, measures_of_task(Classes())), []
    rule._noise = types.SimpleNamespace(added=lambda value, done: looked.append(done) or value)
    for done in (2, 3, 4, 5, 6):
        rule.choose(dpnfl(), done, done + 1, None, Evaluation(done, {"accuracy": 0.0}, 1.0))
    assert looked == [2, 4, 6]


def test_the_ledger_of_a_noised_stop_has_its_looks(noised, capsys):
    ledger = read_ledger(noised.folder)
    assert ledger.events() == client_events(planned(dpnfl(8.0), delta=DELTA, **NOISED).prefix(4))
    assert [line["halt"] for line in ledger.lines] == [None] * 3 + ["rule"]
    code, out, _ = account(capsys, noised.folder)
    assert (code, f"epsilon {noised.guarantee.epsilon:.4g}" in out) == (0, True)
    assert "stop accuracy=0.28, with noise of standard deviation 4" in " ".join(out.split())


def test_a_budget_that_ends_a_run_moves_no_evaluation_that_is_counted():
    words = {"rounds": 400, "delta": DELTA, "budget": 4.0, "accountant": "rdp"}
    done = fdp.run(dpnfl(8.0), HELD, stop="accuracy=1.0", stop_noise=4.0, **words)
    assert 20 < done.ready.rounds < 400
    assert done.ready.spec.output.evaluate_every == 20
    assert len(done.history) == done.ready.planned.looks == -(-done.ready.rounds // 20)


def test_who_chooses_sees_no_probe(runs):
    """Nor losses of clients, which nobody noised."""
    *_, seen = runs
    assert Released._fields == ("round", "params", "metrics", "noise_multiplier", "left")
    assert set(seen[-1].metrics) == {"accuracy", "loss"}
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(seen[-1].params))
