"""Hashes of records, by which two sets are known to share some, whatever their order, type, scale or labels.

A record is hashed by the direction of its features about their own mean, seen through a few fixed random projections:
so it is the same record as bytes and as floats, shifted and scaled, reshaped, or with another label. Other changes, as
noise, other columns or principal components, make other records of it: that no hash is shared proves nothing.
Hashes are no secret: whoever has a record can find out whether it is among those of a set.
"""

import base64
import binascii
from typing import Any

import numpy as np

from fedjax_dp.data.store import FederatedData

KEPT = 4096  # of a set: of records that another set shares at a rate f, all are missed with probability (1 - f)^KEPT
COLUMNS = 256  # of a record that are looked at, evenly spread
PROJECTIONS = 8
STEPS = 2**14  # into which each coordinate of a direction is cut; the rounding of float32 moves about 1 in 1,000
NARROW = 3  # features of records whose directions say nothing: they are hashed by value
BLOCK = 1024  # records at once; bounds memory
EMPTY = np.uint64(0)  # of records whose features are all alike, which say nothing


def hashes_of(data: FederatedData) -> np.ndarray:
    """Of all records of the clients `(different records,)` uint64, sorted; those that they hold out are theirs too."""
    rows = data.row_numbers
    hashes = [record_hashes(data.x, data.scale, data.shift)[rows]]
    if data.test_clients is not None:
        hashes.append(record_hashes(data.x_test, data.scale, data.shift))
    distinct = np.unique(np.concatenate(hashes))
    return np.delete(distinct, np.flatnonzero(distinct == EMPTY))


def record_hashes(x: Any, scale: float = 1.0, shift: float = 0.0) -> np.ndarray:
    """Of each row of stored features `(records,)`; scale and shift matter to narrow records alone."""
    flat = np.asarray(x)
    flat = flat.reshape(len(flat), -1)
    flat = flat[:, :: -(-flat.shape[1] // COLUMNS)] if flat.shape[1] else flat
    blocks = (flat[at : at + BLOCK].astype(np.float64) for at in range(0, len(flat), BLOCK))
    if flat.shape[1] <= NARROW:
        parts = [_mixed(*_rounded((block - shift) * scale)) for block in blocks]
    else:
        weights = _projections(flat.shape[1])
        parts = [_directions(block @ weights) for block in blocks]
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def written(hashes: np.ndarray) -> str:
    """The smallest hashes of a set as text: a sample of its records that depends on the records alone."""
    return base64.b64encode(hashes[:KEPT].astype("<u8").tobytes()).decode()


def read(text: str) -> np.ndarray:
    """And back.

    Raises: ValueError for other text.
    """
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), "<u8").astype(np.uint64)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def shared(kept: np.ndarray, hashes: np.ndarray) -> int:
    """How many of the hashes that were kept of a set another set has."""
    return int(np.isin(kept, hashes).sum())


def _projections(columns: int) -> np.ndarray:
    """Directions orthogonal to (1, ..., 1), of bits that are the same in every version of NumPy; then that one."""
    bits = np.random.PCG64(0).random_raw(columns * PROJECTIONS).reshape(columns, PROJECTIONS)
    weights = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    weights -= weights.mean(0)
    return np.concatenate([weights, np.full((columns, 1), 1 / columns)], axis=1)


def _directions(projected: np.ndarray) -> np.ndarray:
    """Hashes of rows `(records, PROJECTIONS + 1)`, the last of which is the mean."""
    around, mean = projected[:, :-1], np.abs(projected[:, -1])
    length = np.sqrt(np.sum(around**2, axis=1))
    known = (length > 1e-6 * mean) & np.isfinite(length)
    unit = around[known] / length[known, None]
    unit *= np.where(unit[:, :1] < 0, -1, 1)  # negatives of pictures are the same records
    found = np.full(len(projected), EMPTY)
    found[known] = _mixed(np.round(unit * (STEPS / 2)).astype(np.int64))
    return found


def _rounded(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers to 17 bits: float32 rounds the same value to these wherever it was computed, but for 1 in 100."""
    mantissa, exponent = np.frexp(np.nan_to_num(seen))
    return np.round(mantissa * 2**17).astype(np.int64), exponent.astype(np.int64)


def _mixed(*numbers: np.ndarray) -> np.ndarray:
    """One number of 64 bits for each row (the finalizer of splitmix64 after each column)."""
    found = np.full(len(numbers[0]), np.uint64(0x9E3779B97F4A7C15))
    for column in np.concatenate(numbers, axis=1).T.astype(np.uint64):
        found = (found ^ column) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found ^= found >> np.uint64(31)
    return found
