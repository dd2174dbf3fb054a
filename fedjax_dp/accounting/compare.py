"""All accountants applied to one event, with a reason where one has no theorem for it."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from fedjax_dp.accounting.accountants import ACCOUNTANTS, ATTAINED, Accountant, about_at, epsilon_of
from fedjax_dp.accounting.calibrate import UnreachableError, noise_factor_for
from fedjax_dp.accounting.events import Event
from fedjax_dp.accounting.neighbours import NotCoveredError


@dataclasses.dataclass(frozen=True)
class Answer:
    """The result of one accountant: a number, or None and the reason."""

    accountant: str
    about: str
    number: float | None
    reason: str | None = None

    def to_dict(self, name: str) -> dict[str, Any]:
        """For JSON, the number under `name`."""
        return {"accountant": self.accountant, name: self.number, "reason": self.reason, "about": self.about}


def compare_epsilons(event: Event, delta: float) -> list[Answer]:
    """Epsilon of `event` at `delta` by every accountant."""
    answers = [_answer(accountant, functools.partial(epsilon_of, event, delta)) for accountant in ACCOUNTANTS.values()]
    return [dataclasses.replace(answer, about=about_at(answer.accountant, delta)) for answer in answers]


def lower_bound(event: Event, delta: float) -> Answer:
    """The epsilon that a real pair of neighbours attains: no valid accountant reports less."""
    return _answer(ATTAINED, functools.partial(epsilon_of, event, delta))


def compare_noise(event: Event, epsilon: float, delta: float) -> list[Answer]:
    """The smallest factor on the noise of `event` for the budget, by every accountant.

    If clients have noise multiplier 1, this is the noise multiplier of a client in every view.
    """
    return [
        _answer(accountant, functools.partial(noise_factor_for, event, epsilon, delta))
        for accountant in ACCOUNTANTS.values()
    ]


def epsilon_curves(
    events: Callable[[Any], Event], points: Sequence[Any], delta: float
) -> dict[str, tuple[list[Any], list[float]]]:
    """Epsilon at each of `points` (steps or noise multipliers), for every accountant that covers the events."""
    curves: dict[str, tuple[list[Any], list[float]]] = {}
    for accountant in (*ACCOUNTANTS.values(), ATTAINED):
        for point in points:
            answer = _answer(accountant, functools.partial(epsilon_of, events(point), delta))
            if answer.number is not None:
                x, y = curves.setdefault(accountant.name, ([], []))
                x.append(point)
                y.append(answer.number)
    return curves


def _answer(accountant: Accountant, ask: Callable[[Accountant], float]) -> Answer:
    try:
        number = ask(accountant)
    except (NotCoveredError, UnreachableError) as error:
        return Answer(accountant.name, accountant.about, None, str(error))
    if math.isinf(number):
        return Answer(accountant.name, accountant.about, None, "losses too large, or delta too small, to be resolved")
    return Answer(accountant.name, accountant.about, number)
