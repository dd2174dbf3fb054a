"""Clients that are given: by the data set's own ids, or by ids in a file."""

import os
import pathlib

import numpy as np

from fedjax_dp import errors
from fedjax_dp.arguments import checks_arguments
from fedjax_dp.data.partition import natural
from fedjax_dp.data.store import Dataset
from fedjax_dp.data.targets import rows_of


@checks_arguments
def natural_parts(dataset: Dataset, min_records: int = 1) -> tuple[Dataset, list[np.ndarray], np.ndarray | None]:
    """The data set's own clients, those with fewer training records than `min_records` left out.

    Returns the data set (without test records of clients that are left out), the rows of each client in increasing
    order of id, and for each test record its client, or None if the data set does not say.
    """
    ids, test_ids = dataset.client_ids, dataset.test_client_ids
    if ids is None:
        raise errors.refuse(
            "partition",
            "natural",
            "used with a data set that has client_ids",
            "name owners in it, or deal records: iid",
        )
    errors.require_count("min_records", min_records)
    names, clients = np.unique(ids), natural(ids)
    kept = np.array([len(rows) >= min_records for rows in clients])
    if not kept.any():
        largest = max(map(len, clients))
        raise errors.refuse("min_records", min_records, f"at most {largest}, what the largest client has")
    clients = [rows for rows, keep in zip(clients, kept) if keep]
    if test_ids is None:
        return dataset, clients, None
    if not np.isin(test_ids, names).all():
        stranger = test_ids[~np.isin(test_ids, names)][0]
        raise errors.refuse("test_client_ids", repr(stranger), "ids of clients that have training records")
    tested = np.isin(test_ids, names[kept])
    if not tested.any():
        raise errors.refuse("min_records", min_records, "low enough that a client with test records is left")
    dataset = dataset._replace(
        x_test=dataset.x_test[tested], y_test=rows_of(dataset.y_test, tested), test_client_ids=test_ids[tested]
    )
    return dataset, clients, np.searchsorted(names[kept], test_ids[tested]).astype(np.int32)


@checks_arguments
def given_ids(path: str | os.PathLike[str], records: int) -> np.ndarray:
    """Client ids of all `records`, from an .npy file or from a text file with one id in each line."""
    path = pathlib.Path(path)
    if not path.is_file():
        raise errors.refuse("client_ids", str(path), "an existing file", "an .npy array, or one id in each line")
    ids: np.ndarray
    try:
        if path.suffix == ".npy":
            with open(path, "rb") as file:
                ids = np.load(file, allow_pickle=False)
        else:
            ids = np.array(path.read_text(encoding="utf-8").split("\n"))
            ids = np.char.strip(ids[:-1] if ids[-1] == "" else ids)
    except (ValueError, OSError, EOFError) as error:
        reason = " ".join(str(error).split())
        raise errors.refuse("client_ids", str(path), "an .npy array without pickles or a text file", reason) from None
    if ids.shape != (records,):
        raise errors.refuse(f"client_ids of {path}", f"shape {ids.shape}", f"one id for each of the {records} records")
    if ids.dtype.kind not in "iuU":
        raise errors.refuse(f"client_ids of {path}", ids.dtype, "integers or text")
    if ids.dtype.kind == "U" and (ids == "").any():
        raise errors.refuse(f"client_ids of {path}", f"nothing in line {np.argmax(ids == '') + 1}", "one id a line")
    return ids
