"""Values, and functions of pytrees of arrays.

A *value* is a frozen dataclass that is a pytree: its numeric fields are leaves (traced, so they can be swept without
a new compilation), its `structure()` fields are static.
"""

import dataclasses
import functools
import textwrap
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_dp import devices, errors, validation
from fedjax_dp.validation import is_value as is_value

devices.leave_children_alone()

T = TypeVar("T")
LARGE = 40_000  # parameters that fit into the caches of a CPU's core, with what is computed from them


Requirement = Callable[..., None]  # require(what, value[, remedy]) refuses, as the functions of `errors` do


def structure(require: Requirement | None = None, *, option: str = "", remedy: str = "", **kwargs: Any) -> Any:
    """A static field of a value: sizes, loop lengths, functions. A change needs a new compilation.

    require, option, remedy  as for `number`.
    """
    return number(require, option=option, remedy=remedy, static=True, **kwargs)


def number(
    require: Requirement | dict[str, Requirement] | None = None,
    *,
    option: str = "",
    remedy: str = "",
    static: bool = False,
    **kwargs: Any,
) -> Any:
    """A field of a value, with the numbers that it accepts, which `check_part` checks.

    require  the check of the number, or, for a dictionary of numbers, of each by its key; "" is for all other keys;
    option   name in a refusal, by default the field's; for a dictionary what stands before a key;
    remedy   what a refusal says to do.
    A field whose default is None may be None.
    """
    metadata = {"static": static, "require": require, "option": option, "remedy": [remedy] if remedy else []}
    return dataclasses.field(metadata=metadata, **kwargs)


def require_numbers(part: Any) -> None:
    """Refuse a value with a number, concrete here, that its field does not accept, or with such a value inside."""
    for field in dataclasses.fields(part) if is_value(part) else ():
        content, require = getattr(part, field.name), field.metadata.get("require")
        if require is None:
            for one in content if isinstance(content, tuple) else (content,):
                require_numbers(one)
            continue
        option, remedy = field.metadata["option"], field.metadata["remedy"]
        entries = [(option or field.name, content, require)]
        if isinstance(require, dict):
            entries = [(option + key, entry, require.get(key, require.get(""))) for key, entry in content.items()]
        for what, entry, accept in entries:
            if accept is not None and (entry is not None or field.default is not None):
                accept(what, entry, *remedy)


def check_part(part: Any, *context: Any) -> None:
    """Refuse a part with a number that its field does not accept, or one that its method `check(*context)` refuses.

    Any part may have this method, for what no number alone says; the Protocol of its slot says what `context` is.
    """
    require_numbers(part)
    if (check := getattr(part, "check", None)) is not None:
        check(*context)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field, structure, number))
def value(cls: type[T]) -> type[T]:
    """Class decorator: a frozen, keyword-only dataclass registered as a pytree.

    It does not use `jax.tree_util.register_dataclass`: in jaxlib 0.10.2 structures of two such classes with the same
    fields compare equal (their hashes differ), so `jit` sometimes ran one algorithm with the program of another.
    `validation` refuses values that do not fit the types of the fields.
    """
    by_fields = "__init__" not in vars(cls)
    dataclass: Any = dataclasses.dataclass(frozen=True, kw_only=True)(cls)  # `cls` itself, as it has no slots
    set_fields = dataclass.__init__
    static, leaves = (
        tuple(field.name for field in dataclasses.fields(dataclass) if bool(field.metadata.get("static")) is fixed)
        for fixed in (True, False)
    )

    def flatten(part: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(part, name) for name in leaves), tuple(getattr(part, name) for name in static)

    def flatten_with_keys(part: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple((jax.tree_util.GetAttrKey(name), getattr(part, name)) for name in leaves), flatten(part)[1]

    def unflatten(structures: tuple[Any, ...], children: Any) -> Any:
        return build(dict(zip(static, structures)) | dict(zip(leaves, children)))

    def build(fields: dict[str, Any]) -> Any:
        """A value with these fields, unchecked: JAX may replace leaves by anything."""
        part = object.__new__(dataclass)
        set_fields(part, **fields)
        return part

    @functools.wraps(set_fields)
    def check_and_set(self: Any, /, *args: Any, **fields: Any) -> None:
        validation.check_fields(dataclass, fields)
        set_fields(self, *args, **fields)

    if by_fields:
        dataclass.__init__ = check_and_set

    jax.tree_util.register_pytree_with_keys(dataclass, flatten_with_keys, unflatten, flatten)
    dataclass.__value_class__, dataclass.__build__ = dataclass, staticmethod(build)
    return cls


def checksum(*trees: Any) -> str:
    """Checksum of the arrays of pytrees, which are read in place."""
    return checksum_of_arrays(jax.tree.leaves(trees))


def checksum_of_arrays(arrays: Iterable[Any]) -> str:
    """Checksum of arrays end to end, one in memory at a time."""
    total = 0
    for array in arrays:
        total = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data, total)
    return f"{total:08x}"


