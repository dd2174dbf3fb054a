"""The description of a sweep, and its runs.

In TOML, `[base]` has the fields that all runs share, `[axes]` (see `sweeps.axes`) and `[[points]]` have those that
vary, and `seeds`, `halving`, `trials`, `trials_law`, `search`, `search_batch` and `search_seed` are at the top.
"""

import dataclasses
import hashlib
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fedjax_dp import errors, folders, own_code
from fedjax_dp.accounting import NegativeBinomialTrials, PoissonTrials, Trials
from fedjax_dp.algorithms import CATALOGUE, Entry
from fedjax_dp.experiments.config import OF_PRIVATE, RunSpec
from fedjax_dp.experiments.groups import entry_of, known_options, options_of
from fedjax_dp.options import Option, Options, of_class
from fedjax_dp.parts.choices import CHOICES, own_numbers
from fedjax_dp.sweeps import axes
from fedjax_dp.sweeps.axes import Axis, Values

T = TypeVar("T")
_ETAS = {"geometric": 1.0, "logarithmic": 0.0}
LAWS = ("fixed", "poisson", *_ETAS)
# Fields that [base] may not have, or that may not vary: what is wanted instead, and the remedy.
_NOT_BASE = {
    "seed": ("given at the top", "write seeds = 5, or seeds = [3]"),
    "out": ("left out", "a sweep has one folder for all its runs"),
    "records": ("left out", "a sweep keeps them on its devices"),
    "devices": ("left out", "a sweep spreads its points over all"),
    "model_devices": ("left out", "a sweep holds a model on one device"),
    "coordinator": ("left out", "a sweep goes to several machines by points: fedjax-dp sweep --ray ADDRESS"),
    "track": ("left out", "no tracker follows a sweep: fedjax-dp best prints its winner, for run --track"),
}
_SHARED = ("the same for all runs", "give it in [base]")
SEARCHES = ("random", "tpe")
_DEFAULTS: Values = {"halving": None, "search": "random", "search_batch": 8}
_NOT_VARIED = _NOT_BASE | {"data_dir": _SHARED, "checkpoint_every": _SHARED}


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """Everything that decides a sweep: the keys of its TOML file. `[base]` holds fields of a run.

    With `trials`, points are drawn at random instead of taking the whole grid; their number is `trials`, or drawn
    with that mean where `trials_law` is not fixed. With `search` "tpe" they are chosen by earlier results,
    `search_batch` at once. `halving` is the reduction factor of successive halving.
    The constructor converts every value to the type of its field.
    Raises: ConfigurationError for invalid fields and values, as far as neither data nor algorithms are needed.
    """

    base: Values = dataclasses.field(default_factory=dict)
    axes: Values = dataclasses.field(default_factory=dict)
    points: tuple[Values, ...] = ()
    seeds: tuple[int, ...] = (0,)
    trials: int | None = None
    trials_law: str = "fixed"
    search_seed: int = 0
    halving: int | None = None
    search: str = "random"
    search_batch: int = 8

    def __post_init__(self) -> None:
        _require_tables(self)
        known = _known_options(self)
        varied: Values = {}
        for joined, written in self.axes.items():
            fields = axes.fields_of(joined)
            name = ", ".join(fields)
            if name in varied:
                raise errors.refuse(f"axis {name}", "two of them", "given once", "drop one of them")
            varied[name] = _convert_axis(f"axis {name}", fields, written, known)
        normal = {
            "base": _convert_fields("[base]", self.base, _NOT_BASE, known),
            "points": tuple(_convert_fields("[[points]]", point, _NOT_VARIED, known) for point in self.points),
            "axes": varied,
        }
        for name, value in normal.items():
            object.__setattr__(self, name, value)
        _require_disjoint(self)
        object.__setattr__(self, "seeds", axes.seeds_of(self.seeds))
        _require_number_of_points(self)

    @property
    def axes_by_name(self) -> dict[str, Axis]:
        """The axes by name, points written out first."""
        known = _known_options(self)
        integers = {name for name, option in known.items() if int in option.kinds}
        return axes.parse(self.axes, self.points, integers=integers)

    @property
    def varying_fields(self) -> list[str]:
        """The fields that axes and points set."""
        written = [*self.axes, *(name for point in self.points for name in point)]
        return list(dict.fromkeys(name.strip() for names in written for name in names.split(",")))


