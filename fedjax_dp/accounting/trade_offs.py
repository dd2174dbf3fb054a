"""Trade-off curves: the bound of an accountant on every attack, and the conclusions from an attack that breaks it.

The trade-off curve f of an event gives the smallest false negative rate of any attack on its releases at each false
positive rate (Dong, Roth, Su 2022, arXiv:1905.02383, Definition 2.1). An attack with rates below the curve refutes the
guarantee, and bounds the actual noise. An epsilon at one delta is only one pair of tangents of the curve: an audit of
it alone needs far more trials.
"""

import contextlib
import dataclasses
import functools
import math

import numpy as np
import scipy
from scipy.special import ndtr, ndtri

from fedjax_dp import errors
from fedjax_dp.accounting.accountants import ATTAINED, Accountant, cost_of, epsilon_of
from fedjax_dp.accounting.empirical import ErrorBounds, epsilon_of_any, mu_of
from fedjax_dp.accounting.events import Event
from fedjax_dp.accounting.gaussian import Gdp, gaussian_trade_off
from fedjax_dp.accounting.losses import LossDistribution
from fedjax_dp.accounting.neighbours import NotCoveredError
from fedjax_dp.accounting.plain_words import FALSE_ALARMS, AttackBounds
from fedjax_dp.accounting.pld import Losses
from fedjax_dp.accounting.releases import LEAST_NOISE, MOST_NOISE

STEEPEST = 700.0  # nats; e to this power is still a float
TANGENTS = 400  # per way of spacing them; four ways for each direction
DELTAS = np.concatenate([np.geomspace(1e-16, 0.5, 400), 1 - np.geomspace(1e-6, 0.5, 100)[:-1]])
PRECISION = 5e-4  # of the noise that an attack leaves possible, relative
LEAST_RATE = 1e-12  # of errors that any number of trials could show
LEAST_SEARCHED, MOST_SEARCHED = 0.05, 1e6  # noise in clip norms


@dataclasses.dataclass(frozen=True, eq=False)
class TradeOff:
    """The smallest false negative rate of any attack; call it on false positive rates in [0, 1].

    Either the curve of mu-GDP, or the largest of the lower bounds by (`epsilons[k]`, `deltas[k]`)-privacy in both
    directions: 1 - delta - e^epsilon fp and e^-epsilon (1 - delta - fp). Without these everything is revealed.
    Shapes: any; returns the same. The curve falls from at most 1 to 0 and is convex.
    Source: Dong, Roth, Su 2022, equation (6) for mu, Proposition 2.12 for the lines.

    >>> TradeOff(mu=1.0)(np.array([0.0, 0.05, 1.0])).round(3).tolist()
    [1.0, 0.74, 0.0]
    """

    mu: float | None = None
    epsilons: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0))
    deltas: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0))

    def __call__(self, false_positive: "np.ndarray | float") -> np.ndarray:
        rates = np.asarray(false_positive, float)
        if not ((rates >= 0) & (rates <= 1)).all():
            raise errors.refuse("false positive rates", rates, "in [0, 1]")
        if self.mu is not None:
            return gaussian_trade_off(self.mu, rates)
        steep, kept = np.exp(self.epsilons), 1 - self.deltas
        curve = np.zeros(rates.size)
        for k, rate in enumerate(rates.ravel()):  # one at a time: thousands of lines for each
            curve[k] = max(np.max(kept - steep * rate, initial=0.0), np.max((kept - rate) / steep, initial=0.0))
        return curve.reshape(rates.shape)

    @property
    def equal_error_rate(self) -> float:
        """The rate at which both errors are equal; the least sum of both error rates is twice as large.

        >>> round(TradeOff(mu=1.0).equal_error_rate, 4)
        0.3085
        """
        if self.mu is not None:
            return float(ndtr(-self.mu / 2))
        return float(np.max((1 - self.deltas) / (1 + np.exp(self.epsilons)), initial=0.0))


@functools.lru_cache(maxsize=1024)
def trade_off(event: Event, accountant: str | Accountant = "pld") -> TradeOff:
    """The trade-off curve that an accountant proves for an event, for all neighbours in both orders.

    Adjacency: the event's. Limits: nothing released -> 1 - fp; a release without noise -> 0.
    Errors:    none for "gaussian", nor for "pld" where that is exact. Else "pld" lies below the curve of its pairs, by
               at most 1e-3 of mu where both rates are above 1e-12. The other accountants give an epsilon at each delta;
               their curve combines these, and is as loose as they are.
    Raises:    NotCoveredError if the accountant has no theorem for the event.
    """
    released = [step for step, _ in event.leaves()]
    if not released:
        return TradeOff(mu=0.0)
    if any(step.reveals_everything for step in released):
        return TradeOff()
    cost = cost_of(event, accountant)
    if isinstance(cost, Gdp):
        return TradeOff(mu=cost.mu)
    if isinstance(cost, Losses):
        epsilons, deltas = _profile(cost)
    else:
        epsilons, deltas = np.array([cost.epsilon(float(delta)) for delta in DELTAS]), DELTAS
    usable = epsilons <= STEEPEST
    return TradeOff(None, epsilons[usable], deltas[usable])


