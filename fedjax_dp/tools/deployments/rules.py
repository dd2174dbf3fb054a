"""The rules of a check: each is a function that yields findings, in the order of the list.

A rule uses only facts, never the name of a system.
"""

import dataclasses
import enum
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fedjax_dp.accounting import Adjacency
from fedjax_dp.tools.deployments.description import NOISY, UNKNOWN, Clients, Deployment, Promise, Weights
from fedjax_dp.tools.deployments.mechanism import (
    BOUNDING,
    Mechanism,
    cost_of,
    counts,
    noise_std,
    releases,
    view_of,
)

SLACK = 1e-3  # relative tolerance for claims with a rounded epsilon or of another accountant
ARGUED = ("sampling_law", "amplification_from_visible_clients", "amplification_of_one_draw", "classical_above_one")
LARGEST_DELTA = 0.1  # from here on delta is not a small probability


class Effect(enum.Enum):
    """The effect of a finding on the two epsilons."""

    COUNTED = "it is accounted for"
    NO_MECHANISM = "the noisy updates have no epsilon"
    NOT_EVERYTHING = "everything that is sent has no epsilon, the noisy updates have one"
    CLAIM = "the claim is about something else"


class Finding(NamedTuple):
    code: str
    words: str
    effect: Effect
    detail: str = ""
    remedy: str = ""

    @property
    def reason(self) -> str:
        return f"{self.code}:{self.detail}" if self.detail else self.code


class Case(NamedTuple):
    """The basis of a verdict: the deployment, its claim, and the mechanism of the noisy updates, if any."""

    deployment: Deployment
    claim: Promise
    mechanism: Mechanism | None
    of_log: bool = False  # whether the mechanism is that of a log, whose rows replace facts of the deployment

    @property
    def delta(self) -> float:
        return self.deployment.delta if self.claim.delta is None else self.claim.delta

    @property
    def exceeds_claim(self) -> bool:
        """Whether the proved epsilon exceeds the claimed one."""
        return self.mechanism is not None and self.mechanism.epsilon(self.delta) > self.claim.epsilon * (1 + SLACK)


Findings = Iterator[Finding]
Rule = Callable[[Deployment, str], Findings]
ClaimRule = Callable[[Case], Findings]


def findings_of(deployment: Deployment, view: str | None = None) -> list[Finding]:
    """The findings about a deployment without its claim."""
    view = view_of(deployment, view)
    silent = [finding for rule in OF_SILENCE for finding in rule(deployment, view)]
    without = any(finding.effect is Effect.NO_MECHANISM for finding in silent)
    rules = WITHOUT_NOISE if without else OF_NOISE
    return [*silent, *(finding for rule in rules for finding in rule(deployment, view))]


def findings_on_claim(case: Case) -> list[Finding]:
    """The findings about a claim on the noisy updates."""
    found = [finding for rule in OF_CLAIMS for finding in rule(case)]
    if not found:
        found = [finding for rule in OF_EXCESS for finding in rule(case)]
    return [*found, *_delta_not_small(case)]


# Whether there is any noise.


def _ignored_setting(deployment: Deployment, view: str) -> Findings:
    if deployment.ignored:
        listed = ", ".join(deployment.ignored)
        whole = [name for name in deployment.ignored if name.partition(".")[0] in NOISY]
        effect = Effect.NO_MECHANISM if whole else Effect.COUNTED
        words = f"{listed}: {'never applied' if whole else 'ignored by the running version'}"
        yield Finding("ignored_setting", words, effect)


def _no_noise(deployment: Deployment, view: str) -> Findings:
    noise = deployment.noise
    none = noise.law in ("none", UNKNOWN) or (noise.std is not None and 0 in as_tuple(noise.std))
    if none:
        yield Finding("no_noise", f"noise law is {noise.law}, std {noise.std or 0}", Effect.NO_MECHANISM)
    elif view == "server" and noise.by == "server":
        words = "noise that the server adds hides nothing from the server"
        yield Finding(
            "no_noise", words, Effect.NO_MECHANISM, "server", "let clients add the noise, or use view clients"
        )


# What bounds the unit, and whether the noise belongs to that bound.


