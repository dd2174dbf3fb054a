"""The bridge from the simulated value to its Guarantee: what is accounted is what was run."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Unpack

import numpy as np

from fedjax_dp import accounting, errors, hooks, inspection
from fedjax_dp.accounting import Event, Guarantee, Unit, View
from fedjax_dp.accounting.composed_phases import about
from fedjax_dp.accounting.events import distinct, each
from fedjax_dp.accounting.guarantee import (
    FLOAT_NOISE,
    Deployment,
    EarlierPhase,
    NoiseMultipliers,
    delta_warnings,
    no_privacy,
)
from fedjax_dp.accounting.plain_words import AttackBounds, epsilon_warnings
from fedjax_dp.accounting.trade_offs import attack_bounds
from fedjax_dp.data.store import FederatedData
from fedjax_dp.inspection import constants, flow
from fedjax_dp.models import Model
from fedjax_dp.parts import facts
from fedjax_dp.parts.noise import correlated_source
from fedjax_dp.privacy.client_events import (
    adjacency_of,
    client_events,
    training_events,
    with_before,
    with_paid,
)
from fedjax_dp.privacy.halting import halted, require_halting
from fedjax_dp.privacy.planned_run import PlannedRun, plan_run
from fedjax_dp.privacy.protection import noise_of, unit_of, views_of
from fedjax_dp.privacy.release_table import participation_mode, remembers
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

    Each client gets its own, unless noise is counted together: on whole clients, or in a secure sum that gains by it.
    With one budget per client, noise on records differs from client to client; noise on whole clients is common, so the
    smallest budget decides.
    privacy   `epsilon`, `delta`, ...: the fields of `PrivacyTerms`;
    progress  called with (client kinds done, client kinds in all).
    Raises:   ConfigurationError if the budget is unreachable or the combination has no accountant.
    """
    terms = PrivacyTerms(**privacy)
    run = plan_run(algorithm, data, rounds=rounds, seed=seed, model=model, terms=terms)
    noised = calibrated(run, progress)
    if run.terms.sigma_mode not in hooks.NOISE_RULES:
        _require_believable(noised)
    return noised.algorithm


def calibrated(run: PlannedRun, progress: Callable[[int, int], None] | None = None) -> PlannedRun:
    """The run with that noise, its parts not inspected.

    Raises: ConfigurationError too where its parts cannot carry so much noise.
    """
    noised = _with_least_noise(run, progress)
    check(noised.algorithm, noised.data, noised.rounds)
    return noised


def _with_least_noise(run: PlannedRun, progress: Callable[[int, int], None] | None) -> PlannedRun:
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
    paid = algorithm.cohort.setup_event
    if paid is not None:  # noise that is already fixed: take a tenth of delta, and its epsilon, off the budget
        spent = accounting.epsilon_of(paid, delta / 10, terms.accountant)
        budgets, delta = [_left(budget, spent) for budget in budgets], 0.9 * delta
    ledger = training_events(unit_noise, at_least=1)
    if not any(True for event in distinct(ledger) for _ in event.leaves()):
        wanted, remedy = "one in which records are released", "use view deployed, or give noise_multiplier"
        raise errors.refuse("view", run.view.value, wanted, remedy)
    _require_left(run, ledger, budgets, delta)
    ledger = with_before(run, ledger)
    numbers = {event: number for number, event in enumerate(distinct(ledger))}
    kinds = list(zip(each(ledger, numbers.__getitem__), budgets, strict=True))
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


def contradiction(run: PlannedRun) -> str | None:
    """What speaks against the statements of its parts without running it, or None: see `guarantee`."""
    try:
        _require_believable(run)
    except errors.ConfigurationError as contradicted:
        return str(contradicted)
    return None


