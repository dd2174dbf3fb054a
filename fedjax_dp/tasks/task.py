"""The Protocol of tasks: the loss of a record's scores and target, and the metrics of many records."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fedjax_dp.tasks.measures import TEST, Measures, measures_of


class ScoreSums(NamedTuple):
    """Sums over test records, in groups of records: one group of all, or one per client.

    sums      the task's sums over records, by name `(groups, ...)`, float64; `records` counts them `(groups,)`;
    scores    of every record if the task keeps them `(records, ...)`, float64; else None;
    targets   of every record, as in the data;
    group_of  the group of every record `(records,)`.
    """

    sums: Mapping[str, np.ndarray]
    scores: np.ndarray | None
    targets: Any
    group_of: np.ndarray

    @property
    def groups(self) -> int:
        return len(self.sums["records"])


class Metric(NamedTuple):
    """A metric of scores; `of` returns one number per group, NaN if it is undefined."""

    name: str
    words: str
    better: int  # 1 if larger is better, -1 if smaller is
    of: Callable[[ScoreSums], np.ndarray]
    share: bool = False  # lies between 0 and 1
    unit: str = ""
    signed: bool = False  # may be below 0


class LossWords(NamedTuple):
    """The name and the unit of a loss."""

    words: str
    unit: str = ""
    signed: bool = False  # may be below 0


class Task(Protocol):
    """The structure of a task, without numbers: compared and hashed with its model, `fedjax_dp.model(..., task=)`.

    A record's loss and sums depend only on that record, so records of a batch cannot mix.
    """

    @property
    def name(self) -> str: ...

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The first is the main metric of sweeps, plots and targets; without any, that is the mean loss."""
        ...

    @property
    def loss_words(self) -> LossWords:
        """The name and the unit of the loss."""
        ...

    @property
    def keeps_scores(self) -> bool:
        """Whether metrics such as ranks need the scores of the whole test set in addition to sums."""
        ...

    def loss(self, scores: Any, target: Any) -> jax.Array:
        """The loss of one record, a number `()`, differentiable by the scores; traced."""
        ...

    def scores(self, target_shape: tuple[int, ...], outputs: int) -> tuple[int, ...] | None:
        """The shape of one record's scores that the loss accepts; None: any."""
        ...

    def sums(self, scores: Any, target: Any) -> Mapping[str, jax.Array]:
        """The terms of one record that are summed over records; traced. Counts are integers, so that sums are exact."""
        ...


class Baseline(NamedTuple):
    """What the best answer that ignores a record's features reaches, by the main metric of the task."""

    answer: str  # in words
    metric: str  # its name in a history
    value: float


def constant_baseline(task: Task, targets: Any) -> Baseline | None:
    """The baseline of test targets; None where the task has no method `constant_answer(targets)` for its main metric.

    The method returns the answer in words and the number that it reaches.
    """
    constant_answer = getattr(task, "constant_answer", None)
    if constant_answer is None:
        return None
    answer, value = constant_answer(jax.tree.map(np.asarray, targets))
    return Baseline(answer, TEST + task.metrics[0].name, float(value)) if np.isfinite(value) else None


def ratio(over: str, under: str = "records") -> Callable[[ScoreSums], np.ndarray]:
    """A metric that is a quotient of two sums."""

    def of(sums: ScoreSums) -> np.ndarray:
        return quotient(sums.sums[over], sums.sums[under])

    return of


def quotient(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """The quotient, NaN where `under` is 0."""
    return np.where(under > 0, over / np.where(under > 0, under, 1), np.nan)


def describe_task(task: Task) -> dict[str, Any]:
    """The description of a task in files: JSON content, the argument of `measures_of`."""
    metrics = [{name: value for name, value in one._asdict().items() if name != "of"} for one in task.metrics]
    return {"name": task.name, "loss": task.loss_words._asdict(), "metrics": metrics}


def measures_of_task(task: Task) -> Measures:
    """The measures of a task."""
    return measures_of(describe_task(task))
