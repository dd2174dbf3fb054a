"""Figures without pyplot: no backend is chosen, nothing stays open, and a notebook shows what is returned.

Every function that draws takes `**look: Unpack[Look]` and draws on a `page`, so that Axes of the user's own, sizes,
styles and files are handled here alone.
"""

from __future__ import annotations

import contextlib
import io
import os
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

from fedjax_dp import errors
from fedjax_dp.tools.figures import styles
from fedjax_dp.tools.figures.elements import BELOW, label, legend_beside
from fedjax_dp.tools.figures.styles import SMALL

DPI, PAPER_DPI = 130, 300  # of PNG files
COLUMN, PAGE = (3.3, 2.4), 6.9  # inches of a paper: a picture in one column, and the width of both
DATES = {".pdf": "CreationDate", ".svg": "Date"}  # left out, so that the same figure makes the same bytes
SMALLEST, LARGEST = 1, 100  # inches
NARROW = 7.0  # inches, at the usual size of letters: in less, panels stand one above the other
LETTER = 0.57  # of a letter's height is its width, on average


class Look(TypedDict, total=False):
    """How a picture is drawn, for this picture alone.

    ax     Axes of matplotlib to draw into, or a list of them where the picture has several panels: the title
           of all stands above the first, their note below the last. Their figure is returned, and keeps its size and
           style (`layout="constrained"` makes room for legends, which stand beside what is drawn)
    size   width and height in inches
    style  a style sheet of matplotlib, by its name, or a dictionary of rcParams; `paper` is small print for one column
           of 3.3 x 2.4 inches, or the width of a page where there are several panels
    """

    ax: Any
    size: Sequence[float] | None
    style: str | Mapping[str, Any] | None


class NotebookFigure(Figure):
    """A figure that a notebook shows, whatever backend it uses."""

    own = True  # or of the user's own making, see `points.finish`

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=DPI)
        return file.getvalue()


class Page(NamedTuple):
    """What a picture is drawn on."""

    figure: Figure
    panels: list[Any]
    own: bool  # or of the user's own making

    def title(self, text: str, **font: Any) -> None:
        """Of the whole picture; the last to be called, as it joins the title of a panel that is the user's."""
        if self.own:
            self.figure.suptitle(wrapped(text, self.figure.get_figwidth(), "large"), fontsize="large", **font)
            return
        panel = self.panels[0]
        side = "left" if panel.get_title("left") else "center"
        lines = [wrapped(text, width_of(panel), "medium"), panel.get_title(side)]
        panel.set_title("\n".join(filter(None, lines)), loc=side, **({"fontsize": "medium"} | font))

    def note(self, text: str) -> None:
        """What holds of the whole picture, in small print; lines end between its parts, if it has some."""
        if self.own:
            lines = wrapped(text, self.figure.get_figwidth(), SMALL)
            self.figure.supxlabel(lines, fontsize=SMALL, alpha=0.75)
            return
        panel = self.panels[-1]
        legend = panel.get_legend()
        above = legend if legend is not None and legend.get_gid() == BELOW else panel.xaxis.label
        look = {"ha": "center", "va": "top", "fontsize": SMALL, "alpha": 0.75, "annotation_clip": False}
        label(panel, wrapped(text, width_of(panel), SMALL), (0.5, 0), (0, -5), xycoords=above, **look)

    def legend(self, handles: Sequence[Any]) -> None:
        """One for all panels."""
        if self.own:
            self.figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=SMALL)
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
    """What to draw on, as the look has it; written to the path, if there is one, once it is drawn.

    size     inches, where the look has none
    arrange  makes the panels on a new figure
    column   inches at the usual size of letters: how high panels one above the other are, to advise whoever wants less
    wide     a single panel with words at its sides, which has the width of a page in a paper too
    Raises: ConfigurationError where a size of the look is too small for what is written.
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
            made = Page(figure, list(np.ravel(arrange(figure))), True)
        else:
            own = _axes_of(ax, panels)
            made = Page(own[0].figure.figure, own, False)
        yield made
        if look.get("size") is not None:
            _require_room(made.figure, column * styles.scale())
        save(made.figure, path, dpi)


def narrow(figure: Any) -> bool:
    """Whether the panels of a figure, or of a part of one, stand one above the other."""
    return bool(figure.bbox.width / figure.figure.dpi < NARROW * styles.scale())


def _require_room(figure: Any, column: float) -> None:
    """Refuse a size in which there is no room to draw in, or words would be cut."""
    wanted = "larger: beside all that is written there is no room to draw in"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied")
        try:
            figure.draw_without_rendering()
            wanted = "larger: some words would be cut"
            (left, low), (right, high) = figure.get_tightbbox().get_points()  # of all that is seen, in inches
            width, height = figure.get_size_inches()
            fits = min(left, low, width - right, height - high) > -0.02
        except UserWarning:
            fits = False
    if not fits:
        width, height = figure.get_size_inches()
        ways = [f"such as {width:g}x{column:.2g}"] * bool(height < column and narrow(figure))
        ways += ["leave it out"] * (column > 0)
        raise errors.refuse("size", f"{width:g}x{height:g}", wanted, ", or ".join(ways))


def check(look: Look) -> None:
    """Refuses unknown names, and sizes and styles that are none, or that Axes of one's own have already."""
    for name in look:
        errors.require_choice("argument", name, Look.__annotations__)
    size, style = look.get("size"), look.get("style")
    if size is not None:
        _require_size(size)
    if style is not None:
        _require_style(style)
    for name, given in (("size", size), ("style", style)):
        if look.get("ax") is not None and given is not None:
            raise errors.refuse(name, given, "left out beside ax", "give it to the figure that ax is of")


