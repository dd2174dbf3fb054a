"""A sweep that lives in a folder: points are written as they finish, and a killed sweep goes on where it stood."""

import contextlib
import fcntl
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from fedjax_dp import errors, folders
from fedjax_dp.experiments import environment, parameters
from fedjax_dp.experiments.console import Screen
from fedjax_dp.sweeps.records import ABOUT, POINTS, SELECTION, Record, read_records
from fedjax_dp.sweeps.runner import Keep, Trained

SWEEP, LOCK, PARAMS = "sweep.toml", ".lock", "params"


def held(folder: pathlib.Path, about: dict[str, Any]) -> tuple[dict[str, Any], list[Record]]:
    """What a folder holds of this sweep; nothing, if it is new. Raises ConfigurationError for one of something else."""
    if not (folder / ABOUT).is_file():
        if folder.exists() and (not folder.is_dir() or not folders.holds_only(folder, (LOCK, SWEEP, ABOUT))):
            raise errors.refuse("out", folder, "a new or empty folder, or one of this sweep", "give another out")
        return about, []
    own, records = read_records(folder)
    if own.get("digest") != about["digest"]:
        raise errors.refuse(
            "out",
            f"{folder}, a folder of another sweep",
            "a new folder or one of this sweep",
            f"give another out; {folder / ABOUT} says what it holds",
        )
    return own, records


@contextlib.contextmanager
def opened(
    folder: pathlib.Path, about: dict[str, Any], text: str | None
) -> Iterator[tuple[dict[str, Any], list[Record]]]:
    """The folder of a sweep for one writer: a new one, or one of the same sweep. Yields what it holds.

    Raises ConfigurationError for a folder of something else, or one that cannot be written or is by another process.
    """
    held(folder, about)
    folders.require_writable("out", folder, "give another out")
    with _storing(folder), folders.making(folder):
        lock = (folder / LOCK).open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise errors.refuse(
                "out", f"{folder}, which is being written", "free", "wait for the other sweep"
            ) from None
        if not (folder / ABOUT).is_file():
            with _storing(folder):
                if text is not None:
                    folders.write_atomically(folder / SWEEP, text)
                folders.write_json(folder / ABOUT, about)  # last: what makes it a sweep folder
        _drop_torn_line(folder / POINTS)
        yield held(folder, about)


def _storing(folder: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    return folders.storing(folder, "make room; the same command goes on with the points that are not stored yet")


@contextlib.contextmanager
def keeper(folder: pathlib.Path) -> Iterator[Keep]:
    """Yields a function that adds a finished point and its parameters; both are on disk when the function returns."""
    with (folder / POINTS).open("a") as lines:

        def keep(record: Record, trained: Trained | None) -> None:
            with _storing(folder):
                if trained is not None:
                    (folder / PARAMS).mkdir(exist_ok=True)
                    about = {"values": json.dumps(record["values"]), "privacy": record["guarantee"]["statement"]}
                    parameters.write(params_of(folder, record), trained.params, trained.ledger, about)
                lines.write(json.dumps(record, allow_nan=False) + "\n")
                lines.flush()
                os.fsync(lines.fileno())

        yield keep


def params_of(folder: pathlib.Path, record: Record) -> pathlib.Path:
    """Where the parameters of a point are, if they are kept."""
    return folder / PARAMS / f"{record['point']}.safetensors"


def _drop_torn_line(path: pathlib.Path) -> None:
    """Cut off a last line that a killed writer has left unfinished, so that the next point starts a line of its own."""
    if not path.is_file():
        return
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        with path.open("r+b") as lines:
            lines.truncate(content.rfind(b"\n") + 1)


def about(name: str, digest: str, axes: Sequence[str], seeds: Sequence[int], points: int) -> dict[str, Any]:
    """What `sweep.json` says of a sweep; no other has its `digest`."""
    return {
        "name": name,
        "digest": digest,
        "axes": list(axes),
        "points": points,
        "seeds": list(seeds),
        "versions": environment.versions(),
        "device": environment.device(),
    }


def finish(folder: pathlib.Path, cost: dict[str, Any] | None, screen: Screen) -> None:
    """Tables, pictures, and what choosing among a sweep's points costs."""
    from fedjax_dp.figures import sweeps as figures
    from fedjax_dp.sweeps import table  # slow to import, like the next

    held, records = read_records(folder)
    no_privacy = "no point is private, so choosing has no epsilon"
    with _storing(folder):
        table.write(table.tidy(records, held["axes"]), folder)
        if any(record["status"] == "done" for record in records):
            figures.overview(records, held["axes"], None, held["name"], folder / "sweep.png")
        folders.write_json(folder / SELECTION, cost or {"epsilon": None, "short": no_privacy, "statement": no_privacy})


def choosing(folder: pathlib.Path) -> dict[str, Any] | None:
    """What choosing costs, once it is known."""
    path = folder / SELECTION
    return json.loads(path.read_text()) if path.is_file() else None
