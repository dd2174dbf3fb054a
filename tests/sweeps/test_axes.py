"""Axes of a sweep: grids and random draws keep their laws, and what cannot be varied is refused in one line."""

import doctest
import itertools
import math

import numpy as np
import pytest
from helpers import SEEDS, refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedjax_dp.sweeps import axes

FALSE_POSITIVE = 1e-6
FIELDS = ["rounds", "clip_norm", "learning_rate", "algorithm"]
LISTS = st.lists(st.integers(-9, 9) | st.sampled_from("abc"), min_size=1, max_size=4, unique=True)
AXES = st.dictionaries(st.sampled_from(FIELDS), LISTS, max_size=4)
ENDS = st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)).filter(lambda ends: ends[1] > 1.01 * ends[0])


def grid(varied, points=(), **options):
    return axes.grid(axes.parse(varied, points, **options))


def random_points(varied, count, seed, points=(), **options):
    return axes.random_points(axes.parse(varied, points, **options), count, seed)


# Grids


@given(AXES)
@settings(deadline=None)
def test_a_grid_is_every_combination_with_the_last_axis_fastest(varied):
    expected = [dict(zip(varied, values)) for values in itertools.product(*varied.values())]
    assert grid(varied) == expected
    assert len(expected) == math.prod(map(len, varied.values()))
    assert all(list(point) == list(varied) for point in grid(varied))


def test_joined_fields_vary_together_and_entries_may_stop_early():
    varied = {"algorithm ,server_learning_rate": [["dpnfl"], ["addpnfl", 0.1]], "rounds": [1, 2]}
    assert grid(varied) == [
        {"algorithm": "dpnfl", "rounds": 1},
        {"algorithm": "dpnfl", "rounds": 2},
        {"algorithm": "addpnfl", "server_learning_rate": 0.1, "rounds": 1},
        {"algorithm": "addpnfl", "server_learning_rate": 0.1, "rounds": 2},
    ]


def test_points_written_out_are_one_more_axis_and_the_slowest():
    points = [{}, {"algorithm": "fedprox", "mu": 0.1}]
    assert grid({"rounds": [1, 2]}, points) == [
        {"rounds": 1},
        {"rounds": 2},
        {"algorithm": "fedprox", "mu": 0.1, "rounds": 1},
        {"algorithm": "fedprox", "mu": 0.1, "rounds": 2},
    ]


def values_of(field, given_range, **options):
    return [point[field] for point in grid({field: given_range}, **options)]


@given(ENDS, st.integers(2, 30))
@settings(deadline=None)
def test_log_ranges_have_a_constant_ratio_and_linear_ones_a_constant_step_and_exact_ends(ends, points):
    log, linear = (values_of("clip_norm", {spacing: list(ends), "points": points}) for spacing in ("log", "linear"))
    for values in (log, linear):
        assert (values[0], values[-1], len(values)) == (*ends, points)
    ratios = np.divide(log[1:], log[:-1])
    np.testing.assert_allclose(ratios, (ends[1] / ends[0]) ** (1 / (points - 1)), rtol=1e-10)
    np.testing.assert_allclose(np.diff(linear), (ends[1] - ends[0]) / (points - 1), atol=1e-10 * ends[1])


def test_values_of_a_range_read_as_one_would_write_them():
    assert values_of("l2", {"log": [1e-4, 1], "points": 5}) == [1e-4, 1e-3, 1e-2, 0.1, 1.0]
    assert values_of("l2", {"linear": [0, 1], "points": 11}) == [float(f"0.{digit}") for digit in range(10)] + [1.0]


def test_ranges_of_integers_hold_integers():
    found = values_of("rounds", {"log": [1, 1000], "points": 7}, integers={"rounds"})
    assert found == [1, 3, 10, 32, 100, 316, 1000]
    assert {type(value) for value in found} == {int}


@given(AXES, st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True))
@settings(deadline=None)
def test_the_seed_is_the_last_field_and_varies_fastest(varied, seeds):
    points = grid(varied)
    seeded = axes.with_seeds(points, seeds)
    assert [point["seed"] for point in seeded] == seeds * len(points)
    assert all(list(point)[-1] == "seed" for point in seeded)
    without = [{name: value for name, value in point.items() if name != "seed"} for point in seeded]
    assert without == [point for point in points for _ in seeds]


# Random search


SEARCH = {"learning_rate": {"log": [1e-4, 1]}, "algorithm": ["a", "b", "c"], "mu": {"linear": [-1, 3]}}


