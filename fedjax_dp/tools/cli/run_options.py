"""What run, bench and audit share: a configuration from a file and flags over it, and its help."""

import dataclasses
import pathlib
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fedjax_dp import errors, own_code
from fedjax_dp.algorithms import CATALOGUE, Entry
from fedjax_dp.data.loaders import DATASETS
from fedjax_dp.experiments.config import RunSpec, read
from fedjax_dp.experiments.groups import entry_of, groups_of, known_options, options_of
from fedjax_dp.experiments.presets import preset_of
from fedjax_dp.options import Option, Options, about, of_class
from fedjax_dp.parts.choices import CHOICES, own_numbers
from fedjax_dp.tools.cli.latest import RUNS
from fedjax_dp.tools.cli.options import HELP, console, in_words, known_flags, print_help, require_known, wrapped
from fedjax_dp.tools.papers.citations import CITATIONS

T = TypeVar("T")
V = TypeVar("V", bound=Hashable)
FILE = {"file": Option("file", str, None, about("CONFIG.toml, or the folder of a run", positional=True))}
FEW = 3  # names that stand for many: options of a group, algorithms without an option
FOR_ALL = ("data", "execution")  # groups that no algorithm has a part in
_MORE = """
fedjax-dp {command} --algorithm NAME --help   all that an algorithm takes, with its defaults
fedjax-dp {command} --help-all                every option of every algorithm, defaults by data set"""


def parse_configuration(
    command: str, arguments: list[str], description: str, own: type[T]
) -> tuple[dict[str, Any], T, set[str], pathlib.Path | None]:
    """What file and flags set of a run, the command's own options, a dataclass, the names that flags set, and the path
    of the file, or of the folder of a run.

    `--help` and `--help-all` print and exit.
    """
    mine = of_class(own)
    words = [word for word in arguments if word not in HELP]
    known = known_options()
    named, _ = known_flags(words, {name: known[name] for name in ("algorithm", *CHOICES)})
    taken = FILE | known_options(named.get("algorithm")) | own_numbers(named) | mine
    values, rest = known_flags(words, taken)
    file = _of_path(values["file"]) if "file" in values else {}
    algorithm = {**file, **named}.get("algorithm")
    if len(words) < len(arguments):
        if algorithm is None or "--help-all" in arguments:
            _help(command, description, mine, "--help-all" in arguments)
        else:
            _help_of(command, description, mine, algorithm, {**file, **values})
        raise SystemExit(0)
    if own_code.is_file_name(algorithm) or own_numbers(file):  # of the file, perhaps
        taken |= known_options(algorithm) | own_numbers(file | named)
        values, rest = known_flags(words, taken)
    if own_code.is_file_name(algorithm):
        taken |= entry_of(str(algorithm)).options  # those that have no flag, too
    require_known(command, rest, taken)
    path = pathlib.Path(values.pop("file")) if "file" in values else None
    chosen = own(**{name: value for name, value in values.items() if name in mine})
    return file | {name: value for name, value in values.items() if name not in mine}, chosen, set(values), path


def _of_path(path: str) -> dict[str, Any]:
    """What a configuration file says, or the folder of a run."""
    folder = pathlib.Path(path)
    if not folder.is_dir():
        _require_path(folder)
        return read(path)
    from fedjax_dp.experiments.run_folder import configuration  # loads JAX

    return configuration(folder)


def _require_path(path: pathlib.Path) -> None:
    """Refuse a bare name that is no file, with what it may have meant: an algorithm, or one of the runs here."""
    if path.exists() or path.suffix or path.name != str(path):
        return
    runs = sorted(str(file.parent) for file in pathlib.Path().glob(RUNS))
    remedy = f"runs here: {', '.join(runs[-FEW:])}" if runs else "--algorithm NAME names an algorithm"
    if near := errors.nearest(path.name, CATALOGUE):
        remedy = f"did you mean --algorithm {near[0]}?"
    raise errors.refuse("argument", repr(str(path)), "a configuration file or the folder of a run", remedy)


def _help(command: str, description: str, own: Options, everything: bool) -> None:
    """The groups on one screen, or every option there is."""
    from rich.table import Table

    groups = {command: own} | groups_of(*CATALOGUE.values())
    if everything:
        shown = {group: {name: _anywhere(option) for name, option in of.items()} for group, of in groups.items()}
        print_help(command, shown, description)
        return
    everybody = options_of(entry_of("fedavg")) | own
    rows = Table.grid(padding=(0, 2))
    for group, options in groups.items():
        usual = [one.flag for name, one in options.items() if name in everybody and not one.about.beside]
        left = len(options) - len(usual)
        more = [f"and {left} of single algorithms or choices"] if usual and left else []
        rows.add_row(f"  {group}", " ".join([*(usual or (option.flag for option in options.values())), *more]))
    rows.add_row("  algorithms", ", ".join(CATALOGUE))
    page = console()
    page.print(wrapped(description), end="\n\n")
    page.print(rows)
    page.print(_MORE.format(command=command))


def _help_of(command: str, description: str, own: Options, algorithm: str, config: Mapping[str, Any]) -> None:
    """All that an algorithm takes, and parts of the user's own, with its defaults on a data set."""
    entry, dataset = entry_of(algorithm), config.get("dataset", "digits")
    values = RunSpec.of({"algorithm": algorithm, "dataset": dataset}).flat()
    groups = {
        group: {name: _with_default(option, values) for name, option in options.items()}
        for group, options in groups_of(entry).items()
    }
    groups["training"] |= own_numbers(config)
    if not entry.private:
        groups["privacy"] = {name: option for name, option in groups["privacy"].items() if name in entry.options}
    first = ((entry.__doc__ or "").strip() or "an algorithm without a docstring").splitlines()[0]
    source = re.sub(rf"\b({'|'.join(CITATIONS)})\b", _citation, entry.source or "unknown")
    about = f"{algorithm}: {first}\n\nSource: {source}. Defaults are those on {dataset}."
    for_all = [(group, groups.pop(group)) for group in FOR_ALL]
    print_help(command, {command: own, **groups}, f"{description}\n\n{about}")
    for group, options in for_all:
        flags = [option.flag for option in options.values()]
        console().print(
            f"  {group:<11} {' '.join(flags[:FEW])} and {len(flags) - FEW} more, of any algorithm: --help-all"
        )


def _citation(match: re.Match[str]) -> str:
    """A paper by its short name, and by its authors and year."""
    return f"{match[0]} ({CITATIONS[match[0]].short})"


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
            f"{', '.join(names)}: {words}" + (f" ({', '.join(of)})" if of else "")
            for (words, of), names in kinds.items()
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
    result: dict[V, list[str]] = {}
    for name, value in values:
        result.setdefault(value, []).append(name)
    return result
