"""The data part of a configuration: which data set, and how its records are spread over clients."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data import (
    DATASETS,
    Dataset,
    FederatedData,
    federate,
    hold_out,
    load,
    names_clients,
    noted_checksum,
    noted_hashes,
    open_store,
    pooled,
)
from fedjax_dp.data.loaders import check_reading, kind_of
from fedjax_dp.data.projection import low_frequencies, principal_components
from fedjax_dp.experiments.groups import PopulationConfig
from fedjax_dp.experiments.partitions import OPTIONS, PARTITIONS, SIZES, divide
from fedjax_dp.reading import NAMES

FILES = ("npz", "csv", "parquet", "hf")  # records of the user's own, of which nobody needs to say whose they are
DATASET_NAMES = tuple(f"{name}:{reader.suffix}" if reader.suffix else name for name, reader in DATASETS.items())

_COMMON = {
    "sizes": "equal",
    "similarity": 10.0,
    "concentration": 0.5,
    "concentration_scale": "per_class",
    "zipf_exponent": 1.0,
    "shards_per_client": 2,
    "balance": True,
    "assignment": "random",
    "group_size": 2,
    "remainder": "smaller",
    "column": "target",
    "column_strength": 0.5,
}
_LABELS = _COMMON | {"num_clients": 100, "partition": "labels", "labels_per_client": 7, "min_records": 100}
_SKEWED = _LABELS | {"partition": "dirichlet", "labels_per_client": 2}
_SMALL = _COMMON | {"num_clients": 10, "partition": "iid", "labels_per_client": 7, "min_records": 50}
_TWO_CLASSES = _SMALL | {"labels_per_client": 1}
_NATURAL = _SMALL | {"partition": "natural"}
# What a data set brings where nothing is said, if not _SMALL. MNIST and its kin follow dpnfl, Adult cpfed.
POPULATIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("mnist", "fashion_mnist", "emnist_letters", "emnist_digits"), _LABELS),
    **dict.fromkeys(("emnist_byclass", "emnist_balanced", "cifar10", "cifar10_pca60"), _SKEWED),
    "svhn": _SKEWED | {"num_clients": 20, "min_records": 20},  # the subset is small
    **dict.fromkeys(("adult", "adult_full"), _TWO_CLASSES | {"num_clients": 16}),
    "femnist_digits": _NATURAL | {"num_clients": 12},
    "sent140": _TWO_CLASSES | {"num_clients": 100},
    "synthetic": _NATURAL | {"num_clients": 100},
    **dict.fromkeys(("store", "leaf", "tff"), _NATURAL),
}


COUNTS = ("min_records", "labels_per_client", "shards_per_client", "shard_size", "group_size")
P = TypeVar("P", bound=PopulationConfig)


def population_of(kind: str) -> dict[str, Any]:
    """What a data set brings where nothing is said of its clients."""
    return POPULATIONS.get(kind, _SMALL)


def resolve_population(config: P, preset: Mapping[str, Any]) -> P:
    """Fill in from `preset` what the partition needs; refuses options that mean nothing for it."""
    kind = kind_of(config.dataset)
    check_reading(kind, config)
    if kind == "store":
        for name in ("partition", *OPTIONS, "pca", "cosines", "normalise", "holdout"):
            if getattr(config, name) is not None:
                remedy = "give it to fedjax-dp data convert"
                raise errors.refuse(name, getattr(config, name), "left out for a store, whose clients are made", remedy)
    else:
        config = _divided(config, preset)
    if config.pca is not None and config.cosines is not None:
        raise errors.refuse("pca", config.pca, "left out where cosines replace the features", "drop one of them")
    if config.holdout == 0:
        config = dataclasses.replace(config, holdout=None)
    if config.holdout is not None:
        errors.require_in_unit_interval("holdout", config.holdout, "0 keeps the test set")
    errors.require_seed(config.seed)
    return config


def _divided(config: P, preset: Mapping[str, Any]) -> P:
    """Fill in what the partition needs."""
    brought = "natural" if names_clients(config.dataset, config.client_column) else preset["partition"]
    partition = brought if config.partition is None else config.partition
    errors.require_choice("partition", partition, PARTITIONS)
    way, reason = PARTITIONS[partition], f"partition {partition}"
    taken = way.options
    if "sizes" in taken:
        sizes = preset["sizes"] if config.sizes is None else config.sizes
        errors.require_choice("sizes", sizes, SIZES)
        taken, reason = (*taken, *SIZES[sizes].options), f"{reason} with sizes {sizes}"
    for name in OPTIONS:
        if getattr(config, name) is not None and name not in taken:
            remedy = "the data decides it" if name == "num_clients" else "drop it"
            remedy += ", or give another partition" * (way.natural and config.partition is None)
            raise errors.refuse(name, getattr(config, name), f"left out for {reason}", remedy)
    filled: dict[str, Any] = {"partition": partition} | {name: preset[name] for name in taken if name in preset}
    filled |= way.brings
    if "holdout" in preset and not way.natural:  # whose test records, where they have owners, are theirs
        filled["holdout"] = preset["holdout"]
    if config.shard_size is not None:
        filled.pop("shards_per_client", None)  # one follows from the other
    if partition == "given" and config.client_ids is None:
        raise errors.refuse("client_ids", "nothing", "given for partition given", "name a file with --client-ids")
    config = dataclasses.replace(
        config, **{name: value for name, value in filled.items() if getattr(config, name) is None}
    )
    for name in [name for name in COUNTS if name in taken and getattr(config, name) is not None]:
        errors.require_count(name, getattr(config, name))
    return config


def build_data(config: PopulationConfig) -> FederatedData:
    """The clients of a resolved configuration."""
    if kind_of(config.dataset) == "store":
        where = config.dataset.partition(":")[2]
        if not where:
            raise errors.refuse("dataset", repr(config.dataset), "store:FOLDER", "fedjax-dp data convert writes one")
        return open_store(where)
    reading = {name: getattr(config, name) for name in NAMES}
    dataset = _normalised(load(config.dataset, config.data_dir, config.seed, **reading), config.normalise)
    partition = errors.require_given("partition", config.partition)
    if config.holdout is not None:
        way = PARTITIONS[partition]
        if way.natural and dataset.client_ids is not None and dataset.test_client_ids is None:
            raise errors.refuse("holdout", config.holdout, "used where test records have client ids too", "drop it")
        dataset = pooled(dataset)
    dataset, clients, test_clients = divide(partition, dataset, vars(config))
    if config.holdout is not None:
        dataset, clients, test_clients = hold_out(dataset, clients, config.holdout, config.seed)
    if config.cosines is not None:
        dataset = low_frequencies(dataset, config.cosines)
    if config.pca is not None:
        dataset = principal_components(dataset, config.pca, np.concatenate(clients))
    return federate(dataset, clients, test_clients=test_clients)


def notes(config: PopulationConfig, data: FederatedData) -> list[str]:
    """What was decided about the data without being asked, line by line."""
    told, kind = list(data.notes), kind_of(config.dataset)
    if config.holdout is not None:
        told.append(f"tested on {config.holdout:.0%} of each client's records, held out: all records were pooled first")
    if names_clients(config.dataset, config.client_column):
        own = f'"{config.client_column or "client_ids"}"' if kind in FILES else "the files"
        if PARTITIONS[config.partition or "natural"].natural:
            of = f"those of {own} (partition {config.partition})"
            told.append(f"clients are {of}; --partition iid would deal records anew")
        else:
            column = f"{own} of the data is" if kind in FILES else f"the clients of {own} are"
            told.append(f"{column} not used: partition {config.partition} was asked for")
    elif kind in FILES and config.partition != "given":
        by = "--client-column" if "client_column" in DATASETS[kind].takes else "client_ids in the file"
        told.append(f"nobody says whose records they are: dealt to {data.num_clients} clients; {by} would")
    return told


def checksum(config: PopulationConfig, data: FederatedData) -> str:
    """Of the records of a configuration's clients; those of a store need not be read for it."""
    if kind_of(config.dataset) == "store":
        return noted_checksum(config.dataset.partition(":")[2])
    return data.checksum


def hashes(config: PopulationConfig) -> np.ndarray | None:
    """Of some of these records, where they need not be read for it."""
    return noted_hashes(config.dataset.partition(":")[2]) if kind_of(config.dataset) == "store" else None


def _normalised(dataset: Dataset, told: str | None) -> Dataset:
    """Features less a mean, over a standard deviation; both are public numbers, nothing is learnt."""
    if told is None:
        return dataset
    try:
        mean, std = map(float, told.split(","))
    except ValueError:
        mean, std = math.nan, math.nan
    if dataset.tokens or not math.isfinite(mean) or not 0 < std < math.inf:
        wanted = "two numbers with a comma between, the second positive, for features that are numbers"
        raise errors.refuse("normalise", repr(told), wanted, "such as 0.1307,0.3081")
    return dataset._replace(shift=dataset.shift + mean / dataset.scale, scale=dataset.scale / std)
