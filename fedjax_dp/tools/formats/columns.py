"""Tables as records: columns become features, targets, clients and units; notes warn of what looks wrong."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_dp import errors
from fedjax_dp.data.client_names import plain_name
from fedjax_dp.data.reading import Reading
from fedjax_dp.data.records import (
    RecordTable,
    as_task,
    hold_out_owners,
    make_dataset,
    number_labels,
    split_owners,
)
from fedjax_dp.data.store import Dataset
from fedjax_dp.tools.formats.words import is_tokenizer, text_classes

LABEL = "label"  # the default column of labels
SPLIT = "split"  # a column that says train or test
FAR_APART = 100  # a note warns if the largest numbers of two columns differ by a larger factor
TEST_FRACTION = 0.2  # of a table without a test split
SEVERAL = ("regression", "multi_label")  # tasks whose targets may stand in several columns
OF_TABLES = ("classes", "binary", *SEVERAL)
SHOWN = 40  # names in a line
MISSING = ("", "?")  # words for a missing value, in addition to the user's
FEW = 16  # rows, or steps between rows, so few that numbers may look like ids by chance
TEXT_WORDS = 4  # a column whose cells average at least so many words looks like texts
NAMED_AS_IDS = re.compile(
    r"(?i:(.*[_ .-])?(id|uuid|guid|index|idx|rownum|row|mrn|ssn)|unnamed: \d+)|.*[a-z](ID|Id)"
)  # the whole name


class Columns(NamedTuple):
    """The roles of the columns of a table, by name, and how their cells are read."""

    label: str
    client: str | None = None
    user: str | None = None  # the person of each record, if people have several
    split: str | None = None  # train or test; None: the column `split` if there is one
    features: list[str] | None = None  # None: all other columns
    task: str = "classes"
    drop: Sequence[str] = ()  # unused columns
    categories: Mapping[str, Sequence[Any]] = {}  # words of columns; each word becomes a feature, 0 or 1
    fill: Mapping[str, Any] | float | None = None  # constants for missing values, or one for all columns of numbers
    missing: Sequence[Any] = ()  # more words and numbers for a missing value
    standardise: Any = None  # "records", constants (mean, deviation) by column, or a public table
    source: str = ""  # the file of the constants


class ColumnTable(NamedTuple):
    """A data frame of some of the records, all with the same columns."""

    where: str  # begins its error messages; "": a DataFrame, whose remedies are in Python
    frame: Any
    owner: str | None = None  # the client of all these records


def from_frame(name: str, frame: Any, test: Any, **options: Any) -> Dataset:
    """The data set of a DataFrame; `options` are fields of `Columns` or their texts, None for the default."""
    return from_tables(name, "", [ColumnTable("", frame)], Columns(**({"label": LABEL} | from_texts(options))), test)


def from_texts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Columns` from values or from texts of a command line, without those that are None."""
    return {
        name: TEXTS[name](value) if isinstance(value, str) and name in TEXTS else value
        for name, value in options.items()
        if value is not None
    }


def _pairs(what: str, text: str) -> list[tuple[str, str]]:
    """`NAME=WORDS,NAME=WORDS` as pairs."""
    pairs = [part.rpartition("=") for part in text.split(",")]
    for name, equals, words in pairs:
        if not (name and words):
            raise errors.refuse(what, repr(f"{name}{equals}{words}"[:60]), "NAME=..., with commas between columns")
    names = [name for name, _, _ in pairs]
    if len(set(names)) < len(names):
        raise errors.refuse(what, f"{next(n for n in names if names.count(n) > 1)} twice", "of each column once")
    return [(name, words) for name, _, words in pairs]


def _fill(text: str) -> dict[str, Any] | float:
    """One number for all columns, or a constant for each."""
    try:
        return float(text)
    except ValueError:
        return dict(_pairs("fill", text))


def _constants(text: str) -> dict[str, Any] | str:
    """`NAME=MEAN:STD,...` by column, or `records`."""
    if text == "records":
        return text
    constants = {}
    for name, words in _pairs("standardise", text):
        mean, _, std = words.partition(":")
        try:
            constants[name] = float(mean), float(std)
        except ValueError:
            got = repr(f"{name}={words}"[:60])
            raise errors.refuse("standardise", got, "NAME=MEAN:STD,..., records, or a public file") from None
    return constants


