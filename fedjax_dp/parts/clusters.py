"""Clustered clients: each privately chooses one of several models that the server keeps (IFCA)."""

import math
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import accounting, errors, gradients, prng
from fedjax_dp.models import Model
from fedjax_dp.parts.client_models import ClientModels, no_tensors
from fedjax_dp.parts.contexts import ClientContext, InitContext, LocalResult, LocalState
from fedjax_dp.parts.corrections import Floats
from fedjax_dp.parts.local_sgd import LocalSgd
from fedjax_dp.parts.local_training import AdditionalRelease
from fedjax_dp.parts.record_privacy import LastRates, multiplier_of
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import check_part, number, ravel, structure, value


class ClusterChoice(Protocol):
    """How a client privately chooses a model by the losses of its records.

    A method `check()` may refuse its numbers.
    """

    bound: float  # b: each record's loss is clipped to [0, b]
    rounds: int | None  # number of the client's first rounds in which it chooses; None: all

    def noisy(self, losses: jax.Array, records: Any, noise_multiplier: Any, draw: jax.Array) -> jax.Array:
        """Noisy losses `(models,)`, of which the smallest is chosen, from mean losses in [0, bound] and `draw`."""
        ...

    def draw(self, key: jax.Array, models: int) -> jax.Array:
        """Standard random numbers `(models,)` for the noise."""
        ...

    def event(self, local: Any, noise: float, records: int, rates: LastRates) -> accounting.Event:
        """The event of one choice, as for `AdditionalRelease`."""
        ...


@value
class GaussianChoice(ClusterChoice):
    """Chooses the smallest mean loss with Gaussian noise.

    bound   b: each record's loss is clipped to [0, b];
    noise   z_s divided by the noise multiplier of the gradients. Centred at b/2, a record's losses under k models have
            norm at most sqrt(k) b/2, so noise of std z_s sqrt(k) b / (2 n) on the means of n records is one release
            with noise multiplier z_s;
    rounds  number of the client's first rounds in which it chooses; None: all.
    """

    bound: float
    noise: float = number(errors.require_positive, option="choice_noise", default=1.0)
    rounds: int | None = structure(default=None)

    equation = r"c_k = \arg\min_j \bar\ell_j + \mathcal{N}(0, (z_s \sqrt{k}\, b / 2 n)^2)"

    def std(self, records: Any, noise_multiplier: Any, models: int) -> Any:
        """Standard deviation of the noise on each mean."""
        return self.noise * noise_multiplier * math.sqrt(models) * self.bound / (2 * records)

    def noisy(self, losses: jax.Array, records: Any, noise_multiplier: Any, draw: jax.Array) -> jax.Array:
        return losses + self.std(records, noise_multiplier, losses.shape[-1]) * draw

    def draw(self, key: jax.Array, models: int) -> jax.Array:
        return prng.normals(key, 0, models)

    def event(self, local: Any, noise: float, records: int, rates: LastRates) -> accounting.Event:
        z = noise * float(np.float32(self.noise))
        return accounting.GaussianSteps(z, accounting.FullBatch(), accounting.Adjacency.REPLACE_ONE, 1)


@value
class GumbelChoice(ClusterChoice):
    """The exponential mechanism: chooses the smallest mean loss minus Gumbel noise of scale 2 b / (n epsilon).

    It has a bounded range, so it is epsilon^2/8-zCDP (Cesar and Rogers 2021, Lemma 3.2), which is all that the
    accountants use. `epsilon` fixes the noise: calibration does not change it.
    """

    bound: float
    epsilon: float = number(errors.require_positive, option="choice_epsilon")
    rounds: int | None = structure(default=None)

    equation = r"c_k = \arg\min_j \bar\ell_j - \text{Gumbel}(2 b / (n \epsilon_s))"

    def scale(self, records: Any) -> Any:
        """Scale of the noise on each mean."""
        return 2 * self.bound / (records * self.epsilon)

    def noisy(self, losses: jax.Array, records: Any, noise_multiplier: Any, draw: jax.Array) -> jax.Array:
        return losses - self.scale(records) * draw

    def draw(self, key: jax.Array, models: int) -> jax.Array:
        return jax.random.gumbel(key, (models,))

    def event(self, local: Any, noise: float, records: int, rates: LastRates) -> accounting.Event:
        return accounting.BoundedRange(float(np.float32(self.epsilon)), accounting.Adjacency.REPLACE_ONE, 1)


