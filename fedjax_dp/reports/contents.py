"""What a report holds: sections of blocks, and the rows that its figures are drawn from.

A block makes its own HTML, in which all that a user may have named is escaped. Rows are kept apart, once, as JSON.
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Rows = list[dict[str, Any]]
PROBE = "probe"
PROBE_MEANS = "the simulator's own view, released to nobody"


class Block(Protocol):
    """A part of a section. `fixed` says whether its HTML stays as it is while a run goes on."""

    @property
    def fixed(self) -> bool: ...

    def html(self) -> str:
        """One element."""


class Section(NamedTuple):
    title: str
    blocks: Sequence[Block]


class Report(NamedTuple):
    """All of a report.

    kind      what it is about: a run, a sweep, an audit, a reproduction
    lead      what was run, in one line
    progress  how far it is, in one line
    finished  whether nothing more will come
    data      the rows of figures, by name
    """

    kind: str
    title: str
    lead: str
    sections: Sequence[Section]
    data: Mapping[str, Rows]
    progress: str = "finished"
    finished: bool = True


def text(what: Any) -> str:
    """What a user may have named, as HTML; in ASCII, so that no encoding can change it."""
    return html.escape(str(what)).encode("ascii", "xmlcharrefreplace").decode()


def told(value: Any) -> str:
    """A number, truth value or list as people read it; nothing is a dash."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return "∞" if math.isinf(value) else f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(told, value))
    return str(value)


