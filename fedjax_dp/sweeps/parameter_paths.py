"""Paths to the fields of an algorithm value, which the axes of a sweep name."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fedjax_dp import errors
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.sweeps import axes as spans
from fedjax_dp.sweeps.axes import Values

ALIASES = {"batch_size": "batches.size", "local_steps": "local.steps", "cohort_size": "cohort.size"}  # of constructors
RUN_AXES = ("rounds", "epsilon", "delta")  # axes that are not fields of the algorithm


def algorithm_of(algorithm: Algorithm | Callable[..., Algorithm], values: Values) -> Algorithm:
    """The algorithm of a point."""
    if not isinstance(algorithm, Algorithm):
        if not callable(algorithm):
            raise errors.refuse("algorithm", type(algorithm).__name__, "an Algorithm, or a function that makes one")
        result = algorithm(**values)
        if not isinstance(result, Algorithm):
            raise errors.refuse("the algorithm's function", type(result).__name__, "one that returns an Algorithm")
        return result
    paths, result = list(_paths(algorithm)), algorithm
    owners: dict[tuple[str, ...], str] = {}
    for name, value in values.items():
        path = _find_path(name, paths)
        if owners.setdefault(path, name) != name:
            raise errors.refuse("axes", f"{owners[path]} and {name}", "of different numbers", "drop one of them")
        old = _read(algorithm, path)
        if isinstance(value, bool) != isinstance(old, bool) or isinstance(value, str) != isinstance(old, str):
            raise errors.refuse(name, repr(value), f"of the type of {old!r}")
        result = _replace_at(result, path, value)
    return result


def integer_axes(algorithm: Algorithm | Callable[..., Algorithm], axes: Mapping[str, Any]) -> set[str]:
    """The axes whose ranges hold integers: the rounds, and fields of the algorithm that hold an integer.

    The arguments of a function have no known type: a linear range between integers then holds integers.
    """
    names = [field for name in axes for field in spans.fields_of(name) if field not in RUN_AXES]
    if not isinstance(algorithm, Algorithm):
        ends = {name: values.get("linear", [0.0]) for name, values in axes.items() if isinstance(values, Mapping)}
        return {"rounds"} | {name for name, pair in ends.items() if all(isinstance(end, int) for end in pair)}
    paths = list(_paths(algorithm))
    return {"rounds"} | {name for name in names if type(_read(algorithm, _find_path(name, paths))) is int}


def _read(part: Any, path: tuple[str, ...]) -> Any:
    """The value at a path."""
    for name in path:
        if isinstance(part, dict):
            part = part[name]
        else:
            part = part[int(name)] if isinstance(part, tuple) else getattr(part, name)
    return part


def _paths(part: Any, above: tuple[str, ...] = ()) -> Iterable[tuple[str, ...]]:
    """The paths to all numbers and structures of a value."""
    if dataclasses.is_dataclass(part):
        below = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    elif isinstance(part, dict):
        below = part
    elif isinstance(part, tuple):
        below = {str(number): entry for number, entry in enumerate(part)}
    else:
        yield above
        return
    for name, inner in below.items():
        yield from _paths(inner, (*above, name))


def _find_path(name: str, paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The path that a name means. A field takes precedence over a hyperparameter of the same name."""
    words = tuple(ALIASES.get(name, name).split("."))
    ending = [path for path in paths if path[-len(words) :] == words]
    ending = [path for path in ending if "hyperparameters" not in path] or ending
    if not ending:
        known = sorted({path[-1] for path in paths if not path[-1].isdecimal()})
        errors.require_choice("an axis", name, [*known, *RUN_AXES])
    if len(ending) > 1:
        raise errors.refuse(
            "an axis", repr(name), "the name of one number", "say " + " or ".join(map(".".join, ending))
        )
    return ending[0]


def _replace_at(part: Any, path: tuple[str, ...], value: Any) -> Any:
    """A copy of a value with another number or structure at a path."""
    if not path:
        return value
    first, rest = path[0], path[1:]
    if isinstance(part, dict):
        return part | {first: _replace_at(part[first], rest, value)}
    if isinstance(part, tuple):
        at = int(first)
        return (*part[:at], _replace_at(part[at], rest, value), *part[at + 1 :])
    return dataclasses.replace(part, **{first: _replace_at(getattr(part, first), rest, value)})
