"""The picture of the papers' claims. For `look` see `figures.Look`."""

import os
from collections.abc import Sequence
from typing import Any, Unpack

from matplotlib.figure import Figure

from fedjax_dp import errors
from fedjax_dp.tools.figures import canvas, elements, styles
from fedjax_dp.tools.papers.row import PaperRow

VERDICTS = {
    "holds": (styles.OBJECTIVE, "s"),
    "conditional": (styles.TEST, "o"),
    "heuristic": (styles.PALETTE[4], "D"),
    "wrong": (styles.RED, "X"),
}
SETTINGS = 24  # of claims; more are not all named


def plot_claims(
    rows: Sequence[PaperRow], path: str | os.PathLike[str] | None = None, **look: Unpack[canvas.Look]
) -> Figure:
    """Draw each paper's noise over the noise that suffices, by verdict, in one panel. Below 1 is too little noise.

    A row is a claim and a dot a setting; with more than 24 settings only the ends of each row are named.
    """
    groups: dict[tuple[str, str], list[PaperRow]] = {}
    for row in rows:
        if row.noise_ratio:
            groups.setdefault((row.paper, row.claim.source), []).append(row)
    if not groups:
        wanted, remedy = "drawn for a paper with calibrated noise", "use dpnfl, cpfed, acs_pldp or dp_fedavg_output"
        raise errors.refuse("plot", path or "none", wanted, remedy)
    shown = sum(map(len, groups.values()))
    pitch = 0.17 if shown <= SETTINGS else 0.1  # inches from setting to setting
    with canvas.page(path, look, (9, 1.5 + pitch * (shown + 2 * len(groups))), wide=True) as page:
        (panel,) = page.panels
        middles, top = [], 0.0
        for group in groups.values():
            _claim(panel, group, top + 1, shown <= SETTINGS)
            middles.append(top + (len(group) + 1) / 2)
            top += len(group) + 2
            panel.axhline(top - 0.5, color=styles.ink(), lw=0.5, alpha=0.25)
        counts = [f"{len(group)} setting{'s' * (len(group) > 1)}" for group in groups.values()]
        names = [f"{paper}, {source}\n{count}" for (paper, source), count in zip(groups, counts)]
        panel.set_yticks(middles, names, fontsize=styles.SMALL)
        panel.tick_params(axis="y", length=0)
        panel.set(ylim=(top - 0.5, -0.5), xscale="log")
        panel.set_xlabel("noise of the paper / noise that suffices\n(below 1: too little; above 1: more than needed)")
        panel.margins(x=0.4)  # for the names of settings
        panel.axvline(1, color=styles.ink(), lw=0.8)
        elements.plain_log(panel.xaxis)
        elements.open_frame(panel, "x")
        present = {row.claim.verdict.value for row in rows if row.noise_ratio}
        for verdict, (color, marker) in VERDICTS.items():
            if verdict in present:
                panel.plot([], [], marker, color=color, label=verdict)
        elements.legend_below(panel, len(VERDICTS))
        page.note("for one record of one client, replace-one neighbours")
    return page.figure


def _claim(panel: Any, group: Sequence[PaperRow], top: float, all_named: bool) -> None:
    """Draw a claim's settings as dots with names, one below the other."""
    ratios = [row.noise_ratio or 1.0 for row in group]
    ends = {ratios.index(min(ratios)), ratios.index(max(ratios))}
    for place, (row, ratio) in enumerate(zip(group, ratios)):
        color, marker = VERDICTS[row.claim.verdict.value]
        panel.plot(ratio, top + place, marker, color=color, ms=5, mew=0)
        if not all_named and place not in ends:
            continue
        right = (ratio == max(ratios) and len(ends) > 1) or (all_named and ratio > 1)
        side, box = "left" if right else "right", {"fc": styles.paper(), "ec": "none", "alpha": 0.8, "pad": 0.5}
        look: Any = {"ha": side, "va": "center", "fontsize": "x-small", "bbox": box}
        elements.label(panel, row.setting, (ratio, top + place), (6 if right else -6, 0), **look)
