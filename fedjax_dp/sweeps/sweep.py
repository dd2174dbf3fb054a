"""Sweeps from Python: `sweep` over an algorithm value, `run_sweep` over configurations in a folder."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedjax_dp import devices, errors
from fedjax_dp.algorithm import Algorithm
from fedjax_dp.data import FederatedData
from fedjax_dp.models import Model, logistic_regression
from fedjax_dp.runs import prepare
from fedjax_dp.screen import Screen
from fedjax_dp.simulation import check
from fedjax_dp.sweeps import axes as spans
from fedjax_dp.sweeps import cluster
from fedjax_dp.sweeps import folder as folders
from fedjax_dp.sweeps.axes import Values
from fedjax_dp.sweeps.conduct import Entry, Plan, conduct, entry_of, planned
from fedjax_dp.sweeps.cost import cost_of_choosing
from fedjax_dp.sweeps.engine import Job
from fedjax_dp.sweeps.plan import SweepConfig, checked, expand, law_of, refuse_points
from fedjax_dp.sweeps.ready import Built, Ready, Sources, build, find_noise
from fedjax_dp.sweeps.records import Record, read_records
from fedjax_dp.sweeps.table import Best, best, summary, tidy

if TYPE_CHECKING:
    import pandas

ALIASES = {"batch_size": "batches.size", "local_steps": "local.steps", "cohort_size": "cohort.size"}  # constructors'
RUN_AXES = ("rounds", "epsilon", "delta")  # of a sweep over an algorithm value: what is not part of it


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The points of a sweep, finished or lost, and what can be asked of them."""

    name: str
    axes: tuple[str, ...]
    records: tuple[Record, ...]
    choosing: Mapping[str, Any] | None = None  # what choosing the best costs in privacy, see `cost_of_choosing`
    plan: Plan | None = None  # of what is left, where only that was asked for

    def table(self) -> "pandas.DataFrame":
        """One row per point and evaluated round, with everything that is known of it."""
        return tidy(self.records, self.axes)

    def summary(self, metric: str | None = None) -> "pandas.DataFrame":
        """One row per setting: mean, standard deviation and 95% interval of each metric over the seeds."""
        return summary(self.records, self.axes, metric)

    def best(self, metric: str = "test_accuracy", epsilon_at_most: float | None = None) -> Best:
        """The setting with the best mean over its seeds, of those that promise at most this epsilon."""
        return best(self.records, self.axes, metric, epsilon_at_most)

    def plot(
        self, path: str | os.PathLike, kind: str = "overview", *, metric: str = "test_accuracy", x: str | None = None,
        y: str | None = None, by: str | None = None,
    ) -> None:  # fmt: skip
        """One picture, as `fedjax-dp plot` draws it: overview, axis (along x), privacy, heat, curves or parallel."""
        from fedjax_dp.sweeps import figures  # slow to import

        if kind == "all":
            raise errors.refuse("kind", kind, "one picture: " + ", ".join(figures.KINDS[1:]))
        drawn = figures.pictures(self.records, self.axes, self.name, kind, metric, x, y, by)
        next(iter(drawn.values()))(path)


