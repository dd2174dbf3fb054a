"""`fedjax-dp run`."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

from fedjax_dp import errors
from fedjax_dp.cli.options import DetailOptions, known_flags
from fedjax_dp.cli.run_options import configured_by
from fedjax_dp.cli.tracking import TrackOptions
from fedjax_dp.options import about, of_class

if TYPE_CHECKING:
    from fedjax_dp.execution.distributed import ProcessGroup

DESCRIPTION = """Train a federated algorithm and say what privacy it gives.

usage: fedjax-dp run [CONFIG.toml] [OPTIONS] [--json]; --json prints one JSON object on stdout and nothing else;
--quiet prints the result alone, --verbose also traffic and time;
fedjax-dp run --resume DIR continues a run from its last checkpoint;
with --coordinator HOST:PORT --processes P --process I (or --coordinator auto under SLURM and Kubernetes) it is one of P
processes that share the run, each started with its own I; --timeout SECONDS is how long they wait for each other."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(DetailOptions, TrackOptions):
    """How a run is carried out, which decides nothing of it.

    Args:
        resume: a run folder, to go on with it from its last checkpoint
        coordinator: HOST:PORT of process 0, or auto: this is one of several processes that share the run
        processes: how many they are
        process: which of them this is, from 0
        timeout: seconds that they wait for each other
    """

    resume: Annotated[str | None, about("", metavar="DIR")] = None
    coordinator: Annotated[str | None, about("", metavar="HOST:PORT")] = None
    processes: Annotated[int | None, about("", default="as the cluster says")] = None
    process: Annotated[int | None, about("", default="as the cluster says")] = None
    timeout: int = 300

    def group(self) -> "ProcessGroup | None":
        """The processes that share the run.

        Raises: ConfigurationError.
        """
        if self.coordinator is not None:
            from fedjax_dp.execution.distributed import group_of  # loads JAX

            return group_of(self.coordinator, self.processes, self.process, self.timeout)
        for name in ("processes", "process"):
            if getattr(self, name) is not None:
                raise errors.refuse(name, getattr(self, name), "left out without --coordinator", "add --coordinator")
        return None


def run_command(arguments: list[str]) -> int:
    """Start or resume a run; what is wrong in the options of a single process is refused before JAX is loaded."""
    values, rest = known_flags(arguments, of_class(RunOptions))
    options = RunOptions(**values)
    detail = options.detail

    def overridden() -> dict[str, Any]:
        return configured_by("run", rest, DESCRIPTION, RunOptions)[0]

    early = overridden() if options.coordinator is None else None
    from fedjax_dp.cli.outcome import carry_out

    return carry_out(
        overridden if early is None else lambda: early,
        group=options.group(),
        resume=options.resume,
        track=options,
        detail=detail,
        as_json=options.json,
    )
