"""The summary of a partition: sizes, labels and the distance between clients."""

from typing import NamedTuple

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.client_names import SHOWN
from fedjax_dp.data.store import FederatedData
from fedjax_dp.display import Card, Table, displayed, half

LABELLED = ("classes", "binary", "multi_label")  # tasks whose targets are labels


@displayed
class Summary(NamedTuple):
    """Numbers about federated data; triples are of the least, median and largest client."""

    name: str
    clients: int
    records: int
    records_per_client: tuple[int, float, int]
    task: str
    classes: int  # outputs of a model
    labels_per_client: tuple[int, float, int] | None  # None: targets are no labels
    record_shape: tuple[int, ...]
    stored_as: str
    target_shape: tuple[int, ...] | None  # None: targets are several arrays
    test_records: int
    clients_with_test_records: int | None  # None: the test set is not divided among clients
    names: tuple[str, ...] | None  # of clients, where they have some and are few
    label_distance: float | None  # mean total variation distance of a client's labels from those of all; 0 is iid

    def _card(self) -> Card:
        return self.card(f"federated data {self.name}")

    def card(self, title: str) -> Card:
        """The displayed lines and their title."""
        tested = self.clients_with_test_records
        whose = "not divided among clients" if tested is None else f"parts of {tested:,} clients"
        shape = " x ".join(map(str, self.record_shape))
        facts = {
            "clients": f"{self.clients:,}" + (f" ({', '.join(self.names)})" if self.names else ""),
            "records": f"{self.records:,} for training, {self.test_records:,} for testing ({whose})",
            "one record": f"{shape} ({self.stored_as}), {self._target}",
        }
        if self.label_distance is not None:
            about = "mean total variation between a client's labels and all labels; 0 is alike"
            facts["label distance"] = f"{self.label_distance:.3f} ({about})"
        spreads = {"records per client": self.records_per_client, "labels per client": self.labels_per_client}
        rows = [
            [name, f"{spread[0]:,}", half(spread[1]), f"{spread[2]:,}"] for name, spread in spreads.items() if spread
        ]
        return Card(title, facts, Table(["", "least", "median", "largest"], rows))

    @property
    def _target(self) -> str:
        """The target of a record, in words."""
        aims = " x ".join(map(str, self.target_shape or ()))
        return {
            "classes": f"one of {self.classes} classes",
            "binary": "0 or 1",
            "multi_label": f"any of {self.classes} labels",
            "regression": f"{aims} number{'s' * (aims != '1')} to predict",
            "sequence": f"each followed by one of {self.classes:,} tokens",
        }.get(self.task, "targets of its own")


def label_counts(data: FederatedData) -> np.ndarray:
    """Records of each client and class, `(num_clients, classes)`; of `multi_label` those that have the label.

    Raises: ConfigurationError for targets that are no labels.
    """
    if data.task not in LABELLED:
        raise errors.refuse("task", data.task, " or ".join(LABELLED), "labels alone can be counted")
    owners, y = np.repeat(np.arange(data.num_clients), data.sizes), np.asarray(data.y)[data.row_numbers]
    if data.task == "multi_label":
        return np.add.reduceat(y.astype(np.int64), np.cumsum(data.sizes) - data.sizes)
    classes = 2 if data.task == "binary" else data.classes
    cells = np.bincount(owners * classes + y, minlength=data.num_clients * classes)
    return cells.reshape(data.num_clients, classes)


def summarise(data: FederatedData) -> Summary:
    """The summary of federated data."""
    sizes, spread, distance = np.asarray(data.sizes), None, None
    if data.task in LABELLED:
        counts = label_counts(data)
        spread = _spread((counts > 0).sum(1))
        shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
        distance = float((np.abs(shares - counts.sum(0) / max(1, counts.sum())).sum(1) / 2).mean())
    return Summary(
        name=data.name,
        clients=data.num_clients,
        records=int(sizes.sum()),
        records_per_client=_spread(sizes),
        task=data.task,
        classes=data.classes,
        labels_per_client=spread,
        record_shape=data.record_shape,
        stored_as=np.dtype(data.x.dtype).name,
        target_shape=tuple(data.y.shape[1:]) if hasattr(data.y, "dtype") else None,
        test_records=len(data.x_test),
        clients_with_test_records=None if data.test_clients is None else len(np.unique(data.test_clients)),
        names=data.names.listed if data.names is not None and data.num_clients <= SHOWN else None,
        label_distance=distance,
    )


def _spread(values: np.ndarray) -> tuple[int, float, int]:
    return int(values.min()), float(np.median(values)), int(values.max())
