"""Folders with one writer each; whether they are writable is checked before anything is computed for them.

A `FolderKind` describes the contents of a folder: its manifest has what determines the rest, and is read again before
more is written. A process reserves a name by creating it, and a folder by locking a file in it; the system releases the
lock when the process dies. A folder that is empty after a failure is removed, with the parents that were created for
it. If the machine fails later (a full disk, a quota, a read-only file system), everything stored before remains.
"""

import contextlib
import dataclasses
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
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedjax_dp import errors

PROBE = 1 << 16  # bytes of free space that a new folder needs
DRAFT = ".part"  # ends the name of a file until it is complete
LOCK = ".lock"  # in a folder while it is written to, and after a kill
MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)
ROOM, PUT_BACK = "make room", "put it back, or start anew"
MENDED_BY = {  # from failures of the machine, which libraries report in the words of the system, to remedies
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
def ensure_folder(folder: pathlib.Path) -> Iterator[None]:
    """A folder that exists for the block; if the block fails and leaves it empty, all created folders are removed."""
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        _make(folder)
        yield
    except BaseException:
        for path in created:
            with contextlib.suppress(OSError):  # another process may have content in it by now
                path.rmdir()
        raise


def _make(folder: pathlib.Path) -> None:
    for left in reversed(range(TRIES)):
        try:
            return folder.mkdir(parents=True, exist_ok=True)
        except (FileNotFoundError, FileExistsError):  # another, which has just failed, removed it or a parent
            if not left:
                raise


@contextlib.contextmanager
def create_folder(folder: pathlib.Path) -> Iterator[None]:
    """A folder for the block, to which no other process writes.

    If the block fails, everything that it added to a new or empty folder is removed.
    """
    with ensure_folder(folder):
        empty = not content_of(folder)
        try:
            yield
        except BaseException:
            if empty:
                clear(folder)
            raise


class FolderLock:
    """A folder that one writer has locked."""

    def __init__(self, folder: pathlib.Path, file: int) -> None:
        self.folder, self._file = folder, file

    def require_own(self) -> None:
        """Refuse to write if another process has replaced the folder.

        Raises: errors.StorageError if it was moved or removed since it was locked.
        """
        if not _is_same_file(self._file, self.folder / LOCK):
            raise errors.StorageError(str(self.folder), "it was moved or removed meanwhile", PUT_BACK)


_FILES: set[int] = set()  # of the locks of this process


def _close_all() -> None:
    for file in _FILES:
        os.close(file)
    _FILES.clear()


os.register_at_fork(after_in_child=_close_all)  # a child that outlives its parent does not keep the folder


@contextlib.contextmanager
def lock_folder(
    what: str, folder: pathlib.Path, remedy: str = "", say: Callable[[str], object] = str
) -> Iterator[FolderLock]:
    """A folder for one writer, created if missing: others are refused until the block or this process ends.

    If the block fails and leaves the folder empty, its previous state is restored. On file systems without locks
    nothing stops a second writer: the block continues, and `say` gets a warning.
    Raises: ConfigurationError if another process or thread writes there, or the folder is not writable.
    """
    require_writable(what, folder, remedy)
    with ensure_folder(folder):
        try:
            file = _lock_file(folder, say)
        except BlockingIOError:
            got, wanted = f"{folder}, which is being written by another process", "free"
            raise errors.refuse(what, got, wanted, "wait until that has ended") from None
        except OSError as error:
            raise errors.refuse(what, printable(str(folder)), "a folder that can be written", reason(error)) from None
        _FILES.add(file)
        try:
            yield FolderLock(folder, file)
        finally:
            if file in _FILES:  # not in a child
                with contextlib.suppress(OSError):
                    if _is_same_file(file, folder / LOCK):
                        (folder / LOCK).unlink()  # while locked: others that have opened it see that it is gone
                _FILES.remove(file)
                os.close(file)


@contextlib.contextmanager
def lock_unused(what: str, parent: pathlib.Path, name: str, say: Callable[[str], object] = str) -> Iterator[FolderLock]:
    """A new folder with the first unused name of NAME, NAME-2, NAME-3, ..., locked as by `lock_folder`."""
    require_writable(what, parent)
    with ensure_folder(parent):
        folder = make_unused(parent, name)
        try:
            with lock_folder(what, folder, say=say) as lock:
                yield lock
        except BaseException:
            with contextlib.suppress(OSError):
                folder.rmdir()
            raise


def _lock_file(folder: pathlib.Path, say: Callable[[str], object]) -> int:
    """The locked file of a folder.

    Raises: BlockingIOError if another process has locked it.
    """
    for _ in range(TRIES):
        _make(folder)
        try:
            file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # removed again
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if isinstance(error, BlockingIOError) or error.errno not in WITHOUT_LOCKS:
                os.close(file)
                raise
            say(f"the file system of {folder} has no locks: make sure that no other process writes there")
        if _is_same_file(file, folder / LOCK):  # else the previous owner has just removed it
            return file
        os.close(file)
    raise BlockingIOError


def _is_same_file(file: int, path: pathlib.Path) -> bool:
    try:
        with path.open("rb") as there:  # not by its name alone, which network file systems remember for a while
            return os.path.samestat(os.fstat(file), os.fstat(there.fileno()))
    except OSError:
        return False


def content_of(folder: pathlib.Path) -> list[pathlib.Path]:
    """The contents of a folder without its lock."""
    return [path for path in folder.iterdir() if path.name != LOCK]


def clear(folder: pathlib.Path) -> None:
    """Remove the contents of a folder without its lock."""
    with contextlib.suppress(OSError):
        for path in content_of(folder):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def require_writable(what: str, folder: pathlib.Path, remedy: str = "") -> None:
    """Refuse a folder, existing or not, that is not writable; the check leaves nothing behind.

    Raises: ConfigurationError, with the file system's reason.
    """
    for left in reversed(range(TRIES)):
        try:
            with contextlib.suppress(_Writable), ensure_folder(folder):
                with tempfile.TemporaryFile(dir=folder) as probe:  # without a name: a kill leaves nothing
                    probe.write(bytes(PROBE))
                    probe.flush()
                raise _Writable
            return
        except (OSError, ValueError) as error:  # ValueError: characters that no file name may have
            if left and isinstance(error, FileNotFoundError):  # another, which checks it too, has just removed it
                continue
            words = f"{remedy} ({reason(error)})" if remedy else reason(error)
            raise errors.refuse(what, printable(str(folder)), "a folder that can be written", words) from None


@dataclasses.dataclass(frozen=True)
class FolderKind:
    """A kind of folder.

    name       of the contents
    manifest   file with the fields that determine the rest; written before everything except `beginning`
    fields     of the manifest, with their types
    beginning  files that may be written before the manifest: a folder with nothing else counts as new
    decisive   fields that `seal` is a checksum of
    format     name and number of the version of all files in the folder; raise the number whenever one of the files
               gets, loses or renames a field
    remedy     how to create such a folder
    renewal    what to do with a folder of another version, whose path is {folder}
    """

    name: str
    manifest: str
    fields: Mapping[str, type]
    beginning: tuple[str, ...] = ()
    decisive: tuple[str, ...] = ()
    format: tuple[str, int] | None = None
    remedy: str = ""
    renewal: str = ""

    def is_at(self, folder: pathlib.Path) -> bool:
        """Whether a folder has the manifest of this kind."""
        return os.path.isfile(folder / self.manifest)

    def is_new(self, folder: pathlib.Path) -> bool:
        """Whether a folder does not exist, or has nothing but its beginning, as after a kill."""
        if not os.path.isdir(folder):
            return not os.path.lexists(folder)
        names = {path.name for path in content_of(folder)}
        return names <= {self.manifest + DRAFT, *self.beginning, *(name + DRAFT for name in self.beginning)}

    def require_new(self, what: str, folder: pathlib.Path, remedy: str, otherwise: str = "") -> None:
        """Refuse a path that is no new or empty folder; `otherwise`: what else is accepted."""
        if not self.is_new(folder):
            got = f"{folder}, a link to nothing" if not os.path.exists(folder) else str(folder)
            raise errors.refuse(what, got, f"a new or empty folder{otherwise}", remedy)

    def read(self, folder: pathlib.Path) -> dict[str, Any]:
        """The manifest of a folder.

        Raises: ConfigurationError for a folder of another kind or version, and if its decisive fields were changed
                since, by hand or by another program.
        """
        what, file = f"{self.name} folder", folder / self.manifest
        if not folder.exists():
            raise errors.refuse(what, str(folder), "an existing folder", where_looked(folder))
        if not folder.is_dir():
            raise errors.refuse(what, str(folder), "a folder")
        if not file.is_file():
            if self.is_new(folder):
                got = f"{folder}, where nothing was stored before the {self.name} was stopped"
                remedy = "start it again in the same folder"
                raise errors.refuse(what, got, f"one of a {self.name} that had begun", remedy)
            raise errors.refuse(what, str(folder), f"one with a file {self.manifest}", self.remedy)
        manifest = read_json(file)
        known = isinstance(manifest, dict) and all(
            name in manifest and isinstance(manifest[name], kind) for name, kind in self.fields.items()
        )
        if not known or not self._stamp.items() <= manifest.items():
            renewal = self.renewal.format(folder=folder)
            raise errors.refuse(what, f"{folder}, of another version", "written by this version", renewal)
        if self.decisive and manifest["seal"] != self.seal(manifest):
            got, wanted = "one that was changed since", f"as the {self.name} wrote it"
            raise errors.refuse(str(file), got, wanted, f"put it back, or start a new {self.name}")
        return manifest

    def write(self, folder: pathlib.Path, manifest: Mapping[str, Any]) -> None:
        """Write the manifest, with the format and the seal of this kind."""
        seal = {"seal": self.seal(manifest)} if self.decisive else {}
        write_json(folder / self.manifest, {**manifest, **self._stamp, **seal})

    def seal(self, manifest: Mapping[str, Any]) -> str:
        """A checksum of the decisive fields of a manifest."""
        return checksum_of({name: manifest[name] for name in self.decisive})

    @property
    def _stamp(self) -> dict[str, int]:
        return {} if self.format is None else dict([self.format])


def checksum_of(content: Mapping[str, Any]) -> str:
    """A checksum of a JSON object: 8 hexadecimal digits, the same in every process."""
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


@contextlib.contextmanager
def storage_errors(where: pathlib.Path | str, remedy: str = "") -> Iterator[None]:
    """Report failures of the machine to store what the block writes.

    remedy  how to continue; "make room" in it is replaced by the remedy of the actual failure
    Raises: errors.StorageError for errors of the file system, raised by any library.
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
def draft_file(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A path at which to write a file, so that readers, even after a crash, see the old or the new content in full.

    Waits for another process that writes the same file.
    """
    draft = path.with_name(path.name + DRAFT)
    file = _lock_draft(draft)
    try:
        yield draft
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)


