"""Elements that panels of a sweep share: lines with intervals, dots, levels, crosses, titles and legends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable

from fedjax_dp.sweeps.settings import Setting, judge_of, pick, value_key
from fedjax_dp.tasks.measures import Measure
from fedjax_dp.tools.figures import elements, scales, styles
from fedjax_dp.tools.figures.canvas import is_narrow, letters, width_of, wrap
from fedjax_dp.tools.figures.scales import Line

Placed = tuple[float, Setting | None]  # position, and the setting, which may be stopped; None if all failed
NARROW = 5.0  # inches of a picture that has no room for a legend at its side
CROSS, RING = "failed", "stopped"  # gids of crosses and rings, which the legend looks for


def intervals(
    panel: Any, placed: Iterable[Placed], metric: Measure, line: Line, joined: bool = True, alpha: float = 0.0
) -> None:
    """Draw means with 95% intervals: a line if `joined`, else dots with bars, which are thin if `alpha` is set.

    At the bottom, a cross marks a position where all failed, a ring one where halving stopped all.
    """
    placed = sorted(placed, key=lambda pair: pair[0])
    at_bottom(panel, [at for at, setting in placed if setting is None], line.color)
    at_bottom(panel, [at for at, setting in placed if setting is not None and setting.stopped_points], line.color, RING)
    known = [(at, setting.score(metric.name).for_display(metric)) for at, setting in placed if setting is not None]
    known = [(at, score) for at, score in known if math.isfinite(score.mean)]
    if not known:
        return
    x, scores = zip(*known)
    means, low, high = ([getattr(score, part) for score in scores] for part in ("mean", "low", "high"))
    if joined and len(known) > 1:
        panel.plot(x, means, label=line.name, zorder=3, **line.look)
        elements.interval(panel, x, means, low, high, line.color, line.of)
        return
    lengths = np.nan_to_num(np.abs(np.array([low, high]) - np.array(means)))
    look = {"ms": 4, "lw": 0.8, "alpha": alpha} if alpha else {"ms": 5, "capsize": 3, "lw": 1.4, "zorder": 3}
    look |= {name: styles.scale() * look[name] for name in ("ms", "lw")}
    look |= {"marker": line.look["marker"], "color": line.color}
    panel.errorbar(x, means, lengths, ls="none", label=line.name, **look)


def level(panel: Any, settings: Sequence[Setting], metric: Measure, line: Line, why: str) -> None:
    """Draw the best of the settings without a position on the x axis as a dashed horizontal line with its interval."""
    best = pick(settings, metric)
    if best is None:
        return
    score = best.score(metric.name).for_display(metric)
    label = why if line.name in ("", scales.in_words(None)) else f"{line.name}, {why}"
    broken = styles.DASHES[1 + line.rank % (len(styles.DASHES) - 1)]
    panel.axhline(score.mean, color=line.color, ls=broken, lw=1.4, label=label)
    if score.seeds > 1:
        panel.axhspan(score.low, score.high, color=line.color, alpha=0.08, lw=0)


def at_bottom(panel: Any, places: Sequence[float], color: Any, kind: str = CROSS) -> None:
    """Draw crosses or rings at the bottom of the panel, in the colour of their line."""
    if places:
        look: dict[str, Any] = {"marker": "x", "ms": 7, "mew": 1.8} if kind == CROSS else ring(5)
        heights = np.full(len(places), 0.025)
        panel.plot(
            places, heights, **look, ls="none", color=color, gid=kind, zorder=5, transform=panel.get_xaxis_transform()
        )


def ring(size: float) -> dict[str, Any]:
    """The style of a ring without its colour."""
    return {"marker": "o", "ms": size, "mfc": styles.paper(), "mew": 1.2}


def colour_scale(panel: Any, metric: Measure, known: np.ndarray) -> ScalarMappable:
    """The colours for numbers `(settings,)` of a metric as shown; adds a colour bar to the panel if there are any."""
    colors = ScalarMappable(styles.colour_range(known, metric.better), styles.colour_map(metric.better))
    if known.size:
        below, above = min(known) < colors.norm.vmin, max(known) > colors.norm.vmax
        extend = "min" if below else "max" if above else "neither"
        bar = panel.figure.colorbar(colors, ax=panel, label=metric.label, pad=0.02, aspect=28, extend=extend)
        bar.outline.set_visible(False)
    return colors


def legend_head(by: str | None) -> str | None:
    """The title of a legend whose lines are the values of `by`."""
    return None if by is None else scales.axis_label(by)


def best_over(settings: Sequence[Setting], kept: Sequence[str], metric: Measure) -> str:
    """How a panel that shows the axes `kept` treats the others, in words."""
    axes = settings[0].values if settings else ()
    others = [name for name in axes if name not in kept and len({value_key(s.values[name]) for s in settings}) > 1]
    judge = judge_of(metric)
    how = "" if judge == metric else f" (by {judge.words})"
    if len(others) > 4:
        return f"best over the {len(others)} other axes{how}"
    return f"best over {scales.words(others)}{how}" if others else ""


def title(panel: Any, head: str, how: str) -> None:
    """Set the title on the left, with `how` in small print below. Both, and the label of the x axis, which must be set
    already, are broken into lines that fit."""
    room = _room(panel)
    small = wrap(how, room, "small")
    lines, large = small.count("\n") + 1 if how else 0, styles.scale()
    panel.set_title(wrap(head, room, "medium"), loc="left", fontsize="medium", pad=large * (8 + 12 * lines))
    panel.set_xlabel(wrap(panel.get_xlabel(), room, "medium"))
    if how:
        below = {"xycoords": "axes fraction", "fontsize": "small", "alpha": 0.75}
        elements.label(panel, small, (0, 1), (0, 6 * large), **below)


def finish(panel: Any, metric: Measure, head: str | None) -> None:
    """Set the label of the metric, grid and spines, and a legend with the title `head`, beside or above the panel."""
    panel.set_ylabel(metric.label)
    elements.open_frame(panel)
    handles, names = panel.get_legend_handles_labels()
    if any(line.get_gid() == CROSS for line in panel.lines):
        handles.append(panel.plot([], [], "x", color=styles.FAILED, ms=6, mew=1.6)[0])
        names.append("failed")
    if any(line.get_gid() == RING for line in panel.lines):
        handles.append(panel.plot([], [], ls="none", color="0.5", **ring(5))[0])
        names.append("stopped")
    if not names:
        return
    if is_narrow(panel.figure, NARROW) and getattr(panel.figure.figure, "own", False):
        elements.legend_above(panel, handles, names, head, letters(_room(panel), "small"))
    else:
        elements.legend_beside(panel, handles=handles, labels=names, title=head)


def _room(panel: Any) -> float:
    """Inches for texts above and below the panel."""
    return width_of(panel.figure) - 0.75 * styles.scale()
