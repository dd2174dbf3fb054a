"""The smallest noise for a budget."""

import dataclasses
import functools
import math
from collections.abc import Callable

from fedjax_dp import errors
from fedjax_dp.accounting.events import Adjacency, GaussianSteps, Sampling, WithoutReplacement
from fedjax_dp.accounting.gaussian import gaussian_delta
from fedjax_dp.accounting.pld import pld_epsilon
from fedjax_dp.accounting.tcdp import tcdp_epsilon, tcdp_noise_multiplier

ACCOUNTANTS: dict[str, Callable[[GaussianSteps, float], float]] = {"pld": pld_epsilon, "tcdp": tcdp_epsilon}
LARGEST_NOISE = 1e6
SMALLEST_NOISE = 0.05  # where delta alone covers the chance of being sampled, less noise would do, but nobody wants it
PRECISION = 2e-4  # relative width of the final bracket; its noisier end is returned


@functools.lru_cache(maxsize=65536)
def noise_multiplier_for(
    epsilon: float, delta: float, sampling: Sampling, adjacency: Adjacency, count: float, accountant: str = "pld"
) -> float:
    """Smallest noise multiplier whose `count` steps cost at most `epsilon` at `delta`, to 2e-4 on the private side.

    Units:  noise on the sum over the clip norm; `count` is rounded up, except by "tcdp", whose formula is continuous.
    Limits: zero steps need no noise; any other count gets at least about 0.05.
    Raises: ConfigurationError if the budget is unreachable or a condition of the accountant fails.
    """
    errors.require_positive("epsilon", epsilon)
    errors.require_in_unit_interval("delta", delta)
    errors.require_choice("accountant", accountant, ACCOUNTANTS)
    if count == 0:
        return 0.0
    if accountant == "tcdp":
        if not isinstance(sampling, WithoutReplacement):
            raise errors.refuse("batches", str(sampling), "fixed-size for accountant tcdp", "use accountant pld")
        return tcdp_noise_multiplier(epsilon, delta, sampling, count)
    steps = GaussianSteps(1.0, sampling, adjacency, math.ceil(count))

    def cost(noise: float) -> float:
        return pld_epsilon(dataclasses.replace(steps, noise_multiplier=noise), delta)

    # In log noise the cost is close to linear, so false position from a good guess needs a handful of evaluations.
    low, high = None, None
    noise = _first_guess(epsilon, delta, steps)
    for _ in range(60):
        value = cost(noise)
        if value <= epsilon:
            high = (noise, value)
        else:
            low = (noise, value)
        if low and high:
            if high[0] / low[0] - 1 < PRECISION:
                return high[0]
            noise = _between(low, high, epsilon)
        else:
            noise *= _stride(value, epsilon)
        if noise > LARGEST_NOISE:
            break
        if high and high[0] <= SMALLEST_NOISE:
            return high[0]
    raise errors.refuse(
        "epsilon", epsilon, f"reachable at delta {delta:g} with noise below {LARGEST_NOISE:g}", "raise epsilon or delta"
    )


def _first_guess(epsilon: float, delta: float, steps: GaussianSteps) -> float:
    """Noise of the central-limit Gaussian with mean shift q sqrt(count) sensitivity / noise."""
    low, high = 1e-6, 1e6
    while high / low > 1.001:  # relative noise of one full release that spends the budget
        middle = math.sqrt(low * high)
        low, high = (low, middle) if gaussian_delta(epsilon, middle) <= delta else (middle, high)
    guess = high * steps.sampling.rate * math.sqrt(steps.count)
    return max(guess, 0.3) * steps.adjacency.sensitivity


def _stride(value: float, epsilon: float) -> float:
    """Next factor while only one side is known: epsilon falls about as 1/noise, a little is added to step across."""
    if value == math.inf:
        return 2.0
    ratio = min(max(value / epsilon, 0.5), 2.0)
    return ratio * (1.002 if value > epsilon else 0.998)


def _between(low: tuple[float, float], high: tuple[float, float], epsilon: float) -> float:
    """Interpolate log epsilon against log noise, kept inside the bracket."""
    x, y = (math.log(low[0]), math.log(high[0])), (math.log(min(low[1], 1e6)), math.log(max(high[1], 1e-12)))
    share = min(max((y[0] - math.log(epsilon)) / max(y[0] - y[1], 1e-300), 0.05), 0.95)
    step = min(PRECISION / 3, 0.1 * (x[1] - x[0]))
    # a hair past the estimate, away from the nearer end, so that the bracket closes from both ends
    return math.exp(x[0] + share * (x[1] - x[0]) + (-step if share > 0.5 else step))
