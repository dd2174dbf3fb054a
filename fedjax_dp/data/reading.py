"""Options for how the files of a data set are read."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Annotated, Any

from fedjax_dp import errors
from fedjax_dp.options import about

CUT = ("stride", "windows_per_text")  # of texts that are cut into several records
TEXT = ("length", "vocabulary", "vocabulary_size", "oov_buckets")
TASKS = ("classes", "binary", "multi_label", "regression", "sequence")
COLUMNS = ("task", "label_column", "client_column", "feature_columns", "record_shape")
USERS = ("user_column", "records_per_user", "clients_per_user")
TABLES = (*USERS, "split_column", "drop", "categories", "fill", "missing", "standardise")  # of tables alone
CSV = ("no_header",)  # and of CSV files alone


def _as_text(what: str, value: Any) -> str:
    """`NAME=X,...` of a mapping and `A,B` of a list; a list inside a mapping is `A|B`, or `M:S` for standardise.

    Raises: ConfigurationError for nothing, and for a word that the text would cut.
    """
    if isinstance(value, str):
        return errors.require_text(what, value)
    between, of_names = ":" if what.endswith("standardise") else "|", isinstance(value, Mapping)
    texts = []
    for name, entry in value.items() if of_names else ((None, one) for one in value):
        words = [*map(str, entry)] if isinstance(entry, list | tuple) else [str(entry)]
        marks = (*",=", between) if of_names else ","
        for word in [word for word in words if any(mark in word for mark in marks)] + [name] * ("," in str(name)):
            remedy = "read the file with pandas, and pass the table to dataset"
            raise errors.refuse(what, repr(word)[:60], f"without {' '.join(marks)}", remedy)
        texts.append(between.join(words) if name is None else f"{name}={between.join(words)}")
    if not texts:
        raise errors.refuse(what, repr(value), "at least one entry", "leave the option out")
    return ",".join(texts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read; None leaves an option to the format.

    Args:
        task: kind of the targets, if the files do not state it
        label_column: column of the label; for csv:, parquet: and hf:; tables may have several, with commas, for task
            regression
        client_column: column of the client; these become the natural clients
        user_column: column of the user, for people with several records; the unit is then a user; for csv: and parquet:
        records_per_user: training records kept of each user at a client; the first ones
        clients_per_user: clients at which a user's records are kept; the first ones
        split_column: column that says train or test; for csv: and parquet:
        feature_columns: columns that are features; all others by default
        drop: columns that are no features, such as ids
        categories: known words of a column; each becomes a feature of 0 and 1
        fill: constants that replace missing values; a single number is for all columns of numbers
        missing: words that stand for a missing value, such as -9; an empty cell and ? always do
        no_header: the csv file has no line of names, and columns are c0, c1, ...; false: its first line has the names,
            whatever it looks like
        standardise: public mean M and deviation S by which a column becomes (x - M) / S; or a public file to compute
            them from; or records: computed from the training records, which no epsilon covers
        record_shape: shape of the features of a row, such as 28,28
        length: tokens of a text record; longer texts are cut, shorter ones padded; with it the feature of csv: and
            parquet: is a column of texts
        stride: tokens from one record of a text to the next
        windows_per_text: training records kept of each text; the first ones; the unit is then a text
        vocabulary: public list of words, one a line; by default learnt from the training records, without privacy
        vocabulary_size: number of words
        oov_buckets: ids for unknown words
        convention: how tokens are numbered and texts cut
        subset: part of a TFF database, such as digits_only
    """

    task: Annotated[str | None, about("", choices=TASKS)] = None
    label_column: Annotated[str | None, about("", metavar="NAME", default="label")] = None
    client_column: Annotated[str | None, about("", metavar="NAME")] = None
    user_column: Annotated[str | None, about("", metavar="NAME")] = None
    records_per_user: int | None = None
    clients_per_user: Annotated[int | None, about("", default="1")] = None
    split_column: Annotated[str | None, about("", metavar="NAME", default="split")] = None
    feature_columns: Annotated[str | None, about("", metavar="NAME,...", as_text=_as_text)] = None
    drop: Annotated[str | None, about("", metavar="NAME,...", as_text=_as_text)] = None
    categories: Annotated[str | None, about("", metavar="NAME=A|B,...", as_text=_as_text)] = None
    fill: Annotated[float | str | None, about("", metavar="NAME=X,...", as_text=_as_text)] = None
    missing: Annotated[str | None, about("", metavar="WORD,...", as_text=_as_text)] = None
    no_header: Annotated[bool | None, about("", switch=True)] = None
    standardise: Annotated[str | None, about("", metavar="NAME=M:S,...", as_text=_as_text)] = None
    record_shape: Annotated[str | None, about("", metavar="INT,...", as_text=_as_text)] = None
    length: int | None = None
    stride: int | None = None
    windows_per_text: int | None = None
    vocabulary: Annotated[str | None, about("", metavar="FILE")] = None
    vocabulary_size: int | None = None
    oov_buckets: int | None = None
    convention: Annotated[str | None, about("", choices=("tff", "fedjax", "leaf"))] = None
    subset: Annotated[str | None, about("", metavar="NAME", default="all")] = None

    def require_meant(self, meant: Collection[str], whose: str, remedy: str = "drop it") -> None:
        """Refuse an option that does not apply to these files."""
        for name, value in vars(self).items():
            if value is not None and name not in meant:
                raise errors.refuse(name, repr(value), f"left out for {whose}", remedy)


NAMES = tuple(field.name for field in dataclasses.fields(Reading))


def shape_of(text: str) -> tuple[int, ...]:
    """`28,28` as a shape."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() and 0 < int(part) < 1 << 31 for part in parts if len(part) < 12) or (
        max(map(len, parts)) > 11
    ):
        raise errors.refuse("record_shape", repr(text[:60]), "positive integers with commas between, such as 28,28")
    return tuple(map(int, parts))
