"""Training a part of a model: its head, its biases, low-rank adapters, or parameters that match patterns."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_dp import errors
from fedjax_dp.gradients.analysis import GradientPlan, plan_of
from fedjax_dp.models import low_rank
from fedjax_dp.models.adaptation import Adaptation, Frozen, FrozenValues
from fedjax_dp.models.low_rank import LowRank
from fedjax_dp.models.model import NetworkModel
from fedjax_dp.models.networks import by_path
from fedjax_dp.models.selection import HEAD, match_patterns, select_names, split_words
from fedjax_dp.models.starts import Start, start_of, stated_pair, with_stated
from fedjax_dp.prng import role_key

ALL, BIAS, LORA, FFA_LORA, DENSE = "all", "bias", "lora", "ffa-lora", "dense"
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
    start      values to begin with: a run (a result, or what `open_run` opened), a checkpoint as a path or as
               `models.read_start` read it, parameters of the whole network or a mapping of paths to arrays; unless
               given, random ones, frozen values the same for every seed;
    start_data  what these were trained on, in words, for the Guarantee to say. A run, and what a run wrote, says it;
               of other values nothing is known, and the Guarantee begins with that unless it is given here;
    start_private  whether they hold records of the clients that will be trained on: there is no epsilon then, unless
               that of their own training is known, from a run's ledger or as
    start_epsilon, start_delta  what that training promised, for the unit and neighbours of the run that follows;
    fresh      patterns, or `head`, of parameters that begin at random, not with those of `start`;
    rank, alpha  r, and the factor alpha / r of low-rank terms; alpha is r unless given. A begins uniform within
               1 / sqrt(k), B at zero, so that the model begins as it is without them;
    targets    which kernels have low-rank terms: patterns, or `dense`, every one that is multiplied as a matrix and not
               trained itself;
    key        of random frozen values.
    Raises:    ConfigurationError for patterns that match nothing or everything, targets that are no kernels, values
               that are missing, of other names or shapes.
    Source:    Hu et al. 2021, arXiv:2106.09685; Sun et al. 2024, arXiv:2403.12313 (ffa-lora).
    """
    if model.adaptation is not None and model.adaptation.low_rank is not None:
        raise errors.refuse("model", "one with low-rank terms", "one without", "begin with the model that they are of")
    key = jax.random.key(0, impl="threefry2x32") if key is None else key
    words, already = split_words("trainable", trainable), {} if model.frozen is None else dict(model.frozen.values)
    before, model = model.origins, model.base  # what the model that is given brings
    tree = jax.eval_shape(model.init, jax.random.key(0))
    shapes = {name: shape for name, shape in by_path(tree).items() if name not in already}
    kept = {name: shape for name, shape in by_path(tree).items() if model.is_constant(name)}
    plan = plan_of(model, "scores", tree, (model.blank,))
    trained = _trainable_names(words, plan, shapes)
    adapters = _low_rank(words, plan, shapes, trained, rank, targets)
    of_start = {"fresh": fresh, "start_data": start_data, "start_private": start_private}
    for name, value in (of_start | {"start_epsilon": start_epsilon, "start_delta": start_delta}).items():
        if start is None and value is not None:
            raise errors.refuse(name, value, "left out where training begins at random", "give start, or drop it")
    if start is not None:
        public = None if start_private is None else not start_private
        start = start_of(start, trained_on=start_data, public=public)
        start = with_stated(start, stated_pair(start_epsilon, start_delta))
    anew = set() if fresh is None else select_names("fresh", split_words("fresh", fresh), plan, shapes | kept)
    begun = {} if start is None else _initial_values(start, shapes | kept, anew)
    drawn = by_path(model.init(role_key(key, "init"))) if set(shapes) - set(begun) - set(trained) else {}
    values = {name: jnp.asarray(begun.get(name, drawn.get(name))) for name in shapes if name not in trained} | already
    values |= {name: jnp.asarray(begun[name]) for name in kept if name in begun}
    if adapters is not None and not adapters.both:
        kernels = low_rank.kernels_of(plan)
        for name in adapters.names:
            own = role_key(key, f"low rank {name}")
            values[f"{name}/{low_rank.A}"] = low_rank.random_a(own, kernels[name], rank)
    if alpha is not None:
        errors.require_positive("lora_alpha", alpha)
        if adapters is None:
            raise errors.refuse("lora_alpha", alpha, f"left out unless trainable has {LORA} or {FFA_LORA}", "drop it")
    scale = jnp.float32(1.0 if alpha is None else alpha / rank)
    held = Frozen(FrozenValues(values, {name: jnp.asarray(begun[name]) for name in trained if name in begun}, scale))
    others = bool(set(already) - set(kept) or set(shapes) - set(begun))
    origins = (*(before if others else ()), *(() if start is None else (start.origin,)))
    return dataclasses.replace(model, adaptation=Adaptation(trained, adapters, origins, held.checksum), held=held)


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
        names = match_patterns("lora_targets", patterns, shapes)
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


def _initial_values(start: Start, shapes: Mapping[str, Any], fresh: Collection[str]) -> dict[str, Any]:
    """Initial values by path."""
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
        value = value.astype(shape.dtype)
        if not bool(np.isfinite(np.asarray(value)).all()):
            raise errors.refuse(where, f"{name} with NaN or infinity", "finite")
        found[name] = value
    return found
