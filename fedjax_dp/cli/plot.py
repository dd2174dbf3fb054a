"""`fedjax-dp plot`: pictures of a sweep."""

import dataclasses
import pathlib
from typing import Annotated

from fedjax_dp import errors, folders
from fedjax_dp.cli.options import LookOptions, look_of, parse
from fedjax_dp.experiments.console import Screen
from fedjax_dp.options import about
from fedjax_dp.sweeps.records import read_records

DESCRIPTION = """Pictures of a sweep, finished or not.

usage: fedjax-dp plot SWEEP [OPTIONS]; SWEEP is the folder of a sweep. Files that were written are named on stdout."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlotOptions(LookOptions):
    """What to draw, and where."""

    sweep: Annotated[str | None, about("folder of the sweep", positional=True)] = None

    kind: Annotated[
        str,
        about(
            "all that apply, overview (one page), axis (the metric against an axis), privacy (against epsilon), heat "
            "(over two axes), curves (against rounds), parallel (every setting), or personalisation (as "
            "fedjax-dp compare draws it)"
        ),
    ] = "all"
    x: Annotated[
        str | None, about("axis, for kinds axis and heat", default="each, or those that matter", metavar="AXIS")
    ] = None
    y: Annotated[str | None, about("second axis, for kind heat", default="those that matter", metavar="AXIS")] = None
    by: Annotated[
        str | None, about("axis with a line for each value", default="epsilon or algorithm, if swept", metavar="AXIS")
    ] = None
    metric: Annotated[
        str | None, about("what to draw: a field of the history, as in metrics.json", default="the task's main one")
    ] = None
    out: Annotated[
        str | None,
        about("file (.png, .pdf or .svg) of one picture, or a folder", default="SWEEP/plots", metavar="PATH"),
    ] = None


def plot_command(arguments: list[str]) -> int:
    """Write the pictures."""
    options = parse("plot", arguments, PlotOptions, DESCRIPTION)
    if options.sweep is None:
        raise errors.refuse("sweep", "nothing", "the folder of a sweep", "such as fedjax-dp plot sweeps/mine")
    look = look_of(options)
    about, records = read_records(options.sweep)
    from fedjax_dp.figures import sweeps as figures  # loads matplotlib

    title = str(about.get("name", options.sweep))
    drawn = figures.drawings(
        records, about["axes"], title, options.kind, options.metric, options.x, options.y, options.by
    )
    paths = _paths(options.out, pathlib.Path(options.sweep) / "plots", list(drawn), errors.PICTURES)
    with folders.storing(paths[0].parent, "make room, or give another --out"), folders.making(paths[0].parent):
        for path, draw in zip(paths, drawn.values()):
            draw(path=path, **look)
            print(path)
    planned = about.get("points", 0)
    if len(records) < planned:
        Screen().say(f"{len(records)} of {planned} points are there")
    return 0


def _paths(out: str | None, usual: pathlib.Path, names: list[str], suffixes: tuple[str, ...]) -> list[pathlib.Path]:
    """Where pictures go."""
    path = usual if out is None else pathlib.Path(out)
    if path.suffix in suffixes and len(names) > 1:
        raise errors.refuse("out", str(path), f"a folder for {len(names)} pictures", "or give --kind, such as overview")
    if path.suffix in suffixes and not path.parent.is_dir():
        raise errors.refuse("out", str(path), "in an existing folder")
    if path.suffix in suffixes:
        return [path]
    if path.suffix[1:].isalpha() or path.is_file():
        raise errors.refuse("out", str(path), "a folder, or a file that ends in " + ", ".join(suffixes))
    folders.require_writable("out", path, "give another --out")
    return [path / f"{name}.png" for name in names]
