"""Wrappers around an algorithm's parts, so that one program plays both worlds of an audit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedjax_dp.models import Linen, Model, NetworkModel
from fedjax_dp.parts.answers import Answers
from fedjax_dp.parts.clipping import Records, StepReport
from fedjax_dp.parts.cohorts import Cohort, CohortKeys, Members
from fedjax_dp.parts.contexts import ClientContext, LocalResult, StepContext
from fedjax_dp.parts.local_training import LocalTraining
from fedjax_dp.parts.record_privacy import Privatizer
from fedjax_dp.pytrees import Wrapper, value

WITHDRAWN = -1  # label of an absent record
FOLLOWING = 1  # label of a record that pushes the model further in the direction of its move


@value
class CanaryCohort(Answers):
    """A cohort without absent clients, with a schedule that may be the same in every trial.

    schedule  words of the key for all cohorts, or None: every trial draws its own;
    gone      clients that do not exist in this world and send no message `(num_clients,)` bool.
    It implements only what a round needs; checks and accounting use `cohort`.
    """

    cohort: Cohort
    schedule: jax.Array | None
    gone: jax.Array

    def rates(self, shares: Any) -> Any:
        return self.cohort.rates(shares)

    def sample(self, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
        if self.schedule is not None:
            keys = CohortKeys.of(jax.random.wrap_key_data(self.schedule, impl="threefry2x32"), round_index)
        drawn = self.cohort.sample(keys, round_index, shares)
        return drawn._replace(participation_count=jnp.where(self.gone[drawn.ids], 0.0, drawn.participation_count))


def wide_targets(y: Any) -> Any:
    """Targets with bytes widened to integers, so that one can be marked as absent."""
    return jax.tree.map(lambda a: np.asarray(a) if a.dtype.kind == "f" else np.asarray(a, np.int32), y)


def withdrawn_targets(y: Any) -> Any:
    """The target of an absent record in the form of `y`: WITHDRAWN, or NaN for floats."""
    return jax.tree.map(lambda a: np.full_like(a[:1], np.nan if a.dtype.kind == "f" else WITHDRAWN), y)


def is_withdrawn(y: Any) -> jax.Array:
    """Which records are absent, by their targets `(rows, ...)`."""
    first = jax.tree.leaves(y)[0]
    marked = jnp.isnan(first) if jnp.issubdtype(first.dtype, jnp.floating) else first == WITHDRAWN
    return marked.reshape(len(first), -1).all(1)


def replace_withdrawn(y: Any, gone: jax.Array) -> Any:
    """Targets with zeros for absent records."""
    return jax.tree.map(lambda a: jnp.where(gone.reshape(-1, *[1] * (a.ndim - 1)), 0, a), y)


@value
class CanaryPrivatizer(Wrapper):
    """A privatizer that runs `base` on the records that are present."""

    base: Privatizer

    def gradient(
        self, key: jax.Array, step: StepContext, model: Model, params: Any, records: Records
    ) -> tuple[jax.Array, StepReport]:
        there = records._replace(mask=records.mask & ~is_withdrawn(records.y))
        return self.base.gradient(key, step, model, params, there)


@value
class CanaryTraining(Wrapper):
    """A local training in which the clients `gone` `(num_clients,)` send zeros, and are counted as before."""

    base: LocalTraining
    gone: jax.Array

    def run(self, client: ClientContext) -> LocalResult:
        result = self.base.run(client)
        sent = jax.tree.map(lambda a: jnp.where(self.gone[client.client.id], 0.0, a), (result.update, result.auxiliary))
        return result._replace(update=sent[0], auxiliary=sent[1])


class _Linear(nn.Module):
    """The sum of dense layers with one output, each on a different part of the record."""

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        total, first = jnp.zeros((x.shape[0], 1)), 0
        for width in self.widths:
            layer = nn.Dense(1, use_bias=False, kernel_init=nn.initializers.zeros)
            total, first = total + layer(x[:, first : first + width]), first + width
        return total


def _loss(scores: jax.Array, label: jax.Array) -> jax.Array:
    """The score, or minus its absolute value for records that follow the model."""
    side = jax.lax.stop_gradient(jnp.sign(scores[0]))  # the gradient of an absolute value is not 0 at 0 here
    return jnp.where(label == FOLLOWING, -side, 1.0) * scores[0]


def linear_model(widths: tuple[int, ...]) -> NetworkModel:
    """A model whose gradient on a record is the record itself, for any parameters.

    So the records determine every gradient of a run, except for label `FOLLOWING`, whose gradient follows the model
    and is 0 at its start. It has a tensor of parameters `(width, 1)` for each of `widths`, all initially zero.
    """
    return NetworkModel(Linen(_Linear(tuple(widths))), (sum(widths),), loss_of=_loss)
