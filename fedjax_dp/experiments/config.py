"""The configuration of a run: what is said in a TOML file, by flags or in Python, and what follows from that.

What is said is a mapping of names to values; names are those of the fields below and of the options of the algorithm.
`resolve` makes a `RunConfig` of it, which says everything.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import pathlib
import tomllib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np

from fedjax_dp import errors, folders, own_code
from fedjax_dp.accounting.calibrate import require_budget
from fedjax_dp.algorithms import CATALOGUE, Entry
from fedjax_dp.data.loaders import kind_of
from fedjax_dp.doors import PAGES
from fedjax_dp.experiments.population import PopulationConfig, population_of, resolve_population
from fedjax_dp.experiments.presets import preset_of
from fedjax_dp.models import ARCHITECTURES
from fedjax_dp.models.starts import start_files
from fedjax_dp.options import Option, Options, about, of_class, require_meant, typed
from fedjax_dp.privacy.terms import WITHOUT, PrivacyTerms
from fedjax_dp.tasks.choice import APS, LOSSES
from fedjax_dp.tasks.measures import split_target

Said = Mapping[str, Any]
LARGEST_COUNT = 2**31 - 1  # what the rounds count with
TINY, HUGE = (float(getattr(np.finfo(np.float32), name)) for name in ("tiny", "max"))
WIDTHS = ("float32", "bfloat16")
TRANSFORMERS = {"model": ("vit", "gpt")}  # beside which their sizes mean something


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long, and what model.

    Args:
        rounds: rounds T
        model: the architecture, or FILE.py:NAME; logistic unless data set or algorithm ask for another
        hidden: widths of mlp's hidden layers, such as 1200 or 64,32; 64 unless given
        width: of a transformer's vectors, a multiple of heads; its hidden layers are 4 x as wide
        layers: its blocks
        heads: of its attention
        patch: pixels a side of the squares that vit cuts an image into
        loss: of a record; sequence: mean over its tokens or per length; multi_label: mean or sum over labels;
            regression: squared or huber
        dtype: bfloat16: gradients at half the width; norms, clipped sums, noise stay float32
        trainable: what of the model is trained: all, head, bias, lora, ffa-lora or patterns of parameter paths, with
            commas
        start: checkpoint to begin with: .npz, .safetensors, a run folder or one of orbax; runs say what it was trained
            on
        start_names: TOML: the model's paths to names in the checkpoint
        start_data: what the checkpoint was trained on, for the Guarantee to say
        start_private: whether it holds records of these clients: no epsilon then; false: on your word it holds none
        fresh: head or patterns: parameters that begin at random, not with the checkpoint's
        lora_rank: r of low-rank terms
        lora_alpha: their factor is alpha / r
        lora_targets: dense, or patterns of kernels
    """

    rounds: int
    model: Annotated[str | None, about("", choices=ARCHITECTURES, own=True, default="logistic")] = None
    hidden: Annotated[str | None, about("", beside={"model": "mlp"}, metavar="INT,...", default="64")] = None
    width: Annotated[int | None, about("", beside=TRANSFORMERS, default="64")] = None
    layers: Annotated[int | None, about("", beside=TRANSFORMERS, default="2")] = None
    heads: Annotated[int | None, about("", beside=TRANSFORMERS, default="4")] = None
    patch: Annotated[int | None, about("", beside={"model": "vit"}, default="4")] = None
    loss: Annotated[str | None, about("", choices=LOSSES, default="the task's first")] = None
    dtype: Annotated[str | None, about("", choices=WIDTHS, default="float32")] = None
    trainable: Annotated[str | None, about("", metavar="WORD|PATTERN,...", default="all")] = None
    start: Annotated[str | None, about("", metavar="PATH", default="random values")] = None
    start_names: Annotated[str | None, about("", metavar="FILE")] = None
    start_data: Annotated[str | None, about("", metavar="WORDS")] = None
    start_private: bool | None = None
    fresh: Annotated[str | None, about("", metavar="PATTERN,...")] = None
    lora_rank: Annotated[int | None, about("", default="4")] = None
    lora_alpha: Annotated[float | None, about("", default="the rank")] = None
    lora_targets: Annotated[str | None, about("", metavar="PATTERN,...", default="dense")] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyConfig(PrivacyTerms):
    """How privacy is counted.

    Args:
        epsilon: budget per client; finds the noise
        epsilon_high: budgets are uniform from epsilon to this, one per client
    """

    epsilon: float | None = None
    epsilon_high: float | None = None

    def terms(self, num_clients: int, seed: int) -> PrivacyTerms:
        """The same with the budgets of a population, drawn by the seed where they differ."""
        low, high = self.epsilon, self.epsilon_high
        budgets: float | np.ndarray | None = low
        if low is not None and high is not None:
            for name, budget in (("epsilon", low), ("epsilon_high", high)):
                require_budget(name, budget, WITHOUT)
            if not high >= low:
                raise errors.refuse("epsilon_high", high, f"at least epsilon, {low:g}")
            budgets = np.random.default_rng(seed).uniform(low, high, num_clients)
        shared = {name: value for name, value in vars(self).items() if name != "epsilon_high"}
        return PrivacyTerms(**shared | {"epsilon": budgets})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionConfig:
    """Where it runs; results are the same, to rounding.

    Args:
        devices: that share a cohort: auto takes all; no more than clients in a cohort
        model_devices: that hold a model together, each a part, for models too large for one
        records: kept on devices, or host, which feeds them the next cohorts'; auto: host for stores and several
            processes
        chunk_size: clients computed at once on a device; all, but for large models on a CPU: 1
        deterministic: add up the cohort in so many parts, in order: the same bits on any number of devices
    """

    devices: Annotated[int | str, about("", metavar="auto|INT")] = "auto"
    model_devices: int = 1
    records: Annotated[str, about("", choices=("auto", "host", "devices"))] = "auto"
    chunk_size: Annotated[int | None, about("", default="what the device takes best")] = None
    deterministic: Annotated[int | None, about("", metavar="PARTS", default="in the order of the devices")] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """What is measured and written.

    Args:
        evaluate_every: rounds between evaluations
        train_metrics: also evaluate objective and gradient norm over all training records
        target: value of a metric to count rounds and bytes to, such as accuracy=0.9
        ap: how mean AP is taken of several labels: exact, or in 200 buckets as FLAIR's benchmark does
        checkpoint_every: rounds between checkpoints
        out: run folder; must not exist or be empty
    """

    evaluate_every: Annotated[int, about("", default="rounds / 20")]
    train_metrics: bool | None = None
    target: Annotated[str | None, about("", metavar="METRIC=VALUE")] = None
    ap: Annotated[str | None, about("", choices=APS, default="exact")] = None
    checkpoint_every: Annotated[int, about("", default="rounds / 5")]
    out: Annotated[str | None, about("", metavar="DIR", default="runs/DATASET-ALGORITHM-sSEED")] = None


