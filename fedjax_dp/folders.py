"""Folders that are written to: each by one writer, and whether it can be is found before anything is computed for it.

A name is taken by making it, and a folder by locking a file in it, which the system lets go when a process dies. A
folder that a failure leaves without content is gone again, and so are the parents that were made for it. Where the
machine fails later (a full disk, a quota, a file system that became read-only), what was stored before stays.
"""

import contextlib
import errno
import fcntl
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
LOCK = ".lock"  # in a folder while it is written to, and after a kill
MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)
ROOM, PUT_BACK = "make room", "put it back, or start anew"
MENDED_BY = {  # failures of the machine, which libraries tell in the words of the system
    errno.ENOSPC: ROOM,
    errno.EDQUOT: ROOM,
    errno.EFBIG: ROOM,
    errno.EROFS: "make it writable",
    errno.EIO: "see what is wrong with its disk",
    errno.ENOENT: PUT_BACK,
    errno.ENOTDIR: PUT_BACK,
    errno.ESTALE: PUT_BACK,
}
WORDS = {os.strerror(code): code for code in MENDED_BY}
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
TRIES = 100  # to lock a folder that others make and remove at the same time


@contextlib.contextmanager
def providing(folder: pathlib.Path) -> Iterator[None]:
    """A folder that is there for the block; if the block fails and leaves it empty, what was made for it is gone."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for path in made:
            with contextlib.suppress(OSError):  # another process may have content in it by now
                path.rmdir()
        raise


@contextlib.contextmanager
def making(folder: pathlib.Path) -> Iterator[None]:
    """A folder, locked or nobody else's, that is there for the block.

    If the block fails, what it added to a new or empty one is gone again.
    """
    with providing(folder):
        empty = not content_of(folder)
        try:
            yield
        except BaseException:
            if empty:
                clear(folder)
            raise


class FolderLock:
    """A folder that one writer has locked."""

    def __init__(self, folder: pathlib.Path, file: int, note: str | None) -> None:
        self.folder, self._file = folder, file
        self.note = note  # where the file system keeps no locks, so that nothing stops a second writer

    def require_own(self) -> None:
        """Refuse to write into what another has put in the place of the folder.

        Raises: errors.StorageError where it was moved or removed since it was locked.
        """
        if not _same(self._file, self.folder / LOCK):
            raise errors.StorageError(str(self.folder), "it was moved or removed meanwhile", PUT_BACK)


_FILES: set[int] = set()  # of the locks of this process


def _close_all() -> None:
    for file in _FILES:
        os.close(file)
    _FILES.clear()


os.register_at_fork(after_in_child=_close_all)  # a child that outlives its parent does not keep the folder


@contextlib.contextmanager
def locked(what: str, folder: pathlib.Path, remedy: str = "give another out") -> Iterator[FolderLock]:
    """A folder, made if it is not there, for one writer: others are refused until the block ends, or this process.

    If the block fails and leaves it empty, it is as before. On file systems without locks the block goes on, with a
    `note`.
    Raises: ConfigurationError where another process or thread writes there, and for one that cannot be written.
    """
    require_writable(what, folder, remedy)
    with providing(folder):
        try:
            file, note = _lock_file(folder)
        except BlockingIOError:
            got, wanted = f"{folder}, which is being written by another process", "free"
            raise errors.refuse(what, got, wanted, "wait until that has ended") from None
        except OSError as error:
            raise errors.refuse(what, shown(str(folder)), "a folder that can be written", reason(error)) from None
        _FILES.add(file)
        lock = FolderLock(folder, file, note)
        try:
            yield lock
        finally:
            if file in _FILES:  # not in a child
                with contextlib.suppress(OSError):
                    if _same(file, folder / LOCK):
                        (folder / LOCK).unlink()  # while it is locked: whoever has opened it sees that it is gone
                _FILES.remove(file)
                os.close(file)


@contextlib.contextmanager
def locked_unused(what: str, parent: pathlib.Path, name: str) -> Iterator[FolderLock]:
    """A new folder of the first of NAME, NAME-2, NAME-3, ... that nobody has, locked as by `locked`."""
    require_writable(what, parent)
    with providing(parent):
        folder = make_unused(parent, name)
        try:
            with locked(what, folder) as lock:
                yield lock
        except BaseException:
            with contextlib.suppress(OSError):
                folder.rmdir()
            raise


def _lock_file(folder: pathlib.Path) -> tuple[int, str | None]:
    """The locked file of a folder, and what is to be said of it.

    Raises: BlockingIOError where another has it.
    """
    for tried in range(TRIES):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # another, which has just failed, removed it
            if tried + 1 == TRIES:
                raise
            continue
        note = None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if isinstance(error, BlockingIOError) or error.errno not in WITHOUT_LOCKS:
                os.close(file)
                raise
            note = f"the file system of {folder} keeps no locks: see to it that no other process writes there"
        if _same(file, folder / LOCK):  # else the one before, which had it, has just removed it
            return file, note
        os.close(file)
    raise BlockingIOError


def _same(file: int, path: pathlib.Path) -> bool:
    try:
        with path.open("rb") as there:  # not by its name alone, which network file systems remember for a while
            return os.path.samestat(os.fstat(file), os.fstat(there.fileno()))
    except OSError:
        return False


def content_of(folder: pathlib.Path) -> list[pathlib.Path]:
    """What a folder holds beside its lock."""
    return [path for path in folder.iterdir() if path.name != LOCK]


def clear(folder: pathlib.Path) -> None:
    """Remove all that a folder holds beside its lock."""
    with contextlib.suppress(OSError):
        for path in content_of(folder):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def require_writable(what: str, folder: pathlib.Path, remedy: str = "") -> None:
    """Refuse a folder, there or not, that cannot be written to; nothing is left of the attempt.

    Raises: ConfigurationError, with the reason that the file system gives.
    """
    try:
        with contextlib.suppress(_Tried), providing(folder):
            with tempfile.TemporaryFile(dir=folder) as probe:  # without a name: nothing stays if the process is killed
                probe.write(bytes(PROBE))
                probe.flush()
            raise _Tried
    except (OSError, ValueError) as error:  # a name may hold what no file name can
        words = f"{remedy} ({reason(error)})" if remedy else reason(error)
        raise errors.refuse(what, shown(str(folder)), "a folder that can be written", words) from None


def holds_only(folder: pathlib.Path, names: Collection[str]) -> bool:
    """Whether a folder has nothing but files of these names, whole or drafts: what a killed beginning leaves."""
    return all(path.name.removesuffix(DRAFT) in names for path in content_of(folder))


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
    """Tell of a machine that fails to store what the block makes.

    remedy  how to go on; where it says to make room, and the disk is not full, what mends the failure takes its place
    Raises: errors.StorageError for what the file system refuses, by whatever library.
    """
    try:
        yield
    except errors.ConfigurationError:
        raise
    except Exception as error:
        code = error.errno if isinstance(error, OSError) else None
        code = code or next((code for words, code in WORDS.items() if words in str(error)), None)
        if code is None:
            raise
        remedy = remedy.replace(ROOM, MENDED_BY.get(code, "see to it"))
        raise errors.StorageError(str(where), reason(error), remedy) from error


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
    if not os.path.lexists(path):
        require_writable("the folder of the file", path.parent, "give another name")
    with providing(path.parent), taking(what, path), storing(path.parent, "make room, or write elsewhere"):
        write_atomically(path, text)


@contextlib.contextmanager
def taking(what: str, path: pathlib.Path) -> Iterator[None]:
    """The name of a new file for the block, by making it empty; if the block fails it is gone again.

    Raises: ConfigurationError where there is something of this name.
    """
    try:
        path.open("x").close()
    except FileExistsError:
        raise errors.refuse(what, shown(str(path)), "a new file", "give another name, or remove it") from None
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


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
    known = next((words for words in WORDS if words in str(error)), None)
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


def make_unused(parent: pathlib.Path, name: str) -> pathlib.Path:
    """A new folder: the first of NAME, NAME-2, NAME-3, ... that is not there, whoever else takes one meanwhile."""
    for number in itertools.count(1):
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise AssertionError  # numbers do not end


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
