"""Which clients of a cohort answer: wrappers around any cohort."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors, prng
from fedjax_dp.parts.cohorts import Array, Cohort, CohortKeys, Members, prefix_of
from fedjax_dp.parts.facts import restates
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import check_part, client_numbers, replace, structure, value


def _of_cohort(name: str) -> Any:
    """The member `name` of the inner cohort."""
    return property(lambda self: getattr(self.cohort, name))


class Answers:
    """The members that a wrapper takes over from its inner cohort."""

    cohort: Cohort
    fixed = False
    no_epsilon_reason = _of_cohort("no_epsilon_reason")
    setup_event = _of_cohort("setup_event")
    base = _of_cohort("base")
    is_random = _of_cohort("is_random")
    at_most_once = _of_cohort("at_most_once")
    max_participations = _of_cohort("max_participations")
    capacity = _of_cohort("capacity")
    expected_size = _of_cohort("expected_size")
    inclusion_probability = _of_cohort("inclusion_probability")  # an adversary may have seen lost messages
    amplification = _of_cohort("amplification")
    min_separation = _of_cohort("min_separation")
    rounds_per_pass = _of_cohort("rounds_per_pass")
    log = _of_cohort("log")

    def prefix(self, rounds: int) -> Cohort:
        shorter: Any = replace(self, cohort=prefix_of(self.cohort, rounds))
        return shorter


@value
@restates(Answers)
class Dropout(Answers):
    """Each message of the clients of `cohort` is lost independently with probability `rate`.

    The Guarantee assumes that whether a client answers does not depend on its records.
    """

    cohort: Cohort
    rate: float  # or one per client `(num_clients,)`

    @property
    def equation(self) -> str:
        return rf"{getattr(self.cohort, 'equation', 'S_t')};\ \text{{each is lost with probability}}\ d"

    def sample(self, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
        members = self.cohort.sample(keys, round_index, shares)
        rate = jnp.broadcast_to(jnp.asarray(self.rate), shares.shape)[members.ids]
        luck = prng.unit_interval(prng.bits(role_key(keys.round, "dropout"), 0, members.ids.shape[0]))
        return members._replace(participation_count=jnp.where(luck < rate, 0.0, members.participation_count))

    def rates(self, shares: Array) -> Any:
        rates = self.cohort.rates(shares)
        lost = jnp.asarray(self.rate) if isinstance(self.rate, list | tuple) else self.rate
        return None if rates is None else rates * (1 - lost)

    def with_size(self, size: int) -> Cohort:
        return replace(self, cohort=self.cohort.with_size(size))

    def check(self, num_clients: int) -> None:
        check_part(self.cohort, num_clients)
        rate = client_numbers("dropout", self.rate, num_clients)
        if not np.all((rate >= 0) & (rate < 1)):
            raise errors.refuse("dropout", self.rate, "in [0, 1)", "some clients must answer")


@value
@restates(Answers)
class FirstResponders(Answers):
    """The first `size` clients of a larger `cohort` to answer (dpnfl: "first r that respond"); others are dropped.

    A client answers after `latency` times an exponential time. With equal latencies the first ones are uniform.
    """

    cohort: Cohort
    latency: Any = 1.0  # mean seconds, one number or one per client `(num_clients,)`
    size: int = structure(errors.require_count, option="first responders")

    @property
    def equation(self) -> str:
        return rf"{getattr(self.cohort, 'equation', 'S_t')};\ \text{{the first}}\ r\ \text{{to answer}}"

    def sample(self, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
        members = self.cohort.sample(keys, round_index, shares)
        pace = jnp.broadcast_to(jnp.asarray(self.latency), shares.shape)[members.ids]
        luck = prng.unit_interval(prng.bits(role_key(keys.round, "latency"), 0, members.ids.shape[0]))
        seconds = jnp.where(members.present, -jnp.log(luck) * pace, jnp.inf)
        rank = jnp.argsort(jnp.argsort(seconds))
        return members._replace(participation_count=jnp.where(rank < self.size, members.participation_count, 0.0))

    def rates(self, shares: Array) -> Any:
        rates = self.cohort.rates(shares)
        if np.ndim(self.latency) or rates is None:
            return None  # how often slow clients are among the first is unknown
        return rates * (self.size / self.cohort.capacity(shares.shape[0]))

    def with_size(self, size: int) -> Cohort:
        remedy = "leave out first: the first of a larger cohort are not known"
        raise errors.refuse("deployment_cohort", size, "left out where the first to answer count", remedy)

    def check(self, num_clients: int) -> None:
        check_part(self.cohort, num_clients)
        if not (self.cohort.fixed and self.cohort.at_most_once):
            raise errors.refuse(
                "first responders",
                f"those of {type(self.cohort).__name__}",
                "of a cohort of fixed size without repeats",
                "use a uniform cohort",
            )
        latency = client_numbers("latency", self.latency, num_clients)
        if not np.all((latency > 0) & np.isfinite(latency)):
            raise errors.refuse("latency", self.latency, "positive and finite")
        if self.size > self.cohort.capacity(num_clients):
            raise errors.refuse(
                "first responders", self.size, f"at most the {self.cohort.capacity(num_clients)} clients drawn"
            )
