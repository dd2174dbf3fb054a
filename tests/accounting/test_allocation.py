"""Laws of sampling that span sums: allocations, kept slots, truncated Poisson cohorts; and neighbours by zero-out."""

import dataclasses
import math

import numpy as np
import pytest
import scipy
from noisy_sums import ADD_REMOVE, REPLACE_ONE, ZERO_OUT, poisson, unsampled

from fedjax_dp import accounting, errors
from fedjax_dp.accounting import NotCoveredError, Poisson, RandomAllocation, accountants, composed_phases, epsilon_of


def steps(noise, sampling, count, adjacency=ADD_REMOVE):
    return accounting.GaussianSteps(noise, sampling, adjacency, count)


def deltas(event, epsilon):
    """Forward and reverse."""
    return [one.delta(epsilon) for one in accountants.cost_of(event).directions]


def ratios_by_brute_force(noise, sums, top, cells):
    """Values and probabilities under N(0, s^2) of the mean of the ratios of all sums, on an even grid, by FFT."""
    edges = np.linspace(0.0, top, cells + 1)
    with np.errstate(divide="ignore"):
        y = np.log(edges) * noise**2 + 0.5
    mass, mean = np.diff(scipy.special.ndtr(y / noise)), np.diff(scipy.special.ndtr((y - 1) / noise))
    above = (mean - mass * edges[:-1]) / (top / cells)
    law = np.append(mass - above, 0.0) + np.append(0.0, above)
    size = scipy.fft.next_fast_len(cells * sums + 1, real=True)
    total = scipy.fft.irfft(scipy.fft.rfft(law, size) ** sums, size)[: cells * sums + 1]
    return np.arange(cells * sums + 1) * top / cells / sums, np.maximum(total, 0.0)


@pytest.mark.parametrize(("noise", "sums", "top"), [(2.0, 5, 30.0), (4.0, 12, 8.0), (1.5, 2, 150.0)])
def test_the_price_of_a_pass_is_that_of_sums_on_a_fine_even_grid(noise, sums, top):
    ratios, law = ratios_by_brute_force(noise, sums, top, 50_000)
    for epsilon in (0.0, 0.1, 0.4, 1.0):
        exact = (
            law @ np.maximum(ratios - math.exp(epsilon), 0.0),
            law @ np.maximum(1 - math.exp(epsilon) * ratios, 0.0),
        )
        upper = deltas(steps(noise, RandomAllocation(1, sums), sums), epsilon)
        for bound, delta in zip(upper, exact, strict=True):
            assert delta * (1 - 1e-4) - 1e-12 <= bound <= delta * (1 + 3e-3) + 1e-9


def by_monte_carlo(noise, chosen, of, epsilon, draws=40_000):
    """Forward delta of one pass, and its standard error: e^L is a mean over subsets, an elementary polynomial."""
    y = np.random.default_rng(3).normal(0.0, noise, (draws, of))
    y[:, :chosen] += 1.0
    terms = np.exp((2 * y - 1) / (2 * noise**2))
    polynomial = np.zeros((chosen + 1, draws))
    polynomial[0] = 1.0
    for term in terms.T:
        polynomial[1:] += term * polynomial[:-1].copy()
    excess = np.maximum(1 - math.exp(epsilon) * math.comb(of, chosen) / polynomial[chosen], 0.0)
    return excess.mean(), excess.std() / math.sqrt(draws)


@pytest.mark.parametrize(("noise", "chosen", "of", "loose"), [(1.0, 1, 20, 1.0), (1.5, 3, 20, 1.2), (1.5, 8, 60, 1.3)])
def test_a_pass_costs_no_less_than_subsets_drawn_at_random_and_hardly_more(noise, chosen, of, loose):
    for epsilon in (0.1, 0.5, 1.0):
        drawn, error = by_monte_carlo(noise, chosen, of, epsilon)
        bound = deltas(steps(noise, RandomAllocation(chosen, of), of), epsilon)[0]
        assert drawn - 4.89 * error <= bound <= loose * drawn + 4.89 * error
        wrong = deltas(steps(noise * 1.25, RandomAllocation(chosen, of), of), epsilon)[0]  # less than is true
        assert not drawn - 4.89 * error <= wrong


