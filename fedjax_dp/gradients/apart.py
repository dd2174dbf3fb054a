"""Whether the records of a batch are apart: the premise of every per-record gradient."""

import functools

import jax
import jax.numpy as jnp

from fedjax_dp import errors
from fedjax_dp.models import FlaxModel, Model
from fedjax_dp.values import ravel


def require_records_apart(model: Model) -> None:
    """Refuse a model in which the loss of a record depends on the others of its batch: clipping would bound nothing.

    Tried out once per model, at random parameters: the other records are exchanged, and the loss must not move a bit.
    """
    if isinstance(model, FlaxModel) and _mixes(model):
        raise errors.refuse(
            "model", f"{type(model.module).__name__}, in which the loss of a record depends on other records",
            "one that treats each record alone", "leave out means and norms over the batch",
        )  # fmt: skip


@functools.lru_cache(maxsize=64)
def _mixes(model: FlaxModel) -> bool:
    shape, keys = (3, *model.record_shape), jax.random.split(jax.random.key(0), 4)

    @jax.jit
    def move() -> jax.Array:
        start = model.init(keys[0])
        flat, back = ravel(start)
        params = back(flat + 0.1 * jax.random.normal(keys[1], flat.shape))

        def some(key: jax.Array) -> jax.Array:
            return jax.random.bernoulli(key, shape=shape).astype(int) if model.tokens else jax.random.normal(key, shape)

        x = some(keys[2])
        labels = jnp.zeros(3, jnp.int32)
        one, other = (model.losses(params, batch, labels)[0] for batch in (x, some(keys[3]).at[0].set(x[0])))
        return jnp.where(jnp.isnan(one) & jnp.isnan(other), 0.0, one - other)

    return bool(move() != 0)
