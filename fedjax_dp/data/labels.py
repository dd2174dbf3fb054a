"""Partitions in which each client holds at most k labels: exact sizes, no class overdrawn."""

import numpy as np
import scipy

from fedjax_dp import errors
from fedjax_dp.arguments import checks_arguments
from fedjax_dp.data.checks import check_partition, generator


@checks_arguments
def labels_per_client(labels: np.ndarray, sizes: np.ndarray, count: int, seed: int) -> list[np.ndarray]:
    """Each client holds at most `count` labels, in the given sizes.

    Client i takes labels (count i + j) mod C under random orders of labels and clients; how many of each is found by
    proportional fitting to the sizes and to the class counts, then rounded by a maximum flow so that sizes are exact
    and no class is overdrawn. Raises ConfigurationError when these label sets cannot fill the sizes.
    """
    check_partition(labels, sizes)
    rng = generator(seed)
    available = np.bincount(labels)
    classes = available.size
    if not 1 <= count <= classes:
        raise errors.refuse("labels_per_client", count, f"between 1 and the {classes} labels")
    mask = np.zeros((len(sizes), classes), bool)
    for place, client in enumerate(rng.permutation(len(sizes))):
        mask[client, (count * place + np.arange(count)) % classes] = True
    mask = mask[:, rng.permutation(classes)]
    table = _round_table(_fit(mask, sizes, available * (sizes.sum() / len(labels))), sizes, available, mask)
    return deal(labels, table, rng)


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
    whole: np.ndarray = np.floor(np.minimum(table, columns[None, :])).astype(int)
    while (over := whole.sum(0) - columns).max() > 0:  # fitting did not converge: take the excess back, then re-place
        label = int(np.argmax(over))
        whole[np.argmax(whole[:, label]), label] -= 1
    for capacity in (
        mask.astype(int),
        np.where(mask, columns[None, :], 0),
    ):  # next to the fit if possible, else anywhere allowed
        whole = whole + _flow(rows - whole.sum(1), columns - whole.sum(0), capacity)
        if (whole.sum(1) == rows).all():
            return whole
    start = _flow(rows, columns, np.where(mask, columns[None, :], 0))
    if (start.sum(1) == rows).all():
        return start
    raise errors.refuse(
        "labels_per_client",
        int(mask.sum(1).max()),
        f"high enough that every client can be filled (the largest holds {rows.max()} records)",
        "raise labels_per_client, min_records or num_clients",
    )


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
    flows: np.ndarray = scipy.sparse.csgraph.maximum_flow(graph, source, sink).flow[:clients, clients:source].toarray()
    return flows
