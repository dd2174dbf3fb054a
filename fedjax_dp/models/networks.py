"""Adapters for unchanged networks of several frameworks: how to initialise them, and how to run them on records.

A network may take a flag for training, with one of the names in MODES: it is set if there is a key.
"""

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np
from flax import linen as nn

from fedjax_dp import errors, validation
from fedjax_dp.pytrees import path_name

MODES = {"train": True, "training": True, "is_training": True, "deterministic": False, "inference": False}


class Network(Protocol):
    """The structure of a network; its parameters are a pytree of floating point arrays."""

    @property
    def name(self) -> str: ...

    @property
    def for_batches(self) -> bool: ...  # whether it is written for a batch of records, or for one

    @property
    def stands(self) -> bool: ...  # whether it came with the numbers that it begins with, the same for every key

    def init(self, key: jax.Array, blank: jax.Array) -> Any: ...  # blank: one record

    def run(self, params: Any, x: jax.Array, key: jax.Array | None) -> Any: ...  # scores, of a batch or of one record


@dataclasses.dataclass(frozen=True)
class Linen:
    """A `flax.linen` module that maps `(records, *record_shape)` to scores `(records, ...)`."""

    module: nn.Module
    mode: str | None = None  # the name of its flag, see MODES
    constants: tuple[str, ...] = ()  # collections beside its parameters, which no call may change
    for_batches, stands = True, False

    @property
    def name(self) -> str:
        return type(self.module).__name__

    def with_constants(self, key: jax.Array, blank: jax.Array) -> "Linen":
        """The network with its statistics and other constants among its values."""
        kept = set(jax.eval_shape(self._variables, key, blank)) - {"params", "intermediates"}
        return dataclasses.replace(self, constants=tuple(sorted(kept)))

    def init(self, key: jax.Array, blank: jax.Array) -> Any:
        variables = self._variables(key, blank)
        return variables.get("params", {}) | {name: variables[name] for name in self.constants}

    def _variables(self, key: jax.Array, blank: jax.Array) -> Any:
        return self.module.init(key, blank[None], **_flag(self.mode, False))

    def run(self, params: Any, x: jax.Array, key: jax.Array | None) -> Any:
        rngs = None if key is None else {"params": jax.random.fold_in(key, 0), "dropout": jax.random.fold_in(key, 1)}
        options: dict[str, Any] = {"rngs": rngs, **_flag(self.mode, key is not None)}
        if not self.constants:
            return self.module.apply({"params": params}, x, **options)
        before = {name: params[name] for name in self.constants}
        own = {name: value for name, value in params.items() if name not in before}
        made, after = self.module.apply({"params": own, **before}, x, mutable=list(before), **options)
        _require_constant(self.name, before, dict(after))
        return made


@dataclasses.dataclass(frozen=True, eq=False)
class Nnx:
    """A `flax.nnx` module that maps `(records, *record_shape)` to scores; equal to itself only.

    build  makes one from a key; an existing module starts with its current numbers.
    Parameters are its `nnx.Param`, as a dictionary by path; all its other state is constant.
    """

    build: Callable[[jax.Array], Any]
    mode: str | None = None
    for_batches = True

    @property
    def name(self) -> str:
        return type(self._example).__name__

    @functools.cached_property
    def stands(self) -> bool:
        kept = map(np.ravel, self.statistics.values())
        return isinstance(self.build, _Made) or not all(np.all(a == a[:1]) for a in kept)

    @property
    def statistics(self) -> dict[str, Any]:
        """State other than parameters and keys, which no call may change."""
        return _statistics(self._parts[2])

    @functools.cached_property
    def _example(self) -> Any:
        with jax.ensure_compile_time_eval():
            return self.build(jax.random.key(0))

    @functools.cached_property
    def _parts(self) -> tuple[Any, Any, Any]:
        from flax import nnx

        split: Any = nnx.split
        graph, params, rest = split(self._example, nnx.Param, ...)
        return graph, jax.tree.structure(params), rest

    def init(self, key: jax.Array, blank: jax.Array) -> Any:
        from flax import nnx

        return by_path(nnx.split(self.build(key), nnx.Param, ...)[1])

    def run(self, params: Any, x: jax.Array, key: jax.Array | None) -> Any:
        from flax import nnx

        graph, structure, rest = self._parts
        module = nnx.merge(graph, from_paths(params, structure), rest, copy=True)
        module = nnx.view(module, deterministic=key is None, raise_if_not_found=False)
        if key is not None:
            streams = {part.key.tag for _, part in nnx.iter_graph(module) if isinstance(part, nnx.RngStream)}
            keys: dict[str, Any] = {tag: jax.random.fold_in(key, at) for at, tag in enumerate(sorted(streams))}
            nnx.reseed(module, policy="match_shape", **keys)
        before = _statistics(nnx.state(module))
        made = module(x, **_flag(self.mode, key is not None))
        _require_constant(self.name, before, _statistics(nnx.state(module)))
        return made


