"""Privacy filters: composition of steps whose noise, rates or number are chosen from earlier results.

Ordinary composition needs steps that are fixed beforehand. A filter fixes a budget instead: a step is taken only if the
total cost stays within it, and the guarantee is the budget for every choice.

| what is known of a step | go on while | source |
|---|---|---|
| unsampled Gaussian noise | sum of mu^2 <= mu_B^2 | Smith and Thakurta 2022, arXiv:2210.17520 |
| zCDP | sum of rho <= rho_B | Whitehouse, Ramdas, Rogers, Wu 2023, arXiv:2203.05481 |
| Renyi divergence at one order, sampled too | sum <= B_a | Feldman and Zrnic 2021, arXiv:2008.11193 |
| (epsilon, delta) alone | advanced composition of the sum of epsilon^2 | arXiv:2203.05481, Theorem 1 |
| trade-off curves, loss distributions | none is valid in general | arXiv:2602.06756 |

Learning rates, clip norms (at a fixed noise multiplier), models and weights need no filter: they are post-processing. A
filter is a value: `after(step)` is the filter once the step was taken.
"""

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import scipy

from fedjax_dp import errors
from fedjax_dp.accounting import rdp
from fedjax_dp.accounting.accountants import cost_of, total
from fedjax_dp.accounting.events import Event
from fedjax_dp.accounting.gaussian import gaussian_noise
from fedjax_dp.accounting.neighbours import Adjacency, NotCoveredError
from fedjax_dp.accounting.prefixes import squared_mu
from fedjax_dp.accounting.zcdp import zcdp_epsilon


@dataclasses.dataclass(frozen=True)
class Filter(ABC):
    """Steps within a budget of `epsilon` at `delta`; `used_budget` is the cost of the steps taken."""

    epsilon: float
    delta: float
    used_budget: float = dataclasses.field(default=0.0, kw_only=True)
    neighbours: tuple[Any, Any] | None = dataclasses.field(default=None, kw_only=True)  # of the steps, where they say

    def __post_init__(self) -> None:
        errors.require_positive("epsilon", self.epsilon)
        errors.require_delta(self.delta)
        errors.require_not_negative("used_budget", self.used_budget)

    @property
    @abstractmethod
    def budget(self) -> float:
        """The total that all steps together may cost."""

    @abstractmethod
    def cost(self, step: Any) -> float:
        """The cost of one step, which may be chosen from earlier releases.

        Raises: NotCoveredError for steps whose cost the filter does not know.
        """

    def admits(self, step: Any) -> bool:
        """Whether the step may be taken."""
        return self.used_budget + self.cost(step) <= self.budget

    def after(self, step: Any) -> Self:
        """The filter with the step taken.

        Raises: ConfigurationError for a step that would pass the budget.
        """
        cost, whose = self.cost(step), _neighbours_of(step)
        if self.neighbours is not None and whose is not None and whose != self.neighbours:
            got, wanted = (f"for one {unit} ({adjacency.value})" for unit, adjacency in (whose, self.neighbours))
            raise errors.refuse("the next step", got, f"{wanted}, as the steps before", "use a filter for each")
        if not self.used_budget + cost <= self.budget:
            left = f"{self.budget - self.used_budget:.4g} of {self.budget:.4g} left"
            raise errors.refuse("the next step", f"a cost of {cost:.4g}", f"within the {left}", "stop here")
        used, neighbours = self.used_budget + cost, self.neighbours or whose
        return dataclasses.replace(self, used_budget=used, neighbours=neighbours)

    def take(self, steps: Iterable[Any]) -> tuple[int, Self]:
        """The number of steps taken, in order, before the first that is not admitted, and the filter after them."""
        one, count = self, 0
        for step in steps:
            if not one.admits(step):
                break
            one, count = one.after(step), count + 1
        return count, one


def _neighbours_of(step: Any) -> tuple[Any, Any] | None:
    """Unit and adjacency of a step; None for one that states none, such as a pair of numbers."""
    leaves = [one for one, _ in step.leaves()] if hasattr(step, "leaves") else []
    return next(((one.unit, one.adjacency) for one in leaves), None)


