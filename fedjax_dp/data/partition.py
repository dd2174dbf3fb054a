"""How records are spread over clients. Every function is deterministic in its seed and returns rows per client."""

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from fedjax_dp import errors


def equal_sizes(records: int, num_clients: int) -> np.ndarray:
    """The same number of records for each client, `records // num_clients`; what is left over is not used."""
    errors.require_count("num_clients", num_clients)
    if num_clients > records:
        raise errors.refuse("num_clients", num_clients, f"at most the {records} records", "use fewer clients")
    return np.full(num_clients, records // num_clients)


def power_law_sizes(records: int, num_clients: int, minimum: int, seed: int) -> np.ndarray:
    """`minimum` records each, the rest by LogNormal(0, 2) shares; sums to `records` exactly."""
    errors.require_count("num_clients", num_clients)
    errors.require_count("min_records", minimum)
    spare = records - minimum * num_clients
    if spare < 0:
        raise errors.refuse(
            "min_records", minimum, f"at most {records // num_clients} for {num_clients} clients of {records} records"
        )
    shares = np.random.default_rng(seed).lognormal(0.0, 2.0, num_clients)
    return minimum + _round_to(shares / shares.sum() * spare, spare)


def iid(labels: np.ndarray, sizes: np.ndarray, seed: int) -> list[np.ndarray]:
    """A random split into parts of the given sizes."""
    _check_total(labels, sizes)
    order = np.random.default_rng(seed).permutation(len(labels))
    return np.split(order[: sizes.sum()], np.cumsum(sizes)[:-1])


def labels_per_client(labels: np.ndarray, sizes: np.ndarray, count: int, seed: int) -> list[np.ndarray]:
    """Each client holds at most `count` labels, in the given sizes.

    Client i takes labels (count i + j) mod C under random orders of labels and clients; how many of each is found by
    proportional fitting to the sizes and to the class counts, then rounded by a maximum flow so that sizes are exact
    and no class is overdrawn. Raises ConfigurationError when these label sets cannot fill the sizes.
    """
    _check_total(labels, sizes)
    rng = np.random.default_rng(seed)
    available = np.bincount(labels)
    classes = available.size
    if not 1 <= count <= classes:
        raise errors.refuse("labels_per_client", count, f"between 1 and the {classes} labels")
    mask = np.zeros((len(sizes), classes), bool)
    for place, client in enumerate(rng.permutation(len(sizes))):
        mask[client, (count * place + np.arange(count)) % classes] = True
    mask = mask[:, rng.permutation(classes)]
    table = _round_table(_fit(mask, sizes, available * (sizes.sum() / len(labels))), sizes, available, mask)
    rows: list[list[np.ndarray]] = [[] for _ in sizes]
    for label in range(classes):
        order = rng.permutation(np.flatnonzero(labels == label))
        for client, part in enumerate(np.split(order, np.cumsum(table[:, label]))[:-1]):
            rows[client].append(part)
    return [np.concatenate(parts) for parts in rows]


def natural(client_ids: np.ndarray) -> list[np.ndarray]:
    """One client for each distinct id, in increasing order of id."""
    order = np.argsort(client_ids, kind="stable")
    owners = np.asarray(client_ids)[order]
    return np.split(order, np.flatnonzero(owners[1:] != owners[:-1]) + 1)  # ids may be text, which has no difference


def _check_total(labels: np.ndarray, sizes: np.ndarray) -> None:
    if sizes.sum() > len(labels):
        raise errors.refuse("the sizes of all clients", int(sizes.sum()), f"at most the {len(labels)} records")


def _round_to(parts: np.ndarray, total: int) -> np.ndarray:
    """Largest-remainder rounding of non-negative parts to integers that sum to `total`."""
    whole = np.floor(parts).astype(int)
    whole[np.argsort(whole - parts, kind="stable")[: total - whole.sum()]] += 1
    return whole


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
        "labels_per_client", int(mask.sum(1).max()),
        f"high enough that every client can be filled (the largest holds {rows.max()} records)",
        "raise labels_per_client, min_records or num_clients",
    )  # fmt: skip


def _flow(supply: np.ndarray, demand: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """Maximum flow from rows to columns; returns the table of flows."""
    clients, classes = capacity.shape
    graph = np.zeros((clients + classes + 2,) * 2, np.int32)
    source, sink = clients + classes, clients + classes + 1
    graph[source, :clients] = supply
    graph[:clients, clients:source] = capacity
    graph[clients:source, sink] = demand
    flow = maximum_flow(csr_array(graph), source, sink).flow.toarray()
    return flow[:clients, clients:source]
