"""A fact that is stated changes the number, or is refused, or a line says that it changes nothing."""

import dataclasses
import typing

import numpy as np
import pytest
from scipy import stats
from test_judgement import CENTRAL, MESSAGE, RECORD, changed, merged

from fedjax_dp import errors
from fedjax_dp.deployments import Deployment, check, mechanism
from fedjax_dp.deployments.description import Calibration, Clients, Clip, Noise, Records, Selection, Weights
from fedjax_dp.deployments.mechanism import mechanism_of
from fedjax_dp.deployments.systems import system_rows

GROUPS = {
    "clients": Clients,
    "records": Records,
    "clip": Clip,
    "noise": Noise,
    "weights": Weights,
    "selection": Selection,
}
MEAN = merged(
    RECORD,
    {
        "records": {"law": "poisson", "rate": 0.05, "of": 200, "steps": 5},
        "noise__on": "mean",
        "noise__std": 0.2,
        "weights": {"denominator": "fixed"},
    },
)
POISSON = merged(CENTRAL, {"clients": {"law": "poisson", "rate": 0.1, "of": 100}})
ADAPTIVE = merged(
    POISSON, {"clip__threshold": "adaptive", "clip__count_noise": 3.0, "clip__count_bits": "plus-minus-half"}
)
BASES = {
    "records, noise on the sum": RECORD,
    "records, noise on the mean": MEAN,
    "records, divided by their number": merged(MEAN, {"weights__denominator": "count"}),
    "records by shuffling": merged(
        MEAN,
        {
            "records": {"law": "shuffled", "size": 4, "of": 10, "steps": 6, "rest": "kept"},
            "weights__denominator": "count",
        },
    ),
    "records without replacement": merged(MEAN, {"records": {"law": "fixed", "size": 4, "of": 10, "steps": 6}}),
    "all records": merged(MEAN, {"records": {"law": "full", "size": 10, "steps": 6}}),
    "records by one draw": merged(RECORD, {"records": {"law": "once", "rate": 0.1, "steps": 6}}),
    "fixed cohorts": CENTRAL,
    "Poisson cohorts": POISSON,
    "Poisson cohorts, divided by their number": merged(POISSON, {"weights__denominator": "count"}),
    "adaptive bound": ADAPTIVE,
    "adaptive bound, fixed cohorts": merged(ADAPTIVE, {"clients": CENTRAL["clients"]}),
    "round-robin": merged(CENTRAL, {"clients__law": "round-robin"}),
    "messages": MESSAGE,
    "Laplace noise": merged(MESSAGE, {"noise__law": "laplace", "clip__norm": "l1"}),
}
BASES |= {
    row.id: dataclasses.replace(row.deployment, claim=None).to_dict()
    for row in system_rows()
    if getattr(row, "deployment", None) is not None
}
ALIKE = {  # read, and the same number comes out
    ("clip.norm", "l1"): "the L1 ball touches the L2 ball around it",
    "clients.law": "a line says that the clients are seen, or how they are drawn",
    ("weights.denominator", "fixed"): "a sum whose divisor nobody states is taken as it is",
    "clients.size": "of clients in turn the rounds of each are rounded up",
}
OTHERS = {int: (1, 3, 7), float: (0.03, 0.5, 4.0)}


def values_of(group):
    """Values to try of each fact of a group."""
    for name, hint in typing.get_type_hints(GROUPS[group]).items():
        if name == "where":
            continue
        parts = [part for one in typing.get_args(hint) or (hint,) for part in (typing.get_args(one) or (one,))]
        words = [part for part in parts if isinstance(part, str)]
        numbers = [value for kind in parts if kind in OTHERS for value in OTHERS[kind]]
        special = {"misses": [("bias",)], "calibration": [Calibration(epsilon=0.7, delta=1e-6)]}
        for value in special.get(name, [*words, *numbers]):
            yield name, value


def seen(deployment):
    """All that a check says, but for its source; None where it is refused."""
    try:
        found = check(deployment)
    except errors.ConfigurationError:
        return None
    return found.to_dict() | {"assumptions": found.mechanism.assumptions}


@pytest.mark.parametrize("base", BASES)
def test_no_fact_goes_unread(base):
    facts = BASES[base]
    before = seen(Deployment.from_dict(facts))
    assert before is not None
    silent = []
    for group in GROUPS:
        for name, value in values_of(group):
            if group in ("records", "selection") and group not in facts:
                continue
            try:
                deployment = Deployment.from_dict(merged(facts, {f"{group}__{name}": value}))
            except errors.ConfigurationError:
                continue
            if deployment == Deployment.from_dict(facts):
                continue
            after, fact = seen(deployment), f"{group}.{name}"
            if after is None or after != before or any(f"{fact} changes" in line for line in after["assumptions"]):
                continue
            if (fact, value) not in ALIKE and fact not in ALIKE:
                silent.append((fact, value))
    assert not silent