@dataclasses.dataclass(frozen=True)
class GdpFilter(Filter):
    """For unsampled Gaussian noise, in mu^2: exact.

    >>> from fedjax_dp.accounting import Adjacency, FullBatch, GaussianSteps
    >>> step = GaussianSteps(8.0, FullBatch(), Adjacency.ADD_REMOVE, 1)
    >>> GdpFilter(2.0, 1e-5).take([step] * 100)[0]
    16
    """

    @functools.cached_property
    def budget(self) -> float:
        return gaussian_noise(self.epsilon, self.delta) ** -2

    def cost(self, step: Event) -> float:
        return squared_mu(step)


@dataclasses.dataclass(frozen=True)
class ZcdpFilter(Filter):
    """For steps with a zCDP, in rho; sampling is ignored."""

    @functools.cached_property
    def budget(self) -> float:
        def excess(log_rho: float) -> float:
            return zcdp_epsilon(math.exp(log_rho), self.delta) - self.epsilon

        rho = math.exp(scipy.optimize.brentq(excess, -60.0, math.log(self.epsilon) + 1.0, xtol=1e-13, rtol=1e-13))
        while zcdp_epsilon(rho, self.delta) > self.epsilon:  # the private side of the root
            rho *= 1 - 1e-9
        return rho

    def cost(self, step: Event) -> float:
        price: Any = cost_of(step, "zcdp")
        return float(price.rho)


@dataclasses.dataclass(frozen=True)
class RenyiFilter(Filter):
    """For steps with a Renyi divergence, also sampled ones, at one order that is fixed beforehand.

    An order chosen from the budget spent so far is invalid: `best_order` chooses it for the expected steps.
    Conversion: Canonne, Kamath, Steinke 2020, arXiv:2004.00010, Proposition 12.
    """

    order: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.order > 1:
            raise errors.refuse("order", self.order, "above 1")
        if not self.budget > 0:
            raise errors.refuse(
                "order", self.order, f"large enough to reach epsilon {self.epsilon:g} at delta {self.delta:g}"
            )

    @property
    def budget(self) -> float:
        a = self.order
        return self.epsilon - math.log1p(-1 / a) + math.log(a * self.delta) / (a - 1)

    def cost(self, step: Event) -> float:
        curve = total(step, rdp.price(step, np.array([self.order])))
        if curve.infinite_mass:
            raise NotCoveredError("a filter needs a Renyi divergence without infinite losses; use another sampling")
        return float(curve.values[0])


def best_order(expected: Event, epsilon: float, delta: float) -> float:
    """The order that leaves most of the budget for steps like `expected`; choose it before the first step."""
    orders = np.unique(np.concatenate([np.arange(2, 65), np.geomspace(1.05, 1024, 200)]))
    with np.errstate(divide="ignore"):
        budgets = epsilon - np.log1p(-1 / orders) + np.log(orders * delta) / (orders - 1)
    costs = total(expected, rdp.price(expected, orders)).values
    if not np.any(budgets > 0):
        raise errors.refuse("epsilon", epsilon, f"reachable at delta {delta:g}", "raise it, or delta")
    return float(orders[np.argmax(budgets / costs)])


@dataclasses.dataclass(frozen=True)
class ApproximateFilter(Filter):
    """For steps known by (epsilon, delta) alone: the guarantee is `epsilon` at `delta` + `delta_of_steps`.

    `delta` is spent by the composition; the deltas of the steps may add up to `delta_of_steps`. `used_budget` is the
    sum of epsilon^2 over the steps taken, `used_delta` the sum of their deltas.
    """

    delta_of_steps: float
    used_delta: float = dataclasses.field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        errors.require_not_negative("delta_of_steps", self.delta_of_steps)

    @property
    def budget(self) -> float:
        """The sum of epsilon^2 at which sqrt(2 ln(1/delta) sum) + sum / 2 is epsilon."""
        root = math.sqrt(2 * math.log(1 / self.delta))
        return (math.sqrt(root**2 + 2 * self.epsilon) - root) ** 2

    @property
    def epsilon_used(self) -> float:
        """Epsilon of the steps taken."""
        return math.sqrt(2 * math.log(1 / self.delta) * self.used_budget) + self.used_budget / 2

    def cost(self, step: tuple[float, float]) -> float:
        """The cost of a step (epsilon, delta)."""
        epsilon, delta = step
        errors.require_not_negative("epsilon of a step", epsilon)
        errors.require_not_negative("delta of a step", delta)
        return epsilon**2

    def admits(self, step: tuple[float, float]) -> bool:
        return super().admits(step) and self.used_delta + step[1] <= self.delta_of_steps

    def after(self, step: tuple[float, float]) -> Self:
        if not self.used_delta + step[1] <= self.delta_of_steps:
            left = f"the {self.delta_of_steps - self.used_delta:.3g} left"
            raise errors.refuse("delta of the next step", step[1], f"within {left}", "stop here")
        return dataclasses.replace(super().after(step), used_delta=self.used_delta + step[1])


