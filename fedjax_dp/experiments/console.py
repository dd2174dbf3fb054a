"""What people see while they wait. Progress goes to stderr, so that stdout stays clean."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

from rich import box
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

EVERY_S = 10  # between lines where there is no terminal


class Screen:
    """Progress on stderr: bars and tables on a terminal, lines now and then elsewhere, or nothing if `quiet`."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False, quiet=quiet)

    def say(self, text: str) -> None:
        self.console.print(text, style="dim", markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def bar(
        self, what: str, total: int, done: int = 0, every_s: float = EVERY_S
    ) -> Iterator[Callable[[float, str], None]]:
        """Yields a function that sets how much is done and what to show beside it."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as progress:
            task = progress.add_task(what, total=total, completed=done, told="")
            last = time.perf_counter()

            def show(now: float, told: str) -> None:
                nonlocal last
                progress.update(task, completed=now, told=told)
                if not self.console.is_terminal and time.perf_counter() - last > every_s:
                    last = time.perf_counter()
                    self.say(f"{what}: {now / total:.0%}" + (f", {told}" if told else ""))

            yield show

    @contextlib.contextmanager
    def counter(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Yields a function for (done, in all) of something short: a bar, or elsewhere a line every two seconds."""
        with self.bar(what, total=1, every_s=2) as show:
            yield lambda done, total: show(done / total, f"{done} of {total}")

    @contextlib.contextmanager
    def live(self, what: str) -> Iterator[Callable[[Mapping[str, str]], None]]:
        """Yields a function that shows names with texts: a table that renews itself, elsewhere a line now and then."""
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