def _check_clipping(deployment: Deployment, view: str) -> Findings:
    of = deployment.clip.of
    if of == "aggregate":
        words = "the aggregate is clipped only after one client may have changed it by any amount"
        yield Finding("clip_after_aggregate", words, Effect.NO_MECHANISM, remedy="clip each update before it is summed")
    elif of not in BOUNDING or (of == "record" and deployment.unit == "client"):
        what = {"batch": "a clipped batch mean bounds no record", "record": "clipped records bound no client"}
        words = what.get(of, f"nothing is clipped: one {deployment.unit} may move the sum by any amount")
        remedy = "clip each record's gradient" if deployment.unit == "record" else "clip each client's update"
        yield Finding("unclipped", words, Effect.NO_MECHANISM, remedy=remedy)


def _private_threshold(deployment: Deployment, view: str) -> Findings:
    if deployment.clip.threshold in ("private", UNKNOWN):
        words = f"the clip bound is {deployment.clip.threshold}: it depends on the data, without noise"
        yield Finding("private_threshold", words, Effect.NO_MECHANISM, remedy="a constant bound, or counts with noise")


def _private_scale(deployment: Deployment, view: str) -> Findings:
    scale = deployment.noise.scale
    if scale in ("private", UNKNOWN):
        words = f"the scale of the noise is {scale}: it depends on the data"
        yield Finding("private_scale", words, Effect.NO_MECHANISM, remedy="a constant standard deviation")
    if scale == "next-bound":
        words = "the noise uses the bound after its update, but the updates were clipped to the previous one"
        yield Finding(
            "noise_of_next_bound", words, Effect.NO_MECHANISM, remedy="noise for the bound that clipped the updates"
        )


def _norms(deployment: Deployment, view: str) -> Findings:
    clip, law = deployment.clip, deployment.noise.law
    if law == "laplace" and clip.norm == "l2":
        words = "an L2 ball of radius C has L1 diameter 2 sqrt(d) C in d numbers"
        yield Finding("norm_mismatch", words, Effect.COUNTED, remedy="Gaussian noise, or an L1 clip")
    if law == "gaussian" and clip.norm == "coordinate":
        yield Finding("norm_mismatch", "numbers clipped one by one have L2 norm sqrt(d) times theirs", Effect.COUNTED)
    if clip.scope == "tensor" and clip.norm != "coordinate":
        words = f"{clip.tensors} tensors clipped one by one have sqrt({clip.tensors}) times the norm together"
        yield Finding("per_tensor", words, Effect.COUNTED)


def _noise_not_tied(deployment: Deployment, view: str) -> Findings:
    keys = deployment.noise.calibration
    if keys is not None and keys.sensitivity is not None:
        words = "the standard deviation follows a separate setting, not the clipping norm"
        yield Finding("noise_not_tied", words, Effect.COUNTED, remedy="judge by the standard deviation alone")


def _unnoised_tensor(deployment: Deployment, view: str) -> Findings:
    if deployment.noise.misses:
        words = f"without noise: {', '.join(deployment.noise.misses)}"
        yield Finding("unnoised_tensor", words, Effect.NOT_EVERYTHING, remedy="send no tensor without noise")


def _cohort_mismatch(deployment: Deployment, view: str) -> Findings:
    clients = deployment.clients
    if deployment.noise.on != "mean" or deployment.noise.by != "server" or clients.size is None:
        return
    largest = deployment.weights.largest
    share = 1.0 if largest == UNKNOWN else largest
    if share is not None and float(share) > (1 + 1e-9) / clients.size:
        words = f"one client has a share of up to {float(share):g} of the mean, more than 1/{clients.size}"
        yield Finding("cohort_mismatch", words, Effect.COUNTED, remedy="equal shares")


def _count_denominator(deployment: Deployment, view: str) -> Findings:
    if not counts(deployment):
        return
    by_record = deployment.clip.of == "record"
    words = (
        f"the sum is divided by the actual number of {'records' if by_record else 'clients'}, which differs between "
        "add-remove neighbours; replace-one is counted, with that number public and no amplification"
    )
    if by_record and deployment.noise.on == "mean":
        words = (
            "a batch is divided by its number of records, but the noise is not: a record's share of the smallest batch "
            "is counted, without amplification"
        )
    yield Finding("count_denominator", words, Effect.COUNTED, remedy="divide by a fixed number")


def _also(deployment: Deployment, view: str) -> Findings:
    for one in deployment.also:
        if one.epsilon is None:
            words, remedy = f"{one.kind} ({one.text}) to {one.to}, without noise", f"do not send {one.kind}"
            if one.kind == "preprocessing":
                words = f"fitted on private records ({one.text}): one of them changes more than the clipped sum"
                yield Finding("private_preprocessing", words, Effect.NOT_EVERYTHING, remedy="public constants")
            elif one.kind == "threshold":
                words = f"a bound from the data without noise ({one.text})"
                yield Finding("private_threshold", words, Effect.NOT_EVERYTHING, one.text.split()[0].strip(",:"))
            else:
                yield Finding("extra_release", words, Effect.NOT_EVERYTHING, one.kind, remedy)


