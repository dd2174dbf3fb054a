"""Products that a GPU takes in TF32, emulated: one record's part of a clipped sum stays within the bound."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

import fedjax_dp as fdp
from fedjax_dp import gradients
from fedjax_dp.gradients import norms
from fedjax_dp.models import Linen
from fedjax_dp.pytrees import ravel

RECORDS, CLIP = 100_000, 0.3
HALF = {"nearest": 1 << 12, "toward zero": 0}  # of the last bit that TF32 keeps, added before the others are cut


@pytest.fixture(params=list(HALF))
def on_gpu(request, monkeypatch):
    """What is for a GPU alone runs, with products as its tensor cores take them: of factors with 11 bits."""

    def rounded(a):
        bits = lax.bitcast_convert_type(a, jnp.uint32) + np.uint32(HALF[request.param])
        return lax.bitcast_convert_type(bits & np.uint32(2**32 - 2**13), jnp.float32)

    def of_rounded(product):
        def taken(*args, precision=None, **rest):
            names = [arg for arg in args if isinstance(arg, str)]
            arrays = [arg for arg in args if not isinstance(arg, str)]
            in_float32 = precision is norms.EXACT or jax.config.values["jax_default_matmul_precision"]
            arrays = arrays if in_float32 else list(map(rounded, arrays))
            return product(*names, *arrays, precision=norms.EXACT, **rest)

        return taken

    monkeypatch.setattr(norms, "FEW", 0)
    monkeypatch.setattr(lax, "platform_dependent", lambda *args, default, cuda=None, **_: (cuda or default)(*args))
    for name in ("matmul", "einsum"):
        monkeypatch.setattr(jnp, name, of_rounded(getattr(jnp, name)))
    return request.param


def lengths(u, v):
    """Of each record's part of a sum, and whether it is clipped."""

    @jax.jit
    def parts(u, v):
        squared = norms.square(u) * norms.square(v)
        factors = gradients.clip_factors(squared, jnp.ones(squared.shape, bool), CLIP)
        part = functools.partial(norms._product, alone=True)
        return jax.vmap(part)(u[:, None, None], v[:, None, None], factors[:, None]), factors < 1

    made, clipped = map(np.asarray, parts(u, v))
    return np.linalg.norm(made.astype(np.float64), axis=(1, 2)), clipped


@pytest.mark.parametrize("least", [norms.LEAST, 0.0])
def test_products_of_rounded_factors_of_any_exponent_stay_within_the_bound(on_gpu, least, monkeypatch):
    """As in float32: squares that underflow would be missing in the norm."""
    monkeypatch.setattr(norms, "LEAST", least)
    keys = jax.random.split(jax.random.key(0), 4)
    scales = [2.0 ** jax.random.uniform(key, (20_000, 1), minval=-126, maxval=63) for key in keys[:2]]
    u, v = (jax.random.normal(key, (20_000, 3)) * scale for key, scale in zip(keys[2:], scales))
    found = lengths(u, v)[0].max()
    assert found <= CLIP * (1 + 1e-6) if least else found > 2 * CLIP


@pytest.mark.parametrize("sides", [(3, 2), (1, 1)])
def test_products_of_rounded_factors_stay_within_the_bound(on_gpu, sides, monkeypatch):
    """Of 10^5 records at all scales; without shrinking them, rounding to nearest would break it."""
    keys = jax.random.split(jax.random.key(0), 3)
    scales = 10 ** jax.random.uniform(keys[2], (RECORDS, 1), minval=-2, maxval=2)
    u, v = (jax.random.normal(key, (RECORDS, side)) * scales for key, side in zip(keys, sides, strict=False))
    found, clipped = lengths(u, v)
    assert found.max() <= CLIP * (1 + 1e-6)
    assert clipped.mean() > 0.3
    assert found[clipped].min() >= CLIP * (1 - 2**-8)
    monkeypatch.setattr(norms, "SHRINK", 1.0)
    assert (lengths(u, v)[0].max() > CLIP * (1 + 1e-4)) == (on_gpu == "nearest")


class Windows(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Conv(3, (3, 3), use_bias=False)(x).mean((1, 2))


@pytest.mark.slow
def test_gradients_of_single_records_are_clipped_as_they_were_rounded(on_gpu):
    """They are computed like gradients without privacy, and their norms are those of what came out."""
    model = fdp.models.NetworkModel(Linen(Windows()), (8, 8, 2))
    params = model.init(jax.random.key(0))
    x, y = 10 * jax.random.normal(jax.random.key(1), (5, 8, 8, 2)), jnp.arange(5) % 3
    assert "gradients of single records" in str(gradients.explain(model, params, x, y))

    def parts():
        """Each record's alone, and whether it is clipped."""

        @jax.jit
        @jax.vmap
        def alone(mask):
            found = gradients.clipped_sum(model, params, x, y, mask, CLIP)
            return ravel(found.total)[0], found.clipped.any()

        made, clipped = map(np.asarray, alone(jnp.eye(5, dtype=bool)))
        return made.astype(np.float64), clipped

    ours, clipped = parts()
    with jax.default_matmul_precision("float32"):
        exact = parts()[0]
    assert clipped.all()
    assert 0 < np.linalg.norm(ours - exact, axis=1).max() < 2**-9 * CLIP
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), CLIP, rtol=1e-6)


def test_products_of_several_positions_and_for_whoever_asks_are_in_float32(on_gpu):
    u, v, factors = jnp.full((1, 1, 1), 1 + 2**-11), jnp.ones((1, 1, 1)), jnp.ones(1)
    assert norms._product(u, v, factors, alone=True) != u[0]
    assert norms._product(u, v, factors, alone=False) == u[0]  # of several, which may cancel, with others elsewhere
    with jax.default_matmul_precision("float32"):
        assert norms._product(u, v, factors, alone=True) == u[0]
