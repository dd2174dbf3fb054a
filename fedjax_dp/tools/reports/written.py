"""Write reports to files."""

import os
import pathlib
from collections.abc import Mapping

from fedjax_dp import errors, folders
from fedjax_dp.tools.reports.kinds import read_report
from fedjax_dp.tools.reports.page import MARK, page
from fedjax_dp.tools.reports.statement import markdown, statement_of

SUFFIX = ".html"
HEAD = 500  # first bytes of a file, which hold `MARK`


def report(path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Write the report of a run, sweep, reproduction or audit to one self-contained HTML file, and return its path.

    path  the folder of a run, a sweep or a reproduction; or the JSON file of an audit, a run or a reproduction
    out   an .html file (default: next to `path`, with its name); it may replace an earlier report
    Raises: ConfigurationError if `path` holds nothing known, or `out` is another file or cannot be written.
    """
    source = pathlib.Path(path)
    target = target_of(_beside(source) if out is None else pathlib.Path(out))
    _write({target: page(read_report(source))})
    return target


def report_statement(
    path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None
) -> tuple[pathlib.Path, pathlib.Path]:
    """Write the privacy statement of a run for data protection officers as HTML and as Markdown; return both paths.

    path  the folder of a run
    out   the .html file; the .md file goes next to it (default: next to the folder, with "-statement" in the name)
    Raises: ConfigurationError as `report` does.
    """
    source = pathlib.Path(path)
    beside = _beside(source)
    target = target_of(beside.with_stem(f"{beside.stem}-statement") if out is None else pathlib.Path(out))
    text = _free(target.with_suffix(".md"))
    statement = statement_of(source)
    _write({target: page(statement), text: f"<!-- {MARK} -->\n\n{markdown(statement)}"})
    return target, text


def _write(files: Mapping[pathlib.Path, str]) -> None:
    for target, content in files.items():
        with folders.storage_errors(target, "make room, or give another --out"):
            folders.write_atomically(target, content)


def target_of(target: pathlib.Path) -> pathlib.Path:
    """The file for a report; refuses, before anything is read, a path that cannot be written."""
    name = folders.printable(str(target))
    if target.suffix.lower() != SUFFIX:
        raise errors.refuse("out", name, f"a file name that ends in {SUFFIX}", "rename it")
    _free(target)
    try:
        os.lstat(target.with_name(target.name + folders.DRAFT))
    except FileNotFoundError:  # a name that a draft can have
        pass
    except OSError as error:
        raise errors.refuse("out", name, "a valid file name", f"choose another ({folders.reason(error)})") from None
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise errors.refuse("out", name, "in a folder that exists and can be written to", "choose another")
    return target


def _free(target: pathlib.Path) -> pathlib.Path:
    """A path that does not exist, or that holds an earlier report."""
    ours = target.is_file() and not target.is_symlink() and MARK.encode() in _head(target)
    if not ours and (target.exists() or target.is_symlink()):
        wanted = "a new file or an earlier report"
        raise errors.refuse("out", folders.printable(str(target)), wanted, "delete it, or give another --out")
    return target


def _head(path: pathlib.Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(HEAD)
    except OSError:  # an unreadable file is not known to be a report
        return b""


def _beside(source: pathlib.Path) -> pathlib.Path:
    """`runs/mine.html` for the folder runs/mine, `audit.html` for audit.json."""
    whole = source.resolve() if source.name in ("", ".", "..") else source
    stem = whole.stem if whole.suffix == ".json" else whole.name
    return whole.parent / f"{stem or 'report'}{SUFFIX}"