@dataclasses.dataclass(frozen=True, eq=False)
class Equinox:
    """An Equinox module, which maps one record to scores; equal to itself only.

    build  makes one from a key; an existing module starts with its current numbers.
    Parameters are its floating point arrays, as a dictionary by path. If its call takes a `key`, it gets one.
    """

    build: Callable[[jax.Array], Any]
    mode: str | None = None
    for_batches = False

    @property
    def name(self) -> str:
        return type(self._parts[1]).__name__

    @property
    def stands(self) -> bool:
        return isinstance(self.build, _Made)

    @functools.cached_property
    def _parts(self) -> tuple[Any, Any, bool]:
        import equinox as eqx

        with jax.ensure_compile_time_eval():
            params, static = eqx.partition(self.build(jax.random.key(0)), eqx.is_inexact_array)
        keyed = "key" in inspect.signature(type(static).__call__).parameters
        return jax.tree.structure(params), static, keyed

    def init(self, key: jax.Array, blank: jax.Array) -> Any:
        import equinox as eqx

        return by_path(eqx.filter(self.build(key), eqx.is_inexact_array))

    def run(self, params: Any, x: jax.Array, key: jax.Array | None) -> Any:
        import equinox as eqx

        structure, static, keyed = self._parts
        module = eqx.nn.inference_mode(eqx.combine(from_paths(params, structure), static), key is None)
        return module(x, **({"key": key} if keyed else {}), **_flag(self.mode, key is not None))


@dataclasses.dataclass(frozen=True)
class Haiku:
    """A function transformed by `hk.transform`, which maps `(records, *record_shape)` to scores."""

    transformed: Any
    mode: str | None = None
    name, for_batches, stands = "the Haiku function", True, False

    def init(self, key: jax.Array, blank: jax.Array) -> Any:
        return self.transformed.init(key, blank[None], **_flag(self.mode, False))

    def run(self, params: Any, x: jax.Array, key: jax.Array | None) -> Any:
        return self.transformed.apply(params, key, x, **_flag(self.mode, key is not None))


