"""Ledgers are what was written, or refused in one line."""

import json
import re

import numpy as np
import pytest
from helpers import refusal

from fedjax_dp import errors
from fedjax_dp.models import read_start
from fedjax_dp.models.origins import (
    ARRAY,
    RUN,
    Origin,
    longest_lines,
    phases_of,
    values_digest,
    with_parameters,
    with_phase,
)

FACTS = {
    "kind": RUN,
    "algorithm": "dpnfl",
    "dataset": "digits",
    "rounds": 3,
    "epsilon": 1.5,
    "delta": 1e-3,
    "clients": {"count": 2},
    "records": {"count": 5},
}
VALUES = {"w": np.ones((2, 3), np.float32)}


def ledger(**changes):
    return with_phase("", FACTS | {"parameters": values_digest(VALUES)} | changes)


def saved(path, told):
    np.savez(path, **VALUES, **{ARRAY: np.frombuffer(told, np.uint8)})
    return path


def test_lines_of_phases_stay_as_they_are():
    first = ledger()
    second = with_phase(first, FACTS | {"dataset": "others", "continues": [1]})
    assert second.startswith(first)
    before, after = phases_of(second, "x")
    assert (before["dataset"], after["dataset"]) == ("digits", "others")
    assert "a phase that it goes on from left out" in refusal(phases_of, second.splitlines()[1], "x")


def test_a_ledger_with_which_another_begins_stands_in_that_alone():
    first, other = (Origin("a", "ab", ledger=ledger(dataset=name)) for name in ("digits", "others"))
    second = Origin("b", "ab", ledger=with_phase(first.ledger, FACTS))
    assert longest_lines([first, second, other, first]) == [second.lines, other.lines]


def test_a_ledger_of_a_folder_gets_the_name_of_its_parameters():
    known, bare = ledger(), with_phase("", FACTS)
    assert with_parameters(known, VALUES, "x", exported=True) == known
    (phase,) = phases_of(with_parameters(bare, VALUES, "x", exported=False), "x")
    assert phase["parameters"] == values_digest(VALUES)


def test_values_without_a_ledger_are_a_phase_of_which_words_are_known():
    (phase,) = Origin("w.npz", "ab", trained_on="drawings").phases
    assert (phase["name"], phase["trained_on"], phase["private"]) == ("w.npz", "drawings", None)


def changed(**changes):
    return json.dumps(json.loads(ledger()) | changes)


HOSTILE = {
    "empty": "",
    "blank": "\n\n",
    "no JSON": "{",
    "a list": "[]",
    "a number": "7",
    "deep": "[" * 200_000,
    "deep within": '{"ledger":2,"kind":"run","clients":' + '{"a":' * 900 + "1" + "}" * 901,
    "cut": ledger()[:-20],
    "cut in the second line": with_phase(ledger(), FACTS)[:-20],
    "what was spent as text": ledger(spent="all"),
    "NaN": ledger().replace("1.5", "NaN"),
    "infinite": ledger().replace("1.5", "1e999"),
    "many digits": ledger().replace('"rounds":3', '"rounds":' + "9" * 5000),
    "later": changed(ledger=3),
    "of before": changed(ledger=1),
    "no version": changed(ledger=None),
    "text for a number": changed(epsilon="0.1"),
    "truth for a number": changed(rounds=True),
    "no records": changed(records=None),
    "another kind": changed(kind="walk"),
    "kind of none": changed(kind=["run"]),
    "other parameters": ledger(parameters="0" * 64),
    "of a folder, which names none": ledger(parameters=None),
    "no number of clients": ledger(clients={}),
    "going on from what is not there": ledger(continues=[1]),
    "going on from itself": ledger(continues=[0]),
    "going on from a name": ledger(continues=["0" * 64]),
    "no text": b"\xff\xfe",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_ledgers_are_refused_in_one_line(tmp_path, kind):
    told = HOSTILE[kind]
    path = saved(tmp_path / "a.npz", told if isinstance(told, bytes) else told.encode())
    with pytest.raises(errors.ConfigurationError, match=r"must be|a\.npz") as caught:
        read_start(path)
    assert re.fullmatch(r"[^\n]{1,400}", str(caught.value))


def test_a_ledger_that_is_no_row_of_bytes_is_refused(tmp_path):
    for array in (np.zeros((2, 2), np.uint8), np.zeros(3), np.array("{}")):
        np.savez(tmp_path / "a.npz", **VALUES, **{ARRAY: array})
        assert "a ledger as bytes" in refusal(read_start, tmp_path / "a.npz")


def test_parameters_that_were_changed_since_are_not_those_of_the_ledger(tmp_path):
    path = saved(tmp_path / "a.npz", ledger().encode())
    assert read_start(path).origin.ledger == ledger()
    np.savez(path, w=VALUES["w"] * 1.01, **{ARRAY: np.frombuffer(ledger().encode(), np.uint8)})
    assert "one of other parameters" in refusal(read_start, path)
