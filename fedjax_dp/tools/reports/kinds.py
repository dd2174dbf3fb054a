"""Find what a path holds, and make its report."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

from fedjax_dp import errors, folders
from fedjax_dp.tools.reports import audits, reproductions, runs, sweeps
from fedjax_dp.tools.reports.contents import Report

WANTED = "a run, a sweep, a reproduction or an audit"
# Kinds of folders, known by the file FOLDER in them, and of JSON files, known by the KEYS that their object has.
FOLDERS = (runs, sweeps, reproductions)
FILES = (runs, audits, reproductions)
REMEDY = "give the folder of a run, sweep or reproduction, or the JSON of fedjax-dp audit --json"


def read_report(path: pathlib.Path) -> Report:
    """The report of what a path holds.

    Raises: ConfigurationError for a path that holds nothing known, or something damaged.
    """
    name = folders.printable(str(path))
    if not path.exists():
        raise errors.refuse("path", name, f"{WANTED} that exists", folders.where_looked(path))
    if path.is_dir():
        kind: Any = next((kind for kind in FOLDERS if (path / kind.FOLDER).is_file()), None)
        if kind is None:
            raise errors.refuse("path", name, f"the folder of {WANTED}", REMEDY)
        return _whole(name, lambda: kind.of_folder(path))
    content = folders.read_json(path)
    keys = content.keys() if isinstance(content, dict) else set()
    kind = next((kind for kind in FILES if keys >= kind.KEYS), None)
    if kind is None:
        raise errors.refuse("path", name, f"the JSON of {WANTED}", REMEDY)
    return _whole(name, lambda: kind.of_content(content))


def _whole(name: str, read: Callable[[], Report]) -> Report:
    """Refuse files that were changed after they were written: a report can read all others."""
    try:
        report = read()
        json.dumps(dict(report.data), allow_nan=False)
        return report
    except errors.ConfigurationError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        why = f"{type(error).__name__} {error}"[:120]
        raise errors.refuse(name, f"something else ({why})", "as fedjax-dp wrote it", "write it again") from None
