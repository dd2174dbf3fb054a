"""HDF5 files of TensorFlow Federated: a group `examples` with a group for each client, with an array for each field.

Memory: one field of one client at a time; the file is not held. Nothing outside the file is opened: links, external
storage, virtual data sets, and filters that need another library are refused.
"""

import contextlib
import mmap
import pathlib
from collections.abc import Iterator
from typing import Any

from fedjax_dp import errors
from fedjax_dp.data.files import EXPANSION, check_growth, check_id, damage_error, readable

MAGIC = b"\x89HDF\r\n\x1a\n"
HEAP = b"GCOL\1\0\0\0"  # begins a collection of texts
FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 4: "szip", 32000: "lzf"}  # numbers of HDF5's registry
GROUP = "examples"


@contextlib.contextmanager
def open_file(path: pathlib.Path) -> Iterator[Any]:
    """The group of clients.

    Raises: ConfigurationError for any other file, also within the block.
    """
    errors.require_installed("h5py", "hdf5", f"to read {path.name}")
    import h5py

    _check_heaps(path)
    kinds = (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError)  # h5py's errors for damaged files
    with readable(path, "a readable HDF5 file", kinds), h5py.File(path, "r") as file:
        yield _child(str(path), file, GROUP, h5py.Group, "a group")


def _check_heaps(path: pathlib.Path) -> None:
    """Refuse collections with a text of length zero, on which HDF5 loops for ever.

    Source: HDF5 File Format Specification, version 3.0, sections II and III.E (sizes of a superblock; global heap).
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        sizes = 13 if content[8:9] in (b"\0", b"\1") else 9  # the place of the sizes of an address and of a length
        if content[sizes : sizes + 2] != b"\x08\x08":
            raise damage_error(path, f"{content[sizes : sizes + 2]!r}", "HDF5 with addresses and lengths of 8 bytes")
        begin = content.find(HEAP)
        while begin >= 0:
            at, end = begin + 16, begin + int.from_bytes(content[begin + 8 : begin + 16], "little")
            while at + 16 <= end <= len(content):
                size = int.from_bytes(content[at + 8 : at + 16], "little")
                step = 16 + -(-size // 8) * 8 if any(content[at : at + 2]) else size  # free space counts its own header
                if not 0 < step <= end - at:
                    raise damage_error(path, f"a text of {size:,} bytes where {end - at:,} are", "a readable HDF5 file")
                at += step
            begin = content.find(HEAP, begin + len(HEAP))


def clients_of(path: pathlib.Path, group: Any) -> list[str]:
    """Names of the clients, sorted as text."""
    return sorted(check_id(f"{path}: {GROUP}", name) for name in group)


def fields_of(path: pathlib.Path, group: Any, client: str) -> dict[str, Any]:
    """A client's arrays by field, not yet read; refuses anything else, and arrays outside the file."""
    import h5py

    where = f"{path}: {client!r}"
    content = _child(f"{path}: {GROUP}", group, client, h5py.Group, "a group of arrays")
    arrays = {name: _child(where, content, name, h5py.Dataset, "an array") for name in sorted(content)}
    for name, array in arrays.items():
        plan = array.id.get_create_plist()
        if array.is_virtual or plan.get_external_count():
            kind = "virtual: it is in another file" if array.is_virtual else "in an external file"
            raise damage_error(f"{where}: {name}", kind, "an array in the file itself")
        filters = [plan.get_filter(number)[0] for number in range(plan.get_nfilters())]
        if strange := [number for number in filters if number not in FILTERS]:
            known = ", ".join(FILTERS.values())
            raise damage_error(f"{where}: {name}", f"packed by filter {strange[0]}", f"packed by {known} or not")
        if array.shape is None or not array.shape or not array.shape[0]:
            raise damage_error(f"{where}: {name}", f"shape {array.shape}", "a row for each record, at least one")
        check_growth(f"{where}: {name}", array.id.get_storage_size(), array.size * array.dtype.itemsize)
    if len({array.shape[0] for array in arrays.values()}) > 1:
        counts = ", ".join(f"{name} {array.shape[0]}" for name, array in arrays.items())
        raise damage_error(where, f"records of {counts}", "as many records in every field")
    return arrays


def texts(where: str, array: Any, stored: int) -> list[bytes]:
    """One text for each record, read in blocks, because many rows may share one text."""
    import h5py

    if array.ndim != 1 or h5py.check_string_dtype(array.dtype) is None:
        raise damage_error(where, f"{array.dtype} {array.shape}", "text, one for each record")
    result: list[bytes] = []
    for at in range(0, len(array), EXPANSION):
        result += map(bytes, array[at : at + EXPANSION])
        check_growth(where, stored, sum(map(len, result[at:])))
    return result


def _child(where: str, group: Any, name: str, kind: type, wanted: str) -> Any:
    """The member of a group with this name, which must be in the file itself."""
    import h5py

    links, key = group.id.links, name.encode()  # reading the group would follow the link
    if not links.exists(key) or links.get_info(key).type != h5py.h5l.TYPE_HARD:
        got = "a link to another place or file" if links.exists(key) else "nothing"
        raise damage_error(f"{where}: {name}", got, f"{wanted}, in the file itself")
    child = group[name]
    if not isinstance(child, kind):
        raise damage_error(f"{where}: {name}", "something else", wanted)
    return child
