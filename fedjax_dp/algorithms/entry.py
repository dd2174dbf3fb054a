"""An entry of the catalogue: a constructor of algorithms, its source, and its defaults."""

import dataclasses
import functools
import inspect
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec

import numpy as np

from fedjax_dp import errors, options, own_code, validation
from fedjax_dp.algorithms.assemble import (
    CHANGING,
    COMMON,
    RUN_OPTIONS,
    SLOT_OF,
    Common,
    server_presets,
    with_numbers,
)
from fedjax_dp.options import Options, is_part
from fedjax_dp.parts.choices import CHOICES, choice_of, is_same_choice, own_numbers, refuse_number, takes_size

if TYPE_CHECKING:
    from fedjax_dp.data.store import FederatedData
    from fedjax_dp.models import Model
    from fedjax_dp.rounds.algorithm import Algorithm

P = ParamSpec("P")
Values = Mapping[str, Any]


class PrepareContext(NamedTuple):
    """What is known of a run before its algorithm is built."""

    data: "FederatedData"
    model: "Model"
    rounds: int
    epsilon: float | Sequence[float] | np.ndarray | None  # the budget, or one per client
    delta: float | None
    seed: int
    terms: Any  # a `PrivacyTerms`, with the budget too
    explicit: Collection[str] = ()  # the options that the run states
    say: Callable[[str], None] = lambda line: None  # takes a line of the run's log