def sweep(
    algorithm: Algorithm | Callable[..., Algorithm],
    data: FederatedData | Callable[[int], FederatedData],
    *,
    rounds: int,
    axes: Mapping[str, Any],
    seeds: int | Sequence[int] = 1,
    trials: int | None = None,
    search_seed: int = 0,
    epsilon: float | None = None,
    delta: float | None = None,
    accountant: str = "pld",
    participation: str = "schedule",
    view: str | None = None,
    colluders: int = 0,
    sigma_mode: str = "per_client",
    model: Model | None = None,
    evaluate_every: int | None = None,
    train_metrics: bool = False,
    chunk_size: int | None = None,
    name: str = "sweep",
    progress: bool = True,
) -> Sweep:
    """Run an algorithm at every point of `axes`, with every seed, as few compiled programs.

    algorithm  a value, of which axes name fields: `learning_rate`, `clip_norm`, `batches.size`, ...; or a function of
               the axes that makes one, such as `functools.partial(fdp.dpnfl, cohort_size=10, ...)`;
    data       for all seeds, or a function of the seed;
    axes       lists and ranges of `sweeps.axes`; beside the algorithm's, `rounds`, `epsilon` and `delta` may vary;
    seeds      a number of them, or which;
    trials     draw so many points at random, by `search_seed`, instead of the whole grid.
    The rest is as for `fedjax_dp.run`. On a CPU every point equals its single run bit for bit.
    Raises: ConfigurationError for all points that cannot run, before any runs.
    """
    screen = Screen(quiet=not progress)
    if not isinstance(axes, Mapping) or not all(isinstance(name, str) for name in axes):
        raise errors.refuse("axes", repr(axes)[:60], "names with lists or ranges", 'such as {"clip_norm": [1.0, 3.0]}')
    axes = {name: _plain(values) for name, values in axes.items()}
    devices.cache_programs()
    options: dict[str, Any] = {
        "accountant": accountant, "participation": participation, "view": view, "colluders": colluders,
        "sigma_mode": sigma_mode,
    }  # fmt: skip
    common: dict[str, Any] = {"rounds": rounds, "epsilon": epsilon, "delta": delta}
    chosen = _seeds(seeds)
    for what, count in (("evaluate_every", evaluate_every), ("chunk_size", chunk_size), ("trials", trials)):
        if count is not None:
            errors.require_count(what, count)
    whole = _integers(algorithm, axes)
    drawn = (
        spans.grid(axes, integers=whole) if trials is None
        else spans.random_points(axes, trials, search_seed, integers=whole)
    )  # fmt: skip
    points = spans.with_seeds(drawn, chosen)
    sources, entries, refused = Sources(), [], []
    datas = {seed: sources.share(_federated(data(seed) if callable(data) else data)) for seed in chosen}
    for index, values in enumerate(points):
        own = datas[values["seed"]]
        run_options = common | {key: value for key, value in values.items() if key in RUN_AXES}
        varied = {key: value for key, value in values.items() if key not in (*RUN_AXES, "seed")}
        try:
            if "noise_multiplier" in {name.split(".")[-1] for name in varied} and run_options["epsilon"] is not None:
                raise errors.refuse("noise_multiplier", "an axis", "left out where epsilon finds the noise", "drop one")
            made = _made(algorithm, varied)
            used = model or logistic_regression(own.record_shape, own.classes)
            check(made, own, run_options["rounds"], used)
            made, promise = prepare(made, own, seed=values["seed"], model=used, **run_options, **options)
        except (TypeError, ValueError) as error:  # a value of a kind that its place cannot take
            refused.append((values, str(error)))
            continue
        job = Job(made, own, used, run_options["rounds"], values["seed"], evaluate_every, train_metrics, chunk_size)
        counted = options | {"delta": run_options["delta"]}
        entries.append(Entry(index, str(index), values, run_options, counted, job, promise))
    if refused:
        raise refuse_points(len(points), refused)
    found: list[Record] = []
    plan = planned(entries, screen)
    _tell(plan, screen)
    conduct(plan, found.append, screen)
    records = tuple(sorted(found, key=lambda record: record["index"]))
    return Sweep(name, _axes(points), records, cost_of_choosing(entries, trials is not None, None, screen))


