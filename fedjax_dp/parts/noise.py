"""Where standard normal noise comes from, and what its correlation costs."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import accounting, errors, prng
from fedjax_dp.parts.contexts import StepContext
from fedjax_dp.pytrees import value


class NoiseSource(Protocol):
    """Where standard normal noise comes from. Implementations are made with `fedjax_dp.value`."""

    @property
    def fresh(self) -> bool:
        """Required privacy property. Whether the noise of every step is independent of all other noise."""
        ...

    @property
    def bands(self) -> Any:
        """Required privacy property. `(bands,)`: a_j of n_t = sum_j a_j z_(t-j), z white, a_0 = 1; (1.0,): fresh."""
        ...

    def draw(self, key: jax.Array, step: StepContext, size: int) -> jax.Array:
        """The noise n_t of step t = step.number, float32 `(size,)`, traced.

        The key is the same in steps that belong together (of a client's round, or of a run's sums), so that noise of
        earlier ones can be drawn again; other clients, rounds and runs have other keys.
        """
        ...

    def variance(self, step: jax.Array) -> jax.Array | float:
        """Of one coordinate of the noise of a step."""
        ...


def correlated_source(part: Any) -> NoiseSource | None:
    """The source of a part whose noise is known to be correlated over steps; None for all others."""
    source: NoiseSource | None = getattr(part, "source", None)  # without one, a part does not say how it draws
    return None if source is None or source.fresh else source


@value
class WhiteNoise:
    """Independent over coordinates, steps, rounds and clients."""

    equation = r"\xi \sim \mathcal{N}(0, I)\ \text{afresh}"

    fresh, bands = True, (1.0,)

    def draw(self, key: jax.Array, step: StepContext, size: int) -> jax.Array:
        return prng.normals(key, step.number, size)

    def variance(self, step: jax.Array) -> float:
        return 1.0


@value
class BandedNoise:
    """Noise correlated over steps: n_t = sum_j a_j z_(t-j) with white z, so that later noise takes back earlier noise.

    coefficients  a `(bands,)`, a_0 = 1; `accounting.inverse_root_bands` gives those for sums over all steps (DP-FTRL by
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
    """`releases` noisy sums in the accountants' words, of which a member joins at most `times`, `separation` apart.

    White noise: so many steps, each over a fresh sample. Banded noise: one release of them all, whose sensitivity the
    coefficients give; that members are sampled amplifies nothing then.
    pattern  those very sums that it joins, where they are known: their sensitivity takes the place of the worst.
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
