"""Data sets, partitions and the federated store."""

from fedjax_dp.data.loaders import DATASETS, load
from fedjax_dp.data.partition import equal_sizes, iid, labels_per_client, natural, power_law_sizes
from fedjax_dp.data.store import Client, Dataset, FederatedData, federate

__all__ = [
    "DATASETS",
    "Client",
    "Dataset",
    "FederatedData",
    "equal_sizes",
    "federate",
    "iid",
    "labels_per_client",
    "load",
    "natural",
    "power_law_sizes",
]
