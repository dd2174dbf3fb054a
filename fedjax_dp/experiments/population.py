"""The data part of a configuration: which data set, and how its records are spread over clients."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data import (
    DATASETS,
    Dataset,
    FederatedData,
    dirichlet,
    equal_sizes,
    federate,
    given_ids,
    hold_out,
    iid,
    labels_per_client,
    load,
    natural,
    natural_parts,
    noted_checksum,
    one_class_per_client,
    one_class_sizes,
    open_store,
    pooled,
    power_law_sizes,
    similarity,
    zipf_sizes,
)
from fedjax_dp.data.loaders import SUFFIXES
from fedjax_dp.data.projection import low_frequencies, principal_components
from fedjax_dp.experiments.options import by_dataset, told

# The options that mean something for a partition, and on top for the sizes that it is given.
_SIZED = ("num_clients", "sizes")
PARTITIONS: dict[str, tuple[str, ...]] = {
    "iid": _SIZED,
    "labels": (*_SIZED, "labels_per_client"),
    "one-class": _SIZED,
    "dirichlet": (*_SIZED, "concentration", "concentration_scale"),
    "similarity": ("num_clients", "similarity"),
    "natural": ("min_records",),
    "given": ("client_ids",),
}
SIZES: dict[str, tuple[str, ...]] = {
    "equal": (),
    "power-law": ("min_records",),
    "zipf": ("min_records", "zipf_exponent"),
}
OPTIONS = sorted({name for names in (*PARTITIONS.values(), *SIZES.values()) for name in names})

_COMMON = {
    "sizes": "equal",
    "similarity": 10.0,
    "concentration": 0.5,
    "concentration_scale": "per_class",
    "zipf_exponent": 1.0,
}
_PAPER_DPNFL = _COMMON | {"num_clients": 100, "partition": "labels", "labels_per_client": 7, "min_records": 100}
_SKEWED = _PAPER_DPNFL | {"partition": "dirichlet", "labels_per_client": 2}
_SMALL = _COMMON | {"num_clients": 10, "partition": "iid", "labels_per_client": 7, "min_records": 50}
_TWO_CLASSES = _SMALL | {"labels_per_client": 1}
_NATURAL = _SMALL | {"partition": "natural"}
# What a data set brings where nothing is said. MNIST and its kin follow the dpnfl paper, Adult the cpfed paper.
POPULATIONS: dict[str, dict[str, Any]] = {
    "digits": _SMALL,
    **dict.fromkeys(("mnist", "fashion_mnist", "emnist_letters", "emnist_digits"), _PAPER_DPNFL),
    **dict.fromkeys(("emnist_byclass", "emnist_balanced", "cifar10", "cifar10_pca60"), _SKEWED),
    "svhn": _SKEWED | {"num_clients": 20, "min_records": 20},  # the subset is small
    **dict.fromkeys(("adult", "adult_full"), _TWO_CLASSES | {"num_clients": 16}),
    "femnist_digits": _NATURAL | {"num_clients": 12},
    "sent140": _TWO_CLASSES | {"num_clients": 100},
    "synthetic": _NATURAL | {"num_clients": 100},
    "npz": _SMALL,
    "tfds": _SMALL,
    "store": _NATURAL,
}


@dataclasses.dataclass(frozen=True)
class PopulationConfig:
    """Everything that decides the clients and their records. None: the data set brings it, or it does not apply."""

    dataset: Annotated[
        str,
        told(", ".join(f"{name}:{SUFFIXES[name]}" if name in SUFFIXES else name for name in DATASETS)),
    ] = "digits"
    data_dir: Annotated[
        str | None, told("folder with data sets", "(default: $FEDJAX_DP_DATA, else the user cache)", "DIR")
    ] = None
    seed: Annotated[int, told("decides partition, cohorts, batches, noise and initial model")] = 0
    num_clients: Annotated[int | None, by_dataset(POPULATIONS, "num_clients", "clients N in the population")] = None
    partition: Annotated[str | None, by_dataset(POPULATIONS, "partition", ", ".join(PARTITIONS))] = None
    labels_per_client: Annotated[
        int | None, by_dataset(POPULATIONS, "labels_per_client", "k, for partition labels")
    ] = None
    similarity: Annotated[
        float | None, by_dataset(POPULATIONS, "similarity", "percent of records dealt at random, partition similarity")
    ] = None
    concentration: Annotated[
        float | None, by_dataset(POPULATIONS, "concentration", "of partition dirichlet; small is heterogeneous")
    ] = None
    concentration_scale: Annotated[
        str | None,
        by_dataset(POPULATIONS, "concentration_scale", "per_class, or hsu: concentration over the number of classes"),
    ] = None
    client_ids: Annotated[
        str | None,
        told("for partition given: .npy, or text with a line for each training record", "(default: none)", "FILE"),
    ] = None
    sizes: Annotated[str | None, by_dataset(POPULATIONS, "sizes", "records per client: " + ", ".join(SIZES))] = None
    min_records: Annotated[
        int | None,
        by_dataset(POPULATIONS, "min_records", "smallest client, for sizes power-law and zipf; natural drops smaller"),
    ] = None
    zipf_exponent: Annotated[float | None, by_dataset(POPULATIONS, "zipf_exponent", "for sizes zipf")] = None
    pca: Annotated[
        int | None, told("principal components that replace the features; not private", "(default: none)", "INT")
    ] = None
    cosines: Annotated[
        int | None,
        told(
            "so many lowest cosine frequencies a side replace an image; public, learns nothing",
            "(default: none)",
            "INT",
        ),
    ] = None
    normalise: Annotated[
        str | None,
        told(
            "public constants: features become (x - MEAN) / STD, before pca and cosines", "(default: none)", "MEAN,STD"
        ),
    ] = None
    holdout: Annotated[
        float | None,
        told("pool all records; clients keep this fraction of theirs to test on", "(default: the test set)", "FLOAT"),
    ] = None


P = TypeVar("P", bound=PopulationConfig)


def kind_of(dataset: str) -> str:
    """The name of a data set without what follows a colon."""
    kind = dataset.partition(":")[0]
    errors.require_choice("dataset", kind, POPULATIONS)
    return kind


def resolve_population(config: P, preset: Mapping[str, Any]) -> P:
    """Fill in from `preset` what the partition needs; refuses options that mean nothing for it."""
    if kind_of(config.dataset) == "store":
        for name in ("partition", *OPTIONS, "pca", "cosines", "normalise", "holdout"):
            if getattr(config, name) is not None:
                remedy = "give it to fedjax-dp data convert"
                raise errors.refuse(name, getattr(config, name), "left out for a store, whose clients are made", remedy)
    partition = preset["partition"] if config.partition is None else config.partition
    errors.require_choice("partition", partition, PARTITIONS)
    taken, reason = PARTITIONS[partition], f"partition {partition}"
    if "sizes" in taken:
        sizes = preset["sizes"] if config.sizes is None else config.sizes
        errors.require_choice("sizes", sizes, SIZES)
        taken, reason = (*taken, *SIZES[sizes]), f"{reason} with sizes {sizes}"
    for name in OPTIONS:
        if getattr(config, name) is not None and name not in taken:
            remedy = "the data decides it" if name == "num_clients" else "drop it"
            raise errors.refuse(name, getattr(config, name), f"left out for {reason}", remedy)
    brought = {name: preset[name] for name in ("partition", *taken) if name in preset}
    if partition == "natural":
        brought["min_records"] = 1  # everybody
    if partition == "given" and config.client_ids is None:
        raise errors.refuse("client_ids", "nothing", "given for partition given", "name a file with --client-ids")
    config = dataclasses.replace(
        config, **{name: value for name, value in brought.items() if getattr(config, name) is None}
    )
    for name in {"min_records", "labels_per_client"} & set(taken):
        errors.require_count(name, getattr(config, name))
    if config.pca is not None and config.cosines is not None:
        raise errors.refuse("pca", config.pca, "left out where cosines replace the features", "drop one of them")
    if config.holdout is not None:
        errors.require_in_unit_interval("holdout", config.holdout, "leave it out to keep the test set")
    if isinstance(config.seed, bool) or not 0 <= config.seed < 2**32:
        raise errors.refuse("seed", config.seed, "an integer in [0, 2^32)")
    return config


def build_data(config: PopulationConfig) -> FederatedData:
    """The clients of a resolved configuration."""
    if kind_of(config.dataset) == "store":
        where = config.dataset.partition(":")[2]
        if not where:
            raise errors.refuse("dataset", repr(config.dataset), "store:FOLDER", "fedjax-dp data convert writes one")
        return open_store(where)
    dataset = _normalised(load(config.dataset, config.data_dir, config.seed), config.normalise)
    if config.holdout is not None:
        if config.partition == "natural" and dataset.client_ids is not None and dataset.test_client_ids is None:
            raise errors.refuse("holdout", config.holdout, "used where test records have client ids too", "drop it")
        dataset = pooled(dataset)
    dataset, clients, test_clients = _divide(config, dataset)
    if config.holdout is not None:
        dataset, clients, test_clients = hold_out(dataset, clients, config.holdout, config.seed)
    if config.cosines is not None:
        dataset = low_frequencies(dataset, config.cosines)
    if config.pca is not None:
        dataset = principal_components(dataset, config.pca, np.concatenate(clients))
    return federate(dataset, clients, test_clients=test_clients)


def checksum(config: PopulationConfig, data: FederatedData) -> str:
    """Of the records of a configuration's clients; those of a store need not be read for it."""
    if kind_of(config.dataset) == "store":
        return noted_checksum(config.dataset.partition(":")[2])
    return data.checksum


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


