"""Record-level privacy: how a local step bounds and noises its gradient. One value holds clip norm and noise."""

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import accounting, errors, gradients, validation
from fedjax_dp.models import Model
from fedjax_dp.parts.batches import Batches, divisors_of, neighbours_of
from fedjax_dp.parts.by_round import ByRound, at_round
from fedjax_dp.parts.clipping import Bound, ClipBatch, ClipRecords, Records, StepReport, report_of
from fedjax_dp.parts.contexts import StepContext
from fedjax_dp.parts.noise import NoiseSource, WhiteNoise, noise_event, require_stateless
from fedjax_dp.pytrees import (
    check_part,
    client_numbers,
    field_of,
    number,
    ravel,
    replace,
    require_numbers,
    structure,
    value,
)

LastRates = Callable[[], np.ndarray]
LEAST_CLIP = LEAST_RATE = 1e-12  # so that noise over batches and cohorts, or times rates, does not underflow in float32


class Privatizer(Protocol):
    """Computes the gradient of a local step from a batch. Implementations use `fedjax_dp.value`.

    A privatizer that protects records has a field `noise_multiplier`, a number or one per client `(num_clients,)`. If
    it draws its noise from a `NoiseSource`, that field is called `source`. With a `clip_norm` it is a
    `ClippingPrivatizer`; with the variance of its noise, a `MeasuredPrivatizer`.
    A method `check(num_clients)` may refuse numbers that are invalid for so many clients.
    """

    def gradient(
        self, key: jax.Array, step: StepContext, model: Model, params: Any, records: Records
    ) -> tuple[jax.Array, StepReport]:
        """The gradient at the tree `params`, flat `(size,)` in the order of `pytrees.ravel`, and diagnostics; traced.

        The key belongs to one client's round: combine it with `step.number` for fresh noise in each step. The noisy
        gradient must be finite for all records.
        """
        ...

    def client_noise(self, num_clients: int) -> Any:
        """Required privacy property. The noise multiplier of every client, floats; None without privacy."""
        ...

    def event(self, noise: float, batches: Batches, records: int, steps: int, rates: LastRates) -> accounting.Event:
        """Required privacy property. The event of `steps` local steps of a client with noise multiplier `noise`.

        rates: computes the learning rate of the last step of every round `(rounds,)`.
        """
        ...

    def noise_unit(self, divisor: int) -> float:
        """Required privacy property. Noise standard deviation on a mean over `divisor` records, per noise multiplier
        and clip norm: 1 / divisor if each record is clipped."""
        ...

    @property
    def on_upload(self) -> bool:
        """Required privacy property. Whether noise is added only in the last step and protects all steps of the round.

        If so, the steps must be contractions. If not, the gradient of each step has its own noise.
        """
        ...

    @property
    def no_epsilon_reason(self) -> str | None:
        """Required privacy property. Why there is no epsilon; None if there is one."""
        ...

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Required privacy property. The assumptions of the event."""
        ...


class ClippingPrivatizer(Privatizer, Protocol):
    """A privatizer that declares its clip norm."""

    @property
    def clip_norm(self) -> float:
        """C: the noise on a gradient has standard deviation `noise_multiplier` times C times `noise_unit`.

        In L2, or in the `Release.norm` of its event.
        """
        ...


def clips(privatizer: Privatizer) -> TypeGuard[ClippingPrivatizer]:
    """Whether a privatizer declares its clip norm."""
    return getattr(privatizer, "clip_norm", None) is not None


class MeasuredPrivatizer(Privatizer, Protocol):
    """A privatizer that declares the variance of its noise, for rules that subtract it from a second moment."""

    def noise_variance(self, step: StepContext, divisor: Any) -> Any:
        """Variance of each coordinate of the noise in a step's gradient over `divisor` records, a number; traced.

        Computed from public numbers only. NaN for all arguments if no public number determines it.
        """
        ...


def states_variance(privatizer: Privatizer) -> TypeGuard[MeasuredPrivatizer]:
    """Whether a privatizer declares the variance of its noise."""
    return getattr(privatizer, "noise_variance", None) is not None


def variance_of(privatizer: Privatizer, step: StepContext, divisor: Any) -> jax.Array:
    """Variance of each coordinate of the noise in a gradient, a float32 scalar.

    Raises: ConfigurationError in one line if the privatizer does not declare it.
    """
    if not states_variance(privatizer):
        raise _refuse_unknown_variance(privatizer)
    return jnp.asarray(privatizer.noise_variance(step, divisor), jnp.float32)


def require_measured(privatizer: Privatizer) -> None:
    """Refuse a privatizer that does not declare the variance of its noise. Numbers are concrete here."""
    one, first = jnp.float32(1), jnp.int32(0)
    step = StepContext(first, first, first.astype(jnp.uint32), one, one, jnp.bool_(True))
    if bool(jnp.isnan(variance_of(privatizer, step, one))):
        raise _refuse_unknown_variance(privatizer)


def _refuse_unknown_variance(privatizer: Privatizer) -> errors.ConfigurationError:
    name = type(privatizer).__name__
    return errors.refuse(
        "privatizer",
        f"{name}, which does not declare the variance of its noise"
        if not states_variance(privatizer)
        else f"{name} by the median",
        "one whose noise has a public variance, for rules that subtract it",
        "implement noise_variance, or use a rule that subtracts nothing, such as local_rule adam",
    )


@value
class NonPrivate:
    """The mean gradient without clipping and noise: there is no epsilon."""

    equation = r"\tilde g = \frac{1}{B} \sum_{i \in \mathcal{B}} g_i"

    no_epsilon_reason = "gradients are neither clipped nor noised"
    assumptions = ()
    on_upload = False

    def gradient(
        self, key: jax.Array, step: StepContext, model: Model, params: Any, records: Records
    ) -> tuple[jax.Array, StepReport]:
        batch = gradients.plain_sum(model, params, records.x, records.y, records.mask, keys=records.keys)
        return ravel(batch.total)[0] / records.divisor, report_of(batch, records)

    def noise_variance(self, step: StepContext, divisor: Any) -> float:
        return 0.0

    def client_noise(self, num_clients: int) -> None:
        return None

    def event(self, noise: float, batches: Batches, records: int, steps: int, rates: LastRates) -> accounting.Event:
        raise errors.refuse("privatizer", "NonPrivate", "one that adds noise", "without noise there is no event")

    def noise_unit(self, divisor: int) -> float:
        return 0.0


def require_clip_norm(what: str, clip_norm: Any) -> None:
    errors.require_positive(what, clip_norm, "use an algorithm without privacy to train without clipping")
    if (clip := float(clip_norm)) < LEAST_CLIP:
        raise errors.refuse(what, clip, f"at least {LEAST_CLIP:g}", "float32 would lose the noise")


@value
class RecordGaussian:
    """DP-SGD: bounds the influence of one record on the mean gradient and adds Gaussian noise, in every local step.

    clip_norm         C > 0, bound on the L2 norm of one record's gradient over all parameters;
    noise_multiplier  z >= 0, a number or one per client `(num_clients,)`: the noise on the sum has standard deviation
                      z C in every coordinate, so the noise on the mean has z C / B;
    bound             how C is enforced, see `clipping`;
    source            the source of standard normal noise;
    noise_by_round, clip_by_round  factors on z and C by round; z and C are the values of round 0.

    | zero gradient | stays zero | | |g| = C | unchanged | | NaN or overflowing gradient | contributes zero |
    """

    clip_norm: float = number(require_clip_norm)
    noise_multiplier: float | np.ndarray | jax.Array
    bound: Bound = ClipRecords()
    source: NoiseSource = WhiteNoise()
    noise_by_round: ByRound | None = None
    clip_by_round: ByRound | None = None

    equation = r"\tilde g = \bar g + z u\, \xi"

    on_upload = False

    def gradient(
        self, key: jax.Array, step: StepContext, model: Model, params: Any, records: Records
    ) -> tuple[jax.Array, StepReport]:
        bounded = self.bound.apply(model, params, records, at_round(self.clip_norm, self.clip_by_round, step.round))
        noise = multiplier_of(self, step.client, step.round)
        std, size = noise * bounded.noise_unit, bounded.mean.size
        report = bounded.report._replace(noise=jnp.mean(std**2) * size * self.source.variance(step.number))
        return bounded.mean + std * self.source.draw(key, step, size, ())[0], report

    def noise_variance(self, step: StepContext, divisor: Any) -> Any:
        """(z C / B)^2 if records are clipped, (z C)^2 if batches are, times the variance of the source."""
        if getattr(self.bound, "varies", False):
            return math.nan
        noise = multiplier_of(self, step.client, step.round)
        std = noise * at_round(self.clip_norm, self.clip_by_round, step.round) * self.noise_unit(divisor)
        return std**2 * self.source.variance(step.number)

    def client_noise(self, num_clients: int) -> list[float]:
        return noise_of_clients(self.noise_multiplier, num_clients)

    def event(self, noise: float, batches: Batches, records: int, steps: int, rates: LastRates) -> accounting.Event:
        """The event of `steps` local steps of one client.

        Adjacency: add-remove for Poisson and allocated batches, replace-one for all others, whose sizes are fixed.
        """
        sampling = batches.sampling(records)
        adjacency = neighbours_of(sampling)
        if not self.bound.per_record:
            name = type(self.bound).__name__
            if adjacency is accounting.Adjacency.ADD_REMOVE:
                wanted, remedy = "ClipRecords for batches of random size", "or use batches of fixed size"
                raise errors.refuse("bound", name, wanted, remedy)
            if len(set(divisors_of(batches, records, steps).tolist())) > 1:
                wanted, remedy = "ClipRecords for batches of several sizes", "or drop the last of a pass"
                raise errors.refuse("bound", name, wanted, remedy)
        return noise_event(self.source, noise, sampling, adjacency, steps, steps // sampling.steps_per_epoch)

    def noise_unit(self, divisor: int) -> float:
        return 1 / divisor if self.bound.per_record else 1.0

    @property
    def no_epsilon_reason(self) -> str | None:
        return self.bound.no_epsilon_reason

    @property
    def assumptions(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.bound.assumption,)))

    def check(self, num_clients: int) -> None:
        check_mechanism(self, num_clients)
        require_stateless(self.source)
        check_part(self.bound)


@value
class OutputGaussian:
    """dp_fedavg_output: clips every step and adds noise once, in the last step of a round, to protect the upload.

    The clipped steps move the model by at most D = C * sum of the round's learning rates, so replacing a record moves
    the upload by at most 2 D.
    noise_multiplier  z >= 0, a number or one per client: the noise on the upload has standard deviation z D;
    bound             `ClipBatch` as in dp_fedavg_output, or `ClipRecords`;
    literal           multiplies the noise by the learning rate, as printed in dp_fedavg_output's equation (13). The
                      noise is then too small for the epsilon of the paper; the Guarantee counts the actual noise;
    every_step        adds noise of that size in each step; only the last one is counted;
    noise_by_round, clip_by_round  as for `RecordGaussian`.
    """

    clip_norm: float = number(require_clip_norm)
    noise_multiplier: float | np.ndarray | jax.Array
    bound: Bound = ClipBatch()
    source: NoiseSource = WhiteNoise()
    literal: bool = structure(default=False)
    every_step: bool = structure(default=False)
    noise_by_round: ByRound | None = None
    clip_by_round: ByRound | None = None

    on_upload = True

    @property
    def equation(self) -> str:
        size = r"z D \eta" if self.literal else "z D"
        where = "every" if self.every_step else "the last"
        return rf"\tilde g = \bar g,\ w \mathrel{{+}}= {size}\, \xi\ \text{{in {where} step}},\ D = C \sum_s \eta_s"

    def gradient(
        self, key: jax.Array, step: StepContext, model: Model, params: Any, records: Records
    ) -> tuple[jax.Array, StepReport]:
        clip = at_round(self.clip_norm, self.clip_by_round, step.round)
        bounded, std = self.bound.apply(model, params, records, clip), self._std(step)

        def noisy() -> jax.Array:
            return bounded.mean + std * self.source.draw(key, step, bounded.mean.size, ())[0]

        expected = std**2 * bounded.mean.size * self.source.variance(step.number)
        if self.every_step:
            return noisy(), bounded.report._replace(noise=expected)
        report = bounded.report._replace(noise=jnp.where(step.is_last, expected, 0.0))
        return jnp.where(step.is_last, noisy(), bounded.mean), report

    def noise_variance(self, step: StepContext, divisor: Any) -> jax.Array:
        """(z D / rate)^2, or (z D)^2 if `literal`, in the steps that have noise."""
        variance = self._std(step) ** 2 * self.source.variance(step.number)
        return variance if self.every_step else jnp.where(step.is_last, variance, 0.0)

    def _std(self, step: StepContext) -> jax.Array:
        """Signed standard deviation of the noise in a gradient: a step subtracts its gradient times the rate."""
        noise = multiplier_of(self, step.client, step.round)
        on_model: jax.Array = noise * at_round(self.clip_norm, self.clip_by_round, step.round) * step.total_rate
        return on_model if self.literal else -on_model / step.rate

    def client_noise(self, num_clients: int) -> list[float]:
        return noise_of_clients(self.noise_multiplier, num_clients)

    def event(self, noise: float, batches: Batches, records: int, steps: int, rates: LastRates) -> accounting.Event:
        """The event of one upload, for a record that may be in any batch of the round; replace-one neighbours.

        Literal noise is counted at the smallest of the rounds' last learning rates.
        """
        sampling = batches.sampling(records)
        if isinstance(sampling, accounting.WithoutReplacement | accounting.WithReplacement):
            sampling = accounting.AnyStep(sampling, steps)
        elif not isinstance(sampling, accounting.FullBatch):
            raise errors.refuse("batches", str(sampling), "of a fixed size for noise on the upload")
        actual = noise * float(rates().min()) if self.literal else noise
        return noise_event(self.source, actual, sampling, accounting.Adjacency.REPLACE_ONE, 1, 1)

    def noise_unit(self, divisor: int) -> float:
        return 1.0

    @property
    def no_epsilon_reason(self) -> str | None:
        return self.bound.no_epsilon_reason

    @property
    def assumptions(self) -> tuple[str, ...]:
        literal = (
            "noise is multiplied by the learning rate (dp_fedavg_output as printed) and counted at the run's smallest "
            "rate"
        )
        return tuple(filter(None, (literal if self.literal else None, self.bound.assumption)))

    def check(self, num_clients: int) -> None:
        check_mechanism(self, num_clients)
        require_stateless(self.source)
        if self.bound.no_epsilon_reason or self.bound.assumption:
            raise errors.refuse("bound", type(self.bound).__name__, "ClipBatch or ClipRecords for noise on the upload")


def of_client(noise_multiplier: Any, client: jax.Array) -> jax.Array:
    """The noise multiplier of one client."""
    noise = jnp.asarray(noise_multiplier, jnp.float32)
    return noise[client] if noise.ndim else noise


def scale_noise(privatizer: Any, factor: Any) -> Any:
    """The privatizer with `factor` times its noise multiplier, if it has one; wrappers are kept."""
    if (base := getattr(privatizer, "base", None)) is not None:
        return replace(privatizer, base=scale_noise(base, factor))
    noise = getattr(privatizer, "noise_multiplier", None)
    return privatizer if noise is None else replace(privatizer, noise_multiplier=jnp.asarray(noise) * factor)


def multiplier_of(privatizer: Any, client: jax.Array, round_index: jax.Array) -> jax.Array:
    """The noise multiplier of one client in a round; 0 without noise."""
    noise = field_of(privatizer, "noise_multiplier")
    own = jnp.float32(0) if noise is None else of_client(noise, client)
    return at_round(own, field_of(privatizer, "noise_by_round"), round_index)


def noise_of_clients(noise_multiplier: Any, num_clients: int) -> list[float]:
    """The noise multiplier of every client, as floats."""
    return np.broadcast_to(np.asarray(noise_multiplier, np.float32), (num_clients,)).tolist()


def require_clip_norms(part: Any, rounds: int) -> None:
    """Refuse a `clip_by_round` under which the clip norm of a round is so small that its noise underflows."""
    least = float(part.clip_norm) * float(field_of(part, "clip_by_round").factors(rounds).min())
    if least < LEAST_CLIP:
        got, wanted = f"{least:.3g}", f"at least {LEAST_CLIP:g}"
        raise errors.refuse("clip_norm of every round", got, wanted, "float32 would lose the noise")


def check_mechanism(part: Any, num_clients: int) -> None:
    """Refuse an invalid noise multiplier or clip norm, and invalid changes of them over rounds."""
    require_numbers(part)
    require_clip_norm("clip_norm", part.clip_norm)  # a subclass may have written the field anew
    noise = client_numbers("noise_multiplier", part.noise_multiplier, num_clients)
    if not np.all((noise >= 0) & np.isfinite(noise)):
        raise errors.refuse("noise_multiplier", part.noise_multiplier, "zero or positive and finite")
    for what in ("noise", "clip"):
        if (changes := getattr(part, f"{what}_by_round", None)) is not None:
            validation.require_part(f"{what}_by_round", changes, ByRound)
            changes.check(what)
