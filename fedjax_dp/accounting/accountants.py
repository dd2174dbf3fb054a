"""The accountants. Each prices one release in its own currency; composition is written here, once."""

import contextlib
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Protocol, Self, TypeVar

from fedjax_dp import errors
from fedjax_dp.accounting import pld, rdp
from fedjax_dp.accounting.events import AnyOf, Composed, Event, RandomParticipation, each
from fedjax_dp.accounting.gaussian import Gdp
from fedjax_dp.accounting.laws import DiscretePair
from fedjax_dp.accounting.losses import LARGEST_LOSS
from fedjax_dp.accounting.neighbours import NotCoveredError
from fedjax_dp.accounting.releases import Release
from fedjax_dp.accounting.zcdp import Zcdp


class Currency(Protocol):
    """What events cost under one accountant, before a delta is chosen."""

    def times(self, count: int) -> Self: ...  # count adaptively composed copies

    def plus(self, other: Self) -> Self: ...  # one after the other

    def worst(self, other: Self) -> Self: ...  # this or the other happens, and nobody knows which

    def thinned(self, rate: float) -> Self: ...  # with probability `rate` this, else nothing, and all know which

    def epsilon(self, delta: float) -> float: ...


C = TypeVar("C", bound=Currency)


@dataclasses.dataclass(frozen=True)
class Accountant:
    """Prices one release in a currency; grids and orders are chosen for the whole event."""

    name: str
    about: str
    price: Callable[[Event], Callable[[Release], Currency]]
    precision: float  # relative error of its epsilon, to which calibration is worth carrying


