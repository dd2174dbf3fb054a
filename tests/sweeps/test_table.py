"""Sweeps as tables: nothing vanishes, means and intervals are right, the best is the best of what may be compared."""

import json
import math
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from helpers import MEASURES, command_output, command_refusal, refusal
from scipy import stats
from sweep_points import point, sweep_folder, textbook_interval, write_cost

from fedjax_dp import errors
from fedjax_dp.experiments import config
from fedjax_dp.sweeps import table
from fedjax_dp.sweeps.records import read_records
from fedjax_dp.sweeps.settings import baseline_of_records, pick, settings_of
from fedjax_dp.sweeps.sweep import open_sweep
from fedjax_dp.tools import cli


def grid(rates, seeds, accuracy):
    """Points over learning_rate and seeds; `accuracy(rate, seed)` is the last one."""
    pairs = [(rate, seed) for rate in rates for seed in seeds]
    return [
        point(index, {"learning_rate": rate, "seed": seed}, (0.1, accuracy(rate, seed)))
        for index, (rate, seed) in enumerate(pairs)
    ]


AXES = ["learning_rate"]


def test_tidy_has_a_row_for_every_evaluation_and_one_for_points_without_any():
    records = [
        point(
            0,
            {"epsilon": 0.5, "algorithm": "dpnfl", "seed": 0},
            (0.1, 0.2, 0.3),
            epsilon=0.49,
            config={"epsilon": 0.5, "algorithm": "dpnfl", "seed": 0, "rounds": 30},
            clipped=0.25,
        ),
        point(2, {"epsilon": 1.0, "algorithm": "dpnfl", "seed": 0}, (), "failed", None, "out of memory"),
        point(1, {"algorithm": "fedavg", "seed": 0}, (0.4,), "diverged", math.inf, "round 12: loss is infinite"),
    ]
    frame = table.tidy(records, ["epsilon", "algorithm"])
    guarantee = [f"guarantee_{name}" for name in ("epsilon", "delta", "noise", "deployment")]
    known = ["index", "point", "epsilon", "algorithm", "seed", "status", "reason", *guarantee, "seconds", "round"]
    assert list(frame.columns[:13]) == known
    assert frame["index"].tolist() == [0, 0, 0, 1, 2]
    assert frame["round"].tolist() == [10, 20, 30, 10, pd.NA]
    assert frame["epsilon"].tolist()[:3] == [0.5] * 3  # asked for
    assert frame["guarantee_epsilon"].tolist()[:4] == [0.49] * 3 + [math.inf]  # proved
    assert math.isnan(frame["epsilon"][3])
    assert math.isnan(frame["guarantee_epsilon"][4])
    assert math.isnan(frame["guarantee_delta"][3])
    assert frame["reason"][4] == "out of memory"
    assert math.isnan(frame["test_accuracy"][4])
    assert frame["clipped"].tolist()[2] == 0.25
    assert frame["rounds"].tolist() == [30] * 3 + [pd.NA] * 2
    assert set(MEASURES.by_name) <= set(frame.columns)
    assert not frame.columns.duplicated().any()


AWKWARD = [
    {"clipping": "none", "warm_start": True, "hidden": "64,32", "rounds": 10, "l2": 1e-3, "mixed": 1},
    {"clipping": 'a, "quoted"\nword', "rounds": 20, "l2": 1 / 3, "mixed": "one", "widths": [64, 32]},
    {},
]


def test_csv_and_parquet_hold_the_same_table():
    records = [
        point(index, {"algorithm": "dpnfl", "seed": index}, (0.1, 1 / 3), config=fields, epsilon=epsilon)
        for index, (fields, epsilon) in enumerate(zip(AWKWARD, (0.1, math.inf, None)))
    ]
    records.append(point(3, {"algorithm": "fedavg", "seed": 3}, (), "failed", reason="no memory"))
    frame = table.tidy(records, ["algorithm"])
    table.write(frame, ".")
    by_parquet = pd.read_parquet("table.parquet")
    pd.testing.assert_frame_equal(by_parquet, frame)
    by_csv = pd.read_csv("table.csv", dtype=frame.dtypes.to_dict(), keep_default_na=False, na_values=[""])
    pd.testing.assert_frame_equal(by_csv, frame)
    assert sorted(path.name for path in pathlib.Path().iterdir()) == ["table.csv", "table.parquet"]


