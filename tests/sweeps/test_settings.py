"""Settings of a sweep: means over seeds with their intervals, and which values are equal."""

import math

import numpy as np
import pytest
from helpers import MEASURES
from scipy import stats
from sweep_points import point, textbook_interval

from fedjax_dp.sweeps.settings import bounds, interval, value_key


@pytest.mark.parametrize("seeds", [2, 3, 5, 30])
def test_interval_is_students(seeds):
    numbers = np.random.default_rng(seeds).normal(0.8, 0.05, seeds).tolist()
    found = interval(numbers)
    np.testing.assert_allclose(found[:4], textbook_interval(numbers), rtol=1e-12)
    np.testing.assert_allclose(
        (found.low, found.high), stats.t.interval(0.95, seeds - 1, found.mean, stats.sem(numbers)), rtol=1e-12
    )
    assert found.seeds == seeds


def test_interval_by_hand_and_its_ends():
    found = interval([0.5, 0.6, 0.7])  # t(2) at 97.5% is 4.302652730: any table of Student's t
    assert found.mean == pytest.approx(0.6)
    assert found.std == pytest.approx(0.1)
    assert found.high - 0.6 == pytest.approx(4.302652730 * 0.1 / math.sqrt(3), rel=1e-9)
    assert interval([0.25])[0] == 0.25
    assert all(map(math.isnan, interval([0.25])[1:4]))
    assert all(map(math.isnan, interval([])[:4]))
    assert interval([0.3, 0.3]) == (0.3, 0.0, 0.3, 0.3, 2)


def test_every_metric_of_an_evaluation_has_a_direction_or_none():
    assert list(MEASURES.by_name) == list(point(0, {})["history"][0])[1:]


def test_equal_values_have_equal_keys():
    assert value_key(1) == value_key(1.0)
    assert len({value_key(value) for value in (1, True, "1", None, [1], "null", "true")}) == 7


def test_an_interval_in_words_stays_within_what_the_metric_can_be():
    assert bounds(MEASURES["test_accuracy"], -0.09, 1.56) == "0.0000 to 1.0000"
    assert bounds(MEASURES["test_loss"], -0.09, 1.56) == "0.0000 to 1.5600"
    assert bounds(MEASURES["test_accuracy"], math.nan, math.nan) == ""
