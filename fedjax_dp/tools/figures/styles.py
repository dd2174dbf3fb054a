"""The look of figures: colours, markers and dashes of lines."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import Normalize

SMALL = "small"  # relative to the style's font size, like every size here
TEST, PROBE, OBJECTIVE = "#1f5fa8", "#b0643c", "#2f8f5b"  # public test data, diagnostics, the objective
VIOLET, RED = "#7a4fa3", "#c23b4b"
FAILED = RED
PALETTE = (TEST, PROBE, OBJECTIVE, VIOLET, "#d39a2d", "#3aa6b9", "#8c6d46", "0.5")
MAP = matplotlib.colormaps["viridis"]  # of metrics
ORDER = matplotlib.colormaps["plasma"]  # of lines with ordered values
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (2, 1)))
PAPER = "fedjax_dp.tools.figures.paper"  # a style sheet: one column of a paper
NAMED = {"paper": PAPER}
BARS = 8  # of a line with bars instead of a band


def ink() -> Any:
    """The text colour of the style."""
    return matplotlib.rcParams["text.color"]


def paper() -> Any:
    """The background colour of the style."""
    return matplotlib.rcParams["axes.facecolor"]


def scale() -> float:
    """The font size of the style relative to the usual one, which also scales lines and markers."""
    return float(matplotlib.rcParams["font.size"]) / 10


def line_look(rank: int, of: int) -> dict[str, Any]:
    """Marker, dashes and width of one of several lines; later ones are thinner, so lines that coincide all show."""
    extra = (of - 1 - rank) * min(0.6, 1.8 / max(of - 1, 1))
    return {
        "marker": MARKERS[rank % len(MARKERS)],
        "ls": DASHES[rank % len(DASHES)],
        "lw": scale() * (1.4 + extra),
        "ms": scale() * (4.0 + 1.5 * extra),
    }


def marks(points: int, rank: int = 0, of: int = 1) -> tuple[int, int]:
    """(first, step) of the points of a line with markers or bars: few, and different from those of other lines."""
    if points < of:
        return 0, 1
    step = max(-(-points // BARS), of)
    return rank * step // of, step


def colour_range(numbers: np.ndarray, better: int) -> Normalize:
    """The range of the colours, from the best number to the worst, without outliers.

    A setting that learned nothing would otherwise leave all others in one colour. If the worst number is more than five
    times as far from the median as the best, colours end at three times that distance.
    """
    if not np.size(numbers):
        return Normalize(0, 1)
    low, middle, high = np.quantile(numbers, [0, 0.5, 1]).tolist()
    if better < 0 and high - middle > 5 * (middle - low) > 0:
        high = middle + 3 * (middle - low)
    if better > 0 and middle - low > 5 * (high - middle) > 0:
        low = middle - 3 * (high - middle)
    return Normalize(low, high) if low < high else Normalize(low - 0.5, high + 0.5)


def colour_map(better: int) -> Any:
    """The colour map of a metric; better is brighter."""
    return MAP.reversed() if better < 0 else MAP
