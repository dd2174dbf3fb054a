"""Participation logs: the recorded rounds of each client, their gaps, and the sensitivity of these rounds.

A log is public, so it amplifies nothing. Its author is trusted that it does not depend on records.
"""

import csv
import dataclasses
import functools
import hashlib
import os
import pathlib
from typing import Self

import numpy as np

from fedjax_dp import errors

COLUMNS = ["round", "client"]


def _read_csv(path: str | os.PathLike[str]) -> list[tuple[int, list[str]]]:
    """The lines of a CSV file below its header, each with its number; cells without spaces around.

    Raises: ConfigurationError for what cannot be read, and for another header.
    """
    remedy = f"write lines of {','.join(COLUMNS)} below these names, both from 0"
    what, file = "participation log", pathlib.Path(path)
    if file.is_dir():
        raise errors.refuse(what, f"{file}, which is a folder", "a CSV file", remedy)
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            header, *rows = [[cell.strip() for cell in row] for row in csv.reader(lines)] or [[]]
    except FileNotFoundError:
        raise errors.refuse(
            what, str(file), "an existing CSV file", f"looked for in {file.absolute().parent}"
        ) from None
    except UnicodeDecodeError:
        raise errors.refuse(what, f"{file}, which is not UTF-8 text", "a CSV file", remedy) from None
    except (OSError, ValueError, csv.Error) as error:
        raise errors.refuse(what, str(file), "a CSV file that can be read", " ".join(str(error).split())) from None
    if header != COLUMNS:
        wanted = f"a CSV with the header {','.join(COLUMNS)}"
        raise errors.refuse(f"participation log {path}", f"the header {','.join(header)[:60]!r}", wanted, remedy)
    return [(number, row) for number, row in enumerate(rows, 2) if row]


@dataclasses.dataclass(frozen=True)
class ParticipationLog:
    """Pairs of round and client, each once, in the order of the rounds; both `(pairs,)`, from 0."""

    rounds: np.ndarray
    clients: np.ndarray
    num_rounds: int
    num_clients: int

    @classmethod
    def of(cls, pairs: np.ndarray, num_rounds: int, num_clients: int, where: str = "participation log") -> Self:
        """The log of pairs `(pairs, 2)` of round and client.

        Raises: ConfigurationError for an unknown round or client, and for a duplicate pair.
        """
        errors.require_count("rounds", num_rounds)
        errors.require_count("clients", num_clients)
        pairs = np.asarray(pairs, np.int64).reshape(-1, 2)
        for column, count, what in ((0, num_rounds, "round"), (1, num_clients, "client")):
            wrong = np.flatnonzero((pairs[:, column] < 0) | (pairs[:, column] >= count))
            if wrong.size:
                got = f"{pairs[wrong[0], column]} in pair {wrong[0] + 1}"
                raise errors.refuse(f"{where}: {what}", got, f"from 0 to {count - 1:,}")
        kinds, times = np.unique(pairs, axis=0, return_counts=True)
        if np.any(times > 1):
            at, client = kinds[np.argmax(times > 1)]
            raise errors.refuse(where, f"client {client} twice in round {at}", "without a pair that stands twice")
        return cls(kinds[:, 0], kinds[:, 1], num_rounds, num_clients)

    @classmethod
    def read(cls, path: str | os.PathLike[str], num_rounds: int | None = None, num_clients: int | None = None) -> Self:
        """The log in a CSV file with the header `round,client`.

        Numbers of rounds and clients default to those in the log.
        """
        what, pairs = f"participation log {path}", []
        for number, row in _read_csv(path):
            if len(row) != 2 or not all(word.isdecimal() and len(word) < 10 for word in row):
                raise errors.refuse(f"{what}: line {number}", ",".join(row)[:60], "a round and a client, whole numbers")
            pairs.append([int(word) for word in row])
        if not pairs:
            raise errors.refuse(what, "no pairs", "at least one line of round and client")
        found = np.array(pairs)
        most = found.max(0) + 1
        rounds = int(most[0]) if num_rounds is None else num_rounds
        clients = int(most[1]) if num_clients is None else num_clients
        return cls.of(found, rounds, clients, what)

    def digest(self, rounds: int | None = None) -> str:
        """sha256 of the participation in the first `rounds` rounds (None: all)."""
        first = self.rounds < (self.num_rounds if rounds is None else rounds)
        return hashlib.sha256(np.stack([self.rounds, self.clients], 1)[first].tobytes()).hexdigest()

    @property
    def counts(self) -> np.ndarray:
        """Number of rounds of each client `(clients,)`."""
        return np.bincount(self.clients, minlength=self.num_clients)

    @property
    def least_gaps(self) -> list[int | None]:
        """The smallest gap between two rounds of each client; None for clients with fewer than two."""
        return [int(np.diff(rounds).min()) if len(rounds) > 1 else None for rounds in self.patterns]

    @functools.cached_property
    def patterns(self) -> list[tuple[int, ...]]:
        """The rounds of each client in increasing order."""
        order = np.argsort(self.clients, kind="stable")
        return [tuple(own.tolist()) for own in np.split(self.rounds[order], np.cumsum(self.counts)[:-1])]
