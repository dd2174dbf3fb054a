"""Phases on the same members: one epsilon of all of them, by the facts of their ledgers."""

import itertools
import json
import math

import numpy as np
import pytest
from scipy import stats

from fedjax_dp import errors
from fedjax_dp.accounting import (
    Adjacency,
    AnyOf,
    AnyStep,
    BoundedRange,
    Composed,
    FullBatch,
    GaussianSteps,
    NotCoveredError,
    Past,
    Poisson,
    RandomParticipation,
    Shuffled,
    StatedPrivacy,
    TwoLosses,
    Unit,
    WithoutReplacement,
    WithReplacement,
    contradicts,
    epsilon_of,
    error_bounds,
    noise_factor_for,
    pld,
    trade_off,
)
from fedjax_dp.accounting.accountants import total
from fedjax_dp.accounting.calibrate import UnreachableError
from fedjax_dp.accounting.client_maps import read_pairs
from fedjax_dp.accounting.composed_phases import (
    Matched,
    counted_with,
    draws_of,
    events_for,
    events_of,
    is_private,
    mapped,
    matched,
    names_of,
    past_of,
    spent,
    union_of,
    with_past,
    worst_of,
)

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
RECORD = Unit.RECORD, REPLACE


def poisson(noise, rate, steps):
    return GaussianSteps(noise, Poisson(rate), ADD, steps)


def drawn(noise, batch, records, steps):
    return GaussianSteps(noise, WithoutReplacement(batch, records), REPLACE, steps)


def whole(noise, steps, adjacency=ADD):
    return GaussianSteps(noise, FullBatch(), adjacency, steps)


