"""Tables of an audit, from the dictionary of `Audit.to_dict`, which `fedjax-dp audit --json` prints."""

import math
from collections.abc import Mapping
from typing import Any

Rows = list[dict[str, Any]]
LOWER, UPPER, CLAIM, REFUTED = "lower bound, proved", "upper bound, promised", "claim", "claim, refuted"
KINDS = (LOWER, UPPER, CLAIM, REFUTED)
CURVES = ("allowed by the promise", "allowed by the lower bound")
COUNTED, AT_MOST = "observed in the trials", "upper bound, proved"
POINTS = 101  # of a curve
LARGEST = 700.0  # epsilon whose exponential is finite; beyond it every curve lies on the axes


def epsilons(content: Mapping[str, Any]) -> Rows:
    """Every epsilon at the audit's delta with its kind; None for an infinite one."""
    rows: Rows = [
        {"what": "proved (stated kind)", "kind": LOWER, "epsilon": content["epsilon_lower"]},
        {"what": "proved (any kind)", "kind": LOWER, "epsilon": content["epsilon_lower_of_any_mechanism"]},
        {"what": "promised", "kind": UPPER, "epsilon": content["epsilon_stated"]},
    ]
    if content["claim"] is not None:
        kind = REFUTED if content["violated"] else CLAIM
        rows.append({"what": "claimed and tested", "kind": kind, "epsilon": content["claim"]})
    refuted = set(content["refuted_claims"])
    for claim in content["guarantee"]["claims"]:
        if claim["epsilon"] is not None and claim["delta"] == content["delta"]:
            kind = REFUTED if claim["statement"] in refuted else CLAIM
            rows.append({"what": claim["source"], "kind": kind, "epsilon": claim["epsilon"]})
    return rows


def errors(content: Mapping[str, Any]) -> Rows:
    """The error rates of the attack and their bounds; empty for an audit by guesses in a single run."""
    counts = content.get("errors")
    if not counts:
        return []
    counted = counts["false_positives"] / counts["negatives"], counts["false_negatives"] / counts["positives"]
    if counts["mean"] is None:
        bounds = counts["false_positive"], counts["false_negative"]
    else:  # the joint test bounds only the mean, which refutes as much as two such rates
        bounds = counts["mean"], counts["mean"]
    names = ("what", "false_positive", "false_negative")
    return [dict(zip(names, (COUNTED, *counted))), dict(zip(names, (AT_MOST, *bounds)))]


def regions(content: Mapping[str, Any]) -> Rows:
    """The least error rates of any attack under (epsilon, delta), for the promise and for the lower bound."""
    bounds = content["epsilon_tested"], content["epsilon_lower_of_any_mechanism"]
    rates = [place / (POINTS - 1) for place in range(POINTS)]
    return [
        {"curve": name, "false_positive": rate, "false_negative": least_error(epsilon, content["delta"], rate)}
        for name, epsilon in zip(CURVES, bounds)
        for rate in rates
    ]


def least_error(epsilon: float, delta: float, rate: float) -> float:
    """The least rate of missed canaries at this rate of false alarms (Kairouz et al. 2015, Theorem 2.1)."""
    factor = math.exp(min(epsilon, LARGEST))
    return max(0.0, 1 - delta - factor * rate, (1 - delta - rate) / factor)
