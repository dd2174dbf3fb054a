"""What choosing among points costs: a number only where all that the points are compared by is released or public."""

import json

import numpy as np
import pytest
from helpers import quick, ragged_data
from sweep_points import point

import fedjax_dp as fdp
from fedjax_dp import cli
from fedjax_dp.pytrees import changed
from fedjax_dp.sweeps.winners import cost_by
from fedjax_dp.tasks.measures import Measure

PRIVATE = {"cohort_size": 2, "batch_size": 4, "local_steps": 1, "learning_rate": 0.1, "clip_norm": 1.0}
RATES = {"learning_rate": [0.05, 0.1, 0.2]}
WAYS = {
    "grid": {"axes": RATES},
    "halving": {"axes": RATES, "halving": 3},
    "random": {"axes": {"learning_rate": {"log": [0.01, 1.0]}}, "trials": 3},
    "tpe": {"axes": {"learning_rate": {"log": [0.01, 1.0]}}, "trials": 3, "search": "tpe"},
}


def swept(held_out, **way):
    data = ragged_data([12, 9, 11])
    if held_out:
        data = changed(data, test_clients=np.arange(len(data.x_test)) % 3)
    algorithm = fdp.dpnfl(**PRIVATE, noise_multiplier=2.0)
    return fdp.sweep(algorithm, data, rounds=3, evaluate_every=1, delta=1e-3, **way)


@pytest.mark.parametrize("way", quick(WAYS, ("grid",)))
def test_a_choice_by_records_that_clients_hold_out_has_no_epsilon(way):
    """One held-out label may decide who wins, and no released model says which."""
    cost = swept(True, **WAYS[way]).choosing
    assert cost["epsilon"] is None
    assert "records that clients hold out" in cost["short"]
    assert "test on public records" in cost["statement"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["grid", "halving", "random"])
def test_a_choice_by_public_records_costs_what_all_points_release(way):
    cost = swept(False, **WAYS[way]).choosing
    assert cost["epsilon"] == cost["epsilon_composition"] > cost["epsilon_single"]


@pytest.mark.slow
def test_a_grown_sweep_on_held_out_records_says_what_it_was_compared_by(tmp_path):
    for rates in ([0.05, 0.1], [0.05, 0.1, 0.2]):
        found = swept(True, axes={"learning_rate": rates}, out=tmp_path / "sweep")
    assert found.choosing["epsilon"] is None
    assert "records that clients hold out" in found.choosing["short"]


@pytest.mark.parametrize(("probe", "known"), [(False, True), (True, False)])
def test_a_metric_that_only_the_simulator_sees_has_no_cost_that_is_known(probe, known):
    cost = cost_by(Measure("name", "objective", -1, probe=probe), {"epsilon": 2.0, "short": "s", "statement": "s"})
    assert (cost["epsilon"] is not None) == known
    assert known or "objective, which only the simulator sees" in cost["short"]
    assert cost_by(Measure("name", "objective", -1, probe=probe), None) is None


def test_best_states_no_epsilon_for_a_choice_by_training_records(tmp_path, capsys):
    records = [point(at, {"learning_rate": rate, "seed": 0}, objective=at) for at, rate in enumerate((0.1, 0.2))]
    (tmp_path / "points.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    about = {"name": "sweep", "axes": ["learning_rate"], "points": 2}
    (tmp_path / "sweep.json").write_text(json.dumps(about))
    (tmp_path / "selection.json").write_text(json.dumps({"short": "choosing costs epsilon 2", "epsilon": 2.0}))
    for metric, words in (("test_accuracy", "choosing costs epsilon 2"), ("objective", "no epsilon is stated")):
        assert cli.main(["best", str(tmp_path), "--json", "--metric", metric]) == 0
        statement = json.loads(capsys.readouterr().out)["statement"]
        assert words in statement
        assert fdp.open_sweep(tmp_path).cost_by(metric)["short"] in statement