@dataclasses.dataclass(frozen=True)
class Point:
    """One run of a sweep, with its `identity` as `id`: equal ones share it, in any data folder."""

    index: int
    id: str
    values: Values
    config: RunSpec


def read_sweep(path: str | os.PathLike[str], **more: Any) -> SweepConfig:
    """The sweep that a TOML file describes; `more` are keys that override those of its top table."""
    path = pathlib.Path(path)
    written = folders.read_toml("sweep file", path) | more
    try:
        return _from_tables(written)
    except errors.ConfigurationError as error:
        raise errors.ConfigurationError(f"{path.name}: {error}") from None


def to_toml(sweep: SweepConfig) -> str:
    """The sweep as TOML that `read_sweep` reads back equal."""
    counted = sweep.seeds == tuple(range(len(sweep.seeds)))
    top: Values = {"seeds": len(sweep.seeds) if counted else list(sweep.seeds)}
    if sweep.trials is not None:
        top |= {"trials": sweep.trials, "trials_law": sweep.trials_law, "search_seed": sweep.search_seed}
    top |= {name: getattr(sweep, name) for name, usual in _DEFAULTS.items() if getattr(sweep, name) != usual}
    points = (f"[[points]]\n{folders.toml(point)}" for point in sweep.points)
    return "\n".join(
        [folders.toml(top), f"[base]\n{folders.toml(sweep.base)}", f"[axes]\n{folders.toml(sweep.axes)}", *points]
    )


def digest(sweep: SweepConfig) -> str:
    """12 hexadecimal digits of the fields of a sweep; the order of keys and the folder of the data do not count.

    Files, code and data are in the ids of the points, see `identity`.
    """
    base = {name: value for name, value in sweep.base.items() if name != "data_dir"}
    return _hash(dataclasses.asdict(sweep) | {"base": base})


def expand(sweep: SweepConfig) -> list[Point]:
    """Every run of the sweep, resolved. Later axes vary faster, and the seed varies fastest.

    Raises: ConfigurationError that counts the invalid runs, or names two runs that are equal.
    """
    points = points_of(sweep, _seedless_points(sweep))
    if sweep.trials is None:
        _require_different(points)
    return points


def points_of(sweep: SweepConfig, seedless: Sequence[Values], first: int = 0) -> list[Point]:
    """Points with every seed, resolved and numbered from `first` on. Raises: as `expand`, for invalid runs."""
    values = axes.with_seeds(seedless, sweep.seeds)

    def point(at: int) -> Point:
        config = RunSpec.of(_base_of(sweep.base, values[at]) | values[at])
        return Point(first + at, identity(config), values[at], config)

    return collect(values, point)


def law_of(sweep: SweepConfig) -> Trials | None:
    """The distribution of the number of trials; None if it is fixed, or nothing is drawn."""
    if sweep.trials is None or sweep.trials_law == "fixed":
        return None
    if sweep.trials_law == "poisson":
        return PoissonTrials(sweep.trials)
    return NegativeBinomialTrials.of_mean(sweep.trials, _ETAS[sweep.trials_law])


def _base_of(base: Values, varied: Values) -> Values:
    """The fields of `[base]` for a point. If algorithms vary, those that its algorithm does not take are left out."""
    algorithm = str(varied.get("algorithm"))
    if algorithm not in CATALOGUE and not own_code.is_file_name(algorithm):
        return base
    return options_for(entry_of(algorithm), base)


def options_for(entry: Entry[Any], values: Values) -> Values:
    """The values that an algorithm takes, of values for several algorithms."""
    taken, apart = options_of(entry) | own_numbers(values), () if entry.private else OF_PRIVATE
    effective = {name: option.default for name, option in taken.items()} | dict(values)
    return {
        name: value
        for name, value in values.items()
        if name in taken and name not in apart and not taken[name].missing(effective)
    }


def collect(
    points: Sequence[Values],
    make: Callable[[int], T],
    refusals: tuple[type[Exception], ...] = (errors.ConfigurationError,),
) -> list[T]:
    """Call `make` with the index of each point. Raises one ConfigurationError for all the points that it refuses."""
    results, refused = [], []
    for index, values in enumerate(points):
        try:
            results.append(make(index))
        except refusals as error:
            refused.append((values, str(error)))
    if refused:
        raise refuse_points(len(points), refused)
    return results


