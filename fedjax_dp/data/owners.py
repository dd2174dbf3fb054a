"""Clients from a data set or a file, and the rows that each of them holds."""

import os
import pathlib
from typing import Any

import numpy as np

from fedjax_dp import errors, folders
from fedjax_dp.data.client_names import plain_name
from fedjax_dp.data.files import damage_error, numpy_reason
from fedjax_dp.data.json_files import list_of, object_of, read_json
from fedjax_dp.data.partition import group, natural, rows_by_owner
from fedjax_dp.data.store import Dataset
from fedjax_dp.data.targets import rows_of

KIND, REMEDY = "file of ids", "give text with an id in each line, an .npy array, or a .json of rows by client"


def natural_parts(dataset: Dataset, min_records: int = 1) -> tuple[Dataset, list[np.ndarray], np.ndarray | None]:
    """The data set's own clients, those with fewer training records than `min_records` left out.

    Returns the data set (without test records of clients that are left out), the rows of each client in increasing
    order of id, and for each test record its client, or None if the data set does not say.
    """
    errors.require_count("min_records", min_records)
    owners, sizes = np.unique(_ids_of(dataset, "natural"), return_inverse=True, return_counts=True)[1:]
    kept = sizes >= min_records
    if not kept.any():
        raise errors.refuse("min_records", min_records, f"at most {sizes.max()}, what the largest client has")
    remedy = "low enough that a client with test records is left"
    return _parts(dataset, owners, np.where(kept, np.cumsum(kept) - 1, -1), ("min_records", min_records, remedy))


def grouped_parts(
    dataset: Dataset, group_size: int, seed: int, remainder: str = "smaller"
) -> tuple[Dataset, list[np.ndarray], np.ndarray | None]:
    """The data set's own clients, joined by `grouped_natural`; returns the same as `natural_parts`."""
    owners, number = group(_ids_of(dataset, "grouped-natural"), group_size, seed, remainder)
    return _parts(dataset, owners, number, ("remainder", remainder, "one that leaves a client with test records"))


def _ids_of(dataset: Dataset, partition: str) -> np.ndarray:
    if dataset.client_ids is None:
        remedy = "name owners in it, or deal records: iid"
        raise errors.refuse("partition", partition, "used with a data set that has client_ids", remedy)
    natural(dataset.client_ids)  # refuses what are no ids
    return dataset.client_ids


def _parts(
    dataset: Dataset, owners: np.ndarray, number: np.ndarray, untested: tuple[str, Any, str]
) -> tuple[Dataset, list[np.ndarray], np.ndarray | None]:
    """Clients by the number of each distinct id, -1 for those left out; `owners` is each training record's id's place.

    untested  what, got, wanted, where no client with test records is left.
    """
    clients, test_ids = rows_by_owner(number[owners]), dataset.test_client_ids
    if test_ids is None:
        return dataset, clients, None
    names = np.unique(_ids_of(dataset, "natural"))
    known = np.isin(test_ids, names)
    if not known.any():
        raise errors.refuse("test_client_ids", repr(test_ids[0]), "ids of clients that have training records")
    if not known.all():
        return dataset, clients, None
    theirs = number[np.searchsorted(names, test_ids)]
    tested = theirs >= 0
    if not tested.any():
        raise errors.refuse(*untested)
    dataset = dataset._replace(
        x_test=dataset.x_test[tested], y_test=rows_of(dataset.y_test, tested), test_client_ids=test_ids[tested]
    )
    return dataset, clients, theirs[tested].astype(np.int32)


def file_parts(path: str | os.PathLike[str], records: int) -> dict[str, np.ndarray]:
    """The rows of each client by its name, of all `records`, from a file; `federate` takes them.

    .json  lists of rows by client, as other libraries' partitioners have them (`partition_id_to_indices`); clients in
           the order of their names, as numbers where all are; rows that are in no list are not used;
    .npy   an id for each record; or text, with an id in each line.
    """
    path = folders.require_file("client_ids", path, KIND, REMEDY)
    if path.suffix == ".json":
        return _read_lists(path, records)
    ids = _read_ids(path, records)
    return dict(zip(map(str, np.unique(ids).tolist()), natural(ids), strict=True))


def _read_lists(path: pathlib.Path, records: int) -> dict[str, np.ndarray]:
    """Check lists of rows: no row twice, none outside the records."""
    lists = object_of(str(path), read_json(path))
    if not lists:
        raise damage_error(path, "no client", "lists of rows, one for each client")
    numbered = all(len(name) < 20 and name.isdecimal() and name == str(int(name)) for name in lists)
    used, parts = np.zeros(records, bool), {}
    for name in sorted(lists, key=int if numbered else None):
        where = f"{path}: {name[:40]!r}"
        rows = list_of(where, lists[name], int, "row numbers")
        if not rows:
            raise damage_error(where, "no row", "at least one", "drop the client")
        for row in rows:
            if not 0 <= row < records:
                raise damage_error(where, f"row {row}"[:40], f"rows 0 to {records - 1} of {records:,} records")
            if used[row]:
                raise damage_error(where, f"row {row} again", "every row once, in all lists")
            used[row] = True
        parts[name] = np.array(rows)
    return parts


def _read_ids(path: pathlib.Path, records: int) -> np.ndarray:
    """An id for each record."""
    ids: np.ndarray
    if path.suffix == ".npy":
        try:
            with open(path, "rb") as file:
                ids = np.load(file, allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            reason = folders.reason(error) if isinstance(error, OSError) else numpy_reason(error)
            raise errors.refuse("client_ids", str(path), "an .npy array of numbers or text", reason) from None
    else:
        ids = np.array(folders.read_text("client_ids", path, KIND, REMEDY).split("\n"))
        ids = ids[:-1] if ids[-1] == "" else ids
    ids = np.array([*map(plain_name, ids)], str) if ids.dtype.kind in "US" and ids.ndim == 1 else ids
    if ids.shape != (records,):
        raise errors.refuse(f"client_ids of {path}", f"shape {ids.shape}", f"one id for each of the {records} records")
    if ids.dtype.kind not in "iuU":
        raise errors.refuse(f"client_ids of {path}", ids.dtype, "integers or text")
    if ids.dtype.kind == "U" and (ids == "").any():
        raise errors.refuse(f"client_ids of {path}", f"nothing in line {np.argmax(ids == '') + 1}", "one id a line")
    return ids