def _require_believable(run: PlannedRun) -> None:
    """Refuse parts that leave a fact unsaid, and parts other than the project's own that say what is not so."""
    facts.require_facts(run.algorithm)
    if constants.words_of(run.model) or getattr(run.model, "frozen", None) is not None:
        constants.require_no_records(run.model, run.data)
    if not inspection.words_of(run.algorithm):
        return
    for slot, part in facts.parts_of(run.algorithm):
        if not run.model_given and slot in SEE_THE_MODEL and not facts.of_the_project(part):
            raise errors.refuse(
                "model",
                "none",
                f"given to look into {type(part).__name__} ({slot}), which may treat one model otherwise than another",
                "add model=, the one that is trained",
            )
    flow.require_accounted(run.algorithm, run.data, run.model)
    inspection.require_true(run.algorithm, run.data, run.model, run.rounds, run.draw_seed)


def _require_left(run: PlannedRun, training: list[Event], budgets: list[float], delta: float) -> None:
    """Refuse budgets that are spent by phases before, which no noise of the run changes."""
    past = run.past(adjacency_of(training))
    if not past:
        return
    if max(sum(step.lost * count for step, count in event.leaves()) for event in distinct(past)) >= delta:
        raise errors.refuse("delta", delta, "one at which the phases before have an epsilon", _unresolved(run))
    spent = accounting.epsilons_of(past, delta, run.terms.accountant)
    budget, most = min(zip(budgets, spent, strict=True), key=lambda pair: pair[0] - pair[1])
    if not budget > most:
        names = ", ".join(about(one.phase) for one in run.prior_runs)
        wanted = f"above {most:.4g}, which {names} cost already at delta {delta:g}"
        raise errors.refuse("epsilon", budget, wanted, "raise it, or begin with another start")


def _unresolved(run: PlannedRun) -> str:
    names = ", ".join(about(one.phase) for one in run.prior_runs)
    return f"{names} has no epsilon at this delta; where epsilon and delta alone are known, delta must be above theirs"


def _alone(run: PlannedRun, training: list[Event]) -> list[float]:
    assert run.terms.delta is not None
    return accounting.epsilons_of(training, run.terms.delta, run.terms.accountant)


def _left(budget: float, spent: float) -> float:
    if not budget > spent:
        raise errors.refuse(
            "epsilon", budget, f"above the {spent:.4g} that the sampling probabilities cost", "raise norm_noise"
        )
    return budget - spent


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
    """What the run of `algorithm` for `rounds` rounds with `seed` promises, per client.

    The unit is one record of one client where local steps are noised, and a client with all its records where updates
    are.
    model     needed where its size matters (integer noise), and for parts of one's own that work on models; default
              logistic regression;
    privacy   `delta`, `view`, ...: the fields of `PrivacyTerms`. As in `run`, an `epsilon` finds the noise first, and a
              `stop_at_epsilon` ends the run: the Guarantee is of that noise, and of the rounds within it;
    progress  called with (distinct clients done, distinct clients in all).
    Parts that are not the project's own are believed only as far as nothing contradicts them: see `parts.facts` and
    `inspection`. The assumptions name them.
    Raises: ConfigurationError for a combination without an accountant, for parts that leave a fact unsaid or say what
            is not so, and for a budget that cannot be met.
    """
    terms = PrivacyTerms(**privacy)
    run = plan_run(algorithm, data, rounds=rounds, seed=seed, model=model, terms=terms)
    return with_attack(*prepare(run, progress))


def guaranteed(run: PlannedRun, progress: Callable[[int, int], None] | None = None) -> Guarantee:
    promise = stated(run, progress=progress)
    if not promise.reason:
        _require_believable(run)
    if run.terms.view is None:
        others = [view for view in views_of(run.algorithm) if view is not run.view]
        elsewhere = tuple(stated(run.counted(view=view.value, epsilon=None, colluders=0)) for view in others)
        promise = dataclasses.replace(promise, elsewhere=elsewhere)
    return promise if run.terms.any_budget is None else over_budget(promise, run.terms)


