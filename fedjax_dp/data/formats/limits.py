"""How much a file may say about itself before anything is made of it, and where it may stand."""

import pathlib
import stat
from typing import Any

from fedjax_dp import errors
from fedjax_dp.data.files import absent, damaged

EXPANSION, FREE = 200, 1 << 26  # expanded bytes for each stored one, and those that need no stored ones
LONGEST_ID = 256  # characters: an array of text takes four bytes for each, in every record


def check_file(kind: str, path: pathlib.Path) -> int:
    """Refuse what is no plain file with something in it; returns its bytes."""
    try:
        about = path.stat()
    except (OSError, ValueError):  # not there, or a name that no file can have
        raise absent(kind, path) from None
    if not stat.S_ISREG(about.st_mode):
        raise damaged(path, "a folder" if stat.S_ISDIR(about.st_mode) else "no file", f"a {kind} file", "name the file")
    if not about.st_size:
        raise damaged(path, "empty", f"a {kind} file")
    return about.st_size


def check_growth(what: pathlib.Path | str, stored: int, expanded: int) -> None:
    """Refuse content that would take far more room than what stands for it in the file."""
    if expanded > max(FREE, EXPANSION * stored):
        got = f"{expanded:,} bytes from {stored:,} or more"
        raise damaged(str(what), got, f"at most {EXPANSION} times as large when expanded", "get it from elsewhere")


def check_id(where: str, client: Any) -> str:
    """A client's name: text that can be written down again, and that an array of text keeps apart from others."""
    wanted = f"text of at most {LONGEST_ID} characters, in Unicode and without NUL"
    if not isinstance(client, str):
        raise errors.refuse(f"{where}: client", type(client).__name__, wanted)
    if not 0 < len(client) <= LONGEST_ID or "\0" in client:
        got = repr(client) if len(client) < 60 else f"{client[:40]!r}... of {len(client):,} characters"
        raise errors.refuse(f"{where}: client", got, wanted)
    try:
        client.encode()
    except UnicodeEncodeError:
        raise errors.refuse(f"{where}: client", repr(client), wanted) from None
    return client