# Case by case `phases` of the specification's participation_vectors.json: the phases, delta; epsilon of both, and the
# sum of that of each at delta / 2, of what is stated as it is (dp-accounting 0.6.0; own FFT).
PHASES = [
    (poisson(1.0, 0.01, 1000), poisson(2.0, 0.05, 200), 1e-5, 2.4250699584215742, 3.551484388750917),
    (whole(10.0, 20, REPLACE), drawn(4.0, 10, 100, 100), 1e-5, 4.804218650369514, 6.63883451765573),
    (StatedPrivacy(1.0, 1e-6, ADD), poisson(1.5, 0.02, 500), 1e-5, 2.349948062933727, 2.4340163415338814),
    (whole(8.0, 10), whole(6.0, 5), 1e-6, 2.469625336454799, 3.491443387756296),
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
    for first in (drawn(4.0, 10, 100, 20), StatedPrivacy(1.0, 1e-6, REPLACE)):
        nothing = drawn(4.0, 10, 100, 0)
        (both,) = with_past(past_of([[first]]), [nothing])
        assert epsilon_of(both, 1e-5) == pytest.approx(epsilon_of(first, 1e-5), rel=1e-12)
        assert with_past(past_of([[nothing]]), [first]) == [first]
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
    event = StatedPrivacy(epsilon, delta, REPLACE, count)
    for wanted in (1e-5, 1e-3):
        found = epsilon_of(event, wanted)
        assert composed_delta(epsilon, delta, count, found) <= wanted * (1 + 1e-6)
        assert composed_delta(epsilon, delta, count, found * (1 - 2e-3) - 1e-4) > wanted or found == 0
        assert found <= epsilon_of(event, wanted, "rdp")
    assert math.isinf(epsilon_of(StatedPrivacy(epsilon, 1e-3, REPLACE), 1e-4))


def test_divergences_of_two_losses_are_those_of_the_two_laws():
    for epsilon, order in itertools.product((0.1, 3.0), (1.5, 2.0, 40.0)):
        p = np.array([1, math.exp(-epsilon)]) / (1 + math.exp(-epsilon))
        exact = math.log(float(np.sum(p**order * p[::-1] ** (1 - order)))) / (order - 1)
        assert TwoLosses(epsilon).renyi(np.array([order]))[0] == pytest.approx(exact, rel=1e-9)


def test_of_epsilon_and_delta_alone_no_closed_formula_is_known():
    for accountant in ("gaussian", "tcdp", "zcdp"):
        with pytest.raises(NotCoveredError, match="epsilon and delta alone are known"):
            epsilon_of(StatedPrivacy(1.0, 1e-6, REPLACE), 1e-5, accountant)
    assert epsilon_of(StatedPrivacy(1.0, 0.0, REPLACE), 1e-5, "zcdp") > 1.0
    for epsilon, delta in ((0.0, 0.1), (1.0, 1.0), (1.0, -0.1), (math.nan, 0.0)):
        with pytest.raises(errors.ConfigurationError):
            StatedPrivacy(epsilon, delta, REPLACE)


def test_noise_is_found_for_what_the_first_phase_leaves():
    first, second = drawn(4.0, 10, 100, 20), drawn(1.0, 20, 100, 40)
    spent_before = epsilon_of(first, 1e-5)
    for budget in (spent_before * 1.001, spent_before * 1.1, 4.0, 20.0):
        event = Composed((second, Past((first,))))
        factor = noise_factor_for(event, budget, 1e-5)
        costs = [epsilon_of(Composed((second.scaled(z), first)), 1e-5) for z in (factor, factor * (1 - 1e-3))]
        assert costs[0] <= budget < costs[1]
        if budget > spent_before * 1.05:  # near what is spent, noise is all but free
            assert costs[0] > budget * (1 - 1e-3)
    for budget in (spent_before, spent_before / 2):
        with pytest.raises(UnreachableError, match=f"above the {spent_before:.4g} that was spent before"):
            noise_factor_for(event, budget, 1e-5)


KINDS = {
    "counts": [whole(4.0, count, REPLACE) for count in (1, 5, 3)],
    "sizes": [drawn(4.0, 5, records, 10) for records in (40, 20, 80)],
    "sizes, counts and noise": [drawn(4.0, 5, 40, 3), drawn(3.0, 5, 60, 10), drawn(5.0, 5, 20, 6)],
    "all records of some": [drawn(4.0, 5, 40, 3), whole(4.0, 3, REPLACE)],
    "shuffled": [GaussianSteps(4.0, Shuffled(4, 8), REPLACE, 4), GaussianSteps(4.0, Shuffled(4, 16), REPLACE, 12)],
    "any of some steps": [
        GaussianSteps(2.0, AnyStep(WithoutReplacement(2, records), 3), REPLACE, 2) for records in (9, 12)
    ],
    "two parts": [Composed((whole(4.0, 1, REPLACE), drawn(4.0, 5, n, 9))) for n in (20, 30)],
    "a part more": [drawn(4.0, 5, 20, 9), Composed((drawn(4.0, 5, 30, 9), whole(4.0, 1, REPLACE)))],
    "with replacement": [GaussianSteps(4.0, WithReplacement(3, n), REPLACE, 4) for n in (9, 12)],
    "by chance": [RandomParticipation(drawn(4.0, 5, 40, 2), rate, 10) for rate in (0.1, 0.5)],
    "different noises": [drawn(4.0, 5, 40, 2), BoundedRange(0.5, REPLACE, 1)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_worst_member_costs_no_less_than_any_whatever_follows(kind):
    events, accountant = KINDS[kind], "rdp" if kind == "different noises" else "pld"
    worst = worst_of([*events, Composed(())])
    for later in (whole(5.0, 2, REPLACE), drawn(2.0, 5, 100, 30)):
        each = [epsilon_of(Composed((later, Past((one,)))), 1e-4, accountant) for one in events]
        assert epsilon_of(Composed((later, Past((worst,)))), 1e-4, accountant) == pytest.approx(max(each), rel=5e-4)
    if kind in ("counts", "sizes", "all records of some", "shuffled", "any of some steps", "two parts"):
        assert not isinstance(worst, AnyOf)


def test_of_very_many_kinds_of_clients_the_worst_is_still_near():
    """Each with noise of its own, found for the same budget: none is known to be worse than another."""
    rng = np.random.default_rng(0)
    units = [drawn(1.0, 10, int(n), 2 * int(t)) for n, t in zip(rng.integers(60, 200, 15), rng.integers(4, 16, 15))]
    events = [unit.scaled(noise_factor_for(unit, 2.0, 1e-4)) for unit in units]
    worst, later = worst_of(events), drawn(2.0, 10, 100, 20)
    assert len(worst.parts) > 10
    for accountant in ("pld", "rdp"):
        each = [epsilon_of(Composed((later, one)), 1e-4, accountant) for one in events]
        found = epsilon_of(Composed((later, Past((worst,)))), 1e-4, accountant)
        assert max(each) * (1 - 2e-4) <= found <= max(each) * 1.01
    assert isinstance(worst_of(events * 2), AnyOf)
    many = [events[0].scaled(1 + n / 1000) for n in range(301)]
    assert epsilon_of(worst_of(many), 1e-4) == epsilon_of(events[0], 1e-4)


def test_what_dominates_both_of_two_distributions_has_the_larger_delta_everywhere():
    low, high = whole(1.5, 1), poisson(0.7, 0.1, 4)
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
        assert direction.masses.sum() + direction.infinite == pytest.approx(1.0, abs=1e-9)


def test_of_what_nobody_knows_exactly_the_worst_counts_under_every_accountant():
    loud, quiet = whole(4.0, 2, REPLACE), whole(5.0, 1, REPLACE)
    for accountant in ("pld", "rdp", "gaussian", "zcdp"):
        worst = epsilon_of(loud, 1e-4, accountant)
        assert epsilon_of(AnyOf((quiet, loud)), 1e-4, accountant) == pytest.approx(worst, rel=1e-9)
        assert epsilon_of(AnyOf((quiet, loud)).scaled(2.0), 1e-4, accountant) < worst
    assert epsilon_of(AnyOf((A, C)), 1e-4) == pytest.approx(epsilon_of(A, 1e-4), rel=2e-4)
    curve, rates = trade_off(AnyOf((A, C))), np.array([0.01, 0.1])
    np.testing.assert_allclose(curve(rates), trade_off(A)(rates), rtol=1e-3)


def phase(name, events=None, *, records="aa", names=None, sizes="s", **changes):
    """The facts of a run's phase, with these events of its clients."""
    count = 3 if events is None else len(events)
    known = None if events is None else json.loads(json.dumps(spent(events)))
    return {
        "phase": name,
        "kind": "run",
        "algorithm": "dpnfl",
        "dataset": "digits",
        "rounds": 2,
        "unit": "record",
        "adjacency": "replace-one",
        "view": "uploads",
        "delta": 1e-5,
        "epsilon": 1.0,
        "spent": known,
        "clients": {"count": count, "sizes": sizes, "names": None if names is None else names_of(names)},
        "records": {"checksum": records},
    } | changes


A, B, C = drawn(4.0, 5, 40, 10), drawn(4.0, 5, 50, 10), drawn(4.0, 5, 60, 10)


def test_events_of_clients_are_what_was_written():
    first = phase("1", [A, B, A])
    assert events_of(first, RECORD) == [A, B, A]
    assert len(first["spent"]["events"]) == 2


def test_clients_are_matched_by_records_else_by_names_else_the_worst_counts():
    first = phase("1", [A, B, C], names=["x", "y", "z"])
    same = matched(first, phase("2", [A, A, A]))
    assert events_for(first, same, RECORD, 3) == [A, B, C]
    named = matched(first, phase("2", [A] * 4, records="bb", names=["z", "new", "x", "x2"]))
    assert events_for(first, named, RECORD, 4) == [C, B, A, B]
    assert named.left.tolist() == [1]
    assert "2 with new names are taken for the worst of those that left" in named.members
    everyone = matched(first, phase("2", [A] * 4, records="bb", names=["z", "new", "x", "y"]))
    assert events_for(first, everyone, RECORD, 4) == [C, Composed(()), A, B]
    assert "1 that are new" in everyone.members
    for other in (
        phase("2", [A] * 3, records="bb"),
        phase("2", [A] * 3, records=None, names=["u", "v", "w"]),
        phase("2", [A] * 3, sizes="t"),
        phase("2", [A] * 2, names=["x", "x"], records=None),
    ):
        match = matched(first, other)
        assert match.places is None
        assert events_for(first, match, RECORD, 3) == [worst_of([A, B, C])] * 3
    assert matched(phase("1", [A], records=None), phase("2", [A], records=None)).places is None


def test_a_client_by_another_name_pays_what_any_that_left_has_spent():
    """Of a phase with events, and of one of which epsilon and delta alone are known."""
    first, later = (phase(name, [A, B, C], records=name, names=names) for name, names in (("1", "xyz"), ("2", "xuv")))
    match = matched(first, later)
    assert events_for(first, match, RECORD, 3) == [A, worst_of([B, C]), worst_of([B, C])]
    known = events_for(first | {"spent": None}, match, RECORD, 3)
    assert known == [StatedPrivacy(1.0, 1e-5, REPLACE)] * 3
    by_map = later | {"mapped": {"1": mapped((("x", "x"), ("y", ""), ("", "u"), ("z", "v")), first, later)}}
    assert events_for(first, matched(first, by_map), RECORD, 3) == [A, Composed(()), C]


PAIRS = (("z", "0"), ("", "1"), ("x", "new"), ("1", ""))  # of x, y, z and of three clients, of which one is called so


def test_clients_are_matched_as_their_user_says_by_names_or_numbers():
    first, second = (
        phase("1", [A, B, C], names=["x", "y", "z"]),
        phase("2", [A] * 3, records="bb", names=["u", "v", "new"]),
    )
    assert matched(first, second).places is None
    second["mapped"] = {"1": mapped(PAIRS, first, second)}
    match = matched(first, second)
    assert match.mapped == match.places.tolist() == [2, -1, 0]
    assert events_for(first, match, RECORD, 3) == [C, Composed(()), A]
    assert match.left.tolist() == [1]
    assert "1 that are new" in match.members
    assert matched(phase("3", [A, B, C], records="cc"), second).places is None  # another phase than the map is of
    same = second | {"records": first["records"], "clients": first["clients"]}
    with pytest.raises(errors.ConfigurationError, match="left out, or each client beside itself"):
        matched(first, same)
    assert matched(first, same | {"mapped": {"1": [0, 1, 2]}}).mapped is None


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (PAIRS[:3], "no line of client 1 of dpnfl on d"),
        (PAIRS[:2] + PAIRS[3:], "no line of client 0 of dpnfl on d"),
        ((*PAIRS, ("y", "")), "client y of dpnfl on digits, 2 rounds twice"),
        ((*PAIRS, ("", "2")), "client 2 of this run twice"),
        ((*PAIRS, ("w", "")), "one of the 3 clients of dpnfl on d.*got 'w'"),
        ((*PAIRS, ("", "3")), "one of the 3 clients of this run.*got '3'"),
        ((*PAIRS, ("-1", "")), "got '-1'"),
    ],
)
def test_a_map_of_clients_that_leaves_room_for_doubt_is_refused_in_one_line(pairs, words):
    first, second = phase("1", [A, B, C], names=["x", "y", "z"]), phase("2", [A] * 3, names=["u", "v", "new"])
    with pytest.raises(errors.ConfigurationError, match=words) as caught:
        mapped(pairs, first, second)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("first\nx\n", "a CSV with the header first,second, got the header 'first'"),
        ("first,second\nx,0,1\n", "line 2 must be two clients"),
        ("first,second\n\n ,\n", "line 3 must be two clients"),
        (None, "a CSV file that can be read"),
    ],
)
def test_a_file_that_is_no_map_of_clients_is_refused_in_one_line(tmp_path, text, words):
    file = tmp_path / "clients.csv"
    if text is not None:
        file.write_text(text)
    with pytest.raises(errors.ConfigurationError, match=words) as caught:
        read_pairs(file)
    assert "\n" not in str(caught.value)
    file.write_text("first, second\nz,0\n,1\n\n x , new\n1,\n")
    assert read_pairs(file) == PAIRS


