"""Trials proposed by Optuna's TPE sampler from the results of earlier trials.

Bergstra, Bardenet, Bengio and Kegl 2011: a tree-structured Parzen estimator of what good trials have in common and
others lack. A batch of trials is proposed and run, and the mean of each over its seeds is reported to the sampler.
The sampler is not stored: with the same seed and the results in the sweep's folder it proposes the same trials.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from fedjax_dp import errors
from fedjax_dp.sweeps.axes import Axis, Choices, Values
from fedjax_dp.sweeps.plan import Point, SweepConfig, points_of
from fedjax_dp.sweeps.preparation import PreparedPoint, Sources, with_data
from fedjax_dp.sweeps.settings import Record, goodness, metric_of, settings_of

P = TypeVar("P", Point, PreparedPoint)


class Search(Generic[P]):
    """The trials that are known so far. `points` are their points by id; of equal points the first counts.

    make_points  makes the points of trials, `seeds` for each, numbered from its second argument on;
    batch        number of trials that are proposed at once.
    """

    def __init__(
        self,
        axes: Mapping[str, Axis],
        make_points: Callable[[Sequence[Values], int], list[P]],
        *,
        trials: int,
        seeds: int,
        batch: int,
        search_seed: int,
    ):
        errors.require_installed("optuna", "search", "for search tpe")
        import optuna

        self.axes, self.trials, self.seeds, self.batch = axes, trials, seeds, batch
        self.make_points: Callable[[Sequence[Values], int], list[P]] = make_points
        self.points: dict[str, P] = {}
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would announce itself
        self._study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=search_seed))
        optuna.logging.set_verbosity(verbosity)
        self._space = {name: _distribution(axis) for name, axis in axes.items()}
        self._proposed: list[list[P]] = []  # the points of each trial, one for each seed
        self._reported = 0

    def next_points(self, results: Mapping[str, Record]) -> list[P]:
        """The points to run next: those of the last batch that have no result.

        If all have one, the batch is reported and the next one proposed, until all trials are done.
        """
        while True:
            batch = {point.id: point for trial in self._proposed[self._reported :] for point in reversed(trial)}
            left = [self.points[each] for each in batch if each not in results]
            if left or len(self._proposed) == self.trials:
                return sorted(left, key=lambda point: point.index)
            self._report(results)
            self._propose()

    def line(self) -> str:
        """The progress of the search in words."""
        return f"search tpe: trials {self._reported + 1:,} to {len(self._proposed):,} of {self.trials:,}"

    def _propose(self) -> None:
        first = len(self._proposed)
        values: list[Values] = []
        for _ in range(min(self.batch, self.trials - first)):
            params = self._study.ask(self._space).params
            entries = [_at(axis, params[name]) for name, axis in self.axes.items()]
            values.append({field: value for entry in entries for field, value in entry.items()})
        points = self.make_points(values, first * self.seeds)
        for point in points:
            self.points.setdefault(point.id, point)
        self._proposed += [points[at : at + self.seeds] for at in range(0, len(points), self.seeds)]

    def _report(self, results: Mapping[str, Record]) -> None:
        """Report the results of the last batch. A trial with a failed seed counts as failed."""
        import optuna

        known = [results[point.id] for trial in self._proposed for point in trial]
        if not known:
            return
        measure = metric_of(known, None)
        for number in range(self._reported, len(self._proposed)):
            records = [results[point.id] for point in self._proposed[number]]
            (setting,) = settings_of(records, [name for name in records[0]["values"] if name != "seed"])
            if setting.comparable(measure):
                self._study.tell(number, goodness(setting, measure))
            else:
                self._study.tell(number, state=optuna.trial.TrialState.FAIL)
        self._reported = len(self._proposed)


def search_of(sweep: SweepConfig, sources: Sources) -> Search[Point]:
    """The search of a sweep of configurations."""
    return Search(
        sweep.axes_by_name,
        lambda values, first: with_data(points_of(sweep, values, first), sources),
        trials=sweep.trials or 0,
        seeds=len(sweep.seeds),
        batch=sweep.search_batch,
        search_seed=sweep.search_seed,
    )


def _distribution(axis: Axis) -> Any:
    from optuna import distributions

    if isinstance(axis, Choices):
        return distributions.CategoricalDistribution(range(len(axis.entries)))
    if axis.integer:
        return distributions.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return distributions.FloatDistribution(axis.low, axis.high, log=axis.log)


def _at(axis: Axis, param: Any) -> Values:
    """The values of an axis in a trial. Numbers are rounded to six digits, so that they are easy to read."""
    if isinstance(axis, Choices):
        return axis.entries[param]
    return {axis.field: param if axis.integer else min(max(float(f"{param:.6g}"), axis.low), axis.high)}
