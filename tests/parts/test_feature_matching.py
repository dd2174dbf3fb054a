"""Feature matching: whose features make a target."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import TwoLayerModel, ragged_data

import fedjax_dp as fdp
from fedjax_dp import gradients
from fedjax_dp.parts.clipping import Records
from fedjax_dp.parts.cohorts import Members
from fedjax_dp.parts.contexts import ClientContext, LocalState, Received
from fedjax_dp.parts.feature_matching import FeatureMatching
from fedjax_dp.pytrees import replace


def without_the_first(ids):
    """A cohort of these clients whose position of client 0 is empty."""
    return Members.of(ids, ids > 0)


@fdp.value
class NeverTheFirst(fdp.parts.PoissonCohort):
    def sample(self, keys, round_index, shares):
        return without_the_first(jnp.array([1, 0, 2], jnp.int32))


@pytest.mark.parametrize("leave_one_out", [True, False])
def test_a_target_is_the_mean_over_who_is_present(leave_one_out):
    table = jnp.array([[np.nan, np.inf], [1.0, 2.0], [3.0, 8.0]])
    members = without_the_first(jnp.array([1, 0, 2], jnp.int32))
    target, exists = FeatureMatching(strength=1.0, leave_one_out=leave_one_out).send(LocalState(clients=table), members)
    wanted = [[3.0, 8.0], [1.0, 2.0]] if leave_one_out else [[2.0, 5.0]] * 2
    np.testing.assert_array_equal(target[jnp.array([0, 2])], wanted)
    assert exists.all()


@pytest.mark.slow
def test_records_of_a_client_that_is_not_invited_reach_no_model():
    data = ragged_data([4, 4, 4])
    algorithm = replace(
        fdp.rfedavg_plus(cohort_size=2, batch_size=2, local_steps=2, learning_rate=0.1, feature_strength=0.5),
        cohort=NeverTheFirst(size=2),
    )
    spoiled = np.array(data.x)
    spoiled[:4] = np.nan
    ends = [
        fdp.simulate(algorithm, held, rounds=2, model=TwoLayerModel(3, 4)).params
        for held in (data, dataclasses.replace(data, x=spoiled))
    ]
    jax.tree.map(np.testing.assert_array_equal, *ends)


def test_both_penalties_of_rfedavg_have_the_same_gradient():
    """Mean over the others of |phi - delta_j|^2, and |phi - mean delta_j|^2: same gradient, the second is smaller."""
    rng = np.random.default_rng(0)
    model, others = TwoLayerModel(3, 4), jnp.asarray(rng.normal(size=(5, 4)), jnp.float32)
    x = jnp.asarray(rng.normal(size=(6, 3)), jnp.float32)
    params = jnp.asarray(rng.normal(size=16), jnp.float32)
    records = Records(x, jnp.zeros(6, jnp.int32), jnp.ones(6, bool), jnp.int32(6))

    def each(params):
        return jnp.mean(jnp.sum((gradients.features(model, params, x).mean(0)[None] - others) ** 2, -1))

    received = Received(params, extra=(others.mean(0), jnp.float32(1)))
    client = ClientContext(None, None, None, None, model, lambda flat: flat, received)
    ours = FeatureMatching(strength=1.0).gradient(jnp.zeros(16), params, None, client, records)
    np.testing.assert_allclose(ours, jax.grad(each)(params), rtol=1e-4, atol=1e-5)
