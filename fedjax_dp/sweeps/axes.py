"""The axes of a sweep: lists of values and ranges, taken as a grid or drawn at random. Pure Python and NumPy.

An axis is a name with a list of values, or with a range `{"log": [low, high], "points": n}` (or `"linear"`) that
includes its ends. A name with commas joins fields that vary together: `"algorithm, server_learning_rate"` with
`[["dpnfl"], ["addpnfl", 0.01]]`. A shorter entry leaves out the last fields.
Points written out form one more axis, before all others.

>>> grid(parse({"clip_norm": {"log": [0.1, 10], "points": 3}, "rounds": [50]}))
[{'clip_norm': 0.1, 'rounds': 50}, {'clip_norm': 1.0, 'rounds': 50}, {'clip_norm': 10.0, 'rounds': 50}]
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_dp import errors
from fedjax_dp.numpy_streams import numpy_stream

Values = dict[str, Any]  # of one point: field -> value
LARGEST = 1_000_000  # points of a sweep
_SPACINGS: dict[str, Callable[..., np.ndarray]] = {"log": np.geomspace, "linear": np.linspace}
_WRITTEN_OUT = "[[points]]"


@dataclasses.dataclass(frozen=True)
class Choices:
    """An axis of listed values; `entries` are the fields that each of them sets."""

    entries: tuple[Values, ...]

    def at(self, quantile: float) -> Values:
        return self.entries[min(int(quantile * len(self.entries)), len(self.entries) - 1)]


@dataclasses.dataclass(frozen=True)
class Span:
    """An axis of all numbers from `low` to `high`, uniform, or uniform in their logarithm."""

    field: str
    low: float
    high: float
    log: bool
    integer: bool

    def at(self, quantile: float) -> Values:
        margin = 0.5 if self.integer else 0.0  # else the ends, after rounding, are drawn half as often
        ends = (self.low - margin, self.high + margin)
        start, stop = map(math.log, ends) if self.log else ends
        between = (1 - quantile) * start + quantile * stop
        number = math.exp(between) if self.log else between
        number = min(max(round(number) if self.integer else number, self.low), self.high)
        return {self.field: number}


Axis = Choices | Span


def fields_of(name: str) -> tuple[str, ...]:
    """The fields that an axis name joins."""
    fields = tuple(word.strip() for word in name.split(","))
    if "" in fields or len(set(fields)) < len(fields):
        raise errors.refuse("an axis", repr(name), "named by a field, or by different fields with commas between")
    return fields


def parse(axes: Mapping[str, Any], points: Sequence[Values] = (), *, integers: Collection[str] = ()) -> dict[str, Axis]:
    """The axes by name, points written out first.

    Ranges over fields named in `integers` hold integers. A field belongs to one axis only.
    """
    for point in points:
        for field, value in point.items():
            require_value(f"{_WRITTEN_OUT}: {field}", value)
    parsed: dict[str, Axis] = {_WRITTEN_OUT: Choices(_require_different(_WRITTEN_OUT, points))} if points else {}
    owners = {field: _WRITTEN_OUT for point in points for field in point}
    for joined, written in axes.items():
        fields = fields_of(joined)
        name = ", ".join(fields)
        for field in fields:
            if field in owners:
                raise errors.refuse(f"axis {name}", f"{field} in {owners[field]} too", "over fields of its own")
            owners[field] = name
        if isinstance(written, Mapping):
            parsed[name] = _parse_range(f"axis {name}", fields, written, integers)
        else:
            parsed[name] = _parse_list(f"axis {name}", fields, written)
    return parsed


def grid(axes: Mapping[str, Axis]) -> list[Values]:
    """Every combination of the axes, the last axis fastest; without axes the one empty point."""
    listed = entries_of(axes)
    require_size(math.prod(map(len, listed)))
    return [_merge(entries) for entries in itertools.product(*listed)]


def entries_of(axes: Mapping[str, Axis]) -> list[tuple[Values, ...]]:
    """The values of each axis of a grid. Refuses ranges without a number of points."""
    listed = []
    for name, axis in axes.items():
        if isinstance(axis, Span):
            raise errors.refuse(
                f"axis {name}",
                f"{axis.low} to {axis.high}",
                "a list, or a range with points, in a grid",
                "add points = 5 to the range, or trials = 20 to the sweep, which draws at random",
            )
        listed.append(axis.entries)
    return listed


def random_points(axes: Mapping[str, Axis], trials: int, seed: int) -> list[Values]:
    """`trials` independent points: uniform over a list, uniform or log-uniform over a range.

    Each axis has its own generator, seeded by its name: a trial's draw depends neither on the number of trials nor on
    the other axes. Equal trials are kept, since theorems on private selection need independent trials.
    """
    errors.require_integer("trials", trials, 1, LARGEST)
    if not axes:
        raise errors.refuse("trials", trials, "left out without axes or points to draw from", "add [axes]")
    quantiles = [generator(seed, name).random(trials).tolist() for name in axes]
    return [_merge(axis.at(q) for axis, q in zip(axes.values(), row)) for row in zip(*quantiles)]


def generator(seed: int, role: str) -> np.random.Generator:
    """A generator for one named role of a search. Different roles get independent draws."""
    errors.require_integer("search_seed", seed, 0, 2**32 - 1)
    return numpy_stream(role, seed)


def seeds_of(written: Any) -> tuple[int, ...]:
    """The listed seeds, or 0, 1, ... if a number of seeds is written."""
    if isinstance(written, Iterable) and not isinstance(written, str | bytes):
        return tuple(int(point["seed"]) for point in with_seeds([{}], list(written)))
    errors.require_integer("seeds", written, 1, LARGEST, "or a list such as seeds = [3, 7]")
    return tuple(range(int(written)))


def with_seeds(points: Sequence[Values], seeds: Sequence[int]) -> list[Values]:
    """Every point with every seed, which is its last field and varies fastest."""
    if not seeds:
        raise errors.refuse("seeds", "none", "at least one", "such as seeds = 3")
    for seed in seeds:
        errors.require_integer("seeds", seed, 0, 2**32 - 1)
    require_size(len(points) * len(seeds))
    entries = _require_different("seeds", [{"seed": seed} for seed in seeds])
    return [{**point, **entry} for point in points for entry in entries]


def varied_fields(points: Iterable[Values]) -> tuple[str, ...]:
    """The fields that the points set, without the seed."""
    return tuple(dict.fromkeys(name for values in points for name in values if name != "seed"))


def require_size(total: int) -> None:
    """Refuses more points than a sweep may hold."""
    if total > LARGEST:
        raise errors.refuse(
            "a sweep", f"{total:,}", f"at most {LARGEST:,} points", "list fewer values, or draw them with trials"
        )


def _merge(entries: Iterable[Values]) -> Values:
    return {field: value for entry in entries for field, value in entry.items()}


def _require_different(what: str, entries: Sequence[Values]) -> tuple[Values, ...]:
    """The entries. A user wrote them, so a second copy is refused as a mistake."""
    seen = set()
    for entry in entries:
        key = frozenset((field, type(value) is bool, value) for field, value in entry.items())
        if key in seen:
            raise errors.refuse(what, f"{in_words(entry)} twice", "values that differ", "drop one of them")
        seen.add(key)
    return tuple(entries)


def in_words(values: Values) -> str:
    """A point in words: `clip_norm=0.5, seed=0`."""
    words = (
        f"{field}={value:g}" if isinstance(value, float) else f"{field}={value}" for field, value in values.items()
    )
    return ", ".join(words) or "nothing"


def require_value(what: str, written: Any) -> None:
    """Refuses anything but a finite number, an integer of 64 bits, text or a truth value."""
    if not isinstance(written, bool | int | float | str):
        raise errors.refuse(what, repr(written), "numbers, text, true or false")
    if isinstance(written, float) and not math.isfinite(written):
        raise errors.refuse(what, written, "finite", "leave it out")
    if isinstance(written, int) and not -(2**63) <= written < 2**63:
        raise errors.refuse(what, written, "an integer of 64 bits")


def _parse_list(what: str, fields: tuple[str, ...], written: Any) -> Choices:
    if not isinstance(written, list | tuple):
        raise errors.refuse(what, repr(written), "a list or a range", "such as [1, 2] or {log = [1, 10], points = 3}")
    if not written:
        raise errors.refuse(what, "an empty list", "at least one value", "drop the axis to leave its fields alone")
    entries = []
    for entry in written:
        if len(fields) == 1:
            entry = (entry,)
        elif not isinstance(entry, list | tuple) or not 1 <= len(entry) <= len(fields):
            raise errors.refuse(
                what,
                repr(entry),
                f"a list with entries of 1 to {len(fields)} values",
                f"one for each of {', '.join(fields)}; the last may be left out",
            )
        for value in entry:
            require_value(what, value)
        entries.append(dict(zip(fields, entry)))
    return Choices(_require_different(what, entries))


def _parse_range(what: str, fields: tuple[str, ...], written: Mapping[str, Any], integers: Collection[str]) -> Axis:
    if len(fields) > 1:
        raise errors.refuse(what, "a range", "a list of lists, since it joins fields", 'such as [["dpnfl", 0.1]]')
    for key in written:
        errors.require_choice(f"{what}: a key of its range", key, (*_SPACINGS, "points"))
    spacings = [key for key in _SPACINGS if key in written]
    if len(spacings) != 1:
        raise errors.refuse(
            what, dict(written), "a range with one of log, linear", "such as {log = [1, 10], points = 3}"
        )
    (field,), (spacing,) = fields, spacings
    low, high = _parse_ends(what, written[spacing], spacing == "log", field in integers)
    if "points" in written:
        errors.require_integer(f"{what}: points", written["points"], 2, LARGEST)
        values = _space(what, low, high, written["points"], _SPACINGS[spacing], field in integers)
        return Choices(tuple({field: value} for value in values))
    return Span(field, low, high, spacing == "log", field in integers)


def _parse_ends(what: str, ends: Any, log: bool, integer: bool) -> tuple[float, float]:
    kind, kinds = ("integers", int) if integer else ("numbers", int | float)
    if not isinstance(ends, list | tuple) or len(ends) != 2:
        raise errors.refuse(what, repr(ends), "a range between two ends", "such as {log = [1, 10]}")
    for end in ends:
        if isinstance(end, bool) or not isinstance(end, kinds):
            raise errors.refuse(what, repr(end), f"a range between {kind}")
        require_value(what, end)
    low, high = ends if integer else map(float, ends)
    if not low < high:
        raise errors.refuse(what, f"{low} and {high}", "a range whose first end is lower", "turn the ends around")
    if log and not low > 0:
        raise errors.refuse(what, low, "a log range between positive ends", "use linear, or raise the end")
    return low, high


def _space(
    what: str, low: float, high: float, points: int, spacing: Callable[..., np.ndarray], integer: bool
) -> list[float]:
    """Spaced values with exact ends. Values between the ends are rounded to 12 digits, to be easy to read."""
    with np.errstate(all="ignore"):
        between = spacing(low, high, points)[1:-1].tolist()
    values = [low, *(round(x) if integer else float(f"{x:.12g}") for x in between), high]
    if not all(one < other for one, other in itertools.pairwise(values)):
        raise errors.refuse(
            what, f"{points} from {low} to {high}", "a range whose values differ", "ask for fewer points"
        )
    return values
