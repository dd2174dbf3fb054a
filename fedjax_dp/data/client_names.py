"""Names of clients and classes: those of their column, file or user."""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_dp import errors

SHOWN = 12  # names in a line
WHOLE = re.compile(r"^\+?(-?\d+)(?:\.0*)?$")  # as a column of numbers is written where some cells are empty
INVISIBLE = ("Cc", "Cf")  # control and format characters


class ClientNames:
    """Names of clients, client 0 first, or of classes, class 0 first.

    All values are equal: no computation depends on names, so other names need no new compilation.
    """

    def __init__(self, names: Sequence[Any] | np.ndarray):
        self.names = names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClientNames)

    def __hash__(self) -> int:
        return hash(ClientNames)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, client: int) -> str:
        name = str(self.names[client])
        return name if name.isprintable() else repr(name)  # names from files may hold control characters

    @property
    def listed(self) -> tuple[str, ...]:
        """All names."""
        return tuple(self[client] for client in range(len(self)))


def plain_name(word: Any) -> str:
    """A word as every file may write it, so that no client or user has two names.

    No quotation marks around it, single spaces, nothing invisible, letters in one form, and 7 for `7.0`.
    """
    text = word.decode("utf-8", "backslashreplace") if isinstance(word, bytes) else str(word)
    plain = unicodedata.normalize("NFKC", text)
    if not plain.isprintable():
        plain = "".join(letter for letter in plain if letter.isspace() or unicodedata.category(letter) not in INVISIBLE)
    plain = " ".join(plain.split()).strip("\"' ")
    return WHOLE.sub(r"\1", plain or text.strip())  # which may be a quotation mark


def as_client_names(names: Any) -> ClientNames | None:
    """Names of clients or classes, or None if they are just their numbers."""
    names = np.asarray([str(name) for name in names])
    return None if np.array_equal(names, np.arange(len(names)).astype(str)) else ClientNames(names)


def client_label(names: ClientNames | None, client: int) -> str:
    """A client's name, or its number."""
    return str(client) if names is None else names[client]


def number_of(what: str, names: ClientNames | None, clients: int, client: int | str) -> int:
    """The number of a client by its name, or by the number itself.

    Raises: ConfigurationError if there is no such client.
    """
    if isinstance(client, str):
        for number in range(0 if names is None else clients):
            if client_label(names, number) == client:
                return number
        if not (client.isascii() and client.isdecimal() and len(client) < 20):
            known = [] if names is None else list(names.listed)
            shown = ", ".join(known[:SHOWN]) + ", ..." * (len(known) > SHOWN)
            wanted = f"one of {shown}" if known else f"a number from 0 to {clients - 1}, as clients have no names"
            raise errors.refuse(what, repr(client)[:60], wanted, errors.suggestion(client, known))
        client = int(client)
    errors.require_integer(what, client, 0, clients - 1)
    return int(client)


def in_brackets(names: ClientNames | None) -> str:
    """` (H0, H1, H2)` for a few clients with names, else nothing."""
    return f" ({', '.join(names.listed)})" if names is not None and len(names) <= SHOWN else ""
