"""A task: what the scores of a model are judged by. The target of a record, its loss, and metrics of many records."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fedjax_dp.tasks.measures import TEST, Measures, measures_of


class ScoreSums(NamedTuple):
    """What a model's scores of test records add up to, in groups of records: all, or each client's.

    sums      what the task adds up over records, by name `(groups, ...)`, float64; `records` counts them `(groups,)`;
    scores    of every record, where the task keeps them `(records, ...)`, float64; else None;
    targets   of every record, as the data have them;
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
    """How good scores are, as a number; `of` gives one for each group, NaN where it cannot be known."""

    name: str
    words: str
    better: int  # 1 where larger is better, -1 where smaller is
    of: Callable[[ScoreSums], np.ndarray]
    share: bool = False  # lies between 0 and 1
    unit: str = ""
    signed: bool = False  # may be below 0


class LossWords(NamedTuple):
    """What a loss is called."""

    words: str
    unit: str = ""
    signed: bool = False  # may be below 0


class Task(Protocol):
    """Structure, not numbers: compared and hashed with the model that holds it, `fedjax_dp.model(..., task=)`.

    A record's loss and sums are made of that record alone, so records of a batch cannot mix.
    """

    @property
    def name(self) -> str: ...

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The first is the main one, which sweeps, plots and targets go by; without any, that is the mean loss."""
        ...

    @property
    def loss_words(self) -> LossWords:
        """What the loss is called."""
        ...

    @property
    def keeps_scores(self) -> bool:
        """Whether metrics need the scores of the whole test set, as ranks do, beside sums."""
        ...

    def loss(self, scores: Any, target: Any) -> jax.Array:
        """Of one record, a number `()`, differentiable by the scores; traced."""
        ...

    def scores(self, target_shape: tuple[int, ...], outputs: int) -> tuple[int, ...] | None:
        """The shape of the scores of one record that the loss takes; None: any."""
        ...

    def sums(self, scores: Any, target: Any) -> Mapping[str, jax.Array]:
        """Of one record, what is added up over records; traced. Counts are integers, so that they stay exact."""
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

    def of(seen: ScoreSums) -> np.ndarray:
        return quotient(seen.sums[over], seen.sums[under])

    return of


def quotient(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """NaN where nothing was counted."""
    return np.where(under > 0, over / np.where(under > 0, under, 1), np.nan)


def describe_task(task: Task) -> dict[str, Any]:
    """The task as files describe it: JSON, from which `measures_of` makes its measures."""
    metrics = [{name: value for name, value in one._asdict().items() if name != "of"} for one in task.metrics]
    return {"name": task.name, "loss": task.loss_words._asdict(), "metrics": metrics}


def measures_of_task(task: Task) -> Measures:
    """The same of the task itself."""
    return measures_of(describe_task(task))
