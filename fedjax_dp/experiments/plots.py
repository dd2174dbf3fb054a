"""Pictures of results."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedjax_dp import errors, pictures
from fedjax_dp.accounting import ACCOUNTANTS, ATTAINED, Guarantee
from fedjax_dp.accounting.guarantee import PaperRow
from fedjax_dp.arguments import checks_arguments

if TYPE_CHECKING:  # so that accounting plots without JAX
    from fedjax_dp.experiments.latency import Latency
    from fedjax_dp.rounds.simulation import Evaluation

TEST, PROBE, OBJECTIVE = "#1f5fa8", "#b0643c", "#2f8f5b"
COLORS = {"pld": TEST, "rdp": "#2f8f5b", "gaussian": "#7a4fa3", "zcdp": PROBE, "tcdp": "#c23b4b", "attained": "0.45"}
VERDICTS = {"holds": "#2f8f5b", "conditional": TEST, "heuristic": "#d39a2d", "wrong": "#c23b4b"}


@checks_arguments
def plot_run(
    history: Sequence[Evaluation], guarantee: Guarantee, title: str, path: str | os.PathLike[str] | None = None
) -> Figure:
    """Accuracy and loss against rounds, with the Guarantee underneath. Lines of probes are broken.

    Where clients have parts of the test set, a band spans from their worst tenth to their mean.
    """
    rounds = [point.round for point in history]
    figure = pictures.new((9, 4.1))
    left, right = figure.subplots(1, 2)
    marker = "o" if len(rounds) < 60 else None
    left.plot(rounds, [100 * point.test_accuracy for point in history], marker=marker, ms=3.5, color=TEST)
    left.set(title="test accuracy (%)", xlabel="round", ylim=(0, 100))
    last = history[-1]
    if last.worst_tenth is not None:
        worst, mean = (
            [math.nan if getattr(point, name) is None else 100 * getattr(point, name) for point in history]
            for name in ("worst_tenth", "client_mean")
        )
        left.lines[0].set_label("all test records")
        left.fill_between(rounds, worst, mean, color=PROBE, alpha=0.12, lw=0, label="worst tenth to mean (probe)")
        left.plot(rounds, worst, marker=marker, ms=3.5, color=PROBE, ls="--", label="worst tenth of clients (probe)")
        left.legend(frameon=False, loc="best", fontsize=8.5)
    left.annotate(
        f"{100 * last.test_accuracy:.1f}%",
        (last.round, 100 * last.test_accuracy),
        xytext=(-6, -16),
        textcoords="offset points",
        ha="right",
        color=TEST,
        fontweight="bold",
    )
    right.plot(rounds, [point.test_loss for point in history], marker=marker, ms=3.5, color=TEST, label="test")
    seen = [math.nan if point.train_loss is None else point.train_loss for point in history]  # None: nobody took part
    right.plot(rounds, seen, marker=marker, ms=3.5, color=PROBE, ls="--", label="cohort's batches (probe)")
    if last.objective is not None:
        known = [math.nan if point.objective is None else point.objective for point in history]
        right.plot(rounds, known, color=OBJECTIVE, ls=":", lw=2, label="all training records (probe)")
    right.set(title="cross-entropy (nats)", xlabel="round")
    right.set_ylim(bottom=0)
    right.legend(frameon=False, fontsize=8.5)
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=12)
    figure.supxlabel("\n".join(textwrap.wrap(str(guarantee), 118)), fontsize=8.5, color="0.25")
    return pictures.save(figure, path)


@checks_arguments
def plot_epsilon(
    curves: Mapping[str, tuple[Sequence[Any], Sequence[float]]],
    axis: str,
    title: str,
    whose: str,
    path: str | os.PathLike[str] | None = None,
    target: float | None = None,
) -> Figure:
    """Epsilon against `axis`, a curve per accountant; the legend says `whose` epsilon it is."""
    figure = pictures.new((7.2, 4.6))
    axes = figure.subplots()
    for rank, (name, (x, y)) in enumerate(curves.items()):
        about = {"attained": "attained (lower bound)"}.get(name, name)
        style = ":" if name == ATTAINED.name else "-"
        width = max(4.5 - rank, 1.3)  # so that coinciding curves all show
        axes.plot(x, y, style, color=COLORS[name], label=about, lw=width, marker="o", ms=max(width, 3))
    if target is not None:
        axes.axhline(target, color="0.3", lw=0.8, ls="--", label=f"budget {target:g}")
    axes.set(xlabel=axis, ylabel="epsilon (nats)", xscale="log", yscale="log")
    if all(len(x) == 1 for x, _ in curves.values()):
        axes.set_xlim(0.5, 2)
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.25, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    legend = axes.legend(title=f"epsilon of {whose}", frameon=False, fontsize=9, title_fontsize=9)
    legend.set_alignment("left")
    silent = [name for name in ACCOUNTANTS if name not in curves]
    if silent:
        figure.supxlabel("no answer: " + ", ".join(silent), fontsize=8.5, color="0.35")
    return pictures.save(figure, path)


@checks_arguments
def plot_claims(rows: Sequence[PaperRow], path: str | os.PathLike[str] | None = None) -> Figure:
    """Each paper's noise over the noise that suffices, coloured by verdict. Below 1 is too little noise."""
    shown = [row for row in rows if row.noise_ratio]
    if not shown:
        wanted, remedy = "asked for a paper with calibrated noise", "use dpnfl, cpfed, acs_pldp or dp_fedavg_output"
        raise errors.refuse("plot", path or "none", wanted, remedy)
    figure = pictures.new((9, 1.4 + 0.21 * len(shown)))
    axes = figure.subplots()
    for height, row in enumerate(shown):
        ratio = row.noise_ratio or 1.0
        color = VERDICTS[row.claim.verdict.value]
        axes.plot([1, ratio], [height, height], color=color, lw=2)
        axes.plot(ratio, height, "o", color=color, ms=4)
    axes.set_yticks(range(len(shown)))
    axes.set_yticklabels([f"{row.paper}, {row.claim.source}: {row.setting}" for row in shown], fontsize=7)
    axes.set(ylim=(len(shown) - 0.4, -0.6), xscale="log", xlabel="noise by the paper / noise that suffices")
    axes.axvline(1, color="0.3", lw=0.8)
    for side, words in ((-6, "too little noise"), (6, "more than needed")):
        axes.annotate(
            words,
            (1, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(side, 4),
            fontsize=8,
            color="0.3",
            textcoords="offset points",
            ha="right" if side < 0 else "left",
        )
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(alpha=0.25, axis="x")
    axes.spines[["top", "right"]].set_visible(False)
    for verdict, color in VERDICTS.items():
        if any(row.claim.verdict.value == verdict for row in shown):
            axes.plot([], [], "o-", color=color, label=verdict)
    axes.legend(title="one record of one client, replace-one", frameon=False, loc="best", fontsize=8, title_fontsize=8)
    return pictures.save(figure, path)


@checks_arguments
def plot_clients(counts: np.ndarray, title: str, path: str | os.PathLike[str] | None = None) -> Figure:
    """Records of each client and class `(clients, classes)`.

    Up to 30 clients are drawn as bubbles, area in proportion to records. More are sorted by the label they have most
    of and drawn as columns of a heat map of label shares, several clients to a column where there are over 250.
    """
    clients, classes = counts.shape
    few = clients <= 30
    figure = pictures.new((9, min(4.2 + 0.22 * classes, 10.5)))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1.2, 1 + 0.22 * classes])
    sizes = counts.sum(1)
    if few:
        above.bar(range(clients), sizes, color=TEST, width=0.7)
        x, y = np.nonzero(counts)
        widest = min(500 / clients, 340 / classes, 30)  # points; neighbours do not touch
        area = counts[x, y] / counts.max() * widest**2
        below.scatter(x, y, s=area, color=TEST, alpha=0.75, linewidths=0)
        below.set_xlim(-0.7, clients - 0.3)
        below.set_xlabel(f"client (the largest bubble: {counts.max():,} records of one label)")
        below.grid(alpha=0.2)
    else:
        shares = counts / np.maximum(sizes[:, None], 1)
        main = shares.argmax(1)
        order = np.lexsort((-shares[np.arange(clients), main], main))
        groups = np.array_split(order, min(clients, 250))
        edges = np.concatenate([[0], np.cumsum([len(group) for group in groups])])
        drawn = np.stack([shares[group].mean(0) for group in groups], axis=1)
        above.stairs([sizes[group].mean() for group in groups], edges, fill=True, color=TEST)
        mesh = below.pcolormesh(
            edges, np.arange(classes + 1) - 0.5, drawn, cmap="Blues", vmin=0, vmax=1, rasterized=True
        )
        figure.colorbar(mesh, ax=below, label="share of a client's records", pad=0.01, aspect=30)
        several = "" if len(groups) == clients else f", means over up to {len(groups[0])} of them"
        below.set_xlabel(f"clients, sorted by the label they have most of{several}")
    below.set(ylabel="label", ylim=(-0.6, classes - 0.4))
    below.yaxis.set_major_locator(MaxNLocator(nbins=32, integer=True, min_n_ticks=1))
    above.set(ylabel="records", ylim=(0, None))
    above.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if few:
        below.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    above.grid(alpha=0.25, axis="y")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("\n".join(textwrap.wrap(title, 100)), fontsize=11)
    return pictures.save(figure, path)


