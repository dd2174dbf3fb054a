"""Standard JSON files, packed or not: no NaN, no repeated name, no endless nesting.

Memory: the whole file as Python values, some 32 bytes for each number in it.
"""

import json
import pathlib
from typing import Any

from fedjax_dp import folders
from fedjax_dp.data.files import damage_error, no_text, unpack


def read_json(path: pathlib.Path) -> Any:
    """The content of the file.

    Raises: ConfigurationError for a file that is missing, cut short or no JSON.
    """
    content = unpack("JSON", path)
    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=_object, parse_constant=_constant)
    except UnicodeDecodeError:
        raise no_text(path, content) from None
    except RecursionError:
        raise damage_error(path, "lists within lists without end", "a JSON file of data") from None
    except (ValueError, OSError, MemoryError) as error:  # of bytes that are no UTF-8, too
        raise damage_error(path, f"something else ({folders.reason(error)[:100]})", "a JSON file") from None


def object_of(where: str, value: Any, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    """Require an object with at least these names."""
    if not isinstance(value, dict):
        raise damage_error(where, f"a {kind_of(value)}", f"an object with {', '.join(keys)}" if keys else "an object")
    for key in keys:
        if key not in value:
            shown = ", ".join(map(repr, sorted(value)[:5])) or "nothing"
            raise damage_error(where, shown[:100], f"an object with {key}")
    return value


def list_of(where: str, values: Any, kind: type | None = None, words: str = "") -> list[Any]:
    """Require a list, of values of one `kind` unless None; `words` name the kind."""
    if not isinstance(values, list):
        raise damage_error(where, f"a {kind_of(values)}", f"a list{words and ' of '}{words}")
    for place, value in enumerate(values if kind is not None else ()):
        if type(value) is not kind:  # true is no integer
            raise damage_error(f"{where}, item {place}", f"a {kind_of(value)}", f"a list of {words}")
    return values


def kind_of(value: Any) -> str:
    """The kind of a value, in JSON's words."""
    names = {dict: "object", list: "list", str: "text", bool: "truth value", type(None): "null"}
    return names.get(type(value), "number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1) if len(names) < 1000 else "one of its names"
        raise ValueError(f"a name twice in one object, {twice[:40]!r}")
    return result


def _constant(word: str) -> Any:
    raise ValueError(f"a number {word}")
