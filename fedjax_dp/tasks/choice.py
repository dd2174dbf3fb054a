"""The task of data, and the loss that is chosen among those that it has."""

import functools
from collections.abc import Callable
from typing import Any, Protocol

from fedjax_dp import errors
from fedjax_dp.data.targets import OWN, Vocabulary, check_vocabulary
from fedjax_dp.tasks import losses
from fedjax_dp.tasks.names import APS, LOSSES_BY_TASK
from fedjax_dp.tasks.shipped import Binary, Classes, MultiLabel, Own, Regression, Sequence
from fedjax_dp.tasks.task import Task

Made = Callable[[str, str, Vocabulary | None], Task]  # of the name of a loss, how AP is taken, and the vocabulary


class Aimed(Protocol):
    """Data, which name their task."""

    @property
    def task(self) -> str: ...

    @property
    def vocabulary(self) -> Vocabulary | None: ...


def _sequence(loss: str, ap: str, vocabulary: Vocabulary | None) -> Task:
    known = check_vocabulary("vocabulary", vocabulary)
    return Sequence(known, losses.TokenCrossEntropy(known.pad, loss))


TASKS: dict[str, Made] = {
    "classes": lambda loss, ap, vocabulary: Classes(),
    "sequence": _sequence,
    "multi_label": lambda loss, ap, vocabulary: MultiLabel(losses.BinaryCrossEntropy(loss), ap),
    "binary": lambda loss, ap, vocabulary: Binary(),
    "regression": lambda loss, ap, vocabulary: Regression(losses.huber if loss == "huber" else losses.squared_error),
    OWN: lambda loss, ap, vocabulary: Own(),
}


def task_named(data: Aimed, loss: str | None = None, ap: str | None = None) -> Task:
    """The task that data name, with one of its losses by name; the first unless one is given.

    loss  `mean` or `length` of a `sequence`, `mean` or `sum` of `multi_label`, `squared` or `huber` of `regression`;
    ap    `exact` or `buckets200`, of `multi_label`.
    Raises: ConfigurationError for a loss that the task has not.
    """
    errors.require_choice("task", data.task, TASKS)
    known = LOSSES_BY_TASK.get(data.task, ())
    if loss is not None and loss not in known:
        listed = f"one of {', '.join(known)} for task {data.task}" if known else f"left out for task {data.task}"
        raise errors.refuse("loss", repr(loss), listed)
    if ap is not None:
        errors.require_choice("ap", ap, APS)
        if data.task != "multi_label":
            raise errors.refuse("ap", repr(ap), f"left out for task {data.task}", "it is for multi_label")
    return _made(data.task, loss or next(iter(known), ""), ap or APS[0], data.vocabulary)


@functools.cache
def _made(name: str, loss: str, ap: str, vocabulary: Any) -> Task:
    return TASKS[name](loss, ap, vocabulary)
