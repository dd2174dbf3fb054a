"""Pickles of plain values and bytes are read; none calls, names or changes anything else."""

import contextlib
import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_dp.data import pickles


def python2_pickle(pixels, labels):
    """The instructions that Python 2 wrote for {'data': array, 'labels': list}, with strings of bytes."""
    raw = pixels.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        + b"(K\x01K"
        + bytes([len(pixels)])
        + b"M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<i", len(raw))
        + raw
        + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"u."


class Malicious:
    """Unpickled freely it would write a file."""

    def __reduce__(self):
        return os.system, ("touch harmed",)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("value", [Malicious(), {"data": Malicious()}, np.array([Malicious()], object), np.dtype("O")])
def test_pickle_that_calls_something_is_refused_and_nothing_is_called(tmp_path, value, protocol):
    with pytest.raises(pickles.PickleError):
        pickles.bytes_only(pickle.dumps(value, protocol))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [b"cbuiltins\neval\n", b"cnumpy\nload\n", b"cnumpy.core.multiarray\nfromfile\n"])
def test_pickle_may_not_even_name_another_function(name):
    with pytest.raises(pickles.PickleError, match="a call of"):
        pickles.bytes_only(name + b".")


@pytest.mark.parametrize(
    "name", ["numpy\nndarray", "numpy\ndtype", "numpy.core.multiarray\n_reconstruct", "_codecs\nencode"]
)
def test_pickle_cannot_change_what_stands_in(name):
    before = [dict(vars(stand_in)) for stand_in in pickles._STAND_INS.values()]
    for state in (b"}U\x07contentK\x01s", b"N}U\x07contentK\x01s\x86"):  # attributes in both ways that there are
        with pytest.raises(pickles.PickleError):
            pickles.bytes_only(b"c" + name.encode() + b"\n" + state + b"b.")
    assert [dict(vars(stand_in)) for stand_in in pickles._STAND_INS.values()] == before


@given(st.integers(0, 200), st.integers(0, 255), st.sampled_from(["python 2", "python 3", "python 3, old protocol"]))
@settings(max_examples=150, deadline=None)
def test_no_damage_of_a_pickle_does_more_than_fail(place, byte, form):
    pixels = np.zeros((2, 3072), np.uint8)
    labels = [1, 2]
    raw = (
        python2_pickle(pixels, labels)
        if form == "python 2"
        else pickle.dumps({"data": pixels, "labels": labels}, 2 if "old" in form else 4)
    )
    damaged = bytearray(raw)
    damaged[place] = byte
    with contextlib.suppress(pickles.PickleError):
        pickles.bytes_only(bytes(damaged))
