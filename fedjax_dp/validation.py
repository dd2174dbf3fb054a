"""Checks of the values in the slots of parts, with one-line refusals. No JAX here.

The type of a field decides what its slot accepts: a Protocol, a function, a dictionary.
"""

import ast
import collections.abc
import dataclasses
import functools
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Mapping
from typing import Any

from fedjax_dp import errors

PAGES = "docs/extending"
OPTIMIZER = 'fedjax_dp.parts.Server(factory=optax.adam, hyperparameters={"learning_rate": 0.01})'
ALIEN = ("functools", "jax", "jaxlib", "numpy")
# Classes whose values are parts of a kind, with the fields that must not hold a function for that.
_FITTING: dict[tuple[type, type], tuple[str, ...]] = {}
_METHODS = (types.FunctionType, staticmethod, classmethod)


def check_fields(cls: type, fields: Mapping[str, Any]) -> None:
    """Refuse values that do not fit the types of their fields."""
    for name, (kind, many) in _kinds(cls).items():
        if name not in fields:
            continue
        whole = fields[name]
        if many and not isinstance(whole, tuple | list):
            remedy = "put it into one: (part,)"
            raise errors.refuse(f"{name} of {cls.__name__}", describe(whole), "a tuple of parts", remedy)
        for part in whole if many else (whole,):
            if not is_value(part):  # missing members of a value are refused where it is used
                require_part(name, part, kind)


def require_part(slot: str, part: Any, kind: type) -> None:
    """Refuse a part that is no `kind` (a Protocol, a value's class, Callable or dict), with all its faults at once."""
    if kind in (collections.abc.Callable, dict):
        if not isinstance(part, kind):
            wanted = "a dictionary" if kind is dict else "a function"
            raise errors.refuse(slot, describe(part), wanted, advice(part))
        return
    cls = type(part)
    fields = _FITTING.get((cls, kind))
    if fields is not None and not any(isinstance(getattr(part, name), _METHODS) for name in fields):
        return
    wrong = missing_members(part, kind)
    written = "__module__" in vars(cls) and cls.__module__.partition(".")[0] not in ALIEN  # in Python, to be a part
    if is_value(part) and not wrong and written:
        shared = {field.name for field in dataclasses.fields(cls)} & set(members(kind))
        if not any(isinstance(members(kind)[name], types.FunctionType) for name in shared):
            _FITTING[cls, kind] = tuple(shared)
        return
    wanted = f"a value that follows {public_name(kind)}" if _is_protocol(kind) else f"{kind.__name__}(...)"
    page = page_of(kind)
    see = f"see {page}" if page else ""
    if not written or advice(part):
        raise errors.refuse(slot, describe(part), wanted, advice(part) or see)
    faults, todo = [], []
    if not is_value(part):
        faults.append("is not decorated with fedjax_dp.value")
        todo.append(f"put @fedjax_dp.value above {cls.__name__} itself, as a subclass needs its own")
    if wrong:
        faults.append("lacks " + ", ".join(wrong))
        elsewhere = cls.__module__.startswith("fedjax_dp.")
        todo.append("it is for another slot" if elsewhere else "implement what it lacks")
    remedy = "; ".join(filter(None, [*todo, see]))
    raise errors.refuse(slot, f"{describe(part)}, which {' and '.join(faults)}", wanted, remedy)


def missing_members(part: Any, kind: type) -> list[str]:
    """Members of a Protocol, or fields of a class, that a part lacks, or has in a wrong form."""
    if not _is_protocol(kind):
        return [field.name for field in dataclasses.fields(kind) if not hasattr(part, field.name)]
    cls = type(part)
    fields = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    result = []
    for name, member in members(kind).items():
        own = inspect.getattr_static(part, name, None)
        if name not in dir(cls) and not hasattr(part, name):
            result.append(name)
        elif member is inspect.Parameter.empty and name not in fields:
            result.append(f"{name} (a field)")
        elif own is member and name in _abstract_members(kind):
            result.append(name)
        elif isinstance(member, property) and isinstance(own, _METHODS):
            result.append(f"{name} (a property or attribute, not a method)")
        elif isinstance(member, types.FunctionType) and not _accepts(part, name, member):
            result.append(f"{name}({', '.join(_positional(member))})")
    methods = {name: one for name, one in members(kind).items() if isinstance(one, types.FunctionType)}
    if kind in cls.__mro__ and all(inspect.getattr_static(cls, name) is one for name, one in methods.items()):
        own = [name for name in vars(cls) if not name.startswith("_")]
        meant = [f"{near} (is {name} meant?)" for name in own for near in errors.nearest(name, methods)]
        result += meant or ["one of " + ", ".join(methods)]  # it implements no method: a name is misspelt
    return result


@functools.cache
def members(protocol: type) -> dict[str, Any]:
    """Members of a Protocol by name, in its order: functions, properties, defaults; `empty` for fields without one."""
    result: dict[str, Any] = {}
    for base in reversed(protocol.__mro__):
        if _is_protocol(base):
            result |= dict.fromkeys(inspect.get_annotations(base), inspect.Parameter.empty)
            result |= {name: member for name, member in vars(base).items() if not name.startswith("_")}
    return result


