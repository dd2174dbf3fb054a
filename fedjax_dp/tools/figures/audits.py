"""The picture of an audit: scores, error rates, and the proved and stated epsilons."""

from __future__ import annotations

import math
import os
from typing import Any, Unpack

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from scipy.special import ndtr, ndtri

from fedjax_dp.accounting import TradeOff, trade_off
from fedjax_dp.display import downward, upward
from fedjax_dp.tools.figures import canvas, elements, styles
from fedjax_dp.tools.figures.tables import audits as tables

ABSENT, PRESENT, PROVED, CLAIMED, WRONG = styles.TEST, styles.PROBE, styles.OBJECTIVE, styles.VIOLET, styles.RED
COLORS = {tables.LOWER: PROVED, tables.UPPER: None, tables.CLAIM: CLAIMED, tables.REFUTED: WRONG}  # None: ink
RATES = ("false_positive", "false_negative")
TICKS = (1e-7, 1e-5, 1e-3, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999)  # rates on probit axes
POINTS = 241  # of a curve
BINS = 70
FAR = 4.0  # times the spread of nearly all scores; scores beyond it are drawn at the edge
MOST_FACTOR = 1e3  # times the stated noise; a curve with more noise looks like coin flips


def plot_audit(audit: Any, path: str | os.PathLike[str] | None = None, **look: Unpack[canvas.Look]) -> Figure:
    """Draw three panels: scores in both worlds, error rates against the stated curve, and every epsilon on one axis.

    Error rates are on probit axes, where Gaussian noise gives straight lines. The promise is broken if the corner of
    the bounds lies below the stated curve. `audit` is a `fedjax_dp.audits.Audit`; for `look` see `figures.Look`.
    """
    content = audit.to_dict()
    rows = [row for row in tables.epsilons(content) if row["epsilon"] is not None]
    last = 0.62 + 0.24 * len(rows)  # inches

    def arrange(figure: Any) -> list[Any]:
        if canvas.is_narrow(figure):
            return [part.subplots() for part in figure.subfigures(3, 1, height_ratios=[3.4, 5.2, 1.2 * last])]
        above, below = figure.subfigures(2, 1, height_ratios=[6.3, last])
        return [*above.subplots(1, 2), below.subplots()]

    with canvas.page(path, look, (10.5, 7.8 + 0.24 * len(rows)), 3, arrange, column=10 + last) as page:
        left, right, below = page.panels
        _draw_scores(audit, left)
        _draw_rates(audit, tables.errors(content), right)
        _draw_epsilons(audit, rows, below)
        for panel in page.panels:
            panel.spines[["top", "right"]].set_visible(False)
        page.title(_short(audit), color=WRONG if audit.violated else PROVED, fontweight="bold")
        about = (
            f"Stated: {audit.guarantee} Canary {audit.canary}, attack {audit.outcome.attack}, client {audit.name}, "
            f"seed {audit.seed}." + (f" Inspection: {audit.contradiction}." if audit.contradiction else "")
        )
        page.note(about)
    return page.figure


def _short(audit: Any) -> str:
    what = f"epsilon {upward(audit.tested_epsilon)} {'stated' if audit.claim is None else 'claimed'}"
    if audit.violated and not audit.proved:
        return f"VIOLATED by inspection of the parts; the attack alone proves {downward(audit.lower)} of {what}"
    if audit.proved and not audit.lower > audit.tested_epsilon:
        return f"VIOLATED: the attack errs less often than {what} allows"
    return f"{'VIOLATED' if audit.violated else 'consistent'}: {what}, at least {downward(audit.lower)} proved"


