"""Clients that keep a head of their own: a part of somebody else's, of which nothing in the package knows."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ragged_data, states_of
from jax.tree_util import tree_leaves_with_path, tree_map_with_path

import fedjax_dp as fdp
from fedjax_dp.errors import ConfigurationError
from fedjax_dp.parts.contexts import LocalState
from fedjax_dp.parts.facts import restates
from fedjax_dp.pytrees import path_name, ravel, structure


@fdp.value
class OwnHead(fdp.parts.LocalTraining):
    """Parameters whose path begins with `head` stay with their client: they are trained there, and never sent."""

    privatizer: Any
    batches: Any
    learning_rate: float
    steps: int = structure(default=1)
    head: str = structure()
    no_epsilon_reason, initial_release, extra_gradients, is_sgd, parts = None, False, 0, False, ()
    reads_records_outside_round = False

    @property
    def sgd(self):
        given = {"privatizer": self.privatizer, "batches": self.batches, "steps": self.steps}
        return fdp.parts.LocalSgd(learning_rate=self.learning_rate, **given)

    def head_of(self, tree):
        named = ((path_name(path), leaf) for path, leaf in tree_leaves_with_path(tree))
        return {name: leaf for name, leaf in named if name.startswith(self.head)}

    def init(self, run):
        heads = self.head_of(run.params)
        return LocalState(clients={k: jnp.broadcast_to(a, (run.data.num_clients, *a.shape)) for k, a in heads.items()})

    def rates(self, round_index, largest):
        return self.sgd.rates(round_index, largest)

    def run(self, client):
        start = with_head(client.received.client_state, client.unravel(client.received.params))
        found = self.sgd.run(client.receiving(ravel(start)[0]))
        moved = ravel(start)[1](found.update)
        sent = with_head(jax.tree.map(jnp.zeros_like, self.head_of(moved)), moved)
        return found._replace(update=ravel(sent)[0], client_state=self.head_of(jax.tree.map(jnp.add, start, moved)))


def with_head(head, tree):
    return tree_map_with_path(lambda path, leaf: head.get(path_name(path), leaf), tree)


DATA = ragged_data([8] * 6)
MODEL = fdp.logistic_regression(DATA.record_shape, DATA.classes)
COMMON = {"cohort_size": 3, "batch_size": 4, "local_steps": 2, "learning_rate": 0.3}
PRIVATE = fdp.dpnfl(**COMMON, clip_norm=1.0, noise_multiplier=2.0, schedule="constant", l2=0.0)
ASKED = {"rounds": 4, "delta": 1e-3, "model": MODEL}


def with_own_head(algorithm, kind=OwnHead, head="Dense_0/bias"):
    given = {name: getattr(algorithm.local, name) for name in ("privatizer", "batches", "learning_rate", "steps")}
    return dataclasses.replace(algorithm, local=kind(**given, head=head))


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [pytest.param(fdp.fedavg(**COMMON), marks=pytest.mark.exhaustive), PRIVATE], ids=["plain", "private"]
)
def test_heads_stay_with_their_clients(algorithm):
    begun, *_, end = states_of(with_own_head(algorithm), MODEL, DATA, 6, seed=3)
    first, heads = begun.params["Dense_0"], end.clients["Dense_0/bias"]
    np.testing.assert_array_equal(end.params["Dense_0"]["bias"], first["bias"])  # the server's never moves
    assert len(np.unique(heads, axis=0)) == len(heads)  # all took part, each has another one
    assert np.any(end.params["Dense_0"]["kernel"] != first["kernel"])


@pytest.mark.slow
def test_private_gradients_make_private_heads_on_the_word_of_whoever_wrote_them():
    """What is sent, and the head that it is made with, depend on records through noised gradients alone."""
    found, plain = (fdp.guarantee(algorithm, DATA, **ASKED) for algorithm in (with_own_head(PRIVATE), PRIVATE))
    assert found.epsilons == plain.epsilons
    assert any(told.startswith("OwnHead (local) is trusted") for told in found.assumptions)
    assert not np.isfinite(fdp.guarantee(with_own_head(fdp.fedavg(**COMMON)), DATA, **ASKED).epsilon)


@fdp.value
class Silent(fdp.parts.LocalTraining):
    privatizer: Any
    batches: Any
    learning_rate: float
    steps: int = structure(default=1)
    head: str = structure()
    init, rates, run = OwnHead.init, OwnHead.rates, OwnHead.run
    sgd, head_of = OwnHead.sgd, OwnHead.head_of


@pytest.mark.slow
def test_local_steps_that_say_nothing_train_but_have_no_epsilon():
    algorithm = with_own_head(PRIVATE, Silent)
    fdp.simulate(algorithm, DATA, rounds=1, model=MODEL)
    found = fdp.guarantee(algorithm, DATA, **ASKED)
    assert not np.isfinite(found.epsilon)
    wanted = "Silent does not declare whether it uses records without its privatizer: implement no_epsilon_reason"
    assert found.reason == wanted
    stated = {"no_epsilon_reason": None, "init": OwnHead.init, "rates": OwnHead.rates, "run": OwnHead.run}
    half = type("Half", (Silent,), stated)
    with pytest.raises(
        ConfigurationError, match=r"itself states initial_release, extra_gradients.*implement initial_release in Half"
    ):
        fdp.guarantee(with_own_head(PRIVATE, fdp.value(half)), DATA, **ASKED)


def test_a_head_that_takes_records_past_the_privatizer_is_found_out():
    def run(self, client):
        result, seen = OwnHead.run(self, client), client.data.gather(client.client, jnp.arange(1))[0].sum()
        return result._replace(client_state=jax.tree.map(lambda head: head + seen, result.client_state))

    wrong = fdp.value(restates(OwnHead)(type("Wrong", (OwnHead,), {"run": run})))
    with pytest.raises(ConfigurationError, match="past what is accounted for"):
        fdp.guarantee(with_own_head(PRIVATE, wrong), DATA, **ASKED)


@pytest.mark.slow
def test_releases_before_the_first_round_are_believed_of_the_projects_own_local_steps_alone():
    warm = fdp.value(restates(OwnHead)(type("Warm", (OwnHead,), {"initial_release": True})))
    with pytest.raises(ConfigurationError, match="before the first round are supported by LocalSgd alone"):
        fdp.guarantee(with_own_head(PRIVATE, warm), DATA, **ASKED)
