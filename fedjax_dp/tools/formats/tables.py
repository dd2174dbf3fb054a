"""Tables in CSV and Parquet files: with a column of clients, or with one file for each client."""

import binascii
import collections
import csv
import functools
import glob
import io
import os
import pathlib
import re
import warnings
from collections.abc import Collection
from typing import Any

from fedjax_dp import errors, folders
from fedjax_dp.accounting.neighbours import Unit
from fedjax_dp.data.client_names import plain_name
from fedjax_dp.data.files import ARROW_EXTENSION, check_file, check_growth, check_id, damage_error, no_text, unpack
from fedjax_dp.data.reading import COLUMNS, CSV, TABLES, TEXT, USERS, Reading
from fedjax_dp.data.store import Dataset, UnitBound
from fedjax_dp.tools.formats.columns import (
    LABEL,
    Columns,
    ColumnTable,
    from_tables,
    from_texts,
    holds_numbers,
    missing_in,
)

PACKED = (".gz", ".bz2", ".xz", ".zip")  # compressed CSV files
ENDINGS = {"csv": (".csv", *(f".csv{packed}" for packed in PACKED)), "parquet": (".parquet",)}
SEPARATORS = ",;\t|"
SHOWN = 5  # files in a line
DECIMAL_COMMA = r"[-+]?\d+(,\d+)?"  # of a column that also holds other text
UNKNOWN = ("?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")  # never names of columns
VALUE = re.compile(  # a number, or a date
    r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|\d{1,4}([-/.])\d{1,2}\3\d{1,4}([ T][\d:.+Z-]*)?"
)
STATED = ("column", "mean", "std")  # the columns of a public file of constants


def _from_files(kind: str, named: str, reading: Reading) -> Dataset:
    """The data set of CSV or Parquet files: columns of numbers, or one of texts, and one or more of labels.

    Clients are the values of the client column; without one, each of several files is a client.
    named  a file, several separated by commas, a pattern such as `hospital_*.csv`, or a folder.
    """
    paths, bounds = _files_of(kind, named), _bounds(reading)
    columns = _columns(kind, paths, reading)
    frames = [_read(path, kind, columns, reading.no_header) for path in paths]
    owners: list[str | None] = [None] * len(paths)
    if is_several(named) and reading.client_column is None:
        owners = [*_names_of(paths)]
    elif reading.client_column is not None:
        _check_apart(paths, frames, columns)
        if kind == "csv":
            _number(frames, reading.client_column)
    tables = [ColumnTable(f"{path.name}: ", frame, owner) for path, frame, owner in zip(paths, frames, owners)]
    where = paths[0].name if len(paths) == 1 else folders.printable(named)
    about: dict[str, Any] = {"bounds": bounds}
    if any(getattr(reading, option) is not None for option in TEXT):
        of_texts = {*COLUMNS, *TABLES, *CSV, *TEXT}.difference(("record_shape", "standardise", "categories"))
        reading.require_meant(of_texts, "a column of texts")
        about["texts"] = reading
    elif reading.record_shape is not None:
        about["record_shape"] = reading.record_shape
    dataset = from_tables(_name_of(named, paths), where, tables, columns, **about)
    return dataset._replace(notes=(*dataset.notes, *_note_others(named, paths)))


from_csv, from_parquet = functools.partial(_from_files, "csv"), functools.partial(_from_files, "parquet")


def is_several(named: str) -> bool:
    """Whether the files are clients: not one file, but a list, a pattern or a folder."""
    return not os.path.isfile(named) and (os.path.isdir(named) or "," in named or glob.has_magic(named))


def _files_of(kind: str, named: str) -> list[pathlib.Path]:
    """The files in the order of the list; those of a pattern or a folder are sorted by name.

    Raises: ConfigurationError if there is none, or one twice.
    """
    if not is_several(named):
        return [pathlib.Path(named)]
    names = []
    for word in [named] if os.path.isdir(named) else named.split(","):
        if os.path.isdir(word):
            entries = [entry for entry in os.scandir(word) if not entry.name.startswith(".")]  # as patterns have it
            inside = sorted(entry.path for entry in entries if entry.name.lower().endswith(ENDINGS[kind]))
            if not inside:
                wanted = f"a folder with files that end in {' or '.join(ENDINGS[kind][:2])}"
                raise errors.refuse(folders.printable(word), "no table in it", wanted, "name the folder of the files")
            names += inside
        elif glob.has_magic(word) and not os.path.isfile(word):
            matches = sorted(glob.glob(word))
            if not matches:
                raise errors.refuse(
                    "files", folders.printable(word), "existing ones", folders.where_looked(pathlib.Path(word))
                )
            names += matches
        else:
            names.append(word)
    paths = [pathlib.Path(name) for name in names]
    real_paths: set[str] = set()
    for path in paths:
        real = os.path.realpath(path)
        if real in real_paths:
            raise errors.refuse("files", f"{path.name} twice", "different ones", "name each once")
        real_paths.add(real)
    return paths


