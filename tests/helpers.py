"""Small problems and stand-in slots for tests."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp.data import Dataset, federate
from fedjax_dp.values import structure, value


def ragged_data(sizes, shape=(3,), classes=3, seed=0, name="toy"):
    """Clients of the given sizes with normal features and random labels."""
    rng = np.random.default_rng(seed)
    total = int(sum(sizes))
    x, y = rng.normal(size=(total, *shape)).astype(np.float32), rng.integers(0, classes, total).astype(np.int32)
    dataset = Dataset(name, x, y, x[: min(total, 50)], y[: min(total, 50)], classes=classes)
    return federate(dataset, np.split(np.arange(total), np.cumsum(sizes)[:-1]))


@value
class GivenCohort:
    """The clients that it is told."""

    ids: jax.Array
    count: int = structure()

    def members(self, num_clients):
        return self.count

    def sample(self, key, num_clients):
        return self.ids.astype(jnp.int32)

    def check(self, num_clients):
        pass


@value
class GivenNoise:
    """Noise from a table `(rounds, clients, steps, size)` instead of a generator."""

    table: jax.Array

    def draw(self, key, place, size):
        return self.table[place.round, place.client, place.step]


@dataclasses.dataclass(frozen=True)
class QuadraticModel:
    """l(w; x) = 1/2 sum_j a_j (w_j - x_j)^2 on a parameter vector: the loss of the worked examples."""

    curvature: tuple[float, ...] = (1.0, 0.5)
    start: tuple[float, ...] = (0.5, -0.5)

    def init(self, key):
        return jnp.array(self.start)

    def losses(self, params, x, y):
        return 0.5 * ((params[None] - x) ** 2 * jnp.array(self.curvature)[None]).sum(-1)

    def logits(self, params, x):
        return x


@dataclasses.dataclass(frozen=True)
class FlatModel:
    """A loss of zero everywhere: updates are noise alone."""

    size: int

    def init(self, key):
        return jnp.zeros(self.size)

    def losses(self, params, x, y):
        return 0.0 * params.sum() * jnp.ones(x.shape[0])

    def logits(self, params, x):
        return jnp.zeros((x.shape[0], 2))