def _draw_scores(audit: Any, axes: Any) -> None:
    """Histograms of the counted scores, with the errors in darker colours."""
    outcome = audit.outcome
    worlds = [np.asarray(scores, float) for scores in (outcome.absent, outcome.present)]
    cuts = _cuts(outcome)
    low, high = _range(np.concatenate(worlds), cuts)
    bins = int(np.clip(np.sqrt(worlds[0].size), 12, BINS))
    width = (high - low) / bins
    edges = cuts[0] + width * np.arange(math.floor((low - cuts[0]) / width), math.ceil((high - cuts[0]) / width) + 1)
    low, high = edges[[0, -1]]
    wrong = [worlds[0] > cuts[-1], ~(worlds[1] > cuts[0])]
    for scores, errs, color, label in zip(worlds, wrong, (ABSENT, PRESENT), ("without the canary", "with the canary")):
        counts, dark = (np.histogram(np.clip(some, low, high), edges)[0] for some in (scores, scores[errs]))
        axes.stairs(counts, edges, fill=True, color=color, alpha=0.28)
        axes.stairs(counts, edges, color=color, lw=1.3, label=label)
        axes.stairs(dark, edges, fill=True, color=color, alpha=0.45)
    about = "threshold, chosen on other runs" if len(cuts) == 1 else "guesses lie beyond these"
    for cut, label in zip(cuts, (about, "")):
        axes.axvline(cut, color=styles.ink(), lw=1.2, ls="--", label=label)
    beyond = sum(int(np.sum((scores < low) | (scores > high))) for scores in worlds)
    note = f" ({beyond:,} outliers are drawn at the edges)" if beyond else ""
    title, label = (
        canvas.wrap(words, _room(axes), "medium")
        for words in (f"{_error_count(outcome)} (errors dark)", f"score of the attack{note}")
    )
    axes.set_title(title, fontsize="medium")
    axes.set(xlabel=label, ylabel="runs" if len(cuts) == 1 else "canaries", xlim=(low, high))
    elements.legend_below(axes)
    axes.grid(alpha=0.25)


def _room(axes: Any) -> float:
    """Inches for the texts above and below a panel."""
    return canvas.width_of(axes) - 0.3 * styles.scale()


def _cuts(outcome: Any) -> list[float]:
    """The threshold; or the scores below and above which a canary of a single run is guessed absent and present."""
    if hasattr(outcome, "threshold"):
        return [outcome.threshold]
    scores, half = np.sort(np.concatenate([outcome.absent, outcome.present])), outcome.guesses // 2
    return [float(scores[half - 1]), float(scores[-half - 1 if half < scores.size else 0])]


def _error_count(outcome: Any) -> str:
    if not hasattr(outcome, "threshold"):
        return f"one run: {outcome.guesses - outcome.correct:,} of {outcome.guesses:,} guesses wrong"
    bounds = outcome.bounds
    wrong, runs = bounds.false_positives + bounds.false_negatives, bounds.negatives + bounds.positives
    return f"{wrong:,} of {runs:,} counted runs misclassified"


def _range(scores: np.ndarray, cuts: list[float]) -> tuple[float, float]:
    """The range of the scores without outliers."""
    inner = np.quantile(scores, [0.01, 0.5, 0.99])
    reach = FAR * max(inner[2] - inner[1], inner[1] - inner[0])
    low, high = max(scores.min(), inner[1] - reach), min(scores.max(), inner[1] + reach)
    low, high = min(low, *cuts), max(high, *cuts)
    margin = 0.02 * (high - low) or 0.5 * max(abs(high), 1.0)
    return float(low - margin), float(high + margin)


