"""The smallest noise for a budget."""

import functools
import math

from fedjax_dp import errors
from fedjax_dp.accounting.accountants import Accountant, accountant_named, epsilon_of
from fedjax_dp.accounting.events import AnyOf, Composed, Event, Past
from fedjax_dp.accounting.gaussian import gaussian_noise
from fedjax_dp.accounting.neighbours import NotCoveredError
from fedjax_dp.display import upward

LARGEST_NOISE = 1e6
SMALLEST_NOISE = 0.05  # where delta alone covers the chance of being sampled, less noise would do, but nobody wants it


class UnreachableError(errors.ConfigurationError):
    """No noise in the searched range meets the budget."""


def noise_multiplier_for(event: Event, epsilon: float, delta: float, accountant: str | Accountant = "pld") -> float:
    """Smallest noise multiplier with which `event` costs at most `epsilon` at `delta`.

    The noise that `event` states matters only if its parts differ: the answer is for the first part, and the others
    keep their ratio to it. Precision, limits and errors: as `noise_factor_for`.
    """
    own: float = next((step.noise_multiplier for step, _ in event.leaves()), 1.0)
    return own * noise_factor_for(event, epsilon, delta, accountant)


MOST_EPSILON = 1e6  # nats; far above what hides anything, and where losses still are numbers


def require_budget(what: str, epsilon: float, remedy: str = "") -> None:
    """Refuse a budget unless it is a positive epsilon for which noise can be calibrated."""
    errors.require_positive(what, epsilon, remedy)
    if epsilon > MOST_EPSILON:
        raise errors.refuse(what, epsilon, f"at most {MOST_EPSILON:,.0f}", remedy)


@functools.lru_cache(maxsize=65536)
def noise_factor_for(event: Event, epsilon: float, delta: float, accountant: str | Accountant = "pld") -> float:
    """Smallest factor on all the noise of `event` with which it costs at most `epsilon` at `delta`.

    The result meets the budget and is minimal within the accountant's precision (pld: 2e-4 relative, others 1e-6).
    Limits: an event without releases, or with fixed noise alone, needs no noise; any other gets a noise multiplier of
            at least about 0.05.
    `Past` events keep their noise: the other events get the noise with which all together meet the budget.
    Raises: ConfigurationError if the budget is unreachable or already spent; NotCoveredError if no noise makes the
            accountant's theorem apply.
    """
    require_budget("epsilon", epsilon)
    errors.require_delta(delta)
    chosen = accountant_named(accountant)
    if not any(True for _ in event.leaves()):
        return 0.0
    if any(step.noise_multiplier == 0 for step, _ in event.leaves()):
        raise errors.refuse("the event to calibrate", event, "noisy in every release", "give it noise multiplier 1")
    if isinstance(event, AnyOf) and event.times == 1:
        return max(noise_factor_for(part, epsilon, delta, chosen) for part in event.parts)
    if event.scaled(2.0) == event:
        if not (fixed := epsilon_of(event, delta, chosen)) <= epsilon:
            raise UnreachableError(f"epsilon must be at least {upward(fixed)}, as that noise is fixed, got {epsilon:g}")
        return 0.0
    first: float = next(step.noise_multiplier for step, _ in event.leaves())
    event = event.scaled(1 / first)
    refused: list[NotCoveredError] = []
    before = [part for part in event.parts if isinstance(part, Past)] if isinstance(event, Composed) else []
    spent = epsilon_of(Composed(tuple(before)), delta, chosen)
    if not epsilon > spent:
        raise UnreachableError(f"epsilon must be above the {upward(spent)} that was spent before, got {epsilon:g}")
    epsilon -= spent

    def cost(factor: float) -> float:
        """Above what was spent: close to a power of the noise, and what is searched by."""
        try:
            return epsilon_of(event.scaled(factor), delta, chosen) - spent
        except NotCoveredError as error:  # some theorems ask for enough noise
            refused.append(error)
            return math.inf

    # In log noise the cost is close to linear, so false position from a good guess needs a handful of evaluations.
    low, high = None, None
    noise = _first_guess(event, epsilon + spent, delta)
    for _ in range(80):
        value = cost(noise)
        if value <= epsilon:
            high = (noise, value)
        else:
            low = (noise, value)
        if low and high:
            if high[0] / low[0] - 1 < chosen.precision:
                return high[0] / first
            noise = _between(low, high, epsilon, chosen.precision)
        else:
            noise *= _stride(value, epsilon)
        if noise > LARGEST_NOISE:
            break
        if high and high[0] <= SMALLEST_NOISE:
            return high[0] / first
    if high:  # the curve jumps where a theorem begins to apply
        return high[0] / first
    if refused and cost(LARGEST_NOISE) == math.inf:
        raise refused[-1]
    raise UnreachableError(
        f"epsilon must be reachable at delta {delta:g} with noise below {LARGEST_NOISE:g}, got {epsilon + spent:g}; "
        "raise epsilon or delta"
    )


def _first_guess(event: Event, epsilon: float, delta: float) -> float:
    """Noise of the central-limit Gaussian, whose squared mean shift is the sum of (q / noise)^2 over all releases."""
    shift = sum(count * (step.sampling.rate / step.relative_noise) ** 2 for step, count in event.leaves())
    return min(max(gaussian_noise(epsilon, delta) * math.sqrt(shift), 0.3), LARGEST_NOISE)


def _stride(value: float, epsilon: float) -> float:
    """Next factor while only one side is known: epsilon falls about as 1/noise, a little is added to step across."""
    if value == math.inf:
        return 2.0
    ratio = min(max(value / epsilon, 0.5), 2.0)
    return ratio * (1.002 if value > epsilon else 0.998)


def _between(low: tuple[float, float], high: tuple[float, float], epsilon: float, precision: float) -> float:
    """Interpolate log epsilon against log noise, kept inside the bracket."""
    x, y = (math.log(low[0]), math.log(high[0])), (math.log(min(low[1], 1e6)), math.log(max(high[1], 1e-12)))
    share = min(max((y[0] - math.log(epsilon)) / max(y[0] - y[1], 1e-300), 0.05), 0.95)
    step = min(precision / 3, 0.1 * (x[1] - x[0]))
    # a hair past the estimate, away from the nearer end, so that the bracket closes from both ends
    return math.exp(x[0] + share * (x[1] - x[0]) + (-step if share > 0.5 else step))
