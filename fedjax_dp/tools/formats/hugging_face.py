"""Data sets that Hugging Face's `datasets` saved to disk: Arrow streams, `state.json` and `dataset_info.json`.

Memory: files are mapped; each used column is held once, and pictures also in their packed form.
"""

import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedjax_dp import errors, folders
from fedjax_dp.data.client_names import plain_name
from fedjax_dp.data.files import ARROW_EXTENSION, check_file, check_growth, check_id, damage_error, readable
from fedjax_dp.data.json_files import list_of, object_of, read_json
from fedjax_dp.data.pictures import decode
from fedjax_dp.data.reading import COLUMNS, Reading
from fedjax_dp.data.records import RecordTable, as_task, choose_test, make_dataset, number_labels
from fedjax_dp.data.store import Dataset
from fedjax_dp.tools.formats.words import CLASSIFIED_OPTIONS, SENTENCE_OPTIONS, sentences, text_classes

END = b"\xff\xff\xff\xff" + bytes(4)  # of a stream; pyarrow would accept a truncated one
TEST = ("test", "validation")  # the first existing split is the test set


class Column(NamedTuple):
    """A column as `dataset_info.json` describes it."""

    name: str
    kind: str  # Value, ClassLabel, Image or List
    names: tuple[str, ...] = ()  # of classes, also of those in a list


def hugging_face(named: str, reading: Reading) -> Dataset:
    """The data set of a folder with `dataset_dict.json`, or with the one split that `state.json` describes.

    The default label_column is the only class label, or else a column `label`. Without labels, text is to be continued.
    """
    path = pathlib.Path(named)
    if not os.path.isdir(path):  # Path.is_dir raises for some impossible names
        raise errors.refuse("hf folder", folders.printable(str(path)), "an existing folder", "save_to_disk writes one")
    errors.require_installed("pyarrow", "tables", "to read hf folders")
    folders_of, notes = _splits(path)
    tables, columns = dict[str, Any](), dict[str, Column]()
    for name, folder in folders_of.items():
        tables[name], present = _table(folder)
        if columns and present != columns:
            raise damage_error(folder, "other columns", "those of the split train")
        columns = present
    where, (label, client, features) = str(path), _roles(str(path), columns, reading)
    of_text = [columns[name].kind for name in features] == ["Value"] and _is_text(tables["train"][features[0]])
    if label is None and not of_text:
        raise errors.refuse("label_column", "nothing", f"one of {', '.join(columns)}", "name the column of targets")
    targets, about, splits = dict[str, Any](), dict[str, Any](), dict[str, RecordTable]()
    if label is not None:
        labels = {name: table[label] for name, table in tables.items()}
        targets, about = _targets(where, columns[label], labels, reading.task)
    for name, table in tables.items():
        clients = None if client is None else _ids(f"{where}: {client}", table[client])
        if of_text:
            _require_whole(f"{where}: {features[0]}", table[features[0]])
            column = {"tokens" if label is None else "text": table[features[0]].to_pylist()}
        else:
            column = {"x": _numbers(where, [(columns[feature], table[feature]) for feature in features])}
        column |= {"y": targets[name]} if targets else {}
        splits[name] = RecordTable(clients, notes=[*notes, *about.get("notes", ())], **column)
    train, test = splits["train"], splits.get("test")
    about.pop("notes", None)
    if not of_text:
        reading.require_meant(COLUMNS, "columns of numbers and pictures")
        return make_dataset(path.name, where, train, test, record_shape=reading.record_shape, **about)
    options = SENTENCE_OPTIONS if label is None else CLASSIFIED_OPTIONS
    reading.require_meant({*COLUMNS, *options} - {"record_shape", "task"}, "a column of text")
    if label is None:
        return sentences(path.name, where, train, test, reading)
    if "classes" not in about:
        raise errors.refuse("label_column", label, "a column of classes for text")
    return text_classes(path.name, where, train, test, reading, about["classes"])