def is_value(part: Any) -> bool:
    """Whether the exact class of a part is decorated with `value`."""
    return is_value_class(type(part))


def is_value_class(cls: type) -> bool:
    """Whether this class itself, and not only a base, is decorated with `value`."""
    return vars(cls).get("__value_class__") is cls


def describe(thing: Any) -> str:
    """A short description of something for a message."""
    if thing is None:
        return "nothing"
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    if inspect.isroutine(thing):
        return f"the function {thing.__name__}"
    shown = repr(thing)
    if type(thing).__module__ == "builtins" and len(shown) < 40 and "\n" not in shown:
        return shown
    return type(thing).__name__


def advice(thing: Any) -> str:
    """The remedy for something that is often passed instead of a part; empty for anything else."""
    cls = thing if isinstance(thing, type) else type(thing)
    if isinstance(thing, type) and "__value_class__" in vars(thing):
        return f"write {example_call(thing)}"
    if cls.__module__.startswith("optax.") or _module(thing).startswith("optax."):
        return f"give its function and its numbers separately: {OPTIMIZER}"
    if any(base.__module__.partition(".")[0] in ("flax", "equinox", "haiku") for base in cls.__mro__):
        return f"write fedjax_dp.model({cls.__name__}(...), data), which takes networks of Flax, Equinox and Haiku"
    if isinstance(own := getattr(thing, "__advice__", None), str):
        return own
    if isinstance(thing, type):
        return f"decorate it with fedjax_dp.value, and pass an instance: {cls.__name__}(...)"
    return ""


def undecorated_advice(error: Exception, function: Any) -> str:
    """The remedy if a function failed because one of its classes takes no fields; empty for any other error."""
    match = re.match(r"(\w+)(\.__init__)?\(\) takes (no arguments|exactly one argument)", str(error))
    cls = getattr(function, "__globals__", {}).get(match[1]) if match else None
    return f"put @fedjax_dp.value above {cls.__name__}" if isinstance(cls, type) and not is_value_class(cls) else ""


def example_call(cls: Any) -> str:
    """A call that makes an instance, with the required fields."""
    fields = [field for field in dataclasses.fields(cls) if field.init]
    needed = [field.name for field in fields if _has_no_default(field)]
    return f"{cls.__name__}({', '.join(f'{name}=...' for name in needed)})"


def public_name(cls: type) -> str:
    """The name by which users import a class."""
    words = cls.__module__.split(".")
    return ".".join([*(words[:2] if words[0] == "fedjax_dp" else words), cls.__name__])


def page_of(cls: type) -> str:
    """The page on how to implement a Protocol of the project; empty for other classes."""
    words = cls.__module__.split(".")
    return f"{PAGES}/{words[-1]}.md" if words[0] == "fedjax_dp" and _is_protocol(cls) else ""


def _module(thing: Any) -> str:
    return getattr(thing, "__module__", None) or ""


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _is_protocol(cls: Any) -> bool:
    return isinstance(cls, type) and bool(vars(cls).get("_is_protocol")) and cls.__module__ != "typing"


def _kinds(cls: Any) -> dict[str, tuple[Any, bool]]:
    """By field that is checked: the kind that it accepts, and whether it accepts a tuple of that kind."""
    if "__kinds__" not in vars(cls):
        try:
            hints = typing.get_type_hints(cls)
        except Exception:  # unknown names: nothing is checked
            return {}
        static = {field.name for field in dataclasses.fields(cls) if field.metadata.get("static")}
        result = {name: _kind(hint) for name, hint in hints.items()}
        kinds = {name: kind for name, kind in result.items() if kind and not (name in static and _is_protocol(kind[0]))}
        cls.__kinds__ = kinds
    return typing.cast("dict[str, tuple[Any, bool]]", vars(cls)["__kinds__"])


def _kind(hint: Any) -> tuple[Any, bool] | None:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and len(inside) == 2 and inside[1] is ... and _is_protocol(inside[0]):
        return inside[0], True
    kind = hint if origin is None else origin
    return (kind, False) if _is_protocol(kind) or kind in (collections.abc.Callable, dict) else None


@functools.cache
def _abstract_members(protocol: type) -> frozenset[str]:
    """Members whose body in a Protocol is only `...`, so that a subclass must implement them."""
    result: set[str] = set()
    for base in protocol.__mro__:
        if not _is_protocol(base):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):  # no source is at hand
            continue
        for node in ast.walk(tree):
            last = node.body[-1] if isinstance(node, ast.FunctionDef) else None
            if isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant) and last.value.value is ...:
                result.add(typing.cast("ast.FunctionDef", node).name)
    return frozenset(result)


def _positional(member: types.FunctionType) -> list[str]:
    return list(inspect.signature(member).parameters)[1:]


def _accepts(part: Any, name: str, member: types.FunctionType) -> bool:
    """Whether a part's method can be called with the positional arguments of the Protocol's method."""
    method = getattr(part, name)
    if not callable(method):
        return False
    try:
        inspect.signature(method).bind(*_positional(member))
    except TypeError:
        return False
    except ValueError:  # no signature is known
        return True
    return True
