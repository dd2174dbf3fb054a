"""Checkpoints of other versions."""

from typing import Any, NamedTuple

import numpy as np
import pytest

import fedjax_dp as fdp
from fedjax_dp import errors
from fedjax_dp.rounds import simulation
from fedjax_dp.rounds.checkpoint import STATE, Checkpoints


class Before(NamedTuple):
    """A state when what corrections and local rules keep were two things."""

    params: Any
    optimizer: Any
    round: Any
    upload: Any
    memories: Any
    rules: Any


@pytest.mark.parametrize("entry", ["fedavg", "scaffold"])
def test_a_checkpoint_of_an_older_version_is_refused_in_one_line(entry, tmp_path):
    digits = fdp.load("digits")
    data = fdp.federate(digits, fdp.data.iid(digits.y_train, np.full(4, 100), seed=0))
    algorithm = fdp.CATALOGUE[entry](cohort_size=2, batch_size=5, local_steps=1, learning_rate=0.1)
    model = fdp.logistic_regression(data.record_shape, data.classes)
    state = simulation.fresh(algorithm, data, model, 0)
    pairs = tuple({"server": one, "clients": other} for one, other in zip(state.shared, state.clients, strict=True))
    store = Checkpoints(tmp_path)
    save = store._orbax.args.StandardSave(Before(*state[:4], memories=pairs, rules=()))
    store._manager.save(3, args=store._orbax.args.Composite(**{STATE: save}))
    store._manager.wait_until_finished()
    with pytest.raises(errors.ConfigurationError, match="round 3 must be written by this version") as found:
        store.restore(state)
    assert len(str(found.value).splitlines()) == 1
    store.close()
