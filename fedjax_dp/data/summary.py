"""What a partition is like: sizes, labels and how far the clients are from each other."""

from typing import NamedTuple

import numpy as np

from fedjax_dp.arguments import checks_arguments
from fedjax_dp.data.store import FederatedData


class Summary(NamedTuple):
    """Numbers about federated data; where three stand together they are of the least, median and largest client."""

    name: str
    clients: int
    records: int
    records_per_client: tuple[int, float, int]
    classes: int
    labels_per_client: tuple[int, float, int]
    record_shape: tuple[int, ...]
    stored_as: str
    test_records: int
    clients_with_test_records: int | None  # None: the test set is not divided among clients
    label_distance: float  # mean total variation distance of a client's labels from those of all records; 0 is iid


@checks_arguments
def label_counts(data: FederatedData) -> np.ndarray:
    """Records of each client and class, `(num_clients, classes)`."""
    owners = np.repeat(np.arange(data.num_clients), data.sizes)
    cells = np.bincount(
        owners * data.classes + np.asarray(data.y)[data.row_numbers], minlength=data.num_clients * data.classes
    )
    return cells.reshape(data.num_clients, data.classes)


@checks_arguments
def summarise(data: FederatedData) -> Summary:
    """The summary of federated data."""
    counts, sizes = label_counts(data), np.asarray(data.sizes)
    apart = np.abs(counts / sizes[:, None] - counts.sum(0) / sizes.sum()).sum(1) / 2
    return Summary(
        name=data.name,
        clients=data.num_clients,
        records=int(sizes.sum()),
        records_per_client=_spread(sizes),
        classes=data.classes,
        labels_per_client=_spread((counts > 0).sum(1)),
        record_shape=data.record_shape,
        stored_as=np.dtype(data.x.dtype).name,
        test_records=len(data.y_test),
        clients_with_test_records=None if data.test_clients is None else len(np.unique(data.test_clients)),
        label_distance=float(apart.mean()),
    )


def _spread(values: np.ndarray) -> tuple[int, float, int]:
    return int(values.min()), float(np.median(values)), int(values.max())
