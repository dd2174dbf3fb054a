"""Figures of a reproduction: what was published beside what was found."""

import os
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedjax_dp import pictures
from fedjax_dp.reproductions.found import Reproduction
from fedjax_dp.reproductions.measures import MEASURES
from fedjax_dp.reproductions.recipe import READINGS
from fedjax_dp.reproductions.rows import Row
from fedjax_dp.sweeps.plots.looks import PALETTE

LOOKS: dict[str, dict[str, Any]] = {
    "literal": {"ls": "--", "marker": "o", "mfc": "white", "lw": 1.3, "alpha": 0.75},
    "correct": {"ls": "-", "marker": "o", "lw": 1.8},
}
PUBLISHED: dict[str, Any] = {"marker": "D", "ls": "none", "ms": 6, "color": "black"}
DPI = 160
SMALL = 8.5
MANY = 12  # points of a curve that carry markers


def draw(done: Reproduction, path: str | os.PathLike[str] | None = None) -> Figure:
    """One picture: panels side by side, metrics one below the other."""
    panels = [group for group in done.recipe.panels if any(row.place.panel == group.key for row in done.rows)]
    if done.recipe.figure == "final":
        figure = _dots(done, panels)
    elif done.recipe.figure == "features":
        figure = _clouds(done)
    else:
        figure = _curves(done, panels)
    title = f"{done.recipe.source}: {done.recipe.title}"
    figure.suptitle("\n".join(textwrap.wrap(title, int(figure.get_figwidth() * 10))), fontsize=12)
    scale = f"scale {done.scale.name}, {len(done.seeds)} seed{'s' * (len(done.seeds) != 1)}"
    spread = ["bands and bars: one standard deviation over seeds"] * (len(done.seeds) > 1)
    told = "; ".join([scale, *spread, *_deltas(done.rows)])
    figure.supxlabel("\n".join(textwrap.wrap(told, int(figure.get_figwidth() * 14))), fontsize=SMALL, color="0.35")
    return pictures.save(figure, path, DPI)


def _deltas(rows: Sequence[Row]) -> list[str]:
    abouts = {(f.delta, f.about) for row in rows for f in row.readings.values() if f.about}
    return [f"epsilon at delta {delta:g}, {about}" for delta, about in sorted(abouts)]


def _dots(done: Reproduction, panels: Sequence[Any]) -> Any:
    """One value per line: lines below each other, readings and the published number side by side."""
    metrics = done.recipe.metrics
    height = 1.3 + 0.24 * sum(1 for row in done.rows if row.metric == metrics[0]) + 0.3 * len(panels)
    figure = pictures.new((7.6 * len(metrics), max(height, 3.2)))
    axes = figure.subplots(1, len(metrics), squeeze=False)
    for axis, metric in zip(axes[0], metrics, strict=True):
        at, ticks, labels = 0.0, [], []
        for panel in panels:
            axis.text(
                0.0,
                at + 0.1,
                panel.title,
                transform=axis.get_yaxis_transform(),
                fontweight="bold",
                fontsize=9.5,
                va="center",
            )
            at -= 0.75
            for row in (row for row in done.rows if row.metric == metric and row.place.panel == panel.key):
                line = next(group for group in done.recipe.lines if group.key == row.place.line)
                _dot_row(axis, row, at, PALETTE[done.recipe.lines.index(line) % len(PALETTE)])
                ticks.append(at)
                x = row.place.x
                labels.append(line.title if x is None else f"{line.title}, {x}")
                at -= 0.75
            at -= 0.25
        axis.set_yticks(ticks, labels=labels, fontsize=9)
        axis.set_ylim(at, 0.7)
        axis.set_xlabel(MEASURES[metric].label)
        axis.grid(axis="x", alpha=0.3)
    figure.legend(handles=_handles(done.rows), loc="outside right center", frameon=False, fontsize=9)
    return figure


def _clouds(done: Reproduction) -> Any:
    """Features of a few clients in the plane: one colour per client."""
    shown = {place: cloud for (place, reading), cloud in done.clouds.items() if reading == "correct"}
    columns = len({place.panel for place in shown})
    rows = len(shown) // columns
    figure = pictures.new((4.4 * columns, 4.2 * rows + 0.8))
    axes = figure.subplots(rows, columns, squeeze=False)
    titles = {group.key: group.title for group in (*done.recipe.panels, *done.recipe.lines)}
    lines = list(dict.fromkeys(place.line for place in shown))
    panels = list(dict.fromkeys(place.panel for place in shown))
    for place, cloud in shown.items():
        axis, points = axes[lines.index(place.line), panels.index(place.panel)], cloud.map()
        for client in range(int(cloud.clients.max()) + 1):
            own = points[cloud.clients == client]
            axis.scatter(*own.T, s=9, alpha=0.7, lw=0, color=PALETTE[client], label=f"client {client + 1}")
        axis.set_title(
            f"{titles[place.panel]}, {titles[place.line]}: {cloud.separation:.0f}% between clients", fontsize=10
        )
        axis.set(xticks=[], yticks=[])
    axes[0, 0].legend(frameon=False, fontsize=9, markerscale=2)
    return figure


