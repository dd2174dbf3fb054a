"""Epsilon by round, and lines of a ledger from which it can be derived again."""

import itertools
import math

import pytest
from guarantee_cases import COMMON, SIZES
from helpers import ragged_data

import fedjax_dp as fdp
from fedjax_dp.accounting.ledger import read_rounds, text_of
from fedjax_dp.algorithms import CATALOGUE
from fedjax_dp.privacy.guarantees import verified_guarantee
from fedjax_dp.privacy.spending import EVALUATIONS, Spending
from fedjax_dp.privacy.terms import PrivacyTerms

ROUNDS, PHASE = 6, {"phase": "a" * 64, "clients": {"count": len(SIZES)}}
DATA = ragged_data(SIZES)
CLIP = {"clip_norm": 0.7, "noise_multiplier": 2.0}
SHARED = {"noise": "shared", "secure": True, "fractional_bits": 6}
PASSES = {"cohort_size": None, "pass_rounds": 4}
CASES = {  # entry, options, terms, whether lines of rounds add up
    "by schedule": ("dpnfl", {}, {}, True),
    "by law": ("dpnfl", {}, {"participation": "law"}, True),
    "worst case": ("dpnfl", {}, {"participation": "worst"}, True),
    "mean number": ("dpnfl", {}, {"participation": "expected"}, False),
    "a single round": ("dpnfl", {}, {"participation": "once"}, False),
    "own noise": ("dpnfl", {"noise_multiplier": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}, {"accountant": "rdp"}, True),
    "drawn twice": ("dpnfl", {"cohort": "md", "one_by_one": True}, {}, False),
    "all records": ("dpnfl", {"batches": "full", "batch_size": None}, {}, True),
    "warm start": ("dp_scaffold", {"warm_start": True}, {"accountant": "rdp"}, False),
    "secure sum": ("cpfed", {"local_steps": 1}, {"view": "broadcast"}, True),
    "noise that follows rates": ("dp_fedavg_output", {"noise_space": "literal"}, {}, False),
    "hidden clients": ("dp_fedavg", {}, {}, True),
    "shared noise": ("dp_fedavg", SHARED, {"accountant": "rdp"}, True),
    "correlated noise": ("dp_ftrl", {}, {}, False),
    "passes of cohorts": ("dp_fedavg", {**PASSES, "cohort": "allocation"}, {}, False),
    "kept slots": ("dp_fedavg", {**PASSES, "cohort": "bins"}, {}, False),
    "kept slots of records": ("dpnfl", {"batches": "bins", "batch_size": 3}, {}, False),
    "allocated records": ("dpnfl", {"batches": "allocated", "batch_size": 3}, {}, True),
}


@pytest.fixture(scope="module")
def spending():
    made = {}

    def of(name):
        if name not in made:
            entry, options, terms, _ = CASES[name]
            algorithm = CATALOGUE[entry].of({**COMMON, **CLIP, **options})
            run = fdp.privacy.plan_run(
                algorithm, DATA, rounds=ROUNDS, seed=3, terms=PrivacyTerms(**{"delta": 1e-3, **terms})
            )
            made[name] = Spending(run, verified_guarantee(run))
        return made[name]

    return of


@pytest.mark.parametrize("name", CASES)
def test_the_ledger_derives_the_guarantee_again(spending, name):
    one = spending(name)
    lines = list(one.lines(0, ROUNDS))
    ledger = read_rounds(text_of(lines), PHASE, "x")
    assert ledger.epsilons() == pytest.approx(list(one.guarantee.epsilons), rel=1e-9)
    assert any(line["so_far"] for line in lines if "so_far" in line) != CASES[name][3]
    assert [line["halt"] for line in lines] == [None] * (ROUNDS - 1) + ["rounds"]


@pytest.mark.parametrize("name", ["by schedule", "correlated noise", "by law"])
def test_planned_is_the_guarantee_of_a_run_of_so_many_rounds(spending, name):
    one = spending(name)
    run = one.run
    for rounds in (2, 4):
        shorter = fdp.privacy.plan_run(run.algorithm, DATA, rounds=rounds, seed=3, terms=run.terms)
        assert one.epsilon(rounds) == pytest.approx(verified_guarantee(shorter).epsilon, rel=1e-9)
    ledger = read_rounds(text_of(one.lines(0, 4)), PHASE, "x")
    assert max(ledger.epsilons()) == pytest.approx(one.epsilon(4), rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_planned_never_falls_ends_with_the_guarantee_and_bounds_what_was_not_worked_out(spending, name):
    one = spending(name)
    planned = [one.price(rounds) for rounds in range(1, ROUNDS + 1)]
    epsilons = [spent.epsilon for spent in planned]
    assert all(low <= high * (1 + 1e-3) for low, high in itertools.pairwise(epsilons))
    assert epsilons[-1] == one.guarantee.epsilon
    assert all(spent.priced_at >= rounds for rounds, spent in enumerate(planned, 1))


def test_at_any_time_is_known_for_unsampled_gaussian_noise_alone_and_never_below_planned(spending):
    assert all(spending(name).at_any_time(3) is None for name in ("by schedule", "by law", "shared noise"))
    for name in ("all records", "correlated noise"):
        one = spending(name)
        for rounds in range(1, ROUNDS + 1):
            assert one.at_any_time(rounds) >= one.price(rounds).epsilon


def test_few_rounds_are_worked_out_where_that_takes_long(spending):
    assert spending("all records").priced_rounds == [1, 2, 3, 4, 5, 6]
    assert spending("by schedule").priced_rounds == [1, 2, 4, 6]
    assert len(spending("own noise").priced_rounds) - 1 <= EVALUATIONS / 4


def test_a_run_without_privacy_has_lines_without_events():
    run = fdp.privacy.plan_run(CATALOGUE["fedavg"].of(COMMON), DATA, rounds=2, terms=PrivacyTerms())
    (first, second) = Spending(run, verified_guarantee(run)).lines(0, 2)
    assert (first["events"], first["epsilon_planned"], second["as_round"]) == ([], None, 0)
    assert not any(isinstance(value, float) and math.isinf(value) for value in first.values())


def test_lines_begin_anywhere(spending):
    """As after a resume: those of the later rounds are the same, whoever made those before."""
    for name in ("by schedule", "correlated noise"):
        one = spending(name)
        whole = list(one.lines(0, ROUNDS))
        assert list(one.lines(3, ROUNDS)) == whole[3:]
