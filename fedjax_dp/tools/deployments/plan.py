"""The noise of a deployment for a budget, also as the settings of a system."""

import ast
import dataclasses
import math
import operator
from typing import Any

from fedjax_dp import errors, folders
from fedjax_dp.accounting.calibrate import require_budget
from fedjax_dp.tools.deployments import templates
from fedjax_dp.tools.deployments.check import Check, check
from fedjax_dp.tools.deployments.description import BLANK, Deployment
from fedjax_dp.tools.deployments.mechanism import (
    bound_of,
    classical_factor,
    count_multiplier,
    mechanism_of,
    multiplier,
    noise_std,
    weight,
)
from fedjax_dp.tools.deployments.rules import Effect, findings_of

FIXED = ("unit", "clip.of", "clip.norm", "noise.law", "noise.on", "noise.by", "weights.denominator", "clients.law")
FREE = ("noise.std", "noise.calibration")  # facts that a plan computes
OPERATIONS = {ast.Mult: operator.mul, ast.Div: operator.truediv}


@dataclasses.dataclass(frozen=True)
class Plan:
    """A deployment whose noise meets a budget, and its check."""

    check: Check
    multipliers: tuple[float, ...]  # noise over the sensitivity, for each client or for all
    settings: dict[str, Any]  # of the system, if one is named
    note: str = ""
    system: str = ""

    @property
    def deployment(self) -> Deployment:
        return self.check.deployment

    def to_toml(self) -> str:
        """The settings, or the deployment if no system is named, below their guarantee as comments."""
        lines = [self.check.statement, *self.check.other_releases, *self.check.mechanism.assumptions]
        lines += [self.system, self.note] if self.system else []
        head = "".join(f"# {line}\n" for line in lines if line)
        return head + (folders.toml(self.settings) if self.system else self.deployment.to_toml())

    def to_dict(self) -> dict[str, Any]:
        return {
            "noise_multipliers": list(self.multipliers),
            "noise_std": self.deployment.noise.to_dict()["std"],
            "settings": self.settings,
            "note": self.note,
            "deployment": self.deployment.to_dict(),
            "check": self.check.to_dict(),
        }


def plan(deployment: Deployment, *, epsilon: float, delta: float | None = None, system: str | None = None) -> Plan:
    """The least noise for which the noisy updates of a deployment have at most this epsilon.

    The deployment's own noise is ignored: the plan computes `std`, for each client if facts are lists.
    delta   replaces the deployment's;
    system  a template, whose settings the plan writes.
    Raises: ConfigurationError if no noise gives an epsilon, or if the system works differently.
    """
    require_budget("epsilon", epsilon)
    settings = {} if system is None else templates.settings_of(system)
    if "refused" in settings:
        raise errors.refuse(
            "plan", settings["name"], "for a system whose settings clip what is sent", settings["refused"]
        )
    if delta is not None:
        deployment = dataclasses.replace(deployment, delta=delta)
    if system is not None:
        _require_alike(deployment, system)
    noise = dataclasses.replace(deployment.noise, std=1.0, calibration=None)
    deployment = dataclasses.replace(deployment, noise=noise, claim=None)
    for finding in findings_of(deployment):
        if finding.effect is Effect.NO_MECHANISM:
            raise errors.refuse("plan", finding.reason, "for a deployment that noise can make private", finding.words)
    if deployment.selection is not None:
        raise errors.refuse("plan", "selection", "left out: its epsilons determine its noise", "lower release")
    first = mechanism_of(deployment)
    stds = [
        _std(one, multiple, factor)
        for one, multiple, factor in zip(
            deployment.kinds,
            first.multipliers or (0.0,) * len(first.costs),
            first.factors_for(epsilon, deployment.delta),
        )
    ]
    std = max(stds) if noise.by == "server" else stds[0] if len(stds) == 1 else tuple(stds)
    solution = dataclasses.replace(deployment, noise=dataclasses.replace(noise, std=std))
    if system is not None and isinstance(std, tuple):
        raise errors.refuse("for", system, "left out if clients have different noise", "plan without it")
    facts = {} if system is None else facts_of(solution.kinds[0])
    written = {
        name: _result(ast.parse(value, mode="eval").body, facts) if isinstance(value, str) else value
        for name, value in settings.get("settings", {}).items()
    }
    written = {name: value for name, value in written.items() if value is not None}
    about = settings.get("note", ""), settings.get("name", "")
    return Plan(check(solution), noise_multipliers_of(solution), written, *about)


def noise_multipliers_of(deployment: Deployment) -> tuple[float, ...]:
    """The noise multipliers of the clients; for Laplace noise its scale over the bound."""
    if deployment.noise.law == "laplace":
        return tuple(noise_std(one) / math.sqrt(2) / (bound_of(one, norm=1) * weight(one)) for one in deployment.kinds)
    return tuple(map(multiplier, deployment.kinds))


def _std(one: Deployment, joint: float, factor: float) -> float:
    """The standard deviation with `factor` times the noise; the noise on counts of an adaptive bound stays."""
    counts = count_multiplier(one)
    if counts is None:
        return noise_std(one) * factor
    wanted = (joint * factor) ** -2 - counts**-2
    if not wanted > 0:
        least = joint * factor * float(one.clip.count_noise) / counts  # type: ignore[arg-type]
        wanted_noise = f"more than {least:.4g}, or the counts alone cost more than the budget"
        raise errors.refuse("clip.count_noise", one.clip.count_noise, wanted_noise, "raise it")
    return float(wanted**-0.5 * bound_of(one) * weight(one))


def _require_alike(deployment: Deployment, system: str) -> None:
    """Refuse a deployment that contradicts a system's template."""
    stated = templates.template(system)
    for name in FIXED if deployment.noise.by == "server" else FIXED[:-1]:  # whose draw hides whoever is noised alone
        group, _, fact = name.partition(".")
        wanted = stated.get(group, {}) if fact else stated.get(group)
        wanted = wanted.get(fact) if isinstance(wanted, dict) else wanted
        own = getattr(getattr(deployment, group), fact) if fact else getattr(deployment, group)
        if wanted not in (None, BLANK, own):
            raise errors.refuse(name, repr(own), f"{wanted!r} for {system}", "describe that system, or plan without it")


def facts_of(one: Deployment) -> dict[str, Any]:
    """The values that settings may use; None if a deployment does not state them."""
    clients, std, bound = one.clients, noise_std(one), one.clip.bound
    size, of = clients.size, clients.of
    largest = one.weights.largest
    alike = size is not None and isinstance(largest, float) and largest * size <= 1 + 1e-9
    drawn = clients.rate * of if clients.rate is not None and of is not None else size
    return {
        "noise_multiplier": multiplier(one) if one.noise.law == "gaussian" else None,
        "noise_std": std,
        "bound": bound,
        "cohort": size,
        "expected_cohort": drawn,
        "fraction": None if size is None or of is None else size / of,
        "delta": one.delta,
        "classical_epsilon": float(bound) * classical_factor(one.delta) / std,  # type: ignore[arg-type]
        "equal_shares": 1 if alike else None,
    }


def _result(node: ast.expr, facts: dict[str, Any]) -> Any:
    """The value of a setting that is text: products and quotients of facts, or a quoted word."""
    match node:
        case ast.Name(name):
            return facts[name]
        case ast.Constant(constant):
            return constant
        case ast.BinOp(left, operation, right):
            sides = _result(left, facts), _result(right, facts)
            return None if None in sides else OPERATIONS[type(operation)](*sides)
    raise errors.refuse("a setting of a template", ast.unparse(node), "made of products and quotients of facts")
