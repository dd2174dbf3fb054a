"""Results of examinations: a report for each law that holds, and a one-line AssertionError if one does not.

Each check states how often it is wrong, in both directions.
"""

import contextlib
import contextvars
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy

FALSE_ALARM = 1e-6  # probability that an assertion fails though the law holds
MISSED = 1e-3  # probability that a check misses the deviation that it names


class CheckReport(NamedTuple):
    """Report of a law that holds, with its measurement."""

    law: str
    measured: str
    wanted: str
    certain: str  # how often the check would be mistaken, either way

    def __str__(self) -> str:
        return f"{self.law}: {self.measured}, wanted {self.wanted} ({self.certain})"


_RECORD: contextvars.ContextVar[list[CheckReport] | None] = contextvars.ContextVar("reports", default=None)


@contextlib.contextmanager
def record_reports() -> Iterator[list[CheckReport]]:
    """Collect the reports of all checks inside that hold, in order."""
    reports: list[CheckReport] = []
    token = _RECORD.set(reports)
    try:
        yield reports
    finally:
        _RECORD.reset(token)


def require(holds: Any, law: str, measured: str, wanted: str, certain: str = "exact") -> None:
    """Add a report where `record_reports` collects them; raise a one-line AssertionError if the law does not hold."""
    if not bool(holds):
        raise AssertionError(f"{law}: measured {measured}, wanted {wanted}; {certain}")
    reports = _RECORD.get()
    if reports is not None:
        reports.append(CheckReport(law, measured, wanted, certain))


def require_at_most(law: str, measured: Any, most: Any, certain: str = "exact") -> None:
    """`require` that a number is at most a bound."""
    shown, bound = (f"{a}" if isinstance(a, int | np.integer) else f"{a:.4g}" for a in (measured, most))
    require(measured <= most, law, shown, f"at most {bound}", certain)


def require_so(holds: Any, law: str, otherwise: str, wanted: str, certain: str = "exact") -> None:
    """`require` for a yes-or-no law: if it holds, the measurement is what was wanted."""
    require(holds, law, wanted if bool(holds) else otherwise, wanted, certain)


def require_usual(law: str, deviates: Any, wanted: str, measured: str = "", seen: str = "", slack: float = 1.0) -> None:
    """`require` that no normal deviate is further from 0 than the largest of so many is by chance.

    measured, seen  descriptions of the measurement, by default the largest deviate, and of what would be missed;
    slack           factor on the limit, for deviates that are only roughly normal.
    """
    worst, tests = largest_deviate(deviates), np.size(deviates)
    measured = measured or f"{worst:.3g} standard errors off"
    require(abs(worst) < slack * limit(tests), law, measured, wanted, f"{certainty(tests)}{seen}")


def certainty(tests: int = 1) -> str:
    """How often a correct program fails a check of `tests` numbers, in words."""
    return f"false alarm {FALSE_ALARM:g} over {tests} number{'s' if tests > 1 else ''}"


def limit(tests: int = 1) -> float:
    """The two-sided normal deviate that the largest of `tests` exceeds with probability at most FALSE_ALARM."""
    return float(scipy.stats.norm.isf(FALSE_ALARM / 2 / max(tests, 1)))


def detectable_deviation(standard_error: float, tests: int = 1) -> float:
    """The smallest deviation of one number that is missed with probability at most MISSED."""
    return (limit(tests) + float(scipy.stats.norm.isf(MISSED))) * standard_error


def largest_deviate(deviates: Any) -> float:
    """The deviate furthest from 0; NaN counts as infinite."""
    deviates = np.asarray(deviates, float).ravel()
    return math.inf if np.isnan(deviates).any() else float(deviates[np.argmax(np.abs(deviates))])


def variance_deviate(values: np.ndarray, axis: Any = None) -> np.ndarray:
    """Normal deviates of sums of squares of supposed standard normals, along `axis`; exact at the tails."""
    squares = np.sum(np.asarray(values, float) ** 2, axis=axis)
    return square_deviate(squares, values.size / max(np.size(squares), 1))


def square_deviate(squares: Any, count: float) -> np.ndarray:
    """Normal deviates of sums of squares of `count` standard normals each; exact at the tails."""
    low, high = scipy.stats.chi2.logcdf(squares, count), scipy.stats.chi2.logsf(squares, count)
    tail = np.exp(np.minimum(low, high))
    return np.where(squares < count, -1, 1) * scipy.stats.norm.isf(np.maximum(tail, 1e-300))


def count_deviate(counts: Any, draws: Any, chance: Any) -> np.ndarray:
    """Normal deviates of binomial counts; exact at the tails, infinite where the count is impossible."""
    counts, chance = np.asarray(counts, float), np.asarray(chance, float)
    low, high = scipy.stats.binom.cdf(counts, draws, chance), scipy.stats.binom.sf(counts - 1, draws, chance)
    tail = np.minimum(low, high)
    with np.errstate(divide="ignore"):
        away = np.where(tail > 0, scipy.stats.norm.isf(np.minimum(tail, 0.5)), np.inf)
    return np.where(low < high, -away, away)
