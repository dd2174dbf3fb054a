"""Figures without pyplot: no backend is chosen, nothing stays open, and a notebook shows what is returned."""

import io
import os
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from fedjax_dp import errors

DPI = 130  # of PNG files
DATES = {".pdf": "CreationDate", ".svg": "Date"}  # left out, so that the same figure makes the same bytes


class Picture(Figure):
    """A figure that a notebook shows, whatever backend it uses."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=DPI)
        return file.getvalue()


def new(size: tuple[float, float], layout: Any = "constrained") -> Any:
    """An empty figure of so many inches."""
    return Picture(figsize=size, layout=layout)


def save(figure: Any, path: str | os.PathLike[str] | None, dpi: int = DPI) -> Figure:
    """The figure, written to the path if there is one: PNG, PDF or SVG by the ending of its name."""
    if path is not None:
        suffix = errors.require_picture("picture", path)
        with matplotlib.rc_context({"svg.hashsalt": "fedjax-dp"}):
            figure.savefig(path, dpi=dpi, metadata={DATES[suffix]: None} if suffix in DATES else None)
    drawn: Figure = figure
    return drawn