GROUPS: dict[str, type] = {
    "data": PopulationConfig,
    "training": TrainingConfig,
    "privacy": PrivacyConfig,
    "execution": ExecutionConfig,
    "output": OutputConfig,
}
# Other flags of the command line.
TAKEN_OFF = (
    "help",
    "help_all",
    "json",
    "resume",
    "coordinator",
    "processes",
    "process",
    "timeout",
    "track",
    "track_dir",
)
OF_PRIVATE = ("epsilon", "epsilon_high", "delta")  # that mean nothing without privacy


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides a run, in groups; keys of a TOML file and flags are the names inside of them."""

    algorithm: str
    options: Said  # of the algorithm, where they are not its own defaults
    data: PopulationConfig
    training: TrainingConfig
    privacy: PrivacyConfig
    execution: ExecutionConfig
    output: OutputConfig
    given: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)  # fields that were said, by name

    @property
    def entry(self) -> Entry[Any]:
        return entry_of(self.algorithm)

    @property
    def code(self) -> dict[str, str]:
        """Checksums of the user's own code that decides the run, by path."""
        return own_code.checksums(self.algorithm, self.training.model)

    @property
    def files(self) -> dict[str, str]:
        """Checksums of the other files of the user's own that decide it."""
        return start_files(self.training.start, self.training.start_names)

    def flat(self) -> dict[str, Any]:
        """What is set, by name: `resolve` makes the same configuration of it."""
        found = {"algorithm": self.algorithm}
        for group in GROUPS:
            found |= vars(getattr(self, group))
        return {name: value for name, value in (found | dict(self.options)).items() if value is not None}

    def unsaid(self) -> dict[str, Any]:
        """What nobody said and the data set brought, by name."""
        brought = preset_of(kind_of(self.data.dataset))
        return {
            name: value for name, value in self.flat().items() if name not in self.given and value == brought.get(name)
        }

    def to_dict(self) -> dict[str, Any]:
        """Every option that the run takes, None where nothing is set, for JSON."""
        found = self.flat()
        return {name: found.get(name) for name in options_of(self.entry)}

    def replace(self, **changes: Any) -> "RunConfig":
        """The same with other values of fields by name, which are not checked again."""
        changed = {
            group: dataclasses.replace(getattr(self, group), **own)
            for group, options in _fixed().items()
            if (own := {name: value for name, value in changes.items() if name in options})
        }
        return dataclasses.replace(self, **changed)

    @contextlib.contextmanager
    def naming_defaults(self) -> Iterator[None]:
        """A refusal in the block that is about a field which nobody gave says whose default it is."""
        try:
            yield
        except errors.ConfigurationError as error:
            brought = error.what in self.flat() and error.what not in self.given
            if not brought:
                raise
            whose = f"{self.entry.name} on {self.data.dataset}"
            raise type(error)(f"{error} (nobody gave {error.what}: it is the default of {whose})") from None


