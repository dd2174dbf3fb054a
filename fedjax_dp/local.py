"""What a client does in a round: tau local steps from the received model."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_dp import errors, schedules
from fedjax_dp.batches import Batch, Batches
from fedjax_dp.correction import Correction
from fedjax_dp.data.store import Client, FederatedData
from fedjax_dp.models import Model
from fedjax_dp.privatizer import Place, Privatizer, Records, StepReport
from fedjax_dp.values import ravel, role_key, structure, value


class LocalResult(NamedTuple):
    """What comes out of a client's round."""

    update: jax.Array  # local model minus start, flat (size,): the message
    report: StepReport  # probes, averaged over the steps


@value
class LocalSgd:
    """`steps` (tau) steps of stochastic gradient descent: w <- w - rate(t) (privatized gradient + corrections)."""

    learning_rate: float
    privatizer: Privatizer
    batches: Batches
    corrections: tuple[Correction, ...] = ()
    steps: int = structure(default=1)
    schedule: Callable[[jax.Array], jax.Array] = structure(default=schedules.constant)

    def run(
        self, key: jax.Array, round_index: jax.Array, client: Client, start: Any, data: FederatedData, model: Model
    ) -> LocalResult:
        """One client's round; `key` belongs to this client and round alone.

        Parameters are one flat vector here, so that noise, corrections and step fuse into a single loop.
        """
        noise_key = role_key(key, "noise")
        batches = self.batches.sample(role_key(key, "batch"), client.size, self.steps)
        rate = self.learning_rate * self.schedule(round_index)
        received, unravel = ravel(start)

        def step(params: jax.Array, inputs: tuple[jax.Array, Batch]) -> tuple[jax.Array, StepReport]:
            index, batch = inputs
            x, y = data.gather(client, batch.positions)
            records = Records(x, y, batch.mask, batch.divisor)
            place = Place(client.id, round_index, index)
            gradient, report = self.privatizer.gradient(noise_key, place, model, unravel(params), records)
            for correction in self.corrections:
                gradient = correction.gradient(gradient, params, received)
            return params - rate * gradient, report

        end, reports = lax.scan(step, received, (jnp.arange(self.steps, dtype=jnp.uint32), batches))
        return LocalResult(end - received, jax.tree.map(jnp.mean, reports))

    def check(self, sizes: np.ndarray) -> None:
        """Refuse what cannot run on clients with these numbers of records."""
        errors.require_count("local_steps", self.steps)
        errors.require_positive("learning_rate", float(self.learning_rate))
        self.batches.check(sizes)
        self.privatizer.check(len(sizes))
        for correction in self.corrections:
            correction.check()
