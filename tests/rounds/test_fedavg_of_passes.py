"""McMahan's FedAvg, E = 5 passes in batches of B = 10, against a slow NumPy simulator.

Written from Algorithm 1 of McMahan et al. 2017 (arXiv:1602.05629): in each pass a client's records are split into
batches of size B, each a step w <- w - eta grad l(w; b) of the batch's mean, and models are averaged by n_k / n. The
last batch of a pass holds the rest. Only the order of the records is shared."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from helpers import ragged_data, states_of

import fedjax_dp as fdp
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import ravel
from fedjax_dp.rounds.simulation import run_key

EPOCHS, BATCH, RATE, ROUNDS = 5, 10, 0.05, 2
SIZES = [23, 4, 10, 37]
DATA, PROBLEM = ragged_data(SIZES), reference.softmax_problem(3, 3)


def orders(t, client, batches):
    """The records of every pass in the order that the run draws: (pass, n_k)."""
    key = jax.random.fold_in(jax.random.fold_in(role_key(run_key(0), "local"), t), client)
    steps = batches.count(EPOCHS, max(SIZES))
    drawn = batches.sample(role_key(key, "batch"), jnp.int32(SIZES[client]), steps, max(SIZES), min(SIZES))
    rows = [row[mask] for row, mask in zip(*map(np.asarray, (drawn.positions, drawn.mask)), strict=True)]
    return np.concatenate(rows).reshape(EPOCHS, SIZES[client])


def by_hand(batches, last):
    """The model after every round."""
    model, models = np.zeros(12), []
    for t in range(ROUNDS):
        trained = []
        for k, (offset, size) in enumerate(zip(np.asarray(DATA.offsets).tolist(), SIZES, strict=True)):
            x, y, own = DATA.x[offset : offset + size], DATA.y[offset : offset + size], model
            for order in orders(t, k, batches):
                assert sorted(order.tolist()) == list(range(size))  # a pass has every record once
                for begin in range(0, size, BATCH):
                    records = order[begin : begin + BATCH]
                    if last == "keep" or len(records) == min(BATCH, size):
                        own = own - RATE * PROBLEM.gradients(own, x[records], y[records]).mean(0)
            trained.append(size * own)
        model = sum(trained) / sum(SIZES)
        models.append(model)
    return models


@pytest.mark.slow
def test_two_rounds_equal_the_slow_simulator_and_none_that_drops_the_rest_of_a_pass():
    words = {"cohort_size": None, "estimator": "full", "batches": "epochs", "last": "keep", "batch_size": BATCH}
    algorithm = fdp.fedavg.of({**words, "local_steps": EPOCHS, "learning_rate": RATE})
    batches, states = algorithm.local.batches, states_of(algorithm, fdp.logistic_regression((3,), 3), DATA, ROUNDS)
    got = [np.asarray(ravel(state.params)[0]) for state in states]
    assert not np.any(got[0])
    np.testing.assert_allclose(got[1:], by_hand(batches, "keep"), rtol=2e-4, atol=2e-6)
    assert np.max(np.abs(got[-1] - by_hand(batches, "drop")[-1])) > 1e-3
