"""Elements of figures: bands and bars, legends, axes without a frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from fedjax_dp.tools.figures.styles import SMALL, TEST

BANDS = 2  # more bands cannot be distinguished where they overlap
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "title_fontsize": SMALL}
BELOW = "below"  # gid of legends under a panel, so that notes can avoid them


def interval(
    panel: Any, x: Any, mean: Any, low: Any, high: Any, color: Any, of: int = 1, every: tuple[int, int] = (0, 1)
) -> None:
    """Draw the interval of a mean: a band, or bars if there are many lines.

    every  (first, step) of the points that have bars
    """
    if of <= BANDS:
        panel.fill_between(x, low, high, color=color, alpha=0.16, lw=0, zorder=1)
        return
    lengths = np.nan_to_num(np.abs(np.array([low, high], float) - np.array(mean, float)))
    panel.errorbar(x, mean, lengths, fmt="none", ecolor=color, elinewidth=0.9, capsize=2.5, errorevery=every, zorder=2)


def label(panel: Any, words: str, at: Any, aside: tuple[float, float], **look: Any) -> None:
    """Write words at an offset in points from a position."""
    panel.annotate(words, at, xytext=aside, textcoords="offset points", **look)


def legend_beside(panel: Any, **options: Any) -> Any:
    """Add a legend on the right of a panel."""
    return panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), alignment="left", **LEGEND, **options)


def legend_below(panel: Any, columns: int = 1) -> Any:
    """Add a legend under the label of a panel's x axis, which must be set already."""
    pad = 4.6 + 1.4 * panel.get_xlabel().count("\n")
    legend = panel.legend(loc="upper center", bbox_to_anchor=(0.5, 0), borderaxespad=pad, ncols=columns, **LEGEND)
    legend.set_gid(BELOW)
    return legend


def legend_above(panel: Any, handles: Sequence[Any], labels: Sequence[str], title: str | None, letters: int) -> Any:
    """Add a legend above the title of the only panel of a figure, in columns that fit this number of letters."""
    columns = max(1, min(len(labels), letters // (max(map(len, labels)) + 6)))
    columns = -(-len(labels) // -(-len(labels) // columns))  # of nearly equal length
    near = {"borderpad": 0.1, "labelspacing": 0.2, "columnspacing": 1.0}
    place = {"loc": "outside upper center", "ncols": columns, "title": title}
    return panel.figure.legend(handles, labels, **place, **near, **LEGEND)


class Bar(NamedTuple):
    """A bar that begins at `start`; negative lengths go to the left."""

    name: str
    length: float
    start: float = 0.0
    color: Any = TEST


def draw_bars(panel: Any, bars: Sequence[Bar], words: Callable[[float], str]) -> None:
    """Draw horizontal bars with their names on the left and their lengths in words at their ends."""
    names, lengths, starts, colors = zip(*bars)
    drawn = panel.barh(range(len(bars)), lengths, left=starts, color=colors)
    for place, (bar, length) in enumerate(zip(drawn, lengths)):
        end = bar.get_x() + max(bar.get_width(), 0)
        label(panel, words(length), (end, place), (4, 0), va="center")
    panel.set_yticks(range(len(bars)), names)
    panel.invert_yaxis()
    open_frame(panel, "x")


def begin_at_zero(panel: Any) -> None:
    """Begin the y axis at 0 and leave room above the largest number for its marker."""
    panel.update_datalim([(0.0, 0.0)], updatex=False)
    panel.autoscale_view(scalex=False)
    panel.set_ylim(bottom=0)


def open_frame(panel: Any, grid: str = "both", which: Any = "major") -> None:
    """Draw faint grid lines behind the data, and no frame at the top and the right."""
    panel.grid(alpha=0.25, axis=grid, which=which)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def plain_log(axis: Any) -> None:
    """Write plain numbers on a logarithmic axis, with more ticks if it spans few powers of ten."""
    low, high = axis.get_view_interval()
    if 10 * low <= high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter((lambda value, _: f"{value:.2g}") if high < 10 * low else NullFormatter())
