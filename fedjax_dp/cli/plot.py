"""`fedjax-dp plot`: pictures of a sweep."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable
from typing import Annotated

from fedjax_dp import errors
from fedjax_dp.cli.options import parse
from fedjax_dp.fields import told
from fedjax_dp.screen import Screen
from fedjax_dp.sweeps.records import Record, read_records

KINDS = ("all", "overview", "axis", "privacy", "heat", "curves", "parallel")
SUFFIXES = (".png", ".pdf", ".svg")
DESCRIPTION = """Pictures of a sweep, finished or not.

usage: fedjax-dp plot SWEEP [OPTIONS]; SWEEP is the folder of a sweep. Files that were written are named on stdout."""


@dataclasses.dataclass(frozen=True)
class PlotOptions:
    """What to draw, and where."""

    kind: Annotated[
        str,
        told(
            "all that apply, overview (one page), axis (the metric against an axis), privacy (against epsilon), heat "
            "(over two axes), curves (against rounds), or parallel (every setting)"
        ),
    ] = "all"
    x: Annotated[str | None, told("axis, for kinds axis and heat", "(default: each, or those that matter)", "AXIS")] = (
        None
    )
    y: Annotated[str | None, told("second axis, for kind heat", "(default: those that matter)", "AXIS")] = None
    by: Annotated[
        str | None, told("axis with a line for each value", "(default: epsilon or algorithm, if swept)", "AXIS")
    ] = None
    metric: Annotated[str, told("what to draw: a field of the history, as in metrics.json")] = "test_accuracy"
    out: Annotated[
        str | None, told("file (.png, .pdf or .svg) of one picture, or a folder", "(default: SWEEP/plots)", "PATH")
    ] = None


Draw = Callable[[pathlib.Path], None]


def plot_command(arguments: list[str]) -> int:
    """Write the pictures that were asked for."""
    where = arguments[0] if arguments and not arguments[0].startswith("-") else None
    options, _ = parse("plot", arguments[where is not None :], PlotOptions(), DESCRIPTION)
    if where is None:
        raise errors.refuse("sweep", "nothing", "the folder of a sweep", "such as fedjax-dp plot sweeps/mine")
    errors.require_choice("kind", options.kind, KINDS)
    about, records = read_records(where)
    for name in (options.x, options.y, options.by):
        if name is not None:
            errors.require_choice("axis", name, about["axes"])
    pictures = _pictures(records, about["axes"], options, str(about.get("name", where)))
    for path, draw in zip(_paths(options.out, pathlib.Path(where) / "plots", list(pictures)), pictures.values()):
        draw(path)
        print(path)
    planned = about.get("points", 0)
    if len(records) < planned:
        Screen().say(f"{len(records)} of {planned} points are there")
    return 0


def _pictures(records: list[Record], axes: list[str], options: PlotOptions, title: str) -> dict[str, Draw]:
    """What to draw, by the name of its file; refuses a kind that the sweep has nothing for."""
    from fedjax_dp.sweeps import figures  # loads matplotlib

    metric, kind = options.metric, options.kind
    settings = figures.checked(records, axes, metric)
    ranked = figures.influential(settings, metric)
    curves_by = options.by or figures.line_axis(settings, None)
    found: dict[str, dict[str, Draw]] = {name: {} for name in KINDS[1:]}
    found["overview"]["overview"] = lambda path: figures.overview(records, axes, metric, title, path)
    for name in [options.x] if options.x else ranked:
        by = options.by if options.by != name else None
        found["axis"][f"axis-{name}"] = functools.partial(
            figures.metric_against, records, axes, name, metric, by=by or figures.line_axis(settings, name)
        )
    if any(math.isfinite(setting.epsilon) for setting in settings):
        found["privacy"]["privacy"] = lambda path: figures.privacy_utility(records, axes, metric, path, options.by)
    pair = figures.two_axes(settings, ranked)
    if pair:
        order = [*pair, *ranked]
        x = options.x or next(name for name in order if name != options.y)
        y = options.y or next(name for name in order if name != x)
        found["heat"]["heat"] = lambda path: figures.heat_map(records, axes, x, y, metric, path)
    if len(ranked) > 1:
        found["parallel"]["parallel"] = lambda path: figures.parallel_coordinates(records, axes, metric, path)
    found["curves"]["curves"] = lambda path: figures.learning_curves(records, axes, metric, path, curves_by)
    if kind != "all" and not found[kind]:
        able = ", ".join(name for name, pictures in found.items() if pictures)
        raise errors.refuse("kind", kind, f"one that this sweep has points for: {able}")
    return {name: draw for one in (found if kind == "all" else [kind]) for name, draw in found[one].items()}


def _paths(out: str | None, usual: pathlib.Path, names: list[str]) -> list[pathlib.Path]:
    """Where pictures go; makes the folder."""
    path = usual if out is None else pathlib.Path(out)
    if path.suffix in SUFFIXES and len(names) > 1:
        raise errors.refuse("out", str(path), f"a folder for {len(names)} pictures", "or give --kind, such as overview")
    if path.suffix in SUFFIXES and not path.parent.is_dir():
        raise errors.refuse("out", str(path), "in an existing folder")
    if path.suffix in SUFFIXES:
        return [path]
    if path.suffix[1:].isalpha() or path.is_file():
        raise errors.refuse("out", str(path), "a folder, or a file that ends in " + ", ".join(SUFFIXES))
    path.mkdir(parents=True, exist_ok=True)
    return [path / f"{name}.png" for name in names]
