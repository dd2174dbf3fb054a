"""Who takes part in a round. Draws depend on the key and on public numbers alone, so a schedule can be drawn ahead."""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import draws, errors
from fedjax_dp.values import role_key, structure, value

Array = jax.Array | np.ndarray


class Members(NamedTuple):
    """The clients of a round, each at a position; every array `(members,)`."""

    ids: jax.Array  # int32, distinct where invited, unless draws train one by one
    drawn: jax.Array  # float32: how often the client was drawn; 0 where its message does not arrive
    turn: jax.Array  # int32: 0, or the number of the draw among those of the same client that train one by one
    invited: jax.Array  # bool; False is padding

    @property
    def present(self) -> jax.Array:
        """Whose message arrives."""
        return self.drawn > 0


class Cohort(Protocol):
    """A law for the clients of a round. `shares` are the public p_i, shape `(num_clients,)`.

    base   the law that draws the clients, under whatever decides who of them answers;
    drawn  clients are drawn at random; fixed  as many answer in every round; once  a client counts at most once;
    turns  most times that a client trains in a round.
    """

    @property
    def base(self) -> "Cohort": ...

    @property
    def drawn(self) -> bool: ...

    @property
    def fixed(self) -> bool: ...

    @property
    def once(self) -> bool: ...

    @property
    def turns(self) -> int: ...

    def members(self, num_clients: int) -> int: ...  # positions, known before the round

    def usual(self, num_clients: int) -> int: ...  # how many of them an ordinary round fills

    def sample(self, key: jax.Array, round_index: jax.Array, shares: jax.Array) -> Members: ...  # key of this round

    def rates(self, shares: Array) -> Any: ...  # expected messages of each client (num_clients,); None: unknown

    def law(self, shares: Array) -> tuple[Any, int]: ...  # (chance per draw (num_clients,), independent draws a round)

    def check(self, num_clients: int) -> None: ...


def _everyone_answers(ids: jax.Array) -> Members:
    return Members(ids, jnp.ones(ids.shape), jnp.zeros_like(ids), jnp.ones(ids.shape, bool))


@value
class AllClients:
    """Every client in every round."""

    drawn, fixed, once, turns = False, True, True, 1

    @property
    def base(self) -> Cohort:
        return self

    def members(self, num_clients: int) -> int:
        return num_clients

    def usual(self, num_clients: int) -> int:
        return num_clients

    def sample(self, key: jax.Array, round_index: jax.Array, shares: jax.Array) -> Members:
        return _everyone_answers(jnp.arange(shares.shape[0], dtype=jnp.int32))

    def rates(self, shares: Array) -> Any:
        return 1.0 + 0.0 * shares

    def law(self, shares: Array) -> tuple[Any, int]:
        return self.rates(shares), 1

    def check(self, num_clients: int) -> None:
        pass


@value
class UniformCohort:
    """`size` distinct clients, uniform without replacement, afresh in every round."""

    size: int = structure()

    drawn, fixed, once, turns = True, True, True, 1

    @property
    def base(self) -> Cohort:
        return self

    def members(self, num_clients: int) -> int:
        return self.size

    def usual(self, num_clients: int) -> int:
        return self.size

    def sample(self, key: jax.Array, round_index: jax.Array, shares: jax.Array) -> Members:
        words = draws.bits(key, 0, self.size)
        return _everyone_answers(draws.without_replacement(words, jnp.int32(shares.shape[0])))

    def rates(self, shares: Array) -> Any:
        return self.size / shares.shape[0] + 0.0 * shares

    def law(self, shares: Array) -> tuple[Any, int]:
        return self.rates(shares), 1

    def check(self, num_clients: int) -> None:
        _check_size(self.size, num_clients)


@value
class PoissonCohort:
    """Every client joins independently with probability `size / num_clients`; positions beyond are padding.

    A cohort that would overflow its positions is cut, with probability below 1e-18 a round.
    """

    size: int = structure()

    drawn, fixed, once, turns = True, False, True, 1

    @property
    def base(self) -> Cohort:
        return self

    def members(self, num_clients: int) -> int:
        return min(draws.poisson_capacity(self.size), num_clients)

    def usual(self, num_clients: int) -> int:
        return self.size

    def sample(self, key: jax.Array, round_index: jax.Array, shares: jax.Array) -> Members:
        num_clients = shares.shape[0]
        words = draws.bits(key, 0, self.members(num_clients))
        ids, drawn = draws.independent(words, jnp.int32(num_clients), self.size)
        return Members(ids, drawn.astype(jnp.float32), jnp.zeros_like(ids), drawn)

    def rates(self, shares: Array) -> Any:
        return self.size / shares.shape[0] + 0.0 * shares

    def law(self, shares: Array) -> tuple[Any, int]:
        return self.rates(shares), 1

    def check(self, num_clients: int) -> None:
        _check_size(self.size, num_clients)