def with_attack(run: PlannedRun, promise: Guarantee) -> Guarantee:
    """The Guarantee with what attacks are held to, in its own view and in the others.

    It takes milliseconds for each kind of clients, so sweeps leave it out.
    """
    others = ((run.counted(view=one.view.value, epsilon=None, colluders=0), one) for one in promise.elsewhere)
    elsewhere = tuple(_with_attack(*other) for other in others)
    return dataclasses.replace(_with_attack(run, promise), elsewhere=elsewhere)


def _with_attack(run: PlannedRun, promise: Guarantee) -> Guarantee:
    """The most that attacks on any client are held to, over all kinds of clients."""
    delta = promise.delta
    if delta is None or math.isinf(promise.epsilon):
        return promise
    accountant = run.terms.accountant
    bounds = [
        attack_bounds(event, accounting.epsilon_of(event, delta, accountant), delta, accountant)
        for event in distinct(client_events(run))
    ]
    right, recognised = (max(getattr(one, name) for one in bounds) for name in ("right", "recognised"))
    return dataclasses.replace(promise, attack=AttackBounds(right, recognised, all(one.of_curve for one in bounds)))


class PreparedRun(NamedTuple):
    """A run with the noise that meets its epsilon, or of the rounds that its budget allows, and its Guarantee."""

    planned: PlannedRun
    guarantee: Guarantee


def prepare(run: PlannedRun, progress: Callable[[int, int], None] | None = None) -> PreparedRun:
    """Find the noise of a run, or the end of its rounds, and its Guarantee: all before any training.

    progress  called with (kinds of clients done, kinds in all).
    Raises:   ConfigurationError without a delta, for a budget that cannot be met, for parts that say what is not so.
    """
    if noise_of(run.algorithm) is not None and run.terms.delta is None:
        raise errors.refuse("delta", "none", "given for a private algorithm", "delta below 1 / records is usual")
    if run.terms.stop_at_epsilon is not None:
        require_halting(run)
        run = halted(run, stated(run))
    if run.terms.epsilon is not None:
        run, progress = calibrated(run, progress), None
    return PreparedRun(run, guaranteed(run, progress))


def stated(run: PlannedRun, progress: Callable[[int, int], None] | None = None) -> Guarantee:
    """The same from what the parts state, which is not looked into: for those who try to break it, as audits do."""
    algorithm, data, terms = run.algorithm, run.data, run.terms
    num_clients, unit, delta = data.num_clients, run.unit, terms.delta
    reason = run.no_epsilon_reason
    if reason:
        return no_privacy(num_clients, reason, run.view)
    if delta is None:
        raise errors.refuse("delta", "none", "given for a private algorithm", "delta below 1 / records is usual")
    errors.require_delta(delta)
    training = training_events(run)
    alone = with_paid(algorithm, training)
    ledger = with_before(run, alone)
    steps = [step for event in distinct(training) for step, _ in event.leaves()]
    noise = noise_of(algorithm)
    if terms.deployment is None and algorithm.upload.noise_ratio is not None:
        noise = np.asarray(noise, float) * float(algorithm.upload.noise_ratio)
    if steps and not np.any(np.asarray(noise) > 0):
        what = "updates" if unit is Unit.CLIENT else "gradients"
        return no_privacy(num_clients, f"{what} are clipped but noise_multiplier is 0", run.view)
    if any(step.reveals_everything for step in steps):
        return no_privacy(num_clients, "some clients add no noise: their noise_multiplier is 0", run.view)
    epsilons = tuple(accounting.epsilons_of(ledger, delta, terms.accountant, progress))
    if run.prior_runs and math.isinf(max(epsilons)) and not math.isinf(max(_alone(run, alone))):
        return no_privacy(num_clients, _unresolved(run), run.view)
    adjacency = steps[0].adjacency if steps else accounting.Adjacency.REPLACE_ONE
    before = _phases(run, alone, delta) if run.prior_runs else ()
    members = [run.promised.num_clients] if unit is Unit.CLIENT else np.asarray(data.sizes).tolist()
    return Guarantee(
        epsilons,
        delta,
        unit,
        adjacency,
        run.view,
        accounting.ACCOUNTANTS[terms.accountant].about,
        (
            *_assumptions(run, steps),
            *_stop(run),
            *run.initialization.assumptions,
            *_words(run),
            FLOAT_NOISE,
        ),
        hooks.Deferred(hooks.claims_about, run, delta, epsilons, ledger)
        if not (terms.deployment or unit.of_records or before)
        else (),
        (
            *epsilon_warnings(max(epsilons)),
            *delta_warnings(delta, members, unit),
            *run.initialization.warnings,
            *_shared_parts(data, unit),
            *_learnt(data),
            *_stale(run),
        ),
        caveat="; ".join(filter(None, (BY_NAME_ALONE.get(participation_mode(run)), run.initialization.caveat))) or None,
        noise=None if noise is None else NoiseMultipliers.of(np.ravel(np.asarray(noise, float)).tolist()),
        names=_names(data, unit),
        deployment=_deployment(run, steps),
        own=None if terms.deployment is None else stated(run.by_itself).epsilon,
        phases=before,
        alone=max(_alone(run, alone)) if before else None,
    )


