"""How the server moves."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import refusal

import fedjax_dp as fdp
from fedjax_dp.parts.server_optimizers import AVERAGES, AveragedServer, Server
from fedjax_dp.pytrees import check_part

ADDS = Server(hyperparameters={"learning_rate": 1.0})
COMMON = {"cohort_size": 2, "batch_size": 4, "local_steps": 2, "learning_rate": 0.3}


def ends(server, updates):
    """The final model after each of these updates of a model of one number that begins at 0, and the models."""
    params, state, finals, models = jnp.zeros(1), server.init(jnp.zeros(1)), [], []
    for t, update in enumerate(updates):
        params, state = server.move(jnp.int32(t), jnp.full(1, update), lambda: 0.0, state, params)
        finals.append(float(server.final(state, params)[0]))
        models.append(float(params[0]))
    return finals, models


WEIGHTS = {  # of model t at the end of round T, by hand
    "exponential": ({"average_decay": 0.7}, lambda t, last: 0.7 ** (last - t)),
    "polyak": ({"average_from": 3}, lambda t, last: float(t >= min(3, last))),
    "polynomial": ({"average_power": 2.0}, lambda t, last: (t + 1) * (t + 2)),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_a_mean_is_that_of_the_models_with_weights_by_hand(name):
    numbers, weight = WEIGHTS[name]
    updates = np.random.default_rng(1).normal(size=7)
    found, models = ends(AveragedServer(base=ADDS, weight=AVERAGES[name], numbers=numbers), updates)
    for last in range(7):
        weights = [weight(t, last) for t in range(last + 1)]
        assert found[last] == pytest.approx(np.average(models[: last + 1], weights=weights), abs=1e-6)


@pytest.mark.parametrize(("name", "number"), [("exponential", 0.0), ("polyak", 6)])
def test_the_simplest_mean_is_the_last_model_bit_for_bit(name, number):
    (key,) = WEIGHTS[name][0]
    updates = np.random.default_rng(2).normal(size=7)
    found, models = ends(AveragedServer(base=ADDS, weight=AVERAGES[name], numbers={key: number}), updates)
    assert found == models


@pytest.mark.parametrize("entry", ["fedadam", "addpnfl", "dp_ftrl", "finetune"])
def test_a_mean_is_an_option_whose_numbers_are_traced(entry):
    private = {} if entry == "fedadam" else {"clip_norm": 1.0}
    plain, one, other = (
        fdp.CATALOGUE[entry].of({**COMMON, **private, **more})
        for more in ({}, {"average": "exponential"}, {"average": "exponential", "average_decay": 0.99})
    )
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert jax.tree.leaves(one.server) != jax.tree.leaves(other.server)
    assert one.server.base == plain.server
    assert one.server.corrects == plain.server.corrects


def test_a_mean_that_cannot_be_meant_is_refused_in_one_line():
    made = fdp.fedavg.of({**COMMON, "average": "exponential", "average_decay": 1.0})
    assert refusal(check_part, made.server).startswith("average_decay must be in [0, 1), got 1")
    negative = fdp.fedavg.of({**COMMON, "average": "polyak", "average_from": -1}).server
    assert "average_from" in refusal(check_part, negative)
    assert "unless average is exponential" in refusal(lambda: fdp.fedavg.of({**COMMON, "average_decay": 0.5}))
    for entry in ("mr_mtl", "local", "ifca", "fedper", "fedrep", "apfl", "ppsgd"):
        made = fdp.CATALOGUE[entry]
        assert "average" in refusal(lambda: made(**COMMON, clip_norm=1.0, average="polyak"))  # noqa: B023


def test_a_server_is_made_of_numbers_alone():
    """An array could hold records of the clients, past all noise."""
    numbers = {"learning_rate": 1.0, "b1": 0.9, "nesterov": True, "weight_decay": np.float32(0.1)}
    check_part(Server(factory=optax.adamw, hyperparameters=numbers))
    for held in (np.ones((3, 2)), {"a layer": np.ones(3)}):
        server = Server(factory=optax.adamw, hyperparameters=numbers | {"weight_decay": held})
        assert "weight_decay of the server must be a number" in refusal(check_part, server)
