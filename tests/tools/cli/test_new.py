"""Files to begin with: they say what holds anyway, and nothing is overwritten."""

import pathlib
import re

import pytest

from fedjax_dp.experiments.config import RunSpec, read
from fedjax_dp.sweeps.plan import expand, read_sweep
from fedjax_dp.tools import cli
from fedjax_dp.tools.cli import new


def uncommented(text):
    return re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("change", [lambda text: text, uncommented])
@pytest.mark.parametrize(("algorithm", "dataset"), [("dpnfl", "digits"), ("dp_fedavg", "mnist"), ("fedavg", "adult")])
def test_a_new_run_is_the_run_that_one_has_without_a_file(tmp_path, change, algorithm, dataset):
    (tmp_path / "run.toml").write_text(change(new.run_text(algorithm, dataset)))
    assert RunSpec.of(read(tmp_path / "run.toml")) == RunSpec.of({"algorithm": algorithm, "dataset": dataset})


def test_a_new_sweep_has_its_axes_and_seeds(tmp_path):
    (tmp_path / "sweep.toml").write_text(new.sweep_text("dpnfl", "digits"))
    points = expand(read_sweep(tmp_path / "sweep.toml"))
    assert len(points) == 3 * 4 * 3


def test_a_new_run_of_tables_shows_how_columns_are_meant(tmp_path):
    (tmp_path / "run.toml").write_text(uncommented(new.csv_text("dpnfl", "csv:hospital_*.csv")))
    values = read(tmp_path / "run.toml")
    assert {name: values[name] for name in new.TABLES} == new.TABLES
    assert RunSpec.of(values).data.partition == "natural"


def test_what_is_written_is_said_and_nothing_is_overwritten(capsys):
    assert cli.main(["new", "run"]) == 0
    assert capsys.readouterr().out == "wrote run.toml\nnext  fedjax-dp run run.toml\n"
    before = pathlib.Path("run.toml").read_text()
    for words, message in (
        (["new", "run"], "file must be a new file, got run.toml"),
        (["new", "csv"], "file must be a new file, got run.toml"),
        (["new"], "followed by run, sweep or csv"),
        (["new", "swep"], "did you mean sweep?"),
        (["new", "run", "run.toml/x"], "the folder of the file must be a folder that can be written, got run.toml"),
        (["new", "run", "a.toml", "--algorithm", "dpnlf"], "did you mean dpnfl"),
    ):
        assert cli.main(words) == 2, words
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
    assert pathlib.Path("run.toml").read_text() == before
    assert [path.name for path in pathlib.Path().iterdir()] == ["run.toml"]
