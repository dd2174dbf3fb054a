"""Dataclass fields as options: their help, and their values from text and from files, nothing converted silently."""

import contextlib
import types
import typing
from collections.abc import Mapping
from typing import Any

import tyro

from fedjax_dp import errors

KIND_NAMES: dict[type, str] = {int: "an integer", float: "a number", str: "text", bool: "true or false"}


def told(text: str, hint: str | None = None, metavar: str | None = None) -> Any:
    """Help text of a field, for `Annotated`."""
    return tyro.conf.arg(help=text, help_behavior_hint=hint, metavar=metavar)


def by_dataset(presets: Mapping[str, Mapping[str, Any]], field: str, text: str) -> Any:
    """Help text of a field with the default that each data set brings, read from the presets."""
    names: dict[Any, list[str]] = {}
    for name, preset in presets.items():
        names.setdefault(preset[field], []).append(name)
    usual = max(names, key=lambda value: len(names[value]))
    special = [f"{', '.join(listed)}: {value}" for value, listed in names.items() if value != usual]
    hint = f"(default by data set: {'; '.join(special)}; else {usual})" if special else f"(default: {usual})"
    return told(text, hint, {int: "INT", float: "FLOAT", str: "STR"}[type(usual)])


def kinds(hint: Any) -> list[type]:
    """The types of a field, None left out."""
    return [k for k in (typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)) if k is not type(None)]


def typed(what: str, given: Any, hint: Any) -> Any:
    """`given` as the field's type; an integer may stand for a float, nothing else is converted."""
    allowed = kinds(hint)
    if float in allowed and isinstance(given, int) and not isinstance(given, bool):
        return float(given)
    if type(given) not in allowed:
        raise errors.refuse(what, repr(given), KIND_NAMES[allowed[0]])
    return given


def from_text(what: str, text: str, hint: Any) -> Any:
    """The value of a field from the words of a flag; refuses what is not of the field's type."""
    for kind in kinds(hint):
        if kind is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        with contextlib.suppress(ValueError):
            if kind is not bool:
                return kind(text)
    raise errors.refuse(what, repr(text), KIND_NAMES[kinds(hint)[0]])
