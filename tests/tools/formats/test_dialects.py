"""Small dialects of arrays and of LEAF's files: what is meant is done and told, or refused with its remedy."""

import gzip
import json
import pathlib

import numpy as np
import pytest
from helpers import refusal

import fedjax_dp as fdp
from fedjax_dp import models
from fedjax_dp.data import files, load

DRAWS = np.random.default_rng(0)
X, Y = DRAWS.normal(size=(24, 3)).astype(np.float32), np.arange(24) % 3


def made(x, y, **options):
    return fdp.dataset(x[:18], y[:18], x[18:], y[18:], **options)


@pytest.mark.parametrize("kind", [float, int, bool, np.uint8])
def test_one_hot_labels_are_classes(kind):
    found = made(X, np.eye(4, dtype=kind)[Y])
    assert found.y_train.tolist() == Y[:18].tolist()
    assert (found.classes, found.notes) == (4, ("one-hot labels are classes 0 to 3",))


@pytest.mark.parametrize("y", [np.eye(3)[Y] * 0.5, np.ones((24, 3)), np.eye(3)[Y] * 2, np.zeros((24, 3))])
def test_other_rows_of_labels_are_refused(y):
    assert "(records, ...) and (records,)" in refusal(made, X, y)


def test_labels_in_a_column_are_labels():
    found = made(X, Y[:, None])
    assert found.y_train.tolist() == Y[:18].tolist()
    assert "labels (n, 1) are read as (n,)" in found.notes
    assert made(X, Y[:, None] % 2, task="multi_label").y_train.shape == (18, 1)


def test_arrays_of_lists_are_arrays():
    listed = np.empty(24, object)
    listed[:] = [row.tolist() for row in X]
    np.testing.assert_array_equal(made(listed, Y).x_train, X[:18].astype(float))
    listed[3] = [1.0]
    assert "lists of different lengths" in refusal(made, listed, Y)


IMAGES = DRAWS.integers(0, 256, (24, 3, 8, 8))


@pytest.mark.parametrize(
    ("x", "told"),
    [
        (IMAGES.astype(np.uint8), ["channels first"]),
        (IMAGES / 255, ["channels first"]),
        (IMAGES.astype(np.float32), ["channels first", "up to 255"]),
        (np.moveaxis(IMAGES, 1, -1), ["up to 255"]),
        (np.moveaxis(IMAGES, 1, -1) / 255, []),
        (np.moveaxis(IMAGES, 1, -1).astype(np.uint8), []),
        (IMAGES[:, 0].astype(np.uint8), []),
        (IMAGES.reshape(24, -1), []),
        (DRAWS.normal(size=(24, 4, 5, 6)), ["channels first"]),
        (DRAWS.normal(size=(24, 8, 8, 3)) * 200, []),
    ],
)
def test_images_of_another_order_or_scale_are_told(x, told):
    notes = [note for note in made(x, Y).notes if note.startswith("warning")]
    assert len(notes) == len(told)
    for words, note in zip(told, notes, strict=True):
        assert words in note


def test_a_network_of_images_says_where_channels_stand():
    assert "channels stand last, np.moveaxis(x, 1, -1)" in refusal(lambda: models.cnn((3, 8, 8), 3))


def test_an_empty_part_is_empty():
    for x in (X[:0], X[:0, 0]):
        told = refusal(fdp.dataset, X, Y, x, Y[:0])
        assert told == "x_test must be at least one record, got empty; hold some of the others out for it"


# LEAF.


def leaf(folder, y=(0, 1, 2, 1), **changes):
    """Two users with four records each."""
    users = {name: {"x": DRAWS.normal(size=(4, 3)).tolist(), "y": list(y)} for name in ("ann", "zo\xeb")}
    content = {"users": list(users), "num_samples": [4, 4], "user_data": users} | changes
    for split in ("train", "test"):
        (folder / "data" / split).mkdir(parents=True)
    return json.dumps(content, ensure_ascii=False)


def read(folder, content, ending="json"):
    for split in ("train", "test"):
        (folder / "data" / split / f"a.{ending}").write_bytes(content)
    return load(f"leaf:{folder}")


def test_a_byte_order_mark_and_packed_files_change_nothing(tmp_path):
    text = leaf(tmp_path)
    expected = read(tmp_path, text.encode())
    for content, ending in ((b"\xef\xbb\xbf" + text.encode(), "json"), (gzip.compress(text.encode()), "json.gz")):
        for old in pathlib.Path(tmp_path).rglob("a.*"):
            old.unlink()
        found = read(tmp_path, content, ending)
        np.testing.assert_array_equal(found.x_train, expected.x_train)
        assert found.client_ids.tolist() == expected.client_ids.tolist()


def test_a_packed_file_of_json_grows_as_far_as_it_may(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FREE", 1 << 16)
    text = leaf(tmp_path)
    told = refusal(read, tmp_path, gzip.compress(b" " * (1 << 20) + text.encode()), "json.gz")
    assert "times as large when expanded" in told


def test_other_encodings_of_json_have_a_remedy(tmp_path):
    text = leaf(tmp_path)
    assert "iconv -f latin1 -t utf-8 a.json" in refusal(read, tmp_path, text.encode("latin-1"))
    assert "iconv -f utf-16 -t utf-8 a.json" in refusal(read, tmp_path, text.encode("utf-16"))


def test_labels_from_one_are_classes_from_zero(tmp_path):
    found = read(tmp_path, leaf(tmp_path, (1.0, 2.0, 3.0, 2.0)).encode())
    assert sorted(found.y_train.tolist()) == [0, 0, 1, 1, 1, 1, 2, 2]
    assert "labels 1 to 3 are classes 0 to 2" in found.notes


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (("0", "1", "0", "1"), "y must be numbers, got text, '0'; labels stand without quotes"),
        ((0, 2, 3, 2), "number them in the files, or predict them as numbers: --task regression"),
    ],
)
def test_labels_that_are_none_are_refused_in_words_of_json(y, words, tmp_path):
    assert words in refusal(read, tmp_path, leaf(tmp_path, y).encode())


def test_labels_of_a_half_are_numbers(tmp_path):
    found = read(tmp_path, leaf(tmp_path, (0.5, 1, 0.5, 0)).encode())
    assert found.task == "regression"
    assert any("task regression" in note for note in found.notes)