def _check_assumptions(deployment: Deployment, view: str) -> Findings:
    for text in deployment.assumes:
        yield Finding("assumes", text, Effect.COUNTED, text)


# Claims.


def _per_what(case: Case) -> Findings:
    claim = case.claim
    if claim.per == "round":
        if case.deployment.clip.of == "record":
            words = "the accountant restarts each round, but all rounds are released"
            yield Finding("accountant_reset", words, Effect.CLAIM, remedy="one accountant for the run")
        else:
            words = f"the claim is about one of {case.deployment.rounds} rounds"
            yield Finding("per_round_claim", words, Effect.CLAIM, remedy="claim the epsilon of the run")


def _classical_above_one(case: Case) -> Findings:
    keys, bound = case.deployment.noise.calibration, case.deployment.clip.bound
    if keys is None or case.deployment.noise.law != "gaussian" or keys.epsilon <= 1 or isinstance(bound, tuple):
        return
    if keys.sensitivity is None or (bound is not None and keys.sensitivity >= bound):
        words = f"sqrt(2 ln(1.25 / delta)) / epsilon is proved for epsilon below 1, and used at {keys.epsilon:g}"
        yield Finding("classical_above_one", words, Effect.CLAIM, remedy="the exact formula of Gaussian noise")


def _selection(case: Case) -> Findings:
    chosen = case.deployment.selection
    if chosen is None:
        return
    if case.claim.epsilon <= chosen.epsilon * (1 + SLACK):
        words = f"the claim covers only the selection; {chosen.answers:,} released numbers cost {chosen.release:g} each"
        yield Finding("epsilon_of_a_part", words, Effect.CLAIM)
    if chosen.of > chosen.answers:
        words = f"more than {chosen.answers:,} of {chosen.of:,} answers may be above the threshold"
        yield Finding("selection_overrun", words, Effect.CLAIM)


def _laws(case: Case) -> Findings:
    deployment, assumed = case.deployment, case.claim.assumes
    visible = deployment.unit == "record" or deployment.noise.by == "client"
    if assumed.clients not in (None, "all") and (visible or deployment.clients.members != "hidden"):
        who = "the server sees" if visible else "other clients know"
        words = f"client sampling is counted as amplification, but {who} who takes part"
        yield Finding("amplification_from_visible_clients", words, Effect.CLAIM)
    elif assumed.clients not in (None, deployment.clients.law):
        words = f"clients are accounted for by law {assumed.clients} but sampled by law {deployment.clients.law}"
        yield Finding("sampling_law", words, Effect.CLAIM)
    drawn = None if deployment.records is None else deployment.records.law
    if drawn is not None and assumed.records not in (None, drawn):
        words = f"records are accounted for by law {assumed.records} but sampled by law {drawn}"
        yield Finding("amplification_of_one_draw" if drawn == "once" else "sampling_law", words, Effect.CLAIM)
    steps = deployment.records.steps if deployment.records is not None else 1
    if max(as_tuple(steps or 1)) > 1 and assumed.noise == "summed":
        words = "the noise of several clients is summed over several local steps, which depend on it"
        yield Finding("aggregated_noise_of_many_steps", words, Effect.CLAIM)


def _hypothetical_population(case: Case) -> Findings:
    if (epsilon := hypothetical_epsilon(case)) is not None:
        assumed = case.claim.assumes
        words = (
            f"the claim is about {assumed.population:,} clients of whom {assumed.cohort:,} take part; for such a "
            f"deployment epsilon {epsilon:.4g} is proved"
        )
        yield Finding("hypothetical_population", words, Effect.CLAIM)


def hypothetical_epsilon(case: Case) -> float | None:
    """Epsilon for the population and the cohorts that a claim assumes, with the noise on the mean; None if unknown."""
    deployment, assumed = case.deployment, case.claim.assumes
    clients, clip, noise = deployment.clients, deployment.clip, deployment.noise
    central = deployment.unit == "client" and noise.by == "server" and clients.members == "hidden"
    constant = noise.law == "gaussian" and clip.threshold == "public" and not isinstance(clip.bound, tuple)
    counted = case.mechanism is not None and not case.of_log and case.delta
    size = 1 if noise.on == "mean" else clients.size
    if not (central and constant and counted and size) or assumed.population is None or assumed.cohort is None:
        return None
    hypothetical = dataclasses.replace(
        deployment,
        clients=Clients(law=assumed.clients or "unknown", size=assumed.cohort, of=assumed.population),
        noise=dataclasses.replace(noise, std=noise_std(deployment) * assumed.cohort / size, calibration=None, on="sum"),
        weights=Weights(denominator=deployment.weights.denominator or "fixed"),
    )
    return cost_of(hypothetical, deployment.rounds).epsilon(case.delta)


