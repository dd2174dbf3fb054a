"""Sources of standard normal noise, independent or correlated over steps, and their events."""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import accounting, errors, prng
from fedjax_dp.parts.contexts import StepContext
from fedjax_dp.pytrees import value

LARGEST = 100.0  # coefficient of noise, under which float32 keeps the white noise of a step
NEGLIGIBLE = 1e-12  # entries of a strategy that are the rounding of an inverse


class NoiseSource(Protocol):
    """A source of standard normal noise. Implementations use `fedjax_dp.value`; inherit it for a source without state.

    Noise on local steps has no state: a source with one is for noise on the clients' updates, whose steps are rounds.
    """

    @property
    def fresh(self) -> bool:
        """Required privacy property. Whether the noise of each step is independent of all other noise."""
        ...

    def coefficients(self, steps: int) -> Any:
        """Required privacy property. The a of n_t = sum_j a_j z_(t-j) with z white and a_0 = 1, (1, 0, ...) if fresh.

        All that matter in `steps` steps: `(steps,)`, or fewer where zeros follow.
        """
        ...

    def init(self, size: int) -> Any:
        """What is kept before step 0: a pytree of arrays; () for a source without state."""
        return ()

    def draw(self, key: jax.Array, step: StepContext, size: int, state: Any) -> tuple[jax.Array, Any]:
        """The noise n_t of step t = step.number, float32 `(size,)`, and what is kept for the next step; traced.

        The key is shared by the steps of one client's round, or by the sums of one run, so that earlier noise can be
        drawn again. Other clients, rounds and runs have other keys.
        """
        ...

    def variance(self, step: jax.Array) -> jax.Array | float:
        """Variance of each coordinate of the noise of a step."""
        ...


def correlated_source(part: Any) -> NoiseSource | None:
    """The source of a part whose noise is correlated over steps; None if it is independent or unknown."""
    source: NoiseSource | None = getattr(part, "source", None)  # a part without one does not declare how it draws
    return None if source is None or source.fresh else source


def require_stateless(source: NoiseSource) -> None:
    """Refuse a source that keeps something from one step to the next: nobody keeps it for a client's steps."""
    if type(source).init is not NoiseSource.init:
        wanted = "a source without state for noise on local steps"
        raise errors.refuse("noise source", type(source).__name__, wanted, "use BandedNoise, which draws again")


@value
class WhiteNoise(NoiseSource):
    """Noise that is independent over coordinates, steps, rounds and clients."""

    equation = r"\xi \sim \mathcal{N}(0, I)\ \text{afresh}"

    fresh = True

    def coefficients(self, steps: int) -> tuple[float, ...]:
        return (1.0,)

    def draw(self, key: jax.Array, step: StepContext, size: int, state: Any) -> tuple[jax.Array, Any]:
        return prng.normals(key, step.number, size), state

    def variance(self, step: jax.Array) -> float:
        return 1.0


@value
class BandedNoise(NoiseSource):
    """Noise correlated over steps: n_t = sum_j a_j z_(t-j) with white z, so that later noise cancels earlier noise.

    bands  a `(bands,)`, a_0 = 1; `accounting.inverse_root_bands` gives them for sums over all steps (DP-FTRL by a
           banded inverse square root). Nothing is stored: earlier z are drawn again from their counters.
    """

    bands: Any

    equation = r"\xi_t = \sum_{j} a_j \zeta_{t - j},\ \zeta_t \sim \mathcal{N}(0, I)"

    fresh = False

    def coefficients(self, steps: int) -> Any:
        return self.bands

    def draw(self, key: jax.Array, step: StepContext, size: int, state: Any) -> tuple[jax.Array, Any]:
        a = jnp.asarray(self.bands, jnp.float32)
        now = step.number.astype(jnp.int32)

        def add(j: jax.Array, total: jax.Array) -> jax.Array:
            z = prng.normals(key, jnp.maximum(now - j, 0).astype(jnp.uint32), size)
            return total + jnp.where(now >= j, a[j], 0.0) * z

        return jax.lax.fori_loop(0, a.shape[0], add, jnp.zeros(size)), state

    def variance(self, step: jax.Array) -> jax.Array:
        a = jnp.asarray(self.bands, jnp.float32)
        return jnp.sum(jnp.where(jnp.arange(a.shape[0]) <= step, a * a, 0.0))


