"""Folders that are written to: whether one could be is found before anything is computed for it, by writing to it.

A folder that a failure leaves without content is gone again, and so are the parents that were made for it. Where the
machine fails later (a full disk, a quota, a file system that became read-only), what was stored before stays.
"""

import contextlib
import errno
import itertools
import json
import os
import pathlib
import shlex
import shutil
import tempfile
import tomllib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from fedjax_dp import errors

PROBE = 1 << 16  # bytes that must find room: what a folder begins with
DRAFT = ".part"  # ends the name of a file until it is whole
MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)
FULL = ("No space left on device", "Disk quota exceeded", "Read-only file system", "Input/output error")


@contextlib.contextmanager
def making(folder: pathlib.Path) -> Iterator[None]:
    """A folder that is there for the block; if the block fails, what it added to a new or empty one is gone again."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    empty = bool(made) or not any(folder.iterdir())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        if empty:
            _clear(folder)
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def require_writable(what: str, folder: pathlib.Path, remedy: str = "") -> None:
    """Refuse a folder, there or not, that cannot be written to; nothing is left of the attempt.

    Raises: ConfigurationError, with the reason that the file system gives.
    """
    try:
        with contextlib.suppress(_Tried), making(folder):
            with tempfile.TemporaryFile(dir=folder) as probe:  # without a name: nothing stays if the process is killed
                probe.write(bytes(PROBE))
                probe.flush()
            raise _Tried
    except (OSError, ValueError) as error:  # a name may hold what no file name can
        words = f"{remedy} ({reason(error)})" if remedy else reason(error)
        raise errors.refuse(what, shown(str(folder)), "a folder that can be written", words) from None


def holds_only(folder: pathlib.Path, names: Collection[str]) -> bool:
    """Whether a folder has nothing but files of these names, whole or drafts: what a killed beginning leaves."""
    return all(path.name.removesuffix(DRAFT) in names for path in folder.iterdir())


def require_new(what: str, folder: pathlib.Path, remedy: str, beginning: Collection[str] = ()) -> None:
    """Refuse a folder that holds something beside files of a `beginning`, is none, or cannot be written to."""
    try:
        held = folder.is_symlink() if not folder.is_dir() else not holds_only(folder, beginning)
        held = held or (folder.exists() and not folder.is_dir())
    except (OSError, ValueError):  # refused below
        held = False
    if held:
        dangles = folder.is_symlink() and not folder.exists()
        got = f"{folder}, a link to nothing" if dangles else str(folder)
        raise errors.refuse(what, got, "a new or empty folder", remedy)
    require_writable(what, folder)


@contextlib.contextmanager
def storing(where: pathlib.Path | str, remedy: str = "") -> Iterator[None]:
    """Tell of a machine that fails to store what the block makes; `remedy`: how to go on.

    Raises: errors.StorageError for what the file system refuses, by whatever library.
    """
    try:
        yield
    except errors.ConfigurationError:
        raise
    except Exception as error:
        if (isinstance(error, OSError) and error.errno is not None) or any(words in str(error) for words in FULL):
            raise errors.StorageError(str(where), reason(error), remedy) from error
        raise


@contextlib.contextmanager
def drafting(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Where to write a file so that a reader, or a crash, sees the old content or the new, never a part."""
    draft = path.with_name(path.name + DRAFT)
    try:
        yield draft
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Write a file of text, see `drafting`."""
    with drafting(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_new(what: str, path: pathlib.Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises: ConfigurationError for one that is, and for a folder that cannot be written.
    """
    if path.exists():
        raise errors.refuse(what, shown(str(path)), "a new file", "give another name, or remove it")
    require_writable("the folder of the file", path.parent, "give another name")
    with storing(path.parent, "make room, or write elsewhere"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)


def write_json(path: pathlib.Path, content: Any) -> None:
    write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_json(path: pathlib.Path) -> Any:
    """The content of a JSON file.

    Raises: ConfigurationError for what is none, also for NaN and infinity, which JSON has no word for.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    try:
        return json.loads(path.read_bytes(), parse_constant=refuse)
    except (OSError, ValueError, RecursionError) as error:
        raise errors.refuse(str(path), "something else", "readable JSON", " ".join(str(error).split())[:160]) from None


def reason(error: BaseException) -> str:
    """What the file system says, without names and numbers."""
    known = next((words for words in FULL if words in str(error)), None)
    text = known or (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text[:1].lower() + " ".join(text.split())[1:]


def shown(path: str) -> str:
    """A path in a message: on one line, and not endless."""
    words = path if path.isprintable() else repr(path)
    return words if len(words) < 200 else f"{words[:60]}... of {len(words)} letters"


def where_looked(path: pathlib.Path) -> str:
    """The remedy for a path that is not there: one beside it that was probably meant, else where it was looked for."""
    beside = [other.name for other in path.parent.glob(f"*{path.suffix}")] if path.suffix else []
    near = errors.nearest(path.name, beside)
    return f"did you mean {path.with_name(near[0])}?" if near else f"it is looked for in {path.absolute().parent}"


def read_toml(what: str, path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a TOML file says.

    Raises: ConfigurationError for a file that is not there, or is none.
    """
    file = pathlib.Path(errors.require_text(what, os.fspath(path)))
    if not file.is_file():
        raise errors.refuse(what, str(file), "an existing TOML file", where_looked(file))
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise errors.refuse(what, str(file), "valid TOML", str(error)) from None


def unused(parent: pathlib.Path, name: str) -> pathlib.Path:
    """The first of NAME, NAME-2, NAME-3, ... that is not there."""
    paths = (parent / (name if number == 1 else f"{name}-{number}") for number in itertools.count(1))
    return next(path for path in paths if not (path.exists() or path.is_symlink()))


def toml(values: Mapping[str, Any]) -> str:
    """Lines of TOML that `read_toml` reads back, without what is None; tables stand in braces."""
    return "".join(f"{_key(name)} = {_toml(value)}\n" for name, value in values.items() if value is not None)


def _key(name: str) -> str:
    return name if name.isidentifier() else json.dumps(name)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # the one that JSON takes and TOML does not


class _Tried(Exception):
    """It went well: ends the attempt, so that nothing is left of it."""


def quoted(path: str | os.PathLike[str]) -> str:
    """A path as a word of a command line that can be copied: one that begins with a dash would be taken for a flag."""
    word = os.fspath(path)
    return shlex.quote(f"./{word}" if word.startswith("-") else word)


def _clear(folder: pathlib.Path) -> None:
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
