"""Options for how the files of a data set are read."""

import dataclasses
from collections.abc import Collection
from typing import Annotated

from fedjax_dp import errors
from fedjax_dp.options import about

CUT = ("stride", "windows_per_text")  # of texts that are cut into several records
TEXT = ("length", "vocabulary", "vocabulary_size", "oov_buckets")
TASKS = ("classes", "binary", "multi_label", "regression", "sequence")
COLUMNS = ("task", "label_column", "client_column", "feature_columns", "record_shape")
# Beside these, of tables alone.
TABLES = (
    "user_column",
    "records_per_user",
    "clients_per_user",
    "split_column",
    "drop",
    "categories",
    "fill",
    "missing",
    "standardise",
)
CSV = ("no_header",)  # and of CSV files alone


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read; what is None is as the format has it.

    Args:
        task: what targets are, where the files do not say it
        label_column: of csv:PATH, parquet:PATH and hf:PATH; in tables several, with commas, for task regression
        client_column: likewise; its clients are the natural ones
        user_column: of csv:PATH and parquet:PATH: whose record it is, of people with several; the unit is then a user
        records_per_user: of each user the first so many training records of a client are kept
        clients_per_user: at the first so many clients that have some; 1 unless given
        split_column: of csv:PATH and parquet:PATH: says train or test
        feature_columns: all others unless given
        drop: columns of tables that are no features, such as ids
        categories: words of columns of a table, known without looking; each becomes a feature of 0 and 1
        fill: constants for missing values of tables; a number alone: for all columns of numbers
        missing: words that stand for a missing value in tables, beside nothing and ?, such as -9
        no_header: csv:PATH has no line of names: columns are c0, c1, ...; false: its first line is one, whatever it
            looks like
        standardise: columns of tables less a mean M, over a deviation S: public ones, those of a public file, or
            records: computed from the training records, which no epsilon covers
        record_shape: of features that stand in one row, such as 28,28
        length: tokens of a record of text; what is longer is cut, what is shorter padded
        stride: tokens from one record of a text to the next
        windows_per_text: of each text the first so many training records are kept; the unit is then a text
        vocabulary: a public list of words, one a line; else learnt from the training records, without privacy
        vocabulary_size: words of it
        oov_buckets: ids for unknown words
        convention: how tokens are numbered, and text is cut
        subset: of a TFF database, such as digits_only
    """

    task: Annotated[str | None, about("", choices=TASKS)] = None
    label_column: Annotated[str | None, about("", metavar="NAME", default="label")] = None
    client_column: Annotated[str | None, about("", metavar="NAME")] = None
    user_column: Annotated[str | None, about("", metavar="NAME")] = None
    records_per_user: int | None = None
    clients_per_user: Annotated[int | None, about("", default="1")] = None
    split_column: Annotated[str | None, about("", metavar="NAME", default="split")] = None
    feature_columns: Annotated[str | None, about("", metavar="NAME,...")] = None
    drop: Annotated[str | None, about("", metavar="NAME,...")] = None
    categories: Annotated[str | None, about("", metavar="NAME=A|B,...")] = None
    fill: Annotated[str | None, about("", metavar="NAME=X,...")] = None
    missing: Annotated[str | None, about("", metavar="WORD,...")] = None
    no_header: Annotated[bool | None, about("", switch=True)] = None
    standardise: Annotated[str | None, about("", metavar="NAME=M:S,...")] = None
    record_shape: Annotated[str | None, about("", metavar="INT,...")] = None
    length: int | None = None
    stride: int | None = None
    windows_per_text: int | None = None
    vocabulary: Annotated[str | None, about("", metavar="FILE")] = None
    vocabulary_size: int | None = None
    oov_buckets: int | None = None
    convention: Annotated[str | None, about("", choices=("tff", "fedjax", "leaf"))] = None
    subset: Annotated[str | None, about("", metavar="NAME", default="all")] = None

    def require_meant(self, meant: Collection[str], whose: str, remedy: str = "drop it") -> None:
        """Refuse an option that means nothing for what is read."""
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