TEXTS: dict[str, Callable[[str], Any]] = {
    "drop": lambda text: tuple(text.split(",")),
    "missing": lambda text: tuple(text.split(",")),
    "categories": lambda text: {name: tuple(words.split("|")) for name, words in _pairs("categories", text)},
    "fill": _fill,
    "standardise": _constants,
}


def from_tables(
    name: str,
    file: str,
    tables: Sequence[ColumnTable],
    columns: Columns,
    test: Any = None,
    texts: Reading | None = None,
    **about: Any,
) -> Dataset:
    """The data set of tables with the same columns; `file`, if any, begins the error messages about all of them.

    test  another table, or a fraction of the records, of every client's if clients are known; None: the split column,
          or else a fifth;
    texts  how the only feature, a column of texts, becomes tokens; None: features are numbers;
    about  further arguments of `make_dataset`.
    """
    where = f"{file}: " if file else ""
    first, client, task = tables[0].frame, columns.client, columns.task
    errors.require_choice("task", task, OF_TABLES)
    several = task in SEVERAL and columns.label not in first.columns
    labels = columns.label.split(",") if several else [columns.label]
    test_tables = [ColumnTable(where, test)] if hasattr(test, "columns") else []
    split = columns.split
    if split is None and test is None and SPLIT in first.columns and SPLIT not in columns.drop:
        split = SPLIT
    aside = [column for column in (*labels, client, columns.user, split) if column is not None]
    others = [column for column in first.columns if column not in aside and column not in columns.drop]
    features = columns.features or others
    _check_options(columns, aside, features, tables)
    everything = [*tables, *test_tables]
    for place, part in enumerate(everything):
        _check_columns(part, tables[0], aside, features, columns.drop, of_test=place >= len(tables))
    if not features:
        raise errors.refuse(f"{where}columns", ", ".join(map(str, aside)), "more than these", "features are the others")
    kind = np.float32 if columns.standardise is None else np.float64
    if texts is None:
        complete = [_fill_missing(part, aside, features, columns) for part in everything]
        x = np.concatenate([_features(part, features, columns.categories, kind) for part in complete])
        notes = _notes_on(complete[: len(tables)], features, columns)
    else:
        complete = [_fill_missing(part, [*aside, *features], [], columns) for part in everything]
        sentences = _texts(where, complete, features, task, is_tokenizer(texts))
        notes = [f"features: the words of column {printable(features[0])}"]
    clients, classes = None, None
    class_names: Sequence[Any] | np.ndarray | None = labels if task == "multi_label" and len(labels) > 1 else None
    if client is not None:
        clients = np.concatenate([_names(part, client)[0] for part in complete])
    elif tables[0].owner is not None:
        clients = np.repeat([str(part.owner) for part in complete], [len(part.frame) for part in complete])
    if task in SEVERAL:
        y = as_task(file, np.concatenate([_numbers(part, labels, np.float32) for part in complete]), task)
    else:
        words, floats = zip(*(_names(part, labels[0]) for part in complete))
        y, class_names, more = number_labels(np.concatenate(words))
        classes = len(class_names)
        notes += more + ["labels written as 1.0 are whole numbers"] * any(floats)
        if _all_differ(words):
            remedy = "name the column of labels" if file else "label= names the column of labels"
            raise errors.refuse(f"{where}column {labels[0]}", "another in every row, as ids are", "labels", remedy)
        if task == "binary" and classes != 2:
            raise errors.refuse(f"{where}labels", f"{classes}", "two, for task binary", "or take task classes")
        classes = 1 if task == "binary" else classes
    users = None if columns.user is None else np.concatenate([_names(part, columns.user)[0] for part in complete])
    drawn = not test_tables and split is None
    if test_tables:
        train, tests = np.split(np.arange(len(y)), [sum(len(part.frame) for part in tables)])
    elif split is not None:
        train, tests = _by_column(where, complete, split)
    else:
        fraction = TEST_FRACTION if test is None else test
        errors.require_in_unit_interval(f"{where}test", fraction, "or give a DataFrame")
        if users is not None:  # who trains is in no test record
            (train, tests), whose = hold_out_owners(where, users, fraction), "the users"
        else:
            train, tests = split_owners(clients, len(y), fraction)
            whose = "records" if clients is None else "every client's records"
        notes.append(
            f'{fraction:.0%} of {whose}, drawn at random, are held out for testing; a column "{SPLIT}" would say which'
        )
    if texts is not None:
        rows = RecordTable(clients, users, notes, text=sentences, y=y).split((train, tests), drawn)
        return text_classes(name, file, *rows, texts, classes, class_names=class_names, **about)
    names = [f"{c}={word}" for c in features for word in columns.categories.get(c, [""])]
    learnt: tuple[str, ...] = ()
    if columns.standardise is not None:
        x, learnt, more = _standardise(where, x, train, features, columns)
        notes += more
    notes += _warn_of_sizes(x, [one.removesuffix("=") for one in names], bool(file))
    parts = RecordTable(clients, users, notes, x=x, y=y).split((train, tests), drawn)
    about |= {"task": task, "learnt": learnt}
    return make_dataset(name, file, *parts, classes=classes, class_names=class_names, **about)


