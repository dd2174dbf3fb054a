"""What pages tell of measurements was measured on quiet machines, by programs that checked themselves."""

import argparse
import csv
import json
import math
import pathlib
import sys

import numpy as np
import pytest
from helpers import benchmark

import fedjax_dp as fdp

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SCRATCH = "everything, from scratch"
OWN_WAYS = ("own lambda", "best common lambda")


def told(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


@pytest.mark.parametrize("name", ["transformer", "sweep"])
def test_gradients_agreed_while_they_were_timed(name):
    assert told(name)["gradient_gap"] < 1e-4


def test_the_sweep_was_of_64_points_on_a_quiet_machine():
    assert told("sweep")["points"] == 64
    assert not told("sweep")["disturbed"]


def test_a_million_clients_were_run_on_a_quiet_machine():
    million = told("million")
    assert not million["disk"]["disturbed"]
    assert not million["memory"]["disturbed"]
    assert (million["disk"]["clients"], million["memory"]["clients"]) == (1_000_000, 1000)


def test_secure_sums_were_of_the_model_that_pages_name():
    assert (told("secure_aggregation")["members"], told("secure_aggregation")["size"]) == (100, 1_663_370)


@pytest.mark.parametrize("similarity", [0, 10])
def test_the_cnn_reached_what_it_was_trained_for(similarity):
    assert told(f"mnist_cnn_{similarity}")["rounds_to_within_one_point"] is not None


def test_audits_prove_most_of_what_is_stated():
    four = {row["trials"]: row for row in told("audit")["rows"] if row["epsilon"] == 4}
    assert four[10_000]["ratio_median"] > 0.85
    assert four[100_000]["ratio_median"] > 0.93


def test_the_best_of_the_sweep_that_is_drawn_is_private_and_useful():
    with (RESULTS / "sweep_mnist.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if float(row["epsilon"]) == 0.3]
    best = max(float(row["test_accuracy_mean"]) for row in rows if row["algorithm"] == "dpnfl")
    assert best > 0.75


def test_the_reproduction_that_is_shown_beats_the_paper_at_its_budget():
    table = told("papers/best-mnist-0.3/table")
    rows = {row["line"]: row for row in table["rows"]}
    assert len(table["seeds"]) == 5
    assert rows["best"]["correct"]["epsilon"] <= 0.3
    assert rows["best"]["correct"]["mean"] > rows["addpnfl"]["published"]


def test_the_literal_round_of_dp_fedavg_output_has_no_budget_left():
    rows = told("papers/dp_fedavg_output-fig3/table")["rows"]
    assert min(row["literal"]["round_epsilon"] for row in rows) > 10_000


def test_a_public_start_is_worth_more_than_a_budget():
    rows = {(row["way"], row["epsilon"]): row for row in told("adaptation")["rows"]}
    assert all(row["proved"] <= row["epsilon"] * (1 + 1e-9) for row in rows.values())
    scratch, adapted = (rows[way, at]["mean"] for way, at in ((SCRATCH, 8.0), ("head and low-rank terms", 1.0)))
    assert adapted > scratch


def test_private_runs_of_every_task_learn_something_and_less_than_plain_ones():
    for case in told("real_tasks")["cases"]:
        private = [row for row in case["rows"] if row["epsilon"] is not None]
        (plain,) = (row for row in case["rows"] if row["epsilon"] is None)
        assert all(row["proved"] <= row["epsilon"] * (1 + 1e-9) for row in private)
        assert plain["mean"] < private[-1]["mean"] < case["guess"]


def test_published_errors_of_schools_are_met_by_noise_that_gives_another_epsilon():
    rows = {row["line"]: row for row in told("papers/mr_mtl-fig3-full/table")["rows"]}
    assert len(rows) == 3
    for row in rows.values():
        assert abs(row["literal"]["mean"] - row["published"]) < 0.001
        assert row["literal"]["epsilon"] > 40
        assert row["correct"]["epsilon"] <= 6
        assert row["correct"]["seeds"] == 5
    literal, correct = ({line: row[name]["mean"] for line, row in rows.items()} for name in ("literal", "correct"))
    assert min(literal, key=literal.get) == "mr_mtl"
    assert min(correct, key=correct.get) == "fedavg"


def test_mean_estimation_agrees_with_its_closed_form():
    mean_estimation, found = benchmark("mean_estimation"), told("mean_estimation")
    setting, own = found["setting"], found["own"]
    assert (setting["clients"], setting["records"], setting["runs"]) == (20, 200, 20_000)
    assert len({(row["epsilon"], row["spread"]) for row in found["rows"]}) == 9
    for row in found["rows"] + own["rows"]:
        off = (row["mean"] - row["closed_form"]) / row["standard_error"]
        assert off == pytest.approx(row["off"])
        assert abs(off) < 4.9
        assert row["standard_error"] < 0.02 * row["mean"]
    for row in found["rows"]:
        noise = mean_estimation.noise_for(row["epsilon"], setting["delta"])
        variance = mean_estimation.release_variance(200, setting["sigma"], setting["clip_norm"], noise)
        strength = row.get("strength", {"local": 0.0, "fedavg": math.inf}.get(row["way"]))
        expected = mean_estimation.errors_at(strength, np.full(20, variance), row["spread"])[0]
        assert row["closed_form"] == pytest.approx(expected)


def test_the_best_pull_of_mean_estimation_beats_both_ends():
    rows = told("mean_estimation")["rows"]
    gains = {}
    for one in (row for row in rows if row.get("best")):
        same = [row for row in rows if (row["epsilon"], row["spread"]) == (one["epsilon"], one["spread"])]
        ends = {row["way"]: row["mean"] for row in same if row["way"] != "mr_mtl"}
        assert one["mean"] == min(row["mean"] for row in same if row["way"] == "mr_mtl")
        gains[one["epsilon"], one["spread"]] = min(ends.values()) / one["mean"]
    assert min(gains.values()) > 0.99  # where nothing is to be gained, within errors of the runs
    assert 1.8 < max(gains.values()) == gains[4.0, 0.03] < 40 / 21 + 0.05  # 2K / (K + 1) is the most
    own = {
        way: [row["mean"] for row in told("mean_estimation")["own"]["rows"] if row["way"] == way] for way in OWN_WAYS
    }
    assert all(a < b for a, b in zip(own["own lambda"], own["best common lambda"], strict=True))


def test_clients_own_models_beat_local_training_and_fedavg_where_these_meet():
    found = told("personalisation")
    rows = {(row["case"], row["way"], row["epsilon"]): row for row in found["rows"]}
    for row in rows.values():
        assert all(row["proved"][view] <= row["epsilon"] * (1 + 1e-6) for view in row["views"])
    pays = {way: rows["quarter turns", way, 2.0]["noise_multiplier"] for way in ("local", "FedAvg", "MR-MTL", "Ditto")}
    assert pays["local"] == pays["FedAvg"] == pays["MR-MTL"]
    assert pays["Ditto"] == pytest.approx(math.sqrt(2) * pays["MR-MTL"], rel=1e-3)
    for case, above in (("quarter turns", (2.0, 4.0)), ("angles within 60 degrees", (4.0, 8.0))):
        seeds = {(way, epsilon): row["means"] for (of, way, epsilon), row in rows.items() if of == case}
        assert all(min(seeds["FedAvg", epsilon]) > max(seeds["local", epsilon]) for epsilon in (0.5, 1.0))
        assert min(seeds["local", 8.0]) > max(seeds["FedAvg", 8.0])
        for epsilon in above:
            better = np.maximum(seeds["local", epsilon], seeds["FedAvg", epsilon])
            assert np.all(np.array(seeds["MR-MTL", epsilon]) > better)
        for epsilon in (0.5, 1.0):
            assert max(seeds["MR-MTL", epsilon]) < max(seeds["FedAvg", epsilon])
        for epsilon in (0.5, 1.0, 2.0):
            trusted = min(seeds["FedAvg, server trusted", epsilon])
            assert all(
                trusted > max(means) for (way, at), means in seeds.items() if at == epsilon and "server" not in way
            )
    assert rows["quarter turns", "MR-MTL", 4.0]["no_worse"] > 0.6
    assert rows["quarter turns", "MR-MTL", 4.0]["regret"] < 0


def test_rounds_of_own_models_cost_little_more_than_their_parts():
    found = told("personal_latency")
    assert not found["disturbed"]
    assert {title.split()[0] for title in found["over_its_parts"]} == set(fdp.algorithms.PERSONAL)
    assert max(found["over_its_parts"].values()) <= 1.15


def test_full_reproductions_fit_a_small_machine():
    index = told("papers/index")
    minutes = [index[name]["seconds"] / 60 for name in ("dpnfl-table2-full-syn", "dpnfl-fig6-full-mnist")]
    assert max(minutes) < 30
    assert max(found["peak_memory_mb"] for found in index.values()) < 8000


def test_every_number_that_pages_tell_is_there():
    pytest.importorskip("sphinx", reason="the site needs Sphinx")
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    try:
        import written
    finally:
        sys.path.pop(0)
    found = written.measured()
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "gallery" not in path.parts]
    for page in pages:
        for name in _substitutions(page.read_text()):
            assert name in found, f"{page.name}: {name}"


def _substitutions(text):
    return [part.split("}}")[0].strip() for part in text.split("{{")[1:]]


def test_the_plan_on_paper_follows_from_what_was_measured():
    module = benchmark("plan")
    told = json.loads((ROOT / "benchmarks" / "results" / "plan.json").read_text())
    assert (told["asked"]["clients"], told["asked"]["cohort"]) == (1e9, 1e5)
    assert (told["asked"]["parameters"], told["asked"]["devices"]) == (1e7, 256)
    asked = argparse.Namespace(**told["asked"])
    rows = module.plan(asked, told["measured"])
    assert [[row[name] for name in ("what", "formula", "number", "unit")] for row in told["rows"]] == [*map(list, rows)]
    text = (ROOT / "benchmarks" / "results" / "plan.md").read_text()
    assert all(f"| {what} | {formula} | {module.shown(number, unit)} |" in text for what, formula, number, unit in rows)
    dearer = module.plan(asked, told["measured"] | {"reached": told["measured"]["reached"] / 2})
    assert dearer[-1][2] > 1.9 * rows[-1][2]
