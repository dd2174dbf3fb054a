"""Partitions in which each client holds few labels: by number, by sets of labels, by shards of the sorted records."""

import numpy as np
import scipy

from fedjax_dp import errors
from fedjax_dp.data.checks import generator
from fedjax_dp.data.names import ASSIGNMENTS
from fedjax_dp.data.sizes import Labels, Sizes, labels_of, sizes_of


def labels_per_client(labels: Labels, sizes: Sizes, count: int, seed: int = 0) -> list[np.ndarray]:
    """Each client holds at most `count` labels, in the given sizes.

    Client i takes labels (count i + j) mod C under random orders of labels and clients; how many of each is found by
    proportional fitting to the sizes and to the class counts, then rounded by a maximum flow so that sizes are exact
    and no class is overdrawn. Raises ConfigurationError when these label sets cannot fill the sizes.
    """
    labels = labels_of(labels)
    sizes = sizes_of(sizes, len(labels))
    rng = generator("labels", seed)
    most = int(labels.max()) + 1
    if not 1 <= count <= most:
        raise errors.refuse("labels_per_client", count, f"between 1 and the {most} labels")
    labels = np.unique(labels, return_inverse=True)[1]  # a number that no record has is no label
    available = np.bincount(labels)
    classes = available.size
    count = min(count, classes)
    mask = np.zeros((len(sizes), classes), bool)
    for place, client in enumerate(rng.permutation(len(sizes))):
        mask[client, (count * place + np.arange(count)) % classes] = True
    mask = mask[:, rng.permutation(classes)]
    table = _round_table(_fit(mask, sizes, available * (sizes.sum() / len(labels))), sizes, available, mask)
    return deal(labels, table, rng)


def pathological(
    labels: Labels, num_clients: int, count: int, seed: int = 0, assignment: str = "random"
) -> list[np.ndarray]:
    """Each client has `count` of the C labels, and a label's records are split evenly among the clients that have it.

    Sizes follow from that. Records of a label that no client has are not used.
    assignment  random: any labels; cyclic: (i + j) mod C for client i and j < count; first: i mod C, the rest random.
    Raises:     ConfigurationError where a label has fewer records than clients that have it.
    Source:     Li et al. 2021, arXiv:2102.02079, section 4.1, and its published code (`first`).
    """
    labels = labels_of(labels)
    errors.require_count("num_clients", num_clients)
    errors.require_choice("assignment", assignment, ASSIGNMENTS)
    rng, counts = generator("pathological", seed), np.bincount(labels.astype(int))
    present = np.flatnonzero(counts)
    if not 1 <= count <= present.size:
        raise errors.refuse("labels_per_client", count, f"between 1 and the {present.size} labels")
    table = np.zeros((num_clients, counts.size), np.int64)
    for client in range(num_clients):
        chosen = rng.permutation(present.size)[:count]
        if assignment == "cyclic":
            chosen = (client + np.arange(count)) % present.size
        elif assignment == "first":
            others = np.delete(np.arange(present.size), client % present.size)
            chosen = np.array([client % present.size, *rng.permutation(others)[: count - 1]])
        table[client, present[chosen]] = 1
    for label, owners in ((label, np.flatnonzero(table[:, label])) for label in present):
        if len(owners) > counts[label]:
            of_label = f"the {counts[label]} records of label {label} go round, not for {len(owners)} clients"
            remedy = "lower num_clients or labels_per_client"
            raise errors.refuse("num_clients", num_clients, f"few enough that {of_label}", remedy)
        table[owners, label] = even_sizes(counts[label], len(owners)) if len(owners) else 0
    return deal(labels, table, rng)