def entry_of(algorithm: str) -> Entry[Any]:
    """The entry of the catalogue by that name, or one of the user's own, FILE.py:NAME."""
    if not own_code.is_own(algorithm):
        errors.require_choice("algorithm", algorithm, CATALOGUE)
        return CATALOGUE[algorithm]
    found = own_code.own("algorithm", algorithm)
    if not isinstance(found, Entry):
        remedy = "put @fedjax_dp.algorithms.entry() above a function that makes an Algorithm of options"
        raise errors.refuse("algorithm", f"{algorithm}, which is {type(found).__name__}", "an entry", remedy)
    return found


def known_options(*algorithms: Any) -> Options:
    """What runs of the catalogue may be told, and those of algorithms of the user's own among these."""
    own = [entry_of(algorithm) for algorithm in algorithms if own_code.is_own(algorithm)]
    return options_of(*own, *CATALOGUE.values())


@functools.cache
def _fixed() -> dict[str, Options]:
    """The options that every run takes, by group."""
    return {group: of_class(cls) for group, cls in GROUPS.items()}


def groups_of(*entries: Entry[Any]) -> dict[str, Options]:
    """Everything that runs of some algorithms may be told, by group, in the order of help."""
    names = about("which of the catalogue, or FILE.py:NAME", choices=CATALOGUE, own=True)
    found: dict[str, Options] = {name: {} for name in ("data", "training", "privacy", "server", "execution", "output")}
    found["training"]["algorithm"] = Option("algorithm", str, "dpnfl", names)
    for group, options in _fixed().items():
        found[group] |= options
    fields = {name for options in found.values() for name in options} | set(TAKEN_OFF)
    taken: set[str] = set()
    for entry in entries:
        for name, option in entry.options.items():
            if name in fields:
                raise errors.refuse(
                    f"an option of {entry.name}", name, "a name that no field of a run has", "rename it"
                )
            if option.kinds and name not in taken:
                found.setdefault(option.about.group or "training", {})[name] = option
                taken.add(name)
    return found


def options_of(*entries: Entry[Any]) -> Options:
    """The same without groups; of all entries of the catalogue unless some are named."""
    grouped = groups_of(*(entries or CATALOGUE.values()))
    return {name: option for options in grouped.values() for name, option in options.items()}


