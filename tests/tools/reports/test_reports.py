"""A report tells what is in the files, in one page that needs nothing else."""

import json
import re
import shutil

import numpy as np
import pytest
from helpers import ragged_data, refusal
from report_inputs import HOSTILE, write_sweep

import fedjax_dp as fdp
from fedjax_dp.accounting.guarantee import no_privacy
from fedjax_dp.experiments.console import Screen
from fedjax_dp.sweeps.settings import settings_of
from fedjax_dp.tools import cli
from fedjax_dp.tools.figures.tables import sweeps as tables
from fedjax_dp.tools.reports import charts, kinds
from fedjax_dp.tools.reports.page import page, payload
from fedjax_dp.tools.reports.spending import MOST, epsilon_by_round, rounds_shown


def refused(capsys, *words):
    """The line that a command is refused with."""
    assert cli.main(["report", *map(str, words)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    lines = told.err.splitlines()
    assert len(lines) == 1, told.err
    return lines[0]


def embedded(made):
    """The JSON inside a page."""
    return json.loads(re.search(r'<script type="application/json" id="report">(.*?)</script>', made, re.S)[1])


@pytest.mark.slow
def test_rows_of_a_run_are_those_of_its_files(run_folder):
    report = kinds.read_report(run_folder)
    assert report.data["history"] == json.loads((run_folder / "metrics.json").read_text())
    saved = json.loads((run_folder / "guarantee.json").read_text())
    epsilons = sorted(epsilon for epsilon, count in saved["epsilons"] for _ in range(count))
    assert [row["epsilon"] for row in report.data["epsilons"]] == epsilons
    assert embedded(page(report))["data"] == report.data


@pytest.mark.slow
def test_epsilon_by_round_is_that_of_a_run_of_so_many_rounds(run_folder):
    """The last is the Guarantee; the others are what `fdp.guarantee` says of the same noise and fewer rounds."""
    spent = kinds.read_report(run_folder).data["spent"]
    saved = json.loads((run_folder / "guarantee.json").read_text())
    assert [row["round"] for row in spent] == [1, 2, 4, 6]
    assert spent[-1]["epsilon"] == pytest.approx(saved["epsilon"], rel=1e-9)
    assert spent[-1]["epsilon_min"] == pytest.approx(saved["epsilon_min"], rel=1e-9)
    curve = [row["epsilon"] for row in spent]
    assert curve == sorted(curve)
    assert curve[0] < 0.9 * curve[-1]


EPSILONS = ("round", "epsilon", "epsilon_median", "epsilon_min")


def without_rounds(run_folder, to):
    """The same run before its first round, whose ledger has its phase alone."""
    folder = shutil.copytree(run_folder, to / "begun")
    ledger = folder / "ledger.jsonl"
    ledger.write_text(ledger.read_text().splitlines(keepends=True)[0])
    return folder


@pytest.mark.slow
def test_the_ledger_says_of_epsilon_by_round_what_the_configuration_says(run_folder, tmp_path):
    by_ledger = kinds.read_report(run_folder)
    by_plan = kinds.read_report(without_rounds(run_folder, tmp_path))
    for one, other in zip(by_ledger.data["spent"], by_plan.data["spent"], strict=True):
        assert [one[name] for name in EPSILONS] == pytest.approx([other[name] for name in EPSILONS], rel=1e-9)
    assert "The horizontal line is the budget, 4." in page(by_ledger)


def test_the_line_of_a_budget_goes_across_and_nowhere_else():
    vl_convert = pytest.importorskip("vl_convert")
    spec = charts.curves("spent", {"epsilon": "worst client"}, charts.axis("epsilon", "epsilon"))
    spec["layer"].append(charts.across(6.0))
    rows = [{"round": at, "epsilon": at / 3} for at in range(1, 7)]
    drawn = vl_convert.vegalite_to_svg(spec | {"width": 300, "data": {"values": rows}})
    lines = re.findall(r'<line[^>]* x2="([\d.]+)" y2="([\d.]+)"[^>]*dasharray', drawn)
    assert {(float(wide) > 200, float(high)) for wide, high in lines} == {(True, 0.0)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"made of": "values of Python"}, "made of Python values"),
        ({"config": {"model": "net.py:Net"}}, "user-defined code, which a report does not execute"),
        ({"config": {"dataset": "mnist"}}, "files of mnist are missing, and a report downloads nothing"),
        ({"checksums": {"data": "0"}}, "data of the run"),
    ],
)
def test_epsilon_by_round_is_told_unknown_rather_than_guessed(run_folder, change, why, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_DP_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = without_rounds(run_folder, tmp_path)
    about = json.loads((folder / "run.json").read_text())
    about |= {name: {**about[name], **new} if isinstance(new, dict) else new for name, new in change.items()}
    assert why in refusal(epsilon_by_round, folder, about, 4.0, Screen(quiet=True))


@pytest.mark.slow
def test_epsilon_by_round_must_end_at_the_guarantee(run_folder):
    about = json.loads((run_folder / "run.json").read_text())
    assert "the folder holds 3.5" in refusal(epsilon_by_round, run_folder, about, 3.5, Screen(quiet=True))


def test_rounds_that_are_accounted_for_are_few_and_have_both_ends():
    assert rounds_shown(6, 2) == [1, 2, 4, 6]
    assert rounds_shown(1, 1) == [1]
    many = rounds_shown(100_000, 3)
    assert len(many) <= MOST
    assert (many[0], many[-1]) == (1, 100_000)


@pytest.mark.slow
@pytest.mark.usefixtures("unspent")
def test_the_accuracy_of_a_run_stands_with_that_of_its_baseline(run_folder, tmp_path):
    words = "always naming the most frequent class: "
    assert words in page(kinds.read_report(run_folder))
    folder = shutil.copytree(run_folder, tmp_path / "earlier")  # of an earlier version, which had none
    result = json.loads((folder / "result.json").read_text())
    del result["baseline"]
    (folder / "result.json").write_text(json.dumps(result))
    assert words not in page(kinds.read_report(folder))


@pytest.mark.slow
@pytest.mark.usefixtures("unspent")
def test_an_unfinished_run_says_how_far_it_is(run_folder, tmp_path):
    folder = shutil.copytree(run_folder, tmp_path / "half")
    (folder / "result.json").unlink()
    history = json.loads((folder / "metrics.json").read_text())[:2]
    (folder / "metrics.json").write_text(json.dumps(history))
    report = kinds.read_report(folder)
    made = page(report)
    assert "The run is at round 4 of 6" in made
    assert "covers all 6 rounds, done or not" in made
    assert "Time and traffic are known once the run is finished" in made
    assert "Epsilon by round is not known: not looked for" in made
    (folder / "metrics.json").unlink()
    assert "Nothing has been evaluated yet" in page(kinds.read_report(folder))


@pytest.mark.slow
def test_what_a_run_does_not_know_is_said_with_the_way_to_get_it(run_folder, tmp_path):
    content = json.loads((run_folder / "result.json").read_text())
    content["guarantee"] = no_privacy(10, "gradients are neither clipped nor noised").to_dict()
    kept = ("round", "test_accuracy", "test_loss")
    content["history"] = [
        {name: value if name in kept else None for name, value in row.items()}
        | {"clipped": 0.0, "noise_to_signal": 0.0}
        for row in content["history"]
    ]
    (tmp_path / "told.json").write_text(json.dumps(content))
    made = page(kinds.read_report(tmp_path / "told.json"))
    assert "--holdout 0.2" in made
    assert "--train-metrics true" in made
    assert "Nothing is promised" in made
    assert "Epsilon is infinite from the first round on" in made
    assert "figure-noise" not in made


def test_rows_of_a_sweep_are_those_of_its_points(sweep_folder):
    report = kinds.read_report(sweep_folder)
    records = [json.loads(line) for line in (sweep_folder / "points.jsonl").read_text().splitlines()]
    assert len(report.data["settings"]) == 12
    for row, setting in zip(report.data["settings"], settings_of(records, ["algorithm", "epsilon", "clip_norm"])):
        ended = [point["history"][-1]["test_accuracy"] for point in setting.points if point["status"] == "done"]
        assert row["value"] == pytest.approx(np.mean(ended), rel=1e-12)
        assert row["lost"] == 5 - len(ended)
    lost = {row["key"] for row in report.data["settings"] if row["lost"]}
    assert lost
    assert report.data["front"]
    assert not lost & {row["key"] for row in report.data["front"]}
    assert "loss must be finite" in page(report)


def test_the_front_holds_all_settings_that_no_other_beats():
    """Against the definition, setting by setting."""
    random = np.random.default_rng(1)
    for _ in range(200):
        size = int(random.integers(0, 12))
        rows = [
            {"key": key, "epsilon": float(random.integers(1, 5)), "good": float(random.integers(1, 5))}
            for key in range(size)
        ]
        rows += [{"key": size, "epsilon": None, "good": 9.0}, {"key": size + 1, "epsilon": 1.0, "good": None}]
        front = {(row["epsilon"], row["good"]) for row in tables.front(rows)}
        known = {(row["epsilon"], row["good"]) for row in rows[:size]}
        wanted = {(e, a) for e, a in known if not any(f <= e and b >= a and (f, b) != (e, a) for f, b in known)}
        assert front == wanted


def test_an_unfinished_sweep_says_how_far_it_is(sweep_folder):
    lines = (sweep_folder / "points.jsonl").read_text().splitlines()
    (sweep_folder / "points.jsonl").write_text("\n".join(lines[:23]) + '\n{"torn')
    report = kinds.read_report(sweep_folder)
    assert "23 of 60 points" in page(report)
    assert "not known before the sweep is complete" in page(report)
    (sweep_folder / "points.jsonl").unlink()
    assert "there is nothing to compare" in page(kinds.read_report(sweep_folder))


def test_an_audit_shows_its_bounds_against_the_promise(audit_file):
    content = json.loads(audit_file.read_text())
    report = kinds.read_report(audit_file)
    told = {row["what"]: row["epsilon"] for row in report.data["epsilons"]}
    assert told["promised"] == content["epsilon_stated"]
    assert told["proved (stated kind)"] == content["epsilon_lower"]
    assert told["proved (any kind)"] == content["epsilon_lower_of_any_mechanism"]
    seen, most = report.data["errors"]
    assert seen["false_positive"] == content["errors"]["false_positives"] / content["errors"]["negatives"]
    assert content["errors"]["mean"] is not None  # then the bounds on each rate are for display
    assert most["false_positive"] == most["false_negative"] == content["errors"]["mean"]
    assert "consistent" in page(report)


def test_a_violation_is_said_in_words(audit_file):
    content = json.loads(audit_file.read_text())
    content |= {"violated": True, "verdict": "VIOLATED: it is", "claim": 1.0, "epsilon_tested": 1.0}
    audit_file.write_text(json.dumps(content))
    made = page(kinds.read_report(audit_file))
    assert "<b>violated</b>" in made
    assert "<strong>Violated:</strong> It is." in made  # said once


def test_an_audit_in_one_run_has_no_error_rates(audit_file):
    content = json.loads(audit_file.read_text())
    for name in ("errors", "pilot_trials", "threshold"):
        del content[name]
    audit_file.write_text(json.dumps(content | {"correct": 7, "guesses": 9, "canaries": 100}))
    report = kinds.read_report(audit_file)
    assert "errors" not in report.data
    assert "7 of 9" in page(report)


def test_rows_of_a_reproduction_are_those_of_its_table(reproduction_folder):
    content = json.loads((reproduction_folder / "table.json").read_text())
    values = kinds.read_report(reproduction_folder).data["values"]
    for place, row in enumerate(content["rows"]):
        three = values[3 * place : 3 * place + 3]
        assert [one["value"] for one in three] == [row["published"], row["literal"]["mean"], row["correct"]["mean"]]
    assert kinds.read_report(reproduction_folder / "table.json").data["values"] == values


@pytest.mark.slow
def test_large_sweeps_and_long_runs_stay_below_five_megabytes(tmp_path, run_folder):
    axes = {"algorithm": ["dpnfl"], "epsilon": [float(one) for one in range(1, 101)]}
    folder = write_sweep(tmp_path / "large", axes, clip_norms=range(1, 11), lost=())
    report = kinds.read_report(folder)
    assert len(report.data["settings"]) == 1000
    assert len(page(report)) < 5e6
    content = json.loads((run_folder / "result.json").read_text())
    row = content["history"][-1]
    content["history"] = [row | {"round": at} for at in range(1, 20_001)]
    (tmp_path / "long.json").write_text(json.dumps(content))
    report = kinds.read_report(tmp_path / "long.json")
    rounds = [one["round"] for one in report.data["history"]]
    assert (len(rounds), rounds[0], rounds[-1]) == (500, 1, 20_000)
    made = page(report)
    assert "The figures show 500 of 20,000 evaluations" in made
    assert len(made) < 5e6


@pytest.mark.slow
def test_a_run_of_python_values_has_a_report(tmp_path):
    algorithm = fdp.fedavg(cohort_size=2, local_steps=1, batch_size=5, learning_rate=0.1)
    fdp.run(algorithm, ragged_data((5, 6)), rounds=1, out=tmp_path / "values")
    assert "Nothing is promised" in page(kinds.read_report(tmp_path / "values"))


@pytest.mark.slow
@pytest.mark.usefixtures("unspent")
def test_a_page_needs_nothing_else(run_folder, sweep_folder, audit_file, reproduction_folder):
    for path in (run_folder, sweep_folder, audit_file, reproduction_folder):
        made = page(kinds.read_report(path))
        assert made.isascii()
        assert len(made) < 5e6
        assert "connect-src 'none'" in made
        assert "unsafe-eval" not in made
        assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", made)
        assert "@import" not in made
        assert "url(" not in re.search(r"<style>(.*?)</style>", made, re.S)[1]
        assert page(kinds.read_report(path)) == made


@pytest.mark.slow
def test_names_of_users_stay_text(tmp_path, audit_file, reproduction_folder, run_folder):
    """In HTML, and in JSON."""
    hostile = write_sweep(tmp_path / "hostile", {HOSTILE: [HOSTILE, "other"], "epsilon": [1.0]})
    content = json.loads(audit_file.read_text())
    content |= {"verdict": HOSTILE, "repeat": HOSTILE, "config": {"algorithm": HOSTILE, "dataset": HOSTILE}}
    content["guarantee"]["claims"][0] |= {"source": HOSTILE, "epsilon": 1.0, "reason": HOSTILE}
    audit_file.write_text(json.dumps(content))
    table = json.loads((reproduction_folder / "table.json").read_text())
    table |= {"title": HOSTILE, "recipe": HOSTILE, "notes": [HOSTILE]}
    table["rows"][0] |= {"panel": HOSTILE, "line": HOSTILE, "metric": HOSTILE}
    (reproduction_folder / "table.json").write_text(json.dumps(table))
    result = json.loads((run_folder / "result.json").read_text())
    result["config"] |= {"dataset": HOSTILE, HOSTILE: HOSTILE}
    (tmp_path / "run.json").write_text(json.dumps(result))
    for path in (hostile, audit_file, reproduction_folder, tmp_path / "run.json"):
        report = kinds.read_report(path)
        made = page(report)
        assert "<img src=x" not in made
        assert made.count("</script") == made.count("<script") == 3
        assert "\u2028" not in made
        assert embedded(made) == json.loads(json.dumps(payload(report)))
    (tmp_path / "lone.json").write_text(json.dumps(result | {"config": {**result["config"], "dataset": "\ud800"}}))
    assert page(kinds.read_report(tmp_path / "lone.json")).isascii()


@pytest.mark.slow
def test_a_report_goes_beside_what_it_is_about(run_folder, audit_file, tmp_path, capsys):
    folder = shutil.copytree(run_folder, tmp_path / "v1.5")
    assert fdp.reports.report(audit_file) == tmp_path / "audit.html"
    assert cli.main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'v1.5.html'}\n"
    assert cli.main(["report", str(audit_file), "-o", "mine.html"]) == 0
    assert (tmp_path / "mine.html").read_bytes() == (tmp_path / "audit.html").read_bytes()


