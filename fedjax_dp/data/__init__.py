"""Data sets, partitions and the federated store."""

from fedjax_dp.data.disk import noted_checksum, open_store, save_store
from fedjax_dp.data.holdout import hold_out, pooled, split_each
from fedjax_dp.data.labels import labels_per_client
from fedjax_dp.data.loaders import DATASETS, load, names_clients
from fedjax_dp.data.own import dataset
from fedjax_dp.data.owners import given_parts, natural_parts
from fedjax_dp.data.partition import dirichlet, iid, natural, one_class_per_client, similarity
from fedjax_dp.data.reading import Reading
from fedjax_dp.data.sizes import equal_sizes, one_class_sizes, power_law_sizes, zipf_sizes
from fedjax_dp.data.store import Client, Dataset, FederatedData, federate
from fedjax_dp.data.summary import Summary, label_counts, summarise
from fedjax_dp.data.targets import TARGETS, Targets, Vocabulary

__all__ = [
    "DATASETS",
    "TARGETS",
    "Client",
    "Dataset",
    "FederatedData",
    "Reading",
    "Summary",
    "Targets",
    "Vocabulary",
    "dataset",
    "dirichlet",
    "equal_sizes",
    "federate",
    "given_parts",
    "hold_out",
    "iid",
    "label_counts",
    "labels_per_client",
    "load",
    "names_clients",
    "natural",
    "natural_parts",
    "noted_checksum",
    "one_class_per_client",
    "one_class_sizes",
    "open_store",
    "pooled",
    "power_law_sizes",
    "save_store",
    "similarity",
    "split_each",
    "summarise",
    "zipf_sizes",
]
