"""Commands take the folder of a run or a sweep, the last one where none is named, and write over their own files."""

import json
import os
import pathlib
import shutil

import pytest

from fedjax_dp.experiments.run_folder import RUN_FOLDER
from fedjax_dp.tools import cli
from fedjax_dp.tools.cli.audit import AuditOptions
from fedjax_dp.tools.cli.latest import RUNS, SWEEPS, latest
from fedjax_dp.tools.cli.run_options import parse_configuration


@pytest.fixture
def own_runs(tmp_path, run_folder):
    shutil.copytree(run_folder, tmp_path / "runs" / "mine", ignore=shutil.ignore_patterns("checkpoints"))
    return tmp_path


def _folder(path, name, at):
    path.mkdir(parents=True)
    (path / name).write_text("{}")
    os.utime(path / name, (at, at))
    return path


def test_the_last_is_the_one_begun_last(tmp_path, capsys):
    assert latest(RUNS) is None
    _folder(tmp_path / "runs" / "z", "run.json", 1)
    _folder(tmp_path / "runs" / "a", "run.json", 2)
    _folder(tmp_path / "sweeps" / "s", "sweep.json", 3)
    (tmp_path / "runs" / "none").mkdir()
    assert str(latest(RUNS)) == "runs/a"
    assert "the last one: runs/a" in capsys.readouterr().err
    assert str(latest(RUNS, SWEEPS)) == "sweeps/s"


@pytest.mark.slow
def test_a_report_replaces_itself_and_nothing_else(own_runs, capsys):
    for _ in range(2):
        capsys.readouterr()
        assert cli.main(["report"]) == 0
        assert capsys.readouterr().out == "runs/mine.html\n"
    (own_runs / "runs" / "mine.html").write_text("<!doctype html> of somebody else")
    assert cli.main(["report"]) == 2
    assert "an earlier report" in capsys.readouterr().err
    assert "somebody else" in (own_runs / "runs" / "mine.html").read_text()


@pytest.mark.slow
def test_plot_draws_a_run(own_runs, capsys):
    (own_runs / "runs" / "mine" / "run.png").unlink()
    assert cli.main(["plot"]) == 0
    assert (own_runs / "runs" / "mine" / "run.png").stat().st_size > 10_000
    assert cli.main(["plot", "runs/mine", "--kind", "heat"]) == 2
    assert "left out for a run" in capsys.readouterr().err


def test_compare_without_a_sweep_is_refused_in_one_line(own_runs, capsys):
    assert cli.main(["compare"]) == 2
    assert "none here to take the last of" in capsys.readouterr().err


def test_an_audit_of_a_run_takes_its_configuration(own_runs):
    config = json.loads((own_runs / "runs" / "mine" / "run.json").read_text())["config"]
    overrides, options, _, path = parse_configuration("audit", ["runs/mine", "--trials", "50"], "", AuditOptions)
    assert options.trials == 50
    assert path == pathlib.Path("runs/mine")
    assert overrides["rounds"] == config["rounds"] == 6
    assert overrides["algorithm"] == config["algorithm"]
    assert "devices" not in overrides  # how it was carried out is no part of it


def test_an_audit_of_a_run_is_refused_on_other_data(own_runs, capsys):
    path = own_runs / "runs" / "mine" / "run.json"
    about = json.loads(path.read_text())
    about["checksums"]["data"] = "of other records"
    path.write_text(json.dumps(about | {"seal": RUN_FOLDER.seal(about)}))
    assert cli.main(["audit", "runs/mine", "--trials", "200"]) == 2
    error = capsys.readouterr().err
    assert "data of the run must be unchanged, checksum of other records, got " in error
    assert error.count("\n") == 1
