"""Values of a sweep in a figure: words, colours, and positions on an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.ticker import NullLocator

from fedjax_dp.sweeps.settings import Setting, group_by_value, value_key
from fedjax_dp.tasks.measures import Measure
from fedjax_dp.tools.figures import styles
from fedjax_dp.tools.figures.canvas import width_of
from fedjax_dp.tools.figures.styles import ORDER, PALETTE

AXES = {
    "epsilon": "budget epsilon (nats)",
    "epsilon_high": "largest budget epsilon (nats)",
    "clip_norm": "clipping norm C",
    "noise_multiplier": "noise multiplier z",
    "rounds": "rounds T",
    "local_steps": "local steps per round",
    "batch_size": "batch size B (records)",
    "cohort_size": "cohort size (clients)",
    "num_clients": "population N (clients)",
}


def short(number: float, metric: Measure) -> str:
    """A number as shown, in few characters: percentages with one decimal, others with three digits."""
    return f"{number:.1f}" if metric.share else f"{number:#.3g}".rstrip(".")


def axis_label(axis: str) -> str:
    """The label of an axis, with its unit if it has one."""
    return AXES.get(axis, words([axis]))


def words(names: Iterable[str]) -> str:
    """Names of axes for a sentence."""
    return ", ".join(name.replace("_", " ").replace(".", " ") for name in names)


def in_words(value: Any) -> str:
    """A value of an axis, short enough for a tick."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:.0f}" if value == round(value) and abs(value) < 1e6 else f"{value:.3g}"
    text = value if isinstance(value, str) else value_key(value)
    return text if len(text) <= 24 else text[:21] + "..."


def is_number(value: Any) -> bool:
    """Whether a value can be placed on a numeric scale."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class AxisScale(NamedTuple):
    """Positions of an axis's values: numbers on a linear or logarithmic scale, other values side by side."""

    kind: str  # linear, log or category
    values: list[Any]  # numbers in increasing order, then other values in the order of the plan

    def position(self, value: Any) -> float:
        """The coordinate of a value."""
        return (
            [value_key(one) for one in self.values].index(value_key(value)) if self.kind == "category" else float(value)
        )

    def beside(self, value: Any, fraction: float) -> float:
        """The coordinate of a value, moved by a fraction of the axis or of a category's width."""
        low, at, high = (self.position(one) for one in (self.values[0], value, self.values[-1]))
        if self.kind == "log":
            return float(at * (high / low) ** fraction)
        return at + fraction * (1.0 if self.kind == "category" else high - low)

    def fraction(self, value: Any) -> float:
        """The position between the ends of the axis, from 0 to 1; 0.5 if there is only one value."""
        ends = [self.position(self.values[0]), self.position(value), self.position(self.values[-1])]
        low, at, high = np.log(ends) if self.kind == "log" else ends
        return 0.5 if low == high else float((at - low) / (high - low))

    def set_on(self, axis: Any, label: str) -> None:
        """Give a matplotlib axis (`panel.xaxis` or `panel.yaxis`) this scale, ticks at the values, and its label."""
        axis.set_label_text(label)
        if self.kind == "log":
            axis.axes.set_xscale("log") if axis.axis_name == "x" else axis.axes.set_yscale("log")
        if len(self.values) <= 10 or self.kind == "category":
            set_ticks(axis, [self.position(value) for value in self.values], self.values)
            axis.set_minor_locator(NullLocator())
        else:
            axis.set_major_formatter(lambda value, _: in_words(value))


def set_ticks(axis: Any, places: Sequence[float], values: Sequence[Any]) -> None:
    """Set ticks with values in words, rotated if they do not fit side by side."""
    labels = list(map(in_words, values))
    room = 7.5 * width_of(axis.axes.figure) / styles.scale()
    leaning = axis.axis_name == "x" and sum(map(len, labels)) + len(labels) > room
    axis.set_ticks(places, labels=labels, **({"rotation": 30, "ha": "right"} if leaning else {}))


def scale_of(settings: Iterable[Setting], axis: str) -> AxisScale:
    """The scale for the values of an axis: logarithmic if they span a decade or more in growing steps."""
    found = list({value_key(value): value for value in (setting.values[axis] for setting in settings)}.values())
    numbers = sorted(value for value in found if is_number(value))
    values = [*numbers, *(value for value in found if not is_number(value))]
    if len(numbers) < len(values) or not values:
        return AxisScale("category", values)
    if not _grow([number for number in numbers if number > 0]):
        return AxisScale("linear", values)
    return AxisScale("log" if numbers[0] > 0 else "category", values)  # 0 and powers are shown side by side


def _grow(numbers: Sequence[float]) -> bool:
    """Whether increasing positive numbers span a decade in steps that are closer to geometric than to arithmetic."""
    if not numbers or numbers[-1] < 9.99 * numbers[0]:
        return False
    steps, ratios = np.diff(numbers), np.diff(np.log(numbers))
    return len(steps) < 2 or bool(np.std(ratios) / np.mean(ratios) < np.std(steps) / np.mean(steps))


class Line(NamedTuple):
    """Settings that form one line of a figure."""

    name: str
    color: Any
    settings: list[Setting]
    rank: int = 0  # among the `of` lines of its panel
    of: int = 1

    @property
    def look(self) -> dict[str, Any]:
        return {"color": self.color, **styles.line_look(self.rank, self.of)}


def lines_by(settings: Sequence[Setting], axis: str | None) -> list[Line]:
    """One line for each value of an axis: numbers from dark to light, other values in distinct colours."""
    if axis is None:
        return [Line("", styles.TEST, list(settings))]
    values, groups = scale_of(settings, axis).values, group_by_value(settings, axis)
    numbers = sum(map(is_number, values))
    lines = []
    for rank, value in enumerate(values):
        ordered = rank < numbers > 2
        color = ORDER(0.85 * rank / (numbers - 1)) if ordered else PALETTE[rank % len(PALETTE)]
        lines.append(
            Line(in_words(value), "0.5" if value is None else color, groups[value_key(value)], rank, len(values))
        )
    return lines
