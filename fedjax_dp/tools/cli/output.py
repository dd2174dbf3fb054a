"""What commands print: the result, and perhaps a box below it with details."""

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table

from fedjax_dp.display import upward

Lines = Iterable[tuple[str, str]]  # a label, which may be empty, and what it is about
LABEL = 10  # letters
INDENT = " " * LABEL  # of a line that goes on with the one above
UNBOUNDED = 10_000  # letters: the width of what is no terminal


def show_lines(result: Lines, details: Lines = ()) -> None:
    """Print the result, and the details in a box below it."""
    below, console = [*details], page()
    if not console.is_terminal:
        for label, text in [*result, *below]:
            console.print(f"{label:<{LABEL}}{text}" if label else text)
        return
    for label, text in result:
        console.print(_rows([(label, text)]) if label else text)
    if below:
        console.print(Panel(_rows(below), box=box.ROUNDED, title="details", title_align="left", style="dim"))


def print_json(content: Any) -> int:
    """Print one JSON object; the exit code 0. Infinities and NaN have to be null already."""
    print(json.dumps(content, allow_nan=False))
    return 0


def cell(value: object, digits: int = 4, rounded: Callable[[float, int], str] = upward) -> str:
    """A value in a table: a dash for None, so many digits of a float."""
    if value is None:
        return "-"
    return rounded(value, digits) if isinstance(value, float) else str(value)


def page() -> Console:
    """stdout: texts wrap between words on a terminal; elsewhere lines stay whole, as a file is searched by lines."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = UNBOUNDED
    return console


def columns(
    console: Console,
    cells: Mapping[str, Sequence[str]],
    *,
    first: int = 1,
    left: Sequence[str] = (),
    wrapped: Sequence[str] = (),
) -> None:
    """Print a table, cells by header. Cells stay whole, headers wrap between words; columns that a terminal has no room
    for are left out, the last first, and named.

    first    columns that are always there;
    left     headers of those that hold words, not numbers;
    wrapped  headers of those whose cells may wrap too.
    """

    unbounded = console.options.update(max_width=UNBOUNDED)

    def drawn(names: Sequence[str], narrow: bool) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for name in names:
            whole = () if name in wrapped else cells[name]
            least = max(map(len, [*(name.split() if narrow else [name]), *whole]))
            header = textwrap.fill(name, least, break_on_hyphens=False)
            table.add_column(
                header, justify="left" if name in left else "right", no_wrap=name not in wrapped, min_width=least
            )
        for row in zip(*(cells[name] for name in names), strict=True):
            table.add_row(*row)
        return table

    def fits(table: Table) -> bool:
        return Measurement.get(console, unbounded, table).minimum <= console.width

    shown = list(cells)
    table = drawn(shown, narrow=False)
    if not fits(table):
        table = drawn(shown, narrow=True)
    while len(shown) > first and not fits(table):
        shown.pop()
        table = drawn(shown, narrow=True)
    console.print(table, soft_wrap=not fits(table))
    if len(shown) < len(cells):
        hidden = ", ".join(list(cells)[len(shown) :])
        console.print(f" left out, as the terminal is {console.width} columns wide: {hidden}")


def _rows(lines: Lines) -> Table:
    """Labels, and beside them texts that go on below one another."""
    rows = Table.grid(padding=(0, 1))
    rows.add_column(min_width=LABEL - 1, no_wrap=True)
    rows.add_column(overflow="fold")
    for label, text in lines:
        rows.add_row(label, text.strip())
    return rows
