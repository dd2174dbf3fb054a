"""Client-level privacy: how a client's update is bounded before the sum, and how the mean update is noised."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import (
    Adjacency,
    Event,
    FullBatch,
    GaussianSteps,
    Poisson,
    Sampling,
    SkellamSums,
    Unit,
    repeated,
)
from fedjax_dp.parts.by_round import ByRound, at_round
from fedjax_dp.parts.cohorts import SEEN, Cohort
from fedjax_dp.parts.contexts import StepContext
from fedjax_dp.parts.noise import NoiseSource, WhiteNoise, correlated_source, noise_event, strategy_of
from fedjax_dp.parts.record_privacy import LEAST_CLIP, check_mechanism, require_clip_norm
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import number, structure, value

LARGEST_POISSON = 2**16  # mean up to which float32 draws Poisson numbers accurately


class Participation(NamedTuple):
    """How a client takes part in the noisy sums of a run, as seen by the adversary."""

    sampling: Sampling  # of clients; FullBatch() if participation is public
    adjacency: Adjacency
    rounds: int  # number of sums; if `sampling` describes passes of rounds, the sums of whole passes
    times: float  # largest number of sums that contain this client
    min_separation: int  # least number of rounds from one of them to the next
    members: int  # clients of a cohort
    honest: int  # honest clients of a cohort, whose noise counts
    resolution: float  # of the sum
    size: int  # parameters of the model
    pattern: tuple[int, ...] | None = None  # the sums that contain this client, if known before the run


class UpdatePrivatizer(Protocol):
    """How updates are protected on the way to the model. Protection of whole clients is a `ClientPrivacy`.

    Implementations use `fedjax_dp.value`. The defaults send updates unchanged: inherit them, and write what differs and
    the required properties. Updates and their mean are flat `(size,)` float32, in the order of `pytrees.ravel`.
    `sensitivity` comes from `Aggregate.sensitivity`. `state` is what the server keeps; `init` creates it.
    A method `check(num_clients)` may refuse numbers that are invalid for so many clients.
    """

    @property
    def unit(self) -> Unit | None:
        """Required privacy property. Unit.CLIENT if updates are bounded and noised; else None."""
        ...

    @property
    def is_amplified(self) -> bool:
        """Derived property, conservative default. Whether subsampling of clients amplifies the privacy of its sums, if
        their noise is independent; for correlated noise see `amplified_sampling`."""
        return False

    @property
    def shared_noise(self) -> bool:
        """Derived property, conservative default. Whether clients share the noise of a sum: see `SharedNoise`."""
        return False

    @property
    def extra(self) -> int:
        """Derived property, conservative default. Count of extra numbers sent with an update."""
        return 0

    @property
    def noise_ratio(self) -> float | None:
        """Derived property, conservative default. Noise factor of a cohort that simulates a larger deployment."""
        return None

    def event(self, noise: float, attendance: Participation) -> Event:
        """Required privacy property. The event of a run for a client, given its participation, at noise multiplier
        `noise`."""
        ...

    def init(self, size: int) -> Any:
        """The server's state before round 0 for updates of `size` numbers: a pytree of arrays."""
        return ()

    def message(
        self, key: jax.Array, update: jax.Array, sizes: Sequence[int], state: Any, sent: "MessageEncoding"
    ) -> Any:
        """The message sent instead of the update `(size,)`, and the `extra` numbers, () if there are none; traced.

        key    of this client and round, used only here;
        sizes  number of parameters of each tensor of the model, in the order of the update.
        """
        ...

    def scales_down(
        self, update: jax.Array, sizes: Sequence[int], state: Any, sent: "MessageEncoding"
    ) -> jax.Array | None:
        """Whether `message` scales the update down (a diagnostic); None if unknown. Traced."""
        return None

    def learnt_clip_norm(self, state: Any) -> jax.Array | None:
        """The current clip norm (a diagnostic) if it is learnt over rounds; else None. Traced."""
        return None

    def release(
        self, key: jax.Array, round_index: Any, mean: jax.Array, extra: Any, state: Any, sensitivity: Any, expected: Any
    ) -> tuple[jax.Array, Any]:
        """The noisy mean by which the server moves, and the new state; traced.

        key       the same in all rounds of a run: combine it with `round_index` in every draw;
        extra     sum of the extra numbers; expected  expected messages per round, None if unknown.
        """
        return mean, state

    def noise_std(self, state: Any, sensitivity: Any, round_index: jax.Array) -> Any:
        """Standard deviation of each coordinate of the noise on the mean (a diagnostic).

        NaN if the noise cannot be separated from the mean; None without noise.
        """
        return None


