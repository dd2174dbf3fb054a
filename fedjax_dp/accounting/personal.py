"""Sampling probabilities for clients with individual privacy budgets (acs_pldp).

A client with a small budget adds much noise, so it should be drawn less often than its gradient alone suggests.
"""

import math

import numpy as np
import scipy

from fedjax_dp import errors

RAREST = 1e-6  # of the uniform probability: nobody is drawn less often, so no weight p / (K q) is without bound
NEWTON_STEPS = 6  # from a relative error below 0.27 to rounding: each step leaves less than 1.5 error^2


def sampling_probabilities(
    shares: np.ndarray, gradient_norms: np.ndarray, noise_terms: np.ndarray, draws: int, strength: float = 1.0
) -> np.ndarray:
    """The probabilities q that minimise the sum over clients of p^2 G^2 / q + strength p^2 B^2 / sqrt(q).

    Shapes: p = `shares`, G = `gradient_norms` and B = `noise_terms` (see `noise_terms`) are `(N,)`; returns `(N,)`,
            which sums to 1 within 1e-12, each q at most 1 / draws and at least 1e-6 / N.
    Limits: strength 0 -> q ~ p G; all G zero -> q ~ (p B)^(4/3); draws = N -> 1 / N.
    Zeros:  for a client with p G = p B = 0 every q is optimal: it gets the least probability, or an equal part of the
            rest if all others are at 1 / draws. Refusal would stop a run whose gradients vanish; q = 0 would bias it.
    Raises: ConfigurationError if draws > N, or for numbers that are negative or not finite.
    Source: acs_pldp's sampling problem, by the conditions of Karush, Kuhn, Tucker: each q is 1 / draws or the root of
            p^2 G^2 / q^2 + (strength / 2) p^2 B^2 / q^(3/2) = nu, and nu makes the sum 1. It increases in p G and in
            p B (Theorem 3).

    >>> sampling_probabilities(np.array([0.2, 0.3, 0.5]), np.array([1.0, 2.0, 4.0]), np.zeros(3), 2).round(6).tolist()
    [0.125, 0.375, 0.5]
    """
    shares, terms = _numbers("shares", shares), _numbers("noise_terms", noise_terms)
    gradient_norms = _numbers("gradient_norms", gradient_norms)
    errors.require_not_negative("strength", strength)
    count = len(shares)
    if not len(gradient_norms) == len(terms) == count:
        raise errors.refuse(
            "shares, gradient_norms and noise_terms", f"{count}, {len(gradient_norms)} and {len(terms)}", "equally many"
        )
    errors.require_integer("draws", draws, 1, count, "no client's probability may exceed 1 / draws")
    with np.errstate(divide="ignore"):
        log_gradient = 2 * (np.log(shares) + np.log(gradient_norms))
        log_noise = 2 * (np.log(shares) + np.log(terms)) + np.log(strength / 2)
    care = np.maximum(log_gradient, log_noise) > -np.inf
    log_gradient, log_noise, caring = log_gradient[care], log_noise[care], int(care.sum())
    least, most = RAREST / count, 1 / draws
    chosen = np.full(count, least)
    if caring < draws or draws == count:  # all who care get the most, and the others what is left
        chosen[care] = most
        chosen[~care] = (1 - caring * most) / max(count - caring, 1)
        return chosen

    def chosen_at(log_multiplier: float) -> np.ndarray:
        chosen[care] = np.clip(_roots(log_gradient, log_noise, log_multiplier), least, most)
        return chosen

    low = float(_log_slopes(log_gradient, log_noise, 1 / caring).min()) - 1e-9  # sum above 1
    high = float(_log_slopes(log_gradient, log_noise, 0.5 / count).max())  # sum below 1
    return chosen_at(scipy.optimize.brentq(lambda level: chosen_at(level).sum() - 1, low, high, xtol=1e-14, rtol=1e-14))


def _log_slopes(log_gradient: np.ndarray, log_noise: np.ndarray, probability: float) -> np.ndarray:
    """Logarithm of the multiplier at which each client gets `probability`."""
    inverse = -math.log(probability)
    return np.logaddexp(log_gradient + 2 * inverse, log_noise + 1.5 * inverse)


def _roots(log_gradient: np.ndarray, log_noise: np.ndarray, log_multiplier: float) -> np.ndarray:
    """The q of each client at a multiplier: Newton's method on 1 / sqrt(q), in units of one that is too large."""
    log_unit = np.minimum((log_multiplier - log_gradient) / 4, (log_multiplier - log_noise) / 3)
    gradient = np.exp(log_gradient + 4 * log_unit - log_multiplier)
    noise = np.exp(log_noise + 3 * log_unit - log_multiplier)
    t = np.ones_like(log_unit)
    for _ in range(NEWTON_STEPS):  # gradient t^4 + noise t^3 = 1 is convex, so t decreases to the root
        t -= ((gradient * t + noise) * t**2 * t - 1) / ((4 * gradient * t + 3 * noise) * t**2)
    return np.exp(np.minimum(-2 * log_unit, 0.0)) / t**2


def noise_terms(epsilons: np.ndarray, rates: np.ndarray, draws: int, rounds: int, delta: float) -> np.ndarray:
    """B = sqrt(ln(1/d') ln(1/d'') ln(1/d''')) s / epsilon per client, d' = delta / (2 K R), d'' = d''' = delta / 4.

    Shapes: `epsilons` (budgets, in nats) and `rates` s (batch size over records) are `(N,)` or numbers; returns `(N,)`.
    Limits: an infinite budget has no noise term. Source: acs_pldp, Theorem 1; K R is draws times rounds.
    """
    epsilons, rates = np.atleast_1d(np.asarray(epsilons, float)), _numbers("rates", np.atleast_1d(rates))
    if not np.all(epsilons > 0):
        raise errors.refuse("epsilons", float(epsilons[~(epsilons > 0)][0]), "positive")
    errors.require_count("draws", draws)
    errors.require_count("rounds", rounds)
    errors.require_delta(delta)
    inner, outer = math.log(2 * draws * rounds / delta), math.log(4 / delta)
    return math.sqrt(inner) * outer * rates / epsilons


def _numbers(what: str, values: np.ndarray) -> np.ndarray:
    """The values as an array; refuses what is negative or not finite, and names the first such client."""
    values = np.asarray(values, float)
    if values.ndim != 1 or not len(values):
        raise errors.refuse(what, f"an array of shape {values.shape}", "one number per client")
    wrong = np.flatnonzero(~((values >= 0) & np.isfinite(values)))
    if len(wrong):
        raise errors.refuse(what, f"{values[wrong[0]]} for client {wrong[0]}", "zero or positive, and finite")
    return values
