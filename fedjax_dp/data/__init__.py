"""Data sets, partitions and the federated store."""

from fedjax_dp.data.dirichlet import class_dirichlet, dirichlet, inner_dirichlet
from fedjax_dp.data.disk import noted_checksum, noted_hashes, open_store, save_store
from fedjax_dp.data.holdout import hold_out, pooled, split_each
from fedjax_dp.data.labels import labels_per_client, pathological, shards
from fedjax_dp.data.loaders import DATASETS, load, names_clients
from fedjax_dp.data.own import dataset
from fedjax_dp.data.owners import given_parts, grouped_parts, natural_parts
from fedjax_dp.data.partition import continuous, grouped_natural, iid, natural, one_class_per_client, similarity
from fedjax_dp.data.sizes import (
    equal_sizes,
    exponential_sizes,
    linear_sizes,
    one_class_sizes,
    power_law_sizes,
    square_sizes,
    zipf_sizes,
)
from fedjax_dp.data.store import Client, Dataset, FederatedData, federate
from fedjax_dp.data.summary import Summary, label_counts, summarise
from fedjax_dp.data.targets import TARGETS, Targets, Vocabulary
from fedjax_dp.reading import Reading

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
    "class_dirichlet",
    "continuous",
    "dataset",
    "dirichlet",
    "equal_sizes",
    "exponential_sizes",
    "federate",
    "given_parts",
    "grouped_natural",
    "grouped_parts",
    "hold_out",
    "iid",
    "inner_dirichlet",
    "label_counts",
    "labels_per_client",
    "linear_sizes",
    "load",
    "names_clients",
    "natural",
    "natural_parts",
    "noted_checksum",
    "noted_hashes",
    "one_class_per_client",
    "one_class_sizes",
    "open_store",
    "pathological",
    "pooled",
    "power_law_sizes",
    "save_store",
    "shards",
    "similarity",
    "split_each",
    "square_sizes",
    "summarise",
    "zipf_sizes",
]
