"""Laws for the number of trials of a random search that publishes only the best trial, and their cost.

Source: Papernot and Steinke 2022, "Hyperparameter tuning with Renyi differential privacy", arXiv:2110.03620.
"""

import dataclasses
import math

import numpy as np
import scipy
from scipy.special import exprel

from fedjax_dp import errors

LEAST_GAMMA, MOST_ETA = 1e-12, 1e6  # beyond them floats do not resolve the law


@dataclasses.dataclass(frozen=True)
class PoissonTrials:
    """A Poisson number of trials with this mean. If it is 0, something independent of the data is published.

    It suits a few trials; from about ten on, negative binomial laws of the same mean cost less.
    """

    mean: float

    def __post_init__(self) -> None:
        errors.require_positive("the mean number of trials", self.mean)

    def __str__(self) -> str:
        return f"Poisson with mean {self.mean:g}"

    def draw(self, rng: np.random.Generator) -> int:
        """A number of trials, possibly 0."""
        return int(rng.poisson(self.mean))

    def renyi(self, orders: np.ndarray, divergences: np.ndarray) -> np.ndarray:
        """Renyi divergence of the published best trial, per order, from that of one trial; in nats.

        Shapes:    both `(A,)`, orders above 1 and increasing; divergences hold in both directions; returns `(A,)`.
        Source:    Papernot and Steinke 2022, Theorem 6, where d is the delta of one trial at log(1 + 1/(a-1)) and
                   G = exp(mean (a-1) d): the moment M = exp((a-1) D) grows to mean G M. That ignores the case of no
                   trial, and is too small for means below 1. Here it grows to 1 + mean G (M - 1), which holds for every
                   mean and is not larger if mean G >= 1; the proof is in the code.
        Raises:    ConfigurationError for orders or divergences that are not as above.
        """
        # Q and P: laws of one trial on neighbours; t(y) and s(y): their masses above y, ties broken at random; m: the
        # mean. The best trial has density m Q(y) exp(-m t(y)); nothing is tried with probability exp(-m), on either.
        # So its moment is exp(-m) + m * integral of h exp(-m f) with h = Q^a P^(1-a) and f = a t - (a-1) s. From the
        # top down f goes from 0 to 1 by a Q - (a-1) P, which is at most h (weighted means), and exp(-m f) is at most G,
        # as s <= t a / (a-1) + d. Hence m * integral of h (G - exp(-m f)) is at least the same integral of df, that is
        # m G - 1 + exp(-m), and the moment is at most exp(-m) + m G M - (m G - 1 + exp(-m)) = 1 + m G (M - 1).
        orders, divergences = _checked_curve(orders, divergences)
        near = np.log1p(1 / (orders - 1))
        log_gain = math.log(self.mean) + self.mean * (orders - 1) * _deltas(orders, divergences, near)
        with np.errstate(divide="ignore"):
            moment = (orders - 1) * divergences
            log_excess = moment + np.log(-np.expm1(-moment))  # log(e^moment - 1)
        return _monotone(np.logaddexp(0.0, log_gain + log_excess) / (orders - 1))


