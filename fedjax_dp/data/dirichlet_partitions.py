"""Partitions by Dirichlet distributions: over the classes of a client, or over the clients of a class."""

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.checks import generator
from fedjax_dp.data.labels import deal
from fedjax_dp.data.names import CONCENTRATION_SCALES
from fedjax_dp.data.sizes import Labels, Sizes, labels_of, sizes_of

ATTEMPTS = 10  # of `class_dirichlet`, until its smallest client is large enough
BLOCK = 1 << 13  # records that `inner_dirichlet` deals at a time


def dirichlet(
    labels: Labels, sizes: Sizes, concentration: float, seed: int = 0, scale: str = "per_class"
) -> list[np.ndarray]:
    """Each client draws its records class by class from its own Dirichlet class distribution, without replacement.

    A class that is used up is left out and the distribution renormalised; clients draw one after the other, in random
    order. `concentration` is the Dirichlet parameter of each class (`per_class`), or multiplies the uniform
    distribution over classes (`hsu`), which makes the parameter concentration / classes. If a client has no
    probability on any class that is left, it draws evenly from those.
    Source: Hsu et al. 2019, arXiv:1909.06335, section 3; dpnfl.
    """
    labels = labels_of(labels)
    sizes = sizes_of(sizes, len(labels))
    rng, left = generator("dirichlet", seed), np.bincount(labels)
    wishes = _wishes(rng, left, len(sizes), concentration, scale)
    table = np.zeros(wishes.shape, np.int64)
    for client in rng.permutation(len(sizes)):
        wish, owed = wishes[client], sizes[client]
        while owed:  # at most one turn for each exhausted class, and one more
            wish = np.where(left > 0, wish, 0.0)
            if not wish.sum() > 0:
                wish = (left > 0).astype(float)
            # drawing one by one and repeating draws from empty classes has the same law as this
            drawn = np.minimum(rng.multinomial(owed, wish / wish.sum()), left)
            table[client] += drawn
            left -= drawn
            owed -= drawn.sum()
    return deal(labels, table, rng)


def inner_dirichlet(
    labels: Labels, sizes: Sizes, concentration: float, seed: int = 0, scale: str = "per_class"
) -> list[np.ndarray]:
    """As `dirichlet`, but dealt record by record: exhausted classes affect all clients equally, not only the last.

    A client with room left is drawn uniformly, then a class of its next record from that client's distribution over the
    classes that are left, until all sizes are filled.
    Source: Acar et al. 2021, arXiv:2111.04263, and its published code.
    """
    labels = labels_of(labels)
    sizes = sizes_of(sizes, len(labels))
    rng, left = generator("inner dirichlet", seed), np.bincount(labels)
    wishes = _wishes(rng, left, len(sizes), concentration, scale)
    takers = _takers(rng, sizes)
    table = np.zeros(wishes.shape, np.int64)
    at = 0
    while at < len(takers):
        some = takers[at : at + BLOCK]
        drawn = _classes(rng, wishes, left, some)
        over = np.flatnonzero(_rank(drawn, left.size) >= left[drawn])  # the first of these finds its class exhausted,
        taken = slice(over[0] if over.size else None)  # and later ones are drawn again
        np.add.at(table, (some[taken], drawn[taken]), 1)
        left = left - np.bincount(drawn[taken], minlength=left.size)
        at += len(drawn[taken])
    return deal(labels, table, rng)


def _takers(rng: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
    """The client that takes each record in turn, drawn uniformly from those with room."""
    room, blocks = sizes.astype(np.int64), []
    while room.any():
        some = rng.choice(np.flatnonzero(room), min(int(room.sum()), BLOCK))
        some = some[_rank(some, len(room)) < room[some]]  # to draw again where one is full has the same law as this
        blocks.append(some)
        room = room - np.bincount(some, minlength=len(room))
    return np.concatenate([*blocks, np.empty(0, np.int64)])


def _classes(rng: np.random.Generator, wishes: np.ndarray, left: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """A class for each of some clients, from its distribution over the remaining classes, else uniform."""
    open_ = np.where(left > 0, wishes[clients], 0.0)
    open_ = np.where(open_.sum(1, keepdims=True) > 0, open_, (left > 0).astype(float))
    upto = np.cumsum(open_, 1)
    upto /= upto[:, -1:]
    return (rng.random((len(clients), 1)) >= upto).sum(1)


def _rank(names: np.ndarray, count: int) -> np.ndarray:
    """How often each number, below `count`, occurs before its position."""
    order = np.argsort(names, kind="stable")
    counts = np.bincount(names, minlength=count)
    rank = np.empty(len(names), np.int64)
    rank[order] = np.arange(len(names)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank


def class_dirichlet(
    labels: Labels, num_clients: int, concentration: float, seed: int = 0, balance: bool = True, min_records: int = 10
) -> list[np.ndarray]:
    """The records of each class are spread over clients by a Dirichlet distribution: what most papers call Dirichlet.

    For each class shares are drawn from Dir(concentration, ..., concentration) over clients, and its records, in random
    order, cut at their cumulative sums. Sizes follow from that, and every record is used. If the smallest client has
    fewer than `min_records`, all is drawn again.
    balance  clients that hold their even part, records / num_clients, or more take nothing of the classes to come; the
             other shares are renormalised.
    Raises:  ConfigurationError if the smallest client is too small ten times.
    Source:  Yurochkin et al. 2019, arXiv:1905.12022, section 4; balance and min_records are of its published code.
    """
    labels = labels_of(labels)
    errors.require_count("num_clients", num_clients)
    errors.require_count("min_records", min_records)
    errors.require_positive("concentration", concentration)
    rng, counts, even = generator("class dirichlet", seed), np.bincount(labels.astype(int)), len(labels) / num_clients
    smallest = 0
    for _ in range(ATTEMPTS if min_records <= even else 0):
        table = np.zeros((num_clients, counts.size), np.int64)
        for label, records in enumerate(counts):
            shares = rng.dirichlet(np.full(num_clients, concentration))
            if balance:
                short = table.sum(1) < even
                shares = np.where(short, shares, 0.0)
                shares = shares if shares.sum() > 0 else short.astype(float)
            upto = np.cumsum(shares)
            table[:, label] = np.diff((upto / upto[-1] * records).astype(int), prepend=0)
        smallest = max(smallest, int(table.sum(1).min()))
        if smallest >= min_records:
            return deal(labels, table, rng)
    wanted, remedy = f"at most {int(even)} for {num_clients} clients of {len(labels)} records", "lower it"
    if min_records <= even:
        drawn = f"{smallest} in the best of {ATTEMPTS} attempts at concentration {concentration:g}"
        wanted, remedy = f"what the smallest client can get, {drawn}", f"{remedy}, take a larger concentration"
    raise errors.refuse("min_records", min_records, wanted, f"{remedy} or use fewer clients")


def _wishes(
    rng: np.random.Generator, counts: np.ndarray, num_clients: int, concentration: float, scale: str
) -> np.ndarray:
    """The class distribution of each client `(num_clients, classes)`; 0 for classes without records."""
    errors.require_positive("concentration", concentration)
    errors.require_choice("concentration_scale", scale, CONCENTRATION_SCALES)
    present = np.flatnonzero(counts)
    wishes = np.zeros((num_clients, counts.size))
    each = concentration / (present.size if scale == "hsu" else 1)
    wishes[:, present] = rng.dirichlet(np.full(present.size, each), num_clients)
    return wishes
