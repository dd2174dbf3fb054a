"""What happens to a client's update before it is summed, and to the mean of the updates: privacy of whole clients."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.accounting import Adjacency, Event, FullBatch, Sampling, SkellamSums, Unit, repeated
from fedjax_dp.parts.by_round import ByRound, at_round, check_changes
from fedjax_dp.parts.contexts import StepContext
from fedjax_dp.parts.noise import NoiseSource, WhiteNoise, noise_event
from fedjax_dp.parts.record_privacy import LEAST_CLIP, check_mechanism
from fedjax_dp.prng import role_key
from fedjax_dp.pytrees import structure, value

LARGEST_POISSON = 2**16  # mean up to which float32 draws Poisson numbers faithfully


class Participation(NamedTuple):
    """How a client attends the noisy sums of a run, in the eyes of the adversary."""

    sampling: Sampling  # of clients; FullBatch() where who takes part is public
    adjacency: Adjacency
    rounds: int  # sums in all; where passes of rounds are drawn, those of whole passes that its sampling is of
    times: float  # of them with this client, at most
    min_separation: int  # rounds between two of these, at least
    members: int  # of a cohort
    honest: int  # of them, whose noise counts
    resolution: float  # of the sum
    size: int  # parameters of the model
    pattern: tuple[int, ...] | None = None  # the very sums with this client, where they are known beforehand


class UpdatePrivatizer(Protocol):
    """The way of an update from the client to the server; all that hide whole clients are a `ClientPrivacy`.

    Implementations are made with `fedjax_dp.value`. The bodies given here are those of an update that goes as it is;
    who inherits them writes what differs, and the facts. Updates and their mean are flat `(size,)` float32, in the
    order of `pytrees.ravel`; `sensitivity` is what `Aggregate.sensitivity` says; `state` is what the server keeps, as
    `init` made it.
    """

    @property
    def unit(self) -> Unit | None:
        """Required privacy property. Unit.CLIENT where updates are bounded and noised; None: they are not."""
        ...

    @property
    def is_amplified(self) -> bool:
        """Derived property, conservative default. Whether hidden cohorts amplify the privacy of its sums."""
        return False

    @property
    def shared_noise(self) -> bool:
        """Derived property, conservative default. Whether only sums hide anybody, by clients' shares: `SharedNoise`."""
        return False

    @property
    def extra(self) -> int:
        """Derived property, conservative default. Numbers that travel with an update."""
        return 0

    @property
    def noise_ratio(self) -> float | None:
        """Derived property, conservative default. Factor on the noise of a cohort that stands for a larger one."""
        return None

    def event(self, noise: float, attendance: Participation) -> Event:
        """Required privacy property. What a run releases of a client that attends it so, at a noise multiplier."""
        ...

    def init(self) -> Any:
        """What the server keeps before round 0: a pytree of arrays."""
        return ()

    def message(
        self, key: jax.Array, update: jax.Array, sizes: Sequence[int], state: Any, sent: "MessageEncoding"
    ) -> Any:
        """What stands for the update `(size,)`, and the `extra` numbers, () if there are none; traced.

        key    of this client and round, for this alone;
        sizes  parameters of each tensor of the model, in their order in the update.
        """
        ...

    def scales_down(
        self, update: jax.Array, sizes: Sequence[int], state: Any, sent: "MessageEncoding"
    ) -> jax.Array | None:
        """Whether `message` makes the update shorter, a probe; None: it does not say. Traced."""
        return None

    def learnt_clip_norm(self, state: Any) -> jax.Array | None:
        """The clip norm that a round begins with, where rounds learn it, a probe; traced."""
        return None

    def release(
        self, key: jax.Array, round_index: Any, mean: jax.Array, extra: Any, state: Any, sensitivity: Any, expected: Any
    ) -> tuple[jax.Array, Any]:
        """The mean as the server moves by it, with its noise, and the new state; traced.

        key       the same in all rounds of a run: the round is part of every draw;
        extra     sum of the extra numbers; expected  messages of a round, None where nobody knows.
        """
        return mean, state

    def noise_std(self, state: Any, sensitivity: Any, round_index: jax.Array) -> Any:
        """Of a coordinate of the noise on the mean, a probe; NaN: not known apart from it; None: there is no noise."""
        return None

    def check(self, num_clients: int) -> None:
        """Raise ConfigurationError, in one line, for numbers that cannot be meant for so many clients."""
        return None


