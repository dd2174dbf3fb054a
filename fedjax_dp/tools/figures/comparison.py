"""The picture of a comparison: all algorithms against the budget, and every client."""

from __future__ import annotations

import os
from typing import Any, Unpack

import numpy as np
from matplotlib.figure import Figure

from fedjax_dp.sweeps.comparison import Comparison
from fedjax_dp.sweeps.settings import interval
from fedjax_dp.tools.figures import canvas, elements, styles

GOLDEN = 0.6180339887  # the fractional parts of its multiples spread evenly


def draw(
    found: Comparison, title: str, path: str | os.PathLike[str] | None = None, **look: Unpack[canvas.Look]
) -> Figure:
    """Draw two panels. Left: the mean over clients against epsilon. Right, at the middle budget: a point for each
    client and seed, its difference to the better of local training and the best shared model.

    Bars are 95% intervals of means over seeds (Student's t); a single seed has none.
    """
    budget = found.budgets[len(found.budgets) // 2]

    def arrange(figure: Any) -> Any:
        return figure.subplots(*((2, 1) if canvas.is_narrow(figure) else (1, 2)))

    with canvas.page(path, look, (9.5, 4.8), 2, arrange, column=7) as page:
        left, right = page.panels
        names = list(dict.fromkeys(row.algorithm for row in found.rows))
        colors = {name: styles.PALETTE[rank % len(styles.PALETTE)] for rank, name in enumerate(names)}
        _means(left, found, colors)
        _clients(right, found, budget, colors)
        for panel in page.panels:
            elements.open_frame(panel)
        page.title(title)
        seeds = max(row.means.seeds for row in found.rows)
        bars = f"bars: 95% intervals of the mean over {seeds} seeds (Student's t)"
        page.note(bars if seeds > 1 else "one seed, so no intervals")
    return page.figure


def _means(panel: Any, found: Comparison, colors: dict[str, Any]) -> None:
    """Draw a line for each algorithm."""
    for rank, (name, color) in enumerate(colors.items()):
        rows = [row for row in found.rows if row.algorithm == name]
        epsilons = [np.nan if row.epsilon is None else row.epsilon for row in rows]
        where = np.arange(len(rows)) if np.isnan(epsilons).all() else epsilons
        scores = [row.means.for_display(found.measure) for row in rows]
        means, low, high = ([getattr(score, part) for score in scores] for part in ("mean", "low", "high"))
        line = styles.line_look(rank, len(colors))
        panel.plot(where, means, color=color, label=name if rows[0].own else f"{name} (shared)", **line)
        elements.interval(panel, where, means, low, high, color, elements.BANDS + 1)
    budgets = [budget for budget in found.budgets if budget]
    if budgets:
        panel.set_xscale("log")
        panel.set_xticks(budgets, [f"{b:g}" for b in budgets])
        panel.minorticks_off()
    label = found.measure.label.removeprefix("test ")
    panel.set(xlabel="epsilon, equal for all clients", ylabel=label, title="mean over clients")
    elements.legend_below(panel, 2)


def _clients(panel: Any, found: Comparison, budget: float | None, colors: dict[str, Any]) -> None:
    """Draw a row for each algorithm: the differences of its clients, and their mean."""
    unit, rows = found.measure.shown(1.0), found.one_by_one(budget)
    for place, (name, seeds) in enumerate(rows.items()):
        every = unit * np.concatenate([each[~np.isnan(each)] for each in seeds]) if seeds else np.zeros(0)
        aside = 0.56 * (np.arange(every.size) * GOLDEN % 1 - 0.5)  # so that equal differences do not overlap
        panel.scatter(
            every, place + aside, s=9, color=colors[name], alpha=max(0.2, min(0.7, 60 / (every.size + 1))), lw=0
        )
        mean = interval([float(np.nanmean(each)) for each in seeds]).of_differences(found.measure)
        at, length = unit * mean.mean, unit * np.nan_to_num([[mean.mean - mean.low], [mean.high - mean.mean]])
        panel.errorbar(at, place, xerr=length, fmt="D", ms=4.5, color=styles.ink(), capsize=3, lw=1.2, zorder=4)
    panel.axvline(0, color="0.6", lw=1, zorder=0)
    panel.set_yticks(range(len(rows)), list(rows))
    panel.set_ylim(len(rows) - 0.5, -0.5)
    rivals = " and ".join(row.algorithm for row in found.rivals(budget))
    at_budget = "" if budget is None else f" at epsilon {budget:g}"
    panel.set_title(f"a point for each client and seed{at_budget}")
    room = canvas.width_of(panel.figure) / (1 if canvas.is_narrow(panel.figure) else 2) - 1.2 * styles.scale()
    minus = canvas.wrap(f"difference to the better of {rivals}", room, "medium")
    panel.set_xlabel(f"{found.measure.label.removeprefix('test ')}\n{minus}")
