"""`fedjax-dp new`."""

import dataclasses
import json
import pathlib
import textwrap
from collections.abc import Mapping
from typing import Annotated, Any

from fedjax_dp import errors, folders
from fedjax_dp.experiments.config import RunSpec
from fedjax_dp.experiments.groups import groups_of
from fedjax_dp.options import Option, about
from fedjax_dp.tools.cli.options import parse

DESCRIPTION = """Write a file to start from: every line has a comment, and what is rarely changed is commented out.

usage: fedjax-dp new run|sweep|csv [FILE] [--algorithm NAME] [--dataset NAME]

run is for fedjax-dp run FILE, sweep for fedjax-dp sweep FILE, csv for a run on your own tables, one file per client.
FILE is run.toml or sweep.toml by default; it must not exist."""
KINDS = ("run", "sweep", "csv")
# What stands in the file; the rest is commented out, with the value that it has anyway.
USUAL = (
    "dataset",
    "seed",
    "num_clients",
    "partition",
    "label_column",
    "algorithm",
    "rounds",
    "cohort_size",
    "batch_size",
    "local_steps",
    "learning_rate",
    "epsilon",
    "delta",
    "clip_norm",
)
TABLES: dict[str, Any] = {  # examples, of what only the user's files have: three hospitals
    "cohort_size": 3,
    "label_column": "sick",
    "drop": "id",
    "categories": "stage=I|II|III",
    "fill": "dose=0",
    "standardise": "age=50:20,dose=0:2",
}
AXES = """
# What varies: every combination is a point, each with all seeds. Names with a comma between vary
# together: "batch_size, learning_rate" = [[10, 0.1], [20, 0.2]]
[axes]
epsilon = [1.0, 2.0, 4.0, 8.0]
clip_norm = [0.5, 1.0, 2.0]
# learning_rate = { log = [0.01, 1.0], points = 3 }  # instead of that in [base]
"""
WIDTH = 100
MANY = 12  # choices that help lists and a file does not


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewOptions:
    """What is written, and where.

    Args:
        kind: what the file is for
        file: file to write; must be new
        algorithm: algorithm whose options it lists
        dataset: data set whose defaults it lists
    """

    kind: Annotated[str | None, about("", positional=True, choices=KINDS)] = None
    file: Annotated[str | None, about("", positional=True)] = None
    algorithm: Annotated[str, about("", metavar="NAME")] = "dpnfl"
    dataset: Annotated[str | None, about("", metavar="NAME", default="digits, or csv:hospital_*.csv")] = None


def new_command(arguments: list[str]) -> int:
    options = parse("new", arguments, NewOptions, DESCRIPTION)
    if options.kind is None:
        raise errors.refuse("new", "nothing", "followed by run, sweep or csv", "fedjax-dp new run")
    errors.require_choice("new", options.kind, KINDS)
    command = "sweep" if options.kind == "sweep" else "run"
    path = pathlib.Path(options.file or f"{command}.toml")
    dataset = options.dataset or ("csv:hospital_*.csv" if options.kind == "csv" else "digits")
    text = {"run": run_text, "sweep": sweep_text, "csv": csv_text}[options.kind](options.algorithm, dataset)
    folders.write_new("file", path, text)
    print(f"wrote {path}\nnext  fedjax-dp {command} {path}")
    return 0


def run_text(algorithm: str, dataset: str) -> str:
    """A configuration of a run, as `fedjax-dp run` reads it."""
    return f"# fedjax-dp run FILE; flags win over what stands here.\n{_settings(algorithm, dataset, {})}"


def csv_text(algorithm: str, dataset: str) -> str:
    """The same of tables: which columns are what comes first."""
    head = "# fedjax-dp run FILE; fedjax-dp data --help tells how tables are read, and shows what they hold.\n"
    return head + _settings(algorithm, dataset, TABLES)


def sweep_text(algorithm: str, dataset: str) -> str:
    """A sweep over budgets and clip norms."""
    varied = ("seed", "epsilon", "clip_norm")
    head = (
        "# fedjax-dp sweep FILE; --plan shows what it would run.\n\n# Of every point: their spread is shown.\nseeds = 3"
    )
    return f"{head}\n\n# What all runs share.\n[base]\n{_settings(algorithm, dataset, {}, varied)}{AXES}"


def _settings(algorithm: str, dataset: str, examples: Mapping[str, Any], varied: tuple[str, ...] = ()) -> str:
    """Every option that has a value, by groups."""
    spec = RunSpec.of({"algorithm": algorithm, "dataset": dataset})
    values: dict[str, Any] = spec.flat() | dict(examples)
    text = ""
    for group, options in groups_of(spec.entry).items():
        known = [option for name, option in options.items() if values.get(name) is not None and name not in varied]
        if known and group not in ("execution", "output"):
            text += f"\n# --- {group} {'-' * (WIDTH - len(group) - 7)}\n"
            text += "".join(f"{_in_comments(option)}{_line(option.name, values)}" for option in known)
    return text


def _in_comments(option: Option) -> str:
    choices = tuple(option.choices or ())
    words = f"{option.about.text}: {', '.join(choices)}" if 0 < len(choices) < MANY else option.about.text
    return "".join(f"# {line}\n" for line in textwrap.wrap(words, WIDTH - 2, break_on_hyphens=False))


def _line(name: str, values: Mapping[str, Any]) -> str:
    return f"{'' if name in USUAL else '# '}{name} = {json.dumps(values[name])}\n"