class ClientPrivacy(UpdatePrivatizer, Protocol):
    """Protection of whole clients. If its noise comes from a `NoiseSource`, that field is called `source`."""

    @property
    def clip_norm(self) -> float:
        """Bound on the L2 norm of a client's update; its value in the first round if it is learnt."""
        ...

    @property
    def noise_multiplier(self) -> float:
        """Noise standard deviation on the mean, divided by how far a client of norm `clip_norm` can move the mean."""
        ...


class SharedNoise(ClientPrivacy, Protocol):
    """A `ClientPrivacy` in which each client adds a share of the noise, in units of the sum's resolution."""

    def check_resolution(self, resolution: float, members: int) -> None:
        """Raise a one-line ConfigurationError if sums of that resolution cannot represent the noise of `members`."""
        ...


def hides_clients(upload: UpdatePrivatizer) -> TypeGuard[ClientPrivacy]:
    """Whether an upload declares that it protects whole clients."""
    return upload.unit is Unit.CLIENT


def released_noise(upload: ClientPrivacy) -> float:
    """The noise multiplier of the simulated run, rounded to float32; `noise_ratio` of a deployment's."""
    ratio = 1.0 if upload.noise_ratio is None else float(np.float32(upload.noise_ratio))
    return float(np.float32(upload.noise_multiplier)) * ratio


class MessageEncoding(NamedTuple):
    """The number format of messages, on which clipping and shared noise depend."""

    members: int  # positions of the cohort
    resolution: float  # smallest difference that the sum can represent; 0 for floats
    limit: float = math.inf  # largest coordinate of a member's message that the sum can represent

    def room(self, clip_norm: jax.Array | float, size: int) -> jax.Array:
        """The clipping bound that keeps the message within `clip_norm` and `limit` after each coordinate is rounded."""
        return jnp.maximum(self.fitting(clip_norm) - size**0.5 / 2 * self.resolution, 0.0)

    def fitting(self, clip_norm: jax.Array | float, noise: float | jax.Array = 0.0) -> jax.Array | float:
        """The clipping bound that keeps a message within `limit`, with `noise` in a coordinate and rounded in float32.

        A message that does not fit stops the run, which would reveal it.
        """
        if not math.isfinite(self.limit):
            return clip_norm
        return jnp.clip(self.limit * (1 - 2.0**-20) - noise, 0.0, clip_norm)


@value
class PlainUpload(UpdatePrivatizer):
    """Updates are sent unchanged: all privacy comes from the local steps."""

    equation = r"\Delta_k"

    unit = None

    def event(self, noise: float, attendance: Participation) -> Event:
        raise errors.refuse("upload", "PlainUpload", "one that adds noise", "without noise there is no event")

    def message(
        self, key: jax.Array, update: jax.Array, sizes: Sequence[int], state: Any, sent: MessageEncoding
    ) -> Any:
        return update, ()


class UploadState(NamedTuple):
    """What the server keeps for its noise and for the clip norm."""

    noise: Any  # of the source
    round: Any = ()  # the next one, where the clip norm changes: `message` sees this state but not the round's index