def test_where_epsilon_and_delta_alone_are_known_every_client_has_them():
    own = phase("1", [A, B, A])
    own["spent"]["events"][0] = {"kind": "own", "name": "Mine"}
    known = StatedPrivacy(1.0, 1e-5, REPLACE)
    for first in (phase("1"), own):
        assert events_for(first, matched(first, phase("2", [A] * 3)), RECORD, 3) == [known] * 3
        gone = Matched("", np.array([-1, 0]))
        assert events_for(first, gone, RECORD, 2) == [Composed(()), known]
    file = {"phase": "f", "kind": "file", "name": "w.npz", "stated": [0.5, 1e-6]}
    assert is_private(file)
    assert not is_private(file | {"stated": None})
    event = events_for(file, matched(file, own), (Unit.USER, ADD), 1)[0]
    assert event == StatedPrivacy(0.5, 1e-6, ADD, unit=Unit.USER)


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
    first = phase("1", [A, B, C]) | {"spent": HOSTILE[kind]}
    with pytest.raises(errors.ConfigurationError) as caught:
        events_of(first, RECORD)
    assert "\n" not in str(caught.value)


def test_of_branches_of_one_start_the_common_phase_counts_once():
    first = phase("1", [A, B, A])
    left, right = (phase(name, [B, C, C], continues=["1"]) for name in ("2", "3"))
    union = union_of([[first, left], [first, right]], 1e-4, "pld")
    assert [one.phase for one in union.phases] == ["1", "2", "3"]
    once = max(epsilon_of(Composed((a, b, b)), 1e-4) for a, b in zip([A, B, A], [B, C, C], strict=True))
    assert union.epsilon == pytest.approx(once, rel=1e-9)
    assert union.epsilon < epsilon_of(Composed((A, A, B, B)), 1e-4)
    assert counted_with([first, left]) == (first,)
    apart = union_of([[first, phase("2", [B, C, C])]], 1e-4, "pld")  # which took the start as public
    assert [one.phase for one in apart.phases] == ["2"]


