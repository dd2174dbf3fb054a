"""Fields of an algorithm value by name: what the axes of a sweep over such a value mean."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fedjax_dp import errors
from fedjax_dp.rounds.algorithm import Algorithm
from fedjax_dp.sweeps import axes as spans
from fedjax_dp.sweeps.axes import Values

ALIASES = {"batch_size": "batches.size", "local_steps": "local.steps", "cohort_size": "cohort.size"}  # constructors'
RUN_AXES = ("rounds", "epsilon", "delta")  # of a sweep over an algorithm value: what is not part of it


def made(algorithm: Algorithm | Callable[..., Algorithm], values: Values) -> Algorithm:
    """The algorithm of a point."""
    if not isinstance(algorithm, Algorithm):
        if not callable(algorithm):
            raise errors.refuse("algorithm", type(algorithm).__name__, "an Algorithm, or a function that makes one")
        found = algorithm(**values)
        if not isinstance(found, Algorithm):
            raise errors.refuse("the algorithm's function", type(found).__name__, "one that returns an Algorithm")
        return found
    places, result = list(_places(algorithm)), algorithm
    taken: dict[tuple[str, ...], str] = {}
    for name, value in values.items():
        place = _place(name, places)
        if taken.setdefault(place, name) != name:
            raise errors.refuse("axes", f"{taken[place]} and {name}", "of different numbers", "drop one of them")
        old = _at(algorithm, place)
        if isinstance(value, bool) != isinstance(old, bool) or isinstance(value, str) != isinstance(old, str):
            raise errors.refuse(name, repr(value), f"of the kind of {old!r}")
        result = _with(result, place, value)
    return result


def integer_axes(algorithm: Algorithm | Callable[..., Algorithm], axes: Mapping[str, Any]) -> set[str]:
    """Axes whose ranges hold integers: the rounds, and places of the algorithm that hold one.

    Of a function nothing is known: there a linear range between integers holds integers.
    """
    names = [field for name in axes for field in spans.fields_of(name) if field not in RUN_AXES]
    if not isinstance(algorithm, Algorithm):
        ends = {name: values.get("linear", [0.0]) for name, values in axes.items() if isinstance(values, Mapping)}
        return {"rounds"} | {name for name, pair in ends.items() if all(isinstance(end, int) for end in pair)}
    places = list(_places(algorithm))
    return {"rounds"} | {name for name in names if type(_at(algorithm, _place(name, places))) is int}


def _at(part: Any, place: tuple[str, ...]) -> Any:
    """What stands at a place."""
    for name in place:
        if isinstance(part, dict):
            part = part[name]
        else:
            part = part[int(name)] if isinstance(part, tuple) else getattr(part, name)
    return part


def _places(part: Any, above: tuple[str, ...] = ()) -> Iterable[tuple[str, ...]]:
    """The way to every number and structure of a value."""
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
        yield from _places(inner, (*above, name))


def _place(name: str, places: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The place that a name means; a field comes before a hyperparameter of a rule that it is handed to."""
    words = tuple(ALIASES.get(name, name).split("."))
    ending = [place for place in places if place[-len(words) :] == words]
    ending = [place for place in ending if "hyperparameters" not in place] or ending
    if not ending:
        known = sorted({place[-1] for place in places if not place[-1].isdecimal()})
        errors.require_choice("an axis", name, [*known, *RUN_AXES])
    if len(ending) > 1:
        raise errors.refuse(
            "an axis", repr(name), "the name of one number", "say " + " or ".join(map(".".join, ending))
        )
    return ending[0]


def _with(part: Any, place: tuple[str, ...], value: Any) -> Any:
    """The same value with another number, or structure, at a place."""
    if not place:
        return value
    first, rest = place[0], place[1:]
    if isinstance(part, dict):
        return part | {first: _with(part[first], rest, value)}
    if isinstance(part, tuple):
        at = int(first)
        return (*part[:at], _with(part[at], rest, value), *part[at + 1 :])
    return dataclasses.replace(part, **{first: _with(getattr(part, first), rest, value)})
