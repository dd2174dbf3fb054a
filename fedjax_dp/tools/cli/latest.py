"""The folder that a command is about where none is named: the last run or sweep under runs/ and sweeps/."""

import pathlib

from fedjax_dp import errors
from fedjax_dp.experiments.console import Screen

RUNS, SWEEPS = "runs/*/run.json", "sweeps/*/sweep.json"  # files that make a folder one of them


def latest(*kinds: str) -> pathlib.Path | None:
    """The folder, of `RUNS`, `SWEEPS` or both, that was begun last; None where there is none. Says which it is."""
    files = [file for kind in kinds for file in pathlib.Path().glob(kind)]
    if not files:
        return None
    folder = max(files, key=lambda file: (file.stat().st_mtime_ns, file)).parent
    Screen().say(f"no folder was named; using the last one: {folder}")
    return folder


def named_or_latest(what: str, named: str | None, wanted: str, example: str, *kinds: str) -> pathlib.Path:
    """The path that is named, or the last folder; refuses to go on where neither is there."""
    path = latest(*kinds) if named is None else pathlib.Path(named)
    if path is None:
        raise errors.refuse(what, "nothing", wanted, f"such as {example}; there is none here to take the last of")
    return path
