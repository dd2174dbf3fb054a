"""The law of noise, on numbers."""

import numpy as np
import pytest

from fedjax_dp.inspection import noise_law


@pytest.mark.parametrize("least", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 12, 1_500, 24_000])
def test_true_noise_has_its_size_in_whatever_number_of_places(count, least):
    squares = np.sum(np.random.default_rng(count).normal(size=(count, 64)) ** 2, 1)
    noise_law.examine_sizes(squares, 64, str, least)
    squares[: -(-count // 3)] *= 0.25
    with pytest.raises(AssertionError, match="standard deviation"):
        noise_law.examine_sizes(squares, 64, str, least)
