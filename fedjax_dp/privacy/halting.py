"""How many of its rounds a budget allows a run, before the first of them."""

from fedjax_dp import errors
from fedjax_dp.accounting import Guarantee, last_round
from fedjax_dp.accounting.calibrate import require_budget
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.privacy.protection import noise_of
from fedjax_dp.privacy.spending import Spending
from fedjax_dp.privacy.terms import BY_NAME_ALONE, WITHOUT

BY_NOISE = "give --noise-multiplier (noise_multiplier= in Python) instead of epsilon"


def halted(run: PlannedRun, promise: Guarantee) -> PlannedRun:
    """The first rounds of a run within its budget, all of them where that is met.

    Where clients differ, the first whose budget would be passed ends the run for all. The number depends on noise,
    rates and schedule, which are fixed, and on no record: so no filter is needed, and the epsilon is that of a run that
    was planned for so many rounds.
    promise  of all its rounds.
    Raises: ConfigurationError for a budget that cannot be one, and where not even one round is within it.
    """
    budget = run.terms.budget
    if promise.reason:
        raise errors.refuse("budget", budget, "left out where epsilon is infinite", promise.reason)
    assert isinstance(budget, int | float)
    spending = Spending(run, promise)
    rounds = last_round(spending.epsilon, run.rounds, budget)
    if rounds == 0:
        least = f"at least {spending.epsilon(1):.4g}, which the first round costs"
        raise errors.refuse("budget", budget, least, "raise it, or noise_multiplier")
    return run if rounds == run.rounds else run.prefix(rounds)


def require_halting(run: PlannedRun) -> None:
    """Refuse a budget that cannot end this run, before anything is worked out."""
    budget = run.terms.budget
    if not isinstance(budget, int | float):
        remedy = "clients do not leave one by one yet: give the smallest of their budgets, which ends the run for all"
        raise errors.refuse("budget", "one for each client", "one number", remedy)
    require_budget("budget", budget, WITHOUT)
    if noise_of(run.algorithm) is None:
        raise errors.refuse("budget", budget, "left out for an algorithm without privacy", "choose one such as dpnfl")
    if run.terms.epsilon is not None:
        raise errors.refuse("budget", budget, "left out where epsilon finds the noise for all rounds", BY_NOISE)
    if run.terms.participation in BY_NAME_ALONE:
        got = f"{budget} with participation {run.terms.participation}"
        remedy = "use participation schedule, law or worst"
        raise errors.refuse("budget", got, "of the rounds that a client has", remedy)
