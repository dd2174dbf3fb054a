"""Files that somebody damaged, or made to do harm: one line each, nothing opened beside them, nothing left behind."""

import contextlib
import json
import lzma
import os
import pathlib
import sqlite3
import tempfile

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from client_files import database, example, field, hdf5, leaf_file, saved, varint
from helpers import refusal

import fedjax_dp as fdp
from fedjax_dp import cli
from fedjax_dp.data import files, load
from fedjax_dp.data.owners import given_parts

GOOD = ([[0.5, 1], [1, 2]], [0, 1])
ROWS = [("train", name, example(tokens=[b"a b"])) for name in "ab"]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """Temporary files of readers land in a folder that is empty again at the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert not list(folder.iterdir())


# JSON.


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("{", "a JSON file, got something else"),
        ("[]", "an object with users, num_samples, user_data, got a list"),
        ("[" * 200_000, "lists within lists without end"),
        ('{"a": ' * 200_000, "lists within lists without end"),
        ('{"users": [NaN]}', "a number NaN"),
        ('{"users": [-Infinity]}', "a number -Infinity"),
        ('{"users": ["a"], "users": ["b"]}', "twice in one object, 'users'"),
        ('{"users": [' + "9" * 5000 + "]}", "JSON file"),
        ('{"users": ["\xff"]}'.encode("latin-1"), "JSON file"),
        ('{"users": ["a"], "num_samples": [1]}', "an object with user_data"),
        (b"\x00" * 100, "JSON file"),
    ],
)
def test_json_that_is_none(tmp_path, text, words):
    path = tmp_path / "a.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert words in refusal(lambda: load(f"leaf:{path}"))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"users": []}, "one for each of users"),
        ({"users": ["a", "a"]}, "'a' twice"),
        ({"users": ["a", "c"]}, "must be an object with x, y, got a null"),
        ({"users": [1, 2]}, "client must be text of at most"),
        ({"users": "ab"}, "a list, got a text"),
        ({"users": {"a": 1, "b": 2}}, "a list, got a object"),
        ({"num_samples": [2]}, "one for each of users"),
        ({"num_samples": [2, 1]}, "1 of each, as num_samples says"),
        ({"num_samples": [2, 2.0]}, "a list of integers"),
        ({"num_samples": [2, True]}, "a list of integers"),
        ({"num_samples": None}, "a list of integers, got a null"),
        ({"user_data": []}, "an object, got a list"),
        ({"user_data": {"a": {"x": [], "y": []}, "b": {}}}, "2 of each"),
        ({"user_data": {"a": {"x": [1, 2]}, "b": {}}}, "an object with y"),
        ({"user_data": {"a": {"x": 3, "y": 3}, "b": {}}}, "a list, got a number"),
    ],
)
def test_leaf_files_whose_parts_do_not_fit(tmp_path, changed, words):
    path = leaf_file(tmp_path / "a.json", {"a": GOOD, "b": GOOD}, **changed)
    assert words in refusal(lambda: load(f"leaf:{path}"))


@pytest.mark.parametrize("name", ["a\0", "", "x" * 257, "\ud800"])
def test_names_that_no_array_of_text_keeps(tmp_path, name):
    path = leaf_file(tmp_path / "a.json", {name: GOOD})
    assert "client must be text of at most 256 characters" in refusal(lambda: load(f"leaf:{path}"))


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "../../etc", "'; DROP TABLE", "%s{}", "\u202e", "🙂", " "])
def test_names_with_odd_characters_are_names(tmp_path, name):
    path = leaf_file(tmp_path / "a.json", {name: GOOD})
    assert set(load(f"leaf:{path}").client_ids) == {name}
    path = leaf_file(tmp_path / "b.json", {name: ([[1, 2], [3]], [0, 1])})
    assert "different lengths" in refusal(lambda: load(f"leaf:{path}"))


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ([[1.0, 2.0], [1.0]], [0, 1], "different lengths"),
        ([[1.0], [[1.0]]], [0, 1], "different lengths"),
        ([[1.0], ["a"]], [0, 1], "text"),
        ([[1.0], [None]], [0, 1], "none"),
        ([[1.0], [10**30]], [0, 1], "numbers of different kinds"),
        ([[1.0], [1e39]], [0, 1], "numbers outside of it"),
        ([[True], [False]], [0, 1], "truth values"),
        ([[], []], [0, 1], "as in numbers, Shakespeare"),
        ([[1.0], [2.0]], [0, -1], "from -1"),
        ([[1.0], [2.0]], [0, 5], "without 1"),
        ([[1.0], [2.0]], ["a", "b"], "as in numbers, Shakespeare"),
        ([[1.0], [2.0]], [0, "b"], "text"),
        ([{"a": 1}, 2], [0, 1], "x: object, y: number"),
        (["ab", "a"], ["c", "d"], "1 and 1 characters in record 1"),
        (["ab", "ab"], ["c", "dd"], "2 and 2 characters in record 1"),
        (["", ""], ["c", "d"], "0 and 1 characters"),
        (["ab", 3], ["c", "d"], "a list of text"),
        ([["a"] * 5, ["a"] * 5], [0, 1], "5 fields"),
        ([["a"] * 6, ["a"] * 6], [0, 2], "0 or 1, got 2"),
        ([["a"] * 6, ["a"] * 6], [0, True], "a list of integers"),
        ([[["a", "b"]], [["a"]]], [{"target_tokens": [["b", "c"]]}, {"target_tokens": [["b"]]}], "1 and 1 tokens"),
        (
            [[["a", "b"]], [["a", "b"]]],
            [{"target_tokens": [["b", "c"]]}, {"target_tokens": [["c", "c"]]}],
            "one on",
        ),
        ([[["a", "b"]], [["a", "b"]]], [{"target_tokens": [["b", "c"]]}, {}], "an object with target_tokens"),
        ([[["a", "b"]], [["a", "b"]]], [{"target_tokens": [["b", "c"]]}, {"target_tokens": []}], "1 and 0 sequences"),
        ([[["a", "b"]], [["a", 3]]], [{"target_tokens": [["b", "c"]]}] * 2, "a list of tokens"),
        ([[[]], [[]]], [{"target_tokens": [[]]}] * 2, "0 and 0 tokens"),
        ([[["<PAD>"]]] * 2, [{"target_tokens": [["<PAD>"]]}] * 2, "no word in any training record"),
    ],
)
def test_leaf_records_that_are_none(tmp_path, x, y, words):
    path = leaf_file(tmp_path / "a.json", {"a": (x, y)})
    assert words in refusal(lambda: load(f"leaf:{path}"))


def test_users_that_come_twice_in_a_split(tmp_path):
    for name in "12":
        leaf_file(tmp_path / f"train/{name}.json", {"a": GOOD})
    assert "each user once in all files of a split" in refusal(lambda: load(f"leaf:{tmp_path}"))


def test_folders_without_files_and_files_for_folders(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "hf").mkdir()
    assert "no .json file" in refusal(lambda: load(f"leaf:{tmp_path}"))
    assert "an existing folder" in refusal(lambda: load(f"leaf:{tmp_path / 'absent'}"))
    assert "got a folder" in refusal(lambda: load(f"tff:{tmp_path}"))
    assert "existing file" in refusal(lambda: load(f"tff:{tmp_path / 'absent'}"))
    assert "existing file" in refusal(lambda: load(f"hf:{tmp_path / 'hf'}"))
    assert "an existing folder" in refusal(lambda: load(f"hf:{tmp_path / 'absent'}"))
    leaf_file(tmp_path / "train/a.json", {"a": GOOD})
    (tmp_path / "test").mkdir()
    assert "LEAF's files of test records" in refusal(lambda: load(f"leaf:{tmp_path}"))
    (tmp_path / "train/b.json").mkdir()
    assert "got a folder" in refusal(lambda: load(f"leaf:{tmp_path / 'train'}"))
    os.mkfifo(tmp_path / "pipe")
    assert "got no file" in refusal(lambda: load(f"tff:{tmp_path / 'pipe'}"))
    for name in ("leaf", "tff", "hf"):
        refusal(lambda name=name: load(f"{name}:a\0b"))
        refusal(lambda name=name: load(f"{name}:{'x' * 5000}"))


# SQLite, packed or not.


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "empty"),
        (b"no database at all", "at its beginning"),
        (b"SQLite format 3\0", "readable database"),
        (b"SQLite format 3\0" + bytes(2000), "readable database"),
        (lzma.compress(b""), "at the beginning of what is packed"),
        (lzma.compress(b"SQLite"), "at the beginning of what is packed"),
        (lzma.compress(bytes(1 << 20)), "at the beginning of what is packed"),
        (lzma.compress(b"SQLite format 3\0" + bytes(1 << 26)), "at most 200 times as large"),
        (lzma.compress(b"SQLite format 3\0" + bytes(999)), "readable database"),
        (b"\x5d" + b"\xff" * 30, "an SQLite database, perhaps packed"),
        (b"\x5d\0\0\0\x80" + b"\xff" * 8 + lzma.compress(bytes(99), lzma.FORMAT_ALONE)[13:], "at the beginning of what is packed"),
        (b"\xfd7zXZ\0" + bytes(40), "an SQLite database, perhaps packed"),
    ],
)
def test_files_that_are_no_database(tmp_path, raw, words):
    path = tmp_path / "a.sqlite.lzma"
    path.write_bytes(raw)
    assert words in refusal(lambda: load(f"tff:{path}"))


@pytest.mark.parametrize("packed", [lzma.FORMAT_ALONE, lzma.FORMAT_XZ, None])
def test_a_database_that_is_cut_anywhere_is_refused(tmp_path, packed):
    path = database(tmp_path / "a.sqlite.lzma", ROWS * 200, packed=packed)
    raw = path.read_bytes()
    for part in np.linspace(1, len(raw) - 1, 12).astype(int):
        path.write_bytes(raw[:part])
        refusal(lambda: load(f"tff:{path}"))
    path.write_bytes(raw + b"more")
    if packed is not None:
        refusal(lambda: load(f"tff:{path}"))


METADATA = "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER);"
EXAMPLES = "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB);"
PROTO = example(tokens=[b"a"]).hex()
GIVEN = "INSERT INTO client_metadata VALUES ('a', 'train', 1);"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("CREATE TABLE other (a);", "examples must be a table"),
        (METADATA + "CREATE VIEW examples AS SELECT 'train' AS split_name;", "got a view"),
        (EXAMPLES + "CREATE VIEW client_metadata AS SELECT 'a' AS client_id;", "client_metadata must be a table"),
        (METADATA + "CREATE VIRTUAL TABLE examples USING fts5(split_name);", "got a virtual table"),
        (EXAMPLES + METADATA, "with train or all_train among them, got none"),
        (EXAMPLES + METADATA + GIVEN, "examples of 'a' in 'train' must be 1, as client_metadata says, got 0"),
        (EXAMPLES + METADATA + GIVEN * 2, "each client once in a split"),
        (EXAMPLES + METADATA + "INSERT INTO client_metadata VALUES ('a', 'train', 0);", "how many examples, from 1"),
        (EXAMPLES + METADATA + "INSERT INTO client_metadata VALUES ('a', 'train', 'x');", "how many examples, from 1"),
        (EXAMPLES + METADATA + "INSERT INTO client_metadata VALUES ('a', NULL, 1);", "how many examples, from 1"),
        (EXAMPLES + METADATA + "INSERT INTO client_metadata VALUES (NULL, 'train', 1);", "client must be text"),
        (EXAMPLES + METADATA + "INSERT INTO client_metadata VALUES (x'ff', 'train', 1);", "client must be text"),
        (EXAMPLES + METADATA + "INSERT INTO client_metadata VALUES (CAST(x'ff' AS TEXT), 'train', 1);", "UTF-8"),
        (METADATA + GIVEN + "CREATE TABLE examples (split_name, client_id);", "no such column"),
        (
            METADATA + GIVEN + "CREATE TABLE examples (split_name, client_id PRIMARY KEY, serialized_example_proto)"
            " WITHOUT ROWID;",
            "no such column",
        ),
        (
            METADATA + GIVEN + "CREATE TABLE examples (split_name, client_id, serialized_example_proto AS"
            " (hex('a'))); INSERT INTO examples (split_name, client_id) VALUES ('train', 'a');",
            "the bytes of a tf.train.Example",
        ),
        (
            METADATA + GIVEN + "CREATE TABLE examples (split_name, client_id, serialized_example_proto, rowid);"
            f"INSERT INTO examples VALUES ('train', 'a', x'{PROTO}', 7), ('train', 'a', x'{PROTO}', 7);",
            "numbers of their own",
        ),
    ],
)
def test_databases_of_other_tables(tmp_path, schema, words):
    try:
        path = database(tmp_path / "a.sqlite", [], schema=schema)
    except sqlite3.OperationalError as error:
        pytest.skip(f"this SQLite cannot make it: {error}")
    assert words in refusal(lambda: load(f"tff:{path}"))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (None, "the bytes of a tf.train.Example"),
        ("text", "the bytes of a tf.train.Example"),
        (b"", "no field"),
        (b"\xff", "bytes that are none"),
        (example(other=[1]), "with fields label and pixels"),
        (example(tokens=[1]), "one text"),
        (example(tokens=[b"a", b"b"]), "one text, got 2 values"),
        (example(label=[1, 2], pixels=[0.5] * 784), "one number"),
        (example(label=[b"a"], pixels=[0.5] * 784), "numbers, got text"),
        (example(label=[1], pixels=[0.5] * 783), "(28, 28)"),
        (example(label=[1], pixels=[float("nan")] * 784), "numbers outside of it"),
        (example(label=[62], pixels=[0.5] * 784), "labels 0 to 61"),
        (example(label=[-1], pixels=[0.5] * 784), "labels 0 to 61"),
        (example(label=[1], image=[256] * 3072), "numbers outside of it"),
        (example(label=[1], pixels=[0.5] * 784)[:-1], "bytes that are none"),
    ],
)
def test_examples_that_are_none(tmp_path, raw, words):
    path = database(tmp_path / "a.sqlite", [("train", "a", raw), ("train", "a", raw)])
    assert words in refusal(lambda: load(f"tff:{path}"))


def test_examples_of_clients_that_nobody_announced(tmp_path):
    counts = [("a", "train", 1)]
    path = database(tmp_path / "a.sqlite", ROWS, counts)
    assert "a client of client_metadata" in refusal(lambda: load(f"tff:{path}"))
    path = database(tmp_path / "a.sqlite", ROWS, [("a", "train", 2), ("b", "train", 1)])
    assert "must be 2, as client_metadata says, got 1" in refusal(lambda: load(f"tff:{path}"))


def test_a_page_that_is_its_own_child_has_an_end(tmp_path):
    """The root of a table points at one page again and again: rows without end, were they believed."""
    path = database(tmp_path / "a.sqlite", ROWS * 3000)
    raw = bytearray(path.read_bytes())
    page = int.from_bytes(raw[16:18], "big")
    roots = [at for at in range(page, len(raw), page) if raw[at] == 5]  # interior pages of tables
    assert roots
    for root in roots:
        cells = int.from_bytes(raw[root + 3 : root + 5], "big")
        places = [int.from_bytes(raw[root + 12 + 2 * n : root + 14 + 2 * n], "big") for n in range(cells)]
        first = raw[root + places[0] : root + places[0] + 4]
        for place in places:
            raw[root + place : root + place + 4] = first
        raw[root + 8 : root + 12] = first
    path.write_bytes(raw)
    assert "numbers of their own" in refusal(lambda: load(f"tff:{path}"))


def test_a_name_that_would_be_a_command_is_a_name(tmp_path):
    name = "a'; DROP TABLE examples; --"
    path = database(tmp_path / "a.sqlite", [("train", name, example(tokens=[b"a"]))] * 3)
    before = path.read_bytes()
    assert set(load(f"tff:{path}").client_ids) == {name}
    assert path.read_bytes() == before


# HDF5.


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
    assert words in refusal(lambda: load(f"tff:{path}"))


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
        assert words in refusal(lambda path=path: load(f"tff:{path}"))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"label": np.arange(3)}, "as many records in every field"),
        ({"label": np.arange(2.0)}, "62"),
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
    fields = {"label": np.arange(2), "pixels": np.zeros((2, 28, 28))} | changed
    path = hdf5(tmp_path / "a.h5", {"a": fields})
    if words == "62":  # whole numbers as floats are labels
        fields = {"label": np.array([0.0, 11.0]), "pixels": np.zeros((2, 28, 28))}
        assert load(f"tff:{hdf5(path, {'a': fields})}").classes == 62
    else:
        assert words in refusal(lambda: load(f"tff:{path}"))


def test_clients_of_other_fields(tmp_path):
    path = hdf5(tmp_path / "a.h5", {"a": {"tokens": ["x", "y"]}, "b": {"snippets": ["x"]}})
    assert "tokens among them, as the first client" in refusal(lambda: load(f"tff:{path}"))
    hdf5(tmp_path / "a_train.h5", {"a": {"tokens": ["x", "y"]}})
    hdf5(tmp_path / "a_test.h5", {"a": {"snippets": ["x", "y"]}})
    assert "with tokens, as a_train.h5" in refusal(lambda: load(f"tff:{tmp_path / 'a_train.h5'}"))


def test_hdf5_that_is_cut_anywhere_is_refused(tmp_path):
    path = hdf5(tmp_path / "a.h5", {"a": {"tokens": ["some words"] * 50}})
    raw = path.read_bytes()
    for part in np.linspace(9, len(raw) - 1, 12).astype(int):
        path.write_bytes(raw[:part])
        refusal(lambda: load(f"tff:{path}"))


def test_one_client_under_many_names_takes_no_more_room_than_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FREE", 1 << 16)

    def write(file):
        file.create_dataset("examples/a/tokens", data=["word " * 1000] * 8, dtype=TEXT)
        for number in range(500):
            file[f"examples/b{number}"] = file["examples/a"]

    path = written(tmp_path / "a.h5", write)
    assert "at most 200 times as large" in refusal(lambda: load(f"tff:{path}"))


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    import sys

    path = hdf5(tmp_path / "a.h5", {"a": {"tokens": ["x", "y"]}})
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert 'pip install "fedjax-dp[hdf5]"' in refusal(lambda: load(f"tff:{path}"))


# Hugging Face.

VALUE = {"_type": "Value", "dtype": "float32"}
LABEL = {"_type": "ClassLabel", "names": ["no", "yes"]}
IMAGE = {"_type": "Image"}


def folder(tmp_path, y=(0, 1, 0, 1), label=LABEL, **columns):
    features = {name: IMAGE if name == "image" else VALUE for name in columns} | {"y": label}
    return saved(tmp_path / "d", pa.table({**columns, "y": list(y)}), features)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"a": [1.0, 2, 3, None]}, "given in every record"),
        ({"a": [[1.0], [2.0], [3.0], []]}, "lists of one length, got lists of 0 and 1"),
        ({"a": [[1.0], [2.0], [3.0], [None]]}, "given in every record"),
        ({"a": [1.0, 2, 3, float("nan")]}, "finite"),
        ({"a": [1.0, 2, 3, 1e300]}, "finite"),
        ({"a": [b"a", b"b", b"c", b"d"]}, "numbers, or lists of them"),
        ({"a": [1.0] * 4, "b": ["x"] * 4}, "text among other features"),
        ({"a": [1.0] * 4, "y": [0, 1, -1, 0]}, "-1 is a label that is missing"),
        ({"a": [1.0] * 4, "y": [0, 1, 2, 0]}, "0 to 1 of its 2 names"),
        ({"a": [1.0] * 4, "y": [0, 1, None, 0]}, "given in every record"),
        ({"a": [1.0] * 4, "y": [0.5, 1, 0, 0]}, "0 to 1 of its 2 names"),
        ({"a": [1.0] * 4, "label": {"_type": "ClassLabel", "names": ["no"]}}, "two different classes"),
        ({"a": [1.0] * 4, "label": {"_type": "ClassLabel", "names": ["no", "no"]}}, "two different classes"),
        ({"a": [1.0] * 4, "label": {"_type": "ClassLabel"}}, "a list of names"),
        ({"a": [1.0] * 4, "label": {"names": []}}, "an object with _type"),
        ({"a": [1.0] * 4, "label": "ClassLabel"}, "an object with _type"),
        ({}, "a column of features"),
        ({"image": [{"bytes": None, "path": "/etc/passwd"}] * 4}, "with the picture's bytes"),
        ({"image": [{"bytes": b"no picture", "path": None}] * 4}, "no picture"),
        ({"image": [{"bytes": b"%!PS-Adobe-3.0 EPSF-3.0\n", "path": None}] * 4}, "no picture"),
        ({"image": ["/etc/passwd"] * 4}, "with the picture's bytes"),
        ({"image": [{"bytes": b"x", "path": None}] * 4, "a": [1.0] * 4}, "pictures among other features"),
    ],
)
def test_folders_of_hugging_face_that_do_not_fit(tmp_path, options, words):
    assert words in refusal(lambda: load(f"hf:{folder(tmp_path, **options)}"))


def test_pictures_of_two_sizes_or_without_end(tmp_path, monkeypatch):
    Image = pytest.importorskip("PIL.Image")
    import io

    from fedjax_dp.data.formats import pictures

    def png(*size, mode="L"):
        buffer = io.BytesIO()
        Image.new(mode, size).save(buffer, "PNG")
        return {"bytes": buffer.getvalue(), "path": None}

    path = folder(tmp_path, image=[png(2, 2), png(2, 2), png(2, 3), png(2, 2)])
    assert "(2, 2), as the first" in refusal(lambda: load(f"hf:{path}"))
    path = folder(tmp_path, image=[png(2, 2, mode="I;16")] * 4)
    assert "I;16" in refusal(lambda: load(f"hf:{path}"))
    path = folder(tmp_path, image=[png(2, 2, mode="RGBA"), png(2, 2), png(2, 2), png(2, 2)])
    assert load(f"hf:{path}").x_train.shape[1:] == (2, 2, 3)
    monkeypatch.setattr(pictures, "MOST_PIXELS", 3)
    assert "at most 3 pixels" in refusal(lambda: load(f"hf:{path}"))


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("state.json", "{}", "an object with _data_files"),
        ("state.json", '{"_data_files": []}', "Arrow files in _data_files"),
        ("state.json", '{"_data_files": [{}]}', "an object with filename"),
        ("state.json", '{"_data_files": [{"filename": "../x.arrow"}]}', "plain names"),
        ("state.json", '{"_data_files": [{"filename": "/etc/passwd"}]}', "plain names"),
        ("state.json", '{"_data_files": [{"filename": ".."}]}', "plain names"),
        ("state.json", '{"_data_files": [{"filename": 3}]}', "plain names"),
        ("state.json", '{"_data_files": [{"filename": "absent.arrow"}]}', "existing file"),
        ("state.json", '{"_data_files": [{"filename": "a\\u0000"}]}', "plain names"),
        ("state.json", '{"_data_files": [{"filename": "x"}], "_indices_data_files": [{}]}', "flatten_indices"),
        ("dataset_info.json", "{}", "features must be an object"),
        ("dataset_info.json", '{"features": {"a": {}}}', "must be a, y"),
        ("dataset_dict.json", '{"splits": ["other"]}', "with a split train"),
        ("dataset_dict.json", '{"splits": ["../train"]}', "plain names"),
        ("dataset_dict.json", '{"splits": ["train"]}', "existing file"),
        ("dataset_dict.json", '{"splits": "train"}', "a list of names"),
    ],
)
def test_descriptions_of_other_things(tmp_path, file, content, words):
    path = folder(tmp_path, a=[1.0] * 4)
    (path / file).write_text(content)
    assert words in refusal(lambda: load(f"hf:{path}"))


def test_streams_that_are_none(tmp_path):
    path = folder(tmp_path, a=[1.0] * 4)
    file = path / "data-00000-of-00002.arrow"
    raw = file.read_bytes()
    changed = {
        b"": "empty",
        b"ARROW1\0\0" + bytes(100): "damaged",
        bytes(100): "Arrow stream",
        raw[:-8]: "an end within the stream",
        raw[: len(raw) // 2]: "an end within the stream",
        b"\xff\xff\xff\xff" + b"\xff\xff\xff\x7f" + bytes(100): "Arrow stream",
        raw[:8] + bytes(len(raw) - 16) + raw[-8:]: "damaged",
        raw[:8] + b"\xff" * (len(raw) - 16) + raw[-8:]: "damaged",
    }
    for content, words in changed.items():
        file.write_bytes(content)
        assert words in refusal(lambda: load(f"hf:{path}"))


def test_a_column_of_an_extension_type_is_not_even_looked_at(tmp_path):
    """A library that registers such a type may unpickle what the file says of it."""
    read = []

    class Kind(pa.ExtensionType):
        def __init__(self):
            super().__init__(pa.float32(), "test.kind")

        def __arrow_ext_serialize__(self):
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage, serialized):
            read.append(serialized)
            return cls()

    column = pa.ExtensionArray.from_storage(Kind(), pa.array([1.0] * 4, pa.float32()))
    rows = pa.table({"a": column, "label": [0, 1, 0, 1]})
    path = saved(tmp_path / "d", rows, {"a": VALUE, "label": LABEL})
    pyarrow.parquet.write_table(rows, tmp_path / "a.parquet")
    pa.register_extension_type(Kind())
    try:
        for name in (f"hf:{path}", f"parquet:{tmp_path / 'a.parquet'}"):
            assert "an extension type" in refusal(lambda name=name: load(name))
    finally:
        pa.unregister_extension_type("test.kind")
    assert not read


def test_offsets_that_lead_out_of_a_buffer(tmp_path):
    path = folder(tmp_path, a=[[1.0], [2.0], [3.0], [4.0]])
    file = path / "data-00000-of-00002.arrow"
    raw = file.read_bytes()
    offsets = np.array([0, 1, 2], np.int32).tobytes()
    assert raw.count(offsets) == 1
    file.write_bytes(raw.replace(offsets, np.array([0, 1, 1 << 30], np.int32).tobytes()))
    assert "damaged" in refusal(lambda: load(f"hf:{path}"))


# Lists of rows, and the command line.


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "no client"),
        ("[]", "an object"),
        ('{"0": [0, 1], "1": [1]}', "row 1 again"),
        ('{"0": [0, 0]}', "row 0 again"),
        ('{"0": [3]}', "rows 0 to 2 of 3 records, got row 3"),
        ('{"0": [-1]}', "got row -1"),
        ('{"0": [' + "9" * 100 + "]}", "got row 999"),
        ('{"0": []}', "at least one"),
        ('{"0": [true]}', "row numbers"),
        ('{"0": [0.0]}', "row numbers"),
        ('{"0": 1}', "row numbers"),
        ('{"0": [0], "0": [1]}', "twice in one object, '0'"),
    ],
)
def test_lists_of_rows_that_are_none(tmp_path, text, words):
    (tmp_path / "a.json").write_text(text)
    assert words in refusal(lambda: given_parts(tmp_path / "a.json", 3))


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


def test_given_bad_partition():
    path = pathlib.Path(os.environ.get("FEDJAX_DP_DATA", "")) / "formats/bad/partition.json"
    if not path.is_file():
        pytest.skip(f"{path} is not at hand: FEDJAX_DP_DATA names the folder that holds formats")
    assert "row 1 again" in refusal(lambda: given_parts(path, 6))


def test_varints_of_the_tests_are_right():
    """The bytes that the format's documentation gives for 150, and the longest one."""
    assert varint(150) == b"\x96\x01"
    assert field(1, 0, 150) == b"\x08\x96\x01"
    assert json.loads("[1]") == [1]


def test_a_collection_of_texts_without_end_is_refused_before_hdf5_loops_on_it(tmp_path):
    path = hdf5(tmp_path / "a.h5", {"a": {"tokens": ["some words", "others"]}})
    raw = bytearray(path.read_bytes())
    at = raw.index(b"GCOL") + 16
    while raw[at : at + 2] != b"\0\0":  # texts, then the free space
        at += 16 + -(-int.from_bytes(raw[at + 8 : at + 16], "little") // 8) * 8
    raw[at + 8 : at + 16] = bytes(8)
    path.write_bytes(raw)
    assert "a text of 0 bytes where" in refusal(lambda: load(f"tff:{path}"))
    raw[9:15] = b"\4" * 6
    path.write_bytes(raw)
    assert "lengths of 8 bytes" in refusal(lambda: load(f"tff:{path}"))


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
