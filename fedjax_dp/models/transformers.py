"""Small transformers: pre-norm blocks over pieces of an image, or over tokens.

Both have learned positions, biases and a last LayerNorm, and neither dropout nor statistics over a batch. Parameters
are named by what they do: `block_0/attention/query/kernel`, `block_1/mlp/up/bias`, `head/kernel`; kernels are
`(inputs, outputs)`, heads one after another in the outputs of query, key and value.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedjax_dp import errors
from fedjax_dp.models.model import NetworkModel, require_sizes, require_tokens
from fedjax_dp.models.networks import Linen
from fedjax_dp.tasks import TokenCrossEntropy

EPSILON = 1e-6  # of LayerNorm
SMALL = nn.initializers.normal(0.02)  # of tables, as in GPT-2 and ViT


class _Attention(nn.Module):
    """Each position reads all others, or those up to itself: `(records, positions, width)` to the same.

    Two products of activations, batched over records and heads, and so over clients as well where these are vmapped:
    no client's kernel takes part in them.
    """

    heads: int
    causal: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        records, positions, width = x.shape
        apart = (records, positions, self.heads, width // self.heads)
        query, key, value = (nn.Dense(width, name=name)(x).reshape(apart) for name in ("query", "key", "value"))
        scores = jnp.einsum("nthk,nshk->nhts", query * (apart[-1] ** -0.5), key)
        if self.causal:
            scores = jnp.where(np.tri(positions, dtype=bool)[None, None], scores, -jnp.inf)
        read = jnp.einsum("nhts,nshk->nthk", nn.softmax(scores), value)
        return nn.Dense(width, name="out")(read.reshape(x.shape))


class _FeedForward(nn.Module):
    """A hidden layer of 4 x width with gelu (by tanh, as GPT-2 has it), position by position."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(x.shape[-1], name="down")(nn.gelu(nn.Dense(4 * x.shape[-1], name="up")(x)))


class _TransformerBlock(nn.Module):
    """Attention and a multilayer perceptron, each of normalised values and added to what it read."""

    heads: int
    causal: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + _Attention(self.heads, self.causal, name="attention")(_norm("attention_norm")(x))
        return x + _FeedForward(name="mlp")(_norm("mlp_norm")(x))


def _norm(name: str) -> nn.LayerNorm:
    return nn.LayerNorm(epsilon=EPSILON, name=name)


class _Vit(nn.Module):
    """Square pieces of an image, each made a vector; blocks; the mean over pieces; class scores."""

    classes: int
    patch: int
    width: int
    layers: int
    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        side, (records, height, width) = self.patch, x.shape[:3]
        pieces = x.reshape(records, height // side, side, width // side, side, -1).swapaxes(2, 3)
        pieces = pieces.reshape(records, height // side * (width // side), -1)  # each by row, column, channel
        x = nn.Dense(self.width, name="patches")(pieces)
        x = x + self.param("positions", SMALL, x.shape[1:])[None]
        for at in range(self.layers):
            x = _TransformerBlock(self.heads, causal=False, name=f"block_{at}")(x)
        return nn.Dense(self.classes, name="head")(jnp.mean(_norm("norm")(x), 1))


def vit(
    record_shape: tuple[int, ...], classes: int, patch: int = 4, width: int = 64, layers: int = 2, heads: int = 4
) -> NetworkModel:
    """A vision transformer on square pieces of `patch` x `patch` pixels, averaged over pieces; `(classes,)` scores.

    104,970 parameters on 28x28 and 10 classes, with patch 4 and with patch 7; 108,350 with 62 classes. On 32x32x3
    107,978 with 10 classes, 207,946 with 4 layers, 113,828 with 100 classes.

    width    of a piece's vector, a multiple of heads; hidden layers are 4 x width.
    Raises:  ConfigurationError for records that are no images, a patch that does not divide their sides, and a width
             that heads do not divide.
    Source:  Dosovitskiy et al. 2021, arXiv:2010.11929, equations 1 to 4, with a mean for the class token, smaller.
    """
    require_sizes(record_shape, classes)
    _require_transformer(width, layers, heads)
    errors.require_count("patch", patch)
    if len(record_shape) not in (2, 3):
        wanted = "images (height, width), or (height, width, channels)"
        raise errors.refuse("record_shape", tuple(record_shape), wanted, "use an mlp, or give records their shape")
    if any(side % patch for side in record_shape[:2]):
        height, wide = record_shape[:2]
        common = math.gcd(height, wide)
        divisors = [str(side) for side in range(1, common + 1) if common % side == 0]
        wanted = f"one that divides both sides of images of {height} x {wide}"
        raise errors.refuse("patch", patch, wanted, f"take one of {', '.join(divisors)}")
    network = _Vit(classes, patch, width, layers, heads)
    return NetworkModel(Linen(network), tuple(record_shape))


class _Gpt(nn.Module):
    """Tokens and their places made vectors; blocks in which no position sees later ones; scores by the same table."""

    vocabulary: int
    context: int
    width: int
    layers: int
    heads: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        length = tokens.shape[1]
        if length > self.context:
            raise errors.refuse("record", f"{length} tokens", f"at most {self.context}, what this gpt was made for")
        table = nn.Embed(self.vocabulary, self.width, embedding_init=SMALL, name="tokens")
        positions = self.param("positions", SMALL, (self.context, self.width))
        x = table(tokens) + positions[None, :length]
        for at in range(self.layers):
            x = _TransformerBlock(self.heads, causal=True, name=f"block_{at}")(x)
        return table.attend(_norm("norm")(x))


def gpt(record_shape: tuple[int, ...], classes: int, width: int = 64, layers: int = 2, heads: int = 4) -> NetworkModel:
    """A causal transformer: tokens `(length,)` to scores `(length, classes)` of the one after each; its table is tied.

    110,976 parameters on 80 characters of 90 kinds, 741,632 on 20 words of 10,004. `classes` is the vocabulary; the
    context is the length of a record. Padding at the end needs no mask: no position before it sees it, and the loss
    leaves out targets that are padding.

    width    of a token's vector, a multiple of heads; hidden layers are 4 x width.
    Raises:  ConfigurationError for records that are no sequences, and a width that heads do not divide.
    Source:  Radford et al. 2019, Language models are unsupervised multitask learners, section 2.3, smaller.
    """
    require_sizes(record_shape, classes)
    _require_transformer(width, layers, heads)
    require_tokens(record_shape)
    network = _Gpt(classes, record_shape[0], width, layers, heads)
    return NetworkModel(Linen(network), tuple(record_shape), TokenCrossEntropy(pad=0), tokens=True)


def _require_transformer(width: int, layers: int, heads: int) -> None:
    for name, size in (("width", width), ("layers", layers), ("heads", heads)):
        errors.require_count(name, size)
    if width % heads:
        lower, upper = width // heads * heads, (width // heads + 1) * heads
        near = f"{lower} or {upper}" if lower else str(upper)
        raise errors.refuse("width", width, f"a multiple of the {heads} heads", f"take {near}, or other heads")
