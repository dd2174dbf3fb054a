"""Recipes of the papers: they resolve, hold what was published, and their tables say what is so."""

import csv
import dataclasses
import io
import json
import math
import pathlib
import time
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import SPECS, refusal, thinned, usual
from sweep_points import point

from fedjax_dp import errors
from fedjax_dp.accounting.guarantee import DeploymentSummary
from fedjax_dp.data import load
from fedjax_dp.experiments.config import RunSpec
from fedjax_dp.sweeps import runner
from fedjax_dp.sweeps.plan import expand, identity
from fedjax_dp.tools.cli.reproduce import _print as print_reproduction
from fedjax_dp.tools.papers.reproductions import cells as cells_module
from fedjax_dp.tools.papers.reproductions import features, tables
from fedjax_dp.tools.papers.reproductions.cells import CellKey, cells_of, sweep_of, unavailable
from fedjax_dp.tools.papers.reproductions.recipe import SCALES, concerns, parse, read_recipe, recipes
from fedjax_dp.tools.papers.reproductions.reproduce import reproduce
from fedjax_dp.tools.papers.reproductions.reproduction import Reproduction
from fedjax_dp.tools.papers.reproductions.rows import claims_of, published_number, rows_of

TINY = """
title = "accuracy of two methods"
source = "999 Table I"
figure = "final"
open = "Nothing is open."
impossible = [{ statement = "nobody knows the rate", lines = "dpnfl" }]
claims = [{ statement = "FedAvg ends above DPNFL", better = "fedavg", than = "dpnfl" }]

[base]
dataset = "digits"
rounds = 2
epsilon = 4.0
delta = 1e-3

[literal]
sigma_mode = "dpnfl"
participation = "expected"

[panels.digits]
title = "digits"

[lines.dpnfl]
title = "DPNFL"
algorithm = "dpnfl"

[lines.fedavg]
title = "FedAvg"
algorithm = "fedavg"

[published.digits]
dpnfl = [80.0, 1.0]
fedavg = 90

[smoke]
seeds = 1

[small]
seeds = 2
rounds = 1

[full]
seeds = 5
"""
DPNFL, FEDAVG = CellKey("digits", "dpnfl"), CellKey("digits", "fedavg")


def tiny(**changes):
    """The recipe above with other top-level tables."""
    return parse("999/table1", tomllib.loads(TINY) | changes)


def run(accuracy, epsilon=2.0, status="done", reason=None):
    """A finished run that ended with this accuracy in percent."""
    return point(0, {}, (accuracy / 200, accuracy / 100), status, epsilon, reason)


def table_of(recipe, accuracies, missing=None, rounds=None, scale="full"):
    """Rows from the final accuracies of each (place, reading), or from one list for all."""
    cells = cells_of(recipe, recipe.scales[scale])
    every = [(cell.place, cell.reading) for cell in cells]
    given = accuracies if isinstance(accuracies, dict) else dict.fromkeys(every, accuracies)
    records = {key: [one if isinstance(one, dict) else run(one) for one in given[key]] for key in every if key in given}
    return rows_of(recipe, cells, records, missing or {}, rounds or {}, {}, {}, recipe.scales[scale])


def row_at(rows, place):
    return next(row for row in rows if row.place == place)


@pytest.mark.parametrize("name", thinned(recipes(), recipes()[::4], 12))
def test_every_run_of_a_recipe_resolves_and_is_in_its_sweep(name):
    recipe = read_recipe(name)
    for scale in SCALES:
        cells = cells_of(recipe, recipe.scales[scale])
        runs = {identity(cell.config(seed)) for cell in cells for seed in (0, 1)}
        points = expand(sweep_of(cells, (0, 1), None))
        assert runs == {point.id for point in points}
        records = [json.loads(json.dumps(point.config.flat())) for point in points[:9]]  # as a folder holds them
        assert runs >= {identity(RunSpec.of(config)) for config in records}