def chosen(value: Any) -> str:
    """A value that somebody chose, whole: two that differ are told apart."""
    if not isinstance(value, float) or not math.isfinite(value):
        return told(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction in percent."""
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f}%"


def size(count: float) -> str:
    """Bytes in the largest unit that leaves a number of at least 1."""
    unit = next((unit for unit in ("GB", "MB", "kB") if count >= UNITS[unit]), "bytes")
    return f"{count / UNITS[unit]:.3g} {unit}" if unit != "bytes" else f"{count:,.0f} bytes"


UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0}


def seconds(count: float) -> str:
    """A time in the unit that people would use."""
    if count < 1:
        return f"{1000 * count:.3g} ms"
    if count < 120:
        return f"{count:.3g} s"
    return f"{count / 60:.3g} min" if count < 7200 else f"{count / 3600:.3g} h"


class Tiles(NamedTuple):
    """The few numbers that a reader came for: label, value, and what it is of."""

    items: Sequence[tuple[str, str, str]]
    fixed: bool = False

    def html(self) -> str:
        cells = "".join(
            f"<div><dt>{text(label)}</dt><dd><b>{text(value)}</b><small>{text(about)}</small></dd></div>"
            for label, value, about in self.items
        )
        return f'<dl class="tiles">{cells}</dl>'


class Facts(NamedTuple):
    """Labels and what they say; `wide`: a line each, for what takes more than a few words."""

    items: Sequence[tuple[str, Any]]
    wide: bool = False
    fixed: bool = False

    def html(self) -> str:
        rows = "".join(f"<div><dt>{text(label)}</dt><dd>{text(told(value))}</dd></div>" for label, value in self.items)
        return f'<dl class="facts{" wide" if self.wide else ""}">{rows}</dl>'


class Prose(NamedTuple):
    """Paragraphs; `tone` is what stands before each, in words: Warning, Missing, or nothing."""

    lines: Sequence[str]
    tone: str = ""
    fixed: bool = False

    def html(self) -> str:
        mark = f"<strong>{text(self.tone)}:</strong> " if self.tone else ""
        lines = "".join(f"<p>{mark}{text(line)}</p>" for line in self.lines)
        return f'<div class="prose {text(self.tone.lower())}">{lines}</div>'


class Listing(NamedTuple):
    """Lines of equal rank."""

    lines: Sequence[str]
    fixed: bool = False

    def html(self) -> str:
        return "<ul>" + "".join(f"<li>{text(line)}</li>" for line in self.lines) + "</ul>"


class Grid(NamedTuple):
    """A table; numbers stand right. `keys`: of the rows, by which filters find them; `folded`: shown on demand."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    keys: Sequence[int] = ()
    folded: bool = False
    fixed: bool = False

    def html(self) -> str:
        head = "".join(
            f'<th scope="col"{_right(row)}>{text(name)}</th>'
            for name, row in zip(self.columns, self.rows[0] if self.rows else self.columns)
        )
        body = "".join(
            f"<tr{_keyed(self.keys, place)}>" + "".join(map(_cell, range(len(row)), row)) + "</tr>"
            for place, row in enumerate(self.rows)
        )
        table = (
            f'<div class="scroll" role="region" tabindex="0" aria-label="{text(self.caption)}"><table>'
            f"<caption>{text(self.caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )
        return f"<details><summary>{text(self.caption)}</summary>{table}</details>" if self.folded else table


LONG, SHORT = ' class="long"', ' class="short"'  # cells that need some width to be read, or fit on a line


def _right(value: Any) -> str:
    return ' class="n"' if isinstance(value, int | float) and not isinstance(value, bool) else ""


def _keyed(keys: Sequence[int], place: int) -> str:
    return f' data-key="{keys[place]}"' if keys else ""


def _cell(column: int, value: Any) -> str:
    if column == 0:
        return f'<th scope="row"{_right(value)}>{text(told(value))}</th>'
    shown = told(value)
    width = LONG if len(shown) > 40 else SHORT if len(shown) < 16 else ""
    return f"<td{_right(value) or width}>{text(shown)}</td>"


class Figure(NamedTuple):
    """A chart: its name, what it shows, a Vega-Lite spec without data, and the names of the rows it is drawn from.

    probes  whether it shows something that nobody but the simulator knows
    table   name of the rows that are shown where the figure is asked for as a table
    """

    name: str
    title: str
    about: str
    spec: Mapping[str, Any]
    table: str
    probes: bool = False
    fixed: bool = True

    def html(self) -> str:
        badge = f'<span class="badge" title="{text(PROBE_MEANS)}">{PROBE}</span>' if self.probes else ""
        name = text(self.name)
        return (
            f'<figure id="figure-{name}" aria-labelledby="title-{name}" aria-describedby="about-{name}">'
            f'<figcaption><h3 id="title-{name}">{text(self.title)}{badge}</h3>'
            f'<p id="about-{name}">{text(self.about)}</p></figcaption>'
            f'<div class="chart" data-figure="{name}"></div>'
            f'<details class="rows" data-rows="{text(self.table)}"><summary>Data as table'
            f'<span class="hidden">: {text(self.title)}</span></summary></details></figure>'
        )


class Picture(NamedTuple):
    """A PNG image that was drawn before, with what it shows in words."""

    title: str
    about: str
    address: str  # data:image/png;base64,...
    fixed: bool = True

    def html(self) -> str:
        return (
            f'<figure><figcaption><h3>{text(self.title)}</h3></figcaption><img alt="{text(self.about)}" '
            f'src="{text(self.address)}"></figure>'
        )


class Filters(NamedTuple):
    """A box for every value of every axis, by which a sweep's settings are chosen."""

    axes: Mapping[str, Sequence[str]]  # what values are called
    fixed: bool = True

    def html(self) -> str:
        groups = "".join(
            f"<fieldset><legend>{text(axis)}</legend>"
            + "".join(
                f'<label><input type="checkbox" checked data-axis="{number}" data-value="{place}">'
                f"<span>{text(value)}</span></label>"
                for place, value in enumerate(values)
            )
            + "</fieldset>"
            for number, (axis, values) in enumerate(self.axes.items())
        )
        return (
            f'<form class="filters" aria-label="Settings shown">{groups}<p><button type="reset">Show all</button> '
            '<span role="status" aria-live="polite" id="count"></span></p></form>'
        )
