"""Which clients of two phases are the same, as their user says: a CSV of `first,second`.

Each client of either phase stands in one line, by its name or number; beside one that is in one phase alone the other
cell is empty. Who was left out would pay too little, so nobody is.
"""

import os
from collections.abc import Mapping, Sequence

from fedjax_dp import errors
from fedjax_dp.accounting.participation_logs import read_csv

COLUMNS = ("first", "second")
OPTION = "start_clients"
ClientPairs = tuple[tuple[str, str], ...]


def read_pairs(path: str | os.PathLike[str]) -> ClientPairs:
    """The lines of such a file.

    Raises: ConfigurationError in one line for a file that is none, and for lines that are no pairs.
    """
    pairs = []
    for number, row in read_csv(OPTION, path, COLUMNS):
        if len(row) != len(COLUMNS) or not any(row):
            wanted = "two clients, one of which may be left empty"
            raise errors.refuse(f"{OPTION} {path}: line {number}", repr(",".join(row))[:60], wanted)
        pairs.append((row[0], row[1]))
    return tuple(pairs)


def numbers_of(words: Sequence[str], whose: str, count: int, by_name: Mapping[str, int]) -> list[int]:
    """The numbers of the clients of a phase in one column; -1 where it is empty.

    whose    the phase, in words; count: its clients;
    by_name  numbers of those of the words that are names of its clients.
    Raises: ConfigurationError in one line for a client that is not there, stands twice or in no line.
    """
    found: dict[int, str] = {}
    numbers = []
    for word in words:
        number = by_name.get(word, int(word) if word.isascii() and word.isdecimal() and len(word) < 20 else count)
        if word and not number < count:
            wanted = f"one of the {count:,} clients of {whose}, by its number from 0 or its name where they have names"
            raise errors.refuse(OPTION, repr(word)[:60], wanted)
        if word and number in found:
            raise errors.refuse(OPTION, f"client {word[:40]} of {whose} twice", "each client in one line")
        numbers.append(number if word else -1)
        found |= {number: word} if word else {}
    lacking = next((number for number in range(count) if number not in found), None)
    if lacking is not None:
        remedy = "beside one that is in one phase alone leave the other cell empty"
        raise errors.refuse(OPTION, f"no line of client {lacking} of {whose}", "each client in one line", remedy)
    return numbers