@value
class OwnClusters(ClientModels):
    """The server keeps `number` models; a client receives all, chooses one and trains it (IFCA; Ghosh et al. 2020,
    arXiv:2006.04088). Each model becomes the mean over the clients that chose it, by shares; without any it stays.

    A client keeps its choice, and how often it has chosen.
    """

    choice: ClusterChoice
    number: int = structure(errors.require_count, option="clusters")

    equation = r"w^{(c_k)} \leftarrow w^{(c_k)} - \eta_t \tilde g(w^{(c_k)}),\ \text{means within clusters}"

    sends_auxiliary = True

    @property
    def releases(self) -> tuple[AdditionalRelease, ...]:
        choice = AdditionalRelease(self.choice.event, sent=True, most=self.choice.rounds)
        return (choice,) if self.number > 1 else ()

    def sent_tensors(self, model: Model) -> tuple[bool, ...]:
        """No tensor: changes of the models are sent in the extra message, and the server's own model never moves."""
        return no_tensors(model)

    def init(self, sgd: LocalSgd, run: InitContext) -> LocalState:
        first, clients, key = ravel(run.params)[0], run.data.num_clients, run.key
        assert key is not None
        others = [ravel(run.model.init(role_key(key, f"cluster {j}")))[0] for j in range(1, self.number)]
        return LocalState(jnp.stack([first, *others]), jnp.zeros((clients, 2), jnp.int32))

    def run(self, sgd: LocalSgd, client: ClientContext, server: Any, own: Any) -> tuple[LocalResult, Any, Any]:
        start, chosen = (server[0], own) if self.number == 1 else self._choose(sgd, client, server, own)
        result = sgd.run(client.receiving(start, *client.received[1:]))
        mine = client.data.shares[client.client.id] * (jnp.arange(self.number) == chosen[0])
        message = {"delta": mine[:, None] * result.update[None], "weight": mine}
        return result._replace(update=result.update[:0]), chosen, message

    def _choose(self, sgd: LocalSgd, client: ClientContext, server: Any, own: Any) -> tuple[jax.Array, jax.Array]:
        """The chosen model, and the client's new state: the index of its model, and how often it has chosen."""
        chosen, times = own
        again = jnp.bool_(True) if self.choice.rounds is None else times < self.choice.rounds
        noise, draw = multiplier_of(sgd.privatizer, client.client.id, client.round), role_key(client.key, "models")
        noisy = self.choice.noisy(
            self._losses(client, server), client.client.size, noise, self.choice.draw(draw, self.number)
        )
        chosen = jnp.where(again, jnp.argmin(noisy), chosen).astype(jnp.int32)
        return jnp.take(server, chosen, axis=0), jnp.stack([chosen, times + again])

    def _losses(self, client: ClientContext, models: jax.Array) -> jax.Array:
        """Mean loss of every model over the client's records, each loss clipped to [0, bound] `(number,)`."""

        def of(x: jax.Array, y: Any) -> jax.Array:
            each = [gradients.losses(client.model, client.unravel(models[j]), x, y) for j in range(self.number)]
            losses = jnp.stack(each, -1)
            return jnp.clip(jnp.where(jnp.isnan(losses), self.choice.bound, losses), 0.0, self.choice.bound)

        return client.data.mean_over_records(client.client, of)

    def absorb(self, server: Any, total: Any, num_clients: int) -> Any:
        weight = total["weight"][:, None]
        # A reciprocal: XLA never finishes compiling a single client's division by its own weight.
        return server + total["delta"] * (1 / jnp.where(weight > 0, weight, 1.0))

    def model_of(self, sgd: LocalSgd, client: ClientContext, server: Any, own: Any) -> jax.Array:
        return server[own[0]]

    def floats(self, size: int) -> Floats:
        """Clients receive all models; they send a change and the index of its model."""
        return Floats(down=self.number * size, summed=size + 1)

    def check(self, model: Model | None, sizes: np.ndarray) -> None:
        check_part(self.choice)
        errors.require_positive("loss_bound", self.choice.bound)
        if self.choice.rounds is not None:
            errors.require_count("choices", self.choice.rounds)