def _lock_draft(draft: pathlib.Path) -> int:
    while True:
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if _is_same_file(file, draft):  # else the other has just completed or removed it
            return file
        os.close(file)


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Write a text file, see `draft_file`."""
    with draft_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_new(what: str, path: pathlib.Path, text: str) -> None:
    """Write a new file.

    Raises: ConfigurationError for a file that exists, and for a folder that is not writable.
    """
    if not os.path.lexists(path):
        require_writable("the folder of the file", path.parent, "give another name")
    with (
        ensure_folder(path.parent),
        claim_file(what, path),
        storage_errors(path.parent, "make room, or write elsewhere"),
    ):
        write_atomically(path, text)


@contextlib.contextmanager
def claim_file(what: str, path: pathlib.Path) -> Iterator[None]:
    """Reserve the name of a new file for the block by creating it empty; it is removed if the block fails.

    Raises: ConfigurationError if the name exists.
    """
    try:
        path.open("x").close()
    except FileExistsError:
        raise errors.refuse(what, printable(str(path)), "a new file", "give another name, or remove it") from None
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def write_json(path: pathlib.Path, content: Any) -> None:
    write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_json(path: pathlib.Path) -> Any:
    """The content of a JSON file.

    Raises: ConfigurationError for anything else, also for NaN and infinity, which are no JSON.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        return json.loads(path.read_bytes(), parse_constant=refuse)
    except (OSError, ValueError, RecursionError) as error:
        raise errors.refuse(str(path), "something else", "readable JSON", " ".join(str(error).split())[:160]) from None


