"""The files by which the folder of a run is known as that of one run.

`run.json` names the run. Its ledger, Guarantee and result, every checkpoint and the ledger's copies in it have the same
name, so that no file of a run with more noise speaks for one with less.
"""

import pathlib

from fedjax_dp import errors, folders
from fedjax_dp.accounting.ledger import phases_in
from fedjax_dp.data.files import damage_error
from fedjax_dp.models.origins import LARGEST, LEDGER, phases_of

RUN = "run.json"  # makes a folder that of a run
CHECKPOINTS = "checkpoints"
STATE, FINAL = "state", "final"  # of a checkpoint: what goes on, and the model where it is not the state's
NAME = "run"  # of a checkpoint, and the field of the name
PUT_BACK = "put it back, or start a new run"


def run_of(path: pathlib.Path) -> pathlib.Path | None:
    """The folder of the run that a folder is, or whose arrays it holds: checkpoints/ROUND/state."""
    whole = path.resolve()
    of_checkpoint = whole.name in (STATE, FINAL) and whole.parent.parent.name == CHECKPOINTS
    places = (whole, whole.parents[2]) if of_checkpoint else (whole,)
    return next((place for place in places if (place / RUN).is_file()), None)


def newest_checkpoint(run: pathlib.Path) -> pathlib.Path | None:
    """The folder of the newest checkpoint; None before the first."""
    done = (place for place in (run / CHECKPOINTS).glob("*") if place.name.isdecimal())
    return max(done, key=lambda place: int(place.name), default=None)


def arrays_at(checkpoint: pathlib.Path) -> pathlib.Path:
    """Where the final model's parameters are in a checkpoint of a run."""
    return checkpoint / FINAL if (checkpoint / FINAL).is_dir() else checkpoint / STATE


def name_of(run: pathlib.Path) -> str | None:
    """The name of a run; None where its `run.json` has none."""
    manifest = folders.read_json(run / RUN)
    name = manifest.get(NAME) if isinstance(manifest, dict) else None
    return name if isinstance(name, str) else None


def require_one_name(run: pathlib.Path, checkpoint: pathlib.Path | None = None) -> None:
    """Refuse the folder of a run whose ledger or checkpoint (default: the newest) is not of this run and its rounds.

    The ledger of a run that went on to more rounds covers all its checkpoints; that of a backup does not.
    """
    checkpoint = checkpoint or newest_checkpoint(run)  # before the ledger is read: the run may go on meanwhile
    name, files = name_of(run), [run / LEDGER]
    if name is None:
        raise errors.refuse("run folder", f"{run}, whose {RUN} names no run", "written by this version", "run it anew")
    if checkpoint is not None:
        files += [file for part in (STATE, FINAL) if (file := checkpoint / part / LEDGER).exists()]
        named = checkpoint / NAME / "metadata"
        if not named.is_file() or folders.read_json(named) != {NAME: name}:
            raise refuse_foreign(run, f"{CHECKPOINTS}/{checkpoint.name}")
    for file in files:
        phase = phases_of(read_phases(file), str(file))[-1]
        if phase.get(NAME) != name or (checkpoint is not None and phase["rounds"] < int(checkpoint.name)):
            raise refuse_foreign(run, file.relative_to(run).as_posix())


def refuse_foreign(run: pathlib.Path, file: str) -> errors.ConfigurationError:
    """The error for a file of another run."""
    return errors.refuse("run folder", f"{run}, of two runs: {file} is not that of {RUN}", "of one run", PUT_BACK)


def read_phases(file: pathlib.Path) -> str:
    """The lines of phases in a ledger's file.

    Raises: ConfigurationError for what cannot be read, and for a file without phases.
    """
    try:
        with file.open("rb") as opened:
            text = phases_in(opened.read(LARGEST + 1).decode())  # lines of rounds may be many more
    except (OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise errors.refuse(str(file), "something else", "the ledger of a run", reason) from None
    if len(text) > LARGEST:
        raise damage_error(file, f"{file.stat().st_size:,} bytes", f"a ledger of at most {LARGEST:,}")
    if not text.strip():
        raise errors.refuse(str(file), "a file without phases", "the ledger of a run", PUT_BACK)
    return text