def test_members_of_one_branch_alone_pay_for_that():
    one = phase("1", [A, A], names=["x", "y"])
    other = phase("2", [A, C], records="bb", names=["y", "z"])
    union = union_of([[one], [other]], 1e-4, "pld")
    assert union.epsilon == pytest.approx(epsilon_of(Composed((A, A)), 1e-4), rel=1e-9)


def test_phases_that_do_not_add_up_are_refused():
    first = phase("1", [A, B, A], view="secure_sum", colluders=0)
    for other, words in (
        (phase("2", [A] * 3, unit="client"), "one unit and neighbours"),
        (phase("2", [A] * 3, view="secure_sum", colluders=2), "colluders of the ledgers must be one number, got 0, 2"),
        (phase("2", None, epsilon=None), "had no privacy"),
        (phase("2", [A] * 3, in_sweep=True), "chosen among others"),
    ):
        with pytest.raises(errors.ConfigurationError, match=words):
            union_of([[first], [other]], 1e-4, "pld")


def test_seeds_of_one_digest_are_refused_and_never_composed():
    """Equal seeds always have one; two that collide need another seed, and cost nobody any epsilon."""
    digests = [draws_of(seed) for seed in range(2_000)]
    assert digests == [draws_of(seed) for seed in range(2_000)]
    one, other = next((digests.index(each), at) for at, each in enumerate(digests) if digests.index(each) < at)
    phases = [[phase(name, [A], draws=draws_of(seed))] for name, seed in (("1", one), ("2", other))]
    with pytest.raises(errors.ConfigurationError, match="seeds of the ledgers must be one for each run"):
        union_of(phases, 1e-4, "pld")


def test_names_are_known_again_and_cannot_be_read():
    kept = names_of(["anna", "bert"])
    assert kept == names_of(["anna", "bert"]) != names_of(["bert", "anna"])
    assert names_of(None) is names_of(["x", "x"]) is names_of([str(n) for n in range(10_001)]) is None


def test_an_attack_on_both_phases_allows_the_epsilon_of_both_and_refutes_that_of_the_second_alone():
    """Whoever sees both models adds up what they say of a record: the second phase's own promise does not hold."""
    first, second, trials = whole(2.0, 1, REPLACE), whole(2.0, 1, REPLACE), 20_000
    rng = np.random.default_rng(0)
    absent, present = (rng.normal(shift, 1.0, (trials, 2)).sum(1) for shift in (0.0, 2 / 2.0))
    wrong = [int((absent > 1.0).sum()), trials, int((present <= 1.0).sum()), trials]
    bounds = error_bounds(*wrong, significance=1e-6)
    assert not contradicts(bounds, trade_off(Composed((second, Past((first,))))))
    assert contradicts(bounds, trade_off(second))