class ClientPrivacy(UpdatePrivatizer, Protocol):
    """An upload that hides whole clients; one that draws its noise from a `NoiseSource` calls it `source`."""

    @property
    def clip_norm(self) -> float:
        """Bound on a client's update, in L2; of the first round, where it is learnt."""
        ...

    @property
    def noise_multiplier(self) -> float:
        """What its event is priced by: noise on the mean, over what a client of norm `clip_norm` can move it."""
        ...


class SharedNoise(ClientPrivacy, Protocol):
    """A `ClientPrivacy` to whose noise every client adds a share, in units of the sum's resolution."""

    def check_resolution(self, resolution: float, members: int) -> None:
        """Raise ConfigurationError, in one line, where sums of that resolution cannot carry the noise of so many."""
        ...


def hides_clients(upload: UpdatePrivatizer) -> TypeGuard[ClientPrivacy]:
    """Whether an upload says that it hides whole clients."""
    return upload.unit is Unit.CLIENT


def released_noise(upload: ClientPrivacy) -> float:
    """The noise multiplier of what a run releases, as float32 has it: of a deployment's, the part that is here."""
    ratio = 1.0 if upload.noise_ratio is None else float(np.float32(upload.noise_ratio))
    return float(np.float32(upload.noise_multiplier)) * ratio


class MessageEncoding(NamedTuple):
    """How messages are carried: what noise that clients share must know."""

    members: int  # positions of the cohort
    resolution: float  # smallest difference that the sum can carry; 0 for floats
    limit: float = math.inf  # largest coordinate that it can carry of each member

    def room(self, clip_norm: jax.Array | float, size: int) -> jax.Array:
        """The norm that leaves room for rounding each coordinate, so that what is summed stays within `clip_norm`.

        And within what the sum can carry: a message that does not fit stops the run, which would tell of it.
        """
        if math.isfinite(self.limit):
            clip_norm = jnp.minimum(clip_norm, self.limit)
        return jnp.maximum(clip_norm - size**0.5 / 2 * self.resolution, 0.0)


@value
class PlainUpload(UpdatePrivatizer):
    """As it is. What the local steps did is all the privacy there is."""

    equation = r"\Delta_k"

    unit = None

    def event(self, noise: float, attendance: Participation) -> Event:
        raise errors.refuse("upload", "PlainUpload", "one that adds noise", "nothing is to be accounted for")

    def message(
        self, key: jax.Array, update: jax.Array, sizes: Sequence[int], state: Any, sent: MessageEncoding
    ) -> Any:
        return update, ()


class ClipRound(NamedTuple):
    """The round whose clip norm is used next: messages see what the server keeps, and no number of the round."""

    round: jax.Array


@value
class ClientGaussian(UpdatePrivatizer):
    """DP-FedAvg (McMahan et al. 2018): updates are clipped, the server adds noise to their mean, once a round.

    clip_norm         S, bound on a client's update in L2; `by_tensor` bounds each of m tensors by S / sqrt(m);
    noise_multiplier  z: the noise on the mean has standard deviation z S times what a client of norm 1 can move it
                      (`Aggregate.sensitivity`), so z S / (q W) for the estimator f_f;
    source            of the standard normal noise; its step is the round;
    noise_by_round, clip_by_round  factors on z and S, which are those of round 0.
    noise_ratio       r / R where a cohort of r stands for one of R in a deployment: the noise on a mean of r is then
                      the deployment's on a mean of R. What is released here has z r / R only.
    """

    clip_norm: float
    noise_multiplier: float
    source: NoiseSource = WhiteNoise()
    noise_ratio: float = 1.0
    by_tensor: bool = structure(default=False)
    noise_by_round: ByRound | None = None
    clip_by_round: ByRound | None = None

    unit = Unit.CLIENT

    @property
    def equation(self) -> str:
        clipped = (r"\Delta_k \min(1, S / \|\Delta_k\|)", r"\Delta_k^{(l)} \min(1, S / (\sqrt m \|\Delta_k^{(l)}\|))")
        return rf"{clipped[self.by_tensor]};\ \Delta \leftarrow \Delta + z S \rho\, \xi"

    @property
    def is_amplified(self) -> bool:
        return self.source.fresh

    def event(self, noise: float, attendance: Participation) -> Event:
        return noisy_sums(self.source, noise, attendance)

    def init(self) -> Any:
        return () if self.clip_by_round is None else ClipRound(jnp.int32(0))

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
        noise = server_noise(self.source, key, round_index, mean.size)
        then = state if self.clip_by_round is None else ClipRound(state.round + 1)
        return mean + self.scale(state, sensitivity, round_index) * noise, then

    def scale(self, state: Any, sensitivity: Any, round_index: jax.Array) -> Any:
        """What the source's noise is multiplied by before it joins the mean of a round."""
        noise = at_round(self.noise_multiplier, self.noise_by_round, round_index)
        return noise * self._clip_norm(state) * sensitivity * self.noise_ratio

    def _clip_norm(self, state: Any) -> Any:
        return (
            self.clip_norm if self.clip_by_round is None else at_round(self.clip_norm, self.clip_by_round, state.round)
        )

    def noise_std(self, state: Any, sensitivity: Any, round_index: jax.Array) -> jax.Array:
        return self.scale(state, sensitivity, round_index) * jnp.sqrt(self.source.variance(round_index))

    def check(self, num_clients: int) -> None:
        check_mechanism(self.clip_norm, self.noise_multiplier, num_clients)
        _check_ratio(self.noise_ratio)
        if np.ndim(self.noise_multiplier):
            raise errors.refuse("noise_multiplier", "one per client", "one number for noise that the server adds")
        check_changes(self.noise_by_round, self.clip_by_round)
        if not self.source.fresh and (self.noise_by_round or self.clip_by_round):
            wanted = "left out where noise is correlated over rounds"
            remedy = "later noise takes back earlier noise of its own size; use dp_fedavg"
            raise errors.refuse("noise_schedule or clip_schedule", "one", wanted, remedy)


