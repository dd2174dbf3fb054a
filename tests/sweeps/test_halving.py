"""Successive halving: who goes on, what it costs, and that nothing of a point depends on it but where it stops."""

import itertools
import json
import math

import numpy as np
import pytest
from helpers import ragged_data, refusal
from small_runs import QUIET, Stopped
from sweep_points import of_all_but_times, point, recorded

import fedjax_dp as fdp
from fedjax_dp.accounting import View
from fedjax_dp.models import logistic_regression
from fedjax_dp.pytrees import equal
from fedjax_dp.sweeps import selection_cost
from fedjax_dp.sweeps.folder import read_own
from fedjax_dp.sweeps.halving import Halving, Rung, is_done_until, key_of, rungs_of
from fedjax_dp.sweeps.plan import SweepConfig, digest, to_toml
from fedjax_dp.sweeps.records import SWEEP_FOLDER, read_records
from fedjax_dp.tools import cli

AXES = ("learning_rate",)


def by_definition(settings, rounds, eta):
    """Jamieson and Talwalkar 2016: rounds of the rungs, and settings that are left after each, in real numbers."""
    steps = 0
    while eta ** (steps + 1) <= settings and eta ** (steps + 1) <= rounds:
        steps += 1
    return [(rounds / eta ** (steps - step), settings // eta ** (step + 1)) for step in range(steps)]


@pytest.mark.parametrize(
    ("settings", "rounds", "eta"), list(itertools.product((3, 9, 26, 27, 100), (3, 27, 100), (2, 3, 4)))
)
def test_rungs_stand_at_the_next_evaluation_and_leave_a_geometric_number(settings, rounds, eta):
    want = by_definition(settings, rounds, eta)
    got = rungs_of(settings, range(1, rounds + 1), eta)
    assert {(rung.round, settings // rung.divisor) for rung in got} <= {(math.ceil(at), left) for at, left in want}
    assert {rung.round for rung in got} == {math.ceil(at) for at, _ in want if math.ceil(at) < rounds}
    assert all(rung.evaluations == rung.round for rung in got)
    assert [rung.round for rung in got] == sorted({rung.round for rung in got})
    for rung in got:  # of several at one evaluation the last
        assert settings // rung.divisor == min(left for at, left in want if math.ceil(at) == rung.round)


def test_rungs_between_evaluations_wait_for_the_next():
    assert rungs_of(27, [5, 10, 15, 20, 25, 30], 3) == [Rung(1, 5, 9), Rung(2, 10, 27)]
    assert rungs_of(27, [30], 3) == []


def test_the_best_means_over_seeds_go_on_and_lost_seeds_do_not():
    """The slow way in NumPy; the last round, which some have seen already, plays no part."""
    accuracies = np.random.default_rng(0).uniform(size=(9, 2, 2))  # settings, seeds, evaluations
    records = [
        point(2 * at + seed, {"learning_rate": at, "seed": seed}, accuracies[at, seed], "done")
        for at, seed in itertools.product(range(9), range(2))
    ]
    best = int(np.argmax(accuracies[:, :, 0].mean(1)))
    records[2 * best + 1] |= {"status": "diverged", "reason": "no number", "history": []}
    order = [at for at in np.argsort(-accuracies[:, :, 0].mean(1)).tolist() if at != best]
    rule = Halving(3, AXES, (Rung(1, 10, 3),), 20, {key_of({}, ("epsilon", "algorithm")): 9}, 2)
    assert rule.survivors(records, rule.rungs[0]) == {key_of({"learning_rate": at}, AXES) for at in order[:3]}
    short = [record | {"history": record["history"][:1], "status": "stopped"} for record in records]
    short[2 * best + 1] = records[2 * best + 1]
    assert rule.survivors(short, rule.rungs[0]) == rule.survivors(records, rule.rungs[0])


def test_each_budget_keeps_its_best():
    values = [{"epsilon": e, "learning_rate": r, "seed": 0} for e in (0.1, 10.0) for r in (1, 2, 3)]
    records = [point(at, one, [one["epsilon"] / 20 + one["learning_rate"] / 100]) for at, one in enumerate(values)]
    rule = Halving.of(values, [(10, 20, 30)] * 6, 3, 1)
    assert [rung.round for rung in rule.rungs] == [10]
    assert rule.survivors(records, rule.rungs[0]) == {
        key_of({"epsilon": e, "learning_rate": 3}, ("epsilon", "learning_rate")) for e in (0.1, 10.0)
    }
    assert (rule.num_survivors(-1), rule.num_survivors(0)) == (6, 2)
    assert rule.share == pytest.approx((6 * 10 + 2 * 20) / (6 * 30))


def test_a_point_is_left_to_run_up_to_where_it_stands():
    stopped = point(0, {"seed": 0}, (0.1, 0.2), "stopped")
    assert [is_done_until(stopped, until) for until in (10, 20, 30)] == [True, True, False]
    assert is_done_until(stopped | {"status": "diverged"}, 30)
    assert not is_done_until(stopped | {"status": "failed"}, 10)
    assert not is_done_until(None, 1)


def test_what_cannot_be_halved_is_refused():
    values = [{"learning_rate": rate, "seed": 0} for rate in (1, 2)]
    assert "a rung comes before the last round" in refusal(lambda: Halving.of(values, [(1, 2)] * 2, 3, 1))
    assert "rounds or evaluate_every vary" in refusal(lambda: Halving.of(values, [(1, 2), (2,)], 2, 1))
    for wrong in (1, 0, -3):
        assert "halving must be an integer from 2" in refusal(lambda wrong=wrong: sweep_of(halving=wrong))
    for wrong in (True, 2.5, "3"):
        assert "halving must be an integer" in refusal(lambda wrong=wrong: sweep_of(halving=wrong))
    config = sweep_of(halving=3)
    assert "ray must be left out with halving" in refusal(
        lambda: fdp.sweeps.run_sweep(config, "x", ray="local", screen=QUIET)
    )


def sweep_of(**more):
    base = {"dataset": "digits", "rounds": 3, "algorithm": "fedavg"}
    return SweepConfig(base=base, axes={"learning_rate": [0.1, 0.2, 0.3]}, **more)


def test_a_file_names_halving_and_a_digest_distinguishes_it(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(to_toml(sweep_of(halving=3)))
    assert fdp.sweeps.read_sweep(path) == sweep_of(halving=3)
    assert digest(sweep_of(halving=3)) != digest(sweep_of())
    path.write_text(to_toml(sweep_of()))
    assert "halving" not in path.read_text()
    assert fdp.sweeps.read_sweep(path, halving=2) == sweep_of(halving=2)


def test_a_sweep_with_halving_does_not_grow(tmp_path):
    about = {"digest": "one", "axes": [], "points": 9, "name": "x", "versions": {}, "device": {}}
    record = point(0, {"seed": 0})
    SWEEP_FOLDER.write(tmp_path, about | {"halving": 3})
    (tmp_path / "points.jsonl").write_text(json.dumps(record) + "\n")
    plan = {record["point"]: (0, record["values"])}
    for other in (about | {"digest": "two", "halving": 3, "points": 12}, about | {"digest": "two"}):
        assert "does not grow" in refusal(lambda other=other: read_own(tmp_path, other, plan))
    assert read_own(tmp_path, about | {"halving": 3}, plan)[1] == [record]


def test_of_a_points_lines_the_first_that_ended_counts_else_the_last(tmp_path):
    SWEEP_FOLDER.write(tmp_path, {"axes": [], "digest": "0"})
    short, long = (point(0, {"seed": 0}, [0.1] * n, "stopped") for n in (1, 2))
    ended, failed = point(0, {"seed": 0}, [0.1] * 3), point(0, {"seed": 0}, [], "failed")
    for lines, counts in (
        ((short, long), long),
        ((short, failed), failed),
        ((failed, short), short),
        ((short, ended, failed), ended),
        ((ended, short), ended),
    ):
        (tmp_path / "points.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert read_records(tmp_path)[1] == [counts]


def test_results_that_are_not_released_have_no_epsilon_of_the_choice():
    """A stop by what the adversary's view does not have is no function of what was counted."""
    assert selection_cost._unreleased_reason([], View.UPLOADS, "halving") is None
    for view in (View.FINAL_MODEL, View.OWNER, View.DEPLOYED):
        assert "models of rounds" in selection_cost._unreleased_reason([], view, "halving")


# Whole sweeps: 9 settings with 2 seeds, of which 3 and then 1 go on.

OPTIONS = {"rounds": 9, "seeds": 2, "epsilon": 8.0, "delta": 1e-2, "evaluate_every": 1, "progress": False}
GRID = {"learning_rate": [0.03, 0.1, 0.3], "clip_norm": [0.3, 1.0, 3.0]}


def swept(out=None, **more):
    data = ragged_data([4, 6, 5, 8, 7])
    algorithm = fdp.dpnfl(cohort_size=3, batch_size=2, local_steps=3, learning_rate=0.3, clip_norm=1.0)
    return fdp.sweep(algorithm, data, axes=GRID, model=logistic_regression((3,), 3), out=out, **OPTIONS, **more)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same sweep with all points to their end, and with halving."""
    where = tmp_path_factory.mktemp("halving")
    return swept(where / "whole"), swept(where / "halved", halving=3)


@pytest.mark.slow
def test_survivors_equal_the_whole_sweep_and_others_its_beginning_bit_for_bit(both):
    whole, halved = both
    ends = {}
    for one, other in zip(whole.records, halved.records, strict=True):
        rounds = len(other["history"])
        ends.setdefault(rounds, []).append(other)
        assert other["history"] == one["history"][:rounds]
        assert other["guarantee"] == one["guarantee"]  # of the planned end: a stop claims no less
        if other["status"] == "done":
            assert of_all_but_times([one]) == of_all_but_times([other])
            assert equal(whole.params(one), halved.params(other))
    assert {rounds: len(points) for rounds, points in ends.items()} == {1: 12, 3: 4, 9: 2}
    assert {one["status"] for one in ends[1] + ends[3]} == {"stopped"}
    assert {one["reason"] for one in ends[3]} == {"after 3 of 9 rounds"}
    seen = np.array([[each["test_accuracy"] for each in one["history"]] for one in whole.records])
    means = seen.reshape(9, 2, 9).mean(1)  # settings, rounds: the rule by hand, on the whole sweep
    third = np.argsort(-means[:, 0], kind="stable")[:3]
    best = max(sorted(third), key=lambda at: means[at, 2])
    assert {one["index"] // 2 for one in ends[9]} == {best}


@pytest.mark.slow
def test_the_choice_costs_at_most_what_all_points_to_their_end_do(both):
    whole, halved = (one.choosing for one in both)
    assert halved["epsilon"] == whole["epsilon"] == whole["epsilon_composition"]
    assert halved["epsilon_repetition"] is None
    assert "costs at most" in halved["short"]
    assert "counted to their planned end" in halved["statement"]


@pytest.mark.slow
def test_tables_and_the_best_mark_what_was_stopped(both, capsys):
    _, halved = both
    assert halved.best().excluded == {"stopped by halving": 8}
    assert halved.best().failed == 0
    table = halved.table().groupby("status")["point"].nunique()
    assert table.to_dict() == {"done": 2, "stopped": 16}
    assert cli.main(["best", str(halved.folder), "--by", "clip_norm"]) == 0
    assert "the mean of the best is optimistic" in capsys.readouterr().out  # though one setting alone came to its end
    assert cli.main(["best", str(halved.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["excluded"] == {"stopped by halving": 8}


@pytest.mark.slow
@pytest.mark.parametrize(
    "points", [21, *(pytest.param(many, marks=pytest.mark.exhaustive) for many in (5, 18, 24, 25))]
)
def test_a_sweep_killed_inside_a_rung_goes_on_to_the_same_end(both, points, tmp_path):
    """In the first rung, between two, in the second, and in the last; 18 + 6 + 2 stretches of points are run."""
    with recorded(stop=points), pytest.raises(Stopped):
        swept(tmp_path / "x", halving=3)
    again = swept(tmp_path / "x", halving=3)
    assert of_all_but_times(again.records) == of_all_but_times(both[1].records)
    assert len((tmp_path / "x" / "points.jsonl").read_text().splitlines()) == 18 + 6 + 2  # nothing twice
    assert again.choosing == both[1].choosing
