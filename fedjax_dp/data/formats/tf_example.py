"""`tf.train.Example` in protobuf's wire format, read without protobuf.

Source: the encoding page of protobuf's documentation; `example.proto` and `feature.proto` of TensorFlow.
"""

from collections.abc import Collection, Iterator

import numpy as np

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5  # kinds of fields
LONGEST = 10  # bytes of a varint: 64 bits, seven a byte
Feature = list[bytes] | np.ndarray


class ExampleError(ValueError):
    """The bytes are no Example."""


def features_of(raw: bytes, wanted: Collection[str]) -> tuple[list[str], dict[str, Feature]]:
    """Names of all features, sorted, and the values of the `wanted` ones that are there.

    A BytesList is a list of bytes, a FloatList float32 `(values,)`, an Int64List int64 `(values,)`, a feature without a
    list an empty list of bytes. Where a name occurs twice the last one counts, as in protobuf; fields of other numbers
    are skipped. Numbers may stand packed, one by one, or both.
    Raises: ExampleError for bytes that end early, a varint of more than 64 bits, a field of an unknown kind.
    """
    found: dict[str, bytes] = {}
    for features in _messages(raw, 1):
        for entry in _messages(features, 1):
            key, value = (b"".join(_messages(entry, number)[-1:]) for number in (1, 2))
            try:
                found[key.decode()] = value
            except UnicodeDecodeError:
                raise ExampleError("a name that is no UTF-8") from None
    return sorted(found), {name: _feature(found[name]) for name in wanted if name in found}


def _feature(raw: bytes) -> Feature:
    """The one list that it holds: of several kinds the last, of one kind all together."""
    which, parts = 0, list[bytes]()
    for number, kind, content, _ in _fields(raw):
        if kind == BYTES and number in (1, 2, 3):
            if number != which:
                which, parts = number, []
            parts.append(content)
    joined = b"".join(parts)  # messages merge as their bytes do
    if which == 2:
        return _floats(joined)
    return _integers(joined) if which == 3 else _messages(joined, 1)


def _floats(raw: bytes) -> np.ndarray:
    if len(raw) % 5 == 0:  # perhaps all one by one: a byte of field and kind, four of the number
        table = np.frombuffer(raw, np.dtype([("field", "u1"), ("value", "<f4")]))
        if (table["field"] == (1 << 3 | FOUR)).all():
            return table["value"].astype(np.float32)
    parts = [content for number, kind, content, _ in _fields(raw) if number == 1 and kind in (BYTES, FOUR)]
    if any(len(part) % 4 for part in parts):
        raise ExampleError("floats of broken length")
    return np.frombuffer(b"".join(parts), "<f4").astype(np.float32)


def _integers(raw: bytes) -> np.ndarray:
    values: list[int] = []
    for number, kind, content, value in _fields(raw):
        if (number, kind) == (1, VARINT):
            values.append(value)
        elif (number, kind) == (1, BYTES):
            at = 0
            while at < len(content):
                value, at = _varint(content, at)
                values.append(value)
    return np.array(values, np.uint64).astype(np.int64)  # two's complement: a negative one is 2^64 + n


def _messages(raw: bytes, wanted: int) -> list[bytes]:
    """Contents of the fields of one number that are bytes."""
    return [content for number, kind, content, _ in _fields(raw) if (number, kind) == (wanted, BYTES)]


def _fields(raw: bytes) -> Iterator[tuple[int, int, bytes, int]]:
    """Number, kind, and the content of each field: bytes or, of a varint, an integer."""
    at, end = 0, len(raw)
    while at < end:
        key, at = _varint(raw, at)
        number, kind = key >> 3, key & 7
        if not 0 < number < 1 << 29:
            raise ExampleError(f"a field of number {number}")
        if kind == VARINT:
            value, at = _varint(raw, at)
            yield number, kind, b"", value
            continue
        if kind == BYTES:
            length, at = _varint(raw, at)
        elif kind in (EIGHT, FOUR):
            length = 8 if kind == EIGHT else 4
        else:
            raise ExampleError(f"a field of kind {kind}")
        if length > end - at:
            raise ExampleError(f"{length:,} bytes announced, {end - at:,} there")
        yield number, kind, raw[at : at + length], 0
        at += length


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """A number of at most 64 bits, and where it ends."""
    value = 0
    for place, byte in enumerate(raw[at : at + LONGEST]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return value, at + place + 1
    ended = at + LONGEST > len(raw)
    raise ExampleError("the end within a number" if ended else "a number of more than 64 bits")
