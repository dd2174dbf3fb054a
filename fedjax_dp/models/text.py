"""Models of token sequences `(records, length)`, padded with token 0 at the end."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedjax_dp import errors
from fedjax_dp.models.model import FlaxModel

VOCABULARY, WIDTH = 3000, 300  # of 001's text model


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
            x = nn.RNN(nn.OptimizedLSTMCell(self.hidden))(x)
        last = jnp.maximum(jnp.sum(tokens != 0, -1) - 1, 0)
        state = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
        return nn.Dense(self.classes)(state)


def lstm(
    record_shape: tuple[int, ...], classes: int, embedding: Frozen | None = None, hidden: int = 256, layers: int = 2
) -> FlaxModel:
    """001's text model: 1,095,680 LSTM parameters and 514 of the output; one bias per gate, where PyTorch keeps two.

    embedding  word vectors `Frozen((vocabulary, width))`, such as GloVe 6B 300d; unless given, random ones.
    """
    if len(record_shape) != 1:
        raise errors.refuse("record_shape", tuple(record_shape), "(length,) of tokens", "use another model or data set")
    network = _Lstm(embedding or random_embedding(), classes, hidden, layers)
    return FlaxModel(network, tuple(record_shape), tokens=True)
