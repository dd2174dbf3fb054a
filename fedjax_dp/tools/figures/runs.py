"""Pictures of runs. For `look` (ax, size and style) see `figures.Look`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedjax_dp.accounting import ACCOUNTANTS, ATTAINED, Guarantee
from fedjax_dp.tasks.measures import Measures
from fedjax_dp.tools.figures import canvas, elements, styles
from fedjax_dp.tools.figures.styles import OBJECTIVE, PALETTE, PROBE, RED, TEST, VIOLET, line_look, marks
from fedjax_dp.tools.figures.tables import runs as tables

if TYPE_CHECKING:  # so that accounting plots without JAX
    from fedjax_dp.rounds.simulation import Evaluation
    from fedjax_dp.tasks import Task

LONGEST = 24  # letters of a client's name
ACCOUNTED = {"pld": TEST, "rdp": OBJECTIVE, "gaussian": VIOLET, "zcdp": PROBE, "tcdp": RED, "attained": "0.5"}


def plot_run(
    history: Sequence[Evaluation],
    guarantee: Guarantee,
    title: str,
    path: str | os.PathLike[str] | None = None,
    task: Task | Measures | None = None,
    **look: Unpack[canvas.Look],
) -> Figure:
    """Draw two panels, the task's main metric and the loss against rounds, with the Guarantee below.

    Probes are dashed. If clients have test records, a band spans from the worst tenth of clients to their mean; if they
    have personal models, a line is the mean of these. `task`, or its measures, is `classes` by default.
    """
    from fedjax_dp.tasks import Classes, measures_of_task  # loads JAX

    rows = [point.row() for point in history]
    measures = task if isinstance(task, Measures) else measures_of_task(task or Classes())
    rounds, main, loss = [row["round"] for row in rows], measures.main, measures["test_loss"]
    unit = main.shown(1.0)

    def numbers(name: str, unit: float = 1.0) -> list[float]:
        return [math.nan if row[name] is None else unit * row[name] for row in rows]  # None: nobody took part

    def draw(panel: Any, fields: Mapping[str, str], unit: float = 1.0) -> None:
        for rank, (name, label) in enumerate(fields.items()):
            look = {"color": PALETTE[rank], "markevery": marks(len(rounds), rank, 3)} | line_look(rank, 3)
            panel.plot(rounds, numbers(name, unit), label=label, **look)

    with canvas.page(path, look, (9, 4.9), 2, lambda figure: figure.subplots(1, 2)) as page:
        left, right = page.panels
        fields = tables.known_fields(rows, tables.quality(measures))
        spread = fields.pop("client_mean", None)
        draw(left, fields, unit)
        if spread:
            ends = numbers("worst_tenth", unit), numbers("client_mean", unit)
            left.fill_between(rounds, *ends, color=PROBE, alpha=0.12, lw=0, label="worst tenth to mean (probe)")
        if len(fields) > 1:
            elements.legend_below(left)
        left.set(title=main.label, xlabel="round")
        if main.share:
            left.set_ylim(0, 100)
        reached = rows[-1][main.name]
        if reached is not None:
            look_of_last = {"va": "center", "color": TEST, "fontweight": "bold", "annotation_clip": False}
            elements.label(left, main.in_words(reached), (rounds[-1], unit * reached), (7, 0), **look_of_last)
        draw(right, tables.known_fields(rows, tables.LOSS))
        right.set(title=loss.label.removeprefix("test "), xlabel="round")
        if not loss.signed:
            elements.begin_at_zero(right)
        elements.legend_below(right)
        for panel in page.panels:
            if len(rounds) == 1:
                panel.set_xlim(rounds[0] - 1, rounds[0] + 1)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            elements.open_frame(panel)
        page.title(title)
        page.note(str(guarantee))
    return page.figure


def plot_epsilon(
    curves: Mapping[str, tuple[Sequence[Any], Sequence[float]]],
    axis: str,
    title: str,
    whose: str,
    path: str | os.PathLike[str] | None = None,
    target: float | None = None,
    **look: Unpack[canvas.Look],
) -> Figure:
    """Draw epsilon against `axis`, a curve for each accountant; `whose` epsilon it is titles the legend. One panel."""
    names = [*ACCOUNTANTS, ATTAINED.name]  # so that each looks the same in all pictures
    with canvas.page(path, look, (8.2, 4.6)) as page:
        (panel,) = page.panels
        for name, (x, y) in curves.items():
            about = {ATTAINED.name: "attained (lower bound)"}.get(name, name)
            rank = names.index(name)
            every = marks(len(x), rank, len(names))
            panel.plot(x, y, color=ACCOUNTED[name], label=about, markevery=every, **line_look(rank, len(names)))
        if target is not None:
            panel.axhline(target, color=styles.ink(), lw=0.8, ls="--", label=f"budget {target:g}")
        panel.set(xlabel=axis, ylabel="epsilon (nats)", xscale="log", yscale="log")
        if all(len(x) == 1 for x, _ in curves.values()):
            panel.set_xlim(0.5, 2)
            panel.minorticks_off()
        elements.plain_log(panel.xaxis)
        elements.plain_log(panel.yaxis)
        elements.open_frame(panel, which="both")
        silent = ", ".join(name for name in ACCOUNTANTS if name not in curves)
        notes = [f"not applicable: {silent}"] if silent else []
        if page.own and canvas.is_narrow(page.figure):
            elements.legend_below(panel, columns=2)
            notes.insert(0, f"epsilon of {whose}")
        else:
            elements.legend_beside(panel, title=f"epsilon of {whose}".replace(", ", ",\n"))
        page.title(title)
        if notes:
            page.note("; ".join(notes))
    return page.figure


def plot_spending(
    rounds: Sequence[int],
    curves: Mapping[str, Sequence[float]],
    title: str,
    promise: str,
    path: str | os.PathLike[str] | None = None,
    budget: float | None = None,
    **look: Unpack[canvas.Look],
) -> Figure:
    """Draw epsilon after each of these rounds, a curve for each way to count it, with the budget; `promise` below."""
    with canvas.page(path, look, (8.2, 4.6)) as page:
        (panel,) = page.panels
        for rank, (name, epsilons) in enumerate(curves.items()):
            line = {"color": PALETTE[rank], "markevery": marks(len(rounds), rank, 2)} | line_look(rank, 2)
            panel.plot(rounds, epsilons, label=name, **line)
        if budget is not None:
            panel.axhline(budget, color=styles.ink(), lw=0.8, ls="--", label=f"budget {budget:g}")
        panel.set(xlabel="round", ylabel="epsilon (nats)")
        elements.begin_at_zero(panel)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        elements.open_frame(panel)
        elements.legend_below(panel)
        page.title(title)
        page.note(promise)
    return page.figure


def plot_clients(
    counts: np.ndarray,
    title: str,
    path: str | os.PathLike[str] | None = None,
    names: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    **look: Unpack[canvas.Look],
) -> Figure:
    """Draw two panels: the records of each client, and of each client and class `(clients, classes)`.

    Up to 30 clients are bubbles with areas proportional to records, with their `names` below. More clients are sorted
    by their most frequent label and drawn as columns of a heat map of label shares; over 250 clients share columns.
    Classes are called by their `labels`, of which as many stand on the axis as have room.
    """
    clients, classes = counts.shape
    few = clients <= 30
    size, ratios = (9, min(4.2 + 0.22 * classes, 10.5)), [1.2, 1 + 0.22 * classes]
    with canvas.page(path, look, size, 2, lambda figure: figure.subplots(2, 1, height_ratios=ratios)) as page:
        above, below = page.panels
        if few:
            _bubbles(above, below, counts)
        else:
            _shares(above, below, counts)
        below.set(ylabel="label", ylim=(-0.6, classes - 0.4))
        room = max(1, min(32, below.yaxis.get_tick_space() * 3 // 2))
        if labels is None:
            below.yaxis.set_major_locator(MaxNLocator(nbins=room, integer=True, min_n_ticks=1))
        else:
            shown = range(0, classes, -(-classes // room))
            most = min(LONGEST, max(canvas.letters(canvas.width_of(below) / 4, "medium"), 5))
            below.set_yticks(shown, [_short(labels[label], most) for label in shown])
        above.set(ylabel="records", ylim=(0, None), xlim=below.get_xlim())
        above.tick_params(labelbottom=False)
        above.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        above.grid(alpha=0.25, axis="y")
        for panel in page.panels:
            if few and names is not None:
                panel.set_xticks(range(clients), [_short(names[client]) for client in range(clients)])
            elif few:
                panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            panel.spines[["top", "right"]].set_visible(False)
        if few and names is not None and sum(len(_short(names[client])) + 2 for client in range(clients)) > 90:
            below.tick_params(axis="x", rotation=90)
        page.title(title)
    return page.figure


def _short(name: str, most: int = LONGEST) -> str:
    """The name of a client or class, short enough for an axis."""
    short = name if len(name) <= most else f"{name[: most - 1]}…"
    return short.replace("$", r"\$")  # `$` would begin an equation


def _bubbles(above: Any, below: Any, counts: np.ndarray) -> None:
    """Draw few clients, one by one."""
    clients, classes = counts.shape
    above.bar(range(clients), counts.sum(1), color=TEST, width=0.7)
    x, y = np.nonzero(counts)
    widest = min(500 / clients, 340 / classes, 30)  # points; neighbours do not touch
    below.scatter(x, y, s=counts[x, y] / counts.max() * widest**2, color=TEST, alpha=0.75, linewidths=0)
    below.set_xlim(-0.7, clients - 0.3)
    below.set_xlabel(f"client (largest bubble: {counts.max():,} records of one label)")
    below.grid(alpha=0.2)


def _shares(above: Any, below: Any, counts: np.ndarray) -> None:
    """Draw many clients, sorted by their most frequent label."""
    clients, classes = counts.shape
    sizes = counts.sum(1)
    shares = counts / np.maximum(sizes[:, None], 1)
    main = shares.argmax(1)
    order = np.lexsort((-shares[np.arange(clients), main], main))
    groups = np.array_split(order, min(clients, 250))
    edges = np.concatenate([[0], np.cumsum([len(group) for group in groups])])
    drawn = np.stack([shares[group].mean(0) for group in groups], axis=1)
    above.stairs([sizes[group].mean() for group in groups], edges, fill=True, color=TEST)
    mesh = below.pcolormesh(edges, np.arange(classes + 1) - 0.5, drawn, cmap="Blues", vmin=0, vmax=1, rasterized=True)
    below.figure.colorbar(mesh, ax=below, label="share of a client's records", pad=0.01, aspect=30)
    several = "" if len(groups) == clients else f", means over up to {len(groups[0])} clients"
    below.set_xlabel(f"clients, sorted by their most frequent label{several}")
