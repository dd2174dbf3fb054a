"""What the game of an audit puts around an algorithm's parts, so that one program plays both worlds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedjax_dp.models import Linen, Model, NetworkModel
from fedjax_dp.parts.answers import Answers
from fedjax_dp.parts.clipping import Records, StepReport
from fedjax_dp.parts.cohorts import Cohort, CohortKeys, Members
from fedjax_dp.parts.contexts import StepContext
from fedjax_dp.parts.record_privacy import Privatizer
from fedjax_dp.pytrees import Wrapper, value

WITHDRAWN = -1  # label of a record that is not there
FOLLOWING = 1  # label of a record that drives the model on in the direction in which it has been moved


@value
class CanaryCohort(Answers):
    """A cohort without the clients that are not there, by a schedule that may be the same in every trial.

    schedule  words of the key from which a run draws its cohorts, or None: every trial draws its own;
    gone      clients of which no message arrives, as they do not exist in this world `(num_clients,)` bool.
    It has what a round asks of a cohort; checks and accounting are done on `cohort` before.
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
    """Targets as they are played with: bytes as integers, so that one can be marked."""
    return jax.tree.map(lambda a: np.asarray(a) if a.dtype.kind == "f" else np.asarray(a, np.int32), y)


def withdrawn_targets(y: Any) -> Any:
    """The target of a record that is not there, in the form of `y`: WITHDRAWN, of floats NaN."""
    return jax.tree.map(lambda a: np.full_like(a[:1], np.nan if a.dtype.kind == "f" else WITHDRAWN), y)


def is_withdrawn(y: Any) -> jax.Array:
    """Which records are not there, by their targets `(rows, ...)`."""
    first = jax.tree.leaves(y)[0]
    marked = jnp.isnan(first) if jnp.issubdtype(first.dtype, jnp.floating) else first == WITHDRAWN
    return marked.reshape(len(first), -1).all(1)


def replace_withdrawn(y: Any, gone: jax.Array) -> Any:
    """Targets with zeros for what is not there."""
    return jax.tree.map(lambda a: jnp.where(gone.reshape(-1, *[1] * (a.ndim - 1)), 0, a), y)


@value
class CanaryPrivatizer(Wrapper):
    """A privatizer that runs `base` on the records that are there."""

    base: Privatizer

    def gradient(
        self, key: jax.Array, step: StepContext, model: Model, params: Any, records: Records
    ) -> tuple[jax.Array, StepReport]:
        there = records._replace(mask=records.mask & ~is_withdrawn(records.y))
        return self.base.gradient(key, step, model, params, there)


class _Linear(nn.Module):
    """A sum of dense layers of one output, each on its own part of the record."""

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        total, first = jnp.zeros((x.shape[0], 1)), 0
        for width in self.widths:
            layer = nn.Dense(1, use_bias=False, kernel_init=nn.initializers.zeros)
            total, first = total + layer(x[:, first : first + width]), first + width
        return total


def _loss(scores: jax.Array, label: jax.Array) -> jax.Array:
    """The loss is the score, or on records that follow the model less its absolute value."""
    side = jax.lax.stop_gradient(jnp.sign(scores[0]))  # the gradient of an absolute value is not 0 at 0 here
    return jnp.where(label == FOLLOWING, -side, 1.0) * scores[0]


def linear_model(widths: tuple[int, ...]) -> NetworkModel:
    """A model whose gradient on a record is the record itself, wherever the parameters are.

    So records are gradients, and whoever chooses them has chosen every gradient of a run. Records with the label
    `FOLLOWING` are the exception: their gradient turns with the model, and is 0 at its start. One tensor of parameters
    `(width, 1)` for each of `widths`, started at zero.
    """
    return NetworkModel(Linen(_Linear(tuple(widths))), (sum(widths),), loss_of=_loss)
