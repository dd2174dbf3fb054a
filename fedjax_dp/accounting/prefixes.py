"""Epsilon during a run: of its first rounds, at any time, and the last round within a budget.

*Planned* epsilon is that of a run which was planned to stop after round t. *At any time* is an odometer: a bound that
holds in all rounds simultaneously, so that results may decide when to stop. The second is never below the first.
"""

import dataclasses
import math
from collections.abc import Callable

from fedjax_dp import errors
from fedjax_dp.accounting.accountants import total
from fedjax_dp.accounting.events import Event
from fedjax_dp.accounting.gaussian import Gdp


def last_round(epsilon_after: Callable[[int], float], rounds: int, budget: float) -> int:
    """The largest T <= `rounds` such that the first T rounds cost at most `budget`; 0 if the first costs more.

    epsilon_after  epsilon of the first t rounds, non-decreasing in t; called about log2(rounds) times.
    No filter is needed: noise, rates and steps of all rounds are known, so T depends on no data.
    """
    errors.require_count("rounds", rounds)
    errors.require_positive("budget", budget)
    if epsilon_after(rounds) <= budget:
        return rounds
    within, beyond = 0, rounds
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if epsilon_after(middle) <= budget:
            within = middle
        else:
            beyond = middle
    return within


@dataclasses.dataclass(frozen=True)
class GaussianOdometer:
    """Epsilon at any time of unsampled Gaussian noise, tight where V = `final_squared_mu`.

    V is the sum of mu^2 of the releases so far, each of which may be chosen from earlier ones. The privacy loss L makes
    exp(2 b (L - V/2) - 2 b^2 V) a supermartingale. By Ville's inequality L stays below a + (b + 1/2) V at all times
    with probability 1 - exp(-2 a b) = 1 - delta. a and b are optimal for V = `final_squared_mu`, where the bound is
    rho + 2 sqrt(rho ln(1/delta)) with rho = V/2.
    Source: derived here; odometers: Rogers, Roth, Ullman, Vadhan 2016, arXiv:1605.08294, Definition 3.3; losses as
            supermartingales: Whitehouse, Ramdas, Rogers, Wu 2023, arXiv:2203.05481.
    """

    final_squared_mu: float  # the sum of mu^2 that is expected in the end, fixed beforehand
    delta: float

    def __post_init__(self) -> None:
        errors.require_positive("final_squared_mu", self.final_squared_mu)
        errors.require_delta(self.delta)

    def epsilon(self, spent: float) -> float:
        """Epsilon if mu^2 of the releases so far adds up to `spent`; 0 without releases.

        >>> odometer = GaussianOdometer(final_squared_mu=0.25, delta=1e-5)
        >>> round(odometer.epsilon(0.25), 4), round(odometer.epsilon(0.05), 4)
        (2.5243, 1.4646)
        """
        errors.require_not_negative("spent", spent)
        if spent == 0:
            return 0.0
        slope = math.sqrt(math.log(1 / self.delta) / (2 * self.final_squared_mu))
        return slope * self.final_squared_mu + (slope + 0.5) * spent


def squared_mu(event: Event) -> float:
    """The sum of mu^2 over the releases of an event with Gaussian noise and without sampling.

    Raises: NotCoveredError for other noise, and for sampled sums.
    """
    return total(event, lambda step: Gdp(step.gdp())).mu ** 2 if any(True for _ in event.leaves()) else 0.0
