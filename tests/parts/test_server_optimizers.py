"""How the server moves."""

import numpy as np
import optax
from helpers import refusal

from fedjax_dp.parts.server_optimizers import Server


def test_a_server_is_made_of_numbers_alone():
    """An array could hold records of the clients, past all noise."""
    numbers = {"learning_rate": 1.0, "b1": 0.9, "nesterov": True, "weight_decay": np.float32(0.1)}
    Server(factory=optax.adamw, hyperparameters=numbers).check()
    for held in (np.ones((3, 2)), {"a layer": np.ones(3)}):
        server = Server(factory=optax.adamw, hyperparameters=numbers | {"weight_decay": held})
        assert "weight_decay of the server must be a number" in refusal(server.check)
