"""Settings of a sweep: their metrics over seeds, with intervals, and the best of several settings.

A setting is one value of every axis. Its points differ only in the seed.
"""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from scipy import special

from fedjax_dp import errors
from fedjax_dp.accounting.guarantee import mark_of, spends
from fedjax_dp.tasks.measures import Measure, Measures, baseline_in_words, measures_of

Record = dict[str, Any]  # of a point, as in a sweep's folder
CONFIDENCE = 0.95
OWN, SHARED = "personal_mean", "client_mean"  # in histories: over clients, of personal models and the shared one
NOTHING = {"name": "", "loss": {"words": "loss", "unit": "", "signed": True}, "metrics": []}  # the task of no points


class Interval(NamedTuple):
    """A metric over the seeds of a setting; NaN where there are too few seeds."""

    mean: float
    std: float  # over seeds, divided by one less than their number
    low: float  # of the 95% confidence interval of the mean, Student's t
    high: float
    seeds: int  # number of seeds

    def within(self, metric: Measure) -> "Interval":
        """The interval with its ends cut to the range of the metric."""
        return self._replace(low=max(self.low, metric.low), high=min(self.high, metric.high))

    def of_differences(self, metric: Measure) -> "Interval":
        """The interval with its ends cut to the range of differences of the metric."""
        most = metric.high - metric.low
        return self._replace(low=max(self.low, -most), high=min(self.high, most))

    def for_display(self, metric: Measure) -> "Interval":
        """The interval as figures show it, cut to the range of the metric."""
        mean, std, low, high = map(metric.shown, self.within(metric)[:4])
        return Interval(mean, std, low, high, self.seeds)


class Setting(NamedTuple):
    """One value of every axis, with its points in the order of the plan."""

    values: dict[str, Any]  # by axis, without the seed
    points: list[Record]

    @property
    def done_points(self) -> list[Record]:
        """Points that were trained to the end."""
        return [point for point in self.points if point["status"] == "done"]

    @property
    def stopped_points(self) -> list[Record]:
        """Points that a rung of successive halving stopped."""
        return [point for point in self.points if point["status"] == "stopped"]

    @property
    def failures(self) -> int:
        """How many points diverged or failed."""
        return len(self.points) - len(self.done_points) - len(self.stopped_points)

    @property
    def epsilon(self) -> float:
        """The largest proved epsilon over the seeds; infinite without privacy, NaN where no Guarantee is known."""
        known = [epsilon for point in self.points if not math.isnan(epsilon := proved_epsilon(point))]
        return max(known, default=math.nan)

    def score(self, metric: str) -> Interval:
        """`metric` at the last evaluated round, over the seeds that are done and have it."""
        return interval(list(self.by_seed(metric).values()))

    def by_seed(self, metric: str) -> dict[int, float]:
        """`metric` at the last evaluated round of each seed that is done and has it."""
        last = {
            point["values"]["seed"]: metric_value(point["history"][-1], metric) if point["history"] else None
            for point in self.done_points
        }
        return {seed: number for seed, number in last.items() if number is not None and math.isfinite(number)}

    def comparable(self, metric: Measure) -> bool:
        """Whether every seed is done and has `metric` and its judge, so that the mean covers all seeds."""
        names = {metric.name, judge_of(metric).name}
        return all(self.score(name).seeds == len(self.points) for name in names)


def metric_value(evaluation: Record, metric: str) -> float | None:
    """A metric of an evaluation. Clients without personal models use the shared one."""
    number: float | None = evaluation.get(metric)
    return evaluation.get(SHARED) if number is None and metric == OWN else number


def proved_epsilon(point: Record) -> float:
    """Epsilon of the point's Guarantee: infinite without privacy, NaN without a Guarantee."""
    if "epsilon" not in point["guarantee"]:
        return math.nan
    epsilon = point["guarantee"]["epsilon"]
    return math.inf if epsilon is None else float(epsilon)


def deployment_mark(records: Iterable[Record]) -> str:
    """`deployment R of N` if the Guarantees are of deployments; empty if they are of the runs themselves."""
    marks = list(dict.fromkeys(mark_of(record["guarantee"]) for record in records if "epsilon" in record["guarantee"]))
    return marks[0] if len(marks) == 1 else "of several deployments" if any(marks) else ""


def caveats_of(records: Iterable[Record]) -> list[str]:
    """What has to be read before the proved epsilons, such as that they are for a single round."""
    caveats = dict.fromkeys(record["guarantee"].get("caveat") for record in records)
    return [f"proved epsilon: {caveat}" for caveat in caveats if caveat]


def epsilon_terms(records: Iterable[Record], *, view: bool = False) -> list[str]:
    """The terms of the proved epsilons: delta, unit, adjacency and perhaps view, or that points differ in them."""
    private = [record["guarantee"] for record in records if record["guarantee"].get("epsilon") is not None]
    names = {"delta": "delta {:g}", "unit": "one {}", "adjacency": "{}"} | ({"view": "view {}"} if view else {})
    parts = []
    for name, wording in names.items():
        known = {guarantee.get(name): None for guarantee in private}
        if len(known) == 1 and None not in known:
            parts.append(wording.format(*known))
        elif known:
            parts.append(f"{name} differs")
    return parts


def interval(numbers: Sequence[float]) -> Interval:
    """Mean, standard deviation and the 95% interval mean +- t s / sqrt(n) with n - 1 degrees of freedom.

    | no number: all NaN | one number: its mean, the rest NaN | equal numbers: an interval of length 0 |
    """
    seeds = len(numbers)
    mean = math.fsum(numbers) / seeds if seeds else math.nan
    if seeds < 2:
        return Interval(mean, math.nan, math.nan, math.nan, seeds)
    std = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / (seeds - 1))
    half = float(special.stdtrit(seeds - 1, (1 + CONFIDENCE) / 2)) * std / math.sqrt(seeds)
    return Interval(mean, std, mean - half, mean + half, seeds)