def _remedy(table: ColumnTable, flag: str, argument: str) -> str:
    """The remedy on the command line for a file, in Python for a DataFrame."""
    return flag if table.where else argument


def _check_options(columns: Columns, aside: Any, features: Any, tables: Sequence[ColumnTable]) -> None:
    """Refuse options that name other columns than features, and dropped columns that no table has."""
    constants = columns.standardise if isinstance(columns.standardise, Mapping) else {}
    fill = columns.fill if isinstance(columns.fill, Mapping) else {}
    for option, names in (("categories", columns.categories), ("fill", fill), ("standardise", constants)):
        for column in names:
            if column not in features and not (option == "standardise" and columns.source):
                remedy = errors.suggestion(str(column), map(str, features))
                raise errors.refuse(option, repr(column), "of columns that are features", remedy)
            if option == "standardise" and column in columns.categories:
                raise errors.refuse("standardise", repr(column), "of columns of numbers", "drop it")
    known = {column for table in tables for column in table.frame.columns}
    for column in columns.drop:
        if column in aside or column not in known:
            remedy = errors.suggestion(str(column), map(str, known.difference(aside)))
            got = f"{column!r}, which " + ("is a label, a client or the split" if column in aside else "no table has")
            raise errors.refuse("drop", got, "of columns", remedy)
    for column, words in columns.categories.items():
        if len(set(map(str, words))) < len(words) or not len(words):
            raise errors.refuse(f"categories of {column}", "a word twice, or none", "different words")
        constant = fill.get(column)
        if constant is not None and _as_word(constant) not in map(str, words):
            wanted = f"one of {_shown(words)}, the categories of {column}"
            raise errors.refuse(f"fill of {column}", repr(constant)[:60], wanted, "add it to the categories")
        if both := [word for word in map(str, columns.missing) if word in map(str, words)]:
            raise errors.refuse("missing", repr(both[0]), f"other words than the categories of {column}", "drop one")


def _check_columns(part: ColumnTable, first: ColumnTable, aside: Any, features: Any, drop: Any, of_test: bool) -> None:
    """Refuse a table without records, without a named column, or with other columns than the first table."""
    where, table, columns = part.where, part.frame, list(part.frame.columns)
    if not table.columns.is_unique:
        raise errors.refuse(f"{where}columns", table.columns[table.columns.duplicated()][0], "of different names")
    names = [*aside, *features]
    if len(set(names)) != len(names):
        twice = next(column for column in names if names.count(column) > 1)
        raise errors.refuse(
            f"{where}columns of labels, clients, split and features", f"{twice} twice", "different ones"
        )
    differ = {*columns}.symmetric_difference(first.frame.columns).difference(drop)
    if differ and not of_test:  # the first in the order of the files
        other = next(column for column in (*first.frame.columns, *columns) if column in differ)
        got = f"{other} besides" if other in columns else f"no {other}"
        remedy = f"--drop {other} leaves it out" if other not in aside else "name it alike in all files"
        raise errors.refuse(f"{where}columns", got, f"those of {first.where.removesuffix(': ')}", remedy)
    for column in names:
        if column not in columns:
            others = "name those of labels and clients (--label-column, --client-column)"
            remedy = errors.suggestion(str(column), map(str, columns), others)
            shown = ", ".join(map(str, columns[:8])) + (", ..." if len(columns) > 8 else "")
            raise errors.refuse(f"{where}column {column}", "none", f"one of {shown}", remedy)
    if differ:
        other = sorted(map(str, differ))[0]
        raise errors.refuse(f"{where}columns of test", f"others, such as {other}", "those of the training records")
    if not len(table):
        raise errors.refuse(f"{where}records", 0, "at least one")