def test_wrong_paths_are_refused_in_one_line(tmp_path, audit_file, capsys):
    whole = audit_file.read_text()
    odd = ({"guarantee": {}}, {"errors": 3}, {"epsilon_lower": "x"}, {"trials": None}, {"confidence": []})
    contents = {
        '{"a": ': "readable JSON",
        "[" * 100_000: "readable JSON",
        "\udcff\0": "readable JSON",  # no UTF-8
        whole.replace('"epsilon_lower": 2.4', '"epsilon_lower": NaN, "x": 2.4'): "readable JSON",  # which has no NaN
        "[1]": "the JSON of",
        **{json.dumps(json.loads(whole) | wrong): "as fedjax-dp wrote it" for wrong in odd},
    }
    for content, words in contents.items():
        (tmp_path / "wrong.json").write_text(content, errors="surrogateescape")
        assert words in refused(capsys, "wrong.json")
    (tmp_path / "there.html").write_text("mine")
    (tmp_path / "dangling.html").symlink_to(tmp_path / "gone.html")
    for words, line in (
        ((), "followed by"),
        (("nothing",), "that exists"),
        ((tmp_path,), "the folder of"),
        ((audit_file, "--out", "there.html"), "a new file"),
        ((audit_file, "-o", "dangling.html"), "a new file"),
        ((audit_file, "-o", "there.pdf"), "ends in .html"),
        ((audit_file, "-o", "none/such.html"), "a folder that exists"),
        ((audit_file, "-o"), "followed by a value"),
        ((audit_file, "more"), "takes no other without a flag"),
    ):
        assert line in refused(capsys, *words)
    assert (tmp_path / "there.html").read_text() == "mine"
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["audit.json", "dangling.html", "there.html", "wrong.json"]