@value
class MultinomialCohort:
    """`draws` independent draws with replacement: a multiset of clients.

    probabilities  of a client in one draw `(num_clients,)` for importance sampling (003); None draws by the shares (MD
                   sampling of Li et al. 2020, Scheme I; 004's WR), or, if `equal`, everybody alike;
    paid           the event by which each client told what `probabilities` are made of; None if nobody knows;
    one_by_one     False: a client that is drawn m times trains once and its message counts m times; True: it trains m
                   times with fresh batches and noise, and pays m times.
    """

    probabilities: Any = None
    draws: int = structure()
    equal: bool = structure(default=False)
    paid: Any = structure(default=None)
    one_by_one: bool = structure(default=False)

    drawn, fixed, once = True, False, False

    @property
    def base(self) -> Cohort:
        return self

    @property
    def turns(self) -> int:
        return self.draws if self.one_by_one else 1

    def members(self, num_clients: int) -> int:
        return self.draws

    def usual(self, num_clients: int) -> int:
        return self.draws

    def sample(self, key: jax.Array, round_index: jax.Array, shares: jax.Array) -> Members:
        edges = jnp.cumsum(self._probabilities(shares))
        places = draws.unit_interval(draws.bits(key, 0, self.draws)) * edges[-1]
        ids = jnp.minimum(jnp.searchsorted(edges, places, side="right"), shares.shape[0] - 1).astype(jnp.int32)
        if self.one_by_one:
            earlier = jnp.tril(ids[:, None] == ids[None, :], -1).sum(1, dtype=jnp.int32)
            return Members(ids, jnp.ones(ids.shape), earlier, jnp.ones(ids.shape, bool))
        distinct, count = jnp.unique(ids, return_counts=True, size=self.draws, fill_value=0)
        return Members(distinct, count.astype(jnp.float32), jnp.zeros_like(ids), count > 0)

    def rates(self, shares: Array) -> Any:
        return self.draws * self._probabilities(shares)

    def law(self, shares: Array) -> tuple[Any, int]:
        chance = self._probabilities(shares)
        return (chance, self.draws) if self.one_by_one else (1 - (1 - chance) ** self.draws, 1)

    def check(self, num_clients: int) -> None:
        errors.require_count("draws", self.draws)
        if self.probabilities is None:
            return
        chance = np.asarray(self.probabilities, float)
        if chance.shape != (num_clients,):
            raise errors.refuse("probabilities", f"shape {chance.shape}", f"one for each of the {num_clients} clients")
        if not (np.all(chance > 0) and abs(chance.sum() - 1) < 1e-4):
            raise errors.refuse(
                "probabilities", f"from {chance.min():.4g}, sum {chance.sum():.6g}", "positive and of sum 1",
                "a client that is never drawn would bias the model",
            )  # fmt: skip

    def _probabilities(self, shares: Array) -> Any:
        if self.equal:
            return 1 / shares.shape[0] + 0.0 * shares
        return shares if self.probabilities is None else self.probabilities


@value
class CyclicCohort:
    """Blocks of `size` clients take turns in the order of their ids: everybody waits num_clients / size rounds.

    For noise that is correlated over rounds, whose price depends on how far apart a client's rounds are.
    """

    size: int = structure()

    drawn, fixed, once, turns = False, True, True, 1

    @property
    def base(self) -> Cohort:
        return self

    def members(self, num_clients: int) -> int:
        return self.size

    def usual(self, num_clients: int) -> int:
        return self.size

    def sample(self, key: jax.Array, round_index: jax.Array, shares: jax.Array) -> Members:
        blocks = shares.shape[0] // self.size
        first = (round_index.astype(jnp.int32) % blocks) * self.size
        return _everyone_answers(first + jnp.arange(self.size, dtype=jnp.int32))

    def rates(self, shares: Array) -> Any:
        return self.size / shares.shape[0] + 0.0 * shares

    def law(self, shares: Array) -> tuple[Any, int]:
        raise errors.refuse("participation", "law", "schedule or worst for a cyclic cohort, which is not drawn")

    def check(self, num_clients: int) -> None:
        _check_size(self.size, num_clients)
        if num_clients % self.size:
            raise errors.refuse("cohort_size", self.size, f"a divisor of the {num_clients} clients for a cyclic cohort")