def _splits(path: pathlib.Path) -> tuple[dict[str, pathlib.Path], list[str]]:
    """The folders of the training and test splits, and notes on the others."""
    if not (path / "dataset_dict.json").is_file():
        return {"train": path}, []
    about = object_of(str(path / "dataset_dict.json"), read_json(path / "dataset_dict.json"), ("splits",))
    names = list_of(f"{path / 'dataset_dict.json'}: splits", about["splits"], str, "names")
    for name in names:
        _require_plain_name(path / "dataset_dict.json", name)
    if "train" not in names:
        raise damage_error(path, f"splits {', '.join(names)}"[:100], "with a split train")
    test, notes = choose_test(names, "train", TEST)
    return {"train": path / "train"} | ({} if test is None else {"test": path / test}), notes


def _table(folder: pathlib.Path) -> tuple[Any, dict[str, Column]]:
    """The records of a split, and the descriptions of its columns."""
    import pyarrow as pa

    state = object_of(str(folder / "state.json"), read_json(folder / "state.json"), ("_data_files",))
    if state.get("_indices_data_files"):
        raise damage_error(
            folder / "state.json", "rows by an index", "all rows", "flatten_indices() before it is saved"
        )
    files = []
    for entry in list_of(f"{folder / 'state.json'}: _data_files", state["_data_files"], dict, "objects"):
        name = object_of(f"{folder / 'state.json'}: _data_files", entry, ("filename",))["filename"]
        files.append(folder / _require_plain_name(folder / "state.json", name))
    if not files:
        raise damage_error(folder / "state.json", "no file", "Arrow files in _data_files")
    tables = [_read_stream(file) for file in files]
    if other := next((file for file, table in zip(files, tables) if table.schema != tables[0].schema), None):
        raise damage_error(other, "other columns", f"those of {files[0].name}")
    table = pa.concat_tables(tables)
    if not len(table):
        raise damage_error(folder, "no record", "at least one in a split")
    info = folder / "dataset_info.json"
    features = object_of(f"{info}: features", object_of(str(info), read_json(info)).get("features"))
    if sorted(features) != sorted(table.column_names):
        raise damage_error(f"{info}: features", ", ".join(features)[:100], ", ".join(table.column_names)[:100])
    return table, {name: _describe(f"{info}: {name}", name, features[name]) for name in table.column_names}


def _read_stream(path: pathlib.Path) -> Any:
    """The table of a stream's record batches, all validated: offsets lie within their buffers."""
    import pyarrow as pa

    size, wanted = check_file("Arrow", path), "an Arrow stream, as save_to_disk writes it"
    kinds = (pa.ArrowException, OSError, MemoryError, ValueError, EOFError)
    with readable(path, wanted, kinds), pa.memory_map(str(path)) as source:
        schema = pa.ipc.read_message(source).metadata.to_pybytes()  # before any of its types is created
        if ARROW_EXTENSION in schema:
            raise damage_error(path, "a column of an extension type", "an Arrow stream of plain types")
        source.seek(max(0, size - len(END)))
        if source.read() != END:
            raise damage_error(path, "a truncated stream", wanted)
        source.seek(0)
        with pa.ipc.open_stream(source) as reader:
            batches, read = [], 0
            for batch in reader:
                batch.validate(full=True)
                read += batch.nbytes
                check_growth(path, size, read)  # bodies may be packed
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)


def _describe(where: str, name: str, feature: Any) -> Column:
    """The description of a column; a list has the class names of its items."""
    if isinstance(feature, list) and len(feature) == 1:  # a list in files of older versions
        feature = {"_type": "List", "feature": feature[0]}
    kind = object_of(where, feature, ("_type",))["_type"]
    if kind in ("Sequence", "List", "LargeList"):
        inner = _describe(where, name, feature.get("feature"))
        return Column(name, "List", inner.names)
    if kind == "ClassLabel":
        names = list_of(f"{where}: names", feature.get("names"), str, "names")
        if len(names) < 2 or len(set(names)) < len(names):
            raise damage_error(f"{where}: names", f"{len(names)}", "two different classes or more")
        return Column(name, kind, tuple(names))
    return Column(name, kind if isinstance(kind, str) else "something else")