class ClipState(NamedTuple):
    """The clip norm that is learnt."""

    clip_norm: jax.Array


@value
class AdaptiveClientGaussian(UpdatePrivatizer):
    """DP-FedAvg whose clip norm follows a quantile of the updates' norms (Andrew et al. 2021, arXiv:1905.03871).

    Each client also sends whether its update was within the clip norm C; the noised fraction b moves it:
    C <- C exp(-rate (b - quantile)). The noise on the bits, `bit_noise` on their sum, is paid from the same z: updates
    get z_u with z^-2 = z_u^-2 + (2 bit_noise)^-2, because a bit, sent as +-1/2, has sensitivity 1/2.
    clip_norm    of the first round; it never falls below `LEAST_CLIP`, where float32 would lose the noise;
    noise_ratio  as for `ClientGaussian`, of both noises: z and bit_noise stay the deployment's.
    """

    clip_norm: float
    noise_multiplier: float
    quantile: float
    rate: float
    bit_noise: float
    source: NoiseSource = WhiteNoise()
    noise_ratio: float = 1.0

    equation = (
        r"\Delta_k \min(1, C_t / \|\Delta_k\|);\ \Delta \leftarrow \Delta + z_u C_t \rho\, \xi,\ "
        r"C_{t+1} = C_t \exp(-\eta_C (\tilde b_t - \gamma))"
    )

    unit = Unit.CLIENT
    extra = 1

    @property
    def is_amplified(self) -> bool:
        return self.source.fresh

    def event(self, noise: float, attendance: Participation) -> Event:
        return noisy_sums(self.source, noise, attendance)

    def init(self) -> ClipState:
        return ClipState(jnp.asarray(self.clip_norm, jnp.float32))

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
        noise = server_noise(self.source, key, round_index, mean.size)
        bit_std = self.bit_noise * self.noise_ratio
        bits = extra + bit_std * server_noise(self.source, role_key(key, "bits"), round_index, 1)[0]
        within = bits / expected + 0.5
        moved = state.clip_norm * jnp.exp(-self.rate * (within - self.quantile))
        return mean + self.scale(state, sensitivity) * noise, ClipState(jnp.maximum(moved, LEAST_CLIP))

    def scale(self, state: ClipState, sensitivity: Any) -> jax.Array:
        """What the source's noise is multiplied by before it joins the mean: z_u times the clip norm of the round."""
        on_updates = self.noise_multiplier / jnp.sqrt(1 - (self.noise_multiplier / (2 * self.bit_noise)) ** 2)
        return on_updates * state.clip_norm * sensitivity * self.noise_ratio

    def noise_std(self, state: ClipState, sensitivity: Any, round_index: jax.Array) -> jax.Array:
        return self.scale(state, sensitivity) * jnp.sqrt(self.source.variance(round_index))

    def check(self, num_clients: int) -> None:
        check_mechanism(self.clip_norm, self.noise_multiplier, num_clients)
        _check_ratio(self.noise_ratio)
        errors.require_in_unit_interval(
            "clip_quantile",
            self.quantile,
            "at 0 the clip norm can only fall and at 1 only grow, as no fraction of clients is below 0 or above 1",
        )
        errors.require_not_negative("clip_rate", self.rate)
        if not float(self.bit_noise) > float(self.noise_multiplier) / 2:
            raise errors.refuse(
                "bit_noise",
                float(self.bit_noise),
                f"above half of noise_multiplier {float(self.noise_multiplier):g}",
                "raise bit_noise, or leave out adaptive_clip: the bits are paid from the same budget",
            )


