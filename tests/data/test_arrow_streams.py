"""Arrow streams and Parquet files that are damaged or made to do harm."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from client_files import saved
from helpers import refusal

from fedjax_dp.data import load

VALUE = {"_type": "Value", "dtype": "float32"}

LABEL = {"_type": "ClassLabel", "names": ["no", "yes"]}

IMAGE = {"_type": "Image"}


def folder(tmp_path, y=(0, 1, 0, 1), label=LABEL, **columns):
    features = {name: IMAGE if name == "image" else VALUE for name in columns} | {"y": label}
    return saved(tmp_path / "d", pa.table({**columns, "y": list(y)}), features)


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
