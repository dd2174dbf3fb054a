"""What pages tell of measurements was measured on quiet machines, by programs that checked themselves."""

import argparse
import csv
import importlib
import json
import math
import pathlib
import re

import numpy as np
import pytest
from helpers import benchmark

import fedjax_dp as fdp

ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SCRATCH = "everything, from scratch"


def told(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def rows_by(found, *names):
    return {tuple(row[name] for name in names): row for row in found["rows"]}


def beats_the_paper_at_its_budget(found):
    rows = {row["line"]: row for row in found["rows"]}
    best = rows["best"]["correct"]
    return len(found["seeds"]) == 5 and best["epsilon"] <= 0.3 and best["mean"] > rows["addpnfl"]["published"]


def proves_most(found):
    rows = rows_by(found, "epsilon", "trials")
    return rows[4, 10_000]["ratio_median"] > 0.85 and rows[4, 100_000]["ratio_median"] > 0.93


def ran_a_million(found):
    disk, memory = found["disk"], found["memory"]
    sizes = (disk["clients"], memory["clients"])
    return sizes == (1_000_000, 1000) and not (disk["disturbed"] or memory["disturbed"])


def costs_little_more_than_parts(found):
    titles = {title.split()[0] for title in found["over_its_parts"]}
    little = max(found["over_its_parts"].values()) <= 1.15
    return little and titles == set(fdp.algorithms.PERSONAL) and not found["disturbed"]


def fits_a_small_machine(index):
    minutes = [index[name]["seconds"] / 60 for name in ("dpnfl-table2-full-syn", "dpnfl-fig6-full-mnist")]
    return max(minutes) < 30 and max(found["peak_memory_mb"] for found in index.values()) < 8000


TOLD = {  # file -> what pages say of it
    "transformer": lambda found: found["gradient_gap"] < 1e-4,  # gradients agreed while they were timed
    "sweep": lambda found: found["gradient_gap"] < 1e-4 and found["points"] == 64 and not found["disturbed"],
    "million": ran_a_million,
    "secure_aggregation": lambda found: (found["members"], found["size"]) == (100, 1_663_370),
    "mnist_cnn_0": lambda found: found["rounds_to_within_one_point"] is not None,
    "mnist_cnn_10": lambda found: found["rounds_to_within_one_point"] is not None,
    "audit": proves_most,
    "papers/best-mnist-0.3/table": beats_the_paper_at_its_budget,
    "papers/dp_fedavg_output-fig3/table": lambda found: (  # its literal round has no budget left
        min(row["literal"]["round_epsilon"] for row in found["rows"]) > 10_000
    ),
    "personal_latency": costs_little_more_than_parts,
    "papers/index": fits_a_small_machine,
}


@pytest.mark.parametrize("name", TOLD)
def test_what_pages_tell_of_a_measurement_is_so(name):
    assert TOLD[name](told(name))


def test_the_best_of_the_sweep_that_is_drawn_is_private_and_useful():
    with (RESULTS / "sweep_mnist.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if float(row["epsilon"]) == 0.3]
    best = max(float(row["test_accuracy_mean"]) for row in rows if row["algorithm"] == "dpnfl")
    assert best > 0.75


def test_a_public_start_is_worth_more_than_a_budget():
    rows = rows_by(told("adaptation"), "way", "epsilon")
    assert all(row["proved"] <= row["epsilon"] * (1 + 1e-9) for row in rows.values())
    scratch, adapted = (rows[way, at]["mean"] for way, at in ((SCRATCH, 8.0), ("head and low-rank terms", 1.0)))
    assert adapted > scratch


def test_a_pretrained_model_is_worth_more_than_a_budget_and_clipping_costs_it_nothing():
    found = told("pretrained")
    rows = rows_by(found, "way", "epsilon")
    assert all(row["proved"] <= row["epsilon"] * (1 + 1e-9) and len(row["values"]) == 3 for row in rows.values())
    assert rows["MiniLM, head", 1.0]["mean"] > rows["LSTM from scratch", 8.0]["mean"] + 0.05
    assert found["operations"]["private"] < 1.15 * found["operations"]["plain"]


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
    own = told("mean_estimation")["own"]["rows"]
    each, common = ([row["mean"] for row in own if row["way"] == way] for way in ("own lambda", "best common lambda"))
    assert all(a < b for a, b in zip(each, common, strict=True))


def test_clients_own_models_beat_local_training_and_fedavg_where_these_meet():
    rows = rows_by(told("personalisation"), "case", "way", "epsilon")
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


def test_every_number_that_pages_tell_is_there(monkeypatch):
    pytest.importorskip("sphinx", reason="the site needs Sphinx")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    found = importlib.import_module("written").measured()
    for page in (ROOT / "docs").rglob("*.md"):
        for name in re.findall(r"{{(.*?)}}", page.read_text()) if "gallery" not in page.parts else ():
            assert name.strip() in found, f"{page.name}: {name}"


def test_the_plan_on_paper_follows_from_what_was_measured():
    module = benchmark("plan")
    found = told("plan")
    asked = argparse.Namespace(**found["asked"])
    assert (asked.clients, asked.cohort, asked.parameters, asked.devices) == (1e9, 1e5, 1e7, 256)
    rows = module.plan(asked, found["measured"])
    assert [*rows_by(found, "what", "formula", "number", "unit")] == [*map(tuple, rows)]
    text = (RESULTS / "plan.md").read_text()
    assert all(f"| {what} | {formula} | {module.shown(number, unit)} |" in text for what, formula, number, unit in rows)
    dearer = module.plan(asked, found["measured"] | {"reached": found["measured"]["reached"] / 2})
    assert dearer[-1][2] > 1.9 * rows[-1][2]
