"""The ledger of a run's folder: written as it goes on, read alone, gone on with, and refused where it was edited."""

import csv
import dataclasses
import json
import pathlib
import resource
import shutil
from types import SimpleNamespace

import pytest
from helpers import refusal
from small_runs import PRIVATE, Stopped, account, dpnfl, run_killed, stop_at

import fedjax_dp as fdp
from fedjax_dp.accounting.ledger import phases_in
from fedjax_dp.data.client_names import ClientNames
from fedjax_dp.experiments.round_ledger import RoundLedger, read_ledger
from fedjax_dp.pytrees import equal

ROUNDS = 4


@pytest.fixture(scope="module")
def runs(tmp_path_factory, data):
    """A run, and the same run stopped after round 3, of which the checkpoint of round 2 is there."""
    folder = tmp_path_factory.mktemp("runs")
    words = {"rounds": ROUNDS, "evaluate_every": 1, "checkpoint_every": 2, "delta": 1e-3}
    fdp.run(dpnfl(), data, out=folder / "whole", **words)
    run_killed(dpnfl(), data, folder / "stopped", **words)
    return folder


def copied(runs, name, to):
    shutil.copytree(runs / name, to / name)
    return to / name


def test_a_line_a_round_is_written_as_the_run_goes_on(runs):
    ledger, stopped = read_ledger(runs / "whole"), read_ledger(runs / "stopped")
    assert (ledger.rounds, stopped.rounds) == (ROUNDS, 3)
    assert [line["halt"] for line in ledger.lines] == [None, None, None, "rounds"]
    assert stopped.lines == ledger.lines[:3]
    promise = fdp.open_run(runs / "whole").guarantee
    assert ledger.epsilons() == pytest.approx(list(promise.epsilons), rel=1e-9)