def _phases(run: PlannedRun, training: list[Event], delta: float) -> tuple[EarlierPhase, ...]:
    phases, adjacency, accountant = [], adjacency_of(training), run.terms.accountant
    for one, events in zip(run.prior_runs, run.earlier(adjacency), strict=True):
        epsilon = max(accounting.epsilons_of(events, delta, accountant))
        phases.append(EarlierPhase(about(one.phase), epsilon, one.phase.get("view"), one.members))
    return tuple(phases)


def _deployment(run: PlannedRun, steps: list[Any]) -> Deployment | None:
    """What the Guarantee is of, where it is not of the run itself."""
    if run.terms.deployment is None:
        return None
    size, population = run.terms.deployment
    sampled = not isinstance(steps[0].sampling, accounting.FullBatch)
    turns = (
        f"each client in at most {steps[0].count:,} of them" if steps[0].count < run.rounds else "every client in all"
    )
    return Deployment(
        cohort_size=size,
        population=population,
        rounds=run.rounds,
        sampler=str(steps[0].sampling) if sampled else f"who takes part is public, {turns}",
        noise_ratio=float(run.algorithm.upload.noise_ratio or 1.0),
        simulated_cohort=run.algorithm.cohort.expected_size(run.data.num_clients),
        simulated_population=run.data.num_clients,
    )


def _stale(run: PlannedRun) -> list[str]:
    """What is another in the simulation than in its deployment, though noise is alike."""
    if run.terms.deployment is None or not run.algorithm.local.has_client_state:
        return []
    size, population = run.terms.deployment
    return [
        "what clients keep is as old as rounds of the simulated clients make it; in the deployment a client is drawn "
        f"once in {population / size:.4g} rounds"
    ]


def _names(data: FederatedData, unit: Unit) -> tuple[str, ...]:
    """What clients are called, unless whether they take part is what is hidden."""
    few = data.names is not None and data.num_clients <= MOST_NAMES
    return data.names.listed if data.names is not None and few and unit is Unit.RECORD else ()


def _stop(run: PlannedRun) -> list[str]:
    """That a result may end the run."""
    if run.terms.stop is None:
        return []
    return [
        f"the run ends where {run.terms.stop} is reached on a test set of no client's records, which nothing protects, "
        "and is counted with all its rounds"
    ]


def _words(run: PlannedRun) -> list[str]:
    """What rests on somebody's word."""
    words = [*inspection.words_of(run.algorithm), *constants.words_of(run.model)]
    return [*words, "the test set is public"] if words and run.private_tests is None else words