@dataclasses.dataclass(frozen=True)
class Functions:
    """Two functions: `start(key)` makes parameters, `forward(params, x)` scores of one record.

    A third argument of `forward` is the key of this record in this step, None for evaluation.
    """

    start: Callable[[jax.Array], Any]
    forward: Callable[..., Any]
    mode: str | None = None
    for_batches = False

    @property
    def name(self) -> str:
        return getattr(self.forward, "__name__", type(self.forward).__name__)

    @functools.cached_property
    def stands(self) -> bool:
        """Whether some array is the same for two keys, and not constant like zeros or ones."""
        starts = ([np.ravel(a) for a in jax.tree.leaves(self.start(jax.random.key(seed)))] for seed in (0, 1))
        return any(np.array_equal(a, b) and not np.all(a == a[:1]) for a, b in zip(*starts, strict=True))

    @functools.cached_property
    def _takes_key(self) -> bool:
        taken = inspect.signature(self.forward).parameters.values()
        by_place = [one.name for one in taken if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        return len(set(by_place) - MODES.keys()) > 2

    def init(self, key: jax.Array, blank: jax.Array) -> Any:
        return self.start(key)

    def run(self, params: Any, x: jax.Array, key: jax.Array | None) -> Any:
        arguments = (params, x, key) if self._takes_key else (params, x)
        return self.forward(*arguments, **_flag(self.mode, key is not None))


_PAIR = "give (start, forward): start(key) makes parameters, forward(params, x) scores of one record"


def network_of(network: Any, mode: str | None = None) -> Network:
    """The adapter for a user's network; `mode` is the name of its flag for training."""
    nnx, eqx, haiku = (sys.modules.get(name) for name in ("flax.nnx", "equinox", "haiku"))
    if isinstance(network, Linen | Nnx | Equinox | Haiku | Functions):
        return network
    if isinstance(network, nn.Module):
        return Linen(_hashable(network), mode or _mode(network.__call__))
    if nnx is not None and isinstance(network, nnx.Module):
        return Nnx(_Made(network), mode or _mode(network.__call__))
    if eqx is not None and isinstance(network, eqx.Module):
        return Equinox(_Made(network), mode or _mode(network.__call__))
    if haiku is not None and isinstance(network, haiku.Transformed):
        return Haiku(network, mode)
    if haiku is not None and isinstance(network, haiku.TransformedWithState):
        raise _keeps("the Haiku function", "a state")
    if isinstance(network, tuple) and len(network) == 2 and all(map(callable, network)):
        return Functions(*network, mode=mode or _mode(network[1]))
    if callable(network) and not isinstance(network, type):
        _require_of_a_key(network)
        with jax.ensure_compile_time_eval():
            made = network(jax.random.key(0))
        for framework, kind in ((nnx, Nnx), (eqx, Equinox)):
            if framework is not None and isinstance(made, framework.Module):
                return kind(network, mode or _mode(made.__call__))
        if isinstance(made, nn.Module):
            return Linen(_hashable(made), mode or _mode(made.__call__))
    modules = "a module of Flax (linen or nnx), Equinox or Haiku"
    wanted = f"{modules}, a function of a key that makes one, or a pair of functions"
    remedy = _constructor_words(network) if isinstance(network, type) else _PAIR
    raise errors.refuse("model", validation.describe(network), wanted, remedy)


def _require_of_a_key(network: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called with a key alone, such as the one that predicts."""
    try:
        signature = inspect.signature(network)
    except ValueError:  # nothing is known of it
        return
    try:
        signature.bind(None)
    except TypeError:
        wanted = "a function of a key alone, which makes a module"
        raise errors.refuse("model", f"one of {signature}", wanted, _PAIR) from None


def _constructor_words(cls: type) -> str:
    """The remedy for a class instead of a network."""
    taken = inspect.signature(vars(cls).get("__init__", cls)).parameters  # a class of nnx has its metaclass's
    for name, made in (("rngs", "nnx.Rngs(key)"), ("key", "key")):
        if name in taken:
            return f"give a function that makes one: lambda key: {cls.__name__}(..., {name}={made})"
    return f"give one that is made: {cls.__name__}(...)"


@dataclasses.dataclass(frozen=True, eq=False)
class _Made:
    """An existing module, the same for every key."""

    module: Any

    def __call__(self, key: jax.Array) -> Any:
        return self.module


def _hashable(module: nn.Module) -> nn.Module:
    """The module with tuples for lists, as in `nn.Sequential`, so that equal models share one program."""
    fields = {field.name: getattr(module, field.name) for field in dataclasses.fields(module)}
    listed: Any = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    with contextlib.suppress(TypeError):
        found = module.clone(**listed) if listed else module
        hash(found)
        return found
    name = type(module).__name__
    raise errors.refuse("model", f"{name} with fields that cannot be hashed", "one of plain fields", "use tuples")


def _mode(function: Callable[..., Any]) -> str | None:
    parameters = inspect.signature(function).parameters
    return next((name for name in MODES if name in parameters), None)


def _flag(mode: str | None, trained: bool) -> dict[str, Any]:
    return {} if mode is None else {mode: trained == MODES.get(mode, True)}


def by_path(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by their paths, the common form of parameters of all frameworks."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def from_paths(leaves: Mapping[str, Any], structure: Any) -> Any:
    """The pytree of leaves by path: the inverse of `by_path`."""
    blank = jax.tree.unflatten(structure, range(structure.num_leaves))
    paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(blank)]
    return jax.tree.unflatten(structure, [leaves[path] for path in paths])


def _statistics(state: Any) -> dict[str, Any]:
    """The arrays of an nnx state that are neither parameters nor keys: running statistics, a cache."""
    from flax import nnx

    kept: Any = nnx.filter_state(state, nnx.Any(nnx.BatchStat, nnx.Cache))
    return by_path(kept)


def _require_constant(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Refuse a call that writes constants, even with the same numbers: the traced arrays must be the same objects."""
    kept, left = by_path(before), by_path(after)
    if kept.keys() != left.keys() or any(kept[path] is not left[path] for path in kept):
        raise _keeps(name, ", ".join(before))


def _keeps(name: str, what: str) -> errors.ConfigurationError:
    wanted = "a module whose parameters alone change, so that records do not mix"
    others = "use GroupNorm or LayerNorm instead of BatchNorm"
    remedy = f"{others}, or its running statistics alone (use_running_average=True)"
    return errors.refuse("model", f"{name} with {what}, which it updates from records", wanted, remedy)
