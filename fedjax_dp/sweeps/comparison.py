"""Comparison of personal models with local training and a shared model, at the same epsilon, from a sweep."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import View
from fedjax_dp.display import finite
from fedjax_dp.rounds.comparison import Gain, Standing, gain, standing
from fedjax_dp.sweeps.settings import Interval, Record, Setting, interval, measures_of_records, settings_of
from fedjax_dp.tasks.measures import Measure

ALONE = "local"  # the entry whose clients share nothing


@dataclasses.dataclass(frozen=True)
class ComparisonRow:
    """An algorithm at a budget: its best setting by the mean over clients and seeds.

    settings  number of settings that it was chosen from;
    standing  statistics over clients, mean over seeds; against: the gain of personal models on local and the best
              shared model, mean over seeds;
    means     mean over clients, with its 95% interval over seeds (Student's t); regrets: the same for `against`.
    """

    epsilon: float | None  # the budget; None without one
    algorithm: str
    values: dict[str, Any]  # of the other axes
    settings: int
    proved: float
    view: str
    own: bool
    standing: Standing
    against: Gain | None
    means: Interval
    regrets: Interval
    points: tuple[Record, ...]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All algorithms of a sweep at all of its budgets."""

    measure: Measure
    rows: tuple[ComparisonRow, ...]

    def at(self, epsilon: float | None) -> list[ComparisonRow]:
        """The rows of one budget."""
        return [row for row in self.rows if row.epsilon == epsilon]

    @property
    def budgets(self) -> list[float | None]:
        return sorted({row.epsilon for row in self.rows}, key=lambda budget: budget or 0.0)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        rows = [
            {
                "epsilon": row.epsilon,
                "algorithm": row.algorithm,
                **{name: value for name, value in row.values.items() if value is not None},
                "settings": row.settings,
                "proved": row.proved,
                "view": row.view,
                "own_models": row.own,
                **row.standing._asdict(),
                **_ends("mean", row.means),
                **(row.against._asdict() | _ends("regret", row.regrets) if row.against else {}),
                "seeds": row.means.seeds,
            }
            for row in self.rows
        ]
        return {"metric": self.measure.name, "rows": rows}

    @property
    def words(self) -> str:
        """The metric of each client, in words."""
        return self.measure.words.removeprefix("test ").removeprefix("mean ").removesuffix(" of clients")

    def one_by_one(self, epsilon: float | None) -> dict[str, list[np.ndarray]]:
        """For each algorithm at a budget and each seed that local and the best shared model have too: a client's gain
        `(clients,)` over the better of these two, negative for a loss, NaN without test records.
        """
        rows = {
            row.algorithm: {point["values"]["seed"]: _values(point)[0] for point in row.points}
            for row in self.at(epsilon)
        }
        rivals = [rows[row.algorithm] for row in self.rivals(epsilon)]
        shared = [seed for seed in rivals[0] if seed in rivals[1]]
        best = {
            seed: self.measure.better * np.max([self.measure.better * one[seed] for one in rivals], 0)
            for seed in shared
        }
        return {name: [own[seed] - best[seed] for seed in shared if seed in own] for name, own in rows.items()}

    def rivals(self, epsilon: float | None) -> tuple[ComparisonRow, ComparisonRow]:
        """The rows of local training and of the best shared model at a budget.

        Raises: ConfigurationError where one of them is missing.
        """
        here = {row.algorithm: row for row in self.at(epsilon)}
        shared = [row for row in here.values() if not row.own]
        if ALONE not in here or not shared:
            raise errors.refuse(
                f"algorithms at epsilon {epsilon}",
                ", ".join(sorted(here)),
                f"{ALONE}, one with a shared model, and others",
                f"add {ALONE} and dp_fedavg_local to the axis",
            )
        return here[ALONE], max(shared, key=lambda row: self.measure.better * row.standing.mean)


def compare(records: Sequence[Record], axes: Sequence[str]) -> Comparison:
    """The comparison of the algorithms of a sweep.

    Raises: ConfigurationError if algorithms do not vary, no point has finished, clients have no test records, `local`
            or a shared model is missing, or the epsilon of a personal model is not of view deployed.
    """
    _require_algorithms(axes)
    measure = measures_of_records(records).main
    done = [setting for setting in settings_of(records, axes) if setting.done_points]
    if not done:
        raise errors.refuse("points of the sweep", "none that finished", "some of each algorithm", "see why they ended")
    for setting in done:
        _require_clients(setting)
    groups: dict[tuple[Any, str], list[Setting]] = {}
    for setting in done:
        groups.setdefault((_budget(setting), setting.values["algorithm"]), []).append(setting)
    rows = [_row(*key, group, measure) for key, group in groups.items()]
    alone = Comparison(measure, tuple(sorted(rows, key=lambda row: (row.epsilon or 0.0, row.own, row.algorithm))))
    return Comparison(measure, tuple(_compare_with(row, alone.rivals(row.epsilon), measure) for row in alone.rows))


def comparable(records: Sequence[Record], axes: Sequence[str]) -> bool:
    """Whether `compare` accepts the sweep."""
    try:
        compare(records, axes)
    except errors.ConfigurationError:
        return False
    return True


def _budget(setting: Setting) -> float | None:
    budget = setting.values.get("epsilon", setting.points[0]["config"].get("epsilon"))
    if isinstance(budget, str | list):
        raise errors.refuse("epsilon of the sweep", budget, "one budget for all clients")
    return None if budget is None else float(budget)


def require_comparable(axes: Sequence[str], base: Mapping[str, Any]) -> None:
    """Refuse, before it runs, a sweep that `compare` would refuse."""
    _require_algorithms(axes)
    view, budget = base.get("view", View.UPLOADS.value), "epsilon" in axes or "epsilon" in base
    if budget and "view" not in axes and view != View.DEPLOYED.value:
        raise _other_view("view of the sweep", view)


def _require_algorithms(axes: Sequence[str]) -> None:
    if "algorithm" not in axes:
        remedy = 'write algorithm = ["local", "dp_fedavg_local", "mr_mtl"] under [axes]'
        raise errors.refuse("axes of the sweep", ", ".join(axes) or "none", "algorithm and others", remedy)


def _other_view(what: str, view: str) -> errors.ConfigurationError:
    wanted = "deployed, to compare personal models"
    return errors.refuse(what, view, wanted, 'write view = "deployed" under [base]')


def _require_clients(setting: Setting) -> None:
    name, point = setting.values["algorithm"], setting.done_points[0]
    clients, guarantee = point.get("clients"), point["guarantee"]
    if clients is None:
        raise errors.refuse("test records of clients", "none", "some of each", "write holdout = 0.2 under [base]")
    if clients["own"] and guarantee["epsilon"] is not None and guarantee["view"] != View.DEPLOYED.value:
        raise _other_view(f"view of {name}", guarantee["view"])


def _standings(points: Sequence[Record], measure: Measure) -> list[Standing]:
    return [standing(*_values(point), measure.better) for point in points]


def _mean(each: Sequence[Any]) -> Any:
    """The mean of named tuples, number by number."""
    return type(each[0])(*(statistics.fmean(numbers) for numbers in zip(*each, strict=True)))


def _values(point: Record) -> tuple[np.ndarray, np.ndarray]:
    clients = point["clients"]
    return np.array([np.nan if value is None else value for value in clients["values"]]), np.array(clients["records"])


def _row(epsilon: float | None, algorithm: str, settings: Sequence[Setting], measure: Measure) -> ComparisonRow:
    """The row of the best of an algorithm's settings, before it is compared with others."""
    best = max(settings, key=lambda one: measure.better * _mean(_standings(one.done_points, measure)).mean)
    point, each = best.done_points[0], _standings(best.done_points, measure)
    return ComparisonRow(
        epsilon,
        algorithm,
        {name: value for name, value in best.values.items() if name not in ("algorithm", "epsilon", "view")},
        len(settings),
        best.epsilon,
        point["guarantee"]["view"],
        point["clients"]["own"],
        _mean(each),
        None,
        interval([one.mean for one in each]),
        interval([]),
        tuple(best.done_points),
    )


def _compare_with(row: ComparisonRow, rivals: Sequence[ComparisonRow], measure: Measure) -> ComparisonRow:
    """The row of a personal model with its gain on the rivals of its budget."""
    if not row.own or row.algorithm == ALONE:
        return row
    gains = _gains(row, rivals, measure)
    return dataclasses.replace(row, against=_mean(gains), regrets=interval([one.regret for one in gains]))


def _gains(row: ComparisonRow, rivals: Sequence[ComparisonRow], measure: Measure) -> list[Gain]:
    """The gains by seed, since clients may differ between seeds."""
    by_seed = [{point["values"]["seed"]: point for point in other.points} for other in rivals]
    each = []
    for point in row.points:
        rival = [points.get(point["values"]["seed"]) for points in by_seed]
        if all(one is not None for one in rival):
            values, records = _values(point)
            each.append(gain(values, [_values(one)[0] for one in rival if one is not None], records, measure.better))
    if not each:
        raise errors.refuse("seeds", "none that all algorithms share", "at least one", "run the sweep to its end")
    return each


def _ends(name: str, score: Interval) -> dict[str, float | None]:
    """Standard deviation and 95% interval for JSON; None for a single seed."""
    return {f"{name}_{part}": finite(getattr(score, part)) for part in ("std", "low", "high")}