@pytest.mark.parametrize("name", recipes())
def test_what_is_published_is_what_the_papers_print(name):
    golden = tomllib.loads((SPECS / "published.toml").read_text())
    golden["mr_mtl/fig3"] = {"school": {"fedavg": 0.02564, "local": 0.02628, "mr_mtl": 0.02394}}  # README of its code
    assert read_recipe(name).published == golden.get(name, {})


def test_every_published_number_has_its_row():
    golden = tomllib.loads((SPECS / "published.toml").read_text())
    assert set(golden) <= set(recipes())
    for name, told in golden.items():
        recipe = read_recipe(name)
        places = {cell.place for cell in cells_of(recipe, recipe.scales["full"])}
        shown = [place for place in places if published_number(recipe, place)[0] is not None]
        numbers = [numbers for lines in told.values() for numbers in lines.values()]
        assert len(shown) == sum(len(one) if isinstance(one, dict) else 1 for one in numbers)


def test_remarks_and_claims_are_about_lines_that_exist():
    for name in recipes():
        recipe = read_recipe(name)
        pairs = {(cell.place.panel, cell.place.line) for cell in cells_of(recipe, recipe.scales["full"])}
        for told in recipe.impossible:
            assert any(concerns(told, *pair) for pair in pairs), (name, told)
        for claim in recipe.claims:
            about = {line for panel, line in pairs if concerns({"panels": claim.get("panels", "*")}, panel, line)}
            assert {claim[key] for key in ("better", "than") if key in claim} <= about, (name, claim)
            assert claim.get("metric", recipe.metrics[0]) in recipe.metrics


def test_patterns_pick_panels_and_lines():
    assert concerns({}, "mnist-iid", "dpnfl")
    assert concerns({"panels": "mnist*", "lines": "*pnfl"}, "mnist-iid", "addpnfl")
    assert not concerns({"panels": "mnist*"}, "cifar10", "dpnfl")
    assert not concerns({"lines": "dpnfl"}, "mnist", "addpnfl")


def test_later_fields_win_and_what_an_algorithm_does_not_take_is_left_out():
    cells = {(cell.place, cell.reading): cell.fields for cell in cells_of(tiny(), tiny().scales["small"])}
    assert cells[DPNFL, "literal"]["sigma_mode"] == "dpnfl"
    assert "sigma_mode" not in cells[DPNFL, "correct"]
    assert {fields["rounds"] for fields in cells.values()} == {1}
    assert cells[FEDAVG, "literal"] == cells[FEDAVG, "correct"]
    assert not {"epsilon", "delta", "participation"} & set(cells[FEDAVG, "literal"])


def test_what_a_table_is_like_holds_where_nothing_else_is_written():
    turned = next(panel for panel in read_recipe("rfedavg/fig10").panels if panel.key == "mnist-10")
    own = {"similarity": 10.0, "target": "accuracy=0.98"}  # the rest is of another panel of another recipe
    assert turned.fields == {"dataset": "mnist", "rounds": 60, "feature_strength": 1e-4} | own


@pytest.mark.parametrize(
    ("place", "accuracies", "verdict"),
    [
        (DPNFL, (81.9,), "reproduced"),
        (DPNFL, (78.1,), "reproduced"),
        (DPNFL, (82.1,), "higher"),
        (DPNFL, (77.9,), "lower"),
        (DPNFL, (81.0, 84.0), "reproduced"),
        (DPNFL, (82.0, 83.0), "higher"),
        (DPNFL, (84.0, 84.0), "higher"),
        (FEDAVG, (90.9,), "reproduced"),  # printed without a deviation: half a point
        (FEDAVG, (91.1,), "higher"),
        (FEDAVG, (88.9,), "lower"),
    ],
)
def test_a_number_is_reproduced_within_two_standard_deviations_of_paper_and_mean(place, accuracies, verdict):
    row = row_at(table_of(tiny(), accuracies), place)
    assert row.verdicts == {"literal": verdict, "correct": verdict}
    assert row_at(table_of(tiny(published={}), accuracies), place).verdict == ""


