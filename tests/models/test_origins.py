"""Ledgers are what was written, or refused in one line."""

import json
import re

import numpy as np
import pytest

from fedjax_dp import errors
from fedjax_dp.models import read_start
from fedjax_dp.models.origins import ARRAY, RUN, Origin, phases_of, values_digest, with_phase

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


def test_phases_are_chained_and_their_lines_stay_as_they_are():
    first = ledger()
    second = with_phase(first, FACTS | {"dataset": "others"})
    assert second.startswith(first)
    before, after = phases_of(second, "x")
    assert (before["parent"], after["parent"]) == (None, before["phase"])
    assert {len(phase["phase"]) for phase in (before, after)} == {64}
    with pytest.raises(errors.ConfigurationError, match="other facts"):
        phases_of(second.splitlines()[1], "x")


def test_of_several_starts_no_phase_can_be_left_out():
    """Be it one that the Guarantee is of too, or one that whoever begins with the parameters is to compare with."""
    one, other = ledger(), ledger(dataset="others")
    for counted in ([], [phases_of(one, "x")[0]["phase"]]):
        both = with_phase(one + other, FACTS | {"continues": counted})
        *before, last = phases_of(both, "x")
        assert [*last["beside"], last["parent"]] == [phase["phase"] for phase in before]
        for left_out in range(2):
            lines = both.splitlines(keepends=True)
            del lines[left_out]
            with pytest.raises(errors.ConfigurationError, match=r"left out|other facts"):
                phases_of("".join(lines), "x")


def test_another_round_of_a_run_is_of_the_same_phase_and_another_fact_is_not():
    names = [phases_of(ledger(**more), "x")[0]["phase"] for more in ({}, {"round": 2}, {"rounds": 4})]
    assert names[0] == names[1] != names[2]


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
    "deep within": '{"ledger":1,"kind":"run","clients":' + '{"a":' * 900 + "1" + "}" * 901,
    "cut": ledger()[:-20],
    "cut in the second line": with_phase(ledger(), FACTS)[:-20],
    "what was spent as text": ledger(spent="all"),
    "NaN": ledger().replace("1.5", "NaN"),
    "infinite": ledger().replace("1.5", "1e999"),
    "many digits": ledger().replace('"rounds":3', '"rounds":' + "9" * 5000),
    "later": changed(ledger=2),
    "no version": changed(ledger=None),
    "edited": changed(epsilon=0.1),
    "text for a number": changed(epsilon="0.1"),
    "truth for a number": changed(rounds=True),
    "no records": changed(records=None),
    "another kind": changed(kind="walk"),
    "kind of none": changed(kind=["run"]),
    "other parameters": ledger(parameters="0" * 64),
    "of a folder, which names none": ledger(parameters=None),
    "going on from what is not there": ledger(continues=["0" * 64]),
    "beside no name": ledger(beside=[{}]),
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
        with pytest.raises(errors.ConfigurationError, match="a ledger as bytes"):
            read_start(tmp_path / "a.npz")


def test_parameters_that_were_changed_since_are_not_those_of_the_ledger(tmp_path):
    path = saved(tmp_path / "a.npz", ledger().encode())
    assert read_start(path).origin.ledger == ledger()
    np.savez(path, w=VALUES["w"] * 1.01, **{ARRAY: np.frombuffer(ledger().encode(), np.uint8)})
    with pytest.raises(errors.ConfigurationError, match="one of other parameters"):
        read_start(path)
