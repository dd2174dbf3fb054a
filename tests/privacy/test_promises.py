"""Guarantees of the catalogue do not change when the code around them does."""

import json
import pathlib

import pytest
from guarantee_cases import CHANGED, cases, told

from fedjax_dp.algorithms import PERSONAL

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "guarantees.json"


@pytest.mark.slow
@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_guarantees_of_the_catalogue_are_those_on_file(every):
    """Printed by the commit before parts stated their privacy facts; what the numbers rest on is tested elsewhere.
    Accountant rdp since looks around its best order: at most 0.03% less here.

    All entries in every view, by every kind of participation, with the options that change an event.
    """
    before = json.loads(GOLDEN.read_text())
    found = {name: case for name, *case in cases()}
    assert len(before) > 500
    assert not set(before) - set(found)
    assert {name.split(",")[0] for name in found if name not in before} == set(PERSONAL)  # which are counted elsewhere
    now = {name: told(*found[name]) for name in list(before)[::every]}
    assert not {name: (before[name], now[name]) for name in now if before[name] != now[name]}


@pytest.mark.parametrize("name", CHANGED)
def test_cohorts_that_follow_norms_are_paid_for_in_full(name):
    """What the norms tell is not covered at all, or counted, and then every round counts: X of another data set."""
    options, more = CHANGED[name]
    found = told("acs_pldp", {"clip_norm": 0.7, "noise_multiplier": 2.0, **options}, more)
    if "unnoised" in name:
        assert found.startswith("no epsilon: no event covers what the sampling probabilities reveal")
        return
    plain = told("acs_pldp", {"clip_norm": 0.7, "noise_multiplier": 2.0}, {"participation": "worst"})
    assert all(float(a) > float(b) for a, b in zip(found[1:], plain[1:]))