def test_a_table_without_points_has_its_columns_and_no_best():
    assert list(table.tidy([], AXES).columns[:4]) == ["index", "point", "learning_rate", "seed"]
    assert table.summary([], AXES).empty
    assert "got no finished point" in refusal(table.best, [], AXES)


def test_a_broken_write_leaves_the_old_table(monkeypatch):
    frame = table.tidy(grid([0.1], [0], lambda rate, seed: 0.5), AXES)
    table.write(frame, ".")
    before = pathlib.Path("table.csv").read_text()

    def broken(self, path, **rest):
        pathlib.Path(path).write_text("half a")
        raise OSError("disk full")

    monkeypatch.setattr(pd.DataFrame, "to_csv", broken)
    with pytest.raises(OSError, match="disk full"):
        table.write(frame, ".")
    assert pathlib.Path("table.csv").read_text() == before


def test_summary_counts_what_failed_and_averages_the_rest():
    records = grid([0.1, 0.3], range(4), lambda rate, seed: rate + seed / 100)
    records[6] = point(6, {"learning_rate": 0.3, "seed": 2}, (0.2,), "diverged", 2.0, "round 11: loss is infinite")
    frame = table.summary(records, AXES)
    assert frame["done"].tolist() == [4, 3]
    assert frame["failed"].tolist() == [0, 1]
    assert frame["guarantee_epsilon"].tolist() == [1.0, 2.0]  # also that of the seed that failed
    assert frame["test_accuracy_seeds"].tolist() == [4, 3]
    for row, numbers in enumerate(([0.1, 0.11, 0.12, 0.13], [0.3, 0.31, 0.33])):
        found = frame.loc[row, [f"test_accuracy_{part}" for part in ("mean", "std", "low", "high")]]
        np.testing.assert_allclose(found.tolist(), textbook_interval(numbers), rtol=1e-12)
    assert frame["clipped_seeds"].tolist() == [0, 0]  # nobody measured it
    assert math.isnan(frame["clipped_mean"][0])


def test_summary_of_one_metric_and_one_seed():
    frame = table.summary(grid([0.1, 0.3], [7], lambda rate, seed: rate), AXES, "test_loss")
    assert frame["test_loss_mean"].tolist() == [1.9, 1.7]
    assert frame[["test_loss_std", "test_loss_low", "test_loss_high"]].isna().all(axis=None)
    assert not any(name.startswith("test_accuracy") for name in frame.columns)
    assert "did you mean test_loss" in refusal(
        table.summary, grid([0.1], [7], lambda rate, seed: rate), AXES, "test_los"
    )


def test_a_seed_counts_once_however_often_it_was_drawn():
    records = [point(index, {"learning_rate": 0.1, "seed": seed}) for index, seed in enumerate([0, 1, 0, 1])]
    (setting,) = settings_of(records, AXES)
    assert setting.score("test_accuracy").seeds == 2


def test_best_is_highest_for_accuracies_and_lowest_for_losses():
    records = grid([0.1, 0.2, 0.3], range(3), lambda rate, seed: 0.9 - abs(rate - 0.2) + seed / 1000)
    assert table.best(records, AXES).values == {"learning_rate": 0.2}
    assert table.best(records, AXES, "test_loss").values == {"learning_rate": 0.2}  # 2 - accuracy
    upside_down = grid([0.1, 0.2, 0.3], range(3), lambda rate, seed: 0.5 + abs(rate - 0.2) + rate / 1000)
    assert table.best(upside_down, AXES, "test_loss").values == {"learning_rate": 0.3}
    found = table.best(records, AXES)
    np.testing.assert_allclose(found[3:7], textbook_interval([0.9, 0.901, 0.902]), rtol=1e-12)
    assert (found.seeds, found.failed, found.considered, found.excluded) == (3, 0, 3, {})
    assert found.config == records[3]["config"]


def test_best_keeps_the_first_of_equals():
    assert table.best(grid([0.3, 0.1], [0], lambda rate, seed: 0.5), AXES).values == {"learning_rate": 0.3}


