"""The picture of a round's time. For `look` see `figures.Look`."""

import os
from typing import Unpack

from matplotlib.figure import Figure

from fedjax_dp.tools.figures import canvas, elements, styles
from fedjax_dp.tools.latency.measurement import Latency, milliseconds

DPI = 150


def plot_latency(
    latency: Latency, title: str, path: str | os.PathLike[str] | None = None, **look: Unpack[canvas.Look]
) -> Figure:
    """Draw a round, its parts one after another, and its floor, in milliseconds. One panel.

    A negative part, within the spread, goes to the left, so that the parts end where the round does.
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
