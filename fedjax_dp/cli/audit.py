"""`fedjax-dp audit`."""

import dataclasses
import shlex
from typing import Annotated, Literal

from fedjax_dp.cli.options import OUTPUT, DetailOptions, PlotOption, known_flags, picture_of
from fedjax_dp.cli.run_options import configured_by
from fedjax_dp.options import about, of_class

DESCRIPTION = """Put the epsilon of a run to the test: attack it, and prove a lower bound.

usage: fedjax-dp audit [CONFIG.toml] [OPTIONS] [--json]; options are those of fedjax-dp run, and after them those of the
audit. --json prints one JSON object on stdout and nothing else; --quiet prints the result alone, --verbose also how
often the attack erred. Exit code 1 says that what is stated is violated: with
--significance 0.05 at most one sound run in twenty is called so."""
IDLE = (
    "evaluate_every",
    "train_metrics",
    "target",
    "ap",
    "checkpoint_every",
    "chunk_size",
    "devices",
    "records",
    "deterministic",
    "out",
)


@dataclasses.dataclass(frozen=True)
class AuditOptions(DetailOptions, PlotOption):
    """How to attack.

    Args:
        trials: runs in all; some tenths of them only choose the attack
        one_run: one run with so many canaries instead of many runs with one; proves less
        canary: gradient: the worst gradients in a model made for them; label-flip, blank or mislabelled: a record of
            your data in your model
        client: whom to attack
        record: of that client, where single records are hidden
        significance: chance of a wrong VIOLATED, at most
        claim: an epsilon to test instead of the one stated
        parameters: of the model that the gradient canary is run in
        lanes: runs at once on a device
    """

    trials: int = 10_000
    one_run: Annotated[int | None, about("", default="many runs")] = None
    canary: Literal["gradient", "label-flip", "blank", "mislabelled"] = "gradient"
    client: Annotated[int | None, about("", default="the one with the largest epsilon")] = None
    record: int = 0
    significance: float = 0.05
    claim: float | None = None
    parameters: int = 20
    lanes: Annotated[int | None, about("", default="what fits into its memory, or cache")] = None


def audit_command(arguments: list[str]) -> int:
    """Run an audit and print its result; 1 where what is stated is violated."""
    overrides, options, flagged = configured_by("audit", arguments, DESCRIPTION, AuditOptions)
    detail, look = options.detail, picture_of(options)
    from fedjax_dp.cli.audit_outcome import carry_out

    idle = [f"--{name.replace('_', '-')}" for name in IDLE if name in flagged]
    return carry_out(overrides, options, detail, look, idle, _again(arguments))


def _again(arguments: list[str]) -> str:
    """The command that repeats an audit, as it can be pasted; how its result was shown is left out."""
    shown = {name: option for name, option in of_class(AuditOptions).items() if name in OUTPUT}
    return shlex.join(["fedjax-dp", "audit", *known_flags(arguments, shown)[1]])
