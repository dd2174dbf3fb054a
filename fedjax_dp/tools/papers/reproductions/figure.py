"""Figures of a reproduction: published and reproduced numbers."""

import functools
import os
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedjax_dp.tools.figures import canvas, elements, styles
from fedjax_dp.tools.figures.styles import PALETTE, SMALL
from fedjax_dp.tools.papers.reproductions.measures import MEASURES
from fedjax_dp.tools.papers.reproductions.recipe import READINGS
from fedjax_dp.tools.papers.reproductions.reproduction import Reproduction
from fedjax_dp.tools.papers.reproductions.rows import ResultRow, abouts

READ: dict[str, dict[str, Any]] = {"literal": {"ls": "--", "mfc": "none", "alpha": 0.75}, "correct": {}}
PUBLISHED: dict[str, Any] = {"marker": "D", "ls": "none", "ms": 6}
DPI = 160
# Numbers of panels and columns, inches, and the function that draws.
Drawing = tuple[tuple[int, int], tuple[float, float], Callable[[canvas.Page], None]]


def draw(done: Reproduction, path: str | os.PathLike[str] | None = None, **look: Unpack[canvas.Look]) -> Figure:
    """Draw one picture with a panel for each metric and panel of the recipe. `look` is ax, size and style.

    Single numbers have one panel for each metric, features one for each panel and line of the recipe.
    """
    panels = [group for group in done.recipe.panels if any(row.place.panel == group.key for row in done.rows)]
    kinds = {"final": _dots, "features": _clouds}
    shape, size, fill = kinds.get(done.recipe.figure, _curves)(done, panels)
    arrange = functools.partial(_grid, *shape)
    with canvas.page(path, look, size, shape[0], arrange, dpi=DPI) as page:
        fill(page)
        page.title(f"{done.recipe.source}: {done.recipe.title}")
        scale = f"scale {done.scale.name}, {len(done.seeds)} seed{'s' * (len(done.seeds) != 1)}"
        spread = ["bands and bars: one standard deviation over seeds"] * (len(done.seeds) > 1)
        page.note(
            "; ".join([scale, *spread, *(f"epsilon at delta {delta:g}, {about}" for delta, about in abouts(done.rows))])
        )
    return page.figure