@pytest.mark.parametrize(
    ("chosen", "of", "passes", "noise", "delta", "low", "high"),
    [  # brackets of sums of log-normals rounded down and up; dp-accounting, pull request 414, lies within
        (1, 2, 1, 1.0, 1e-3, 2.49394, 2.49694),
        (1, 20, 1, 1.0, 1e-5, 1.60706, 1.61161),
        (1, 20, 10, 2.0, 1e-5, 1.44108, 1.47771),
        (1, 100, 5, 1.0, 1e-6, 1.42297, 1.44643),
        (3, 20, 1, 1.5, 1e-5, 2.06660, 2.08115),
        (10, 100, 1, 1.5, 1e-6, 3.53327, 3.59361),
    ],
)
def test_allocations_lie_within_brackets_of_another_program(chosen, of, passes, noise, delta, low, high):
    assert low <= epsilon_of(steps(noise, RandomAllocation(chosen, of), passes * of), delta) <= high


def test_an_allocation_is_not_always_cheaper_than_poisson():
    """By quadrature: .1492 against .1479."""
    allocated = deltas(steps(1.0, RandomAllocation(1, 2), 2), 0.5)[0]
    poisson = deltas(steps(1.0, Poisson(0.5), 2), 0.5)[0]
    assert (round(allocated, 4), round(poisson, 4)) == (0.1492, 0.1479)


def test_the_more_sums_to_choose_from_the_less_an_allocation_costs():
    costs = [epsilon_of(steps(2.0, RandomAllocation(1, of), of), 1e-5) for of in (1, 2, 3, 7, 20, 100, 1000)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] == epsilon_of(unsampled(2.0), 1e-5)


def test_to_join_all_sums_of_a_pass_is_to_be_unsampled():
    allocated, plain, other = steps(4.0, RandomAllocation(5, 5), 20), unsampled(4.0, 20), poisson(1.0, 0.1, 3)
    assert epsilon_of(allocated, 1e-5) == epsilon_of(plain, 1e-5)
    mixed = [epsilon_of(accounting.Composed((one, other)), 1e-5) for one in (allocated, plain)]
    assert mixed[0] == pytest.approx(mixed[1], rel=1e-3)


def test_a_kept_slot_is_one_pass_of_less_noise_and_neither_redrawn_slots_nor_poisson():
    slot = accounting.BallsInBins(10)
    kept = epsilon_of(steps(2.0, slot, 40), 1e-5)
    assert 2.1871 <= kept <= 2.1908  # brackets, as of allocations
    assert kept == pytest.approx(epsilon_of(steps(1.0, RandomAllocation(1, 10), 10), 1e-5), rel=1e-9)
    assert epsilon_of(steps(2.0, slot, 31), 1e-5) == kept  # a partial last pass is counted whole
    # wrong programs: the slot drawn anew in every pass, or in every sum, which is Poisson sampling
    assert epsilon_of(steps(2.0, RandomAllocation(1, 10), 40), 1e-5) == pytest.approx(1.30, rel=2e-2)
    assert epsilon_of(steps(2.0, Poisson(0.1), 40), 1e-5) < 0.9 * kept


def test_what_is_not_known_of_allocations_is_refused_in_a_line():
    allocated = steps(2.0, RandomAllocation(1, 20), 20)
    for accountant in ("rdp", "gaussian", "tcdp"):
        with pytest.raises(NotCoveredError, match="use accountant pld"):
            epsilon_of(allocated, 1e-5, accountant)
    assert epsilon_of(allocated, 1e-5, "zcdp") == epsilon_of(unsampled(2.0), 1e-5, "zcdp")
    with pytest.raises(NotCoveredError, match="2 records of one unit"):
        epsilon_of(dataclasses.replace(allocated, group=2), 1e-5)
    with pytest.raises(NotCoveredError, match="at most 100000"):
        epsilon_of(steps(2.0, RandomAllocation(1, 10**6), 10**6), 1e-5)
    with pytest.raises(NotCoveredError, match="closed form"):
        epsilon_of(steps(2.0, RandomAllocation(2, 20), 20), 1e-5, accounting.ATTAINED)
    with pytest.raises(errors.ConfigurationError, match="chosen must be at most the 4 sums"):
        RandomAllocation(5, 4)


def test_a_slot_that_is_kept_cannot_be_split_into_events():
    kept = steps(2.0, accounting.BallsInBins(10), 20)
    for event in (lambda: accounting.Composed((kept, kept)), lambda: accounting.RandomParticipation(kept, 0.5, 3)):
        with pytest.raises(NotCoveredError, match="drawn in each pass"):
            event()
    assert kept.repeated(2) == steps(2.0, accounting.BallsInBins(10), 40)
    before = accounting.Past((kept,))  # a run of its own
    assert epsilon_of(accounting.Composed((before, kept)), 1e-5) > epsilon_of(kept, 1e-5)