def size_of(text: str) -> tuple[float, float]:
    """Inches from the words of a flag, `6x4`."""
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
            "style", repr(style), "a style sheet of matplotlib by its name, or a dictionary of rcParams"
        )
    for name, value in style.items():
        if name not in matplotlib.rcParams:
            remedy = errors.suggestion(name, matplotlib.rcParams) if isinstance(name, str) else ""
            raise errors.refuse("style", repr(name), "of rcParams", remedy)
        try:
            matplotlib.RcParams({name: value})
        except ValueError as error:
            raise errors.refuse(f"style {name}", repr(value), "what matplotlib takes", str(error)) from None


def _axes_of(ax: Any, panels: int) -> list[Any]:
    """The user's own Axes, which must be as many as the picture has panels, of one figure."""
    given = [ax] if isinstance(ax, Axes) else list(np.ravel(np.array(ax, object)))
    wanted = "Axes of matplotlib" if panels == 1 else f"{panels} Axes of matplotlib, one for each panel"
    if not all(isinstance(one, Axes) for one in given):
        raise errors.refuse("ax", repr(ax), wanted, "make them with figure.subplots()")
    if len(given) != panels:
        raise errors.refuse("ax", f"{len(given)} Axes", wanted, f"make them with figure.subplots({panels})")
    if len({one.figure.figure for one in given}) > 1:
        raise errors.refuse("ax", "Axes of several figures", "of one figure")
    return given


def new(size: tuple[float, float], layout: Any = "constrained") -> Any:
    """An empty figure of so many inches."""
    return NotebookFigure(figsize=size, layout=layout)


def save(figure: Any, path: str | os.PathLike[str] | None, dpi: int = DPI) -> Figure:
    """The figure, written to the path if there is one: PNG, PDF or SVG by the ending of its name."""
    if path is not None:
        suffix = errors.require_picture("picture", path)
        with matplotlib.rc_context({"svg.hashsalt": "fedjax-dp"}):
            figure.savefig(path, dpi=dpi, metadata={DATES[suffix]: None} if suffix in DATES else None)
    return figure


def letters(inches: float, font: str) -> int:
    """How many there is room for on a line."""
    return int(inches * 72 / (LETTER * FontProperties(size=font).get_size_in_points()))


def wrapped(text: str, inches: float, font: str) -> str:
    """The text in lines that fit so many inches; lines end between parts, `; `, where no part is too long for one."""
    most = max(letters(inches, font), 20)
    parts = text.split("; ")
    if max(map(len, parts)) < most:
        text = "; ".join(part.replace(" ", "\u00a0") for part in parts)
    return "\n".join(textwrap.wrap(text, most, break_on_hyphens=False)).replace("\u00a0", " ")


def width_of(panel: Any) -> float:
    """Inches, as far as they are known before the layout."""
    return float(panel.get_window_extent().width / panel.figure.figure.dpi)