def _divide(config: PopulationConfig, dataset: Dataset) -> tuple[Dataset, list[np.ndarray], np.ndarray | None]:
    """The data set, the training rows of each client, and the client of each test record where that is known."""
    labels, seed = dataset.y_train, config.seed
    if config.partition == "natural":
        return natural_parts(dataset, config.min_records)
    if config.partition == "given":
        return dataset, natural(given_ids(config.client_ids, len(labels))), None
    if config.partition == "similarity":
        clients = similarity(labels, config.num_clients, config.similarity, seed)
        tests = similarity(dataset.y_test, config.num_clients, config.similarity, seed)
        test_clients = np.empty(len(dataset.y_test), np.int32)
        for client, rows in enumerate(tests):
            test_clients[rows] = client
        return dataset, clients, test_clients
    sizes = _sizes(config, labels)
    clients = {
        "iid": lambda: iid(labels, sizes, seed),
        "labels": lambda: labels_per_client(labels, sizes, config.labels_per_client, seed),
        "one-class": lambda: one_class_per_client(labels, sizes, seed),
        "dirichlet": lambda: dirichlet(labels, sizes, config.concentration, seed, config.concentration_scale),
    }[config.partition]()
    return dataset, clients, None


def _sizes(config: PopulationConfig, labels: np.ndarray) -> np.ndarray:
    records = len(labels)
    if config.sizes == "equal" and config.partition == "one-class":
        return one_class_sizes(labels, config.num_clients)
    if config.sizes == "equal":
        return equal_sizes(records, config.num_clients)
    if config.sizes == "power-law":
        return power_law_sizes(records, config.num_clients, config.min_records, config.seed)
    return zipf_sizes(records, config.num_clients, config.min_records, config.zipf_exponent, config.seed)
