"""`fedjax-dp sweep`."""

import dataclasses
import math
import pathlib
import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fedjax_dp import errors, folders
from fedjax_dp.accounting import Unit, View
from fedjax_dp.accounting.guarantee import mark_of, with_mark
from fedjax_dp.display import count, upward
from fedjax_dp.experiments.console import Screen
from fedjax_dp.options import about
from fedjax_dp.sweeps.plan import read_sweep
from fedjax_dp.sweeps.records import STATUSES, SWEEP, SWEEP_FOLDER, cost_statement
from fedjax_dp.sweeps.settings import (
    Setting,
    baseline_of_records,
    bounds,
    caveats_of,
    measures_of_records,
    settings_of,
    varying_axes,
)
from fedjax_dp.sweeps.winners import USUAL
from fedjax_dp.tools.cli.help import FirstPage
from fedjax_dp.tools.cli.options import PrintOptions, Switch, parse
from fedjax_dp.tools.cli.output import cell, columns, page, print_json, show_lines

if TYPE_CHECKING:
    from fedjax_dp.sweeps.sweep import Sweep

PAGE = FirstPage(
    "Run many configurations as few compiled programs.",
    "SWEEP.toml|SWEEP_FOLDER [OPTIONS]",
    {
        "new sweep": "writes sweep.toml, a commented file to start from",
        "sweep sweep.toml --plan": "what would run, how long it takes and how much memory it needs",
        "sweep sweep.toml": "run it; the same command goes on after a stop, or with more values",
        "best sweeps/sweep": "the best setting as a configuration for fedjax-dp run",
    },
    {
        "plan": "",
        "out": "sweeps/first",
        "halving": "3",
        "search": "tpe",
        "trials": "50",
        "ray": "local",
        "ray_cpus": "2",
        "quiet": "",
        "json": "",
    },
    """A file names what all points share, and what varies; fields are the options of fedjax-dp run:

    seeds = 5                                         # or a list
    [base]                                            # what all points share
    dataset = "digits"
    [axes]                                            # what varies: every combination is a point
    epsilon = [0.1, 0.3, 1.0]
    clip_norm = { log = [0.3, 10.0], points = 4 }     # or linear
    "algorithm, server_learning_rate" = [["dpnfl"], ["addpnfl", 0.01]]   # these vary together""",
    """[[points]] lists points, as one more axis. trials = 50 draws points at random instead of taking the grid: from
lists, and from ranges without points; search_seed = 1 draws others. search = "tpe" chooses them by earlier results,
search_batch = 8 at once. trials_law = "poisson", "geometric" or "logarithmic" also draws their number, mean trials,
as random repetition (Papernot and Steinke 2022) requires. halving = 3 stops bad points early. Options of [base] that an
algorithm on an axis does not take are left out for it.""",
)
SHOWN = 5  # settings


@dataclasses.dataclass(frozen=True)
class SweepOptions(PrintOptions):
    """Where the sweep runs.

    Args:
        file: SWEEP.toml, or the folder of a sweep
        plan: print what would run, its time and its memory, and stop there
        out: folder of the sweep; new, or of this sweep
        halving: stop bad points early; at each rung the best 1/HALVING of each budget and algorithm go on
        search: how trials are chosen; random, or tpe, by which Optuna learns from earlier trials
        trials: points to draw or to search, instead of the whole grid
        ray: address of the Ray cluster that runs the points, or local
        ray_cpus: cores of a task on the Ray cluster
        quiet: print the result alone, without progress
    """

    file: Annotated[str | None, about("", positional=True)] = None
    plan: Annotated[bool, about("", switch=True)] = False
    out: Annotated[str | None, about("", default="sweeps/ and the file's name", metavar="DIR")] = None
    halving: Annotated[int | None, about("", default="all points to their end")] = None
    search: Annotated[Literal["random", "tpe"] | None, about("", default="random, where there are trials")] = None
    trials: Annotated[int | None, about("", default="the grid")] = None
    ray: Annotated[str | None, about("", metavar="ADDRESS")] = None
    ray_cpus: int = 1
    quiet: Switch = False


def sweep_command(arguments: list[str]) -> int:
    if any(word.partition("=")[0] == "--coordinator" for word in arguments):
        remedy = "a sweep goes to several machines by points: start a Ray cluster and give --ray ADDRESS"
        raise errors.refuse("--coordinator", "it with a sweep", "left to fedjax-dp run", remedy)
    options = parse("sweep", arguments, SweepOptions, PAGE)
    path = options.file
    if path is None:
        raise errors.refuse("sweep file", "none", "given", "fedjax-dp sweep SWEEP.toml; see fedjax-dp sweep --help")
    errors.require_count("ray_cpus", options.ray_cpus)
    how: dict[str, Any] = {"only_plan": options.plan, "ray": options.ray, "ray_cpus": options.ray_cpus}
    written = {name: getattr(options, name) for name in ("halving", "search", "trials")}
    keys = {name: value for name, value in written.items() if value is not None}
    result, out = run_file(path, options.out, Screen(quiet=options.quiet), keys, **how)
    if options.json:
        return print_json(_summary(result, out))
    if result.plan is not None:
        for line in result.plan.lines():
            page().print(line)
    else:
        _print(result, out)
    return 0


