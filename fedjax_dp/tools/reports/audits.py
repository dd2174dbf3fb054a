"""The report of an audit: the JSON object that `fedjax-dp audit --json` prints."""

from collections.abc import Mapping
from typing import Any

from fedjax_dp.display import downward, duration, upward
from fedjax_dp.tools.figures.tables import audits as tables
from fedjax_dp.tools.reports import charts, shared
from fedjax_dp.tools.reports.contents import (
    Block,
    FactList,
    Figure,
    Grid,
    Prose,
    Report,
    Rows,
    Section,
    Tiles,
    in_words,
)

KIND = "audit"
KEYS = frozenset({"violated", "verdict", "epsilon_stated", "epsilon_lower", "guarantee", "trials"})


def of_content(content: Mapping[str, Any]) -> Report:
    config = content.get("config") or {}
    data: dict[str, Rows] = {"epsilons": tables.epsilons(content)}
    blocks: list[Block] = [_figure(data["epsilons"])]
    errors = tables.errors(content)
    if errors and content["epsilon_tested"] is not None:
        data |= {"region": tables.regions(content), "errors": errors}
        blocks.append(_trade_off())
    blocks.append(FactList(_attack(content)))
    sections = [_result(content), Section("The attack", blocks), *shared.guarantee_sections(content["guarantee"])]
    sections += [_cost(content), shared.setting(config, content)]
    what = f"{config['algorithm']} on {config['dataset']}" if config else "an algorithm written in Python"
    lead = f"An attack of {content['trials']:,} trials on client {content['client_name']}, seed {content['seed']}"
    return Report(KIND, f"Audit of {what}", lead, sections, data)


def _result(content: Mapping[str, Any]) -> Section:
    violated, sure = content["violated"], f"{100 * content['confidence']:.4g}%"
    tested = "claimed and tested" if content["claim"] is not None else "stated and tested"
    items = [
        ("verdict", "violated" if violated else "consistent", f"with confidence {sure}"),
        ("proved", f"≥ {downward(content['epsilon_lower'])}", "epsilon, a lower bound"),
        (
            "claimed" if content["claim"] is not None else "promised",
            f"≤ {upward(content['epsilon_tested'])}",
            f"epsilon, {tested}",
        ),
        ("delta", in_words(content["delta"]), "of both bounds"),
    ]
    lines = [shared.sentence(content["verdict"].removeprefix("VIOLATED: "))]
    blocks: list[Block] = [Tiles(items), Prose(lines, "Violated" if violated else "")]
    if content["contradiction"]:
        blocks.append(Prose([shared.sentence(f"Inspection of the parts: {content['contradiction']}")], "Violated"))
    blocks += shared.promise(content["guarantee"])
    return Section("Result", blocks)


def _figure(rows: Rows) -> Figure:
    about = (
        "A lower bound to the right of the promise breaks it; the verdict also compares the error rates. The bound for "
        "the stated kind trusts the kind of noise and sampling and tests only their size. The other bound holds for "
        "any mechanism."
    )
    kinds = [kind for kind in tables.KINDS if any(row["kind"] == kind for row in rows)]
    kind = charts.names("kind", kinds, "circle")
    x, tips = charts.axis("epsilon", "epsilon (nats)"), charts.tips("what", "kind", ("epsilon", "epsilon", ".4g"))
    spec = charts.chart(
        height=34 * len(rows),
        data={"name": "epsilons"},
        transform=[{"filter": "isValid(datum.epsilon)"}],
        encoding={"y": charts.rows_of_names("what", 170), "color": kind},
        layer=[charts.rule(3, 0.6, x=x, x2={"datum": 0}), charts.points(110, tips, x=x, shape=kind)],
    )
    return Figure("epsilons", "Lower bounds against the promise", about, spec, "epsilons")


def _trade_off() -> Figure:
    about = (
        "How often the attack reported a canary that was absent, and missed one that was present. An attack below the "
        "lower curve would break the promise. The curve of the Guarantee lies higher, since it knows the mechanism."
    )
    x = charts.axis("false_positive", "false alarms", ".0%", domain=[0, 1])
    y = charts.axis("false_negative", "missed canaries", ".0%", domain=[0, 1])
    curve = charts.names("curve", tables.CURVES)
    dashes = charts.names("curve", tables.CURVES, range=charts.DASHES[:2])
    tips = charts.tips(
        ("what", "rates", ""), ("false_positive", "false alarms", ".2%"), ("false_negative", "missed", ".2%")
    )
    shape = charts.names("what", [tables.COUNTED, tables.AT_MOST], "circle", range=["circle", "diamond"])
    red = {"value": "#c23b4b"}
    spec = charts.chart(
        height=320,
        layer=[
            {"data": {"name": "region"}, **charts.line(x=x, y=y, color=curve, strokeDash=dashes)},
            {"data": {"name": "errors"}, **charts.points(110, tips, x=x, y=y, color=red, shape=shape)},
        ],
    )
    return Figure("errors", "Error rates of the attack", about, spec, "errors")


def _attack(content: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The settings of the attack and its counts."""
    facts: list[tuple[str, Any]] = [
        ("audited client", content["client_name"]),
        ("canary", content["canary"]),
        ("attack", content.get("attack")),
        ("gradients of other records", content.get("others")),
        ("trials", content["trials"]),
        ("trials that chose the attack", content.get("pilot_trials")),
        (
            "noise at most",
            None if content["noise_at_most"] is None else f"{content['noise_at_most']:.3g} times what is stated",
        ),
    ]
    errors = content.get("errors")
    if errors:
        facts.append(("false alarms", f"{errors['false_positives']:,} of {errors['negatives']:,}"))
        facts.append(("missed canaries", f"{errors['false_negatives']:,} of {errors['positives']:,}"))
    if "guesses" in content:
        facts.append(("correct guesses", f"{content['correct']:,} of {content['guesses']:,}"))
        facts.append(("canaries", content["canaries"]))
    return [(label, value) for label, value in facts if value is not None]


def _cost(content: Mapping[str, Any]) -> Section:
    blocks: list[Block] = [FactList([("total time", duration(content["seconds"])), ("repeat", content["repeat"])])]
    if content["refuted_claims"]:
        rows = [[line] for line in content["refuted_claims"]]
        blocks.append(Grid("Claims of papers that the lower bound contradicts", ["claim"], rows))
    return Section("Time, and how to repeat the audit", blocks)
