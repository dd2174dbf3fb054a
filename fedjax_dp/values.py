"""Values and keys: the two habits everything else is written in.

A *value* is a frozen dataclass that is a pytree: its numeric fields are leaves (traced, so they can be swept without
compiling again), its `structure()` fields are static. Random keys are made from named roles and ids, never split in an
order that an added draw would shift.
"""

import dataclasses
import zlib
from typing import Any, TypeVar, dataclass_transform

import jax

from fedjax_dp import devices

devices.use_all_cores()  # every part of the simulator imports this module, so this comes before JAX makes its devices

T = TypeVar("T")


def structure(**kwargs: Any) -> Any:
    """A static field of a value: sizes, loop lengths, functions. Changing it compiles again."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field, structure))
def value(cls: type[T]) -> type[T]:
    """Class decorator: a frozen, keyword-only dataclass registered as a pytree."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True, kw_only=True)(cls))


def role_key(key: jax.Array, role: str) -> jax.Array:
    """The key for a named role; adding a role never changes the draws of another."""
    return jax.random.fold_in(key, zlib.crc32(role.encode()))
