"""The configuration of a run: one frozen dataclass, from a TOML file, from flags, or from Python."""

import dataclasses
import json
import os
import pathlib
import tomllib
import typing
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.algorithms import CATALOGUE, options_of
from fedjax_dp.data import FederatedData
from fedjax_dp.execution.mesh import Execution, some_devices
from fedjax_dp.experiments.options import by_dataset, told, typed
from fedjax_dp.experiments.population import POPULATIONS, PopulationConfig, kind_of, resolve_population
from fedjax_dp.experiments.population import build_data as build_data
from fedjax_dp.models import NetworkModel, cnn, group_norm_cnn, logistic_regression, lstm, mlp
from fedjax_dp.privacy.importance_sampling import optimal_probabilities
from fedjax_dp.rounds.algorithm import Algorithm

MODELS: dict[str, Callable[..., NetworkModel]] = {
    "logistic": logistic_regression,
    "mlp": mlp,
    "cnn": cnn,
    "group_norm_cnn": group_norm_cnn,
    "lstm": lstm,
}
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
ENTRY_OPTIONS = {name for entry in CATALOGUE for name in options_of(entry)}

# What a data set brings where nothing is said, beside its population. MNIST and its kin follow paper 000.
_PAPER_000 = {
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
_SMALL = {
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
_LARGE = _SMALL | {"rounds": 50, "cohort_size": 10, "delta": 1e-4}
_TRAINING: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("mnist", "fashion_mnist", "emnist_letters", "emnist_digits"), _PAPER_000),
    **dict.fromkeys(("adult", "adult_full"), _LARGE),
    **dict.fromkeys(("emnist_byclass", "emnist_balanced", "cifar10_pca60"), _LARGE | {"learning_rate": 0.1}),
    "cifar10": _LARGE | {"model": "group_norm_cnn"},
    "tfds": _SMALL | {"learning_rate": 0.1},
    "svhn": _SMALL | {"model": "group_norm_cnn"},
    "sent140": _LARGE | {"model": "lstm"},
    "synthetic": _LARGE | {"batch_size": 10, "learning_rate": 0.1, "delta": 1e-3},
}
PRESETS: dict[str, dict[str, Any]] = {
    name: population | _TRAINING.get(name, _SMALL) for name, population in POPULATIONS.items()
}

# What an algorithm brings on top, where its paper or its kind asks for something else.
_WHOLE_CLIENTS = {
    "num_clients": 100,
    "cohort_size": 50,
    "batch_size": 5,
    "local_steps": 10,
    "learning_rate": 0.3,
    "clip_norm": 0.5,
    "epsilon": 8.0,
    "delta": 1e-3,
}
ENTRY_PRESETS: dict[str, dict[str, Any]] = {
    "rfedavg": {"model": "mlp"},
    "rfedavg_plus": {"model": "mlp"},
    "dp_sgd": {"local_steps": 1, "rounds": 100},
    "acs_pldp": {"epsilon": 16.0, "epsilon_high": 32.0, "sampling": "optimal", "norm_noise": 1.0},
    "dp_fedavg": _WHOLE_CLIENTS,
    "dp_ftrl": _WHOLE_CLIENTS,
    "cpfed": {"local_steps": 1, "rounds": 100},
    "dp_fedavg_output": {"local_steps": 5, "learning_rate": 0.05},
}
ADAPTIVE = ("addpnfl", "fedadam", "fedyogi")  # servers whose rate is not near 1


def _by_dataset(field: str, text: str) -> Any:
    return by_dataset(PRESETS, field, text)


def _own(text: str) -> Any:
    """Help text of an option that only some algorithms take, or whose default is the algorithm's own."""
    return told(text, "(default: the algorithm's)")


