"""The best setting of each budget and algorithm, with deviations and paired differences: as numbers, text and files."""

import csv
import io
import json
import math

import numpy as np
import pytest
from helpers import command_output, refusal
from sweep_points import point, sweep_folder, textbook_interval

from fedjax_dp.sweeps.sweep import Sweep, open_sweep
from fedjax_dp.sweeps.winners import winners
from fedjax_dp.tools.reports import sweeps as reports

AXES = ("algorithm", "epsilon", "clip_norm")


def accuracy(algorithm, epsilon, clip, seed):
    """The second algorithm is better by 0.1 and a little noise; seeds differ by far more than that."""
    noise = 0.01 * seed * (algorithm == "dp_two")
    return 0.2 * seed + 0.01 * epsilon + 0.02 * clip + 0.1 * (algorithm == "dp_two") + noise


def sweep_of(seeds, algorithms=("dp_one", "dp_two")):
    cases = [(a, e, c, s) for a in algorithms for e in (4.0, 0.5) for c in (1.0, 3.0) for s in seeds]
    values = [{"algorithm": a, "epsilon": e, "clip_norm": c, "seed": s} for a, e, c, s in cases]
    return [
        point(index, one, (accuracy(*one.values()),), epsilon=one["epsilon"], config={"seed": one["seed"]})
        for index, one in enumerate(values)
    ]


def test_each_budget_and_algorithm_has_its_best_with_deviation_and_paired_difference():
    found = winners(sweep_of((0, 1, 2)), AXES)
    assert (found.by, found.others, found.against) == (("epsilon", "algorithm"), ("clip_norm",), "dp_one")
    names = [(0.5, "dp_one"), (0.5, "dp_two"), (4.0, "dp_one"), (4.0, "dp_two")]
    assert [tuple(row.values.values()) for row in found.rows] == names
    for (epsilon, algorithm), row in zip(names, found.rows, strict=True):
        numbers = [accuracy(algorithm, epsilon, 3.0, seed) for seed in range(3)]
        assert row.setting.values["clip_norm"] == 3.0
        np.testing.assert_allclose(row.score[:4], textbook_interval(numbers), rtol=1e-12)
        assert (row.score.seeds, row.settings, row.excluded) == (3, 2, {})
        if algorithm == "dp_one":
            assert math.isnan(row.difference.mean)
        else:  # pairs take the seeds' own spread out, which intervals of unpaired means would not
            np.testing.assert_allclose(row.difference[:4], textbook_interval([0.1, 0.11, 0.12]), rtol=1e-9)
            assert row.difference.high - row.difference.low < 0.1 * (row.score.high - row.score.low)
    turned = winners(sweep_of((0, 1, 2)), AXES, against="dp_two")
    assert turned.rows[0].difference.mean == pytest.approx(-found.rows[1].difference.mean)


def test_differences_are_over_the_seeds_of_both():
    lost = {"algorithm": "dp_one", "seed": 1}
    records = [one for one in sweep_of((0, 1, 2)) if not lost.items() <= one["values"].items()]
    row = winners(records, AXES).rows[1]
    assert (row.score.seeds, row.difference.seeds) == (3, 2)
    np.testing.assert_allclose(row.difference[:4], textbook_interval([0.1, 0.12]), rtol=1e-9)


def test_a_value_without_a_setting_to_choose_says_why():
    records = sweep_of((0, 1))
    for one in records:
        if one["values"]["algorithm"] == "dp_one" and one["values"]["epsilon"] == 0.5:
            one |= {"status": "diverged", "history": [], "reason": "round 3: loss is infinite"}
    found = winners(records, AXES)
    assert found.rows[0].setting is None
    assert math.isnan(found.rows[1].difference.mean)  # nobody to compare with
    assert "epsilon 0.5, algorithm dp_one: 2 settings left out: 2 with a failed seed" in found.notes()
    assert found.cells()["clip_norm"][0] == "–"


def test_one_seed_has_no_deviation_and_says_so(capsys):
    folder = sweep_folder(sweep_of((0,)), AXES)
    out = command_output(capsys, "best", str(folder), "--table", "text").out
    assert "nan" not in out
    assert "one seed has no deviation and no interval" in out
    assert ", of one seed, so without a deviation" in command_output(capsys, "best", str(folder)).err
    shown = repr(open_sweep(folder))
    assert "nan" not in shown
    assert "one seed has no deviation" in shown
    frame = open_sweep(folder).best_by()
    assert frame["std"].dtype == float
    assert frame["std"].isna().all()