def test_another_setting_is_not_held_against_the_paper():
    rows = table_of(tiny(), [80.0, 80.0], scale="small")  # another number of rounds
    assert row_at(rows, DPNFL).verdict == "not compared: another setting at this scale"
    assert set(row_at(rows, DPNFL).verdicts.values()) == {""}
    fewer = tiny(small={"seeds": 2, "evaluate_every": 1})  # fewer seeds and looks alone
    assert row_at(table_of(fewer, [80.0, 80.0], scale="small"), DPNFL).verdict == "reproduced"


def test_what_cannot_be_reached_is_said_where_it_is_missed():
    low = {(place, reading): [70.0] for place in (DPNFL, FEDAVG) for reading in ("literal", "correct")}
    assert row_at(table_of(tiny(), low), DPNFL).verdict == "lower: impossible because nobody knows the rate"
    assert row_at(table_of(tiny(), low), FEDAVG).verdict == "lower"
    mixed = low | {(DPNFL, "correct"): [90.0]}
    assert row_at(table_of(tiny(), mixed), DPNFL).verdict.startswith("literal lower, correct higher: impossible")
    assert row_at(table_of(tiny(), (80.0,)), DPNFL).verdict == "reproduced"


def accuracy_of_all_records_together(dataset, rows):
    """Of the minimiser of dpnfl's objective (l2 = 1e-3, no privacy) over these training records, in percent."""
    train, test = (np.c_[x, np.ones(len(x))] for x in (dataset.x_train[rows], dataset.x_test))
    labels = dataset.y_train[rows]

    def objective(w):
        return optax.softmax_cross_entropy_with_integer_labels(train @ w, labels).mean() + 1e-3 / 2 * jnp.sum(w * w)

    optimizer = optax.lbfgs()

    def step(carry, _):
        w, state = carry
        value, gradient = jax.value_and_grad(objective)(w)
        update, state = optimizer.update(gradient, state, w, value=value, grad=gradient, value_fn=objective)
        return (w + update, state), jnp.linalg.norm(gradient)

    start = jnp.zeros((train.shape[1], dataset.classes))
    (w, _), slopes = jax.lax.scan(step, (start, optimizer.init(start)), length=150)
    assert slopes[-1] < 1e-3
    return 100 * float((jnp.argmax(test @ w, 1) == dataset.y_test).mean())


@pytest.mark.exhaustive  # CI: published numbers and verdicts, above
def test_what_is_printed_for_syn_iid_lies_above_the_minimiser_of_its_own_objective():
    """So `impossible` is rightly said."""
    dataset = load("synthetic:iid", seed=0)
    reached = accuracy_of_all_records_together(dataset, np.arange(len(dataset.y_train)))
    assert read_recipe("dpnfl/table2").published["syn-iid"]["nonprivate"][0] > reached + 2


@pytest.mark.exhaustive  # CI: published numbers and verdicts, above
def test_why_no_private_model_reaches_what_is_printed_for_synthetic_1_1():
    """Without any noise, all clients but those of fewer than 80 records are not enough."""
    reached = []
    for seed in range(2):
        dataset = load("synthetic:1,1", seed=seed)
        sizes = np.bincount(dataset.client_ids)
        reached.append(accuracy_of_all_records_together(dataset, sizes[dataset.client_ids] >= 80))
    assert np.mean(reached) < read_recipe("dpnfl/table2").published["syn-1-1"]["addpnfl"][0] - 2


def test_a_lost_seed_fails_its_number():
    lost = [run(80.0), run(80.0, status="diverged", reason="training diverged in round 0")]
    row = row_at(table_of(tiny(), lost), DPNFL)
    assert row.readings["correct"].mean is None
    assert row.verdict == "failed: 1 of 2 seeds lost: training diverged in round 0"