def equal(first: Any, second: Any) -> bool:
    """Whether two pytrees have the same structure and the same numbers."""
    leaves = (jax.tree.leaves(first), jax.tree.leaves(second))
    structures: list[Any] = [jax.tree.structure(tree) for tree in (first, second)]
    return bool(structures[0] == structures[1]) and all(map(np.array_equal, *leaves))


def replace(part: T, **changes: Any) -> T:
    """`dataclasses.replace` for a part of which only the Protocol is known; fields of a value are not checked."""
    if not is_value(part):
        return dataclasses.replace(part, **changes)  # type: ignore[type-var]
    return _build(type(part), part, changes)


def as_class(part: Any, kind: type[T]) -> T:
    """A value of class `kind` with the fields of a value that has more; they are not checked again."""
    return _build(kind, part, {})


def _build(kind: Any, part: Any, changes: dict[str, Any]) -> Any:
    fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(kind) if field.init}
    return kind.__build__(fields | changes)


class Wrapper:
    """Base of a value that wraps another, its field `base`, whose members it has unless it defines its own."""

    base: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)


def field_of(part: Any, name: str) -> Any:
    """A field of a part, or of the innermost part that it wraps; None if missing."""
    while (base := getattr(part, "base", None)) is not None:
        part = base
    return getattr(part, name, None)


def ravel(tree: Any) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
    """A pytree of arrays as one flat vector, and the inverse function.

    Tall matrices are transposed, so that the long side is contiguous: products with a `(784, 10)` kernel are then about
    twice as fast on a CPU, and the transposes fold into them.
    """
    leaves, treedef = jax.tree.flatten(tree)
    shapes = [leaf.shape for leaf in leaves]
    tall = [len(shape) == 2 and shape[0] > shape[1] for shape in shapes]
    ends = np.cumsum([leaf.size for leaf in leaves]).tolist()

    def unravel(flat: jax.Array) -> Any:
        parts = jnp.split(flat, ends[:-1])
        back = [
            part.reshape(shape[::-1]).T if turned else part.reshape(shape)
            for part, shape, turned in zip(parts, shapes, tall, strict=True)
        ]
        return jax.tree.unflatten(treedef, back)

    parts = [(leaf.T if turned else leaf).ravel() for leaf, turned in zip(leaves, tall, strict=True)]

    def concatenate(*parts: jax.Array) -> jax.Array:
        return jnp.concatenate(parts)

    def concatenate_apart(*parts: jax.Array) -> jax.Array:
        """Fused with what reads it, a concatenation looks up the leaf of every number on a CPU."""
        return lax.optimization_barrier(jnp.concatenate(lax.optimization_barrier(parts)))

    # If a CPU computes several at once, these look-ups are cheaper than writing once more.
    on_cpu = concatenate if models_per_core(ends[-1]) > 1 else concatenate_apart
    return lax.platform_dependent(*parts, cpu=on_cpu, default=concatenate), unravel


def models_per_core(size: int, wanted: int = LARGE) -> int:
    """How many models of `size` parameters a CPU's core computes at once: at most `wanted`, as many as its caches hold.

    Two if one would be a vector of odd length, whose noise XLA draws number by number, 12 times slower.
    """
    return max(min(round(LARGE / size), wanted), 1 + size % 2)


def mask_rows(rows: jax.Array, mask: jax.Array) -> jax.Array:
    """`rows (n, ...)` where `mask (n,)` is true, zeros elsewhere, even for NaN, as 0 * NaN is NaN."""
    return jnp.where(mask.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0)