def resolve(said: Said) -> RunConfig:
    """Fill in what data set and algorithm bring, so that the configuration says everything; refuses what cannot be."""
    said = {name: value for name, value in said.items() if value is not None}
    algorithm = said.get("algorithm", "dpnfl")
    entry = entry_of(algorithm)
    known, taken = options_of(), options_of(entry)
    for name, value in said.items():
        errors.require_choice("option", name, {**known, **taken})
        if name not in taken:
            raise errors.refuse(name, value, f"left out for {entry.name}, which does not take it", _owners(name))
        if name in OF_PRIVATE and not entry.private:
            raise errors.refuse(
                name,
                value,
                f"left out for {entry.name}, which is not private",
                f"give it an option noise_multiplier: {PAGES}/entry.md" if own_code.is_own(algorithm) else "use dpnfl",
            )
    said = {name: typed(name, value, taken[name]) for name, value in said.items()}
    preset = _preset(entry, said)
    population = resolve_population(PopulationConfig(**_only(said, PopulationConfig)), preset)
    filled = {name: value for name, value in preset.items() if name in taken and name not in population_of("digits")}
    values = filled | said
    for name in [name for name in filled if name not in said and taken[name].missing(_effective(taken, values))]:
        del values[name]
    require_meant(taken, values, said)
    for name, value in values.items():
        taken[name].check(value)
        if (
            name in entry.options
            and isinstance(value, float)
            and (0 < abs(value) < TINY or HUGE < abs(value) < math.inf)
        ):
            raise errors.refuse(name, value, f"0, or from {TINY:g} to {HUGE:g} in size, as float32 holds it")
    _check_numbers(values)
    rounds = values["rounds"]
    values = {"evaluate_every": max(1, rounds // 20), "checkpoint_every": max(1, rounds // 5)} | values
    return RunConfig(
        algorithm=algorithm,
        options={name: values[name] for name in entry.options if name in values},
        data=population,
        training=TrainingConfig(**_only(values, TrainingConfig)),
        privacy=PrivacyConfig(**_only(values, PrivacyConfig)),
        execution=ExecutionConfig(**_only(values, ExecutionConfig)),
        output=OutputConfig(**_only(values, OutputConfig)),
        given=frozenset(said),
    )


def _preset(entry: Entry[Any], said: Said) -> dict[str, Any]:
    """What is taken where nothing is said: the data set's, and over that the algorithm's."""
    preset = preset_of(kind_of(said.get("dataset", "digits")))
    brought = entry.preset({**preset, **said})
    known = options_of(entry)
    for name in brought:
        errors.require_choice(f"presets of {entry.name}: an option", name, known)
    preset |= brought
    if not entry.private:
        preset = {name: value for name, value in preset.items() if name not in OF_PRIVATE}
    if "noise_multiplier" in said:
        for name in ("epsilon", "epsilon_high"):
            preset.pop(name, None)
            if name in said:
                raise errors.refuse(name, said[name], "left out when noise_multiplier is given", "keep one of them")
    if "epsilon" in said:
        preset.pop("epsilon_high", None)
    if said.get("batches") == "full":
        preset.pop("batch_size")
        if "batch_size" in said:
            raise errors.refuse("batch_size", said["batch_size"], "left out for full batches", "drop it")
    return preset


def _check_numbers(values: Said) -> None:
    """Refuse counts that are none, and what every run has and this one lacks."""
    counts = ("rounds", "cohort_size", "batch_size", "local_steps", "evaluate_every", "checkpoint_every", "chunk_size")
    for name in (*counts, "deterministic", "model_devices", "devices"):
        if name in values and values[name] != "auto":
            errors.require_count(name, values[name], "or auto" if name == "devices" else "")
            if values[name] > LARGEST_COUNT:
                raise errors.refuse(name, values[name], f"at most {LARGEST_COUNT:,}")
    if "target" in values:
        split_target(values["target"])


def _effective(taken: Options, values: Said) -> dict[str, Any]:
    return {name: option.default for name, option in taken.items()} | dict(values)


def _owners(name: str) -> str:
    users = [entry.name for entry in CATALOGUE.values() if name in entry.options]
    return "it belongs to " + ", ".join(users[:6]) + (", ..." if len(users) > 6 else "")


def _only(values: Said, cls: type) -> dict[str, Any]:
    """What of the values are fields of a class."""
    names = {field.name for field in dataclasses.fields(cls)}
    return {name: value for name, value in values.items() if name in names}


def table(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a TOML file says, unchecked."""
    path = pathlib.Path(errors.require_text("configuration file", os.fspath(path)))
    if not path.is_file():
        raise errors.refuse("configuration file", str(path), "an existing TOML file", folders.where_looked(path))
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise errors.refuse("configuration file", str(path), "valid TOML", str(error)) from None


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a TOML file says, each value checked against its type."""
    said, path = table(path), pathlib.Path(path)
    known = known_options(said.get("algorithm"))
    for name, given in said.items():
        if name in TAKEN_OFF:
            remedy = f"fedjax-dp run {path} --{name.replace('_', '-')}"
            raise errors.refuse(f"{path.name}: {name}", given, "left to the command line", remedy)
        errors.require_choice(f"{path.name}: a key", name, known)
        said[name] = typed(f"{path.name}: {name}", given, known[name])
    return said


def to_toml(said: Said) -> str:
    """The values as TOML that `read` gives back."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in said.items() if value is not None)
