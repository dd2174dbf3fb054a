"""Pictures of a round's time. `look` of each of them is ax, size and style, see `figures.Look`."""

import os
from typing import Unpack

from matplotlib.figure import Figure

from fedjax_dp.arguments import checks_arguments
from fedjax_dp.figures import canvas, elements
from fedjax_dp.forecast.compiled import Compiled
from fedjax_dp.forecast.latency import Latency

ROUND, PART, FLOOR = "#1f5fa8", "#b0643c", "#2f8f5b"


@checks_arguments
def plot_latency(
    found: Latency, title: str, path: str | os.PathLike[str] | None = None, **look: Unpack[canvas.Look]
) -> Figure:
    """A round, its parts, each where the last one ends, and its floor, in milliseconds as they are printed. One panel.

    A part below 0, within the spread, goes to the left; so the parts end where the round does.
    """
    rows, ends = [("a round", 0.0, found.round_ms, ROUND)], 0.0
    for name, ms in found.parts.items():
        left = 0.0 if name == "evaluation" else ends  # evaluation is no part of a round
        rows.append((name, left, ms, PART))
        ends = left + ms
    floor = found.floor
    rows += [
        ("the floor", 0.0, floor.ms, FLOOR),
        ("gradients", 0.0, floor.flops_ms, "0.6"),
        ("normals", floor.flops_ms, floor.normals_ms, "0.6"),
        ("memory, overlapping", 0.0, floor.bytes_ms, "0.6"),
    ]
    with canvas.page(path, look, (9, 4.2), dpi=150) as page:
        (panel,) = page.panels
        for place, (_, left, ms, color) in enumerate(rows):
            panel.barh(place, ms, left=left, color=color)
            panel.annotate(
                found.told(ms), (max(left, left + ms), place), xytext=(4, 0), textcoords="offset points", va="center"
            )
        panel.set_yticks(range(len(rows)), [name for name, *_ in rows])
        panel.invert_yaxis()
        panel.margins(x=0.12, y=0.02)
        panel.set(xlabel="milliseconds")
        elements.open_frame(panel, "x")
        page.title(f"{title}: {found.headline}")
    return page.figure


@checks_arguments
def plot_compiled(
    found: Compiled, title: str, path: str | os.PathLike[str] | None = None, **look: Unpack[canvas.Look]
) -> Figure:
    """A round compiled for an accelerator: its times by what would bound it, and its parts. Two panels.

    The parts are launches of a round, or cycles where the compiler estimates them.
    """
    unit, counts = ("cycles", found.cycles) if found.cycles else ("launches", found.launches)
    with canvas.page(path, look, (9, 4.2), 2, lambda figure: figure.subplots(1, 2), dpi=150) as page:
        left, right = page.panels
        for panel, bars, told in (
            (left, found.times_ms, "{:.3g} ms"),
            (right, {part.replace("_", " "): float(count) for part, count in counts.items()}, "{:,.0f}"),
        ):
            panel.barh(range(len(bars)), list(bars.values()), color=ROUND)
            for place, size in enumerate(bars.values()):
                panel.annotate(told.format(size), (size, place), xytext=(4, 0), textcoords="offset points", va="center")
            panel.set_yticks(range(len(bars)), list(bars))
            panel.invert_yaxis()
            panel.margins(x=0.25)
            elements.open_frame(panel, "x")
        left.set(xlabel="milliseconds a round, predicted", title="bound by the longest")
        right.set(xlabel=f"{unit} a round", title=f"{found.step_cycles or found.step_launches:,} {unit} a local step")
        needed, there = found.needed_bytes / 1e9, found.target.memory / 1e9
        page.title(f"{title}, compiled for {found.target.name}: {needed:.3g} GB of {there:.3g}")
        page.note("nothing is measured: counts are read off the compiled program, times follow by formulas")
    return page.figure