def _dot_row(axis: Any, row: Row, at: float, color: Any) -> None:
    for reading, shift in zip(READINGS, (0.13, -0.13), strict=True):
        found = row.readings[reading]
        if found.mean is not None:
            look = {key: value for key, value in LOOKS[reading].items() if key not in ("ls", "lw")}
            axis.errorbar(found.mean, at + shift, xerr=found.std or 0.0, color=color, ms=5, capsize=2, **look)
    if row.published is not None:
        axis.errorbar(row.published, at, xerr=row.published_std or 0.0, capsize=2, **PUBLISHED)
    if row.why and all(found.mean is None for found in row.readings.values()):
        axis.text(
            0.02,
            at,
            textwrap.shorten(row.why, 70),
            transform=axis.get_yaxis_transform(),
            fontsize=7.5,
            color="0.4",
            va="center",
        )


def _handles(rows: Sequence[Row]) -> list[Line2D]:
    handles = [Line2D([], [], color="0.3", label=reading, **LOOKS[reading]) for reading in READINGS]
    if any(row.published is not None for row in rows):
        handles.insert(0, Line2D([], [], label="published", **PUBLISHED))
    return handles


def _curves(done: Reproduction, panels: Sequence[Any]) -> Any:
    """A metric against rounds or against what varies, one line per method; one column per panel up to four."""
    metrics = done.recipe.metrics
    columns = min(len(panels), 4)
    deep = -(-len(panels) // columns)
    figure = pictures.new((max(4.2 * columns, 6.4), 3.4 * deep * len(metrics) + 1.0))
    axes = figure.subplots(deep * len(metrics), columns, squeeze=False)
    for axis in axes.flat[len(panels) * len(metrics) :]:
        axis.set_axis_off()
    for number, (metric, panel) in enumerate((metric, panel) for metric in metrics for panel in panels):
        axis = axes.flat[number]
        rows = [row for row in done.rows if row.metric == metric and row.place.panel == panel.key]
        axis.set_title(panel.title, fontsize=10)
        axis.set_ylabel(MEASURES[metric].label, fontsize=9)
        axis.grid(alpha=0.3)
        if all(found.mean is None for row in rows for found in row.readings.values()):
            axis.text(
                0.5,
                0.5,
                "\n".join(textwrap.wrap(rows[0].why, 36)),
                transform=axis.transAxes,
                ha="center",
                va="center",
                fontsize=8,
                color="0.4",
            )
            axis.set(xticks=[], yticks=[], ylabel="")
        elif done.recipe.figure == "rounds":
            _against_rounds(axis, rows, done)
        else:
            _against_x(axis, rows, done, panel)
    lines = [group for group in done.recipe.lines if any(row.place.line == group.key for row in done.rows)]
    handles = [
        Line2D([], [], color=PALETTE[done.recipe.lines.index(line) % len(PALETTE)], lw=2.2, label=line.title)
        for line in lines
    ]
    figure.legend(handles=[*handles, *_handles(done.rows)], loc="outside right center", frameon=False, fontsize=9)
    return figure


def _against_rounds(axis: Any, rows: Sequence[Row], done: Reproduction) -> None:
    keys = [group.key for group in done.recipe.lines]
    values = list(dict.fromkeys(row.place.x for row in rows))
    for row in rows:
        color = PALETTE[keys.index(row.place.line) % len(PALETTE)]
        strength = 0.35 + 0.65 * (values.index(row.place.x) + 1) / len(values)
        for reading in READINGS:
            curve = row.readings[reading].curve
            if curve:
                at, means, stds = zip(*curve, strict=True)
                look = dict(LOOKS[reading]) | {"alpha": strength * LOOKS[reading].get("alpha", 1.0)}
                axis.plot(at, means, color=color, ms=3.5 if len(at) <= MANY else 0, **look)
                low, high = [m - s for m, s in zip(means, stds)], [m + s for m, s in zip(means, stds)]
                axis.fill_between(at, low, high, color=color, alpha=0.12, lw=0)
                if len(values) > 1 and reading == "correct":
                    axis.annotate(
                        f"{row.place.x:g}" if isinstance(row.place.x, float | int) else str(row.place.x),
                        (at[-1], means[-1]),
                        fontsize=7,
                        color=color,
                    )
        if row.published is not None:
            last = max((point[0] for found in row.readings.values() for point in found.curve), default=1)
            axis.plot([last], [row.published], clip_on=False, **PUBLISHED | {"color": color})
    axis.set_xlabel("round")
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _against_x(axis: Any, rows: Sequence[Row], done: Reproduction, panel: Any) -> None:
    keys = [group.key for group in done.recipe.lines]
    places = list(dict.fromkeys(row.place.x for row in rows))
    numbers = [x for x in places if isinstance(x, int | float)]
    numeric = len(numbers) == len(places)
    spread = numeric and min(numbers) > 0 and max(numbers) / min(numbers) > 20
    position = {x: (x if numeric else places.index(x)) for x in places}
    for key in dict.fromkeys(row.place.line for row in rows):
        color = PALETTE[keys.index(key) % len(PALETTE)]
        own = [row for row in rows if row.place.line == key]
        for reading in READINGS:
            known = [
                (position[row.place.x], found.mean, found.std or 0.0)
                for row in own
                if (found := row.readings[reading]).mean is not None
            ]
            if known:
                at, means, stds = zip(*known, strict=True)
                axis.errorbar(at, means, yerr=stds, color=color, ms=4, capsize=2, **LOOKS[reading])
        told = [(position[row.place.x], row.published) for row in own if row.published is not None]
        if told:
            axis.plot(*zip(*told, strict=True), **PUBLISHED | {"color": color})
    if spread:
        axis.set_xscale("log")
    if not numeric:
        axis.set_xticks(range(len(places)), labels=list(map(str, places)))
    along = panel.options.get("along", done.recipe.along)
    axis.set_xlabel((along or "").replace("_", " "))
