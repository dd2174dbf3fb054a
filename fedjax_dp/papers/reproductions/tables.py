"""A reproduction as Markdown, CSV and JSON."""

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from fedjax_dp.papers.reproductions.measures import MEASURES
from fedjax_dp.papers.reproductions.recipe import READINGS, Recipe
from fedjax_dp.papers.reproductions.rows import Claimed, ReadingResult, ResultRow

HEADER = ("published", "literal", "literal's epsilon", "correct", "correct's epsilon", "verdict")


def titles(recipe: Recipe, row: ResultRow) -> tuple[str, str, str]:
    """Panel, line and x of a row in words; x is empty where nothing varies."""
    panel = next(group.title for group in recipe.panels if group.key == row.place.panel)
    line = next(group.title for group in recipe.lines if group.key == row.place.line)
    x = row.place.x
    return panel, line, "" if x is None else x if isinstance(x, str) else f"{x:g}"


def texts(recipe: Recipe, row: ResultRow) -> list[str]:
    """A row in words: panel, line, x, and what HEADER names."""
    digits = MEASURES[row.metric].digits
    cells = []
    for reading in READINGS:
        result = row.readings[reading]
        cells += [_number(result.mean, result.std, digits), _epsilon(result)]
    return [*titles(recipe, row), _number(row.published, row.published_std, digits), *cells, row.verdict]


def _number(mean: float | None, std: float | None, digits: int) -> str:
    if mean is None:
        return "-"
    return f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if std else "")


def _epsilon(result: ReadingResult) -> str:
    if result.epsilon is None or result.mean is None or math.isnan(result.epsilon):
        return "-"
    if math.isinf(result.epsilon):
        return "none"
    once = "" if result.round_epsilon is None else f" ({result.round_epsilon:.3g} a round)"
    return f"{result.epsilon:.3g}{once}"


def markdown(recipe: Recipe, rows: Sequence[ResultRow], claims: Sequence[Claimed], notes: Sequence[str]) -> str:
    """The table, one per metric, with what is to be known about it underneath."""
    parts = [f"# {recipe.source}: {recipe.title}"]
    along = any(row.place.x is not None for row in rows)
    for metric in dict.fromkeys(row.metric for row in rows):
        header = ["panel", "method", *(["at"] if along else []), *HEADER]
        body = [texts(recipe, row) for row in rows if row.metric == metric]
        body = [cells if along else cells[:2] + cells[3:] for cells in body]
        lines = [header, ["---"] * len(header), *body]
        parts.append(f"{MEASURES[metric].label}\n\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    if claims:
        claimed = [f"| {claim.statement} | {claim.reading} | {claim.verdict} |" for claim in claims]
        parts.append("\n".join(["| claim | reading | here |", "| --- | --- | --- |", *claimed]))
    parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def comma_separated(recipe: Recipe, rows: Sequence[ResultRow]) -> str:
    """Every row with all its numbers."""
    header = ["panel", "line", "x", "metric", "published", "published_std"]
    parts = ("mean", "std", "seeds", "epsilon", "round_epsilon", "delta", "about", "verdict")
    header += [f"{reading}_{part}" for reading in READINGS for part in parts]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*header, "why"])
    for row in rows:
        cells: list[Any] = [*row.place, row.metric, row.published, row.published_std]
        for reading in READINGS:
            cells += [getattr(row.readings[reading], part) for part in parts[:-1]] + [row.verdicts[reading]]
        writer.writerow(["" if cell is None else cell for cell in [*cells, row.why]])
    return text.getvalue()


def to_dict(row: ResultRow) -> dict[str, Any]:
    """For JSON: an infinite epsilon is null, and `private` says so."""

    def to_dict_of(result: ReadingResult) -> dict[str, Any]:
        one = result._asdict()
        finite = result.epsilon is not None and math.isfinite(result.epsilon)
        return one | {"epsilon": result.epsilon if finite else None, "private": finite}

    return {
        **row.place._asdict(),
        "metric": row.metric,
        "published": row.published,
        "published_std": row.published_std,
        **{reading: to_dict_of(result) for reading, result in row.readings.items()},
        "verdicts": dict(row.verdicts),
        "verdict": row.verdict,
    }
