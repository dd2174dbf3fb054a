"""Options take what their types say, and refuse anything else in one line."""

import importlib

import numpy as np
import pytest
from helpers import refusal, thinned

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.algorithms.record_level import SECOND_MOMENTS
from fedjax_dp.experiments import groups
from fedjax_dp.options import from_text, of_function
from fedjax_dp.parts import choices
from fedjax_dp.privacy import terms

DIGITS = fdp.load("digits")
CLIENTS = fdp.federate(DIGITS, fdp.data.iid(DIGITS, [100] * 10))
MADE = {"cohort_size": 2, "batch_size": 4, "local_steps": 1, "learning_rate": 0.1, "clip_norm": 1.0}
ODD = ["", "x", "a\nb", b"x", -1, 0, 3.5, True, 2**70, 1e300, float("nan"), float("inf"), None, object(), fdp.dpnfl]
ODD += [[], {}, (), np.zeros(3), np.zeros((2, 2)), [[1], [2, 3]], DIGITS, fdp.dpnfl(**MADE, noise_multiplier=2.0)]


@pytest.mark.parametrize("name", thinned(fdp.CATALOGUE, ["dpnfl", "fedavg", "dp_fedavg", "ifca", "dp_ftrl"], 24))
def test_odd_options_of_entries_are_refused_in_one_line_or_taken(name):
    entry = fdp.CATALOGUE[name]
    right = {name: value for name, value in MADE.items() if name in entry.options}
    for name in entry.options:
        for odd in ODD:
            refused = ""
            try:
                fdp.rounds.simulation.check(entry(**{**right, name: odd}), CLIENTS, 3)
            except errors.ConfigurationError as error:
                refused = str(error)
            assert "\n" not in refused, (name, odd)


@pytest.mark.parametrize(
    ("written", "module", "table"),
    [
        (groups.ARCHITECTURES, "models", "ARCHITECTURES"),
        (terms.ACCOUNTANTS, "accounting", "ACCOUNTANTS"),
        (terms.VIEWS, "accounting", "View"),
        (tuple(choices.ESTIMATORS), "parts", "ESTIMATORS"),
        (tuple(choices.LOCAL_RULES), "parts", "LOCAL_RULES"),
        (tuple(choices.SCHEDULES), "schedules", "SCHEDULES"),
        (tuple(choices.NOISE_SCHEDULES)[1:], "schedules", "CHANGES"),
        (tuple(choices.SERVERS), "parts", "SERVERS"),
        (tuple(choices.AVERAGES)[1:], "parts", "AVERAGES"),
        (SECOND_MOMENTS, "parts", "SECOND_MOMENTS"),
    ],
)
def test_names_that_are_written_out_for_help_are_those_of_their_tables(written, module, table):
    names = getattr(importlib.import_module(f"fedjax_dp.{module}"), table)
    assert written == tuple(getattr(name, "value", name) for name in names)


def own(*, count: int, rate: float = 0.0, name: str | None = None, switch: bool = False, either: int | str = "auto"):
    """Options of every scalar type."""


OPTIONS = of_function(own)


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("count", 1.0, "count must be an integer, got 1.0"),
        ("count", True, "count must be an integer, got True"),
        ("count", 2**63, "count must be below 2^63 in size"),
        ("rate", "1", "rate must be a number, got '1'"),
        ("name", 3, "name must be text, got 3"),
        ("name", "", "name must be given, got an empty word"),
        ("switch", 1, "switch must be true or false, got 1"),
        ("either", 1.5, "either must be an integer or text, got 1.5"),
    ],
)
def test_another_type_is_refused(name, value, line):
    assert line in refusal(OPTIONS[name].typed, value)
    assert line in refusal(OPTIONS[name].check, value)


@pytest.mark.parametrize(("share", "refused"), [(0.1, True), (0.0, False), (1.5, False)])
def test_a_share_in_the_place_of_a_count_is_refused_with_the_count(share, refused):
    for line in (refusal(OPTIONS["count"].typed, share), refusal(from_text, "--count", str(share), OPTIONS["count"])):
        assert line.endswith("10% of 100 are 10") == refused
    assert refusal(from_text, "--count", "10%", OPTIONS["count"]).endswith("10% of 100 are 10")


def test_numbers_of_numpy_become_those_of_python():
    for name, value, wanted in (("count", np.int64(3), 3), ("rate", np.float32(0.5), 0.5), ("rate", 2, 2.0)):
        found = OPTIONS[name].typed(value)
        assert (found, type(found)) == (wanted, type(wanted))
