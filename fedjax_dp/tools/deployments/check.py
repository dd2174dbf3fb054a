"""Check a deployment: the epsilon of its noisy updates, of everything that is sent, and the verdict on its claim."""

import dataclasses
import functools
import math
import os
import typing
from collections.abc import Callable
from typing import Any

from fedjax_dp import errors
from fedjax_dp.accounting import Claim, Guarantee, Verdict
from fedjax_dp.accounting.guarantee import delta_warnings, no_privacy
from fedjax_dp.display import Card, displayed, downward, finite, upward
from fedjax_dp.tools.deployments import templates
from fedjax_dp.tools.deployments.description import UNKNOWN, Deployment, ReleaseKind, names_of
from fedjax_dp.tools.deployments.idle import require_use
from fedjax_dp.tools.deployments.log import REPLACED, mechanism_of_log
from fedjax_dp.tools.deployments.mechanism import VIEWS, Mechanism, mechanism_of, view_of
from fedjax_dp.tools.deployments.rules import (
    ARGUED,
    LARGEST_DELTA,
    SLACK,
    Case,
    Effect,
    Finding,
    as_tuple,
    findings_of,
    findings_on_claim,
    hypothetical_epsilon,
    steps_for,
)
from fedjax_dp.tools.deployments.witness import witness_of

MOST_DIGITS = 700.0  # nats; a larger epsilon is not printed with digits
REMEDIES = 3  # shown


def in_words(epsilon: float | None) -> str:
    if epsilon is None or math.isinf(epsilon):
        return "none"
    return f"above {MOST_DIGITS:g}" if epsilon > MOST_DIGITS else upward(epsilon, 3)


