"""`fedjax-dp bench`."""

import dataclasses
from typing import Literal

from fedjax_dp import errors
from fedjax_dp.cli.options import PlotOption, PrintOptions, picture_of
from fedjax_dp.cli.run_options import configured_by

DESCRIPTION = """Measure a round of a run, and where its time goes: the same round with one part after another left out.

usage: fedjax-dp bench [CONFIG.toml] [OPTIONS] [--json]; options are those of fedjax-dp run. Nothing is trained and no
noise is calibrated, which would not change the time. --json prints one JSON object on stdout and nothing else.

--compile-for h200 (h100, a100, v5e, v5p, v6e) measures nothing: the round is compiled for that accelerator, which need
not be here, and what is printed is read off the program: launches or cycles, memory, exchanges between --devices N (1
unless given), and the time that follows by formulas. Records are on the devices."""
MEASURING = ("turns", "evaluate_every")  # mean nothing where nothing runs


@dataclasses.dataclass(frozen=True)
class BenchOptions(PrintOptions, PlotOption):
    """How to measure.

    Args:
        turns: how often each variant of the round is timed
        compile_for: compile for this accelerator instead, see above
    """

    turns: int = 7
    compile_for: Literal["h200", "h100", "a100", "v5e", "v5p", "v6e"] | None = None


def bench_command(arguments: list[str]) -> int:
    """Measure, or compile for an accelerator, and print."""
    overrides, options, flagged = configured_by("bench", arguments, DESCRIPTION, BenchOptions)
    look = picture_of(options)
    errors.require_count("turns", options.turns)
    if options.compile_for is not None:
        for name in MEASURING:
            if name in flagged:
                value = (overrides | vars(options))[name]
                raise errors.refuse(name, value, "left out with --compile-for", "as nothing is measured")
    from fedjax_dp.cli import bench_outcome  # loads JAX

    carry_out = bench_outcome.measure if options.compile_for is None else bench_outcome.compile_for
    return carry_out(overrides, options, look)
