"""The numbers of a history: their names, whether larger is better, and how they are displayed.

Files of runs and sweeps describe their task's metrics, so readers of the files need no task. No JAX here.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_dp import errors

TEST = "test_"  # begins the name of a metric in a history
PUBLIC_TESTS = (
    "choose by a test set that is no client's (holdout, test_client_ids, test_clients and tables of clients make one "
    "that is theirs)"
)


class Measure(NamedTuple):
    """One number of a history; `better` is 1 if larger is better, -1 if smaller is, 0 if neither."""

    name: str
    words: str
    better: int
    share: bool = False  # lies between 0 and 1, and is displayed in percent
    unit: str = ""
    probe: bool = False  # a diagnostic (not private, not covered by epsilon)
    judge: "Measure | None" = None  # the measure that compares settings instead, if neither direction is better
    signed: bool = False  # may be below 0

    @property
    def label(self) -> str:
        """The name with its unit, for an axis: `test accuracy (%)`."""
        beside = ", ".join(filter(None, ["%" if self.share else self.unit, "probe" if self.probe else ""]))
        return f"{self.words} ({beside})" if beside else self.words

    @property
    def low(self) -> float:
        """The smallest possible value."""
        return float("-inf") if self.signed else 0.0

    @property
    def high(self) -> float:
        """The largest possible value."""
        return 1.0 if self.share else float("inf")

    def shown(self, number: float) -> float:
        """The number for figures and tables: shares in percent."""
        return 100 * number if self.share else number

    def in_words(self, number: float | None, digits: int = 1) -> str:
        """The number as text: `81.4%`, or `7.73`."""
        if number is None:
            return "not known"
        return f"{100 * number:.{digits}f}%" if self.share else f"{number:.4g}"

    def reached(self, number: float | None, target: float) -> bool:
        """Whether a number is at least as good as the target."""
        return number is not None and self.better * (number - target) >= 0


def private_records(clients_hold_tests: bool, measure: Measure | None = None) -> str | None:
    """The private records that a metric depends on, in words; None if decisions by it cost no privacy.

    Ask this before a metric decides anything: which points or rounds there are, where a run ends, which model is best.
    A choice by private records is a release of them without noise, so it has no epsilon.
    measure  by default any metric of the test set.
    """
    if measure is not None and measure.probe:
        return f"{measure.words}, a probe of clients' private records"
    return "records that clients hold out" if clients_hold_tests else None


@dataclasses.dataclass(frozen=True)
class Measures:
    """All measures of a task's histories, by name, and the main one."""

    by_name: dict[str, Measure]
    main: Measure

    def __getitem__(self, name: str) -> Measure:
        return self.by_name[name]

    @property
    def tested(self) -> dict[str, Measure]:
        """The measures of the test set, the main one first."""
        return {name: one for name, one in self.by_name.items() if name.startswith(TEST)}


class MetricTarget(NamedTuple):
    """The value that a metric of the test set should reach."""

    measure: Measure
    value: float


def split_target(text: str, option: str = "target") -> tuple[str, float]:
    """The name of a metric and a number, from `METRIC=VALUE`, the value of `option`."""
    name, equals, number = text.partition("=")
    try:
        value = float(number) if equals else math.nan
    except ValueError:
        value = math.nan
    if not name or not math.isfinite(value):
        raise errors.refuse(option, repr(text), "METRIC=VALUE", "such as accuracy=0.9")
    return name.strip(), value


def target_of(text: str, measures: Measures, option: str = "target") -> MetricTarget:
    """The target `METRIC=VALUE` of `option`, for a task with these measures.

    Raises: ConfigurationError for a metric that the task does not have, and for an impossible value.
    """
    name, value = split_target(text, option)
    known = {full.removeprefix(TEST): one for full, one in measures.tested.items() if one.better}
    if name not in known:
        listed = f"METRIC=VALUE, METRIC one of {', '.join(known)}"
        raise errors.refuse(option, repr(text), listed, errors.suggestion(name, known))
    measure = known[name]
    if not measure.low <= value <= measure.high:
        ends = "from 0 to 1" if measure.share else "0 or more"
        raise errors.refuse(option, repr(text), f"a value {ends} of {name}")
    return MetricTarget(measure, value)


def measures_of(task: Mapping[str, Any]) -> Measures:
    """The measures of histories, from the description of their task in a file: `{"name", "loss", "metrics"}`."""
    found = [Measure(**{**one, "name": TEST + one["name"], "words": f"test {one['words']}"}) for one in task["metrics"]]
    loss, of_loss = task["loss"]["words"], {"unit": task["loss"]["unit"], "signed": task["loss"]["signed"]}
    found.append(Measure("test_loss", f"test {loss}", -1, **of_loss))
    main = found[0]
    clients = main.words.removeprefix("test ")
    main_looks: dict[str, Any] = {"share": main.share, "unit": main.unit, "probe": True, "signed": main.signed}
    found += [
        Measure("train_loss", f"{loss} of the cohort's batches", -1, probe=True, **of_loss),
        Measure("clipped", "gradients or updates clipped", 0, True, probe=True, judge=main),
        Measure("learnt_clip_norm", "learnt clip norm", 0, probe=True, judge=main),
        Measure("noise_to_signal", "noise over signal", -1, probe=True),
        Measure("objective", "objective", -1, probe=True, **of_loss),
        Measure("gradient_norm", "norm of the objective's gradient", -1, probe=True),
        Measure("client_mean", f"mean {clients} of clients", main.better, **main_looks),
        Measure("worst_tenth", f"{clients} of the worst tenth", main.better, **main_looks),
        Measure("client_variance", f"variance of clients' {plural(clients)}", -1, probe=True),
        Measure("personal_mean", f"{clients} of clients' own models", main.better, **main_looks),
        Measure("personal_pooled", f"{clients} of clients' own models, over records", main.better, **main_looks),
        Measure("personal_worst_tenth", f"{clients} of the worst tenth of own models", main.better, **main_looks),
        Measure("personal_variance", f"variance of the {plural(clients)} of own models", -1, probe=True),
    ]
    return Measures({one.name: one for one in found}, main)


def baseline_in_words(baseline: Mapping[str, Any] | None, measures: Measures) -> str:
    """`always naming the most frequent class: test accuracy 0.1167`, as files keep a baseline; empty without one."""
    if baseline is None:
        return ""
    return f"{baseline['answer']}: {measures[baseline['metric']].words} {baseline['value']:.4f}"


def plural(words: str) -> str:
    """The plural of a metric: `accuracies`."""
    return words[:-1] + "ies" if words.endswith("y") else words