@dataclasses.dataclass(frozen=True)
class RunConfig(PopulationConfig):
    """Everything that decides a run. Keys of a TOML file are the field names; flags are the same with hyphens."""

    algorithm: Annotated[str, told(", ".join(CATALOGUE))] = "dpnfl"
    rounds: Annotated[int | None, _by_dataset("rounds", "rounds T")] = None
    cohort_size: Annotated[int | None, _by_dataset("cohort_size", "clients per round; N takes all")] = None
    cohort: Annotated[str | None, _own("uniform, poisson, md (by shares, with replacement) or cyclic")] = None
    one_by_one: Annotated[bool | None, _own("md: a client drawn twice trains twice")] = None
    dropout: Annotated[float | None, _own("probability that a client's message does not arrive")] = None
    first: Annotated[int | None, _own("wait for so many of the cohort only")] = None
    estimator: Annotated[
        str | None, _own("how updates combine: wor_delta, wor_model, full, biased, renorm, precision, mean")
    ] = None
    batch_size: Annotated[int | None, _by_dataset("batch_size", "records B per local step")] = None
    batches: Annotated[
        str,
        told("without-replacement, with-replacement, poisson, full (all records), epochs (local steps are epochs)"),
    ] = "without-replacement"
    local_steps: Annotated[int | None, _by_dataset("local_steps", "local steps tau per round")] = None
    learning_rate: Annotated[float | None, _by_dataset("learning_rate", "of the local steps")] = None
    schedule: Annotated[str | None, _by_dataset("schedule", "constant, inverse_sqrt or inverse")] = None
    per_step: Annotated[bool | None, _own("the schedule runs over local steps, not rounds")] = None
    local_rule: Annotated[str | None, _own("sgd, momentum or rmsprop")] = None
    local_decay: Annotated[float | None, _own("of momentum or rmsprop")] = None
    keep_rule: Annotated[bool | None, _own("the rule's state stays with its client across rounds")] = None
    l2: Annotated[float | None, _by_dataset("l2", "h in the penalty h |w|^2")] = None
    microbatch: Annotated[int | None, _own("records whose gradients are built at once, for models that need it")] = None
    model: Annotated[
        str | None, told(", ".join(MODELS), "(default: logistic, or what data set or algorithm ask for)", "STR")
    ] = None
    hidden: Annotated[
        str | None, told("widths of mlp's hidden layers, such as 1200 or 64,32", "(default: 64)", "INT,...")
    ] = None
    dtype: Annotated[
        str | None,
        told(
            "bfloat16: gradients at half the width; norms, clipped sums, noise stay float32",
            "(default: float32)",
            "STR",
        ),
    ] = None
    clip_norm: Annotated[float | None, _own("C, L2 bound on one record's gradient, or on a client's update")] = None
    clipping: Annotated[str | None, _own("record, batch, scale, none or tensor-median; most entries fix it")] = None
    gradient_bound: Annotated[float | None, _own("cpfed, clipping scale: what no gradient exceeds")] = None
    epsilon: Annotated[
        float | None, _by_dataset("epsilon", "budget per client for private algorithms; finds the noise")
    ] = None
    epsilon_high: Annotated[float | None, _own("budgets are uniform from epsilon to this, one per client")] = None
    delta: Annotated[float | None, _by_dataset("delta", "of the budget and of the Guarantee")] = None
    noise_multiplier: Annotated[
        float | None, told("noise on the sum over clip norm, instead of --epsilon", "(default: from epsilon)", "FLOAT")
    ] = None
    accountant: Annotated[
        str | None,
        told(
            "pld (rigorous), or rdp, gaussian, zcdp, tcdp (paper 000's)", "(default: pld; rdp for shared noise)", "STR"
        ),
    ] = None
    participation: Annotated[
        str, told("rounds each client is calibrated for: schedule, law (any schedule), expected, worst or once")
    ] = "schedule"
    sigma_mode: Annotated[
        str,
        told("per_client, common_worst (the noise of who needs most), or as printed: paper_000, _002, _003, _004"),
    ] = "per_client"
    view: Annotated[
        str | None,
        told(
            "who must learn nothing: uploads, secure_sum, broadcast or final_model",
            "(default: the strongest that the algorithm hides from)",
            "STR",
        ),
    ] = None
    colluders: Annotated[int, told("clients of each cohort that help the adversary, in views other than uploads")] = 0
    secure: Annotated[bool | None, _own("messages travel masked and only their sum is seen")] = None
    ring_bits: Annotated[int | None, _own("of the secure sum's integers: 32 or 64")] = None
    fractional_bits: Annotated[int | None, _own("of the secure sum's fixed point")] = None
    neighbours: Annotated[int | None, _own("clients that each shares a mask with; all unless given")] = None

    server_learning_rate: Annotated[float | None, _own("of the server's step")] = None
    momentum: Annotated[float | None, _own("of the server: dpnfl, fedavgm, dp_fedavg, dp_ftrl")] = None
    b1: Annotated[float | None, _own("adaptive servers: decay of the first moment")] = None
    b2: Annotated[float | None, _own("adaptive servers: decay of the second moment")] = None
    pi: Annotated[float | None, _own("adaptive servers: added to the root of the second moment")] = None
    nu_init: Annotated[float | None, _own("addpnfl: where the second moment starts; pi^2 unless given")] = None
    second_moment: Annotated[str | None, _own("addpnfl: delta (Algorithm 2) or mu (the displayed equation)")] = None
    mu: Annotated[float | None, _own("fedprox: strength of the pull to the received model")] = None
    prox_form: Annotated[str | None, _own("fedprox: half (mu/2 |.|^2) or full")] = None
    controls: Annotated[str | None, _own("scaffold, dp_scaffold: update (option II) or gradient (option I)")] = None
    warm_start: Annotated[bool | None, _own("scaffold, dp_scaffold: control variates begin as gradients")] = None
    q: Annotated[float | None, _own("q_fedavg: how much large losses count")] = None
    fair_norm: Annotated[str | None, _own("q_fedavg: update or weighted")] = None
    feature_strength: Annotated[float | None, _own("rfedavg: lambda")] = None
    delta_at: Annotated[str | None, _own("rfedavg: local_after or global_before")] = None
    delta_scope: Annotated[str | None, _own("rfedavg: participants or all")] = None
    leave_one_out: Annotated[bool | None, _own("rfedavg: a client's own features are left out of its target")] = None
    delta_batch: Annotated[int | None, _own("rfedavg: records that mean features are taken over; 0 all")] = None
    feature_noise: Annotated[float | None, _own("rfedavg: sigma_2 on mean features")] = None
    feature_clip_norm: Annotated[float | None, _own("rfedavg: bound on one record's features, with noise")] = None
    sampling: Annotated[str | None, _own("acs_pldp: optimal, weighted or uniform")] = None
    strength: Annotated[float | None, _own("acs_pldp, sampling optimal: lambda, the weight of the budgets")] = None
    norm_noise: Annotated[float | None, _own("acs_pldp, sampling optimal: noise on the norms; 0: no epsilon")] = None
    noise_space: Annotated[str | None, _own("dp_fedavg_output: model or literal")] = None
    noise_at: Annotated[str | None, _own("dp_fedavg_output: last or every")] = None
    weight_cap: Annotated[float | None, _own("dp_fedavg: share from which a client has full weight")] = None
    least_weight: Annotated[float | None, _own("dp_fedavg: estimator f_c, least part of the expected weight")] = None
    clip_by: Annotated[str | None, _own("dp_fedavg: update or tensor")] = None
    adaptive_clip: Annotated[bool | None, _own("dp_fedavg: the clip norm follows a quantile")] = None
    clip_quantile: Annotated[float | None, _own("dp_fedavg, adaptive: that quantile")] = None
    clip_rate: Annotated[float | None, _own("dp_fedavg, adaptive: how fast")] = None
    bit_noise: Annotated[float | None, _own("dp_fedavg, adaptive: noise on the sum of bits")] = None
    noise: Annotated[str | None, _own("dp_fedavg: server, or shared (integer noise in a secure sum)")] = None
    bands: Annotated[int | None, _own("dp_ftrl: rounds over which noise is correlated")] = None

    evaluate_every: Annotated[int | None, told("rounds between evaluations", "(default: rounds / 20)", "INT")] = None
    train_metrics: Annotated[
        bool | None, told("also evaluate objective and gradient norm over all training records", "(default: false)")
    ] = None
    target_accuracy: Annotated[
        float | None, told("test accuracy to count rounds and bytes to", "(default: none)", "FLOAT")
    ] = None
    checkpoint_every: Annotated[int | None, told("rounds between checkpoints", "(default: rounds / 5)", "INT")] = None
    chunk_size: Annotated[
        int | None,
        told("clients computed at once on a device", "(default: all; for large models on a CPU: 1)", "INT"),
    ] = None
    devices: Annotated[
        int | str, told("that share a cohort: auto takes all; no more than clients in a cohort", metavar="auto|INT")
    ] = "auto"
    model_devices: Annotated[int, told("that hold a model together, each a part, for models too large for one")] = 1
    records: Annotated[
        str,
        told("kept on devices, or host, which feeds them the next cohorts'; auto: host for stores, several processes"),
    ] = "auto"
    deterministic: Annotated[
        int | None,
        told(
            "add up the cohort in so many parts, in order: the same bits on any number of devices",
            "(default: in the order of the devices)",
            "PARTS",
        ),
    ] = None
    out: Annotated[
        str | None, told("run folder; must not exist or be empty", "(default: runs/DATASET-ALGORITHM-sSEED)", "DIR")
    ] = None


