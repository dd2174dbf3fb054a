"""Noise on the gradients of records has the size that is accounted, and none is lost."""

import numpy as np
import pytest
from helpers import noise_of_steps


def test_noise_of_one_step_has_standard_deviation_z_c_over_b_and_five_percent_is_seen():
    sample = noise_of_steps(size=13_000, rounds=1, num_clients=1)[0, 0].astype(float)
    expected = 3.0 * 0.5 / 2

    def z(values):
        return (values.std() / expected - 1) * np.sqrt(2 * values.size)

    assert abs(z(sample)) < 4.89
    wrong = {
        "std off by 5%": 1.05 * sample,
        "z without C": sample / 0.5,
        "noise on the mean, not the sum": sample * 2,
        "noise inside the learning rate of 0.01": 0.01 * sample,
    }
    for name, values in wrong.items():
        assert abs(z(values)) > 4.89, name


@pytest.mark.slow
def test_the_noise_of_an_update_is_not_lost_in_the_rounding_of_a_large_model():
    near, far = (noise_of_steps(32, 3, 4, learning_rate=1e-3, steps=5, start=at) for at in (0.0, 2.0**20))
    np.testing.assert_array_equal(near, far)
    lost = (np.float32(2.0**20) + near) - np.float32(2.0**20)  # the wrong program: end minus start
    assert np.all(lost == 0)
    assert np.all(near != 0)