@given(SEEDS, st.integers(1, 20), st.integers(1, 20))
@settings(deadline=None)
def test_a_trial_depends_neither_on_the_number_of_trials_nor_on_other_axes(seed, few, more):
    short, long = (random_points(SEARCH, count, seed) for count in (few, few + more))
    assert short == long[:few]
    for name in SEARCH:
        alone = random_points({name: SEARCH[name]}, few, seed)
        assert [point[name] for point in alone] == [point[name] for point in short]


@given(SEEDS, ENDS, st.tuples(st.integers(1, 99), st.integers(100, 10**9)))
@settings(deadline=None)
def test_draws_stay_inside_their_ranges(seed, ends, whole):
    for spacing in ("log", "linear"):
        varied = {"clip_norm": {spacing: list(ends)}, "rounds": {spacing: list(whole)}}
        for point in random_points(varied, 10, seed, integers={"rounds"}):
            assert ends[0] <= point["clip_norm"] <= ends[1]
            assert whole[0] <= point["rounds"] <= whole[1]
            assert type(point["rounds"]) is int


def drawn(given_range, count, **options):
    return np.array([point["x"] for point in random_points({"x": given_range}, count, 7, **options)])


def test_log_ranges_are_drawn_log_uniformly_and_linear_ones_uniformly():
    """Kolmogorov-Smirnov at 1e-6: the bound is 2.69 / sqrt(n), 0.06 here; the other law is off by 0.65 somewhere, so
    that it passes with a probability below 1e-6 too."""
    laws = {"log": stats.loguniform(1e-4, 1), "linear": stats.uniform(1e-4, 1 - 1e-4)}
    for spacing, law in laws.items():
        sample = drawn({spacing: [1e-4, 1]}, 2000)
        assert stats.kstest(sample, law.cdf).pvalue > FALSE_POSITIVE
        (wrong,) = (other for name, other in laws.items() if name != spacing)
        assert stats.kstest(sample, wrong.cdf).pvalue < FALSE_POSITIVE


@pytest.mark.parametrize("spacing", ["log", "linear"])
def test_every_integer_of_a_range_is_drawn_as_if_from_half_a_unit_around_it(spacing):
    """Chi-square at 1e-6; rounding draws between the ends takes from 1 and 5 some 200 of 3000 draws
    or more, a statistic above 300 where 34 is the bound."""
    count, measure = 3000, np.log if spacing == "log" else np.asarray
    sample = drawn({spacing: [1, 5]}, count, integers={"x"})
    right, wrong = (np.diff(measure(edges)) for edges in ([0.5, 1.5, 2.5, 3.5, 4.5, 5.5], [1, 1.5, 2.5, 3.5, 4.5, 5]))
    observed = np.bincount(sample, minlength=6)[1:]
    assert stats.chisquare(observed, count * right / right.sum()).pvalue > FALSE_POSITIVE
    assert stats.chisquare(observed, count * wrong / wrong.sum()).pvalue < FALSE_POSITIVE


def test_lists_ranges_with_points_and_points_written_out_are_drawn_uniformly():
    """Chi-square at 1e-6 over all 12 combinations; always taking them in turn fits too well and is not random."""
    varied, points = {"clip_norm": ["a", "b", "c"], "l2": {"log": [0.1, 1], "points": 2}}, [{"mu": 1.0}, {"q": 1.0}]
    sample = [tuple(point.items()) for point in random_points(varied, 2400, 0, points)]
    counts = [sample.count(tuple(point.items())) for point in grid(varied, points)]
    assert sum(counts) == 2400
    pvalue = stats.chisquare(counts).pvalue
    assert FALSE_POSITIVE < pvalue < 1 - FALSE_POSITIVE


def test_equal_trials_are_kept_and_another_seed_draws_others():
    assert random_points({"x": [1]}, 3, 0) == [{"x": 1}] * 3
    assert random_points(SEARCH, 5, 0) != random_points(SEARCH, 5, 1)


# Refusals


