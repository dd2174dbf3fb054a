"""The number of records of each client."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.checks import generator
from fedjax_dp.data.store import Dataset
from fedjax_dp.data.targets import check_labels, native

Labels = Dataset | Sequence[int] | np.ndarray  # a data set stands for its training labels
Sizes = int | Sequence[int] | np.ndarray  # a number of clients stands for clients of equal size


def labels_of(labels: Any) -> np.ndarray:
    """Labels `(records,)`, or a data set's training labels."""
    array = native(getattr(labels, "y_train", labels))
    if array.ndim != 1:
        raise errors.refuse("labels", f"shape {array.shape}", "a list of numbers")
    if array.size:
        check_labels("labels", array)
    return array


def sizes_of(sizes: Any, records: int) -> np.ndarray:
    """The records of each client `(num_clients,)`, or equal ones for a number of clients; refuses too many."""
    array = np.asarray(sizes)
    if not array.ndim:
        return equal_sizes(records, sizes)
    if array.ndim != 1 or not array.size:
        raise errors.refuse("sizes", f"shape {array.shape}", "a whole number of records for each client")
    if array.dtype.kind not in "iu" or array.min() < 0:
        got = f"{array.dtype} from {array.min()}" if array.dtype.kind in "iuf" else array.dtype
        raise errors.refuse("sizes", got, "a whole number of records for each client")
    if array.sum() > records:
        raise errors.refuse("the sizes of all clients", int(array.sum()), f"at most the {records} records")
    return array


def equal_sizes(records: int, num_clients: int) -> np.ndarray:
    """The same number of records for each client, `records // num_clients`; what is left over is not used."""
    errors.require_count("num_clients", num_clients)
    if num_clients > records:
        raise errors.refuse("num_clients", num_clients, f"at most the {records} records", "use fewer clients")
    return np.full(num_clients, records // num_clients)


def one_class_sizes(labels: Labels, num_clients: int) -> np.ndarray:
    """The largest equal size for which classes can be dealt to clients whole.

    Adult and 100 clients give 325 (dp_fedavg_output).
    """
    labels = labels_of(labels)
    sizes = np.arange(1, equal_sizes(len(labels), num_clients)[0] + 1)
    room = (np.bincount(labels)[:, None] // sizes).sum(0)  # clients of each size that all classes have room for
    return np.full(num_clients, sizes[room >= num_clients].max())


def power_law_sizes(records: int, num_clients: int, minimum: int, seed: int) -> np.ndarray:
    """`minimum` records each, the rest by LogNormal(0, 2) shares; sums to `records` exactly."""
    spare = _spare(records, num_clients, minimum)
    shares = generator("power-law sizes", seed).lognormal(0.0, 2.0, num_clients)
    return minimum + _round_to(shares / shares.sum() * spare, spare)


def zipf_sizes(records: int, num_clients: int, minimum: int, exponent: float, seed: int) -> np.ndarray:
    """`minimum` records each, the rest by shares 1 / rank^exponent in random order; sums to `records` exactly."""
    errors.require_not_negative("zipf_exponent", exponent)
    spare = _spare(records, num_clients, minimum)
    shares = generator("zipf sizes", seed).permutation(np.arange(1.0, num_clients + 1) ** -exponent)
    return minimum + _round_to(shares / shares.sum() * spare, spare)


def linear_sizes(records: int, num_clients: int) -> np.ndarray:
    """Client i of 1 to num_clients gets records i / (1 + 2 + ...), rounded down, and the last one the rest."""
    return _sizes_by_law("linear", records, num_clients, lambda clients: range(1, clients + 1))


def square_sizes(records: int, num_clients: int) -> np.ndarray:
    """As `linear_sizes`, in proportion to i^2."""
    return _sizes_by_law("square", records, num_clients, lambda clients: [i**2 for i in range(1, clients + 1)])


def exponential_sizes(records: int, num_clients: int) -> np.ndarray:
    """As `linear_sizes`, in proportion to e^i."""
    return _sizes_by_law(
        "exponential", records, num_clients, lambda clients: np.exp(np.arange(1.0 - clients, 1.0)).tolist()
    )


def _sizes_by_law(name: str, records: int, num_clients: int, law: Callable[[int], Sequence[float]]) -> np.ndarray:
    """Sizes in proportion to `law`, whole numbers exactly, rounded down, the rest to the last; refuses a zero."""
    errors.require_integer("num_clients", num_clients, 1, 2**31 - 1)
    parts = law(num_clients)
    whole = sum(parts)
    sizes = np.array([int(records * part // whole) for part in parts])
    sizes[-1] += records - sizes.sum()
    if not sizes.min() > 0:
        got = f"{name} for {len(parts)} clients, the first of which would get none of {records} records"
        raise errors.refuse("sizes", got, "at least a record for each client", "use fewer clients, or other sizes")
    return sizes


def _spare(records: int, num_clients: int, minimum: int) -> int:
    """The records left when each client has the minimum."""
    errors.require_count("num_clients", num_clients)
    errors.require_count("min_records", minimum)
    spare = records - minimum * num_clients
    if spare < 0:
        raise errors.refuse(
            "min_records", minimum, f"at most {records // num_clients} for {num_clients} clients of {records} records"
        )
    return spare


def _round_to(parts: np.ndarray, total: int) -> np.ndarray:
    """Largest-remainder rounding of non-negative parts to integers that sum to `total`."""
    whole = np.floor(parts).astype(int)
    whole[np.argsort(whole - parts, kind="stable")[: total - whole.sum()]] += 1
    return whole
