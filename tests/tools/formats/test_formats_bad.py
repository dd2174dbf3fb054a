"""Files of every format with changed bytes: read or refused, nothing left behind."""

import contextlib
import lzma
import os
import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from client_files import database, example, hdf5, leaf_file
from test_hugging_face import folder

import fedjax_dp as fdp
from fedjax_dp.data import load
from fedjax_dp.tools import cli

GOOD = ([[0.5, 1], [1, 2]], [0, 1])

ROWS = [("train", name, example(tokens=[b"a b"])) for name in "ab"]


GIVEN_BAD = ["counts.json", "cut.sqlite.lzma", "external_link.h5", "ragged.json", "view.sqlite", "zeros.sqlite.lzma"]


@pytest.mark.parametrize("name", GIVEN_BAD)
def test_given_bad_files(name, tmp_path, capsys):
    path = pathlib.Path(os.environ.get("FEDJAX_DP_DATA", "")) / "formats/bad" / name
    if not path.is_file():
        pytest.skip(f"{path} is not at hand: FEDJAX_DP_DATA names the folder that holds formats")
    asked = f"{'leaf' if path.suffix == '.json' else 'tff'}:{path}"
    assert cli.main(["data", "convert", asked, "--out", "store"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert said[0].startswith("fedjax-dp: ")
    assert list(tmp_path.iterdir()) == [tmp_path / "temporary"]


def small_file(kind, tmp_path):
    """A file that is read, what it is called, and how."""
    if kind == "json":
        return leaf_file(tmp_path / "a.json", {"a": GOOD, "b": GOOD}), "leaf", {}
    if kind == "hdf5":
        records = {"label": np.arange(2), "pixels": np.zeros((2, 28, 28), np.float32)}
        return hdf5(tmp_path / "a.h5", {"a": records, "b": records}), "tff", {}
    if kind == "text":
        return hdf5(tmp_path / "a.h5", {"a": {"tokens": ["some words", "others"]}}), "tff", {}
    if kind == "parquet":
        rows = pa.table({"a": [1.0, 2, 3, 4], "label": [0, 1, 0, 1], "who": ["x", "x", "y", "y"]})
        pyarrow.parquet.write_table(rows, tmp_path / "a.parquet")
        return tmp_path / "a.parquet", "parquet", {"client_column": "who"}
    if kind == "arrow":
        path = folder(tmp_path, a=[[1.0], [2.0], [3.0], [4.0]], who=["x", "x", "y", "y"])
        return path / "data-00000-of-00002.arrow", "hf", {"client_column": "who"}
    packed = {"sqlite": None, "lzma": lzma.FORMAT_ALONE, "xz": lzma.FORMAT_XZ}[kind]
    return database(tmp_path / "a.sqlite", ROWS * 3, packed=packed), "tff", {}


@pytest.mark.parametrize("kind", ["json", "hdf5", "text", "parquet", "arrow", "sqlite", "lzma", "xz"])
def test_a_file_with_changed_bytes_is_read_or_refused(kind, tmp_path):
    """Whatever the bytes; the same changes in every run."""
    path, reader, options = small_file(kind, tmp_path)
    named = f"{reader}:{path.parent if reader == 'hf' else path}"
    good, draws = path.read_bytes(), np.random.default_rng(0)
    load(named, **options)
    for _ in range(60):
        raw = bytearray(good)
        for at in draws.integers(0, len(raw), draws.choice([1, 2, 8])):
            long = bytes(draws.choice([0, 255], 4).astype(np.uint8))
            raw[at : at + 4] = draws.choice([bytes(draws.integers(0, 256, 1, np.uint8)), long, b""])
        path.write_bytes(raw or b"\0")
        with contextlib.suppress(fdp.ConfigurationError):
            load(named, **options)
