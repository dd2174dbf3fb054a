"""What public functions take is what their signatures say; anything else ends here, in one line. No JAX here."""

import collections.abc
import functools
import inspect
import numbers
import os
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from fedjax_dp import errors
from fedjax_dp.doors import advice, described, public_name

P = ParamSpec("P")
R = TypeVar("R")


class Kind(NamedTuple):
    """What may be given for an argument."""

    takes: Callable[[Any], bool]
    words: str
    arrays: bool = False  # of which a list is one


def checks_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which refuses arguments that are missing, unknown or not of the kind that their annotation names.

    Lists become arrays where it wants arrays. Protocols and what stands behind `**` are left to the function, which has
    no `*arguments`.
    Raises: ConfigurationError, with all that is missing at once.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **given: P.kwargs) -> R:
        kinds = _kinds_of(function)  # now, as annotations may name what is made later
        bound = _bound(function.__name__, signature, args, given)
        for name, argument in bound.items():
            kind = kinds[name]
            require_kind(name, argument, kind)
            if kind is not None and kind.arrays and _is_list(argument):
                bound[name] = np.asarray(argument)
        rest = {name: argument for name, argument in given.items() if name not in bound}
        return typing.cast("Callable[..., R]", function)(**bound, **rest)

    return call


def _bound(whose: str, signature: inspect.Signature, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name."""
    parameters = signature.parameters.values()
    known = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    ordered = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name in given:
            errors.require_choice(f"argument of {whose}", name, known)
    if len(args) > len(ordered):
        wanted = f"at most {len(ordered)} without a name: {', '.join(ordered)}"
        raise errors.refuse(f"arguments of {whose}", len(args), wanted, "write the others as name=...")
    bound = dict(zip(ordered, args))
    if twice := [name for name in bound if name in given]:
        raise errors.refuse(twice[0], "two values", f"given once to {whose}", "drop one of them")
    bound |= {name: given[name] for name in known if name in given}
    if missing := [p.name for p in parameters if p.name in known and p.default is p.empty and p.name not in bound]:
        remedy = "add " + ", ".join(f"{name}=" for name in missing)
        raise errors.refuse(", ".join(missing), "nothing", f"given to {whose}", remedy)
    return bound


@functools.cache
def _kinds_of(function: Callable[..., Any]) -> dict[str, Kind | None]:
    try:
        hints = typing.get_type_hints(function)
    except NameError:  # of what is imported for type checkers alone
        hints = {}
    return {name: kind_of(hints[name]) if name in hints else None for name in inspect.signature(function).parameters}


def require_kind(name: str, given: Any, kind: Kind | None) -> None:
    """Refuse what is not of the kind; None is any."""
    if kind is not None and isinstance(given, int) and not -(2**63) <= given < 2**63:
        raise errors.refuse(name, given, "below 2^63 in size, as all that is counted")
    if kind is not None and not kind.takes(given):
        raise errors.refuse(name, described(given), kind.words, advice(given))


def kind_of(hint: Any) -> Kind | None:
    """What an annotation lets through; None where that is anything, or for the function to say."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return kind_of(inside[0])
    if origin in (typing.Union, types.UnionType):
        kinds = [kind_of(member) for member in inside]
        if any(kind is None for kind in kinds):
            return None
        found = [kind for kind in kinds if kind is not None]
        if _PATH in found:
            found = [kind for kind in found if kind is not _TEXT]
        words = " or ".join(dict.fromkeys(kind.words for kind in found if kind is not _NOTHING))
        arrays = _LIST not in found and any(kind.arrays for kind in found)
        return Kind(lambda given: any(kind.takes(given) for kind in found), words, arrays)
    if origin is typing.Literal:  # which of them is for `errors.require_choice`
        return kind_of(typing.Union[tuple(map(type, inside))])  # noqa: UP007
    kind = hint if origin is None else origin
    if kind in _KINDS:
        return _KINDS[kind]
    if isinstance(kind, type) and kind not in (Any, object) and not vars(kind).get("_is_protocol"):
        return Kind(lambda given: isinstance(given, kind), f"a {public_name(kind)}")
    return None


def _is_number(given: Any) -> bool:
    if isinstance(given, numbers.Real):
        return not isinstance(given, bool)
    return getattr(given, "shape", None) == () and given.dtype.kind in "iuf"


def _is_list(given: Any) -> bool:
    """Lists, tuples, arrays, ranges, columns of a table."""
    kept = isinstance(given, str | bytes | collections.abc.Mapping) or hasattr(given, "_fields")
    return hasattr(given, "__len__") and hasattr(given, "__getitem__") and not kept


def _is_array(given: Any) -> bool:
    """What NumPy makes an array of: no lists of different lengths, nothing that is traced."""
    if isinstance(given, np.ndarray) or not _is_list(given):
        return isinstance(given, np.ndarray)
    try:
        np.asarray(given)
    except (ValueError, TypeError):
        return False
    return True


def _is_integer(given: Any) -> bool:
    return isinstance(given, numbers.Integral) and not isinstance(given, bool)


def _is_path(given: Any) -> bool:
    """An empty word names nothing."""
    return isinstance(given, os.PathLike) or (isinstance(given, str) and bool(given))


_NOTHING = Kind(lambda given: given is None, "nothing")
_TEXT = Kind(lambda given: isinstance(given, str), "text")
_PATH = Kind(_is_path, "a path")
_LIST = Kind(_is_list, "a list")
_KINDS: dict[Any, Kind] = {
    type(None): _NOTHING,
    bool: Kind(lambda given: isinstance(given, bool | np.bool_), "true or false"),
    int: Kind(_is_integer, "an integer"),
    float: Kind(_is_number, "a number"),
    str: _TEXT,
    os.PathLike: _PATH,
    np.ndarray: Kind(_is_array, "an array", arrays=True),
    collections.abc.Callable: Kind(callable, "a function"),
    collections.abc.Mapping: Kind(lambda given: isinstance(given, collections.abc.Mapping), "a dictionary"),
    dict: Kind(lambda given: isinstance(given, dict), "a dictionary"),
    collections.abc.Sequence: _LIST,
    list: _LIST,
    tuple: _LIST,
}
