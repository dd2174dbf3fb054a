"""Data, model, algorithm, devices and budgets of a resolved configuration."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_dp import errors, own_code
from fedjax_dp.algorithms import PrepareContext
from fedjax_dp.data import FederatedData
from fedjax_dp.data.loaders import kind_of
from fedjax_dp.data.targets import Vocabulary
from fedjax_dp.execution.mesh import Execution, some_devices
from fedjax_dp.experiments.config import RunSpec
from fedjax_dp.experiments.groups import ExecutionConfig, PrivacyConfig, TrainingConfig
from fedjax_dp.models import ARCHITECTURES, NetworkModel, cross_entropy, freeze, model, pretrained, read_start
from fedjax_dp.privacy.planned_run import PlannedRun, plan_run
from fedjax_dp.privacy.terms import PrivacyTerms
from fedjax_dp.rounds.algorithm import Algorithm

SIZES = ("width", "layers", "heads", "patch")  # of transformers
WIDTHS = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


class RecordFormat(NamedTuple):
    """The facts about the data that a model depends on."""

    record_shape: tuple[int, ...]
    classes: int
    tokens: bool
    task: str = "classes"
    vocabulary: Vocabulary | None = None


def build_model(config: RunSpec, data: FederatedData | RecordFormat) -> NetworkModel:
    """The model of a configuration."""
    training = config.training
    if own_code.is_file_name(training.model):
        digests = tuple(own_code.checksums(training.model, what="model").items())
        like = RecordFormat(data.record_shape, data.classes, data.tokens, data.task, data.vocabulary)
        built = _own_model(str(training.model), digests, like)
    elif (folder := config.pretrained) is not None:
        like = RecordFormat(data.record_shape, data.classes, data.tokens, data.task, data.vocabulary)
        built = _pretrained(folder, config.files.get(folder, ""), like, training.pool, training.dtype)
    elif training.pool is not None:
        raise errors.refuse("pool", training.pool, "left out unless model is pretrained:FOLDER", "drop it")
    else:
        sizes: dict[str, Any] = {name: value for name in SIZES if (value := getattr(training, name)) is not None}
        if training.hidden is not None:
            sizes["hidden"] = _widths(training.hidden)
        make = ARCHITECTURES[training.model or "logistic"]
        if data.vocabulary is not None and "vocabulary" in inspect.signature(make).parameters:
            sizes["vocabulary"] = data.vocabulary.size
        built = make(data.record_shape, data.classes, **sizes)
    ap, top_k = config.output.ap, config.output.top_k
    if built.loss_of is cross_entropy or training.model in ARCHITECTURES or training.loss or ap:
        built = built.for_data(data, training.loss, ap, top_k)
    elif top_k is not None:  # a user-defined loss stays
        built = dataclasses.replace(built.for_data(data, top_k=top_k), loss_of=built.loss_of)
    built = dataclasses.replace(built, dtype=WIDTHS[training.dtype]) if training.dtype else built
    words = {name: getattr(training, name) for name in _OF_PARTS}
    if all(word is None for word in words.values()):
        return built
    return _freeze(built, tuple(config.files.items()), **words)


_OF_WHOLE = ("rounds", "model", "pool", "hidden", *SIZES, "loss", "dtype")
_OF_PARTS = [field.name for field in dataclasses.fields(TrainingConfig) if field.name not in _OF_WHOLE]  # see `freeze`


@functools.lru_cache(maxsize=8)  # as another model is another program, and checkpoints are large
def _freeze(built: NetworkModel, digests: tuple[tuple[str, str], ...], **options: Any) -> NetworkModel:
    """The partly trained model, which starts from the files with these checksums."""
    set_options = {name.removeprefix("lora_"): value for name, value in options.items() if value is not None}
    start, names = (set_options.pop(name, None) for name in ("start", "start_names"))
    if start is None and names is not None:
        raise errors.refuse("start_names", names, "left out where training begins at random", "give start, or drop it")
    return freeze(built, **set_options, start=None if start is None else read_start(start, names=names))


@functools.lru_cache(maxsize=2)  # as they are large
def _pretrained(folder: str, digest: str, data: RecordFormat, pool: str | None, dtype: str | None) -> NetworkModel:
    return pretrained(folder, data, pool=pool, dtype=WIDTHS[dtype or "float32"])


@functools.cache  # as some networks are equal to themselves only, and another model is another program
def _own_model(named: str, digests: tuple[tuple[str, str], ...], data: RecordFormat) -> NetworkModel:
    """The model of what stands under a name in the user's file of these checksums.

    That is a model, anything that `fedjax_dp.model` takes, or a class or function that makes one, which gets by
    name what it takes of `classes`, `record_shape` and `key` or `rngs`.
    """
    result = own_code.own("model", named)
    if isinstance(result, type) or inspect.isfunction(result):
        result = _call_factory(named, result, {"classes": data.classes, "record_shape": data.record_shape})
    return result if isinstance(result, NetworkModel) else model(result, data)


def _call_factory(named: str, make: Callable[..., Any], known: Mapping[str, Any]) -> Any:
    """Call a class or function with the known arguments; where it also wants a key, return a function of the key."""
    # Not the signature of a class itself: that of a module of nnx is its metaclass's.
    taken = dict(inspect.signature(vars(make).get("__init__", make) if isinstance(make, type) else make).parameters)
    taken.pop("self", None)
    arguments = {name: value for name, value in known.items() if name in taken}
    wanted = [
        name
        for name, one in taken.items()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) and name not in arguments
    ]
    if wanted == ["key"]:
        return lambda key: make(key=key, **arguments)
    if wanted == ["rngs"]:
        return lambda key: make(rngs=nnx.Rngs(key), **arguments)
    if wanted:
        lacking = ", ".join(wanted)
        remedy = f"give {lacking} a default" + (
            "" if arguments else ", or make it a function of classes that returns a model"
        )
        raise errors.refuse("model", f"{named}, which asks for {lacking}", "made of classes, record_shape, key", remedy)
    try:
        return make(**arguments)
    except errors.ConfigurationError:
        raise
    except Exception as error:
        told_of = " ".join(f"{named}, which fails: {type(error).__name__}: {error}".split())
        raise errors.refuse("model", told_of, "made without an error") from error


def build_execution(config: RunSpec, algorithm: Algorithm, data: FederatedData) -> Execution:
    """The devices of a configuration."""
    wanted = config.execution
    check_execution(wanted, algorithm, data)
    count = len(jax.devices()) if wanted.devices == "auto" else int(wanted.devices)
    return some_devices(count, wanted.chunk_size, parts=wanted.deterministic, model_devices=wanted.model_devices)


def check_execution(execution: ExecutionConfig, algorithm: Algorithm, data: FederatedData) -> None:
    """Refuse more devices, or parts of a sum, than a cohort has clients."""
    members = algorithm.cohort.capacity(data.num_clients)
    if execution.devices != "auto" and int(execution.devices) > members * execution.model_devices:
        together = f", {execution.model_devices} for each" if execution.model_devices > 1 else ""
        wanted = f"at most the {members} clients of a cohort{together}"
        raise errors.refuse("devices", execution.devices, wanted, "take fewer, or auto")
    if execution.deterministic is not None and execution.deterministic > members:
        raise errors.refuse("deterministic", execution.deterministic, f"at most the {members} clients of a cohort")


def records_on_host(config: RunSpec, algorithm: Algorithm) -> bool:
    """Whether records stay on the host."""
    if config.execution.records != "auto":
        return config.execution.records == "host"
    apart = kind_of(config.data.dataset) == "store" or jax.process_count() > 1
    return apart and not (config.output.train_metrics or algorithm.local.reads_records_outside_round)


def _widths(hidden: str) -> tuple[int, ...]:
    """Of an MLP's hidden layers.

    Raises: ConfigurationError unless they are counts.
    """
    widths = tuple(int(word) if word.strip().isdecimal() else 0 for word in hidden.split(","))
    if 0 in widths:
        raise errors.refuse("hidden", repr(hidden), "numbers of at least 1 with commas between", "such as 64,32")
    return widths


def terms_of(config: RunSpec, data: FederatedData) -> PrivacyTerms:
    """The privacy terms of a configuration, with the budget of each client."""
    assert isinstance(config.privacy, PrivacyConfig)  # as in every one but those of values
    return config.privacy.terms(data.num_clients, config.data.seed, data.names)


def planned_of(
    config: RunSpec, data: FederatedData, *, goes_on: bool = False, say: Callable[[str], None] = lambda line: None
) -> PlannedRun:
    """The checked run of a configuration on its clients, before its noise is calibrated.

    goes_on  a log of who takes part may name clients of later rounds;
    say      takes lines of the run's log.
    """
    model, algorithm = build_model(config, data), build_algorithm(config, data, say)
    rounds, seed, terms = config.training.rounds, config.data.seed, terms_of(config, data)
    algorithm = algorithm.prefix(rounds) if goes_on else algorithm
    return plan_run(algorithm, data, rounds=rounds, seed=seed, model=model, terms=terms)


def build_algorithm(config: RunSpec, data: FederatedData, say: Callable[[str], None] = lambda line: None) -> Algorithm:
    """The algorithm of a configuration, before its noise is calibrated."""
    entry, options = config.entry, dict(config.options)
    if "cohort_size" in entry.options:
        cohort = options.get("cohort", entry.options["cohort"].default)
        everyone = options.get("cohort_size") == data.num_clients and "cohort" not in options and cohort != "md"
        if everyone:
            options["cohort_size"] = None
    terms = terms_of(config, data)
    assert not isinstance(terms.epsilon, str | Mapping)  # `terms_of` puts budgets in the order of the clients
    return entry.prepare_and_build(
        options,
        PrepareContext(
            data,
            build_model(config, data),
            config.training.rounds,
            terms.epsilon,
            config.privacy.delta,
            config.data.seed,
            terms,
            say=say,
        ),
    )
