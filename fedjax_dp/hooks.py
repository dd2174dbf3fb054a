"""Functions that the core leaves to tools: pictures, data sets of tables, claims of papers, noise by their theorems.

The core imports no tool. It calls a hook, which the top of the package connects to a function; that function is
imported when it is first called. Every epsilon is the same without any of them.
"""

from __future__ import annotations

import importlib
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
