"""A budget as a filter by client, put around the upload before the first round."""

import dataclasses

from fedjax_dp import errors
from fedjax_dp.accounting import FullBatch, GaussianSteps, Unit, noise_factor_for
from fedjax_dp.accounting.events import distinct
from fedjax_dp.accounting.gaussian import gaussian_noise
from fedjax_dp.parts.individual_filter import ADJACENCY, IndividualGaussian, can_filter
from fedjax_dp.privacy.client_events import with_before
from fedjax_dp.privacy.planned_run import PlannedRun
from fedjax_dp.pytrees import changed
from fedjax_dp.rounds.simulation import check

EXACT = ("pld", "gaussian")  # accountants that price one Gaussian release exactly
WANTED = "left out but for white noise of one size and clip norm that a server adds to updates of whole clients"


def with_filter(run: PlannedRun) -> PlannedRun:
    """The run of which each client counts while its own updates cost less than the budget; it takes all its rounds.

    Raises: ConfigurationError for a budget of each client, and for an algorithm that has no such filter.
    """
    terms, upload = run.terms, run.algorithm.upload
    if terms.common_budget is None:
        raise errors.refuse("individual", "a budget for each client", "beside one budget", "give one, of everybody")
    if terms.deployment is not None:
        remedy = "leave its cohort out"
        raise errors.refuse("individual", True, "left out where a run stands for a deployment", remedy)
    if run.no_epsilon_reason:
        raise errors.refuse("individual", True, "left out where epsilon is infinite", run.no_epsilon_reason)
    if terms.stop_noise is not None:
        wanted = "left out beside stop_noise, whose looks would cost more than the budget"
        raise errors.refuse("individual", True, wanted, "fix the rounds")
    if not can_filter(upload):
        got = "noise on records" if upload.unit is None else type(upload).__name__
        raise errors.refuse("individual", got, WANTED, "use dp_fedavg without other options of noise")
    filtered = IndividualGaussian(
        clip_norm=upload.clip_norm,
        noise_multiplier=upload.noise_multiplier,
        budget_mu=_budget_mu(run),
        by_tensor=upload.by_tensor,
    )
    algorithm = changed(run.algorithm, upload=filtered)
    check(algorithm, run.data, run.rounds)
    return dataclasses.replace(run, algorithm=algorithm)


def _budget_mu(run: PlannedRun) -> float:
    """mu of Gaussian noise that costs every client, with the phases before, no more than the budget."""
    budget, delta, accountant = run.terms.common_budget, run.terms.delta, run.terms.accountant
    assert budget is not None
    assert delta is not None
    if run.past(ADJACENCY) is None and accountant in EXACT:
        return (1 - 1e-12) / gaussian_noise(budget, delta)
    release = GaussianSteps(1.0, FullBatch(), ADJACENCY, 1, Unit.CLIENT)
    events = distinct(with_before(run, [release] * run.data.num_clients))
    return 1 / max(noise_factor_for(event, budget, delta, accountant) for event in events)