def _require_plain_name(file: pathlib.Path, name: Any) -> str:
    """The name, if it is that of a file or folder directly in this one."""
    if not isinstance(name, str) or name in ("", ".", "..") or pathlib.PurePath(name).name != name or "\0" in name:
        raise damage_error(file, f"{name!r:.60}", "plain names of files or folders in it")
    return name


def _require_column(where: str, columns: dict[str, Column], name: str, option: str) -> str:
    if name not in columns:
        wanted = f"a column of {where}: {', '.join(columns)}"[:200]
        raise errors.refuse(option, name, wanted, errors.suggestion(name, columns))
    return name


def _roles(where: str, columns: dict[str, Column], reading: Reading) -> tuple[str | None, str | None, list[str]]:
    """The columns of labels, clients and features, from options or by default."""
    classes = [name for name, column in columns.items() if column.kind == "ClassLabel"]
    label = classes[0] if len(classes) == 1 else "label" if "label" in columns else None
    if reading.label_column is not None:
        label = _require_column(where, columns, reading.label_column, "label_column")
    client = None
    if reading.client_column is not None:
        client = _require_column(where, columns, reading.client_column, "client_column")
    features = [name for name in columns if name not in (label, client)]
    if reading.feature_columns is not None:
        features = [
            _require_column(where, columns, name, "feature_columns") for name in reading.feature_columns.split(",")
        ]
        if both := [name for name in features if name in (label, client) or features.count(name) > 1]:
            raise errors.refuse("feature_columns", both[0], "other columns than labels and clients, each once")
    if not features:
        got = f"columns {', '.join(columns)}"
        raise damage_error(where, got[:100], "a column of features besides labels and clients")
    return label, client, features


def _ids(where: str, column: Any) -> np.ndarray:
    """Clients: integers, or text."""
    _require_whole(where, column)
    if _is_text(column):
        return np.array([plain_name(check_id(where, name)) for name in column.to_pylist()], str)
    ids = _numbers_of(where, column)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise damage_error(where, f"{column.type}"[:60], "integers or text")
    return ids


