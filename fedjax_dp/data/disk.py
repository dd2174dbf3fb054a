"""Federated data in a folder: memory-mapped Arrow files, so that opening them reads nothing.

records.arrow  x, a list of one record's numbers, and y, its target (also a list if several): the records of client 0,
               then of client 1, ...
clients.arrow  sizes and shares of the clients, and their names, if any
test.arrow     x and y of the test set, and the client of each test record, if known
store.json     all other facts, and the version of this layout

Each file is one record batch, so that a column is one array. Any program that reads Arrow can read them.
"""

import contextlib
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from fedjax_dp import errors, folders
from fedjax_dp.accounting.neighbours import Unit
from fedjax_dp.data.client_names import ClientNames, as_client_names
from fedjax_dp.data.store import COPIED, FederatedData, UnitBound
from fedjax_dp.data.targets import TARGETS, Vocabulary, check_vocabulary, vocabulary_of

ABOUT = ("name", "task", "classes", "largest", "tokens", "learnt", "scale", "shift")
REMEDY = "write it again with fedjax-dp data convert"
STORE_FOLDER = folders.FolderKind(
    name="store",
    manifest="store.json",
    fields=dict.fromkeys((*ABOUT, "vocabulary"), object)
    | {"record_shape": list, "target_shape": list, "clients": int, "records": int, "test_records": int}
    | {"checksum": str},
    beginning=(folders.DRAFT,),
    format=("version", 3),
    remedy="fedjax-dp data convert writes one",
    renewal=REMEDY,
)
Show = Callable[[float, str], None]


def save_store(data: FederatedData, folder: str | os.PathLike[str], show: Show = lambda done, words: None) -> None:
    """Write federated data into a new folder, which is a store only when it is complete.

    Raises: ConfigurationError if the folder is not empty or cannot be made; errors.StorageError if the disk is full.
    """
    folder = pathlib.Path(folder)
    draft = folder / folders.DRAFT
    check_place(folder)
    if not hasattr(data.y, "dtype"):
        wanted = "one array, for which a store has a column"
        raise errors.refuse("targets", "several arrays", wanted, "keep them in memory")
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(folders.lock_folder("out", folder))
        check_place(folder)  # another process may have just written it
        folders.clear(folder)  # the rest of a killed process
        stack.enter_context(folders.storage_errors(folder, "make room, or give another --out"))
        stack.enter_context(folders.create_folder(folder))
        draft.mkdir()
        records = _records(data, draft, show)
        _write(draft / "records.arrow", records)
        del records
        (draft / "x").unlink()
        clients = {"sizes": np.asarray(data.sizes), "shares": np.asarray(data.shares)}
        if data.names is not None:
            clients["names"] = np.array(data.names.listed)
        _write(draft / "clients.arrow", clients)
        test = {"x": np.asarray(data.x_test), "y": np.asarray(data.y_test)}
        if data.test_clients is not None:
            test["clients"] = np.asarray(data.test_clients)
        _write(draft / "test.arrow", test)
        plain = {name: np.asarray(getattr(data, name)).tolist() for name in ABOUT}
        manifest = {
            **plain,
            "overlap": data.overlap,
            "mixed_tests": data.mixed_tests,
            "class_names": None if data.class_names is None else data.class_names.listed,
            "bounds": [[bound.unit.value, bound.records, bound.clients] for bound in data.bounds],
            "vocabulary": None if data.vocabulary is None else data.vocabulary._asdict(),
            "record_shape": data.record_shape,
            "target_shape": data.y.shape[1:],
            "clients": data.num_clients,
            "records": int(np.sum(data.sizes)),
            "test_records": len(test["x"]),
            "checksum": data.checksum,
        }
        STORE_FOLDER.write(draft, manifest)
        lock.require_own()
        for name in (*(path.name for path in draft.glob("*.arrow")), STORE_FOLDER.manifest):  # which makes it a store
            os.replace(draft / name, folder / name)
        draft.rmdir()


def check_place(folder: str | os.PathLike[str]) -> None:
    """Refuse a place where no store can be written."""
    STORE_FOLDER.require_new("out", pathlib.Path(folder), "give another --out")
    folders.require_writable("out", pathlib.Path(folder))


