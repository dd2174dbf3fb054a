"""The README tells the truth: its example runs, its commands are the ones CI runs, its number is a measured one."""

import argparse
import csv
import dataclasses
import doctest
import importlib.util
import json
import pathlib
import re
import statistics

import pytest

import fedjax_dp as fdp
from fedjax_dp.accounting import claim_rows
from fedjax_dp.sweeps.plan import expand, read_sweep

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
    example, own = blocks("python")
    assert len([line for line in example.splitlines() if line.strip()]) < 12
    names = {}
    exec(compile(example, "README.md", "exec"), names)
    out = capsys.readouterr().out
    exec(compile(own, "README.md", "exec"), names)
    assert "factored" in capsys.readouterr().out
    fdp.simulate(names["algorithm"], names["data"], rounds=1, model=names["model"])
    assert "epsilon" in out
    assert float(re.search(r"accuracy (\d\.\d+)", out).group(1)) > 0.6


def test_a_part_of_ones_own_is_priced_and_named():
    (part,) = [block for block in blocks("py") if "class MyNoise" in block]
    names = {}
    exec(compile(part, "README.md", "exec"), names)
    dataset = fdp.load("digits")
    data = fdp.federate(dataset, fdp.data.iid(dataset.y_train, fdp.data.equal_sizes(1000, 10), seed=0))
    ours = fdp.dpnfl(cohort_size=5, batch_size=10, local_steps=2, learning_rate=0.1, clip_norm=1.0, noise_multiplier=2)
    theirs = dataclasses.replace(ours, local=dataclasses.replace(ours.local, privatizer=names["private"]))
    one, other = (fdp.guarantee(a, data, rounds=3, delta=1e-5) for a in (ours, theirs))
    assert one.epsilon == other.epsilon
    assert any(line.startswith("on the word of MyNoise (noise source): ") for line in other.assumptions)


def test_set_up_is_exactly_two_commands():
    commands = re.findall(r"^pip install .*&& .*$", README, re.M)
    assert commands == ["pip install . && fedjax-dp run", 'pip install ".[test]" && pytest']


def test_picture_of_the_run_is_the_committed_run():
    told = json.loads((ROOT / "benchmarks" / "results" / "mnist_dpnfl.json").read_text())
    assert f"{100 * told['test_accuracy']:.1f}%" in README
    assert told["guarantee"]["epsilon"] == pytest.approx(0.3, rel=1e-3)


def test_cost_of_clipping_a_transformer_is_the_measured_one():
    told = json.loads((ROOT / "benchmarks" / "results" / "transformer.json").read_text())
    assert f"[{told['clipping_cost']:.2f} times](benchmarks/results/transformer.json)" in README
    assert told["gradient_gap"] < 1e-4


@pytest.mark.parametrize("similarity", [0, 10])
def test_accuracy_of_the_cnn_is_the_recorded_one(similarity):
    told = json.loads((ROOT / "benchmarks" / "results" / f"mnist_cnn_{similarity}.json").read_text())
    assert f"{100 * told['test_accuracy']:.1f}% at" in README
    assert f"{told['rounds']} rounds" in README.replace("\n", " ")
    assert told["rounds_to_within_one_point"] is not None


def test_the_sweep_that_is_shown_can_be_read(tmp_path):
    (text,) = blocks("toml")
    (tmp_path / "sweep.toml").write_text(text)
    assert len(expand(read_sweep(tmp_path / "sweep.toml"))) == 3 * 4 * 3 * 3 * 5


def test_numbers_of_the_sweep_are_the_measured_ones():
    told = json.loads((ROOT / "benchmarks" / "results" / "sweep.json").read_text())
    text = README.replace("\n", " ")
    for shown in (
        f"take **{told['sweep_s']:.0f} s** on two",
        f"takes **{told['ratio_processes']:.0f} times** as long",
        f"take {told['ratio_one_by_one']:.2f} times as long as the sweep",
        f"adds {100 * told['overhead']:.1f}%",
    ):
        assert shown in re.sub(r" +", " ", text)
    assert told["points"] == 64
    assert told["gradient_gap"] < 1e-4
    assert not told["disturbed"]


