"""The noise with the least error at a budget, against the tables of the specification."""

import json
import pathlib

import pytest

from fedjax_dp.accounting import Adjacency, Workload, least_error, noise_candidates

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "correlated.json"
CASES = [case for case in json.loads(GOLDEN.read_text())["cases"] if case["kind"] == "selector"]
NAMES = {"none": "white", "bands": "banded {}", "blt": "BLT {}", "inverse-root": "inverse root {}"}


def name_of(one):
    law = "cyclic" if not one.hidden else "Poisson" if one.kind == "none" else "cyclic Poisson"
    return f"{NAMES[one.kind].format(one.size)}, {law}"


def table_of(params, **changes):
    neighbours = Adjacency(params["adjacency"].replace("_", "-"))
    run = (params[name] for name in ("n", "population", "cohort", "epsilon", "delta"))
    workload, hidden = Workload(momentum=params["momentum"]), neighbours if params["secret"] else None
    return noise_candidates(*run, **{"hidden": hidden, "seen": neighbours, "workload": workload} | changes)


MARKS = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.exhaustive, pytest.mark.slow]  # ten seconds each


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case["id"], marks=mark) for case, mark in zip(CASES, MARKS, strict=True)]
)
def test_the_table_and_the_choice_are_those_of_the_specification(case):
    table = table_of(case["params"])
    found = {name_of(one): one for one in table}
    for name, (noise, error) in case["expect"]["table"].items():
        assert (found[name].noise, found[name].error) == pytest.approx((noise, error), rel=0.004), name
    best = least_error(table, case["params"]["vectors"])
    wanted = case["expect"]["table"][case["expect"]["choice"]][1]
    assert name_of(best) == case["expect"]["choice"] or best.error == pytest.approx(wanted, rel=0.004)


def test_what_is_kept_and_what_is_allowed_limit_the_choice():
    params = CASES[0]["params"] | {"n": 16, "population": 64, "cohort": 8, "epsilon": 4.0}
    quick = {"kinds": ("none", "bands", "inverse-root")}
    table = table_of(params, **quick)
    assert least_error(table, 0).vectors == 0
    assert least_error(table, 99).error <= least_error(table, 1).error
    assert {one.kind for one in table_of(params, kinds=("blt",), sizes=(1,))} == {"blt"}
    assert {one.hidden for one in table_of(params, seen=None, **quick)} == {True}
    assert {one.size for one in table_of(params, kinds=("bands",), sizes=(3,))} == {3}
    assert table_of(params, kinds=("bands",), sizes=(9,)) == []  # more than the 8 rounds from one to the next