def test_partial_passes_are_counted_whole_and_copies_begin_anew():
    partial = steps(2.0, RandomAllocation(1, 10), 25)
    assert partial.releases == 3
    assert partial.repeated(2).releases == 6
    assert partial.once().releases == 1
    assert composed_phases.worst_of([partial]) == partial
    joined = composed_phases.worst_of([partial, dataclasses.replace(partial, count=31)])
    assert epsilon_of(joined, 1e-5) == pytest.approx(epsilon_of(dataclasses.replace(partial, count=40), 1e-5))


# --- truncated Poisson cohorts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "rate", "capacity", "noise", "rounds", "truncated", "stays", "epsilon"),
    [  # dp-accounting 0.6.0
        (1000, 0.02, 30, 2.0, 500, 0.02045505556342581, 0.018549568306321932, 1.10889),
        (1000, 0.02, 45, 2.0, 500, 7.515424961324811e-07, 0.01928256603861691, 0.92094),
        (200, 0.1, 22, 4.0, 100, 0.3427795773461658, 0.08697441929305523, 2.28646),
    ],
)
def test_truncated_cohorts_cost_what_another_program_says(
    members, rate, capacity, noise, rounds, truncated, stays, epsilon
):
    law = accounting.TruncatedPoisson(rate, capacity, members)
    assert law.chance_truncated == pytest.approx(truncated, rel=1e-8)
    assert law.rate_truncated == pytest.approx(stays, rel=1e-8)
    event = steps(noise, law, rounds, ZERO_OUT)
    upper = epsilon_of(event, 1e-5)
    assert upper == pytest.approx(epsilon, rel=2e-3)
    assert epsilon_of(event, 1e-5, accounting.ATTAINED) <= upper <= epsilon_of(event, 1e-5, "rdp")


def test_members_stay_as_often_as_there_is_room():
    law = accounting.TruncatedPoisson(0.1, 22, 200)
    joining = np.arange(201)
    exact = scipy.stats.binom.pmf(joining, 200, 0.1) @ np.minimum(joining, 22) / 200
    assert law.inclusion == pytest.approx(exact, rel=1e-12)


def test_cohorts_that_are_never_truncated_are_poisson():
    for capacity in (200, 150):
        truncated = steps(2.0, accounting.TruncatedPoisson(0.1, capacity, 200), 50, ZERO_OUT)
        assert epsilon_of(truncated, 1e-5) == epsilon_of(steps(2.0, Poisson(0.1), 50), 1e-5)


# --- neighbours -------------------------------------------------------------------------------------------------------

SAMPLINGS = (
    (accounting.FullBatch(), 12, {ADD_REMOVE, REPLACE_ONE, ZERO_OUT}),
    (Poisson(0.1), 12, {ADD_REMOVE, REPLACE_ONE, ZERO_OUT}),
    (accounting.WithoutReplacement(3, 9), 12, {REPLACE_ONE}),
    (accounting.WithReplacement(3, 9), 12, {REPLACE_ONE}),
    (accounting.AnyStep(accounting.WithoutReplacement(2, 9), 3), 12, {REPLACE_ONE}),
    (accounting.Shuffled(3, 9), 12, {REPLACE_ONE, ZERO_OUT}),
    (RandomAllocation(2, 4), 12, {ADD_REMOVE, ZERO_OUT}),
    (accounting.BallsInBins(4), 12, {ADD_REMOVE, ZERO_OUT}),
    (accounting.TruncatedPoisson(0.1, 3, 9), 12, {ZERO_OUT}),
)


@pytest.mark.parametrize(("sampling", "count", "covered"), SAMPLINGS, ids=lambda value: type(value).__name__)
def test_neighbours_that_are_not_covered_are_refused_with_those_that_are(sampling, count, covered):
    for adjacency in accounting.Adjacency:
        if adjacency in covered:
            assert 0 < epsilon_of(steps(9.0, sampling, count, adjacency), 1e-5) < math.inf
            continue
        with pytest.raises(NotCoveredError, match=f"; use ({'|'.join(known.value for known in covered)})") as refusal:
            steps(9.0, sampling, count, adjacency)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("sampling", [accounting.FullBatch(), Poisson(0.1), RandomAllocation(1, 4)], ids=str)
def test_a_contribution_put_to_zero_moves_sums_as_one_that_is_not_there(sampling):
    assert epsilon_of(steps(2.0, sampling, 8, ZERO_OUT), 1e-5) == epsilon_of(steps(2.0, sampling, 8), 1e-5)


def test_of_shuffled_passes_a_zero_out_costs_half_the_sensitivity():
    """mu is sqrt(passes) / z: closed form."""
    event = steps(8.0, accounting.Shuffled(60, 600), 100, ZERO_OUT)
    assert epsilon_of(event, 1e-4) == pytest.approx(1.2987211223974002, rel=1e-8)
