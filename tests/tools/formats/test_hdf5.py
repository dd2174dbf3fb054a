"""HDF5 files that are damaged or made to do harm: one line each, nothing opened beside them."""

import sys

import h5py
import numpy as np
import pytest
from client_files import hdf5
from helpers import refusal

from fedjax_dp.data import files, load


def written(path, write):
    with h5py.File(path, "w") as file:
        write(file)
    return path


TEXT = h5py.string_dtype()


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda file: None, "examples must be a group, in the file itself, got nothing"),
        (lambda file: file.create_group("examples"), "no client"),
        (lambda file: file.create_dataset("examples", data=[1]), "examples must be a group, got something else"),
        (lambda file: file.create_dataset("examples/a", data=[1]), "must be a group of arrays, got something else"),
        (lambda file: file.create_group("examples/a"), "no field"),
        (lambda file: file.create_group("examples/a/tokens"), "an array, got something else"),
        (lambda file: file.create_dataset("examples/a/tokens", data=[1]), "text, one for each record"),
        (lambda file: file.create_dataset("examples/a/tokens", data=[["a"]], dtype=TEXT), "text, one for each record"),
        (lambda file: file.create_dataset("examples/a/tokens", data="a", dtype=TEXT), "at least one"),
        (lambda file: file.create_dataset("examples/a/tokens", shape=(0,), dtype=TEXT), "at least one"),
        (lambda file: file.create_dataset("examples/a/tokens", data=h5py.Empty("f4")), "at least one"),
        (lambda file: file.create_dataset("examples/a/tokens", shape=(1 << 40,), dtype=TEXT), "at most 200 times"),
        (lambda file: file.create_dataset("examples/a/snippets", shape=(9,), dtype=h5py.ref_dtype), "text, one for"),
        (
            lambda file: file.create_dataset("examples/a/tokens", shape=(1 << 30,), chunks=(1 << 20,), dtype="f8"),
            "at most 200 times",
        ),
        (lambda file: file.__setitem__("examples", h5py.SoftLink("/")), "a link to another place or file"),
        (lambda file: file.__setitem__("examples", h5py.ExternalLink("/dev/null", "/")), "a link to another place"),
    ],
)
def test_hdf5_of_other_things(tmp_path, write, words):
    path = written(tmp_path / "a.h5", write)
    assert words in refusal(load, f"tff:{path}")


def test_hdf5_that_points_out_of_itself(tmp_path):
    """Links, storage in other files and views of other files, each to a file that would be read."""
    records = {"label": np.arange(2), "pixels": np.zeros((2, 28, 28), np.float32)}
    other = hdf5(tmp_path / "other.h5", {"a": records})
    (tmp_path / "raw").write_bytes(bytes(2 * 784 * 4))

    def external(file):
        file.create_dataset("examples/a/label", data=[0, 1])
        file.create_dataset("examples/a/pixels", (2, 28, 28), "f4", external=[(str(tmp_path / "raw"), 0, 6272)])

    def view(file):
        layout = h5py.VirtualLayout((2, 28, 28), "f4")
        layout[:] = h5py.VirtualSource(str(other), "examples/a/pixels", (2, 28, 28))
        file.create_dataset("examples/a/label", data=[0, 1])
        file["examples/a"].create_virtual_dataset("pixels", layout)

    def link(file):
        file.create_group("examples")["a"] = h5py.ExternalLink(str(other), "examples/a")

    def soft(file):
        file.create_dataset("examples/a/label", data=[0, 1])
        file["examples/a/pixels"] = h5py.SoftLink("/examples/a/label")

    for write, words in ((external, "external file"), (view, "another file"), (link, "a link"), (soft, "a link")):
        path = written(tmp_path / "a.h5", write)
        assert words in refusal(load, f"tff:{path}")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"label": np.arange(3)}, "as many records in every field"),
        ({"label": np.array([0.5, 1])}, "numbers outside of it"),
        ({"label": np.array([0, 62])}, "labels 0 to 61"),
        ({"label": ["a", "b"]}, "real numbers"),
        ({"pixels": np.zeros((2, 28, 27))}, "(28, 28)"),
        ({"pixels": np.full((2, 28, 28), np.inf)}, "finite"),
        ({"pixels": np.full((2, 28, 28), 1e300)}, "finite"),
        ({"pixels": np.zeros((2, 28, 28), complex)}, "real numbers"),
    ],
)
def test_fields_that_do_not_fit(tmp_path, changed, words):
    fields = {"label": np.arange(2), "pixels": np.zeros((2, 28, 28))}
    assert words in refusal(load, f"tff:{hdf5(tmp_path / 'a.h5', {'a': fields | changed})}")
    fields |= {"label": np.array([0.0, 11.0])}  # whole numbers as floats are labels
    assert load(f"tff:{hdf5(tmp_path / 'b.h5', {'a': fields})}").classes == 62


def test_clients_of_other_fields(tmp_path):
    path = hdf5(tmp_path / "a.h5", {"a": {"tokens": ["x", "y"]}, "b": {"snippets": ["x"]}})
    assert "tokens among them, as the first client" in refusal(load, f"tff:{path}")
    hdf5(tmp_path / "a_train.h5", {"a": {"tokens": ["x", "y"]}})
    hdf5(tmp_path / "a_test.h5", {"a": {"snippets": ["x", "y"]}})
    assert "with tokens, as a_train.h5" in refusal(load, f"tff:{tmp_path / 'a_train.h5'}")


def test_hdf5_that_is_cut_anywhere_is_refused(tmp_path):
    path = hdf5(tmp_path / "a.h5", {"a": {"tokens": ["some words"] * 50}})
    raw = path.read_bytes()
    for part in np.linspace(9, len(raw) - 1, 12).astype(int):
        path.write_bytes(raw[:part])
        refusal(load, f"tff:{path}")


def test_one_client_under_many_names_takes_no_more_room_than_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FREE", 1 << 16)

    def write(file):
        file.create_dataset("examples/a/tokens", data=["word " * 1000] * 8, dtype=TEXT)
        for number in range(500):
            file[f"examples/b{number}"] = file["examples/a"]

    path = written(tmp_path / "a.h5", write)
    assert "at most 200 times as large" in refusal(load, f"tff:{path}")


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    path = hdf5(tmp_path / "a.h5", {"a": {"tokens": ["x", "y"]}})
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert 'pip install "fedjax-dp[hdf5]"' in refusal(load, f"tff:{path}")


def test_a_collection_of_texts_without_end_is_refused_before_hdf5_loops_on_it(tmp_path):
    path = hdf5(tmp_path / "a.h5", {"a": {"tokens": ["some words", "others"]}})
    raw = bytearray(path.read_bytes())
    at = raw.index(b"GCOL") + 16
    while raw[at : at + 2] != b"\0\0":  # texts, then the free space
        at += 16 + -(-int.from_bytes(raw[at + 8 : at + 16], "little") // 8) * 8
    raw[at + 8 : at + 16] = bytes(8)
    path.write_bytes(raw)
    assert "a text of 0 bytes where" in refusal(load, f"tff:{path}")
    raw[9:15] = b"\4" * 6
    path.write_bytes(raw)
    assert "lengths of 8 bytes" in refusal(load, f"tff:{path}")
