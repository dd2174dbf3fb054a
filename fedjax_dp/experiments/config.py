"""The configuration of a run: settings from a TOML file, flags or Python, and the defaults that follow.

Overrides map names to values; the names are those of the fields below and of the algorithm's options. `RunSpec.of`
resolves them to a complete `RunSpec`; `RunSpec.of_values` does so for an algorithm, data and a model that are Python
values.
"""

import contextlib
import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from fedjax_dp import errors, folders, own_code
from fedjax_dp.algorithms import CATALOGUE, Entry
from fedjax_dp.data.loaders import kind_of
from fedjax_dp.display import plain
from fedjax_dp.experiments.groups import (
    GROUPS,
    PRETRAINED,
    TAKEN_OFF,
    ExecutionConfig,
    OutputConfig,
    PopulationConfig,
    TrainingConfig,
    entry_of,
    fixed_options,
    known_options,
    options_of,
)
from fedjax_dp.experiments.presets import population_of, preset_of, resolve_population
from fedjax_dp.options import Options, require_meant
from fedjax_dp.parts.choices import CHOICES, own_numbers, takes_size
from fedjax_dp.privacy.terms import PrivacyTerms, budgets_as_text, options_of_terms
from fedjax_dp.tasks.measures import split_target
from fedjax_dp.validation import PAGES

Overrides = Mapping[str, Any]
LARGEST_COUNT = 2**31 - 1  # the largest int32, which counts rounds
TINY, HUGE = (float(getattr(np.finfo(np.float32), name)) for name in ("tiny", "max"))
CONFIGURED, VALUES = "a configuration", "values of Python"  # the source of a run
# The overrides of a run whose algorithm, data, model and devices are values.
BESIDE_VALUES = ("seed", "rounds", "evaluate_every", "checkpoint_every", "train_metrics", "target", "records")
# Meaningless without privacy.
OF_PRIVATE = (
    "epsilon",
    "epsilon_high",
    "unit",
    "delta",
    "stop_at_epsilon",
    "deployment_cohort",
    "deployment_population",
)


