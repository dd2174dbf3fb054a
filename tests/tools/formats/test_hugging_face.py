"""Folders of Hugging Face that do not fit, are damaged, or point out of themselves: one line each."""

import io

import numpy as np
import pytest
from client_files import saved
from helpers import refusal

from fedjax_dp.data import load, pictures
from fedjax_dp.data.pictures import decode

pa = pytest.importorskip("pyarrow", reason="the extra `tables` brings pyarrow")

VALUE = {"_type": "Value", "dtype": "float32"}

LABEL = {"_type": "ClassLabel", "names": ["no", "yes"]}

IMAGE = {"_type": "Image"}


def folder(tmp_path, y=(0, 1, 0, 1), label=LABEL, **columns):
    features = {name: IMAGE if name == "image" else VALUE for name in columns} | {"y": label}
    return saved(tmp_path / "d", pa.table({**columns, "y": list(y)}), features)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"a": [1.0, 2, 3, None]}, "a value in every record"),
        ({"a": [[1.0], [2.0], [3.0], []]}, "lists of one length, got lists of 0 and 1"),
        ({"a": [[1.0], [2.0], [3.0], [None]]}, "a value in every record"),
        ({"a": [1.0, 2, 3, float("nan")]}, "finite"),
        ({"a": [1.0, 2, 3, 1e300]}, "finite"),
        ({"a": [b"a", b"b", b"c", b"d"]}, "numbers, or lists of them"),
        ({"a": [1.0] * 4, "b": ["x"] * 4}, "text among other features"),
        ({"a": [1.0] * 4, "y": [0, 1, -1, 0]}, "-1 is a label that is missing"),
        ({"a": [1.0] * 4, "y": [0, 1, 2, 0]}, "0 to 1 of its 2 names"),
        ({"a": [1.0] * 4, "y": [0, 1, None, 0]}, "a value in every record"),
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
    assert words in refusal(load, f"hf:{folder(tmp_path, **options)}")


def test_truth_values_are_no_bytes(tmp_path):
    dataset = load(f"hf:{folder(tmp_path, a=[True, False] * 2, b=[False, True] * 2)}")
    assert (dataset.scale, dataset.x_train.max()) == (1.0, 1.0)


def test_targets_written_as_floats_are_classes_where_all_are_whole(tmp_path):
    whole = load(f"hf:{folder(tmp_path / 'a', y=[0.0, 1.0] * 2, label=VALUE, a=[1.0] * 4)}", label_column="y")
    assert (whole.task, whole.classes) == ("classes", 2)
    assert "labels written as 1.0 are whole numbers" in whole.notes
    others = folder(tmp_path / "b", y=[0.5, 1.0] * 2, label=VALUE, a=[1.0] * 4)
    assert "y is read as numbers: task regression; --task says another" in load(f"hf:{others}", label_column="y").notes
    large = folder(tmp_path / "c", y=[-(2**63), 1] * 2, label=VALUE, a=[1.0] * 4)
    assert "whole numbers for task binary" in refusal(load, f"hf:{large}", label_column="y", task="binary")


def test_words_with_spaces_are_those_without(tmp_path):
    columns = {"a": [1.0] * 4, "who": ["u", "u ", "v", "v"]}
    clients = load(f"hf:{folder(tmp_path / 'a', **columns)}", client_column="who", feature_columns="a").client_ids
    assert {*clients} == {"u", "v"}
    words = folder(tmp_path / "b", y=["A", "A ", "B", "B"], label=VALUE, a=[1.0] * 4)
    assert load(f"hf:{words}", label_column="y").classes == 2
    empty = folder(tmp_path / "c", y=["A", " ", "B", "B"], label=VALUE, a=[1.0] * 4)
    assert "a label of every record, got 1 empty" in refusal(load, f"hf:{empty}", label_column="y")


def test_a_gray_picture_takes_the_colour_of_no_other():
    Image = pytest.importorskip("PIL.Image")

    def packed(pixels):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        return {"bytes": file.getvalue(), "path": None}

    gray, colour = np.full((2, 3), 7, np.uint8), np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    for three in ([gray, colour, colour], [colour, gray, colour]):
        shown = np.stack([np.stack([p] * 3, axis=-1) if p.ndim == 2 else p for p in three])
        np.testing.assert_array_equal(decode("here", (packed(p)["bytes"] for p in three)), shown)
    assert decode("here", [packed(gray)["bytes"]] * 2).shape == (2, 2, 3)


def test_pictures_of_two_sizes_or_without_end(tmp_path, monkeypatch):
    Image = pytest.importorskip("PIL.Image")

    def png(*size, mode="L"):
        buffer = io.BytesIO()
        Image.new(mode, size).save(buffer, "PNG")
        return {"bytes": buffer.getvalue(), "path": None}

    path = folder(tmp_path, image=[png(2, 2), png(2, 2), png(2, 3), png(2, 2)])
    assert "(2, 2), as the first" in refusal(load, f"hf:{path}")
    path = folder(tmp_path, image=[png(2, 2, mode="I;16")] * 4)
    assert "I;16" in refusal(load, f"hf:{path}")
    path = folder(tmp_path, image=[png(2, 2, mode="RGBA"), png(2, 2), png(2, 2), png(2, 2)])
    assert load(f"hf:{path}").x_train.shape[1:] == (2, 2, 3)
    monkeypatch.setattr(pictures, "MOST_PIXELS", 3)
    assert "at most 3 pixels" in refusal(load, f"hf:{path}")


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
    assert words in refusal(load, f"hf:{path}")


def test_streams_that_are_none(tmp_path):
    path = folder(tmp_path, a=[1.0] * 4)
    file = path / "data-00000-of-00002.arrow"
    raw = file.read_bytes()
    changed = {
        b"": "empty",
        b"ARROW1\0\0" + bytes(100): "damaged",
        bytes(100): "Arrow stream",
        raw[:-8]: "a truncated stream",
        raw[: len(raw) // 2]: "a truncated stream",
        b"\xff\xff\xff\xff" + b"\xff\xff\xff\x7f" + bytes(100): "Arrow stream",
        raw[:8] + bytes(len(raw) - 16) + raw[-8:]: "damaged",
        raw[:8] + b"\xff" * (len(raw) - 16) + raw[-8:]: "damaged",
    }
    for content, words in changed.items():
        file.write_bytes(content)
        assert words in refusal(load, f"hf:{path}")


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
    pytest.importorskip("pyarrow.parquet").write_table(rows, tmp_path / "a.parquet")
    pa.register_extension_type(Kind())
    try:
        for name in (f"hf:{path}", f"parquet:{tmp_path / 'a.parquet'}"):
            assert "an extension type" in refusal(load, name)
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
    assert "damaged" in refusal(load, f"hf:{path}")
