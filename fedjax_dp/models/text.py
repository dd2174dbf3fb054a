"""Models of token sequences `(records, length)`, padded with token 0 at the end."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax

from fedjax_dp import errors
from fedjax_dp.models.model import NetworkModel, require_sizes, require_tokens, with_frozen
from fedjax_dp.models.networks import Linen
from fedjax_dp.models.origins import Origin, values_digest
from fedjax_dp.numpy_streams import numpy_stream
from fedjax_dp.tasks import TokenCrossEntropy

VOCABULARY, WIDTH = 3000, 300  # of rfedavg's text model


@functools.lru_cache(maxsize=4)
def random_embedding(vocabulary: int = VOCABULARY, width: int = WIDTH, seed: int = 0) -> np.ndarray:
    """Gaussian word vectors `(vocabulary, width)`, zero for token 0 (padding), as a substitute for trained ones."""
    spread = 0.4  # about that of GloVe 6B 300d
    table = numpy_stream("embedding", seed).normal(scale=spread, size=(vocabulary, width))
    table[0] = 0.0
    return table.astype(np.float32)


def _states(weights: Any, x: jax.Array) -> jax.Array:
    """States of an LSTM layer at every word `(records, length, hidden)`, as in `nn.RNN`.

    The words' part of the gates is one product before the loop, instead of one in every step.
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


def _recurrent(cell: nn.OptimizedLSTMCell, x: jax.Array, starts: bool) -> Any:
    """The states of a cell at every word; with `starts`, its parameters are created."""
    return nn.RNN(cell)(x) if starts else _states(cell.variables["params"], x)


class _Lstm(nn.Module):
    """Word vectors, stacked LSTM layers, the state at the last word, class scores."""

    table: tuple[int, int]  # shape of the word vectors
    classes: int
    hidden: int
    layers: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        table = self.param("embedding", nn.initializers.zeros, self.table)
        x: Any = jnp.take(table, tokens, axis=0)
        for _ in range(self.layers):
            x = _recurrent(nn.OptimizedLSTMCell(self.hidden), x, self.is_initializing())
        last = jnp.maximum(jnp.sum(tokens != 0, -1) - 1, 0)
        state = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
        return nn.Dense(self.classes)(state)


def lstm(
    record_shape: tuple[int, ...],
    classes: int,
    embedding: Any = None,
    hidden: int = 256,
    layers: int = 2,
    embedding_data: str | None = None,
    vocabulary: int = VOCABULARY,
) -> NetworkModel:
    """rfedavg's text model: 1,095,680 LSTM parameters and 514 of the output; one bias per gate, PyTorch keeps two.

    embedding  frozen word vectors `(vocabulary, width)`, such as GloVe 6B 300d; by default random ones;
    vocabulary  number of random vectors; the first ones are the same for any number;
    embedding_data  what they were trained on, in words; without it the Guarantee begins by saying that it is not known.
    """
    require_tokens(record_shape)
    vectors = random_embedding(max(vocabulary, VOCABULARY)) if embedding is None else np.asarray(embedding, np.float32)
    if vectors.ndim != 2:
        raise errors.refuse("embedding", f"shape {vectors.shape}", "(vocabulary, width)")
    network = _Lstm(vectors.shape, classes, hidden, layers)
    made, values = NetworkModel(Linen(network), tuple(record_shape), tokens=True), {"embedding": vectors}
    random = embedding is None or embedding is random_embedding()
    origin = Origin("embedding", values_digest(values), embedding_data)
    return with_frozen(made, values, () if random else (origin,))


class _NextToken(nn.Module):
    """Trained token vectors, LSTM layers, a projection or none, and scores of the next token at every position."""

    vocabulary: int
    embedding: int
    hidden: tuple[int, ...]
    projection: int | None

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(self.vocabulary, self.embedding, name="tokens")(tokens)
        for at, hidden in enumerate(self.hidden):
            x = _recurrent(nn.OptimizedLSTMCell(hidden, name=f"lstm_{at}"), x, self.is_initializing())
        if self.projection is not None:
            x = nn.Dense(self.projection, name="projection")(x)
        return nn.Dense(self.vocabulary, name="head")(x)


def word_lstm(
    record_shape: tuple[int, ...], classes: int, embedding: int = 96, hidden: int = 670, projection: int = 96
) -> NetworkModel:
    """StackOverflow's benchmark model: `(length,)` words to `(length, classes)` scores of the word after each.

    4,050,748 parameters on 10,004 words, one bias per gate; started as Flax does. Padding at the end needs no mask: no
    word before it sees it.
    Source: Reddi et al. 2021, arXiv:2003.00295, appendix C.
    """
    require_tokens(record_shape)
    require_sizes(record_shape, classes, (embedding, hidden, projection))
    network = _NextToken(classes, embedding, (hidden,), projection)
    return NetworkModel(Linen(network), tuple(record_shape), TokenCrossEntropy(pad=0), tokens=True)


def char_lstm(record_shape: tuple[int, ...], classes: int, embedding: int = 8, hidden: int = 256) -> NetworkModel:
    """Shakespeare's benchmark model, two LSTM layers: characters `(length,)` to `(length, classes)` scores of the next.

    820,522 parameters on 90 characters. Otherwise as `word_lstm`.
    Source: McMahan et al. 2017, arXiv:1602.05629, section 3; Reddi et al. 2021, arXiv:2003.00295, appendix C.
    """
    require_tokens(record_shape)
    require_sizes(record_shape, classes, (embedding, hidden))
    network = _NextToken(classes, embedding, (hidden, hidden), None)
    return NetworkModel(Linen(network), tuple(record_shape), TokenCrossEntropy(pad=0), tokens=True)
