"""Values of dataclass fields from text and from files: one wording, nothing converted silently."""

import types
import typing
from typing import Any

from fedjax_dp import errors

KIND_NAMES: dict[type, str] = {int: "an integer", float: "a number", str: "text", bool: "true or false"}


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
    kind = kinds(hint)[0]
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise errors.refuse(what, repr(text), KIND_NAMES[bool])
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError:
        raise errors.refuse(what, repr(text), KIND_NAMES[kind]) from None
