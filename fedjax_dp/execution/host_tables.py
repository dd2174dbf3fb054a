"""What clients keep from round to round, by client, on the host."""

import tempfile
from typing import Any

import numpy as np


class HostTable:
    """Rows `(num_clients, *row.shape)`, in a temporary file that has room only for those that were written.

    A leaf of pytrees. `row` is what every client begins with.
    """

    def __init__(self, clients: int, row: Any):
        self._first = np.asarray(row)
        self._written = np.zeros(clients, bool)
        with tempfile.TemporaryFile() as file:  # mapped, it stays until nobody needs it
            self._rows = np.memmap(file, self._first.dtype, "w+", shape=(clients, *self._first.shape))

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self._first.shape

    @property
    def row_bytes(self) -> int:
        return self._first.nbytes

    def read(self, clients: np.ndarray, room: int) -> np.ndarray:
        """Rows of some clients `(room, ...)`, zeros after the last."""
        found = np.zeros((room, *self.row_shape), self._first.dtype)
        found[: len(clients)] = self._rows[clients]
        found[: len(clients)][~self._written[clients]] = self._first
        return found

    def write(self, clients: np.ndarray, rows: np.ndarray) -> None:
        """Replace the rows of distinct clients."""
        self._rows[clients], self._written[clients] = rows, True

    def held(self) -> dict[str, np.ndarray]:
        """The rows that were written, and whose they are."""
        clients = np.flatnonzero(self._written)
        return {"clients": clients, "rows": np.asarray(self._rows[clients])}

    def filled(self, held: dict[str, Any]) -> "HostTable":
        """Another table of the same clients, with rows as `held` gives them."""
        other = HostTable(len(self._written), self._first)
        other.write(np.asarray(held["clients"]), np.asarray(held["rows"]))
        return other

    def copy(self) -> "HostTable":
        return self.filled(self.held())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All rows; for small populations."""
        clients = np.arange(len(self._written))
        return self.read(clients, len(clients)).astype(dtype or self._first.dtype)
