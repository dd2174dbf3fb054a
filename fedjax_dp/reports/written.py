"""A report as a file."""

import os
import pathlib

from fedjax_dp import errors, folders
from fedjax_dp.reports.kinds import read_report
from fedjax_dp.reports.page import page

SUFFIX = ".html"


def report(path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Write the report of a run, sweep, reproduction or audit to one HTML file that needs nothing else; its path.

    path  the folder of a run, a sweep or a reproduction; or a JSON file: of an audit, a run or a reproduction
    out   a new .html file (default: beside `path`, with its name)
    Raises: ConfigurationError for a path that holds nothing known, and for a file that exists or cannot be written.
    """
    source = pathlib.Path(path)
    target = target_of(source, None if out is None else pathlib.Path(out))
    made = page(read_report(source))
    with folders.storing(target, "make room, or give another --out"):
        folders.write_atomically(target, made)
    return target


def target_of(source: pathlib.Path, out: pathlib.Path | None) -> pathlib.Path:
    """Where a report goes: refused, before anything is read, where it could not be written."""
    target = _beside(source) if out is None else out
    name = folders.shown(str(target))
    if target.suffix.lower() != SUFFIX:
        raise errors.refuse("out", name, f"a file name that ends in {SUFFIX}", "rename it")
    if target.exists() or target.is_symlink():
        raise errors.refuse("out", name, "a new file", "delete it, or give another --out")
    try:
        os.lstat(target.with_name(target.name + folders.DRAFT))
    except FileNotFoundError:  # as it should be
        pass
    except OSError as error:
        raise errors.refuse(
            "out", name, "a name that a file can have", f"choose another ({folders.reason(error)})"
        ) from None
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise errors.refuse("out", name, "in a folder that exists and can be written to", "choose another")
    return target


def _beside(source: pathlib.Path) -> pathlib.Path:
    """`runs/mine.html` for the folder runs/mine, `audit.html` for audit.json."""
    whole = source.resolve() if source.name in ("", ".", "..") else source
    stem = whole.stem if whole.suffix == ".json" else whole.name
    return whole.parent / f"{stem or 'report'}{SUFFIX}"
