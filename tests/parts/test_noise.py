"""Noise is fresh wherever it should be, and the stated combination where it is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import noise_of_steps

from fedjax_dp.parts.client_privacy import server_noise
from fedjax_dp.parts.noise import BandedNoise, WhiteNoise


@pytest.mark.slow
def test_noise_of_clients_steps_and_rounds_is_independent():
    noise = noise_of_steps(size=4_000, rounds=3, num_clients=4).reshape(12, -1)
    limit = 5.6 / np.sqrt(noise.shape[1])  # 66 pairs at 1e-6 together
    correlations = np.corrcoef(noise)[np.triu_indices(12, 1)]
    assert np.abs(correlations).max() < limit < np.abs(np.corrcoef(noise[0], noise[0])[0, 1])
    two_steps = noise_of_steps(size=13_000, rounds=1, num_clients=1, steps=2)[0, 0]
    ratio = two_steps.std() / (3.0 * 0.5 / 2)
    assert abs(ratio**2 / 2 - 1) * np.sqrt(13_000 / 2) < 4.89  # variances add; a reused key would double them


def test_banded_noise_is_the_stated_combination_of_white_noise():
    source = BandedNoise(coefficients=np.array([1.0, -0.5, -0.125]))
    key = jax.random.key(1, impl="threefry2x32")
    white = [np.asarray(server_noise(WhiteNoise(), key, jnp.int32(t), 50)) for t in range(5)]
    for t in range(5):
        expected = white[t] - 0.5 * (white[t - 1] if t else 0) - 0.125 * (white[t - 2] if t > 1 else 0)
        np.testing.assert_allclose(server_noise(source, key, jnp.int32(t), 50), expected, atol=1e-6)