def test_best_never_takes_a_setting_with_a_failed_seed_or_a_missing_one():
    records = grid([0.1, 0.2, 0.3, 0.4], range(3), lambda rate, seed: rate)
    records[11] |= {"status": "diverged", "history": [], "reason": "round 3: loss is infinite"}
    del records[8]  # of 0.3
    records[3]["history"][-1]["objective"] = 0.1  # only one seed of 0.2 knows it
    found = table.best(records, AXES)
    assert found.values == {"learning_rate": 0.2}
    assert (found.failed, found.considered) == (1, 2)
    assert found.excluded == {"with fewer than 3 seeds": 1, "with a failed seed": 1}
    with pytest.raises(
        errors.ConfigurationError, match="2 without objective, 1 with fewer than 3 seeds, 1 with a fail"
    ):
        table.best(records, AXES, "objective")


def test_best_under_a_limit_looks_at_the_largest_proved_epsilon():
    records = [
        point(2 * place + seed, {"epsilon": asked, "seed": seed}, (asked / 10,), epsilon=asked * (1 + seed / 10))
        for place, asked in enumerate([0.5, 1.0, 2.0])
        for seed in range(2)
    ]
    assert table.best(records, ["epsilon"], epsilon_at_most=1.1).values == {"epsilon": 1.0}
    found = table.best(records, ["epsilon"], epsilon_at_most=1.05)  # the second seed of 1.0 has 1.1
    assert found.values == {"epsilon": 0.5}
    assert found.guarantee_epsilon == found.guarantee["epsilon"] == pytest.approx(0.55)
    assert found.excluded == {"with epsilon above 1.05": 2}
    with pytest.raises(errors.ConfigurationError, match=r"at least 0\.55, the smallest of the sweep, got 0\.1"):
        table.best(records, ["epsilon"], epsilon_at_most=0.1)
    public = [point(0, {"epsilon": None, "seed": 0}, epsilon=math.inf)]
    assert table.best(public, ["epsilon"]).guarantee_epsilon == math.inf
    assert "1 setting left out: 1 without a Guarantee" in refusal(
        table.best, [point(0, {"epsilon": 1.0, "seed": 0}, epsilon=None)], ["epsilon"], epsilon_at_most=1.0
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"metric": "test_acuracy"}, "did you mean test_accuracy"),
        ({"metric": "clipped"}, "metric must be one of"),
        ({"epsilon_at_most": -1.0}, "epsilon_at_most must be positive and finite, got -1.0"),
        ({"epsilon_at_most": math.nan}, "epsilon_at_most must be positive and finite, got nan"),
    ],
)
def test_best_refuses_in_one_line(words, expected):
    assert expected in refusal(lambda: table.best(grid([0.1], [0], lambda rate, seed: 0.5), AXES, **words))


def test_metrics_without_direction_are_judged_by_the_main_one():
    records = [
        point(index, {"learning_rate": rate, "seed": 0}, (accuracy,), clipped=clipped)
        for index, (rate, accuracy, clipped) in enumerate([(0.1, 0.9, 0.2), (0.2, 0.5, 0.1), (0.3, 0.4, 0.9)])
    ]
    assert pick(settings_of(records, AXES), MEASURES["clipped"]).values == {"learning_rate": 0.1}
    unknown = point(3, {"learning_rate": 0.4, "seed": 0}, (0.99,))
    assert pick(settings_of([unknown], AXES), MEASURES["clipped"]) is None


def test_records_come_in_the_order_of_the_plan_and_the_first_of_a_point_counts():
    records = grid([0.1, 0.2], [0, 1], lambda rate, seed: rate)
    again = records[1] | {"seconds": 99.0}
    about, found = read_records(sweep_folder([*records[::-1], again]))
    assert found == records
    assert about["name"] == "mine"


@pytest.mark.parametrize("torn", ['{"point": "0000', '{"point": "00\xff'.encode("latin1"), json.dumps(point(9, {}))])
def test_a_last_line_that_breaks_off_is_no_point(torn):
    records = grid([0.1], [0, 1], lambda rate, seed: rate)
    folder = sweep_folder(records)
    with (folder / "points.jsonl").open("ab") as lines:
        lines.write(torn if isinstance(torn, bytes) else torn.encode())
    assert read_records(folder)[1] == records


def test_a_sweep_that_has_just_begun_has_no_points():
    folder = sweep_folder([])
    (folder / "points.jsonl").unlink()
    assert read_records(folder)[1] == []


WHOLE = point(0, {"learning_rate": 0.1, "seed": 0})
DAMAGED = [
    ('{"point": ', "text that is not JSON"),
    ("[1]", "list"),
    ("{}", "no point"),
    (json.dumps(WHOLE | {"history": {}}), "history {}"),
    (json.dumps(WHOLE | {"status": "well"}), "status 'well'"),
    (json.dumps(WHOLE | {"values": {"learning_rate": 0.1}}), "values without a seed"),
]


