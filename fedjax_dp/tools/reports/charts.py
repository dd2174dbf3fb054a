"""Vega-Lite specs that reports share. The page sets colours, fonts and sizes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Spec = dict[str, Any]
HEIGHT = 260
LEGEND = {
    "title": None,
    "orient": "bottom",
    "direction": "vertical",
    "symbolType": "stroke",
    "labelLimit": 320,
    "symbolOpacity": 1,
}
ROUND: Spec = {
    "field": "round",
    "type": "quantitative",
    "title": "round",
    "axis": {"tickMinStep": 1, "labelExpr": "datum.value % 1 === 0 ? format(datum.value, ',d') : ''"},
}
# A transparent edge that widens what a pointer can hit.
POINT: Spec = {"type": "point", "filled": True, "size": 26, "strokeWidth": 14, "stroke": "transparent", "opacity": 1}
DASHES: Sequence[list[int]] = ([1, 0], [7, 3], [2, 3], [9, 3, 2, 3], [4, 2])


def chart(**parts: Any) -> Spec:
    """A chart as wide as the page."""
    return {"width": "container", "height": HEIGHT, "autosize": {"type": "fit-x", "contains": "padding"}, **parts}


def axis(field: str, title: str, number: str = "", zero: bool = True, **scale: Any) -> Spec:
    """A channel of numbers; `number` is a format of D3."""
    form = {"format": number} if number else {}
    return {"field": field, "type": "quantitative", "title": title, "axis": form, "scale": {"zero": zero, **scale}}


def names(field: str, domain: Sequence[str], symbol: str = "stroke", *, legend: bool = True, **scale: Any) -> Spec:
    """A channel of words in their order, by colour, dashes or shape; `symbol` is the mark in the legend."""
    shown = LEGEND | {"symbolType": symbol} if legend else None
    return {"field": field, "type": "nominal", "scale": {"domain": list(domain), **scale}, "legend": shown}


def tips(*fields: str | tuple[str, str, str]) -> list[Spec]:
    """Tooltips: field, title, and a format of D3 or nothing for words; or the name of a field of words."""
    every = ((one, one, "") if isinstance(one, str) else one for one in fields)
    return [
        {"field": field, "title": title}
        | ({"type": "quantitative", "format": number} if number else {"type": "nominal"})
        for field, title, number in every
    ]


def line(width: float = 2, **encoding: Any) -> Spec:
    """A layer of lines. Screen readers skip it, since the points carry the same data."""
    return {"mark": {"type": "line", "aria": False, "strokeWidth": width}, "encoding": encoding}


def rule(width: float, opacity: float, where: str = "", **encoding: Any) -> Spec:
    """A layer of bars between two ends, for rows whose field `where` is known."""
    known = {"transform": [{"filter": f"isValid(datum.{where})"}]} if where else {}
    mark = {"type": "rule", "strokeWidth": width, "opacity": opacity, "aria": False}
    return {**known, "mark": mark, "encoding": encoding}


def across(value: float) -> Spec:
    """A layer with one line over the whole width, drawn for every row: a separate row would lack their fields."""
    place = {"x": {"value": 0}, "x2": {"value": "width"}, "y": {"datum": value}, "color": {"value": "gray"}}
    mark = {"type": "rule", "strokeDash": [4, 3], "aria": False}
    return {"mark": mark, "encoding": place}


def points(size: float, tooltip: list[Spec], **encoding: Any) -> Spec:
    """A layer of points with tooltips."""
    return {"mark": POINT | {"size": size}, "encoding": {"tooltip": tooltip, **encoding}}


def rows_of_names(field: str, limit: int, **axis: Any) -> Spec:
    """A channel with a row for each name, in the order of the table."""
    look = {"labelLimit": limit, "ticks": False, **axis}
    return {"field": field, "type": "nominal", "title": None, "sort": None, "axis": look}


def curves(data: str, fields: Mapping[str, str], y: Spec, number: str = ".4g") -> Spec:
    """Fields against the round, one line each in its own colour and dashes; a field that is null leaves a gap."""
    several, labels = len(fields) > 1, list(fields.values())
    label = "datum.field"
    for field, name in fields.items():
        label = f"datum.field === {json.dumps(field)} ? {json.dumps(name)} : {label}"
    shown = tips(("round", "round", ",d"), "curve", ("value", y["title"], number))
    dashes = names("curve", labels, legend=several, range=DASHES[: len(labels)])
    return chart(
        data={"name": data},
        transform=[
            {"fold": list(fields), "as": ["field", "value"]},
            {"filter": "isValid(datum.value)"},
            {"calculate": label, "as": "curve"},
        ],
        encoding={"x": ROUND, "y": y | {"field": "value"}, "color": names("curve", labels, legend=several)},
        layer=[line(strokeDash=dashes), points(26, shown)],
    )
