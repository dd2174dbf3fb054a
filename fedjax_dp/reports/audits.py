"""The report of an audit: the JSON object that `fedjax-dp audit --json` prints."""

import math
from collections.abc import Mapping
from typing import Any

from fedjax_dp.reports import charts, shared
from fedjax_dp.reports.contents import Block, Facts, Figure, Grid, Prose, Report, Rows, Section, Tiles, seconds, told

KIND = "audit"
KEYS = frozenset({"violated", "verdict", "epsilon_stated", "epsilon_lower", "guarantee", "trials"})
POINTS = 101  # of a curve
LARGEST = 700.0  # epsilon whose exponential is a number; beyond it no curve can be told from the axes
SEEN, AT_MOST = "seen in the trials", "proved to be at most"


def of_content(content: Mapping[str, Any]) -> Report:
    """The report of an audit."""
    config = content.get("config") or {}
    data: dict[str, Rows] = {"epsilons": _epsilons(content)}
    blocks: list[Block] = [_figure(data["epsilons"])]
    errors = content.get("errors")
    if errors and content["epsilon_tested"] is not None:
        data["region"] = _region(content)
        data["errors"] = _rates(errors)
        blocks.append(_trade_off())
    blocks.append(Facts(_attack(content)))
    sections = [_result(content), Section("The attack", blocks), *shared.resting(content["guarantee"])]
    sections += [_cost(content), shared.setting(config, content)]
    what = f"{config['algorithm']} on {config['dataset']}" if config else "an algorithm of Python"
    lead = f"An attack of {content['trials']:,} trials on client {content['client']}, seed {content['seed']}"
    return Report(KIND, f"Audit of {what}", lead, sections, data)


def _result(content: Mapping[str, Any]) -> Section:
    violated, sure = content["violated"], f"{100 * content['confidence']:.4g}%"
    tested = "claimed, and tested" if content["claim"] is not None else "stated, and tested"
    items = [
        ("verdict", "violated" if violated else "consistent", f"with confidence {sure}"),
        ("proved", f"≥ {content['epsilon_lower']:.4g}", "epsilon, a lower bound"),
        (
            "claimed" if content["claim"] is not None else "promised",
            f"≤ {told(content['epsilon_tested'])}",
            f"epsilon, {tested}",
        ),
        ("delta", told(content["delta"]), "of both"),
    ]
    lines = [shared.sentence(content["verdict"])]
    blocks: list[Block] = [Tiles(items), Prose(lines, "Violated" if violated else "")]
    if content["contradiction"]:
        blocks.append(Prose([shared.sentence(f"Inspection of the parts: {content['contradiction']}")], "Violated"))
    blocks += shared.promise(content["guarantee"])
    return Section("Result", blocks)


def _epsilons(content: Mapping[str, Any]) -> Rows:
    """Every epsilon on one axis, and what kind of number it is."""
    found: Rows = [
        {"what": "proved (stated kind)", "kind": LOWER, "epsilon": content["epsilon_lower"]},
        {
            "what": "proved (any kind)",
            "kind": LOWER,
            "epsilon": content["epsilon_lower_of_any_mechanism"],
        },
        {"what": "promised", "kind": UPPER, "epsilon": content["epsilon_stated"]},
    ]
    if content["claim"] is not None:
        found.append({"what": "claimed, tested", "kind": CLAIM, "epsilon": content["claim"]})
    refuted = set(content["refuted_claims"])
    for claim in content["guarantee"]["claims"]:
        if claim["epsilon"] is not None:
            ending = ", refuted here" if claim["statement"] in refuted else ""
            found.append({"what": f"{claim['source']}{ending}", "kind": CLAIM, "epsilon": claim["epsilon"]})
    return found


LOWER, UPPER, CLAIM = "lower bound, proved", "upper bound, promised", "claim"
KINDS = [LOWER, UPPER, CLAIM]


def _figure(rows: Rows) -> Figure:
    about = (
        "A lower bound to the right of the promise breaks it; the verdict looks at the whole mechanism beside. One "
        "bound takes noise and sampling to be of the stated kind, and only their size to be in doubt; the other holds "
        "for any mechanism."
    )
    kinds = [kind for kind in KINDS if any(row["kind"] == kind for row in rows)]
    kind = {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": kinds},
        "legend": charts.LEGEND | {"symbolType": "circle"},
    }
    y = {"field": "what", "type": "nominal", "title": None, "sort": None, "axis": {"labelLimit": 170, "ticks": False}}
    x = {"field": "epsilon", **charts.axis("epsilon (nats)")}
    spec = charts.chart(
        height=34 * len(rows),
        data={"name": "epsilons"},
        transform=[{"filter": "isValid(datum.epsilon)"}],
        encoding={"y": y, "color": kind},
        layer=[
            {
                "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.6, "aria": False},
                "encoding": {"x": x | {"field": "epsilon"}, "x2": {"datum": 0}},
            },
            {
                "mark": charts.POINT | {"size": 110},
                "encoding": {
                    "x": x,
                    "shape": {"field": "kind", "type": "nominal", "scale": {"domain": kinds}, "legend": kind["legend"]},
                    "tooltip": charts.tips(("what", "what", ""), ("kind", "kind", ""), ("epsilon", "epsilon", ".4g")),
                },
            },
        ],
    )
    return Figure("epsilons", "Lower bounds against the promise", about, spec, "epsilons")