def test_a_first_line_that_the_disk_does_not_take_is_not_begun(runs, tmp_path):
    lines, file = read_ledger(runs / "whole").lines, tmp_path / "ledger.jsonl"
    file.write_text(phases_in((runs / "whole" / "ledger.jsonl").read_text()))
    ready = SimpleNamespace(end=(), spending=SimpleNamespace(lines=lambda first, done: lines[first:done]))
    ledger, most = RoundLedger(tmp_path, ready), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 10, most[1]))  # files cannot grow beyond
    try:
        with pytest.raises(OSError, match="too large"):
            ledger.write(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert read_ledger(tmp_path).rounds == 0
    ledger.write(1)
    ledger.write(3)
    assert read_ledger(tmp_path).lines == lines[:3]


def test_tables_say_the_same_to_people(runs):
    rows = list(csv.DictReader((runs / "whole" / "ledger.csv").read_text().splitlines()))
    promise = fdp.open_run(runs / "whole").guarantee
    assert [float(row["epsilon_planned"]) for row in rows][-1] == promise.epsilon
    clients = list(csv.DictReader((runs / "whole" / "clients.csv").read_text().splitlines()))
    assert [float(row["epsilon"]) for row in clients] == list(promise.epsilons)
    assert sum(int(row["rounds"]) for row in clients) == 5 * ROUNDS
    assert not (runs / "stopped" / "clients.csv").exists()


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_its_ledger_also_where_a_line_was_cut_off(runs, tmp_path, data):
    folder = copied(runs, "stopped", tmp_path)
    whole = (runs / "whole" / "ledger.jsonl").read_text()
    file = folder / "ledger.jsonl"
    file.write_text(file.read_text()[:-40])
    assert read_ledger(file).is_cut
    fdp.resume(folder, dpnfl(), data)
    assert file.read_text() == whole


@pytest.mark.slow
def test_more_rounds_carry_on_what_was_written(runs, tmp_path, data):
    folder = copied(runs, "whole", tmp_path)
    before = read_ledger(folder)
    promise = fdp.resume(folder, dpnfl(), data, rounds=6).guarantee
    after = read_ledger(folder)
    same = ("events", "clients", "epsilon_planned", "priced_at")
    assert [[line[name] for name in same] for line in after.lines[:ROUNDS]] == [
        [line[name] for name in same] for line in before.lines
    ]
    assert [line["halt"] for line in after.lines] == [None] * 5 + ["rounds"]
    assert after.epsilons() == pytest.approx(list(promise.epsilons), rel=1e-9)


@pytest.mark.slow
def test_a_ledger_that_was_edited_or_is_another_runs_stops_a_resume(runs, tmp_path, data):
    folder = copied(runs, "stopped", tmp_path)
    file = folder / "ledger.jsonl"
    whole = file.read_text()
    phase, rounds = whole.split("\n", 1)
    unseen = rounds.replace('"view":"uploads"', '"view":"all"')
    for content, words in (
        (f"{phase}\n{unseen}", "edited since"),
        (f"{phase}\n{rounds.partition(chr(10))[2]}", "round 1"),
        (whole.replace('"ledger":2,"kind":"round"', '"ledger":1,"kind":"round"'), "of version 1; read it with"),
        (whole.replace('"ledger":2,"kind":"run"', '"ledger":1,"kind":"run"'), "version 2, which is known here"),
        ("", "a file without phases"),
    ):
        file.write_text(content)
        with pytest.raises(fdp.ConfigurationError, match=words) as error:
            fdp.resume(folder, dpnfl(), data)
        assert "\n" not in str(error.value)
        assert file.read_text() == content
    rounds = read_ledger(runs / "stopped").phase["rounds"]
    for number, changed, words in ((rounds + 1, {}, "rounds"), (rounds, {"noise_multiplier": 8.0}, "epsilon")):
        fdp.run(dpnfl(**changed), data, rounds=number, delta=1e-3, out=tmp_path / words)
        shutil.copy(tmp_path / words / "ledger.jsonl", file)
        with pytest.raises(fdp.ConfigurationError, match="of two runs"):
            fdp.resume(folder, dpnfl(), data)
        other, lines = file.read_text().split("\n", 1)
        file.write_text(f"{json.dumps(json.loads(other) | {'run': json.loads(phase)['run']})}\n{lines}")
        with pytest.raises(fdp.ConfigurationError, match=f"got of another run, with {words}"):
            fdp.resume(folder, dpnfl(), data)
    assert pathlib.Path(folder / "run.json").is_file()


@pytest.mark.slow
def test_what_has_to_be_read_before_an_epsilon_is_read_before_it_here_too(capsys, tmp_path, data):
    """The epsilon of a single round is none of the run."""
    words = {"rounds": 3, "delta": 1e-3, "participation": "once"}
    promise = fdp.run(dpnfl(), data, out=tmp_path / "x", **words).guarantee
    code, out, _ = account(capsys, tmp_path / "x", "--quiet")
    assert code == 0
    assert promise.caveat.startswith("for a single round")
    assert f"{promise.caveat}: epsilon" in " ".join(out.split())


@pytest.mark.slow
def test_what_is_released_at_the_end_is_not_released_again_after_more_rounds(tmp_path, data):
    algorithm = fdp.finetune(
        clip_norm=1.0, noise_multiplier=4.0, cohort_size=5, batch_size=5, local_steps=1, learning_rate=0.1
    )
    fdp.run(algorithm, data, rounds=2, delta=1e-3, out=tmp_path / "x")
    line = refusal(fdp.resume, tmp_path / "x", algorithm, data, rounds=4)
    assert "would release them twice" in line


def test_the_command_line_derives_epsilon_again(runs, capsys, tmp_path):
    promise = fdp.open_run(runs / "whole").guarantee
    code, out, _ = account(capsys, runs / "whole", "--json")
    content = json.loads(out)
    assert code == 0
    assert content["epsilon"] == pytest.approx(promise.epsilon, rel=1e-9)
    assert content["notes"] == ["equal to what the run promised"]
    code, out, _ = account(capsys, runs / "stopped" / "ledger.jsonl", "--accountant", "rdp", "--delta", "0.01")
    assert (code, "after 3 of 4 rounds: epsilon" in out, "at delta 0.01" in out) == (0, True, True)
    code, out, _ = account(capsys, runs / "whole", "--rounds", 2, "--quiet", "--plot", tmp_path / "epsilon.png")
    assert (code, out.startswith("after 2 of 4 rounds: epsilon"), out.count("\n")) == (0, True, 1)
    assert (tmp_path / "epsilon.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--rounds", "9"], "rounds must be an integer from 1 to 4"),
        (["--delta", "2"], "delta must be strictly between 0 and 1"),
        (["--accountant", "pdl"], "accountant must be one of"),
        (["--steps", "4"], "argument must be an option of fedjax-dp account"),
    ],
)
def test_what_cannot_be_accounted_for_is_refused_in_one_line(runs, capsys, words, told):
    code, out, err = account(capsys, runs / "whole", *words)
    assert (code, out, told in err, err.count("\n")) == (2, "", True, 1)