def _fill_missing(part: ColumnTable, aside: Sequence[str], features: Sequence[str], columns: Columns) -> ColumnTable:
    """The table with constants for missing values; refuses a missing value without a constant."""
    frame, fill = part.frame, columns.fill
    for column in (*aside, *features):
        missing = missing_in(frame[column], columns, column)
        if not missing.any():
            continue
        numeric = column in features and column not in columns.categories
        if numeric and not holds_numbers(frame[column][~missing]):
            raise _no_number(part, column, missing)
        constant = fill.get(column) if isinstance(fill, Mapping) else fill if numeric else None
        if constant is None:
            row = int(np.argmax(missing))
            word = "" if frame[column].isna().iloc[row] else str(frame[column].iloc[row]).strip()
            got = f"{repr(word) + ', which counts as missing,' if word else 'nothing'} in row {row + 1}"
            how = "NUMBER" if numeric else "WORD"
            remedy = _remedy(
                part, f"--fill {column}={how} states a constant", f'fill={{"{column}": ...}} states a constant'
            )
            if column in aside:
                remedy = "drop the row or fill it in"
            raise errors.refuse(f"{part.where}column {column}", got, "given in every row", remedy)
        if numeric:
            if not _is_number(constant):
                raise errors.refuse(f"{part.where}fill of {column}", repr(constant)[:60], "a number")
            constant = float(constant)
        real = numeric and getattr(frame[column].dtype, "kind", "O") in "iuf"
        frame = frame.copy(deep=False)
        frame[column] = frame[column].astype("float64" if real else object).mask(missing, constant)
        if numeric:  # the other cells may be numbers written as text
            frame[column] = frame[column].astype("float64")
    return part._replace(frame=frame)


def missing_in(values: Any, columns: Columns, column: str) -> np.ndarray:
    """Which cells of a column have no value `(records,)`: empty ones, and words for it that are no category."""
    words = {*MISSING, *map(str, columns.missing)}.difference(map(str, columns.categories.get(column, ())))
    numbers = {float(word) for word in words if _is_number(word) and column not in columns.categories}
    missing: np.ndarray = values.isna().to_numpy()
    if getattr(values.dtype, "kind", "O") in "biuf":
        return missing | values.isin(numbers).to_numpy(bool)

    def counts(value: Any) -> bool:
        return str(value).strip() in words or (bool(numbers) and _is_number(value) and float(value) in numbers)

    return missing | np.array([*map(counts, values)], bool)


def _features(
    part: ColumnTable, features: Sequence[str], categories: Mapping[str, Sequence[Any]], kind: Any
) -> np.ndarray:
    """The columns as `(records, features)`; those of categories have a 0 or 1 for each word."""
    if not categories:
        return _numbers(part, features, kind)
    blocks = [
        _one_hot(part, column, categories[column]).astype(kind)
        if column in categories
        else _numbers(part, [column], kind)
        for column in features
    ]
    return np.concatenate(blocks, axis=1)