@value
class StrategyNoise(NoiseSource):
    """Noise C^-1 z of a banded strategy C: n_t = z_t - sum_j c_j n_(t-j) with white z, from the last outputs.

    strategy   the first column of C, c `(bands,)`, c_0 = 1;
    variances  of the noise of each round `(rounds,)`; the last one counts for later rounds. `of` computes them.
    Source: Choquette-Choo et al. 2023, arXiv:2306.08153.
    """

    strategy: Any
    variances: Any

    equation = r"\xi_t = \zeta_t - \sum_{j \geq 1} c_j \xi_{t - j},\ \zeta_t \sim \mathcal{N}(0, I)"

    fresh = False

    @classmethod
    def of(cls, strategy: Any, rounds: int) -> "StrategyNoise":
        """The source of a strategy, for runs of that many rounds."""
        noise = accounting.inverse(strategy, rounds)
        return cls(strategy=np.asarray(strategy, float), variances=np.cumsum(noise**2))

    def coefficients(self, steps: int) -> Any:
        return accounting.inverse(np.asarray(self.strategy, np.float32), steps)  # as it is drawn

    def init(self, size: int) -> Any:
        """The last outputs `(bands - 1, size)`, that of round t in row t mod (bands - 1); () for one band."""
        rows = jnp.asarray(self.strategy).shape[0] - 1
        return jnp.zeros((rows, size)) if rows else ()

    def draw(self, key: jax.Array, step: StepContext, size: int, state: Any) -> tuple[jax.Array, Any]:
        noise, rows = prng.normals(key, step.number, size), jnp.asarray(self.strategy).shape[0] - 1
        if not rows:
            return noise, state
        now = step.number.astype(jnp.int32)
        weights = jnp.asarray(self.strategy, jnp.float32)[1 + (now - 1 - jnp.arange(rows)) % rows]  # they go round
        noise = noise - jnp.sum(weights[:, None] * state, axis=0)
        return noise, jax.lax.dynamic_update_index_in_dim(state, noise, now % rows, 0)

    def variance(self, step: jax.Array) -> jax.Array:
        known = jnp.asarray(self.variances, jnp.float32)
        return known[jnp.minimum(step, known.size - 1)]


@value
class BufferedNoise(NoiseSource):
    """Noise C^-1 z of a buffered strategy C: n_t = z_t + sum_i scales_i r_i, then r_i <- decays_i r_i + z_t.

    decays, scales  of the inverse strategy `(buffers,)`: `accounting.Buffers.inverse`, whose scales are negative.
    Source: McMahan, Xu, Zhang 2024, arXiv:2408.08868 (BLT), fed forward.
    """

    decays: Any
    scales: Any

    equation = r"\xi_t = \zeta_t + \sum_i \hat\omega_i r_i,\ r_i \leftarrow \hat\theta_i r_i + \zeta_t"

    fresh = False

    @classmethod
    def of(cls, strategy: accounting.Buffers) -> "BufferedNoise":
        """The source of a strategy."""
        strategy.check()
        return cls(**strategy.inverse._asdict())

    def coefficients(self, steps: int) -> Any:
        numbers = (np.asarray(one, np.float32) for one in (self.decays, self.scales))  # as they are drawn with
        return accounting.Buffers(*numbers).column(steps)

    def init(self, size: int) -> jax.Array:
        """The buffers r `(buffers, size)`."""
        return jnp.zeros((jnp.asarray(self.decays).shape[0], size))

    def draw(self, key: jax.Array, step: StepContext, size: int, state: Any) -> tuple[jax.Array, Any]:
        white = prng.normals(key, step.number, size)
        decays, scales = (jnp.asarray(one, jnp.float32) for one in (self.decays, self.scales))
        return white + jnp.sum(scales[:, None] * state, axis=0), decays[:, None] * state + white[None]

    def variance(self, step: jax.Array) -> jax.Array:
        decays, scales = (jnp.asarray(one, jnp.float32) for one in (self.decays, self.scales))
        both = jnp.outer(decays, decays)
        return 1 + jnp.sum(jnp.outer(scales, scales) * (1 - both**step) / (1 - both))


def strategy_of(source: NoiseSource, steps: int) -> np.ndarray:
    """The first column of C `(steps,)`, by which the noise of a source is C^-1 z; zeros where it is only rounding.

    Raises: ConfigurationError for noise that grows over the steps.
    """
    coefficients = np.asarray(source.coefficients(steps), float)[:steps]
    if not np.all(np.abs(coefficients) <= LARGEST):
        wanted = f"at most {LARGEST:g} in size: float32 loses the white noise of a step under larger noise"
        got = f"up to {np.abs(coefficients).max():.3g} in {steps} steps"
        raise errors.refuse(
            "coefficients of correlated noise", got, wanted, "take a strategy whose inverse stays small"
        )
    column = accounting.inverse(coefficients, steps)
    return np.where(np.abs(column) < NEGLIGIBLE, 0.0, column)


def noise_event(
    source: NoiseSource,
    noise_multiplier: float,
    sampling: accounting.Sampling,
    adjacency: accounting.Adjacency,
    releases: int,
    times: int,
    separation: int = 1,
    unit: accounting.Unit = accounting.Unit.RECORD,
    pattern: Sequence[int] | None = None,
) -> accounting.GaussianSteps:
    """The event of `releases` noisy sums, of which a member joins at most `times`, at least `separation` apart.

    White noise: one step per sum, each over a fresh sample. Correlated noise: a single release of all sums, whose
    sensitivity follows from the coefficients, without amplification by subsampling.
    pattern  the sums that the member joins, if known: their sensitivity replaces the worst case.
    """
    if source.fresh:
        return accounting.GaussianSteps(noise_multiplier, sampling, adjacency, releases, unit)
    if isinstance(sampling, accounting.WithReplacement):
        raise errors.refuse("batches", str(sampling), "without repeats for correlated noise", "use without-replacement")
    if times == 0:
        return accounting.GaussianSteps(noise_multiplier, accounting.FullBatch(), adjacency, 0, unit)
    column = strategy_of(source, releases)
    if pattern is None:
        reach = accounting.sensitivity(column, times, separation)
    else:
        reach = accounting.pattern_sensitivity(column, pattern)
    return accounting.GaussianSteps(noise_multiplier / reach, accounting.FullBatch(), adjacency, 1, unit)
