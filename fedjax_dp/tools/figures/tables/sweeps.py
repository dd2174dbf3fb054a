"""Tables that pictures of a sweep are drawn from, worked out here once: for matplotlib, and for the report."""

import math
from collections.abc import Sequence
from typing import Any

from fedjax_dp.display import finite
from fedjax_dp.sweeps.settings import Interval, Setting, epsilon_places, goodness, interval, metric_value
from fedjax_dp.tasks.measures import Measure

Rows = list[dict[str, Any]]


def setting_rows(settings: Sequence[Setting], metric: Measure) -> Rows:
    """A row for each setting, in their order.

    key         its place
    epsilon     proved, of settings with one budget the largest, see `epsilon_places`; None where none is finite,
                without privacy or without a Guarantee, see `private`
    value       mean of the metric over the seeds that are done, with the interval `low` to `high`; None: not known
    good        what is larger for the better of two; None where a seed failed, as such a setting is never chosen
    seeds, lost how many the mean is over, and how many failed
    """
    rows = []
    for key, (setting, place) in enumerate(zip(settings, epsilon_places(settings), strict=True)):
        score = setting.score(metric.name)
        rows.append(
            {
                "key": key,
                "epsilon": finite(place),
                "private": math.isfinite(setting.epsilon),
                "value": finite(score.mean),
                "good": finite(goodness(setting, metric)) if setting.comparable(metric) else None,
                **within(score, metric),
                "seeds": score.seeds,
                "lost": setting.failures,
            }
        )
    return rows


def front(rows: Rows) -> Rows:
    """Rows of settings that no other one beats with at most as much epsilon, in order of it; of equals the first."""
    known = [row for row in rows if row["epsilon"] is not None and row["good"] is not None]
    found: Rows = []
    for row in sorted(known, key=lambda row: (row["epsilon"], -row["good"], row["key"])):
        if not found or row["good"] > found[-1]["good"]:
            found.append(row)
    return found


def curve(setting: Setting, metric: Measure) -> list[tuple[int, Interval]]:
    """Rounds that every finished seed, or stopped one, was evaluated after, and the metric there over these seeds."""
    seen: dict[int, list[float]] = {}
    points = setting.done_points or setting.stopped_points
    for point in points:
        for evaluation in point["history"]:
            number = metric_value(evaluation, metric.name)
            if number is not None and math.isfinite(number):
                seen.setdefault(evaluation["round"], []).append(number)
    every = len(points)
    return [(at, interval(numbers)) for at, numbers in sorted(seen.items()) if len(numbers) == every]


def within(score: Interval, metric: Measure) -> dict[str, float | None]:
    """The ends of an interval, within what the metric can be."""
    cut = score.within(metric)
    return {"low": finite(cut.low), "high": finite(cut.high)}
