"""Record-level privacy: what happens to the gradient of one local step. Clip norm and noise come from one value."""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import draws, errors, gradients
from fedjax_dp.accounting import events
from fedjax_dp.models import Model
from fedjax_dp.values import ravel, value


class Place(NamedTuple):
    """Where a noise vector is used: traced scalars. A (key, step) pair occurs once."""

    client: jax.Array
    round: jax.Array
    step: jax.Array


class StepReport(NamedTuple):
    """Probes of one local step: what the simulator sees and nobody else may."""

    loss: jax.Array  # mean over the batch's records
    clipped: jax.Array  # fraction of the batch's records whose gradient was scaled down


class Records(NamedTuple):
    """The records of one batch as the model sees them; `divisor` is the public batch size."""

    x: jax.Array
    y: jax.Array
    mask: jax.Array
    divisor: jax.Array


class NoiseSource(Protocol):
    """Where standard normal noise comes from."""

    def draw(self, key: jax.Array, place: Place, size: int) -> jax.Array: ...  # (size,)


@value
class WhiteNoise:
    """Independent over coordinates, steps, rounds and clients."""

    def draw(self, key: jax.Array, place: Place, size: int) -> jax.Array:
        return draws.normals(key, place.step, size)


class Privatizer(Protocol):
    """Turns a batch into the gradient that a local step uses, as one flat vector in the order of the parameters."""

    def gradient(
        self, key: jax.Array, place: Place, model: Model, params: Any, records: Records
    ) -> tuple[jax.Array, StepReport]: ...

    def client_noise(self, num_clients: int) -> Any: ...  # noise multiplier of every client, None without privacy

    def check(self, num_clients: int) -> None: ...


@value
class NonPrivate:
    """The plain mean gradient. Nothing is bounded, so no epsilon exists."""

    def gradient(
        self, key: jax.Array, place: Place, model: Model, params: Any, records: Records
    ) -> tuple[jax.Array, StepReport]:
        batch = gradients.plain_sum(model, params, records.x, records.y, records.mask)
        return ravel(batch.total)[0] / records.divisor, _report(batch, records)

    def client_noise(self, num_clients: int) -> None:
        return None

    def check(self, num_clients: int) -> None:
        pass


@value
class RecordGaussian:
    """Clip each record's gradient to `clip_norm` in L2, sum, add Gaussian noise, divide by the public batch size.

    clip_norm         C > 0, bound on one record's gradient over all parameters;
    noise_multiplier  z >= 0, a number or one per client `(num_clients,)`: the noise on the sum has standard deviation
                      z C in every coordinate, so the noise on the mean has z C / B;
    source            of the standard normal noise.

    | zero gradient | stays zero | | |g| = C | unchanged | | NaN or overflowing gradient | contributes zero |
    """

    clip_norm: float
    noise_multiplier: float | np.ndarray | jax.Array
    source: NoiseSource = WhiteNoise()

    def gradient(
        self, key: jax.Array, place: Place, model: Model, params: Any, records: Records
    ) -> tuple[jax.Array, StepReport]:
        batch = gradients.clipped_sum(model, params, records.x, records.y, records.mask, self.clip_norm)
        total, _ = ravel(batch.total)
        std = self.own_noise(place.client) * self.clip_norm
        noisy = total + std * self.source.draw(key, place, total.size)
        return noisy / records.divisor, _report(batch, records)

    def own_noise(self, client: jax.Array) -> jax.Array:
        """The noise multiplier of one client."""
        noise = jnp.asarray(self.noise_multiplier, jnp.float32)
        return noise[client] if noise.ndim else noise

    def client_noise(self, num_clients: int) -> list[float]:
        return np.broadcast_to(np.asarray(self.noise_multiplier, np.float32), (num_clients,)).tolist()

    def event(self, noise_multiplier: float, sampling: events.Sampling, count: int) -> events.GaussianSteps:
        """What `count` local steps of one client release, in the accountants' words.

        Adjacency: add-remove for Poisson batches, replace-one for all others, whose batches have a fixed size.
        """
        if not isinstance(self.source, WhiteNoise):
            raise errors.refuse("noise source", type(self.source).__name__, "WhiteNoise for the accountants at hand")
        poisson = isinstance(sampling, events.Poisson)
        adjacency = events.Adjacency.ADD_REMOVE if poisson else events.Adjacency.REPLACE_ONE
        return events.GaussianSteps(noise_multiplier, sampling, adjacency, count)

    def check(self, num_clients: int) -> None:
        errors.require_positive(
            "clip_norm", float(self.clip_norm), "use an algorithm without privacy to train without clipping"
        )
        noise = np.asarray(self.noise_multiplier)
        if noise.ndim > 1 or (noise.ndim == 1 and noise.shape[0] != num_clients):
            raise errors.refuse("noise_multiplier", f"shape {noise.shape}", f"one number or {num_clients} of them")
        if not np.all((noise >= 0) & np.isfinite(noise)):
            raise errors.refuse("noise_multiplier", self.noise_multiplier, "zero or positive and finite")


def _report(batch: gradients.BatchGradient, records: Records) -> StepReport:
    present = jnp.maximum(records.mask.sum(), 1)
    return StepReport(batch.losses.sum() / present, batch.clipped.sum() / present)