@pytest.mark.parametrize(("line", "expected"), DAMAGED, ids=[expected for _, expected in DAMAGED])
def test_other_damage_is_refused_with_its_line(line, expected):
    folder = sweep_folder([WHOLE])
    (folder / "points.jsonl").write_text(json.dumps(WHOLE) + "\n" + line + "\n" + json.dumps(WHOLE) + "\n")
    told = refusal(read_records, folder)
    assert f"line 2 of {folder}/points.jsonl must be a finished point, got {expected}" in told


def test_a_guarantee_of_another_version_is_refused_in_one_line():
    """Earlier versions gave each phase a key `phase`, which the report of a sweep cannot read."""
    phase = {"phase": 1, "left": 0, "about": "a run", "epsilon": 1.0, "view": "uploads", "members": ""}
    for part in ({"phases": [phase]}, {"deployment": {"cohort_size": 10, "phase": 1}}):
        folder = sweep_folder([WHOLE, WHOLE | {"guarantee": WHOLE["guarantee"] | part}])
        words = refusal(lambda folder=folder: read_records(folder))
        assert "line 2 of sweep/points.jsonl must be as this version writes it" in words
        shutil.rmtree(folder)


def runnable():
    """A sweep over learning rates whose configurations `fedjax-dp run` takes."""
    return [
        point(
            2 * place + seed,
            {"learning_rate": rate, "seed": seed},
            (0.8 - abs(rate - 0.3) + seed / 100,),
            config={"dataset": "digits", "seed": seed, "learning_rate": rate, "rounds": 4, "out": "somewhere"},
        )
        for place, rate in enumerate([0.1, 0.3, 1.0])
        for seed in range(2)
    ]


def test_best_prints_a_configuration_that_run_takes(capsys):
    sweep_folder(runnable())
    out = command_output(capsys, "best", "sweep")
    pathlib.Path("winner.toml").write_text(out.out)
    winner = config.read("winner.toml")
    assert winner == {"dataset": "digits", "seed": 0, "learning_rate": 0.3, "rounds": 4}
    assert config.RunSpec.of(winner).options["batch_size"] == 20
    low, high = stats.t.interval(0.95, 1, 0.805, stats.sem([0.8, 0.81]))
    assert f"test accuracy 0.8050 +- 0.0071, the mean of 2 seeds, its 95% interval {low:.4f} to {high:.4f}" in out.err
    assert "(biased upwards: the setting was chosen by this number)" in out.err
    assert "the configuration is of seed 0" in out.err
    assert "epsilon 1 and so on" in out.err
    assert "the best of 3 settings compared: learning_rate 0.3\n" in out.err
    assert "the privacy cost of choosing is not known before the sweep is complete" in out.err


def test_best_takes_the_last_sweep_where_none_is_named(capsys):
    assert "there is none here to take the last of" in command_refusal(capsys, "best")
    folder = sweep_folder(runnable())
    pathlib.Path("sweeps").mkdir()
    folder.rename("sweeps/mine")
    assert "no folder was named; using the last one: sweeps/mine" in command_output(capsys, "best").err


def test_a_shared_winner_among_own_models_is_not_said_to_have_one(capsys):
    own = point(0, {"algorithm": "local", "seed": 0}, (0.5,), client_mean=0.5, personal_mean=0.6)
    shared = point(1, {"algorithm": "dp_fedavg_local", "seed": 0}, (0.7,), client_mean=0.7)
    configs = [one | {"config": {"algorithm": one["values"]["algorithm"], "seed": 0}} for one in (own, shared)]
    sweep_folder(configs, ["algorithm"])
    assert "mean accuracy of clients 0.7000, of one seed" in command_output(capsys, "best", "sweep").err


def test_best_tells_what_is_missing(capsys):
    folder = sweep_folder(runnable(), points=9)
    assert "6 of 9 points are there: the winner may change" in command_output(capsys, "best", "sweep").err
    (folder / "selection.json").write_text("nothing")
    assert "selection.json must be readable JSON" in command_refusal(capsys, "best", "sweep")


