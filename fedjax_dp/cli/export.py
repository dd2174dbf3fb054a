"""`fedjax-dp export`."""

from fedjax_dp import errors
from fedjax_dp.cli.options import take_flag, take_path
from fedjax_dp.cli.wrapping import wrapped

DESCRIPTION = """Write the parameters of a run to a file that other programs read.

usage: fedjax-dp export [--merged] [--no-hashes] RUN FILE.safetensors|FILE.npz

RUN is the folder of a run; its newest checkpoint is taken, however many devices wrote it. Parameters are named by their
paths in the model, such as Dense_0/kernel. A .safetensors file also holds configuration, rounds and Guarantee.
Of a model of which a part is frozen they are those that were trained; --merged writes all, low-rank terms added.

Every file carries the run's ledger, so that a run that begins with it knows what it was trained on. It holds hashes of
some records, by which whoever has one of these can tell that it was used; --no-hashes leaves them out, and a run that
begins with the file then has no epsilon until somebody says that it holds nothing of its clients."""


def export_command(arguments: list[str]) -> int:
    """Export a run's parameters, and say where they are."""
    rest = list(arguments)
    if {"-h", "--help"} & set(rest):
        print(wrapped(DESCRIPTION))
        return 0
    merged, rest = take_flag(rest, "--merged")
    without, rest = take_flag(rest, "--no-hashes")
    folder, file = take_path(rest), take_path(rest)
    if not folder or not file or rest:
        got = " ".join(arguments) or "nothing"
        raise errors.refuse(
            "export", got, "followed by a run folder and a new file", "export runs/x params.safetensors"
        )
    from fedjax_dp.experiments.opened import open_run  # loads JAX

    run = open_run(folder)
    where = run.export(file, merged=merged, hashes=not without)
    print(f"parameters after round {run.round} of {folder} are in {where}")
    return 0
