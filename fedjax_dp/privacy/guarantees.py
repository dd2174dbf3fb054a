"""The Guarantee of a run, derived from the algorithm that is simulated."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple, Unpack

import numpy as np

from fedjax_dp import accounting, errors, hooks, inspection
from fedjax_dp.accounting import Event, Guarantee, Unit
from fedjax_dp.accounting.accountants import about_at
from fedjax_dp.accounting.events import distinct, each
from fedjax_dp.accounting.guarantee import Deferred, NoiseMultipliers, no_privacy
from fedjax_dp.accounting.plain_words import AttackBounds
from fedjax_dp.accounting.trade_offs import attack_bounds
from fedjax_dp.data.store import FederatedData
from fedjax_dp.display import upward
from fedjax_dp.inspection import constants, flow
from fedjax_dp.models import Model
from fedjax_dp.parts import facts
from fedjax_dp.privacy.assumptions import assumptions, warnings
from fedjax_dp.privacy.client_events import all_releases, participation_mode, training_events
from fedjax_dp.privacy.halting import require_halting, within_budget
from fedjax_dp.privacy.planned_run import PlannedRun, plan_run
from fedjax_dp.privacy.protection import noise_of, unit_of, views_of
from fedjax_dp.privacy.qualifiers import Account, Target
from fedjax_dp.privacy.terms import BY_NAME_ALONE, PrivacyOptions, PrivacyTerms
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.rounds.simulation import check

MOST_NAMES = 1000  # of clients in a Guarantee
SEE_THE_MODEL = ("local", "privatizer", "bound", "correction", "upload")


def calibrate(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    rounds: int,
    seed: int = 0,
    model: Model | None = None,
    progress: Callable[[int, int], None] | None = None,
    **privacy: Unpack[PrivacyOptions],
) -> Algorithm:
    """The same algorithm with the smallest noise that keeps each client, or each client's records, within the budget.

    Each client gets its own noise, unless clients share it: with noise on whole clients, or a secure sum that adds it
    up. With one budget per client, noise on records differs between clients; noise on whole clients is common, so the
    smallest budget decides.
    privacy   `epsilon`, `delta`, ...: the fields of `PrivacyTerms`;
    progress  called with (client kinds done, client kinds).
    Raises:   ConfigurationError if the budget is unreachable or the combination has no accountant.
    """
    terms = PrivacyTerms(**privacy)
    if terms.stop_at_epsilon is not None:
        raise errors.refuse("stop_at_epsilon", terms.stop_at_epsilon, "left out of calibrate", "give epsilon= alone")
    run = plan_run(algorithm, data, rounds=rounds, seed=seed, model=model, terms=terms)
    noised = with_least_noise(run, progress)
    if run.terms.sigma_mode not in hooks.NOISE_RULES:
        verify_custom_parts(noised)
    return noised.algorithm


def with_least_noise(run: PlannedRun, progress: Callable[[int, int], None] | None = None) -> PlannedRun:
    """The run with that noise, without inspection of its parts.

    Raises: ConfigurationError also if its parts cannot represent so much noise.
    """
    noised = _least_noise(run, progress)
    check(noised.algorithm, noised.data, noised.rounds)
    return noised


def _least_noise(run: PlannedRun, progress: Callable[[int, int], None] | None) -> PlannedRun:
    algorithm, data, terms = run.algorithm, run.data, run.terms
    if terms.epsilon is None:
        raise errors.refuse("epsilon", "none", "given to find the noise for it", "add epsilon=")
    budgets, delta = terms.budgets(data.num_clients), terms.delta
    errors.require_delta(delta)
    assert delta is not None
    if noise_of(algorithm) is None:
        raise errors.refuse(
            "epsilon",
            terms.epsilon,
            "left out for an algorithm without privacy",
            "choose a private algorithm such as dpnfl",
        )
    reason = run.no_epsilon_reason
    if terms.sigma_mode in hooks.NOISE_RULES and len(run.noise_levels.factors) > 1:
        wanted = "per_client or common_worst where the noise differs from round to round"
        raise errors.refuse("sigma_mode", terms.sigma_mode, wanted, "the theorem is of noise that stays")
    if terms.sigma_mode in hooks.NOISE_RULES:
        rule = (terms.sigma_mode, algorithm, data, run.rounds, budgets, delta)
        return run.with_noise(hooks.prescribed_noise(*rule))
    if reason:
        got = f"{min(budgets):.4g}" + (f" to {max(budgets):.4g}" if min(budgets) < max(budgets) else "")
        raise errors.refuse("epsilon", got, "left out where no noise gives one", reason)
    unit_noise = run.with_noise(1.0)
    target = Target(training_events(unit_noise, at_least=1), budgets, delta)
    if not any(True for event in distinct(target.events) for _ in event.leaves()):
        wanted, remedy = "one in which records are released", "use view deployed, or give noise_multiplier"
        raise errors.refuse("view", run.view.value, wanted, remedy)
    for one in run.qualifiers:
        target = one.target(target, terms.accountant)
    ledger, delta = target.events, target.delta
    numbers = {event: number for number, event in enumerate(distinct(ledger))}
    kinds = list(zip(each(ledger, numbers.__getitem__), target.budgets, strict=True))
    events, noise = list(numbers), dict.fromkeys(kinds, 0.0)
    for done, (number, budget) in enumerate(noise):
        noise[number, budget] = accounting.noise_factor_for(events[number], budget, delta, terms.accountant)
        if progress:
            progress(done + 1, len(noise))
    needed = [noise[kind] for kind in kinds]
    common = unit_of(algorithm) is Unit.CLIENT
    together = unit_noise.bound.clients > 1 or np.any(unit_noise.noise_amplification > 1)
    if common or terms.sigma_mode == "common_worst" or together:
        needed = [max(needed)] * len(needed)  # the others' noise was counted as equal to one's own, so it has to be
    multipliers = np.nextafter(np.array(needed, np.float32), np.float32(np.inf))
    return run.with_noise(float(multipliers[0]) if common else multipliers)


def verification_error(run: PlannedRun) -> str | None:
    """The error that contradicts the statements of its parts, found without a run, or None: see `guarantee`."""
    try:
        verify_custom_parts(run)
    except errors.ConfigurationError as contradicted:
        return str(contradicted)
    return None


def verify_custom_parts(run: PlannedRun) -> None:
    """Refuse parts without a required fact, and user-defined parts with a wrong one."""
    facts.require_facts(run.algorithm)
    model = run.chosen_model
    if model is not None and (facts.trusted_model(model) or getattr(model, "frozen", None) is not None):
        constants.require_no_records(model, run.data)
    if not facts.trusted_parts(run.algorithm):
        return
    for slot, part in facts.parts_of(run.algorithm):
        if model is None and slot in SEE_THE_MODEL and not facts.of_the_project(part):
            raise errors.refuse(
                "model",
                "none",
                f"given to look into {type(part).__name__} ({slot}), which may treat one model otherwise than another",
                "add model=, the one that is trained",
            )
    flow.require_accounted(run.algorithm, run.data, run.model)
    inspection.require_true(run.algorithm, run.data, run.model, run.rounds, run.draw_seed)


def guarantee(
    algorithm: Algorithm,
    data: FederatedData,
    *,
    rounds: int,
    seed: int = 0,
    model: Model | None = None,
    progress: Callable[[int, int], None] | None = None,
    **privacy: Unpack[PrivacyOptions],
) -> Guarantee:
    """The Guarantee of each client for a run of `algorithm` over `rounds` rounds with `seed`.

    The unit is one record of one client if local steps are noised, and a client with all its records if updates are.
    model     that is trained: needed if it begins with the values of another run, if its size matters (integer noise),
              and for user-defined parts that use models; default logistic regression;
    privacy   `delta`, `view`, ...: the fields of `PrivacyTerms`. As in `run`, `epsilon` calibrates the noise first, and
              `stop_at_epsilon` ends the run: the Guarantee is for this noise and these rounds;
    progress  called with (distinct clients done, distinct clients).
    User-defined parts are examined, see `parts.facts` and `inspection`; the assumptions name them.
    Raises: ConfigurationError for a combination without an accountant, for parts with missing or wrong facts, and for
            a budget that cannot be met.
    """
    terms = PrivacyTerms(**privacy)
    run = plan_run(algorithm, data, rounds=rounds, seed=seed, model=model, terms=terms)
    return prepare(run, progress).guarantee


def verified_guarantee(run: PlannedRun, progress: Callable[[int, int], None] | None = None) -> Guarantee:
    promise = unverified_guarantee(run, progress=progress)
    if not promise.reason:
        verify_custom_parts(run)
    if run.terms.view is None:
        others = [view for view in views_of(run.algorithm) if view is not run.view]
        runs = (run.with_terms(view=view.value, epsilon=None, colluders=0) for view in others)
        elsewhere = tuple(map(unverified_guarantee, runs))
        promise = dataclasses.replace(promise, elsewhere=elsewhere)
    return promise if run.terms.any_budget is None else over_budget(promise, run.terms)


def _attacks(events: list[Event], delta: float, accountant: str) -> tuple[AttackBounds]:
    """The most that attacks on any client are held to, of the events of all kinds of clients."""
    bounds = [
        attack_bounds(event, accounting.epsilon_of(event, delta, accountant), delta, accountant) for event in events
    ]
    right, recognised = (max(getattr(one, name) for one in bounds) for name in ("right", "recognised"))
    return (AttackBounds(right, recognised, all(one.of_curve for one in bounds)),)


def _missing_delta(run: PlannedRun) -> errors.ConfigurationError:
    members = "clients" if run.unit is Unit.CLIENT else "records"
    return errors.refuse("delta", "none", "given for a private algorithm", f"delta below 1 / {members} is usual")


class PreparedRun(NamedTuple):
    """A run with calibrated noise, or with the rounds that its budget allows, and its Guarantee."""

    planned: PlannedRun
    guarantee: Guarantee


def prepare(run: PlannedRun, progress: Callable[[int, int], None] | None = None) -> PreparedRun:
    """Calibrate the noise or the number of rounds, and derive the Guarantee, before any training.

    progress  called with (kinds of clients done, kinds of clients).
    Raises:   ConfigurationError without a delta, for a budget that cannot be met, and for parts with wrong facts.
    """
    if noise_of(run.algorithm) is not None and run.terms.delta is None:
        raise _missing_delta(run)
    if run.terms.stop_at_epsilon is not None:
        require_halting(run)
        run = within_budget(run, unverified_guarantee(run))
    if run.terms.epsilon is not None:
        run, progress = with_least_noise(run, progress), None
    return PreparedRun(run, verified_guarantee(run, progress))


def unverified_guarantee(run: PlannedRun, progress: Callable[[int, int], None] | None = None) -> Guarantee:
    """The Guarantee by the stated facts of the parts, without examination: audits try to break it."""
    algorithm, data, terms = run.algorithm, run.data, run.terms
    num_clients, unit, delta = data.num_clients, run.unit, terms.delta
    reason = run.no_epsilon_reason
    if reason:
        return no_privacy(num_clients, reason, run.view)
    if delta is None:
        raise _missing_delta(run)
    errors.require_delta(delta)
    training = training_events(run)
    steps = [step for event in distinct(training) for step, _ in event.leaves()]
    noise = noise_of(algorithm)
    if unit_of(algorithm) is Unit.CLIENT and terms.deployment is None and algorithm.upload.noise_ratio is not None:
        noise = np.asarray(noise, float) * float(algorithm.upload.noise_ratio)
    if steps and not np.any(np.asarray(noise) > 0):
        what = "updates" if unit is Unit.CLIENT else "gradients"
        return no_privacy(num_clients, f"{what} are clipped but noise_multiplier is 0", run.view)
    if any(step.reveals_everything for step in steps):
        return no_privacy(num_clients, "some clients add no noise: their noise_multiplier is 0", run.view)
    events = all_releases(run, training)
    epsilons = tuple(accounting.epsilons_of(events, delta, terms.accountant, progress))
    account = Account(all_releases(run, training, of_prior_runs=False), delta, terms.accountant, unverified_guarantee)
    if math.isinf(max(epsilons)):
        for one in run.qualifiers:
            if (reason := one.infinite_reason(account)) is not None:
                return no_privacy(num_clients, reason, run.view)
    caveats = [BY_NAME_ALONE.get(participation_mode(run)), *(one.caveat for one in run.qualifiers)]
    further = [one.fields(account) for one in run.qualifiers]
    names_clients = unit is Unit.RECORD and num_clients <= MOST_NAMES  # else whether they take part is what is hidden
    return Guarantee(
        epsilons,
        delta,
        unit,
        adjacency=steps[0].adjacency if steps else accounting.Adjacency.REPLACE_ONE,
        view=run.view,
        accountant=about_at(terms.accountant, delta),
        assumptions=Deferred(assumptions, run, steps),
        claims=Deferred(hooks.claims_about, run, delta, epsilons, events)
        if all(one.keeps_claims for one in run.qualifiers)
        else (),
        warnings=Deferred(warnings, run, max(epsilons), delta),
        caveat="; ".join(filter(None, caveats)) or None,
        attacks=() if math.isinf(max(epsilons)) else Deferred(_attacks, distinct(events), delta, terms.accountant),
        noise=None if noise is None else NoiseMultipliers.of(np.ravel(np.asarray(noise, float)).tolist()),
        names=data.names.listed if data.names is not None and names_clients else (),
        **{name: value for fields in further for name, value in fields.items()},
    )


def over_budget(promise: Guarantee, terms: PrivacyTerms) -> Guarantee:
    """The Guarantee, with a warning if the epsilon of some client is above its budget."""
    budgets = terms.budgets(len(promise.epsilons))
    spent, budget = max(zip(promise.epsilons, budgets, strict=True), key=lambda pair: pair[0] / pair[1])
    if spent <= budget:
        return promise
    mode = terms.sigma_mode
    words = f"the worst client has epsilon {upward(spent)}, above the budget {budget:g}"
    if mode in hooks.NOISE_RULES:
        words += f": noise was found by {mode}"
    return dataclasses.replace(promise, warnings=(*promise.warnings, words))
