"""The README tells the truth: its example runs, its commands are the ones CI runs, its number is a measured one."""

import json
import pathlib
import re

import pytest
from test_docs import blocks

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_first_screen_shows_sentence_picture_example_and_number():
    first = README.split("\n## ")[0]
    assert re.search(r"!\[.*\]\(benchmarks/results/\S+\.png\)", first)
    assert "```python" in first
    picture = re.search(r"\((benchmarks/results/\S+\.png)\)", first)
    assert picture
    assert (ROOT / picture.group(1)).is_file()


def test_example_runs_in_under_12_lines(capsys):
    (example,) = blocks(README, "python")
    assert len([line for line in example.splitlines() if line.strip()]) < 12
    names = {}
    exec(compile(example, "README.md", "exec"), names)
    out = capsys.readouterr().out
    (shown,) = blocks(README, "text")
    assert out.split("; ", 1)[1].split() == shown.split("; ", 1)[1].split()
    assert float(re.search(r"accuracy (\d\.\d+)", out).group(1)) > 0.6


def test_it_is_short():
    assert len(README.splitlines()) <= 110


def test_set_up_is_exactly_two_commands():
    commands = re.findall(r"^pip install .*&& .*$", README, re.M)
    assert commands == ["pip install . && fedjax-dp run", 'pip install ".[test]" && pytest']


def test_pythons_and_jaxes_that_it_names_are_those_that_are_tested():
    named = dict(re.findall(r"JAX (\d\.\d+)\s+on\s+Python\s+(\d\.\d+)", README))
    project = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r"Python :: (\d\.\d+)", project) == list(named.values())
    lowest, above = re.search(r'"jax>=(\d\.\d+),<(\d\.\d+)"', project).groups()
    assert [*named] == [lowest, f"0.{int(above.partition('.')[2]) - 1}"]
    run = (ROOT / ".ci" / "run").read_text()
    assert re.findall(r"^(?:lowest|newest)=(.*)$", run, re.M) == list(named.values())
    assert f"'jax=={lowest}.*' 'jaxlib=={lowest}.*'" in run


def test_picture_of_the_run_is_the_committed_run():
    run = json.loads((ROOT / "benchmarks" / "results" / "mnist_dpnfl.json").read_text())
    assert f"{100 * run['test_accuracy']:.1f}%" in README
    assert run["guarantee"]["epsilon"] == pytest.approx(0.3, rel=1e-3)
    assert run["guarantee"]["delta"] == 0.01
    rows = json.loads((ROOT / "benchmarks" / "results" / "papers" / "best-mnist-0.3" / "table.json").read_text())[
        "rows"
    ]
    (literal,) = (row["literal"] for row in rows if row["line"] == "dpnfl")
    assert f"they reach {literal['mean']:.0f}%, the mean of five seeds" in " ".join(README.split())
