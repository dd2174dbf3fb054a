"""Figures without pyplot: no backend is chosen, no figure stays open, and notebooks show the returned figure.

Every drawing function takes `**look: Unpack[Look]` and draws on a `page`, so that only this module handles the user's
Axes, sizes, styles and files.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import matplotlib
import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from fedjax_dp import errors, folders
from fedjax_dp.tools.figures import styles
from fedjax_dp.tools.figures.elements import BELOW, LEGEND, label, legend_beside
from fedjax_dp.tools.figures.styles import SMALL

DPI, PAPER_DPI = 130, 300  # of PNG files
COLUMN, PAGE = (3.3, 2.4), 6.9  # inches in a paper: a picture in one column, and the width of two columns
DATES = {".pdf": "CreationDate", ".svg": "Date"}  # left out so that the same figure gives the same bytes
SMALLEST, LARGEST = 1, 100  # inches
NARROW = 7.0  # inches at the usual font size; narrower figures stack their panels
LETTER = 0.57  # mean width of a letter over its height


class Look(TypedDict, total=False):
    """The look of one picture.

    ax     Axes of matplotlib to draw into, or a list of them for a picture with several panels: the title goes above
           the first panel, the note below the last. Their figure is returned and keeps its size and style
           (`layout="constrained"` makes room for legends next to the panels)
    size   width and height in inches
    style  the name of a style sheet of matplotlib, or a dictionary of rcParams; `paper` has small print for one column
           of 3.3 x 2.4 inches, or for the width of a page if there are several panels
    """

    ax: Any
    size: Sequence[float] | None
    style: str | Mapping[str, Any] | None


class NotebookFigure(Figure):
    """A figure that notebooks show with any backend."""

    own = True  # False for the user's figures, see `points.finish`

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=DPI)
        return file.getvalue()


class Page(NamedTuple):
    """A figure and its panels."""

    figure: Figure
    panels: list[Any]
    own: bool  # False for the user's Axes

    def title(self, text: str, **font: Any) -> None:
        """Set the title of the whole picture. Call it last: on the user's Axes it joins the title of a panel."""
        if self.own:
            self.figure.suptitle(wrap(text, self.figure.get_figwidth(), "large"), fontsize="large", **font)
            return
        panel = self.panels[0]
        side = "left" if panel.get_title("left") else "center"
        lines = [wrap(text, width_of(panel), "medium"), panel.get_title(side)]
        panel.set_title("\n".join(filter(None, lines)), loc=side, **({"fontsize": "medium"} | font))

    def note(self, text: str) -> None:
        """Add small print about the whole picture; lines break between its parts if possible."""
        if self.own:
            lines = wrap(text, self.figure.get_figwidth(), SMALL)
            self.figure.supxlabel(lines, fontsize=SMALL, alpha=0.75)
            return
        panel = self.panels[-1]
        legend = panel.get_legend()
        above = legend if legend is not None and legend.get_gid() == BELOW else panel.xaxis.label
        look = {"ha": "center", "va": "top", "fontsize": SMALL, "alpha": 0.75, "annotation_clip": False}
        label(panel, wrap(text, width_of(panel), SMALL), (0.5, 0), (0, -5), xycoords=above, **look)

    def legend(self, handles: Sequence[Any]) -> None:
        """Add one legend for all panels."""
        if self.own:
            self.figure.legend(handles=handles, loc="outside right center", **LEGEND)
        else:
            legend_beside(self.panels[-1], handles=handles)


@contextlib.contextmanager
def page(
    path: str | os.PathLike[str] | None,
    look: Look,
    size: tuple[float, float],
    panels: int = 1,
    arrange: Callable[[Any], Any] = lambda figure: figure.subplots(),
    *,
    layout: Any = "constrained",
    dpi: int = DPI,
    column: float = 0.0,
    wide: bool = False,
) -> Iterator[Page]:
    """A page with the given look; it is saved to the path, if there is one, once it is drawn.

    size     inches, if the look has none
    arrange  makes the panels on a new figure
    column   height of stacked panels in inches at the usual font size, for the remedy if the size is too small
    wide     a single panel with texts at its sides, which takes the width of a page in a paper too
    Raises: ConfigurationError if the size of the look is too small for the texts.
    """
    check(look)
    ax, named = look.get("ax"), look.get("style") or {}
    style = styles.NAMED.get(named, named) if isinstance(named, str) else dict(named)
    if style == styles.PAPER:
        size, dpi = (COLUMN if panels == 1 and not wide else (PAGE, PAGE * size[1] / size[0])), PAPER_DPI
    with matplotlib.style.context(style):
        if ax is None:
            width, height = look.get("size") or size
            figure = new((width, height), layout)
            drawing = Page(figure, list(np.ravel(arrange(figure))), True)
        else:
            own = _axes_of(ax, panels)
            drawing = Page(own[0].figure.figure, own, False)
        yield drawing
        if look.get("size") is not None:
            _require_room(drawing.figure, column * styles.scale())
        save(drawing.figure, path, dpi)


def is_narrow(figure: Any, inches: float = NARROW) -> bool:
    """Whether a figure, or a part of one, is narrower at the usual font size: by default, than to stack no panels."""
    return width_of(figure) < inches * styles.scale()


