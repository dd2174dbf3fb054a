"""What travels and what is kept: counted, and compared with what a compiled round really carries."""

import dataclasses

import jax
import pytest
from flax import linen as nn
from helpers import ragged_data, usual

import fedjax_dp as fdp
from fedjax_dp.algorithms import CATALOGUE
from fedjax_dp.execution.mesh import Execution
from fedjax_dp.models import mlp
from fedjax_dp.parts.transport import PlainSum
from fedjax_dp.pytrees import value
from fedjax_dp.rounds.round import run_round
from fedjax_dp.rounds.simulation import as_float32_leaves, run_key
from fedjax_dp.rounds.state import initial_state

COMMON = {"cohort_size": 3, "batch_size": 2, "local_steps": 1, "learning_rate": 0.1}
SERIALISATION = 760  # bytes that PyTorch adds to a vector of features, which the table counts


@value
class Noting(PlainSum):
    """A plain sum that notes how many numbers a message has."""

    def message(self, key, round_index, position, ids, selected, flat):
        NOTED.append(flat.size)
        return PlainSum.message(self, key, round_index, position, ids, selected, flat)


NOTED, FEW = [], ["rfedavg", "dp_fedavg"]


@pytest.mark.parametrize("entry", usual(["fedavg", "scaffold", "q_fedavg", "rfedavg", "dp_fedavg"], FEW))
def test_bytes_up_are_those_of_the_message_that_a_round_carries(entry):
    data, model = ragged_data([4, 5, 6, 4]), mlp((3,), 3, (5,))
    extra = {"clip_norm": 1.0, "noise_multiplier": 1.0, "adaptive_clip": True} if entry == "dp_fedavg" else {}
    algorithm = CATALOGUE[entry](**COMMON, **extra)
    sent = fdp.experiments.traffic(algorithm, model, data)
    traced, key = as_float32_leaves(dataclasses.replace(algorithm, transport=Noting())), run_key(0)
    state = initial_state(traced, model, data, key)
    NOTED.clear()
    jax.eval_shape(lambda *now: run_round(traced, model, now[0], key, now[1], Execution()), data, state)
    apart = 5 if entry == "rfedavg" else 0  # mean features travel beside the sum
    assert sent.up == 4 * (NOTED[0] + apart)
    secret = dataclasses.replace(algorithm, transport=fdp.parts.SecureSum(bits=64))
    assert fdp.experiments.traffic(secret, model, data).up == 8 * NOTED[0] + 4 * apart


class Wide(nn.Module):
    """A model with features of a given width."""

    width: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.relu(nn.Dense(self.width)(x)))


@pytest.mark.parametrize(
    ("members", "features", "table", "one"),
    [(20, 512, 56_160, 2_808), (20, 256, 35_680, 1_784), (100, 512, 280_800, 2_808), (100, 256, 178_400, 1_784)],
)
def test_features_cost_what_rfedavg_table_iii_prints(members, features, table, one):
    data, model = ragged_data([1] * members, shape=(1,)), fdp.model(Wide(features), (1,))
    found = {}
    for entry in ("rfedavg", "rfedavg_plus"):
        algorithm = CATALOGUE[entry](**{**COMMON, "cohort_size": None, "batch_size": 1})
        matching = algorithm.local.corrections[0]
        vectors = matching.vectors(members, members)
        found[entry] = vectors * (4 * features + SERIALISATION)
        plain = fdp.experiments.traffic(CATALOGUE["fedavg"](**COMMON), model, data)
        assert (
            fdp.experiments.traffic(algorithm, model, data).down - plain.down == 4 * features * vectors
        )  # the payload alone
    assert found == {"rfedavg": table, "rfedavg_plus": one}
