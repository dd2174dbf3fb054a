"""Do batches and cohorts follow the law that the accountants are told?"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import events
from fedjax_dp.accounting.sampling import FullBatch, Poisson, Sampling, Shuffled, WithoutReplacement, WithReplacement
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection.sampling_law import examine_sampling, overlap
from fedjax_dp.inspection.verdict import CheckReport, certainty, count_deviate, largest_deviate, limit, require
from fedjax_dp.models import Model
from fedjax_dp.parts.cohorts import Cohort, Members
from fedjax_dp.privacy.ledger import ledger_of
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.privacy.protection import noise_of, unit_of
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.pytrees import changed
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.clients import draw_cohort
from fedjax_dp.rounds.simulation import check
from fedjax_dp.testing import instruments
from fedjax_dp.testing.instruments import Setup
from fedjax_dp.testing.mutants import RunWords, first_records
from fedjax_dp.testing.posing import posing
from fedjax_dp.testing.reports import Program, run_check

DRAWS = 4_000  # batches of a client, or cohorts


def first_clients(algorithm: Algorithm) -> Algorithm:
    """Every cohort is the same clients, though they are told to be drawn."""
    if not algorithm.cohort.drawn:
        raise errors.refuse("cohort", type(algorithm.cohort).__name__, "one that is drawn, for this wrong program")
    return changed(algorithm, cohort=posing(algorithm.cohort, "sample", _first_clients))


def _first_clients(right: Cohort, key: jax.Array, round_index: jax.Array, shares: jax.Array) -> Members:
    return right.sample(jax.random.key(0, impl=jax.random.key_impl(key)), jnp.zeros_like(round_index), shares)


FROZEN = (first_records, first_clients)


@dataclasses.dataclass(frozen=True)
class Tally:
    """A linear loss whose gradient is the record's features: one-hot features tell which records are in a batch."""

    size: int

    def init(self, key: jax.Array) -> dict[str, jax.Array]:
        return {"idle": jnp.zeros(1), "of records": jnp.zeros(self.size)}

    def loss(self, params: Any, x: jax.Array, y: jax.Array, key: jax.Array | None) -> jax.Array:
        loss: jax.Array = x @ params["of records"]
        return loss

    def logits(self, params: Any, x: jax.Array) -> jax.Array:
        return jnp.stack([x @ params["of records"], jnp.float32(0)])


def check_sampling(
    subject: Algorithm | Callable[[jax.Array], jax.Array],
    data: FederatedData | None = None,
    *,
    sampling: Sampling | None = None,
    wrong: Program | Iterable[Program] | None = FROZEN,
    seed: int = 0,
    draws: int = DRAWS,
) -> list[CheckReport]:
    """Batches and cohorts are drawn as the accountants are told, whatever the records say.

    subject  an algorithm with its data: the real local steps run on one-hot records with a linear loss, so that each
             clipped mean gradient tells who was in the batch, for `draws` batches of up to 3 clients in two rounds; the
             law is that of the ledger's event for the client's number of records. Cohorts are drawn as rounds draw
             them. Or a function from a key to how often each member is drawn `(members,)`, with its `sampling`;
    wrong    programs that the same check must reject, those that do not apply left out; by default the first records,
             and the same clients, every time.
    Looked at: sizes of batches, how often each position is drawn and each pair of (up to 40) positions together (exact
             binomial tails); overlap of consecutive draws, and of clients; that other features give the same batches.
    Errors:  each assertion fails for the right law with probability at most 1e-6, or about so for the overlaps, which
             are compared by their own standard error; the reports say what deviation is missed once in 1000.
    Padding: a drawn padding row would show as a batch of another size, or of a record too many.
    Raises:  AssertionError; ConfigurationError for a function without sampling.
    """
    errors.require_count("draws", draws)
    examine: Callable[[Any], None]
    if isinstance(subject, Algorithm):
        if data is None:
            raise errors.refuse("data", None, "given with an algorithm")
        check(subject, data, 1)
        if isinstance(subject.local.batches.sampling(2**31 - 1), FullBatch) and not subject.cohort.drawn:
            wrong = None  # nothing is drawn

        def examine(algorithm: Any) -> None:
            _of_batches(algorithm, data, seed, draws)
            _of_cohorts(algorithm, data, seed, draws)

    else:
        if not isinstance(sampling, Sampling):
            raise errors.refuse("sampling", sampling, "given with a function, such as Poisson(0.01)")
        wrong = (_frozen,) if wrong is FROZEN else wrong

        def examine(function: Any) -> None:
            counts = np.asarray(jax.jit(jax.vmap(function))(instruments.keys_of(seed, draws)))
            examine_sampling("the function", counts[:, None], sampling)

    return run_check(examine, subject, wrong, "raise draws")