def folder_of(model: str | None) -> str | None:
    """The folder of `pretrained:FOLDER`; None for another model."""
    scheme, _, folder = str(model).partition(":")
    return folder if scheme == PRETRAINED and folder else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSpec:
    """Everything that determines a run, in groups; the names in them are keys of a TOML file and flags."""

    algorithm: str
    options: Overrides  # of the algorithm, other than its defaults
    data: PopulationConfig
    training: TrainingConfig
    privacy: PrivacyTerms
    execution: ExecutionConfig
    output: OutputConfig
    explicit: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)  # names that the user set
    made_of: str = CONFIGURED
    # Of values: their algorithm and model in words, which are made when something writes the configuration.
    describe: Callable[[], Overrides] = dataclasses.field(default=dict, compare=False, repr=False)

    @classmethod
    def of(cls, overrides: Overrides) -> "RunSpec":
        """Fill in the defaults of data set and algorithm; refuse impossible combinations."""
        explicit = {name: value for name, value in overrides.items() if value is not None}
        algorithm = explicit.get("algorithm", "dpnfl")
        entry = entry_of(algorithm)
        taken = options_of(entry)
        own = own_numbers(explicit)
        _require_own_names(own, taken)
        taken |= own
        _require_taken(entry, taken, explicit)
        explicit = {name: taken[name].typed(value) for name, value in explicit.items()}
        preset = _preset(entry, explicit)
        population = resolve_population(PopulationConfig(**_fields_of(explicit, PopulationConfig)), preset)
        filled = {
            name: value for name, value in preset.items() if name in taken and name not in population_of("digits")
        }
        effective = _with_defaults(taken, filled | explicit)
        values = {name: value for name, value in filled.items() if not taken[name].missing(effective)} | explicit
        require_meant(taken, values, explicit)
        entry_options = entry.options | own  # in their order: files of equal runs are equal
        values |= _whole_run_rounds(taken, values)
        for name, value in ((name, values[name]) for name in entry_options if isinstance(values.get(name), float)):
            if 0 < abs(value) < TINY or HUGE < abs(value) < math.inf:
                raise errors.refuse(name, value, f"0, or from {TINY:g} to {HUGE:g} in size, as float32 holds it")
        values = _check_values(taken, values)
        return cls(
            algorithm=algorithm,
            options={name: values[name] for name in entry_options if name in values},
            data=population,
            **{name: group(**_fields_of(values, group)) for name, group in GROUPS.items() if name != "data"},
            explicit=frozenset(explicit),
        )

    @classmethod
    def of_values(cls, overrides: Overrides, *, dataset: str) -> "RunSpec":
        """The same where algorithm, data and model are values, which `describe` puts into words."""
        explicit = {name: value for name, value in overrides.items() if value is not None}
        privacy = options_of_terms()  # whose epsilon may be one for each client
        fixed = {name: option for options in fixed_options().values() for name, option in options.items()}
        taken = {name: fixed[name] for name in BESIDE_VALUES} | privacy
        for name, value in explicit.items():
            if name not in taken and name in options_of():
                remedy = "give it to what makes the algorithm, the data or the model"
                raise errors.refuse(name, value, "left out where algorithm and data are values", remedy)
            errors.require_choice("option", name, taken)
            explicit[name] = value if name in privacy else taken[name].typed(value)
        if isinstance(explicit.get("epsilon"), str | Mapping):
            explicit["epsilon"] = budgets_as_text("epsilon", explicit["epsilon"])
        values = _check_values(taken, explicit)
        return cls(
            algorithm="",
            options={},
            data=PopulationConfig(dataset=dataset, seed=values.get("seed", 0)),
            training=TrainingConfig(rounds=values["rounds"]),
            privacy=PrivacyTerms(**_fields_of(values, PrivacyTerms)),
            execution=ExecutionConfig(**_fields_of(values, ExecutionConfig)),
            output=OutputConfig(**_fields_of(values, OutputConfig)),
            explicit=frozenset(explicit),
            made_of=VALUES,
        )

    @property
    def name(self) -> str:
        """The algorithm's display name."""
        return self.entry.name if self.made_of == CONFIGURED else "algorithm"

    @property
    def entry(self) -> Entry[Any]:
        return entry_of(self.algorithm)

    @property
    def code(self) -> dict[str, str]:
        """Checksums of the user's code that determines the run, by path."""
        return own_code.checksums(self.algorithm, self.training.model, *map(self.options.get, CHOICES))

    @property
    def pretrained(self) -> str | None:
        """The folder of a pretrained model."""
        return folder_of(self.training.model)

    @property
    def files(self) -> dict[str, str]:
        """Checksums of the user's other files that determine the run; of a log, only of the run's rounds."""
        from fedjax_dp.models.starts import start_files  # loads JAX

        training, log = self.training, self.options.get("participation_log")
        starts = start_files(training.start, training.start_names, self.pretrained)
        if log is None or not pathlib.Path(log).exists():
            return starts
        from fedjax_dp.accounting import ParticipationLog  # loads SciPy

        rounds = training.rounds if self.privacy.stop_at_epsilon is None else None  # a budget may end it before its log
        return starts | {log: ParticipationLog.read(log).digest(rounds)[:16]}

    def flat(self) -> dict[str, Any]:
        """All settings by name: `RunSpec.of`, or `of_values` for those it takes, makes an equal configuration."""
        result = {"algorithm": self.algorithm}
        for group in GROUPS:
            result |= vars(getattr(self, group))
        if self.made_of == VALUES:
            kept = ("algorithm", "dataset", "model", *BESIDE_VALUES, *vars(self.privacy))
            result |= self.describe()
            result = {name: plain(result[name]) for name in kept}
        return {name: value for name, value in (result | dict(self.options)).items() if value is not None}

    def from_data_set(self) -> dict[str, Any]:
        """Values from the data set's presets that the user left out, by name."""
        brought = preset_of(kind_of(self.data.dataset))
        return {
            name: value
            for name, value in self.flat().items()
            if name not in self.explicit and value == brought.get(name)
        }

    def to_dict(self) -> dict[str, Any]:
        """Every option that the run takes as JSON content; None if unset."""
        result = self.flat()
        if self.made_of != CONFIGURED:
            return result
        return {name: result.get(name) for name in options_of(self.entry) | own_numbers(self.options)}

    def replace(self, **changes: Any) -> "RunSpec":
        """This configuration with other values of fields by name, which are not checked again."""
        changed = {
            group: dataclasses.replace(getattr(self, group), **own)
            for group, options in fixed_options().items()
            if (own := {name: value for name, value in changes.items() if name in options})
        }
        return dataclasses.replace(self, **changed)

    def for_clients(self, num_clients: int) -> "RunSpec":
        """The same with no more clients in a round than there are, if the cohort was left out."""
        usual = self.options.get("cohort_size")
        if usual is None or usual <= num_clients or "cohort_size" in self.explicit:
            return self
        return dataclasses.replace(self, options={**self.options, "cohort_size": num_clients})

    def with_rounds(self, rounds: int) -> "RunSpec":
        """This configuration for other rounds, with the defaults that follow from them."""
        if rounds == self.training.rounds:
            return self
        follow = {name: value for name, value in _by_rounds(rounds).items() if name not in self.explicit}
        return self.replace(rounds=rounds, **follow)

    @contextlib.contextmanager
    def naming_defaults(self) -> Iterator[None]:
        """Add to a refusal in the block about an unset field whose default it is."""
        try:
            yield
        except errors.ConfigurationError as error:
            brought = error.what in self.flat() and error.what not in self.explicit
            if not brought:
                raise
            whose = f"{self.entry.name} on {self.data.dataset}"
            raise type(error)(f"{error} ({error.what} was not set: it is the default of {whose})") from None