@value
class ClientGaussian(UpdatePrivatizer):
    """DP-FedAvg (McMahan et al. 2018): clients clip updates, and the server adds noise to their mean in every round.

    clip_norm         S, bound on the L2 norm of a client's update; `by_tensor` bounds each of m tensors by S / sqrt(m);
    noise_multiplier  z: the noise on the mean has standard deviation z S times the distance by which a client of norm 1
                      can move the mean (`Aggregate.sensitivity`), so z S / (q W) for the estimator f_f;
    source            the source of standard normal noise; its step is the round;
    noise_by_round, clip_by_round  factors on z and S by round; z and S are the values of round 0;
    noise_ratio       r / R if a cohort of r simulates a deployment's cohort of R: a mean over r clients then has the
                      noise of the deployment's mean over R. The simulated run itself has noise multiplier z r / R.
    """

    clip_norm: float = number(require_clip_norm)
    noise_multiplier: float
    source: NoiseSource = WhiteNoise()
    noise_ratio: float = number(
        errors.Limits("in (0, 1], as a part of a deployment's noise", lambda ratio: 0 < ratio <= 1), default=1.0
    )
    by_tensor: bool = structure(default=False)
    noise_by_round: ByRound | None = None
    clip_by_round: ByRound | None = None

    unit = Unit.CLIENT
    is_amplified = True

    @property
    def equation(self) -> str:
        clipped = (r"\Delta_k \min(1, S / \|\Delta_k\|)", r"\Delta_k^{(l)} \min(1, S / (\sqrt m \|\Delta_k^{(l)}\|))")
        return rf"{clipped[self.by_tensor]};\ \Delta \leftarrow \Delta + z S \rho\, \xi"

    def event(self, noise: float, attendance: Participation) -> Event:
        return noisy_sums(self.source, noise, attendance)

    def init(self, size: int) -> UploadState:
        return UploadState(self.source.init(size), () if self.clip_by_round is None else jnp.int32(0))

    def message(
        self, key: jax.Array, update: jax.Array, sizes: Sequence[int], state: Any, sent: MessageEncoding
    ) -> Any:
        return self._clip(update, sizes, state, sent)[0], ()

    def scales_down(
        self, update: jax.Array, sizes: Sequence[int], state: Any, sent: MessageEncoding
    ) -> jax.Array | None:
        return ~self._clip(update, sizes, state, sent)[1]

    def _clip(
        self, update: jax.Array, sizes: Sequence[int], state: Any, sent: MessageEncoding
    ) -> tuple[jax.Array, jax.Array]:
        bound = sent.room(self._clip_norm(state), update.size)
        return clip_tensors(update, bound, sizes if self.by_tensor else (update.size,))

    def release(
        self, key: jax.Array, round_index: Any, mean: jax.Array, extra: Any, state: Any, sensitivity: Any, expected: Any
    ) -> tuple[jax.Array, Any]:
        noise, kept = server_noise(self.source, key, round_index, mean.size, state.noise)
        then = UploadState(kept, () if self.clip_by_round is None else state.round + 1)
        return mean + self.scale(state, sensitivity, round_index) * noise, then

    def scale(self, state: Any, sensitivity: Any, round_index: jax.Array) -> Any:
        """Factor on the source's noise before it is added to the mean of a round."""
        noise = at_round(self.noise_multiplier, self.noise_by_round, round_index)
        return noise * self._clip_norm(state) * sensitivity * self.noise_ratio

    def _clip_norm(self, state: Any) -> Any:
        return (
            self.clip_norm if self.clip_by_round is None else at_round(self.clip_norm, self.clip_by_round, state.round)
        )

    def noise_std(self, state: Any, sensitivity: Any, round_index: jax.Array) -> jax.Array:
        return self.scale(state, sensitivity, round_index) * jnp.sqrt(self.source.variance(round_index))

    def check(self, num_clients: int) -> None:
        check_mechanism(self, num_clients)
        if np.ndim(self.noise_multiplier):
            raise errors.refuse("noise_multiplier", "one per client", "one number for noise that the server adds")
        if not self.source.fresh and (self.noise_by_round or self.clip_by_round):
            wanted = "left out where noise is correlated over rounds"
            remedy = "later noise cancels earlier noise of the same size; use dp_fedavg"
            raise errors.refuse("noise_schedule or clip_schedule", "one", wanted, remedy)