def _note_others(named: str, paths: list[pathlib.Path]) -> list[str]:
    """The note on files of a named folder that are not read, which may be clients too."""
    inside = [entry for word in named.split(",") if os.path.isdir(word) for entry in os.scandir(word)]
    unread = (entry.name for entry in inside if pathlib.Path(entry.path) not in paths)
    others = sorted(name for name in unread if not name.startswith("."))
    shown = ", ".join(map(folders.printable, others[:SHOWN])) + ", ..." * (len(others) > SHOWN)
    return [f"warning: not read in the folder: {shown}; a pattern, 'FOLDER/*', names them"] if others else []


def _stem_of(path: pathlib.Path) -> str:
    """The name of a file without its endings."""
    name = path.name
    for ending in (*ENDINGS["csv"], *ENDINGS["parquet"]):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return path.stem


def _name_of(named: str, paths: list[pathlib.Path]) -> str:
    """The name of the data set: of the folder, of the file, or the common beginning of the files' names."""
    if not is_several(named):
        return _stem_of(paths[0])
    if os.path.isdir(named):
        return pathlib.Path(named).absolute().name
    stems = [_stem_of(path) for path in paths]
    shared = next((at for at, letters in enumerate(zip(*stems)) if len(set(letters)) > 1), min(map(len, stems)))
    return stems[0][:shared].rstrip("_- .") or "tables"


def _bounds(reading: Reading) -> tuple[UnitBound, ...]:
    """The bounds on each user's records; refuses ids without a bound, and a bound without ids."""
    if all(getattr(reading, name) is None for name in USERS):
        return ()
    errors.require_given("user_column", reading.user_column, "a bound belongs to it")
    remedy = "records_per_user 10 keeps ten of each user; without a bound nothing is known"
    records = errors.require_given("records_per_user", reading.records_per_user, remedy)
    clients = 1 if reading.clients_per_user is None else reading.clients_per_user
    errors.require_count("records_per_user", records)
    errors.require_count("clients_per_user", clients)
    return (UnitBound(Unit.USER, records, clients),)


def _columns(kind: str, paths: list[pathlib.Path], reading: Reading) -> Columns:
    """The roles of columns from options; public constants are read from their file."""
    columns = Columns(
        label=reading.label_column or LABEL,
        client=reading.client_column,
        user=reading.user_column,
        split=reading.split_column,
        features=None if reading.feature_columns is None else reading.feature_columns.split(","),
        task=reading.task or "classes",
        **from_texts({name: getattr(reading, name) for name in ("drop", "categories", "fill", "missing")}),
    )
    how = reading.standardise
    if how is not None and how.endswith((".csv", ".parquet")):
        path = pathlib.Path(how)
        if path.exists() and any(other.exists() and path.samefile(other) for other in paths):
            remedy = "records computes constants of the training records, and says so"
            raise errors.refuse("standardise", path.name, "a public file, not the records", remedy)
        frame = _read(path, path.suffix[1:], columns._replace(client=None), reading.no_header)
        if set(frame.columns) == set(STATED):
            frame = {row.column: (row.mean, row.std) for row in frame.itertuples()}
        return columns._replace(standardise=frame, source=path.name)
    return columns._replace(**from_texts({"standardise": how}))


def _names_of(paths: list[pathlib.Path]) -> list[str]:
    """Names of clients from the names of their files."""
    names: dict[str, pathlib.Path] = {}
    for path in paths:
        name = check_id(path.name, _stem_of(path))
        if name in names:
            raise errors.refuse(
                "names of files", f"{names[name]} and {path}", "different, as clients are", "rename one"
            )
        names[name] = path
    return list(names)


def _check_apart(paths: list[pathlib.Path], frames: list[Any], columns: Columns) -> None:
    """Refuse a client in two files; `from_tables` refuses a file without the column."""
    first_file: dict[Any, pathlib.Path] = {}
    client = columns.client
    for path, frame in zip(paths, frames):
        ids = frame[client] if client in frame.columns and len(paths) > 1 else None
        for owner in () if ids is None else dict.fromkeys(map(plain_name, ids[~missing_in(ids, columns, str(client))])):
            if owner in first_file:
                got = f"{owner} in {first_file[owner].name} and {path.name}"
                raise errors.refuse("clients", got[:120], "each in one file", "name them apart, or join the files")
            first_file[owner] = path