@checks_arguments
def plot_latency(found: Latency, title: str, path: str | os.PathLike[str] | None = None) -> Figure:
    """The parts of a round as one bar, and the parts of its floor as another, in milliseconds."""
    floor = found.floor
    bars = {
        "a round": {name: max(ms, 0.0) for name, ms in found.parts.items() if name != "evaluation"},
        "evaluation": {"evaluation": found.parts["evaluation"]},
        "its floor": {"gradient": floor.flops_ms, "noise": floor.normals_ms},
        "memory alone": {"gather": floor.bytes_ms},
    }
    color_of = matplotlib.colormaps["tab10"]
    colors = {name: color_of(place) for place, name in enumerate(found.parts)}
    figure = pictures.new((9, 2.9))
    axis = figure.subplots()
    for place, parts in enumerate(bars.values()):
        left = 0.0
        for name, ms in parts.items():
            axis.barh(place, ms, left=left, color=colors[name], label=name if place < 2 else None)
            left += ms
        told = found.round_ms if place == 0 else left  # as printed: parts below 0 are drawn as none
        axis.annotate(f"{told:.3g} ms", (left, place), xytext=(4, 0), textcoords="offset points", va="center")
    axis.set_yticks(range(len(bars)), list(bars))
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set(xlabel="milliseconds")
    axis.legend(frameon=False, fontsize=8.5, ncols=4, loc="lower right")
    axis.spines[["top", "right"]].set_visible(False)
    disturbed = " (disturbed: no measurement)" if found.disturbed else ""
    figure.suptitle(f"{title}: where the time of a round goes{disturbed}", fontsize=11)
    return pictures.save(figure, path, dpi=150)