@pytest.mark.parametrize(("accuracies", "missed"), [([80.0, 80.0], 0), ([80.0, 70.0], 1), ([70.0, 70.0], 2)])
def test_a_target_that_some_seeds_miss_has_no_mean(accuracies, missed):
    runs = [run(accuracy) | {"config": {"target": "accuracy=0.75"}} for accuracy in accuracies]
    row = row_at(table_of(tiny(metrics=["rounds_to_target"], published={}), runs), DPNFL)
    assert row.readings["correct"].mean == (None if missed else 20)
    assert row.verdict == (f"not reached by {missed} of 2 seeds" if missed else "")


def test_claims_compare_lines_in_each_reading():
    means = {(DPNFL, "literal"): [80.0], (FEDAVG, "literal"): [90.0]}
    means |= {(DPNFL, "correct"): [80.0], (FEDAVG, "correct"): [80.0]}
    literal, correct = claims_of(tiny(), table_of(tiny(), means))
    assert (literal.reading, literal.verdict) == ("literal", "holds")
    assert (correct.reading, correct.verdict) == ("correct", "does not hold")


def test_claims_may_ask_for_a_distance_and_cross_readings():
    base = {"statement": "so", "better": "fedavg", "than": "dpnfl"}
    claims = [
        base | {"by": 11.0},
        base | {"by": 9.0},
        base | {"reading": "correct", "than_reading": "literal"},
        base | {"reading": "correct", "than_reading": "published"},
    ]
    means = {(DPNFL, "literal"): [80.0], (FEDAVG, "literal"): [90.0]}
    means |= {(DPNFL, "correct"): [70.0], (FEDAVG, "correct"): [79.0]}
    found = claims_of(tiny(claims=claims), table_of(tiny(claims=claims), means))
    assert [claim.holds for claim in found] == [0, 0, 1, 0, 0, 0]
    assert [claim.cases for claim in found] == [1] * 6
    assert found[4].reading == "correct against literal"


def test_claims_compare_values_along_an_axis_and_mind_what_is_better():
    along = {"figure": "along", "along": "epsilon", "values": [1.0, 8.0], "metrics": ["test_accuracy", "test_loss"]}
    claim = {"statement": "more budget is better", "better_x": 8.0, "than_x": 1.0, "lines": "dpnfl"}
    recipe = tiny(**along, published={}, claims=[claim, claim | {"metric": "test_loss"}])
    means = {
        (CellKey("digits", line, x), reading): [70.0 + x]
        for line in ("dpnfl", "fedavg")
        for x in (1.0, 8.0)
        for reading in ("literal", "correct")
    }
    found = claims_of(recipe, table_of(recipe, means))
    assert [claim.verdict for claim in found] == ["holds"] * 4  # the loss falls


def test_a_claim_about_what_was_not_run_says_so():
    (claim, _) = claims_of(tiny(), table_of(tiny(), {(DPNFL, "literal"): [80.0]}))
    assert claim.verdict == "no verdict, as one of the two is missing"


def test_the_table_in_markdown():
    recipe = tiny()
    means = {(DPNFL, "literal"): [run(79.0), run(81.0)], (DPNFL, "correct"): [run(85.0, 4.0)]}
    means |= {(FEDAVG, reading): [run(90.0, math.inf)] for reading in ("literal", "correct")}
    rows = table_of(recipe, means, rounds={(DPNFL, "literal"): 0.5})
    claims = [claim._asdict() | {"verdict": claim.verdict} for claim in claims_of(recipe, rows)]
    content = {"source": recipe.source, "title": recipe.title, "rows": list(map(tables.to_dict, rows))}
    text = tables.markdown(content | {"claims": claims, "notes": ["a note"]}, recipe.titles)
    told = text.splitlines()
    assert told[0] == "# 999 Table I: accuracy of two methods"
    assert (
        "| panel | method | published | literal | literal's epsilon | correct | correct's epsilon | verdict |" in told
    )
    assert (
        "| digits | DPNFL | 80.00 ± 1.00 | 80.00 ± 1.41 | 2 (0.5 a round) | 85.00 | 4 | literal reproduced, correct "
        "higher: impossible because nobody knows the rate |"
    ) in told
    assert "| digits | FedAvg | 90.00 | 90.00 | none | 90.00 | none | reproduced |" in told
    assert "| FedAvg ends above DPNFL | correct | holds |" in told
    assert told[-1] == "- a note"