def _draw_rates(audit: Any, errors: tables.Rows, axes: Any) -> None:
    """Both error rates: the stated limit, the rates of the attack, and the proved limit."""
    absent, present = (np.sort(np.asarray(s, float)) for s in (audit.outcome.absent, audit.outcome.present))
    least = min(0.3 / max(absent.size, present.size), 0.005)
    low, high = ndtri(least), ndtri(0.995)
    x = np.linspace(low, high, POINTS)

    def draw(curve: TradeOff, **style: Any) -> np.ndarray:
        y = ndtri(np.clip(curve(ndtr(x)), 1e-12, 1 - 1e-12))
        axes.plot(x, y, **style)
        return y

    allowed = draw(
        trade_off(audit.event, audit.accountant), color=styles.ink(), lw=2, label="stated limit for any attack"
    )
    axes.fill_between(x, low, np.maximum(allowed, low), color=styles.ink(), alpha=0.08, lw=0)
    delta = np.array([audit.guarantee.delta])
    if audit.claim is not None:
        claimed = TradeOff(None, np.array([audit.claim]), delta)
        draw(claimed, color=CLAIMED, lw=1.6, ls="-.", label=f"the claim, epsilon {upward(audit.claim)}")
    style = {"color": PROVED, "lw": 1.6, "ls": "--"}
    if audit.noise < MOST_FACTOR:
        label = f"proved: at most {upward(audit.noise, 3)} times the stated noise"
        draw(trade_off(audit.event.scaled(audit.noise), audit.accountant), label=label, **style)
    elif audit.lower > 0:
        proved = TradeOff(None, np.array([audit.lower]), delta)
        draw(proved, label=f"proved: epsilon at least {downward(audit.lower)}", **style)
    axes.plot(x, -x, color="0.6", lw=0.9, ls=":", label="coin flips")
    scores = np.concatenate([absent, present])
    rates = [
        1 - np.searchsorted(absent, np.sort(scores), side="right") / absent.size,
        np.searchsorted(present, np.sort(scores), side="right") / present.size,
    ]
    axes.plot(*(_probit(rate, least) for rate in rates), color=PRESENT, lw=1.2, label="the attack, any threshold")
    if errors:
        _draw_bounds(audit, errors, least, axes)
    ticks = [rate for rate in TICKS if least <= rate <= 0.995]
    few = ticks[:: 2 if canvas.is_narrow(axes.figure) else 1]
    for axis, rates_of in ((axes.xaxis, few), (axes.yaxis, ticks)):
        axis.set_ticks([float(ndtri(rate)) for rate in rates_of], [f"{rate:g}" for rate in rates_of])
    axes.set(xlim=(low, high), ylim=(low, high), xlabel="false positive rate", ylabel="false negative rate")
    axes.set_title("error rates of the attack", fontsize="medium")
    axes.grid(alpha=0.25)
    elements.legend_below(axes)


def _draw_bounds(audit: Any, errors: tables.Rows, least: float, axes: Any) -> None:
    """The observed rates, with a box up to the corner of their bounds."""
    point, top = ([float(_probit(row[name], least)) for name in RATES] for row in errors)
    color, mean = WRONG if audit.violated else PROVED, audit.outcome.bounds.mean
    label = f"{'bounds on both' if mean is None else 'bound on the mean of both'}, {audit.confidence} confidence"
    if mean is None:
        width, height = top[0] - point[0], top[1] - point[1]
        axes.add_patch(Rectangle((point[0], point[1]), width, height, color=color, alpha=0.3, lw=0, zorder=4))
    else:
        first = np.linspace(0, min(2 * mean, 1), POINTS)
        line = (_probit(rates, least) for rates in (first, np.clip(2 * mean - first, 0, 1)))
        axes.plot(*line, color=color, lw=1.2, alpha=0.6, zorder=4, label="all rates whose mean is the bound")
    axes.plot(*point, "o", color=PRESENT, ms=4.5, zorder=5, label="at its threshold")
    axes.plot(*top, "s", color=color, ms=6, zorder=6, label=label)


def _probit(rates: Any, least: float) -> np.ndarray:
    """Rates as positions on the axes; zero and one lie at the ends."""
    return ndtri(np.clip(rates, least, 1 - 1e-6))


def _draw_epsilons(audit: Any, rows: tables.Rows, axes: Any) -> None:
    """A row for each epsilon; values in the shade are refuted."""
    values = [row["epsilon"] for row in rows]
    positive = [epsilon for epsilon in values if epsilon > 0] or [1.0]
    if max(positive) > 20 * min(positive):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        first, last = min(positive) / 1.6, max(positive) * 2
    else:
        first, last = 0.0, 1.12 * max(positive)
    axes.set_xlim(first, last)
    if audit.lower > first:
        axes.axvspan(first, audit.lower, color=PROVED, alpha=0.12, lw=0)
    for place, row in enumerate(rows):
        epsilon, color = row["epsilon"], COLORS[row["kind"]] or styles.ink()
        at = max(epsilon, first)
        axes.plot(at, place, "o", color=color, ms=6, clip_on=False)
        shown = downward(epsilon) if row["kind"] == tables.LOWER else upward(epsilon)
        elements.label(axes, shown, (at, place), (7, -3.5), fontsize=styles.SMALL, color=color)
    axes.set_yticks(range(len(rows)), [row["what"] for row in rows], fontsize=styles.SMALL)
    label = f"epsilon at delta {audit.guarantee.delta:g}, with {audit.confidence} confidence (shaded: refuted)"
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel=canvas.wrap(label, _room(axes), "medium"))
    axes.grid(alpha=0.25, axis="x")
