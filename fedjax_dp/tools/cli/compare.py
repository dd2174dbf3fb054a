"""`fedjax-dp compare`: personal models against local training and a shared model."""

import dataclasses
import math
import pathlib
from typing import TYPE_CHECKING, Annotated

from fedjax_dp import errors, folders
from fedjax_dp.display import finite
from fedjax_dp.options import about
from fedjax_dp.sweeps.settings import bounds
from fedjax_dp.tools.cli.latest import SWEEPS, named_or_latest
from fedjax_dp.tools.cli.options import LookOptions, PrintOptions, look_of, parse
from fedjax_dp.tools.cli.output import cell, columns, page, print_json, show_lines

if TYPE_CHECKING:
    from fedjax_dp.sweeps.comparison import Comparison, ComparisonRow
    from fedjax_dp.sweeps.settings import Interval

DESCRIPTION = """Clients' own models against training alone and one shared model, at the same epsilon.

usage: fedjax-dp compare SWEEP [OPTIONS] [--json]; SWEEP is the file of a sweep over algorithms, which is run first, or
the folder of one, by default the last under sweeps/; local and an algorithm with a shared model are among them, such as

    seeds = 3
    [base]
    dataset = "digits"
    holdout = 0.2      # each client is tested on its own
    view = "deployed"  # paid to those who get models
    [axes]
    epsilon = [1.0, 4.0]
    "algorithm, strength" = [["local"], ["dp_fedavg_local"],
        ["finetune"], ["mr_mtl", 0.5], ["mr_mtl", 2.0]]

Of several settings of an algorithm the best is taken; what that costs is printed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareOptions(PrintOptions, LookOptions):
    """Where the picture goes.

    Args:
        sweep: file of a sweep, or its folder
        out: file (.png, .pdf or .svg) of the picture
    """

    sweep: Annotated[str | None, about("", positional=True, default="the last one here")] = None
    out: Annotated[str | None, about("", default="SWEEP/compare.png", metavar="FILE")] = None


def compare_command(arguments: list[str]) -> int:
    options = parse("compare", arguments, CompareOptions, DESCRIPTION)
    look, picture = look_of(options), None if options.out is None else pathlib.Path(options.out)
    if picture is not None:
        errors.require_picture("out", picture)
    named = named_or_latest(
        "sweep", options.sweep, "the file or folder of a sweep", "fedjax-dp compare sweeps/mine", SWEEPS
    )
    where = str(named)
    from fedjax_dp.sweeps.comparison import require_comparable
    from fedjax_dp.sweeps.plan import read_sweep
    from fedjax_dp.sweeps.records import cost_statement
    from fedjax_dp.sweeps.settings import deployment_mark
    from fedjax_dp.sweeps.sweep import open_sweep
    from fedjax_dp.tools.cli.sweep import run_file

    is_file = named.is_file()
    if is_file:
        planned = read_sweep(where)
        require_comparable(planned.varying_fields, planned.base)  # before it takes long
    sweep, folder = run_file(where) if is_file else (open_sweep(named), named)
    result, cost, path = sweep.comparison(), sweep.choosing, picture or folder / "compare.png"
    with folders.storage_errors(path.parent, "make room, or give another --out"):
        sweep.plot(path, "personalisation", **look)
    if options.json:
        return print_json(finite(result.to_dict() | {"choosing": cost, "picture": str(path)}))
    _print(result)
    lines = [
        ("picture", str(path)),
        ("report", f"fedjax-dp report {folders.quote_path(folder)} writes it too"),
    ]
    lines += [("proved", f"epsilon is of the {mark}")] if (mark := deployment_mark(sweep.records)) else []
    lines += [("choosing", line)] if (line := cost_statement(cost, folder)) else []
    show_lines(lines)
    return 0


def _print(result: "Comparison") -> None:
    console, measure = page(), result.measure
    axes = [axis for axis in result.rows[0].values if any(row.values[axis] is not None for row in result.rows)]
    cells = {
        "epsilon": [cell(row.epsilon) for row in result.rows],
        "algorithm": [row.algorithm for row in result.rows],
        f"mean {result.words}": [f"{row.standing.mean:.4f}" for row in result.rows],
        "95% interval": [bounds(measure, row.means.low, row.means.high) or "-" for row in result.rows],
        "worst tenth": [f"{row.standing.worst_tenth:.4f}" for row in result.rows],
        "no worse than both": [_against(row, "no_worse") for row in result.rows],
        "regret": [_against(row, "regret") for row in result.rows],
        "its 95% interval": [_regrets(row.regrets.of_differences(measure)) for row in result.rows],
        **{axis: [cell(row.values[axis]) for row in result.rows] for axis in axes},
        "proved": [cell(row.proved) for row in result.rows],
        "view": [row.view for row in result.rows],
        "of settings": [str(row.settings) for row in result.rows],
    }
    columns(console, cells, first=3, left=("algorithm", "view"))
    console.print(
        " over clients, each on its own test records; regret is to the better of local and the best shared one"
    )
    seeds = sorted({row.means.seeds for row in result.rows})
    console.print(
        " one seed has no deviation and no interval"
        if seeds == [1]
        else f" intervals of the mean over {' to '.join(map(str, {seeds[0]: 0, seeds[-1]: 0}))} seeds, Student's t"
    )


def _regrets(score: "Interval") -> str:
    return "-" if math.isnan(score.low) else f"{score.low:.3f} to {score.high:.3f}"


def _against(row: "ComparisonRow", field: str) -> str:
    return "-" if row.against is None else f"{getattr(row.against, field):.3f}"
