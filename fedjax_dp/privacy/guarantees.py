"""The bridge from the simulated value to its Guarantee: what is accounted is what was run."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from fedjax_dp import accounting, errors, inspection
from fedjax_dp.accounting import Guarantee, Unit, View
from fedjax_dp.accounting.events import distinct, each
from fedjax_dp.accounting.guarantee import FLOAT_NOISE, delta_warnings, no_privacy
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection import flow
from fedjax_dp.models import Model, logistic_regression
from fedjax_dp.parts import facts
from fedjax_dp.privacy.ledger import (
    PARTICIPATION,
    counted_as,
    ledger_of,
    noise_gains,
    noise_of,
    participations,
    training_of,
    unit_of,
    unprotected,
    view_of,
    with_noise,
)
from fedjax_dp.privacy.paper_claims import claims_about
from fedjax_dp.privacy.paper_noise import PRESCRIBED, prescribed
from fedjax_dp.privacy.terms import SIGMA_MODES, Budget
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.simulation import check

__all__ = ["PARTICIPATION", "calibrate", "guarantee", "ledger_of", "participations"]


def calibrate(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    rounds: int,
    epsilon: Budget,
    delta: float,
    seed: int = 0,
    accountant: str = "pld",
    participation: str = "schedule",
    view: str | None = None,
    colluders: int = 0,
    sigma_mode: str = "per_client",
    model: Model | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Algorithm:
    """The same algorithm with the smallest noise that keeps each client, or each client's records, within the budget.

    Each client gets its own, unless noise is counted together: on whole clients, or in a secure sum that gains by it.

    epsilon        one budget, or one per client: noise on records then differs from client to client; noise on whole
                   clients is common, so the smallest budget decides;
    participation  "schedule": each client's own number of rounds under `seed` (the run must use this seed);
                   "law": any seed, delta averaged over the draw of cohorts; "worst": every round;
                   "expected": the mean number, as the papers do (clients drawn more often exceed the budget, and the
                   Guarantee shows by how much);
                   "once": a single round, so that the budget is of each round by itself, as in dp_fedavg_output.
    accountant     "pld" (rigorous), or another of `accounting.ACCOUNTANTS`; integer noise needs "rdp".
    sigma_mode     "per_client": each its own noise; "common_worst": all take the noise of the client that needs most;
                   "dpnfl", "cpfed", "acs_pldp", "dp_fedavg_output": what that paper's theorem prints (see
                   `paper_noise`). It is not known to meet the budget, and the Guarantee shows what it gives.
    view           who must learn nothing: see `guarantee`.
    progress       called with (client kinds done, client kinds in all).
    Raises:        ConfigurationError if the budget is unreachable or the combination has no accountant.
    """
    check(algorithm, data, rounds, model)
    budgets = _budgets(epsilon, data.num_clients)
    errors.require_in_unit_interval("delta", delta)
    errors.require_choice("accountant", accountant, accounting.ACCOUNTANTS)
    errors.require_choice("sigma_mode", sigma_mode, SIGMA_MODES)
    if noise_of(algorithm) is None:
        raise errors.refuse(
            "epsilon", epsilon, "left out for an algorithm without privacy", "choose a private algorithm such as dpnfl"
        )
    reason = unprotected(algorithm, view_of(algorithm, view))
    if sigma_mode in PRESCRIBED:
        return with_noise(algorithm, prescribed(sigma_mode, algorithm, data, rounds, budgets, delta))
    if reason:
        told = f"{min(budgets):.4g}" + (f" to {max(budgets):.4g}" if min(budgets) < max(budgets) else "")
        raise errors.refuse("epsilon", told, "left out where no noise can reach it", reason)
    unit_noise = with_noise(algorithm, 1.0)
    _require_believable(unit_noise, data, rounds, seed, model)
    paid = algorithm.cohort.paid
    if paid is not None:  # noise that is already fixed: take a tenth of delta, and its epsilon, off the budget
        spent = accounting.epsilon_of(paid, delta / 10, accountant)
        budgets, delta = [_left(budget, spent) for budget in budgets], 0.9 * delta
    counted = counted_as(algorithm, participation)
    ledger = training_of(unit_noise, data, rounds, seed, counted, view, colluders, at_least=1, model=model)
    numbers = {event: number for number, event in enumerate(distinct(ledger))}
    kinds = list(zip(each(ledger, numbers.__getitem__), budgets, strict=True))
    events, noise = list(numbers), dict.fromkeys(kinds, 0.0)
    for done, (number, budget) in enumerate(noise):
        noise[number, budget] = accounting.noise_factor_for(events[number], budget, delta, accountant)
        if progress:
            progress(done + 1, len(noise))
    needed = [noise[kind] for kind in kinds]
    common = unit_of(algorithm) is Unit.CLIENT
    if (
        common
        or sigma_mode == "common_worst"
        or np.any(noise_gains(unit_noise, data, view_of(algorithm, view), colluders, rounds) > 1)
    ):
        needed = [max(needed)] * len(needed)  # the others' noise was counted as equal to one's own, so it has to be
    multipliers = np.nextafter(np.array(needed, np.float32), np.float32(np.inf))
    return with_noise(algorithm, float(multipliers[0]) if common else multipliers)


def contradiction(algorithm: Algorithm, data: FederatedData, rounds: int, seed: int, model: Model) -> str | None:
    """What can be found against the statements of its parts without running it, or None: see `guarantee`."""
    try:
        _require_believable(algorithm, data, rounds, seed, model)
    except errors.ConfigurationError as found:
        return str(found)
    return None


def _require_believable(algorithm: Algorithm, data: FederatedData, rounds: int, seed: int, model: Model | None) -> None:
    """Refuse parts that leave a fact unsaid, and parts other than the project's own that say what is not so."""
    facts.require_facts(algorithm)
    if not inspection.words_of(algorithm):
        return
    model = model or logistic_regression(data.record_shape, data.classes)
    flow.require_accounted(algorithm, data, model)
    inspection.require_true(algorithm, data, model, rounds, seed)


