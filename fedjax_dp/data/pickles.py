"""Pickles of plain values and of arrays of bytes, read without running anything that a pickle names."""

import io
import pickle
from typing import Any

import numpy as np


class PickleError(Exception):
    """The pickle is damaged, or holds anything but plain values and arrays of bytes."""


def bytes_only(raw: bytes) -> Any:
    """The pickled value: containers, numbers, text, bytes, and NumPy arrays of unsigned bytes.

    A pickle is a program that calls what it names. This one may name NumPy's array, its dtype, the function that makes
    an empty array, and the codec that carries bytes in old protocols. Each is a stand-in of our own, so that not even
    NumPy's code runs on what the file says. Raises PickleError for everything else.
    """
    try:
        value = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
        if isinstance(value, dict):
            value = {key: part.array() if isinstance(part, _Stand) else part for key, part in value.items()}
        return value
    except PickleError:
        raise
    except Exception as error:  # a damaged stream of instructions fails in any way there is
        raise PickleError(f"damaged: {' '.join(str(error).split()) or type(error).__name__}") from None


_BYTE = ("u1", b"u1", "|u1", b"|u1")


class _Stand:
    """Stands in for an array and for its dtype. A class with a `__setstate__`, so that no pickle can change it."""

    state: Any = None

    def __init__(self, kind: Any = None, *_: Any):
        if isinstance(kind, str | bytes) and kind not in _BYTE:
            raise PickleError(f"an array of {kind!r}"[:80])
        self.is_byte = kind in _BYTE

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> np.ndarray:
        """The array of bytes behind this stand-in."""
        _, shape, kind, by_columns, raw = self.state
        if not isinstance(kind, _Stand) or not kind.is_byte or not isinstance(raw, bytes):
            raise PickleError("an array without a type or without bytes")
        return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C")


class _Latin1:
    """Stands in for the codec that carries bytes as text."""

    def __new__(cls, text: str, codec: Any) -> Any:
        if codec not in ("latin1", b"latin1"):
            raise PickleError(f"the codec {codec!r}"[:80])
        return text.encode("latin1")

    def __setstate__(self, state: Any) -> None:
        """Ignore the state: bytes have none."""


_STAND_INS = {
    ("numpy", "ndarray"): _Stand,
    ("numpy", "dtype"): _Stand,
    ("numpy.core.multiarray", "_reconstruct"): _Stand,
    ("numpy._core.multiarray", "_reconstruct"): _Stand,  # its name since NumPy 2
    ("_codecs", "encode"): _Latin1,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise PickleError(f"a call of {module}.{name}"[:80])
        return _STAND_INS[module, name]