def paired_difference(one: Setting, other: Setting, metric: str) -> Interval:
    """The differences of a metric between two settings, over the seeds that both have."""
    first, second = one.by_seed(metric), other.by_seed(metric)
    return interval([first[seed] - second[seed] for seed in first if seed in second])


def bounds(metric: Measure, low: float, high: float) -> str:
    """The ends of an interval as `0.7100 to 0.8400`, cut to the range of the metric; empty if they are not known."""
    if math.isnan(low):
        return ""
    return f"{max(low, metric.low):.4f} to {min(high, metric.high):.4f}"


def value_key(value: Any) -> str:
    """A text that is equal for equal values of an axis. 1 and 1.0 are equal, true is not 1."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return json.dumps(float(value) if number else value, sort_keys=True)


def settings_of(records: Iterable[Record], axes: Sequence[str]) -> list[Setting]:
    """The points of a sweep by setting, in the order of the plan; a field that a point leaves out is None there.

    A search at random may draw a setting twice. Equal seeds give equal numbers, so only the first of them counts.
    """
    groups: dict[tuple[str, ...], Setting] = {}
    for record in sorted(records, key=lambda record: record["index"]):
        values = {name: record["values"].get(name) for name in axes}
        setting = groups.setdefault(tuple(map(value_key, values.values())), Setting(values, []))
        if all(record["values"]["seed"] != point["values"]["seed"] for point in setting.points):
            setting.points.append(record)
    return list(groups.values())


def group_by_value(settings: Iterable[Setting], axis: str) -> dict[str, list[Setting]]:
    """Settings by their value of an axis, keyed by `value_key`."""
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        groups.setdefault(value_key(setting.values[axis]), []).append(setting)
    return groups


def varying_axes(settings: Sequence[Setting]) -> list[str]:
    """The axes with more than one value."""
    return [name for name in settings[0].values if len(group_by_value(settings, name)) > 1] if settings else []


def values_of(settings: Iterable[Setting], axis: str) -> list[Any]:
    """The different values of an axis, in the order of the plan."""
    return [group[0].values[axis] for group in group_by_value(settings, axis).values()]


def measures_of_records(records: Iterable[Record]) -> Measures:
    """The measures in the histories of a sweep, of all its tasks. The main one is that of the first point.

    If clients have personal models, these are compared, with the shared model of points that have none.
    """
    records = list(records)
    tasks = {json.dumps(record["task"], sort_keys=True): record["task"] for record in records}
    groups = [measures_of(one) for one in tasks.values()] or [measures_of(NOTHING)]
    every = {name: one for measures in groups[::-1] for name, one in measures.by_name.items()}
    order = [*groups[0].by_name, *(name for name in every if name not in groups[0].by_name)]
    ends = [record["history"][-1] for record in records if record["history"]]
    known = [end.get(OWN) is not None for end in ends]
    if not any(known) or any(metric_value(end, OWN) is None for end in ends):
        return Measures({name: every[name] for name in order}, groups[0].main)
    if not all(known):
        every[OWN] = every[OWN]._replace(words=every[SHARED].words)
    return Measures({name: every[name] for name in order}, every[OWN])


def metric_of(records: Iterable[Record], name: str | None, judges: bool = False) -> Measure:
    """A metric by its name in a history, by default the main one. `judges`: it must have a better direction."""
    measures = measures_of_records(records)
    if name is None:
        return measures.main
    errors.require_choice("metric", name, [one.name for one in measures.by_name.values() if one.better or not judges])
    return measures.by_name[name]


def baseline_of_records(records: Iterable[Record]) -> str:
    """The baseline of the points in words; empty if they differ in it or have none."""
    records = list(records)
    known = {json.dumps(record.get("baseline"), sort_keys=True) for record in records}
    if len(known) != 1:
        return ""
    return baseline_in_words(records[0].get("baseline"), measures_of_records(records))


def epsilon_places(settings: Iterable[Setting]) -> list[float]:
    """Positions of settings on an axis of epsilon, in their order: the proved epsilon, also infinite or NaN.

    Noise meets a budget only to a precision: epsilons that may have the same budget share the largest as position.
    """
    epsilons = [setting.epsilon for setting in settings]
    places: dict[float, float] = {}
    place = math.inf
    for epsilon in sorted({one for one in epsilons if math.isfinite(one)}, reverse=True):
        place = place if spends(epsilon, place) else epsilon
        places[epsilon] = place
    return [places.get(epsilon, epsilon) for epsilon in epsilons]


def judge_of(metric: Measure) -> Measure:
    """The metric that settings are compared by if `metric` is shown: `metric` itself if it has a better direction."""
    return metric.judge or metric


def goodness(setting: Setting, metric: Measure) -> float:
    """A number that is larger for the better of two comparable settings."""
    judge = judge_of(metric)
    return judge.better * setting.score(judge.name).mean


def rank_settings(settings: Iterable[Setting], metric: Measure) -> list[Setting]:
    """The comparable settings, best first, ties in the order of the plan."""
    return sorted((s for s in settings if s.comparable(metric)), key=lambda setting: -goodness(setting, metric))


def pick_or_stopped(settings: Sequence[Setting], metric: Measure) -> Setting | None:
    """The best of some settings, else one that halving stopped, else None if all have failed."""
    return pick(settings, metric) or next((setting for setting in settings if setting.stopped_points), None)


def pick(settings: Iterable[Setting], metric: Measure) -> Setting | None:
    """The best of the comparable settings; None if there is none."""
    return next(iter(rank_settings(settings, metric)), None)
