"""The claims of papers' theorems about a run, with verdicts, in addition to the Guarantee."""

import functools
from typing import NamedTuple

import numpy as np

from fedjax_dp import accounting, errors
from fedjax_dp.accounting import ATTAINED, Claim, Event, Poisson, Unit, Verdict, WithoutReplacement
from fedjax_dp.accounting.events import distinct, each
from fedjax_dp.data.store import FederatedData
from fedjax_dp.display import downward, upward
from fedjax_dp.privacy.client_events import training_events
from fedjax_dp.privacy.planned_run import PlannedRun, last_rates
from fedjax_dp.privacy.protection import clips_records, noises_steps, unit_of
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.tools.papers import theorems
from fedjax_dp.tools.papers.noise import acs_pldp_theorem1, draws_batches, has_acs_pldp_theorem1, noises_uploads


class Subject(NamedTuple):
    """The run that a claim is about."""

    run: PlannedRun
    delta: float
    epsilons: tuple[float, ...]  # proved, per client
    ledger: list[Event]

    @property
    def algorithm(self) -> Algorithm:
        return self.run.algorithm

    @property
    def data(self) -> FederatedData:
        return self.run.data

    @property
    def rounds(self) -> int:
        return self.run.rounds

    def training(self, participation: str = "schedule") -> list[Event]:
        """The releases of all rounds to a server that sees every upload."""
        return training_events(self.run.with_terms(participation=participation, view="uploads", colluders=0))


def claims_about(run: PlannedRun, delta: float, epsilons: tuple[float, ...], ledger: list[Event]) -> tuple[Claim, ...]:
    """The claims of every paper whose theorem covers this combination of parts."""
    normal = all(step.is_normal for event in distinct(ledger) for step, _ in event.leaves())
    stays = len(run.noise_levels.factors) == 1
    if run.algorithm.local.personal or not (normal and stays):  # none covers personal models, or other noise
        return ()
    subject = Subject(run, delta, epsilons, ledger)
    return tuple(
        claim for theorem in (_dpnfl, _cpfed, _dp_fedavg_output, _acs_pldp, _moments) for claim in theorem(subject)
    )


def _lower_bound(event: Event, delta: float) -> float:
    """A lower bound on the true epsilon of an event; 0 if none is known."""
    try:
        return accounting.epsilon_of(event, delta, ATTAINED)
    except errors.ConfigurationError:
        return 0.0


def _without_replacement(algorithm: Algorithm, data: FederatedData) -> bool:
    """Whether cohorts are uniform samples of a fixed size, all of whom reply."""
    hidden, _ = algorithm.cohort.amplification(data.num_clients, 0)
    return isinstance(hidden, WithoutReplacement) and algorithm.cohort.fixed


def _dpnfl(run: Subject) -> tuple[Claim, ...]:
    """dpnfl's theorem at realised participation, and as the paper applies it: at the mean, to the busiest client."""
    algorithm, delta = run.algorithm, run.delta
    by_record = clips_records(algorithm)
    plain = not algorithm.transport.secret and not algorithm.local.initial_release
    if not (by_record and plain and algorithm.cohort.at_most_once and unit_of(algorithm) is Unit.RECORD):
        return ()
    realised = run.training()
    expected = run.training("expected")
    source = "dpnfl, Lemmas 2-4 (tCDP)"
    try:
        epsilons = accounting.epsilons_of(realised, delta, "tcdp")
        assumed = accounting.epsilons_of(expected, delta, "tcdp")
    except accounting.NotCoveredError as error:
        return (Claim(source, None, delta, Verdict.CONDITIONAL, f"not met, {error.reason}"),)
    counts, means = (each(ledger, lambda event: sum(n for _, n in event.leaves())) for ledger in (realised, expected))
    busiest = max(range(len(counts)), key=lambda i: counts[i] / means[i])
    if counts[busiest] <= means[busiest]:
        verdict, reason = Verdict.HOLDS, "all conditions met, and no client took part more often"
    else:
        verdict = Verdict.HEURISTIC
        reason = (
            f"the busiest client took part {counts[busiest] / means[busiest]:.2g} times as often, for which the same "
            f"lemmas give {upward(epsilons[busiest])}"
        )
        if max(run.epsilons) <= assumed[busiest]:
            reason += f"; the number is still above the proved {upward(max(run.epsilons))}"
    first = Claim(f"{source} at realised participation", max(epsilons), delta, Verdict.HOLDS, "all conditions met")
    if not _without_replacement(algorithm, run.data):
        return (first,)
    return (
        first,
        Claim(f"{source} at expected participation, busiest client", assumed[busiest], delta, verdict, reason),
    )


def _cpfed(run: Subject) -> tuple[Claim, ...]:
    """cpfed's Theorem 1: the mean number of rounds, and the cohort's noise as if every local step were linear."""
    algorithm, privatizer = run.algorithm, run.algorithm.local.privatizer
    if not (noises_steps(algorithm) and algorithm.transport.secret and draws_batches(algorithm)):
        return ()
    if len(set(privatizer.client_noise(run.data.num_clients))) > 1:
        return ()
    members, steps = algorithm.cohort.capacity(run.data.num_clients), algorithm.local.steps
    batch, noise = algorithm.local.batches.divisor(run.data.largest), privatizer.client_noise(run.data.num_clients)[0]
    if algorithm.local.has_client_state or noise == 0:
        return ()
    setting = theorems.Cpfed(run.rounds, steps, run.data.num_clients, members, batch)
    claimed, proved = setting.epsilon(noise / batch, run.delta, secure=True), max(run.epsilons)
    if claimed >= proved:
        verdict, reason = Verdict.HEURISTIC, f"above the proved {upward(proved)} here"
    else:
        verdict = Verdict.CONDITIONAL
        reason = f"counts the mean number of rounds; {upward(proved)} is proved for the busiest client"
    if steps > 1:
        reason += "; with more than one local step the cohort's noise does not add up as assumed"
    return (Claim("cpfed, Theorem 1 (zCDP, secure sum)", claimed, run.delta, verdict, reason),)


