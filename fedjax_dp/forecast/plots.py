"""Pictures of a round's time. `look` of each of them is ax, size and style, see `figures.Look`."""

import os
from typing import Unpack

from matplotlib.figure import Figure

from fedjax_dp.figures import canvas, elements, styles
from fedjax_dp.forecast.compiled import Compiled
from fedjax_dp.forecast.latency import Latency, milliseconds

DPI = 150


def plot_latency(
    latency: Latency, title: str, path: str | os.PathLike[str] | None = None, **look: Unpack[canvas.Look]
) -> Figure:
    """A round, its parts, each where the last one ends, and its floor, in milliseconds as they are printed. One panel.

    A part below 0, within the spread, goes to the left; so the parts end where the round does.
    """
    bars, end = [elements.Bar("a round", latency.round_ms, color=styles.TEST)], 0.0
    for name, ms in latency.parts.items():
        start = 0.0 if name == "evaluation" else end  # evaluation is no part of a round
        bars.append(elements.Bar(name, ms, start, styles.PROBE))
        end = start + ms
    floor = latency.floor
    bars += [
        elements.Bar("the floor", floor.ms, color=styles.OBJECTIVE),
        elements.Bar("gradients", floor.flops_ms, color="0.6"),
        elements.Bar("normals", floor.normals_ms, floor.flops_ms, "0.6"),
        elements.Bar("memory, overlapping", floor.bytes_ms, color="0.6"),
    ]
    with canvas.page(path, look, (9, 4.2), dpi=DPI) as page:
        (panel,) = page.panels
        elements.draw_bars(panel, bars, milliseconds)
        panel.margins(x=0.12, y=0.02)
        panel.set(xlabel="milliseconds")
        page.title(f"{title}: {latency.headline}")
    return page.figure


def plot_compiled(
    compiled: Compiled, title: str, path: str | os.PathLike[str] | None = None, **look: Unpack[canvas.Look]
) -> Figure:
    """A round compiled for an accelerator: its predicted time, where a model is calibrated, and its parts. Two panels.

    The parts are launches of a round, or cycles where the compiler estimates them; without a time there is one panel.
    """
    unit, counts = ("cycles", compiled.cycles) if compiled.cycles else ("launches", compiled.launches)
    times, step = compiled.times_ms, compiled.step_cycles or compiled.step_launches
    panels = 2 if times else 1
    with canvas.page(path, look, (9, 4.2), panels, lambda figure: figure.subplots(1, panels), dpi=DPI) as page:
        parts = [elements.Bar(part.replace("_", " "), count) for part, count in counts.items()]
        elements.draw_bars(page.panels[-1], parts, "{:,.0f}".format)
        page.panels[-1].set(xlabel=f"{unit} a round", title=f"{step:,} {unit} a local step")
        if times:
            shares = [elements.Bar(name, ms) for name, ms in times.items()]
            elements.draw_bars(page.panels[0], shares, "{:.3g} ms".format)
            predicted = f"{sum(times.values()):.3g} ms a round, predicted"
            page.panels[0].set(xlabel="milliseconds, by what takes them", title=predicted)
        for panel in page.panels:
            panel.margins(x=0.25)
        needed, there = compiled.needed_bytes / 1e9, compiled.target.memory / 1e9
        page.title(f"{title}, compiled for {compiled.target.name}: {needed:.3g} GB of {there:.3g}")
        page.note(f"nothing is measured: counts are read off the compiled program; {compiled.about_time}")
    return page.figure
