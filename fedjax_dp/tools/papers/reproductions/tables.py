"""A reproduction as Markdown, CSV and JSON."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_dp import display
from fedjax_dp.tools.papers.reproductions.measures import MEASURES
from fedjax_dp.tools.papers.reproductions.recipe import READINGS, Recipe
from fedjax_dp.tools.papers.reproductions.rows import ReadingResult, ResultRow


class MetricTable(NamedTuple):
    """The rows of one metric as texts."""

    label: str
    columns: list[str]
    rows: list[list[str]]


def metric_tables(rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> list[MetricTable]:
    """A table for each metric.

    rows    as `table.json` holds them, see `to_dict`;
    titles  of panels and lines by their keys, if known.
    """
    along = any(row["x"] is not None for row in rows)
    measured = [name for reading in READINGS for name in (reading, f"{reading}'s epsilon")]
    columns = ["panel", "method", *(["at"] if along else []), "published", *measured, "verdict"]
    tables = []
    for metric in dict.fromkeys(row["metric"] for row in rows):
        label, digits = measure(metric)
        texts = []
        for row in (row for row in rows if row["metric"] == metric):
            panel, line, x = where(row, titles)
            cells = [_number(row["published"], row["published_std"], digits)]
            for reading in READINGS:
                result = row[reading]
                cells += [_number(result["mean"], result["std"], digits), _epsilon(result)]
            texts.append([panel, line, *([x] if along else []), *cells, row["verdict"]])
        tables.append(MetricTable(label, columns, texts))
    return tables


def measure(metric: str) -> tuple[str, int]:
    """The label of a metric and its number of decimals."""
    return (MEASURES[metric].label, MEASURES[metric].digits) if metric in MEASURES else (metric, 3)


def where(row: Mapping[str, Any], titles: Mapping[str, str]) -> tuple[str, str, str]:
    """Panel, line and x of a row in words; x is empty if nothing varies."""
    panel, line, x = row["panel"], row["line"], row["x"]
    shown = "" if x is None else f"{x:g}" if isinstance(x, int | float) else str(x)
    return titles.get(panel, panel), titles.get(line, line), shown


def _number(mean: float | None, std: float | None, digits: int) -> str:
    if mean is None:
        return "-"
    return f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if std else "")


def _epsilon(result: Mapping[str, Any]) -> str:
    if result["mean"] is None or result["private"] is None:
        return "-"
    if not result["private"]:
        return "none"
    once = result.get("round_epsilon")
    once_text = "" if once is None else f" ({display.upward(once, 3)} a round)"
    return display.upward(result["epsilon"], 3) + once_text


def markdown(content: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """The tables of a `table.json`, one for each metric, with notes below."""
    parts = [f"# {content['source']}: {content['title']}"]
    for table in metric_tables(content["rows"], titles):
        lines = [table.columns, ["---"] * len(table.columns), *table.rows]
        parts.append(f"{table.label}\n\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    if content["claims"]:
        claimed = ["| {statement} | {reading} | {verdict} |".format(**claim) for claim in content["claims"]]
        parts.append("\n".join(["| claim | reading | here |", "| --- | --- | --- |", *claimed]))
    parts.append("\n".join(f"- {note}" for note in content["notes"]))
    return "\n\n".join(parts) + "\n"


def comma_separated(recipe: Recipe, rows: Sequence[ResultRow]) -> str:
    """Every row with all its numbers."""
    header = ["panel", "line", "x", "metric", "published", "published_std"]
    parts = ("mean", "std", "seeds", "epsilon", "round_epsilon", "delta", "about", "verdict")
    header += [f"{reading}_{part}" for reading in READINGS for part in parts]
    lines = []
    for row in rows:
        cells: list[Any] = [*row.place, row.metric, row.published, row.published_std]
        for reading in READINGS:
            cells += [getattr(row.readings[reading], part) for part in parts[:-1]] + [row.verdicts[reading]]
        lines.append([*cells, row.why])
    return display.comma_separated([*header, "why"], lines)


def to_dict(row: ResultRow) -> dict[str, Any]:
    """For JSON: an infinite epsilon is null with `private` false; `private` is null if epsilon is unknown."""

    def to_dict_of(result: ReadingResult) -> dict[str, Any]:
        epsilon = result.epsilon
        private = None if epsilon is None or math.isnan(epsilon) else math.isfinite(epsilon)
        return result._asdict() | {"epsilon": display.finite(epsilon), "private": private}

    return {
        **row.place._asdict(),
        "metric": row.metric,
        "published": row.published,
        "published_std": row.published_std,
        **{reading: to_dict_of(result) for reading, result in row.readings.items()},
        "verdicts": dict(row.verdicts),
        "verdict": row.verdict,
    }