class _Help:
    """The docstring of a class, and of its instances their `help`."""

    def __init__(self, of_class: str | None) -> None:
        self.of_class = of_class

    def __get__(self, entry: "Entry[Any] | None", owner: Any = None) -> str | None:
        return self.of_class if entry is None else entry.help


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Entry(Generic[P]):
    """A constructor of algorithms whose keyword arguments are its options.

    Their names, types, choices and defaults are in its signature; their meaning is in their types or in the `Args:` of
    its docstring (see `fedjax_dp.options`). `**common: Unpack[Common]` takes the options that all entries share.

    source    who proposed it: author and year, or the short name of a paper;
    defaults  defaults of common options and of numbers of parts that differ from the usual ones;
    presets   values that a run uses for options it leaves out; they override the presets of the data set;
    fixes     arguments that a run cannot give: common options that the entry decides itself (for a slot, the name of
              its part) and results of `prepare`;
    prepare   learns something about the clients before training: `prepare(context, options, *, ...)` returns further
              arguments of the constructor; its keyword arguments are options too.
    `defaults` and `presets` may be functions of the explicit options; `presets` also sees those of the data set.
    """

    constructor: Callable[P, "Algorithm"]
    source: str = ""
    defaults: Values | Callable[[Values], Values] = dataclasses.field(default_factory=dict)
    presets: Values | Callable[[Values], Values] = dataclasses.field(default_factory=dict)
    fixes: Collection[str] = ()
    prepare: Callable[..., Values] | None = None

    def __post_init__(self) -> None:
        for name in ("defaults", "presets"):
            values = getattr(self, name)
            if not (callable(values) or isinstance(values, Mapping)):
                raise errors.refuse(f"{name} of {self.name}", repr(values), "a mapping, or a function that makes one")
        names = ("__module__", "__name__", "__qualname__")  # an entry looks like its constructor
        vars(self).update({name: getattr(self.constructor, name) for name in names}, __wrapped__=self.constructor)

    def __reduce__(self) -> Any:
        home = sys.modules.get(self.constructor.__module__)
        if getattr(home, self.name, None) is self:  # by its name, as functions are pickled
            return self.name
        return Entry, (self.constructor, self.source, self.defaults, self.presets, self.fixes, self.prepare)

    def __repr__(self) -> str:
        return f"<entry {self.name}: {self.source or 'no source'}>"

    @property
    def name(self) -> str:
        return self.constructor.__name__

    @functools.cached_property
    def _keywords(self) -> Options:
        """The options of the constructor: its own, then the common ones."""
        return options.of_function(self.constructor, {Common: COMMON})

    @functools.cached_property
    def _arguments(self) -> Options:
        """The options of the constructor and the numbers of parts, with the defaults of this entry."""
        defaults, known = _mapping_of(self.defaults, {}), with_numbers(self._keywords)
        for name in defaults:
            errors.require_choice(f"defaults of {self.name}: an option", name, known)
        return {
            name: dataclasses.replace(option, default=defaults[name]) if name in defaults else option
            for name, option in known.items()
        }

    @functools.cached_property
    def options(self) -> Options:
        """All options of a run, without those that have no meaning under the options that the entry fixes."""
        known = self._arguments | (options.of_function(self.prepare) if self.prepare else {})
        fixes = {*self.fixes, *(() if "noise_multiplier" in known else CHANGING)}
        constants = {name: known[name].default for name in fixes if name in known}
        free = {name: option.where(constants) for name, option in known.items() if name not in fixes}
        return {name: option for name, option in free.items() if option is not None}

    @property
    def __signature__(self) -> inspect.Signature:
        """Every keyword with its type and its default in this entry."""
        from fedjax_dp import parts
        from fedjax_dp.rounds.algorithm import Algorithm  # loads JAX

        parameters = {name: self._arguments[name].parameter for name in self._keywords}
        for slot, of in CHOICES.items():
            if slot in parameters and self._keywords[slot].about.part:
                either = parameters[slot].annotation | getattr(parts, of.kind)
                parameters[slot] = parameters[slot].replace(annotation=either)
        return inspect.Signature([*parameters.values()], return_annotation=Algorithm)

    @property
    def __advice__(self) -> str:
        """The remedy for an entry in the place of an algorithm."""
        required = (name for name, option in self._arguments.items() if option.default is options.REQUIRED)
        return f"call it: {self.name}({', '.join(f'{name}=...' for name in required)})"

    @property
    def private(self) -> bool:
        """Whether it has a noise multiplier."""
        return "noise_multiplier" in self.options

    @property
    def help(self) -> str:
        """What `help` prints: the constructor's docstring, and a line for each keyword."""
        described, _, _ = inspect.cleandoc(self.constructor.__doc__ or "").partition("\nArgs:")
        lines = [described.rstrip(), "", "Args:"]
        for name, option in self._arguments.items():
            if name in self._keywords and name not in self.fixes:
                default = "required" if option.default is options.REQUIRED else f"default {option.default!r}"
                text = ": ".join(filter(None, [option.about.text.split("; ")[0], ", ".join(option.choices or ())]))
                line = f"{name}: {text} ({default})"
                lines += textwrap.wrap(
                    line, 116, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False
                )
        return "\n".join(lines)

    def preset(self, known: Values) -> dict[str, Any]:
        """Values for the options that a run leaves out; `known`: its explicit options over the data set's presets."""
        server = server_presets(self._with_defaults(known)) if "server_learning_rate" in self.options else {}
        return {**server, **_mapping_of(self.presets, known)}

    def prepare_and_build(self, explicit: Values, known: PrepareContext) -> "Algorithm":
        """The algorithm of a run, with the arguments that `prepare` learns from its clients."""
        if self.prepare is None:
            return self.of(explicit)
        of_prepare = options.of_function(self.prepare)
        arguments = {name: value for name, value in explicit.items() if name not in of_prepare}
        arguments_of_prepare = {name: value for name, value in explicit.items() if name in of_prepare}
        values = self._with_sizes(self._with_defaults(arguments))
        further = self.prepare(known._replace(explicit=arguments), values, **arguments_of_prepare)
        return self.of(arguments | dict(_mapping_of(further, arguments)))

    def __call__(self, *args: P.args, **explicit: P.kwargs) -> "Algorithm":
        """The algorithm with these options.

        Raises: ConfigurationError in one line for options that are unknown, missing, not among their choices, or
                without effect, and for numbers of parts, which belong into their part.
        """
        if args:
            got = ", ".join(map(validation.describe, args))
            raise errors.refuse(self.name, f"{got} without a name", "called with options by name", self.__advice__)
        for name, value in explicit.items():
            if name in SLOT_OF and name not in self._keywords:
                chosen = self._with_defaults(explicit).get(SLOT_OF[name])
                raise refuse_number(SLOT_OF[name], name, value, chosen)
        return self.of(explicit)

    def of(self, explicit: Values) -> "Algorithm":
        """The algorithm with the options of a run, which may also include numbers of parts by name."""
        known = self._arguments | own_numbers(explicit)
        for name, value in explicit.items():
            if name in known:
                known[name].check(value)  # before defaults depend on it
            if name in self.fixes and name in RUN_OPTIONS:
                self._require_fixed_part(name, value)
        values = self._with_sizes(self._with_defaults(explicit))
        options.require(known, values, explicit, self.name)
        algorithm = self._construct(values)
        from fedjax_dp.rounds.algorithm import Algorithm  # loads JAX

        if not isinstance(algorithm, Algorithm):
            raise errors.refuse(self.name, type(algorithm).__name__, "a function that returns an Algorithm")
        return algorithm

    def _construct(self, values: Values) -> Any:
        constructor: Callable[..., Algorithm] = self.constructor
        try:
            return constructor(**values)
        except Exception as error:  # user code may raise anything
            if isinstance(error, errors.ConfigurationError) or constructor.__module__.startswith("fedjax_dp."):
                raise
            got, remedy = own_code.describe_error(error), validation.undecorated_advice(error, constructor)
            raise errors.refuse(self.name, got, "made without an error", remedy) from error

    def _with_defaults(self, explicit: Values) -> dict[str, Any]:
        """The options with the defaults of this entry, except numbers for a slot that holds a part."""
        defaults = _mapping_of(self.defaults, explicit)
        fitting = {name: value for name, value in defaults.items() if not is_part(explicit.get(SLOT_OF.get(name, "")))}
        return {**fitting, **explicit}

    def _with_sizes(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The options with size None for choices that determine their own size."""
        result = dict(values)
        for slot, of in CHOICES.items():
            chosen = values.get(slot, self._arguments[slot].default) if slot in self._arguments else None
            if of.size in self._arguments and chosen is not None and not takes_size(slot, chosen):
                result.setdefault(of.size, None)
        return result

    def _require_fixed_part(self, name: str, value: Any) -> None:
        """Refuse an option that the entry fixes; if it fixes a part with numbers, that part with others is accepted."""
        has_numbers = any(SLOT_OF.get(number) == name for number in self.options)
        if not (has_numbers and is_part(value)):
            raise errors.refuse(name, value, f"left out for {self.name}, which decides it", "drop it")
        choice = choice_of(name, self._arguments[name].default)
        if not is_same_choice(value, choice.make(name, {})):
            got = validation.describe(value)
            raise errors.refuse(name, got, f"the part of {self.name} with other numbers", f"such as {choice.call()}")


Entry.__doc__ = _Help(Entry.__doc__)  # type: ignore[assignment]


def _mapping_of(values: Values | Callable[[Values], Values], explicit: Values) -> Values:
    mapping = values(explicit) if callable(values) else values
    if not isinstance(mapping, Mapping):
        raise errors.refuse("defaults, presets and results of prepare", repr(mapping), "mappings of options to values")
    return mapping


def entry(
    source: str = "",
    *,
    defaults: Values | Callable[[Values], Values] | None = None,
    presets: Values | Callable[[Values], Values] | None = None,
    fixes: Collection[str] = (),
    prepare: Callable[..., Values] | None = None,
) -> Callable[[Callable[P, "Algorithm"]], Entry[P]]:
    """A decorator that makes the constructor below it an `Entry`."""
    if not isinstance(source, str):
        raise errors.refuse("entry", validation.describe(source), "called", 'write @entry("Somebody 2026") above it')

    def wrap(constructor: Callable[P, "Algorithm"]) -> Entry[P]:
        return Entry(constructor, source, defaults or {}, presets or {}, fixes, prepare)

    return wrap
