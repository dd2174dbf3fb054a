"""An option is written once, where it is taken: name, type and default in a signature, its text beside it.

The text stands in the type, `Annotated[float, about("how fast")]`, or in the docstring, below `Args:`, in lines such as
`clip_rate: how fast`. Configurations, flags, help, checks and the axes of sweeps are read off from there.
"""

import contextlib
import dataclasses
import functools
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import numpy as np
from docstring_parser import google

from fedjax_dp import errors, own_code, validation

KIND_NAMES: dict[type, str] = {int: "an integer", float: "a number", str: "text", bool: "true or false"}
REQUIRED = inspect.Parameter.empty
LARGEST = 2**63  # as all that is counted


@dataclasses.dataclass(frozen=True)
class About:
    """What describes an option beside its type and default; goes into `Annotated`."""

    text: str
    group: str | None = None  # under which it stands in help
    choices: Collection[str] | None = None  # names that it may have
    own: bool = False  # or FILE.py:NAME, see `own_code`
    scheme: str = ""  # or SCHEME:..., which is checked where it is used
    open: bool = False  # or something else, which is checked where it is used
    beside: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # it means something only where these are so
    metavar: str | None = None
    default: str | None = None  # in words, where no value says it
    value: Any = REQUIRED  # the default of a key of a TypedDict, which cannot say it itself
    switch: bool = False  # a flag without a value
    short: str | None = None  # another name of the flag, of one letter
    positional: bool = False  # a word without a flag, at its place
    named: str | None = None  # the option of a field, where that has another name
    whole_run: bool = False  # so many rounds as the run has, where nobody says
    part: bool = False  # or a part, from Python: the slot checks it
    as_text: Callable[[str, Any], str] | None = None  # checks a text, and makes one of a list or a table

    def __repr__(self) -> str:  # in signatures
        return repr(self.text)


about = About


@dataclasses.dataclass(frozen=True)
class Option:
    """An option as its owner describes it."""

    name: str
    hint: Any
    default: Any  # REQUIRED: there is none
    about: About

    @functools.cached_property
    def kinds(self) -> tuple[type, ...]:
        """The scalar types that it may have; empty where only Python can say it, as with arrays."""
        result: dict[type, None] = {}
        for kind in members(self.hint):
            if typing.get_origin(kind) is typing.Literal:
                result |= dict.fromkeys(map(type, typing.get_args(kind)))
            elif kind in KIND_NAMES:
                result[kind] = None
        return tuple(result)

    @functools.cached_property
    def types(self) -> tuple[Any, ...]:
        """The types of its values."""
        return members(self.hint)

    @functools.cached_property
    def scalar(self) -> bool:
        """Whether each value is a number, a text or None."""
        return bool(self.kinds) and all(map(_is_scalar, self.types))

    @functools.cached_property
    def choices(self) -> Collection[str] | None:
        """The names that it may have, where it has only some."""
        listed = [name for kind in members(self.hint) for name in typing.get_args(kind) if isinstance(name, str)]
        return listed or self.about.choices

    @property
    def parameter(self) -> inspect.Parameter:
        """As a keyword argument of a function: its plain type, of names those that it may have."""
        hint = self.hint
        if self.choices:
            hint = Literal[tuple(self.choices)]
            more = [str] if self.about.own or self.about.open else []
            hint = typing.Union[(hint, *more, *({type(None)} & {*members(self.hint)}))]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=self.default, annotation=hint)

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def check(self, value: Any) -> None:
        """Refuse a scalar of another type, and a name that is none of its choices; None stands for the default."""
        if (value is None and type(None) in self.types) or (self.about.part and is_part(value)):
            return
        if self.scalar:
            self.typed(value)
        if np.ndarray in self.types:
            try:
                if np.ndim(value):
                    np.asarray(value)
            except (ValueError, TypeError):  # lists of different lengths; JAX's own for what is traced
                wanted = "a number or an array"
                raise errors.refuse(self.name, validation.describe(value), wanted, "pass its values") from None
        if self.about.open or (self.about.own and own_code.is_file_name(value)):
            return
        of_scheme = self.about.scheme and str(value).startswith(f"{self.about.scheme}:")
        if self.choices is not None and not of_scheme:
            errors.require_choice(self.name, value, self.choices)

    def typed(self, value: Any, what: str = "") -> Any:
        """A scalar in the type of the option: an integer may stand for a float, nothing else is converted."""
        what = what or self.name
        if self.about.as_text and (isinstance(value, str | list | tuple | Mapping) or np.ndim(value)):
            return self.about.as_text(what, value)
        if isinstance(value, int) and not -LARGEST <= value < LARGEST:
            raise errors.refuse(what, value, "below 2^63 in size, as all that is counted")
        kind = next((kind for kind in self.kinds if _is_of(kind, value)), None)
        if kind is None:
            wanted = " or ".join(map(KIND_NAMES.__getitem__, self.kinds)) or "left to Python: no text says it"
            remedy = validation.advice(value) or _count_advice(self.kinds, value)
            raise errors.refuse(what, validation.describe(value), wanted, remedy)
        return errors.require_text(what, value) if kind is str else value if kind is bool else kind(value)

    def missing(self, values: Mapping[str, Any]) -> str | None:
        """`cohort is md`, where this option means nothing beside `values`; None where it means something."""
        for name, wanted in self.about.beside.items():
            allowed = wanted if isinstance(wanted, tuple) else (wanted,)
            if values.get(name) not in allowed:
                texts = (str(value).lower() if isinstance(value, bool) else str(value) for value in allowed)
                return f"{name} is {' or '.join(texts)}"
        return None

    def where(self, fixed: Mapping[str, Any]) -> "Option | None":
        """The same where these values are fixed; None where it means nothing beside them."""
        among = {name: wanted for name, wanted in self.about.beside.items() if name in fixed}
        rest = {name: wanted for name, wanted in self.about.beside.items() if name not in fixed}
        if dataclasses.replace(self, about=dataclasses.replace(self.about, beside=among)).missing(fixed):
            return None
        return dataclasses.replace(self, about=dataclasses.replace(self.about, beside=rest))