def _texts(where: str, parts: Sequence[ColumnTable], features: Sequence[str], task: str, pairs: bool) -> list[Any]:
    """The texts of the only feature, or, where a tokenizer takes `pairs`, those of two."""
    if len(features) > 1 + pairs:
        got = list_names(features)[:100]
        remedy = "--feature-columns NAME names it, --drop leaves others out"
        raise errors.refuse(f"{where}features", got, f"one column of texts{', or a pair' * pairs}", remedy)
    if task != "classes":
        raise errors.refuse("task", task, "classes, for a column of texts", "drop --task")
    for part in parts:
        for column in features:
            if holds_numbers(part.frame[column]):
                remedy = "--length and --vocabulary are for texts: drop them"
                raise errors.refuse(f"{part.where}column {column}", "numbers", "texts", remedy)
    columns = ([str(text) for part in parts for text in part.frame[column]] for column in features)
    rows = list(zip(*columns, strict=True))
    return rows if len(features) > 1 else [text for (text,) in rows]


def _one_hot(part: ColumnTable, column: str, words: Sequence[Any]) -> np.ndarray:
    text = np.array([_as_word(value) for value in part.frame[column]])
    known = np.array([str(word) for word in words])
    hot = text[:, None] == known
    if not hot.any(1).all():
        row = int(np.argmin(hot.any(1)))
        remedy = _remedy(part, "add it to --categories, or drop the row", "add it to categories, or drop the row")
        raise errors.refuse(
            f"{part.where}column {column}", f"{text[row][:40]!r} in row {row + 1}", f"one of {_shown(words)}", remedy
        )
    return hot


def _numbers(part: ColumnTable, features: Sequence[str], kind: Any) -> np.ndarray:
    """The columns as numbers `(records, columns)`, finite in float32."""
    where, table = part.where, part.frame
    for column in features:
        if getattr(table[column].dtype, "kind", "O") not in "biuf":
            raise _no_number(part, column, part.frame[column].isna().to_numpy())
    with np.errstate(over="ignore"):  # infinity is refused
        x = table[list(features)].to_numpy(dtype=kind)
        finite = np.isfinite(x.astype(np.float32, copy=False))
    if not finite.all():
        row, at = np.argwhere(~finite)[0]
        got = f"{table[features[at]].iloc[row]} in row {row + 1}"
        raise errors.refuse(f"{where}column {features[at]}", got, "finite in float32")
    return x


def _no_number(part: ColumnTable, column: str, missing: np.ndarray) -> Exception:
    """The error for a column of words, with a remedy for the probable intent; `missing` marks empty cells."""
    values = part.frame[column]
    words = [(row, str(value)) for row, value in enumerate(values) if not (missing[row] or _is_number(value))]
    different = values.astype(str).nunique()  # lists have no hash
    got = f"{words[0][1][:40]!r} in row {words[0][0] + 1}" if words else values.dtype
    again = [row for row, word in words if word == column]
    lengths = [len(word.split()) for _, word in words]
    if lengths and sum(lengths) >= TEXT_WORDS * len(lengths):
        drops = f"--drop {column} leaves it out"
        flags = f"--feature-columns {column} --length 25 reads 25 words of each text; {drops}"
        load = f'load("csv:FILE", feature_columns="{column}", length=25) reads texts of a file'
        remedy = _remedy(part, flags, f'{load}; drop=["{column}"] leaves it out')
    elif again:
        got, remedy = f"the header again in row {again[0] + 1}", "drop that row, or name the files: csv:a.csv,b.csv"
    elif len(values) >= FEW and different == len(values):
        remedy = _remedy(part, f"it looks like a name: --drop {column}", f"it looks like a name: drop=[{column!r}]")
    else:
        states = f"--categories {column}=WORD|WORD states its words"
        if different > SHOWN:  # people rather than categories
            states = f"--user-column {column} says whose rows they are"
        flags = f"{states}, --drop {column} leaves it out"
        remedy = _remedy(
            part, flags, f'categories={{"{column}": [...]}} states its words, drop=["{column}"] leaves it out'
        )
    return errors.refuse(f"{part.where}column {column}", got, "numeric", remedy)


def holds_numbers(values: Any) -> bool:
    """Whether a column holds numbers, also if they are written as text."""
    return getattr(values.dtype, "kind", "O") in "biuf" or all(map(_is_number, values))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _as_word(value: Any) -> str:
    """A cell as a category; pandas reads whole numbers as 1.0 if another cell of the column is empty."""
    return f"{value:.0f}" if isinstance(value, float | np.floating) and value.is_integer() else str(value)