class ClipState(NamedTuple):
    """The clip norm that the rounds learn, and what the source keeps for updates and for bits."""

    clip_norm: jax.Array
    noise: Any
    bit_noise: Any


@value
class AdaptiveClientGaussian(UpdatePrivatizer):
    """DP-FedAvg whose clip norm follows a quantile of the updates' norms (Andrew et al. 2021, arXiv:1905.03871).

    Each client also sends one bit: whether its update was within the clip norm C. The noisy fraction b changes C:
    C <- C exp(-rate (b - quantile)). The sum of the bits has noise `bit_noise`, and both releases together have noise
    multiplier z: updates have z_u with z^-2 = z_u^-2 + (2 bit_noise)^-2, as a bit, sent as +-1/2, has sensitivity 1/2.
    clip_norm    of the first round; it never falls below `LEAST_CLIP`, where float32 would lose the noise;
    noise_ratio  as for `ClientGaussian`, on both noises: z and bit_noise are the deployment's.
    """

    clip_norm: float = number(require_clip_norm)
    noise_multiplier: float
    quantile: float = number(
        errors.require_in_unit_interval,
        option="clip_quantile",
        remedy="at 0 the clip norm can only fall and at 1 only grow, as no fraction of clients is below 0 or above 1",
    )
    rate: float = number(errors.require_not_negative, option="clip_rate")
    bit_noise: float = number(errors.require_not_negative)
    source: NoiseSource = WhiteNoise()
    noise_ratio: float = number(
        errors.Limits("in (0, 1], as a part of a deployment's noise", lambda ratio: 0 < ratio <= 1), default=1.0
    )

    equation = (
        r"\Delta_k \min(1, C_t / \|\Delta_k\|);\ \Delta \leftarrow \Delta + z_u C_t \rho\, \xi,\ "
        r"C_{t+1} = C_t \exp(-\eta_C (\tilde b_t - \gamma))"
    )

    unit = Unit.CLIENT
    is_amplified = True
    extra = 1

    def event(self, noise: float, attendance: Participation) -> Event:
        return noisy_sums(self.source, noise, attendance)

    def init(self, size: int) -> ClipState:
        return ClipState(jnp.asarray(self.clip_norm, jnp.float32), self.source.init(size), self.source.init(1))

    def message(
        self, key: jax.Array, update: jax.Array, sizes: Sequence[int], state: Any, sent: MessageEncoding
    ) -> Any:
        bounded, within = self._clip(update, state, sent)
        return bounded, within.astype(jnp.float32) - 0.5

    def scales_down(
        self, update: jax.Array, sizes: Sequence[int], state: ClipState, sent: MessageEncoding
    ) -> jax.Array | None:
        return ~self._clip(update, state, sent)[1]

    def learnt_clip_norm(self, state: ClipState) -> jax.Array | None:
        return state.clip_norm

    def _clip(self, update: jax.Array, state: ClipState, sent: MessageEncoding) -> tuple[jax.Array, jax.Array]:
        return clip_tensors(update, sent.room(state.clip_norm, update.size), (update.size,))

    def release(
        self, key: jax.Array, round_index: Any, mean: jax.Array, extra: Any, state: Any, sensitivity: Any, expected: Any
    ) -> tuple[jax.Array, Any]:
        noise, kept = server_noise(self.source, key, round_index, mean.size, state.noise)
        bit, bits_kept = server_noise(self.source, role_key(key, "bits"), round_index, 1, state.bit_noise)
        bits = extra + self.bit_noise * self.noise_ratio * bit[0]
        within = bits / expected + 0.5
        moved = state.clip_norm * jnp.exp(-self.rate * (within - self.quantile))
        then = ClipState(jnp.maximum(moved, LEAST_CLIP), kept, bits_kept)
        return mean + self.scale(state, sensitivity) * noise, then

    def scale(self, state: ClipState, sensitivity: Any) -> jax.Array:
        """Factor on the source's noise before it is added to the mean: z_u C times sensitivity and `noise_ratio`."""
        on_updates = self.noise_multiplier / jnp.sqrt(1 - (self.noise_multiplier / (2 * self.bit_noise)) ** 2)
        return on_updates * state.clip_norm * sensitivity * self.noise_ratio

    def noise_std(self, state: ClipState, sensitivity: Any, round_index: jax.Array) -> jax.Array:
        return self.scale(state, sensitivity) * jnp.sqrt(self.source.variance(round_index))

    def check(self, num_clients: int) -> None:
        check_mechanism(self, num_clients)
        if not float(self.bit_noise) > float(self.noise_multiplier) / 2:
            raise errors.refuse(
                "bit_noise",
                float(self.bit_noise),
                f"above half of noise_multiplier {float(self.noise_multiplier):g}",
                "raise bit_noise, or leave out adaptive_clip: the bits spend the same privacy budget",
            )


