"""Presets of data sets: defaults for their clients and training. No JAX here."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from fedjax_dp import errors
from fedjax_dp.data.loaders import check_reading, kind_of, names_clients
from fedjax_dp.experiments.groups import PopulationConfig
from fedjax_dp.experiments.partitions import OPTIONS, PARTITIONS, SIZES

FILES = ("npz", "csv", "parquet", "hf")  # the user's own records, which need not name their clients

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
_NATURAL = _SMALL | {"partition": "natural", "min_records": 1}
# Presets of data sets, else _SMALL. MNIST and its kin follow dpnfl, Adult cpfed.
POPULATIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("mnist", "fashion_mnist", "emnist_letters", "emnist_digits"), _LABELS),
    **dict.fromkeys(("emnist_byclass", "emnist_balanced", "cifar10", "cifar10_pca60"), _SKEWED),
    "svhn": _SKEWED | {"num_clients": 20, "min_records": 20},  # the subset is small
    **dict.fromkeys(("adult", "adult_full"), _TWO_CLASSES | {"num_clients": 16}),
    "femnist_digits": _NATURAL | {"num_clients": 12},
    "sent140": _NATURAL | {"num_clients": 100, "min_records": 3},  # nearly all of its users have one message
    "school": _NATURAL | {"num_clients": 139},
    "synthetic": _NATURAL | {"num_clients": 100},
    **dict.fromkeys(("store", "leaf", "tff"), _NATURAL),
}

# `adaptive_learning_rate`: for servers such as Adam, whose step size is the rate itself.
_TRAINED = {"batches": "without-replacement", "clip_norm": 1.0, "accountant": "pld"}
_DPNFL = _TRAINED | {  # MNIST and its kin follow the paper
    "rounds": 50,
    "cohort_size": 10,
    "batch_size": 10,
    "local_steps": 300,
    "learning_rate": 0.01,
    "schedule": "inverse_sqrt",
    "l2": 1e-3,
    "adaptive_learning_rate": 0.01,
    "epsilon": 0.3,
    "delta": 1e-2,
}
_BRIEF = _TRAINED | {
    "rounds": 40,
    "cohort_size": 5,
    "batch_size": 20,
    "local_steps": 10,
    "learning_rate": 0.3,
    "schedule": "inverse_sqrt",
    "l2": 1e-3,
    "adaptive_learning_rate": 0.05,
    "epsilon": 4.0,
    "delta": 1e-3,
}
_LARGE = _BRIEF | {"rounds": 50, "cohort_size": 10, "delta": 1e-4}
# User-defined data: an option left out in Python has this value.
_OWN = {name: value for name, value in _BRIEF.items() if name not in ("schedule", "l2")}
_TRAINING: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("mnist", "fashion_mnist", "emnist_letters", "emnist_digits"), _DPNFL),
    **dict.fromkeys(("adult", "adult_full"), _LARGE),
    **dict.fromkeys(("emnist_byclass", "emnist_balanced", "cifar10_pca60"), _LARGE | {"learning_rate": 0.1}),
    "cifar10": _LARGE | {"model": "group_norm_cnn"},
    "tfds": _BRIEF | {"learning_rate": 0.1},
    "svhn": _BRIEF | {"model": "group_norm_cnn"},
    # A batch is less than what a user has, without which sampling records amplifies nothing.
    "sent140": _LARGE | {"model": "lstm", "rounds": 20, "local_steps": 5, "batch_size": 1},
    **dict.fromkeys((*FILES, "store"), _OWN),
    "synthetic": _LARGE | {"batch_size": 10, "learning_rate": 0.1, "delta": 1e-3},
}


def paper_of(kind: str) -> str | None:
    """The paper that a data set's presets follow."""
    return "dpnfl" if _TRAINING.get(kind) is _DPNFL else None


def preset_of(kind: str) -> dict[str, Any]:
    """All presets of a data set."""
    return population_of(kind) | _TRAINING.get(kind, _BRIEF)


COUNTS = ("min_records", "labels_per_client", "shards_per_client", "shard_size", "group_size")
P = TypeVar("P", bound=PopulationConfig)


def population_of(kind: str) -> dict[str, Any]:
    """The presets of a data set for its clients."""
    return POPULATIONS.get(kind, _SMALL)


def resolve_population(config: P, preset: Mapping[str, Any]) -> P:
    """Fill in from `preset` what the partition needs; refuse options that do not apply to it."""
    kind = kind_of(config.dataset)
    check_reading(kind, config)
    if kind == "store":
        names = ("partition", *OPTIONS, "pca", "cosines", "normalise", "holdout")
        where = "for a store, whose clients are made"
        errors.require_left_out(config, names, where, "give it to fedjax-dp data convert")
    else:
        config = _fill_partition(config, preset)
    if config.pca is not None and config.cosines is not None:
        raise errors.refuse("pca", config.pca, "left out where cosines replace the features", "drop one of them")
    if config.holdout == 0:
        config = dataclasses.replace(config, holdout=None)
    if config.holdout is not None:
        errors.require_in_unit_interval("holdout", config.holdout, "0 keeps the test set")
    errors.require_seed(config.seed)
    return config


def _fill_partition(config: P, preset: Mapping[str, Any]) -> P:
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
    filled |= {} if partition == preset["partition"] else way.brings
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
