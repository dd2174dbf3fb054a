"""The commands: what each is for, and where it and its options are."""

import importlib
from typing import Any, NamedTuple


class Command(NamedTuple):
    """A command, whose module is loaded where it is used."""

    module: str  # of `fedjax_dp.cli`
    about: str
    options: str  # the dataclass in it that holds its own options
    configured: bool = False  # takes the options of a run too

    def own(self) -> type[Any]:
        """The dataclass of its own options."""
        made: type[Any] = getattr(importlib.import_module(f"fedjax_dp.cli.{self.module}"), self.options)
        return made


COMMANDS = {
    "run": Command(
        "run",
        "train a federated algorithm and say what privacy it gives; with no argument a private run on digits",
        "RunOptions",
        True,
    ),
    "export": Command("export", "the parameters of a run as a file that other programs read", "ExportOptions"),
    "sweep": Command(
        "sweep",
        "seeds x hyperparameters x budgets as few compiled programs; the same command goes on after a stop",
        "SweepOptions",
    ),
    "best": Command("best", "the winner of a sweep as a configuration for run", "BestOptions"),
    "compare": Command(
        "compare",
        "clients' own models against local and shared ones at the same epsilon, of a sweep over algorithms",
        "CompareOptions",
    ),
    "plot": Command("plot", "pictures of a sweep", "PlotOptions"),
    "report": Command(
        "report",
        "one HTML file about a run, a sweep, an audit or a reproduction; or one that is under way, in a browser",
        "ReportOptions",
    ),
    "reproduce": Command(
        "reproduce",
        "the tables and figures of the papers: published, literal, correct, and what each proves",
        "ReproduceOptions",
    ),
    "audit": Command(
        "audit",
        "attack a run thousands of times and prove a lower bound; exit code 1 if its epsilon is violated",
        "AuditOptions",
        True,
    ),
    "bench": Command("bench", "where the time of a round goes, and the least that it could take", "BenchOptions", True),
    "account": Command("account", "the epsilon of noisy steps by every accountant, side by side", "AccountOptions"),
    "calibrate": Command("account", "the noise multiplier that each accountant asks for", "CalibrateOptions"),
    "claims": Command(
        "claims", "what the papers' theorems say on the papers' own settings, and what can be proved", "ClaimsOptions"
    ),
    "catalogue": Command(
        "catalogue", "every algorithm: source, whom it hides from whom, what is kept, bytes per round", "PrintOptions"
    ),
    "data": Command(
        "data",
        "how a partition spreads a data set over clients: sizes, labels, heterogeneity, a picture; or writes a store",
        "DataOptions",
    ),
    "completion": Command(
        "completion",
        "a script for bash, zsh or fish that completes commands, options and names",
        "CompletionOptions",
    ),
}
