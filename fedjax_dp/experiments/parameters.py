"""Parameters of a model in files for other programs: safetensors or npz, named by their paths."""

import contextlib
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedjax_dp import errors, folders
from fedjax_dp.models.origins import ARRAY, KEY
from fedjax_dp.pytrees import path_name

ENDINGS = (".safetensors", ".npz")
ALONE = "params"  # the name of a single array, which has no path


def write(path: pathlib.Path, params: Any, ledger: str, described: Mapping[str, str], *, new: bool = False) -> None:
    """Write parameters and their ledger, in a .safetensors file also a description of them.

    new     whether an existing file is refused;
    Raises: ConfigurationError for another ending or a missing folder; OSError if the disk is full.
    """
    if path.suffix not in ENDINGS:
        raise errors.refuse("file of parameters", path, f"one that ends in {' or '.join(ENDINGS)}")
    named = by_name(params)
    if not path.parent.is_dir():
        raise errors.refuse("file of parameters", path, "in an existing folder", "make it first")
    taking = folders.claim_file("file of parameters", path) if new else contextlib.nullcontext()
    with taking, folders.draft_file(path) as draft:
        if path.suffix == ".npz":
            arrays: Any = named | {ARRAY: np.frombuffer(ledger.encode(), np.uint8)}
            with draft.open("wb") as file:
                np.savez(file, **arrays)
        else:
            from safetensors.numpy import save  # only needed here

            draft.write_bytes(save(named, metadata={**described, KEY: ledger}))


def by_name(params: Any) -> dict[str, np.ndarray]:
    """Arrays by their names in files."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {path_name(where) or ALONE: np.asarray(leaf, order="C") for where, leaf in leaves}


def read(path: pathlib.Path) -> Any:
    """Parameters of a .safetensors file: arrays in dictionaries, or its only array.

    Raises: ConfigurationError for a missing or invalid file.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        named = load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise errors.refuse("file of parameters", path, "a readable .safetensors file", str(error)) from None
    if set(named) == {ALONE}:
        return named[ALONE]
    result: dict[str, Any] = {}
    for name, value in named.items():
        *outer, last = name.split("/")
        at = result
        for word in outer:
            at = at.setdefault(word, {})
        at[last] = value
    return result