def run_file(
    path: str, out: str | None = None, screen: Screen | None = None, keys: Mapping[str, Any] | None = None, **how: Any
) -> "tuple[Sweep, pathlib.Path]":
    """Run a sweep's file, or continue its folder. Returns the sweep and its folder.

    `keys` replace those of the file; `how` are options of `run_sweep`.
    """
    from fedjax_dp.sweeps.sweep import run_sweep  # loads JAX

    file = pathlib.Path(path)
    if (file / SWEEP).is_file():
        file = file / SWEEP
    held = file.name == SWEEP and SWEEP_FOLDER.is_at(file.parent)  # a folder that a sweep has made
    name = file.resolve().parent.name if held else file.stem
    where = pathlib.Path(out or (file.parent if held else pathlib.Path("sweeps") / name))
    return run_sweep(read_sweep(file, **(keys or {})), where, name=name, screen=screen or Screen(), **how), where


def _summary(result: "Sweep", out: pathlib.Path) -> dict[str, Any]:
    """The JSON object of a sweep: its points by status, and every setting with its means over seeds."""
    settings = result.summary().astype(object)
    settings = settings.where(settings.notna() & ~settings.isin([math.inf]), None)
    return {
        "name": result.name,
        "folder": str(out),
        "axes": list(result.axes),
        "points": len(result.records),
        **{status: sum(record["status"] == status for record in result.records) for status in STATUSES},
        "choosing": result.choosing,
        "plan": None if result.plan is None else result.plan.to_dict(),
        "settings": settings.to_dict("records"),
    }


def _print(result: "Sweep", out: pathlib.Path) -> None:
    """Print the best settings, and why points were stopped or lost."""
    settings, main = settings_of(result.records, result.axes), measures_of_records(result.records).main
    known = [(setting.score(main.name), setting) for setting in settings if setting.done_points]
    scores = sorted(known, key=lambda pair: -main.better * pair[0].mean)[:SHOWN]
    kinds = list(dict.fromkeys(whose for _, setting in scores if (whose := _epsilon_subject(setting))))
    names = {whose: f" ({chr(ord('a') + at)})" if len(kinds) > 1 else "" for at, whose in enumerate(kinds)}
    cells = {axis: [cell(setting.values[axis], 6) for _, setting in scores] for axis in result.axes} | {
        main.words: [f"{score.mean:.4f}" for score, _ in scores],
        "proved": [_epsilon_text(setting) + names.get(_epsilon_subject(setting), "") for _, setting in scores],
        "95% interval": [bounds(main, score.low, score.high) or "-" for score, _ in scores],
        "seeds": [
            f"{score.seeds}" + (f", {setting.failures} lost" if setting.failures else "") for score, setting in scores
        ],
    }
    console = page()
    console.print(f"{result.name}: the best of {count(len(settings), 'setting')}")
    columns(console, cells, first=len(result.axes) + 2)
    several = any(score.seeds > 1 for score, _ in scores)
    about = "mean over seeds at the last round; the interval is Student's t"
    console.print(f" {about if several else 'at the last round; one seed has no deviation and no interval'}")
    kept = re.compile(r"clients [\d, .]+")  # which clients were lost differs from point to point
    ended: dict[str, Counter[str]] = {"stopped": Counter(), "lost": Counter()}
    for record in result.records:
        if record["status"] != "done":
            name = "stopped" if record["status"] == "stopped" else "lost"
            ended[name][kept.sub("clients", record["reason"])] += 1
    place = folders.quote_path(out)
    each = " and ".join(name for name in USUAL if name in varying_axes(settings))
    lines = [
        *(("proved", f"{name} epsilon at {whose}".strip()) for whose, name in names.items()),
        *(("caveat", caveat) for caveat in caveats_of(result.records)),
        *(
            (name, f"{count(times, 'point')}: {reason}")
            for name, reasons in ended.items()
            for reason, times in reasons.most_common(3)
        ),
        *([("choosing", cost)] if (cost := cost_statement(result.choosing, out)) else []),
        *([("baseline", baseline)] if (baseline := baseline_of_records(result.records)) else []),
        ("folder", f"{place} (points.jsonl, table.csv, table.parquet, selection.json, sweep.png)"),
        ("next", f"fedjax-dp best {place} prints the winner as a configuration, fedjax-dp plot {place} draws"),
        *([("each", f"fedjax-dp best {place} --table text prints the best of each {each}")] if each else []),
    ]
    show_lines(lines)


def _epsilon_text(setting: Setting) -> str:
    return "none" if math.isinf(setting.epsilon) else upward(setting.epsilon)


def _epsilon_subject(setting: Setting) -> str:
    """What the epsilon of a setting is for: delta, unit, neighbours and view."""
    guarantee = setting.points[0]["guarantee"]
    if math.isinf(setting.epsilon) or guarantee.get("delta") is None:
        return ""
    whom = f"one {Unit(guarantee['unit'])}, {guarantee['adjacency']} neighbours"
    return with_mark(f"delta {guarantee['delta']:g} for {whom}, against {View(guarantee['view'])}", mark_of(guarantee))
