"""Partitions: which training rows each client holds. The seed determines each partition."""

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_dp import errors, validation
from fedjax_dp.data.checks import generator
from fedjax_dp.data.labels import deal, even_sizes
from fedjax_dp.data.names import REMAINDERS
from fedjax_dp.data.sizes import Labels, Sizes, labels_of, one_class_sizes, sizes_of
from fedjax_dp.data.store import Dataset
from fedjax_dp.data.targets import as_arrays, count_records, native, require_finite


def iid(labels: Any, sizes: Sizes, seed: int = 0) -> list[np.ndarray]:
    """A random split into parts of the given sizes, or a number of equal ones: `iid(dataset, 10)`.

    Of labels, or targets of another task, only the number counts.
    """
    targets = as_arrays(getattr(labels, "y_train", labels))
    if not jax.tree.leaves(targets) or not all(part.ndim for part in jax.tree.leaves(targets)):
        raise errors.refuse("labels", validation.describe(labels), "one for each record")
    records = count_records(targets)
    sizes = sizes_of(sizes, records)
    order = generator("iid", seed).permutation(np.arange(records))
    return np.split(order[: sizes.sum()], np.cumsum(sizes)[:-1])


def similarity(labels: Labels, num_clients: int, percent: float, seed: int = 0) -> list[np.ndarray]:
    """`percent` of the records dealt at random, the others sorted by label and cut into one piece per client.

    Sizes differ by at most one record and every record is used. 0 gives each client few labels, 100 is iid. Test labels
    cut with the same number of clients give client k the same part of the sorted labels, as its own test part.
    Source: Karimireddy et al. 2020, arXiv:1910.06378, section 7; rfedavg and its published code.
    """
    labels = labels_of(labels)
    errors.require_count("num_clients", num_clients)
    if not 0 <= percent <= 100:
        raise errors.refuse("similarity", percent, "between 0 and 100, in percent")
    order = generator("similarity", seed).permutation(len(labels))
    mixed = round(percent / 100 * len(labels))
    loose, rest = order[:mixed], order[mixed:]
    rest = rest[np.argsort(labels[rest], kind="stable")]
    sizes, of_loose = (even_sizes(total, num_clients) for total in (len(labels), mixed))
    parts = np.split(loose, np.cumsum(of_loose)[:-1]), np.split(rest, np.cumsum(sizes - of_loose)[:-1])
    return [np.concatenate(pair) for pair in zip(*parts)]


def one_class_per_client(labels: Labels, sizes: Sizes, seed: int = 0) -> list[np.ndarray]:
    """Every client holds records of one class; classes get clients in proportion to their records.

    Adult with 100 clients of 325 records gives 76 and 24 (dp_fedavg_output). Larger clients choose first; each takes
    the class that is furthest behind its share and still has enough records. For a number of clients these have
    `one_class_sizes`.
    """
    labels = labels_of(labels)
    sizes = one_class_sizes(labels, sizes) if isinstance(sizes, int) else sizes_of(sizes, len(labels))
    rng = generator("one class", seed)
    left = np.bincount(labels)
    behind = left * (sizes.sum() / len(labels))
    table = np.zeros((len(sizes), left.size), np.int64)
    order = rng.permutation(len(sizes))
    for client in order[np.argsort(-sizes[order], kind="stable")]:
        size = sizes[client]
        able = left >= size
        if not able.any():
            wanted = f"possible, but no class has {size} records left for client {client}"
            remedy = "make the largest clients smaller (one_class_sizes finds equal ones)"
            raise errors.refuse("partition", "one-class", wanted, remedy)
        choice = int(np.argmax(np.where(able, behind, -np.inf)))
        table[client, choice] = size
        left[choice] -= size
        behind[choice] -= size
    return deal(labels, table, rng)


def natural(client_ids: Dataset | Sequence[Any] | np.ndarray | None) -> list[np.ndarray]:
    """One client for each distinct id, in increasing order of id; ids are integers or text `(records,)`.

    A data set stands for its `client_ids`.
    Raises: ConfigurationError where there are none.
    """
    ids = errors.require_given(
        "client_ids", _ids_of(client_ids), "name the owner of each record, or deal them: data.iid"
    )
    if ids.ndim != 1:
        raise errors.refuse("client_ids", f"shape {ids.shape}", "(records,), one per record")
    require_finite("client_ids", ids, "an id for every record", "drop records without one")
    kinds = {*map(type, ids)} if ids.dtype == object else {str}
    if len(kinds) > 1 or not issubclass(kinds.pop(), str | int | np.integer):  # None and NaN have no order
        remedy = "drop records without one; .astype(str) makes text of numbers and words"
        raise errors.refuse("client_ids", "others, or none", "integers or text for every record", remedy)
    order = np.argsort(ids, kind="stable")
    owners = ids[order]
    return np.split(order, np.flatnonzero(owners[1:] != owners[:-1]) + 1)  # ids may be text, which has no difference


