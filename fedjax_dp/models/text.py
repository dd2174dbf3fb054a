"""Models of token sequences `(records, length)`, padded with token 0 at the end."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax

from fedjax_dp import errors
from fedjax_dp.arguments import checks_arguments
from fedjax_dp.models.model import NetworkModel
from fedjax_dp.models.networks import Linen

VOCABULARY, WIDTH = 3000, 300  # of rfedavg's text model


class Frozen:
    """An array that a model uses and never trains; equal to itself only, so that a model can be compared and hashed."""

    def __init__(self, array: np.ndarray):
        self.array = np.asarray(array, np.float32)


@functools.lru_cache(maxsize=4)
def random_embedding(vocabulary: int = VOCABULARY, width: int = WIDTH, seed: int = 0) -> Frozen:
    """Fixed Gaussian word vectors, token 0 (padding) at zero, for where no trained ones are at hand."""
    table = np.random.default_rng(seed).normal(scale=0.4, size=(vocabulary, width))  # about the spread of GloVe 6B 300d
    table[0] = 0.0
    return Frozen(table)


def _states(weights: Any, x: jax.Array) -> jax.Array:
    """Of an LSTM layer at every word `(records, length, hidden)`, as `nn.RNN` computes them.

    What the words bring to the gates is one product before the loop, and not one in every step.
    """
    inner, recurrent = (jnp.concatenate([weights[f"{side}{gate}"]["kernel"] for gate in "ifgo"], -1) for side in "ih")
    bias = jnp.concatenate([weights[f"h{gate}"]["bias"] for gate in "ifgo"], -1)

    def step(carry: tuple[jax.Array, jax.Array], ready: jax.Array) -> tuple[Any, jax.Array]:
        c, h = carry
        i, f, g, o = jnp.split(ready + h @ recurrent, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h

    start = jnp.zeros((x.shape[0], recurrent.shape[0]), x.dtype)
    ready = x @ inner + bias[None, None]
    return lax.scan(step, (start, start), ready.swapaxes(0, 1))[1].swapaxes(0, 1)


class _Lstm(nn.Module):
    """Frozen word vectors, stacked LSTM layers, the state at the last word, class scores."""

    embedding: Frozen
    classes: int
    hidden: int
    layers: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x: Any = jnp.take(jnp.asarray(self.embedding.array), tokens, axis=0)
        for _ in range(self.layers):
            cell = nn.OptimizedLSTMCell(self.hidden)
            x = nn.RNN(cell)(x) if self.is_initializing() else _states(cell.variables["params"], x)
        last = jnp.maximum(jnp.sum(tokens != 0, -1) - 1, 0)
        state = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
        return nn.Dense(self.classes)(state)


@checks_arguments
def lstm(
    record_shape: tuple[int, ...], classes: int, embedding: Frozen | None = None, hidden: int = 256, layers: int = 2
) -> NetworkModel:
    """rfedavg's text model: 1,095,680 LSTM parameters and 514 of the output; one bias per gate, PyTorch keeps two.

    embedding  word vectors `Frozen((vocabulary, width))`, such as GloVe 6B 300d; unless given, random ones.
    """
    if len(record_shape) != 1:
        raise errors.refuse("record_shape", tuple(record_shape), "(length,) of tokens", "use another model or data set")
    network = _Lstm(embedding or random_embedding(), classes, hidden, layers)
    return NetworkModel(Linen(network), tuple(record_shape), tokens=True)
