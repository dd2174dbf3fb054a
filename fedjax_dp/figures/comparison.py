"""The picture of a comparison: all algorithms against the budget, and clients one by one."""

from __future__ import annotations

import os
from typing import Unpack

import numpy as np
from matplotlib.figure import Figure

from fedjax_dp.figures import canvas, elements, styles
from fedjax_dp.figures.tables.comparison import Comparison, ComparisonRow
from fedjax_dp.figures.tables.settings import Record


def draw(
    found: Comparison, title: str, path: str | os.PathLike[str] | None = None, **look: Unpack[canvas.Look]
) -> Figure:
    """Left the metric, mean over clients, against epsilon; right a point for each client of the first seed.

    On the right the best of the own models, at the middle budget, stands against the better of local and shared.
    """
    measure = found.measure
    unit, names = measure.shown(1.0), list(dict.fromkeys(row.algorithm for row in found.rows))
    with canvas.page(path, look, (9.5, 4.8), 2, lambda figure: figure.subplots(1, 2)) as page:
        left, right = page.panels
        for rank, name in enumerate(names):
            rows = [row for row in found.rows if row.algorithm == name]
            epsilons = [np.nan if row.epsilon is None else row.epsilon for row in rows]
            means = [unit * row.standing.mean for row in rows]
            where = np.arange(len(rows)) if np.isnan(epsilons).all() else epsilons
            color = styles.PALETTE[rank % len(styles.PALETTE)]
            look_of_line = styles.line_look(rank, len(names))
            left.plot(where, means, color=color, label=name if rows[0].own else f"{name} (shared)", **look_of_line)
        if len(found.budgets) > 1:
            left.set_xscale("log")
            left.set_xticks([budget for budget in found.budgets if budget], [f"{b:g}" for b in found.budgets if b])
            left.minorticks_off()
        left.set(
            xlabel="epsilon, the same for all", ylabel=measure.label.removeprefix("test "), title="mean over clients"
        )
        elements.legend_below(left, 2)
        budget = found.budgets[len(found.budgets) // 2]
        chosen = _best(found, budget)
        if chosen is not None:
            row, others = chosen
            own, best = (unit * values for values in _clients(row, others, measure.better))
            low, high = min(own.min(), best.min()), max(own.max(), best.max())
            right.plot([low, high], [low, high], color="0.6", lw=1, zorder=0)
            right.scatter(best, own, s=18, color=styles.PROBE, alpha=0.8)
            at_budget = "" if budget is None else f" at epsilon {budget:g}"
            right.set(
                xlabel=f"better of {' and '.join(other.algorithm for other in others)}",
                ylabel=row.algorithm,
                title=f"a point for each client{at_budget}",
            )
        for panel in page.panels:
            elements.open_frame(panel)
        page.title(title)
    return page.figure


def _best(found: Comparison, budget: float | None) -> tuple[ComparisonRow, list[ComparisonRow]] | None:
    """The best of the own models at a budget, and whom it stands against."""
    rows, better = found.at(budget), found.measure.better
    own = [row for row in rows if row.against is not None]
    if not own:
        return None
    shared = max((row for row in rows if not row.own), key=lambda row: better * row.standing.mean)
    alone = next(row for row in rows if row.own and row.against is None)
    return max(own, key=lambda row: better * row.standing.mean), [alone, shared]


def _clients(row: ComparisonRow, others: list[ComparisonRow], better: int) -> tuple[np.ndarray, np.ndarray]:
    """Values by client, of those that have test records: own models, and the better of the others."""
    seed = row.points[0]["values"]["seed"]

    def values(of: ComparisonRow) -> np.ndarray:
        point: Record = next((one for one in of.points if one["values"]["seed"] == seed), of.points[0])
        return np.array([np.nan if value is None else value for value in point["clients"]["values"]])

    own, rest = values(row), np.array([values(other) for other in others])
    best = better * np.max(better * rest, 0)
    there = ~np.isnan(own + best)
    return own[there], best[there]
