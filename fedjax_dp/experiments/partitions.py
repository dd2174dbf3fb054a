"""The partitions of a data set over clients, by name, and their options."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_dp import data, errors

if TYPE_CHECKING:
    from fedjax_dp.data import Dataset

# The data set, perhaps without some test records, the training rows of each client, and the client of each test record
# if known.
Divided = tuple["Dataset", list[np.ndarray] | dict[str, np.ndarray], np.ndarray | None]
LABELLED = ("classes", "binary")  # tasks whose targets are labels


class PartitionOptions:
    """The options of a partition, by name; refuses a missing one."""

    def __init__(self, values: Mapping[str, Any]):
        self.values = values

    def __getattr__(self, name: str) -> Any:
        return errors.require_given(name, self.values.get(name))


class Sizes(NamedTuple):
    """Client sizes from a function of `fedjax_dp.data` of the number of records, the clients, options and a seed."""

    function: str
    options: tuple[str, ...] = ()
    random: bool = False  # takes the seed


class Partition(NamedTuple):
    """A way to spread records over clients."""

    divide: Callable[["Dataset", PartitionOptions], Divided]
    options: tuple[str, ...]
    by_label: bool = False  # it needs labels, which some tasks do not have
    natural: bool = False  # its clients are the data set's own
    brings: Mapping[str, Any] = {}  # defaults, if the data set brings another partition


SIZES: dict[str, Sizes] = {
    "equal": Sizes("equal_sizes"),
    "power-law": Sizes("power_law_sizes", ("min_records",), random=True),
    "zipf": Sizes("zipf_sizes", ("min_records", "zipf_exponent"), random=True),
    "linear": Sizes("linear_sizes"),
    "square": Sizes("square_sizes"),
    "exponential": Sizes("exponential_sizes"),
}


def _sizes(dataset: "Dataset", options: PartitionOptions) -> np.ndarray:
    sizes = SIZES[options.sizes]
    names = ("num_clients", *sizes.options, *(("seed",) if sizes.random else ()))
    result: np.ndarray = getattr(data, sizes.function)(len(dataset.x_train), *(getattr(options, n) for n in names))
    return result


def _partition_by(function: str, *names: str) -> Callable[["Dataset", PartitionOptions], Divided]:
    """A partition by a function of `fedjax_dp.data` of the training targets and these options, in order."""

    def divide(dataset: "Dataset", options: PartitionOptions) -> Divided:
        values = [_sizes(dataset, options) if name == "sizes" else getattr(options, name) for name in names]
        return dataset, getattr(data, function)(dataset.y_train, *values), None

    return divide


def _one_class(dataset: "Dataset", options: PartitionOptions) -> Divided:
    labels, equal = dataset.y_train, options.sizes == "equal"
    sizes = data.one_class_sizes(labels, options.num_clients) if equal else _sizes(dataset, options)
    return dataset, data.one_class_per_client(labels, sizes, options.seed), None


def _shards(dataset: "Dataset", options: PartitionOptions) -> Divided:
    cut = {name: options.values.get(name) for name in ("shards_per_client", "shard_size")}
    return dataset, data.shards(dataset.y_train, options.num_clients, options.seed, **cut), None


def _similarity(dataset: "Dataset", options: PartitionOptions) -> Divided:
    """Test labels are cut in the same way, so that each client has its own part of them."""
    arguments = options.num_clients, options.similarity, options.seed
    test_clients = np.empty(len(dataset.y_test), np.int32)
    for client, rows in enumerate(data.similarity(dataset.y_test, *arguments)):
        test_clients[rows] = client
    return dataset, data.similarity(dataset.y_train, *arguments), test_clients


def _continuous(dataset: "Dataset", options: PartitionOptions) -> Divided:
    values = _column(dataset, options.column)
    return dataset, data.continuous(values, options.num_clients, options.column_strength, options.seed), None


def _column(dataset: "Dataset", column: str) -> np.ndarray:
    """The column `3` of the flattened features, `target`, or `target:3` of several numbers."""
    whose, _, number = column.rpartition(":") if column != "target" else ("target", "", "")
    of_target = whose == "target"
    table = dataset.y_train if of_target else dataset.x_train
    wanted = "target, target:J, or the number of a feature"
    if not isinstance(table, np.ndarray):
        raise errors.refuse("column", repr(column), wanted, "targets of this data set have no columns")
    table = table.reshape(len(table), -1)
    number = "0" if column == "target" and table.shape[1] == 1 else number
    if whose not in ("", "target") or not number.isdecimal() or not int(number) < table.shape[1]:
        remedy = f"{'its targets have' if of_target else 'a record has'} {table.shape[1]:,}, counted from 0"
        raise errors.refuse("column", repr(column), wanted, remedy)
    return table[:, int(number)]


_SIZED = ("num_clients", "sizes")
_DRAWN = (*_SIZED, "concentration", "concentration_scale")
_DIRICHLET = ("sizes", "concentration", "seed", "concentration_scale")
PARTITIONS: dict[str, Partition] = {
    "iid": Partition(_partition_by("iid", "sizes", "seed"), _SIZED),
    "labels": Partition(
        _partition_by("labels_per_client", "sizes", "labels_per_client", "seed"),
        (*_SIZED, "labels_per_client"),
        by_label=True,
    ),
    "pathological": Partition(
        _partition_by("pathological", "num_clients", "labels_per_client", "seed", "assignment"),
        ("num_clients", "labels_per_client", "assignment"),
        by_label=True,
    ),
    "shards": Partition(_shards, ("num_clients", "shards_per_client", "shard_size"), by_label=True),
    "one-class": Partition(_one_class, _SIZED, by_label=True),
    "dirichlet": Partition(_partition_by("dirichlet", *_DIRICHLET), _DRAWN, by_label=True),
    "inner-dirichlet": Partition(_partition_by("inner_dirichlet", *_DIRICHLET), _DRAWN, by_label=True),
    "class-dirichlet": Partition(
        _partition_by("class_dirichlet", "num_clients", "concentration", "seed", "balance", "min_records"),
        ("num_clients", "concentration", "balance", "min_records"),
        by_label=True,
        brings={"min_records": 10},  # as in published code
    ),
    "similarity": Partition(_similarity, ("num_clients", "similarity"), by_label=True),
    "continuous": Partition(_continuous, ("num_clients", "column", "column_strength")),
    "natural": Partition(
        lambda dataset, options: data.natural_parts(dataset, options.min_records),
        ("min_records",),
        natural=True,
        brings={"min_records": 1},  # keeps every client
    ),
    "grouped-natural": Partition(
        lambda dataset, options: data.grouped_parts(dataset, options.group_size, options.seed, options.remainder),
        ("group_size", "remainder"),
        natural=True,
    ),
    "given": Partition(
        lambda dataset, options: (dataset, data.file_parts(options.client_ids, len(dataset.x_train)), None),
        ("client_ids",),
    ),
}
_TAKEN = [way.options for way in PARTITIONS.values()] + [sizes.options for sizes in SIZES.values()]
OPTIONS = sorted({name for options in _TAKEN for name in options})


def divide(partition: str, dataset: "Dataset", values: Mapping[str, Any]) -> Divided:
    """Spread a data set's records; `values` are the options by name, and the seed."""
    way = PARTITIONS[partition]
    if way.by_label and dataset.task not in LABELLED:
        others = ", ".join(name for name, other in PARTITIONS.items() if not other.by_label)
        wanted = f"one that needs no labels, which task {dataset.task} does not have"
        raise errors.refuse("partition", partition, wanted, f"take one of {others}")
    return way.divide(dataset, PartitionOptions(values))