def _require_own_names(own: Options, taken: Options) -> None:
    """Refuse numbers of a user-defined part whose names are taken."""
    for name, option in own.items():
        (slot,) = option.about.beside
        if name in taken and slot not in taken[name].about.beside:
            remedy = "give its field about(named=...), or rename it"
            raise errors.refuse(f"an option of the part in slot {slot}", name, "a name that a run has not", remedy)


def _require_taken(entry: Entry[Any], taken: Options, explicit: Overrides) -> None:
    """Refuse names that are unknown or belong to other algorithms."""
    known = {**options_of(), **taken}
    for name, value in explicit.items():
        errors.require_choice("option", name, known)
        if name not in taken:
            raise errors.refuse(name, value, f"left out for {entry.name}, which does not take it", _owners(name))
        if name in OF_PRIVATE and not entry.private and value != taken[name].default:
            own = entry.name not in CATALOGUE
            remedy = f"give it an option noise_multiplier: {PAGES}/entry.md" if own else "use dpnfl"
            raise errors.refuse(name, value, f"left out for {entry.name}, which is not private", remedy)


def _preset(entry: Entry[Any], explicit: Overrides) -> dict[str, Any]:
    """The presets of the data set, overridden by those of the algorithm."""
    preset = preset_of(kind_of(explicit.get("dataset", "digits")))
    brought = entry.preset({**preset, **explicit})
    known = options_of(entry)
    for name in brought:
        errors.require_choice(f"presets of {entry.name}: an option", name, known)
    preset |= brought
    if not entry.private:
        preset = {name: value for name, value in preset.items() if name not in OF_PRIVATE}
    if "noise_multiplier" in explicit:
        for name in ("epsilon", "epsilon_high"):
            preset.pop(name, None)
            if name in explicit:
                raise errors.refuse(name, explicit[name], "left out when noise_multiplier is given", "keep one of them")
    if "epsilon" in explicit:
        preset.pop("epsilon_high", None)
    if "participation_log" in explicit:  # which determines the cohorts
        preset["cohort"] = "log"
    for slot, size in (("cohort", "cohort_size"), ("batches", "batch_size")):
        chosen = {**preset, **explicit}.get(slot)
        if chosen is None or takes_size(slot, chosen):
            continue
        preset.pop(size, None)
        if size in explicit:
            raise errors.refuse(size, explicit[size], f"left out with {slot} {chosen}, which determines it", "drop it")
    return preset