def attack_bounds(event: Event, epsilon: float, delta: float, accountant: str | Accountant = "pld") -> AttackBounds:
    """Bounds on attacks on an event, by the accountant's trade-off curve; by (`epsilon`, `delta`) if it has none.

    Adjacency: the event's. Limits: nothing released -> 50% and 1%, blind guessing; everything revealed -> 100%.
    Errors:    those of `trade_off`, upwards.
    Source:    the best guess at even odds errs with half the least sum of both error rates, where they are equal as the
               curve is symmetric (Dong, Roth, Su 2022, Section 2); the other rate is 1 - f(1%).
    """
    steepest = min(epsilon, STEEPEST)  # which allows everything, to the last digit
    curve, of_curve = TradeOff(None, np.array([steepest]), np.array([delta])), False
    with contextlib.suppress(NotCoveredError):
        proved = trade_off(event, accountant)
        if proved.mu is not None or proved.epsilons.size:
            curve, of_curve = proved, True
    return AttackBounds(1 - curve.equal_error_rate, 1 - float(curve(FALSE_ALARMS)), of_curve)


def contradicts(bounds: ErrorBounds, curve: TradeOff) -> bool:
    """Whether no mechanism with the trade-off curve `curve` has error rates within the bounds.

    Proved: if the curve holds, this happens in at most a fraction `bounds.significance` of audits. For a joint test it
    happens if and only if the sum of both rates is below the least x + curve(x).
    """
    fp, fn = bounds.corner
    return bool(fn < curve(fp))


def noise_at_most(bounds: ErrorBounds, event: Event, accountant: str | Accountant = "pld") -> float:
    """The largest factor s on all noise of `event` for which `event.scaled(s)` is not contradicted; inf if none is.

    Proved: if the mechanism is `event.scaled(s)` for some s, that is if sampling, number of releases, clip norms and
            kind of noise are as stated, then s is at most this, with confidence 1 - `significance`. Below 1 there is
            less noise than stated. If the attack beats even noise multipliers of 0.05, the factor for these is
            returned: s is at most that, and the mechanism is probably of another kind.
    Errors: 1e-3 above the largest such factor, relative; closed form where the accountant's curve is Gaussian.
    Raises: NotCoveredError if the accountant has no theorem for the event, ConfigurationError if it adds no noise.
    """
    evidence, (fp, _) = mu_of(bounds), bounds.corner
    noises = [step.noise_multiplier for step, _ in event.leaves()]
    if not noises or min(noises) == 0:
        got = "a release without noise" if noises else "no release"
        raise errors.refuse("the event to audit", got, "made of at least one release, all of them noisy")
    if not evidence > 0:  # coin flips have such rates
        return math.inf
    start = trade_off(event, accountant)
    if start.mu is not None:
        return start.mu / evidence

    def excess(log_factor: float) -> float:
        """Above zero where the curve still allows the rates; close to linear."""
        curve = trade_off(event.scaled(math.exp(log_factor)), accountant)
        allowed = float(-ndtri(fp) - ndtri(np.maximum(curve(fp), 1e-300)))
        return math.log(max(allowed, 1e-12) / evidence)

    least, most = math.log(LEAST_SEARCHED / min(noises)), math.log(MOST_SEARCHED / max(noises))
    low = high = 0.0
    value = excess(0.0)
    while value > 0 and high < most:
        low, high = high, min(high + 1.2 * value + 0.02, most)
        value = excess(high)
    while value <= 0 and low > least and (low == high or excess(low) <= 0):
        high, low = low, max(low - 1.0, least)
    if excess(low) <= 0:
        return math.exp(low)
    if excess(high) > 0:
        return math.inf
    root = scipy.optimize.brentq(excess, low, high, xtol=PRECISION, rtol=1e-12)
    return math.exp(root + PRECISION)  # on the side that is contradicted


