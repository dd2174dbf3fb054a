"""Phases on the same members: one epsilon of all of them, by the facts of their ledgers."""

import itertools
import json
import math

import numpy as np
import pytest
from helpers import refusal
from noisy_sums import ADD_REMOVE, REPLACE_ONE, fixed_size, poisson, unsampled
from scipy import stats

from fedjax_dp import accounting, errors
from fedjax_dp.accounting import AnyOf, Composed, GaussianSteps, Past, StatedPrivacy, Unit, epsilon_of, pld, trade_off
from fedjax_dp.accounting.accountants import total
from fedjax_dp.accounting.calibrate import UnreachableError
from fedjax_dp.accounting.composed_phases import (
    compose_past,
    digest_of_names,
    encode_releases,
    events_for,
    events_of,
    is_private,
    phases_counted_in,
    same_clients,
    with_past,
    worst_of,
)
from fedjax_dp.display import upward

RECORD = Unit.RECORD, REPLACE_ONE


# Case by case `phases` of the specification's participation_vectors.json: the phases, delta; epsilon of both, and the
# sum of that of each at delta / 2, of what is stated as it is (dp-accounting 0.6.0; own FFT).
PHASES = [
    (poisson(1.0, 0.01, 1000), poisson(2.0, 0.05, 200), 1e-5, 2.4250699584215742, 3.551484388750917),
    (unsampled(10.0, 20, REPLACE_ONE), fixed_size(4.0, 10, 100, 100), 1e-5, 4.804218650369514, 6.63883451765573),
    (StatedPrivacy(1.0, 1e-6, ADD_REMOVE), poisson(1.5, 0.02, 500), 1e-5, 2.349948062933727, 2.4340163415338814),
    (unsampled(8.0, 10), unsampled(6.0, 5), 1e-6, 2.469625336454799, 3.491443387756296),
]


@pytest.mark.parametrize(("first", "second", "delta", "both", "added"), PHASES)
def test_two_phases_have_the_epsilon_of_the_specification_in_either_order(first, second, delta, both, added):
    epsilon = epsilon_of(Composed((first, second)), delta)
    assert epsilon == pytest.approx(both, rel=5e-4)
    assert epsilon_of(Composed((second, first)), delta) == pytest.approx(epsilon, rel=1e-9)
    assert epsilon_of(Composed((second, Past((first,)))), delta) == pytest.approx(epsilon, rel=1e-9)
    alone = [one.epsilon if isinstance(one, StatedPrivacy) else epsilon_of(one, delta / 2) for one in (first, second)]
    assert sum(alone) == pytest.approx(added, rel=5e-4)
    assert max(epsilon_of(one, delta) for one in (first, second)) < epsilon < sum(alone)


def test_a_second_phase_of_no_rounds_costs_what_the_first_did():
    for first in (fixed_size(4.0, 10, 100, 20), StatedPrivacy(1.0, 1e-6, REPLACE_ONE)):
        nothing = fixed_size(4.0, 10, 100, 0)
        (both,) = with_past(compose_past([[first]]), [nothing])
        assert epsilon_of(both, 1e-5) == pytest.approx(epsilon_of(first, 1e-5), rel=1e-12)
        assert with_past(compose_past([[nothing]]), [first]) == [first]
        assert with_past(None, [first]) == [first]


def composed_delta(epsilon, delta, count, at):
    """Of `count` randomised responses that are (epsilon, delta)-private, losses added up one by one."""
    likely = 1 / (1 + math.exp(-epsilon))
    hits = np.arange(count + 1)
    masses = (1 - delta) ** count * stats.binom(count, likely).pmf(hits)
    losses = (2 * hits - count) * epsilon
    return 1 - (1 - delta) ** count + float(np.sum(masses * np.maximum(-np.expm1(at - losses), 0.0)))


@pytest.mark.parametrize(
    ("epsilon", "delta", "count"), [(1.0, 0.0, 1), (0.3, 1e-7, 20), (2.5, 1e-8, 3), (0.01, 0, 500)]
)
def test_what_is_known_by_epsilon_and_delta_composes_as_randomised_response_does(epsilon, delta, count):
    event = StatedPrivacy(epsilon, delta, REPLACE_ONE, count)
    for wanted in (1e-5, 1e-3):
        found = epsilon_of(event, wanted)
        assert composed_delta(epsilon, delta, count, found) <= wanted * (1 + 1e-6)
        assert composed_delta(epsilon, delta, count, found * (1 - 2e-3) - 1e-4) > wanted or found == 0
        assert found <= epsilon_of(event, wanted, "rdp")
    assert math.isinf(epsilon_of(StatedPrivacy(epsilon, 1e-3, REPLACE_ONE), 1e-4))


