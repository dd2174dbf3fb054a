"""Tables of client state on the host."""

import os
import tempfile
import weakref
from typing import Any

import numpy as np


class HostTable:
    """Rows `(num_clients, *row.shape)`, in a sparse temporary file that stores only rows that were written.

    A leaf of pytrees. `row` is the initial row of every client. The file is read and written, not mapped, so that its
    rows do not count as memory of this process.
    """

    def __init__(self, clients: int, row: Any):
        self._first = np.asarray(row)
        self._written = np.zeros(clients, bool)
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 it stays until nobody needs the table
        weakref.finalize(self, self._file.close)

    @property
    def row_bytes(self) -> int:
        return self._first.nbytes

    def read(self, clients: np.ndarray, room: int) -> np.ndarray:
        """Rows of some clients `(room, ...)`, zeros after the last."""
        rows = np.zeros((room, *self._first.shape), self._first.dtype)
        for row, client in zip(rows.reshape(room, self._first.size), clients):
            if self._written[client]:
                self._fill(row, int(client))
            else:
                row[:] = self._first.reshape(-1)
        return rows

    def _fill(self, row: np.ndarray, client: int) -> None:
        view, at = row.view(np.uint8).data, client * self.row_bytes
        while view:
            read = os.preadv(self._file.fileno(), [view], at)
            if not read:
                raise OSError(f"the table of client state ends before client {client}")
            view, at = view[read:], at + read

    def write(self, clients: np.ndarray, rows: np.ndarray) -> None:
        """Replace the rows of distinct clients."""
        flat = np.ascontiguousarray(rows, self._first.dtype).reshape(len(clients), self._first.size)
        for client, row in zip(clients, flat):
            view, at = row.view(np.uint8).data, int(client) * self.row_bytes
            while view:
                written = os.pwritev(self._file.fileno(), [view], at)
                view, at = view[written:], at + written
        self._written[clients] = True

    def written_rows(self) -> dict[str, np.ndarray]:
        """The rows that were written, with the ids of their clients."""
        clients = np.flatnonzero(self._written)
        return {"clients": clients, "rows": self.read(clients, len(clients))}

    def with_rows(self, written_rows: dict[str, Any]) -> "HostTable":
        """A table of the same clients with the rows of `written_rows()`."""
        other = HostTable(len(self._written), self._first)
        other.write(np.asarray(written_rows["clients"]), np.asarray(written_rows["rows"]))
        return other

    def copy(self) -> "HostTable":
        return self.with_rows(self.written_rows())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All rows; for small populations."""
        clients = np.arange(len(self._written))
        return self.read(clients, len(clients)).astype(dtype or self._first.dtype)
