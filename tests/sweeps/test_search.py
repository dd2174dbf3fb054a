"""Search by TPE: the same seed and results give the same trials, however often it is begun again."""

import dataclasses
import importlib.util
import itertools
import json
import math

import pytest
from helpers import ragged_data, refusal
from small_runs import QUIET, Stopped
from sweep_points import of_all_but_times, point, recorded

import fedjax_dp as fdp
from fedjax_dp.sweeps.plan import SweepConfig, read_sweep, to_toml
from fedjax_dp.sweeps.preparation import Sources
from fedjax_dp.sweeps.records import read_records
from fedjax_dp.sweeps.search import search_of
from fedjax_dp.sweeps.sweep import run_sweep

BASE = {"dataset": "digits", "rounds": 2, "local_steps": 1, "algorithm": "fedavg"}
AXES = {"learning_rate": {"log": [0.001, 10.0]}, "cohort_size": {"linear": [1, 9]}, "batch_size": [5, 20]}
CONFIG = SweepConfig(base=BASE, axes=AXES, seeds=(0, 1), trials=20, search="tpe", search_batch=6)
SOURCES = Sources()

with_optuna = pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None, reason="Optuna is not installed: pip install fedjax-dp[search]"
)


def result(one):
    """A made result of a point: best at rate 0.1 and batches of 20, and a little better with the seed."""
    values = one.values
    accuracy = 0.8 - 0.1 * math.log10(values["learning_rate"] / 0.1) ** 2 + 0.1 * (values["batch_size"] == 20)
    made = point(one.index, values, [accuracy + 0.01 * values["seed"]], epsilon=None)
    return made | {"point": one.id}


def searched(config, found=None, lost=()):
    """The records of a whole search with made results."""
    search, found = search_of(config, SOURCES), dict(found or {})
    while left := search.next_points(found):
        for one in left:
            found[one.id] = result(one)
            if one.index in lost:
                found[one.id] |= {"status": "diverged", "reason": "no number", "history": []}
    return search, found


def in_order(found):
    return [record["values"] for record in sorted(found.values(), key=lambda record: record["index"])]


@with_optuna
def test_trials_are_in_their_ranges_and_learn_from_those_before():
    search, found = searched(CONFIG)
    trials = in_order(found)[::2]
    assert len(trials) == 20
    assert [record["values"]["seed"] for record in found.values()] == [0, 1] * 20
    assert sorted(record["index"] for record in found.values()) == list(range(40))
    for trial in trials:
        assert 0.001 <= trial["learning_rate"] == float(f"{trial['learning_rate']:.6g}") <= 10
        assert trial["cohort_size"] in range(1, 10)
        assert trial["batch_size"] in (5, 20)
    off = [abs(math.log10(trial["learning_rate"] / 0.1)) for trial in trials]
    assert sum(off[-8:]) < sum(off[:8])
    assert search.next_points(found) == []


@with_optuna
@pytest.mark.parametrize("held", [0, 1, 12, 13, 25, 40])
def test_a_search_that_was_stopped_anywhere_goes_on_to_the_same_trials(held):
    _, whole = searched(CONFIG, lost=(4, 15))
    first = dict(itertools.islice(whole.items(), held))
    _, again = searched(CONFIG, first, lost=(4, 15))
    assert in_order(again) == in_order(whole)
    left = search_of(CONFIG, SOURCES).next_points(first)
    assert not {one.id for one in left} & set(first)
    assert len(left) == (0 if held == 40 else min(12 - held % 12, 40 - held))


@with_optuna
def test_other_seeds_and_other_results_give_other_trials():
    _, whole = searched(CONFIG)
    others = searched(dataclasses.replace(CONFIG, search_seed=1))[1]
    assert in_order(others)[0] != in_order(whole)[0]
    assert in_order(searched(CONFIG, lost=range(10, 20))[1])[-1] != in_order(whole)[-1]


@with_optuna
def test_more_trials_begin_with_those_of_fewer():
    more = dataclasses.replace(CONFIG, trials=23)
    _, whole = searched(CONFIG)  # whose last batch has 2 trials
    _, grown = searched(more, whole)
    assert in_order(grown)[:40] == in_order(whole)
    assert in_order(grown) == in_order(searched(more)[1])


@with_optuna
def test_a_trial_that_was_there_is_not_run_again():
    few = SweepConfig(base=BASE, axes={"batch_size": [5, 20]}, trials=9, search="tpe", search_batch=4)
    search, found = search_of(few, SOURCES), {}
    while left := search.next_points(found):
        found |= {one.id: point(one.index, one.values, [0.1], epsilon=None) | {"point": one.id} for one in left}
    assert len(search.points) == len(found) == 2