def total(event: Event, price: Callable[[Release], C]) -> C:
    """The cost of an event, composed from the cost of one release of each step."""
    match event:
        case Release():
            return price(event).times(event.releases)
        case Composed(parts):
            costs = [total(part, price) for part in parts if any(True for _ in part.leaves())]
            while len(costs) > 1:  # in pairs: the grids of loss distributions grow with every sum
                odd = costs[len(costs) // 2 * 2 :]
                costs = [a.plus(b) for a, b in zip(costs[::2], costs[1::2], strict=False)] + odd
            return costs[0]
        case RandomParticipation(each, rate, rounds):
            return total(each, price).thinned(rate).times(rounds)
        case AnyOf(parts, times):
            costs = [total(part, price) for part in parts if any(True for _ in part.leaves())]
            return functools.reduce(lambda one, other: one.worst(other), costs).times(times)


def _gdp_of(event: Event) -> Callable[[Release], Gdp]:
    return lambda step: Gdp(step.gdp())


def _losses_of(choice: pld.Pairs, event: Event) -> Callable[[Release], Currency]:
    """Loss distributions, unless the exact Gaussian formula covers the event: there they have the same limit."""
    exact = _gdp_of(event)
    try:
        total(event, exact)
    except NotCoveredError:
        return pld.price(event, choice)
    return exact


def _attained_by(event: Event) -> Callable[[Release], Currency]:
    attained = operator.methodcaller("attained_pairs")
    alike = [attained(step) == step.dominating_pairs() for step, _ in event.leaves()]  # as the exact formula has it
    return _losses_of(attained, event) if all(alike) else pld.price(event, attained)


ACCOUNTANTS = {
    accountant.name: accountant
    for accountant in (
        Accountant(
            "pld",
            "privacy loss distribution (rigorous upper bound)",
            functools.partial(_losses_of, operator.methodcaller("dominating_pairs")),
            2e-4,
        ),
        Accountant("rdp", "Renyi DP of dominating pairs of neighbours (rigorous, looser)", rdp.price, 1e-6),
        Accountant("gaussian", "exact Gaussian mechanism (GDP)", _gdp_of, 1e-9),
        Accountant(
            "zcdp",
            "zCDP, sampling ignored, Canonne-Kamath-Steinke conversion (rigorous, looser)",
            lambda event: lambda step: Zcdp(step.zcdp()),
            1e-6,
        ),
        Accountant(
            "tcdp",
            "tCDP as in the dpnfl paper (valid where its conditions hold, loose)",
            lambda event: lambda step: step.tcdp(),
            1e-9,
        ),
    )
}

RESOLVED = 1e-8  # deltas from here on are far above the rounding errors of a million steps
ROUNDED_UP = 5e-4  # relative: what loss distributions on a grid may add to an epsilon
ON_A_GRID = 4e-3  # the same where the law of one release stands on a grid of its own

# Nobody should choose this one: no valid accountant can fall below it. It is rounded down by all that grids may add.
ATTAINED = Accountant("attained", "attained by two real neighbours (lower bound)", _attained_by, 2e-4)


def cost_of(event: Event, accountant: str | Accountant = "pld") -> Currency:
    """The cost of an event in the accountant's currency, to be read at several deltas.

    Raises: NotCoveredError if the accountant has no theorem for it; ConfigurationError if nothing noisy is released.
    """
    released = [step for step, _ in event.leaves()]
    if not released or any(step.reveals_everything for step in released):
        raise errors.refuse("the event", event, "made of at least one release, all of them noisy")
    return total(event, accountant_named(accountant).price(event))


@functools.lru_cache(maxsize=16384)  # a sweep of 64 runs asks for 100 clients each, more than once
def epsilon_of(event: Event, delta: float, accountant: str | Accountant = "pld") -> float:
    """Epsilon, in nats, of an event at `delta`.

    Adjacency: the event's. Limits: nothing released costs 0; a release without noise costs infinity.
    Noise:     integer (Skellam) noise, even as a part of the event, is covered by "rdp" alone; choices with Gumbel
               noise by "rdp" and "zcdp".
    Errors:    "pld": at most 5e-4 above the exact epsilon of its pairs, relative, up to 1e6 steps and for delta down to
               1e-8, unless sampling is so rare that the grid is coarser than a 20th of a loss's deviation (`ATTAINED`
               falls by what that adds); below, and where single losses exceed 700 nats, "rdp" is used where it is
               better, as rounding errors and such losses are counted against delta; above 700 nats also the bound that
               publishes the draw.
               For ATTAINED, infinity means that the losses are not resolved.
    Raises:    NotCoveredError if the accountant has no theorem for the event; ValueError if delta is outside (0, 1).
    """
    errors.require_delta(delta)
    chosen = accountant_named(accountant)
    released = [step for step, _ in event.leaves()]
    if not released:
        return 0.0
    if any(step.reveals_everything for step in released):
        return math.inf
    if isinstance(event, AnyOf) and event.times == 1:
        return max(epsilon_of(part, delta, chosen) for part in event.parts)
    if chosen is ATTAINED and delta < RESOLVED and sum(count for _, count in event.leaves()) > 10_000:
        raise NotCoveredError(f"no lower bound below delta {RESOLVED:g}: rounding errors of long runs would exceed it")
    if chosen is ACCOUNTANTS["rdp"]:
        return rdp.best_epsilon(lambda orders: total(event, rdp.price(event, orders)), delta)
    cost = cost_of(event, chosen)
    epsilon = float(cost.epsilon(delta))
    if chosen is ATTAINED and isinstance(cost, pld.Losses):
        if math.isfinite(epsilon):  # below the curve by all mass that was moved to infinity, or is a rounding error
            epsilon = cost.epsilon(delta + 2 * max(loss.infinite_mass for loss in cost.directions))
        return epsilon * max(1 - _rounded_up(event), 0.0)
    if chosen is ACCOUNTANTS["pld"] and (delta < RESOLVED or math.isinf(epsilon)):
        with contextlib.suppress(NotCoveredError):
            epsilon = min(epsilon, epsilon_of(event, delta, "rdp"))  # of upper bounds, all rigorous
        if epsilon > LARGEST_LOSS:
            with contextlib.suppress(NotCoveredError):
                epsilon = min(epsilon, total(event, operator.methodcaller("drawn_in_public")).epsilon(delta))
    return epsilon


def _rounded_up(event: Event) -> float:
    """What the grids on which its losses stand may have added to an epsilon, relative: by the square of the spacing."""
    attained = operator.methodcaller("attained_pairs")
    laws = (pair for step, _ in event.leaves() for one in attained(step) for pair in one.pairs)
    least = ON_A_GRID if any(isinstance(law, DiscretePair) for law in laws) else ROUNDED_UP
    _, ratio = pld.spacing_for(event, attained)
    return least * ratio**2


def about_at(accountant: str, delta: float) -> str:
    """Description of an accountant's numbers at this delta."""
    about = ACCOUNTANTS[accountant].about
    if accountant != "pld" or not 0 < delta < RESOLVED:
        return about
    return f"{about}; below delta {RESOLVED:g}, where rounding errors count, Renyi DP where that is less"


def epsilons_of(
    ledger: Iterable[Event],
    delta: float,
    accountant: str | Accountant = "pld",
    progress: Callable[[int, int], None] | None = None,
) -> list[float]:
    """Epsilon of each event, such as each client's: one evaluation per distinct event.

    progress  called with (distinct events done, distinct events).
    """
    return each(ledger, lambda event: epsilon_of(event, delta, accountant), progress)


def accountant_named(chosen: str | Accountant) -> Accountant:
    """The accountant of that name; an `Accountant` is returned unchanged."""
    if isinstance(chosen, Accountant):
        return chosen
    errors.require_choice("accountant", chosen, ACCOUNTANTS)
    return ACCOUNTANTS[chosen]