def _dp_fedavg_output(run: Subject) -> tuple[Claim, ...]:
    """dp_fedavg_output's Theorem 1 for one round, from the algorithm's noise, for the client with the largest claim."""
    algorithm, privatizer = run.algorithm, run.algorithm.local.privatizer
    if not noises_uploads(algorithm):
        return ()
    steps, batch = algorithm.local.steps, algorithm.local.batches.divisor(run.data.largest)
    rates = np.asarray(algorithm.local.rates(0, run.data.largest), float)
    noises = privatizer.client_noise(run.data.num_clients)
    claims = []
    for noise, records in set(zip(noises, np.asarray(run.data.sizes).tolist(), strict=True)):
        rate = min(steps * batch / records, 1.0)
        in_their_unit = noise * rates.sum() / (4 * steps * rates[-1])  # of 4 Q G eta
        if in_their_unit:
            claimed = theorems.dp_fedavg_output_theorem1_noise(1.0, run.delta, rate) / in_their_unit
            first = functools.partial(last_rates, algorithm, run.data.largest, 1)
            one = privatizer.event(noise, algorithm.local.batches, records, steps, first)
            claims.append((claimed, accounting.epsilon_of(one, run.delta), _lower_bound(one, run.delta), rate))
    if not claims:
        return ()
    claimed, proved, least, rate = max(claims)
    met = claimed / (2 * rate) <= 1 and rates.sum() <= 2 * steps * rates[-1]
    bound = getattr(privatizer, "bound", None)
    if least > claimed and steps == 1 and bound is not None and not bound.per_record:
        verdict, reason = Verdict.WRONG, f"two real neighbours attain {downward(least)} in one round"
    elif met:
        verdict, reason = Verdict.HOLDS, "its conditions are met"
    elif proved > claimed:
        verdict = Verdict.CONDITIONAL
        reason = f"not met, epsilon / (2q) <= 1, which is {claimed / (2 * rate):.3g}; {upward(proved)} is proved"
    else:
        verdict, reason = Verdict.HEURISTIC, f"conditions not met, but above the {upward(proved)} proved for one round"
    return (
        Claim("dp_fedavg_output, Theorem 1 (one round, first rates)", claimed, run.delta, verdict, reason, rounds=1),
    )


def _acs_pldp(run: Subject) -> tuple[Claim, ...]:
    """acs_pldp's Theorem 1 with constant 1, for the client whose proved epsilon exceeds the claim most."""
    algorithm, privatizer = run.algorithm, run.algorithm.local.privatizer
    if not has_acs_pldp_theorem1(algorithm):
        return ()
    needed = acs_pldp_theorem1(algorithm, run.data, run.rounds, run.delta)
    ledger = run.training()  # the claim covers only training
    proved = accounting.epsilons_of(ledger, run.delta)
    noises = privatizer.client_noise(run.data.num_clients)
    if 0 in noises:
        return ()
    worst = max((proved[i] / (needed[i] / noise), needed[i] / noise, i) for i, noise in enumerate(noises))
    excess, claimed, client = worst
    name = run.data.called(client)
    least = _lower_bound(ledger[client], run.delta)
    if least > claimed:
        verdict, reason = Verdict.WRONG, f"two real neighbours attain {downward(least)} at client {name}"
    elif excess > 1:
        verdict, reason = Verdict.CONDITIONAL, f"{upward(proved[client])} is proved for client {name}"
    else:
        verdict, reason = Verdict.HEURISTIC, f"an order of magnitude only; above the proved {upward(proved[client])}"
    source = f"acs_pldp, Theorem 1 with constant 1, client {name}"
    return (Claim(source, claimed, run.delta, verdict, reason, client),)


def _moments(run: Subject) -> tuple[Claim, ...]:
    """The moments accountant of DPFedAvg, which assumes Poisson cohorts and add-remove neighbours."""
    steps = [step for event in run.ledger[:1] for step, _ in event.leaves()]
    drawn = steps and isinstance(steps[0].sampling, Poisson | WithoutReplacement)
    if unit_of(run.algorithm) is not Unit.CLIENT or not drawn:
        return ()
    noise, rate, sums = steps[0].noise_multiplier, steps[0].sampling.rate, sum(step.count for step in steps)
    claimed = theorems.moments_accountant_epsilon(rate, noise, sums, run.delta)
    if isinstance(steps[0].sampling, Poisson):
        verdict, reason = Verdict.HOLDS, "Poisson cohorts, as it assumes"
    else:
        least = _lower_bound(run.ledger[0], run.delta)
        attained = _without_replacement(run.algorithm, run.data) and run.algorithm.aggregate.alike
        words = f"assumes Poisson cohorts; with {steps[0].sampling} two real neighbours attain {downward(least)}"
        verdict, reason = (Verdict.WRONG if attained and least > claimed else Verdict.HEURISTIC), words
    return (Claim("moments accountant (McMahan et al. 2018)", claimed, run.delta, verdict, reason),)
