"""What a path holds, and the report of it."""

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedjax_dp import errors, folders
from fedjax_dp.experiments.console import Screen
from fedjax_dp.reports import audits, reproductions, runs, shared, sweeps
from fedjax_dp.reports.contents import Report, Rows

WANTED = "a run, a sweep, a reproduction or an audit"
REMEDY = "give the folder of a run, sweep or reproduction, or the JSON of fedjax-dp audit --json"


class Folder(NamedTuple):
    """A kind of folder, known by a file in it."""

    marker: str
    report: Callable[[pathlib.Path], Report]


class File(NamedTuple):
    """A kind of JSON file, known by what its object has."""

    keys: frozenset[str]
    report: Callable[[Mapping[str, Any]], Report]


def read_report(path: pathlib.Path, spending: runs.Spending | None = None) -> Report:
    """The report of what a path holds.

    spending  how epsilon by round of a run is found; unless given, by its configuration, which loads its data
    Raises:   ConfigurationError for a path that holds nothing known, or something damaged.
    """
    told = folders.shown(str(path))
    if not path.exists():
        raise errors.refuse("path", told, f"{WANTED} that exists", f"it is looked for in {path.absolute().parent}")
    if path.is_dir():
        kinds = _folders(spending or found_spending)
        kind = next((kind for kind in kinds if (path / kind.marker).is_file()), None)
        if kind is None:
            raise errors.refuse("path", told, f"the folder of {WANTED}", REMEDY)
        return _whole(told, lambda: kind.report(path))
    content = shared.read(path)
    keys = content.keys() if isinstance(content, dict) else set()
    file = next((file for file in FILES if keys >= file.keys), None)
    if file is None:
        raise errors.refuse("path", told, f"the JSON of {WANTED}", REMEDY)
    return _whole(told, lambda: file.report(content))


def _folders(spending: runs.Spending) -> tuple[Folder, ...]:
    return (
        Folder(runs.FOLDER, lambda path: runs.of_folder(path, spending)),
        Folder(sweeps.FOLDER, sweeps.of_folder),
        Folder(reproductions.FOLDER, reproductions.of_folder),
    )


FILES = (
    File(runs.KEYS, runs.of_content),
    File(audits.KEYS, audits.of_content),
    File(reproductions.KEYS, reproductions.of_content),
)


def found_spending(path: pathlib.Path, about: Mapping[str, Any], epsilon: float) -> Rows:
    """Epsilon by round from the configuration, with progress on stderr."""
    from fedjax_dp.reports.spending import spent  # loads JAX

    return spent(path, about, epsilon, Screen())


def _whole(told: str, read: Callable[[], Report]) -> Report:
    """Refuse files whose content was changed since: they are the only thing that a report cannot understand."""
    try:
        report = read()
        json.dumps(dict(report.data), allow_nan=False)
        return report
    except errors.ConfigurationError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        why = f"{type(error).__name__} {error}"[:120]
        raise errors.refuse(told, f"something else ({why})", "as fedjax-dp wrote it", "write it anew") from None
