"""Attacks: scores of received messages, learnt on pilot trials and then frozen.

Messages are `(trials, times, roles, numbers)`; larger scores `(trials,)` mean that the canary is more likely present.
The bounds hold for any attack: a bad attack only proves less.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import scipy
from scipy.special import logsumexp

Score = Callable[[np.ndarray], np.ndarray]
LEAST_SPREAD = 1e-9  # relative to the size of a number; less is rounding
RIDGE = 1e-6  # on correlations; small, so that noise shared by two numbers cancels
PER_NUMBER = 4  # pilot trials for each learnt coefficient


class Attack(Protocol):
    """Learns a score from pilot trials of both worlds; None if it cannot learn one."""

    def learn(self, absent: np.ndarray, present: np.ndarray) -> Score | None: ...


class Standardizer(NamedTuple):
    """The mean and standard deviation of every number in the world without the canary."""

    centre: np.ndarray
    spread: np.ndarray
    informative: np.ndarray  # bool: whether a number depends on the run or the world

    @staticmethod
    def of(absent: np.ndarray, present: np.ndarray) -> "Standardizer":
        size = np.maximum(np.abs(absent).max(0), np.abs(present).max(0))
        spread = np.maximum(absent.std(0), LEAST_SPREAD * np.maximum(size, 1e-30))
        return Standardizer(
            absent.mean(0), spread, (absent.std(0) > 0) | (present.std(0) > 0) | (absent[0] != present[0])
        )

    def __call__(self, received: np.ndarray) -> np.ndarray:
        return np.where(self.informative, (received - self.centre) / self.spread, 0.0)


def _discriminant(absent: np.ndarray, present: np.ndarray, ridge: float) -> np.ndarray:
    """Fisher's linear discriminant of rows `(trials, numbers)`: the weights of the numbers."""
    shift = present.mean(0) - absent.mean(0)
    spread = np.atleast_2d((np.cov(absent, rowvar=False) + np.cov(present, rowvar=False)) / 2)
    unit = np.sqrt(np.maximum(np.diag(spread), 1e-30))
    alike = spread / np.outer(unit, unit)
    alike[np.diag_indices_from(alike)] = 1 + ridge
    return np.linalg.solve(alike, shift / unit) / unit


class SumOverTimes(NamedTuple):
    """Sums standardised numbers over times and weights the sums by Fisher's discriminant.

    This is the likelihood ratio for a canary in every batch and independent Gaussian noise.
    times     `(times,)` bool: when the canary may have an effect;
    short     how many numbers are used; None: all, if there are enough trials to learn from;
    changes   messages are changes of client state, so running sums reveal more.
    """

    times: np.ndarray
    short: int | None = None
    changes: bool = False

    def learn(self, absent: np.ndarray, present: np.ndarray) -> Score | None:
        def select(received: np.ndarray) -> np.ndarray:
            received = received[..., : self.short]
            numbers = np.concatenate([received, received.cumsum(1)], -1) if self.changes else received
            return numbers[:, self.times]

        scale = Standardizer.of(select(absent), select(present))
        if scale.informative.any(0).sum() * PER_NUMBER > len(absent) + len(present):
            return None

        def sum_up(received: np.ndarray) -> np.ndarray:
            return scale(select(received)).sum(1).reshape(len(received), -1)

        weights = _discriminant(sum_up(absent), sum_up(present), RIDGE)
        return lambda received: sum_up(received) @ weights


class WeightedTimes(NamedTuple):
    """Weights all times separately by Fisher's discriminant, which detects repeated or missing noise."""

    short: int | None = None
    ridge: float = RIDGE

    def learn(self, absent: np.ndarray, present: np.ndarray) -> Score | None:
        scale = Standardizer.of(absent[..., : self.short], present[..., : self.short])
        count = int(scale.informative.sum())
        if not 0 < count <= (len(absent) + len(present)) / PER_NUMBER:
            return None

        def flat(received: np.ndarray) -> np.ndarray:
            return scale(received[..., : self.short])[:, scale.informative]

        weights = _discriminant(flat(absent), flat(present), self.ridge)
        return lambda received: flat(received) @ weights


class LikelihoodRatio(NamedTuple):
    """The likelihood ratio if a record joins an unknown subset of the batches between two messages.

    At each time it joins a binomial (`steps`, `rate`) number of batches with equal effects; the noise is Gaussian.
    times  `(times,)` bool: when the canary may have an effect.
    """

    times: np.ndarray
    short: int | None
    steps: int
    rate: float

    def learn(self, absent: np.ndarray, present: np.ndarray) -> Score | None:
        scale = Standardizer.of(absent[..., : self.short], present[..., : self.short])

        def by_time(received: np.ndarray) -> np.ndarray:
            return scale(received[..., : self.short]).reshape(*received.shape[:2], -1)[:, self.times]

        low, high = by_time(absent), by_time(present)
        numbers = low.shape[-1]
        weights = _discriminant(low.reshape(-1, numbers), high.reshape(-1, numbers), RIDGE)
        line = [low @ weights, high @ weights]
        centre, spread = line[0].mean(), line[0].std()
        if not spread > 0:
            return None
        each = (line[1].mean() - centre) / spread / (self.steps * self.rate)
        hits = np.arange(self.steps + 1)
        weight = scipy.stats.binom(self.steps, self.rate).logpmf(hits)
        hits, weight = hits[weight > -40], weight[weight > -40]  # the others never happen

        def score(received: np.ndarray) -> np.ndarray:
            z = (by_time(received) @ weights - centre) / spread
            total = np.zeros(len(z))
            for column in z.T:  # times
                total += logsumexp(weight + np.outer(column, hits * each) - (hits * each) ** 2 / 2, axis=1)
            return total

        return score
