"""The task of a data set, with one of its losses."""

import functools
from collections.abc import Callable
from typing import Any

from fedjax_dp import errors
from fedjax_dp.data.store import Dataset, FederatedData
from fedjax_dp.data.targets import OWN, Vocabulary, check_vocabulary
from fedjax_dp.tasks import losses
from fedjax_dp.tasks.names import APS, LOSSES_BY_TASK
from fedjax_dp.tasks.shipped import Binary, Classes, MultiLabel, Own, Regression, Sequence
from fedjax_dp.tasks.task import Task

# of the name of a loss, the kind of AP, the vocabulary, and k
Maker = Callable[[str, str, Vocabulary | None, int | None], Task]


def _sequence(loss: str, ap: str, vocabulary: Vocabulary | None, top_k: int | None) -> Task:
    known = check_vocabulary("vocabulary", vocabulary)
    return Sequence(known, losses.TokenCrossEntropy(known.pad, loss), top_k)


TASKS: dict[str, Maker] = {
    "classes": lambda loss, ap, vocabulary, top_k: Classes(top_k=top_k),
    "sequence": _sequence,
    "multi_label": lambda loss, ap, vocabulary, top_k: MultiLabel(losses.BinaryCrossEntropy(loss), ap),
    "binary": lambda loss, ap, vocabulary, top_k: Binary(),
    "regression": lambda loss, ap, vocabulary, top_k: Regression(
        losses.huber if loss == "huber" else losses.squared_error
    ),
    OWN: lambda loss, ap, vocabulary, top_k: Own(),
}


def task_named(
    data: Dataset | FederatedData, loss: str | None = None, ap: str | None = None, top_k: int | None = None
) -> Task:
    """The task of some data, with one of its losses by name; by default the first.

    loss  `mean` or `length` of a `sequence`, `mean` or `sum` of `multi_label`, `squared` or `huber` of `regression`;
    ap    `exact` or `buckets200`, of `multi_label`;
    top_k also measure top-k accuracy, of `classes` or the tokens of a `sequence`.
    Raises: ConfigurationError for a loss that the task does not have, and for k of at least the number of classes.
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
    if top_k is not None:
        if data.task not in ("classes", "sequence"):
            raise errors.refuse("top_k", top_k, f"left out for task {data.task}", "it is for classes and tokens")
        if data.classes < 3:
            raise errors.refuse("top_k", top_k, f"left out for {data.classes} classes, of which all are among two")
        errors.require_integer("top_k", top_k, 2, data.classes - 1, f"there are {data.classes} classes")
    return _make_task(data.task, loss or next(iter(known), ""), ap or APS[0], data.vocabulary, top_k)


@functools.cache
def _make_task(name: str, loss: str, ap: str, vocabulary: Any, top_k: int | None) -> Task:
    return TASKS[name](loss, ap, vocabulary, top_k)
