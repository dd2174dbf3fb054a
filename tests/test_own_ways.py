"""Own data, network, optimizer, correction and budget, alike in Python and on the command line, in 25 lines each."""

import pathlib

import jax
import numpy as np
import pytest

from fedjax_dp import cli

FILES = """
from typing import Unpack
import flax.linen as nn
import optax
import fedjax_dp as fdp
from fedjax_dp.algorithms import Common, assemble, entry

class Net(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.classes)(nn.relu(nn.Dense(16)(x)))

@entry("me", presets={"schedule": "constant", "l2": 0.0})
def mine(*, pull: float = 0.1, clip_norm: float, noise_multiplier: float = 0.0, **common: Unpack[Common]):
    privatizer = fdp.parts.RecordGaussian(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
    server = fdp.parts.Server(factory=optax.adam, hyperparameters={"learning_rate": 0.01})
    return assemble(common, privatizer=privatizer, corrections=(fdp.parts.Proximal(strength=pull),), server=server)
"""

NOTEBOOK = """
import fedjax_dp as fdp
from mine import Net, mine

dataset = fdp.load("npz:mine.npz")
data = fdp.federate(dataset, fdp.data.natural(dataset.client_ids))
algorithm = mine(pull=0.2, clip_norm=1.0, cohort_size=3, batch_size=8, local_steps=2, learning_rate=0.1)
model = fdp.model(Net(classes=data.classes), data)
budget = {"epsilon": 8.0, "delta": 1e-3}
result = fdp.run(algorithm, data, model=model, rounds=3, seed=1, out="notebook", **budget)
print(result.guarantee)
"""

TERMINAL = """
fedjax-dp run --dataset npz:mine.npz --partition natural --model mine.py:Net --algorithm mine.py:mine --pull 0.2
    --clip-norm 1 --cohort-size 3 --batch-size 8 --local-steps 2 --learning-rate 0.1 --epsilon 8 --delta 0.001
    --rounds 3 --seed 1 --out terminal
"""


@pytest.fixture(autouse=True)
def own_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "mine", raising=False)
    pathlib.Path("mine.py").write_text(FILES)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(100, 5)).astype(np.float32), rng.integers(0, 3, 100)
    ids = np.arange(80) % 6
    np.savez("mine.npz", x_train=x[:80], y_train=y[:80], x_test=x[80:], y_test=y[80:], client_ids=ids)


def test_both_ways_are_short_and_end_in_the_same_model(capsys):
    import fedjax_dp as fdp

    assert all(len(way.strip().splitlines()) <= 25 for way in (FILES, NOTEBOOK, TERMINAL))
    exec(NOTEBOOK, {})
    assert "epsilon 7.999 at delta 0.001" in capsys.readouterr().out
    assert cli.main(TERMINAL.split()[1:]) == 0
    assert "epsilon 7.999 at delta 0.001" in capsys.readouterr().out
    runs = [fdp.open_run(way) for way in ("notebook", "terminal")]
    assert runs[0].guarantee == runs[1].guarantee
    for one, other in zip(*(jax.tree.leaves(run.params) for run in runs), strict=True):
        np.testing.assert_array_equal(one, other)
