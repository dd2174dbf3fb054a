"""Aggregation of the cohort's updates: sum_S a_i Delta_i over the members that answer, divided by a number.

m_i: how often client i was drawn; E m_i: its expectation, from the cohort's law.

| name | a_i / divisor | with | is, in the papers |
|---|---|---|---|
| wor_delta | m_i p_i / E m_i | uniform cohorts | w + (N/r) sum_S p_i Delta_i (dpnfl, Algorithm 1) |
| | | draws by shares (MD) | (1/K) sum w_i over the multiset (Li et al. 2020, dp_fedavg_output's WR) |
| | | draws by probabilities q_i | w + sum p_i / (K q_i) Delta_i (acs_pldp) |
| | | Poisson cohorts | divided by the public expected size |
| wor_model | the same | uniform cohorts | (N/r) sum_S p_i w_i: also rescales the model (dpnfl, dp_fedavg_output) |
| full, biased | m_i p_i | all clients, or those drawn | w + sum_S p_i Delta_i |
| renorm | m_i p_i / sum_S m_j p_j | any | sum_S p_i w_i / sum_S p_j |
| precision | m_i v_i / sum_S m_j v_j, v_i = p_i min(p_i, 2/N) | any | favours large clients, which have less noise |
| mean | m_i / sum_S m_j | any | (1/r) sum_S w_i |

median and trimmed_mean are not sums: they sort the cohort's updates in every coordinate (`TrimmedMean`).

Vectors are multiplied by the divisor's reciprocal: XLA would otherwise choose either by program.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeGuard

import jax
import jax.numpy as jnp

from fedjax_dp import errors
from fedjax_dp.errors import Limits
from fedjax_dp.parts.cohorts import Cohort, Members
from fedjax_dp.parts.record_privacy import LEAST_RATE
from fedjax_dp.pytrees import number, structure, value


class Aggregate(Protocol):
    """What each client contributes to a round's sum, and how the sum becomes the mean update.

    Implementations use `fedjax_dp.value`. `shares`, the p_i, and `rates`, the expected messages per round or None if
    unknown, are public numbers of all clients `(num_clients,)`. Updates and parameters are flat `(size,)`, in the order
    of `pytrees.ravel`. A method `check(cohort, num_clients)` may refuse cohorts that it cannot aggregate.
    """

    @property
    def needs_loss(self) -> bool:
        """Derived property, conservative default. Whether clients send their exact loss of the received model."""
        return False

    @property
    def needs_rates(self) -> bool:
        """Derived property, conservative default. Whether `rates` must be known."""
        return False

    @property
    def alike(self) -> bool:
        """Derived property, conservative default. Whether every member has weight 1."""
        return False

    @property
    def realised(self) -> bool:
        """Required privacy property. Whether it divides by the actual cohort: only a fixed size bounds a client."""
        ...

    @property
    def extra(self) -> int:
        """Count of extra numbers sent with an update."""
        return 0

    def weights(self, members: Members, shares: jax.Array, rates: Any) -> jax.Array:
        """The weights a_i of the members `(members,)`."""
        ...

    def contribution(self, weight: jax.Array, update: jax.Array, loss: Any, rate: jax.Array) -> Any:
        """What one member adds to the sum: float32 arrays, the weighted update and `extra` more numbers.

        weight  its a_i; loss  None unless `needs_loss`; rate  learning rate of the round's first local step.
        """
        return weight * update

    def combine(self, total: Any, members: Members, shares: jax.Array, rates: Any, params: jax.Array) -> jax.Array:
        """The mean update `(size,)`, from the sum of the contributions; linear in it for client-level privacy."""
        ...

    def sensitivity(self, shares: Any, rates: Any, members: int) -> Any:
        """Derived property, conservative default. How far adding a client with update norm 1 moves the mean, or None.

        members: positions of the cohort. Replacing a client moves the mean twice as far.
        """
        return None


class PublicAggregate(Aggregate, Protocol):
    """An aggregate whose weights in the mean do not depend on the other participating clients."""

    def gains(self, shares: jax.Array, rates: Any, members: int | None) -> Any:
        """Weight of each client in the mean if it takes part once `(num_clients,)`; None if it depends on others.

        members: size of every cohort, None if it varies.
        """
        ...


def public(aggregate: Aggregate) -> TypeGuard[PublicAggregate]:
    """Whether an aggregate is a `PublicAggregate`."""
    return getattr(aggregate, "gains", None) is not None


class SeparateAggregate(Aggregate, Protocol):
    """An aggregate that needs the individual updates instead of their sum."""

    @property
    def needs_individual_updates(self) -> bool:
        """Whether `combine` gets the contributions with a leading axis `(members,)`, zeros where none arrived."""
        ...


def needs_individual_updates(aggregate: Aggregate) -> TypeGuard[SeparateAggregate]:
    """Whether an aggregate needs the individual updates, which secure aggregation hides."""
    return bool(getattr(aggregate, "needs_individual_updates", False))


def by_share(members: Members, shares: jax.Array, rates: Any) -> jax.Array:
    """m_i p_i: unbiased only when every client takes part."""
    return members.participation_count * shares[members.ids]


def by_inverse_rate(members: Members, shares: jax.Array, rates: jax.Array) -> jax.Array:
    """m_i p_i / E m_i, or 0 if p_i is 0: unbiased for every cohort whose rates are known (Horvitz, Thompson 1952)."""
    return members.participation_count * jnp.where(shares > 0, shares / rates, 0.0)[members.ids]


def by_precision(members: Members, shares: jax.Array, rates: Any) -> jax.Array:
    """m_i p_i min(p_i, 2/N): if every client's sum of gradients has the same noise, p_i^2 has the least variance.

    Clients of more than twice the mean size have weights proportional to p_i, so that no single client dominates.
    """
    own = shares[members.ids]
    return members.participation_count * own * jnp.minimum(own, 2 / shares.shape[0])


def equally(members: Members, shares: jax.Array, rates: Any) -> jax.Array:
    """m_i: the same weight for every client."""
    return members.participation_count


WEIGHTS: dict[Callable[..., jax.Array], str] = {  # as LaTeX
    by_share: "m_k p_k",
    by_inverse_rate: r"m_k p_k / \mathbb{E}\, m_k",
    by_precision: r"m_k p_k \min(p_k, 2 / N)",
    equally: "m_k",
}


@value
class Estimator(Aggregate):
    """A weighted sum of updates, or of models."""

    weigh: Callable[[Members, jax.Array, Any], jax.Array] = structure()
    normalised: bool = structure(default=False)  # divided by the sum of the weights of this round's members
    of_models: bool = structure(default=False)  # sum a_i w_i instead of w + sum a_i Delta_i
    of_everyone: bool = structure(default=False)  # refuse cohorts that are not all clients

    needs_loss = False

    @property
    def equation(self) -> str:
        weight = WEIGHTS.get(self.weigh, r"a_k")
        whose, rest = ("w_k", " - w_t") if self.of_models else (r"\Delta_k", "")
        total = rf"\sum_{{k \in S_t}} \omega_k {whose}"
        total = rf"\frac{{{total}}}{{\sum_{{k \in S_t}} \omega_k}}" if self.normalised else total
        return rf"\Delta = {total}{rest},\ \omega_k = {weight}"

    def weights(self, members: Members, shares: jax.Array, rates: Any) -> jax.Array:
        return self.weigh(members, shares, rates)

    def combine(
        self, total: jax.Array, members: Members, shares: jax.Array, rates: Any, params: jax.Array
    ) -> jax.Array:
        coverage = self.weights(members, shares, rates).sum()
        if self.normalised:
            return total * (1 / jnp.where(coverage > 0, coverage, 1.0))
        return total + (coverage - 1) * params if self.of_models else total

    def _weights_of_all(self, shares: Any, rates: Any) -> jax.Array:
        return self.weights(Members.of(jnp.arange(shares.shape[0], dtype=jnp.int32)), shares, rates)

    def sensitivity(self, shares: Any, rates: Any, members: int) -> Any:
        """How far adding one client with update norm 1 can move the mean; None if unbounded.

        A mean over the actual cohort is bounded only if its size is the same in every round. For a plain sum it is the
        largest weight of any client.
        """
        if self.of_models:
            return None  # a client that joins adds its whole model
        if self.normalised:
            return 1 / members if self.alike else None
        return jnp.max(jnp.abs(self._weights_of_all(shares, rates)))

    def gains(self, shares: jax.Array, rates: Any, members: int | None) -> Any:
        each = self._weights_of_all(shares, rates)
        if not self.normalised:
            return each
        if members == shares.shape[0]:
            return each / each.sum()
        return each / members if self.alike and members else None

    @property
    def needs_rates(self) -> bool:
        return self.weigh is by_inverse_rate

    @property
    def realised(self) -> bool:
        return self.normalised

    @property
    def alike(self) -> bool:
        return self.weigh is equally

    def check(self, cohort: Cohort, num_clients: int) -> None:
        if self.of_everyone and not (
            cohort.fixed and cohort.at_most_once and cohort.capacity(num_clients) == num_clients
        ):
            raise errors.refuse(
                "estimator full", "a sampled cohort", "used with all clients", "use biased or wor_delta"
            )


@value
class TrimmedMean(Aggregate):
    """In each coordinate, the mean of the cohort's updates without the largest and the smallest ones.

    trim  the fraction beta that is removed at either end (Yin, Chen, Ramchandran, Bartlett 2018, "Byzantine-robust
          distributed learning", ICML, arXiv:1803.01498, Definition 2): floor(beta n) of n updates. 0 is `mean`; 1/2 is
          the median of each coordinate (Definition 1), the mean of the middle two if n is even.

    As in the paper, all clients have the same weight, for any number of records. All updates are in memory at once,
    `(members, size)`. As many clients as are removed at one end may send arbitrary updates: each coordinate stays in
    the range of the others. It is not linear in the updates: client-level noise has no sensitivity to use, the noise of
    record-level privacy does not add up, and a secure sum does not reveal what to sort. Applied to noisy updates, it is
    post-processing (Dwork and Roth 2014, Proposition 2.1).
    """

    trim: float = number(
        Limits("in [0, 0.5], the fraction of the updates to remove at either end", lambda beta: 0 <= beta <= 0.5)
    )

    equation = (
        r"\Delta^{(j)} = \frac{1}{n - 2c} \sum_{i = c + 1}^{n - c} \Delta^{(j)}_{(i)},\ "
        r"c = \min(\lfloor \beta n \rfloor, \lceil n / 2 \rceil - 1)"
    )

    needs_individual_updates = True
    realised = True
    alike = True

    def weights(self, members: Members, shares: jax.Array, rates: Any) -> jax.Array:
        return members.participation_count

    def contribution(self, weight: jax.Array, update: jax.Array, loss: Any, rate: jax.Array) -> jax.Array:
        return update

    def combine(
        self, total: jax.Array, members: Members, shares: jax.Array, rates: Any, params: jax.Array
    ) -> jax.Array:
        count = members.present.sum()
        # Slightly more than beta n, as 0.29 * 100 is below 29 in float32.
        removed = jnp.minimum(jnp.floor(self.trim * count + 1e-4).astype(count.dtype), jnp.maximum(count - 1, 0) // 2)
        ordered = jnp.sort(jnp.where(members.present[:, None], total, jnp.inf), axis=0)  # absent ones last
        place = jnp.arange(total.shape[0])[:, None]
        inside = (place >= removed) & (place < count - removed)
        return jnp.where(inside, ordered, 0.0).sum(0) / jnp.maximum(count - 2 * removed, 1)

    def check(self, cohort: Cohort, num_clients: int) -> None:
        if not cohort.at_most_once:
            raise errors.refuse(
                "estimator", "a median or trimmed mean", "one of sums where a client may be drawn twice", "use mean"
            )


ESTIMATORS: dict[str, "Estimator | TrimmedMean"] = {
    "full": Estimator(weigh=by_share, of_everyone=True),
    "wor_delta": Estimator(weigh=by_inverse_rate),
    "wor_model": Estimator(weigh=by_inverse_rate, of_models=True),
    "biased": Estimator(weigh=by_share),
    "renorm": Estimator(weigh=by_share, normalised=True),
    "precision": Estimator(weigh=by_precision, normalised=True),
    "mean": Estimator(weigh=equally, normalised=True),
    "median": TrimmedMean(trim=0.5),
    "trimmed_mean": TrimmedMean(trim=0.1),
}


@value
class BoundedMean(Aggregate):
    """DPFedAvg's weighted mean with bounded weights w_k = min(p_k / cap, 1) (McMahan et al. 2018).

    cap     share from which a client has weight 1; cap = w_hat / sum n_j gives min(n_k / w_hat, 1); None: all weights
            are 1;
    least   None: estimator f_f, which divides sum_S w_k Delta_k by the expected weight. A number in (0, 1]: estimator
            f_c, which divides by max(least * expected weight, sum_S w_k), so at least by W_min = least * W.
    """

    cap: float | None = number(
        Limits("in (0, 1], as no share is larger", lambda cap: 0 < cap <= 1), option="weight_cap", default=None
    )
    least: float | None = number(
        Limits("in (0, 1], a fraction of the expected weight", lambda least: 0 < least <= 1),
        option="least_weight",
        default=None,
    )

    @property
    def equation(self) -> str:
        under = r"\sum_k q_k \omega_k" if self.least is None else r"\max(m W, \sum_{k \in S_t} \omega_k)"
        weight = "m_k" if self.cap is None else r"m_k \min(p_k / \hat w, 1)"
        return rf"\Delta = \frac{{\sum_{{k \in S_t}} \omega_k \Delta_k}}{{{under}}},\ \omega_k = {weight}"

    needs_rates = True
    realised = False

    @property
    def alike(self) -> bool:
        return self.cap is None

    def weights(self, members: Members, shares: jax.Array, rates: Any) -> jax.Array:
        return members.participation_count * self._bounded_weights(shares)[members.ids]

    def combine(
        self, total: jax.Array, members: Members, shares: jax.Array, rates: Any, params: jax.Array
    ) -> jax.Array:
        expected = self._expected_weight(shares, rates)
        if self.least is None:
            return total * (1 / expected)
        return total * (1 / jnp.maximum(self.least * expected, self.weights(members, shares, rates).sum()))

    def _expected_weight(self, shares: Any, rates: Any) -> jax.Array:
        return jnp.sum(rates * self._bounded_weights(shares))

    def _bounded_weights(self, shares: Any) -> jax.Array:
        return jnp.ones(shares.shape) if self.cap is None else jnp.minimum(shares / self.cap, 1.0)

    def sensitivity(self, shares: Any, rates: Any, members: int) -> Any:
        """1 / (q W) for f_f and 2 / (q W_min) for f_c (McMahan et al. 2018, Lemma 1)."""
        expected = self._expected_weight(shares, rates)
        return 1 / expected if self.least is None else 2 / (self.least * expected)

    def gains(self, shares: jax.Array, rates: Any, members: int | None) -> Any:
        return self._bounded_weights(shares) / self._expected_weight(shares, rates) if self.least is None else None


@value
class FairRatio(Aggregate):
    """q-FedAvg (Li et al. 2020), which favours clients with a large loss: w + sum_S F_k^q L Delta_k / sum_S h_k.

    L = 1 / learning rate, F_k = loss of the received model on all records of client k, and
    h_k = q F_k^(q-1) |L Delta_k|^2 + L F_k^q. q = 0 is `mean`.
    of_weighted  uses the squared norm of F_k^q L Delta_k instead, a mistake in rfedavg's code.
    """

    q: float = number(errors.require_not_negative)
    of_weighted: bool = structure(default=False)

    @property
    def equation(self) -> str:
        squared = r"\|F_k^q L \Delta_k\|^2" if self.of_weighted else r"\|L \Delta_k\|^2"
        return (
            r"\Delta = \frac{\sum_{k \in S_t} F_k^q L \Delta_k}{\sum_{k \in S_t} h_k},\ "
            rf"h_k = q F_k^{{q-1}} {squared} + L F_k^q"
        )

    needs_loss = True
    realised = True
    extra = 1

    def weights(self, members: Members, shares: jax.Array, rates: Any) -> jax.Array:
        return members.participation_count

    def contribution(self, weight: jax.Array, update: jax.Array, loss: Any, rate: jax.Array) -> Any:
        rate = jnp.maximum(rate, LEAST_RATE)  # in a round of rate 0 the update is 0 instead of 0 / 0
        step = update / rate
        loss = jnp.maximum(loss, 1e-10)  # a loss of zero has no negative power
        powered = loss**self.q
        squared = jnp.sum(step * step) * (powered**2 if self.of_weighted else 1.0)
        curvature = self.q * loss ** (self.q - 1) * squared + powered / rate
        return weight * powered * step, weight * curvature

    def combine(self, total: Any, members: Members, shares: jax.Array, rates: Any, params: jax.Array) -> jax.Array:
        steps, curvature = total
        return steps * (1 / jnp.where(curvature > 0, curvature, 1.0))
