"""`fedjax-dp export`."""

import dataclasses
from typing import Annotated

from fedjax_dp import errors
from fedjax_dp.options import about
from fedjax_dp.tools.cli.options import parse

DESCRIPTION = """Write the parameters of a run to a file that other programs read.

usage: fedjax-dp export [--merged] RUN FILE.safetensors|FILE.npz
       fedjax-dp export --format peft [--merged] RUN FOLDER

RUN is the folder of a run; its newest checkpoint is used. Parameters are named by their paths in the model, such as
Dense_0/kernel. A .safetensors file also contains configuration, rounds and Guarantee. If a part of the model is frozen,
only the trained parameters are written; --merged writes all, with low-rank terms added.

Every file contains the run's ledger, so that a run that starts from it knows what it was trained on. The ledger has no
checksum of the records, with which somebody who has all of them but one could find the missing one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What is written, and where.

    Args:
        folder: folder of a run
        file: file to write, .safetensors or .npz
        merged: write all parameters of a partly frozen model, with low-rank terms added
        format: peft: a folder with the adapter of a pretrained model, for PEFT; with --merged one of the whole model,
            under the names of its base, for transformers
    """

    folder: Annotated[str | None, about("", positional=True)] = None
    file: Annotated[str | None, about("", positional=True)] = None
    merged: Annotated[bool, about("", switch=True)] = False
    format: Annotated[str | None, about("", choices=("peft",))] = None


def export_command(arguments: list[str]) -> int:
    options = parse("export", arguments, ExportOptions, DESCRIPTION)
    if options.folder is None or options.file is None:
        got = " ".join(arguments) or "nothing"
        raise errors.refuse(
            "export", got, "followed by a run folder and a new file", "export runs/x params.safetensors"
        )
    from fedjax_dp.experiments.saved_run import open_run  # loads JAX

    run = open_run(options.folder)
    where = run.export(options.file, merged=options.merged, format=options.format)
    print(f"parameters after round {run.round} of {options.folder} are in {where}")
    return 0