def test_an_epsilon_of_a_deployment_is_marked():
    one = run(80.0)
    one["guarantee"]["deployment"] = DeploymentSummary(1000, 10**6, 10, "Poisson", 0.05, 50, 1000)._asdict()
    reading = row_at(table_of(tiny(), [one]), DPNFL).readings["correct"]
    assert reading.about.endswith("uploads (deployment 1,000 of 1,000,000)")


def test_the_table_in_csv_holds_every_number():
    rows = table_of(tiny(), (79.0, 81.0))
    first, second = csv.DictReader(io.StringIO(tables.comma_separated(tiny(), rows)))
    assert (first["panel"], first["line"], first["x"], first["metric"]) == ("digits", "dpnfl", "", "test_accuracy")
    assert (float(first["published"]), float(first["published_std"])) == (80.0, 1.0)
    assert float(first["literal_mean"]) == pytest.approx(80.0)
    assert float(first["correct_std"]) == pytest.approx(math.sqrt(2))
    assert (first["literal_seeds"], float(first["literal_epsilon"])) == ("2", 2.0)
    assert (second["line"], second["published_std"], second["correct_verdict"]) == ("fedavg", "", "lower")


def test_a_row_in_json_names_what_has_no_epsilon():
    row = row_at(table_of(tiny(), [run(90.0, math.inf)]), FEDAVG)
    told = json.loads(json.dumps(tables.to_dict(row), allow_nan=False))
    assert (told["literal"]["epsilon"], told["literal"]["private"]) == (None, False)
    assert told["verdict"] == "reproduced"
    readings = {name: one._replace(epsilon=math.nan) for name, one in row.readings.items()}
    both = [tables.to_dict(one) for one in (row, dataclasses.replace(row, readings=readings))]
    assert both[1]["literal"]["private"] is None
    (table,) = tables.metric_tables(both, {})
    assert [cells[table.columns.index("literal's epsilon")] for cells in table.rows] == ["none", "-"]


def test_a_reproduction_is_printed_with_its_claims_and_notes(capsys):
    recipe, rows = tiny(), table_of(tiny(), (79.0, 81.0))
    full, folder = recipe.scales["full"], pathlib.Path("f")
    print_reproduction(Reproduction(recipe, full, (0, 1), rows, claims_of(recipe, rows), ("a note",), folder))
    out = " ".join(capsys.readouterr().out.split())
    for words in ("999 Table I: accuracy of two methods", "FedAvg ends above DPNFL", "a note", "f (table.md"):
        assert words in out


def test_an_unknown_name_is_refused_and_the_nearest_offered():
    assert "did you mean dpnfl/table2?" in refusal(read_recipe, "dpnfl/tabel2")
    assert "did you mean" in refusal(read_recipe, "table1")
    assert "rfedavg/table1" in refusal(read_recipe, "table1")


def test_keys_that_mean_nothing_are_refused():
    assert "did you mean figure?" in refusal(tiny, figur="final")
    assert "figure must be one of" in refusal(tiny, figure="pie")
    assert "published line" in refusal(tiny, published={"digits": {"dpnlf": 80.0}})
    assert "published panel" in refusal(tiny, published={"mnist": {"dpnfl": 80.0}})
    assert "panels must be a pattern that a panel" in refusal(cells_of, tiny(), tiny().scales["full"], "mnist")


