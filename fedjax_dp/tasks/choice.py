"""The task of data, and the loss that is chosen among those that it has."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from fedjax_dp import errors
from fedjax_dp.data.targets import OWN, Vocabulary, check_vocabulary
from fedjax_dp.tasks import losses
from fedjax_dp.tasks.shipped import Binary, Classes, MultiLabel, Own, Regression, Sequence
from fedjax_dp.tasks.task import Task

APS = ("exact", "buckets200")


class Aimed(Protocol):
    """Data, which name their task."""

    @property
    def task(self) -> str: ...

    @property
    def vocabulary(self) -> Vocabulary | None: ...


class Chosen(NamedTuple):
    """How a task is made, and the names of its losses, the usual one first."""

    losses: tuple[str, ...]
    make: Callable[[str, str, Vocabulary | None], Task]  # of the name of a loss, how AP is taken, and the vocabulary


def _sequence(loss: str, ap: str, vocabulary: Vocabulary | None) -> Task:
    known = check_vocabulary("vocabulary", vocabulary)
    return Sequence(known, losses.TokenCrossEntropy(known.pad, loss))


TASKS: dict[str, Chosen] = {
    "classes": Chosen((), lambda loss, ap, vocabulary: Classes()),
    "sequence": Chosen(("mean", "length"), _sequence),
    "multi_label": Chosen(
        ("mean", "sum"), lambda loss, ap, vocabulary: MultiLabel(losses.BinaryCrossEntropy(loss), ap)
    ),
    "binary": Chosen((), lambda loss, ap, vocabulary: Binary()),
    "regression": Chosen(
        ("squared", "huber"),
        lambda loss, ap, vocabulary: Regression(losses.huber if loss == "huber" else losses.squared_error),
    ),
    OWN: Chosen((), lambda loss, ap, vocabulary: Own()),
}
LOSSES = tuple(dict.fromkeys(loss for one in TASKS.values() for loss in one.losses))


def task_named(data: Aimed, loss: str | None = None, ap: str | None = None) -> Task:
    """The task that data name, with one of its losses by name; the first unless one is given.

    loss  `mean` or `length` of a `sequence`, `mean` or `sum` of `multi_label`, `squared` or `huber` of `regression`;
    ap    `exact` or `buckets200`, of `multi_label`.
    Raises: ConfigurationError for a loss that the task has not.
    """
    errors.require_choice("task", data.task, TASKS)
    known = TASKS[data.task].losses
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
    return TASKS[name].make(loss, ap, vocabulary)