@displayed
@dataclasses.dataclass(frozen=True)
class Check:
    """The result of a check.

    mechanism   of the noisy updates alone; without an epsilon it is infinite, with the reason;
    total       of everything that leaves clients or server; None if it has no epsilon;
    claim       the claim of the deployment with its verdict, or None;
    reasons     codes of the rules that found something, with a detail after a colon;
    missing     facts described as unknown, for which the worst case was counted;
    idle        facts without effect, each with the reason.
    """

    deployment: Deployment
    mechanism: Guarantee
    total: Guarantee | None
    claim: Claim | None
    findings: tuple[Finding, ...]
    missing: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()  # changes that would help, the cheapest first
    idle: tuple[str, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(finding.reason for finding in self.findings)

    @property
    def verdict(self) -> str:
        """holds, conditional, heuristic, wrong, no claim, or no privacy."""
        if self.claim is not None:
            return self.claim.verdict.value
        return "no privacy" if math.isinf(self.mechanism.epsilon) else "no claim"

    @property
    def fails(self) -> bool:
        """Whether the claim is wrong, or there is no privacy."""
        return self.verdict in (Verdict.WRONG.value, "no privacy")

    @property
    def statement(self) -> str:
        """The guarantee of the noisy updates in one sentence."""
        one, whom = self.mechanism, f"one {self.mechanism.unit}"
        if math.isinf(one.epsilon):
            return f"no epsilon for {whom} against {one.view}: {one.reason}"
        spread = len(set(one.epsilons)) > 1
        listed = ", ".join(in_words(epsilon) for epsilon in one.epsilons[:10]) + ", ..." * (len(one.epsilons) > 10)
        own = f"; over {len(one.epsilons)} clients {listed}" if spread else ""
        adjacency = "" if one.adjacency is None else f" ({one.adjacency.value} neighbours)"
        return f"epsilon {in_words(one.epsilon)} at delta {one.delta:g} for {whom}{adjacency} against {one.view}{own}"

    @property
    def other_releases(self) -> tuple[str, ...]:
        """Other releases and their recipients, one line each, and the kinds that the description does not mention."""
        also = self.deployment.also
        lines = [
            f"{one.kind} ({one.text}) to {_WHOM[one.to]}, "
            + ("without noise, so no epsilon covers it" if one.epsilon is None else f"with epsilon {one.epsilon:g}")
            for one in also
        ]
        silent = [kind for kind in typing.get_args(ReleaseKind) if kind not in {one.kind for one in also}]
        return (*lines, f"assumed not sent, since not mentioned: {', '.join(silent)}")

    def _card(self) -> Card:
        facts = {"verdict": self.verdict if self.claim is None else str(self.claim)}
        facts |= {"everything": "none" if self.total is None else in_words(self.total.epsilon)}
        facts |= {f"also {number}": line for number, line in enumerate(self.other_releases, 1)}
        facts |= {finding.reason: finding.words for finding in self.findings}
        return Card(self.statement, facts)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; an infinite epsilon is null."""
        return {
            "statement": self.statement,
            "mechanism": self.mechanism.to_dict() | {"epsilons": [finite(one) for one in self.mechanism.epsilons]},
            "everything": None if self.total is None else self.total.to_dict(),
            "claim": None if self.claim is None else self.claim.to_dict(),
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "findings": [
                {"reason": one.reason, "words": one.words, "effect": one.effect.value} for one in self.findings
            ],
            "also": list(self.other_releases),
            "missing": list(self.missing),
            "idle": list(self.idle),
            "remedies": list(self.remedies),
            "source": self.deployment.source.to_dict(),
        }


_WHOM = {"server": "the server", "clients": "other clients", "public": "the public"}


def check(
    deployment: Deployment,
    *,
    view: str | None = None,
    delta: float | None = None,
    log: str | os.PathLike[str] | None = None,
) -> Check:
    """The epsilon of a deployment's noisy updates and of everything that is sent, and the verdict on its claim.

    view   the adversary: server (sees each message) or clients (see each new model); default: the one that the noise
           is meant to protect against;
    delta  replaces the deployment's;
    log    a CSV file of the actual rounds, which replaces the sampling laws: see `deployments.log`.
    Raises: ConfigurationError for missing facts (all at once), for facts that no proved number depends on, and for an
            impossible log.
    """
    if not isinstance(deployment, Deployment):
        got, remedy = type(deployment).__name__, "of a file: fedjax-dp check FILE.toml"
        raise errors.refuse("deployment", f"a value of type {got}", "an fdp.Deployment", remedy)
    if delta is not None:
        deployment = dataclasses.replace(deployment, delta=delta)
    templates.require_version(deployment.source)
    facts_read: set[str] = set()
    findings = findings_of(witness_of(deployment, facts_read), view)
    count: Callable[[], Mechanism] = functools.partial(mechanism_of, deployment, view, facts_read)
    if log is not None:
        count, more = mechanism_of_log(deployment, log, view, facts_read)
        findings += more
    silent = [f"{one.code}, {one.words}" for one in findings if one.effect is Effect.NO_MECHANISM]
    mechanism = None if silent else count()
    if mechanism is None:
        clients, seen_by = deployment.clients.of or 1, VIEWS[view_of(deployment, view)]
        alone = dataclasses.replace(no_privacy(clients, "; ".join(silent), seen_by), unit=deployment.protected_unit)
    else:
        alone = _alone(deployment, mechanism, facts_read)
    total = None if mechanism is None else _total_guarantee(deployment, findings, alone)
    claim = None
    if deployment.claim is not None:
        case = Case(deployment, witness_of(deployment.claim, facts_read), mechanism, log is not None)
        if not silent or deployment.noise.law not in ("none", "unknown"):
            findings = [*findings, *findings_on_claim(case)]
        claim = _judged_claim(case, findings, total)
    missing = tuple(names_of(UNKNOWN, deployment.to_dict()))
    remedies = tuple(_remedies(deployment, findings, mechanism, claim, log is not None))[:REMEDIES]
    idle: tuple[str, ...] = ()
    if not math.isinf(alone.epsilon):  # else nothing is proved, so no fact has an effect
        idle = require_use(deployment, facts_read, () if log is None else REPLACED)
    return Check(deployment, alone, total, claim, tuple(findings), missing, remedies, idle)


def _alone(deployment: Deployment, mechanism: Mechanism, facts_read: set[str]) -> Guarantee:
    """The guarantee of the noisy updates, with a warning if delta is not small among the units."""
    alone = mechanism.guarantee(deployment.delta)
    if alone.delta or deployment.claim is not None:
        facts_read.add("delta")
    read = witness_of(deployment, facts_read)
    among = read.clients if read.unit == "client" else read.records
    if alone.delta and among is not None and among.of is not None:
        warnings = delta_warnings(alone.delta, as_tuple(among.of), deployment.protected_unit)
        alone = dataclasses.replace(alone, warnings=warnings)
    return alone


def _total_guarantee(deployment: Deployment, findings: list[Finding], alone: Guarantee) -> Guarantee | None:
    """The guarantee of everything that is sent: other releases add their epsilon."""
    if any(one.effect is Effect.NOT_EVERYTHING for one in findings) or not math.isfinite(alone.epsilon):
        return None
    more = math.fsum(one.epsilon or 0.0 for one in deployment.also)
    return dataclasses.replace(alone, epsilons=tuple(epsilon + more for epsilon in alone.epsilons)) if more else alone


def _judged_claim(case: Case, findings: list[Finding], total: Guarantee | None) -> Claim:
    """The claim with its verdict and the reasons."""
    promise, deployment = case.claim, case.deployment
    codes = {one.code for one in findings}
    about = [f"{one.reason}, {one.words}" for one in findings if one.effect is Effect.CLAIM]
    verdict, first = _verdict(case, codes, total)
    source = f"claim of one {promise.per}" + (f" ({deployment.source.system})" if deployment.source.system else "")
    reason = "; ".join(filter(None, [first, *about]))
    return Claim(source, promise.epsilon, case.delta, verdict, reason, rounds=1 if promise.per == "round" else None)


def _verdict(case: Case, codes: set[str], total: Guarantee | None) -> tuple[Verdict, str]:
    claimed, mechanism, delta = case.claim.epsilon, case.mechanism, case.delta
    if mechanism is None:
        return Verdict.WRONG, "no epsilon can be proved"
    if "hypothetical_population" in codes:
        proved = hypothetical_epsilon(case)
        if proved is not None and proved <= claimed * (1 + SLACK):
            own = in_words(mechanism.epsilon(delta))
            return Verdict.CONDITIONAL, f"true for a hypothetical population; for the clients in the data it is {own}"
    if delta >= LARGEST_DELTA:
        return Verdict.WRONG, f"delta {delta:g} promises nothing"
    proved = mechanism.epsilon(delta)
    if math.isinf(proved):
        return Verdict.WRONG, f"no epsilon is finite at delta {delta:g}"
    if case.exceeds_claim:
        if "adjacency_of_fixed_cohorts" in codes:
            return Verdict.CONDITIONAL, f"epsilon {in_words(proved)} is proved for a client that is replaced"
        least = mechanism.attained_epsilon(delta)
        if least > claimed * (1 + SLACK):
            return Verdict.WRONG, f"two real neighbours attain {downward(least, 3)}"
        return Verdict.CONDITIONAL, f"not proved; epsilon {in_words(proved)} is"
    if proved > claimed and (least := mechanism.attained_epsilon(delta)) > claimed:
        return Verdict.CONDITIONAL, f"true if rounded up: two real neighbours attain {least:.6g}"
    more = math.fsum(one.epsilon or 0.0 for one in case.deployment.also)
    if total is None or proved + more > claimed * (1 + SLACK):
        return Verdict.CONDITIONAL, "true for the noisy updates alone, not for everything that is sent"
    if codes & {*ARGUED}:
        return (
            Verdict.HEURISTIC,
            f"its argument is invalid, but its number is above the proved {in_words(proved)}",
        )
    if case.deployment.assumes:
        return Verdict.CONDITIONAL, f"true if {', '.join(case.deployment.assumes)}"
    if proved > claimed:  # by less than what grids of losses may add
        return Verdict.HOLDS, f"epsilon {proved:.6g} is proved, which the accountant may have rounded up by 0.1%"
    return Verdict.HOLDS, f"epsilon {in_words(proved)} is proved"


def _remedies(
    deployment: Deployment, findings: list[Finding], mechanism: Mechanism | None, claim: Claim | None, of_log: bool
) -> list[str]:
    """Changes that would help, the cheapest first."""
    lines = list(dict.fromkeys(one.remedy for one in findings if one.remedy))
    if mechanism is None or claim is None or claim.epsilon is None or not 0 < claim.delta < 1:
        return lines
    if mechanism.epsilon(claim.delta) <= claim.epsilon * (1 + SLACK):
        return lines
    try:
        factors = [upward(factor, 3) for factor in mechanism.factors_for(claim.epsilon, claim.delta)]
    except errors.ConfigurationError:
        return lines
    own = [f"noise x {', '.join(factors[:10])}"]
    if deployment.clip.of == "record" and not of_log:
        steps = [steps_for(one, claim.epsilon, claim.delta) // deployment.rounds for one in deployment.kinds]
        if min(steps):
            own.append(f"records.steps = {', '.join(map(str, steps[:10]))}")
    return [*own, *lines]
