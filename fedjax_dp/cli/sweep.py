"""`fedjax-dp sweep`."""

import dataclasses
import json
import math
import pathlib
from collections import Counter
from typing import Annotated, Any

from rich import box
from rich.console import Console
from rich.table import Table

from fedjax_dp import errors
from fedjax_dp.cli.options import parse, take_flag
from fedjax_dp.fields import told
from fedjax_dp.screen import Screen
from fedjax_dp.sweeps.plan import read_sweep
from fedjax_dp.sweeps.records import STATUSES
from fedjax_dp.sweeps.settings import settings_of
from fedjax_dp.sweeps.sweep import Sweep, run_sweep

DESCRIPTION = """Run many configurations as few compiled programs.

usage: fedjax-dp sweep SWEEP.toml [--out DIR] [--plan] [--json]; the same command goes on with a sweep that was stopped;
--plan tells what would run and stops there; --json prints one JSON object on stdout and nothing else.

SWEEP.toml: [base] holds fields of a run (fedjax-dp run --help), [axes] what varies, seeds = 5 how often, for example

    seeds = 5
    [base]
    dataset = "mnist"
    [axes]
    algorithm = ["dpnfl", "addpnfl"]
    epsilon = [0.1, 0.3, 1.0]
    clip_norm = { log = [0.3, 10.0], points = 4 }"""

METRIC = "test_accuracy"
SHOWN = 5  # settings
WIDTH = 160  # of a table where there is no terminal


@dataclasses.dataclass(frozen=True)
class SweepOptions:
    out: Annotated[
        str | None, told("folder of the sweep, new or of this sweep", "(default: sweeps/ and the file's name)", "DIR")
    ] = None
    ray: Annotated[
        str | None, told("address of a Ray cluster that runs the points, or local", "(default: none)", "ADDRESS")
    ] = None
    ray_cpus: Annotated[int, told("cores of a task on the Ray cluster")] = 1


def sweep_command(arguments: list[str]) -> int:
    """Run a sweep, or go on with it, and print its best settings."""
    as_json, arguments = take_flag(arguments, "--json")
    only_plan, arguments = take_flag(arguments, "--plan")
    path = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
    options, _ = parse("sweep", arguments, SweepOptions(), DESCRIPTION)
    if path is None:
        raise errors.refuse("sweep file", "none", "given", "fedjax-dp sweep SWEEP.toml; see fedjax-dp sweep --help")
    errors.require_count("ray_cpus", options.ray_cpus)
    name = pathlib.Path(path).stem
    out = pathlib.Path(options.out or pathlib.Path("sweeps") / name)
    found = run_sweep(
        read_sweep(path),
        out,
        name=name,
        screen=Screen(),
        only_plan=only_plan,
        ray=options.ray,
        ray_cpus=options.ray_cpus,
    )
    if as_json:
        print(json.dumps(_summary(found, out), allow_nan=False))
    elif not only_plan:
        _print(found, out)
    return 0


def _summary(found: Sweep, out: pathlib.Path) -> dict[str, Any]:
    """The JSON object of a sweep: what became of its points, and every setting with its means over seeds."""
    settings = found.summary().astype(object)
    settings = settings.where(settings.notna() & ~settings.isin([math.inf]), None)
    return {
        "name": found.name, "folder": str(out), "axes": list(found.axes), "points": len(found.records),
        **{status: sum(record["status"] == status for record in found.records) for status in STATUSES},
        "choosing": found.choosing, "settings": settings.to_dict("records"),
    }  # fmt: skip


def _print(found: Sweep, out: pathlib.Path) -> None:
    """The best settings, and what was lost."""
    settings = settings_of(found.records, found.axes)
    scores = sorted(((s.score(METRIC), s) for s in settings if s.done), key=lambda pair: -pair[0].mean)
    deltas = {point["guarantee"].get("delta") for setting in settings for point in setting.points} - {None}
    proved = "proved epsilon" + (f" (delta {deltas.pop():g})" if len(deltas) == 1 else "")
    table = Table(*found.axes, "test accuracy", "seeds", proved, box=box.SIMPLE_HEAD, title_justify="left",
                  title=f"{found.name}: the best of {len(settings):,} settings")  # fmt: skip
    for score, setting in scores[:SHOWN]:
        spread = "" if math.isnan(score.low) else f" +- {(score.high - score.low) / 2:.4f}"
        lost = f", {setting.failed} lost" if setting.failed else ""
        epsilon = "none" if math.isinf(setting.epsilon) else f"{setting.epsilon:.4g}"
        table.add_row(
            *(_told(setting.values[axis]) for axis in found.axes), f"{score.mean:.4f}{spread}",
            f"{score.seeds}{lost}", epsilon,
        )  # fmt: skip
    for column in table.columns:
        column.no_wrap = True
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
    console.print(" mean over seeds at the last round, with half the width of its 95% interval", markup=False)
    reasons = Counter(record["reason"] for record in found.records if record["status"] != "done")
    for reason, times in reasons.most_common(3):
        console.print(f"lost      {times:,} points: {reason}", markup=False)
    lines = [
        *([f"choosing  {found.choosing['statement']}"] if found.choosing else []),
        f"folder    {out} (points.jsonl, table.csv, table.parquet, selection.json, sweep.png)",
        f"next      fedjax-dp best {out} prints the winner as a configuration, fedjax-dp plot {out} draws",
    ]
    for line in lines:
        console.print(line, markup=False)


def _told(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
