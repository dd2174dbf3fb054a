"""Panels of a metric at the last evaluated round: against an axis, against epsilon, and over two axes.

A panel that shows fewer axes than the sweep has takes the best value of the others, and its title says so. Every
function draws on the matplotlib Axes `panel`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullLocator

from fedjax_dp.sweeps.settings import (
    Record,
    Setting,
    caveats_of,
    deployment_mark,
    epsilon_places,
    epsilon_terms,
    group_by_value,
    pick,
    pick_or_stopped,
    rank_settings,
    value_key,
    values_of,
)
from fedjax_dp.tasks.measures import Measure
from fedjax_dp.tools.figures import elements, scales, styles
from fedjax_dp.tools.figures.points import best_over, colour_scale, finish, intervals, legend_head, level, title
from fedjax_dp.tools.figures.tables import sweeps as tables

TICKS_APART = 0.06  # of the axis
ALONE = 2.0  # the ratio of the ends of an axis with a single epsilon
MANY = 12  # an axis with more values was sampled at random


def against(panel: Any, settings: Sequence[Setting], x: str, metric: Measure, by: str | None = None) -> None:
    """Draw a metric against an axis, one line for each value of `by`, with 95% intervals of the mean.

    Categories, and more than two lines, have bars side by side at each value. Settings without a value for the axis
    are horizontal lines. On an axis sampled at random every setting is a dot. At the bottom, a cross marks a value
    where every setting failed, a ring one where halving stopped all.
    """
    scale = scales.scale_of([setting for setting in settings if setting.values[x] is not None], x)
    lines = scales.lines_by(settings, by)
    groups = [group_by_value((s for s in line.settings if s.values[x] is not None), x) for line in lines]
    random = len(scale.values) > MANY
    for rank, line in enumerate(lines):
        if random:
            every = [setting for group in groups[rank].values() for setting in group]
            dots = [(scale.position(setting.values[x]), None if setting.failures else setting) for setting in every]
            intervals(panel, dots, metric, line, joined=False, alpha=0.9)
        else:
            placed = []
            for key, group in groups[rank].items():
                there = [other for other, by_key in enumerate(groups) if key in by_key]  # lines at this value
                aside = _aside(there.index(rank), len(there), scale.kind)
                placed.append((scale.beside(group[0].values[x], aside), pick_or_stopped(group, metric)))
            intervals(panel, placed, metric, line, joined=scale.kind != "category")
        unplaced = [setting for setting in line.settings if setting.values[x] is None]
        level(panel, unplaced, metric, line, f"{scales.words([x])} unset")
    scale.set_on(panel.xaxis, scales.axis_label(x))
    if scale.kind == "category":
        panel.set_xlim(-0.5, len(scale.values) - 0.5)
    how = "every setting" if random else best_over(settings, [x] if by is None else [x, by], metric)
    how = _with_offset_note(how, 0 if random or scale.kind == "category" else len(lines))
    title(panel, f"{metric.words} against {scales.words([x])}", how)
    finish(panel, metric, legend_head(by))


def _aside(rank: int, of: int, kind: str) -> float:
    """The offset of one of several lines from a value, as a fraction, so that bars do not overlap."""
    if kind == "category":
        return (rank - (of - 1) / 2) * min(0.12, 0.6 / of)
    return (rank - (of - 1) / 2) * min(0.012, 0.06 / of) if of > elements.BANDS else 0.0


def _with_offset_note(how: str, lines: int) -> str:
    """The text below a title, with a note if lines are offset from their values."""
    return "; ".join(filter(None, [how, "side by side at each value" if lines > elements.BANDS else ""]))


def privacy(panel: Any, settings: Sequence[Setting], metric: Measure, by: str | None = None) -> None:
    """Draw a metric against the proved epsilon, one line for each value of `by`; dashed and horizontal without privacy.

    If the budget is an axis, the line shows the best setting of each budget. If epsilon follows from other axes,
    settings are dots, and the line joins those that no other setting beats at the same epsilon or less.
    """
    budgets = "epsilon" in settings[0].values and len(group_by_value(settings, "epsilon")) <= MANY
    place = {id(setting): at for setting, at in zip(settings, epsilon_places(settings), strict=True)}
    epsilons = sorted({at for at in place.values() if math.isfinite(at)})
    wide = float(np.ptp(np.log(epsilons))) or math.log(ALONE)
    kind = "log" if len(epsilons) > 1 else "category"
    lines = scales.lines_by(settings, by)
    among = [line.rank for line in lines if any(math.isfinite(setting.epsilon) for setting in line.settings)]
    for line in lines:
        private = [setting for setting in line.settings if math.isfinite(setting.epsilon)]
        if budgets and private:
            aside = math.exp(wide * _aside(among.index(line.rank), len(among), kind))
            groups = group_by_value(private, "epsilon").values()
            bests = [(group[0], pick_or_stopped(group, metric)) for group in groups]
            placed = [(place[id(best or first)] * aside, best) for first, best in bests]
            intervals(panel, placed, metric, line)
        elif private:
            dots = [(place[id(setting)], None if setting.failures else setting) for setting in private]
            intervals(panel, dots, metric, line._replace(name=""), joined=False, alpha=0.3)
            intervals(panel, [(place[id(one)], one) for one in frontier(private, metric)], metric, line)
        level(panel, [s for s in line.settings if math.isinf(s.epsilon)], metric, line, "not private")
    budgeted = values_of(settings, "epsilon") if budgets else []
    _epsilon_ticks(panel, epsilons, sorted(filter(scales.is_number, budgeted)))
    panel.set_xlabel(epsilon_label(settings))
    kept = ["epsilon", *([] if by is None else [by])]
    how = (
        best_over(settings, kept, metric) if budgets else "lines: settings that no other beats at this epsilon or less"
    )
    how = _with_offset_note(how, len(among) if budgets and kind == "log" else 0)
    title(panel, f"{metric.words} against epsilon", how)
    finish(panel, metric, legend_head(by))


def _epsilon_ticks(panel: Any, epsilons: Sequence[float], budgets: Sequence[float]) -> None:
    """Make the x axis logarithmic with ticks at the budgets, without overlap; without budgets at 1, 3, 10, ..., or at
    the ends if epsilons are close together."""
    panel.set_xscale("log")
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    if budgets:
        apart = math.log(budgets[-1] / budgets[0]) * TICKS_APART
        shown = [budgets[-1]]
        for budget in budgets[-2::-1]:
            shown += [budget] if math.log(shown[-1] / budget) > apart else []
        panel.xaxis.set_ticks(shown[::-1])
    elif max(epsilons) > 5 * min(epsilons):
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    else:
        panel.xaxis.set_ticks(sorted({min(epsilons), max(epsilons)}))
    if 0 < min(epsilons) == max(epsilons):
        panel.set_xlim(epsilons[0] / math.sqrt(ALONE), epsilons[0] * math.sqrt(ALONE))


def frontier(settings: Sequence[Setting], metric: Measure) -> list[Setting]:
    """In order of epsilon, the settings that are better than all others with at most as much epsilon."""
    return [settings[row["key"]] for row in tables.front(tables.setting_rows(settings, metric))]


def epsilon_label(settings: Sequence[Setting]) -> str:
    """The label of the proved epsilon: delta, unit and adjacency, or that points differ in them."""
    points = all_points(settings)
    caveat = "read the caveat of its Guarantee" if caveats_of(points) else ""
    return "; ".join(filter(None, ["proved epsilon (nats)", *epsilon_terms(points), deployment_mark(points), caveat]))


def all_points(settings: Sequence[Setting]) -> list[Record]:
    return [point for setting in settings for point in setting.points]


def with_both(settings: Sequence[Setting], x: str, y: str) -> list[Setting]:
    return [setting for setting in settings if None not in (setting.values[x], setting.values[y])]


def heat(panel: Any, settings: Sequence[Setting], x: str, y: str, metric: Measure) -> None:
    """Draw means of a metric over two axes as coloured cells with numbers; the best cell is framed.

    In a hatched cell every setting failed or was stopped. A small cross means that some failed, and the number is the
    best of the others. Settings of axes sampled at random are coloured dots. Settings without a value for both axes are
    not shown.
    """
    shown = with_both(settings, x, y)
    columns, rows = scales.scale_of(shown, x), scales.scale_of(shown, y)
    head = f"{metric.words} over {scales.words([x])} and {scales.words([y])}"
    if max(len(columns.values), len(rows.values)) > MANY:
        _map_of_dots(panel, shown, x, y, metric)
        columns.set_on(panel.xaxis, scales.axis_label(x))
        rows.set_on(panel.yaxis, scales.axis_label(y))
        title(panel, head, "every setting")
        return
    crossed = _cells(panel, shown, (columns, rows), (x, y), metric)
    for axis, scale, name in ((panel.xaxis, columns, x), (panel.yaxis, rows, y)):
        scales.set_ticks(axis, [index + 0.5 for index in range(len(scale.values))], scale.values)
        axis.set_label_text(scales.axis_label(name))
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    title(panel, head, best_over(shown, [x, y], metric) + ("; x: some settings failed" if crossed else ""))


def _cells(
    panel: Any,
    settings: Sequence[Setting],
    both: tuple[scales.AxisScale, scales.AxisScale],
    names: tuple[str, str],
    metric: Measure,
) -> bool:
    """Draw the cells of a heat map, one unit wide and high, with numbers; return whether any has a small cross."""
    places = [{value_key(value): index for index, value in enumerate(scale.values)} for scale in both]
    cells: dict[tuple[int, int], list[Setting]] = {}
    for setting in settings:
        column, row = (place[value_key(setting.values[name])] for place, name in zip(places, names))
        cells.setdefault((row, column), []).append(setting)
    means = np.full((len(places[1]), len(places[0])), np.nan)
    best_of = {place: pick(group, metric) for place, group in cells.items()}
    for place, best in best_of.items():
        if best is not None:
            means[place] = metric.shown(best.score(metric.name).mean)
    colors = colour_scale(panel, metric, means[np.isfinite(means)])
    panel.pcolormesh(means, cmap=colors.cmap, norm=colors.norm, edgecolors="white", lw=1.5)
    winner, crossed = pick(settings, metric), False
    for (row, column), group in cells.items():
        failed = any(setting.failures for setting in group)
        if not np.isfinite(means[row, column]):
            last = max((p["history"][-1]["round"] for setting in group for p in setting.stopped_points), default=None)
            why = "failed" if failed else f"stopped\nat {last}" if last else "not known"
            _hatch_cell(panel, row, column, why, styles.FAILED if failed else "0.3")
            continue
        brightness = np.dot(colors.to_rgba(means[row, column])[:3], [0.299, 0.587, 0.114])
        color = "white" if brightness < 0.55 else "black"
        panel.annotate(
            scales.short(means[row, column], metric),
            (column + 0.5, row + 0.5),
            ha="center",
            va="center",
            fontsize=8.5 * styles.scale(),
            color=color,
        )
        if failed:
            middle = {"ha": "center", "va": "center"}
            elements.label(panel, "x", (column + 1, row + 1), (-8, -9), fontsize=9, color=color, **middle)
            crossed = True
        if best_of[row, column] is winner:
            frame = Rectangle((column, row), 1, 1, fill=False, ec="black", lw=2.2, zorder=4, clip_on=False)
            panel.add_patch(frame)
    return crossed


def _hatch_cell(panel: Any, row: int, column: int, why: str, color: Any) -> None:
    """Draw a cell without a number."""
    panel.add_patch(Rectangle((column, row), 1, 1, fc="0.93", ec="0.7", hatch="////", lw=0))
    panel.annotate(
        why,
        (column + 0.5, row + 0.5),
        ha="center",
        va="center",
        fontsize=8,
        color=color,
        bbox={"fc": "0.93", "ec": "none", "pad": 1.5},
    )


def _map_of_dots(panel: Any, settings: Sequence[Setting], x: str, y: str, metric: Measure) -> None:
    """Draw settings as coloured dots, better ones on top, and failed ones as crosses."""
    both = [scales.scale_of(settings, name) for name in (x, y)]
    order = rank_settings(settings, metric)[::-1]
    means = [metric.shown(setting.score(metric.name).mean) for setting in order]
    mesh = colour_scale(panel, metric, np.array(means))
    at = [[scale.position(s.values[name]) for s in order] for scale, name in zip(both, (x, y))]
    panel.scatter(*at, c=means, cmap=mesh.cmap, norm=mesh.norm, s=42, edgecolors="white", linewidths=0.6, zorder=3)
    lost = [[scale.position(s.values[name]) for s in settings if s.failures] for scale, name in zip(both, (x, y))]
    panel.plot(*lost, "x", color=styles.FAILED, ms=6, mew=1.5)
    elements.open_frame(panel)