Options = dict[str, Option]


def of_class(cls: type, defaults: Mapping[str, Any] | None = None) -> Options:
    """The options that the fields of a dataclass, or the keys of a TypedDict, are; `defaults` over its own."""
    texts, result = _texts(cls), Options()
    own: dict[str, Any] = {}
    if dataclasses.is_dataclass(cls):
        own = {field.name: _default(field) for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls, include_extras=True)
    for name in (name for base in cls.__mro__ for name in vars(base).get("__annotations__", {})):  # its own first
        result[name] = _option(name, hints[name], {**own, **(defaults or {})}.get(name, REQUIRED), texts)
    return result


def of_function(function: Callable[..., Any], common: Mapping[Any, Options] | None = None) -> Options:
    """The options that the keyword arguments of a function are.

    `common` are the options behind `**rest: Unpack[Rest]`, by the class `Rest`.
    """
    texts, result = _texts(function), Options()
    parameters = inspect.signature(function).parameters
    hints: dict[str, Any] = {name: parameter.annotation for name, parameter in parameters.items()}
    if any(isinstance(hint, str) for hint in hints.values()):
        hints = typing.get_type_hints(function, include_extras=True)
    for name, parameter in parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            result |= (common or {}).get((*typing.get_args(hints.get(name)), None)[0], {}) | result  # its own win
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            hint = hints.get(name, Any)
            result[name] = _option(name, Any if hint is parameter.empty else hint, parameter.default, texts)
    return result


def require(taken: Options, values: Mapping[str, Any], explicit: Mapping[str, Any], whose: str) -> None:
    """Refuse `values` that options cannot have, of which some were `explicit`: unknown, missing, without a meaning."""
    for name in explicit:
        errors.require_choice("option", name, taken)
    lacking = [name for name, option in taken.items() if option.default is REQUIRED and name not in values]
    if lacking:
        remedy = "add " + ", ".join(f"{name}=" for name in lacking)
        raise errors.refuse(", ".join(lacking), "nothing", f"given to {whose}", remedy)
    for name, value in values.items():
        taken[name].check(value)
    require_meant(taken, values, explicit)


def require_meant(taken: Options, values: Mapping[str, Any], explicit: Mapping[str, Any]) -> None:
    """Refuse what was `explicit` though it means nothing beside the other values; saying its default is harmless."""
    effective = {name: option.default for name, option in taken.items()} | dict(values)
    for name in explicit:
        option, value = taken[name], explicit[name]
        without = option.missing(effective) if option.about.beside else None
        if without and value is not None and value is not False and value != option.default:
            raise errors.refuse(name, value, f"left out unless {without}", "drop it")


def is_part(what: Any) -> bool:
    """Whether something is meant to be a part of an algorithm, and no name or number."""
    plain = (str, bytes, numbers.Number, np.generic, np.ndarray, list, tuple, dict)
    return what is not None and not isinstance(what, plain)


def from_text(what: str, text: str, option: Option) -> Any:
    """The value of an option from the words of a flag; refuses what is not of its type."""
    for kind in option.kinds:
        if kind is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind is str:
            return option.typed(text, what)
        with contextlib.suppress(ValueError):
            if kind is not bool:
                return kind(text)
    wanted = " or ".join(map(KIND_NAMES.__getitem__, option.kinds))
    raise errors.refuse(what, repr(text), wanted, _count_advice(option.kinds, text))


def _count_advice(kinds: Collection[type], value: Any) -> str:
    """The remedy for a share where a number of things is counted, as other systems take shares; else empty."""
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return ""
    return "it is a number of them, not a share: 10% of 100 are 10" if [*kinds] == [int] and 0 < share < 1 else ""


def _is_scalar(kind: Any) -> bool:
    return kind in KIND_NAMES or kind is type(None) or typing.get_origin(kind) is Literal


def _is_of(kind: type, value: Any) -> bool:
    """Whether a value is of a scalar type, as Python, NumPy or JAX has it."""
    scalar = getattr(value, "dtype", None) if getattr(value, "shape", None) == () else None
    if kind is float:
        return scalar.kind in "iuf" if scalar else isinstance(value, numbers.Real) and not isinstance(value, bool)
    if kind is int:
        return errors.is_integer(value)
    return isinstance(value, kind) or (kind is bool and scalar is not None and scalar.kind == "b")


def members(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _option(name: str, hint: Any, default: Any, texts: Mapping[str, str]) -> Option:
    while typing.get_origin(hint) in (typing.Required, typing.NotRequired):
        hint = typing.get_args(hint)[0]
    result = About("")
    if typing.get_origin(hint) is typing.Annotated:
        hint, *more = typing.get_args(hint)
        result = next((entry for entry in more if isinstance(entry, About)), result)
    if name in texts:  # the owner's own words
        result = dataclasses.replace(result, text=texts[name])
    return Option(name, hint, result.value if default is REQUIRED else default, result)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED if field.default is dataclasses.MISSING else field.default


def _texts(owner: Any) -> dict[str, str]:
    """What a docstring says below `Args:`, by name; a class's own over that of its bases."""
    result: dict[str, str] = {}
    for one in reversed(owner.__mro__[:-1]) if isinstance(owner, type) else (owner,):
        rows = google.parse(inspect.cleandoc(one.__doc__ or "")).params
        result |= {row.arg_name: " ".join((row.description or "").split()) for row in rows}
    return result