def _check_values(taken: Options, values: Overrides) -> dict[str, Any]:
    """Check each value by its option, and fill in the rounds between evaluations and checkpoints."""
    for name, value in values.items():
        taken[name].check(value)
    counts = ("rounds", "cohort_size", "batch_size", "local_steps", "evaluate_every", "checkpoint_every", "chunk_size")
    for name in (*counts, "deterministic", "model_devices", "devices"):
        if name in values and values[name] != "auto":
            errors.require_count(name, values[name], "or auto" if name == "devices" else "")
            if values[name] > LARGEST_COUNT:
                raise errors.refuse(name, values[name], f"at most {LARGEST_COUNT:,}")
    for name in ("target", "stop"):
        if name in values:
            split_target(values[name], name)
    return {**_by_rounds(values["rounds"]), **values}


def _by_rounds(rounds: int) -> dict[str, int]:
    """Default rounds between evaluations and between checkpoints."""
    return {"evaluate_every": max(1, rounds // 20), "checkpoint_every": max(1, rounds // 5)}


def _whole_run_rounds(taken: Options, values: Overrides) -> dict[str, Any]:
    """Fill in the run's rounds in schedules over rounds that leave their number out."""
    effective = _with_defaults(taken, values)
    return {
        name: values["rounds"]
        for name, option in taken.items()
        if option.about.whole_run and effective[name] is None and not option.missing(effective)
        # under per_step its rounds are steps
        if not ("schedule" in option.about.beside and effective.get("per_step"))
    }


def _with_defaults(taken: Options, values: Overrides) -> dict[str, Any]:
    return {name: option.default for name, option in taken.items()} | dict(values)


def _owners(name: str) -> str:
    users = [entry.name for entry in CATALOGUE.values() if name in entry.options]
    return "it belongs to " + ", ".join(users[:6]) + (", ..." if len(users) > 6 else "")


def _fields_of(values: Overrides, cls: type) -> dict[str, Any]:
    """The values that are fields of a class."""
    names = {field.name for field in dataclasses.fields(cls)}
    return {name: value for name, value in values.items() if name in names}


def _flatten_tables(written: Overrides, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Turn the table of a slot, such as `[cohort]` with a name and numbers, into options of the run."""
    result: dict[str, Any] = {}
    for name, value in written.items():
        table = value if name in CHOICES and isinstance(value, Mapping) else {"name": value}
        for key, one in table.items():
            option = name if key == "name" else key
            if option in result:
                raise errors.refuse(f"{pathlib.Path(path).name}: {option}", "two of it", "written once", "drop one")
            result[option] = one
    return result


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings of a TOML file, each value checked against its type."""
    overrides, path = _flatten_tables(folders.read_toml("configuration file", path), path), pathlib.Path(path)
    known = known_options(overrides.get("algorithm")) | own_numbers(overrides)
    for name, value in overrides.items():
        if name in TAKEN_OFF:
            remedy = f"fedjax-dp run {path} --{name.replace('_', '-')}"
            raise errors.refuse(f"{path.name}: {name}", value, "left to the command line", remedy)
        errors.require_choice(f"{path.name}: a key", name, known)
        overrides[name] = known[name].typed(value, f"{path.name}: {name}")
    return overrides