def reason(error: BaseException) -> str:
    """The message of the file system, without names and numbers."""
    known = next((words for words in WORDS if words in str(error)), None)
    text = known or (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text[:1].lower() + " ".join(text.split())[1:]


def printable(path: str) -> str:
    """A path for a message: one line of limited length."""
    words = path if path.isprintable() else repr(path)
    return words if len(words) < 200 else f"{words[:60]}... of {len(words)} letters"


def where_looked(path: pathlib.Path) -> str:
    """The remedy for a missing path: a file in its folder that was probably meant, else the searched folder."""
    siblings = [other.name for other in path.parent.glob(f"*{path.suffix}")] if path.suffix else []
    near = errors.nearest(path.name, siblings)
    return f"did you mean {path.with_name(near[0])}?" if near else f"it is looked for in {path.absolute().parent}"


def read_text(what: str, path: str | os.PathLike[str], kind: str, remedy: str) -> str:
    """The text of a file of some kind, such as "CSV file".

    Raises: ConfigurationError for a file that is missing, a folder, or no text in UTF-8.
    """
    file = require_file(what, path, kind, remedy)
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise errors.refuse(what, f"{file}, which is not UTF-8 text", f"a {kind}", remedy) from None


def require_file(what: str, path: str | os.PathLike[str], kind: str, remedy: str) -> pathlib.Path:
    """The path of an existing file; refuses a folder as what it is."""
    file = pathlib.Path(errors.require_text(what, os.fspath(path)))
    if file.is_dir():
        raise errors.refuse(what, f"{file}, which is a folder", f"a {kind}", remedy)
    if not file.is_file():
        raise errors.refuse(what, str(file), f"an existing {kind}", where_looked(file))
    return file


def read_toml(what: str, path: str | os.PathLike[str], remedy: str = "") -> dict[str, Any]:
    """The content of a TOML file.

    Raises: ConfigurationError for a file that is missing, or is not TOML.
    """
    text = read_text(what, path, "TOML file", remedy)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise errors.refuse(what, str(path), "valid TOML", f"{error}{'; ' * bool(remedy)}{remedy}") from None


def make_unused(parent: pathlib.Path, name: str) -> pathlib.Path:
    """A new folder with the first unused name of NAME, NAME-2, NAME-3, ..., also if other processes create some."""
    for number in itertools.count(1):
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise AssertionError  # numbers do not end


def toml(values: Mapping[str, Any]) -> str:
    """Lines of TOML that `read_toml` reads, without None; tables are in braces."""
    return "".join(f"{_key(name)} = {_toml(value)}\n" for name, value in values.items() if value is not None)


def _key(name: str) -> str:
    return name if name.isidentifier() else json.dumps(name)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # the one that JSON takes and TOML does not


class _Writable(Exception):
    """It went well: ends the attempt, so that nothing is left of it."""


def quote_path(path: str | os.PathLike[str]) -> str:
    """A path as a word of a command line that can be copied: one that begins with a dash would be taken for a flag."""
    word = os.fspath(path)
    return shlex.quote(f"./{word}" if word.startswith("-") else word)
