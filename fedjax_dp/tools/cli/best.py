"""`fedjax-dp best`: the winner of a sweep as a configuration for `fedjax-dp run`."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fedjax_dp import errors, folders
from fedjax_dp.display import finite
from fedjax_dp.experiments.console import Screen
from fedjax_dp.experiments.groups import options_of
from fedjax_dp.options import about
from fedjax_dp.parts.choices import own_numbers
from fedjax_dp.sweeps import table
from fedjax_dp.sweeps.records import Record, cost_statement, is_configuration, read_records, read_selection_cost
from fedjax_dp.sweeps.settings import bounds, metric_of
from fedjax_dp.sweeps.table import Best
from fedjax_dp.sweeps.winners import title, winners
from fedjax_dp.tasks.measures import Measure
from fedjax_dp.tools.cli.latest import SWEEPS, named_or_latest
from fedjax_dp.tools.cli.options import PrintOptions, parse
from fedjax_dp.tools.cli.output import columns, page, print_json

DESCRIPTION = """The best setting of a sweep, as TOML for fedjax-dp run; its results go to stderr.

usage: fedjax-dp best [SWEEP] [OPTIONS] [--json]; the folder of a sweep, by default the last under sweeps/. The best has
the best mean over seeds at the last evaluated round; settings with a failed seed are not compared. A sweep made in
Python has no TOML: the results of its best setting go to stdout.

--table text, csv or latex prints the best of each budget and algorithm instead, with standard deviation and 95%
interval over seeds, and the differences between algorithms, seed by seed."""


@dataclasses.dataclass(frozen=True)
class BestOptions(PrintOptions):
    """How the best setting is chosen and printed.

    Args:
        sweep: folder of the sweep
        metric: what to compare: a field of the history, as in metrics.json
        epsilon_at_most: largest proved epsilon that the winner may have
        table: print a table with the best of each budget and algorithm
        by: axes, with commas; the table has the best setting of each of their values
        against: algorithm that the others are compared with
    """

    sweep: Annotated[str | None, about("", positional=True, default="the last one here")] = None
    metric: Annotated[str | None, about("", default="the task's main one")] = None
    epsilon_at_most: Annotated[float | None, about("", default="any")] = None
    table: Annotated[Literal["text", "csv", "latex"] | None, about("", default="text with --by or --against")] = None
    by: Annotated[str | None, about("", default="epsilon,algorithm, else all that vary", metavar="AXES")] = None
    against: Annotated[str | None, about("", default="the first", metavar="NAME")] = None


def best_command(arguments: list[str]) -> int:
    options = parse("best", arguments, BestOptions, DESCRIPTION)
    folder = named_or_latest("sweep", options.sweep, "the folder of a sweep", "fedjax-dp best sweeps/mine", SWEEPS)
    about, records = read_records(folder)
    if options.table or options.by or options.against:
        return _print_each(options, records, about, folder)
    best = table.best(records, about["axes"], options.metric, options.epsilon_at_most)
    measure = metric_of(records, best.metric)
    statement = _statement(folder, records, measure)
    if options.json:
        content = best._asdict() | {
            "epsilon_at_most": options.epsilon_at_most,
            "statement": statement,
            "sweep": str(folder),
            "points": len(records),
            "planned": about.get("points"),
        }
        return print_json(finite(content))
    lines = _lines(best, records, about.get("points"), statement, measure)
    if not is_configuration(best.config):
        where = (
            "this sweep was made in Python, so it has no configuration for fedjax-dp run; "
            f"fdp.open_sweep({str(folder)!r}).best().values has the values of its axes"
        )
        console = page()
        for line in [*lines, where]:
            console.print(line)
        return 0
    print(_toml(best, folder), end="")
    screen = Screen()
    for line in lines:
        screen.say(line)
    return 0


def _print_each(options: BestOptions, records: list[Record], about: Mapping[str, Any], folder: pathlib.Path) -> int:
    """Print the best of each value of some axes, with notes below, which go to stderr with CSV and LaTeX."""
    errors.require_left_out(options, ["epsilon_at_most"], "beside --table", "drop one of them")
    by = None if options.by is None else [name.strip() for name in options.by.split(",")]
    found = winners(records, about["axes"], by, options.metric, options.against)
    rest = _last(len(records), about.get("points"), _statement(folder, records, found.metric))
    if options.json:
        notes = [*found.notes(), *rest]
        return print_json(finite({"by": found.by, "against": found.against, "best": found.table(), "notes": notes}))
    if options.table in ("csv", "latex"):
        print(found.csv() if options.table == "csv" else found.latex(), end="")
        for line in [*(found.notes() if options.table == "csv" else ()), *rest]:
            Screen().say(line)
        return 0
    console = page()
    console.print(title(found))
    columns(console, found.cells(), first=len(found.by) + 4, left=("algorithm",))
    for line in [*found.notes(), *rest]:
        console.print(f" {line}")
    return 0


def _last(points: int, planned: int | None, statement: str | None) -> list[str]:
    """The progress of the sweep, and the cost of choosing."""
    lines = [f"{points} of {planned} points are there: the winner may change"] * (points < (planned or 0))
    return [*lines, statement or table.UNKNOWN_COST]


def _toml(best: Best, folder: pathlib.Path) -> str:
    """The winner's configuration as TOML, without the folder, so that its run gets a new one."""
    known = options_of() | own_numbers(best.config)
    for name in best.config:
        errors.require_choice(f"{folder}: a field of a configuration", name, known)
    return folders.toml(best.config | {"out": None})


def _lines(
    best: Best, records: list[Record], planned: int | None, statement: str | None, measure: Measure
) -> list[str]:
    """The winner's results, how it was chosen, and the cost of choosing."""
    chosen = ", ".join(f"{name} {value}" for name, value in best.values.items() if value is not None)
    left_out, from_file = table.excluded_in_words(best.excluded), is_configuration(best.config)
    reach = f"{measure.words} {best.mean:.4f}"
    if best.seeds == 1:
        reach += ", of one seed, so without a deviation"
    else:
        reach += (
            f" +- {best.std:.4f}, the mean of {best.seeds} seeds, its 95% interval "
            f"{bounds(measure, best.low, best.high)}"
        )
    if best.considered > 1 or table.STOPPED in best.excluded:
        way = "upwards" if measure.better > 0 else "downwards"
        reach += f" (biased {way}: the setting was chosen by this number)"
    lines = [
        reach,
        *([f"the configuration is of seed {best.config['seed']}"] if from_file and best.seeds > 1 else []),
        best.guarantee.get("statement", "no Guarantee is known"),
        f"the best of {best.considered} setting{'s' * (best.considered != 1)} compared"
        + (f": {chosen}" if chosen else "")
        + (f"; {left_out}" if left_out else ""),
    ]
    guarantees = [record["guarantee"] for record in records if record["guarantee"].get("epsilon") is not None]
    if len({(one.get("unit"), one.get("adjacency"), one.get("view")) for one in guarantees}) > 1:
        lines.append("the compared epsilons have different units, neighbours or views: see the Guarantee of each point")
    return [*lines, *_last(len(records), planned, statement)]


def _statement(folder: pathlib.Path, records: list[Record], measure: Measure) -> str | None:
    """The cost of choosing by a metric in words; None before the sweep is complete."""
    return cost_statement(read_selection_cost(folder, records, measure), folder)