def test_the_table_is_printed_as_text_csv_latex_and_json(capsys):
    folder = sweep_folder(sweep_of((0, 1, 2)), AXES)

    def printed(*words):
        return command_output(capsys, "best", str(folder), *words).out

    text = printed("--by", "epsilon, algorithm")
    assert "the best of each epsilon and algorithm, of 8 settings" in text
    assert "+0.1100  +0.0852 to +0.1348" in text
    assert "where several settings were compared, the mean of the best is optimistic" in text
    rows = list(csv.DictReader(io.StringIO(printed("--table", "csv"))))
    frame = open_sweep(folder).best_by()
    assert list(rows[0]) == list(frame)
    assert float(rows[1]["minus_dp_one_low"]) == pytest.approx(frame["minus_dp_one_low"][1])
    assert rows[0]["minus_dp_one_mean"] == ""
    latex = printed("--table", "latex")
    assert r"0.5 & dp\_two & 0.3750 $\pm$ 0.2100" in latex
    assert latex.count("\\\\\n") == 5
    assert "& $-$0.1100 & $-$0.1348 to" in printed("--table", "latex", "--against", "dp_two")  # no hyphens
    columns = latex.split("tabular}{")[1].split("}")[0]
    assert all(line.count("&") == len(columns) - 1 for line in latex.splitlines() if line.endswith("\\\\"))
    assert all(line.startswith("%") for line in latex.splitlines()[:3])
    told = json.loads(printed("--json", "--by", "algorithm"))
    assert [row["epsilon"] for row in told["best"]] == [4.0, 4.0]
    assert told["best"][0]["minus_dp_one_mean"] is None


@pytest.mark.parametrize("form", ["text", "csv", "latex"])
def test_no_table_has_an_epsilon_without_what_it_is_of(form, capsys):
    """Delta, unit, adjacency, view, and what has to be read before the number; a table of a paper begins with it."""
    caveat = "no guarantee for clients drawn more often than on average"
    records = sweep_of((0, 1))
    for record in records:
        record["guarantee"]["caveat"] = caveat if record["values"]["epsilon"] == 4.0 else None
    out, err = command_output(capsys, "best", str(sweep_folder(records, AXES)), "--table", form)
    notes = [line.strip(" %") for line in (err if form == "csv" else out).splitlines()]
    assert "proved epsilon: delta 0.001, one record, replace-one, view uploads" in notes
    assert notes.count(f"proved epsilon: {caveat}") == 1
    assert " ".join(str(Sweep("s", AXES, records)).split()).count(caveat) == 1
    for record in records:
        record["guarantee"]["delta"] = 1e-4 * record["values"]["epsilon"]
    assert "proved epsilon: delta differs, one record, replace-one, view uploads" in winners(records, AXES).notes()
    public = sweep_of((0, 1))
    for record in public:
        record["guarantee"] |= {"epsilon": None, "delta": None}
    assert not any("proved epsilon" in note for note in winners(public, AXES).notes())


@pytest.mark.parametrize(
    ("axes", "head", "rows"),
    [
        (("epsilon", "clip_norm"), "the best of each clip_norm, of 2 settings", 2),  # one budget
        (("clip_norm",), "the best of each clip_norm, of 2 settings", 2),
        (("epsilon",), "the best of each epsilon, of 1 setting", 1),
        ((), "the best, of 1 setting", 1),  # nothing but seeds
    ],
)
@pytest.mark.parametrize("form", ["text", "csv", "latex"])
def test_a_sweep_without_several_budgets_has_a_row_for_each_value_of_the_axes_that_there_are(
    axes, head, rows, form, capsys
):
    every = [record for record in sweep_of((0, 1), ("dp_one",)) if record["values"]["epsilon"] == 4.0]
    every = [record for record in every if "clip_norm" in axes or record["values"]["clip_norm"] == 3.0]
    folder = sweep_folder(every, axes)
    out = command_output(capsys, "best", str(folder), "--table", form).out
    lines = {"text": out.splitlines()[4 : 4 + rows], "csv": out.splitlines()[1:], "latex": out.splitlines()}
    assert form != "text" or out.startswith(head)
    assert sum(("0.2" in line or "0.1" in line) and not line.startswith("%") for line in lines[form]) == rows


def test_the_report_has_the_same_table():
    grid, _ = reports.best_of_each(sweep_of((0, 1, 2)), AXES).blocks
    cells = winners(sweep_of((0, 1, 2)), AXES).cells()
    assert list(grid.columns) == list(cells)
    assert [list(row) for row in grid.rows] == [list(row) for row in zip(*cells.values(), strict=True)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"by": ["epsilom"]}, "did you mean epsilon"),
        ({"against": "dp_three"}, "against must be one of"),
        ({"by": ["epsilon"], "against": "dp_one"}, "against must be left out unless the best is of each algorithm"),
        ({"by": []}, "by must be axes of the sweep"),
    ],
)
def test_what_cannot_be_is_one_line(words, expected):
    assert expected in refusal(lambda: winners(sweep_of((0,)), AXES, **words))
