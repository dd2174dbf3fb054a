"""`fedjax-dp reproduce`."""

import dataclasses
import itertools
from typing import Annotated, Any

from rich import box
from rich.table import Table

from fedjax_dp import folders
from fedjax_dp.experiments.console import Screen
from fedjax_dp.options import about
from fedjax_dp.tools.cli.options import PrintOptions, parse
from fedjax_dp.tools.cli.output import page, print_json
from fedjax_dp.tools.papers.citations import CITATIONS

DESCRIPTION = """Rerun tables and figures of papers: as published, by the paper's literal recipe, and with correct noise
for the same budget, with the epsilon that each proves and a verdict.

usage: fedjax-dp reproduce lists them; fedjax-dp reproduce NAME [OPTIONS] [--json] runs one, such as dpnfl/table2, and
writes table.md, table.csv, table.json and figure.png; the same command goes on after a stop."""
OWN = "settings found by sweeps of this program, beside what the papers print"


@dataclasses.dataclass(frozen=True)
class ReproduceOptions(PrintOptions):
    """How much of what is reproduced, and where.

    Args:
        name: table or figure to rerun
        scale: how much of it: smoke (seconds), small (minutes) or full (the paper's own)
        seeds: number of seeds
        panels: pattern of the panels to rerun, such as 'mnist*'
        out: folder of the reproduction; new, or of this one
        data_dir: folder of the data sets
    """

    name: Annotated[str | None, about("", positional=True)] = None
    scale: str = "small"
    seeds: Annotated[int | None, about("", default="the scale's")] = None
    panels: str = "*"
    out: Annotated[str | None, about("", default="reproduced/NAME-SCALE", metavar="DIR")] = None
    data_dir: Annotated[str | None, about("", default="$FEDJAX_DP_DATA, else the user cache", metavar="DIR")] = None


def reproduce_command(arguments: list[str]) -> int:
    options = parse("reproduce", arguments, ReproduceOptions, DESCRIPTION)
    name = options.name
    if name is None:
        return _list(options.json)
    from fedjax_dp.tools.papers.reproductions.reproduce import reproduce  # loads JAX

    how = {field: value for field, value in vars(options).items() if field not in ("name", "json")}
    done = reproduce(name, **how, screen=Screen())
    if options.json:
        print((done.folder / "table.json").read_text(), end="")
        return 0
    _print(done)
    return 0


def _list(as_json: bool) -> int:
    from fedjax_dp.tools.papers.reproductions.recipe import read_recipe, recipes

    known = [read_recipe(name) for name in recipes()]
    if as_json:
        contents = [
            {"name": one.name, "source": one.source, "title": one.title, "panels": [p.key for p in one.panels]}
            for one in known
        ]
        return print_json(contents)
    console = page()
    widest = max(len(one.name) for one in known)
    for paper, group in itertools.groupby(known, lambda one: one.name.partition("/")[0]):
        console.print(f"{paper}: {CITATIONS.get(paper, OWN)}", style="bold")
        rows = Table.grid(padding=(0, 2, 0, 0))
        rows.add_column(min_width=widest, no_wrap=True)
        for one in group:
            rows.add_row(one.name, one.title, ", ".join(panel.key for panel in one.panels))
        console.print(rows)
        console.print()
    console.print(
        "name, what it shows, and its panels, of which --panels takes some\n"
        "fedjax-dp reproduce NAME --scale small runs one; --scale smoke shows in seconds that it works"
    )
    return 0


def _print(done: Any) -> None:
    """The table, the claims, and where everything is."""
    from fedjax_dp.tools.papers.reproductions.tables import metric_tables, to_dict

    console = page()
    for one in metric_tables(list(map(to_dict, done.rows)), done.recipe.titles):
        title = f"{done.recipe.source}: {done.recipe.title}; {one.label}"
        table = Table(*one.columns, box=box.SIMPLE_HEAD, title_justify="left", title=title)
        for cells in one.rows:
            table.add_row(*cells)
        console.print(table)
    for claim in done.claims:
        console.print(f' "{claim.statement}", {claim.reading}: {claim.verdict}')
    for note in done.notes:
        console.print(f" {note}")
    place = folders.quote_path(done.folder)
    console.print(f" folder    {place} (table.md, table.csv, table.json, figure.png, runs/)")
