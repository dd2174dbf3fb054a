"""Clients' own models against training alone and a shared model, as a sweep holds them."""

import json
import pathlib

import numpy as np
import pytest
import sweep_points
from helpers import command_output, command_refusal, refusal
from sweep_points import textbook_interval

import fedjax_dp as fdp
from fedjax_dp.rounds.comparison import gain, standing
from fedjax_dp.sweeps.comparison import compare
from fedjax_dp.tools import cli
from fedjax_dp.tools.reports.sweeps import comparison_section


def point(algorithm, values, *, epsilon=1.0, strength=None, seed=0, view="deployed"):
    """A point of a sweep folder, with the metric of each client."""
    of = {"algorithm": algorithm, "epsilon": epsilon, "strength": strength, "seed": seed}
    clients = {"own": algorithm != "dpnfl", "values": [*values, None], "records": [4, 2, 0]}
    made = sweep_points.point(0, of, (0.5,), config={"epsilon": epsilon})
    return made | {"clients": clients, "guarantee": {"epsilon": epsilon, "view": view, "delta": 1e-3}}


AXES = ["algorithm", "epsilon", "strength"]
POINTS = [
    point("local", [0.5, 1.0]),
    point("dpnfl", [0.75, 0.0]),
    point("mr_mtl", [0.75, 0.5], strength=0.1),
    point("mr_mtl", [0.25, 0.5], strength=9.0),
]


def test_the_best_setting_of_an_algorithm_stands_against_the_better_of_local_and_shared():
    found = fdp.sweeps.Sweep("mine", tuple(AXES), tuple(POINTS)).comparison()
    row = next(row for row in found.rows if row.algorithm == "mr_mtl")
    assert row.values == {"strength": 0.1}
    assert row.settings == 2
    values, records = np.array([0.75, 0.5, np.nan]), np.array([4, 2, 0])
    assert row.standing == standing(values, records)
    assert row.standing.pooled == pytest.approx((0.75 * 4 + 0.5 * 2) / 6)
    others = [np.array([0.5, 1.0, np.nan]), np.array([0.75, 0.0, np.nan])]
    assert row.against == gain(values, others, records)
    assert row.against == (0.5, 0.25)
    assert all(row.against is None for row in found.rows if row.algorithm != "mr_mtl")
    assert json.dumps(found.to_dict())


def test_means_and_regrets_have_intervals_over_seeds():
    more = [point("local", [0.4, 0.9], seed=1), point("dpnfl", [0.7, 0.1], seed=1), point("mr_mtl", [0.8, 0.4], seed=1)]
    found = compare(
        [
            *POINTS[:3],
            *(
                one | {"values": one["values"] | {"strength": POINTS[at]["values"]["strength"]}}
                for at, one in enumerate(more)
            ),
        ],
        AXES,
    )
    row = next(row for row in found.rows if row.algorithm == "mr_mtl")
    np.testing.assert_allclose(row.means[:4], textbook_interval([0.625, 0.6]))
    np.testing.assert_allclose(row.regrets[:4], textbook_interval([(0.0 + 0.5) / 2, (-0.1 + 0.5) / 2]))
    told = next(one for one in found.to_dict()["rows"] if one["algorithm"] == "mr_mtl")
    assert (told["mean_low"], told["regret_high"], told["seeds"]) == (row.means.low, row.regrets.high, 2)
    each = found.one_by_one(1.0)
    assert set(each) == {"local", "dpnfl", "mr_mtl"}  # every entry
    np.testing.assert_allclose(each["mr_mtl"], [[0.0, -0.5, np.nan], [0.1, -0.5, np.nan]])
    np.testing.assert_allclose(each["local"], [[-0.25, 0.0, np.nan], [-0.3, 0.0, np.nan]])
    assert all(row.means.seeds == 1 and np.isnan(row.regrets.low) for row in compare(POINTS, AXES).rows)


def test_the_clients_of_every_algorithm_are_drawn():
    found = fdp.sweeps.Sweep("mine", tuple(AXES), tuple(POINTS)).plot(kind="personalisation")
    _, right = found.axes
    assert [label.get_text() for label in right.get_yticklabels()] == ["dpnfl", "local", "mr_mtl"]
    assert [len(dots.get_offsets()) for dots in right.collections[::2]] == [2, 2, 2]


