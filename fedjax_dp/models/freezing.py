"""Training a part of a model: its head, its biases, low-rank adapters, or parameters that match patterns."""

import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.gradients.analysis import GradientPlan, plan_of
from fedjax_dp.models import adapters, low_rank
from fedjax_dp.models.adaptation import Adaptation, Frozen, FrozenValues
from fedjax_dp.models.low_rank import LowRank
from fedjax_dp.models.model import NetworkModel
from fedjax_dp.models.networks import by_path
from fedjax_dp.models.selection import HEAD, match_patterns, matches, select_names, split_words
from fedjax_dp.models.starts import Start, read_start, start_of, stated_pair, with_stated
from fedjax_dp.prng import role_key

ALL, BIAS, LORA, FFA_LORA, DENSE = "all", "bias", "lora", "ffa-lora", "dense"
TARGETS = {  # words for kernels of transformers, as patterns
    "attention": ("**attention/query/kernel", "**attention/value/kernel", "**attention/qkv/kernel"),
    "mlp": ("**mlp/*/kernel",),
}
WORDS = (ALL, HEAD, BIAS, LORA, FFA_LORA)
RANK = 4


def freeze(
    model: NetworkModel,
    trainable: str = ALL,
    *,
    start: Any = None,
    start_data: str | None = None,
    start_private: bool | None = None,
    start_epsilon: float | None = None,
    start_delta: float | None = None,
    fresh: str | None = None,
    rank: int = RANK,
    alpha: float | None = None,
    targets: str = DENSE,
    key: jax.Array | None = None,
) -> NetworkModel:
    """The model with only a part trained: the rest is frozen, stored once, and in no message, noise or norm.

    trainable  comma-separated: `all`; `head`, the layer of the last matrix product; `bias`; `lora`, low-rank terms of
               frozen kernels; `ffa-lora`, only B of these terms, with A frozen at its initial value (less noise: it
               enters linearly, and clients' terms average); or patterns of parameter paths such as `block_1/**` (`*`
               and `?` within a name, `**` across);
    start      values to begin with, by default those of a pretrained model: a run (a result, or what `open_run`
               opened), a checkpoint or an adapter as a path or as `models.read_start` read it, parameters of the whole
               network or a mapping of paths to arrays; else random ones, frozen values the same for every seed;
    start_data  what these were trained on, in words, for the Guarantee to say. A run, and what a run wrote, says it;
               of other values nothing is known, and the Guarantee begins with that unless it is given here;
    start_private  whether they hold records of the clients that will be trained on: there is no epsilon then, unless
               that of their own training is known, from a run's ledger or as
    start_epsilon, start_delta  what that training promised, for the unit and neighbours of the run that follows;
    fresh      patterns, or `head`, of parameters that begin at random, not with those of `start`;
    rank, alpha  r, and the factor alpha / r of low-rank terms; alpha is r unless given. A begins uniform within
               1 / sqrt(k), B at zero, so that the model begins as it is without them;
    targets    which kernels have low-rank terms: `attention`, those of queries and values; `mlp`; `dense`, every one
               that is multiplied as a matrix and not trained itself; or patterns;
    key        of random frozen values.
    Raises:    ConfigurationError for patterns that match nothing or everything, targets that are no kernels, values
               that are missing, of other names or shapes.
    Source:    Hu et al. 2021, arXiv:2106.09685; Sun et al. 2024, arXiv:2403.12313 (ffa-lora).
    """
    if model.adaptation is not None and model.adaptation.low_rank is not None:
        raise errors.refuse("model", "one with low-rank terms", "one without", "begin with the model that they are of")
    key = jax.random.key(0, impl="threefry2x32") if key is None else key
    words, frozen = split_words("trainable", trainable), model.frozen or FrozenValues({}, {}, jnp.float32(1.0))
    already, base = dict(frozen.values), frozen.start  # the latter of a pretrained model
    before, model = model.origins, model.base  # what the model that is given brings
    if isinstance(start, str | os.PathLike):
        start = read_start(start)
    terms = None if getattr(start, "adapter", None) is None else adapters.terms_of(start, model, base)
    if terms is not None:
        rank, alpha, targets = _settings_of(terms, rank, alpha, targets)
        start, own = terms.start, terms.start.values
    elif start is None and base:
        start, own, before = Start(base, before[0]), base, before[1:]
    else:
        own = {}  # what a model brings with it
    tree = jax.eval_shape(model.init, jax.random.key(0))
    shapes = {name: shape for name, shape in by_path(tree).items() if name not in already}
    kept = {name: shape for name, shape in by_path(tree).items() if model.is_constant(name)}
    plan = plan_of(model, "scores", tree, (model.blank,))
    trained = _trainable_names(words, plan, shapes)
    low = _low_rank(words, plan, shapes, trained, rank, targets)
    of_start = {"fresh": fresh, "start_data": start_data, "start_private": start_private}
    for name, value in (of_start | {"start_epsilon": start_epsilon, "start_delta": start_delta}).items():
        if start is None and value is not None:
            raise errors.refuse(name, value, "left out where training begins at random", "give start, or drop it")
    if start is not None:
        public = None if start_private is None else not start_private
        start = start_of(start, trained_on=start_data, public=public)
        start = with_stated(start, stated_pair(start_epsilon, start_delta))
    anew = set() if fresh is None else select_names("fresh", split_words("fresh", fresh), plan, shapes | kept)
    anew |= set(shapes) - set(own) if own else set()
    begun = {} if start is None else _initial_values(start, shapes | kept, anew, model.dtype)
    lacking = [name for name in shapes if name not in begun and name not in trained]
    drawn = model.draw(role_key(key, "init"), lacking, bool(begun))
    values = {name: jnp.asarray(begun.get(name, drawn.get(name))) for name in shapes if name not in trained} | already
    values |= {name: jnp.asarray(begun[name]) for name in kept if name in begun}
    factors = {name: jnp.asarray(value) for name, value in own.items() if name.endswith((low_rank.A, low_rank.B))}
    if low is not None and not low.both:
        kernels = low_rank.kernels_of(plan)
        for name in low.names:
            drawn_by, a = role_key(key, f"low rank {name}"), f"{name}/{low_rank.A}"
            values[a] = factors.pop(a) if a in factors else low_rank.random_a(drawn_by, kernels[name], rank)
    if alpha is not None:
        errors.require_positive("lora_alpha", alpha)
        if low is None:
            raise errors.refuse("lora_alpha", alpha, f"left out unless trainable has {LORA} or {FFA_LORA}", "drop it")
    scale = jnp.float32(1.0 if alpha is None else alpha / rank)
    begins = {name: jnp.asarray(begun[name]) for name in trained if name in begun} | factors
    held = Frozen(FrozenValues(values, begins, scale))
    others = bool(own) or bool(set(already) - set(kept) or set(shapes) - set(begun))
    origins = (*(before if others else ()), *(() if start is None else (start.origin,)))
    return dataclasses.replace(model, adaptation=Adaptation(trained, low, origins, held.checksum), held=held)


