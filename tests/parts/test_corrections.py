"""What corrections keep is what they say."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import own_parts as own
import pytest
from helpers import ragged_data, refusal, states_of, usual

import fedjax_dp as fdp
from fedjax_dp.algorithms import CATALOGUE
from fedjax_dp.models import logistic_regression
from fedjax_dp.pytrees import ravel
from fedjax_dp.rounds import simulation

COMMON = {"cohort_size": 3, "batch_size": 2, "local_steps": 3, "learning_rate": 0.3}
PRIVATE = {"clip_norm": 0.7, "noise_multiplier": 0.5, "schedule": "constant", "l2": 0.0}
MODEL = logistic_regression((3,), 3)


@pytest.mark.slow
def test_a_new_control_variate_is_the_mean_of_the_gradients_that_were_used():
    """SCAFFOLD's identity for option II, with clipping and noise: checked through the update it is read off."""
    data = ragged_data([6, 6, 6])
    value = CATALOGUE["dp_scaffold"].of({**COMMON, **PRIVATE, "cohort_size": None})
    states = states_of(value, MODEL, data, 2)
    for before, after in itertools.pairwise(states):
        old, new = before.clients[0], after.clients[0]
        np.testing.assert_allclose(after.shared[0], new.mean(0), atol=1e-5)  # c is the mean of the c_i
        # summed over all clients: w_next - w = -rate * tau * mean(c_i_new) because the corrections cancel
        moved = ravel(after.params)[0] - ravel(before.params)[0]
        np.testing.assert_allclose(moved, -0.3 * 3 * new.mean(0), rtol=1e-4, atol=1e-5)
        assert np.abs(new - old).max() > 1e-3


def test_control_variates_are_refused_at_rates_by_which_no_update_can_be_divided():
    value = fdp.scaffold.of({**COMMON, "schedule": "step", "decay_every": 1, "decay_factor": 1e-7})
    data = ragged_data([6, 6, 6])
    simulation.check(value, data, 2)
    with pytest.raises(fdp.ConfigurationError, match="rates from 1e-12 for control variates, got rates from 3e-15"):
        simulation.check(value, data, 3)


@fdp.value
class Keeps(fdp.parts.Correction):
    """Clients keep the sum of their updates."""

    def init(self, run):
        return fdp.parts.LocalState(clients=jnp.zeros((run.data.num_clients, run.size)))

    def finish(self, update, client, total_rate, extra_gradient):
        return (), client.received.client_state + update


@fdp.value
class OneForAll(Keeps):
    def init(self, run):
        return fdp.parts.LocalState(clients=jnp.zeros(run.size))


@fdp.value
class Bare(Keeps):
    def init(self, run):
        return jnp.zeros((run.data.num_clients, run.size))


@fdp.value
class Tree(Keeps):
    def finish(self, update, client, total_rate, extra_gradient):
        return (), client.unravel(update)


@fdp.value
class Swapped(Keeps):
    def finish(self, update, client, total_rate, extra_gradient):
        return client.received.client_state + update, ()


@pytest.mark.slow
@pytest.mark.parametrize("entry", usual(["dpnfl", "fedavg"], ["dpnfl"]))
def test_what_clients_keep_has_one_shape_or_is_refused_by_the_name_of_the_part(entry):
    data, noise = ragged_data([6, 6, 6]), {"clip_norm": 0.7, "noise_multiplier": 1.5} if entry == "dpnfl" else {}
    plain = CATALOGUE[entry].of({**COMMON, **noise})
    size = 12

    def keeping(part):
        return own.steps(plain, corrections=(part,))

    def run(part):
        return fdp.run(keeping(part), data, rounds=1, delta=1e-3, model=MODEL)

    assert np.abs(states_of(keeping(Keeps()), MODEL, data, 1)[1].clients[0]).max() > 0
    for part, told in (
        (OneForAll(), f"shaped like the old row, shape (), got shape ({size},); init creates the rows: "),
        (Tree(), f"shaped like the old row, shape ({size},), got {{"),
        (Swapped(), f"shaped like the old row, shape ({size},), got nothing"),
        (Bare(), "what Bare.init returns must be LocalState(server=..., clients=...), got"),
    ):
        message = refusal(functools.partial(run, part))
        assert type(part).__name__ in message, message
        assert told in message, message


def test_a_row_that_did_not_begin_is_refused():
    @fdp.value
    class Grows(fdp.parts.Correction):
        def finish(self, update, client, total_rate, extra_gradient):
            return (), update

    algorithm = own.steps(CATALOGUE["fedavg"].of(COMMON), corrections=(Grows(),))
    message = refusal(functools.partial(fdp.simulate, algorithm, ragged_data([6, 6, 6]), rounds=1, model=MODEL))
    wanted = "the client's new row, the second value that Grows.finish returns, must be shaped like the old row"
    assert wanted in message
    assert "nothing, got shape (12,)" in message