@value
class ClientSkellam(UpdatePrivatizer):
    """Clients clip updates and add shares of integer noise before a secure sum (Agarwal et al. 2021).

    Everyone, the server included, sees the sum with the noise of all shares: a difference of two Poisson numbers with
    total variance (z S / resolution)^2 in units of the ring. Shares are equal and the cohort has a fixed size, so that
    they add up. This needs a secure sum, whose resolution is the unit.
    """

    clip_norm: float = number(require_clip_norm)
    noise_multiplier: float

    equation = (
        r"\lfloor 2^f \Delta_k \min(1, S / \|\Delta_k\|) \rceil + \zeta_k,\ "
        r"\textstyle\sum_k \zeta_k \sim \text{Skellam of variance}\ (2^f z S)^2"
    )

    unit = Unit.CLIENT
    shared_noise = True

    def event(self, noise: float, attendance: Participation) -> Event:
        """The event of secure sums with the honest clients' shares of the noise, in units of the ring.

        Rounding to the ring adds at most 1/2 to each of d coordinates, so norms grow by at most sqrt(d)/2.
        """
        clip = float(self.clip_norm) / attendance.resolution
        l2 = clip + np.sqrt(attendance.size) / 2
        variance = (noise * clip) ** 2 * attendance.honest / attendance.members
        one = SkellamSums(
            variance=variance,
            l2=l2,
            l1=min(np.sqrt(attendance.size) * l2, l2 * l2),
            adjacency=Adjacency.REPLACE_ONE,
            count=1,
            unit=Unit.CLIENT,
        )
        return repeated(one, attendance.times)

    def message(
        self, key: jax.Array, update: jax.Array, sizes: Sequence[int], state: Any, sent: MessageEncoding
    ) -> Any:
        bounded, _ = self._clip(update, sent)
        variance = (self.noise_multiplier * self.clip_norm / sent.resolution) ** 2 / sent.members
        first, second = (
            jax.random.poisson(role_key(key, name), variance / 2, bounded.shape)
            for name in ("skellam plus", "skellam minus")
        )
        whole = jnp.round(bounded / sent.resolution) + (first - second).astype(jnp.float32)
        return whole * sent.resolution, ()

    def scales_down(
        self, update: jax.Array, sizes: Sequence[int], state: Any, sent: MessageEncoding
    ) -> jax.Array | None:
        return ~self._clip(update, sent)[1]

    def _clip(self, update: jax.Array, sent: MessageEncoding) -> tuple[jax.Array, jax.Array]:
        """Also to what fits with the share of the noise: above 16 deviations and 70 units once in e^100 draws."""
        share = self.noise_multiplier * self.clip_norm / sent.members**0.5
        bound = sent.fitting(self.clip_norm, 16 * share + 70 * sent.resolution)
        return clip_tensors(update, bound, (update.size,))

    def noise_std(self, state: Any, sensitivity: Any, round_index: jax.Array) -> float:
        return math.nan  # the sum arrives with its noise and cannot be separated from it

    def check(self, num_clients: int) -> None:
        check_mechanism(self, num_clients)
        if np.ndim(self.noise_multiplier):
            raise errors.refuse("noise_multiplier", "one per client", "one number, shared equally by the cohort")

    def check_resolution(self, resolution: float, members: int) -> None:
        """Refuse noise that float32 cannot represent exactly: it would be coarser than the ring, or zero."""
        mean = (float(self.noise_multiplier) * float(self.clip_norm) / resolution) ** 2 / (2 * members)
        if mean > LARGEST_POISSON or float(self.clip_norm) / resolution > 2**22:
            raise errors.refuse(
                "fractional_bits",
                f"{-np.log2(resolution):g}",
                f"few enough for exact integer noise, whose Poisson "
                f"numbers have mean {mean:.3g} and may have {LARGEST_POISSON}",
                "take fewer bits for the fraction",
            )


