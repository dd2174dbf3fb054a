"""Functions that the core leaves to tools: pictures, data sets of tables, claims of papers, noise by their theorems.

The core imports no tool. It calls a hook, which the top of the package connects to a function; that function is
imported when it is first called. Every epsilon is the same without any of them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any


class Hook:
    """A function of a tool, which the core calls without importing the tool."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._place: str | None = None

    def connect(self, place: str) -> None:
        """Set the function that is called, as `module:name`."""
        self._place = place

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._place is None:
            raise LookupError(f"no tool answers for {self.what}")
        module, _, name = self._place.partition(":")
        return getattr(importlib.import_module(module), name)(*args, **kwargs)


# A file of (history, Guarantee, title, path, task=).
plot_run = Hook("a run's picture")
# A Figure of (records, axes, name, path, kind, metric=, x=, y=, by=, and a look).
plot_sweep = Hook("a sweep's picture")
# Claims about (a PlannedRun, delta, proved epsilon of each client, event of each client).
claims_about = Hook("what papers claim")
# A data set of (its name, a DataFrame, records to test on, task=, label=, and how its columns are read).
dataset_of_table = Hook("a data set of a DataFrame")
# Multipliers `(num_clients,)` of (a rule's name, algorithm, data, rounds, epsilon of each client, delta).
prescribed_noise = Hook("noise by a paper's theorem")
# Names of such rules, each a `sigma_mode`; their noise is not proved to meet the budget.
NOISE_RULES: list[str] = []


class Deferred(Sequence[Any]):
    """A tuple that is computed when it is first read, as most never are."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self._call = functools.partial(call, *args)

    @functools.cached_property
    def items(self) -> tuple[Any, ...]:
        return tuple(self._call())

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __eq__(self, other: object) -> bool:
        return self.items == (other.items if isinstance(other, Deferred) else other)

    def __hash__(self) -> int:
        return hash(self.items)

    def __repr__(self) -> str:
        return repr(self.items)

    def __reduce__(self) -> tuple[Any, ...]:  # its arguments may be large, or bound to this process
        return (tuple, (self.items,))