def shards(
    labels: Labels, num_clients: int, seed: int = 0, shards_per_client: int | None = None, shard_size: int | None = None
) -> list[np.ndarray]:
    """Records sorted by label and cut into shards of one size, which are dealt to clients at random.

    MNIST in 200 shards of 300 to 100 clients gives most of them two labels.
    shards_per_client  s of each client, 2 unless given: num_clients s shards of floor(records / (num_clients s));
    shard_size         instead: all whole shards of that size, of which the first clients get one more than the others.
    What is left over at the end of the sorted records is not used.
    Source:  McMahan et al. 2017, arXiv:1602.05629, section 3.
    """
    labels = labels_of(labels)
    errors.require_count("num_clients", num_clients)
    if shards_per_client is not None and shard_size is not None:
        raise errors.refuse("shard_size", shard_size, "left out where shards_per_client says it", "drop one of them")
    each = 2 if shards_per_client is None else shards_per_client
    errors.require_count("shards_per_client", each)
    size = len(labels) // (num_clients * each) if shard_size is None else shard_size
    if shard_size is not None:
        errors.require_count("shard_size", shard_size)
    number = num_clients * each if shard_size is None else len(labels) // size
    if not size or number < num_clients:
        what = "shard_size" if size else "shards_per_client"
        wanted = f"so small that {len(labels)} records make a shard for each of {num_clients * (1 if size else each)}"
        raise errors.refuse(what, size or each, wanted, "use fewer clients")
    pieces = np.argsort(labels, kind="stable")[: number * size].reshape(number, size)
    dealt = np.split(generator("shards", seed).permutation(number), np.cumsum(even_sizes(number, num_clients))[:-1])
    return [pieces[own].reshape(-1) for own in dealt]


def even_sizes(total: int, parts: int) -> np.ndarray:
    """Sizes that differ by at most one and sum to `total`; the first are the larger ones."""
    errors.require_integer("num_clients", parts, 1, 2**31 - 1)
    return total // parts + (np.arange(parts) < total % parts)


def deal(labels: np.ndarray, table: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Rows per client, drawn at random: `table[i, c]` records of class c for client i."""
    rows: list[list[np.ndarray]] = [[] for _ in table]
    for label in range(table.shape[1]):
        order = rng.permutation(np.flatnonzero(labels == label))
        for client, part in enumerate(np.split(order, np.cumsum(table[:, label]))[:-1]):
            rows[client].append(part)
    return [np.concatenate(parts) for parts in rows]


def _fit(mask: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Iterative proportional fitting of a 0/1 mask to row and column sums."""
    table = mask.astype(float)
    for _ in range(500):
        table *= (columns / np.maximum(table.sum(0), 1e-300))[None, :]
        table *= (rows / np.maximum(table.sum(1), 1e-300))[:, None]
    return table


def _round_table(table: np.ndarray, rows: np.ndarray, columns: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Integers near `table` inside `mask`, with exact row sums and column sums of at most `columns`."""
    whole = np.floor(np.minimum(table, columns[None, :])).astype(int)
    while (over := whole.sum(0) - columns).max() > 0:  # fitting did not converge: take the excess back, then re-place
        label = int(np.argmax(over))
        whole[np.argmax(whole[:, label]), label] -= 1
    anywhere = np.where(mask, columns[None, :], 0)
    for capacity in (mask.astype(int), anywhere):  # next to the fit if possible
        whole = whole + _flow(rows - whole.sum(1), columns - whole.sum(0), capacity)
        if (whole.sum(1) == rows).all():
            return whole
    start = _flow(rows, columns, anywhere)
    if (start.sum(1) == rows).all():
        return start
    wanted = f"high enough that every client can be filled (the largest holds {rows.max()} records)"
    remedy = "raise labels_per_client, min_records or num_clients"
    raise errors.refuse("labels_per_client", int(mask.sum(1).max()), wanted, remedy)


def _flow(supply: np.ndarray, demand: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """Maximum flow from rows to columns of `capacity (clients, classes)`; returns the table of flows."""
    clients, classes = capacity.shape
    source, sink = clients + classes, clients + classes + 1
    row, column = np.nonzero(capacity)
    begin = np.concatenate([row, np.arange(clients, source), np.full(clients, source)])
    end = np.concatenate([clients + column, np.full(classes, sink), np.arange(clients)])
    amount = np.concatenate([capacity[row, column], demand, supply]).astype(np.int32)
    real = amount > 0
    graph = scipy.sparse.csr_array((amount[real], (begin[real], end[real])), shape=(sink + 1,) * 2)
    return scipy.sparse.csgraph.maximum_flow(graph, source, sink).flow[:clients, clients:source].toarray()
