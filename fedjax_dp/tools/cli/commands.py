"""The commands, and what each is for.

A command stands in a module of its name, as the function `NAME_command` of the words that follow it, beside the
dataclass `NameOptions` of its own options (`calibrate` stands beside `account`); the module is loaded where it is used.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cyclopts

from fedjax_dp import errors

if TYPE_CHECKING:
    from fedjax_dp.options import Options

COMMANDS = {
    "run": "train a federated algorithm and say what privacy it gives; with no argument a private run on digits",
    "new": "a commented file for run, for sweep, or for a run on tables of your own",
    "export": "the parameters of a run as a file that other programs read",
    "sweep": "seeds x hyperparameters x budgets as few compiled programs; the same command goes on after a stop",
    "best": "the winner of a sweep as a configuration for run",
    "compare": "clients' own models against local and shared ones at the same epsilon, of a sweep over algorithms",
    "plot": "pictures of a run or of a sweep",
    "report": "one HTML file about a run, a sweep, an audit or a reproduction",
    "reproduce": "the tables and figures of the papers: published, literal, correct, and what each proves",
    "audit": "attack a run thousands of times and prove a lower bound; exit code 1 if its epsilon is violated",
    "bench": "where the time of a round goes, and the least that it could take",
    "account": "the epsilon of noisy steps by every accountant, side by side",
    "calibrate": "the noise multiplier that each accountant asks for",
    "check": "the epsilon of a federation that another system runs, from a description or a log of it",
    "plan": "the noise for a budget in such a federation, in the other system's own settings",
    "claims": "what the papers' theorems say on the papers' own settings, or other systems' files, and what is proved",
    "catalogue": "every algorithm: source, whom it hides from whom, what is kept, bytes per round",
    "data": (
        "how a partition spreads a data set over clients: sizes, labels, heterogeneity, a picture; or writes a store"
    ),
}
INSTALL = "--install-completion"  # as cyclopts names its command
CONFIGURED = ("run", "audit", "bench")  # take the options of a run too


def command_of(name: str) -> Callable[[list[str]], int]:
    """The function that carries a command out; its result is an exit code."""
    return _in_module(name, f"{name}_command")


def options_class(name: str) -> type[Any]:
    """The dataclass of a command's own options."""
    return _in_module(name, f"{name.capitalize()}Options")


def _in_module(name: str, what: str) -> Any:
    return getattr(importlib.import_module(f"fedjax_dp.tools.cli.{'account' if name == 'calibrate' else name}"), what)


def options_of_command(name: str) -> "Options":
    """All that a command takes."""
    from fedjax_dp.experiments.groups import options_of
    from fedjax_dp.options import of_class
    from fedjax_dp.tools.cli.run_options import FILE

    return (FILE | options_of() if name in CONFIGURED else {}) | of_class(options_class(name))


def install_completion(arguments: list[str]) -> int:
    """cyclopts' own command, of one application with all commands: they, their flags and choices complete.

    Raises: ConfigurationError for other words than `--shell SHELL` and `--output FILE`.
    """
    from fedjax_dp.tools.cli.options import app_of

    whole = cyclopts.App(name="fedjax-dp", help_format="plaintext", result_action="return_value")
    for name, text in COMMANDS.items():
        whole.command(app_of(name, {name: options_of_command(name)}, text), name=name)
    whole.register_install_completion_command()
    try:
        whole([INSTALL, *arguments], exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        got = repr(" ".join(arguments))
        raise errors.refuse(
            INSTALL, got, "followed by --shell SHELL, --output FILE", " ".join(str(error).split())
        ) from None
    except SystemExit:  # it sees no shell, and has said so
        return 2
    return 0