def grouped_natural(
    client_ids: Dataset | Sequence[Any] | np.ndarray, group_size: int, seed: int = 0, remainder: str = "smaller"
) -> list[np.ndarray]:
    """One client for each `group_size` distinct ids, which are put together at random.

    remainder  of ids that fill no group: smaller, a client of fewer; spread, one more for some clients; drop, not used;
               refuse.
    Raises:    ConfigurationError for a remainder that is refused, and where `spread` and `drop` leave no group.
    """
    natural(client_ids)  # refuses what are no ids
    owners, number = group(native(_ids_of(client_ids)), group_size, seed, remainder)
    return rows_by_owner(number[owners])


def _ids_of(source: Any) -> np.ndarray | None:
    """The ids of a data set's training records, or ids themselves, as an array."""
    ids = source.client_ids if isinstance(source, Dataset) else source
    return None if ids is None else native(ids)


def group(ids: np.ndarray, group_size: int, seed: int, remainder: str) -> tuple[np.ndarray, np.ndarray]:
    """The place of each record's id among the distinct ones `(records,)`, and of each of these its group, or -1."""
    errors.require_count("group_size", group_size)
    errors.require_choice("remainder", remainder, REMAINDERS)
    names, owners = np.unique(ids, return_inverse=True)
    whole, left = divmod(len(names), group_size)
    if (left and remainder == "refuse") or not (whole or remainder == "smaller"):
        wanted = f"a size that divides {len(names)} ids" if whole else f"at most the {len(names)} ids"
        raise errors.refuse("group_size", group_size, wanted, "let the remainder be smaller")
    rest = np.full(left, whole if remainder == "smaller" else -1)
    if remainder == "spread":
        rest = np.arange(left) % max(whole, 1)
    number = np.empty(len(names), int)
    number[generator("groups", seed).permutation(len(names))] = [*np.repeat(np.arange(whole), group_size), *rest]
    return owners, number


def rows_by_owner(owners: np.ndarray) -> list[np.ndarray]:
    """The rows of each owner, in increasing order of their numbers; those of owner -1 are left out."""
    rows = np.flatnonzero(owners >= 0)
    return [rows[part] for part in natural(owners[rows])]


def continuous(
    values: Dataset | Sequence[float] | np.ndarray, num_clients: int, strength: float, seed: int = 0
) -> list[np.ndarray]:
    """Records sorted by one of their numbers and cut into parts whose sizes differ by at most one.

    The sort key is s z + (1 - s) e: z the standardised number, e standard Gaussian, s the `strength`. 1 sorts by the
    number alone, with ties in the given order; 0 is iid.
    Shapes:  values `(records,)`, such as a column of features, or a target of regression (a data set stands
             for its own).
    """
    values = native(getattr(values, "y_train", values))
    if values.dtype == object:  # None among numbers is NaN
        with contextlib.suppress(TypeError, ValueError):
            values = values.astype(float)
    if values.ndim != 1 or not values.size or values.dtype.kind not in "biuf":
        raise errors.refuse("values", f"{values.dtype} of shape {values.shape}", "(records,) finite numbers")
    require_finite("values", values, "a finite number of every record", "fill them in, or drop these records")
    errors.require_count("num_clients", num_clients)
    if not 0 <= strength <= 1:
        raise errors.refuse("strength", strength, "between 0 and 1")
    numbers = values.astype(float)
    spread = numbers.std()
    if strength and not spread > 0:
        raise errors.refuse("values", "the same number for all records", "numbers that differ", "take another column")
    noise = generator("continuous", seed).standard_normal(len(numbers))
    blend = strength * ((numbers - numbers.mean()) / (spread or 1.0)) + (1 - strength) * noise
    return np.split(np.argsort(blend, kind="stable"), np.cumsum(even_sizes(len(numbers), num_clients))[:-1])
