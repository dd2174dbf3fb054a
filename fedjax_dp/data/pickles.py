"""Pickles of plain values and of arrays of bytes, read without running anything that a pickle names."""

import io
import pickle
from typing import Any

import numpy as np


class PickleError(Exception):
    """The pickle is damaged, or asks for something else than plain values and arrays of bytes."""


def bytes_only(raw: bytes) -> Any:
    """The pickled value: containers, numbers, text, bytes, and NumPy arrays of unsigned bytes.

    A pickle is a program that calls what it names. This one may name four things, NumPy's array, its dtype, the
    function that makes an empty array, and the codec that carries bytes in old protocols; each is a stand-in of our
    own, so that not even NumPy's code runs on what the file says. Raises PickleError for everything else.
    """
    try:
        return _without_stand_ins(_Unpickler(io.BytesIO(raw), encoding="bytes").load())
    except PickleError:
        raise
    except Exception as error:  # a damaged stream of instructions fails in any way there is
        raise PickleError(f"damaged: {' '.join(str(error).split()) or type(error).__name__}") from None


# The stand-ins are classes with a `__setstate__`, so that a pickle cannot set attributes of them either.


class _Dtype:
    """Stands in for numpy.dtype; there is only the unsigned byte."""

    def __init__(self, kind: Any = None, *_: Any):
        if kind not in ("u1", b"u1", "|u1", b"|u1"):
            raise PickleError(f"an array of {kind!r}"[:80])

    def __setstate__(self, state: Any) -> None:
        """What else a dtype says about itself is the same for all arrays of bytes."""


class _Array:
    """Stands in for numpy.ndarray and for the function that begins one; the state brings the content."""

    content: np.ndarray | None = None

    def __init__(self, *_: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, by_columns, raw = state
        if not isinstance(kind, _Dtype) or not isinstance(raw, bytes):
            raise PickleError("an array without a type or without bytes")
        self.content = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C")


class _Latin1:
    """Stands in for the codec that carries bytes as text."""

    def __new__(cls, text: str, codec: Any) -> Any:
        if codec not in ("latin1", b"latin1"):
            raise PickleError(f"the codec {codec!r}"[:80])
        return text.encode("latin1")

    def __setstate__(self, state: Any) -> None:
        """Bytes have none."""


_STAND_INS = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,  # its name since NumPy 2
    ("_codecs", "encode"): _Latin1,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise PickleError(f"a call of {module}.{name}"[:80])
        return _STAND_INS[module, name]


def _without_stand_ins(value: Any) -> Any:
    """The arrays themselves, where they stand in the outermost dictionary."""
    if not isinstance(value, dict):
        return value
    return {key: part.content if isinstance(part, _Array) else part for key, part in value.items()}
