"""Do batches and cohorts follow the law that the accountants count?"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting.sampling import Sampling
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection.draws import examine_batches, examine_cohort
from fedjax_dp.inspection.local_steps import examine_batches_of_steps
from fedjax_dp.inspection.sampling_law import examine_sampling
from fedjax_dp.inspection.trials import keys_of
from fedjax_dp.inspection.verdict import CheckReport
from fedjax_dp.models import Model
from fedjax_dp.parts.cohorts import Cohort, CohortKeys, Members
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.testing.checks import run_check, usable_model
from fedjax_dp.testing.mutation import WrongProgram, wrong_program
from fedjax_dp.testing.wrong_programs import first_records

DRAWS = 4_000  # batches of a client, or cohorts
ROUNDS = 64  # of the run itself


def _require_drawn(algorithm: Algorithm) -> None:
    if not algorithm.cohort.drawn:
        raise errors.refuse("cohort", type(algorithm.cohort).__name__, "one that is drawn, for this wrong program")


@wrong_program("cohort", "sample", _require_drawn)
def first_clients(right: Cohort, keys: CohortKeys, round_index: jax.Array, shares: jax.Array) -> Members:
    """Every cohort is the same clients, though they are stated to be drawn."""
    first = jnp.zeros_like(round_index)
    same = CohortKeys.of(jax.random.key(0, impl=jax.random.key_impl(keys.run)), first)
    return right.sample(same, first, shares)


FROZEN = (first_records, first_clients)


def check_sampling(
    subject: Algorithm | Callable[[jax.Array], jax.Array],
    data: FederatedData | None = None,
    *,
    model: Model | None = None,
    sampling: Sampling | None = None,
    wrong: WrongProgram | Iterable[WrongProgram] | None = FROZEN,
    seed: int = 0,
    draws: int = DRAWS,
) -> list[CheckReport]:
    """Batches and cohorts are drawn as the accountants count them.

    subject  an algorithm with its data. Batches are drawn for clients of every size (of 24 sizes, if there are more),
             at least `draws` for each; local steps run with a privatizer that notes which records it receives, for up
             to 3 clients; cohorts are drawn as rounds draw them, `draws` of them. The laws are those that the batches
             and the cohort state, which events have to keep (`check_statements`). Or a function from a key to how often
             each member is drawn `(members,)`, with its `sampling`;
    wrong    programs that the same check must reject, those that do not apply left out; by default the first records,
             and the same clients, every time.
    Looked at: sizes of batches, how often each position is drawn and each pair of (up to 40) positions together (exact
             binomial tails); overlap of the draws of a run, and of runs; numbers of steps, divisors, and keys and
             records that local steps use; how often, and how far apart, a client is in cohorts.
    Errors:  each assertion fails for the right law with probability at most 1e-6, or about so for the overlaps, which
             are compared by their own standard error; the reports say what deviation is missed once in 1000.
    Padding: a drawn padding row would show as a batch of another size, or of a record too many.
    Raises:  AssertionError; ConfigurationError for a function without sampling.
    """
    errors.require_count("draws", draws)
    if isinstance(subject, Algorithm):
        model = usable_model(subject, data, model)
        if wrong is FROZEN and data is not None and not _samples(subject, data):
            wrong = (first_clients,) if subject.cohort.drawn else None  # the first records are all
        return run_check(_of_algorithm, subject, wrong, "raise draws", data, model, seed, draws)
    if not isinstance(sampling, Sampling):
        raise errors.refuse("sampling", sampling, "given with a function, such as Poisson(0.01)")
    wrong = _frozen if wrong is FROZEN else wrong
    return run_check(_of_function, subject, wrong, "raise draws", sampling, seed, draws)


def _samples(algorithm: Algorithm, data: FederatedData) -> bool:
    """Whether some client has records that a batch may lack."""
    return any(algorithm.local.batches.sampling(n).rate < 1 for n in set(np.asarray(data.sizes).tolist()))


def _of_algorithm(algorithm: Algorithm, data: FederatedData, model: Model, seed: int, draws: int) -> None:
    local = algorithm.local
    trials = -(-draws // local.batches.count(local.steps, data.largest))
    examine_cohort(algorithm.cohort, algorithm, data, ROUNDS, seed, draws)
    examine_batches(local.batches, algorithm, data, model, ROUNDS, trials)
    examine_batches_of_steps(local, algorithm, data, model, ROUNDS)


def _of_function(function: Callable[[jax.Array], Any], sampling: Sampling, seed: int, draws: int) -> None:
    counts = np.asarray(jax.jit(jax.vmap(function))(keys_of(draws, "runs", seed)))
    examine_sampling("the function", counts[:, None], sampling)


def _frozen(function: Callable[[jax.Array], Any]) -> Callable[[jax.Array], Any]:
    return lambda key: function(jax.random.key(0, impl=jax.random.key_impl(key)))


_frozen.__name__ = "one draw for ever"