def _shared_parts(data: FederatedData, unit: Unit) -> list[str]:
    """That a record is less than what somebody may want hidden."""
    if unit is not Unit.RECORD:
        return []
    several = [bound for bound in data.bounds if bound.unit is not Unit.TOKEN]
    lines = [f"epsilon is of one record: {data.overlap}"] if data.overlap else []
    return lines + [
        f"epsilon is of one record, of which one {one.unit.value} may have {one.records}" for one in several
    ]


def _learnt(data: FederatedData) -> list[str]:
    lines = [f"epsilon does not cover what the features were made with: {line}" for line in data.learnt]
    if data.test_clients is not None:
        lines.append(
            "epsilon does not cover what is measured on records that clients hold out, without noise, nor choices by it"
        )
    return lines


def _assumptions(
    run: PlannedRun,
    steps: list[Any],
) -> list[str]:
    algorithm, colluders = run.algorithm, run.terms.colluders
    participation = participation_mode(run)
    cohorts = {
        "schedule": "which clients take part is drawn from the seed, independent of all data, and may be public",
        "law": "cohorts are drawn by their law, independent of all data; delta is an average over the draw: once that "
        "is known, a client drawn often may have more than epsilon",
        "worst": "every client is accounted for all rounds",
        "expected": "every client is accounted for the mean number of rounds",
        "once": "a single round of the run is accounted for, whichever it is",
    }
    if participation != run.terms.participation:
        cohorts[participation] += f"; for participation {run.terms.participation} no less is known here"
    if algorithm.cohort.log(run.data.num_clients) is not None:
        cohorts["schedule"] = (
            "who takes part stands in a log, which is public and knows no records on the word of who wrote it"
        )
    unit, local = unit_of(algorithm), algorithm.local
    if not steps:
        return [cohorts[participation]]
    if unit is Unit.CLIENT:
        hidden = not isinstance(steps[0].sampling, accounting.FullBatch)
        lines = [
            *_changing(run),
            f"clients by {steps[0].sampling}, and nobody sees which take part" if hidden else cohorts[participation],
            *_kept(run, hidden),
            *_known_members(run, hidden),
            "the number of clients, their shares and all divisors are public",
            "the server sums, clips nothing itself and adds the noise honestly"
            if not algorithm.upload.shared_noise
            else f"every client of a cohort adds its share of the noise, {colluders} of them help the adversary",
        ]
        if run.terms.deployment is not None:
            lines += [
                "the deployment trains by the same algorithm on clients whose weights are bounded as here, and its "
                "cohorts are drawn as stated",
                "noise on the mean is the deployment's, but a mean of so few clients varies more than one of its "
                "cohorts: results are pessimistic",
            ]
        if correlated_source(algorithm.upload) is not None:
            lines.append("noise is correlated over rounds and counted as one release of the whole run")
        return lines
    if algorithm.cohort.setup_event is not None:
        cohorts["worst"] = (
            "cohorts follow what clients sent of their records, a release that is counted; therefore every client is "
            "accounted for all rounds"
        )
    if algorithm.cohort is not algorithm.cohort.base:
        cohorts[participation] += "; who of them answers does not depend on records"
    lines = [cohorts[participation], f"each local step uses fresh randomness: {_sampling_words(steps)}"]
    if correlated_source(local.privatizer) is not None:
        lines[1] = "noise is correlated over a round's steps, which are counted as one release without sampling"
    lines.append(
        "the numbers of records of all clients are public"
        if steps[0].adjacency is not accounting.Adjacency.ADD_REMOVE
        else "each client's sampling rate, divisor and number of steps are public constants, whoever joins or leaves"
    )
    lines += _kept_of_units(run)
    lines += [*_changing(run), *local.privatizer.assumptions]
    if local.initial_release:
        lines.append("every client's warm start is counted, once")
    if run.view is not View.UPLOADS:
        gains = run.noise_amplification
        if np.all(gains == 1):
            lines.append("a client's own noise alone is counted: a cohort's adds up for one plain local step only")
        else:
            low, high = (f"{gain:.3g}" for gain in (gains.min(), gains.max()))
            between = low if low == high else f"{low} to {high}"
            lines.append(
                f"what is seen carries {between} times the variance of a client's own noise, with "
                f"{colluders} of a cohort helping the adversary"
            )
            if algorithm.transport.resolution:
                lines.append(
                    "no message overflows the secure sum: it would stop the run, "
                    "which then has the epsilon of view uploads"
                )
    return lines