def test_divergences_of_two_losses_are_those_of_the_two_laws():
    for epsilon, order in itertools.product((0.1, 3.0), (1.5, 2.0, 40.0)):
        p = np.array([1, math.exp(-epsilon)]) / (1 + math.exp(-epsilon))
        exact = math.log(float(np.sum(p**order * p[::-1] ** (1 - order)))) / (order - 1)
        assert accounting.TwoLosses(epsilon).renyi(np.array([order]))[0] == pytest.approx(exact, rel=1e-9)


def test_of_epsilon_and_delta_alone_no_closed_formula_is_known():
    for accountant in ("gaussian", "tcdp", "zcdp"):
        with pytest.raises(accounting.NotCoveredError, match="epsilon and delta alone are known"):
            epsilon_of(StatedPrivacy(1.0, 1e-6, REPLACE_ONE), 1e-5, accountant)
    assert epsilon_of(StatedPrivacy(1.0, 0.0, REPLACE_ONE), 1e-5, "zcdp") > 1.0
    for epsilon, delta in ((0.0, 0.1), (1.0, 1.0), (1.0, -0.1), (math.nan, 0.0)):
        with pytest.raises(errors.ConfigurationError):
            StatedPrivacy(epsilon, delta, REPLACE_ONE)


def test_noise_is_found_for_what_the_first_phase_leaves():
    first, second = fixed_size(4.0, 10, 100, 20), fixed_size(1.0, 20, 100, 40)
    spent_before = epsilon_of(first, 1e-5)
    for budget in (spent_before * 1.001, spent_before * 1.1, 4.0, 20.0):
        event = Composed((second, Past((first,))))
        factor = accounting.noise_factor_for(event, budget, 1e-5)
        costs = [epsilon_of(Composed((second.scaled(z), first)), 1e-5) for z in (factor, factor * (1 - 1e-3))]
        assert costs[0] <= budget < costs[1]
        if budget > spent_before * 1.05:  # near what is spent, noise is all but free
            assert costs[0] > budget * (1 - 1e-3)
    for budget in (spent_before, spent_before / 2):
        with pytest.raises(UnreachableError, match=f"above the {upward(spent_before)} that was spent before"):
            accounting.noise_factor_for(event, budget, 1e-5)


