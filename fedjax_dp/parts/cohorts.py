"""Sampling of clients. Draws depend only on the key and on public numbers, so a schedule can be drawn in advance."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors, prng
from fedjax_dp.accounting import (
    Adjacency,
    Event,
    FullBatch,
    ParticipationLog,
    Poisson,
    Sampling,
    WithoutReplacement,
)
from fedjax_dp.pytrees import client_numbers, replace, structure, value

Array = jax.Array | np.ndarray


class Members(NamedTuple):
    """The clients of a round, each at a position; every array `(members,)`."""

    ids: jax.Array  # int32; distinct where selected, unless a client trains once per draw
    participation_count: jax.Array  # float32: how often the client was drawn; 0 if its message does not arrive
    draw_index: jax.Array  # int32: index among the draws of the same client where it trains once per draw; else 0
    selected: jax.Array  # bool; False is padding

    @classmethod
    def of(cls, ids: jax.Array, selected: jax.Array | None = None) -> "Members":
        """The selected ids (by default all), each drawn once."""
        if selected is None:
            return cls(ids, jnp.ones(ids.shape), jnp.zeros_like(ids), jnp.ones(ids.shape, bool))
        return cls(ids, selected.astype(jnp.float32), jnp.zeros_like(ids), selected)

    @property
    def present(self) -> jax.Array:
        """Whether the message of each member arrives, bool `(members,)`."""
        return self.participation_count > 0


class CohortKeys(NamedTuple):
    """Keys that are used only to draw cohorts."""

    run: jax.Array  # the same in all rounds of a run
    round: jax.Array  # different in every round

    @classmethod
    def of(cls, run: jax.Array, round_index: jax.Array) -> "CohortKeys":
        return cls(run, jax.random.fold_in(run, round_index))


SEEN = (FullBatch(), Adjacency.REPLACE_ONE)  # who takes part is public
MOST_LOGGED = 2**24  # clients: ids are numbers of the algorithm, which float32 must hold exactly


class Cohort(Protocol):
    """How the clients of a round are sampled. Implementations use `fedjax_dp.value` and inherit from this class.

    `shares` are the public p_i `(num_clients,)`: traced in the rounds, NumPy arrays for the accountants.
    You must write four members: `no_epsilon_reason`, `capacity`, `sample` and `rates`. The defaults of the others
    treat participation as public and claim no amplification by subsampling.
    A method `check(num_clients)` may refuse clients from which cohorts cannot be drawn.
    """

    @property
    def no_epsilon_reason(self) -> str | None:
        """Required privacy property. Why there is no epsilon, if draws depend on records; None if they do not."""
        ...

    def capacity(self, num_clients: int) -> int:
        """Required privacy property. Number of positions in a cohort, the same in every round."""
        ...

    def sample(self, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
        """The participating clients, arrays `(members,)`; traced.

        Draw with `keys.round`, or with `keys.run` where rounds depend on one another (see `rounds_per_pass`).
        """
        ...

    def rates(self, shares: Array) -> Any:
        """Required privacy property. Expected messages of each client per round `(num_clients,)`; None if unknown."""
        ...

    @property
    def base(self) -> "Cohort":
        """Derived property, conservative default. The cohort that draws; a wrapper may decide which clients answer."""
        return self

    @property
    def is_random(self) -> bool:
        """Derived property, conservative default. Whether `inclusion_probability` gives the probability of a draw."""
        return type(self).inclusion_probability is not Cohort.inclusion_probability

    @property
    def fixed(self) -> bool:
        """Derived property, conservative default. Whether the same number of clients answers in every round."""
        return False

    @property
    def at_most_once(self) -> bool:
        """Derived property, conservative default. Whether a client counts at most once per round."""
        return False

    @property
    def max_participations(self) -> int:
        """Derived property, conservative default. How often a client can train in one round; more is refused."""
        return 1

    @property
    def setup_event(self) -> Event | None:
        """Derived property, conservative default. The event of what clients release for the draws; None if nothing."""
        return None

    def expected_size(self, num_clients: int) -> int:
        """Positions that a typical round fills. Only the layout of the computation depends on it."""
        return self.capacity(num_clients)

    def inclusion_probability(self, shares: Array) -> tuple[Any, int]:
        """Derived property, conservative default. Probabilities in one draw `(num_clients,)`, and draws per round."""
        name = type(self).__name__
        raise errors.refuse(
            "participation", "law", f"schedule or worst for {name}, which states no chances of its draws"
        )

    def amplification(self, num_clients: int, known: int) -> tuple[Sampling, Adjacency]:
        """Derived property, conservative default. Sampling of clients, as seen by an adversary who sees only sums.

        The adversary also knows whether each of `known` other clients takes part. The value
        (FullBatch(), Adjacency.REPLACE_ONE) means that participation is public; each client's rounds are then counted.
        """
        return SEEN

    def rounds_per_pass(self, num_clients: int) -> int:
        """Derived property, conservative default. Rounds per pass, from round 0 on; 1 if rounds are independent.

        Draws within a pass may depend on one another; `amplification` then describes the sums of one pass.
        """
        return 1

    def with_size(self, size: int) -> "Cohort":
        """Derived property, conservative default. The same sampling with cohorts of `size`, for a larger deployment."""
        wanted = f"left out for {type(self).__name__}, which states no with_size"
        raise errors.refuse("deployment_cohort", size, wanted, "use PoissonCohort")

    def min_separation(self, num_clients: int) -> int:
        """Derived property, conservative default. Least number of rounds from one participation to the next."""
        return 1

    def log(self, num_clients: int) -> ParticipationLog | None:
        """Derived property, conservative default. The participation log, if known before the run; else None."""
        return None


def prefix_of(cohort: Cohort, rounds: int) -> Cohort:
    """The cohort of the first `rounds` rounds; one that lists its rounds has a member `prefix` to cut the list."""
    shorter: Callable[[int], Cohort] | None = getattr(cohort, "prefix", None)
    return cohort if shorter is None else shorter(rounds)


@value
class AllClients(Cohort):
    """Full participation: every client in every round."""

    equation = r"S_t = \{1, \dots, N\}"

    fixed, at_most_once = True, True
    no_epsilon_reason = None

    def capacity(self, num_clients: int) -> int:
        return num_clients

    def sample(self, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
        return Members.of(jnp.arange(shares.shape[0], dtype=jnp.int32))

    def rates(self, shares: Array) -> Any:
        return 1.0 + 0.0 * shares

    def with_size(self, size: int) -> Cohort:
        return self


@value
class UniformCohort(Cohort):
    """`size` distinct clients, drawn uniformly without replacement, independently in every round."""

    size: int = structure()

    equation = r"S_t \sim \text{uniform},\ |S_t| = r,\ \text{without replacement}"

    fixed, at_most_once, max_participations = True, True, 1
    no_epsilon_reason = setup_event = None

    def capacity(self, num_clients: int) -> int:
        return self.size

    def sample(self, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
        first, second = prng.words(keys.round, 0, self.size)
        return Members.of(prng.without_replacement(first ^ second, jnp.int32(shares.shape[0]), second))

    def rates(self, shares: Array) -> Any:
        return self.size / shares.shape[0] + 0.0 * shares

    def inclusion_probability(self, shares: Array) -> tuple[Any, int]:
        return self.rates(shares), 1

    def with_size(self, size: int) -> Cohort:
        return replace(self, size=size)

    def amplification(self, num_clients: int, known: int) -> tuple[Sampling, Adjacency]:
        others = max(num_clients - known, 1)
        return WithoutReplacement(min(self.size, others), others), Adjacency.REPLACE_ONE

    def check(self, num_clients: int) -> None:
        check_size(self.size, num_clients)


@value
class PoissonCohort(Cohort):
    """Every client joins independently with probability `size / num_clients`; unused positions are padding.

    A cohort larger than its positions is truncated, with probability below 1e-18 per round.
    """

    size: int = structure()

    equation = r"\Pr[k \in S_t] = q = r / N,\ \text{independently}"

    at_most_once = True
    no_epsilon_reason = None

    def capacity(self, num_clients: int) -> int:
        return min(prng.poisson_capacity(self.size), num_clients)

    def expected_size(self, num_clients: int) -> int:
        return self.size

    def sample(self, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
        num_clients = shares.shape[0]
        words = prng.words(keys.round, 0, self.capacity(num_clients))
        ids, drawn = prng.independent(words, jnp.int32(num_clients), self.size)
        return Members.of(ids, drawn)

    def rates(self, shares: Array) -> Any:
        return self.size / shares.shape[0] + 0.0 * shares

    def inclusion_probability(self, shares: Array) -> tuple[Any, int]:
        return self.rates(shares), 1

    def with_size(self, size: int) -> Cohort:
        return replace(self, size=size)

    def amplification(self, num_clients: int, known: int) -> tuple[Sampling, Adjacency]:
        return Poisson(self.size / num_clients), Adjacency.ADD_REMOVE

    def check(self, num_clients: int) -> None:
        check_size(self.size, num_clients)


@value
class MultinomialCohort(Cohort):
    """`draws` independent draws with replacement: a multiset of clients.

    probabilities  of each client in one draw `(num_clients,)`, for importance sampling (acs_pldp). None draws by the
                   shares (MD sampling of Li et al. 2020, Scheme I; dp_fedavg_output's WR), or uniformly if `equal`;
    setup_event    the event of what each client released to compute `probabilities`; None if unknown;
    public         you are trusted: `probabilities` were computed from public numbers only;
    one_by_one     False: a client that is drawn m times trains once, and its message counts m times. True: it trains m
                   times with fresh batches and noise, and spends privacy m times.
    """

    probabilities: Any = None
    draws: int = structure()
    equal: bool = structure(default=False)
    setup_event: Event | None = structure(default=None)
    public: bool = structure(default=False)
    one_by_one: bool = structure(default=False)

    equation = r"k_1, \dots, k_r \sim q\ \text{independently},\ m_k = |\{j : k_j = k\}|"

    @property
    def max_participations(self) -> int:
        return self.draws if self.one_by_one else 1

    @property
    def no_epsilon_reason(self) -> str | None:
        if self.probabilities is None or self.public or self.setup_event is not None:
            return None
        return (
            "no event covers what the sampling probabilities reveal about records (acs_pldp computes them from the "
            "clients' gradient norms): compute them with norm_noise above 0, or draw by shares"
        )

    def capacity(self, num_clients: int) -> int:
        return self.draws

    def sample(self, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
        first, second = prng.words(keys.round, 0, self.draws)
        ids = prng.proportional((first ^ second, second), jnp.asarray(self._probabilities(shares)))
        if self.one_by_one:
            earlier = jnp.tril(ids[:, None] == ids[None, :], -1).sum(1, dtype=jnp.int32)
            return Members.of(ids)._replace(draw_index=earlier)
        distinct, count = jnp.unique(ids, return_counts=True, size=self.draws, fill_value=0)
        return Members(distinct, count.astype(jnp.float32), jnp.zeros_like(ids), count > 0)

    def rates(self, shares: Array) -> Any:
        return self.draws * self._probabilities(shares)

    def inclusion_probability(self, shares: Array) -> tuple[Any, int]:
        chance = self._probabilities(shares)
        return (chance, self.draws) if self.one_by_one else (1 - (1 - chance) ** self.draws, 1)

    def check(self, num_clients: int) -> None:
        errors.require_count("draws", self.draws)
        if not isinstance(self.setup_event, Event | None):
            raise errors.refuse("setup_event", repr(self.setup_event), "an event of fedjax_dp.accounting, or None")
        if self.probabilities is None:
            return
        chance = client_numbers("probabilities", self.probabilities, num_clients, common=False)
        if not (np.all(chance > 0) and abs(chance.sum() - 1) < 1e-4):
            raise errors.refuse(
                "probabilities",
                f"from {chance.min():.4g}, sum {chance.sum():.6g}",
                "positive and of sum 1",
                "a client that is never drawn would bias the model",
            )

    def _probabilities(self, shares: Array) -> Any:
        if self.equal:
            return 1 / shares.shape[0] + 0.0 * shares
        return shares if self.probabilities is None else self.probabilities


@value
class CyclicCohort(Cohort):
    """Blocks of `size` clients take turns in the order of their ids: each takes part every num_clients / size rounds.

    For noise that is correlated over rounds: its sensitivity depends on how far apart a client's rounds are.
    """

    size: int = structure()

    equation = r"S_t = \{k : \lfloor k / r \rfloor \equiv t \bmod N / r\}"

    fixed, at_most_once = True, True
    no_epsilon_reason = None

    def capacity(self, num_clients: int) -> int:
        return self.size

    def sample(self, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
        blocks = shares.shape[0] // self.size
        first = (round_index.astype(jnp.int32) % blocks) * self.size
        return Members.of(first + jnp.arange(self.size, dtype=jnp.int32))

    def rates(self, shares: Array) -> Any:
        return self.size / shares.shape[0] + 0.0 * shares

    def with_size(self, size: int) -> Cohort:
        return replace(self, size=size)

    def min_separation(self, num_clients: int) -> int:
        return num_clients // self.size

    def check(self, num_clients: int) -> None:
        check_size(self.size, num_clients)
        if num_clients % self.size:
            raise errors.refuse("cohort_size", self.size, f"a divisor of the {num_clients} clients for a cyclic cohort")


@value
class LoggedCohort(Cohort):
    """Cohorts from a participation log. Participation is public, and each client's own rounds are counted.

    ids    of the members of each round `(rounds, members)`, with -1 as padding. Another log of the same shape needs no
           new compilation;
    fixed  whether no round has padding.
    """

    ids: Any
    fixed: bool = structure(default=False)

    equation = r"S_t = \{k : (t, k) \in \text{log}\}"

    at_most_once = True
    no_epsilon_reason = None

    @classmethod
    def of(cls, log: ParticipationLog) -> "LoggedCohort":
        sizes = np.bincount(log.rounds, minlength=log.num_rounds)
        place = np.arange(len(log.rounds)) - (np.cumsum(sizes) - sizes)[log.rounds]
        ids = np.full((log.num_rounds, max(int(sizes.max()), 1)), -1, np.int32)
        ids[log.rounds, place] = log.clients
        return cls(ids=ids, fixed=bool(np.all(ids >= 0)))

    @classmethod
    def read(cls, file: str) -> "LoggedCohort":
        """The cohort of a CSV file of round,client, both from 0; see `accounting.ParticipationLog`."""
        return cls.of(ParticipationLog.read(file))

    def capacity(self, num_clients: int) -> int:
        return np.shape(self.ids)[1]

    def sample(self, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
        ids = jnp.asarray(self.ids)[round_index].astype(jnp.int32)
        here = (ids >= 0) & (round_index < np.shape(self.ids)[0])
        return Members.of(jnp.where(here, ids, 0), here)

    def rates(self, shares: Array) -> Any:
        """Mean over all rounds. A client that never takes part has the rate of one round, so weights stay finite."""
        num_clients, ids = shares.shape[0], jnp.asarray(self.ids).astype(jnp.int32)
        rounds = jnp.zeros(num_clients).at[jnp.where(ids < 0, num_clients, ids)].add(1.0, mode="drop")
        return jnp.maximum(rounds, 1.0) / ids.shape[0]

    def min_separation(self, num_clients: int) -> int:
        gaps = [gap for gap in self.log(num_clients).least_gaps if gap is not None]
        return min(gaps, default=np.shape(self.ids)[0])

    def log(self, num_clients: int) -> ParticipationLog:
        ids = np.asarray(self.ids, int)
        rounds, places = np.nonzero(ids != -1)
        return ParticipationLog.of(np.stack([rounds, ids[rounds, places]], 1), len(ids), num_clients)

    def prefix(self, rounds: int) -> Cohort:
        ids = np.asarray(self.ids)[:rounds]
        ids = ids[:, np.any(ids >= 0, 0)] if np.any(ids >= 0) else ids[:, :1]
        return self if rounds >= np.shape(self.ids)[0] else LoggedCohort(ids=ids, fixed=bool(np.all(ids >= 0)))

    def check(self, num_clients: int) -> None:
        if np.ndim(self.ids) != 2 or 0 in np.shape(self.ids):
            raise errors.refuse(
                "ids of a log", f"shape {np.shape(self.ids)}", "(rounds, members)", "use LoggedCohort.of"
            )
        if num_clients > MOST_LOGGED:
            raise errors.refuse(
                "clients of a log", f"{num_clients:,}", f"at most {MOST_LOGGED:,}, as float32 holds them"
            )
        last = int(np.max(self.ids))
        if last >= num_clients:
            raise errors.refuse("participation log", f"client {last:,}", f"of clients 0 to {num_clients - 1:,}")
        self.log(num_clients)
        if self.fixed and np.any(np.asarray(self.ids) < 0):
            raise errors.refuse("fixed", True, "False where some round has fewer members", "use LoggedCohort.of")


def check_size(size: int, num_clients: int) -> None:
    """Refuse cohorts that are larger than the population."""
    errors.require_count("cohort_size", size)
    if size > num_clients:
        raise errors.refuse(
            "cohort_size", size, f"at most the {num_clients} clients", "lower cohort_size or add clients"
        )