@value
class ClientSkellam(UpdatePrivatizer):
    """Updates are clipped and every client adds its share of integer noise before a secure sum (Agarwal et al. 2021).

    No one, the server included, sees less noise than the sum of the cohort's shares: a difference of two Poisson
    numbers of total variance (z S / resolution)^2 in units of the ring. Shares are equal and the cohort has a fixed
    size, so that they add up; needs a secure sum, whose resolution is the unit.
    """

    clip_norm: float
    noise_multiplier: float

    equation = (
        r"\lfloor 2^f \Delta_k \min(1, S / \|\Delta_k\|) \rceil + \zeta_k,\ "
        r"\textstyle\sum_k \zeta_k \sim \text{Skellam of variance}\ (2^f z S)^2"
    )

    unit = Unit.CLIENT
    shared_noise = True

    def event(self, noise: float, attendance: Participation) -> Event:
        """Secure sums with the honest clients' shares of the noise, in units of the ring.

        Rounding to the ring adds at most 1/2 to each of d coordinates, so norms grow by sqrt(d)/2.
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
        bounded, _ = clip_tensors(update, self.clip_norm, (update.size,))
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
        return ~clip_tensors(update, self.clip_norm, (update.size,))[1]

    def noise_std(self, state: Any, sensitivity: Any, round_index: jax.Array) -> float:
        return math.nan  # the sum arrives with its noise, so nobody sees the signal alone

    def check(self, num_clients: int) -> None:
        check_mechanism(self.clip_norm, self.noise_multiplier, num_clients)
        if np.ndim(self.noise_multiplier):
            raise errors.refuse("noise_multiplier", "one per client", "one number, shared equally by the cohort")

    def check_resolution(self, resolution: float, members: int) -> None:
        """Refuse noise that float32 could not carry exactly: it would be coarser than the ring, or none at all."""
        mean = (float(self.noise_multiplier) * float(self.clip_norm) / resolution) ** 2 / (2 * members)
        if mean > LARGEST_POISSON or float(self.clip_norm) / resolution > 2**22:
            raise errors.refuse(
                "fractional_bits",
                f"{-np.log2(resolution):g}",
                f"few enough for exact integer noise, whose Poisson "
                f"numbers have mean {mean:.3g} and may have {LARGEST_POISSON}",
                "take fewer bits for the fraction",
            )


def _check_ratio(noise_ratio: float) -> None:
    if not 0 < float(noise_ratio) <= 1:
        raise errors.refuse("noise_ratio", noise_ratio, "in (0, 1], as a part of a deployment's noise")


def noisy_sums(source: NoiseSource, noise: float, attendance: Participation) -> Event:
    """Sums that the server noises: one by one, or as one release of the whole run where noise is correlated."""
    at = attendance
    if not source.fresh:
        times = min(int(np.ceil(at.times)), -(-at.rounds // at.min_separation))
        of_run = (FullBatch(), Adjacency.REPLACE_ONE, at.rounds, times, at.min_separation, Unit.CLIENT)
        return noise_event(source, noise, *of_run, pattern=at.pattern)
    if isinstance(at.sampling, FullBatch):
        return repeated(noise_event(source, noise, at.sampling, at.adjacency, 1, 1, 1, Unit.CLIENT), at.times)
    return noise_event(source, noise, at.sampling, at.adjacency, at.rounds, at.rounds, 1, Unit.CLIENT)


def clip_tensors(update: jax.Array, clip_norm: jax.Array | float, sizes: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """The update with each of m parts scaled down to clip_norm / sqrt(m), and whether all parts were within.

    An update that is not finite becomes zero, so that the bound holds whatever a client computes.
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


def server_noise(source: NoiseSource, key: jax.Array, round_index: jax.Array, size: int) -> jax.Array:
    """Standard normals for the server's noise of a round; `key` is the run's, the round is the stream."""
    at = round_index.astype(jnp.uint32)
    one = jnp.float32(1)
    return source.draw(key, StepContext(jnp.int32(0), round_index, at, one, one, jnp.bool_(True)), size)
