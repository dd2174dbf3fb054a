"""The files of a sweep folder: `sweep.json` describes the plan, `points.jsonl` has one object per finished point."""

import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_dp import errors, folders
from fedjax_dp.accounting.guarantee import DeploymentSummary, EarlierPhase
from fedjax_dp.sweeps.settings import Record as Record
from fedjax_dp.sweeps.settings import metric_of, proved_epsilon
from fedjax_dp.tasks.measures import PUBLIC_TESTS, Measure, private_records

POINTS, SELECTION, PARAMS = "points.jsonl", "selection.json", "params"
SWEEP = "sweep.toml"  # the sweep as it was written
RENEWAL = "run the sweep in another folder"
SWEEP_FOLDER = folders.FolderKind(
    name="sweep",
    manifest="sweep.json",
    fields={"axes": list, "digest": str},
    beginning=(SWEEP,),
    format=("format", 1),
    remedy="fedjax-dp sweep writes one",
    renewal=RENEWAL,
)
STATUSES = ("done", "stopped", "diverged", "failed")  # stopped: at a rung of successive halving
ENDED = ("done", "diverged")
PARTS: dict[str, type | tuple[type, ...]] = {
    "point": str,
    "index": int,
    "values": dict,
    "config": dict,
    "status": str,
    "reason": (str, type(None)),
    "task": dict,
    "history": list,
    "guarantee": dict,
    "seconds": (int, float),
}


def seal_cost(cost: Mapping[str, Any], manifest: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Any]:
    """The cost of choosing with a checksum of itself, of its sweep and of the points that it covers."""
    plain = {name: value for name, value in cost.items() if name != "seal"}
    sealed = {"cost": plain, "sweep": manifest["digest"], "points": sorted(record["point"] for record in records)}
    return plain | {"seal": folders.checksum_of(sealed)}


def read_selection_cost(
    folder: pathlib.Path, records: Sequence[Record], measure: Measure | None = None
) -> dict[str, Any] | None:
    """The cost of choosing by a metric, the main one by default; None if it is not known yet.

    Raises: ConfigurationError for a file that the sweep did not write for these points.
    """
    path = folder / SELECTION
    if not path.is_file():
        return None
    cost = folders.read_json(path)
    if not isinstance(cost, dict) or cost != seal_cost(cost, SWEEP_FOLDER.read(folder), records):
        got = "one of other points, or one that was changed since"
        raise errors.refuse(str(path), got, "as the sweep wrote it", "remove it and run the sweep again")
    return cost_by_metric(cost, records, measure)


def cost_by_metric(
    cost: Mapping[str, Any], records: Sequence[Record], measure: Measure | None = None
) -> dict[str, Any]:
    """The cost of choosing by a metric; it has no epsilon for a metric of private records."""
    held = any(record.get("clients") is not None for record in records)
    what = private_records(held, measure or metric_of(records, None))
    private = any(math.isfinite(proved_epsilon(record)) for record in records)
    return dict(cost) if what is None or not private else without_epsilon(what)


def cost_statement(cost: Mapping[str, Any] | None, folder: pathlib.Path | None) -> str | None:
    """The cost of choosing in one line, with the file that says more if there is one."""
    if cost is None:
        return None
    return cost["short"] if folder is None else f"{cost['short']}; {folders.quote_path(folder)}/{SELECTION} says more"


def is_configuration(config: Mapping[str, Any]) -> bool:
    """Whether `fedjax-dp run` takes it. A sweep made in Python records only rounds and budget, and no seed."""
    return "seed" in config


def without_epsilon(what: str, remedy: str = PUBLIC_TESTS) -> dict[str, Any]:
    """The cost of a choice by private records, which has no epsilon, in the form of `cost_of_choosing`."""
    text = f"no epsilon is stated for choosing among these runs, as they are compared by {what}; {remedy}"
    return {"epsilon": None, "short": text, "statement": text}


def read_records(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], list[Record]]:
    """The manifest of a sweep's folder, and the finished points in the order of the plan.

    An incomplete last line, as a killed writer leaves it, is ignored. Of several lines with the same id the first
    finished one counts, else the last. Any other damage is refused.
    """
    folder = pathlib.Path(folder)
    manifest = SWEEP_FOLDER.read(folder)
    records: dict[str, Record] = {}
    if (folder / POINTS).is_file():
        with (folder / POINTS).open("rb") as lines:
            for number, line in enumerate(lines, 1):
                record = _record(line, f"line {number} of {folder / POINTS}")
                if record is not None and records.get(record["point"], {}).get("status") not in ENDED:
                    records[record["point"]] = record
    return manifest, sorted(records.values(), key=lambda record: record["index"])


def _record(line: bytes, where: str) -> Record | None:
    """The point on a line; None for an incomplete line."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        raise _damage(where, "text that is not JSON") from None
    if not isinstance(record, dict):
        raise _damage(where, type(record).__name__)
    for name, kind in PARTS.items():
        if not isinstance(record.get(name), kind):
            raise _damage(where, f"{name} {record[name]!r:.40}" if name in record else f"no {name}")
    if "seed" not in record["values"]:
        raise _damage(where, "values without a seed")
    if record["status"] not in STATUSES:
        raise _damage(where, f"status {record['status']!r}")
    _require_known_parts(record["guarantee"], where)
    return record


def _require_known_parts(guarantee: Record, where: str) -> None:
    """Refuse a Guarantee whose phases or deployment another version wrote."""
    deployment = guarantee.get("deployment")
    parts: list[tuple[Any, Any]] = [(DeploymentSummary, deployment)] if deployment else []
    parts += [(EarlierPhase, phase) for phase in guarantee.get("phases") or ()]
    for kind, part in parts:
        if not isinstance(part, dict) or set(part) != set(kind._fields):
            raise errors.refuse(where, "a Guarantee of another version", "as this version writes it", RENEWAL)


def _damage(where: str, got: str) -> errors.ConfigurationError:
    return errors.refuse(where, got, "a finished point", "delete the line and run the sweep again to fill the gap")