def _left(budget: float, spent: float) -> float:
    if not budget > spent:
        raise errors.refuse(
            "epsilon", budget, f"above the {spent:.4g} that the sampling probabilities cost", "raise norm_noise"
        )
    return budget - spent


def _budgets(epsilon: Budget, num_clients: int) -> list[float]:
    budgets = np.asarray(epsilon, float)
    if budgets.ndim > 1 or (budgets.ndim == 1 and budgets.shape[0] != num_clients):
        raise errors.refuse("epsilon", f"shape {budgets.shape}", f"one budget or {num_clients}, one per client")
    for budget in budgets.ravel():
        errors.require_positive("epsilon", budget)
    return np.broadcast_to(budgets, (num_clients,)).tolist()


def guarantee(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    rounds: int,
    delta: float | None,
    seed: int = 0,
    accountant: str = "pld",
    participation: str = "schedule",
    view: str | None = None,
    colluders: int = 0,
    model: Model | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Guarantee:
    """What the run of `algorithm` for `rounds` rounds with `seed` promises, per client.

    The unit is one record of one client where local steps are noised, and a client with all its records where updates
    are.
    participation  "schedule": the rounds that each client takes part in under `seed`; "law": before the cohorts are
                   drawn; "worst": every round; "once": a single one.
    view           None: the strongest adversary that the algorithm is made for; "uploads": the server sees every
                   message, so sampling clients amplifies nothing; "secure_sum" (needs a secure sum), "broadcast",
                   "final_model": the others' noise helps where it is known to add up, see `ledger.noise_gains`.
    colluders      clients of each cohort that help the adversary, in the last three views.
    model          needed where its size matters (integer noise); default logistic regression.
    progress       called with (distinct clients done, distinct clients in all).
    Parts that are not the project's own are believed only as far as nothing contradicts them: see `parts.facts` and
    `inspection`. The assumptions name them.
    Raises: ConfigurationError for a combination without an accountant, and for parts that leave a fact unsaid or say
            what is not so.
    """
    found = stated(
        algorithm,
        data,
        rounds=rounds,
        delta=delta,
        seed=seed,
        accountant=accountant,
        participation=participation,
        view=view,
        colluders=colluders,
        model=model,
        progress=progress,
    )
    if not found.reason:
        _require_believable(algorithm, data, rounds, seed, model)
    return found


def stated(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    rounds: int,
    delta: float | None,
    seed: int = 0,
    accountant: str = "pld",
    participation: str = "schedule",
    view: str | None = None,
    colluders: int = 0,
    model: Model | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Guarantee:
    """The same from what the parts state, which is not looked into: for those who try to break it, as audits do."""
    check(algorithm, data, rounds, model)
    errors.require_choice("accountant", accountant, accounting.ACCOUNTANTS)
    num_clients, unit = data.num_clients, unit_of(algorithm)
    seen = view_of(algorithm, view)
    reason = unprotected(algorithm, seen)
    if reason:
        return no_privacy(num_clients, reason)
    if delta is None:
        raise errors.refuse("delta", "none", "given for a private algorithm", "delta below 1 / records is usual")
    errors.require_in_unit_interval("delta", delta)
    if not np.any(np.asarray(noise_of(algorithm)) > 0):
        what = "gradients" if unit is Unit.RECORD else "updates"
        return no_privacy(num_clients, f"{what} are clipped but noise_multiplier is 0")
    participation = counted_as(algorithm, participation)
    training = training_of(algorithm, data, rounds, seed, participation, view, colluders, model=model)
    ledger = ledger_of(algorithm, data, rounds, seed, participation, view, colluders, model=model)
    steps = [step for event in distinct(training) for step, _ in event.leaves()]
    if any(step.reveals_everything for step in steps):
        return no_privacy(num_clients, "some clients add no noise: their noise_multiplier is 0")
    epsilons = tuple(accounting.epsilons_of(ledger, delta, accountant, progress))
    adjacency = steps[0].adjacency if steps else accounting.Adjacency.REPLACE_ONE
    members = np.asarray(data.sizes).tolist() if unit is Unit.RECORD else [num_clients]
    return Guarantee(
        epsilons,
        delta,
        unit,
        adjacency,
        seen,
        accounting.ACCOUNTANTS[accountant].about,
        (
            *_assumptions(algorithm, data, rounds, steps, participation, seen, colluders),
            *inspection.words_of(algorithm),
            FLOAT_NOISE,
        ),
        claims_about(algorithm, data, rounds, seed, delta, epsilons, ledger),
        (*delta_warnings(delta, members, unit), *_learnt(data)),
    )


def _learnt(data: FederatedData) -> list[str]:
    told = [f"epsilon does not cover what the features were made with: {told}" for told in data.learnt]
    if data.test_clients is not None:
        told.append("epsilon does not cover the accuracy on records that clients hold out, which is told as it is")
    return told


def _assumptions(
    algorithm: Algorithm,
    data: FederatedData,
    rounds: int,
    steps: list[Any],
    participation: str,
    view: View,
    colluders: int,
) -> list[str]:
    """What has to be true for the numbers to hold."""
    cohorts = {
        "schedule": "which clients take part is drawn from the seed, independent of all data, and may be public",
        "law": "cohorts are drawn by their law, independent of all data; delta is averaged over the draw, which is "
        "public afterwards, so a client drawn often may have more than epsilon",
        "worst": "every client is accounted for all rounds",
        "expected": "every client is accounted for the mean number of rounds: no guarantee for those drawn more often",
        "once": "a single round of the run is accounted for, whichever it is",
    }
    unit, local = unit_of(algorithm), algorithm.local
    if not steps:
        return [cohorts[participation]]
    if unit is Unit.CLIENT:
        hidden = not isinstance(steps[0].sampling, accounting.FullBatch)
        told = [
            f"clients by {steps[0].sampling}, and nobody sees which take part" if hidden else cohorts[participation],
            "the number of clients, their shares and all divisors are public",
            "the server sums, clips nothing itself and adds the noise honestly"
            if not algorithm.upload.shared_noise
            else f"every client of a cohort adds its share of the noise, {colluders} of them help the adversary",
        ]
        if _correlated(algorithm.upload):
            told.append("noise is correlated over rounds and counted as one release of the whole run")
        return told
    if algorithm.cohort.paid is not None:
        cohorts["worst"] = (
            "cohorts follow what clients told of their records, a release that is counted; therefore every client is "
            "accounted for all rounds"
        )
    if algorithm.cohort is not algorithm.cohort.base:
        cohorts[participation] += "; who of them answers does not depend on records"
    told = [cohorts[participation], f"each local step uses fresh randomness: {_sampling_words(steps)}"]
    if _correlated(local.privatizer):
        told[1] = "noise is correlated over a round's steps, which are counted as one release without sampling"
    told.append(
        "the numbers of records of all clients are public"
        if steps[0].adjacency is accounting.Adjacency.REPLACE_ONE
        else "each client's sampling rate is a public constant"
    )
    told += local.privatizer.assumptions
    if local.warm:
        told.append("every client's warm start is counted, once")
    if view is not View.UPLOADS:
        gains = noise_gains(algorithm, data, view, colluders, rounds)
        if np.all(gains == 1):
            told.append("a client's own noise alone is counted: a cohort's adds up for one plain local step only")
        else:
            low, high = (f"{gain:.3g}" for gain in (gains.min(), gains.max()))
            between = low if low == high else f"{low} to {high}"
            told.append(
                f"what is seen carries {between} times the variance of a client's own noise; "
                f"{colluders} of a cohort help the adversary"
            )
            if algorithm.transport.resolution:
                told.append("no message overflows the ring: a run that one stops has the epsilon of view uploads")
    return told


def _correlated(part: Any) -> bool:
    """Whether a part draws its noise from a source that says it is."""
    source = getattr(part, "source", None)
    return source is not None and not source.fresh


def _sampling_words(steps: list[Any]) -> str:
    kinds = list(dict.fromkeys(str(step.sampling) for step in steps))
    if isinstance(steps[0].sampling, accounting.FullBatch):
        return "all records in every step"
    return f"records by {kinds[0]}" + (f" and {len(kinds) - 1} more sizes" if len(kinds) > 1 else "")


def over_budget(promise: Guarantee, epsilon: Budget, participation: str, sigma_mode: str = "per_client") -> Guarantee:
    """The same Guarantee with a warning if some client's epsilon is above its budget."""
    budgets = _budgets(epsilon, len(promise.epsilons))
    spent, budget = max(zip(promise.epsilons, budgets, strict=True), key=lambda pair: pair[0] / pair[1])
    if spent <= budget:
        return promise
    words = f"the worst client has epsilon {spent:.4g}, above the budget {budget:g}: noise was found " + (
        f"by {sigma_mode}" if sigma_mode in PRESCRIBED else f"for participation {participation}, which some exceed"
    )
    return dataclasses.replace(promise, warnings=(*promise.warnings, words))