@pytest.fixture
def no_svhn(monkeypatch):
    """SVHN is missing, whatever this machine holds."""

    def without(name, *rest):
        if name == "svhn":
            raise errors.MissingDataError("dataset svhn must be on disk, got nothing; put its files into FOLDER")
        return load(name, *rest)

    monkeypatch.setattr(cells_module, "load", without)


TWO = {"panels": {"digits": {}, "svhn": {"dataset": "svhn"}}, "published": {"svhn": {"dpnfl": 80.0}}}


def test_a_missing_data_set_is_a_skipped_row(no_svhn):
    recipe = tiny(**TWO)
    missing = unavailable(recipe, cells_of(recipe, recipe.scales["full"]), None)
    assert list(missing) == ["svhn"]
    rows = table_of(recipe, (80.0,), missing)
    assert row_at(rows, DPNFL).readings["correct"].mean == pytest.approx(80.0)
    skipped = row_at(rows, CellKey("svhn", "dpnfl"))
    assert skipped.verdict == "skipped: dataset svhn must be on disk, got nothing; put its files into FOLDER"
    (table,) = tables.metric_tables([tables.to_dict(skipped)], recipe.titles)
    assert table.rows[0][:5] == ["svhn", "DPNFL", "80.00", "-", "-"]


def test_a_part_of_a_data_set_is_not_the_papers():
    recipe = tiny(panels={"digits": {"records": 60_000}})
    missing = unavailable(recipe, cells_of(recipe, recipe.scales["full"]), None)
    assert "dataset digits must be complete, got 1,437 of 60,000 training records" in missing["digits"]


def test_without_any_data_the_error_says_what_to_get(no_svhn):
    with pytest.raises(errors.MissingDataError, match="dataset svhn must be on disk"):
        reproduce("dpnfl/fig1", scale="full", panels="svhn-balanced", progress=False)


def slowness():
    """How many times as long a fixed piece of work takes now as on an idle machine of the kind that is measured on."""
    began, total = time.process_time(), 0
    for i in range(4_000_000):
        total += i * i & 7
    return max(1.0, (time.process_time() - began) / 0.35)  # the least of twelve on a Xeon at 2.8 GHz


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(recipes(), ["dpnfl/table2"]))
def test_a_recipe_runs_in_seconds_and_never_twice(name, tmp_path, monkeypatch):
    slow = slowness()
    began = time.process_time()  # others may run beside it
    try:
        done = reproduce(name, scale="smoke", out=tmp_path / "out", progress=False)
    except errors.MissingDataError as error:
        pytest.skip(str(error))
    assert time.process_time() - began < 30 * max(slow, slowness())  # of all cores; neighbours come and go
    assert {path.name for path in done.folder.iterdir()} >= {"table.md", "table.csv", "table.json", "figure.png"}
    assert all("failed" not in row.verdict for row in done.rows)
    assert any(found.mean is not None for row in done.rows for found in row.readings.values())

    def twice(*_):
        raise AssertionError("something was trained again")

    monkeypatch.setattr(runner, "record", twice)
    monkeypatch.setattr(features, "cloud_of", twice)
    again = reproduce(name, scale="smoke", out=tmp_path / "out", progress=False)
    assert again.rows == done.rows


def test_what_shows_a_single_run_takes_no_more_seeds(tmp_path):
    told = refusal(reproduce, "rfedavg/table3", seeds=5, out=tmp_path / "out", progress=False)
    assert told.startswith("seeds must be 1 for rfedavg/table3, got 5")
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "table.md").write_text("mine")
    assert "out must be a new or empty folder" in refusal(
        reproduce, "rfedavg/table3", scale="smoke", out=tmp_path, progress=False
    )
    assert [path.name for path in tmp_path.iterdir()] == ["table.md"]
    assert (tmp_path / "table.md").read_text() == "mine"
