"""Pictures of results."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg", force=False)
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

from fedjax_dp import errors
from fedjax_dp.accounting import ACCOUNTANTS, ATTAINED, Guarantee
from fedjax_dp.accounting.papers import Row

if TYPE_CHECKING:  # so that accounting plots without JAX
    from fedjax_dp.simulation import Evaluation

TEST, PROBE = "#1f5fa8", "#b0643c"
COLORS = {"pld": TEST, "rdp": "#2f8f5b", "gaussian": "#7a4fa3", "zcdp": PROBE, "tcdp": "#c23b4b", "attained": "0.45"}
VERDICTS = {"holds": "#2f8f5b", "conditional": TEST, "heuristic": "#d39a2d", "wrong": "#c23b4b"}


def plot_run(history: Sequence[Evaluation], guarantee: Guarantee, title: str, path: str | os.PathLike) -> None:
    """Accuracy and loss against rounds, with the Guarantee underneath, as a PNG."""
    rounds = [point.round for point in history]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.1), layout="constrained")
    marker = "o" if len(rounds) < 60 else None
    left.plot(rounds, [100 * point.test_accuracy for point in history], marker=marker, ms=3.5, color=TEST)
    left.set(title="test accuracy (%)", xlabel="round", ylim=(0, 100))
    last = history[-1]
    left.annotate(
        f"{100 * last.test_accuracy:.1f}%", (last.round, 100 * last.test_accuracy), xytext=(-6, -16),
        textcoords="offset points", ha="right", color=TEST, fontweight="bold",
    )  # fmt: skip
    right.plot(rounds, [point.test_loss for point in history], marker=marker, ms=3.5, color=TEST, label="test")
    seen = [math.nan if point.train_loss is None else point.train_loss for point in history]  # None: nobody took part
    right.plot(
        rounds, seen, marker=marker, ms=3.5, color=PROBE, ls="--",
        label="cohort's batches (probe)",
    )  # fmt: skip
    right.set(title="cross-entropy (nats)", xlabel="round")
    right.set_ylim(bottom=0)
    right.legend(frameon=False)
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=12)
    figure.supxlabel("\n".join(textwrap.wrap(str(guarantee), 118)), fontsize=8.5, color="0.25")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def plot_epsilon(
    curves: Mapping[str, tuple[Sequence[Any], Sequence[float]]], axis: str, title: str, whose: str,
    path: str | os.PathLike, target: float | None = None,
) -> None:  # fmt: skip
    """Epsilon against `axis`, a curve per accountant, as a PNG; the legend says `whose` epsilon it is."""
    figure, axes = plt.subplots(figsize=(7.2, 4.6), layout="constrained")
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
    _save(figure, path)


def plot_claims(rows: Sequence[Row], path: str | os.PathLike) -> None:
    """Each paper's noise over the noise that suffices, coloured by verdict, as a PNG. Below 1 is too little noise."""
    shown = [row for row in rows if row.noise_ratio]
    if not shown:
        raise errors.refuse("plot", str(path), "asked for a paper with calibrated noise", "use 000, 002, 003 or 004")
    figure, axes = plt.subplots(figsize=(9, 1.4 + 0.21 * len(shown)), layout="constrained")
    for height, row in enumerate(shown):
        ratio = row.noise_ratio or 1.0
        color = VERDICTS[row.claim.verdict.value]
        axes.plot([1, ratio], [height, height], color=color, lw=2)
        axes.plot(ratio, height, "o", color=color, ms=4)
    axes.set_yticks(range(len(shown)))
    axes.set_yticklabels([f"{row.paper} {row.claim.source}: {row.setting}" for row in shown], fontsize=7)
    axes.set(ylim=(len(shown) - 0.4, -0.6), xscale="log", xlabel="noise by the paper / noise that suffices")
    axes.axvline(1, color="0.3", lw=0.8)
    for side, words in ((-6, "too little noise"), (6, "more than needed")):
        axes.annotate(words, (1, 1.0), xycoords=("data", "axes fraction"), xytext=(side, 4), fontsize=8, color="0.3",
                      textcoords="offset points", ha="right" if side < 0 else "left")  # fmt: skip
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(alpha=0.25, axis="x")
    axes.spines[["top", "right"]].set_visible(False)
    for verdict, color in VERDICTS.items():
        if any(row.claim.verdict.value == verdict for row in shown):
            axes.plot([], [], "o-", color=color, label=verdict)
    axes.legend(title="one record of one client, replace-one", frameon=False, loc="best", fontsize=8, title_fontsize=8)
    _save(figure, path)


def _save(figure: Any, path: str | os.PathLike) -> None:
    figure.savefig(path, dpi=130)
    plt.close(figure)
