"""Tables in files: CSV and Parquet, one with a column of clients, or several, each the records of a client."""

import io
import pathlib
from typing import Any

from fedjax_dp import errors, folders
from fedjax_dp.accounting.neighbours import Unit
from fedjax_dp.data.columns import LABEL, Columns, Table, from_tables
from fedjax_dp.data.files import check_file, check_id, damaged, no_text, unpacked
from fedjax_dp.data.formats.arrow_streams import read_parquet
from fedjax_dp.data.formats.splits import reshaped
from fedjax_dp.data.reading import Reading
from fedjax_dp.data.store import Dataset, UnitBound
from fedjax_dp.data.table_files import PACKED, files_of, is_several, name_of, stem_of

OTHER_SEPARATORS = ";\t|"
STATED = ("column", "mean", "std")  # the columns of a public file of constants


def from_files(named: str, kind: str, reading: Reading) -> Dataset:
    """Files of numeric columns, one of labels, or several, and, if it is named, one of clients; else each is a client.

    named  a file, several with commas between, a pattern such as `hospital_*.csv`, or a folder.
    """
    paths, bounds = files_of(kind, named), _bounds(reading)
    columns = _columns(kind, paths, reading)
    frames = [_read(path, kind, columns) for path in paths]
    owners: list[str | None] = [None] * len(paths)
    if is_several(named) and reading.client_column is None:
        owners = [*_names_of(paths)]
    elif reading.client_column is not None:
        _check_apart(paths, frames, reading.client_column)
        if kind == "csv":
            _number(frames, reading.client_column)
    tables = [Table(f"{path.name}: ", frame, owner) for path, frame, owner in zip(paths, frames, owners)]
    where = paths[0].name if len(paths) == 1 else folders.shown(named)
    made = from_tables(name_of(named, paths), where, tables, columns)
    x_train, x_test = (reshaped(where, x, reading.record_shape) for x in (made.x_train, made.x_test))
    return made._replace(x_train=x_train, x_test=x_test, bounds=bounds)


def _bounds(reading: Reading) -> tuple[UnitBound, ...]:
    """What is kept of each user; refuses ids without a bound, and a bound without ids."""
    given = {name: getattr(reading, name) for name in ("user_column", "records_per_user", "clients_per_user")}
    if all(value is None for value in given.values()):
        return ()
    errors.require_given("user_column", reading.user_column, "a bound belongs to it")
    records = errors.require_given("records_per_user", reading.records_per_user, "without a bound nothing is known")
    clients = 1 if reading.clients_per_user is None else reading.clients_per_user
    errors.require_count("records_per_user", records)
    errors.require_count("clients_per_user", clients)
    return (UnitBound(Unit.USER, records, clients),)


def _columns(kind: str, paths: list[pathlib.Path], reading: Reading) -> Columns:
    """What options say of columns; public constants are read from their file."""
    columns = Columns(
        label=reading.label_column or LABEL,
        client=reading.client_column,
        user=reading.user_column,
        split=reading.split_column,
        features=None if reading.feature_columns is None else reading.feature_columns.split(","),
        task=reading.task or "classes",
        drop=() if reading.drop is None else tuple(reading.drop.split(",")),
        categories={name: tuple(words.split("|")) for name, words in _pairs("categories", reading.categories)},
        fill=_fill(reading.fill),
        missing=("?", *(reading.missing.split(",") if reading.missing is not None else ())),
        header=not reading.no_header,
    )
    if reading.no_header and kind != "csv":
        raise errors.refuse("no_header", "true", f"left out for {kind} files, which have names", "drop it")
    how = reading.standardise
    if how is None or how == "records":
        return columns._replace(standardise=how)
    if how.endswith((".csv", ".parquet")):
        path = pathlib.Path(how)
        if path.exists() and any(other.exists() and path.samefile(other) for other in paths):
            remedy = "records computes constants of the training records, and says so"
            raise errors.refuse("standardise", path.name, "a public file, not the records", remedy)
        frame = _read(path, path.suffix[1:], columns._replace(client=None, header=True))
        if set(frame.columns) == set(STATED):
            frame = {row.column: (row.mean, row.std) for row in frame.itertuples()}
        return columns._replace(standardise=frame, source=path.name)
    stated = {}
    for name, words in _pairs("standardise", how):
        mean, _, std = words.partition(":")
        try:
            stated[name] = float(mean), float(std)
        except ValueError:
            got = repr(f"{name}={words}"[:60])
            raise errors.refuse("standardise", got, "NAME=MEAN:STD,..., records, or a public file") from None
    return columns._replace(standardise=stated)


def _pairs(what: str, text: str | None) -> list[tuple[str, str]]:
    """`NAME=WORDS,NAME=WORDS` as pairs."""
    pairs = [] if text is None else [part.rpartition("=") for part in text.split(",")]
    for name, equals, words in pairs:
        if not (name and words):
            raise errors.refuse(what, repr(f"{name}{equals}{words}"[:60]), "NAME=..., with commas between columns")
    names = [name for name, _, _ in pairs]
    if len(set(names)) < len(names):
        raise errors.refuse(what, f"{next(n for n in names if names.count(n) > 1)} twice", "of each column once")
    return [(name, words) for name, _, words in pairs]