def noisy_sums(source: NoiseSource, noise: float, attendance: Participation) -> Event:
    """The event of sums to which the server adds noise: one per sum, or one for the run if noise is correlated."""
    at = attendance
    seen = isinstance(at.sampling, FullBatch)
    if not source.fresh and not seen:  # one sum a pass, of all that a client sends in it
        reach = float(np.linalg.norm(strategy_of(source, at.min_separation)))
        return GaussianSteps(noise / reach, at.sampling, at.adjacency, at.rounds, Unit.CLIENT)
    if not source.fresh:
        times = min(int(np.ceil(at.times)), -(-at.rounds // at.min_separation))
        of_run = (at.sampling, at.adjacency, at.rounds, times, at.min_separation, Unit.CLIENT)
        return noise_event(source, noise, *of_run, pattern=at.pattern)
    if seen:
        return repeated(GaussianSteps(noise, at.sampling, at.adjacency, 1, Unit.CLIENT), at.times)
    return GaussianSteps(noise, at.sampling, at.adjacency, at.rounds, Unit.CLIENT)


def amplified_sampling(
    upload: UpdatePrivatizer, cohort: Cohort, num_clients: int, rounds: int, known: int
) -> tuple[Sampling, Adjacency]:
    """The sampling of clients that amplifies the noise on their updates, where `known` members are seen; else `SEEN`.

    Noise that is correlated by a strategy of b bands is amplified in passes of at least b rounds if each client joins
    one round of a pass, at least b after the last, by an independent coin: its columns of the strategy are orthogonal,
    so a pass is one sampled release of sensitivity |c| (Choquette-Choo et al. 2023, arXiv:2306.08153, Theorem 4).
    """
    source = correlated_source(upload)
    if not upload.is_amplified:
        return SEEN
    sampling, adjacency = cohort.amplification(num_clients, known)
    if source is not None:
        apart = min(cohort.rounds_per_pass(num_clients), cohort.min_separation(num_clients))
        column = strategy_of(source, max(rounds, apart + 1))  # the first rounds of a run are hidden as all of it is
        bands = int(np.flatnonzero(column)[-1]) + 1
        if bands > apart or not isinstance(sampling, Poisson):
            return SEEN
    return sampling, adjacency


def clip_tensors(update: jax.Array, clip_norm: jax.Array | float, sizes: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """The update with each of m parts scaled down to clip_norm / sqrt(m), and whether all were within the bound.

    A part that is not finite becomes zero, so that the bound always holds.
    """
    bound = clip_norm / len(sizes) ** 0.5
    edges = np.cumsum([0, *sizes])
    parts, within = [], jnp.bool_(True)
    for low, high in itertools.pairwise(edges):
        part = update[low:high]
        norm = jnp.sqrt(jnp.sum(part * part))
        factor = jnp.where(jnp.isfinite(norm), jnp.minimum(1.0, bound / jnp.maximum(norm, 1e-12)), 0.0)
        parts.append(jnp.where(factor > 0, part, 0.0) * factor)
        within &= norm <= bound
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts), within


def server_noise(
    source: NoiseSource, key: jax.Array, round_index: jax.Array, size: int, state: Any
) -> tuple[jax.Array, Any]:
    """Standard normal noise of the server in a round, and what its source keeps; the round is the source's step."""
    at = round_index.astype(jnp.uint32)
    one = jnp.float32(1)
    return source.draw(key, StepContext(jnp.int32(0), round_index, at, one, one, jnp.bool_(True)), size, state)