def test_python_states_the_cost_of_choosing_in_the_words_of_the_command_line(capsys):
    folder = sweep_folder(
        [one | {"history": [seen | {"train_loss": 1.0} for seen in one["history"]]} for one in runnable()]
    )
    unknown = "the privacy cost of choosing is not known before the sweep is complete"
    assert unknown in " ".join(repr(open_sweep(folder).best()).split())
    write_cost(folder, short="choosing costs epsilon 2", statement="more")
    assert cli.main(["best", "sweep"]) == 0
    statement = "choosing costs epsilon 2; sweep/selection.json says more"
    assert statement in capsys.readouterr().err
    found = open_sweep(folder)
    assert found.best().statement == statement
    for one in (found, found.best()):
        assert statement in " ".join(repr(one).split())
    assert "no epsilon is stated" in found.best("train_loss").statement  # a probe of private records


def test_a_sweep_shows_the_baseline_that_all_its_points_share():
    baseline = {"answer": "always naming the most frequent class", "metric": "test_accuracy", "value": 0.125}
    records = [record | {"baseline": baseline} for record in runnable()]
    assert baseline_of_records(records) == "always naming the most frequent class: test accuracy 0.1250"
    assert "most frequent class: test accuracy 0.1250" in " ".join(repr(open_sweep(sweep_folder(records))).split())
    others = [records[0], *(record | {"baseline": baseline | {"value": 0.5}} for record in records[1:])]
    assert baseline_of_records(others) == baseline_of_records(runnable()) == baseline_of_records([]) == ""


def test_best_as_json_is_one_object_without_infinities(capsys):
    records = [point(0, {"privatizer.clip_norm": 1.0, "seed": 0}, epsilon=math.inf)]
    sweep_folder(records, ["privatizer.clip_norm"])
    told = json.loads(command_output(capsys, "best", "sweep", "--json").out, parse_constant=pytest.fail)
    assert told["values"] == {"privatizer.clip_norm": 1.0}
    assert told["guarantee_epsilon"] is None
    assert (told["mean"], told["std"], told["seeds"], told["statement"]) == (0.6, None, 1, None)


def test_a_sweep_of_python_values_has_a_best_setting_without_a_configuration(capsys):
    options = {"rounds": 5, "epsilon": 3.0, "delta": 1e-3}  # all that such a sweep records
    cases = [(norm, seed) for norm in (0.3, 1.0) for seed in range(2)]
    records = [
        point(index, {"clip_norm": norm, "seed": seed}, (norm / 2 + seed / 100,), config=options)
        for index, (norm, seed) in enumerate(cases)
    ]
    sweep_folder(records, ["clip_norm"])
    printed = command_output(capsys, "best", "sweep")
    assert printed.err == ""
    assert "rounds =" not in printed.out  # which fedjax-dp run would take, with another algorithm and other data
    assert "the best of 2 settings compared: clip_norm 1.0" in printed.out
    assert "made in Python, so it has no configuration for fedjax-dp run" in " ".join(printed.out.split())


BAD = [
    (["best"], "sweep must be the folder of a sweep, got nothing"),
    (["best", "absent"], "sweep folder must be an existing folder, got absent; it is looked for in"),
    (["best", "sweep", "--epsilon-at-most", "0.5"], "epsilon_at_most must be at least 1, the smallest of the sweep"),
    (["plot", "sweep", "--kind", "heatmap"], "kind must be one of all, overview, axis"),
    (["plot", "sweep", "--x", "learning_rat"], "did you mean learning_rate?"),
    (["plot", "sweep", "--kind", "heat"], "one that this sweep has points for: overview, axis, privacy, curves, got h"),
    (["plot", "sweep", "--out", "all.png"], "out must be a folder for 4 pictures, got all.png"),
    (["plot", "sweep", "--kind", "curves", "--out", "no/c.png"], "in a folder that exists and can be written to"),
    (["plot", "sweep", "--kind", "curves", "--out", "c.jpg"], "out must be a folder, or a file that ends in .png"),
]


@pytest.mark.parametrize(("words", "expected"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input_ends_in_one_line_with_code_2(words, expected, capsys):
    sweep_folder(runnable())
    assert expected in command_refusal(capsys, *words)


def test_reading_a_sweep_loads_neither_jax_nor_pandas():
    modules = "fedjax_dp.sweeps.table, fedjax_dp.tools.figures.sweeps"
    code = f"import sys, {modules}; print({{'jax', 'pandas'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
