"""What run, bench and audit share: a configuration from a file and flags over it, and its help."""

import dataclasses
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fedjax_dp.algorithms import CATALOGUE, Entry
from fedjax_dp.cli.options import flags, in_words, print_help, take_option, take_path
from fedjax_dp.cli.wrapping import wrapped
from fedjax_dp.data import DATASETS
from fedjax_dp.experiments import config as configs
from fedjax_dp.experiments.config import entry_of, groups_of, known_options, options_of
from fedjax_dp.experiments.presets import preset_of
from fedjax_dp.options import Option, Options, of_class
from fedjax_dp.papers.citations import CITATIONS

T = TypeVar("T")
V = TypeVar("V", bound=Hashable)
FEW = 3  # algorithms that are named as those without an option
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
    print(wrapped(description), end="\n\n")
    for group, options in groups.items():
        usual = [option.flag for name, option in options.items() if name in everybody]
        left = len(options) - len(usual)
        told = [f"and {left} of single algorithms"] if usual and left else []
        words = [*(usual or (option.flag for option in options.values())), *told]
        print(wrapped(f"  {group:<12}{' '.join(words)}"))
    print()
    print(wrapped(f"  {'algorithms':<12}{', '.join(CATALOGUE)}"))
    print(wrapped(_MORE.format(command=command)))


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
    source = re.sub(rf"\b({'|'.join(CITATIONS)})\b", lambda found: _cited(found[0]), entry.source or "unknown")
    about = f"{algorithm}: {first}\n\nSource: {source}. Defaults are those on {dataset}."
    print_help(command, {command: own, **groups}, f"{description}\n\n{about}")


def _cited(paper: str) -> str:
    """A paper by its short name, and by its authors and year."""
    return f"{paper} ({CITATIONS[paper].short})"


def _with_default(option: Option, values: Mapping[str, Any]) -> Option:
    if option.name not in values:
        return option
    return dataclasses.replace(
        option, default=values[option.name], about=dataclasses.replace(option.about, default=None)
    )


def _anywhere(option: Option) -> Option:
    """The option as all algorithms take it: what differs by algorithm, or by data set, in words."""
    takers = [entry for entry in CATALOGUE.values() if option.name in entry.options]
    kinds = _by_value((e.name, _meaning(e.options[option.name])) for e in takers)
    default = _defaults(option, takers or list(CATALOGUE.values()))
    text = option.about.text
    if len(kinds) > 1:
        listed = (
            f"{', '.join(names)}: {told}" + (f" ({', '.join(of)})" if of else "") for (told, of), names in kinds.items()
        )
        about = dataclasses.replace(option.about, text="; ".join(listed), choices=None, default=default)
        return dataclasses.replace(option, hint=option.kinds[0], about=about)  # a hint without choices
    if takers and len(takers) < len(CATALOGUE):
        others = [name for name in CATALOGUE if name not in kinds[_meaning(option)]]
        whose = f"all but {', '.join(others)}" if len(others) <= FEW else ", ".join(entry.name for entry in takers)
        text = f"{whose}: {text}"
    return dataclasses.replace(option, about=dataclasses.replace(option.about, text=text, default=default))


def _meaning(option: Option) -> tuple[str, tuple[str, ...]]:
    return option.about.text, tuple(option.choices or ())


def _defaults(option: Option, takers: Sequence[Entry[Any]]) -> str:
    """Its default by data set and by algorithm: what most have comes last."""
    by_data = {name: in_words(_with_default(option, preset_of(name))) for name in DATASETS}
    brought = any(option.name in preset_of(name) for name in DATASETS)
    words, digits, by_entry = _most_last("data set", by_data.items()), preset_of("digits"), {}
    for entry in takers:
        own, taken = entry.preset(digits), entry.options.get(option.name, option)
        by_entry[entry.name] = words if brought and option.name not in own else in_words(_with_default(taken, own))
    return _most_last("algorithm", by_entry.items())


def _most_last(what: str, values: Iterable[tuple[str, Any]]) -> str:
    """`4`, or `by data set: mnist: 1; else 4`."""
    names = _by_value(values)
    usual = max(names, key=lambda value: len(names[value]))
    special = [f"{', '.join(listed)}: {value}" for value, listed in names.items() if value != usual]
    return f"by {what}: {'; '.join(special)}; else {usual}" if special else str(usual)


def _by_value(values: Iterable[tuple[str, V]]) -> dict[V, list[str]]:
    """Names by the value that they have."""
    found: dict[V, list[str]] = {}
    for name, value in values:
        found.setdefault(value, []).append(name)
    return found