def epsilon_at_least(bounds: ErrorBounds, event: Event, delta: float, accountant: str | Accountant = "pld") -> float:
    """Lower bound on the mechanism's epsilon at `delta`, if it is `event` with some other amount of noise.

    Proved: let the mechanism be `event.scaled(s)` for some s > 0. With confidence 1 - `significance` s is at most
            `noise_at_most`, and with that much noise two real neighbours attain this epsilon: those of `ATTAINED`,
            which has a closed form. Less noise can only cost more. Without the hypothesis only `epsilon_of_any` is
            proved; it follows from the same bounds, so the larger of the two counts, and it alone if no pair of
            neighbours is known in closed form.
    Limits: 0 where the bounds contradict nothing. For Gaussian events the exact epsilon of the mu that `mu_of` gives.
    Errors: 1e-3 below, and, as losses are discretised upwards, at most 5e-4 above, both relative.
    Raises: NotCoveredError if the accountant has no theorem for the event; ConfigurationError for a delta outside
            (0, 1) or an event that adds no noise.
    """
    anyway = epsilon_of_any(bounds, delta)
    factor = noise_at_most(bounds, event, accountant)
    if math.isinf(factor):
        return anyway
    noises = [step.noise_multiplier * factor for step, _ in event.leaves()]
    if max(noises) > MOST_NOISE:
        return anyway
    factor *= max(LEAST_NOISE / min(noises), 1.0)
    try:
        attained = epsilon_of(event.scaled(factor), delta, ATTAINED)
    except NotCoveredError:
        return anyway
    return max(attained, anyway) if math.isfinite(attained) else anyway  # losses that are not resolved prove nothing


def trials_needed(curve: TradeOff, significance: float = 0.05) -> int:
    """The smallest number of trials per world after which a flawless attack would contradict the curve.

    It assumes the joint test, which then needs fewer trials than the test by halves. With fewer trials no outcome can
    refute the curve, so an audit is pointless. A real attack needs several times more.
    Raises: ConfigurationError if error rates of 1e-12 would not contradict the curve.
    """
    errors.require_in_unit_interval("significance", significance)
    if float(curve(LEAST_RATE)) <= LEAST_RATE:
        raise errors.refuse(
            "the promise to audit",
            f"one that allows attacks with error rates below {LEAST_RATE:g}",
            "one that an attack can break in a trillion trials",
            "use more noise, or test a smaller claim",
        )
    rate = curve.equal_error_rate  # a flawless attack's corner is on the diagonal, and contradicts the curve below it
    return math.floor(max(math.log(significance) / math.log1p(-rate), 1 / rate) / 2) + 1


def _profile(cost: Losses) -> tuple[np.ndarray, np.ndarray]:
    """Epsilons at which the curve's tangents are taken, and their deltas in the worse direction."""
    spacing = cost.directions[0].spacing
    rows = np.unique(np.concatenate([_tangents(loss) for loss in cost.directions]))
    deltas = np.max([_deltas(loss, rows) for loss in cost.directions], axis=0)
    return rows * spacing, deltas


def _tangents(loss: LossDistribution) -> np.ndarray:
    """Grid indices >= 0 of losses, evenly spaced in nats and in the probits of both error rates of the best tests."""
    last = min(loss.lowest + loss.masses.size - 1, int(STEEPEST / loss.spacing))
    if last <= 0:
        return np.zeros(1, int)
    first = max(loss.lowest, 0)
    probits = np.linspace(-8.2, 8.2, TANGENTS)
    below = np.cumsum(loss.masses)  # false negative rates
    above = loss.infinite_mass + np.cumsum(loss.masses[::-1])[::-1]
    rarer = np.cumsum((loss.masses * np.exp(-np.maximum(loss.losses, -STEEPEST)))[::-1])[::-1]  # false positive rates
    rows = (
        np.concatenate(
            [
                np.searchsorted(below, ndtr(probits)),
                below.size - np.searchsorted(above[::-1], ndtr(probits)),
                below.size - np.searchsorted(rarer[::-1], ndtr(probits)),
            ]
        )
        + loss.lowest
    )
    rows = np.concatenate([rows, np.linspace(first, last, TANGENTS).astype(int), [0]])
    return np.unique(rows[(rows >= 0) & (rows <= last)])


def _deltas(loss: LossDistribution, rows: np.ndarray) -> np.ndarray:
    """Delta at epsilon = row * spacing: the mass from there on, less the same discounted by e^(epsilon - loss)."""
    if not loss.masses.size:  # every loss is infinite
        return np.full(rows.shape, loss.infinite_mass)
    mass, discounted = loss.tails
    at = np.maximum(rows - loss.lowest, 0)  # the first loss that is not below epsilon
    inside = at < mass.size
    at = np.where(inside, at, 0)
    gap = np.exp(np.minimum((rows - loss.lowest - at) * loss.spacing, 0.0))
    return loss.infinite_mass + np.where(inside, np.maximum(mass[at] - gap * discounted[at], 0.0), 0.0)