def _require_room(figure: Any, column: float) -> None:
    """Refuse a size that leaves no room to draw, or would cut off texts."""
    wanted = "larger: the texts leave no room to draw"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied")
        try:
            figure.draw_without_rendering()
            wanted = "larger: some texts would be cut off"
            (left, low), (right, high) = figure.get_tightbbox().get_points()  # of everything visible, in inches
            width, height = figure.get_size_inches()
            fits = min(left, low, width - right, height - high) > -0.02
        except UserWarning:
            fits = False
    if not fits:
        width, height = figure.get_size_inches()
        ways = [f"such as {width:g}x{column:.2g}"] * bool(height < column and is_narrow(figure))
        ways += ["leave it out"] * (column > 0)
        raise errors.refuse("size", f"{width:g}x{height:g}", wanted, ", or ".join(ways))


def check(look: Look) -> None:
    """Refuse unknown names, invalid sizes and styles, and both for the user's Axes, which have them already."""
    for name in look:
        errors.require_choice("argument", name, Look.__annotations__)
    size, style = look.get("size"), look.get("style")
    if size is not None:
        _require_size(size)
    if style is not None:
        _require_style(style)
    for name, setting in (("size", size), ("style", style)):
        if look.get("ax") is not None and setting is not None:
            raise errors.refuse(name, setting, "left out together with ax", "set it on the figure of ax")


def size_of(text: str) -> tuple[float, float]:
    """Width and height in inches from a text such as `6x4`."""
    found = re.fullmatch(r"([\d.]+)x([\d.]+)", text)
    with contextlib.suppress(ValueError):
        if found:
            return float(found[1]), float(found[2])
    raise errors.refuse("size", repr(text), "width x height in inches", "such as 6x4")


def _require_size(size: Any) -> None:
    wanted = f"width and height in inches, {SMALLEST} to {LARGEST} each"
    try:
        numbers = [errors.require_number("size", number) for number in size]
    except (TypeError, errors.ConfigurationError):
        numbers = []
    if len(numbers) != 2 or not all(SMALLEST <= number <= LARGEST for number in numbers):
        raise errors.refuse("size", size, wanted, "such as (6, 4)")


def _require_style(style: Any) -> None:
    if isinstance(style, str):
        errors.require_choice("style", style, ["default", *styles.NAMED, *matplotlib.style.available])
        return
    if not isinstance(style, Mapping):
        raise errors.refuse(
            "style", repr(style), "the name of a style sheet of matplotlib, or a dictionary of rcParams"
        )
    for name, value in style.items():
        if name not in matplotlib.rcParams:
            remedy = errors.suggestion(name, matplotlib.rcParams) if isinstance(name, str) else ""
            raise errors.refuse("style", repr(name), "of rcParams", remedy)
        try:
            matplotlib.RcParams({name: value})
        except ValueError as error:
            raise errors.refuse(f"style {name}", repr(value), "a value that matplotlib accepts", str(error)) from None


def _axes_of(ax: Any, panels: int) -> list[Any]:
    """The user's Axes: one for each panel, all of one figure."""
    axes = [ax] if isinstance(ax, Axes) else list(np.ravel(np.array(ax, object)))
    wanted = "Axes of matplotlib" if panels == 1 else f"{panels} Axes of matplotlib, one for each panel"
    if not all(isinstance(one, Axes) for one in axes):
        raise errors.refuse("ax", repr(ax), wanted, "make them with figure.subplots()")
    if len(axes) != panels:
        raise errors.refuse("ax", f"{len(axes)} Axes", wanted, f"make them with figure.subplots({panels})")
    if len({one.figure.figure for one in axes}) > 1:
        raise errors.refuse("ax", "Axes of several figures", "of one figure")
    return axes


def new(size: tuple[float, float], layout: Any = "constrained") -> Any:
    """An empty figure of this size in inches."""
    return NotebookFigure(figsize=size, layout=layout)


def save(figure: Any, path: str | os.PathLike[str] | None, dpi: int = DPI) -> Figure:
    """Save a figure to the path, if there is one, as PNG, PDF or SVG by its suffix; return the figure."""
    if path is not None:
        suffix = errors.require_picture("picture", path)
        undated = {DATES[suffix]: None} if suffix in DATES else None
        with matplotlib.rc_context({"svg.hashsalt": "fedjax-dp"}), folders.draft_file(pathlib.Path(path)) as draft:
            figure.savefig(draft, format=suffix[1:], dpi=dpi, metadata=undated)
    return figure


def letters(inches: float, font: str) -> int:
    """The number of letters that fit on a line."""
    return int(inches * 72 / (LETTER * FontProperties(size=font).get_size_in_points()))


def wrap(text: str, inches: float, font: str) -> str:
    """Break a text into lines of this width in inches, between its parts (`; `) if each part fits on a line."""
    most = max(letters(inches, font), 20)
    parts = text.split("; ")
    if max(map(len, parts)) < most:
        text = "; ".join(part.replace(" ", "\u00a0") for part in parts)
    return "\n".join(textwrap.wrap(text, most, break_on_hyphens=False)).replace("\u00a0", " ")


def width_of(panel: Any) -> float:
    """The width in inches of a panel, as estimated before the layout, or of a figure or a part of one."""
    return float(panel.get_window_extent().width / panel.figure.figure.dpi)