def _grid(panels: int, columns: int, figure: Any) -> list[Any]:
    """Panels in rows; the rest of the last row stays empty."""
    rows = -(-panels // columns)
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis in axes[panels:]:
        axis.remove()
    return list(axes[:panels])


def _dots(done: Reproduction, groups: Sequence[Any]) -> Drawing:
    """Draw one value for each line, with readings and the published number side by side."""
    metrics = done.recipe.metrics
    height = 1.3 + 0.24 * sum(1 for row in done.rows if row.metric == metrics[0]) + 0.3 * len(groups)

    def fill(page: canvas.Page) -> None:
        for axis, metric in zip(page.panels, metrics, strict=True):
            _dot_panel(axis, done, groups, metric)
        page.legend(_handles(done.rows))

    return (len(metrics), len(metrics)), (7.6 * len(metrics), max(height, 3.2)), fill


def _dot_panel(axis: Any, done: Reproduction, groups: Sequence[Any], metric: str) -> None:
    """Draw a metric of all lines, under the names of their panels."""
    at, ticks, labels = 0.0, [], []
    keys = [line.key for line in done.recipe.lines]
    for group in groups:
        head = {"transform": axis.get_yaxis_transform(), "fontweight": "bold", "fontsize": SMALL, "va": "center"}
        axis.text(0.01, at + 0.1, group.title, **head)
        at -= 0.75
        for row in (row for row in done.rows if row.metric == metric and row.place.panel == group.key):
            rank = keys.index(row.place.line)
            _dot_row(axis, row, at, PALETTE[rank % len(PALETTE)])
            ticks.append(at)
            x, title = row.place.x, done.recipe.lines[rank].title
            labels.append(title if x is None else f"{title}, {x}")
            at -= 0.75
        at -= 0.25
    axis.set_yticks(ticks, labels=labels, fontsize=SMALL)
    axis.set_ylim(at, 0.7)
    axis.set_xlabel(MEASURES[metric].label)
    axis.grid(axis="x", alpha=0.3)


def _clouds(done: Reproduction, groups: Sequence[Any]) -> Drawing:
    """Draw features of a few clients in the plane, with a colour and a marker for each client."""
    shown = {place: cloud for (place, reading), cloud in done.clouds.items() if reading == "correct"}
    columns = len({place.panel for place in shown})
    order = [group.key for group in (*done.recipe.lines, *done.recipe.panels)]
    titles = done.recipe.titles

    def fill(page: canvas.Page) -> None:
        places = sorted(shown, key=lambda place: (order.index(place.line), order.index(place.panel)))
        for axis, place in zip(page.panels, places, strict=True):
            cloud, points = shown[place], shown[place].map()
            for client in range(int(cloud.clients.max()) + 1):
                own = points[cloud.clients == client]
                look = {"color": PALETTE[client % len(PALETTE)], "marker": styles.line_look(client, 1)["marker"]}
                axis.scatter(*own.T, s=11, alpha=0.7, lw=0, label=f"client {client + 1}", **look)
            axis.set_title(
                f"{titles[place.panel]}, {titles[place.line]}: {cloud.separation:.0f}% between clients",
                fontsize="medium",
            )
            axis.set(xticks=[], yticks=[])
        page.legend(page.panels[0].get_legend_handles_labels()[0])

    return (len(shown), columns), (4.4 * columns + 1.2, 4.2 * len(shown) / columns + 0.8), fill


def _dot_row(axis: Any, row: ResultRow, at: float, color: Any) -> None:
    for reading, shift in zip(READINGS, (0.13, -0.13), strict=True):
        result = row.readings[reading]
        if result.mean is not None:
            look = {"marker": "o", "color": color, "ms": 5, "capsize": 2} | READ[reading]
            axis.errorbar(result.mean, at + shift, xerr=result.std or 0.0, **look)
    if row.published is not None:
        axis.errorbar(row.published, at, xerr=row.published_std or 0.0, capsize=2, color=styles.ink(), **PUBLISHED)
    if row.why and all(result.mean is None for result in row.readings.values()):
        look = {"transform": axis.get_yaxis_transform(), "fontsize": "x-small", "alpha": 0.75, "va": "center"}
        axis.text(0.02, at, textwrap.shorten(row.why, 70), **look)


def _handles(rows: Sequence[ResultRow]) -> list[Line2D]:
    handles = [Line2D([], [], color="0.5", marker="o", label=reading, **READ[reading]) for reading in READINGS]
    if any(row.published is not None for row in rows):
        handles.insert(0, Line2D([], [], label="published", color=styles.ink(), **PUBLISHED))
    return handles


def _curves(done: Reproduction, groups: Sequence[Any]) -> Drawing:
    """Draw a metric against rounds or x, one line for each method, in up to four columns."""
    metrics = done.recipe.metrics
    columns = min(len(groups), 4)
    places = [(metric, group) for metric in metrics for group in groups]

    def fill(page: canvas.Page) -> None:
        for axis, (metric, group) in zip(page.panels, places, strict=True):
            _curve_panel(axis, done, metric, group)
        lines = [group for group in done.recipe.lines if any(row.place.line == group.key for row in done.rows)]
        looks = [_line_look(done, group.key) for group in lines]
        handles = [Line2D([], [], label=line.title, **look) for line, look in zip(lines, looks)]
        page.legend([*handles, *_handles(done.rows)])

    deep = -(-len(places) // columns)
    return (len(places), columns), (max(4.2 * columns, 6.4), 3.4 * deep + 1.0), fill


def _line_look(done: Reproduction, key: str) -> dict[str, Any]:
    """Colour, marker and width of a line; the reading sets its dashes."""
    rank = [group.key for group in done.recipe.lines].index(key)
    look = styles.line_look(rank, len(done.recipe.lines)) | {"ls": "-"}
    return look | {"color": PALETTE[rank % len(PALETTE)], "mew": 1.0}


def _curve_panel(axis: Any, done: Reproduction, metric: str, group: Any) -> None:
    """Draw a metric of one panel of the recipe, or write why there is none."""
    rows = [row for row in done.rows if row.metric == metric and row.place.panel == group.key]
    axis.set_title(group.title, fontsize="medium")
    axis.set_ylabel(MEASURES[metric].label, fontsize=SMALL)
    axis.grid(alpha=0.3)
    if all(result.mean is None for row in rows for result in row.readings.values()):
        why = "\n".join(textwrap.wrap(rows[0].why, 36))
        axis.text(0.5, 0.5, why, transform=axis.transAxes, ha="center", va="center", fontsize=SMALL, alpha=0.75)
        axis.set(xticks=[], yticks=[], ylabel="")
    elif done.recipe.figure == "rounds":
        _against_rounds(axis, rows, done)
    else:
        _against_x(axis, rows, done, group)


def _against_rounds(axis: Any, rows: Sequence[ResultRow], done: Reproduction) -> None:
    values = list(dict.fromkeys(row.place.x for row in rows))
    curves = [(row, reading) for row in rows for reading in READINGS if row.readings[reading].curve]
    for rank, (row, reading) in enumerate(curves):
        strength = 0.35 + 0.65 * (values.index(row.place.x) + 1) / len(values)
        at, means, stds = (np.array(part, float) for part in zip(*row.readings[reading].curve, strict=True))
        look = _line_look(done, row.place.line) | READ[reading]
        look["alpha"] = strength * READ[reading].get("alpha", 1.0)
        every = styles.marks(len(at), rank, len(curves))
        axis.plot(at, means, markevery=every, **look)
        if any(stds):
            elements.interval(axis, at, means, means - stds, means + stds, look["color"], len(curves), every)
        if len(values) > 1 and reading == "correct":
            x = row.place.x
            label = f"{x:g}" if isinstance(x, float | int) else str(x)
            axis.annotate(label, (at[-1], means[-1]), fontsize="x-small", color=look["color"])
    for row in rows:
        if row.published is not None:
            last = max((point[0] for result in row.readings.values() for point in result.curve), default=1)
            color = _line_look(done, row.place.line)["color"]
            axis.plot([last], [row.published], clip_on=False, color=color, **PUBLISHED)
    axis.set_xlabel("round")
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _against_x(axis: Any, rows: Sequence[ResultRow], done: Reproduction, panel: Any) -> None:
    places = list(dict.fromkeys(row.place.x for row in rows))
    numbers = [x for x in places if isinstance(x, int | float)]
    numeric = len(numbers) == len(places)
    heights = [result.mean for row in rows for result in row.readings.values() if result.mean is not None]
    position = {x: (x if numeric else places.index(x)) for x in places}
    for key in dict.fromkeys(row.place.line for row in rows):
        look = _line_look(done, key)
        own = [row for row in rows if row.place.line == key]
        for reading in READINGS:
            known = [
                (position[row.place.x], result.mean, result.std or 0.0)
                for row in own
                if (result := row.readings[reading]).mean is not None
            ]
            if known:
                at, means, stds = zip(*known, strict=True)
                axis.errorbar(at, means, yerr=stds, capsize=2, elinewidth=0.9, **look | READ[reading])
        published = [(position[row.place.x], row.published) for row in own if row.published is not None]
        if published:
            axis.plot(*zip(*published, strict=True), color=look["color"], **PUBLISHED)
    if numeric and _spread(numbers):
        axis.set_xscale("log")
    if MEASURES[rows[0].metric].better < 0 and _spread(heights):  # errors, of which the smallest matter
        axis.set_yscale("log")
    if not numeric:
        axis.set_xticks(range(len(places)), labels=list(map(str, places)))
    along = panel.options.get("along", done.recipe.along)
    axis.set_xlabel((along or "").replace("_", " "))


def _spread(numbers: Sequence[float]) -> bool:
    """Whether numbers are positive and so far apart that a linear axis would hide the small ones."""
    return min(numbers) > 0 and max(numbers) / min(numbers) > 20
