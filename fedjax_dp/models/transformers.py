"""Small transformers: pre-norm blocks over pieces of an image, or over tokens.

Both have learned positions, biases and a last LayerNorm, and neither dropout nor statistics over a batch. Parameters
are named by what they do: `block_0/attention/query/kernel`, `block_1/mlp/up/bias`, `head/kernel`; kernels are
`(inputs, outputs)`, heads one after another in the outputs of query, key and value.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedjax_dp import errors
from fedjax_dp.models.model import NetworkModel, require_sizes, require_tokens
from fedjax_dp.models.networks import Linen
from fedjax_dp.tasks import TokenCrossEntropy

SMALL = nn.initializers.normal(0.02)  # of tables, as in GPT-2 and ViT


@dataclasses.dataclass(frozen=True)
class BlockSettings:
    """How a block of a transformer is built; the defaults are those of `vit` and `gpt`.

    heads       of queries; key_heads: of keys and values, each read by heads / key_heads of them, None: as many;
    head_width  of a head, None: width / heads; hidden: of the perceptron, None: 4 x width;
    causal      no position reads later ones;
    norm_first  each half reads normalised values, else their sum is normalised; rms: by RMSNorm, without a mean;
    fused       query, key and value are one kernel, in this order; gated: act(gate x) * up x, else act(up x);
    rotary      frequencies of rotary positions `(head_width / 2,)`, of the pairs (m, m + head_width / 2).
    """

    heads: int
    causal: bool
    key_heads: int | None = None
    head_width: int | None = None
    hidden: int | None = None
    activation: str = "gelu_new"
    norm_first: bool = True
    rms: bool = False
    epsilon: float = 1e-6
    fused: bool = False
    gated: bool = False
    attention_bias: bool = True
    mlp_bias: bool = True
    rotary: tuple[float, ...] = ()

    def norm(self, name: str) -> nn.Module:
        kind: Any = nn.RMSNorm if self.rms else nn.LayerNorm
        return kind(epsilon=self.epsilon, name=name)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": functools.partial(nn.gelu, approximate=False),
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), nn.gelu),  # by tanh
    "relu": nn.relu,
    **dict.fromkeys(("silu", "swish"), nn.silu),
}


def _rotate(x: jax.Array, frequencies: tuple[float, ...]) -> jax.Array:
    """Turns the pairs of each head `(records, positions, heads, head_width)` by angles that grow with the position."""
    angles = np.arange(x.shape[1])[None, :, None, None] * np.tile(np.asarray(frequencies), 2)
    first, second = jnp.split(x, 2, -1)
    cosines, sines = (wave(angles).astype(np.float32) for wave in (np.cos, np.sin))
    return (x * cosines + jnp.concatenate([-second, first], -1) * sines).astype(x.dtype)


class _Attention(nn.Module):
    """Each position reads all others, or those up to itself: `(records, positions, width)` to the same.

    Two products of activations, batched over records and heads, and so over clients as well where these are vmapped:
    no client's kernel takes part in them. `present (records, positions)` says which positions are read at all.
    """

    block: BlockSettings

    @nn.compact
    def __call__(self, x: jax.Array, present: jax.Array | None = None) -> jax.Array:
        block, (records, positions, width) = self.block, x.shape
        size, groups = block.head_width or width // block.heads, block.key_heads or block.heads
        heads, bias = (block.heads, groups, groups), block.attention_bias
        if block.fused:
            parts = jnp.split(nn.Dense(3 * width, bias, name="qkv")(x), 3, -1)
        else:
            names = zip(("query", "key", "value"), heads, strict=True)
            parts = [nn.Dense(count * size, bias, name=name)(x) for name, count in names]
        by_head = zip(parts, heads, strict=True)
        query, key, value = (part.reshape(records, positions, count, size) for part, count in by_head)
        if block.rotary:
            query, key = _rotate(query, block.rotary), _rotate(key, block.rotary)
        if groups < block.heads:
            key, value = (jnp.repeat(part, block.heads // groups, 2) for part in (key, value))
        scores = jnp.einsum("nthk,nshk->nhts", query * (size**-0.5), key)
        if block.causal:
            scores = jnp.where(np.tri(positions, dtype=bool)[None, None], scores, -jnp.inf)
        if present is not None:
            scores = jnp.where(present[:, None, None], scores, -jnp.inf)
        weights = nn.softmax(scores.astype(jnp.float32)).astype(scores.dtype)
        read = jnp.einsum("nhts,nshk->nthk", weights, value)
        return nn.Dense(width, bias, name="out")(read.reshape(records, positions, -1))


class _FeedForward(nn.Module):
    """A hidden layer, position by position."""

    block: BlockSettings

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        block, width = self.block, x.shape[-1]

        def dense(name: str, size: int) -> nn.Module:
            return nn.Dense(size, block.mlp_bias, name=name)

        up, act = dense("up", block.hidden or 4 * width)(x), ACTIVATIONS[block.activation]
        return dense("down", width)(act(dense("gate", up.shape[-1])(x)) * up if block.gated else act(up))


class TransformerBlock(nn.Module):
    """Attention and a multilayer perceptron, each added to what it read."""

    block: BlockSettings

    @nn.compact
    def __call__(self, x: jax.Array, present: jax.Array | None = None) -> jax.Array:
        attention, mlp = _Attention(self.block, name="attention"), _FeedForward(self.block, name="mlp")
        norms = [self.block.norm(name) for name in ("attention_norm", "mlp_norm")]
        if self.block.norm_first:
            x = x + attention(norms[0](x), present)
            return x + mlp(norms[1](x))
        x = norms[0](x + attention(x, present))
        return norms[1](x + mlp(x))


class _Vit(nn.Module):
    """Square pieces of an image, each made a vector; blocks; the mean over pieces; class scores."""

    classes: int
    patch: int
    width: int
    layers: int
    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        block, side, (records, height, width) = BlockSettings(self.heads, causal=False), self.patch, x.shape[:3]
        pieces = x.reshape(records, height // side, side, width // side, side, -1).swapaxes(2, 3)
        pieces = pieces.reshape(records, height // side * (width // side), -1)  # each by row, column, channel
        x = nn.Dense(self.width, name="patches")(pieces)
        x = x + self.param("positions", SMALL, x.shape[1:])[None]
        for at in range(self.layers):
            x = TransformerBlock(block, name=f"block_{at}")(x)
        return nn.Dense(self.classes, name="head")(jnp.mean(block.norm("norm")(x), 1))


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
        block, length = BlockSettings(self.heads, causal=True), tokens.shape[1]
        if length > self.context:
            raise errors.refuse("record", f"{length} tokens", f"at most {self.context}, what this gpt was made for")
        table = nn.Embed(self.vocabulary, self.width, embedding_init=SMALL, name="tokens")
        positions = self.param("positions", SMALL, (self.context, self.width))
        x = table(tokens) + positions[None, :length]
        for at in range(self.layers):
            x = TransformerBlock(block, name=f"block_{at}")(x)
        return table.attend(block.norm("norm")(x))


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