def _region(content: Mapping[str, Any]) -> Rows:
    """The least error rates that (epsilon, delta) leaves any attack, for what is promised and what is proved."""
    delta = content["delta"]
    curves = {
        "allowed by what is promised": content["epsilon_tested"],
        "allowed by what is proved": content["epsilon_lower_of_any_mechanism"],
    }
    rates = [place / (POINTS - 1) for place in range(POINTS)]
    return [
        {"curve": name, "false_positive": rate, "false_negative": least_error(epsilon, delta, rate)}
        for name, epsilon in curves.items()
        for rate in rates
    ]


def least_error(epsilon: float, delta: float, rate: float) -> float:
    """The least rate of missed canaries at this rate of false alarms (Kairouz et al. 2015, Theorem 2.1)."""
    factor = math.exp(min(epsilon, LARGEST))
    return max(0.0, 1 - delta - factor * rate, (1 - delta - rate) / factor)


def _rates(errors: Mapping[str, Any]) -> Rows:
    """How often the attack erred, and what that bounds."""
    rows = [
        {
            "what": SEEN,
            "false_positive": errors["false_positives"] / errors["negatives"],
            "false_negative": errors["false_negatives"] / errors["positives"],
        }
    ]
    if errors["mean"] is None:
        bounds = errors["false_positive"], errors["false_negative"]
    else:  # the joint test knows a bound on the mean alone, which refutes as if both rates were it
        bounds = errors["mean"], errors["mean"]
    rows.append({"what": AT_MOST, "false_positive": bounds[0], "false_negative": bounds[1]})
    return rows


def _trade_off() -> Figure:
    about = (
        "How often the attack saw a canary that was not there, and missed one that was. An attack below the lower "
        "curve would break the promise. The Guarantee's own curve lies above it: it knows the mechanism."
    )
    x = {"field": "false_positive", **charts.axis("false alarms", ".0%", domain=[0, 1])}
    y = {"field": "false_negative", **charts.axis("missed canaries", ".0%", domain=[0, 1])}
    names = ["allowed by what is promised", "allowed by what is proved"]
    curve = {"field": "curve", "type": "nominal", "scale": {"domain": names}, "legend": charts.LEGEND}
    dashes = {
        "field": "curve",
        "type": "nominal",
        "scale": {"domain": names, "range": charts.DASHES[:2]},
        "legend": charts.LEGEND,
    }
    tips = charts.tips(
        ("what", "rates", ""), ("false_positive", "false alarms", ".2%"), ("false_negative", "missed", ".2%")
    )
    shape = {
        "field": "what",
        "type": "nominal",
        "scale": {"domain": [SEEN, AT_MOST], "range": ["circle", "diamond"]},
        "legend": charts.LEGEND | {"symbolType": "circle"},
    }
    spec = charts.chart(
        height=320,
        layer=[
            {
                "data": {"name": "region"},
                "mark": {"type": "line", "strokeWidth": 2, "aria": False},
                "encoding": {"x": x, "y": y, "color": curve, "strokeDash": dashes},
            },
            {
                "data": {"name": "errors"},
                "mark": charts.POINT | {"size": 110, "color": "#c23b4b"},
                "encoding": {"x": x, "y": y, "shape": shape, "tooltip": tips},
            },
        ],
    )
    return Figure("errors", "Error rates of the attack", about, spec, "errors")


def _attack(content: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What was done, in facts."""
    facts: list[tuple[str, Any]] = [
        ("audited client", content["client"]),
        ("canary", content["canary"]),
        ("attack", content.get("attack")),
        ("other gradients", content.get("others")),
        ("trials", content["trials"]),
        ("used to choose the attack", content.get("pilot_trials")),
        (
            "the noise is at most",
            None if content["noise_at_most"] is None else f"{content['noise_at_most']:.3g} times what is stated",
        ),
    ]
    errors = content.get("errors")
    if errors:
        facts.append(("canary seen without one", f"{errors['false_positives']:,} of {errors['negatives']:,}"))
        facts.append(("canary missed", f"{errors['false_negatives']:,} of {errors['positives']:,}"))
    if "guesses" in content:
        facts.append(("right guesses", f"{content['correct']:,} of {content['guesses']:,}"))
        facts.append(("canaries", content["canaries"]))
    return [(label, value) for label, value in facts if value is not None]


def _cost(content: Mapping[str, Any]) -> Section:
    blocks: list[Block] = [Facts([("time in all", seconds(content["seconds"])), ("repeat", content["repeat"])])]
    if content["refuted_claims"]:
        rows = [[line] for line in content["refuted_claims"]]
        blocks.append(Grid("Claims of papers that the lower bound contradicts", ["claim"], rows))
    return Section("Time, and how to repeat it", blocks)
