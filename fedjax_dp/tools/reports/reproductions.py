"""The report of a reproduction: the folder that `fedjax-dp reproduce` writes, or its `table.json`."""

import base64
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from fedjax_dp import folders
from fedjax_dp.display import count, duration
from fedjax_dp.tools.papers.reproductions import tables
from fedjax_dp.tools.papers.reproductions.recipe import READINGS, read_recipe, recipes
from fedjax_dp.tools.reports import charts, shared
from fedjax_dp.tools.reports.contents import (
    Block,
    FactList,
    Figure,
    Grid,
    Listing,
    Picture,
    Report,
    Rows,
    Section,
    Tiles,
    in_words,
)

KIND, FOLDER = "reproduction", "table.json"
KEYS = frozenset({"recipe", "source", "rows", "claims", "scale"})
PICTURE, MOST = "figure.png", 400_000  # bytes of a picture that is embedded
MEANS = {
    "literal": "with the paper's recipe",
    "correct": "with correct accounting and the same budget",
    "published": "in the paper",
}


def of_folder(path: pathlib.Path) -> Report:
    """The report of a reproduction's folder, with its picture if that is small enough."""
    report = of_content(folders.read_json(path / FOLDER))
    picture = path / PICTURE
    if not picture.is_file() or picture.stat().st_size > MOST:
        return report
    address = "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
    about = f"The figure as fedjax-dp reproduce draws it: {report.title}. Its numbers are in the table above."
    drawn = Section("The figure as drawn", [Picture("Figure", about, address)])
    return report._replace(sections=[*report.sections[:2], drawn, *report.sections[2:]])


def of_content(content: Mapping[str, Any]) -> Report:
    known = content["recipe"] in recipes()  # by this version
    titles = read_recipe(content["recipe"]).titles if known else {}
    values, curves = _values(content, titles), _curves(content, titles)
    data: dict[str, Rows] = {"values": values}
    blocks: list[Block] = [_value_figure(content, values)]
    if curves:
        data["by_round"] = curves
        label, _ = tables.measure(content["rows"][0]["metric"])
        panels = dict.fromkeys(row["panel"] for row in curves)
        blocks += [_curve_figure(label, curves, panel, place) for place, panel in enumerate(panels)]
    for table in tables.metric_tables(content["rows"], titles):
        blocks.append(Grid(f"{table.label}: published, literal and correct", table.columns, table.rows))
    sections = [_result(content), Section("Published, literal, correct", blocks)]
    sections += [Section("Notes on the numbers", [Listing(content["notes"])]), _cost(content)]
    common = shared.common([one["fields"] for one in content["configurations"]])
    sections.append(shared.setting(common, content, "Fields that all runs share"))
    lead = f"{content['source']} at scale {content['scale']}, {count(len(content['seeds']), 'seed')}"
    return Report(KIND, f"{content['recipe']}: {content['title']}", lead, sections, data)


def _result(content: Mapping[str, Any]) -> Section:
    rows, claims = content["rows"], content["claims"]
    compared = [row for row in rows if row["published"] is not None]
    agree = sum(row["verdicts"]["correct"] == "reproduced" for row in rows)
    literal = sum(row["verdicts"]["literal"] == "reproduced" for row in rows)
    hold = [claim for claim in claims if claim["cases"]]
    items = [
        ("numbers", in_words(len(rows)), f"{count(len(compared), 'number')} published"),
        ("reproduced, correct", in_words(agree), "with correct accounting"),
        ("reproduced, literal", in_words(literal), "with the paper's recipe"),
        (
            "claims that hold",
            f"{sum(one['verdict'] == 'holds' for one in hold)} of {len(hold)}",
            "of the claims that could be compared",
        ),
    ]
    blocks: list[Block] = [Tiles(items)]
    if claims:
        table = [
            [claim["statement"], claim["reading"], f"{claim['holds']} of {claim['cases']}", claim["verdict"]]
            for claim in claims
        ]
        blocks.append(Grid("The paper's claims about the order", ["claim", "reading", "cases", "here"], table))
    return Section("Result", blocks)


