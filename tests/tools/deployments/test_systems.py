"""Rows about other systems: verdict, reasons and both numbers as an independent oracle has them."""

import json
import math

import pytest
from helpers import SPECS

from fedjax_dp.tools.deployments import system_rows

GOLDEN = json.loads((SPECS / "other_systems.json").read_text())


@pytest.fixture(scope="module")
def rows():
    return {row.id: row for row in system_rows()}


def test_every_configuration_of_the_oracle_has_a_row(rows):
    assert set(rows) == set(GOLDEN["cases"])


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_verdict_reasons_and_numbers_are_those_of_the_oracle(rows, case):
    row, expected = rows[case], GOLDEN["cases"][case]
    assert row.verdict == expected["verdict"]
    assert set(row.reasons) == set(expected["reasons"])
    if expected["mechanism"] is None:
        assert row.check is None
        return
    alone, wanted = row.check.mechanism, expected["mechanism"]
    assert alone.unit.value == wanted["unit"]
    if wanted["epsilon"] is not None:
        assert alone.epsilon == pytest.approx(wanted["epsilon"], rel=0.01)
        assert alone.adjacency.value == wanted["adjacency"]
    elif "above" in wanted:
        assert alone.epsilon > wanted["above"]
    else:
        assert math.isinf(alone.epsilon)
    if expected["everything"] is not None:
        assert row.check.total.epsilon == pytest.approx(expected["everything"], rel=0.01)
    elif "above" not in wanted:  # there the oracle leaves digits out
        assert row.check.total is None
    stated = row.check.claim
    assert (None if stated is None else stated.epsilon) == expected["claim"]


def test_rows_are_about_a_commit_or_a_release_and_blame_nobody(rows):
    for row in rows.values():
        assert row.does.endswith(".")
        assert row.needs.endswith(".")
        assert not {"bug", "mistake", "fault", "careless", "wrongly"} & set(row.does.lower().split())
        if row.source.repository:
            assert row.source.commit or row.source.version, row.id
    json.dumps([row.to_dict() for row in rows.values()], allow_nan=False)
