"""Sources of standard normal noise, independent or correlated over steps, and their events."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import accounting, errors, prng
from fedjax_dp.parts.contexts import StepContext
from fedjax_dp.pytrees import value


class NoiseSource(Protocol):
    """A source of standard normal noise. Implementations use `fedjax_dp.value`."""

    @property
    def fresh(self) -> bool:
        """Required privacy property. Whether the noise of each step is independent of all other noise."""
        ...

    @property
    def bands(self) -> Any:
        """Required privacy property. `(bands,)`: a_j in n_t = sum_j a_j z_(t-j), z white, a_0 = 1; (1.0,) if fresh."""
        ...

    def draw(self, key: jax.Array, step: StepContext, size: int) -> jax.Array:
        """The noise n_t of step t = step.number, float32 `(size,)`; traced.

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


@value
class WhiteNoise:
    """Noise that is independent over coordinates, steps, rounds and clients."""

    equation = r"\xi \sim \mathcal{N}(0, I)\ \text{afresh}"

    fresh, bands = True, (1.0,)

    def draw(self, key: jax.Array, step: StepContext, size: int) -> jax.Array:
        return prng.normals(key, step.number, size)

    def variance(self, step: jax.Array) -> float:
        return 1.0


@value
class BandedNoise:
    """Noise correlated over steps: n_t = sum_j a_j z_(t-j) with white z, so that later noise cancels earlier noise.

    coefficients  a `(bands,)`, a_0 = 1; `accounting.inverse_root_bands` gives them for sums over all steps (DP-FTRL by
                  a banded inverse square root). Nothing is stored: earlier z are drawn again from their counters.
    """

    coefficients: Any

    equation = r"\xi_t = \sum_{j} a_j \zeta_{t - j},\ \zeta_t \sim \mathcal{N}(0, I)"

    fresh = False

    @property
    def bands(self) -> Any:
        return self.coefficients

    def draw(self, key: jax.Array, step: StepContext, size: int) -> jax.Array:
        a = jnp.asarray(self.coefficients, jnp.float32)
        now = step.number.astype(jnp.int32)

        def add(j: jax.Array, total: jax.Array) -> jax.Array:
            z = prng.normals(key, jnp.maximum(now - j, 0).astype(jnp.uint32), size)
            return total + jnp.where(now >= j, a[j], 0.0) * z

        return jax.lax.fori_loop(0, a.shape[0], add, jnp.zeros(size))

    def variance(self, step: jax.Array) -> jax.Array:
        a = jnp.asarray(self.coefficients, jnp.float32)
        return jnp.sum(jnp.where(jnp.arange(a.shape[0]) <= step, a * a, 0.0))


def noise_event(
    source: NoiseSource,
    noise_multiplier: float,
    sampling: accounting.Sampling,
    adjacency: accounting.Adjacency,
    releases: int,
    times: int,
    separation: int = 1,
    unit: accounting.Unit = accounting.Unit.RECORD,
    pattern: tuple[int, ...] | None = None,
) -> accounting.GaussianSteps:
    """The event of `releases` noisy sums, of which a member joins at most `times`, at least `separation` apart.

    White noise: one step per sum, each over a fresh sample. Banded noise: a single release of all sums, whose
    sensitivity follows from the coefficients, without amplification by subsampling.
    pattern  the sums that the member joins, if known: their sensitivity replaces the worst case.
    """
    if source.fresh:
        return accounting.GaussianSteps(noise_multiplier, sampling, adjacency, releases, unit)
    if isinstance(sampling, accounting.WithReplacement):
        raise errors.refuse("batches", str(sampling), "without repeats for correlated noise", "use without-replacement")
    if times == 0:
        return accounting.GaussianSteps(noise_multiplier, accounting.FullBatch(), adjacency, 0, unit)
    bands = np.asarray(source.bands, float)
    if pattern is None:
        reach = accounting.correlated_sensitivity(bands, releases, times, separation)
    else:
        reach = accounting.pattern_sensitivity(accounting.strategy(bands, releases), pattern, releases)
    return accounting.GaussianSteps(noise_multiplier / reach, accounting.FullBatch(), adjacency, 1, unit)