def _number(frames: list[Any], client: str) -> None:
    """Turn ids of clients into numbers if all of them are whole numbers."""
    ids = [frame[client] for frame in frames if client in frame.columns]
    if not any(column.isna().any() for column in ids) and all(_is_whole(word) for column in ids for word in column):
        for frame in frames:
            if client in frame.columns:
                frame[client] = frame[client].astype("int64")


def _read(path: pathlib.Path, kind: str, columns: Columns, no_header: bool | None) -> Any:
    return _read_csv(path, columns, no_header) if kind == "csv" else _read_parquet(path)


def _read_csv(path: pathlib.Path, columns: Columns, no_header: bool | None) -> Any:
    """The table; clients and categories stay text: 007 is another client than 7, and NA may be a category."""
    errors.require_installed("pandas", "tables", f"to read {path.name}")
    import pandas as pd  # slow to import, and only needed here

    check_file("csv", path)
    if path.suffix in (".tar", ".tgz", ".zst", ".7z", ".rar", ".Z"):
        raise damage_error(path, f"packed as {path.suffix}", f"a csv file, perhaps in {', '.join(PACKED)}", "unpack it")
    if path.suffix.lower() == ".arff":
        remedy = f"sed '1,/^@data/Id' {path.name} > {path.stem}.csv leaves its records, which --no-header reads"
        raise damage_error(path, "an ARFF file", "a csv file", remedy)
    packed = io.BytesIO(unpack("csv", path)) if path.suffix.lower() in PACKED else None
    with open(path, "rb") as file:
        beginning = packed.getvalue()[:4096] if packed else file.read(4096)

    def source() -> Any:
        return path if packed is None else io.BytesIO(packed.getvalue())

    how: dict[str, Any] = {"compression": None, "encoding": "utf-8", "skipinitialspace": True}

    def first_line(separator: str) -> Any:
        lines = pd.read_csv(source(), header=None, nrows=1, dtype=str, keep_default_na=False, sep=separator, **how)
        return lines.iloc[0]

    separator = ","
    try:
        header = first_line(separator)
        if len(header) == 1:  # without commas, another mark may separate fields
            separator = max(SEPARATORS, key=lambda mark: len(first_line(mark)))
            header = first_line(separator)
        how["sep"] = separator
        named = not no_header or set(header) == set(STATED)
        places: dict[str, int] = {} if named else {f"c{place}": place for place in range(len(header))}
        how |= {"index_col": False} | ({} if named else {"header": None})  # no field is the name of a row
        text_columns = {places.get(name, name): str for name in (columns.client, columns.user) if name is not None}
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(source(), low_memory=False, dtype=text_columns, **how)
        words = {places.get(name, name): categories for name, categories in columns.categories.items()}
        if words := {name: categories for name, categories in words.items() if name in frame.columns}:
            text = pd.read_csv(source(), usecols=[*words], dtype=str, keep_default_na=False, **how)
            for name, categories in words.items():
                frame[name] = text[name].where(frame[name].notna() | text[name].isin(categories))
        _check_line_breaks(path, source(), frame, text_columns, separator)
        for name in [name for name in text_columns if name in frame.columns]:
            frame[name] = frame[name].map(plain_name, na_action="ignore")
        if places:
            frame.columns = [*places]
    except errors.ConfigurationError:
        raise
    except UnicodeDecodeError:
        raise no_text(path, beginning) from None
    except pd.errors.ParserWarning:
        got, remedy = "rows of more fields than that", "name every column in the first line"
        raise damage_error(path, got, f"records of {len(header)} fields, as the first line", remedy) from None
    except Exception as error:  # pandas has many types without a common base
        reason = " ".join(str(error).split())[:120]
        raise damage_error(path, "something else", "a readable csv file", reason) from None
    for column in frame.columns.difference([*text_columns, *words, *columns.drop]) if separator != "," else ():
        values = frame[column].dropna()
        if len(values) and not holds_numbers(values) and values.astype(str).str.fullmatch(DECIMAL_COMMA).all():
            read = f"pandas.read_csv({path.name!r}, sep={separator!r}, decimal=',')"
            remedy = f"{read}.to_csv({'points_' + _stem_of(path) + '.csv'!r}, index=False) writes one"
            where = f"{path}: column {str(column)[:40]}"
            raise damage_error(where, f"commas in numbers such as {values.iloc[0]}", "decimal points", remedy)
    if no_header is not False:
        _check_first_line(path, [*map(str.strip, header)], frame, columns, named)
    again = header[header.duplicated() & (header != "")]
    if named and len(again):  # pandas would rename it, and it would become a feature
        raise damage_error(
            f"{path}: columns", f"{again.iloc[0][:40]} twice", "of different names", "drop or rename one"
        )
    return frame