def test_without_optuna_one_line_names_the_extra(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "optuna" else real(name))
    assert 'pip install "fedjax-dp[search]"' in refusal(lambda: search_of(CONFIG, SOURCES))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"trials": None, "axes": {"learning_rate": [0.1]}}, "search must be left out without trials, got tpe"),
        ({"halving": 3}, "halving must be left out with search tpe"),
        ({"trials_law": "poisson"}, "trials_law must be fixed with search tpe"),
        ({"search": "tpo"}, "did you mean tpe"),
        ({"search_batch": 0}, "search_batch must be an integer from 1"),
        ({"search": "random"}, "search_batch must be left out of a search at random"),
        ({"axes": {}}, "trials must be left out without axes"),
    ],
)
def test_what_is_no_search_is_refused(more, words):
    options = {"base": BASE, "axes": AXES, "trials": 20, "search": "tpe", "search_batch": 6}
    assert words in refusal(lambda: SweepConfig(**options | more))


def test_a_file_names_the_search(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(to_toml(CONFIG))
    assert read_sweep(path) == CONFIG
    path.write_text('[axes]\nlearning_rate = { log = [0.1, 1.0] }\n[base]\ndataset = "digits"\n')
    assert read_sweep(path, search="tpe", trials=9).trials == 9
    assert "trials" in refusal(lambda: read_sweep(path))
    assert "search =" not in to_toml(SweepConfig(base=BASE, axes=AXES, trials=20))


@with_optuna
@pytest.mark.slow
def test_python_searches_a_value_in_memory_and_in_a_folder_that_goes_on(tmp_path):
    data, words = ragged_data([4, 6, 5]), {"cohort_size": 2, "batch_size": 2, "local_steps": 1, "learning_rate": 0.1}
    algorithm, other = fdp.fedavg(**words), fdp.fedavg(**words | {"local_steps": 2})
    axes = {"learning_rate": {"log": [0.01, 10.0]}}
    search = {"search": "tpe", "search_batch": 2, "axes": axes, "rounds": 1, "progress": False}

    def rates(sweep):
        return [record["values"]["learning_rate"] for record in sweep.records]

    whole = fdp.sweep(algorithm, data, trials=4, **search)
    few, more = (fdp.sweep(algorithm, data, trials=trials, out=tmp_path / "x", **search) for trials in (2, 4))
    assert rates(few) == rates(whole)[:2]
    assert rates(more) == rates(whole)
    assert len(set(rates(whole))) == 4
    assert [record["history"] for record in more.records] == [record["history"] for record in whole.records]
    assert read_records(tmp_path / "x")[0]["points"] == 4
    assert "a folder of another sweep" in refusal(fdp.sweep, other, data, trials=4, out=tmp_path / "x", **search)


@with_optuna
@pytest.mark.slow
def test_a_killed_search_goes_on_in_its_folder_and_has_no_epsilon_of_the_choice(tmp_path):
    base = BASE | {"algorithm": "dpnfl", "epsilon": 8.0, "num_clients": 5, "cohort_size": 2, "rounds": 1}
    few = {"axes": {"learning_rate": {"log": [0.01, 1.0]}}, "search": "tpe", "search_batch": 3}
    more = SweepConfig(base=base, trials=6, **few)
    with recorded(stop=4), pytest.raises(Stopped):
        run_sweep(more, tmp_path / "x", screen=QUIET)
    whole = run_sweep(more, tmp_path / "whole", screen=QUIET)
    again = run_sweep(more, tmp_path / "x", screen=QUIET)
    assert of_all_but_times(again.records) == of_all_but_times(whole.records)
    assert len((tmp_path / "x/points.jsonl").read_text().splitlines()) == 6
    assert again.choosing["epsilon"] is None
    assert "trials were chosen by the results of those before" in again.choosing["short"]
    assert read_records(tmp_path / "x")[0]["points"] == 6
    assert fdp.open_sweep(tmp_path / "x").best().considered == 6
    held = json.loads((tmp_path / "x/sweep.json").read_text())
    assert run_sweep(more, tmp_path / "x", screen=QUIET).records == again.records
    assert json.loads((tmp_path / "x/sweep.json").read_text()) == held
    other = SweepConfig(base=base, trials=6, search_seed=1, **few)
    assert "a folder of another sweep" in refusal(lambda: run_sweep(other, tmp_path / "x", screen=QUIET))
