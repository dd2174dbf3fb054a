"""A report: sections of blocks, and the rows that its figures are drawn from.

A block makes its HTML with `tag`, which escapes everything that `tag` did not make. Rows are stored once, as JSON.
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Rows = list[dict[str, Any]]
PROBE = "probe"
PROBE_MEANS = "a diagnostic of the simulator, not covered by epsilon"


class Block(Protocol):
    """A part of a section."""

    def html(self) -> str:
        """One element."""


class Section(NamedTuple):
    title: str
    blocks: Sequence[Block]


class Report(NamedTuple):
    """All of a report.

    kind  what it is about: a run, a sweep, an audit, a reproduction
    lead  what was run, in one line
    data  the rows of figures, by name
    """

    kind: str
    title: str
    lead: str
    sections: Sequence[Section]
    data: Mapping[str, Rows]


class Markup(str):
    """HTML that `tag` made and does not escape again."""


def text(what: Any) -> Markup:
    """A value as escaped HTML, in ASCII so that no encoding can change it."""
    return (
        what
        if isinstance(what, Markup)
        else Markup(html.escape(str(what)).encode("ascii", "xmlcharrefreplace").decode())
    )


def tag(name: str, *inside: Any, **attributes: Any) -> Markup:
    """An element with its content escaped. In names of attributes `_` becomes `-`; None leaves an attribute out.

    >>> tag("p", "a < b", id="x", data_key=1, hidden=False)
    '<p id="x" data-key="1">a &lt; b</p>'
    """
    named = {key.strip("_").replace("_", "-"): value for key, value in attributes.items()}
    words = "".join(
        f" {key}" if value is True else f' {key}="{text(value)}"'
        for key, value in named.items()
        if value is not None and value is not False
    )
    content = "".join(map(text, inside))
    return Markup(f"<{name}{words}>" if name in VOID else f"<{name}{words}>{content}</{name}>")


VOID = ("img", "input")


def in_words(value: Any) -> str:
    """A number, truth value or list for people; None is a dash."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return "∞" if math.isinf(value) else f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(in_words, value))
    return str(value)


def exact(value: Any) -> str:
    """A configured value in full, so that two different values never look the same."""
    if not isinstance(value, float) or not math.isfinite(value):
        return in_words(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def percent(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.1f}%"


class Tiles(NamedTuple):
    """The most important numbers: label, value, and a short explanation."""

    items: Sequence[tuple[str, str, str]]

    def html(self) -> str:
        cells = (
            tag("div", tag("dt", label), tag("dd", tag("b", value), tag("small", about)))
            for label, value, about in self.items
        )
        return tag("dl", *cells, class_="tiles")


class FactList(NamedTuple):
    """Labels and values; `wide` gives each its own line, for values of more than a few words."""

    items: Sequence[tuple[str, Any]]
    wide: bool = False

    def html(self) -> str:
        cells = (tag("div", tag("dt", label), tag("dd", in_words(value))) for label, value in self.items)
        return tag("dl", *cells, class_="facts wide" if self.wide else "facts")


class Prose(NamedTuple):
    """Paragraphs; `tone` is a word before each of them: Warning, Missing, or nothing."""

    lines: Sequence[str]
    tone: str = ""

    def html(self) -> str:
        mark = [tag("strong", f"{self.tone}:"), " "] if self.tone else []
        return tag("div", *(tag("p", *mark, line) for line in self.lines), class_=f"prose {self.tone.lower()}")


class Listing(NamedTuple):
    """Lines of equal rank."""

    lines: Sequence[str]

    def html(self) -> str:
        return tag("ul", *(tag("li", line) for line in self.lines))


LONG, SHORT = 40, 16  # letters of a cell


class Grid(NamedTuple):
    """A table with numbers on the right. Narrow screens stack the cells of rows with long texts.

    `keys` are those of the rows, for filters; `folded`: shown on demand.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    keys: Sequence[int] = ()
    folded: bool = False

    def html(self) -> str:
        first = self.rows[0] if self.rows else self.columns
        head = (tag("th", name, scope="col", class_=_right(value)) for name, value in zip(self.columns, first))
        stacked = any(len(in_words(value)) > LONG for row in self.rows for value in row)
        labels = self.columns if stacked else [None] * len(self.columns)
        keyed = zip(self.rows, self.keys) if self.keys else ((row, None) for row in self.rows)
        body = (tag("tr", *map(_cell, range(len(row)), row, labels), data_key=key) for row, key in keyed)
        inside = (tag("caption", self.caption), tag("thead", tag("tr", *head)), tag("tbody", *body))
        whole = tag("table", *inside, class_="stacked" if stacked else None)
        table = tag("div", whole, class_="scroll", role="region", tabindex=0, aria_label=self.caption)
        return tag("details", tag("summary", self.caption), table) if self.folded else table


def _right(value: Any) -> str | None:
    return "n" if isinstance(value, int | float) and not isinstance(value, bool) else None


def _cell(column: int, value: Any, label: str | None) -> Markup:
    """A cell of a table. The first of a row is its head; the others are wide enough to read, or fit on one line."""
    shown = in_words(value)
    if column == 0:
        return tag("th", shown, scope="row", class_=_right(value), data_label=label)
    width = "long" if len(shown) > LONG else "short" if len(shown) < SHORT else None
    return tag("td", shown, class_=_right(value) or width, data_label=label)


class Figure(NamedTuple):
    """A chart: its name, a caption, a Vega-Lite spec without data, and the rows it is drawn from.

    probes  whether it shows diagnostics that only the simulator knows
    table   name of the rows that appear as a table under the figure
    """

    name: str
    title: str
    about: str
    spec: Mapping[str, Any]
    table: str
    probes: bool = False

    def html(self) -> str:
        badge = [tag("span", PROBE, class_="badge", title=PROBE_MEANS)] if self.probes else []
        title, about = f"title-{self.name}", f"about-{self.name}"
        summary = tag("summary", "Data as table", tag("span", f": {self.title}", class_="hidden"))
        return tag(
            "figure",
            tag("figcaption", tag("h3", self.title, *badge, id=title), tag("p", self.about, id=about)),
            tag("div", class_="chart", data_figure=self.name),
            tag("details", summary, class_="rows", data_rows=self.table),
            id=f"figure-{self.name}",
            aria_labelledby=title,
            aria_describedby=about,
        )


class Picture(NamedTuple):
    """A finished PNG image with a description."""

    title: str
    about: str
    address: str  # data:image/png;base64,...

    def html(self) -> str:
        return tag("figure", tag("figcaption", tag("h3", self.title)), tag("img", alt=self.about, src=self.address))


class Filters(NamedTuple):
    """A check box for every value of every axis, to choose which settings a sweep's report shows."""

    axes: Mapping[str, Sequence[str]]  # names of the values

    def html(self) -> str:
        def box(axis: int, place: int, value: str) -> Markup:
            button = tag("input", type="checkbox", checked=True, data_axis=axis, data_value=place)
            return tag("label", button, tag("span", value))

        groups = (
            tag("fieldset", tag("legend", axis), *(box(number, place, value) for place, value in enumerate(values)))
            for number, (axis, values) in enumerate(self.axes.items())
        )
        count = tag("span", role="status", aria_live="polite", id="count")
        buttons = tag("p", tag("button", "Show all", type="reset"), " ", count)
        return tag("form", *groups, buttons, class_="filters", aria_label="Settings shown")