def _frozen(function: Callable[[jax.Array], Any]) -> Callable[[jax.Array], Any]:
    return lambda key: function(jax.random.key(0, impl=jax.random.key_impl(key)))


_frozen.__name__ = "one draw for ever"


def _of_batches(algorithm: Algorithm, data: FederatedData, seed: int, draws: int) -> None:
    algorithm, data = instruments.few(algorithm, data, most=3)
    (drawn, others), laws = drawn_batches(algorithm, data, seed, draws)
    for i, (counts, again, law) in enumerate(zip(drawn, others, laws, strict=True)):
        require(
            np.array_equal(counts, again),
            f"batches of client {i} do not depend on its records",
            f"{np.mean(counts != again):.1%} of draws differ for other features and labels",
            "none",
            "exact",
        )
        examine_sampling(f"client {i}", counts.reshape(len(counts), -1, counts.shape[-1]), law)
    for i, (a, b) in enumerate(itertools.pairwise(drawn)):
        least, common = min(a.shape[2], b.shape[2]), min(a.shape[3], b.shape[3])
        overlap(f"clients {i} and {i + 1}", a[:, :, :least, :common], b[:, :, :least, :common])


def drawn_batches(
    algorithm: Algorithm, data: FederatedData, seed: int, draws: int
) -> tuple[tuple[list[np.ndarray], list[np.ndarray]], list[Sampling]]:
    """How often each record of each client is in each batch of two rounds, and what the accountants are told of it.

    Shapes: for each client `(trials, 2, steps, records)`, once for one-hot records, once for such of 50 times the size
            and other labels, by the same keys; `draws` is the least trials x 2 x steps.
    """
    local: Any = algorithm.local
    algorithm = instruments.bare(algorithm)
    steps = local.batches.count(local.steps, data.largest)
    sizes = np.asarray(data.sizes)
    x = np.concatenate([np.eye(data.largest, dtype=np.float32)[:n] for n in sizes])
    tally = changed(
        data,
        x=x,
        y=np.zeros(len(x), np.int32),
        rows=np.arange(len(x), dtype=np.int32),
        offsets=(np.cumsum(sizes) - sizes).astype(np.int32),
        scale=1.0,
        shift=0.0,
        tokens=False,
        task="classes",
        vocabulary=None,
    )
    idle = tuple(c for c in local.corrections if type(c) is RunWords)  # the others would join the gradients
    quiet = instruments.silent(changed(algorithm, local=changed(local, corrections=idle)))
    model, setup = Tally(data.largest), Setup(instruments.keys_of(seed, math.ceil(draws / (2 * steps))))
    laws = [_told(algorithm, data, model, i) for i in range(len(sizes))]
    seen = []
    for store in (tally, changed(tally, x=50 * x, y=np.ones_like(tally.y))):
        gradients = np.asarray(instruments.observe(instruments.still(quiet, tally), store, model, setup, 2).gradients)[
            ..., 1:
        ]
        taken = [local.batches.count(local.steps, int(n)) for n in sizes]
        seen.append([_counts(gradients[:, :, i, : taken[i], :n], law) for i, (n, law) in enumerate(zip(sizes, laws))])
    return (seen[0], seen[1]), laws