def _values(content: Mapping[str, Any], titles: Mapping[str, str]) -> Rows:
    """A row for each number: published, literal, correct."""
    rows: Rows = []
    for row in content["rows"]:
        panel, line, x = tables.where(row, titles)
        label = f"{panel}: {line}" + (f", at {x}" if row["x"] is not None else "")
        numbers = {"published": (row["published"], row["published_std"], None)}
        numbers |= {name: (row[name]["mean"], row[name]["std"], row[name]["epsilon"]) for name in READINGS}
        for reading, (mean, std, epsilon) in numbers.items():
            if mean is not None:
                low, high = (None, None) if not std else (mean - std, mean + std)
                one = {"what": label, "metric": row["metric"], "reading": reading}
                rows.append(one | {"value": mean, "low": low, "high": high, "epsilon": epsilon})
    return rows


def _curves(content: Mapping[str, Any], titles: Mapping[str, str]) -> Rows:
    """The curves by round of both readings, of the first metric."""
    rows: Rows = []
    first = content["rows"][0]["metric"] if content["rows"] else ""
    for row in content["rows"]:
        panel, line, x = tables.where(row, titles)
        label = line + (f", at {x}" if row["x"] is not None else "")
        if row["metric"] != first:
            continue
        for reading in READINGS:
            for at, mean, std in row[reading]["curve"]:
                finite = mean is not None and math.isfinite(mean)
                one = {"panel": panel, "method": label, "reading": reading, "round": at}
                rows.append(one | {"value": mean if finite else None, "std": std})
    return rows


def _value_figure(content: Mapping[str, Any], values: Rows) -> Figure:
    metric = values[0]["metric"] if values else ""
    label, _ = tables.measure(metric)
    names, rows = ["published", *READINGS], {row["what"] for row in values if row["metric"] == metric}
    reading = charts.names("reading", names, "circle")
    tips = charts.tips("what", "reading", ("value", label, ".4g"), ("epsilon", "epsilon", ".4g"))
    low, value = (charts.axis(field, label, zero=False) for field in ("low", "value"))
    spec = charts.chart(
        height=26 * max(len(rows), 1),
        data={"name": "values"},
        transform=[{"filter": {"field": "metric", "equal": metric}}],
        encoding={"y": charts.rows_of_names("what", 215, labelFontSize=11, grid=True), "color": reading},
        layer=[
            charts.rule(2, 0.6, "low", x=low, x2={"field": "high"}),
            charts.points(80, tips, x=value, shape=reading),
        ],
    )
    about = "; ".join(f"{name}: {MEANS[name]}" for name in names) + ". Bars are one standard deviation over seeds."
    return Figure("values", shared.capital(label), about, spec, "values")


def _curve_figure(label: str, curves: Rows, panel: str, place: int) -> Figure:
    lines = list(dict.fromkeys(row["method"] for row in curves))
    tips = charts.tips("panel", "method", "reading", ("round", "round", ",d"), ("value", label, ".4g"))
    spec = charts.chart(
        height=320,
        data={"name": "by_round"},
        transform=[{"filter": "isValid(datum.value)"}, {"filter": {"field": "panel", "equal": panel}}],
        encoding={
            "x": charts.ROUND,
            "y": charts.axis("value", label, zero=False),
            "color": charts.names("method", lines),
        },
        layer=[
            charts.line(1.8, strokeDash=charts.names("reading", READINGS, range=[[7, 3], [1, 0]])),
            charts.points(14, tips),
        ],
    )
    about = f"{shared.capital(label)}. The literal reading is dashed, the correct one solid."
    return Figure(f"curves-{place}", f"{panel}, by round", about, spec, "by_round")


def _cost(content: Mapping[str, Any]) -> Section:
    time = content["seconds_of_runs"]  # in whole tenths
    facts = [("runs", content["runs"]), ("time of all runs", duration(time) if time else "below 0.1 s")]
    facts.append(("date", content["date"]))
    return Section("Time", [FactList(facts)])