def filter_for(accountant: str, epsilon: float, delta: float, order: float | None = None) -> Filter:
    """The filter for the currency of an accountant.

    Raises: NotCoveredError for accountants whose currency has no filter: then no choice from results is covered.
    """
    if accountant == "rdp":
        return RenyiFilter(epsilon, delta, errors.require_given("order", order, "best_order chooses one beforehand"))
    if order is not None:
        raise errors.refuse("order", order, f"left out for {accountant}", "only rdp has orders")
    filters: dict[str, type[Filter]] = {"gaussian": GdpFilter, "zcdp": ZcdpFilter}
    if accountant not in filters:
        raise NotCoveredError(
            f"there is no filter for the currency of {accountant}, so nothing may be chosen from results; fix noise "
            "and rounds beforehand, or use rdp at one order, zcdp, or gaussian without sampling"
        )
    return filters[accountant](epsilon, delta)


@dataclasses.dataclass(frozen=True)
class IndividualFilter:
    """Every client contributes until its clipped updates have used up a common budget, then never again.

    Client i counts in a round if the sum of (|u_i| / (z C))^2 over rounds, including this one, is at most mu_B^2. The
    guarantee is the budget, for every client. Which clients still count, how many, and what each has used are
    **data**: they may act on the sum only and must not be printed, so no `repr` shows them; divisors stay constant.
    Covers: add-remove and zero-out neighbours, unsampled, the noise of a trusted server.
    Source: Feldman and Zrnic 2021, arXiv:2008.11193; its Gaussian form Koskela, Tobaben, Honkela 2023,
            arXiv:2209.15596.
    Shapes: norms, `used_budget` and masks `(clients,)`.
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    clip_norm: float
    used_budget: np.ndarray = dataclasses.field(repr=False, compare=False)
    has_left: np.ndarray = dataclasses.field(repr=False, compare=False)

    @classmethod
    def start(
        cls,
        num_clients: int,
        *,
        epsilon: float,
        delta: float,
        noise_multiplier: float,
        clip_norm: float,
        adjacency: Adjacency,
    ) -> Self:
        """The filter before round 0.

        Raises: NotCoveredError for replace-one neighbours, where the other client may have used less.
        """
        errors.require_count("num_clients", num_clients)
        errors.require_positive("epsilon", epsilon)
        errors.require_delta(delta)
        errors.require_positive("noise_multiplier", noise_multiplier)
        errors.require_positive("clip_norm", clip_norm)
        if adjacency is Adjacency.REPLACE_ONE:
            raise NotCoveredError("individual filters are proved for add-remove (zero-out) neighbours only; use them")
        return cls(epsilon, delta, noise_multiplier, clip_norm, np.zeros(num_clients), np.zeros(num_clients, bool))

    @functools.cached_property
    def budget_mu(self) -> float:
        """mu_B: Gaussian noise of this mu has `epsilon` at `delta`."""
        return 1 / gaussian_noise(self.epsilon, self.delta)

    def active(self, norms: np.ndarray) -> np.ndarray:
        """Mask of clients whose update of this norm counts in the next round; data, for the sum alone."""
        return ~self.has_left & (self.used_budget + self._costs(norms) <= self.budget_mu**2)

    def after(self, norms: np.ndarray) -> Self:
        """The filter after a round with updates of these norms."""
        counts = self.active(norms)
        used_budget = self.used_budget + np.where(counts, self._costs(norms), 0.0)
        return dataclasses.replace(self, used_budget=used_budget, has_left=~counts)

    def _costs(self, norms: np.ndarray) -> np.ndarray:
        norms = np.asarray(norms, float)
        if norms.shape != self.used_budget.shape or not np.all(norms >= 0):
            raise errors.refuse("norms", f"shape {norms.shape}", f"{self.used_budget.size} numbers of at least 0")
        return (np.minimum(norms, self.clip_norm) / (self.noise_multiplier * self.clip_norm)) ** 2
