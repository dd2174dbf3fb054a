"""SQLite files, also packed by lzma or xz, read row by row without running any code in them.

Memory: a page cache of a few MiB. A packed database is expanded on disk, in a temporary file that is unlinked as soon
as SQLite has opened it.
"""

import contextlib
import lzma
import pathlib
import sqlite3
import tempfile
import urllib.parse
from collections.abc import Iterator
from typing import Any, BinaryIO

from fedjax_dp import folders
from fedjax_dp.data.files import check_growth, damage_error, readable, unpack_lzma

MAGIC = b"SQLite format 3\0"
PACKED = (b"\x5d", b"\xfd7zXZ\0")  # lzma alone with its usual properties, xz
HEADER = 100  # bytes; it has the size and the number of pages
LARGEST_RECORD = 1 << 26
WANTED = "an SQLite database, perhaps packed by lzma or xz"
READS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)


@contextlib.contextmanager
def open_file(path: pathlib.Path) -> Iterator[sqlite3.Connection]:
    """The database, opened only to read tables.

    Raises: ConfigurationError for any other file, also within the block; errors.StorageError if there is no room to
            expand it.
    """
    with contextlib.ExitStack() as stack:
        with open(path, "rb") as file:
            packed = file.read(len(MAGIC)) != MAGIC
        place = path
        if packed:
            where, remedy = f"the expanded database of {path}", "make room, or name another folder in TMPDIR"
            stack.enter_context(folders.storage_errors(where, remedy))
            holder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fedjax_dp."))
            place = pathlib.Path(holder, "database")
            with open(place, "wb") as expanded:
                _expand(path, expanded)
        _check_size(path, place)
        kinds = (sqlite3.Error, OverflowError, MemoryError, UnicodeDecodeError)
        stack.enter_context(readable(path, "a readable database", kinds))
        uri = f"file:{urllib.parse.quote(str(place.absolute()))}?mode=ro&immutable=1"
        base = stack.enter_context(contextlib.closing(sqlite3.connect(uri, uri=True)))
        base.execute("PRAGMA schema_version")
        if packed:
            place.unlink()
        for setting in ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON", "mmap_size=0"):
            base.execute(f"PRAGMA {setting}")
        base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_RECORD)
        base.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in READS else sqlite3.SQLITE_DENY)
        yield base


def check_table(path: pathlib.Path, base: sqlite3.Connection, table: str, columns: tuple[str, ...]) -> None:
    """Refuse a view, a virtual or a missing table."""
    rows = base.execute("SELECT type, rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchall()
    if len(rows) != 1 or rows[0][0] != "table" or not rows[0][1]:
        kinds = {str(kind) if root or kind != "table" else "virtual table" for kind, root in rows}
        got = f"a {' and a '.join(sorted(kinds))}" if kinds else "nothing"
        raise damage_error(f"{path}: {table}", got[:60], f"a table with {', '.join(columns)}")


def rows(path: pathlib.Path, base: sqlite3.Connection, table: str, columns: tuple[str, ...]) -> Iterator[Any]:
    """Rows of a table in the order of their numbers, in one scan; `table` and `columns` are trusted words."""
    last = None
    # an index could change the order, and ORDER BY could sort endless rows
    for number, *row in base.execute(f"SELECT rowid, {', '.join(columns)} FROM {table} NOT INDEXED"):
        if last is not None and not number > last:  # a page that is its own child repeats for ever
            raise damage_error(
                f"{path}: {table}", f"row {number} again", "a table whose rows have numbers of their own"
            )
        last = number
        yield row


def _check_size(path: pathlib.Path, place: pathlib.Path) -> None:
    """Refuse a database shorter than its header says: SQLite would read the missing bytes as zeros."""
    with open(place, "rb") as file:
        header = file.read(HEADER)
    page = int.from_bytes(header[16:18], "big")
    wanted = (1 << 16 if page == 1 else page) * int.from_bytes(header[28:32], "big")
    if len(header) < HEADER or (header[24:28] == header[92:96] and place.stat().st_size < wanted):
        raise damage_error(path, f"{place.stat().st_size:,} bytes", f"a readable database of {wanted:,} bytes")


def _expand(path: pathlib.Path, expanded: BinaryIO) -> None:
    """Unpack in pieces, up to bytes that begin no database, or an implausible size."""
    stored, size, beginning = path.stat().st_size, 0, b""
    try:
        with open(path, "rb") as file:
            for piece in unpack_lzma(file):
                size += len(piece)
                beginning = (beginning + piece)[: len(MAGIC)]
                if not MAGIC.startswith(beginning):
                    break
                check_growth(path, stored, size)
                expanded.write(piece)
        if beginning != MAGIC:
            raise damage_error(path, f"{beginning!r} at the beginning of the unpacked data", WANTED)
    except (EOFError, lzma.LZMAError, MemoryError) as error:
        raise damage_error(path, f"something else ({folders.reason(error)})", WANTED) from None
