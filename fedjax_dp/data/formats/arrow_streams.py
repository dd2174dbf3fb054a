"""Arrow IPC streams and Parquet files of plain columns.

Memory: streams are mapped; a column costs memory once it is made numbers.
"""

import binascii
import pathlib
import re
from typing import Any

import numpy as np

from fedjax_dp import errors, folders
from fedjax_dp.data.files import check_file, check_growth, damaged, readable

END = b"\xff\xff\xff\xff" + bytes(4)  # of a stream; without it pyarrow takes one that is cut short for a whole one
EXTENSION = b"ARROW:extension:name"  # stands as it is in a schema that has one; some libraries unpickle theirs


def read_stream(path: pathlib.Path) -> Any:
    """The table of a stream's record batches, all looked at: offsets lie within their buffers.

    Raises: ConfigurationError for what is no stream, or cut short, or has extension types.
    """
    errors.require_installed("pyarrow", "tables", f"to read {path.name}")
    import pyarrow as pa

    size, wanted = check_file("Arrow", path), "an Arrow stream, as save_to_disk writes it"
    kinds = (pa.ArrowException, OSError, MemoryError, ValueError, EOFError)
    with readable(path, wanted, kinds), pa.memory_map(str(path)) as source:
        if EXTENSION in pa.ipc.read_message(source).metadata.to_pybytes():  # the schema, before its types are made
            raise damaged(path, "a column of an extension type", "an Arrow stream of plain types")
        source.seek(max(0, size - len(END)))
        if source.read() != END:
            raise damaged(path, "an end within the stream", wanted)
        source.seek(0)
        with pa.ipc.open_stream(source) as reader:
            batches, read = [], 0
            for batch in reader:
                batch.validate(full=True)
                read += batch.nbytes
                check_growth(path, size, read)  # bodies may be packed
                batches.append(batch)
            if len(set(reader.schema.names)) < len(reader.schema.names):
                raise damaged(path, "two columns of one name", "columns of different names")
            return pa.Table.from_batches(batches, reader.schema)


def read_parquet(path: pathlib.Path) -> Any:
    """The table of a Parquet file, as pandas has it."""
    for package in ("pyarrow", "pandas"):
        errors.require_installed(package, "tables", f"to read {path.name}")
    import pyarrow.parquet

    size = check_file("parquet", path)
    if _extended(path, size):
        raise damaged(path, "a column of an extension type", "a Parquet file of plain types")
    try:
        file = pyarrow.parquet.ParquetFile(path)
        about = file.metadata
        check_growth(path, size, sum(about.row_group(at).total_byte_size for at in range(about.num_row_groups)))
        table = file.read()
        table.validate(full=True)  # text is text
        return table.to_pandas()
    except errors.ConfigurationError:
        raise
    except Exception as error:  # pandas and pyarrow have many, without a common base
        raise damaged(path, "something else", "a readable parquet file", folders.reason(error)[:120]) from None


def _extended(path: pathlib.Path, size: int) -> bool:
    """Whether the footer holds a schema of Arrow, packed as base64, that names an extension type.

    Any other way of asking would make the schema, and its types, already.
    """
    with open(path, "rb") as file:
        file.seek(max(0, size - 8))
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(0, size - 8 - length))
        footer = file.read(length)
    packed = (run[at:] for run in re.findall(rb"[A-Za-z0-9+/]{24,}", footer) for at in range(4))
    return any(EXTENSION in binascii.a2b_base64(part[: len(part) // 4 * 4]) for part in packed)


def require_whole(where: str, column: Any) -> None:
    """Refuse a column in which something is missing, also within its lists."""
    import pyarrow as pa

    inner = column
    while True:
        if inner.null_count:
            raise damaged(where, f"nothing in {inner.null_count:,} places", "given in every record", "drop the records")
        if not _is_list(pa, inner.type):
            return
        inner = flattened(inner)


def flattened(column: Any) -> Any:
    """The values of a column of lists, end to end."""
    import pyarrow.compute as pc

    return pc.list_flatten(column)


def numbers_of(where: str, column: Any) -> np.ndarray:
    """A column of numbers or of lists of them, all of one length, as `(records, ...)`; truth values are 0 and 1."""
    import pyarrow as pa
    import pyarrow.compute as pc

    require_whole(where, column)
    shape: list[int] = [len(column)]
    while _is_list(pa, column.type):
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        if len(lengths) != 1:
            raise damaged(where, f"lists of {sorted(lengths)[0]} and {sorted(lengths)[-1]}", "lists of one length")
        shape.append(lengths[0])
        column = flattened(column)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise damaged(where, f"{column.type}"[:60], "numbers, or lists of them")
    return column.to_numpy().reshape(shape)


def is_text(column: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _is_list(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
