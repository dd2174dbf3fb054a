"""Small files in the formats of other systems, written by hand: what readers of them are tried on."""

import contextlib
import json
import lzma
import sqlite3

import numpy as np

WINDOW = "nobody in the harbour had seen the blue boat since the morning when the bells were rung for the first time"
SNIPPETS = {"ANNA": [b"No, my lord.", b"Hark! " * 20], "BEN": [b"\xe9t\xe9"], 'IT\'S "C"': [b""]}
POSTS = {"00000007": ["it depends"], "00000042": ["you can add them with + .", "what is a list in python ?"]}


def varint(number):
    number %= 1 << 64
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number, kind, content):
    """A field of protobuf's wire format; bytes and texts have their length before them."""
    head = varint(number << 3 | kind)
    return head + (varint(content) if kind == 0 else (varint(len(content)) if kind == 2 else b"") + content)


def feature(values, packed=True):
    """A Feature of bytes, of floats or of integers."""
    if all(isinstance(value, bytes) for value in values):
        return field(1, 2, b"".join(field(1, 2, value) for value in values))
    if all(isinstance(value, float) for value in values):
        parts = [np.float32(value).tobytes() for value in values]
        inner = field(1, 2, b"".join(parts)) if packed else b"".join(field(1, 5, part) for part in parts)
        return field(2, 2, inner)
    parts = [varint(value) for value in values]
    inner = field(1, 2, b"".join(parts)) if packed else b"".join(field(1, 0, value) for value in values)
    return field(3, 2, inner)


def example(packed=True, **features):
    entries = (field(1, 2, key.encode()) + field(2, 2, feature(value, packed)) for key, value in features.items())
    return field(1, 2, b"".join(field(1, 2, entry) for entry in entries))


def leaf_file(path, users, /, **changed):
    """`users`: name -> (x, y)."""
    content = {
        "users": list(users),
        "num_samples": [len(x) for x, _ in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | changed))
    return path


def windows(text, first=0, count=3, length=80):
    starts = range(first, first + count)
    return [text[at : at + length] for at in starts], [text[at + length] for at in starts]


def database(path, rows, counts=None, packed=None, schema=None):
    """`rows`: (split, client, bytes); `packed`: a format of lzma."""
    if counts is None:
        counts = {}
        for split, client, _ in rows:
            counts[client, split] = counts.get((client, split), 0) + 1
        counts = [(client, split, count) for (client, split), count in counts.items()]
    plain = path.with_name("plain.sqlite")
    plain.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(plain)) as base:
        base.executescript(
            schema
            or "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB);"
            "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER);"
        )
        if schema is None:
            base.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
            base.executemany("INSERT INTO client_metadata VALUES (?, ?, ?)", counts)
        base.commit()
    raw = plain.read_bytes()
    plain.unlink()
    path.write_bytes(raw if packed is None else lzma.compress(raw, format=packed))
    return path


def hdf5(path, clients):
    """`clients`: name -> field -> values."""
    import h5py

    with h5py.File(path, "w") as file:
        group = file.create_group("examples")
        for client, fields in clients.items():
            one = group.create_group(client)
            for name, values in fields.items():
                text = isinstance(values, list)
                one.create_dataset(name, data=values, dtype=h5py.string_dtype() if text else None)
    return path


def saved(folder, table, features, split_of=None):
    """A folder as `datasets` saves one: two Arrow streams of a table, and what its columns are."""
    import pyarrow as pa

    folder.mkdir(parents=True, exist_ok=True)
    half = len(table) // 2
    names = []
    for number, part in enumerate((table.slice(0, half), table.slice(half))):
        names.append(f"data-0000{number}-of-00002.arrow")
        with pa.OSFile(str(folder / names[-1]), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(part)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def everything(found):
    """Records of both splits by client in the order of names: the readers hold out what the files do not."""
    ids = found.client_ids if found.test_client_ids is None else np.append(found.client_ids, found.test_client_ids)
    keep = len(ids)
    x = np.concatenate([found.x_train, found.x_test])[:keep]
    y = np.concatenate([found.y_train, found.y_test])[:keep]
    return x, y, ids


def snippet_file(tmp_path):
    return hdf5(tmp_path / "shakespeare_train.h5", {name: {"snippets": texts} for name, texts in SNIPPETS.items()})


def posts(tmp_path, **more):
    rows = [("train", name, example(tokens=[text.encode()], score=[-1])) for name in POSTS for text in POSTS[name]]
    return database(tmp_path / "stackoverflow.sqlite", rows, **more)
