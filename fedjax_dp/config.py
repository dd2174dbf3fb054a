"""The configuration of a run: one frozen dataclass, from a TOML file, from flags, or from Python."""

import dataclasses
import json
import os
import pathlib
import tomllib
import typing
from typing import Annotated, Any

import numpy as np
import tyro

from fedjax_dp import catalogue, errors
from fedjax_dp.algorithm import Algorithm
from fedjax_dp.data import Dataset, FederatedData, equal_sizes, federate, iid, labels_per_client, load, natural
from fedjax_dp.data.partition import power_law_sizes
from fedjax_dp.fields import typed

PARTITIONS = ("iid", "labels", "natural")
SIZES = ("equal", "power-law")

# What a data set brings where nothing is said. MNIST and its kin follow paper 000.
_PAPER_000 = {
    "num_clients": 100, "partition": "labels", "labels_per_client": 7, "rounds": 50, "cohort_size": 10,
    "batch_size": 10, "local_steps": 300, "learning_rate": 0.01, "schedule": "inverse_sqrt", "l2": 1e-3,
    "server_learning_rate": 0.01, "epsilon": 0.3, "delta": 1e-2, "min_records": 100,
}  # fmt: skip
_SMALL = {
    "num_clients": 10, "partition": "iid", "labels_per_client": 7, "rounds": 40, "cohort_size": 5,
    "batch_size": 20, "local_steps": 10, "learning_rate": 0.3, "schedule": "inverse_sqrt", "l2": 1e-3,
    "server_learning_rate": 0.05, "epsilon": 4.0, "delta": 1e-3, "min_records": 50,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "digits": _SMALL, "mnist": _PAPER_000, "fashion_mnist": _PAPER_000, "emnist_letters": _PAPER_000, "npz": _SMALL,
}  # fmt: skip


def _by_dataset(field: str, text: str) -> Any:
    """Help text with the default that each data set brings, read from PRESETS."""
    values: dict[Any, list[str]] = {}
    for name, preset in PRESETS.items():
        values.setdefault(preset[field], []).append(name)
    told = "; ".join(f"{', '.join(names)}: {value}" for value, names in values.items())
    hint = f"(default by data set: {told})" if len(values) > 1 else f"(default: {next(iter(values))})"
    return _told(text, hint, _METAVARS[type(next(iter(values)))])


_METAVARS: dict[type, str] = {int: "INT", float: "FLOAT", str: "STR"}