def _delta_not_small(case: Case) -> Findings:
    """The units are clients, or the records of one."""
    members = case.deployment.clients if case.deployment.unit == "client" else case.deployment.records
    units = None if members is None or members.of is None else min(as_tuple(members.of))
    if case.delta >= LARGEST_DELTA or (units is not None and case.delta * units >= 1):
        among = "" if units is None else f" among {units:,} {case.deployment.unit}s"
        yield Finding("delta_not_small", f"delta {case.delta:g} is not a small probability{among}", Effect.CLAIM)


def _adjacency_of_fixed_cohorts(case: Case) -> Findings:
    """Whether a claim that is too small would hold for a client that is replaced by a zero update.

    Not where it is sampled, since another client that is drawn in its place changes the sum by as much as before, nor
    for the count of an adaptive bound, which changes by 1.
    """
    deployment, mechanism = case.deployment, case.mechanism
    if not case.exceeds_claim or mechanism is None or deployment.noise.by != "server" or not case.delta:
        return
    sampled = any(cost.sampled for cost in mechanism.costs)
    if sampled or deployment.clip.threshold == "adaptive" or deployment.clip.of != "update":
        return
    if mechanism.adjacency is Adjacency.REPLACE_ONE and deployment.clients.law != "poisson":
        factor = max(mechanism.factors_for(case.claim.epsilon, case.delta))
        if factor <= Adjacency.REPLACE_ONE.sensitivity * (1 + SLACK):
            words = (
                "the claim is about adding or removing a client, but the number of clients in a round is fixed; "
                "it holds if a client is replaced by a zero update"
            )
            yield Finding("adjacency_of_fixed_cohorts", words, Effect.CLAIM)


def _steps_exceed_plan(case: Case) -> Findings:
    deployment, mechanism = case.deployment, case.mechanism
    if not case.exceeds_claim or mechanism is None or case.of_log:
        return
    if deployment.clip.of != "record" or case.claim.per != "run":
        return
    allowed = [steps_for(one, case.claim.epsilon, case.delta) for one in deployment.kinds]
    done = sorted({releases(one) for one in deployment.kinds})
    if min(allowed):
        words = f"{_span(done)} noisy steps per client, but noise for {_span(sorted(allowed))}"
        yield Finding("steps_exceed_plan", words, Effect.CLAIM)


def steps_for(deployment: Deployment, epsilon: float, delta: float) -> int:
    """The largest number of noisy steps of a client within epsilon; 0 if one is too many."""
    low, high = 0, releases(deployment)
    while high - low > 1:
        middle = (low + high) // 2
        met = cost_of(deployment, middle).epsilon(delta) <= epsilon * (1 + SLACK / 4)
        low, high = (middle, high) if met else (low, middle)
    return low


def _span(numbers: list[int]) -> str:
    low, high = f"{numbers[0]:,}", f"{numbers[-1]:,}"
    return low if low == high else f"{low} to {high}"


def as_tuple(value: Any) -> tuple[Any, ...]:
    """A fact as a tuple: of each client, or the one for all."""
    return value if isinstance(value, tuple) else (value,)


OF_SILENCE: tuple[Rule, ...] = (_ignored_setting, _no_noise)
WITHOUT_NOISE: tuple[Rule, ...] = (_private_threshold, _also, _check_assumptions)
OF_NOISE: tuple[Rule, ...] = (
    _check_clipping,
    _private_threshold,
    _private_scale,
    _norms,
    _noise_not_tied,
    _unnoised_tensor,
    _cohort_mismatch,
    _count_denominator,
    _also,
    _check_assumptions,
)
OF_CLAIMS: tuple[ClaimRule, ...] = (
    _laws,
    _per_what,
    _classical_above_one,
    _selection,
    _hypothetical_population,
)
OF_EXCESS: tuple[ClaimRule, ...] = (_adjacency_of_fixed_cohorts, _steps_exceed_plan)  # where nothing above explains it
