"""Every fact of a description changes what is proved, or is refused, or is said to change nothing."""

import dataclasses
import hashlib
import itertools
import typing

import pytest
from test_judgement import CENTRAL, MESSAGE, RECORD, merged

from fedjax_dp import errors
from fedjax_dp.options import members
from fedjax_dp.tools.deployments import Deployment, check, idle, mechanism, rules, templates
from fedjax_dp.tools.deployments.description import BLANK, Facts

SIZES = {"size": 4, "of": 10}
CLAIM = {"epsilon": 3.0, "per": "run"}
ADAPTIVE = {
    "clip__threshold": "adaptive",
    "clip__count_noise": 1.0,
    "clip__count_bits": "half",
    "noise__scale": "bound",
}
POISSON = {"clients": {"law": "poisson", "size": 10, "of": 100}}
LAPLACE = {"law": "laplace", "std": 3.0, "on": "message", "by": "client"}
SELECTION = {"epsilon": 1.0, "of": 100, "fraction": 0.1, "release": 0.1}
CLASSICAL = {"law": "gaussian", "calibration": {"epsilon": 1.0, "delta": 1e-5, "sensitivity": 1.0}, "on": "message"}
USUAL = [  # one of each kind
    (RECORD, {}),
    (
        RECORD,
        {"noise__on": "mean", "records": {"law": "poisson", **SIZES, "steps": 5}, "weights__denominator": "count"},
    ),
    (RECORD, {"noise__on": "mean", "records": {"law": "shuffled", **SIZES, "steps": 5}, "records__last": "drop"}),
    (CENTRAL, {}),
    (CENTRAL, {**POISSON, **ADAPTIVE}),
    (CENTRAL, {**POISSON, "weights__denominator": "count"}),
    (CENTRAL, {"unit": "record"}),
    (CENTRAL, {**POISSON, "clients__members": "known"}),
    (MESSAGE, {"claim": {**CLAIM, "assumes": {"clients": "poisson"}}}),
    (MESSAGE, {"noise": LAPLACE, "clip__coordinates": 7}),
]
MORE = [
    *(
        (
            RECORD,
            {"noise__on": on, "records": {"law": law, **SIZES, "steps": 3}, "weights__denominator": divisor, **more},
        )
        for on, law, divisor in itertools.product(
            ("sum", "mean"),
            ("full", "poisson", "fixed", "with-replacement", "shuffled", "once", "unknown"),
            ("fixed", "count", "unknown"),
        )
        for more in ({"records__last": "keep"} if law == "shuffled" else {}, {**ADAPTIVE, "records__last": None})
    ),
    *(
        (CENTRAL, {"unit": unit, "noise__on": on, "clients": {"law": law, **SIZES}, "weights__largest": 0.2, **more})
        for unit, on, law, more in itertools.product(
            ("client", "record"),
            ("sum", "mean"),
            ("all", "poisson", "fixed", "with-replacement", "round-robin", "schedule", "unknown"),
            ({}, {**ADAPTIVE, "clip__scope": "tensor", "clip__tensors": 3}, {"clients__members": "known"}),
        )
    ),
    (MESSAGE, {"noise": {**CLASSICAL, "by": "client"}, "claim": CLAIM}),
    (MESSAGE, {"noise": LAPLACE, "clip__norm": "coordinate", "clip__coordinates": 7}),
    (MESSAGE, {"noise": LAPLACE, "clip__norm": "l1"}),
    (MESSAGE, {"noise": {**LAPLACE, "std": None}, "selection": SELECTION, "claim": CLAIM}),
    (
        RECORD,
        {"records": {"law": "full", "of": 10, "steps": 2}, "noise": {**LAPLACE, "on": "mean"}, "clip__norm": "l1"},
    ),
    (RECORD, {"claim": {**CLAIM, "assumes": {"records": "shuffled", "noise": "summed"}}}),
    (CENTRAL, {"claim": {**CLAIM, "assumes": {"population": 1000, "cohort": 20}}}),
]


def cases(pairs):
    """The descriptions."""
    return [merged(facts, changes) for facts, changes in pairs]


@pytest.fixture(autouse=True)
def events_for_numbers(monkeypatch):
    """Numbers that differ wherever what is counted differs, without an account."""

    def number(*of):
        return int.from_bytes(hashlib.sha256(repr(of).encode()).digest()[:3], "big") / 1e3 + 1

    @dataclasses.dataclass
    class Answer:
        number: float

    monkeypatch.setattr(mechanism.GaussianCost, "epsilon", lambda cost, delta: number(cost.events, delta))
    monkeypatch.setattr(mechanism, "noise_factor_for", lambda event, epsilon, delta: number(event, epsilon, delta))
    monkeypatch.setattr(mechanism.compare, "lower_bound", lambda event, delta: Answer(number(event, delta)))
    monkeypatch.setattr(rules, "steps_for", lambda *of: 0)


