"""A sweep in a folder: points are written as they finish, and a killed sweep continues where it stopped.

A sweep may grow. A point is identified by everything that decides its run, so stored points take their place in the new
plan. Every point that was seen stays in the plan, so that the cost of choosing covers it.
"""

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedjax_dp import errors, folders, hooks
from fedjax_dp.experiments import environment, parameters
from fedjax_dp.experiments.console import Screen
from fedjax_dp.sweeps.axes import Values, in_words
from fedjax_dp.sweeps.records import PARAMS, POINTS, SELECTION, SWEEP, SWEEP_FOLDER, Record, read_records, seal_cost
from fedjax_dp.sweeps.runner import Keep, Trained

Plan = Mapping[str, tuple[int, Values]]  # by the id of a point: its index and its values
Manifest = dict[str, Any]


def read_own(folder: pathlib.Path, manifest: Manifest, plan: Plan) -> tuple[Manifest, list[Record]]:
    """The manifest of a folder and its points, indexed as in the plan. A new folder gets `manifest` and has no points.

    Raises: ConfigurationError for another kind of folder, and for a sweep with points that are not in the plan.
    """
    if not SWEEP_FOLDER.is_at(folder):
        SWEEP_FOLDER.require_new("out", folder, "give another out", ", or one of this sweep")
        return manifest, []
    own, records = read_records(folder)
    grows = own.get("digest") != manifest["digest"]
    others = [record for record in records if record["point"] not in plan]
    if others or (grows and not records):
        few = [
            f"{len(others):,} points are not of this one, or their files, code or data have changed, such as "
            f"{in_words(one['values'])}"
            for one in others[:1]
        ]
        raise errors.refuse(
            "out",
            f"{folder}, a folder of another sweep",
            "a new folder, or one whose points are all of this sweep",
            "; ".join([*few, f"add to what {folder / SWEEP_FOLDER.manifest} has, or give another out"]),
        )
    if grows and (own.get("halving") or manifest.get("halving")):
        raise errors.refuse(
            "out",
            f"{folder}, a folder of a sweep with {_rungs(own)}, and not with {_rungs(manifest)}",
            "a new folder, or one of the same sweep",
            "rungs compare all points, so such a sweep does not grow; give another out",
        )
    placed = [record | dict(zip(("index", "values"), plan[record["point"]])) for record in records]
    if grows:
        sizes = [*own.get("grown", []), len(records)]
        own = manifest | {"name": own["name"], "versions": own["versions"], "device": own["device"], "grown": sizes}
    return own, sorted(placed, key=lambda record: record["index"])


@contextlib.contextmanager
def lock(
    folder: pathlib.Path, manifest: Manifest, plan: Plan, text: str | None, screen: Screen
) -> Iterator[tuple[folders.FolderLock, Manifest, list[Record]]]:
    """Lock a new folder, or one of this sweep, which may have grown. Yields its lock, manifest and points.

    Raises ConfigurationError for another kind of folder, one that cannot be written, or one locked by another process.
    """
    read_own(folder, manifest, plan)  # refuses another kind of folder before there is a lock in it
    with folders.lock_folder("out", folder, say=screen.say) as held:
        _drop_torn_line(folder / POINTS)
        own, records = read_own(folder, manifest, plan)
        if not SWEEP_FOLDER.is_at(folder) or SWEEP_FOLDER.read(folder) != own:
            with _storage_errors(folder):
                _begin(folder, own, records, text)
        yield held, own, records


def _begin(folder: pathlib.Path, manifest: Manifest, records: Sequence[Record], text: str | None) -> None:
    """Write the files of a sweep that is new or has grown. After an interruption the next call writes them again."""
    (folder / SELECTION).unlink(missing_ok=True)  # it covers fewer points
    if records:
        folders.write_atomically(folder / POINTS, "".join(map(_line, records)))
    if text is not None:
        folders.write_atomically(folder / SWEEP, text)
    SWEEP_FOLDER.write(folder, manifest)


def _line(record: Record) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


def _storage_errors(folder: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    return folders.storage_errors(folder, "make room; the same command continues with the points that are missing")


def open_points(folder: pathlib.Path, held: folders.FolderLock) -> Keep:
    """A function that adds a finished point and its parameters; both are on disk when it returns."""

    def keep(record: Record, trained: Trained | None) -> None:
        held.require_own()
        with _storage_errors(folder):
            if trained is not None:
                (folder / PARAMS).mkdir(exist_ok=True)
                words = {"values": json.dumps(record["values"]), "privacy": record["guarantee"]["statement"]}
                parameters.write(params_of(folder, record), trained.params, trained.ledger, words)
            with (folder / POINTS).open("a") as lines:  # closed here: what a full disk did not take is tried once more
                lines.write(_line(record))
                lines.flush()
                os.fsync(lines.fileno())

    return keep


def params_of(folder: pathlib.Path, record: Record) -> pathlib.Path:
    """The file of a point's parameters, which may not exist."""
    return folder / PARAMS / f"{record['point']}.safetensors"


def _drop_torn_line(path: pathlib.Path) -> None:
    """Cut off a last line that a killed writer left unfinished, so that the next point starts on a new line."""
    if not path.is_file():
        return
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        with path.open("r+b") as lines:
            lines.truncate(content.rfind(b"\n") + 1)


def _rungs(manifest: Manifest) -> str:
    eta = manifest.get("halving")
    return f"halving {eta} of {manifest['points']:,} points" if eta else "all points to their end"


def manifest_of(
    name: str, digest: str, axes: Sequence[str], seeds: Sequence[int], points: int, halving: int | None = None
) -> Manifest:
    """The manifest of a sweep, whose `digest` identifies it.

    A sweep that has grown also has `grown`: the number of points before each time.
    """
    return {
        "name": name,
        "digest": digest,
        "axes": list(axes),
        "points": points,
        "seeds": list(seeds),
        **({} if halving is None else {"halving": halving}),
        "versions": environment.versions(),
        "device": environment.device(),
    }


def recount(folder: pathlib.Path, points: int) -> None:
    """Update the number of points of a sweep that was not known at its start."""
    manifest = SWEEP_FOLDER.read(folder)
    if manifest["points"] != points:
        with _storage_errors(folder):
            SWEEP_FOLDER.write(folder, manifest | {"points": points})


def finish(folder: pathlib.Path, cost: dict[str, Any] | None) -> None:
    """Write the tables, the picture and the cost of choosing of a sweep."""
    from fedjax_dp.sweeps import table  # slow to import

    manifest, records = read_records(folder)
    no_privacy = "no point is private, so choosing has no epsilon"
    with _storage_errors(folder):
        table.write(table.tidy(records, manifest["axes"]), folder)
        if any(record["status"] == "done" for record in records):
            hooks.plot_sweep(records, manifest["axes"], manifest["name"], folder / "sweep.png")
        cost = cost or {"epsilon": None, "short": no_privacy, "statement": no_privacy}
        folders.write_json(folder / SELECTION, seal_cost(cost, manifest, records))
