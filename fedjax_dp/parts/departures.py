"""Clients that leave a run for good, one by one, after rounds that are known before the first."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Adjacency, Sampling
from fedjax_dp.parts.answers import Answers
from fedjax_dp.parts.cohorts import SEEN, Array, Cohort, CohortKeys, Members
from fedjax_dp.parts.facts import restates
from fedjax_dp.pytrees import of_clients, value


@value
@restates(Answers)
class Departures(Answers):
    """`cohort`, drawn in every round among the clients that are still there; shares and rates are those of a run of
    these alone.

    until  rounds from the first on in which each client may be drawn `(num_clients,)`, made of public numbers; infinite
           for who stays. As everybody may know them, who takes part is public.
    """

    cohort: Cohort
    until: Any

    drawn = False  # by no chance that stays the same

    @property
    def equation(self) -> str:
        return rf"{getattr(self.cohort, 'equation', 'S_t')}\ \text{{among those with}}\ t < T_k"

    @property
    def base(self) -> Cohort:
        return self  # whoever is drawn answers

    def remaining(self, round_index: jax.Array, shares: jax.Array) -> jax.Array:
        own = jnp.where(round_index < jnp.asarray(self.until), shares, 0.0)
        return own / jnp.sum(own)

    def sample(self, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
        ranks = jnp.cumsum(round_index < jnp.asarray(self.until), dtype=jnp.int32)
        members = self.cohort.among(keys, round_index, ranks[-1], shares.shape[0])
        ids = jnp.searchsorted(ranks, members.ids + 1).astype(jnp.int32)  # who has the rank that was drawn
        return members._replace(ids=jnp.minimum(ids, shares.shape[0] - 1))

    def rates(self, shares: Array) -> Any:
        """Of the clients whose share is not 0, see `remaining`."""
        here = shares > 0
        each = self.cohort.rates(shares) * (shares.shape[0] / here.sum())
        return here * each.clip(max=1.0)

    def amplified(self, num_clients: int, known: int) -> tuple[Sampling, Adjacency]:
        return SEEN

    def resized(self, size: int) -> Cohort:
        raise errors.refuse("deployment_cohort", size, "left out where clients leave one by one", "give one budget")

    def check(self, num_clients: int) -> None:
        self.cohort.check(num_clients)
        until = of_clients("until", self.until, num_clients, common=False)
        if not np.all(until >= 0):
            raise errors.refuse("until", f"from {until.min():g}", "rounds of at least 0")
