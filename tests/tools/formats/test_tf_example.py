"""Bytes of tf.train.Example: what was written is read, packed or not, and damaged bytes are refused."""

import contextlib

import numpy as np
import pytest
from client_files import example, field
from hypothesis import given
from hypothesis import strategies as st

from fedjax_dp.tools.formats.tf_example import ExampleError, features_of

INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9)
FLOATS = st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9)
TEXTS = st.lists(st.binary(max_size=9), min_size=1, max_size=4)
FEATURES = st.dictionaries(st.text(max_size=5), st.one_of(INTEGERS, FLOATS, TEXTS), max_size=5)


@given(FEATURES, st.booleans())
def test_what_was_written_is_read(features, packed):
    values = features_of(example(packed, **features))
    assert values.keys() == features.keys()
    assert all(list(values[name]) == written for name, written in features.items())


def test_what_is_absent_is_left_out_or_empty_and_integers_have_64_bits():
    assert features_of(b"", ["a"]) == {}
    assert features_of(field(1, 2, field(1, 2, b""))) == {"": []}  # a key and a value that are not there
    values = features_of(example(False, score=[-1, 0], other=[1]), ["score", "b"])
    assert values.keys() == {"score"}
    assert values["score"].dtype == np.int64


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80" * 3,
        b"\x0a\x05ab",
        field(1, 2, field(1, 2, field(1, 2, b"\xff"))),
        field(1, 2, field(1, 2, field(1, 2, b"a") + field(2, 2, field(3, 2, field(1, 2, b"\x80"))))),
    ],
)
def test_damaged_bytes_are_refused(raw):
    with pytest.raises(ExampleError):
        features_of(raw)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw):
    with contextlib.suppress(ExampleError):
        features_of(raw)