# Options that mean something only beside another: option -> (field, its values).
NEEDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "strength": ("sampling", ("optimal",)),
    "norm_noise": ("sampling", ("optimal",)),
    "hidden": ("model", ("mlp",)),
    "clip_quantile": ("adaptive_clip", (True,)),
    "clip_rate": ("adaptive_clip", (True,)),
    "bit_noise": ("adaptive_clip", (True,)),
    "gradient_bound": ("clipping", ("scale",)),
}


def resolve(config: RunConfig) -> RunConfig:
    """Fill in what data set and algorithm bring, so that the configuration says everything; refuses what cannot be."""
    kind = kind_of(config.dataset)
    errors.require_choice("algorithm", config.algorithm, CATALOGUE)
    accepted = options_of(config.algorithm)
    for field in dataclasses.fields(config):
        if field.name in ENTRY_OPTIONS and field.name not in accepted and getattr(config, field.name) is not None:
            users = [entry for entry in CATALOGUE if field.name in options_of(entry)]
            raise errors.refuse(
                field.name,
                getattr(config, field.name),
                f"left out for {config.algorithm}, which does not take it",
                "it belongs to " + ", ".join(users[:6]) + (", ..." if len(users) > 6 else ""),
            )
    preset = dict(PRESETS[kind]) | ENTRY_PRESETS.get(config.algorithm, {})
    rate = preset.pop("adaptive_learning_rate")
    if config.algorithm in ADAPTIVE:
        preset["server_learning_rate"] = rate
    private = "noise_multiplier" in accepted
    if private and "clip_norm" not in preset:
        preset["clip_norm"] = 1.0
    if not private:
        for name in ("epsilon", "epsilon_high", "delta", "noise_multiplier"):
            if getattr(config, name) is not None:
                raise errors.refuse(
                    name,
                    getattr(config, name),
                    f"left out for {config.algorithm}, which is not private",
                    "use --algorithm dpnfl",
                )
            preset.pop(name, None)
    if config.noise_multiplier is not None:
        for name in ("epsilon", "epsilon_high"):
            preset.pop(name, None)
            if getattr(config, name) is not None:
                raise errors.refuse(
                    name, getattr(config, name), "left out when noise_multiplier is given", "keep one of them"
                )
    if config.epsilon is not None:
        preset.pop("epsilon_high", None)
    preset["accountant"] = "rdp" if config.noise == "shared" else "pld"  # integer noise has one accountant
    if config.batches == "full":
        preset.pop("batch_size")
        if config.batch_size is not None:
            raise errors.refuse("batch_size", config.batch_size, "left out for full batches", "drop it")
    asked = config
    config = resolve_population(config, preset)
    brought = {name: value for name, value in preset.items() if name not in POPULATIONS[kind]}
    filled = {name: value for name, value in brought.items() if getattr(config, name) is None}
    config = dataclasses.replace(config, **filled)
    for name, (beside, wanted) in NEEDS.items():
        if getattr(config, beside) in wanted:
            continue
        if getattr(asked, name) is not None:
            raise errors.refuse(
                name, getattr(asked, name), f"left out unless {beside} is {' or '.join(map(str, wanted))}", "drop it"
            )
        if name in filled:
            config = dataclasses.replace(config, **{name: None})
    sized = [] if config.batches == "full" else ["batch_size"]
    for name in ("rounds", "cohort_size", *sized, "local_steps"):
        errors.require_count(name, getattr(config, name))
    paces = {"evaluate_every": max(1, config.rounds // 20), "checkpoint_every": max(1, config.rounds // 5)}
    filled = {name: value for name, value in paces.items() if getattr(config, name) is None}
    config = dataclasses.replace(config, **filled)
    whole = {*paces, "chunk_size", "deterministic", "model_devices", *({"devices"} if config.devices != "auto" else ())}
    for name in sorted(name for name in whole if getattr(config, name) is not None):
        errors.require_count(name, getattr(config, name), "or auto" if name == "devices" else "")
    errors.require_choice("records", config.records, ("auto", "host", "devices"))
    if config.target_accuracy is not None and not 0 < config.target_accuracy <= 1:
        raise errors.refuse("target_accuracy", config.target_accuracy, "above 0 and at most 1")
    return config


def build_model(config: RunConfig, data: FederatedData) -> NetworkModel:
    """The model of a resolved configuration."""
    name = config.model or "logistic"
    errors.require_choice("model", name, MODELS)
    dtype = config.dtype or "float32"
    errors.require_choice("dtype", dtype, DTYPES)
    make = MODELS[name] if config.hidden is None else partial(mlp, hidden=_widths(config.hidden))
    return dataclasses.replace(make(data.record_shape, data.classes), dtype=DTYPES[dtype])


def build_execution(config: RunConfig, algorithm: Algorithm, data: FederatedData) -> Execution:
    """The devices of a resolved configuration."""
    count, members = len(jax.devices()), algorithm.cohort.members(data.num_clients)
    if config.devices != "auto":
        count = int(config.devices)
        if count > members * config.model_devices:
            together = f", {config.model_devices} for each" if config.model_devices > 1 else ""
            wanted = f"at most the {members} clients of a cohort{together}"
            raise errors.refuse("devices", count, wanted, "take fewer, or auto")
    return some_devices(count, config.chunk_size, parts=config.deterministic, model_devices=config.model_devices)


def records_on_host(config: RunConfig, algorithm: Algorithm) -> bool:
    """Whether records stay on the host."""
    if config.records != "auto":
        return config.records == "host"
    apart = kind_of(config.dataset) == "store" or jax.process_count() > 1
    return apart and not (config.train_metrics or algorithm.local.looks)


def _widths(hidden: str) -> tuple[int, ...]:
    """Of an MLP's hidden layers.

    Raises: ConfigurationError unless they are counts.
    """
    widths = tuple(int(word) if word.strip().isdecimal() else 0 for word in hidden.split(","))
    if 0 in widths:
        raise errors.refuse("hidden", repr(hidden), "numbers of at least 1 with commas between", "such as 64,32")
    return widths


def budgets(config: RunConfig, data: FederatedData) -> float | np.ndarray | None:
    """Epsilon of the configuration: one number, or one per client, uniform from epsilon to epsilon_high by the seed."""
    if config.epsilon is None or config.epsilon_high is None:
        return config.epsilon
    if not config.epsilon_high >= config.epsilon:
        raise errors.refuse("epsilon_high", config.epsilon_high, f"at least epsilon, {config.epsilon:g}")
    return np.random.default_rng(config.seed).uniform(config.epsilon, config.epsilon_high, data.num_clients)


def build_algorithm(config: RunConfig, data: FederatedData) -> Algorithm:
    """The algorithm of a resolved configuration: fields that its constructor takes, by name."""
    accepted = options_of(config.algorithm)
    values = {
        name: value for name, value in dataclasses.asdict(config).items() if value is not None and name in accepted
    }
    everyone = config.cohort_size == data.num_clients and config.cohort is None
    values["cohort_size"] = None if everyone and config.sampling is None else config.cohort_size
    values["batch_size"] = config.batch_size
    if config.sampling == "optimal" and "sampling" in accepted:
        if config.epsilon is None:
            raise errors.refuse("sampling", "optimal", "used with budgets, which it weighs", "give --epsilon")
        found = optimal_probabilities(
            data,
            epsilons=budgets(config, data),
            delta=config.delta,
            rounds=config.rounds,
            draws=config.cohort_size,
            batch_size=config.batch_size or int(np.min(data.sizes)),
            local_steps=config.local_steps,
            learning_rate=config.learning_rate,
            strength=1.0 if config.strength is None else config.strength,
            norm_noise=config.norm_noise or 0.0,
            norm_clip=config.clip_norm,
            seed=config.seed,
            model=build_model(config, data),
        )
        values |= {"probabilities": found.probabilities, "paid": found.paid}
    return CATALOGUE[config.algorithm](**values)


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