def test_a_ledger_whose_lines_were_all_written_anew_is_not_its_runs(runs, capsys, tmp_path):
    """Whoever edits a round is found out by what the run promised."""
    from fedjax_dp.accounting.ledger import text_of

    text = (runs / "whole" / "ledger.jsonl").read_text()
    phase, ledger = text.splitlines()[0], read_ledger(runs / "whole")
    made = [*ledger.lines[:-1], {**ledger.lines[0], "round": 3, "halt": "rounds", "clients": [[[0], 0]]}]
    (tmp_path / "doctored.jsonl").write_text(f"{phase}\n{text_of(made)}")
    code, _, err = account(capsys, tmp_path / "doctored.jsonl")
    assert (code, "as its run says" in err) == (2, True)


@pytest.mark.slow
def test_a_halted_run_equals_the_run_of_so_many_rounds_bit_for_bit_and_goes_on_after_a_kill(tmp_path, data):
    words = {"evaluate_every": 1, "checkpoint_every": 1, "delta": 1e-3}
    budget = fdp.guarantee(dpnfl(), data, rounds=3, delta=1e-3).epsilon * 1.0001
    with pytest.raises(Stopped):
        fdp.run(dpnfl(), data, rounds=50, stop_at_epsilon=budget, out=tmp_path / "a", callbacks=[stop_at(2)], **words)
    resumed = fdp.resume(tmp_path / "a", dpnfl(), data)
    rounds = resumed.config["rounds"]
    whole = fdp.run(dpnfl(), data, rounds=rounds, out=tmp_path / "b", **words)
    assert rounds < 50
    assert equal(resumed.params, whole.params)
    assert resumed.history == whole.history
    assert resumed.guarantee.epsilons == whole.guarantee.epsilons
    last = read_ledger(tmp_path / "a").lines[-1]
    assert (last["halt"], last["budget"], last["left"] >= 0) == ("budget", budget, True)
    assert resumed.result["spending"]["rounds_wanted"] == 50
    assert "after which the budget is spent, got 60" in refusal(fdp.resume, tmp_path / "a", dpnfl(), data, rounds=60)


@pytest.mark.slow
def test_tables_name_clients_unless_they_are_what_is_hidden(data, tmp_path):
    named = dataclasses.replace(data, names=ClientNames([f"H{client}" for client in range(data.num_clients)]))
    for algorithm, names in ((dpnfl(), named.names.listed), (fdp.dp_fedavg(**PRIVATE), None)):
        fdp.run(algorithm, named, rounds=1, delta=1e-3, out=tmp_path / str(names is None))
        rows = csv.DictReader((tmp_path / str(names is None) / "clients.csv").read_text().splitlines())
        assert [row.get("name") for row in rows] == list(names or [None] * data.num_clients)