class Answers:
    """What a law of who answers takes over from the cohort that it wraps."""

    cohort: Cohort
    fixed = False

    @property
    def base(self) -> Cohort:
        return self.cohort.base

    @property
    def drawn(self) -> bool:
        return self.cohort.drawn

    @property
    def once(self) -> bool:
        return self.cohort.once

    @property
    def turns(self) -> int:
        return self.cohort.turns

    def members(self, num_clients: int) -> int:
        return self.cohort.members(num_clients)

    def usual(self, num_clients: int) -> int:
        return self.cohort.usual(num_clients)

    def law(self, shares: Array) -> tuple[Any, int]:
        return self.cohort.law(shares)  # a message that is lost or late may have been seen on its way


@value
class Dropout(Answers):
    """Clients of `cohort` whose message does not arrive, each independently with probability `rate`.

    Whether a client answers must not depend on its records: the Guarantee assumes so.
    """

    cohort: Cohort
    rate: float  # or one per client `(num_clients,)`

    def sample(self, key: jax.Array, round_index: jax.Array, shares: jax.Array) -> Members:
        members = self.cohort.sample(key, round_index, shares)
        rate = jnp.broadcast_to(jnp.asarray(self.rate), shares.shape)[members.ids]
        luck = draws.unit_interval(draws.bits(role_key(key, "dropout"), 0, members.ids.shape[0]))
        return members._replace(drawn=jnp.where(luck < rate, 0.0, members.drawn))

    def rates(self, shares: Array) -> Any:
        rates = self.cohort.rates(shares)
        return None if rates is None else rates * (1 - self.rate)

    def check(self, num_clients: int) -> None:
        self.cohort.check(num_clients)
        rate = np.asarray(self.rate)
        if rate.ndim and rate.shape != (num_clients,):
            raise errors.refuse("dropout", f"shape {rate.shape}", f"one number or {num_clients} of them")
        if not np.all((rate >= 0) & (rate < 1)):
            raise errors.refuse("dropout", self.rate, "in [0, 1)", "somebody has to answer")


@value
class FirstResponders(Answers):
    """The first `size` clients of an over-drawn `cohort` to answer (000's "first r that respond"); stragglers are cut.

    A client's answer takes `latency` times an exponential time. With equal latencies who is first is uniform.
    """

    cohort: Cohort
    latency: Any = 1.0  # mean seconds, one number or one per client `(num_clients,)`
    size: int = structure()

    def sample(self, key: jax.Array, round_index: jax.Array, shares: jax.Array) -> Members:
        members = self.cohort.sample(key, round_index, shares)
        pace = jnp.broadcast_to(jnp.asarray(self.latency), shares.shape)[members.ids]
        luck = draws.unit_interval(draws.bits(role_key(key, "latency"), 0, members.ids.shape[0]))
        seconds = jnp.where(members.present, -jnp.log(luck) * pace, jnp.inf)
        rank = jnp.argsort(jnp.argsort(seconds))
        return members._replace(drawn=jnp.where(rank < self.size, members.drawn, 0.0))

    def rates(self, shares: Array) -> Any:
        rates = self.cohort.rates(shares)
        if np.ndim(self.latency) or rates is None:
            return None  # nobody knows how often the slow ones are among the first
        return rates * (self.size / self.cohort.members(shares.shape[0]))

    def check(self, num_clients: int) -> None:
        self.cohort.check(num_clients)
        errors.require_count("first responders", self.size)
        if not (self.cohort.fixed and self.cohort.once):
            raise errors.refuse(
                "first responders", f"those of {type(self.cohort).__name__}",
                "of a cohort of fixed size without repeats", "use a uniform cohort",
            )  # fmt: skip
        latency = np.asarray(self.latency)
        if latency.ndim and latency.shape != (num_clients,):
            raise errors.refuse("latency", f"shape {latency.shape}", f"one number or {num_clients} of them")
        if not np.all((latency > 0) & np.isfinite(latency)):
            raise errors.refuse("latency", self.latency, "positive and finite")
        if self.size > self.cohort.members(num_clients):
            raise errors.refuse(
                "first responders", self.size, f"at most the {self.cohort.members(num_clients)} clients drawn"
            )


def _check_size(size: int, num_clients: int) -> None:
    errors.require_count("cohort_size", size)
    if size > num_clients:
        raise errors.refuse(
            "cohort_size", size, f"at most the {num_clients} clients", "lower cohort_size or add clients"
        )