KINDS = {
    "counts": [unsampled(4.0, count, REPLACE_ONE) for count in (1, 5, 3)],
    "sizes": [fixed_size(4.0, 5, records, 10) for records in (40, 20, 80)],
    "sizes, counts and noise": [fixed_size(4.0, 5, 40, 3), fixed_size(3.0, 5, 60, 10), fixed_size(5.0, 5, 20, 6)],
    "all records of some": [fixed_size(4.0, 5, 40, 3), unsampled(4.0, 3, REPLACE_ONE)],
    "shuffled": [
        GaussianSteps(4.0, accounting.Shuffled(4, 8), REPLACE_ONE, 4),
        GaussianSteps(4.0, accounting.Shuffled(4, 16), REPLACE_ONE, 12),
    ],
    "any of some steps": [
        GaussianSteps(2.0, accounting.AnyStep(accounting.WithoutReplacement(2, records), 3), REPLACE_ONE, 2)
        for records in (9, 12)
    ],
    "two parts": [Composed((unsampled(4.0, 1, REPLACE_ONE), fixed_size(4.0, 5, n, 9))) for n in (20, 30)],
    "a part more": [fixed_size(4.0, 5, 20, 9), Composed((fixed_size(4.0, 5, 30, 9), unsampled(4.0, 1, REPLACE_ONE)))],
    "with replacement": [GaussianSteps(4.0, accounting.WithReplacement(3, n), REPLACE_ONE, 4) for n in (9, 12)],
    "by chance": [accounting.RandomParticipation(fixed_size(4.0, 5, 40, 2), rate, 10) for rate in (0.1, 0.5)],
    "different noises": [fixed_size(4.0, 5, 40, 2), accounting.BoundedRange(0.5, REPLACE_ONE, 1)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_worst_member_costs_no_less_than_any_whatever_follows(kind):
    events, accountant = KINDS[kind], "rdp" if kind == "different noises" else "pld"
    worst = worst_of([*events, Composed(())])
    for later in (unsampled(5.0, 2, REPLACE_ONE), fixed_size(2.0, 5, 100, 30)):
        each = [epsilon_of(Composed((later, Past((one,)))), 1e-4, accountant) for one in events]
        assert epsilon_of(Composed((later, Past((worst,)))), 1e-4, accountant) == pytest.approx(max(each), rel=5e-4)
    if kind in ("counts", "sizes", "all records of some", "shuffled", "any of some steps", "two parts"):
        assert not isinstance(worst, AnyOf)


def test_of_very_many_kinds_of_clients_the_worst_is_still_near():
    """Each with noise of its own, found for the same budget: none is known to be worse than another."""
    rng = np.random.default_rng(0)
    units = [
        fixed_size(1.0, 10, int(n), 2 * int(t)) for n, t in zip(rng.integers(60, 200, 15), rng.integers(4, 16, 15))
    ]
    events = [unit.scaled(accounting.noise_factor_for(unit, 2.0, 1e-4)) for unit in units]
    worst, later = worst_of(events), fixed_size(2.0, 10, 100, 20)
    assert len(worst.parts) > 10
    for accountant in ("pld", "rdp"):
        each = [epsilon_of(Composed((later, one)), 1e-4, accountant) for one in events]
        found = epsilon_of(Composed((later, Past((worst,)))), 1e-4, accountant)
        assert max(each) * (1 - 2e-4) <= found <= max(each) * 1.01
    assert isinstance(worst_of(events * 2), AnyOf)
    many = [events[0].scaled(1 + n / 1000) for n in range(301)]
    assert epsilon_of(worst_of(many), 1e-4) == epsilon_of(events[0], 1e-4)


def test_what_dominates_both_of_two_distributions_has_the_larger_delta_everywhere():
    low, high = unsampled(1.5, 1), poisson(0.7, 0.1, 4)
    price = pld.price(Composed((low, high)))
    one, other = (total(event, price) for event in (low, high))
    worst = one.worst(other)
    crossed = set()
    for epsilon in np.linspace(0.0, 8.0, 161):
        deltas = one.delta(epsilon), other.delta(epsilon)
        crossed.add(deltas[0] > deltas[1])
        assert max(deltas) <= worst.delta(epsilon) + 1e-15
        assert worst.delta(epsilon) == pytest.approx(max(deltas), rel=1e-3, abs=1e-11)
    assert crossed == {True, False}
    for direction in worst.directions:
        assert direction.masses.sum() + direction.infinite_mass == pytest.approx(1.0, abs=1e-9)


def test_of_what_nobody_knows_exactly_the_worst_counts_under_every_accountant():
    loud, quiet = unsampled(4.0, 2, REPLACE_ONE), unsampled(5.0, 1, REPLACE_ONE)
    for accountant in ("pld", "rdp", "gaussian", "zcdp"):
        worst = epsilon_of(loud, 1e-4, accountant)
        assert epsilon_of(AnyOf((quiet, loud)), 1e-4, accountant) == pytest.approx(worst, rel=1e-9)
        assert epsilon_of(AnyOf((quiet, loud)).scaled(2.0), 1e-4, accountant) < worst
    assert epsilon_of(AnyOf((A, C)), 1e-4) == pytest.approx(epsilon_of(A, 1e-4), rel=2e-4)
    curve, rates = trade_off(AnyOf((A, C))), np.array([0.01, 0.1])
    np.testing.assert_allclose(curve(rates), trade_off(A)(rates), rtol=1e-3)


def phase(events=None, *, records="aa", names=None, **changes):
    """The facts of a run's phase, with these events of its clients."""
    count = 3 if events is None else len(events)
    known = None if events is None else json.loads(json.dumps(encode_releases(events)))
    facts = {"kind": "run", "algorithm": "dpnfl", "dataset": "digits", "rounds": 2, "delta": 1e-5, "epsilon": 1.0}
    facts |= {"unit": "record", "adjacency": "replace-one", "view": "uploads", "spent": known}
    return (
        facts
        | {"clients": {"count": count, "names": digest_of_names(names)}, "records": {"checksum": records}}
        | changes
    )


A, B, C = fixed_size(4.0, 5, 40, 10), fixed_size(4.0, 5, 50, 10), fixed_size(4.0, 5, 60, 10)
D = fixed_size(2.0, 5, 40, 10)


def test_events_of_clients_are_what_was_written():
    first = phase([A, B, A])
    assert events_of(first, RECORD) == [A, B, A]
    assert len(first["spent"]["events"]) == 2


ABC = [A, B, C]
OTHERS = {
    "other records and no names": (phase(ABC), phase(ABC, records="bb")),
    "no checksum and no names": (phase(ABC, records=None), phase(ABC, records=None)),
    "other names": (phase(ABC, names="xyz"), phase(ABC, records="bb", names="xyw")),
    "names in another order": (phase(ABC, names="xyz"), phase(ABC, records="bb", names="xzy")),
    "a name more": (phase(ABC, names="xyz"), phase([A] * 4, records="bb", names="xyzw")),
    "a name less": (phase(ABC, names="xyz"), phase([A] * 2, records="bb", names="xy")),
    "a name twice": (phase(ABC, names="xxz"), phase(ABC, records="bb", names="xxz")),
    "names and no checksum in one alone": (phase(ABC, names="xyz", records=None), phase(ABC)),
    "a checksum of another number of clients": (phase(ABC), phase([A] * 2)),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_where_clients_are_not_known_to_be_the_same_each_pays_for_the_dearest(kind):
    first, later = OTHERS[kind]
    assert same_clients(first, later) is None
    count = later["clients"]["count"]
    assert events_for(first, False, RECORD, count) == [worst_of(ABC)] * count
    costs = [epsilon_of(Composed((D, one)), 1e-4) for one in (worst_of(ABC), *ABC)]
    assert costs[0] >= max(costs[1:])


def test_clients_of_equal_records_or_of_equal_names_are_the_same_and_pay_for_themselves():
    for first, later, words in (
        (phase(ABC), phase([D] * 3), "as both have the same records"),
        (phase(ABC, names="xyz"), phase([D] * 3, names="uvw"), "as both have the same records"),
        (phase(ABC, names="xyz"), phase([D] * 3, names="xyz", records="bb"), "by their names, if every record stays"),
    ):
        assert words in same_clients(first, later)
        assert events_for(first, True, RECORD, 3) == ABC


def test_where_epsilon_and_delta_alone_are_known_every_client_has_them():
    own = phase([A, B, A])
    own["spent"]["events"][0] = {"kind": "own", "name": "Mine"}
    known = StatedPrivacy(1.0, 1e-5, REPLACE_ONE)
    for first, by_client in itertools.product((phase(), own), (True, False)):
        assert events_for(first, by_client, RECORD, 3) == [known] * 3
    file = {"kind": "file", "name": "w.npz", "stated": [0.5, 1e-6]}
    assert is_private(file)
    assert not is_private(file | {"stated": None})
    assert same_clients(file, own) is None
    (event,) = events_for(file, False, (Unit.USER, ADD_REMOVE), 1)
    assert event == StatedPrivacy(0.5, 1e-6, ADD_REMOVE, unit=Unit.USER)


def test_phases_that_a_run_goes_on_from_are_so_many_lines_back():
    first, between = phase(ABC), phase(ABC, records="bb")
    assert phases_counted_in([first, between, phase(ABC, continues=[2])]) == (first,)
    assert phases_counted_in([first, between, phase(ABC, continues=[2, 1])]) == (first, between)
    assert phases_counted_in([first, phase(ABC)]) == ()


HOSTILE = {
    "no events": {},
    "a list": [],
    "a client too many": {"events": [], "clients": [[[3], 0]]},
    "no place": {"events": [], "clients": [[[1], 0]]},
    "another kind": {"events": [{"kind": "walk"}], "clients": []},
    "no noise": {"events": [{"kind": "gaussian"}], "clients": []},
    "text": {"events": "gaussian", "clients": "all"},
    "a bad number": {"events": [{"kind": "stated", "epsilon": "x", "delta": 0, "count": 1}], "clients": [[[0], 0]]},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_events_that_no_run_wrote_are_refused_in_one_line(kind):
    assert refusal(events_of, phase(ABC) | {"spent": HOSTILE[kind]}, RECORD)


def test_names_are_known_again_as_a_whole_and_cannot_be_read():
    kept = digest_of_names(["anna", "bert"])
    assert kept == digest_of_names(["anna", "bert"]) != digest_of_names(["bert", "anna"])
    assert len({digest_of_names(names) for names in (["ab", "c"], ["a", "bc"], ["abc"])}) == 3
    assert digest_of_names(None) is digest_of_names(["x", "x"]) is None
