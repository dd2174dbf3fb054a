"""Tables of a sweep for its pictures and its report."""

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
    epsilon     proved, the largest of settings with one budget (see `epsilon_places`); None if it is not finite,
                without privacy or without a Guarantee (see `private`)
    value       mean of the metric over finished seeds, with the interval `low` to `high`; None if unknown
    good        larger for better settings; None if a seed failed, as such a setting is never chosen
    seeds, lost numbers of finished and failed seeds
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
                **interval_ends(score, metric),
                "seeds": score.seeds,
                "lost": setting.failures,
            }
        )
    return rows


def front(rows: Rows) -> Rows:
    """Rows of settings that no other beats at the same epsilon or less, in order of epsilon; the first of equals."""
    known = [row for row in rows if row["epsilon"] is not None and row["good"] is not None]
    found: Rows = []
    for row in sorted(known, key=lambda row: (row["epsilon"], -row["good"], row["key"])):
        if not found or row["good"] > found[-1]["good"]:
            found.append(row)
    return found


def curve(setting: Setting, metric: Measure) -> list[tuple[int, Interval]]:
    """The rounds at which every finished (else every stopped) seed was evaluated, and the metric over these seeds."""
    numbers_at: dict[int, list[float]] = {}
    points = setting.done_points or setting.stopped_points
    for point in points:
        for evaluation in point["history"]:
            number = metric_value(evaluation, metric.name)
            if number is not None and math.isfinite(number):
                numbers_at.setdefault(evaluation["round"], []).append(number)
    every = len(points)
    return [(at, interval(numbers)) for at, numbers in sorted(numbers_at.items()) if len(numbers) == every]


def interval_ends(score: Interval, metric: Measure) -> dict[str, float | None]:
    """The ends of an interval, cut at the metric's range."""
    cut = score.within(metric)
    return {"low": finite(cut.low), "high": finite(cut.high)}