def fields(group=Deployment, where=()):
    """All facts there are, as keys, with values that each may have."""
    for name, option in group.facts().items():
        hints = [hint for kind in members(option.hint) for hint in (kind, *typing.get_args(kind))]
        inner = [hint for hint in hints if isinstance(hint, type) and issubclass(hint, Facts)]
        if not where and name in idle.PRINTED:
            continue
        if inner:
            yield from fields(inner[0], (*where, name))
        elif option.choices:
            yield (*where, name), tuple(option.choices)
        elif name == "delta":
            yield (*where, name), (1e-3, 1e-6)
        elif name in ("largest", "rate", "fraction"):
            yield (*where, name), (0.3, 0.4, 0.5)
        elif int in option.kinds:
            yield (*where, name), (2, 6, 7, 40, 10**6)
        elif float in option.kinds:
            yield (*where, name), (0.25, 2.5, 11.0)
        else:
            yield (*where, name), (["a"], ["b"])


FIELDS = tuple(fields())


def outcome(facts):
    """What is proved, or None where it is refused, and which facts are said to change nothing."""
    try:
        checked = check(Deployment.from_dict(facts))
    except errors.ConfigurationError:
        return None, ()
    told = checked.to_dict()
    told.pop("missing")  # repeats the description
    return {name: value for name, value in told.items() if name != "idle"}, tuple(
        line.partition(":")[0] for line in checked.idle
    )


def changed_at(facts, keys, value):
    """The description with one fact in the place of another, in groups that need not be there yet."""
    first, *rest = keys
    inner = changed_at(dict(facts.get(first) or {}), rest, value) if rest else value
    return {**facts, first: inner}


def useless(facts):
    """Facts that may be set to whatever they can be, without an effect, a refusal or a word."""
    (usual, before), as_it_is = outcome(facts), Deployment.from_dict(facts)
    for keys, values in FIELDS:
        silent = []
        for value in values:
            other = changed_at(facts, keys, value)
            result, said = outcome(other)
            same = result == usual and Deployment.from_dict(other) != as_it_is
            silent.append(same and ".".join(keys) not in (*said, *before))
            if result not in (None, usual):
                break
        else:
            if any(silent):
                yield ".".join(keys)


def test_the_fields_are_all_there_are():
    named = {".".join(keys) for keys, _ in FIELDS}
    assert {"unit", "records.last", "clip.count_bits", "noise.calibration.delta", "claim.assumes.noise"} <= named
    assert len(named) >= 45


@pytest.mark.parametrize("facts", cases(USUAL), ids=range(len(USUAL)))
def test_every_fact_changes_what_is_proved_or_is_refused_or_said_to_change_nothing(facts):
    assert outcome(facts)[0] is not None
    assert list(useless(facts)) == []


# CI: test_every_fact_changes_what_is_proved_or_is_refused_or_said_to_change_nothing
@pytest.mark.exhaustive
def test_the_same_of_every_unit_law_divisor_and_place_of_the_noise():
    possible = [facts for facts in cases(MORE) if outcome(facts)[0] is not None]
    assert len(possible) > 80
    found = {str(facts): names for facts in possible if (names := list(useless(facts)))}
    assert not found


def test_templates_state_no_fact_that_nothing_reads():
    numbers = {"delta": 1e-5, "law": "all", "on": "message", "by": "client", "norm": "l2", "unit": "client", "size": 5}
    numbers |= {"of": 20, "rounds": 3, "steps": 2, "rate": 0.1, "denominator": "fixed", "fraction": 0.5, "largest": 0.5}
    numbers |= {"members": "hidden"}

    def filled(facts, name=""):
        if isinstance(facts, dict):
            return {key: filled(value, key) for key, value in facts.items()}
        return ("update" if name == "of_clip" else numbers.get(name, 1.0)) if facts == BLANK else facts

    for name in templates.names():
        stated = templates.template(name)
        if stated["clip"]["of"] == BLANK:
            stated["clip"]["of"] = "update"
        assert outcome(filled(stated))[0] is not None, name


def test_a_fact_that_nothing_reads_is_refused_in_one_line_with_its_value():
    facts = merged(MESSAGE, {"clip__tensors": 5})
    with pytest.raises(errors.ConfigurationError, match=r"clip\.tensors must be left out.*got 5; or change"):
        check(Deployment.from_dict(facts))


def test_a_fact_that_changes_nothing_is_named_with_the_reason():
    facts = merged(RECORD, {"clients": {"law": "poisson", "rate": 0.5, "of": 3}})
    (line,) = check(Deployment.from_dict(facts)).idle
    assert line.startswith("clients.rate: sampled clients are visible")
