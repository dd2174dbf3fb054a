"""How values are displayed: at most 20 lines at a prompt, a table in a notebook."""

import csv
import dataclasses
import decimal
import functools
import html
import io
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple, TypeVar

LINES = 20  # at a prompt
WIDTH = 110  # of a line
HTML_ROWS = 60  # of a table in a notebook
LONG = 72  # letters of a field: a longer one is shown field by field

T = TypeVar("T")


class Table(NamedTuple):
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Card(NamedTuple):
    """What a value displays: a title, facts by name, and perhaps a table."""

    title: str
    facts: Mapping[str, str]
    table: Table | None = None

    @property
    def text(self) -> str:
        """At most `LINES` lines; long facts are wrapped if there is room, else truncated."""
        rows = self.table.rows if self.table is not None else ()
        room = LINES - min(1 + len(rows), 6) if rows else LINES
        lines = self._facts(whole=True)
        if len(lines) > room:
            lines = self._facts(whole=False)
        if len(lines) > room:
            lines = [*lines[: room - 1], f"  ... {len(lines) - room + 1} more"]
        if self.table is not None and rows:
            lines += [_shorten(line) for line in _align(self.table, LINES - len(lines))]
        return "\n".join(lines)

    def _facts(self, whole: bool) -> list[str]:
        """Lines of title and facts: each fact in one line, or wrapped if `whole`."""
        wide = max(map(len, self.facts), default=0)
        lines = [("", self.title), *((f"  {name:<{wide}}  ", text) for name, text in self.facts.items())]
        if not whole:
            return [_shorten(start + " ".join(text.split())) for start, text in lines]
        inside = " " * (wide + 4)
        return [
            line
            for start, text in lines
            for line in textwrap.wrap(
                text, WIDTH, initial_indent=start, subsequent_indent=inside, break_on_hyphens=False
            )
            or [start.rstrip()]
        ]

    @property
    def html(self) -> str:
        """The card as HTML, where only long tables are truncated."""
        facts = "".join(
            f"<tr><th style='text-align:left;white-space:pre;vertical-align:top'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for name, text in self.facts.items()
        )
        head = f"<b>{html.escape(self.title)}</b><table>{facts}</table>"
        if self.table is None or not self.table.rows:
            return head
        names = "".join(f"<th>{html.escape(name)}</th>" for name in self.table.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>"
            for row in _first_and_last(self.table.rows, HTML_ROWS)
        )
        return f"{head}<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def displayed(cls: type[T]) -> type[T]:
    """Class decorator: values display the card that their `_card()` returns."""

    def card(self: Any) -> Card:
        try:
            result: Card = self._card()
        except Exception as error:  # traced values, damaged folders: displaying a value never fails
            result = Card(f"<{type(self).__name__}: {type(error).__name__}>", {})
        return result

    def text(self: Any) -> str:
        return card(self).text

    def page(self: Any) -> str:
        return card(self).html

    cls.__repr__ = text  # type: ignore[method-assign]
    cls._repr_html_ = page  # type: ignore[attr-defined]
    return cls


