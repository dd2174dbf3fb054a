"""Figures of a sweep, ready for a paper: PNG, PDF or SVG by the suffix of the file name.

Each shows means over seeds at the last evaluated round, or against rounds, with 95% intervals of the mean by Student's
t. A figure that shows fewer axes than the sweep has takes the best value of the others and says so. Settings with a
failed seed, or stopped by halving, are marked and never chosen. For `look` see `Look`.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Unpack

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from fedjax_dp import errors
from fedjax_dp.accounting.guarantee import with_mark
from fedjax_dp.sweeps.comparison import comparable, compare
from fedjax_dp.sweeps.settings import (
    Record,
    Setting,
    baseline_of_records,
    deployment_mark,
    epsilon_places,
    group_by_value,
    metric_of,
    settings_of,
    varying_axes,
)
from fedjax_dp.tasks.measures import Measure
from fedjax_dp.tools.figures import canvas, comparison, curves, panels
from fedjax_dp.tools.figures.canvas import Look

Path = str | os.PathLike[str] | None
Draw = Callable[..., Figure]
ONE = (7.2, 4.8)  # inches
DPI = 160  # of PNG files
LINES = 6  # values of an axis that may have one line each


KINDS = ("all", "overview", "axis", "privacy", "heat", "curves", "parallel", "personalisation")


def drawings(
    records: Sequence[Record],
    axes: Sequence[str],
    title: str,
    kind: str = "all",
    metric: str | None = None,
    x: str | None = None,
    y: str | None = None,
    by: str | None = None,
) -> dict[str, Draw]:
    """The pictures of a sweep as functions of `path` and a look, by the name of their file.

    axis      the metric against the axis `x`, or against each, one line for each value of the axis `by`
    privacy   against the proved epsilon, one line for each value of `by`, the algorithm if that is swept
    heat      means of the metric over the axes `x` and `y`
    curves    against rounds, for the best setting of each value of `by`, or for the best 8 settings
    parallel  every setting as a path through its values to the metric
    Raises:   ConfigurationError for a kind without points, and for unknown axes and metrics.
    """
    errors.require_choice("kind", kind, KINDS)
    settings, measure = select_settings(records, axes, metric, x, y, by)
    ranked, lines = rank_axes(settings, measure), by or line_axis(settings, None)
    found: dict[str, dict[str, Draw]] = {name: {} for name in KINDS[1:]}

    def add(kind: str, draw: Callable[..., None], *about: Any, name: str = "", bands: bool = True) -> None:
        width = max(ONE[0], 3.0 + 1.6 * len(axes)) if kind == "parallel" else ONE[0]
        found[kind][name or kind] = functools.partial(
            _draw, settings, [lambda panel: draw(panel, settings, *about)], "", (width, ONE[1]), bands=bands
        )

    found["overview"]["overview"] = functools.partial(overview, records, axes, metric, title)
    for name in [x] if x else ranked:
        beside = by if by not in (None, name) else line_axis(settings, name)
        add("axis", panels.against, name, measure, beside, name=f"axis-{name}")
    if any(math.isfinite(setting.epsilon) for setting in settings):
        add("privacy", panels.privacy, measure, by or ("algorithm" if "algorithm" in axes else None))
    if pair := two_axes(settings, ranked):
        order = [*pair, *ranked]
        across = x or next(name for name in order if name != y)
        up = y or next(name for name in order if name != across)
        if kind == "heat" and across == up:
            raise errors.refuse("y", up, "another axis than x")
        if panels.with_both(settings, across, up):
            add("heat", panels.heat, across, up, measure, bands=False)
    if len(ranked) > 1:
        add("parallel", curves.parallel, measure, bands=False)
    add("curves", curves.curves, measure, lines)
    if kind == "personalisation" or (kind == "all" and comparable(records, axes)):
        found["personalisation"]["personalisation"] = functools.partial(comparison.draw, compare(records, axes), title)
    if kind != "all" and not found[kind]:
        able = ", ".join(name for name, drawn in found.items() if drawn)
        raise errors.refuse("kind", kind, f"one that this sweep has points for: {able}")
    return {name: draw for one in (found if kind == "all" else [kind]) for name, draw in found[one].items()}


def plot_sweep(
    records: Sequence[Record],
    axes: Sequence[str],
    title: str,
    path: Path = None,
    kind: str = "overview",
    *,
    metric: str | None = None,
    x: str | None = None,
    y: str | None = None,
    by: str | None = None,
    **look: Unpack[Look],
) -> Figure:
    """Draw one picture, see `drawings`."""
    if kind == "all":
        raise errors.refuse("kind", kind, "one picture: " + ", ".join(KINDS[1:]))
    return next(iter(drawings(records, axes, title, kind, metric, x, y, by).values()))(path=path, **look)


def overview(
    records: Iterable[Record],
    axes: Sequence[str],
    metric: str | None,
    title: str,
    path: Path = None,
    **look: Unpack[Look],
) -> Figure:
    """Draw the most important results of a sweep on one page, in up to four panels."""
    settings, measure = select_settings(records, axes, metric)
    draws = _panels(settings, measure)
    inches = (7 * min(len(draws), 2), 4.8 * math.ceil(len(draws) / 2))
    return _draw(settings, draws, title, inches, path, **look)


def _panels(settings: Sequence[Setting], metric: Measure) -> list[Callable[[Any], None]]:
    """The panels of an overview: the metric against epsilon or an axis, over two axes, over rounds, and as paths."""
    if not any(setting.comparable(metric) for setting in settings):
        return [lambda panel: _nothing_done(panel, settings), lambda panel: curves.curves(panel, settings, metric)]
    ranked = rank_axes(settings, metric)
    draws: list[Callable[[Any], None]] = []
    if len(set(filter(math.isfinite, epsilon_places(settings)))) > 1:
        lines = "algorithm" if "algorithm" in ranked else None
        draws.append(lambda panel: panels.privacy(panel, settings, metric, lines))
    elif ranked:
        beside = line_axis(settings, ranked[0])
        draws.append(lambda panel: panels.against(panel, settings, ranked[0], metric, beside))
    pair = two_axes(settings, ranked)
    if pair:
        draws.append(lambda panel: panels.heat(panel, settings, *pair, metric))
    draws.append(lambda panel: curves.curves(panel, settings, metric, line_axis(settings, None)))
    if len(ranked) > 1:
        draws.append(lambda panel: curves.parallel(panel, settings, metric))
    return draws


def rank_axes(settings: Sequence[Setting], metric: Measure) -> list[str]:
    """Axes with several values, in order of the variance of the metric's mean over these values, largest first.

    Settings without a value for an axis differ in more than that value and are not counted.
    """
    known = [setting for setting in settings if setting.score(metric.name).seeds]
    whole = [setting for setting in known if None not in setting.values.values()] or known

    def effect(name: str) -> float:
        means = [
            np.mean([setting.score(metric.name).mean for setting in group])
            for group in group_by_value(whole, name).values()
        ]
        return float(np.var(means)) if means else 0.0

    return sorted(varying_axes(settings), key=effect, reverse=True)


def two_axes(settings: Sequence[Setting], ranked: Sequence[str]) -> tuple[str, str] | None:
    """The first two axes for a heat map that have several common values, or None.

    Budget and algorithm come last, since another panel shows them against epsilon.
    """
    pairs = sorted(itertools.combinations(ranked, 2), key=lambda pair: set(pair) == {"epsilon", "algorithm"})
    for x, y in pairs:
        both = panels.with_both(settings, x, y)
        if {x, y} <= {*varying_axes(both)}:
            return x, y
    return None


def line_axis(settings: Sequence[Setting], x: str | None) -> str | None:
    """The axis other than `x` with a line for each value: the budget or else the algorithm, if the sweep varies it."""
    for name in ("epsilon", "algorithm"):
        if name != x and name in settings[0].values and 1 < len(group_by_value(settings, name)) <= LINES:
            return name
    return None


def _nothing_done(panel: Any, settings: Sequence[Setting]) -> None:
    """Write why there is nothing to compare."""
    reasons = Counter(point["reason"] for setting in settings for point in setting.points if point["reason"])
    lines = [f"{count} x {textwrap.shorten(reason, 90)}" for reason, count in reasons.most_common(8)]
    panel.set_axis_off()
    panel.text(0.5, 0.5, "\n".join(["no setting has finished all its seeds", "", *lines]), ha="center", va="center")


def select_settings(
    records: Iterable[Record], axes: Sequence[str], metric: str | None, *names: str | None
) -> tuple[list[Setting], Measure]:
    """The settings of a sweep and the metric to draw, by default the main one; refuses a sweep without points, and
    unknown axes and metrics."""
    records = list(records)
    for name in names:
        if name is not None:
            errors.require_choice("axis", name, axes)
    settings = settings_of(records, axes)
    if not settings:
        raise errors.refuse("sweep", "no finished point", "one with a finished point to draw", "wait for the first")
    return settings, metric_of(records, metric)


def small_print(settings: Sequence[Setting], bands: bool) -> str:
    """A note on the number of seeds, bands and bars, and failed points."""
    statuses = Counter(point["status"] for setting in settings for point in setting.points)
    total, stopped = statuses.total(), statuses["stopped"]
    failed = total - statuses["done"] - stopped
    counts = sorted({len(setting.points) for setting in settings})
    parts = []
    if counts[-1] == 1:
        parts.append("1 seed per setting, so no intervals")
    elif failed < total:
        parts.append(f"means over {counts[-1] if len(counts) == 1 else f'{counts[0]} to {counts[-1]}'} seeds")
        parts += ["bands and bars: 95% intervals of the mean (Student's t)"] if bands else []
    if stopped:
        parts.append(f"{stopped} of {total} points stopped at a rung of halving")
    if failed:
        parts.append(f"{failed} of {total} points failed ({statuses['diverged']} diverged)")
        parts.append("settings with a failed seed are never chosen")
    else:
        parts.append("no point failed")
    if baseline := baseline_of_records(panels.all_points(settings)):
        parts.append(baseline)
    return "; ".join(parts)


def _draw(
    settings: Sequence[Setting],
    draws: Sequence[Callable[[Any], None]],
    title: str,
    inches: tuple[float, float],
    path: Path = None,
    *,
    bands: bool = True,
    **look: Unpack[Look],
) -> Figure:
    """Draw panels in two columns, or one if the figure is narrow, with a note below. A panel alone in its row spans
    both columns."""

    def arrange(figure: Any) -> list[Any]:
        if len(draws) == 1:
            return [figure.subplots()]
        columns = 1 if canvas.is_narrow(figure) else 2
        rows = math.ceil(len(draws) / columns)
        grid = figure.add_gridspec(rows, columns)
        places = [grid[place // columns, place % columns] for place in range(len(draws))]
        if len(draws) % columns:
            places[-1] = grid[rows - 1, :]
        return [
            figure.add_subfigure(place).subplots() for place in places
        ]  # so that a legend narrows only its own panel

    layout = ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.08) if len(draws) > 1 else "constrained"
    column = 4.2 * len(draws) if len(draws) > 1 else 0
    with canvas.page(path, look, inches, len(draws), arrange, layout=layout, dpi=DPI, column=column) as page:
        for panel, draw in zip(page.panels, draws):
            draw(panel)
        if whole := with_mark(title, deployment_mark(panels.all_points(settings))):
            page.title(whole)
        page.note(small_print(settings, bands))
    return page.figure