def refuse_points(total: int, refused: Sequence[tuple[Values, str]]) -> errors.ConfigurationError:
    """The error for points that cannot run: their number and up to three different reasons."""
    first: dict[str, Values] = {}
    for values, reason in refused:
        first.setdefault(reason, values)
    shown = [f"{axes.in_words(values)}: {reason}" for reason, values in list(first.items())[:3]]
    if len(first) > 3:
        shown.append(f"and {len(first) - 3} more")
    if any(f"left out for {values.get('algorithm')}" in reason for values, reason in refused):
        shown.append(
            'vary an option that not every algorithm takes together with the algorithm: "algorithm, OPTION" = '
            '[["one"], ["another", 0.1]] in [axes], or [[points]]'
        )
    message = f"{len(refused):,} of {total:,} points cannot run: {'; '.join(shown)}"
    return errors.ConfigurationError(" ".join(message.split()))


def identity(config: RunSpec, data: str = "") -> str:
    """12 hexadecimal digits of what decides a run's result: its fields, except for folders and checkpoints, the user's
    code and files, and `data`, the checksum of its data."""
    apart = ("data_dir", "out", "checkpoint_every")
    fields = {name: value for name, value in config.flat().items() if name not in apart}
    return _hash(fields | {"files": config.code | config.files, "data": data})


def _require_disjoint(sweep: SweepConfig) -> None:
    """Refuses a field that is in two of axes, points and base."""
    owners = {name: "[[points]]" for point in sweep.points for name in point}
    owners |= {name: f"axis {joined}" for joined in sweep.axes for name in axes.fields_of(joined)}
    for name in sweep.base:
        if name in owners:
            raise errors.refuse(owners[name], f"{name} in [base] too", "over fields of its own", "drop one of them")


