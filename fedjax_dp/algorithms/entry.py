"""An entry of the catalogue: a constructor, where it comes from, and what it brings."""

import dataclasses
import functools
import inspect
import sys
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
    brought_to_server,
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
    """What is known of a run before its algorithm is made."""

    data: "FederatedData"
    model: "Model"
    rounds: int
    epsilon: float | Sequence[float] | np.ndarray | None  # the budget, or one per client
    delta: float | None
    seed: int


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Entry(Generic[P]):
    """A constructor of algorithms whose keyword arguments are its options.

    What they are named, their types, choices and defaults stand in its signature, what they mean in their types or in
    the `Args:` of its docstring (see `fedjax_dp.options`); `**common: Unpack[Common]` takes what every entry takes.

    source    who proposed it: author and year, or a paper by its short name;
    defaults  of the common options, and of the numbers of parts, where they are others than these have;
    presets   what a run has where nothing is said, over what its data set brings;
    fixes     arguments that no run gives: common options that it decides itself, of a slot the name of its part, and
              what `prepare` finds;
    prepare   finds out something of clients before training: `prepare(context, options, *, ...)` returns more
              arguments of the constructor; its own keyword arguments are options too.
    `defaults` and `presets` may be functions of the options that are given; `presets` sees the data set's beside them.
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
        made = self.constructor  # looks like it: name, documentation, signature
        texts = {name: getattr(made, name) for name in ("__module__", "__name__", "__qualname__", "__doc__")}
        vars(self).update(texts, __wrapped__=made)

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
        """Of the constructor, its own before what all take."""
        return options.of_function(self.constructor, {Common: COMMON})

    @functools.cached_property
    def _arguments(self) -> Options:
        """The same with the numbers of parts, and with the defaults that they have here."""
        brought, taken = _of(self.defaults, {}), with_numbers(self._keywords)
        for name in brought:
            errors.require_choice(f"defaults of {self.name}: an option", name, taken)
        return {
            name: dataclasses.replace(option, default=brought[name]) if name in brought else option
            for name, option in taken.items()
        }

    @functools.cached_property
    def options(self) -> Options:
        """Everything that a run may say to it, without what means nothing beside what it fixes."""
        taken = self._arguments | (options.of_function(self.prepare) if self.prepare else {})
        fixes = {*self.fixes, *(() if "noise_multiplier" in taken else CHANGING)}
        fixed = {name: taken[name].default for name in fixes if name in taken}
        free = {name: option.where(fixed) for name, option in taken.items() if name not in fixes}
        return {name: option for name, option in free.items() if option is not None}

    @property
    def __signature__(self) -> inspect.Signature:
        """Every keyword with its type and the default that it has here."""
        from fedjax_dp import parts
        from fedjax_dp.rounds.algorithm import Algorithm  # loads JAX

        shown = {name: self._arguments[name].parameter for name in self._keywords}
        for slot, of in CHOICES.items():
            if slot in shown and self._keywords[slot].about.part:
                either = shown[slot].annotation | getattr(parts, of.kind)
                shown[slot] = shown[slot].replace(annotation=either)
        return inspect.Signature([*shown.values()], return_annotation=Algorithm)

    @property
    def __advice__(self) -> str:
        """Where an algorithm is wanted, and this is given."""
        needed = (name for name, option in self._arguments.items() if option.default is options.REQUIRED)
        return f"call it: {self.name}({', '.join(f'{name}=...' for name in needed)})"

    @property
    def private(self) -> bool:
        """Whether it takes noise."""
        return "noise_multiplier" in self.options

    def preset(self, known: Values) -> dict[str, Any]:
        """What a run has where nothing is said, `known` its data set's presets and what is given."""
        server = brought_to_server(self._filled(known)) if "server_learning_rate" in self.options else {}
        return {**server, **_of(self.presets, known)}

    def of_run(self, explicit: Values, known: PrepareContext) -> "Algorithm":
        """The algorithm of a run, with what `prepare` finds out of its clients."""
        if self.prepare is None:
            return self.of(explicit)
        own = options.of_function(self.prepare)
        mine = {name: value for name, value in explicit.items() if name not in own}
        of_prepare = {name: value for name, value in explicit.items() if name in own}
        more = self.prepare(known, self._sized(self._filled(mine)), **of_prepare)
        return self.of(mine | dict(_of(more, mine)))

    def __call__(self, *args: P.args, **explicit: P.kwargs) -> "Algorithm":
        """The algorithm of some options.

        Raises: ConfigurationError in one line for options that are unknown, missing, none of their choices, or given
                where they mean nothing; numbers of parts are given in their part.
        """
        if args:
            got = ", ".join(map(validation.describe, args))
            raise errors.refuse(self.name, f"{got} without a name", "called with options by name", self.__advice__)
        for name, value in explicit.items():
            if name in SLOT_OF and name not in self._keywords:
                chosen = self._filled(explicit).get(SLOT_OF[name])
                raise refuse_number(SLOT_OF[name], name, value, chosen)
        return self.of(explicit)

    def of(self, explicit: Values) -> "Algorithm":
        """The same of the options of a run, which has numbers of parts by name, too."""
        taken = self._arguments | own_numbers(explicit)
        for name, value in explicit.items():
            if name in taken:
                taken[name].check(value)  # before defaults are found by it
            if name in self.fixes and name in RUN_OPTIONS:
                self._require_decided(name, value)
        values = self._sized(self._filled(explicit))
        options.require(taken, values, explicit, self.name)
        made = self._made(values)
        from fedjax_dp.rounds.algorithm import Algorithm  # loads JAX

        if not isinstance(made, Algorithm):
            raise errors.refuse(self.name, type(made).__name__, "a function that returns an Algorithm")
        return made

    def _made(self, values: Values) -> Any:
        make: Callable[..., Algorithm] = self.constructor
        try:
            return make(**values)
        except Exception as error:
            if isinstance(error, errors.ConfigurationError) or make.__module__.startswith("fedjax_dp."):
                raise
            got = own_code.describe_error(error)  # of a stranger's code, whatever it is
            raise errors.refuse(
                self.name, got, "made without an error", validation.undecorated_advice(error, make)
            ) from error

    def _filled(self, explicit: Values) -> dict[str, Any]:
        """With the defaults that it has here; those of numbers are of what it names, and of no part."""
        brought = _of(self.defaults, explicit)
        named = {name: value for name, value in brought.items() if not is_part(explicit.get(SLOT_OF.get(name, "")))}
        return {**named, **explicit}

    def _sized(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """With no size of what says its own, and therefore need not be given one."""
        result = dict(values)
        for slot, of in CHOICES.items():
            chosen = values.get(slot, self._arguments[slot].default) if slot in self._arguments else None
            if of.size in self._arguments and chosen is not None and not takes_size(slot, chosen):
                result.setdefault(of.size, None)
        return result

    def _require_decided(self, name: str, value: Any) -> None:
        """Refuse what it decides itself; where it decides the name of a part, one with other numbers may come."""
        numbered = any(SLOT_OF.get(number) == name for number in self.options)
        if not (numbered and is_part(value)):
            raise errors.refuse(name, value, f"left out for {self.name}, which decides it", "drop it")
        decided = choice_of(name, self._arguments[name].default)
        if not is_same_choice(value, decided.make(name, {})):
            got = validation.describe(value)
            raise errors.refuse(name, got, f"what {self.name} decides with other numbers", f"such as {decided.call()}")


def _of(values: Values | Callable[[Values], Values], explicit: Values) -> Values:
    mapping = values(explicit) if callable(values) else values
    if not isinstance(mapping, Mapping):
        raise errors.refuse("defaults, presets and what prepare finds", repr(mapping), "mappings of options to values")
    return mapping


def entry(
    source: str = "",
    *,
    defaults: Values | Callable[[Values], Values] | None = None,
    presets: Values | Callable[[Values], Values] | None = None,
    fixes: Collection[str] = (),
    prepare: Callable[..., Values] | None = None,
) -> Callable[[Callable[P, "Algorithm"]], Entry[P]]:
    """Makes an `Entry` of the constructor below it."""
    if not isinstance(source, str):
        raise errors.refuse("entry", validation.describe(source), "called", 'write @entry("Somebody 2026") above it')

    def wrap(constructor: Callable[P, "Algorithm"]) -> Entry[P]:
        return Entry(constructor, source, defaults or {}, presets or {}, fixes, prepare)

    return wrap
