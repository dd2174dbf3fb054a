"""Deployments with large cohorts, simulated by runs with small ones (noise_cohort_size in pfl-research).

The run simulates cohorts of r out of n clients; the Guarantee describes a deployment with cohorts of R out of N. The
noise on the deployment's sum is z C, so z C / R on its mean. The same noise on a mean of r clients is (r / R) z C on
the simulated sum. The model then gets the noise of the deployment, but the variance of its mean over clients is R / r
times as large. The releases of the run itself have only r / R of the noise of the Guarantee.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import FullBatch, Unit
from fedjax_dp.accounting.events import distinct
from fedjax_dp.accounting.guarantee import DeploymentSummary
from fedjax_dp.data.store import FederatedData
from fedjax_dp.parts.cohorts import Cohort
from fedjax_dp.privacy.protection import noise_of, unit_of
from fedjax_dp.privacy.qualifiers import Account, Qualifier
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.pytrees import check_part, replace
from fedjax_dp.rounds.algorithm import Algorithm

BY_SCHEDULE = ("worst", "expected", "once")  # participation that counts rounds of the simulated clients


class ClientPopulation(NamedTuple):
    """The number of clients, and the cohorts drawn among them."""

    cohort: Cohort
    num_clients: int

    @property
    def size(self) -> int:
        return self.cohort.expected_size(self.num_clients)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeploymentQualifier(Qualifier):
    """A qualifier: the Guarantee describes the deployment, and names the epsilon of the run itself.

    run_itself  the planned run without its deployment
    """

    population: ClientPopulation
    simulated: ClientPopulation
    num_rounds: int
    noise_ratio: float
    run_itself: Callable[[], Any]

    def fields(self, account: Account) -> dict[str, Any]:
        step = next(step for event in distinct(account.events) for step, _ in event.leaves())
        sampler = str(step.sampling)
        if isinstance(step.sampling, FullBatch):
            often = f"each client in at most {step.count:,} of them"
            sampler = f"who takes part is public, {often if step.count < self.num_rounds else 'every client in all'}"
        deployment = DeploymentSummary(
            cohort_size=self.population.size,
            population=self.population.num_clients,
            rounds=self.num_rounds,
            sampler=sampler,
            noise_ratio=self.noise_ratio,
            simulated_cohort=self.simulated.size,
            simulated_population=self.simulated.num_clients,
        )
        return {"deployment": deployment, "own": account.guarantee_of(self.run_itself()).epsilon}


def of_deployment(
    algorithm: Algorithm,
    population: ClientPopulation,
    num_clients: int,
    rounds: int,
    run_itself: Callable[[], Any],
) -> DeploymentQualifier:
    """The qualifier of a run of `num_clients` clients that simulates a deployment."""
    stale: tuple[str, ...] = ()
    if algorithm.local.has_client_state:  # it is another in the simulation, though noise is alike
        apart = population.num_clients / population.size
        stale = (
            "what clients keep is as old as rounds of the simulated clients make it; in the deployment a client is "
            f"drawn once in {apart:.4g} rounds",
        )
    lines = (
        "the deployment trains by the same algorithm on clients whose weights are bounded as here, and its cohorts "
        "are drawn as stated",
        "noise on the mean is the deployment's, but a mean of so few clients varies more than one of its cohorts: "
        "results are pessimistic",
    )
    return DeploymentQualifier(
        population=population,
        simulated=ClientPopulation(algorithm.cohort, num_clients),
        num_rounds=rounds,
        noise_ratio=float(algorithm.upload.noise_ratio or 1.0),
        run_itself=run_itself,
        assumptions=lines,
        warnings=stale,
    )


def standing_for(algorithm: Algorithm, data: FederatedData, terms: PrivacyTerms) -> Algorithm:
    """The algorithm with r / R of its noise, for terms with a deployment.

    Raises: ConfigurationError for algorithms and sizes that cannot simulate one.
    """
    assert terms.deployment is not None
    size, population = terms.deployment
    simulated = ClientPopulation(algorithm.cohort, data.num_clients)
    _check_algorithm(algorithm, size, terms)
    if size < simulated.size:
        wanted = f"at least the {simulated.size} of a simulated cohort"
        raise errors.refuse("deployment_cohort", size, wanted, "lower cohort_size: r out of R clients are simulated")
    if population < data.num_clients:
        wanted = f"at least the {data.num_clients} simulated clients"
        raise errors.refuse("deployment_population", population, wanted, "simulate fewer clients")
    if size > population:
        raise errors.refuse("deployment_cohort", size, f"at most the deployment_population of {population}")
    deployed = clients_of(algorithm, terms)
    check_part(deployed.cohort, population)
    if deployed.size != size:
        wanted = f"{deployed.size}, as {type(deployed.cohort).__name__} takes so many of {population}"
        raise errors.refuse("deployment_cohort", size, wanted, "or take another --cohort, such as poisson")
    _check_law(deployed)
    return replace(algorithm, upload=replace(algorithm.upload, noise_ratio=simulated.size / size))


def _check_law(deployed: ClientPopulation) -> None:
    """Refuse a law by which a client is drawn more rarely than cohorts of that size need."""
    cohort, num_clients = deployed
    hidden, _ = cohort.amplification(num_clients, 0)
    rounds = cohort.rounds_per_pass(num_clients) / hidden.steps_per_epoch  # of one sampled sum
    sampled = isinstance(hidden, FullBatch) or hidden.rate * num_clients >= deployed.size * rounds * (1 - 1e-6)
    apart = cohort.min_separation(num_clients)
    if not sampled or apart * deployed.size > num_clients:
        law = f"{hidden}, each client once in {apart} rounds" if apart > 1 else f"{hidden}"
        wanted = f"in accord with cohorts of {deployed.size} of {num_clients}"
        raise errors.refuse(
            "the law of the deployment", law, wanted, f"state it by with_size of {type(cohort).__name__}"
        )


def clients_of(algorithm: Algorithm, terms: PrivacyTerms) -> ClientPopulation:
    """The deployment's clients."""
    assert terms.deployment is not None
    size, population = terms.deployment
    return ClientPopulation(algorithm.cohort.with_size(size), population)