def _fill(text: str | None) -> dict[str, Any] | float | None:
    """One number for all columns, or a constant of each."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return dict(_pairs("fill", text))


def _names_of(paths: list[pathlib.Path]) -> list[str]:
    """Names of clients, those of their files."""
    names: dict[str, pathlib.Path] = {}
    for path in paths:
        name = check_id(path.name, stem_of(path))
        if name in names:
            raise errors.refuse(
                "names of files", f"{names[name]} and {path}", "different, as clients are", "rename one"
            )
        names[name] = path
    return list(names)


def _check_apart(paths: list[pathlib.Path], frames: list[Any], client: str) -> None:
    """No client stands in two files; a file without the column is refused where columns are."""
    seen: dict[Any, pathlib.Path] = {}
    for path, frame in zip(paths, frames):
        for owner in frame[client].dropna().unique() if client in frame.columns and len(paths) > 1 else ():
            if owner in seen:
                got = f"{owner} in {seen[owner].name} and {path.name}"
                raise errors.refuse("clients", got[:120], "each in one file", "name them apart, or join the files")
            seen[owner] = path


def _number(frames: list[Any], client: str) -> None:
    """Text in which all clients are whole numbers becomes numbers."""
    held = [frame[client] for frame in frames if client in frame.columns]
    if not any(column.isna().any() for column in held) and all(_is_number(word) for column in held for word in column):
        for frame in frames:
            if client in frame.columns:
                frame[client] = frame[client].astype("int64")


def _read(path: pathlib.Path, kind: str, columns: Columns) -> Any:
    """The table; words that stand where nothing is known are nothing, but for those that are stated as categories."""
    frame = _read_csv(path, columns) if kind == "csv" else read_parquet(path)
    for name, words in columns.categories.items():
        if name in frame.columns:
            unknown = set(columns.missing).difference(words)
            frame[name] = frame[name].mask(frame[name].isin(unknown).to_numpy())
    return frame


def _read_csv(path: pathlib.Path, columns: Columns) -> Any:
    """The table, whose clients and categories stay text: 007 is another client than 7, and NA a word."""
    errors.require_installed("pandas", "tables", f"to read {path.name}")
    import pandas as pd  # slow to import, and only needed here

    check_file("csv", path)
    if path.suffix in (".tar", ".tgz", ".zst", ".7z", ".rar", ".Z"):
        raise damaged(path, f"packed as {path.suffix}", f"a csv file, perhaps in {', '.join(PACKED)}", "unpack it")
    packed = io.BytesIO(unpacked("csv", path)) if path.suffix in PACKED else None
    with open(path, "rb") as file:
        beginning = packed.getvalue()[:4096] if packed else file.read(4096)

    def source() -> Any:
        return path if packed is None else io.BytesIO(packed.getvalue())

    how: dict[str, Any] = {"compression": None, "encoding": "utf-8", "skipinitialspace": True}
    try:
        header = pd.read_csv(source(), header=None, nrows=1, dtype=str, keep_default_na=False, **how).iloc[0]
        if not columns.header:
            how |= {"header": None, "names": [f"c{at}" for at in range(len(header))]}
            header = pd.Series(how["names"])
        kept = {name: str for name in (columns.client, columns.user) if name is not None}
        frame = pd.read_csv(source(), low_memory=False, dtype=kept, na_values=list(columns.missing), **how)
        if words := [name for name in columns.categories if name in frame.columns]:
            frame[words] = pd.read_csv(source(), usecols=words, dtype=str, keep_default_na=False, **how)[words]
    except UnicodeDecodeError:
        raise no_text(path, beginning) from None
    except Exception as error:  # pandas has many, without a common base
        reason = " ".join(str(error).split())[:120]
        raise damaged(path, "something else", "a readable csv file", reason) from None
    _check_names(path, list(header), columns)
    again = header[header.duplicated() & (header != "")]
    if len(again):  # it would be read by another name, and be a feature whatever it is
        raise damaged(f"{path}: columns", f"{again.iloc[0][:40]} twice", "of different names", "drop or rename one")
    if len(header) == 1 and (others := [mark for mark in OTHER_SEPARATORS if mark in header.iloc[0]]):
        remedy = (
            f"pandas.read_csv({path.name!r}, sep={others[0]!r}).to_csv writes one, decimal=',' reads commas in numbers"
        )
        raise damaged(path, f"fields with {others[0]!r} between", "a csv file with commas between fields", remedy)
    return frame


def _check_names(path: pathlib.Path, names: list[str], columns: Columns) -> None:
    """Refuse a first line that is a record: of numbers, or with a word that stands where nothing is known."""
    words = [name.strip() for name in names if name.strip()]
    unknown = next((word for word in words if word in columns.missing), None)
    if unknown is None and (not words or not all(map(_is_numeric, words))):
        return
    got = f"{','.join(names)[:40]!r}, {'all numbers' if unknown is None else f'with {unknown!r} for a name'}"
    remedy = "--no-header reads it as a record and calls columns c0, c1, ..."
    raise damaged(f"{path}: names of columns", got, "names in the first line", remedy)


def _is_numeric(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _is_number(word: str) -> bool:
    """Whether it is how an integer of 64 bits is written."""
    plain = len(word) < 21 and word.removeprefix("-").isdecimal() and word == str(int(word))
    return plain and -(2**63) <= int(word) < 2**63
