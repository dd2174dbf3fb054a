"""Progress on stderr, so that stdout stays clean, or in a notebook's cell."""

import contextlib
import html
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

EVERY_S = 10  # between lines without a terminal
NOTEBOOK_EVERY_S = 0.1  # between pictures of a notebook's bar: each is a message to the browser


class Screen:
    """Progress: bars and tables on a terminal or in a notebook, occasional lines elsewhere, nothing if `quiet`."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False, quiet=quiet, force_jupyter=False)
        self._notebook = in_notebook() and not quiet

    def say(self, text: str) -> None:
        whole = not self.console.is_terminal  # a file is searched by lines
        self.console.print(text, style="dim", markup=False, soft_wrap=whole)

    @contextlib.contextmanager
    def bar(
        self, what: str, total: int, done: int = 0, every_s: float = EVERY_S
    ) -> Iterator[Callable[[float, str], None]]:
        """Yield a function that sets the progress and its text."""
        if self._notebook:
            with _cell() as renew:
                yield lambda now, note: renew(_bar(what, now, total, note), now >= total)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as progress:
            task = progress.add_task(what, total=total, completed=done, note="")
            last = time.perf_counter()

            def show(now: float, note: str) -> None:
                nonlocal last
                progress.update(task, completed=now, note=note)
                if not self.console.is_terminal and time.perf_counter() - last > every_s:
                    last = time.perf_counter()
                    self.say(f"{what}: {now / total:.0%}" + (f", {note}" if note else ""))

            yield show

    @contextlib.contextmanager
    def counter(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Yield a function of (done, total) for short work: a bar, or without a terminal a line every two seconds."""
        with self.bar(what, total=1, every_s=2) as show:
            yield lambda done, total: show(done / total, f"{done} of {total}")

    @contextlib.contextmanager
    def live(self, what: str) -> Iterator[Callable[[Mapping[str, str]], None]]:
        """Yield a function that shows names with texts: a live table, or without a terminal occasional lines."""
        if self._notebook:
            with _cell() as renew:
                yield lambda texts: renew(_table(what, texts), False)
            return
        last = time.perf_counter()
        with Live(console=self.console, transient=True, auto_refresh=False) as live:

            def show(texts: Mapping[str, str]) -> None:
                nonlocal last
                if self.console.is_terminal:
                    table = Table(box=box.SIMPLE, show_header=False, title=what, title_justify="left")
                    for name, text in texts.items():
                        table.add_row(name, escape(text))
                    live.update(table, refresh=True)
                elif time.perf_counter() - last > EVERY_S:
                    last = time.perf_counter()
                    self.say(f"{what}: " + ", ".join(f"{name} {text}" for name, text in texts.items()))

            yield show


def in_notebook() -> bool:
    """Whether this runs in a notebook's kernel, which has loaded IPython."""
    shell = sys.modules.get("IPython")
    result = shell.get_ipython() if shell is not None else None
    return result is not None and hasattr(result, "kernel")


@contextlib.contextmanager
def _cell() -> Iterator[Callable[[str, bool], None]]:
    """Yield a function that updates the cell, not too often unless `must`. The cell is empty at the end."""
    ipython: Any = sys.modules["IPython.display"]
    handle = ipython.display(ipython.HTML(""), display_id=True)
    last = 0.0

    def renew(page: str, must: bool) -> None:
        nonlocal last
        if must or time.perf_counter() - last > NOTEBOOK_EVERY_S:
            last = time.perf_counter()
            handle.update(ipython.HTML(page))

    try:
        yield renew
    finally:
        handle.update(ipython.HTML(""))


def _bar(what: str, now: float, total: float, note: str) -> str:
    share = min(1.0, now / total) if total else 1.0
    label = html.escape(f"{share:.0%}" + (f", {note}" if note else ""))
    return f"{html.escape(what)} <progress value='{share:.4f}' max='1' style='width:16em'></progress> {label}"


def _table(what: str, texts: Mapping[str, str]) -> str:
    cell = "<td style='text-align:left'>{}</td>"
    rows = "".join(
        f"<tr>{cell.format(html.escape(name))}{cell.format(html.escape(text))}</tr>" for name, text in texts.items()
    )
    return f"{html.escape(what)}<table>{rows}</table>"