def _check_algorithm(algorithm: Algorithm, size: int, terms: PrivacyTerms) -> None:
    def refuse(wanted: str, remedy: str) -> errors.ConfigurationError:
        return errors.refuse("deployment_cohort", size, f"left out {wanted}", remedy)

    noise = noise_of(algorithm)
    if noise is None or (terms.epsilon is None and not np.any(np.asarray(noise) > 0)):
        raise refuse("where there is no noise", "give epsilon or noise_multiplier to an algorithm such as dp_fedavg")
    if unit_of(algorithm) is not Unit.CLIENT:
        raise refuse("for noise on records, whose size no cohort decides", "use noise on whole clients, as dp_fedavg")
    if algorithm.upload.noise_ratio is None:
        name = type(algorithm.upload).__name__
        raise refuse(
            f"for {name}, which states no noise_ratio: shares, rounding and modulus are those of the simulated cohort",
            "use noise that the server adds (ClientGaussian)",
        )
    if algorithm.transport.resolution:
        raise refuse(
            "for a secure sum of integers, whose rounding and modulus are those of the simulated cohort",
            "leave out secure, and keep the deployment to plain sums too: a secure one shows members the cohort",
        )
    if np.asarray(terms.epsilon, object).ndim:
        raise refuse("where clients have budgets of their own, as a deployment's are not known", "give one epsilon")
    if terms.participation in BY_SCHEDULE:
        raise errors.refuse(
            "participation",
            terms.participation,
            "left out for a deployment, whose clients are counted by its own law and not as they are simulated",
            "drop it",
        )