def _targets(
    where: str, about: Column, columns: dict[str, Any], task: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Targets of every split, and the fields of the data set that follow from them."""
    where = f"{where}: {about.name}"

    def each(read: Callable[[Any], np.ndarray]) -> dict[str, np.ndarray]:
        return {name: read(column) for name, column in columns.items()}

    if task in ("binary", "regression") or (task == "multi_label" and not about.names):
        numbers = each(lambda column: _numbers_of(where, column))
        return {name: as_task(where, y, task) for name, y in numbers.items()}, {"task": task}
    if task not in (None, "multi_label" if about.kind == "List" else "classes"):
        raise errors.refuse("task", task, f"another for the column {about.name}, of {about.kind}")
    if about.kind == "ClassLabel":
        labels = each(lambda column: _numbers_of(where, column))
        for y in labels.values():
            if y.ndim != 1 or y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= len(about.names):
                got = f"{y.dtype} {y.shape}" if y.ndim != 1 or y.dtype.kind not in "iu" else f"{y.min()} to {y.max()}"
                wanted = f"0 to {len(about.names) - 1} of its {len(about.names)} names"
                raise damage_error(where, got, wanted, "-1 is a label that is missing: drop the record")
        named = {"classes": len(about.names), "class_names": about.names}
        return {name: y.astype(np.int32) for name, y in labels.items()}, named
    if about.names:
        marks = each(lambda column: _mark_classes(where, column, len(about.names)))
        return marks, {"task": "multi_label", "class_names": about.names}
    if all(_is_text(column) for column in columns.values()):
        for column in columns.values():
            _require_whole(where, column)
        words = np.array([plain_name(word) for column in columns.values() for word in column.to_pylist()])
        if empty := int((words == "").sum()):
            raise damage_error(where, f"{empty:,} empty words", "a label of every record", "drop the records")
        y, known, notes = number_labels(words)
        ends = np.cumsum([len(column) for column in columns.values()])[:-1]
        return dict(zip(columns, np.split(y, ends))), {"classes": len(known), "class_names": known, "notes": notes}
    numbers = each(lambda column: _numbers_of(where, column))
    if task is None and all(y.ndim == 1 and np.array_equal(y, np.floor(y)) for y in numbers.values()):
        floats = any(y.dtype.kind == "f" for y in numbers.values())
        numbers = {name: as_task(where, y, "classes") if floats else y for name, y in numbers.items()}
        notes = ["labels written as 1.0 are whole numbers"] * floats
        return numbers, {"classes": None if max(int(y.max()) for y in numbers.values()) else 2, "notes": notes}
    notes = [f"{about.name} is read as numbers: task regression; --task says another"] if task is None else []
    task = task or "regression"
    return {name: as_task(where, y, task) for name, y in numbers.items()}, {"task": task, "notes": notes}


def _mark_classes(where: str, column: Any, classes: int) -> np.ndarray:
    """Lists of classes as 0 and 1, `(records, classes)`."""
    _require_whole(where, column)
    marks = np.zeros((len(column), classes), np.uint8)
    for row, listed in zip(marks, column.to_pylist()):
        if not all(isinstance(one, int) and 0 <= one < classes for one in listed):
            raise damage_error(where, f"{listed}"[:60], f"lists of classes 0 to {classes - 1}")
        row[listed] = 1
    return marks


def _numbers(where: str, contents: list[tuple[Column, Any]]) -> np.ndarray:
    """Features `(records, ...)`: pictures, or the numbers of all columns side by side."""
    if [column.kind for column, _ in contents] == ["Image"]:
        column, cells = contents[0][0], contents[0][1].to_pylist()
        return decode(f"{where}: {column.name}", (c.get("bytes") if isinstance(c, dict) else None for c in cells))
    arrays = []
    for column, values in contents:
        if column.kind == "Image" or _is_text(values):
            got = ("pictures" if column.kind == "Image" else "text") + " among other features"
            raise damage_error(f"{where}: {column.name}", got, "numbers", "name the features with --feature-columns")
        arrays.append(_numbers_of(f"{where}: {column.name}", values))
    x = arrays[0]
    if len(arrays) > 1 or x.ndim == 1:
        x = np.concatenate([a.reshape(len(a), -1) for a in arrays], axis=1)
    with np.errstate(over="ignore"):  # infinity is refused later
        return x if x.dtype == np.uint8 else x.astype(np.float32)


def _require_whole(where: str, column: Any) -> None:
    """Refuse a column with missing values, also within its lists."""
    import pyarrow as pa
    import pyarrow.compute as pc

    inner = column
    while True:
        if inner.null_count:
            raise damage_error(
                where, f"nothing in {inner.null_count:,} places", "a value in every record", "drop the records"
            )
        if not _is_list(pa, inner.type):
            return
        inner = pc.list_flatten(inner)


def _numbers_of(where: str, column: Any) -> np.ndarray:
    """A column of numbers or of lists of them, all of one length, as `(records, ...)`; truth values are 0 and 1."""
    import pyarrow as pa
    import pyarrow.compute as pc

    _require_whole(where, column)
    shape: list[int] = [len(column)]
    while _is_list(pa, column.type):
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        if len(lengths) != 1:
            raise damage_error(where, f"lists of {sorted(lengths)[0]} and {sorted(lengths)[-1]}", "lists of one length")
        shape.append(lengths[0])
        column = pc.list_flatten(column)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())  # no bytes, which would be scaled
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise damage_error(where, f"{column.type}"[:60], "numbers, or lists of them")
    return column.to_numpy().reshape(shape)


def _is_text(column: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _is_list(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