def test_an_interval_of_differences_ends_where_these_do():
    """Of two seeds, Student's t makes it many times as long."""
    seeds = [(seed, float(seed)) for seed in (0, 1)]
    points = [point(name, [own, own], seed=seed) for name in ("local", "mr_mtl") for seed, own in seeds]
    points += [point("dpnfl", [1.0, 1.0], seed=seed) for seed, _ in seeds]
    _, right = fdp.sweeps.Sweep("mine", tuple(AXES), tuple(points)).plot(kind="personalisation").axes
    ends = np.concatenate([np.concatenate(bar.get_segments())[:, 0] for bar in right.collections[1::2]])
    assert (ends.min(), ends.max()) == (-100.0, 100.0)


@pytest.mark.parametrize(
    ("points", "axes", "told"),
    [
        ([one | {"status": "failed"} for one in POINTS], AXES, "points of the sweep must be some of each algorithm"),
        (POINTS, ["epsilon"], "axes of the sweep must be algorithm and others"),
        (POINTS[1:], AXES, "must be local, one with a shared model, and others"),
        ([POINTS[0], *POINTS[2:]], AXES, "must be local, one with a shared model, and others"),
        ([*POINTS, point("ditto", [0.5, 0.5], view="uploads")], AXES, "view of ditto must be deployed"),
        ([*POINTS, point("ditto", [0.5, 0.5]) | {"clients": None}], AXES, "test records of clients must be some"),
        ([point("local", [0.5, 1.0], epsilon="1,2")], AXES, "epsilon of the sweep must be one budget for all clients"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(points, axes, told):
    assert told in refusal(compare, points, axes)


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        ('view = "deployed"', "", "view of the sweep must be deployed"),
        ("algorithm, strength", "proximal, strength", "axes of the sweep must be algorithm and others"),
    ],
)
def test_a_sweep_that_could_not_be_compared_is_not_run(was, now, told, tmp_path, capsys):
    pathlib.Path("mine.toml").write_text(SWEEP.replace(was, now))
    assert told in command_refusal(capsys, "compare", "mine.toml")
    assert not (tmp_path / "sweeps").exists()


def test_the_report_of_a_sweep_has_its_comparison_and_no_other_has_one():
    (section,) = comparison_section(POINTS, AXES)
    html = "".join(block.html() for block in section.blocks)
    assert "mr_mtl, strength 0.1" in html
    assert "50.0%" in html  # of clients no worse than both
    assert "25.0%" in html  # of accuracy lost on average
    assert comparison_section(POINTS, ["epsilon"]) == []


SWEEP = """
seeds = 2
[base]
dataset = "digits"
holdout = 0.2
view = "deployed"
rounds = 2
local_steps = 2
epsilon = 8.0
[axes]
"algorithm, strength" = [["local"], ["dp_fedavg_local"], ["mr_mtl", 0.5], ["mr_mtl", 2.0]]
"""


@pytest.mark.exhaustive
def test_a_sweep_is_compared_by_the_command_line(tmp_path, capsys):
    pathlib.Path("mine.toml").write_text(SWEEP)
    told = json.loads(command_output(capsys, "compare", "mine.toml", "--json").out)
    assert [row["algorithm"] for row in told["rows"]] == ["dp_fedavg_local", "local", "mr_mtl"]
    assert all(row["view"] == "deployed" for row in told["rows"])
    assert told["choosing"]["epsilon"] is None  # clients hold the records that choose lambda
    assert (tmp_path / "sweeps/mine/compare.png").stat().st_size > 10_000
    assert cli.main(["compare", "sweeps/mine"]) == 0
    assert "regret is to the better of local and the best shared one" in capsys.readouterr().out
    assert cli.main(["compare", "sweeps/mine", "--out", "a.txt"]) == 2
    assert cli.main(["compare"]) == 0  # the last one


def test_where_all_points_have_own_models_these_decide():
    def tuned(strength, shared, own):
        told = {"round": 1, "test_accuracy": shared, "test_loss": 1.0, "personal_mean": own}
        return point("mr_mtl", [own, own], strength=strength) | {"history": [told], "index": int(strength)}

    points = (tuned(1.0, 0.9, 0.4), tuned(2.0, 0.3, 0.6))
    chosen = fdp.sweeps.Sweep("mine", tuple(AXES), points).best()
    assert (chosen.metric, chosen.values["strength"]) == ("personal_mean", 2.0)
    both = (*points, point("dpnfl", [0.5, 0.5]))
    assert fdp.sweeps.Sweep("mine", tuple(AXES), both).best().metric == "test_accuracy"  # of no client is it known
    served = {"round": 1, "test_accuracy": 0.1, "test_loss": 1.0, "client_mean": 0.7, "personal_mean": None}
    mixed = fdp.sweeps.Sweep("mine", tuple(AXES), (*points, both[-1] | {"history": [served], "index": 3}))
    assert (mixed.best().metric, mixed.best().values["algorithm"]) == ("personal_mean", "dpnfl")