def _told(algorithm: Algorithm, data: FederatedData, model: Model, client: int) -> Sampling:
    """What the accountants are told of a client's batches."""
    records = int(np.asarray(data.sizes)[client])
    law = algorithm.local.batches.sampling(records)
    if noise_of(algorithm) is None or unit_of(algorithm) is not events.Unit.RECORD:
        return law
    terms = PrivacyTerms(participation="worst", view="uploads")
    ledger = ledger_of(PlannedRun(algorithm=algorithm, data=data, rounds=1, terms=terms, model=model))
    told = next(step.sampling for step, _ in ledger[client].leaves())
    return told if isinstance(told, Poisson | WithoutReplacement | WithReplacement | Shuffled) else law


def _counts(gradients: np.ndarray, law: Sampling) -> np.ndarray:
    """How often each record is in each batch, from mean gradients that are proportional to it."""
    gradients = np.maximum(np.nan_to_num(gradients), 0.0)
    if isinstance(law, WithReplacement):
        total = gradients.sum(-1, keepdims=True)
        return np.rint(gradients * law.draws / np.where(total > 0, total, 1.0)).astype(int)
    appears: np.ndarray = gradients > 0.01 * gradients.max(initial=0.0)
    return appears.astype(int)


def _of_cohorts(algorithm: Algorithm, data: FederatedData, seed: int, draws: int) -> None:
    cohort, shares, clients = algorithm.cohort, jnp.asarray(data.shares), data.num_clients
    trials = math.ceil(draws / 4)

    def draw(key: jax.Array, t: jax.Array) -> Members:
        return draw_cohort(cohort, key, t, shares)

    @jax.jit
    def sample(keys: jax.Array) -> Members:
        over_rounds = jax.vmap(draw, in_axes=(None, 0))
        return jax.vmap(over_rounds, in_axes=(0, None))(keys, jnp.arange(4))

    members = jax.device_get(sample(instruments.keys_of(seed + 1, trials)))
    ids = np.where(members.invited, members.ids, clients)
    invited = np.apply_along_axis(np.bincount, -1, ids, minlength=clients + 1)[..., :clients]
    arrived = np.zeros((*ids.shape[:2], clients))
    np.add.at(arrived, (*np.indices(ids.shape)[:2], np.minimum(ids, clients - 1)), members.drawn * members.invited)
    rates = cohort.rates(np.asarray(data.shares, float))
    flat = arrived.reshape(-1, clients)
    if rates is not None and cohort.drawn:
        error = np.maximum(
            flat.std(0), np.sqrt(rates * np.maximum(1 - rates / cohort.max_participations, 0))
        ) / math.sqrt(len(flat))
        away = (flat.mean(0) - rates) / np.maximum(error, 1e-9)
        require(
            np.abs(away).max() < limit(clients),
            "cohorts: messages that are expected of each client",
            f"{flat.mean(0)[np.argmax(np.abs(away))]:.4g} from client {int(np.argmax(np.abs(away)))}, "
            f"{largest_deviate(away):.2g} standard errors",
            f"{rates[np.argmax(np.abs(away))]:.4g}",
            certainty(clients),
        )
    if cohort.at_most_once:
        require(invited.max() <= 1, "cohorts: a client is drawn once", f"{invited.max()}", "1", "exact")
    if not cohort.drawn:
        return
    chance, times = cohort.inclusion_probability(np.asarray(data.shares, float))
    chance = np.broadcast_to(chance, (clients,))
    trained = (invited > 0).reshape(-1, clients).sum(0)
    away = count_deviate(trained, len(flat), 1 - (1 - np.minimum(chance, 1)) ** times)
    require(
        np.abs(away).max() < limit(clients),
        "cohorts: how often each client trains",
        f"{largest_deviate(away):.3g} standard errors at client {int(np.argmax(np.abs(away)))}",
        "0",
        certainty(clients),
    )
    if np.all(chance < 1):
        overlap("cohorts: consecutive rounds", invited[:, :-1], invited[:, 1:])
        overlap("cohorts: runs", invited[:-1], invited[1:])
    law: Sampling | None = None
    name = type(cohort.base).__name__
    if cohort.base is cohort and cohort.at_most_once and cohort.max_participations == 1 and np.ptp(chance) < 1e-9:
        size = cohort.capacity(clients)
        law = WithoutReplacement(size, clients) if cohort.fixed else Poisson(float(chance[0]))
    if law:
        examine_sampling(f"cohorts of {name}", invited, law)
