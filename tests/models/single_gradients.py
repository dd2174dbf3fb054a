"""What the sum over a batch is compared with: gradients of its records, taken one by one."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import gradients
from fedjax_dp.pytrees import ravel


def check_clipped_sum(model, params, x, y, clip_norm=None, keys=None):
    """Norms and the clipped sum are those of single gradients; clipped at their median norm unless given."""
    batch = (x, y) if keys is None else (x, y, keys)
    slope = jax.grad(model.loss)
    rows = jax.jit(jax.vmap(lambda p, *one: ravel(slope(p, *one))[0], (None, *(0 for _ in batch))))(params, *batch)
    rows = np.asarray(rows, float)
    norms = np.linalg.norm(rows, axis=1)
    clip_norm = float(np.median(norms)) if clip_norm is None else clip_norm
    clipped_sum = jax.jit(gradients.clipped_sum, static_argnums=0)
    found = clipped_sum(model, params, x, y, jnp.ones(len(x), bool), clip_norm, keys=keys)
    np.testing.assert_allclose(found.norms, norms, rtol=2e-5)
    wanted = np.minimum(1, clip_norm / norms) @ rows
    np.testing.assert_allclose(ravel(found.total)[0], wanted, atol=1e-5 * clip_norm * len(x))
    return norms
