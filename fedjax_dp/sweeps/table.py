"""A sweep as tables: every evaluation in a row, every setting in a row, and the best setting.

pandas is imported where it is used: it is slow to load, and choosing and drawing do not need it.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedjax_dp import errors, folders
from fedjax_dp.accounting.guarantee import mark_of, with_mark
from fedjax_dp.display import Card, Table, count, displayed, upward, words
from fedjax_dp.sweeps.records import Record
from fedjax_dp.sweeps.settings import (
    Setting,
    deployment_mark,
    measures_of_records,
    metric_of,
    pick,
    proved_epsilon,
    settings_of,
)
from fedjax_dp.tasks.measures import Measure

if TYPE_CHECKING:
    import pandas


STOPPED = "stopped by halving"  # why a setting is not compared
UNKNOWN_COST = "the privacy cost of choosing is not known before the sweep is complete"


@displayed
class Best(NamedTuple):
    """The setting with the best mean over seeds. The mean is optimistic, as the setting was chosen by it."""

    values: dict[str, Any]  # by axis
    config: dict[str, Any]  # of the first seed
    metric: str
    mean: float
    std: float
    low: float  # of the 95% confidence interval of the mean, Student's t
    high: float
    seeds: int
    failed: int  # points of the whole sweep that diverged or failed
    guarantee: dict[str, Any]  # of the seed with the largest epsilon; empty where none is known
    guarantee_epsilon: float  # that epsilon; infinite without privacy, NaN where none is known
    considered: int  # settings that were compared
    excluded: dict[str, int]  # settings that were not compared, by reason
    statement: str | None = None  # what choosing among the settings costs in privacy; None: not known

    def _card(self) -> Card:
        values = ", ".join(f"{name} {words(value)}" for name, value in self.values.items() if value is not None)
        spread = f" +- {self.std:.4f}, the mean of {self.seeds} seeds" if self.seeds > 1 else ", of one seed"
        facts = {
            self.metric: f"{self.mean:.4f}{spread}",
            "compared": count(self.considered, "setting"),
            "privacy": self.guarantee.get("statement", "no Guarantee is known"),
        }
        if self.statement is not None or math.isfinite(self.guarantee_epsilon):
            facts["choosing"] = self.statement or UNKNOWN_COST
        return Card(f"best setting: {values or 'the only one'}", facts)


def tidy(records: Iterable[Record], axes: Sequence[str]) -> pandas.DataFrame:
    """One row per point and evaluated round; a point without any evaluation keeps one row, with empty metrics.

    Columns: index, point, the axes, seed, status, reason, guarantee_epsilon and guarantee_delta (as proved; an axis
    epsilon is the budget), guarantee_noise (the median client's noise multiplier), guarantee_deployment (the deployment
    that the Guarantee is of, if it is not of the run itself), seconds, round, every metric, and the other fields of the
    configuration.
    guarantee_epsilon is infinite without privacy and NaN without a Guarantee.
    """
    errors.require_installed("pandas", "tables", "for the tables of a sweep")
    import pandas

    records = sorted(records, key=lambda record: record["index"])
    points: dict[str, list[Any]] = {name: [record[name] for record in records] for name in ("index", "point")}
    points |= {name: [record["values"].get(name) for record in records] for name in (*axes, "seed")}
    points |= {name: [record[name] for record in records] for name in ("status", "reason")}
    points["guarantee_epsilon"] = [proved_epsilon(record) for record in records]
    points["guarantee_delta"] = [record["guarantee"].get("delta") for record in records]
    noises = [record["guarantee"].get("noise_multiplier") or {} for record in records]
    points["guarantee_noise"] = [noise.get("median") for noise in noises]
    points["guarantee_deployment"] = [mark_of(record["guarantee"]) or None for record in records]
    points["seconds"] = [record["seconds"] for record in records]

    rows = [(place, seen) for place, record in enumerate(records) for seen in record["history"] or [{}]]
    evaluations = {
        name: [seen.get(name) for _, seen in rows] for name in ("round", *measures_of_records(records).by_name)
    }
    fields = list(dict.fromkeys(name for record in records for name in record["config"]))
    clash = set(axes) & {"index", "point", "status", "reason", "seconds", *evaluations}
    if clash:
        raise errors.refuse("axes", clash.pop(), "other names than the table's own columns")
    rest = {
        name: [record["config"].get(name) for record in records] for name in fields if name not in points | evaluations
    }
    at = [place for place, _ in rows]
    columns = {name: column(values).take(at).reset_index(drop=True) for name, values in points.items()}
    columns |= {name: column(values, float) for name, values in evaluations.items()}
    columns["round"] = column(evaluations["round"], int)
    columns |= {name: column(values).take(at).reset_index(drop=True) for name, values in rest.items()}
    return pandas.DataFrame(columns)


def column(values: Sequence[Any], empty: type = str) -> pandas.Series:
    """A column of one type, which CSV and Parquet keep. `empty` is the type of a column without any value.

    Integers and truth values with gaps become pandas' nullable types; other values become text.
    """
    import pandas

    kinds = {type(value) for value in values if value is not None} or {empty}
    gaps = any(value is None for value in values)
    if kinds == {bool}:
        return pandas.Series(values, dtype="boolean" if gaps else "bool")
    if kinds == {int}:
        return pandas.Series(values, dtype="Int64" if gaps else "int64")
    if kinds <= {int, float}:
        return pandas.Series(values, dtype="float64")
    text = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    return pandas.Series(text, dtype="string")


def write(frame: pandas.DataFrame, folder: str | os.PathLike[str]) -> None:
    """Write `table.parquet` and `table.csv` in a folder. Readers see old or new tables, never parts of them."""
    with folders.draft_file(pathlib.Path(folder) / "table.parquet") as draft:
        frame.to_parquet(draft, engine="pyarrow", index=False)
    with folders.draft_file(pathlib.Path(folder) / "table.csv") as draft:
        frame.to_csv(draft, index=False)


def summary(records: Iterable[Record], axes: Sequence[str], metric: str | None = None) -> pandas.DataFrame:
    """One row per setting: the axes, seeds done and failed, guarantee_epsilon, and each metric (or just one).

    Columns of a metric at the last evaluated round: mean, standard deviation and the 95% confidence interval (low,
    high) over `..._seeds` seeds, those that are done and have it. A setting with `failed` above 0 has numbers of its
    surviving seeds only. guarantee_epsilon is the largest over all seeds.
    """
    errors.require_installed("pandas", "tables", "for the tables of a sweep")
    import pandas

    records = list(records)
    names = measures_of_records(records).by_name if metric is None else (metric_of(records, metric).name,)
    settings = settings_of(records, axes)
    columns = {name: column([setting.values[name] for setting in settings]) for name in axes}
    columns["done"] = column([len(setting.done_points) for setting in settings], int)
    columns["failed"] = column([setting.failures for setting in settings], int)
    columns["guarantee_epsilon"] = column([setting.epsilon for setting in settings], float)
    columns["guarantee_deployment"] = column([deployment_mark(setting.points) or None for setting in settings])
    for name in names:
        scores = [setting.score(name) for setting in settings]
        for part in ("mean", "std", "low", "high"):
            columns[f"{name}_{part}"] = column([getattr(score, part) for score in scores], float)
        columns[f"{name}_seeds"] = column([score.seeds for score in scores], int)
    return pandas.DataFrame(columns)


def overview(records: Iterable[Record], axes: Sequence[str]) -> Table:
    """One row per setting, as text: the axes, seeds, the largest proved epsilon, mean and spread of the main metric."""
    rows, records = [], list(records)
    main = measures_of_records(records).main
    for setting in settings_of(records, axes):
        score = setting.score(main.name)
        seen = [f"{len(setting.done_points)} of {len(setting.points)}", upward(setting.epsilon)]
        seen.append(f"{score.mean:.4f}" if score.seeds else "-")
        seen.append(f"{score.std:.4f}" if score.seeds > 1 else "-")
        rows.append([*(words(setting.values[name]) for name in axes), *seen])
    return Table([*axes, "seeds", with_mark("proved epsilon", deployment_mark(records)), main.words, "std"], rows)


def best(
    records: Iterable[Record], axes: Sequence[str], metric: str | None = None, epsilon_at_most: float | None = None
) -> Best:
    """The setting with the best mean of `metric` at the last evaluated round; ties go to the first in the plan.

    The metric is the task's main one by default, of personal models if all points have some. Settings are compared if
    all their seeds are done and have the metric, if they have as many seeds as the others, and if their proved epsilon
    is at most `epsilon_at_most` for every seed.
    """
    records = list(records)
    measure = metric_of(records, metric, judges=True)
    if epsilon_at_most is not None:
        errors.require_positive("epsilon_at_most", epsilon_at_most)
    settings = settings_of(records, axes)
    winner, candidates, excluded = choose(settings, measure, epsilon_at_most)
    if winner is None:
        reachable = [setting.epsilon for setting in choose(settings, measure, None)[1]]
        raise _nothing_fits(excluded, epsilon_at_most, reachable)
    return Best(
        winner.values,
        winner.points[0]["config"],
        measure.name,
        *winner.score(measure.name),
        failed=sum(setting.failures for setting in settings),
        guarantee=_weakest(winner),
        guarantee_epsilon=winner.epsilon,
        considered=len(candidates),
        excluded=excluded,
    )


def choose(
    settings: Sequence[Setting], metric: Measure, epsilon_at_most: float | None
) -> tuple[Setting | None, list[Setting], dict[str, int]]:
    """The best of some settings, the settings that are comparable, and the number of the others by reason."""
    most = max((len(setting.points) for setting in settings), default=0)
    verdicts = [_obstacle(setting, metric, epsilon_at_most, most) for setting in settings]
    candidates = [setting for setting, verdict in zip(settings, verdicts) if verdict is None]
    return pick(candidates, metric), candidates, dict(Counter(verdict for verdict in verdicts if verdict is not None))


def _weakest(setting: Setting) -> dict[str, Any]:
    """The Guarantee with the largest epsilon, empty where none is known."""
    known = [point for point in setting.points if not math.isnan(proved_epsilon(point))]
    return max(known, key=proved_epsilon)["guarantee"] if known else {}


def _obstacle(setting: Setting, metric: Measure, epsilon_at_most: float | None, most: int) -> str | None:
    """Why a setting is not compared; `most` is the largest number of seeds that any setting has."""
    if setting.failures:
        return "with a failed seed"
    if setting.stopped_points:
        return STOPPED
    if len(setting.points) < most:
        return f"with fewer than {most} seeds"
    if not setting.comparable(metric):
        return f"without {metric.name}"
    if epsilon_at_most is not None and math.isnan(setting.epsilon):
        return "without a Guarantee"
    if epsilon_at_most is not None and setting.epsilon > epsilon_at_most:
        return f"with epsilon above {epsilon_at_most:g}"
    return None


def _nothing_fits(
    excluded: dict[str, int], epsilon_at_most: float | None, reachable: Sequence[float]
) -> errors.ConfigurationError:
    """The refusal if no setting can be chosen; `reachable` are the epsilons of settings that only epsilon excludes."""
    why = excluded_in_words(excluded) or "no finished point"
    known = [epsilon for epsilon in reachable if not math.isnan(epsilon)]
    if epsilon_at_most is None or not known:
        return errors.refuse("sweep", why, "one with a setting to choose", "finish the sweep or change its axes")
    return errors.refuse(
        "epsilon_at_most", f"{epsilon_at_most:g} ({why})", f"at least {upward(min(known))}, the smallest of the sweep"
    )


def excluded_in_words(excluded: dict[str, int]) -> str:
    """`5 settings left out: 3 with a failed seed, 2 with epsilon above 1`; empty if none was."""
    count = sum(excluded.values())
    reasons = ", ".join(f"{many} {reason}" for reason, many in excluded.items())
    return f"{count} setting{'' if count == 1 else 's'} left out: {reasons}" if excluded else ""
