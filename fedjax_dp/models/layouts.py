"""Layouts of pretrained language models: how they compute, and what their files call their parameters.

Parameters are named here as in `transformers`: `block_0/attention/query/kernel`, kernels `(inputs, outputs)`.
"""

import pathlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_dp.models.transformers import ACTIVATIONS, SMALL, BlockSettings, TransformerBlock

HIDDEN, MASKED, SEQUENCE, CLASSES = "hidden", "masked", "sequence", "classes"
_LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "bias": "bias"}


class LanguageModel(nn.Module):
    """Token ids `(records, length)`, or ids and types `(records, 2, length)`, to the scores of a task.

    pad        id of padding, None: a record has none;
    output     `hidden` states, or scores: of `classes`, of `masked` tokens, of the next at each place, `sequence`;
    outputs    number of classes;
    pool       the place that is classified, or the mean of all;
    positions  rows of the table of positions, 0: none, and a record has `longest` tokens; types: of that of types;
    counted    positions are counted from pad + 1, and that of padding is pad;
    tied       scores of tokens are products with their table;
    pooler     name of a dense layer with tanh before the head, empty: none.
    """

    layout: str
    block: BlockSettings
    layers: int
    vocabulary: int
    width: int
    pad: int | None
    output: str
    outputs: int
    pool: str
    positions: int = 0
    types: int = 0
    longest: int = 0
    counted: bool = False
    embedding_norm: bool = False
    last_norm: bool = False
    tied: bool = True
    pooler: str = ""
    head_bias: bool = False
    head_activation: str = "gelu"

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        ids, types = (tokens[:, 0], tokens[:, 1]) if tokens.ndim == 3 else (tokens, jnp.zeros_like(tokens))
        length = ids.shape[1]
        is_token = jnp.ones(ids.shape, bool) if self.pad is None else ids != self.pad
        last = jnp.max(jnp.where(is_token, jnp.arange(length), 0), 1)
        present = jnp.arange(length)[None] <= last[:, None]
        table = nn.Embed(self.vocabulary, self.width, embedding_init=SMALL, name="tokens")
        x = table(ids)
        if self.positions:
            places = jnp.cumsum(is_token, 1) * is_token + (self.pad or 0) if self.counted else jnp.arange(length)[None]
            x = x + self.param("positions", SMALL, (self.positions, self.width))[places]
        if self.types:
            x = x + self.param("types", SMALL, (self.types, self.width))[types]
        if self.embedding_norm:
            x = self.block.norm("embedding_norm")(x)
        for at in range(self.layers):
            x = TransformerBlock(self.block, name=f"block_{at}")(x, None if self.block.causal else present)
        if self.last_norm:
            x = self.block.norm("norm")(x)
        if self.output == HIDDEN:
            return x
        if self.output == CLASSES:
            return nn.Dense(self.outputs, self.head_bias, name="head")(self._pooled(x, last, present))
        if self.output == MASKED:
            x = ACTIVATIONS[self.head_activation](nn.Dense(self.width, name="head_dense")(x))
            x = self.block.norm("head_norm")(x)
            return table.attend(x) + self.param("head_bias", nn.initializers.zeros, (self.vocabulary,))[None, None]
        return table.attend(x) if self.tied else nn.Dense(self.vocabulary, False, name="head")(x)

    def _pooled(self, x: jax.Array, last: jax.Array, present: jax.Array) -> jax.Array:
        if self.pool == "mean":
            shares = present / jnp.sum(present, 1, keepdims=True)
            return jnp.einsum("nt,ntd->nd", shares.astype(x.dtype), x)
        at = last if self.pool == "last" else jnp.zeros_like(last)
        x = jnp.take_along_axis(x, at[:, None, None], 1)[:, 0]
        return nn.tanh(nn.Dense(self.width, name=self.pooler)(x)) if self.pooler else x


class Layout(NamedTuple):
    """How a family of models is configured and stored.

    keys     of config.json, by field of `BlockSettings` or `LanguageModel`; a missing one is that of `defaults`, None
             where it is `optional`, else refused;
    fixed    fields that no key changes; only: keys of which one value is supported, that of a missing one;
    names    of layers in files, by their path here; `{}` is the number of a block;
    heads    of the layers above the body, by output; a file may lack them;
    prefix   that may be in front of the names of the body;
    turned   whether kernels of the body are stored transposed, `(outputs, inputs)`, as those of heads always are.
    """

    prefix: str
    keys: Mapping[str, str]
    names: Mapping[str, str]
    heads: Mapping[str, Mapping[str, str]]
    defaults: Mapping[str, Any]
    fixed: Mapping[str, Any]
    only: Mapping[str, Any] = {}
    optional: Sequence[str] = ()
    turned: bool = True


def _read_layouts() -> dict[str, Layout]:
    tables: dict[str, dict[str, Any]] = tomllib.loads(pathlib.Path(__file__).with_suffix(".toml").read_text())
    whole = (tables.get(table.pop("like", ""), {}) | table for table in tables.values())
    return {name: Layout(**layout) for name, layout in zip(tables, whole, strict=True)}


LAYOUTS = _read_layouts()


def file_name(network: LanguageModel, path: str, prefix: bool = True) -> str:
    """The name in files of a parameter, with the prefix of the body or without."""
    layout = LAYOUTS[network.layout]
    layer, leaf = path.rsplit("/", 1) if "/" in path else (path, "bias" if path == "head_bias" else "kernel")
    number = re.search(r"(?<=block_)\d+", layer)
    general = re.sub(r"block_\d+", "block_{}", layer)
    heads = layout.heads.get(network.output, {})
    name = (heads if general in heads else layout.names)[general].format(number and number[0])
    before = layout.prefix if prefix and general not in heads and network.output != HIDDEN else ""
    return f"{before}{name}" if path == "head_bias" else f"{before}{name}.{_LEAVES[leaf]}"


def is_transposed(network: LanguageModel, path: str) -> bool:
    """Whether files hold a kernel as `(outputs, inputs)`."""
    return path.endswith("/kernel") and (LAYOUTS[network.layout].turned or path.startswith("head"))