def _shown(words: Sequence[Any]) -> str:
    return ", ".join(map(str, words[:SHOWN])) + ", ..." * (len(words) > SHOWN)


def _names(part: ColumnTable, column: str) -> tuple[np.ndarray, bool]:
    """Labels or ids, whole numbers or words, and whether they were read as floats."""
    values = part.frame[column].to_numpy()
    if values.dtype.kind == "f":
        if not ((values == np.floor(values)) & (np.abs(values) < 2**53)).all():
            remedy = "name another column, or task regression"
            raise errors.refuse(f"{part.where}column {column}", values.dtype, "whole numbers or words", remedy)
        return values.astype(np.int64), True
    if values.dtype.kind in "iu" and values.max(initial=0) < 2**63:  # one kind in all files: NumPy joins two as floats
        return values.astype(np.int64), False
    return np.array([*map(plain_name, values)]), False


def _by_column(where: str, parts: Sequence[ColumnTable], column: str) -> tuple[np.ndarray, np.ndarray]:
    """The rows for training and for testing, by the split column."""
    each = [np.array([*map(plain_name, part.frame[column])]) for part in parts]
    for part, words in zip(parts, each):
        if other := sorted(set(words) - {"train", "test"}):
            raise errors.refuse(f"{part.where}column {column}", repr(other[0][:40]), "train or test in every row")
    words = np.concatenate(each)
    for word in ("train", "test"):
        if word not in words:
            raise errors.refuse(f"{where}column {column}", f"no {word}", "train in some rows and test in others")
    return np.flatnonzero(words == "train"), np.flatnonzero(words == "test")


def _standardise(
    where: str, x: np.ndarray, train: np.ndarray, features: Sequence[str], columns: Columns
) -> tuple[np.ndarray, tuple[str, ...], list[str]]:
    """Standardised features, what was learnt from the records for them, and a note."""
    widths = [len(columns.categories.get(column, [""])) for column in features]
    places = dict(zip(features, np.cumsum(widths) - widths))
    how, numeric = columns.standardise, [column for column in features if column not in columns.categories]
    own = [{c: (x[rows, at].mean(), x[rows, at].std()) for c, at in places.items()} for rows in (train, slice(None))]
    constants: Mapping[str, Any]
    if isinstance(how, str) and how == "records":
        constants, note = {column: own[0][column] for column in numeric}, ""
    elif hasattr(how, "columns"):
        source = columns.source or "the public table"
        for column in numeric:
            if column not in how.columns or how[column].dtype.kind not in "biuf" or how[column].isna().any():
                raise errors.refuse(f"{source}: column {column}", "none", "of numbers, as in the records")
        constants = {column: (float(how[column].mean()), float(how[column].std(ddof=0))) for column in numeric}
        note = f"standardised by means and deviations of {source}, taken for public"
    elif isinstance(how, Mapping):
        constants = {column: how[column] for column in numeric if column in how}
        if columns.source and (lacking := [column for column in numeric if column not in how]):
            raise errors.refuse(columns.source, f"no {lacking[0]}", "a row for each column of numbers", "add it")
        of_file = f"constants of {columns.source}"
        whose = of_file if columns.source else f"stated constants of {list_names(list(constants))}"
        note = f"standardised by {whose}, taken for public"
    else:
        raise errors.refuse("standardise", repr(how)[:60], "records, constants by column, or a public table")
    learnt: tuple[str, ...] = ()
    if constants and any(_are_alike(constants, of_rows, len(train)) for of_rows in own):  # whatever they are called
        what = f"means and deviations of {len(constants):,} columns, computed from the training records"
        learnt, note = (what,), f"warning: standardised by {what}: no epsilon covers them; public constants need none"
    for column, (mean, std) in constants.items():
        if not (np.isfinite(mean) and 0 < std < np.inf):
            zero = "a deviation of 0" if std == 0 else f"mean {mean:g} and deviation {std:g}"
            remedy = f"--drop {column} leaves it out" if columns.source or where else f"drop=[{column!r}] leaves it out"
            raise errors.refuse(f"standardise {column}", zero, "by a positive deviation", remedy)
        x[:, places[column]] = (x[:, places[column]] - mean) / std
    with np.errstate(over="ignore"):
        small = x.astype(np.float32)
    if not np.isfinite(small).all():
        column = features[int(np.argwhere(~np.isfinite(small))[0][1])] if not columns.categories else "a column"
        raise errors.refuse(f"standardise {column}", "infinity", "finite in float32", "give other constants")
    return small, learnt, [note]


