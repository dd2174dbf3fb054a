"""The commands, and what each does.

A command is the function `NAME_command` in the module of its name, next to `NameOptions`, the dataclass of its options.
(`calibrate` is in the module of `account`.) A module is loaded when its command is used.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cyclopts

from fedjax_dp import errors

if TYPE_CHECKING:
    from fedjax_dp.options import Options

COMMANDS = {
    "run": "train a federated algorithm and report its privacy; without arguments a private run on the digits",
    "new": "write a commented file for run, for sweep, or for your own tables",
    "export": "write the parameters of a run to a file that other programs read",
    "sweep": "run seeds x hyperparameters x budgets as few compiled programs, or continue a stopped sweep",
    "best": "print the best setting of a sweep as a configuration for run",
    "compare": "compare personal models with local and shared ones at the same epsilon, from a sweep over algorithms",
    "plot": "draw a run or a sweep",
    "report": "write one HTML page about a run, a sweep, an audit or a reproduction",
    "reproduce": "rerun tables and figures of papers: as printed, as described, and with correct noise",
    "audit": "attack a run thousands of times and prove a lower bound on its epsilon",
    "bench": "measure a round, and where its time goes",
    "account": "compute the epsilon of noisy steps by every accountant",
    "calibrate": "find the noise multiplier that each accountant asks for",
    "check": "compute the epsilon of a federation that another system runs, from a description or a log of it",
    "plan": "find the noise for a budget in such a federation, in that system's own settings",
    "claims": "compare what theorems of papers, or files of other systems, claim with what can be proved",
    "catalogue": "list every algorithm: source, whom it protects, what is kept, bytes per round",
    "data": "show how a partition splits a data set over clients, or write the clients to a store",
}
INSTALL = "--install-completion"  # as cyclopts names its command
CONFIGURED = ("run", "audit", "bench")  # take the options of a run too


def command_of(name: str) -> Callable[[list[str]], int]:
    """The function that carries a command out; its result is an exit code."""
    return _in_module(name, f"{name}_command")


def _in_module(name: str, what: str) -> Any:
    return getattr(importlib.import_module(f"fedjax_dp.tools.cli.{'account' if name == 'calibrate' else name}"), what)


def options_of_command(name: str) -> "Options":
    """All that a command takes."""
    from fedjax_dp.experiments.groups import options_of
    from fedjax_dp.options import of_class
    from fedjax_dp.tools.cli.run_options import FILE

    own = of_class(_in_module(name, f"{name.capitalize()}Options"))
    return (FILE | options_of() if name in CONFIGURED else {}) | own


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
