"""Bytes of tf.train.Example: what was written is read, in every order and packing, and damaged bytes are refused."""

import contextlib

import numpy as np
import pytest
from client_files import example, feature, field, varint
from hypothesis import given
from hypothesis import strategies as st

from fedjax_dp.tools.formats.tf_example import ExampleError, features_of

INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9)
FLOATS = st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9)
TEXTS = st.lists(st.binary(max_size=9), min_size=1, max_size=4)
FEATURES = st.dictionaries(st.text(max_size=5), st.one_of(INTEGERS, FLOATS, TEXTS), max_size=5)


def same(read, written):
    return list(read) == list(written)


@given(FEATURES, st.booleans())
def test_what_was_written_is_read(features, packed):
    names, values = features_of(example(packed, **features), features)
    assert names == sorted(features)
    assert all(same(values[name], written) for name, written in features.items())


@given(INTEGERS, INTEGERS, FLOATS, FLOATS)
def test_packed_and_single_numbers_may_be_mixed(first, second, some, others):
    """Lists of one kind merge; the last kind counts, as in protobuf."""
    ints = feature(first, packed=True) + feature(second, packed=False)
    floats = feature(some, packed=False) + feature(others, packed=True)
    for raw, wanted in ((ints, first + second), (floats, some + others), (ints + floats, some + others)):
        entry = field(1, 2, b"a") + field(2, 2, raw)
        _, values = features_of(field(1, 2, field(1, 2, entry)), ["a"])
        assert same(values["a"], wanted)


def test_entries_come_in_any_order_and_the_last_of_a_name_counts():
    first, last = (field(1, 2, field(2, 2, feature([n])) + field(1, 2, b"a")) for n in (1, 2))  # value before key
    _, values = features_of(field(1, 2, first + last), ["a"])
    assert values["a"].tolist() == [2]
    _, values = features_of(field(1, 2, first) + field(1, 2, last), ["a"])
    assert values["a"].tolist() == [2]


def test_unknown_fields_are_skipped_and_what_is_absent_is_empty():
    strange = field(9, 0, 7) + field(10, 1, bytes(8)) + field(11, 2, b"xyz") + field(12, 5, bytes(4)) + field(1, 0, 3)
    entry = field(1, 2, b"a") + field(2, 2, strange + feature([5]) + strange)
    _, values = features_of(strange + field(1, 2, strange + field(1, 2, entry)) + strange, ["a", "b"])
    assert values["a"].tolist() == [5]
    assert "b" not in values
    names, values = features_of(field(1, 2, field(1, 2, b"")), [""])  # a key and a value that are not there
    assert (names, values) == ([""], {"": []})
    assert features_of(b"", ["a"]) == ([], {})


def test_a_negative_integer_takes_ten_bytes():
    assert field(1, 0, 150) == b"\x08\x96\x01"  # as the format's documentation has it
    assert len(varint(-1)) == 10
    _, values = features_of(example(False, score=[-1, 0]), ["score"])
    assert values["score"].tolist() == [-1, 0]
    assert values["score"].dtype == np.int64


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80" * 11,
        b"\x80" * 3,
        b"\x0a\x05ab",
        b"\x0a" + b"\xff" * 9 + b"\x01",
        b"\x0d\x00",
        b"\x0f",
        b"\x02\x00",
        field(1, 2, field(1, 2, field(1, 2, b"\xff"))),
        field(1, 2, field(1, 2, field(1, 2, b"a") + field(2, 2, field(2, 2, field(1, 2, b"abc"))))),
        field(1, 2, field(1, 2, field(1, 2, b"a") + field(2, 2, field(3, 2, field(1, 2, b"\x80"))))),
    ],
)
def test_damaged_bytes_are_refused(raw):
    with pytest.raises(ExampleError):
        features_of(raw, ["a"])


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw):
    with contextlib.suppress(ExampleError):
        features_of(raw, ["", "a"])


@given(FEATURES, st.data())
def test_cut_bytes_are_read_or_refused(features, data):
    raw = example(**features)
    with contextlib.suppress(ExampleError):
        features_of(raw[: data.draw(st.integers(0, len(raw)))], features)
