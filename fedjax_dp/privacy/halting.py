"""Runs that end at an epsilon: their number of rounds, known before the first round."""

from fedjax_dp import errors
from fedjax_dp.accounting import Guarantee, last_round
from fedjax_dp.accounting.calibrate import require_budget
from fedjax_dp.display import upward
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.privacy.protection import noise_of
from fedjax_dp.privacy.spending import Spending
from fedjax_dp.privacy.terms import BY_NAME_ALONE, WITHOUT

BY_NOISE = "give --noise-multiplier (noise_multiplier= in Python) instead of epsilon"


def within_budget(run: PlannedRun, promise: Guarantee) -> PlannedRun:
    """The run cut to the rounds within `stop_at_epsilon`, which may be all.

    The first client that would exceed it ends the run for all. This depends on noise, rates and schedule, which are
    fixed, and on no record: so no filter is needed, and the epsilons are those of a run with so many planned rounds.
    promise  the Guarantee of all its rounds.
    Raises: ConfigurationError if epsilon is infinite, or if the first round exceeds the budget.
    """
    budget = run.terms.stop_at_epsilon
    assert budget is not None
    if promise.reason:
        raise errors.refuse("stop_at_epsilon", budget, "left out where epsilon is infinite", promise.reason)
    spending = Spending(run, promise)
    rounds = last_round(spending.epsilon, run.rounds, budget)
    if rounds == 0:
        least = f"at least {upward(spending.epsilon(1))}, which the first round costs"
        raise errors.refuse("stop_at_epsilon", budget, least, "raise it, or noise_multiplier")
    return run if rounds == run.rounds else run.prefix(rounds)


def require_halting(run: PlannedRun) -> None:
    """Refuse a `stop_at_epsilon` that cannot end this run, before any computation."""
    name, budget = "stop_at_epsilon", run.terms.stop_at_epsilon
    assert budget is not None
    require_budget(name, budget, WITHOUT)
    if noise_of(run.algorithm) is None:
        raise errors.refuse(name, budget, "left out for an algorithm without privacy", "choose one such as dpnfl")
    if run.terms.epsilon is not None:
        raise errors.refuse(name, budget, "left out where epsilon finds the noise for all rounds", BY_NOISE)
    if run.terms.participation in BY_NAME_ALONE:
        got = f"{budget} with participation {run.terms.participation}"
        remedy = "use participation schedule, law or worst"
        raise errors.refuse(name, got, "of the rounds that a client has", remedy)
