"""SQLite files, packed or not, that are damaged or made to do harm: one line each, nothing left behind."""

import lzma
import sqlite3

import numpy as np
import pytest
from client_files import database, example
from helpers import refusal

from fedjax_dp.data import load

ROWS = [("train", name, example(tokens=[b"a b"])) for name in "ab"]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "empty"),
        (b"no database at all", "at its beginning"),
        (b"SQLite format 3\0", "readable database"),
        (b"SQLite format 3\0" + bytes(2000), "readable database"),
        (lzma.compress(b""), "at the beginning of the unpacked data"),
        (lzma.compress(b"SQLite"), "at the beginning of the unpacked data"),
        (lzma.compress(bytes(1 << 20)), "at the beginning of the unpacked data"),
        (lzma.compress(b"SQLite format 3\0" + bytes(1 << 26)), "at most 200 times as large"),
        (lzma.compress(b"SQLite format 3\0" + bytes(999)), "readable database"),
        (b"\x5d" + b"\xff" * 30, "an SQLite database, perhaps packed"),
        (
            b"\x5d\0\0\0\x80" + b"\xff" * 8 + lzma.compress(bytes(99), lzma.FORMAT_ALONE)[13:],
            "memory usage limit exceeded",
        ),
        (b"\xfd7zXZ\0" + bytes(40), "an SQLite database, perhaps packed"),
    ],
)
def test_files_that_are_no_database(tmp_path, raw, words):
    path = tmp_path / "a.sqlite.lzma"
    path.write_bytes(raw)
    assert words in refusal(load, f"tff:{path}")


@pytest.mark.parametrize("packed", [lzma.FORMAT_ALONE, lzma.FORMAT_XZ, None])
def test_a_database_that_is_cut_anywhere_is_refused(tmp_path, packed):
    path = database(tmp_path / "a.sqlite.lzma", ROWS * 200, packed=packed)
    raw = path.read_bytes()
    for part in np.linspace(1, len(raw) - 1, 12).astype(int):
        path.write_bytes(raw[:part])
        refusal(load, f"tff:{path}")
    path.write_bytes(raw + b"more")
    if packed is not None:
        refusal(load, f"tff:{path}")


METADATA = "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER);"
EXAMPLES = "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB);"
BOTH = EXAMPLES + METADATA
PROTO = example(tokens=[b"a"]).hex()
GIVEN = "INSERT INTO client_metadata VALUES ('a', 'train', 1);"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("CREATE TABLE other (a);", "examples must be a table"),
        (METADATA + "CREATE VIEW examples AS SELECT 'train' AS split_name;", "got a view"),
        (EXAMPLES + "CREATE VIEW client_metadata AS SELECT 'a' AS client_id;", "client_metadata must be a table"),
        (METADATA + "CREATE VIRTUAL TABLE examples USING fts5(split_name);", "got a virtual table"),
        (BOTH, "with train or all_train among them, got none"),
        (BOTH + GIVEN, "examples of 'a' in 'train' must be 1, as client_metadata says, got 0"),
        (BOTH + GIVEN * 2, "each client once in a split"),
        (BOTH + "INSERT INTO client_metadata VALUES ('a', 'train', 0);", "a number of examples from 1"),
        (BOTH + "INSERT INTO client_metadata VALUES ('a', 'train', 'x');", "a number of examples from 1"),
        (BOTH + "INSERT INTO client_metadata VALUES ('a', NULL, 1);", "a number of examples from 1"),
        (BOTH + "INSERT INTO client_metadata VALUES (NULL, 'train', 1);", "client must be text"),
        (BOTH + "INSERT INTO client_metadata VALUES (x'ff', 'train', 1);", "client must be text"),
        (BOTH + "INSERT INTO client_metadata VALUES (CAST(x'ff' AS TEXT), 'train', 1);", "UTF-8"),
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
    assert words in refusal(load, f"tff:{path}")


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
    assert words in refusal(load, f"tff:{path}")


def test_examples_of_clients_that_nobody_announced(tmp_path):
    counts = [("a", "train", 1)]
    path = database(tmp_path / "a.sqlite", ROWS, counts)
    assert "a client of client_metadata" in refusal(load, f"tff:{path}")
    path = database(tmp_path / "a.sqlite", ROWS, [("a", "train", 2), ("b", "train", 1)])
    assert "must be 2, as client_metadata says, got 1" in refusal(load, f"tff:{path}")


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
    assert "numbers of their own" in refusal(load, f"tff:{path}")


def test_a_name_that_would_be_a_command_is_a_name(tmp_path):
    name = "a'; DROP TABLE examples; --"
    path = database(tmp_path / "a.sqlite", [("train", name, example(tokens=[b"a"]))] * 3)
    before = path.read_bytes()
    assert set(load(f"tff:{path}").client_ids) == {name}
    assert path.read_bytes() == before