def _require_number_of_points(sweep: SweepConfig) -> None:
    """Refuses options of a random search without trials, more points than a sweep may hold, and a single run."""
    copies = len(sweep.seeds)
    own = of_class(SweepConfig)
    errors.require_choice("trials_law", own["trials_law"].typed(sweep.trials_law), LAWS)
    errors.require_integer("search_seed", own["search_seed"].typed(sweep.search_seed), 0, 2**32 - 1)
    if sweep.halving is not None:
        errors.require_integer(
            "halving", own["halving"].typed(sweep.halving), 2, axes.LARGEST, "3 keeps the best third"
        )
    own["search"].typed(sweep.search)
    errors.require_integer("search_batch", own["search_batch"].typed(sweep.search_batch), 1, axes.LARGEST)
    require_plain_search(sweep.search, sweep.search_batch, sweep.trials, sweep.halving)
    if sweep.search == "tpe" and sweep.trials_law != "fixed":
        remedy = "only trials that are drawn without looking at results are random repetition"
        raise errors.refuse("trials_law", sweep.trials_law, f"fixed with search {sweep.search}", remedy)
    if sweep.trials is not None:
        errors.require_integer("trials", own["trials"].typed(sweep.trials), 1, axes.LARGEST // copies)
        if not sweep.axes_by_name:
            raise errors.refuse("trials", sweep.trials, "left out without axes or points to draw from", "add [axes]")
        return
    for name, default in (("trials_law", "fixed"), ("search_seed", 0)):
        if getattr(sweep, name) != default:
            raise errors.refuse(name, getattr(sweep, name), "left out without trials", "give trials = 20")
    axes.require_size(math.prod(map(len, axes.entries_of(sweep.axes_by_name))) * copies)
    if not sweep.axes_by_name and copies == 1:
        raise errors.refuse("a sweep", "one run", "of several runs", "add [axes], [[points]] or seeds = 5")


def require_plain_search(search: str, batch: int, trials: int | None, halving: int | None) -> None:
    """Refuse unknown searches, and options that do not go with a search by results."""
    errors.require_choice("search", search, SEARCHES)
    if search == "tpe" and trials is None:
        raise errors.refuse("search", search, "left out without trials", "give trials = 20, or --trials 20")
    if search == "tpe" and halving is not None:
        raise errors.refuse("halving", halving, f"left out with search {search}", "drop one of them")
    if search == "random" and batch != _DEFAULTS["search_batch"]:
        raise errors.refuse("search_batch", batch, "left out of a search at random", "give search = tpe")


def _own_code(sweep: SweepConfig) -> dict[str, list[str]]:
    """Names of user-defined code anywhere in a sweep, by field."""
    pairs = [pair for values in (sweep.base, *sweep.points) for pair in values.items()]
    for joined, written in sweep.axes.items():
        for entry in written if isinstance(written, list | tuple) else ():
            pairs += zip(axes.fields_of(joined), entry if isinstance(entry, list | tuple) else [entry])
    result: dict[str, list[str]] = {}
    for name, value in pairs:
        if own_code.is_file_name(value):
            result.setdefault(name, []).append(value)
    return result


def _known_options(sweep: SweepConfig) -> Options:
    """The options of its runs, including those of user-defined algorithms and parts."""
    own = _own_code(sweep)
    result = known_options(*own.get("algorithm", ()))
    for slot in CHOICES:
        for name in own.get(slot, ()):
            result |= own_numbers({slot: name})
    return result


def _require_field(what: str, name: str, barred: Mapping[str, tuple[str, str]], known: Options) -> None:
    if name in barred:
        wanted, remedy = barred[name]
        raise errors.refuse(name, f"it in {what}", wanted, remedy)
    errors.require_choice(f"{what}: a field", name, known)


def _convert_fields(what: str, written: Values, barred: Mapping[str, tuple[str, str]], known: Options) -> Values:
    for name in written:
        _require_field(what, name, barred, known)
    return {name: _convert(f"{what}: {name}", value, known[name]) for name, value in written.items()}


def _convert(what: str, written: Any, option: Option) -> Any:
    if option.about.as_text is None or not isinstance(written, list | tuple | Mapping):
        axes.require_value(what, written)
    return option.typed(written, what)


def _convert_axis(what: str, fields: tuple[str, ...], written: Any, known: Options) -> Any:
    """The values of an axis, converted to the types of its fields. `axes.parse` refuses wrong lists and ranges."""
    for field in fields:
        _require_field(what, field, _NOT_VARIED, known)
    if isinstance(written, Mapping) and len(fields) == 1:
        if not {int, float} & set(known[fields[0]].kinds):
            raise errors.refuse(what, "a range", "a list, since its values are not numbers", 'such as ["one", "other"]')
        return {
            key: [_convert(what, end, known[fields[0]]) for end in value] if isinstance(value, list | tuple) else value
            for key, value in written.items()
        }
    if not isinstance(written, list | tuple):
        return written
    if len(fields) == 1:
        return [_convert(what, value, known[fields[0]]) for value in written]
    return [
        [_convert(f"{what}: {field}", value, known[field]) for field, value in zip(fields, entry)]
        if isinstance(entry, list | tuple) and len(entry) <= len(fields)
        else entry
        for entry in written
    ]


def _from_tables(written: Values) -> SweepConfig:
    """The sweep of a TOML file's keys; refuses unknown keys."""
    names = [field.name for field in dataclasses.fields(SweepConfig)]
    for name in written:
        if name in options_of():
            _require_field("the top table", name, _NOT_BASE, options_of())
            raise errors.refuse(name, "it in the top table", "under [base] or [axes], as a field of the runs")
        errors.require_choice("a key", name, names)
    return SweepConfig(**written)


def _require_tables(sweep: SweepConfig) -> None:
    for name, value in (("base", sweep.base), ("axes", sweep.axes)):
        if not isinstance(value, Mapping):
            raise errors.refuse(name, repr(value), "a table", f"write [{name}] and its fields below")
    if not isinstance(sweep.points, list | tuple) or not all(isinstance(point, Mapping) for point in sweep.points):
        raise errors.refuse(
            "points", repr(sweep.points), "a list of tables", "write [[points]] and its fields below, each"
        )


def _seedless_points(sweep: SweepConfig) -> list[Values]:
    """The points of a sweep without seeds."""
    if sweep.trials is None:
        return axes.grid(sweep.axes_by_name)
    law, trials = law_of(sweep), sweep.trials
    if law is not None:
        trials = law.draw(axes.generator(sweep.search_seed, "number of trials"))
    if trials == 0:
        raise errors.refuse(
            "the drawn number of trials",
            trials,
            "at least 1 to run anything",
            "this search ends with no result; trials_law geometric always draws one",
        )
    return axes.random_points(sweep.axes_by_name, trials, sweep.search_seed)


def _require_different(points: Iterable[Point]) -> None:
    first: dict[str, Point] = {}
    for point in points:
        other = first.setdefault(point.id, point)
        if other is not point:
            raise errors.refuse(
                "points",
                f"({axes.in_words(other.values)}) and ({axes.in_words(point.values)})",
                "different runs",
                "drop one of them: the fields that it leaves out have the values that the other names",
            )


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