def _check_line_breaks(path: pathlib.Path, source: Any, frame: Any, names: Collection[Any], separator: str) -> None:
    """Refuse quotation marks that take the rows up to the next one into a cell: of a name, or with text behind them."""
    words = [name for name in frame.columns if frame[name].dtype.kind not in "biufc"]
    broken = [name for name in words if frame[name].astype(str).str.contains("[\r\n]").any()]
    remedy = "a quotation mark without its other one takes the following rows into its cell"
    if inside := [name for name in broken if name in names]:
        raise damage_error(f"{path}: column {inside[0]}", "a name of several lines", "names of one line", remedy)
    if not broken:
        return
    with open(source, "rb") if source is path else source as raw:
        text = io.TextIOWrapper(raw, "utf-8-sig", newline="")
        rows = csv.reader(text, delimiter=separator, skipinitialspace=True, strict=True)
        try:
            collections.deque(rows, 0)
        except csv.Error as error:
            if "limit" not in str(error):  # of a long cell
                where = f"{path}: line {rows.line_num}"
                raise damage_error(where, str(error), "quotation marks in pairs around a cell", remedy) from None


def _read_parquet(path: pathlib.Path) -> Any:
    """The table, of plain types."""
    for package in ("pyarrow", "pandas"):
        errors.require_installed(package, "tables", f"to read {path.name}")
    import pyarrow.parquet

    size = check_file("parquet", path)
    if _has_extension_types(path, size):
        raise damage_error(path, "a column of an extension type", "a Parquet file of plain types")
    try:
        file = pyarrow.parquet.ParquetFile(path)
        about = file.metadata
        check_growth(path, size, sum(about.row_group(at).total_byte_size for at in range(about.num_row_groups)))
        table = file.read()
        table.validate(full=True)  # also checks that text is UTF-8
        return table.to_pandas()
    except errors.ConfigurationError:
        raise
    except Exception as error:  # these packages have many types without a common base
        raise damage_error(path, "something else", "a readable parquet file", folders.reason(error)[:120]) from None


def _has_extension_types(path: pathlib.Path, size: int) -> bool:
    """Whether the footer holds an Arrow schema, in base64, that names an extension type.

    Reading it through pyarrow would already create the types.
    """
    with open(path, "rb") as file:
        file.seek(max(0, size - 8))
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(0, size - 8 - length))
        footer = file.read(length)
    packed = (run[at:] for run in re.findall(rb"[A-Za-z0-9+/]{24,}", footer) for at in range(4))
    return any(ARROW_EXTENSION in binascii.a2b_base64(part[: len(part) // 4 * 4]) for part in packed)


def _check_first_line(path: pathlib.Path, line: list[str], frame: Any, columns: Columns, named: bool) -> None:
    """Refuse a record that is read as column names, and column names that are read as a record.

    A name is a word above numbers, or one that an option uses; a value is a number, a missing value, or a word that
    its column repeats. Where the label's name is a number, a word above numbers may be one for a missing value. A word
    above the labels alone is a name.
    """
    numbered = any(map(VALUE.fullmatch, columns.label.split(",")))
    option_names = {columns.label, columns.client, columns.user, columns.split, *columns.categories}
    option_names |= {*(columns.features or ())}
    of_names = of_record = False
    for place in sorted(range(len(line)), key=lambda place: frame.columns[place] != columns.label):
        word = line[place]
        if of_names if named else of_record:  # it is read correctly
            return
        if VALUE.fullmatch(word) or word in (*UNKNOWN, *columns.missing):
            of_record = True
            continue
        below = frame.iloc[int(not named) :, place]
        below = below[~missing_in(below, columns, str(frame.columns[place]))]
        if not word or not len(below):
            continue
        if holds_numbers(below):
            of_names = not (named and numbered)
            if not named and frame.columns[place] == columns.label:
                break
        elif bool((below.astype(str) == word).any()):
            of_record = True
        elif named and word in option_names:
            of_names = True
    shown = ", ".join(line[:4]) + ", ..." * (len(line) > 4)
    if named and of_record and not of_names:
        again = (frame.astype(str) == line).all(axis=1)
        if again.any():  # repeated names are judged by the other rows
            return _check_first_line(path, line, frame[~again], columns, named)
        remedy = "--no-header names columns c0, c1, ...; --no-header=false takes these for names"
        raise damage_error(f"{path}: first line", f"a record, {shown[:80]}", "the names of the columns", remedy)
    if not named and of_names and not of_record:
        raise damage_error(f"{path}: first line", f"names, {shown[:80]}", "a record", "drop --no-header")


def _is_whole(word: str) -> bool:
    """Whether the word is an integer of 64 bits in its usual form."""
    plain = len(word) < 21 and word.removeprefix("-").isdecimal() and word == str(int(word))
    return plain and -(2**63) <= int(word) < 2**63
