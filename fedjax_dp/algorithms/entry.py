"""An entry of the catalogue: a constructor, where it comes from, and what it brings."""

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec

import numpy as np

from fedjax_dp import errors, options, own_code, validation
from fedjax_dp.algorithms.assemble import CHANGING, COMMON, Common, brought_to_server
from fedjax_dp.options import Options

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
    defaults  of the common options, where they are others than `Common`'s;
    presets   what a run has where nothing is said, over what its data set brings;
    fixes     arguments that no run gives: common options that it decides itself, and what `prepare` finds;
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
    def _arguments(self) -> Options:
        """Of the constructor, its own before what all take, with the defaults that it has here."""
        brought, taken = _of(self.defaults, {}), options.of_function(self.constructor, {Common: COMMON})
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
        """Every option with its type and the default that it has here."""
        from fedjax_dp.rounds.algorithm import Algorithm  # loads JAX

        return inspect.Signature([option.parameter for option in self._arguments.values()], return_annotation=Algorithm)

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
        more = self.prepare(known, self._filled(mine), **of_prepare)
        return self.of(mine | dict(_of(more, mine)))

    def __call__(self, *args: P.args, **explicit: P.kwargs) -> "Algorithm":
        """The algorithm of some options.

        Raises: ConfigurationError in one line for options that are unknown, missing, none of their choices, or given
                where they mean nothing.
        """
        if args:
            got = ", ".join(map(validation.described, args))
            raise errors.refuse(self.name, f"{got} without a name", "called with options by name", self.__advice__)
        return self.of(explicit)

    def of(self, explicit: Values) -> "Algorithm":
        """The same of a mapping."""
        for name in explicit:
            if name in self._arguments:
                self._arguments[name].check(explicit[name])  # before defaults are found by it
            if name in self.fixes and name in COMMON:
                raise errors.refuse(name, explicit[name], f"left out for {self.name}, which decides it", "drop it")
        values = self._filled(explicit)
        options.require(self._arguments, values, explicit, self.name)
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
            got = own_code.described_error(error)  # of a stranger's code, whatever it is
            raise errors.refuse(self.name, got, "made without an error", validation.undecorated(error, make)) from error

    def _filled(self, explicit: Values) -> dict[str, Any]:
        return {**_of(self.defaults, explicit), **explicit}


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
        raise errors.refuse("entry", validation.described(source), "called", 'write @entry("Somebody 2026") above it')

    def wrap(constructor: Callable[P, "Algorithm"]) -> Entry[P]:
        return Entry(constructor, source, defaults or {}, presets or {}, fixes, prepare)

    return wrap