@dataclasses.dataclass(frozen=True)
class NegativeBinomialTrials:
    """The number of trials is k >= 1 with probability proportional to (1 - gamma)^k (1 + eta) ... (k - 1 + eta) / k!.

    eta    above -1: 1 is the geometric law, 0 the logarithmic law; a smaller eta has a longer tail and costs less.
    gamma  in (0, 1]: smaller means more trials; 1 means a single trial, at its own cost.
    Source: Papernot and Steinke 2022, Definition 1. Errors: gamma below 1e-12 and eta above 1e6 are refused.
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not -1 < self.eta <= MOST_ETA:
            raise errors.refuse("eta", self.eta, f"above -1 and at most {MOST_ETA:g}", "1 is the geometric law")
        if not LEAST_GAMMA <= self.gamma <= 1:
            raise errors.refuse("gamma", self.gamma, f"from {LEAST_GAMMA:g} to 1", "use of_mean to choose it")

    @classmethod
    def of_mean(cls, mean: float, eta: float = 1.0) -> "NegativeBinomialTrials":
        """The law with this eta and expected number of trials, which is at least 1.

        Raises: ConfigurationError if no gamma from 1e-12 to 1 has this mean.
        """
        most = cls(eta, LEAST_GAMMA).mean
        if not 1 <= mean <= most:
            remedy = "use a larger eta" if mean > most else ""
            raise errors.refuse("the mean number of trials", mean, f"from 1 to {most:.3g} for eta {eta:g}", remedy)
        if mean == 1:
            return cls(eta, 1.0)
        log_mean, span = math.log(mean), -math.log(LEAST_GAMMA)
        rarity = scipy.optimize.brentq(
            lambda x: _log_mean(eta, x) - log_mean, 0.0, span * (1 + 1e-12), xtol=1e-15, rtol=1e-14
        )
        return cls(eta, max(math.exp(-rarity), LEAST_GAMMA))

    @property
    def mean(self) -> float:
        """Expected number of trials."""
        return math.exp(_log_mean(self.eta, -math.log(self.gamma)))

    def __str__(self) -> str:
        name = {0.0: "logarithmic", 1.0: "geometric"}.get(self.eta, f"negative binomial (eta {self.eta:g})")
        return f"{name} with mean {self.mean:.4g}"

    def draw(self, rng: np.random.Generator) -> int:
        """A number of trials, at least 1.

        Rejection sampling: propose 1 + a negative binomial number, where k is k times as likely; accept it with
        probability 1/k.
        """
        while True:
            count = 1 + int(rng.negative_binomial(1 + self.eta, self.gamma))
            if rng.random() * count < 1:
                return count

    def renyi(self, orders: np.ndarray, divergences: np.ndarray) -> np.ndarray:
        """Renyi divergence of the published best trial, per order, from that of one trial; in nats.

        Shapes:    both `(A,)`, orders above 1 and increasing; divergences hold in both directions; returns `(A,)`.
        Limits:    gamma 1 -> the divergences of one trial.
        Source:    Papernot and Steinke 2022, Theorem 2, with its second order the best of the given ones and of 1.
        Raises:    ConfigurationError for orders or divergences that are not as above.
        """
        orders, divergences = _checked_curve(orders, divergences)
        rarity = -math.log(self.gamma)
        second = min(float(np.min((1 - 1 / orders) * divergences + rarity / orders)), rarity)
        more = _log_mean(self.eta, rarity) / (orders - 1)
        return _monotone(divergences + (1 + self.eta) * second + more)


Trials = PoissonTrials | NegativeBinomialTrials


def _log_mean(eta: float, rarity: float) -> float:
    """Logarithm of eta (1/gamma - 1) / (1 - gamma^eta), with rarity = log(1/gamma); smooth where eta or rarity is 0."""
    return float(np.log(exprel(rarity)) - np.log(exprel(-eta * rarity)))


def _checked_curve(orders: np.ndarray, divergences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    orders, divergences = np.asarray(orders, float), np.asarray(divergences, float)
    if orders.ndim != 1 or orders.size == 0 or orders.shape != divergences.shape:
        raise errors.refuse("orders and divergences", f"{orders.shape} and {divergences.shape}", "of one shape (A,)")
    if not (np.all(orders > 1) and np.all(orders < math.inf)):
        raise errors.refuse("Renyi orders", f"{orders.min():g} to {orders.max():g}", "above 1 and finite")
    if not np.all(np.diff(orders) > 0):
        raise errors.refuse("Renyi orders", "unsorted or equal ones", "increasing", "sort orders and divergences alike")
    if not np.all(divergences >= 0):
        raise errors.refuse("Renyi divergences", divergences.min(), "zero or positive")
    return orders, divergences


def _monotone(divergences: np.ndarray) -> np.ndarray:
    """A divergence is at most that of any higher order."""
    return np.minimum.accumulate(divergences[::-1])[::-1]


def _deltas(orders: np.ndarray, divergences: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
    """Delta at each epsilon: the best order's conversion, or what bounds the total variation; `(E,)`.

    Source: Canonne, Kamath, Steinke 2020, arXiv:2004.00010, Proposition 12; Bretagnolle and Huber 1979.
    """
    a = orders
    logs = (a - 1) * (divergences - epsilons[:, None]) + a * np.log1p(-1 / a) - np.log(a - 1)
    variation = math.sqrt(-math.expm1(-float(divergences.min())))
    return np.minimum(np.exp(np.minimum(logs.min(axis=1), 0.0)), variation)