NAN = math.nan
BAD = [
    ({"x": []}, "axis x must be at least one value, got an empty list; drop the axis"),
    ({"x": 3}, "axis x must be a list or a range, got 3; such as [1, 2]"),
    ({"x": [1, 2, 1]}, "axis x must be values that differ, got x=1 twice; drop one"),
    ({"x": [1, NAN]}, "axis x must be finite, got nan; leave it out"),
    ({"x": [[1]]}, "axis x must be numbers, text, true or false, got [1]"),
    ({"x": [2**70]}, "axis x must be an integer of 64 bits"),
    ({"x": {"log": [1, 10]}}, "axis x must be a list, or a range with points, in a grid, got 1.0 to 10.0; add points"),
    ({"x": {"log": [10, 1], "points": 3}}, "a range whose first end is lower, got 10.0 and 1.0; turn the ends around"),
    ({"x": {"log": [0, 1], "points": 3}}, "a log range between positive ends, got 0.0; use linear"),
    ({"x": {"linear": [NAN, 1], "points": 3}}, "axis x must be finite, got nan"),
    ({"x": {"linear": [-1e308, 1.7e308], "points": 3}}, "a range whose values differ"),
    ({"x": {"linear": [0, "1"], "points": 3}}, "axis x must be a range between numbers, got '1'"),
    ({"x": {"linear": [0], "points": 3}}, "axis x must be a range between two ends, got [0]; such as {log = [1, 10]}"),
    ({"x": {"log": [1, 2], "points": 1}}, "axis x: points must be an integer from 2 to 1,000,000, got 1"),
    ({"x": {"log": [1, 2], "point": 3}}, "a key of its range must be one of log, linear, points, got 'point'; did you"),
    ({"x": {"log": [1, 2], "linear": [1, 2]}}, "axis x must be a range with one of log, linear"),
    ({"whole": {"log": [1, 3], "points": 9}}, "axis whole must be a range whose values differ, got 9 from 1 to 3; ask"),
    ({"whole": {"log": [1, 2.5], "points": 2}}, "axis whole must be a range between integers, got 2.5"),
    ({"x,": [1]}, "an axis must be named by a field"),
    ({"x, y": {"log": [1, 2], "points": 2}}, "axis x, y must be a list of lists, since it joins fields, got a range"),
    ({"x, y": [1]}, "a list with entries of 1 to 2 values, got 1; one for each of x, y"),
    ({"x, y": [[1, 2, 3]]}, "a list with entries of 1 to 2 values, got [1, 2, 3]"),
    ({"x, y": [[1, 2], [1, 2]]}, "axis x, y must be values that differ, got x=1, y=2 twice"),
    ({"x": [1], "x, y": [[1, 2]]}, "axis x, y must be over fields of its own, got x in x too"),
    ({name: list(range(101)) for name in "xyz"}, "at most 1,000,000 points, got 1,030,301; list fewer values"),
]


@pytest.mark.parametrize(("varied", "expected"), BAD, ids=[str(varied)[:60] for varied, _ in BAD])
def test_axes_that_cannot_be_are_refused_in_one_line(varied, expected):
    assert expected in refusal(lambda: grid(varied, integers={"whole"}))


def test_points_seeds_and_trials_that_cannot_be_are_refused_in_one_line():
    assert "[[points]] must be values that differ, got x=1 twice" in refusal(grid, {}, [{"x": 1}, {"x": 1.0}])
    assert "[[points]]: x must be finite, got nan" in refusal(grid, {}, [{"x": NAN}])
    assert "[[points]]: x must be numbers, text" in refusal(grid, {}, [{"x": [1]}])
    assert "over fields of its own, got x in [[points]] too" in refusal(grid, {"x": [1]}, [{"x": 1}])
    assert "seeds must be at least one, got none; such as seeds = 3" in refusal(axes.with_seeds, [{}], [])
    assert "seeds must be values that differ, got seed=1 twice" in refusal(axes.with_seeds, [{}], [1, 1])
    assert "seeds must be an integer from 0 to 4,294,967,295, got -1" in refusal(axes.with_seeds, [{}], [-1])
    assert axes.seeds_of(3) == axes.seeds_of(range(3)) == axes.seeds_of(np.arange(3)) == (0, 1, 2)
    assert "seeds must be an integer from 1 to 1,000,000, got 0; or a list" in refusal(axes.seeds_of, 0)
    assert "trials must be an integer from 1 to 1,000,000, got 1000001" in refusal(random_points, SEARCH, 1000001, 0)
    assert "left out without axes or points to draw from" in refusal(random_points, {}, 3, 0)
    assert "search_seed must be an integer from 0 to 4,294,967,295, got -1" in refusal(random_points, SEARCH, 3, -1)


def test_true_and_one_are_different_values():
    assert grid({"x": [True, 1]}) == [{"x": True}, {"x": 1}]


def test_the_example_of_the_module_runs():
    outcome = doctest.testmod(axes)
    assert (outcome.failed, outcome.attempted) == (0, 1)
