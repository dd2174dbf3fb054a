"""What people see while they wait. Progress goes to stderr, so that stdout stays clean."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Screen:
    """Progress on stderr: a bar on a terminal, one line per stage elsewhere."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        self.console.print(text, style="dim", markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def bar(self, what: str, total: int, done: int = 0) -> Iterator[Callable[[float, str], None]]:
        """Yields a function that sets how much is done and what to show beside it."""
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as progress:
            task = progress.add_task(what, total=total, completed=done, told="")

            def show(now: float, told: str) -> None:
                progress.update(task, completed=now, told=told)

            yield show

    @contextlib.contextmanager
    def counter(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Yields a function for (done, in all) of something short: a bar, or elsewhere a line every two seconds."""
        last = time.perf_counter()
        with self.bar(what, total=1) as show:

            def count(done: int, total: int) -> None:
                nonlocal last
                show(done / total, f"{done} of {total}")
                if not self.console.is_terminal and time.perf_counter() - last > 2:
                    last = time.perf_counter()
                    self.say(f"{what}: {done} of {total}")

            yield count