def _settings_of(terms: adapters.Terms, rank: int, alpha: float | None, targets: str) -> tuple[int, float, str]:
    """Rank, alpha and kernels of an adapter; refuses others."""
    for name, got, own in (("lora_rank", rank, terms.rank), ("lora_alpha", alpha, terms.alpha)):
        if got not in (None, RANK, own):
            raise errors.refuse(name, got, f"{own:g}, that of the adapter, or left out", "drop it")
    if targets != DENSE:
        raise errors.refuse("lora_targets", targets, "left out, as the adapter has its own", "drop it")
    return terms.rank, terms.alpha, ",".join(terms.kernels)


def _trainable_names(words: Sequence[str], plan: GradientPlan, shapes: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the parameters that are trained directly."""
    if ALL in words:
        if len(words) > 1:
            raise errors.refuse("trainable", ",".join(words), "all, or some", "drop one of them")
        return tuple(shapes)
    patterns = ["**bias" if word == BIAS else word for word in words if word not in (LORA, FFA_LORA)]
    found = select_names("trainable", patterns, plan, shapes)
    if len(found) == len(shapes):
        got = f"{','.join(words)!r}, which matches every parameter"
        raise errors.refuse("trainable", got, "some of the parameters", "leave it out to train all")
    return tuple(name for name in shapes if name in found)


def _low_rank(
    words: Sequence[str],
    plan: GradientPlan,
    shapes: Mapping[str, Any],
    trained: Collection[str],
    rank: int,
    targets: str,
) -> LowRank | None:
    both, alone = LORA in words, FFA_LORA in words
    if not (both or alone):
        if targets != DENSE or rank != RANK:
            wanted = f"left out unless trainable has {LORA} or {FFA_LORA}"
            raise errors.refuse("lora_rank and lora_targets", f"{rank} and {targets}", wanted, "drop them")
        return None
    if both and alone:
        raise errors.refuse("trainable", ",".join(words), f"{LORA} or {FFA_LORA}", "drop one of them")
    errors.require_count("lora_rank", rank)
    kernels = low_rank.kernels_of(plan)
    patterns = split_words("lora_targets", targets)
    if patterns == [DENSE]:
        names = [name for name in kernels if name in shapes and name not in trained]
    else:
        found = [name for word in patterns for name in _targets(word, shapes)]
        names = [name for name in shapes if name in found]
        for name in names:
            if name in trained:
                raise errors.refuse("lora_targets", f"{name}, which is trained itself", "others", "drop one of the two")
            if name not in kernels:
                got = f"{name}, which is not multiplied as a whole matrix wherever it is used"
                remedy = "there are " + ", ".join(list(kernels)[:6]) if kernels else ""
                raise errors.refuse("lora_targets", got, "kernels of dense layers", remedy)
    if not names:
        word = LORA if both else FFA_LORA
        already = ", ".join([name for name in kernels if name in trained][:4])
        why = f"{already} is trained already: drop {word}, or the word that trains it" if already else f"drop {word}"
        remedy = f"{why}; gpt and vit have such layers in every block, an lstm in its head alone"
        raise errors.refuse("trainable", ",".join(words), f"one that leaves {word} a dense layer", remedy)
    sides = {name: min(kernels[name].shape[1:]) for name in names}
    narrow = [name for name in names if rank > sides[name]]
    if len(narrow) == len(names) or (narrow and patterns != [DENSE]):
        name = max(names if patterns == [DENSE] else narrow, key=sides.__getitem__)
        raise errors.refuse("lora_rank", rank, f"at most {sides[name]}, the shorter side of {name}")
    fitting = [name for name in names if name not in narrow]
    return LowRank(tuple(fitting), rank, both)


def _targets(word: str, shapes: Mapping[str, Any]) -> list[str]:
    """The kernels that a word or a pattern means."""
    if word not in TARGETS:
        return match_patterns("lora_targets", [word], shapes)
    found = [name for pattern in TARGETS[word] for name in shapes if matches(pattern, name)]
    if not found:
        wanted = "used where there are such layers, as in gpt, vit and pretrained models"
        raise errors.refuse("lora_targets", word, wanted, f"take {DENSE}, or patterns")
    return found


def _initial_values(start: Start, shapes: Mapping[str, Any], fresh: Collection[str], dtype: Any) -> dict[str, Any]:
    """Initial values by path; those in the type of the forward pass stay in it."""
    values, where = start.values, start.origin.name
    wanted = {name: shape for name, shape in shapes.items() if name not in fresh}
    if not wanted:
        raise errors.refuse("fresh", "every parameter", "some of them", "leave out what they would begin with")
    found = {}
    for name, shape in wanted.items():
        if name not in values:
            near = errors.nearest(name, list(values))
            guess = f"did you mean {near[0]}? " if near else ""
            raise errors.refuse(
                where, f"no {name}", "with every parameter of the model", f"{guess}name it in start_names, or in fresh"
            )
        value = np.asarray(values[name]) if not isinstance(values[name], jax.Array) else values[name]
        if value.dtype.kind not in "fV" or tuple(value.shape) != shape.shape:
            got = f"{name} of {value.dtype} {tuple(value.shape)}"
            raise errors.refuse(where, got, f"float {shape.shape}", "turn it in start_names, or begin it afresh")
        if value.dtype not in (shape.dtype, dtype):  # no copy of what may be large
            value = value.astype(shape.dtype)
        if not bool(np.isfinite(np.asarray(value)).all()):
            raise errors.refuse(where, f"{name} with NaN or infinity", "finite")
        found[name] = value
    return found
