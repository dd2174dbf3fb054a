"""What a resolved configuration stands for: data, model, algorithm, devices, budgets."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from fedjax_dp import errors
from fedjax_dp.algorithms import Beforehand
from fedjax_dp.data import FederatedData
from fedjax_dp.execution.mesh import Execution, some_devices
from fedjax_dp.experiments.config import RunConfig
from fedjax_dp.experiments.population import kind_of
from fedjax_dp.models import ARCHITECTURES, NetworkModel, mlp
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.rounds.algorithm import Algorithm

WIDTHS = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def build_model(config: RunConfig, data: FederatedData) -> NetworkModel:
    """The model of a configuration."""
    asked = config.training
    make = ARCHITECTURES[asked.model or "logistic"]
    if asked.hidden is not None:
        make = partial(mlp, hidden=_widths(asked.hidden))
    return dataclasses.replace(make(data.record_shape, data.classes), dtype=WIDTHS[asked.dtype or "float32"])


def build_execution(config: RunConfig, algorithm: Algorithm, data: FederatedData) -> Execution:
    """The devices of a configuration."""
    asked = config.execution
    count, members = len(jax.devices()), algorithm.cohort.members(data.num_clients)
    if asked.devices != "auto":
        count = int(asked.devices)
        if count > members * asked.model_devices:
            together = f", {asked.model_devices} for each" if asked.model_devices > 1 else ""
            wanted = f"at most the {members} clients of a cohort{together}"
            raise errors.refuse("devices", count, wanted, "take fewer, or auto")
    return some_devices(count, asked.chunk_size, parts=asked.deterministic, model_devices=asked.model_devices)


def records_on_host(config: RunConfig, algorithm: Algorithm) -> bool:
    """Whether records stay on the host."""
    if config.execution.records != "auto":
        return config.execution.records == "host"
    apart = kind_of(config.data.dataset) == "store" or jax.process_count() > 1
    return apart and not (config.output.train_metrics or algorithm.local.looks)


def _widths(hidden: str) -> tuple[int, ...]:
    """Of an MLP's hidden layers.

    Raises: ConfigurationError unless they are counts.
    """
    widths = tuple(int(word) if word.strip().isdecimal() else 0 for word in hidden.split(","))
    if 0 in widths:
        raise errors.refuse("hidden", repr(hidden), "numbers of at least 1 with commas between", "such as 64,32")
    return widths


def terms_of(config: RunConfig, data: FederatedData) -> PrivacyTerms:
    """How the privacy of a configuration is counted, budgets drawn."""
    return config.privacy.terms(data.num_clients, config.data.seed)


def build_algorithm(config: RunConfig, data: FederatedData) -> Algorithm:
    """The algorithm of a configuration, its noise not found yet."""
    entry, given = config.entry, dict(config.options)
    if "cohort_size" in entry.options:
        drawn = given.get("cohort", entry.options["cohort"].default)
        if given["cohort_size"] == data.num_clients and "cohort" not in given and drawn != "md":
            given["cohort_size"] = None
    if given.get("batches") == "full":
        given["batch_size"] = None
    return entry.of_run(
        given,
        Beforehand(
            data,
            build_model(config, data),
            config.training.rounds,
            terms_of(config, data).epsilon,
            config.privacy.delta,
            config.data.seed,
        ),
    )
