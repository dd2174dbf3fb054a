"""The README tells the truth: its example runs, its commands are the ones CI runs, its number is a measured one."""

import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def test_first_screen_shows_sentence_picture_example_and_number():
    first = README.split("\n## ")[0]
    assert re.search(r"!\[.*\]\(benchmarks/results/\S+\.png\)", first)
    assert "```python" in first
    picture = re.search(r"\((benchmarks/results/\S+\.png)\)", first)
    assert picture
    assert (ROOT / picture.group(1)).is_file()


def test_example_runs_in_under_12_lines(capsys):
    (example,) = blocks("python")
    assert len([line for line in example.splitlines() if line.strip()]) < 12
    exec(compile(example, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert "epsilon" in out
    assert float(re.search(r"accuracy (\d\.\d+)", out).group(1)) > 0.6


def test_set_up_is_exactly_two_commands():
    commands = re.findall(r"^pip install .*&& .*$", README, re.M)
    assert commands == ["pip install . && fedjax-dp run", 'pip install ".[test]" && pytest']


def test_measured_numbers_equal_the_committed_results():
    measured = json.loads((ROOT / "benchmarks" / "results" / "round_latency_w1.json").read_text())
    assert f"**{measured['ratio_plain_jax']:.1f} times**" in README
    assert f"(ratio {measured['clipping_cost']:.2f})" in README
    assert measured["gradient_gap"] < 1e-5
    assert not measured["disturbed"]


def test_picture_of_the_run_is_the_committed_run():
    told = json.loads((ROOT / "benchmarks" / "results" / "mnist_dpnfl.json").read_text())
    assert f"{100 * told['test_accuracy']:.1f}%" in README
    assert told["guarantee"]["epsilon"] == pytest.approx(0.3, rel=1e-3)