def _told(text: str, hint: str | None = None, metavar: str | None = None) -> Any:
    return tyro.conf.arg(help=text, help_behavior_hint=hint, metavar=metavar)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run. Keys of a TOML file are the field names; flags are the same with hyphens."""

    dataset: Annotated[str, _told("digits, mnist, fashion_mnist, emnist_letters, or npz:PATH for your own arrays")] = (
        "digits"
    )
    data_dir: Annotated[
        str | None, _told("folder with data sets", "(default: $FEDJAX_DP_DATA, else the user cache)", "DIR")
    ] = None
    algorithm: Annotated[str, _told(", ".join(catalogue.CATALOGUE))] = "dpnfl"
    rounds: Annotated[int | None, _by_dataset("rounds", "rounds T")] = None
    seed: Annotated[int, _told("decides partition, cohorts, batches, noise and initial model")] = 0

    num_clients: Annotated[int | None, _by_dataset("num_clients", "clients N in the population")] = None
    partition: Annotated[str | None, _by_dataset("partition", "iid, labels or natural")] = None
    labels_per_client: Annotated[int | None, _by_dataset("labels_per_client", "k, for partition labels")] = None
    sizes: Annotated[str, _told("records per client: equal or power-law")] = "equal"
    min_records: Annotated[int | None, _by_dataset("min_records", "smallest client, for sizes power-law")] = None

    cohort_size: Annotated[int | None, _by_dataset("cohort_size", "clients per round; N takes all")] = None
    estimator: Annotated[str, _told("how updates combine: full, wor_delta, wor_model, biased, renorm, mean")] = (
        "wor_delta"
    )
    batch_size: Annotated[int | None, _by_dataset("batch_size", "records B per local step")] = None
    batches: Annotated[
        str, _told("without-replacement, with-replacement, poisson or full (all records, no batch_size)")
    ] = "without-replacement"
    local_steps: Annotated[int | None, _by_dataset("local_steps", "local steps tau per round")] = None
    learning_rate: Annotated[float | None, _by_dataset("learning_rate", "of the local steps")] = None
    schedule: Annotated[str | None, _by_dataset("schedule", "constant, inverse_sqrt or inverse, in the round")] = None
    l2: Annotated[float | None, _by_dataset("l2", "h in the penalty h |w|^2")] = None

    clip_norm: Annotated[float, _told("C, L2 bound on one record's gradient")] = 1.0
    epsilon: Annotated[
        float | None, _by_dataset("epsilon", "budget per client for private algorithms; finds the noise")
    ] = None
    delta: Annotated[float | None, _by_dataset("delta", "of the budget and of the Guarantee")] = None
    noise_multiplier: Annotated[
        float | None, _told("noise on the sum over clip norm, instead of --epsilon", "(default: from epsilon)", "FLOAT")
    ] = None
    accountant: Annotated[str, _told("pld (rigorous), or rdp, gaussian, zcdp, tcdp (paper 000's)")] = "pld"
    participation: Annotated[
        str, _told("rounds each client is calibrated for: schedule, law (any schedule), expected or worst")
    ] = "schedule"
    view: Annotated[str, _told("who must learn nothing: uploads, secure_sum, broadcast or final_model")] = "uploads"
    colluders: Annotated[int, _told("clients of each cohort that help the adversary, in views other than uploads")] = 0

    server_learning_rate: Annotated[float | None, _by_dataset("server_learning_rate", "of addpnfl's server")] = None
    b1: Annotated[float, _told("addpnfl: decay of the first moment")] = 0.9
    b2: Annotated[float, _told("addpnfl: decay of the second moment")] = 0.99
    pi: Annotated[float, _told("addpnfl: added to the root of the second moment, which starts at pi^2")] = 1e-3
    second_moment: Annotated[str, _told("addpnfl: delta (Algorithm 2) or mu (the displayed equation)")] = "delta"

    evaluate_every: Annotated[int | None, _told("rounds between evaluations", "(default: rounds / 20)", "INT")] = None
    checkpoint_every: Annotated[int | None, _told("rounds between checkpoints", "(default: rounds / 5)", "INT")] = None
    chunk_size: Annotated[
        int | None, _told("clients computed at once on a device, to bound memory", "(default: all)", "INT")
    ] = None
    out: Annotated[
        str | None, _told("run folder; must not exist or be empty", "(default: runs/DATASET-ALGORITHM-sSEED)", "DIR")
    ] = None


def resolve(config: RunConfig) -> RunConfig:
    """Fill in what the data set brings, so that the configuration says everything; refuses what cannot be meant."""
    kind = config.dataset.partition(":")[0]
    errors.require_choice("dataset", kind, PRESETS)
    errors.require_choice("algorithm", config.algorithm, catalogue.CATALOGUE)
    preset = dict(PRESETS[kind])
    private = "noise_multiplier" in typing.get_type_hints(catalogue.CATALOGUE[config.algorithm])
    if not private:
        for name in ("epsilon", "delta", "noise_multiplier"):
            if getattr(config, name) is not None:
                raise errors.refuse(
                    name,
                    getattr(config, name),
                    f"left out for {config.algorithm}, which is not private",
                    "use --algorithm dpnfl",
                )
    if not private or config.noise_multiplier is not None:
        preset.pop("epsilon")
        if config.epsilon is not None:
            raise errors.refuse(
                "epsilon", config.epsilon, "left out when noise_multiplier is given", "keep one of them"
            )
    if not private:
        preset.pop("delta")
    if (config.partition or preset["partition"]) == "natural":
        preset.pop("num_clients")  # the data set decides
    if config.batches == "full":
        preset.pop("batch_size")
        if config.batch_size is not None:
            raise errors.refuse("batch_size", config.batch_size, "left out for full batches", "drop it")
    filled = {name: value for name, value in preset.items() if getattr(config, name) is None}
    config = dataclasses.replace(config, **filled)
    if config.partition == "natural" and config.num_clients is not None:
        raise errors.refuse("num_clients", config.num_clients, "left out for partition natural", "the data decides it")
    sized = [] if config.batches == "full" else ["batch_size"]
    for name in ("rounds", "cohort_size", *sized, "local_steps", "min_records"):
        errors.require_count(name, getattr(config, name))
    paces = {"evaluate_every": max(1, config.rounds // 20), "checkpoint_every": max(1, config.rounds // 5)}
    filled = {name: value for name, value in paces.items() if getattr(config, name) is None}
    config = dataclasses.replace(config, **filled)
    for name in (*paces, *(["chunk_size"] if config.chunk_size is not None else [])):
        errors.require_count(name, getattr(config, name))
    if isinstance(config.seed, bool) or not 0 <= config.seed < 2**32:
        raise errors.refuse("seed", config.seed, "an integer in [0, 2^32)")
    return config


def build_data(config: RunConfig) -> FederatedData:
    """The clients of a resolved configuration."""
    dataset = load(config.dataset, config.data_dir)
    errors.require_choice("partition", str(config.partition), PARTITIONS)
    errors.require_choice("sizes", config.sizes, SIZES)
    return federate(dataset, _clients(config, dataset))


def _clients(config: RunConfig, dataset: Dataset) -> list[np.ndarray]:
    records, labels = len(dataset.y_train), dataset.y_train
    if config.partition == "natural":
        if dataset.client_ids is None:
            raise errors.refuse("partition", "natural", "used with a data set that has client_ids", "use iid or labels")
        return natural(dataset.client_ids)
    if config.sizes == "equal":
        sizes = equal_sizes(records, config.num_clients)
    else:
        sizes = power_law_sizes(records, config.num_clients, config.min_records, config.seed)
    if config.partition == "iid":
        return iid(labels, sizes, config.seed)
    return labels_per_client(labels, sizes, config.labels_per_client, config.seed)


def build_algorithm(config: RunConfig, data: FederatedData) -> Algorithm:
    """The algorithm of a resolved configuration: fields that its constructor takes, by name."""
    constructor = catalogue.CATALOGUE[config.algorithm]
    values = dataclasses.asdict(config)
    values["cohort_size"] = None if config.cohort_size == data.num_clients else config.cohort_size
    if config.batches == "full":
        values["batch_size"] = int(np.max(data.sizes))
    values["noise_multiplier"] = config.noise_multiplier or 0.0
    accepted = typing.get_type_hints(constructor)
    return constructor(**{name: value for name, value in values.items() if name in accepted})


def read(path: str | os.PathLike) -> dict[str, Any]:
    """Fields from a TOML file, each checked against its type."""
    path = pathlib.Path(path)
    if not path.is_file():
        raise errors.refuse("configuration file", str(path), "an existing TOML file")
    try:
        fields = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise errors.refuse("configuration file", str(path), "valid TOML", str(error)) from None
    hints = typing.get_type_hints(RunConfig)
    for name, given in fields.items():
        errors.require_choice(f"{path.name}: a key", name, hints)
        fields[name] = typed(f"{path.name}: {name}", given, hints[name])
    return fields


def to_toml(config: RunConfig) -> str:
    """The fields that are set, as TOML that `read` turns into the same configuration."""
    set_fields = {name: value for name, value in dataclasses.asdict(config).items() if value is not None}
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in set_fields.items())
