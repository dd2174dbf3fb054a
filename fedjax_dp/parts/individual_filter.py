"""Noise on whole clients, of which each counts while its own clipped updates have cost less than a common budget."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Adjacency, Event, FullBatch, GaussianSteps, Unit, repeated
from fedjax_dp.parts.client_privacy import ClientGaussian, MessageEncoding, Participation, UpdatePrivatizer, is_plain
from fedjax_dp.pytrees import changed, structure, value

ADJACENCY = Adjacency.ZERO_OUT  # zeros in the place of what a client contributes
HALF_ULP = 2.0**-24  # of float32 numbers near 1
LEAST = 2.0**-126  # of float32 numbers, below which some devices have 0
PLAIN = ClientGaussian(clip_norm=1.0, noise_multiplier=1.0)


class UsedBudget(NamedTuple):
    """What each client's updates have cost so far, which is data: to be kept, and never shown."""

    squared_mu: jax.Array  # (num_clients,), infinite for who has left

    def __repr__(self) -> str:
        return "UsedBudget(...)"


@value
class IndividualGaussian(UpdatePrivatizer):
    """`ClientGaussian` with an individual filter: client i's update u counts in a round while the sum over its rounds,
    with this one, of (|u| / (z S))^2 is at most budget_mu^2; from the first round in which it is not, never again.

    Who counts, how many do and what each has used depends on records, and acts on the sum alone: divisors are those of
    all who take part. The claim is the budget, for everybody: mu = budget_mu, or sqrt(rounds) / z where that is less.
    Costs are rounded up and the budget down, so that no sum of costs is above it.
    Adjacency: a client's contributions, or zeros in their place; its place in cohorts stays. Nothing is amplified.
    Source: Feldman and Zrnic 2021, arXiv:2008.11193; its Gaussian form Koskela, Tobaben, Honkela 2023,
            arXiv:2209.15596.

    clip_norm, noise_multiplier, by_tensor  as for `ClientGaussian`;
    budget_mu  mu_B, of Gaussian noise with the budget's epsilon and delta: 1 / `accounting.gaussian_noise`.
    """

    clip_norm: float
    noise_multiplier: float
    budget_mu: float
    by_tensor: bool = structure(default=False)

    unit = Unit.CLIENT
    source = PLAIN.source

    @property
    def equation(self) -> str:
        left = r"\textstyle\sum_{s \le t} |\Delta_k^{(s)}|^2 \le (\mu_B z S)^2"
        return rf"{self._gaussian.equation};\ \Delta_k = 0\ \text{{from the first round without}}\ {left}"

    @property
    def _gaussian(self) -> ClientGaussian:
        own = {name: getattr(self, name) for name in ("clip_norm", "noise_multiplier", "by_tensor")}
        return changed(PLAIN, **own)

    def event(self, noise: float, attendance: Participation) -> Event:
        mu = float(self.budget_mu)
        if attendance.times <= (mu * noise) ** 2:  # then it never leaves
            return repeated(GaussianSteps(noise, FullBatch(), ADJACENCY, 1, Unit.CLIENT), attendance.times)
        return GaussianSteps(1 / mu, FullBatch(), ADJACENCY, 1, Unit.CLIENT)

    def init_clients(self, num_clients: int) -> UsedBudget:
        return UsedBudget(jnp.zeros(num_clients, jnp.float32))

    def counted(self, update: jax.Array, row: UsedBudget) -> tuple[jax.Array, UsedBudget]:
        cost = self._cost(update)
        used = jnp.where(cost > 0, jnp.nextafter(row.squared_mu + cost, jnp.inf), row.squared_mu)
        mu = jnp.nextafter(jnp.asarray(self.budget_mu, jnp.float32), 0.0)
        counts = used <= jnp.nextafter(mu * mu, 0.0)
        return jnp.where(counts, update, 0.0), UsedBudget(jnp.where(counts, used, jnp.inf))

    def _cost(self, update: jax.Array) -> jax.Array:
        """(|update| / (z S))^2, at most 1 / z^2, rounded up by as much as a sum of so many squares may be too small."""
        lost = (update.size + 16) * HALF_ULP
        shares = update / self.clip_norm  # so that squares are neither huge nor all 0
        share = jnp.sum(shares * shares) + update.size * LEAST
        most = jnp.where(jnp.any(update != 0), 1.0, 0.0)
        share = jnp.minimum(share / (1 - lost), most) if lost < 1 else most
        return share / self.noise_multiplier / self.noise_multiplier * (1 + 16 * HALF_ULP)

    def message(
        self, key: jax.Array, update: jax.Array, sizes: Sequence[int], state: Any, sent: MessageEncoding
    ) -> Any:
        return self._gaussian.message(key, update, sizes, state, sent)

    def release(
        self, key: jax.Array, round_index: Any, mean: jax.Array, extra: Any, state: Any, sensitivity: Any, expected: Any
    ) -> tuple[jax.Array, Any]:
        return self._gaussian.release(key, round_index, mean, extra, state, sensitivity, expected)

    def noise_std(self, state: Any, sensitivity: Any, round_index: jax.Array) -> jax.Array:
        return self._gaussian.noise_std(state, sensitivity, round_index)

    def check(self, num_clients: int) -> None:
        self._gaussian.check(num_clients)
        errors.require_positive("noise_multiplier", self.noise_multiplier, "an individual filter bounds by its noise")
        if np.ndim(self.budget_mu):
            raise errors.refuse("budget", "one for each client", "one number for an individual filter")
        errors.require_positive("budget_mu", self.budget_mu)


def can_filter(upload: UpdatePrivatizer) -> TypeGuard[ClientGaussian | IndividualGaussian]:
    """Whether a filter with a budget can take the place of this; it may be one already."""
    return is_plain(upload) or type(upload) is IndividualGaussian
