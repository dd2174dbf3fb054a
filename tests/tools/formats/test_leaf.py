"""LEAF's files that somebody damaged, or made to do harm: one line each."""

import os

import pytest
from client_files import leaf_file
from helpers import refusal

from fedjax_dp.data import load
from fedjax_dp.data.client_names import plain_name

GOOD = ([[0.5, 1], [1, 2]], [0, 1])


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
        ('{"users": ["\xff"]}'.encode("latin-1"), "text in UTF-8"),
        ('{"users": ["a"], "num_samples": [1]}', "an object with user_data"),
        (b"\x00" * 100, "JSON file"),
    ],
)
def test_json_that_is_none(tmp_path, text, words):
    path = tmp_path / "a.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert words in refusal(load, f"leaf:{path}")


def test_endings_in_capitals_are_read_and_hidden_files_are_not(tmp_path):
    for name, user in (("a.json", "a"), ("b.JSON", "b"), ("._a.json", "c")):
        leaf_file(tmp_path / name, {user: GOOD})
    assert {*load(f"leaf:{tmp_path}").client_ids} == {"a", "b"}


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
    assert words in refusal(load, f"leaf:{path}")


@pytest.mark.parametrize("name", ["a\0", "", "x" * 257, "\ud800"])
def test_names_that_no_array_of_text_keeps(tmp_path, name):
    path = leaf_file(tmp_path / "a.json", {name: GOOD})
    assert "client must be text of at most 256 characters" in refusal(load, f"leaf:{path}")


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "../../etc", "'; DROP TABLE", "%s{}", "\u202e", "🙂", " "])
def test_names_with_odd_characters_are_names(tmp_path, name):
    path = leaf_file(tmp_path / "a.json", {name: GOOD})
    assert set(load(f"leaf:{path}").client_ids) == {plain_name(name)}
    path = leaf_file(tmp_path / "b.json", {name: ([[1, 2], [3]], [0, 1])})
    assert "different lengths" in refusal(load, f"leaf:{path}")


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
        (["good", "bad"], [0, 1], "csv:FILE with --length 25 reads a column of texts"),
        ([[1.0], [2.0]], [0, -1], "from -1"),
        ([[1.0], [2.0]], [0, 5], "without 1"),
        ([[1.0], [2.0]], ["a", "b"], "labels stand without quotes"),
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
        ([[["a", "b"]], [["a", "b"]]], [{"target_tokens": [["b", "c"]]}, {"target_tokens": [["c", "c"]]}], "one on"),
        ([[["a", "b"]], [["a", "b"]]], [{"target_tokens": [["b", "c"]]}, {}], "an object with target_tokens"),
        ([[["a", "b"]], [["a", "b"]]], [{"target_tokens": [["b", "c"]]}, {"target_tokens": []}], "1 and 0 sequences"),
        ([[["a", "b"]], [["a", 3]]], [{"target_tokens": [["b", "c"]]}] * 2, "a list of tokens"),
        ([[[]], [[]]], [{"target_tokens": [[]]}] * 2, "0 and 0 tokens"),
        ([[["<PAD>"]]] * 2, [{"target_tokens": [["<PAD>"]]}] * 2, "no word in any training record"),
    ],
)
def test_leaf_records_that_are_none(tmp_path, x, y, words):
    path = leaf_file(tmp_path / "a.json", {"a": (x, y)})
    assert words in refusal(load, f"leaf:{path}")


def test_users_that_come_twice_in_a_split(tmp_path):
    for name, user in (("1", "a"), ("2", "a\u200b ")):
        leaf_file(tmp_path / f"train/{name}.json", {user: GOOD})
    assert "each user once in all files of a split" in refusal(load, f"leaf:{tmp_path}")


def test_folders_without_files_and_files_for_folders(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "hf").mkdir()
    assert "no .json file" in refusal(load, f"leaf:{tmp_path}")
    assert "an existing folder" in refusal(load, f"leaf:{tmp_path / 'absent'}")
    assert "got a folder" in refusal(load, f"tff:{tmp_path}")
    assert "existing file" in refusal(load, f"tff:{tmp_path / 'absent'}")
    assert "existing file" in refusal(load, f"hf:{tmp_path / 'hf'}")
    assert "an existing folder" in refusal(load, f"hf:{tmp_path / 'absent'}")
    leaf_file(tmp_path / "train/a.json", {"a": GOOD})
    (tmp_path / "test").mkdir()
    assert "LEAF's files of test records" in refusal(load, f"leaf:{tmp_path}")
    (tmp_path / "train/b.json").mkdir()
    assert "got a folder" in refusal(load, f"leaf:{tmp_path / 'train'}")
    os.mkfifo(tmp_path / "pipe")
    assert "got no file" in refusal(load, f"tff:{tmp_path / 'pipe'}")
    for name in ("leaf", "tff", "hf"):
        refusal(load, f"{name}:a\0b")
        refusal(load, f"{name}:{'x' * 5000}")
