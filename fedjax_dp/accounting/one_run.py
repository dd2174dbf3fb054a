"""Auditing with a single run: each of many canaries is included by a fair coin, and an attacker guesses the coins.

A canary is a record or a client; the coins are independent, and the adjacency is inclusion or exclusion. After the run
the attacker guesses for a number of canaries, fixed beforehand, whether they were included, and abstains for the
others. It may choose them by everything that the run released. The guesses are not independent, so a binomial bound
needs the theorems below. They are weaker than many runs: a single draw of noise hides all canaries.

The number of guesses is part of the experiment: fix it before the scores are known, for instance by `choose_guesses`.
To try K numbers and keep the best, divide the significance by K.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import scipy
from scipy.special import expit, ndtr, ndtri

from fedjax_dp import errors
from fedjax_dp.accounting.trade_offs import TradeOff

MOST_EPSILON, MOST_MU = 100.0, 30.0
TRIED = 24  # numbers of guesses that are compared


def one_run_epsilon(correct: int, guesses: int, canaries: int, delta: float, significance: float = 0.05) -> float:
    """Lower bound on the mechanism's epsilon at `delta` with confidence 1 - `significance`; 0 if nothing follows.

    Adjacency: in or out, as the canaries. Errors: 1e-9 absolute. Limits: at most 100.
    Raises:    ConfigurationError unless 0 <= correct <= guesses <= canaries.
    Source:    Steinke, Nasr, Jagielski 2023, arXiv:2305.08846, Theorem 5.2: the chance of so many right guesses is at
               most P(B >= v) + 2 m delta max_i P(v > B >= v - i) / i with B binomial of success rate
               1 / (1 + e^-epsilon).
    """
    _check(correct, guesses, canaries, significance)
    errors.require_delta(delta)
    fewer = np.arange(1, correct + 1)

    def excess(epsilon: float) -> float:
        law = scipy.stats.binom(guesses, expit(epsilon))
        tail = float(law.sf(correct - 1))
        short = float(np.max((law.sf(correct - 1 - fewer) - tail) / fewer, initial=0.0))
        return tail + 2 * canaries * delta * short - significance

    if excess(0.0) >= 0:
        return 0.0
    if not excess(MOST_EPSILON) > 0:
        return MOST_EPSILON
    return float(scipy.optimize.brentq(excess, 0.0, MOST_EPSILON, xtol=1e-9))


def one_run_contradicts(correct: int, guesses: int, canaries: int, curve: TradeOff, significance: float = 0.05) -> bool:
    """Whether under the trade-off curve `curve` so many right guesses have a probability below `significance`.

    Proof, after the source, with p_k the chance of k right guesses, and A_i, B_i the chances that a canary drawn at
    random is guessed rightly (wrongly) and that at least i guesses are right: A_i = sum over k >= i of k p_k / m, and
    B_i the same with guesses - k for k. Fix all other coins and a guess v; the event that the canary is guessed v and
    at least i others rightly does not look at its coin. It has some chance x if the coin is v, then the guess is right
    and at least i + 1 are, and if the coin is not v it has chance at least f(1 - x), then the guess is wrong and at
    least i are right. f is convex, so the mean over canaries, coins and guesses gives B_i >= f(1 - A_(i+1)).
    Suppose P(at least `correct`) is `significance` or more. Move all mass above `correct` there, then its excess over
    the significance one down, then what p_i has beyond the least that B_i >= f(1 - A_(i+1)) asks for one further down,
    and so on: A falls and B grows each time, hence every inequality stays true. So the least masses, which the
    recursion finds, add up to at most 1. If they do not, the chance was smaller.
    Raises: ConfigurationError unless 0 <= correct <= guesses <= canaries.
    Source: Mahloujifar, Melis, Chaudhuri 2025, arXiv:2410.22235, the recursion of their audit with abstention
            (deviations: none; curves are symmetric here, so the inverse of 1 - f at x is f(1 - x)).
    """
    _check(correct, guesses, canaries, significance)
    return _contradicts(correct, guesses, canaries, lambda x: float(curve(max(1 - x, 0.0))), significance)


def one_run_mu(correct: int, guesses: int, canaries: int, significance: float = 0.05) -> float:
    """Lower bound on mu of Gaussian differential privacy from right guesses, with confidence 1 - `significance`.

    A mechanism that is mu-GDP under in-or-out has at least this mu; 0 proves nothing.
    Errors: 1e-6 below, absolute. Limits: 30. Raises and Source: as `one_run_contradicts`.
    """
    _check(correct, guesses, canaries, significance)

    def refutes(mu: float) -> bool:
        return _contradicts(correct, guesses, canaries, lambda x: float(ndtr(ndtri(x) - mu)), significance)

    if not refutes(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < MOST_MU and refutes(high):
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if refutes(middle) else (low, middle)
    return low


@functools.lru_cache(maxsize=1024)
def choose_guesses(canaries: int, mu: float, significance: float = 0.05) -> int:
    """The number of guesses with the largest expected `one_run_mu` if scores are ideal under mu-GDP.

    Ideal scores are independent, N(0, 1) for canaries that are out and N(mu, 1) for those that are in. The attacker
    guesses "in" for the largest scores and "out" for equally many of the smallest. The choice uses nothing of the run,
    so it needs no correction. The number is even.
    Raises: ConfigurationError for fewer than 2 canaries or a mu that is not positive.
    """
    errors.require_integer("canaries", canaries, 2, 10**9)
    errors.require_positive("mu", mu)
    errors.require_in_unit_interval("significance", significance)
    numbers = np.unique(2 * np.round(np.geomspace(min(5, canaries // 2), canaries // 2, TRIED)).astype(int))

    def evidence(guesses: int) -> float:
        share = guesses / canaries / 2  # of the canaries, above the upper cut

        def excess(cut: float) -> float:
            return (ndtr(-cut) + ndtr(mu - cut)) / 2 - share

        cut = scipy.optimize.brentq(excess, mu / 2 - 1e-9, mu + 40.0)
        right = ndtr(mu - cut) / (ndtr(-cut) + ndtr(mu - cut))
        return one_run_mu(math.floor(guesses * right), guesses, canaries, significance)

    return int(max(numbers.tolist(), key=evidence))


def _check(correct: int, guesses: int, canaries: int, significance: float) -> None:
    errors.require_count("canaries", canaries)
    errors.require_integer(f"guesses about {canaries} canaries", guesses, 1, canaries)
    errors.require_integer(f"correct ones of {guesses} guesses", correct, 0, guesses)
    errors.require_in_unit_interval("significance", significance)


def _contradicts(
    correct: int, guesses: int, canaries: int, least_wrong: Callable[[float], float], significance: float
) -> bool:
    """The recursion of `one_run_contradicts`; `least_wrong` is x -> f(1 - x)."""
    right, wrong = significance * correct / canaries, significance * (guesses - correct) / canaries
    whole = guesses / canaries
    for count in range(correct - 1, -1, -1):
        more = least_wrong(right) - wrong
        if more <= 0:  # no mass is needed here, nor further down
            break
        right, wrong = right + count / (guesses - count) * more, wrong + more
        if right + wrong > whole:
            return True
    return right + wrong > whole
