"""How much is told: the result first, and in a box below it what it rests on; --quiet and --verbose fold and unfold."""

import enum
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from fedjax_dp import errors
from fedjax_dp.cli.options import take_flag

Lines = Iterable[tuple[str, str]]  # a label, which may be empty, and what it is about
LABEL = 10  # letters
INDENT = " " * LABEL  # of a line that goes on with the one above


class Detail(enum.Enum):
    QUIET = "the result alone, without progress"
    USUAL = "the result, and what it rests on"
    VERBOSE = "all that is known"


def take_detail(arguments: list[str]) -> tuple[Detail, list[str]]:
    """What --quiet or --verbose ask for, and the other arguments."""
    quiet, arguments = take_flag(arguments, "--quiet")
    verbose, arguments = take_flag(arguments, "--verbose")
    if quiet and verbose:
        raise errors.refuse("--quiet and --verbose", "both", "one of them", "drop one")
    return Detail.QUIET if quiet else Detail.VERBOSE if verbose else Detail.USUAL, arguments


def tell(result: Lines, rests_on: Lines, rest: Lines, detail: Detail) -> None:
    """Print the result; unless quiet, what it rests on in a box; if verbose, the rest too."""
    below = [*rests_on, *(rest if detail is Detail.VERBOSE else ())] if detail is not Detail.QUIET else []
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:  # a file is searched by lines
        for label, text in [*result, *below]:
            console.print(_plain(label, text), soft_wrap=True)
        return
    for label, text in result:
        console.print(_rows([(label, text)]) if label else text)
    if below:
        hint = "--quiet folds this" + ("" if detail is Detail.VERBOSE else ", --verbose adds to it")
        told = Panel(
            _rows(below), box=box.ROUNDED, title="what it rests on", subtitle=hint, title_align="left", style="dim"
        )
        console.print(told)


def _rows(lines: Lines) -> Table:
    """Labels, and beside them texts that go on below one another."""
    rows = Table.grid(padding=(0, 1))
    rows.add_column(min_width=LABEL - 1, no_wrap=True)
    for label, text in lines:
        rows.add_row(label, text.strip())
    return rows


def _plain(label: str, text: str) -> str:
    return f"{label:<{LABEL}}{text}" if label else text
