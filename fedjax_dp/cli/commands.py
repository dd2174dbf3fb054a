"""The commands, said once: what each is for, where it is, what its words are; for usage and completion."""

from typing import NamedTuple


class Command(NamedTuple):
    """A command beside its options, which its own module describes."""

    module: str  # of `fedjax_dp.cli`
    about: str
    first: str = ""  # what its first word is: a FILE, a FOLDER, or one of NAMES, which completion asks its module for
    switches: tuple[str, ...] = ("--json",)  # flags without a value
    valued: tuple[str, ...] = ()  # flags with a value that are no options of a run


SWITCHES = {  # what flags without a value do
    "--json": "print one JSON object on stdout and nothing else",
    "--quiet": "print the result alone, without progress",
    "--verbose": "print all that is known of it",
    "--plan": "tell what would run, and stop there",
    "--merged": "write all parameters of a model of which a part is frozen, low-rank terms added",
    "--serve": "follow it in a browser on this machine, instead of writing a file",
}
DETAIL = ("--quiet", "--verbose")
GROUP = ("--coordinator", "--processes", "--process", "--timeout")  # of one run in several processes
COMMANDS = {
    "run": Command(
        "run",
        "train a federated algorithm and say what privacy it gives; with no argument a private run on digits",
        "FILE",
        ("--json", *DETAIL),
        ("--resume", *GROUP),
    ),
    "export": Command(
        "export", "the parameters of a run as a file that other programs read", "FOLDER", ("--merged", "--no-hashes")
    ),
    "sweep": Command(
        "sweep",
        "seeds x hyperparameters x budgets as few compiled programs; the same command goes on after a stop",
        "FILE",
        ("--plan", "--json"),
    ),
    "best": Command("best", "the winner of a sweep as a configuration for run", "FOLDER"),
    "compare": Command(
        "compare",
        "clients' own models against local and shared ones at the same epsilon, of a sweep over algorithms",
        "FOLDER",
    ),
    "plot": Command("plot", "pictures of a sweep", "FOLDER", ()),
    "report": Command(
        "report",
        "one HTML file about a run, a sweep, an audit or a reproduction; or one that is under way, in a browser",
        "FOLDER",
        ("--serve",),
        ("-o",),
    ),
    "reproduce": Command(
        "reproduce",
        "the tables and figures of the papers: published, literal, correct, and what each proves",
        "NAMES",
    ),
    "audit": Command(
        "audit",
        "attack a run thousands of times and prove a lower bound; exit code 1 if its epsilon is violated",
        "FILE",
        ("--json", *DETAIL),
    ),
    "bench": Command("bench", "where the time of a round goes, and the least that it could take", "FILE"),
    "account": Command(
        "account", "the epsilon of noisy steps by every accountant, side by side", "", ("--json", "--quiet")
    ),
    "calibrate": Command("account", "the noise multiplier that each accountant asks for", "", ("--json", "--quiet")),
    "claims": Command("claims", "what the papers' theorems say on the papers' own settings, and what can be proved"),
    "catalogue": Command(
        "catalogue", "every algorithm: source, whom it hides from whom, what is kept, bytes per round"
    ),
    "data": Command(
        "data",
        "how a partition spreads a data set over clients: sizes, labels, heterogeneity, a picture; or writes a store",
        "NAMES",
    ),
    "completion": Command(
        "completion", "a script for bash, zsh or fish that completes commands, options and names", "NAMES", ()
    ),
}
HELP = ("-h", "--help", "--help-all")
