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
from fedjax_dp.experiments.groups import HELP_GROUPS, entry_of, groups_of, known_options, options_of
from fedjax_dp.experiments.presets import preset_of
from fedjax_dp.options import Option, Options, about, of_class
from fedjax_dp.parts.choices import CHOICES, own_numbers
from fedjax_dp.tools.cli.help import FirstPage, in_words, metavar_of, print_first_page, print_group
from fedjax_dp.tools.cli.latest import RUNS
from fedjax_dp.tools.cli.options import HELP, known_flags, print_help, require_known
from fedjax_dp.tools.papers.citations import CITATIONS

T = TypeVar("T")
V = TypeVar("V", bound=Hashable)
FILE = {"file": Option("file", str, None, about("CONFIG.toml, or the folder of a run", positional=True))}
FEW = 3  # algorithms that are named because they lack an option
USUAL = {  # options of nine runs in ten, in the order of help, with an example
    "dataset": "mnist",
    "num_clients": "100",
    "algorithm": "dp_fedavg",
    "model": "mlp",
    "rounds": "50",
    "cohort_size": "10",
    "batch_size": "32",
    "local_steps": "5",
    "learning_rate": "0.1",
    "clip_norm": "1.0",
    "epsilon": "2",
    "noise_multiplier": "2",
    "delta": "1e-5",
    "seed": "1",
    "out": "runs/first",
    "devices": "1",
}


def parse_configuration(
    command: str, arguments: list[str], page: FirstPage, own: type[T]
) -> tuple[dict[str, Any], T, set[str], pathlib.Path | None]:
    """What file and flags set of a run, the command's own options, a dataclass, the names that flags set, and the path
    of the file, or of the folder of a run.

    `--help`, `--help GROUP` and `--help-all` print and exit.
    """
    mine = of_class(own)
    group = _group_wanted(command, arguments)
    words = [word for word in arguments if word not in HELP and word != group]
    known = known_options()
    named, _ = known_flags(words, {name: known[name] for name in ("algorithm", *CHOICES)})
    taken = FILE | known_options(named.get("algorithm")) | own_numbers(named) | mine
    values, rest = known_flags(words, taken)
    file = _of_path(values["file"]) if "file" in values else {}
    algorithm = {**file, **named}.get("algorithm")
    if len(words) < len(arguments):
        _print_help(command, page, mine, group, algorithm, {**file, **values}, everything="--help-all" in arguments)
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


def _group_wanted(command: str, arguments: list[str]) -> str | None:
    """The group of options that follows `--help`, or nothing; refuses another word that is no file."""
    at = arguments.index("--help") + 1 if "--help" in arguments else len(arguments)
    word = arguments[at] if at < len(arguments) else "-"
    if word.startswith("-") or pathlib.Path(word).exists():
        return None
    errors.require_choice("--help", word, (command, *HELP_GROUPS))
    return word


def _print_help(
    command: str,
    page: FirstPage,
    own: Options,
    group: str | None,
    algorithm: str | None,
    config: Mapping[str, Any],
    *,
    everything: bool,
) -> None:
    """The first page, that of an algorithm, the options of a group, or every option there is."""
    entries = CATALOGUE.values() if algorithm is None else [entry_of(algorithm)]
    groups = {command: own} | groups_of(*entries)
    parts = own_numbers(config)  # of user-defined parts that the same command names
    groups["training"] |= parts
    if algorithm is not None and not entry_of(algorithm).private:
        taken = entry_of(algorithm).options
        groups["privacy"] = {name: one for name, one in groups["privacy"].items() if name in taken}
    values = RunSpec.of({"algorithm": algorithm or "dpnfl", "dataset": config.get("dataset", "digits")}).flat()
    with_defaults = {
        of: {name: _with_default(one, values) for name, one in all_of.items()} for of, all_of in groups.items()
    }
    common = own | options_of(entry_of("fedavg"), entry_of("dpnfl"))
    if everything:
        anywhere = {
            of: {name: one if name in parts else _anywhere(one) for name, one in all_of.items()}
            for of, all_of in groups.items()
        }
        print_help(command, anywhere if algorithm is None else with_defaults, page.description)
    elif group is not None:
        print_group(command, group, with_defaults[group], [name for name in groups[group] if name not in common])
    else:
        options = {name: one for all_of in with_defaults.values() for name, one in all_of.items()}
        more = {
            "--help GROUP": f"the options of a group: {', '.join(groups)}",
            "--algorithm NAME --help": "what an algorithm is and takes (fedjax-dp catalogue lists all)",
            "--help-all": "everything about every option",
        }
        if algorithm is not None:
            page = _page_of(page, algorithm, {**parts, **entry_of(algorithm).options}, common)
            more[f"--algorithm {algorithm} --help-all"] = "everything about every option that it takes"
            del more["--algorithm NAME --help"], more["--help-all"]
        elif parts:
            own_first = {name: metavar_of(one) for name, one in parts.items()} | dict(page.usual)
            page = dataclasses.replace(page, usual=own_first)
        print_first_page(command, page, options, more)


def _page_of(page: FirstPage, algorithm: str, taken: Options, common: Options) -> FirstPage:
    """The first page of a command for an algorithm: what it is, and the options that few others have."""
    entry = entry_of(algorithm)
    first = ((entry.constructor.__doc__ or "").strip() or "an algorithm without a docstring").splitlines()[0]
    cited = rf"\b({'|'.join(CITATIONS)})\b"
    source = re.sub(cited, lambda name: f"{name[0]} ({CITATIONS[name[0]].short})", entry.source or "unknown")
    own = {name: metavar_of(one) for name, one in taken.items() if one.kinds and name not in common}
    usual = own | {name: example for name, example in page.usual.items() if name != "algorithm"}
    return dataclasses.replace(page, examples={}, notes=f"{algorithm}: {first}\n\nSource: {source}", usual=usual)


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