def _are_alike(constants: Mapping[str, Any], own: Mapping[str, Any], records: int) -> bool:
    """Whether means agree up to rounding, and deviations up to their divisor, n or n - 1."""
    pairs = [(*constants[column], *own[column]) for column in constants]
    return all(abs(a - b) <= 1e-9 * d and abs(c - d) <= d / records for a, c, b, d in pairs)


def printable(name: Any) -> str:
    """The name of a column, without characters that control a terminal."""
    return str(name) if str(name).isprintable() else repr(name)


def list_names(names: Sequence[Any]) -> str:
    """The first SHOWN names in a line."""
    shown = ", ".join(map(printable, names[:SHOWN]))
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN:,} more"


def _notes_on(parts: Sequence[ColumnTable], features: Sequence[str], columns: Columns) -> list[str]:
    """Notes: the names of the features, and warnings of those that look like ids."""
    shown = [
        f"{column} ({len(columns.categories[column])} categories)" if column in columns.categories else column
        for column in features
    ]
    notes = [f"features: {list_names(shown)}"]
    for column in features:
        if column not in columns.categories and (why := _why_an_id(parts, column, columns.client)):
            drop = f"--drop {column}" if parts[0].where else f"drop=[{column!r}]"
            notes.append(f"warning: {printable(column)} looks like an id, {why}: {drop} leaves it out")
    return notes


def _why_an_id(parts: Sequence[ColumnTable], column: str, client: str | None) -> str:
    """Why a column of numbers looks like an id; "": it does not."""
    if NAMED_AS_IDS.fullmatch(str(column)):
        return "by its name"
    blocks = [part.frame[column].to_numpy() for part in parts]
    values = np.concatenate(blocks)
    if values.dtype.kind == "b" or len(values) < FEW:
        return ""
    steps = [np.diff(block.astype(np.float64)) for block in blocks]
    if client is not None:  # from one row to the next of the same client
        same = [part.frame[client].to_numpy() for part in parts]
        steps = [step[ids[1:] == ids[:-1]] for step, ids in zip(steps, same)]
    rises = np.concatenate(steps)
    if len(rises) >= FEW and ((rises > 0).all() or (rises < 0).all()):
        return "as it goes one way from row to row"
    whole = values.dtype.kind in "iu" or (values == np.floor(values)).all()
    return "a whole number that is another in every row" if whole and _all_differ(blocks) else ""


def _all_differ(blocks: Sequence[np.ndarray]) -> bool:
    """Whether no value occurs twice in all tables, or in each if each has more than a few rows."""
    alone = [len(block) >= FEW and len(np.unique(block)) == len(block) for block in blocks]
    values = np.concatenate(blocks)
    return all(alone) or len(np.unique(values)) == len(values) >= FEW


def _warn_of_sizes(x: np.ndarray, names: Sequence[str], of_file: bool) -> list[str]:
    bounds = np.abs(x).max(0, initial=0.0)
    nonzero = np.flatnonzero(bounds > 0)
    if not nonzero.size:
        return []
    least, most = nonzero[np.argmin(bounds[nonzero])], nonzero[np.argmax(bounds[nonzero])]
    if bounds[most] <= FAR_APART * bounds[least]:
        return []
    how = "--standardise or --drop, or" if of_file else "standardise= or drop=, or"
    low, high = (f"{printable(names[one])} within {bounds[one]:.3g}" for one in (least, most))
    return [
        f"warning: columns are of sizes far apart, {low} and {high}, and no rate suits both: {how} divide each by a "
        "public bound"
    ]
