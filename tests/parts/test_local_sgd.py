"""Local steps are gradient descent, and lose no noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import noise_of_steps, ragged_data

from fedjax_dp import algorithms, gradients
from fedjax_dp.models import logistic_regression
from fedjax_dp.rounds import simulation


def test_one_client_one_step_is_gradient_descent():
    data = ragged_data([6])
    config = {"cohort_size": None, "batch_size": None, "local_steps": 1, "learning_rate": 0.5, "batches": "full"}
    run = simulation.simulate(algorithms.fedavg(**config), data, rounds=1)
    model = logistic_regression((3,), 3)
    start = model.init(jax.random.key(0))
    gradient = jax.grad(lambda p: gradients.losses(model, p, jnp.asarray(data.x), jnp.asarray(data.y)).mean())(start)
    for a, w, g in zip(*map(jax.tree.leaves, (run.params, start, gradient))):
        np.testing.assert_allclose(a, w - 0.5 * g, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_noise_of_an_update_is_not_lost_in_the_rounding_of_a_large_model():
    near, far = (noise_of_steps(32, 3, 4, learning_rate=1e-3, steps=5, start=at) for at in (0.0, 2.0**20))
    np.testing.assert_array_equal(near, far)
    lost = (np.float32(2.0**20) + near) - np.float32(2.0**20)  # the wrong program: end minus start
    assert np.all(lost == 0)
    assert np.all(near != 0)
