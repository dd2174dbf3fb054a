"""Panels with a line for every setting: learning curves, and settings as paths through their values."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.collections import LineCollection
from matplotlib.ticker import MaxNLocator

from fedjax_dp.sweeps.settings import Interval, Setting, group_by_value, metric_value, pick, rank_settings, varying_axes
from fedjax_dp.tasks.measures import Measure
from fedjax_dp.tools.figures import elements, scales, styles
from fedjax_dp.tools.figures.canvas import letters, width_of
from fedjax_dp.tools.figures.points import CROSS, RING, best_over, finish, legend_head, ring, title
from fedjax_dp.tools.figures.scales import AxisScale, Line
from fedjax_dp.tools.figures.tables import sweeps as tables

CURVES = 8  # settings whose learning curves are coloured
CROWD = 16  # settings from which on only the best paths are coloured
SPREAD = 0.035  # half the spread of paths at a value that they share
FAILED_AT = -0.09  # below the axis of the metric


def curves(panel: Any, settings: Sequence[Setting], metric: Measure, by: str | None = None) -> None:
    """Draw a metric against rounds: the best setting for each value of `by`, or the best 8 settings; the rest in grey.

    Bands and bars are 95% intervals of the mean over seeds. Failed runs end in a cross, settings that halving stopped
    end in a ring.
    """
    if by is None:
        lines, how = _best_lines(settings, metric)
    else:
        best = [(line, pick(line.settings, metric)) for line in scales.lines_by(settings, by)]
        lines = [line._replace(settings=[one]) for line, one in best if one is not None]
        how = "; ".join(filter(None, [best_over(settings, [by], metric), "the others in grey"]))
    front = [line.settings[0] for line in lines]
    for setting in settings:
        if not any(setting is one for one in front):
            _background(panel, setting, metric, min(0.45, 50 / len(settings)))
    for line in lines:
        rounds, scores = curve(line.settings[0], metric)
        means, low, high = ([getattr(score, part) for score in scores] for part in ("mean", "low", "high"))
        every = styles.marks(len(rounds), line.rank, line.of)
        panel.plot(rounds, means, markevery=every, label=line.name, zorder=3, **line.look)
        elements.interval(panel, rounds, means, low, high, line.color, line.of, every)
    panel.set_xlabel("round")
    panel.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    title(panel, f"learning curves: {metric.words}", how)
    head = legend_head(by) if by else scales.words(varying_axes(settings)) if lines else None
    finish(panel, metric, head)


def _best_lines(settings: Sequence[Setting], metric: Measure) -> tuple[list[Line], str]:
    """The best settings as coloured lines, and a description of the choice."""
    names, best = varying_axes(settings), rank_settings(settings, metric)[:CURVES]
    lines = [
        Line(
            ", ".join(scales.in_words(setting.values[name]) for name in names),
            styles.PALETTE[rank],
            [setting],
            rank,
            len(best),
        )
        for rank, setting in enumerate(best)
    ]
    if len(settings) == len(lines):
        return lines, ""
    return lines, f"the best {len(lines)} of {len(settings)} settings, the others in grey" if lines else "none is done"


def curve(setting: Setting, metric: Measure) -> tuple[list[int], list[Interval]]:
    """The rounds at which every finished or stopped seed was evaluated, and the metric over these seeds, as shown."""
    points = tables.curve(setting, metric)
    return [at for at, _ in points], [score.for_display(metric) for _, score in points]


def _background(panel: Any, setting: Setting, metric: Measure, alpha: float) -> None:
    """Draw the mean of a setting as a thin grey line, and each failed run as a red line that ends in a cross."""
    rounds, scores = curve(setting, metric)
    panel.plot(rounds, [score.mean for score in scores], color="0.6", lw=0.6, alpha=alpha, zorder=1)
    if setting.stopped_points and scores:
        panel.plot(rounds[-1], scores[-1].mean, color="0.5", gid=RING, zorder=2, **ring(3.5))
    for point in setting.points:
        known = ((e["round"], metric_value(e, metric.name)) for e in point["history"])
        seen = [(at, metric.shown(number)) for at, number in known if number is not None]
        if point["status"] not in ("done", "stopped") and seen:
            panel.plot(*zip(*seen), color=styles.FAILED, lw=0.7, alpha=0.6, zorder=2)
            panel.plot(*seen[-1], "x", color=styles.FAILED, ms=5, mew=1.2, gid=CROSS, zorder=2)


def parallel(panel: Any, settings: Sequence[Setting], metric: Measure) -> None:
    """Draw every setting as a path through its values to its mean of a metric, which colours it; the best is thick.

    Of many settings only the best 8 are coloured. Paths that share a value are spread there in the order of the
    metric, so that a bright upper edge shows what good settings share. Settings with a failed seed (red) or stopped by
    halving (grey) are dashed lines that end below the metric.
    """
    names = varying_axes(settings) or list(settings[0].values)
    uprights = {name: scales.scale_of(settings, name) for name in names}
    order = rank_settings(settings, metric)[::-1]  # better settings are drawn later
    means = np.array([metric.shown(setting.score(metric.name).mean) for setting in order])
    norm, colors = styles.colour_range(means, metric.better), styles.colour_map(metric.better)
    ends = np.clip(np.asarray(norm(means), float), 0, 1)
    aside = _spread(order, names)
    lost = [setting for setting in settings if not setting.comparable(metric)]
    paths = [[uprights[name].fraction(s.values[name]) + aside[name][id(s)] for name in names] for s in order]
    broken = [_bent([*(uprights[name].fraction(s.values[name]) for name in names), FAILED_AT]) for s in lost]
    why = ["failed" if setting.failures else "stopped" for setting in lost]
    colours = [styles.FAILED if each == "failed" else "0.6" for each in why]
    panel.add_collection(LineCollection(broken, colors=colours, lw=0.8, ls=(0, (3, 2)), alpha=0.6))
    drawn = [_bent([*path, end]) for path, end in zip(paths, ends)]
    thin, grey = styles.scale(), len(drawn) - CURVES if len(drawn) >= CROWD else 0
    faint = min(0.6, 25 / (len(drawn) + 1))
    panel.add_collection(LineCollection(drawn[:grey], colors="0.6", lw=0.7 * thin, alpha=faint))
    panel.add_collection(LineCollection(drawn[grey:], colors=colors(norm(means[grey:])), lw=1.2 * thin, alpha=0.85))
    if drawn:
        outline = [patheffects.withStroke(linewidth=4.2 * thin, foreground=styles.ink())]
        panel.plot(*drawn[-1].T, color=colors(norm(means[-1])), lw=2.4 * thin, path_effects=outline, zorder=4)
    _upright(panel, uprights)
    _metric_axis(panel, uprights, metric, norm if means.size else None, " or ".join(sorted(set(why))))
    others = f"; coloured: the best {CURVES} of {len(settings)}" if grey else ""
    title(panel, f"every setting, coloured by {metric.words}", f"thick: the best{others}")


def _spread(order: Sequence[Setting], names: Sequence[str]) -> dict[str, dict[int, float]]:
    """The offset of each path from a value that it shares with others, by axis and `id` of the setting."""
    aside: dict[str, dict[int, float]] = {}
    for name in names:
        groups = group_by_value(order, name).values()
        room = min(SPREAD, 0.3 / max(len(groups), 1))
        aside[name] = {
            id(setting): room * (2 * rank / (len(group) - 1) - 1) if len(group) > 1 else 0.0
            for group in groups
            for rank, setting in enumerate(group)
        }
    return aside


def _bent(heights: Sequence[float]) -> np.ndarray:
    """A smooth path `(points, 2)` through heights at 0, 1, 2, ..., horizontal at each of them."""
    t = np.linspace(0, 1, 24, endpoint=False)
    ease = t * t * (3 - 2 * t)
    pieces = [low + (high - low) * ease for low, high in itertools.pairwise(heights)]
    y = np.append(np.concatenate(pieces), heights[-1])
    return np.stack([np.append((np.arange(len(pieces))[:, None] + t).ravel(), len(pieces)), y], axis=1)


def _upright(panel: Any, uprights: dict[str, AxisScale]) -> None:
    """Draw a vertical axis for each axis of the sweep, with its values, and leave room for the metric."""
    for place, scale in enumerate(uprights.values()):
        values = scale.values if len(scale.values) <= 12 else [scale.values[0], scale.values[-1]]
        _ticks(panel, place, [(scales.in_words(value), scale.fraction(value)) for value in values])
    panel.tick_params(axis="x", length=0)
    panel.set(yticks=[], xlim=(-0.45, len(uprights) + 0.1), ylim=(-0.13, 1.08))
    panel.spines[:].set_visible(False)


def _ticks(panel: Any, place: int, heights: Sequence[tuple[str, float]]) -> None:
    """Draw a vertical axis with its tick labels on the left."""
    panel.plot([place, place], [-0.05, 1.05], color=styles.ink(), lw=0.9, alpha=0.8, zorder=3)
    for words, height in heights:
        box = {"fc": styles.paper(), "ec": "none", "alpha": 0.9, "pad": 0.8}
        look = {"fontsize": "x-small", "ha": "right", "va": "center", "zorder": 5, "bbox": box}
        elements.label(panel, words, (place, height), (-5, 0), **look)


def _metric_axis(panel: Any, uprights: dict[str, AxisScale], metric: Measure, norm: Any, below: str) -> None:
    """Draw the last vertical axis, where paths end at their metric, or below it without one; label all axes."""
    place = len(uprights)
    many = 6 if panel.figure.bbox.height / panel.figure.figure.dpi > 3 else 4
    found = [] if norm is None else MaxNLocator(many).tick_values(norm.vmin, norm.vmax)
    numbers = [at for at in found if norm.vmin <= at <= norm.vmax]
    lost = [(below, FAILED_AT)] * bool(below)
    _ticks(panel, place, [*((f"{number:g}", float(norm(number))) for number in numbers), *lost])
    names = [*(scales.words([name]) for name in uprights), metric.label]
    most = max(letters(width_of(panel.figure) / (place + 1.6), "medium"), 5)
    lines = [textwrap.fill(name, min(most, 16), break_long_words=False) for name in names]
    panel.set_xticks(range(place + 1), labels=lines)
