"""Partitions: which training rows each client holds. Every one is decided by its seed."""

import numpy as np

from fedjax_dp import errors
from fedjax_dp.arguments import checks_arguments
from fedjax_dp.data.checks import check_partition, generator
from fedjax_dp.data.labels import deal

SCALES = ("per_class", "hsu")


@checks_arguments
def iid(labels: np.ndarray, sizes: np.ndarray, seed: int) -> list[np.ndarray]:
    """A random split into parts of the given sizes."""
    check_partition(labels, sizes)
    order = generator(seed).permutation(len(labels))
    return np.split(order[: sizes.sum()], np.cumsum(sizes)[:-1])


@checks_arguments
def similarity(labels: np.ndarray, num_clients: int, percent: float, seed: int) -> list[np.ndarray]:
    """`percent` of the records dealt at random, the others sorted by label and cut into one piece per client.

    Sizes differ by at most one record and every record is used. 0 gives each client few labels, 100 is iid. Test labels
    cut with the same number of clients give client k the same part of the sorted labels, as its own test part.
    Source: Karimireddy et al. 2020, arXiv:1910.06378, section 7; rfedavg and its published code.
    """
    check_partition(labels)
    errors.require_count("num_clients", num_clients)
    if not 0 <= percent <= 100:
        raise errors.refuse("similarity", percent, "between 0 and 100, in percent")
    order = generator(seed).permutation(len(labels))
    mixed = round(percent / 100 * len(labels))
    loose, rest = order[:mixed], order[mixed:]
    rest = rest[np.argsort(labels[rest], kind="stable")]
    sizes, of_loose = (_even(total, num_clients) for total in (len(labels), mixed))
    parts = np.split(loose, np.cumsum(of_loose)[:-1]), np.split(rest, np.cumsum(sizes - of_loose)[:-1])
    return [np.concatenate(pair) for pair in zip(*parts)]


@checks_arguments
def dirichlet(
    labels: np.ndarray, sizes: np.ndarray, concentration: float, seed: int, scale: str = "per_class"
) -> list[np.ndarray]:
    """Each client draws its records class by class from its own Dirichlet class distribution, without replacement.

    A class that is used up is left out and the distribution renormalised; clients draw one after the other, in random
    order. `concentration` is the Dirichlet parameter of each class (`per_class`), or multiplies the uniform
    distribution over classes (`hsu`), which makes the parameter concentration / classes. If a client has no
    probability on any class that is left, it draws evenly from those.
    Source: Hsu et al. 2019, arXiv:1909.06335, section 3; dpnfl.
    """
    check_partition(labels, sizes)
    errors.require_positive("concentration", concentration)
    errors.require_choice("concentration_scale", scale, SCALES)
    rng = generator(seed)
    left = np.bincount(labels)
    parameter = concentration / (left.size if scale == "hsu" else 1)
    wishes = rng.dirichlet(np.full(left.size, parameter), len(sizes))
    table = np.zeros(wishes.shape, np.int64)
    for client in rng.permutation(len(sizes)):
        wish, owed = wishes[client], sizes[client]
        while owed:  # at most once for each class that is used up, and once more
            wish = np.where(left > 0, wish, 0.0)
            if not wish.sum() > 0:
                wish = (left > 0).astype(float)
            # drawing one by one and repeating draws from empty classes has the same law as this
            drawn = np.minimum(rng.multinomial(owed, wish / wish.sum()), left)
            table[client] += drawn
            left -= drawn
            owed -= drawn.sum()
    return deal(labels, table, rng)


@checks_arguments
def one_class_per_client(labels: np.ndarray, sizes: np.ndarray, seed: int) -> list[np.ndarray]:
    """Every client holds records of one class; classes get clients in proportion to their records.

    Adult with 100 clients of 325 records gives 76 and 24 (dp_fedavg_output). Larger clients choose first; each takes
    the class that is furthest behind its share and still has enough records.
    """
    check_partition(labels, sizes)
    rng = generator(seed)
    left = np.bincount(labels)
    behind = left * (sizes.sum() / len(labels))
    table = np.zeros((len(sizes), left.size), np.int64)
    order = rng.permutation(len(sizes))
    for client in order[np.argsort(-sizes[order], kind="stable")]:
        size = sizes[client]
        able = left >= size
        if not able.any():
            raise errors.refuse(
                "partition",
                "one-class",
                f"possible, but no class has {size} records left for client {client}",
                "make the largest clients smaller (one_class_sizes finds equal ones)",
            )
        choice = int(np.argmax(np.where(able, behind, -np.inf)))
        table[client, choice] = size
        left[choice] -= size
        behind[choice] -= size
    return deal(labels, table, rng)


@checks_arguments
def natural(client_ids: np.ndarray | None) -> list[np.ndarray]:
    """One client for each distinct id, in increasing order of id; ids are integers or text `(records,)`.

    Raises: ConfigurationError for None, as a data set without ids has it.
    """
    client_ids = errors.require_given("client_ids", client_ids, "name the owner of each record, or deal them: data.iid")
    if client_ids.ndim != 1:
        raise errors.refuse("client_ids", f"shape {client_ids.shape}", "(records,), one per record")
    if client_ids.dtype.kind == "f" and not np.isfinite(client_ids).all():
        raise errors.refuse("client_ids", "NaN or infinity", "an id for every record", "drop records without one")
    order = np.argsort(client_ids, kind="stable")
    owners = client_ids[order]
    return np.split(order, np.flatnonzero(owners[1:] != owners[:-1]) + 1)  # ids may be text, which has no difference


def _even(total: int, parts: int) -> np.ndarray:
    """Sizes that differ by at most one and sum to `total`."""
    errors.require_integer("num_clients", parts, 1, 2**31 - 1)
    return total // parts + (np.arange(parts) < total % parts)
