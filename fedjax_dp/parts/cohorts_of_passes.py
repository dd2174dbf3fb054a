"""Cohorts that are drawn per pass of rounds, with a minimum separation of a client's rounds, or truncated.

Draws depend only on keys, ids and the round, so a client's rounds may depend on one another without any stored state.
Pass p consists of the rounds p P to (p + 1) P - 1.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import scipy.stats

from fedjax_dp import accounting, errors, prng
from fedjax_dp.accounting import Adjacency, Sampling
from fedjax_dp.parts.cohorts import SEEN, Array, Cohort, CohortKeys, Members, check_size
from fedjax_dp.pytrees import replace, structure, value


def _members_who_join(joins: jax.Array, positions: int) -> Members:
    """The clients with `joins` `(num_clients,)`, in the order of their ids; other positions are padding."""
    (ids,) = jnp.nonzero(joins, size=positions, fill_value=0)
    return Members.of(ids.astype(jnp.int32), jnp.arange(positions) < jnp.sum(joins))


def _positions(expected: float, num_clients: int) -> int:
    """Positions for clients that join independently, of which `expected` are expected."""
    return min(prng.poisson_capacity(max(math.ceil(expected), 1)), num_clients)


@value
class AllocatedCohort(Cohort):
    """Every client takes part in `chosen` uniform rounds of each pass of `pass_rounds`, independently and secretly.

    A cohort larger than its positions is truncated, with probability below 1e-18 per round.
    Source: Feldman and Shenfeld 2025, arXiv:2502.08202 (random allocation).
    """

    pass_rounds: int = structure()
    chosen: int = structure(default=1)

    equation = r"\{t : k \in S_t\} \sim \text{uniform},\ c\ \text{of the}\ P\ \text{rounds of a pass}"

    at_most_once = True
    no_epsilon_reason = None

    def capacity(self, num_clients: int) -> int:
        return _positions(num_clients * self.chosen / self.pass_rounds, num_clients)

    def expected_size(self, num_clients: int) -> int:
        return round(num_clients * self.chosen / self.pass_rounds)

    def sample(self, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
        num_clients, at = shares.shape[0], round_index // self.pass_rounds
        words = prng.words(prng.role_key(keys.run, "pass"), at, num_clients * self.chosen)
        high, low = (word.reshape(num_clients, self.chosen) for word in words)
        slots = prng.without_replacement(high, jnp.int32(self.pass_rounds), low)
        joins = jnp.any(slots == round_index % self.pass_rounds, axis=1)
        return _members_who_join(joins, self.capacity(num_clients))

    def rates(self, shares: Array) -> Any:
        return self.chosen / self.pass_rounds + 0.0 * shares

    def amplification(self, num_clients: int, known: int) -> tuple[Sampling, Adjacency]:
        return accounting.RandomAllocation(self.chosen, self.pass_rounds), Adjacency.ADD_REMOVE

    def rounds_per_pass(self, num_clients: int) -> int:
        return self.pass_rounds

    def check(self, num_clients: int) -> None:
        errors.require_count("pass_rounds", self.pass_rounds)
        errors.require_integer("chosen", self.chosen, 1, self.pass_rounds, "a pass has no more rounds")


@value
class BinnedCohort(Cohort):
    """Every client draws one uniform slot of a pass of `pass_rounds` for the whole run, independently and secretly.

    A cohort larger than its positions is truncated, with probability below 1e-18 per round.
    Source: Chua et al. 2024, arXiv:2412.16802 (balls in bins).
    """

    pass_rounds: int = structure()

    equation = r"k \in S_t \Leftrightarrow t \equiv b_k \bmod P,\ b_k \sim \text{uniform}"

    at_most_once = True
    no_epsilon_reason = None

    def capacity(self, num_clients: int) -> int:
        return _positions(num_clients / self.pass_rounds, num_clients)

    def expected_size(self, num_clients: int) -> int:
        return round(num_clients / self.pass_rounds)

    def sample(self, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
        high, low = prng.words(prng.role_key(keys.run, "slot"), 0, shares.shape[0])
        slots = prng.below(high, jnp.int32(self.pass_rounds), low)
        return _members_who_join(slots == round_index % self.pass_rounds, self.capacity(shares.shape[0]))

    def rates(self, shares: Array) -> Any:
        return 1 / self.pass_rounds + 0.0 * shares

    def amplification(self, num_clients: int, known: int) -> tuple[Sampling, Adjacency]:
        return accounting.BallsInBins(self.pass_rounds), Adjacency.ADD_REMOVE

    def rounds_per_pass(self, num_clients: int) -> int:
        return self.pass_rounds

    def min_separation(self, num_clients: int) -> int:
        return self.pass_rounds

    def check(self, num_clients: int) -> None:
        errors.require_count("pass_rounds", self.pass_rounds)


@value
class CyclicPoissonCohort(Cohort):
    """In round t each client with id = t mod `pass_rounds` joins with probability P `size` / N.

    Clients join independently and secretly; `size` of them are expected per round.
    Source: Choquette-Choo et al. 2023, arXiv:2306.08153 (banded matrix factorization with cyclic Poisson sampling).
    """

    size: int = structure()
    pass_rounds: int = structure()

    equation = r"\Pr[k \in S_t] = P r / N\ \text{if}\ k \equiv t \bmod P,\ \text{independently, else}\ 0"

    at_most_once = True
    no_epsilon_reason = None

    def capacity(self, num_clients: int) -> int:
        group = -(-num_clients // self.pass_rounds)
        return _positions(self._rate(num_clients) * group, group)

    def expected_size(self, num_clients: int) -> int:
        return self.size

    def sample(self, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
        num_clients = shares.shape[0]
        turn = (round_index % self.pass_rounds).astype(jnp.int32)
        group = (num_clients - 1 - turn) // self.pass_rounds + 1
        words = prng.words(keys.round, 0, self.capacity(num_clients))
        places, drawn = prng.independent(words, group, self.size * self.pass_rounds, jnp.int32(num_clients))
        ids = jnp.where(drawn, places * self.pass_rounds + turn, 0)
        return Members.of(ids, drawn)

    def rates(self, shares: Array) -> Any:
        return self.size / shares.shape[0] + 0.0 * shares

    def amplification(self, num_clients: int, known: int) -> tuple[Sampling, Adjacency]:
        return accounting.Poisson(self._rate(num_clients)), Adjacency.ADD_REMOVE

    def rounds_per_pass(self, num_clients: int) -> int:
        return self.pass_rounds

    def min_separation(self, num_clients: int) -> int:
        return self.pass_rounds

    def check(self, num_clients: int) -> None:
        check_size(self.size, num_clients)
        errors.require_count("pass_rounds", self.pass_rounds)
        if self.size * self.pass_rounds > num_clients:
            wanted = f"at most {num_clients} clients / cohort_size {self.size}, as P r / N is a probability"
            raise errors.refuse("pass_rounds", self.pass_rounds, wanted)

    def _rate(self, num_clients: int) -> float:
        return self.size * self.pass_rounds / num_clients


@value
class SeparatedCohort(Cohort):
    """A client rests for `separation` - 1 rounds after each participation, and joins any other round independently.

    It joins with probability p = 1 / (N / r - b + 1). The clients that rest at the start are drawn too, so that in
    every round each client joins with probability r / N: `size` clients are expected. A client takes part in at most
    ceil(T / b) of T rounds. No amplification is claimed, as none is proved, so participation may be public.
    A cohort larger than its positions is truncated, with probability below 1e-18 per round.
    Each round draws all earlier rounds again, so round t costs about t r draws.
    Source: arXiv:2602.09338 (2026, b-min-sep sampling).
    """

    size: int = structure()
    separation: int = structure()

    equation = (
        r"\Pr[k \in S_t] = 1 / (N / r - b + 1)\ \text{if}\ "
        r"k \notin S_{t - 1} \cup \dots \cup S_{t - b + 1},\ \text{independently, else}\ 0"
    )

    at_most_once = True
    no_epsilon_reason = None

    def capacity(self, num_clients: int) -> int:
        return _positions(self.size, num_clients)

    def expected_size(self, num_clients: int) -> int:
        return self.size

    def sample(self, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
        num_clients, key = shares.shape[0], prng.role_key(keys.run, "separation")

        def gap(number: jax.Array) -> jax.Array:
            """Rounds from one participation of each client to its next."""
            return self.separation + prng.misses(prng.words(key, number, num_clients), self.rate_when_free(num_clients))

        def after(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            next_round, number = state
            return jnp.where(next_round < round_index, next_round + gap(number), next_round), number + 1

        first = self._first_round(prng.words(key, 0, num_clients), gap(jnp.uint32(1)))
        next_round, _ = jax.lax.while_loop(lambda state: jnp.any(state[0] < round_index), after, (first, jnp.uint32(2)))
        return _members_who_join(next_round == round_index, self.capacity(num_clients))

    def _first_round(self, words: tuple[jax.Array, jax.Array], gap: jax.Array) -> jax.Array:
        """The first round of each client `(num_clients,)`, in the stationary distribution.

        Each of the rounds 0 to b - 1 is the first with probability r / N, as a client takes part in at most one of
        them; otherwise the first is distributed like the next one after round 0.
        """
        place = prng.below(words[0], jnp.int32(gap.size), words[1])
        return jnp.where(place < self.separation * self.size, place // self.size, gap)

    def rate_when_free(self, num_clients: int) -> float:
        """p, the probability that a client joins when it does not rest."""
        return self.size / (num_clients - (self.separation - 1) * self.size)

    def rates(self, shares: Array) -> Any:
        return self.size / shares.shape[0] + 0.0 * shares

    def with_size(self, size: int) -> Cohort:
        return replace(self, size=size)

    def min_separation(self, num_clients: int) -> int:
        return self.separation

    def check(self, num_clients: int) -> None:
        check_size(self.size, num_clients)
        errors.require_count("separation", self.separation)
        if self.size * self.separation > num_clients:
            wanted = f"at most {num_clients} clients / cohort_size {self.size}, so that clients can rest"
            raise errors.refuse("separation", self.separation, wanted)


@value
class TruncatedPoissonCohort(Cohort):
    """Every client joins independently with probability `size` / N; if more than `most` join, a uniform `most` stay.

    Source: Ganesh et al. 2025, arXiv:2508.15089 (truncated Poisson sampling).
    """

    size: int = structure()
    most: int = structure()

    equation = r"S \sim \text{Poisson}(r / N),\ S_t = S\ \text{or, if}\ |S| > c,\ \text{uniform}\ c\ \text{of}\ S"

    at_most_once = True
    no_epsilon_reason = None

    def capacity(self, num_clients: int) -> int:
        return min(self.most, _positions(self.size, num_clients))

    def expected_size(self, num_clients: int) -> int:
        return round(_mean_of_at_most(self.most, num_clients, self.size))

    def sample(self, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
        num_clients = shares.shape[0]
        words = prng.words(keys.round, 0, _positions(self.size, num_clients))
        ids, drawn = prng.independent(words, jnp.int32(num_clients), self.size)
        luck = prng.words(prng.role_key(keys.round, "truncation"), 0, ids.size)
        order = jnp.lexsort((*luck, ~drawn))[: self.capacity(num_clients)]
        return Members.of(ids[order], drawn[order])

    def rates(self, shares: Array) -> Any:
        num_clients = shares.shape[0]
        return _mean_of_at_most(self.most, num_clients, self.size) / num_clients + 0.0 * shares

    def inclusion_probability(self, shares: Array) -> tuple[Any, int]:
        return self.rates(shares), 1

    def amplification(self, num_clients: int, known: int) -> tuple[Sampling, Adjacency]:
        if known:  # which known clients are dropped reveals something about the others, and no theorem covers this
            return SEEN
        sampling = accounting.TruncatedPoisson(self.size / num_clients, self.most, num_clients)
        return sampling, Adjacency.ZERO_OUT

    def check(self, num_clients: int) -> None:
        check_size(self.size, num_clients)
        errors.require_count("cohort_most", self.most)


@functools.cache
def _mean_of_at_most(most: int, num_clients: int, size: int) -> float:
    """E min(S, most) of a binomial S of `num_clients` trials with mean `size`."""
    return float(scipy.stats.binom.sf(range(most), num_clients, size / num_clients).sum())
