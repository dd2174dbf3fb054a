"""`fedjax-dp sweep`."""

import dataclasses
from typing import Annotated

from fedjax_dp import errors
from fedjax_dp.cli.options import PrintOptions, parse
from fedjax_dp.options import about

DESCRIPTION = """Run many configurations as few compiled programs.

usage: fedjax-dp sweep SWEEP.toml [--out DIR] [--plan] [--ray ADDRESS] [--json]; the same command goes on with a sweep
that was stopped, and so does fedjax-dp sweep DIR. SWEEP.toml looks like this; fields are those of a run (fedjax-dp run
--help):

    seeds = 5                                         # or a list
    [base]                                            # what all points share
    dataset = "mnist"
    [axes]                                            # what varies: every combination
    epsilon = [0.1, 0.3, 1.0]
    clip_norm = { log = [0.3, 10.0], points = 4 }     # or linear
    "algorithm, server_learning_rate" = [["dpnfl"], ["addpnfl", 0.01]]   # together; an entry may stop early

[[points]] writes points out, as one more axis. trials = 50 draws points at random instead of taking the grid: from
lists, and from ranges without points; search_seed = 1 draws others. trials_law = "poisson", "geometric" or
"logarithmic" also draws their number, of which trials is the mean, as random repetition (Papernot and Steinke 2022)
asks for. What an algorithm on an axis does not take is left out of [base] for it."""


@dataclasses.dataclass(frozen=True)
class SweepOptions(PrintOptions):
    """Where and on what it runs."""

    file: Annotated[str | None, about("SWEEP.toml, or the folder of a sweep", positional=True)] = None
    plan: Annotated[bool, about("say what would run, and stop there", switch=True)] = False
    out: Annotated[
        str | None,
        about("folder of the sweep, new or of this sweep", default="sweeps/ and the file's name", metavar="DIR"),
    ] = None
    ray: Annotated[str | None, about("address of a Ray cluster that runs the points, or local", metavar="ADDRESS")] = (
        None
    )
    ray_cpus: Annotated[int, about("cores of a task on the Ray cluster")] = 1


def sweep_command(arguments: list[str]) -> int:
    """Run a sweep, or go on with it, and print its best settings."""
    options, _ = parse("sweep", arguments, SweepOptions, DESCRIPTION)
    path = options.file
    if path is None:
        raise errors.refuse("sweep file", "none", "given", "fedjax-dp sweep SWEEP.toml; see fedjax-dp sweep --help")
    errors.require_count("ray_cpus", options.ray_cpus)
    from fedjax_dp.cli.sweep_outcome import carry_out  # loads JAX

    return carry_out(path, options)