def test_accuracies_of_the_sweep_are_those_of_the_notebook():
    with (ROOT / "benchmarks" / "results" / "sweep_mnist.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if float(row["epsilon"]) == 0.3]
    best = {
        name: max(100 * float(row["test_accuracy_mean"]) for row in rows if row["algorithm"] == name)
        for name in ("dpnfl", "addpnfl")
    }
    assert f"DPNFL reaches {best['dpnfl']:.1f}% at epsilon 0.3, AdDPNFL {best['addpnfl']:.1f}%" in README.replace(
        "\n", " "
    )


SHOWN = [
    ("dpnfl", "Lemmas 2-4 (tCDP)", "MNIST, T=50"),
    ("dpnfl", "Theorem 5", "MNIST, T=50"),
    ("rfedavg", "no theorem", "any"),
    ("cpfed", "Theorem 1, no secure aggregation", "T=20, tau=10, B=50"),
    ("cpfed", "Theorem 1, secure aggregation", "T=20, tau=10, B=m, K=T"),
    ("acs_pldp", "Theorem 1 with constant 1", "EMNIST, T*=26, epsilon 32"),
    ("dp_fedavg_output", "Theorem 1 (one round)", "MNIST, epsilon 5"),
    ("dp-fedavg", "moments accountant on fixed-size batches", "q=0.01, T=1000"),
]


def row_of_claim(row):
    provable = "infinite" if row["provable_is_infinite"] else row["provable_epsilon"]
    cells = [row["claimed_epsilon"], provable, row["noise_ratio"]]
    told = ["-" if cell is None else cell if isinstance(cell, str) else f"{cell:.3g}" for cell in cells]
    return f"| {row['paper']} | {row['claim']}: {row['setting']} | {row['verdict']} | {' | '.join(told)} |"


def test_table_of_claims_is_the_committed_one_and_the_committed_one_is_todays():
    committed = json.loads((ROOT / "benchmarks" / "results" / "claims.json").read_text())["claims"]
    by_name = {(row["paper"], row["claim"], row["setting"]): row for row in committed}
    for name in SHOWN:
        assert row_of_claim(by_name[name]) in README
    today = {(row.paper, row.claim.source, row.setting): row.to_dict() for row in claim_rows()}
    assert set(today) == set(by_name)
    for name, row in today.items():
        assert row["verdict"] == by_name[name]["verdict"]
        assert (row["noise_ratio"] or 0.0) == pytest.approx(by_name[name]["noise_ratio"] or 0.0, rel=1e-3)


def test_accounting_examples_print_what_they_say():
    (example,) = blocks("pycon")
    runner = doctest.DocTestRunner()
    runner.run(doctest.DocTestParser().get_doctest(example, {}, "README", "README.md", 0))
    assert (runner.failures, runner.tries) == (0, 4)


def test_accounting_ratios_are_the_measured_ones():
    measured = json.loads((ROOT / "benchmarks" / "results" / "accounting.json").read_text())
    assert f"**{measured['ratio_pld']['1e4 steps']:.0f} times**" in README
    assert f"**{measured['ratio_pld']['1e6 steps']:.1f} times**" in README


def test_secure_sums_take_the_measured_time():
    measured = json.loads((ROOT / "benchmarks" / "results" / "secure_aggregation.json").read_text())
    assert (measured["members"], measured["size"]) == (100, 1_663_370)
    seconds = measured["seconds"]
    assert f"**{seconds['secure_20_neighbours']:.1f} s**" in README
    assert f"{seconds['secure_complete']:.1f} s when each does with all" in README


def test_audited_recipes_are_the_recorded_ones():
    told = json.loads((ROOT / "benchmarks" / "results" / "errata.json").read_text())
    rows = re.findall(r"^\| (\w+): (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", README, re.M)
    assert [list(row) for row in rows] == [
        [
            row["paper"],
            row["literal"],
            f"{row['claim']:g}",
            f"{row['proved']:.3g}" + ", VIOLATED" * row["violated"],
            "none" if row["upper"] is None else f"{row['upper']:.3g}",
        ]
        for row in told["rows"]
    ]
    assert (ROOT / "benchmarks" / "results" / "errata.png").is_file()


def test_what_an_audit_costs_and_proves_is_the_measured():
    told = json.loads((ROOT / "benchmarks" / "results" / "audit.json").read_text())
    four = {row["trials"]: row for row in told["rows"] if row["epsilon"] == 4}
    few, many = four[10_000], four[100_000]
    assert f"**{statistics.median(few['seconds']):.0f} s**" in README
    assert f"prove {few['ratio_median']:.2f} of epsilon 4" in README.replace("\n", " ").replace("  ", " ")
    assert f"prove {many['ratio_median']:.2f}" in README
    assert few["ratio_median"] > 0.85
    assert many["ratio_median"] > 0.93


def test_numbers_of_the_reproduction_are_the_committed_ones():
    """What was published, what its literal recipe gives and proves, the correct reading, and what was chosen."""
    told = json.loads((ROOT / "benchmarks" / "results" / "papers" / "best-mnist-0.3" / "table.json").read_text())
    rows = {row["line"]: row for row in told["rows"]}
    theirs, ours = rows["addpnfl"], rows["best"]
    text = README.replace("\n", " ")
    assert f"Published for AdDPNFL: {theirs['published']:g}%" in text
    literal = theirs["literal"]
    assert f"gives **{literal['mean']:.1f}%** and proves epsilon {literal['epsilon']:.3f};" in text
    assert f"gives **{theirs['correct']['mean']:.1f}%**" in text
    assert f"momentum give **{ours['correct']['mean']:.1f}%**" in text
    assert len(told["seeds"]) == 5
    assert ours["correct"]["epsilon"] <= 0.3
    assert ours["correct"]["mean"] > theirs["published"]


def test_the_literal_round_of_dp_fedavg_output_has_the_epsilon_that_is_told():
    told = json.loads((ROOT / "benchmarks" / "results" / "papers" / "dp_fedavg_output-fig3" / "table.json").read_text())
    assert min(row["literal"]["round_epsilon"] for row in told["rows"]) > 10_000


def test_the_minutes_of_full_reproductions_are_the_measured_ones():
    told = json.loads((ROOT / "benchmarks" / "results" / "papers" / "index.json").read_text())
    minutes = [round(told[name]["seconds"] / 60) for name in ("dpnfl-table2-full-syn", "dpnfl-fig6-full-mnist")]
    text = README.replace("\n", " ")
    assert f"takes {minutes[0]} minutes" in text
    assert f"readings) {minutes[1]}." in text
    assert max(minutes) < 30
    assert max(found["peak_memory_mb"] for found in told.values()) < 8000


def test_the_readme_says_how_devices_and_stores_do():
    text = " ".join(README.split())
    rows = json.loads((ROOT / "benchmarks" / "results" / "weak_scaling.json").read_text())["rows"]
    two = {row["order"]: row["efficiency"] for row in rows if row["devices"] == 2}
    assert f"on two cores runs at **{two['any_order']:.0%}** of twice the rate of one" in text
    assert f"each other, at **{two['apart']:.0%}**" in text
    told = json.loads((ROOT / "benchmarks" / "results" / "million.json").read_text())
    assert not told["disk"]["disturbed"]
    assert not told["memory"]["disturbed"]
    assert (told["disk"]["clients"], told["memory"]["clients"]) == (1_000_000, 1000)
    assert f"start in **{told['disk']['first_round_s']:.1f} s**" in text
    assert f"take **{told['time_over_memory']:.2f} times** as long a round" in text
    assert f"and **{told['disk']['peak_mb'] / 1000:.1f} GB**" in text


def test_the_plan_on_paper_follows_from_what_was_measured():
    spec = importlib.util.spec_from_file_location("plan", ROOT / "benchmarks" / "plan.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    told = json.loads((ROOT / "benchmarks" / "results" / "plan.json").read_text())
    assert (told["asked"]["clients"], told["asked"]["cohort"]) == (1e9, 1e5)
    assert (told["asked"]["parameters"], told["asked"]["devices"]) == (1e7, 256)
    asked = argparse.Namespace(**told["asked"])
    rows = module.plan(asked, told["measured"])
    assert [[row[name] for name in ("what", "formula", "number", "unit")] for row in told["rows"]] == [*map(list, rows)]
    text = (ROOT / "benchmarks" / "results" / "plan.md").read_text()
    assert all(f"| {what} | {formula} | {module.told(number, unit)} |" in text for what, formula, number, unit in rows)
    dearer = module.plan(asked, told["measured"] | {"reached": told["measured"]["reached"] / 2})
    assert dearer[-1][2] > 1.9 * rows[-1][2]