def words(value: Any) -> str:
    """A value in one line: parts with the fields that differ from their defaults, arrays by their shapes."""
    if isinstance(value, type | functools.partial) or (callable(value) and hasattr(value, "__qualname__")):
        return _name_of(value)
    fields = dict(_fields(value))
    if fields or dataclasses.is_dataclass(value):
        inside = ", ".join(f"{name}={words(field)}" for name, field in fields.items())
        return f"{type(value).__name__}({inside})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {words(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        if len(value) > 6:
            return f"({words(value[0])}, {words(value[1])}, ... {len(value)} in all)"
        return "(" + ", ".join(map(words, value)) + ("," if len(value) == 1 else "") + ")"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _array(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return " ".join(without_addresses(repr(value)).split())


def without_addresses(text: str) -> str:
    """A `repr` without addresses of memory, so that it is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def facts_of(value: Any, indent: str = "") -> dict[str, str]:
    """One line for each field of a value; a field too long for a line is shown field by field."""
    lines: dict[str, str] = {}
    for name, field in _fields(value):
        text, inner = words(field), dict(_fields(field))
        if len(text) > LONG and inner:
            lines[indent + name] = type(field).__name__
            lines |= facts_of(field, indent + "  ")
        else:
            lines[indent + name] = text
    return lines


def count(number: int, what: str) -> str:
    """A number with its noun: 1 client, 2,000 clients."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def upward(number: float, digits: int = 4) -> str:
    """A number in so many digits, rounded up, such as an epsilon; rounding errors of floats do not count."""
    return _rounded(number, digits, decimal.ROUND_CEILING, number - 1e-9 * abs(number))


def downward(number: float, digits: int = 4) -> str:
    """A number in so many digits, rounded down: a lower bound, or what is left of a budget."""
    return _rounded(number, digits, decimal.ROUND_FLOOR, number + 1e-9 * abs(number))


def _rounded(number: float, digits: int, rounding: str, exact: float) -> str:
    if not math.isfinite(number):
        return f"{number}"
    return f"{float(decimal.Context(digits, rounding).create_decimal_from_float(exact)):.{digits}g}"


def half(number: float) -> str:
    """A number of halves, such as the median of counts: 528, 1,024.5."""
    return f"{number:,.1f}".removesuffix(".0")


def size(number: float) -> str:
    """Bytes in the largest unit in which the number is at least 1."""
    for unit, large in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= large:
            return f"{number / large:.3g} {unit}"
    return f"{number:,.0f} bytes"


def plain(content: Any) -> Any:
    """Content for files: NumPy arrays and numbers as Python's, tuples and ranges as lists."""
    if hasattr(content, "tolist"):
        return content.tolist()
    if isinstance(content, Mapping):
        return {name: plain(value) for name, value in content.items()}
    return [plain(value) for value in content] if isinstance(content, list | tuple | range) else content


def finite(content: Any) -> Any:
    """Content for JSON: None for NaN and infinity, also inside of dictionaries and lists."""
    if isinstance(content, Mapping):
        return {name: finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, Real) and not math.isfinite(content) else content


def comma_separated(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Lines of CSV, with empty fields for None."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def duration(seconds: float) -> str:
    """A time in its usual unit."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a dataclass or a named tuple that differ from their defaults."""
    if isinstance(value, type):
        return
    if dataclasses.is_dataclass(value):
        usual = {
            field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            for field in dataclasses.fields(value)
            if field.repr
        }
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        defaults = getattr(value, "_field_defaults", {})
        usual = {name: defaults.get(name, dataclasses.MISSING) for name in value._fields}
    else:
        return
    for name, default in usual.items():
        field = getattr(value, name)
        plain = not hasattr(field, "shape")  # of arrays `==` is no answer
        if not (plain and type(field) is type(default) and (field is default or field == default)):
            yield name, field


def _shorten(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."


def _name_of(value: Any) -> str:
    if isinstance(value, functools.partial):
        arguments = [*map(words, value.args), *(f"{name}={words(one)}" for name, one in value.keywords.items())]
        return f"{_name_of(value.func)}({', '.join(arguments)})"
    name: str = getattr(value, "__qualname__", None) or type(value).__name__
    return name.replace("<locals>.", "")


def _array(value: Any) -> str:
    """The numbers of a small array; else type and shape, with the range if the array is on the host."""
    import numpy as np  # here: an account needs none

    kind = f"{value.dtype}[{','.join(map(str, value.shape))}]"
    try:
        if value.size <= 4:
            return words(np.asarray(value).tolist())
        if isinstance(value, np.ndarray) and value.dtype.kind in "iuf" and value.size <= 10**6:
            return f"{kind} in {value.min():.4g}..{value.max():.4g}"
    except Exception:  # of a tracer, or of an array deleted or elsewhere
        return kind
    return kind


def _first_and_last(rows: Sequence[Sequence[str]], most: int) -> list[Sequence[str]]:
    """At most `most` rows: the first and the last ones."""
    if len(rows) <= most:
        return list(rows)
    last = (most - 1) // 2
    first = most - 1 - last
    return [*rows[:first], ["..."] + [""] * (len(rows[0]) - 1), *rows[len(rows) - last :]]


def _align(table: Table, most: int) -> list[str]:
    rows = [table.columns, *_first_and_last(table.rows, most - 1)]
    wide = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    return ["  " + "  ".join(f"{text:>{width}}" for text, width in zip(row, wide, strict=True)) for row in rows]
