"""`fedjax-dp plot`: pictures of a sweep, or of a run."""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Annotated

from fedjax_dp import errors, folders
from fedjax_dp.experiments.console import Screen
from fedjax_dp.options import about
from fedjax_dp.sweeps.records import read_records
from fedjax_dp.tools.cli.latest import RUNS, SWEEPS, named_or_latest
from fedjax_dp.tools.cli.options import LookOptions, look_of, parse

if TYPE_CHECKING:
    from fedjax_dp.tools.figures.canvas import Look

DESCRIPTION = """Pictures of a sweep or of a run, finished or not.

usage: fedjax-dp plot [SWEEP|RUN] [OPTIONS]; the folder of a sweep or a run, by default the last under sweeps/ and
runs/. A run has one picture, for which options that choose among those of a sweep are left out. Files that were written
are named on stdout."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlotOptions(LookOptions):
    """What to draw, and where.

    Args:
        sweep: folder of the sweep, or of a run
        kind: all that apply, overview (one page), axis (the metric against an axis), privacy (against epsilon), heat
            (over two axes), curves (against rounds), parallel (every setting), or personalisation (as fedjax-dp compare
            draws it)
        x: axis, for kinds axis and heat
        y: second axis, for kind heat
        by: axis with a line for each value
        metric: what to draw: a field of the history, as in metrics.json
        out: file (.png, .pdf or .svg) of one picture, or a folder
    """

    sweep: Annotated[str | None, about("", positional=True, default="the last one here")] = None
    kind: str = "all"
    x: Annotated[str | None, about("", default="each, or those that matter", metavar="AXIS")] = None
    y: Annotated[str | None, about("", default="those that matter", metavar="AXIS")] = None
    by: Annotated[str | None, about("", default="epsilon or algorithm, if swept", metavar="AXIS")] = None
    metric: Annotated[str | None, about("", default="the task's main one")] = None
    out: Annotated[str | None, about("", default="SWEEP/plots, RUN/run.png", metavar="PATH")] = None


def plot_command(arguments: list[str]) -> int:
    options = parse("plot", arguments, PlotOptions, DESCRIPTION)
    look = look_of(options)
    wanted = "the folder of a sweep or of a run"
    folder = named_or_latest("sweep", options.sweep, wanted, "fedjax-dp plot sweeps/mine", SWEEPS, RUNS)
    if (folder / "run.json").is_file():
        return _plot_run(folder, options, look)
    about, records = read_records(folder)
    from fedjax_dp.tools.figures import sweeps as figures  # loads matplotlib

    title = str(about.get("name", folder))
    drawn = figures.drawings(
        records, about["axes"], title, options.kind, options.metric, options.x, options.y, options.by
    )
    paths = _paths(options.out, folder / "plots", list(drawn))
    with (
        folders.storage_errors(paths[0].parent, "make room, or give another --out"),
        folders.ensure_folder(paths[0].parent),
    ):
        for path, draw in zip(paths, drawn.values()):
            draw(path=path, **look)
            print(path)
    planned = about.get("points", 0)
    if len(records) < planned:
        Screen().say(f"{len(records)} of {planned} points are there")
    return 0


def _plot_run(folder: pathlib.Path, options: PlotOptions, look: "Look") -> int:
    for name, usual in (("kind", "all"), *((name, None) for name in ("x", "y", "by", "metric"))):
        if getattr(options, name) != usual:
            raise errors.refuse(name, getattr(options, name), "left out for a run", f"drop --{name}")
    if options.out is not None:
        errors.require_picture("out", options.out)
    from fedjax_dp.experiments import open_run
    from fedjax_dp.tools.figures.runs import plot_run

    run, path = open_run(folder), pathlib.Path(options.out or folder / "run.png")
    if not run.history:
        raise errors.refuse("run", f"{folder} before its first evaluation", "evaluated", "resume goes on with it")
    with folders.storage_errors(path.parent, "make room, or give another --out"):
        plot_run(run.history, run.guarantee, run.title, path, task=run.measures, **look)
    print(path)
    return 0


def _paths(out: str | None, usual: pathlib.Path, names: list[str]) -> list[pathlib.Path]:
    path = usual if out is None else pathlib.Path(out)
    if path.suffix in errors.PICTURES:
        if len(names) > 1:
            wanted = f"a folder for {len(names)} pictures"
            raise errors.refuse("out", str(path), wanted, "or give --kind, such as overview")
        errors.require_picture("out", path)
        return [path]
    if path.suffix[1:].isalpha() or path.is_file():
        raise errors.refuse("out", str(path), "a folder, or a file that ends in " + ", ".join(errors.PICTURES))
    folders.require_writable("out", path, "give another --out")
    return [path / f"{name}.png" for name in names]
