"""How many of its rounds a budget allows a run, before the first of them; and, of budgets of their own, each client."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Guarantee, epsilon_of, last_round, repeated
from fedjax_dp.accounting.calibrate import require_budget
from fedjax_dp.parts.cohorts import Cohort, no_law_among_fewer
from fedjax_dp.parts.departures import Departures
from fedjax_dp.parts.facts import of_the_project
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.privacy.protection import noise_of
from fedjax_dp.privacy.spending import Spending
from fedjax_dp.privacy.terms import BY_NAME_ALONE, WITHOUT
from fedjax_dp.rounds.clients import draw_cohort
from fedjax_dp.rounds.simulation import check, run_key

BY_NOISE = "give --noise-multiplier (noise_multiplier= in Python) instead of epsilon"
ONE = "or give the smallest of the budgets, which ends the run for all"


def halted(run: PlannedRun, promise: Guarantee) -> PlannedRun:
    """The first rounds of a run within its budget, all of them where that is met.

    Of one budget, the first client that would pass it ends the run for all. Of one for each client, each leaves for
    good when it would pass its own, and the run goes on with the others while its cohorts can be drawn from them. All
    of it depends on noise, rates and schedule, which are fixed, and on no record: so no filter is needed, and the
    epsilons are those of a run that was planned so.
    promise  of all its rounds.
    Raises: ConfigurationError for a budget that cannot be one, and where not even one round is within it.
    """
    budget = run.terms.budget
    if promise.reason:
        raise errors.refuse("budget", run.terms.range_of_budgets, "left out where epsilon is infinite", promise.reason)
    if not isinstance(budget, int | float):
        return _left_one_by_one(run, promise)
    spending = Spending(run, promise)
    rounds = last_round(spending.epsilon, run.rounds, budget)
    if rounds == 0:
        least = f"at least {spending.epsilon(1):.4g}, which the first round costs"
        raise errors.refuse("budget", budget, least, "raise it, or noise_multiplier")
    return run if rounds == run.rounds else run.prefix(rounds)


def _left_one_by_one(run: PlannedRun, promise: Guarantee) -> PlannedRun:
    """The run whose clients leave, up to the round before which too few are left for a cohort."""

    def leaving_after(until: np.ndarray) -> PlannedRun:
        return run.with_cohort(Departures(cohort=run.algorithm.cohort, until=until.astype(np.float32)))

    if run.bound.clients > 1:
        got = f"one for each client, where a {run.unit.value} may be at several"
        raise errors.refuse("budget", got, "one number, as what these release adds up", ONE)
    if not of_the_project(run.algorithm.cohort):  # nothing examines another's draws among fewer clients
        raise no_law_among_fewer(run.algorithm.cohort)
    budgets = np.array(run.terms.budgets(run.data.num_clients))
    staying = leaving_after(np.full(len(budgets), np.inf))
    most = _most_participations(staying, promise, budgets)
    check(staying.algorithm, run.data, run.rounds, run.model if run.model_given else None)
    until, left = map(
        np.asarray, _departures(run.algorithm.cohort, run_key(run.draw_seed), run.data.shares, most, run.rounds)
    )
    rounds = _rounds_with_a_cohort(run.algorithm.cohort, left)
    if rounds == 0:
        wanted = "such that a cohort of clients can pay for the first round"
        raise errors.refuse("budget", run.terms.range_of_budgets, wanted, "raise the budgets, or noise_multiplier")
    return leaving_after(np.where(until < rounds, until, np.inf)).prefix(rounds)


def _most_participations(run: PlannedRun, promise: Guarantee, budgets: np.ndarray) -> np.ndarray:
    """Rounds that each client can take part in within its own budget `(num_clients,)`.

    Raises: ConfigurationError where a client's epsilon does not follow from its own number of rounds alone.
    """
    spending, delta = Spending(run, promise), promise.delta
    assert delta is not None
    by_round = spending.by_round
    if by_round is None or not spending.scheduled:
        got = "one for each client, where epsilon does not follow from how many rounds a client takes part in"
        wanted = "one number, as noise or releases differ by round or who takes part is hidden or not counted"
        raise errors.refuse("budget", got, wanted, f"count by participation schedule, {ONE}")
    if np.any(np.asarray(run.data.shares) <= 0):
        raise errors.refuse("shares", "0 of some clients", "above 0 where clients leave one by one", ONE)

    @functools.cache
    def epsilon(kind: int, count: int) -> float:
        return epsilon_of(repeated(by_round.events[kind], count), delta, run.terms.accountant)

    pairs, of_client = np.unique(np.stack([by_round.kind, budgets]), axis=1, return_inverse=True)
    most = [last_round(functools.partial(epsilon, int(kind)), run.rounds, budget) for kind, budget in pairs.T.tolist()]
    return np.array(most, np.int32)[np.ravel(of_client)]


@functools.partial(jax.jit, static_argnames="rounds")
def _departures(cohort: Cohort, key: jax.Array, shares: Any, most: jax.Array, rounds: int) -> tuple[Any, Any]:
    """Rounds after which each client has taken part as often as it can `(num_clients,)`, or all; and how many clients
    there are in each `(rounds,)`."""
    shares = jnp.asarray(shares)

    def following(carry: tuple[jax.Array, jax.Array], index: jax.Array) -> tuple[Any, jax.Array]:
        counts, until = carry
        here = counts < most
        members = draw_cohort(Departures(cohort=cohort, until=jnp.where(here, jnp.inf, 0.0)), key, index, shares)
        return (counts.at[members.ids].add(members.invited), until + here), jnp.sum(here)

    none = jnp.zeros(shares.shape, jnp.int32)
    (_, until), left = jax.lax.scan(following, (none, none), jnp.arange(rounds))
    return until, left


def _rounds_with_a_cohort(cohort: Cohort, left: np.ndarray) -> int:
    """The first rounds in which the clients that are left are enough for a cohort."""
    for clients in np.unique(left)[::-1].tolist():
        try:
            errors.require_count("clients", clients)
            cohort.check(clients)
        except errors.ConfigurationError:
            return int(np.argmax(left <= clients))
    return len(left)


def require_halting(run: PlannedRun) -> None:
    """Refuse a budget that cannot end this run, before anything is worked out."""
    budget = run.terms.range_of_budgets
    if isinstance(run.terms.budget, int | float):
        require_budget("budget", run.terms.budget, WITHOUT)
    else:
        run.terms.budgets(run.data.num_clients)  # refuses what are none
    if noise_of(run.algorithm) is None:
        raise errors.refuse("budget", budget, "left out for an algorithm without privacy", "choose one such as dpnfl")
    if run.terms.epsilon is not None:
        raise errors.refuse("budget", budget, "left out where epsilon finds the noise for all rounds", BY_NOISE)
    if run.terms.participation in BY_NAME_ALONE:
        got = f"{budget} with participation {run.terms.participation}"
        remedy = "use participation schedule, law or worst"
        raise errors.refuse("budget", got, "of the rounds that a client has", remedy)
