"""Vega-Lite: the shapes of figures that several reports share. Colours, fonts and sizes are the page's."""

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


def chart(**parts: Any) -> Spec:
    """A figure as wide as the page lets it be."""
    return {"width": "container", "height": HEIGHT, "autosize": {"type": "fit-x", "contains": "padding"}, **parts}


def axis(title: str, number: str = "", zero: bool = True, **scale: Any) -> Spec:
    """What a quantitative channel has beside its field; `number` is a format of D3."""
    return {
        "type": "quantitative",
        "title": title,
        "axis": {"format": number} if number else {},
        "scale": {"zero": zero, **scale},
    }


def curves(data: str, fields: Mapping[str, str], y: Spec, number: str = ".4g") -> Spec:
    """Fields of rows against their round, a line each, told apart by colour and dashes; gaps where a field is null."""
    names = list(fields.values())
    several = len(names) > 1
    colour: Spec = {
        "field": "curve",
        "type": "nominal",
        "scale": {"domain": names},
        "legend": LEGEND if several else None,
    }
    dashes: Spec = {"field": "curve", "type": "nominal", "scale": {"domain": names, "range": DASHES[: len(names)]}}
    encoding = {"x": ROUND, "y": {"field": "value", **y}, "color": colour}
    return chart(
        data={"name": data},
        transform=[
            {"fold": list(fields), "as": ["field", "value"]},
            {"filter": "isValid(datum.value)"},
            {"calculate": choice(fields), "as": "curve"},
        ],
        encoding=encoding,
        layer=[
            {
                "mark": {"type": "line", "aria": False, "strokeWidth": 2},
                "encoding": {"strokeDash": dashes | {"legend": LEGEND if several else None}},
            },
            {
                "mark": POINT,
                "encoding": {
                    "tooltip": [
                        {"field": "round", "type": "quantitative", "title": "round", "format": ",d"},
                        {"field": "curve", "type": "nominal", "title": "curve"},
                        {"field": "value", "type": "quantitative", "title": y["title"], "format": number},
                    ]
                },
            },
        ],
    )


DASHES: Sequence[list[int]] = ([1, 0], [7, 3], [2, 3], [9, 3, 2, 3], [4, 2])


def choice(names: Mapping[str, str]) -> str:
    """An expression for what the field of a row is called."""
    found = "datum.field"
    for field, name in names.items():
        found = f"datum.field === {json.dumps(field)} ? {json.dumps(name)} : {found}"
    return found


def tips(*fields: tuple[str, str, str]) -> list[Spec]:
    """Tooltips: field, title, and a format of D3 or nothing for words."""
    return [
        {"field": field, "title": title}
        | ({"type": "quantitative", "format": number} if number else {"type": "nominal"})
        for field, title, number in fields
    ]