def _kept_of_units(run: PlannedRun) -> list[str]:
    """How many records the unit has, and by what rule."""
    unit, bound = run.unit, run.bound
    if unit is Unit.TOKEN:
        return [f"a token stands in at most {bound.records} records, all at one client, by how texts are cut"]
    if not unit.of_records:
        return []
    by_rule = "by a rule that knows ids alone"
    if bound.clients == 1:
        first = "the first in the order of the data, at the first client that has some"
        return [f"a {unit.value} has at most {bound.records} records, all at one client: {first}, {by_rule}"]
    return [
        f"a {unit.value} has at most {bound.records} records at each of at most {bound.clients} clients: the first in "
        f"the order of the data, {by_rule}; beside each client it may have the dearest others"
    ]


def _changing(run: PlannedRun) -> list[str]:
    """That noise differs from round to round."""
    factors = run.noise_levels.factors
    if len(factors) == 1:
        return []
    between = f"{factors.min():.4g} to {factors.max():.4g}"
    by_round = f"noise multipliers are of round 0; by round they are {between} times as large, fixed beforehand"
    return [f"{by_round}, and every round is counted with its own"]


def _kept(run: PlannedRun, hidden: bool) -> list[str]:
    """What clients that keep something are counted by, under noise on whole clients."""
    if not remembers(run.algorithm):
        return []
    if hidden:
        return ["what a client keeps changes in its own rounds alone, by its own records and what was released"]
    public = "clients keep what acts on later updates: their draw is counted as public, so that it hides nothing"
    return [public] if run.algorithm.cohort.drawn else []


def _known_members(run: PlannedRun, hidden: bool) -> list[str]:
    """That the draw would hide a client from who takes no part itself."""
    cohort, num_clients = run.promised
    if hidden or remembers(run.algorithm) or isinstance(cohort.amplified(num_clients, 0)[0], accounting.FullBatch):
        return []
    if not isinstance(cohort.amplified(num_clients, run.helpers)[0], accounting.FullBatch):
        return []
    return [
        "nothing is known of who is drawn in the eyes of members of a cohort: their draw is counted as public, so that "
        "it hides nothing (view final_model has no such members)"
    ]


def _sampling_words(steps: list[Any]) -> str:
    kinds = list(dict.fromkeys(step.sampling for step in steps))
    sampled = [str(kind) for kind in kinds if not isinstance(kind, accounting.FullBatch)]
    if not sampled:
        return "all records in every step"
    words = f"records by {sampled[0]}" + (f" and {len(sampled) - 1} more sizes" if len(sampled) > 1 else "")
    return words + ", all records of clients with no more than a batch" * (len(sampled) < len(kinds))


def over_budget(promise: Guarantee, terms: PrivacyTerms) -> Guarantee:
    """The same Guarantee with a warning if some client's epsilon is above its budget."""
    budgets = terms.budgets(len(promise.epsilons))
    spent, budget = max(zip(promise.epsilons, budgets, strict=True), key=lambda pair: pair[0] / pair[1])
    if spent <= budget:
        return promise
    mode = terms.sigma_mode
    words = f"the worst client has epsilon {spent:.4g}, above the budget {budget:g}"
    if mode in hooks.NOISE_RULES:
        words += f": noise was found by {mode}"
    return dataclasses.replace(promise, warnings=(*promise.warnings, words))