def open_store(folder: str | os.PathLike[str]) -> FederatedData:
    """The federated data of a folder from `save_store`; records stay on disk until they are used.

    Raises: ConfigurationError for a folder that is no store, of another version, or damaged.
    """
    folder = pathlib.Path(folder)
    manifest = STORE_FOLDER.read(folder)
    shape = tuple(manifest["record_shape"])
    records, clients, test = (_read(folder / f"{name}.arrow") for name in ("records", "clients", "test"))
    aims, vocabulary = tuple(manifest["target_shape"]), _vocabulary(folder, manifest)
    y, y_test = (columns["y"].reshape(-1, *aims) for columns in (records, test))
    counted = {"records": len(y), "clients": len(clients["sizes"]), "test_records": len(y_test)}
    for name, count in counted.items():
        if count != manifest[name]:
            raise errors.refuse(f"{folder}: {name}", f"{count:,}", f"{manifest[name]:,}, as in store.json", REMEDY)
    sizes = clients["sizes"]
    ends = np.cumsum(sizes, dtype=np.int64)
    if sizes.min() < 1 or ends[-1] != manifest["records"] or sizes.max() != manifest["largest"]:
        raise errors.refuse(f"{folder}: sizes of clients", "others", "those that store.json counts", REMEDY)
    arrays: dict[str, Any] = {
        "x": records["x"].reshape(-1, *shape),
        "y": y,
        "rows": None,
        "offsets": ends - sizes,
        "sizes": sizes,
        "shares": clients["shares"],
        "x_test": test["x"].reshape(-1, *shape),
        "y_test": y_test,
        "test_clients": test.get("clients"),
    }
    plain = {name: manifest[name] for name in ABOUT} | {"learnt": tuple(manifest["learnt"]), "vocabulary": vocabulary}
    names = ClientNames(clients["names"]) if "names" in clients else None
    smallest = int(sizes.min())
    bounds = tuple(UnitBound(Unit(unit), *most) for unit, *most in manifest.get("bounds", ()))
    labels = manifest.get("class_names")
    class_names = None if labels is None else as_client_names(labels)
    rest = {"class_names": class_names, "overlap": manifest.get("overlap", ""), "bounds": bounds, "names": names}
    rest |= {"mixed_tests": manifest.get("mixed_tests", False)}
    return FederatedData(**arrays, **plain, smallest=smallest, **rest)


def noted_checksum(folder: str | os.PathLike[str]) -> str:
    """The checksum of a store's records, noted at their writing; reads no record."""
    return STORE_FOLDER.read(pathlib.Path(folder))["checksum"]


def _vocabulary(folder: pathlib.Path, manifest: dict[str, Any]) -> Vocabulary | None:
    """The vocabulary of a store of sequences."""
    errors.require_choice(f"{folder}: task", manifest["task"], TARGETS)
    try:
        vocabulary = vocabulary_of(manifest["vocabulary"])
    except (TypeError, KeyError) as error:
        raise errors.refuse(f"{folder}: vocabulary", "something else", "one that was written", str(error)) from None
    return vocabulary if vocabulary is None else check_vocabulary(f"{folder}: vocabulary", vocabulary)


def _records(data: FederatedData, folder: pathlib.Path, show: Show) -> dict[str, np.ndarray]:
    """All records in client order; features go through a file, as memory may not hold them twice."""
    order, x, y = data.in_client_order, np.asarray(data.x), np.asarray(data.y)
    with open(folder / "x", "wb") as file:  # written, not mapped: where the disk is full a map ends in a signal
        for at in range(0, len(order), COPIED):
            file.write(np.ascontiguousarray(x[order[at : at + COPIED]]).data)
            show(min(1.0, (at + COPIED) / len(order)), f"{min(at + COPIED, len(order)):,} of {len(order):,} records")
    x_on_disk = np.memmap(folder / "x", x.dtype, mode="r", shape=(len(order), *x.shape[1:]))
    return {"x": x_on_disk, "y": y[order]}


def _write(path: pathlib.Path, columns: dict[str, np.ndarray]) -> None:
    errors.require_installed("pyarrow", "tables", "to write stores")
    import pyarrow as pa

    arrays = [  # rows of numbers as lists of a fixed length, not copied
        pa.array(a) if a.ndim == 1 else pa.FixedSizeListArray.from_arrays(pa.array(a.reshape(-1)), a[0].size)
        for a in columns.values()
    ]
    batch = pa.record_batch(arrays, names=list(columns))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The columns of a file, mapped; lists become rows end to end."""
    errors.require_installed("pyarrow", "tables", "to read stores")
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            batch = reader.get_batch(0)
    except (OSError, pa.ArrowInvalid, IndexError) as error:
        reason = str(error).splitlines()[0][:120]
        raise errors.refuse(
            str(path), "damaged or missing", "an Arrow file of one batch", f"{REMEDY} ({reason})"
        ) from None
    columns = {}
    for name in batch.schema.names:
        column = batch.column(name)
        if pa.types.is_string(column.type):
            column.validate(full=True)
            columns[name] = np.array(column.to_pylist(), str)
            continue
        values = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
        bits = pa.types.is_boolean(values.type)  # eight in a byte: no map of an array
        columns[name] = values.to_numpy(zero_copy_only=not bits)
    return columns
