"""What corrections keep is what they say."""

import itertools

import jax
import numpy as np
import pytest
from helpers import ragged_data, states_of

from fedjax_dp.algorithms import CATALOGUE
from fedjax_dp.models import logistic_regression

COMMON = {"cohort_size": 3, "batch_size": 2, "local_steps": 3, "learning_rate": 0.3}
PRIVATE = {"clip_norm": 0.7, "noise_multiplier": 0.5, "schedule": "constant", "l2": 0.0}
MODEL = logistic_regression((3,), 3)


@pytest.mark.slow
def test_a_new_control_variate_is_the_mean_of_the_gradients_that_were_used():
    """SCAFFOLD's identity for option II, with clipping and noise: checked through the update it is read off."""
    data = ragged_data([6, 6, 6])
    value = CATALOGUE["dp_scaffold"](**{**COMMON, **PRIVATE, "cohort_size": None})
    states = states_of(value, MODEL, data, 2)
    for before, after in itertools.pairwise(states):
        old, new = before.clients[0], after.clients[0]
        np.testing.assert_allclose(after.shared[0], new.mean(0), atol=1e-5)  # c is the mean of the c_i
        # summed over all clients: w_next - w = -rate * tau * mean(c_i_new) because the corrections cancel
        moved = np.concatenate(
            [
                np.ravel(a) - np.ravel(b)
                for a, b in zip(jax.tree.leaves(after.params), jax.tree.leaves(before.params), strict=True)
            ]
        )
        np.testing.assert_allclose(moved, -0.3 * 3 * new.mean(0), rtol=1e-4, atol=1e-5)
        assert np.abs(new - old).max() > 1e-3
