"""Public functions of Python take what their signatures say, and refuse anything else in one line."""

import collections.abc
import inspect
import os
import typing

import numpy as np
import pytest
from helpers import quick, refusal

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.arguments import checks_arguments
from fedjax_dp.privacy.terms import PrivacyOptions

DIGITS = fdp.load("digits")
CLIENTS = fdp.federate(DIGITS, fdp.data.iid(DIGITS.y_train, [100] * 10, 0))
MADE = {"cohort_size": 2, "batch_size": 4, "local_steps": 1, "learning_rate": 0.1}
NOISED = fdp.dpnfl(**MADE, clip_norm=1.0, noise_multiplier=2.0)
ODD = ["", "x", "a\nb", b"x", -1, 0, 3.5, True, 2**70, 1e300, float("nan"), float("inf"), None, object(), fdp.dpnfl]
ODD += [[], {}, (), np.zeros(3), np.zeros((2, 2)), [[1], [2, 3]], DIGITS, NOISED]
RIGHT = {  # of every function, by the name of the argument
    "algorithm": NOISED,
    "axes": {"clip_norm": [1.0, 2.0]},
    "classes": 10,
    "client": None,
    "client_ids": DIGITS.y_train,
    "clients": [np.arange(5), np.arange(5, 10)],
    "concentration": 0.5,
    "count": 2,
    "data": CLIENTS,
    "dataset": DIGITS,
    "delta": 1e-3,
    "epsilon": 3.0,
    "example": CLIENTS,
    "exponent": 1.0,
    "folder": "none",
    "group_size": 2,
    "fraction": 0.2,
    "labels": DIGITS.y_train,
    "min_records": 1,
    "minimum": 3,
    "name": "digits",
    "network": lambda key: key,
    "num_clients": 5,
    "path": "none.npy",
    "percent": 10,
    "record_shape": (8, 8),
    "records": 1437,
    "rounds": 1,
    "seed": 0,
    "sizes": [10] * 5,
    "strength": 0.5,
    "values": DIGITS.y_train,
    **{name: getattr(DIGITS, name) for name in ("x_train", "y_train", "x_test", "y_test")},
}
HEAVY = ["audit", "calibrate", "guarantee", "reproduce", "run", "simulate", "sweep"]  # which run where all is well
FUNCTIONS = {
    name: found
    for home in (fdp, fdp.data)
    for name, found in ((name, getattr(home, name)) for name in home.__all__)
    if inspect.isfunction(found) and name not in ("structure", "value", "reproduce")
}


def said(call):
    """What is told by a refusal, or nothing."""
    try:
        call()
    except (errors.ConfigurationError, errors.StorageError, errors.DivergedError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.exhaustive if name in ("audit", "sweep") else pytest.mark.slow)
        if name in HEAVY
        else name
        for name in FUNCTIONS
    ],
)
def test_odd_arguments_are_refused_in_one_line_or_taken(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, tried = FUNCTIONS[name], 0
    parameters = inspect.signature(function).parameters.values()
    known = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
    private = any(p.kind is p.VAR_KEYWORD for p in parameters)
    needed = {p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
    right = {what: RIGHT[what] for what in needed} | ({"delta": 1e-3} if private else {})
    right |= {"epsilon": 3.0} if name == "calibrate" else {}
    for what in sorted(known | (set(PrivacyOptions.__annotations__) if private else set())):
        if what in ("progress", "show", "on_pause", "execution"):  # calls to what is given are the giver's
            continue
        for odd in ODD:
            tried += 1
            told = said(lambda: function(**{**right, what: odd}))  # noqa: B023
            assert "\n" not in told, (what, odd)
    assert tried >= len(ODD) * len(known - {"progress", "show", "on_pause", "execution"})


@pytest.mark.parametrize("name", quick(fdp.CATALOGUE, ["dpnfl", "fedavg", "dp_fedavg", "ifca", "dp_ftrl"]))
def test_odd_options_of_entries_are_refused_in_one_line_or_taken(name):
    entry = fdp.CATALOGUE[name]
    right = {name: told for name, told in {**MADE, "clip_norm": 1.0}.items() if name in entry.options}
    for name in entry.options:
        for odd in ODD:
            told = said(lambda: fdp.rounds.simulation.check(entry(**{**right, name: odd}), CLIENTS, 3))  # noqa: B023
            assert "\n" not in told, (name, odd)


@checks_arguments
def taking(
    count: int,
    path: str | os.PathLike[str] | None = None,
    *,
    rows: np.ndarray | None = None,
    rate: float = 0.0,
    call: collections.abc.Callable[[int], int] | None = None,
    which: typing.Literal["a", "b"] = "a",
    anything: typing.Any = None,
    **rest: int,
):
    return count, rows, rest


@pytest.mark.parametrize(
    ("args", "given", "told"),
    [
        ((), {"path": "p"}, "count must be given to taking, got nothing; add count="),
        ((1, "p", 3), {}, "arguments of taking must be at most 2 without a name: count, path, got 3"),
        ((1,), {"count": 2}, "count must be given once to taking, got two values"),
        ((1.0,), {}, "count must be an integer, got 1.0"),
        ((True,), {}, "count must be an integer, got True"),
        ((2**63,), {}, "count must be below 2^63 in size"),
        ((1, ""), {}, "path must be a path, got ''"),
        ((1, 3), {}, "path must be a path, got 3"),
        ((1,), {"rows": [[1], [2, 3]]}, "rows must be an array, got [[1], [2, 3]]"),
        ((1,), {"rows": "ab"}, "rows must be an array, got 'ab'"),
        ((1,), {"rate": "1"}, "rate must be a number, got '1'"),
        ((1,), {"call": 3}, "call must be a function, got 3"),
        ((1,), {"which": 3}, "which must be text, got 3"),
    ],
)
def test_what_a_signature_does_not_say_is_refused(args, given, told):
    assert told in refusal(lambda: taking(*args, **given))


def test_what_a_signature_says_is_taken_and_lists_become_arrays():
    count, rows, rest = taking(np.int64(3), rows=[1, 2], rate=np.float32(1), call=abs, anything=object(), other=4)
    assert (count, rest) == (3, {"other": 4})
    np.testing.assert_array_equal(rows, [1, 2])


def test_every_public_function_names_the_argument_that_is_not_known():
    for name, function in FUNCTIONS.items():
        unchecked = (*HEAVY, "load")  # which look at what their other arguments are first
        assert "nonsense" in refusal(lambda function=function: function(nonsense=1)) or name in unchecked