def test_a_fact_that_no_rule_reads_is_refused_and_not_passed_over(monkeypatch):
    """The wrong program says of all that they change nothing."""
    laplace = changed(MESSAGE, noise__law="laplace", clip__norm="l1", clip__threshold="adaptive", clip__count_noise=1.0)
    with pytest.raises(
        errors.ConfigurationError, match=r"clip\.count_noise must be left out here, where no rule"
    ) as one:
        check(laplace)
    assert "\n" not in str(one.value)
    monkeypatch.setattr(mechanism, "_without_effect", lambda deployment, name: "of no concern")
    assert check(laplace).mechanism.epsilon > 0


# What neighbours prove, by tests of their own.


def proved(power, level, delta):
    """Epsilon that a test proves at delta, by its power and its level."""
    return np.log((power - delta) / level)


def test_a_record_that_comes_alone_weighs_all_of_a_mean_that_counts_who_came():
    """One record or none: the mean is C where it is drawn, and 0. How often noise goes beyond 5 deviations tells."""
    n, q, std, steps, delta = 1000, 0.01, 0.1, 1000, 1e-5
    facts = merged(
        MEAN,
        {
            "rounds": 1,
            "clients": {"law": "all", "of": 1},
            "records": {"law": "poisson", "rate": q, "of": n, "steps": steps},
            "clip__bound": 1.0,
            "noise__std": std,
        },
    )
    counted, fixed = (
        check(changed(facts, weights__denominator=denominator)).mechanism for denominator in ("count", "fixed")
    )
    beyond = stats.norm.sf(0.5 / std)
    there = q * stats.norm.sf((0.5 - 1) / std) + (1 - q) * beyond
    most = int(stats.binom.ppf(0.5, steps, there))
    least = proved(stats.binom.sf(most - 1, steps, there), stats.binom.sf(most - 1, steps, beyond), delta)
    assert least > 54
    assert counted.epsilon > least > 20 * fixed.epsilon
    assert fixed.epsilon == pytest.approx(1.83, abs=0.01)


def test_a_record_in_a_rest_weighs_more_where_the_rest_is_divided_by_its_own_number():
    """Of 6 records in batches of 4 the last two are a batch too; a record that is always there has half of its mean."""
    facts = merged(
        BASES["records by shuffling"], {"records__of": 6, "records__steps": 2, "noise__std": 1.0, "rounds": 1}
    )
    z = {
        rest: mechanism_of(changed(facts, records__rest=rest)).multipliers[0] for rest in ("kept", "dropped", "unknown")
    }
    assert z["kept"] == z["unknown"] == z["dropped"] / 2 == pytest.approx(2 / RECORD["clip"]["bound"])
    fixed = {key: value for key, value in facts["records"].items() if key != "rest"}
    assert mechanism_of(changed(facts, records=fixed, weights__denominator="fixed")).multipliers[0] == z["dropped"]
    with pytest.raises(errors.ConfigurationError, match=r"records\.rest must be given"):
        check(changed(facts, records=fixed))


@pytest.mark.parametrize(("bits", "moved"), [("zero-one", 1.0), ("plus-minus-half", 0.5), ("unknown", 1.0)])
def test_a_count_moves_by_what_its_bits_are(bits, moved):
    """A client that joins adds its update and its bit; both noised, they are one Gaussian release of this length."""
    facts = merged(ADAPTIVE, {"clip__count_bits": bits, "clip__count_noise": 0.8})
    (z,) = mechanism_of(Deployment.from_dict(facts)).multipliers
    alone = facts["noise"]["std"] / (facts["clip"]["bound"] * facts["weights"]["largest"])
    assert 1 / z == pytest.approx(np.hypot(1 / alone, moved / 0.8))


def test_by_what_bits_are_counted_is_asked_where_clients_come_and_go():
    facts = merged(ADAPTIVE, {})
    del facts["clip"]["count_bits"]
    with pytest.raises(errors.ConfigurationError, match=r"clip\.count_bits must be given"):
        check(Deployment.from_dict(facts))
    check(Deployment.from_dict(merged(facts, {"clients": CENTRAL["clients"]})))
