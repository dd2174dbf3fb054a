"""What run, bench and audit share: a configuration from a file and flags over it, and its help."""

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import Any, TypeVar

from fedjax_dp.algorithms import CATALOGUE
from fedjax_dp.cli.options import flags, print_help, take_option, take_path
from fedjax_dp.data import DATASETS
from fedjax_dp.experiments import config as configs
from fedjax_dp.experiments.config import entry_of, groups_of, known_options, options_of
from fedjax_dp.experiments.presets import preset_of
from fedjax_dp.options import Option, Options, of_class

T = TypeVar("T")
WIDTH = 100
_MORE = """
fedjax-dp {command} --algorithm NAME --help   all that an algorithm takes, with its defaults
fedjax-dp {command} --help-all                every option of every algorithm, with the defaults of data sets"""


def asked(
    command: str, arguments: list[str], description: str, own: Options | None = None
) -> tuple[dict[str, Any], set[str]]:
    """What file and flags say, and the names that flags said; `own` are the command's options beside those of a run.

    `--help` and `--help-all` print and exit.
    """
    own, rest = own or {}, list(arguments)
    path = take_path(rest)
    said = {} if path is None else configs.read(path)
    everything, rest = "--help-all" in rest, [word for word in rest if word != "--help-all"]
    wants_help = bool({"-h", "--help"} & set(rest))
    if everything or wants_help:
        algorithm, _ = take_option(rest, "--algorithm", "a name")
        dataset, _ = take_option(rest, "--dataset", "a name")
        algorithm = algorithm or said.get("algorithm")
        if everything or algorithm is None:
            _help(command, description, own, everything)
        else:
            _help_of(command, description, own, algorithm, dataset or said.get("dataset") or "digits")
        raise SystemExit(0)
    algorithm, _ = take_option(rest, "--algorithm", "a name")
    flagged = flags(command, rest, known_options(algorithm or said.get("algorithm")) | own)
    return said | flagged, set(flagged)


def asked_with(
    command: str, arguments: list[str], description: str, own: type[T]
) -> tuple[dict[str, Any], T, set[str]]:
    """The same for a command with options of its own, a dataclass: what is said of the run, those, and the flags."""
    mine = of_class(own)
    said, flagged = asked(command, arguments, description, mine)
    chosen = own(**{name: value for name, value in said.items() if name in mine})
    return {name: value for name, value in said.items() if name not in mine}, chosen, flagged


def _help(command: str, description: str, own: Options, everything: bool) -> None:
    """The groups on one screen, or every option there is."""
    groups = ({command: own} if own else {}) | groups_of(*CATALOGUE.values())
    if everything:
        shown = {group: {name: _anywhere(option) for name, option in of.items()} for group, of in groups.items()}
        print_help(command, shown, description)
        return
    everybody = options_of(entry_of("fedavg")) | own
    print(description, end="\n\n")
    for group, options in groups.items():
        usual = [option.flag for name, option in options.items() if name in everybody]
        left = len(options) - len(usual)
        told = [f"and {left} of single algorithms"] if usual and left else []
        words = [*(usual or (option.flag for option in options.values())), *told]
        print(_wrapped(f"  {group}", " ".join(words)))
    print()
    print(_wrapped("  algorithms", ", ".join(CATALOGUE)))
    print(_MORE.format(command=command))


def _help_of(command: str, description: str, own: Options, algorithm: str, dataset: str) -> None:
    """All that an algorithm takes, with its defaults on a data set."""
    entry = entry_of(algorithm)
    values = configs.resolve({"algorithm": algorithm, "dataset": dataset}).flat()
    groups = {
        group: {name: _with_default(option, values) for name, option in options.items()}
        for group, options in groups_of(entry).items()
    }
    if not entry.private:
        groups["privacy"] = {name: option for name, option in groups["privacy"].items() if name in entry.options}
    first = ((entry.__doc__ or "").strip() or "an algorithm without a docstring").splitlines()[0]
    about = f"{algorithm}: {first}\nSource: {entry.source or 'unknown'}. Defaults are those on {dataset}."
    print_help(command, {command: own, **groups}, f"{description}\n\n{about}")


def _wrapped(name: str, words: str) -> str:
    return textwrap.fill(words, WIDTH, initial_indent=f"{name:<13}", subsequent_indent=" " * 13, break_on_hyphens=False)


def _with_default(option: Option, values: Mapping[str, Any]) -> Option:
    if option.name not in values:
        return option
    return dataclasses.replace(
        option, default=values[option.name], about=dataclasses.replace(option.about, default=None)
    )


def _anywhere(option: Option) -> Option:
    """The option with its defaults by data set in words, and who takes it where not all do."""
    owners = [entry.name for entry in CATALOGUE.values() if option.name in entry.options]
    told = option.about.text
    if owners and len(owners) < len(CATALOGUE):
        told = f"{', '.join(owners)}: {told}"
    names: dict[Any, list[str]] = {}
    for dataset in DATASETS:
        preset = preset_of(dataset)
        if option.name in preset:
            names.setdefault(preset[option.name], []).append(dataset)
    if not names:
        return dataclasses.replace(option, about=dataclasses.replace(option.about, text=told))
    usual = max(names, key=lambda value: len(names[value]))
    special = [f"{', '.join(listed)}: {value}" for value, listed in names.items() if value != usual]
    words = f"by data set: {'; '.join(special)}; else {usual}" if special else str(usual)
    return dataclasses.replace(option, default=None, about=dataclasses.replace(option.about, text=told, default=words))