def run_sweep(
    sweep: SweepConfig, out: str | os.PathLike, *, name: str = "sweep", screen: Screen | None = None,
    only_plan: bool = False, ray: str | None = None, ray_cpus: int = 1,
) -> Sweep:  # fmt: skip
    """Run a sweep of configurations in the folder `out`, or go on with it: no finished point is run again.

    Every point is checked before anything runs.
    only_plan  tell the plan and stop there;
    ray        address of a Ray cluster whose workers run the points, or "local"; `ray_cpus` cores for each.
    Raises: ConfigurationError for points that cannot run, or a folder of something else.
    """
    screen, out = screen or Screen(), pathlib.Path(out)
    if not isinstance(sweep, SweepConfig):
        raise errors.refuse("sweep", type(sweep).__name__, "a SweepConfig", "read_sweep reads one from a file")
    sweep = checked(sweep)
    devices.cache_programs()
    points = {point.id: point for point in reversed(expand(sweep))}  # of equal random points the first
    order = sorted(points.values(), key=lambda point: point.index)
    names = _axes([point.values for point in order])
    built = build(order, Sources())
    about = folders.about(sweep, name, names, len(order))
    if only_plan:
        _, held = folders.held(out, about)
        plan = planned([entry_of(one) for one in _unfinished(find_noise(built, screen), held)], screen)
        _tell(plan, screen)
        return Sweep(name, names, tuple(held), plan=plan)
    with folders.opened(out, sweep, about) as (begun, held):
        ready = find_noise(built, screen) if _unfinished(built, held) or not folders.choosing(out) else []
        left, parts = _unfinished(ready, held), begun["device"]["count"]
        if len(left) < len(order):
            screen.say(f"{out} holds {len(order) - len(left):,} of {len(order):,} points")
        with folders.keeper(out) as keep:
            if left and ray is not None:
                cluster.spread(left, ray, parts, ray_cpus, keep, screen)
            else:
                plan = planned([entry_of(one) for one in left], screen, parts=parts)
                _tell(plan, screen)
                conduct(plan, keep, screen)
        if ready:
            entries = [entry_of(one) for one in ready]
            cost = cost_of_choosing(entries, sweep.trials is not None, law_of(sweep), screen)
            folders.finish(out, cost, screen)
        return Sweep(name, names, tuple(read_records(out)[1]), folders.choosing(out))


B = TypeVar("B", Built, Ready)


def _unfinished(points: Sequence[B], held: Iterable[Record]) -> list[B]:
    """The points that are not there yet, or failed for reasons of the machine."""
    finished = {record["point"] for record in held if record["status"] != "failed"}
    return [one for one in points if one.point.id not in finished]


def _tell(plan: Plan, screen: Screen) -> None:
    for line in plan.lines():
        screen.say(line)


def _axes(points: Iterable[Values]) -> tuple[str, ...]:
    """What the points set, the seed left out."""
    return tuple(dict.fromkeys(name for values in points for name in values if name != "seed"))


def _plain(values: Any) -> Any:
    """Arrays and numbers of NumPy as Python's; ranges of Python as lists."""
    if isinstance(values, np.ndarray | np.generic):
        return values.tolist()
    if isinstance(values, Mapping):
        return {key: _plain(value) for key, value in values.items()}
    return [_plain(value) for value in values] if isinstance(values, list | tuple | range) else values


def _federated(data: Any) -> FederatedData:
    if not isinstance(data, FederatedData):
        raise errors.refuse("data", type(data).__name__, "FederatedData", "fedjax_dp.federate makes it of a Dataset")
    return data


def _seeds(given: int | Sequence[int]) -> list[int]:
    """The seeds of a list, or as many as a number says, from 0 on."""
    if isinstance(given, Iterable):
        return list(given)
    errors.require_count("seeds", given, "or a list such as [3, 7]")
    return list(range(given))


def _made(algorithm: Algorithm | Callable[..., Algorithm], values: Values) -> Algorithm:
    """The algorithm of a point."""
    if not isinstance(algorithm, Algorithm):
        if not callable(algorithm):
            raise errors.refuse("algorithm", type(algorithm).__name__, "an Algorithm, or a function that makes one")
        result = algorithm(**values)
        if not isinstance(result, Algorithm):
            raise errors.refuse("the algorithm's function", type(result).__name__, "one that returns an Algorithm")
        return result
    places, made = list(_places(algorithm)), algorithm
    taken: dict[tuple[str, ...], str] = {}
    for name, value in values.items():
        place = _place(name, places)
        if taken.setdefault(place, name) != name:
            raise errors.refuse("axes", f"{taken[place]} and {name}", "of different numbers", "drop one of them")
        old = _at(algorithm, place)
        if isinstance(value, bool) != isinstance(old, bool) or isinstance(value, str) != isinstance(old, str):
            raise errors.refuse(name, repr(value), f"of the kind of {old!r}")
        made = _with(made, place, value)
    return made


def _integers(algorithm: Algorithm | Callable[..., Algorithm], axes: Mapping[str, Any]) -> set[str]:
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
        part = (
            part[name]
            if isinstance(part, dict)
            else part[int(name)]
            if isinstance(part, tuple)
            else getattr(part, name)
        )
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
