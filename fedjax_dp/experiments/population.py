"""The clients of a configuration: a partitioned data set."""

import math

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Unit
from fedjax_dp.accounting.composed_phases import digest_of_names
from fedjax_dp.data import (
    Dataset,
    FederatedData,
    federate,
    hold_out,
    load,
    noted_checksum,
    open_store,
    pool_records,
)
from fedjax_dp.data.loaders import DATASETS, kind_of, names_clients
from fedjax_dp.data.projection import low_frequencies, principal_components
from fedjax_dp.data.reading import NAMES
from fedjax_dp.experiments.groups import PopulationConfig
from fedjax_dp.experiments.partitions import PARTITIONS, divide
from fedjax_dp.experiments.presets import FILES


def build_data(config: PopulationConfig) -> FederatedData:
    """The clients of a resolved configuration."""
    if kind_of(config.dataset) == "store":
        where = config.dataset.partition(":")[2]
        if not where:
            raise errors.refuse("dataset", repr(config.dataset), "store:FOLDER", "fedjax-dp data convert writes one")
        return open_store(where)
    reading = {name: getattr(config, name) for name in NAMES}
    dataset = _normalise(load(config.dataset, config.data_dir, config.seed, **reading), config.normalise)
    partition = errors.require_given("partition", config.partition)
    if config.holdout is not None:
        way = PARTITIONS[partition]
        if way.natural and dataset.client_ids is not None and dataset.test_client_ids is None:
            raise errors.refuse("holdout", config.holdout, "used where test records have client ids too", "drop it")
        if any(bound.unit is not Unit.TOKEN for bound in dataset.bounds):
            got, remedy = config.holdout, "name test records in the files"
            raise errors.refuse("holdout", got, "left out where users or texts have several records", remedy)
        dataset = pool_records(dataset)
    dataset, divided, test_clients = divide(partition, dataset, vars(config))
    clients = list(divided.values()) if isinstance(divided, dict) else divided
    if config.holdout is not None:
        dataset, clients, test_clients = hold_out(dataset, clients, config.holdout, config.seed)
    if config.cosines is not None:
        dataset = low_frequencies(dataset, config.cosines)
    if config.pca is not None:
        dataset = principal_components(dataset, config.pca, np.concatenate(clients))
    parts = dict(zip(divided, clients, strict=True)) if isinstance(divided, dict) else clients
    return federate(dataset, parts, test_clients=test_clients)


def notes(config: PopulationConfig, data: FederatedData) -> list[str]:
    """The decisions about the data that the user left open, one a line."""
    lines, kind = list(data.notes), kind_of(config.dataset)
    if config.holdout is not None:
        lines.append(
            f"tested on {config.holdout:.0%} of each client's records, held out: all records were pooled first"
        )
    for bound in data.bounds:
        if bound.unit is not Unit.TOKEN:
            at = "the first client" if bound.clients == 1 else f"each of the first {bound.clients} clients"
            kept = f"of each {bound.unit.value} the first {bound.records} training records are kept"
            lines.append(f"{kept}, at {at} with some; others are left out")
    if names_clients(config.dataset, config.client_column):
        column = config.client_column or ("client_ids" if kind == "npz" else None)
        own = "the files" if column is None else f'"{column}"'
        if PARTITIONS[config.partition or "natural"].natural:
            of = f"those of {own} (partition {config.partition})"
            lines.append(f"clients are {of}; --partition iid would deal records anew")
        else:
            unused = f"the clients of {own} are" if column is None else f"{own} of the data is"
            lines.append(f"{unused} not used: partition {config.partition} is set")
    elif kind in FILES and config.partition != "given":
        by = "--client-column" if "client_column" in DATASETS[kind].takes else "client_ids in the file"
        lines.append(f"nobody says whose records they are: dealt to {data.num_clients} clients; {by} would")
    return lines


def checksums(data: FederatedData, config: PopulationConfig | None = None) -> dict[str, str]:
    """Checksums of clients' records and names, by name; does not read the records of a configuration's store."""
    if config is not None and kind_of(config.dataset) == "store":
        records = noted_checksum(config.dataset.partition(":")[2])
    else:
        records = data.checksum
    names = None if data.names is None else digest_of_names(data.names.listed)
    return {"data": records} | ({} if names is None else {"names of clients": names[:8]})


def _normalise(dataset: Dataset, constants: str | None) -> Dataset:
    """Features minus a mean, divided by a standard deviation; both are public, nothing is learnt."""
    if constants is None:
        return dataset
    try:
        mean, std = map(float, constants.split(","))
    except ValueError:
        mean, std = math.nan, math.nan
    if dataset.tokens or not math.isfinite(mean) or not 0 < std < math.inf:
        wanted = "two numbers with a comma between, the second positive, for features that are numbers"
        raise errors.refuse("normalise", repr(constants), wanted, "such as 0.1307,0.3081")
    result = dataset._replace(shift=dataset.shift + mean / dataset.scale, scale=dataset.scale / std)
    ends = np.array(
        [end for x in (result.x_train, result.x_test) for end in (x.min(initial=0), x.max(initial=0))], float
    )
    with np.errstate(over="ignore"):
        if not np.isfinite(((ends - result.shift) * result.scale).astype(np.float32)).all():
            raise errors.refuse("normalise", repr(constants), "constants that leave features finite in float32")
    return result
