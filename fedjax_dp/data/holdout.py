"""Test records that clients keep back from their own."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting.neighbours import Unit
from fedjax_dp.data.checks import generator
from fedjax_dp.data.store import Dataset, row_lists
from fedjax_dp.data.targets import rows_of


def split_each(clients: Sequence[np.ndarray], fraction: float, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Training and test rows of every client: `floor((1 - fraction) n)` of its n rows train, at least one does.

    So a client with one record keeps it, and one with two or more gives at least one away.
    """
    errors.require_in_unit_interval("holdout", fraction)
    rng = generator("holdout", seed)
    train, test = [], []
    for rows in row_lists(clients):
        kept = max(1, int((1 - fraction) * len(rows) + 1e-9))  # 0.9 * 10 must not be 8
        order = rng.permutation(len(rows))
        train.append(rows[np.sort(order[:kept])])
        test.append(rows[np.sort(order[kept:])])
    return train, test


def split_rows(clients: Sequence[np.ndarray], fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows of all clients, one after another, as `split_each` has them."""
    train, test = split_each(clients, fraction, seed)
    return np.concatenate(train), np.concatenate(test)


def of_rows(
    name: str, x: np.ndarray, y: np.ndarray, owners: np.ndarray, rows: tuple[np.ndarray, np.ndarray], **about: Any
) -> Dataset:
    """The data set of these records and their clients, `rows` those of training and of testing; `about` the rest."""
    train, test = rows
    ids = {"client_ids": owners[train], "test_client_ids": owners[test]}
    return Dataset(name, x[train], y[train], x[test], y[test], **ids, **about)


def pooled(dataset: Dataset) -> Dataset:
    """Training and test records together as training records, in this order; nothing is left to test on.

    What is cut from one text may then be on both sides, so that no bound of tokens holds any more.
    """
    ids = dataset.client_ids, dataset.test_client_ids
    return dataset._replace(
        x_train=np.concatenate([dataset.x_train, dataset.x_test]),
        y_train=jax.tree.map(lambda *parts: np.concatenate(parts), dataset.y_train, dataset.y_test),
        x_test=dataset.x_test[:0],
        y_test=rows_of(dataset.y_test, slice(0)),
        client_ids=None if ids[0] is None or ids[1] is None else np.concatenate([ids[0], ids[1]]),
        test_client_ids=None,
        unit_ids=None,
        bounds=tuple(bound for bound in dataset.bounds if bound.unit is not Unit.TOKEN),
    )


def hold_out(
    dataset: Dataset, clients: Sequence[np.ndarray], fraction: float, seed: int
) -> tuple[Dataset, list[np.ndarray], np.ndarray]:
    """Each client keeps `fraction` of its own records as its part of the test set, which replaces the data set's.

    Returns the data set, the clients' training rows and, for each test record, the client whose part it is: what
    `federate` takes. Meant for `pooled` data (cpfed: Adult, 16 clients of 3,052 records, 2,441 of them to train on).
    """
    train, test = split_each(clients, fraction, seed)
    if not any(len(part) for part in test):
        raise errors.refuse("holdout", fraction, "used where some client has two records", "use fewer clients")
    rows = np.concatenate(test)
    owners = np.repeat(np.arange(len(test)), [len(part) for part in test])
    kept = rows_of(dataset.y_train, rows)
    held = dataset._replace(x_test=dataset.x_train[rows], y_test=kept, test_client_ids=None)
    return held, train, owners