def path_name(path: Any) -> str:
    """The path to a leaf of a pytree as `Dense_0/kernel`."""
    return "/".join(str(getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", entry)))) for entry in path)


def tensor_sizes(tree: Any) -> tuple[int, ...]:
    """Number of parameters of each tensor, in the order of `ravel`."""
    return tuple(int(np.prod(np.shape(leaf))) for leaf in jax.tree.leaves(tree))


class Part:
    """Some tensors of a pytree, as a part of the vector that `ravel` returns; `chosen` is one flag per tensor.

    The part of all tensors is the vector itself, not a copy.
    """

    def __init__(self, sizes: Sequence[int], chosen: Sequence[bool] | None = None) -> None:
        self._all = tuple(sizes)
        self._chosen = (True,) * len(self._all) if chosen is None else tuple(chosen)
        self._ends = np.cumsum(self._all).tolist()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the chosen tensors."""
        return tuple(size for size, chosen in zip(self._all, self._chosen, strict=True) if chosen)

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def rest(self) -> "Part":
        """The part of the other tensors."""
        return Part(self._all, [not chosen for chosen in self._chosen])

    def take(self, flat: jax.Array) -> jax.Array:
        """The part `(size,)` of a whole vector."""
        if all(self._chosen):
            return flat
        parts = [flat[first:end] for first, end, chosen in self._runs() if chosen]
        return jnp.concatenate(parts) if parts else flat[:0]

    def insert(self, part: jax.Array, flat: jax.Array) -> jax.Array:
        """The whole vector `flat` with its part replaced by `part` `(size,)`."""
        if all(self._chosen):
            return part
        taken, pieces = 0, []
        for first, end, chosen in self._runs():
            pieces.append(part[taken : taken + end - first] if chosen else flat[first:end])
            taken += end - first if chosen else 0
        return jnp.concatenate(pieces)

    def _runs(self) -> list[tuple[int, int, bool]]:
        """Start, end and flag of each run of neighbouring tensors that are all chosen or all not chosen."""
        runs: list[tuple[int, int, bool]] = []
        for size, end, chosen in zip(self._all, self._ends, self._chosen, strict=True):
            if runs and runs[-1][2] == chosen:
                runs[-1] = (runs[-1][0], end, chosen)
            else:
                runs.append((end - size, end, chosen))
        return runs


def equal_shapes(one: Any, other: Any) -> bool:
    """Whether two pytrees have the same structure and arrays of the same shapes."""
    shapes = [(jax.tree.structure(tree), [np.shape(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (one, other)]
    return shapes[0] == shapes[1]


def describe_shapes(tree: Any) -> str:
    """The shapes of a pytree of arrays, in one line."""
    if not jax.tree.leaves(tree):
        return "nothing"
    if jax.tree_util.all_leaves([tree]):
        return f"shape {np.shape(tree)}"
    return textwrap.shorten(f"{jax.tree.map(np.shape, tree)}", 200, placeholder=" ...")


def ravel_numbers(tree: Any) -> jax.Array:
    """A pytree of float32 arrays and scalars as one vector, without transposing any."""
    every = jax.tree.leaves(tree)
    leaves = [leaf for leaf in every if leaf.size] or every[:1]
    return leaves[0].ravel() if len(leaves) == 1 else jnp.concatenate([leaf.ravel() for leaf in leaves])


def unravel_numbers(like: Any) -> Callable[[jax.Array], Any]:
    """The inverse of `ravel_numbers`, for pytrees with the shapes of `like`."""
    leaves, treedef = jax.tree.flatten(like)
    splits = np.cumsum([leaf.size for leaf in leaves])[:-1].tolist()

    def back(flat: jax.Array) -> Any:
        parts = jnp.split(flat, splits)
        return jax.tree.unflatten(treedef, [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)])

    return back


def client_numbers(what: str, numbers: Any, num_clients: int, common: bool = True) -> np.ndarray:
    """A NumPy array of one number for each client, or, if `common`, one for all.

    Raises: ConfigurationError for another shape, and for anything but real numbers.
    """
    try:
        array = np.asarray(numbers)
    except ValueError:  # lists of lists that are not of one length
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        wanted = "a number, or one" if common else "one number"
        raise errors.refuse(what, repr(numbers), f"{wanted} for each of the {num_clients} clients")
    if array.shape != (num_clients,) and not (common and array.shape == ()):
        wanted = f"one number or {num_clients} of them" if common else f"one for each of the {num_clients} clients"
        raise errors.refuse(what, f"shape {array.shape}", wanted)
    return array
